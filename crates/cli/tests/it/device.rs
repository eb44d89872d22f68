//! Devices that are not as they should be, or not ours alone: damaged superblocks, other writers, neighbours; and who may
//! write to what he has made.

use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use buttress_testkit::oracle::LoopDevice;

use crate::live::Live;
use crate::run::{KernelMount, Place, have_progs};

const PRIMARY: u64 = 64 << 10;
const MIRROR: u64 = 64 << 20;

fn image() -> Place {
    let place = Place::new();
    place.ok("mkfs -q --size 256M disk.img");
    place
}

fn read(place: &Place, at: u64) -> [u8; 4096] {
    let mut bytes = [0; 4096];
    std::fs::File::open(place.join("disk.img")).unwrap().read_exact_at(&mut bytes, at).unwrap();
    bytes
}

fn write(place: &Place, at: u64, bytes: &[u8]) {
    let file = std::fs::File::options().write(true).open(place.join("disk.img")).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// Commits after the copy was written the primary is damaged: nothing that exits well may lose them.
#[test]
fn an_old_copy_of_the_superblock_is_written_on_from_on_request_only() {
    for behind in [1, 6] {
        let place = image();
        place.ok("mkdir disk.img:/first");
        let old = read(&place, MIRROR);
        for number in 0..behind {
            place.ok(&format!("mkdir disk.img:/{number}"));
        }
        let list = place.ok("ls disk.img");
        write(&place, MIRROR, &old);
        let whole = read(&place, PRIMARY);
        write(&place, PRIMARY + 0x60, &[0x5a]);
        let before = std::fs::read(place.join("disk.img")).unwrap();

        let said = place.fails("mkdir disk.img:/lost");
        assert!(said.contains("the primary superblock is bad"), "{said}");
        let lacks = match behind {
            1 => "may lack the last commit".to_owned(),
            _ => format!("may lack the last {behind} commits"),
        };
        assert!(said.contains(&lacks), "{said}");
        assert!(said.contains("--rescue usebackupsuper"), "{said}");
        let said = place.run("ls disk.img");
        // What only an older commit leads to may have been written over; what the last but one does is all there.
        assert!(said.code == 1 || said.text() == "first\n", "{}", said.text());
        assert!(said.code == 1 || said.err.contains(&lacks), "{}", said.err);
        assert!(behind > 1 || said.code == 0, "{}", said.err);
        assert!(before == std::fs::read(place.join("disk.img")).unwrap(), "something was written");

        // They are still there for who can put the primary right.
        write(&place, PRIMARY, &whole);
        assert_eq!(place.ok("ls disk.img"), list);
        write(&place, PRIMARY + 0x60, &[0x5a]);
        let said = place.run("--rescue usebackupsuper mkdir disk.img:/saved");
        assert!(behind > 1 || said.code == 0, "{}", said.err);
        if said.code == 0 {
            assert_eq!(place.ok("ls disk.img"), "first\nsaved\n");
            place.ok("check disk.img");
        }
    }
}

#[test]
fn a_mount_asks_the_same() {
    let place = image();
    place.ok("mkdir disk.img:/first");
    write(&place, PRIMARY, &[0; 512]);
    if !std::path::Path::new("/dev/fuse").exists() {
        println!("skipped: there is no /dev/fuse");
        return;
    }
    std::fs::create_dir(place.join("mnt")).unwrap();
    let said = place.fails("mount disk.img mnt");
    assert!(said.contains("-o rescue=usebackupsuper"), "{said}");
    let said = place.run("mount -o ro disk.img mnt");
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(place.join("mnt/first").exists());
    assert_eq!(place.umount("mnt").code, 0);
    let said = place.run("mount -o rescue=usebackupsuper disk.img mnt");
    assert_eq!(said.code, 0, "{}", said.err);
    std::fs::create_dir(place.join("mnt/second")).unwrap();
    assert_eq!(place.umount("mnt").code, 0);
    assert_eq!(place.ok("ls disk.img"), "first\nsecond\n");
}

#[test]
fn older_roots_are_read_by_on_request() {
    let place = image();
    place.ok("mkdir disk.img:/first");
    place.ok("mkdir disk.img:/second");
    let sb = &place.json("inspect-internal dump-super disk.img")[0];
    let root = sb["root"].as_u64().unwrap();
    // Both copies of the root tree's root.
    let text = place.ok("inspect-internal dump-tree -t chunk disk.img");
    assert!(text.contains("DUP"), "{text}");
    let bytes = std::fs::read(place.join("disk.img")).unwrap();
    let is_root = |block: &[u8]| block.get(48..56) == Some(&root.to_le_bytes()[..]);
    let places = (1 << 20..bytes.len()).step_by(4096);
    let copies: Vec<usize> = places.filter(|at| is_root(&bytes[*at..])).collect();
    assert!(copies.len() >= 2, "{copies:?}");
    for at in copies {
        write(&place, at as u64 + 200, &[0x99; 64]);
    }
    assert_eq!(place.run("ls disk.img").code, 1);
    let said = place.run("--rescue usebackuproot ls disk.img");
    assert_eq!((said.code, said.text().as_str()), (0, "first\n"), "{}", said.err);
    assert!(said.err.contains("cannot be read"), "{}", said.err);
    let said = place.run("--rescue usebackuproot mkdir disk.img:/x");
    assert!(said.code == 1 && said.err.contains("for reading"), "{}", said.err);
}

/// An image that Linux has mounted may change while it is read, and is never written to.
#[test]
fn an_image_that_linux_has_mounted() {
    let place = image();
    let Some(mount) = KernelMount::of(&place, "disk.img") else { return };
    let said = place.run("ls disk.img");
    let point = mount.path().display().to_string();
    assert_eq!(said.code, 0);
    assert!(said.err.contains("warning") && said.err.contains(&point), "{}", said.err);
    let said = place.fails("mkdir disk.img:/x");
    assert!(said.contains("busy") && said.contains(&point), "{said}");
    drop(mount);
    place.ok("mkdir disk.img:/x");
    // Mounted read-only nothing changes, and there is nothing to warn of.
    let Some(mount) = KernelMount::read_only(&place, "disk.img") else { return };
    place.ok("ls disk.img");
    drop(mount);
}

/// What we have mounted is not written by way of a loop device.
#[test]
fn an_image_that_we_have_mounted_on_a_loop_device() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: loop devices need root");
        return;
    }
    let place = image();
    let Some(live) = Live::of(&place, "") else { return };
    let disk = LoopDevice::attach(&place.join("disk.img")).unwrap();
    let name = disk.path().display().to_string();
    let said = place.fails(&format!("mkdir {name}:/x"));
    assert!(said.contains("busy") && said.contains("disk.img"), "{said}");
    live.end();
    drop(disk);
}

/// Nor is what is mounted of a loop device waited for by who names the image: nobody is about to end that mount.
#[test]
fn an_image_whose_loop_device_we_have_mounted() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: loop devices need root");
        return;
    }
    let place = image();
    let disk = LoopDevice::attach(&place.join("disk.img")).unwrap();
    let Some(live) = Live::at(&place, &format!("{} mnt", disk.path().display())) else { return };
    std::fs::create_dir(place.join("other")).unwrap();
    for words in ["mount disk.img other", "mkdir disk.img:/x"] {
        let said = place.fails(words);
        assert!(said.contains("busy") && !said.contains("waiting for"), "{said}");
    }
    live.end();
    drop(disk);
}

/// Linux writes to an image by way of a loop device while we have it mounted: we notice, and write no more over it.
#[test]
fn what_linux_has_written_meanwhile_is_not_written_over() {
    if !rustix::process::geteuid().is_root() || !have_progs() {
        println!("skipped: loop devices need root and btrfs-progs");
        return;
    }
    let place = image();
    let Some(live) = Live::of(&place, "-o commit=300") else { return };
    std::fs::write(place.join("mnt/ours"), b"ours").unwrap();
    place.progs("btrfs", "filesystem label disk.img theirs");
    let said = place.fails("filesystem sync mnt");
    assert!(said.contains("cannot sync mnt") && said.contains("another program has written"));
    let said = place.umount("mnt");
    assert!(said.code == 1 && said.err.contains("another program has written"), "{}", said.err);
    drop(live);
    assert_eq!(place.ok("filesystem label disk.img"), "theirs\n");
    place.check("disk.img");
}

/// Somebody cuts an image short below its mount: no lock keeps him from it, but nobody is told that what he writes is safe, nor
/// is the image made long again by what would be written behind its end.
#[test]
fn an_image_that_is_cut_short_is_told_to_those_who_write() {
    use std::io::Write;
    for keep in [(256 << 20) - 4096, 100 << 20, 0] {
        let place = image();
        let Some(live) = Live::of(&place, "-o commit=300") else { return };
        let data = vec![7; 96 << 20];
        let mut file = std::fs::File::create(place.join("mnt/file")).unwrap();
        file.write_all(&data).unwrap();
        file.sync_all().unwrap();
        let cut = std::fs::File::options().write(true).open(place.join("disk.img")).unwrap();
        cut.set_len(keep).unwrap();
        file.write_all(b"more").unwrap();
        let error = file.sync_all().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{error}");
        let error = std::fs::create_dir(place.join("mnt/new")).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{error}");
        drop(file);
        let said = place.umount("mnt");
        let what = format!(
            "disk.img has been cut short while it was open: it has {keep} bytes, the filesystem takes {}",
            256 << 20
        );
        assert!(said.code == 1 && said.err.contains(&what), "{}", said.err);
        drop(live);
        assert_eq!(cut.metadata().unwrap().len(), keep);
        let said = place.fails("mkdir disk.img:/new");
        match keep {
            0 => {
                assert!(said.contains("no btrfs filesystem"), "{said}");
                continue;
            }
            _ => {
                assert!(said.contains(&format!("has {keep} bytes, the filesystem takes")), "{said}")
            }
        }
        let said = place.run("cat disk.img:/file");
        if keep > 100 << 20 {
            assert!(said.code == 0 && said.out == data, "{}", said.err);
        } else {
            assert!(said.code == 1 && data.starts_with(&said.out), "{}", said.err);
            let past_end = format!("is past the end of disk.img ({keep} bytes)");
            assert!(said.err.contains(&past_end), "{}", said.err);
        }
    }
}

/// What is written behind the end of a cut image is refused at once, while the commit is still far.
#[test]
fn an_image_that_is_cut_short_does_not_grow_again() {
    let place = image();
    let Some(live) = Live::of(&place, "-o commit=300") else { return };
    let cut = std::fs::File::options().write(true).open(place.join("disk.img")).unwrap();
    cut.set_len(50 << 20).unwrap();
    let error = std::fs::write(place.join("mnt/file"), vec![7; 96 << 20]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{error}");
    assert_eq!(cut.metadata().unwrap().len(), 50 << 20);
    assert_eq!(place.umount("mnt").code, 1);
    drop(live);
    assert_eq!(cut.metadata().unwrap().len(), 50 << 20);
}

#[test]
fn a_file_grows_only_when_a_filesystem_comes_of_it() {
    let place = image();
    let len = || place.join("disk.img").metadata().unwrap().len();
    place.fails("mkfs --size 300M disk.img");
    assert_eq!(len(), 256 << 20);
    assert_eq!(place.run("mkfs -f --size 300M -L bad\tlabel -n 5000 disk.img").code, 2);
    place.fails("mkfs -f --size 300M --nodesize 4096 -M -m dup -d single disk.img");
    assert_eq!(len(), 256 << 20);
    place.ok("mkfs -q -f -b 200M disk.img");
    assert_eq!(len(), 256 << 20);
    place.ok("mkfs -q -f --size 200M disk.img");
    assert_eq!(len(), 256 << 20);
    place.ok("mkfs -q -f --size 300M disk.img");
    assert_eq!(len(), 300 << 20);
}

fn owner(place: &Place, image: &str) -> (u64, u64) {
    let facts = &place.json(&format!("stat {image}:/"))[0];
    (facts["uid"].as_u64().unwrap(), facts["gid"].as_u64().unwrap())
}

#[test]
fn the_top_directory_is_its_makers() {
    let place = Place::new();
    std::fs::create_dir(place.join("tree")).unwrap();
    let me = place.join("tree").metadata().unwrap();
    place.ok("mkfs -q --size 200M mine.img");
    assert_eq!(owner(&place, "mine.img"), (me.uid().into(), me.gid().into()));
    place.ok("mkfs -q --size 200M --owner 12:34 given.img");
    assert_eq!(owner(&place, "given.img"), (12, 34));
    place.ok("mkfs -q --size 200M --owner root:root --rootdir tree filled.img");
    assert_eq!(owner(&place, "filled.img"), (0, 0));
    assert_eq!(place.run("mkfs -q --size 200M --owner 1 bad.img").code, 2);
    if have_progs() {
        place.check("given.img");
    }
}

/// Opens a place to everybody; the program in it, for whoever cannot reach the directory in which it was built.
pub fn for_everybody(place: &Place) -> PathBuf {
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(place.path(), 0o777);
    let program = place.join("buttress");
    // Copied by another process: a child that another test has forked and that does not run its program yet would hold what
    // this one writes to, and what is written to cannot be run.
    let copy = ["-p", env!("CARGO_BIN_EXE_buttress"), program.to_str().unwrap()];
    assert!(Command::new("cp").args(copy).status().unwrap().success());
    open(&program, 0o755);
    program
}

/// As with Linux's own btrfs, whoever may read there may have all made durable.
#[test]
fn an_ordinary_user_syncs_what_root_has_mounted() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: becoming another user needs root");
        return;
    }
    let place = image();
    let program = for_everybody(&place);
    let Some(live) = Live::of(&place, "-o allow_other") else { return };
    std::fs::write(place.join("mnt/file"), "content").unwrap();
    let mut command = Command::new(program);
    command.args(["filesystem", "sync", "mnt"]).current_dir(place.path()).uid(1001).gid(1002);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // What is committed is there for whoever copies the image now.
    std::fs::copy(place.join("disk.img"), place.join("copy.img")).unwrap();
    assert_eq!(place.ok("cat copy.img:/file"), "content");
    live.end();
}

#[test]
fn an_ordinary_user_writes_to_what_he_has_made() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: becoming another user needs root");
        return;
    }
    let place = Place::new();
    let program = for_everybody(&place);
    let as_user = |line: &str, seeded: bool| {
        let mut command = Command::new(&program);
        command.args(line.split(' ')).current_dir(place.path()).uid(1001).gid(1002);
        if seeded {
            command.env("DETERMINISTIC_SEED", "1");
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{line}: {said}");
    };
    as_user("mkfs -q --size 200M disk.img", false);
    assert_eq!(owner(&place, "disk.img"), (1001, 1002));
    let uuid = "01234567-89ab-cdef-0123-456789abcdef";
    as_user(&format!("mkfs -q --size 200M -U {uuid} same.img"), true);
    assert_eq!(owner(&place, "same.img"), (0, 0), "the same bytes whoever makes them");
}

#[test]
fn an_ordinary_user_copies_what_is_read_only() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: becoming another user needs root");
        return;
    }
    let place = Place::new();
    let program = for_everybody(&place);
    let mode = |name: &str| std::fs::metadata(place.join(name)).unwrap().mode() & 0o7777;
    let set = |name: &str, mode| {
        std::fs::set_permissions(place.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    place.ok("mkfs -q --size 200M disk.img");
    std::fs::write(place.join("file"), "content").unwrap();
    set("file", 0o446);
    place.ok("cp -p file disk.img:/");
    set("disk.img", 0o644);
    for (from, to) in [("file", "copy"), ("disk.img:/file", "out")] {
        let mut command = Command::new(&program);
        command.args(["cp", from, to]).current_dir(place.path()).uid(1001).gid(1002);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(std::fs::read_to_string(place.join(to)).unwrap(), "content");
        // Without what this process's umask, 022, takes.
        assert_eq!(mode(to), 0o444);
    }
}

#[test]
fn an_image_that_may_not_be_read_is_said_to_be_one() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: becoming another user needs root");
        return;
    }
    let place = Place::new();
    let program = for_everybody(&place);
    place.ok("mkfs -q --size 200M disk.img");
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(place.join("disk.img"), private).unwrap();
    for line in ["filesystem du disk.img", "subvolume list disk.img", "inspect rootid disk.img"] {
        let mut command = Command::new(&program);
        command.args(line.split(' ')).current_dir(place.path()).uid(1001).gid(1002);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        assert!(said.contains("disk.img") && said.contains("Permission denied"), "{line}: {said}");
        assert!(said.contains("may not open it"), "{line}: {said}");
    }
}

#[test]
fn an_image_that_linux_has_mounted_by_a_name_that_is_gone_is_not_written_to() {
    let place = Place::new();
    place.ok("mkfs -q --size 128M disk.img");
    std::fs::hard_link(place.join("disk.img"), place.join("other.img")).unwrap();
    std::fs::write(place.join("note"), "acknowledged").unwrap();
    let Some(mount) = KernelMount::of(&place, "disk.img") else { return };
    std::fs::remove_file(place.join("disk.img")).unwrap();
    let said = place.fails("cp note other.img:/");
    assert!(said.contains("same id"), "{said}");
    drop(mount);
    place.ok("cp note other.img:/");
    assert_eq!(place.ok("cat other.img:/note"), "acknowledged");
}

#[test]
fn a_disk_that_a_mounted_loop_device_stands_on_is_not_written_to() {
    let place = Place::new();
    place.ok("mkfs -q --size 128M disk.img");
    std::fs::write(place.join("note"), "acknowledged").unwrap();
    if !rustix::process::geteuid().is_root() {
        println!("skipped: loop devices are for root only");
        return;
    }
    let below = LoopDevice::attach(&place.join("disk.img")).unwrap();
    let above = LoopDevice::attach(below.path()).unwrap();
    let said = place.fails(&format!("cp note {}:/", below.path().display()));
    assert!(said.contains("backs the loop device"), "{said}");
    drop(above);
    place.ok(&format!("cp note {}:/", below.path().display()));
}
