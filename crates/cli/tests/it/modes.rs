//! `chmod` and `chown` on unmounted images, and modes of copies.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use buttress_testkit::oracle::{self, KernelMount, root_or_skip};

use crate::live::Live;
use crate::run::{Place, have_progs};

fn image() -> Place {
    let place = Place::new();
    fs::create_dir_all(place.join("tree/dir/below")).unwrap();
    for name in ["tree/file", "tree/dir/inner", "tree/dir/below/deep"] {
        fs::write(place.join(name), "x").unwrap();
    }
    symlink("file", place.join("tree/link")).unwrap();
    symlink("../file", place.join("tree/dir/link")).unwrap();
    place.ok("mkfs -q --size 200M --rootdir tree disk.img");
    place
}

fn mode(place: &Place, path: &str) -> u32 {
    let found = place.json(&format!("stat disk.img:/{path}"));
    u32::from_str_radix(found[0]["mode"].as_str().unwrap(), 8).unwrap()
}

#[test]
fn modes_in_digits_and_letters() {
    let place = image();
    for (spec, want) in [
        ("4640", 0o4640),
        ("u=rwx,g=rx,o=", 0o750),
        ("-x", 0o640),
        ("a+X", 0o640),
        ("=rw", 0o644),
        ("+t", 0o1644),
        ("00600", 0o600),
    ] {
        let mut command = Command::new("sh");
        let script = format!("umask 022; exec \"$0\" chmod {spec} disk.img:/file");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_buttress")]).current_dir(place.path());
        assert!(command.status().unwrap().success(), "{spec}");
        assert_eq!(mode(&place, "file"), want, "{spec}");
    }
}

#[test]
fn trees_and_links() {
    let place = image();
    place.ok("chmod -R u=rwX,go= disk.img:/dir");
    assert_eq!(
        ["dir", "dir/below", "dir/inner", "dir/below/deep", "file"].map(|it| mode(&place, it)),
        [0o700, 0o700, 0o600, 0o600, 0o644]
    );
    // A link's own target changes where it is named, not where it is met.
    place.ok("chmod 600 disk.img:/link");
    assert_eq!((mode(&place, "file"), mode(&place, "link")), (0o600, 0o777));
    place.ok("chown 1234:+5678 disk.img:/link");
    place.ok("chown -h :77 disk.img:/link");
    place.ok("chown -R 4711 disk.img:/dir");
    let owner = |path: &str| {
        let found = place.json(&format!("stat disk.img:/{path}"));
        (found[0]["uid"].as_u64().unwrap(), found[0]["gid"].as_u64().unwrap())
    };
    let (_, gid) = owner("dir/below");
    assert_eq!(owner("file"), (1234, 5678));
    assert_eq!(owner("link").1, 77);
    for path in ["dir", "dir/below/deep", "dir/link", "dir/inner"] {
        assert_eq!(owner(path), (4711, gid), "{path}");
    }
    place.ok("chown root:root disk.img:/dir/inner");
    assert_eq!(owner("dir/inner"), (0, 0));
    // A new owner does not get what the old one's bit gave.
    place.ok("chmod 6755 disk.img:/file");
    place.ok("chown 1 disk.img:/file");
    assert_eq!(mode(&place, "file"), 0o755);
    // The top directory, too.
    place.ok("chown 1000:1000 disk.img");
    place.ok("chmod 1777 disk.img");
    assert_eq!((owner(""), mode(&place, "")), ((1000, 1000), 0o1777));
    let said = place.run("chown nobody-has-this-name disk.img:/file");
    assert_eq!(said.code, 2, "{}", said.err);
    assert!(said.err.contains("there is no user nobody-has-this-name"), "{}", said.err);
    assert_eq!(place.run("chmod u+q disk.img:/file").code, 2);
    let said = place.fails("chmod 755 disk.img:/none disk.img:/dir/inner");
    assert!(said.contains("cannot find disk.img:/none"), "{said}");
    assert_eq!(mode(&place, "dir/inner"), 0o755);
    if have_progs() {
        place.check("disk.img");
    }
}

#[test]
fn an_acl_says_what_the_mode_says() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: an ordinary user's files may have no ACL here");
        return;
    }
    let place = image();
    let Some(live) = Live::of(&place, "") else { return };
    let mut entries = vec![2u8, 0, 0, 0];
    for (tag, bits, id) in [
        (1u16, 6u16, u32::MAX),
        (2, 7, 4242),
        (4, 4, u32::MAX),
        (16, 7, u32::MAX),
        (32, 4, u32::MAX),
    ] {
        entries.extend(tag.to_le_bytes());
        entries.extend(bits.to_le_bytes());
        entries.extend(id.to_le_bytes());
    }
    let name = "system.posix_acl_access";
    let path = place.join("mnt/file");
    rustix::fs::setxattr(&path, name, &entries, rustix::fs::XattrFlags::empty()).unwrap();
    live.end();
    assert_eq!(mode(&place, "file"), 0o674);
    place.ok("chmod 640 disk.img:/file");
    let live = Live::of(&place, "").unwrap();
    let mut value = [0; 100];
    let len = rustix::fs::getxattr(&path, name, &mut value).unwrap();
    // The mask follows the group's bits, as chmod does.
    entries[4 + 3 * 8 + 2] = 4;
    entries[4 + 4 * 8 + 2] = 0;
    assert_eq!(value[..len], entries);
    place.ok("chmod g+w mnt/file");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o660);
    live.end();
}

/// What a directory is to hold is nobody's business before it has its owner and mode.
#[test]
fn a_directory_is_the_copiers_alone_until_it_is_full() {
    let place = Place::new();
    let from = place.join("from");
    fs::create_dir(&from).unwrap();
    // Said by name, these are more than a pipe holds: the copy stands still until somebody reads.
    for number in 0..1000 {
        fs::write(from.join(format!("{number:0200}")), "").unwrap();
    }
    fs::set_permissions(&from, Permissions::from_mode(0o750)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_buttress"));
    command.args(["cp", "-a", "-v", "from", "to"]).current_dir(place.path());
    let copy = command.stdout(Stdio::piped()).spawn().unwrap();
    let mode = || fs::metadata(place.join("to")).map(|it| it.mode() & 0o777);
    let until = Instant::now() + Duration::from_secs(60);
    while mode().is_err() && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(mode().unwrap(), 0o700);
    assert!(copy.wait_with_output().unwrap().status.success());
    assert_eq!(mode().unwrap(), 0o750);
}

/// The mode of a new subvolume by umask and default ACL, and how what is in it is to be compressed: here, on a mount, and on Linux.
#[test]
fn new_subvolumes_begin_as_on_linux() {
    if !root_or_skip() || !have_progs() {
        return;
    }
    let place = Place::new();
    oracle::mkfs(&place.join("disk.img"), 256 << 20, &[]).unwrap();
    let sh = |at: &Path, script: &str| {
        let mut command = Command::new("sh");
        oracle::run(command.args(["-e", "-c", script]).current_dir(at)).unwrap();
    };
    let mounted = |script: &str| {
        let mount = KernelMount::new(&place.join("disk.img"), "").unwrap();
        sh(mount.path(), script);
        mount.finish().unwrap();
    };
    mounted(
        "mkdir acl plain; setfacl -d -m u::rwx,g::r,o::- acl; mkdir zlib; btrfs property set . compression zstd:9
         btrfs property set zlib compression zlib; for dir in acl plain zlib; do for mask in 022 027 077; do
         (umask $mask; btrfs -q subvolume create $dir/theirs$mask); done; done",
    );
    let ours = env!("CARGO_BIN_EXE_buttress");
    let made = "for dir in acl plain zlib; do for mask in 022 027 077; do (umask $mask; ";
    sh(
        place.path(),
        &format!("{made} {ours} -q subvolume create disk.img:/$dir/ours$mask); done; done"),
    );
    if Path::new("/dev/fuse").exists() {
        fs::create_dir(place.join("mnt")).unwrap();
        place.ok("mount disk.img mnt");
        sh(
            place.path(),
            &format!("{made} {ours} -q subvolume create mnt/$dir/live$mask); done; done"),
        );
        assert_eq!(place.umount("mnt").code, 0);
    }
    place.check("disk.img");
    let mount = KernelMount::new(&place.join("disk.img"), "ro").unwrap();
    let facts = |dir: &str, name: &str| {
        let path = mount.path().join(dir).join(name);
        let mut value = vec![0; 100];
        let compression = rustix::fs::getxattr(&path, "btrfs.compression", &mut value[..]);
        value.truncate(compression.unwrap_or(0));
        let acl = rustix::fs::getxattr(&path, "system.posix_acl_default", &mut [0_u8; 0][..]).ok();
        (path.metadata().unwrap().mode(), value, acl)
    };
    for dir in ["acl", "plain", "zlib"] {
        for mask in ["022", "027", "077"] {
            let theirs = facts(dir, &format!("theirs{mask}"));
            assert_eq!(theirs.1, b"zstd", "{dir} {mask}");
            assert_eq!(facts(dir, &format!("ours{mask}")), theirs, "{dir} {mask}");
            if place.join("mnt").exists() {
                assert_eq!(facts(dir, &format!("live{mask}")), theirs, "{dir} {mask}, mounted");
            }
        }
    }
    mount.finish().unwrap();
}
