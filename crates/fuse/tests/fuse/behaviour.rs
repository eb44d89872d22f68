//! What programs see through a mount: each test runs against the kernel with the model behind our
//! translation. Expectations are those of Linux filesystems, most of them POSIX's.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek as _, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use buttress_fuse::client;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, SeekFrom as Rustix,
    StatxFlags, XattrFlags,
};
use rustix::io::Errno;

use crate::server::{Kind, Mount, PATIENCE, USER, can_mount, spawn};

/// Runs a test on the model and on the engine, mounted for everybody; on the engine also where the kernel asks before it
/// opens a file and keeps no pages from one open to the next.
fn on_each(test: impl Fn(&Mount)) {
    let strict = "allow_other,strictatime";
    let all = [(Kind::Model, strict), (Kind::Engine, strict), (Kind::Engine, "allow_other")];
    for (kind, options) in all.into_iter().filter(|_| can_mount()) {
        let mount = Mount::foreground(kind, None, options);
        fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o777)).unwrap();
        test(&mount);
        mount.end();
    }
}

/// Linux's btrfs looks for it first, and then does not want to find it.
#[test]
fn an_xattr_cannot_be_made_and_replaced() {
    on_each(|mount| {
        let file = open(&mount.path().join("file"));
        let both = XattrFlags::CREATE | XattrFlags::REPLACE;
        let set = |how| rustix::fs::fsetxattr(&file, "user.both", b"value", how);
        assert_eq!(set(both), Err(Errno::NODATA));
        set(XattrFlags::CREATE).unwrap();
        assert_eq!(set(both), Err(Errno::EXIST));
        set(XattrFlags::REPLACE).unwrap();
    });
}

/// What is remembered of a file without xattrs ends with the first one, whoever looks for it at the same time.
#[test]
fn an_xattr_is_there_once_it_is_set() {
    on_each(|mount| {
        let file = open(&mount.path().join("file"));
        let get = |name| {
            let mut value = [0; 8];
            rustix::fs::fgetxattr(&file, name, &mut value).map(|_| u64::from_le_bytes(value))
        };
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let look = || {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    let _whatever_there_is = get("security.a").or_else(|_| get("security.b"));
                }
            };
            (0..2).for_each(|_| _ = scope.spawn(look));
            let is_wrong = |round: &u64| {
                let name = ["security.a", "user.a"][*round as usize % 2];
                rustix::fs::fsetxattr(&file, name, &round.to_le_bytes(), XattrFlags::empty())
                    .unwrap();
                let set = get(name);
                rustix::fs::fremovexattr(&file, name).unwrap();
                (set, get(name)) != (Ok(*round), Err(Errno::NODATA))
            };
            let wrong = (0..2000).find(is_wrong);
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(wrong, None);
        });
        // So it is with ACLs, and with the mode that they and chmod(2) share.
        let script = "for i in 1 2 3; do ls -l file | cut -c1-11; setfacl -m u:9:r file; ls -l file | cut -c1-11; chmod 700 file;
            getfacl -cn file | grep user:9; setfacl -b file; done";
        let said = shell(&mount.path(), 0, script);
        let rounds = [("-rw-r--r--", "-rw-r--r--+")].into_iter();
        let rounds = rounds.chain([("-rwx------", "-rwxr-----+"); 2]);
        let lines =
            rounds.flat_map(|(without, with)| [without, with, "user:9:r--\t#effective:---"]);
        assert!(said.lines().map(str::trim_end).eq(lines), "{said}");
    });
}

/// Runs a shell script in `top` as `uid`; what it prints on both streams.
fn shell(top: &Path, uid: u32, script: &str) -> String {
    let ids = [format!("--reuid={uid}"), format!("--regid={uid}")];
    let mut command = Command::new("setpriv");
    command.args(ids).args(["--clear-groups", "sh", "-c"]);
    command.arg(format!("exec 2>&1; cd '{}'; {script}", top.display()));
    let output = spawn(command.stdout(Stdio::piped())).wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
fn names_come_and_go() {
    on_each(|mount| {
        let top = mount.path();
        assert!(!top.join("a").exists());
        fs::write(top.join("a"), "1").unwrap();
        assert!(top.join("a").exists());
        fs::hard_link(top.join("a"), top.join("b")).unwrap();
        assert_eq!(fs::metadata(top.join("a")).unwrap().nlink(), 2);
        fs::remove_file(top.join("a")).unwrap();
        assert_eq!(fs::metadata(top.join("b")).unwrap().nlink(), 1);
        symlink("some/where", top.join("s")).unwrap();
        assert_eq!(fs::read_link(top.join("s")).unwrap(), Path::new("some/where"));
        fs::create_dir(top.join("d")).unwrap();
        fs::write(top.join("d/x"), "").unwrap();
        assert_eq!(fs::remove_dir(top.join("d")).unwrap_err().raw_os_error(), Some(39));
        let long = "n".repeat(256);
        assert_eq!(fs::write(top.join(long), "").unwrap_err().raw_os_error(), Some(36));
        fs::write(top.join("n".repeat(255)), "").unwrap();
    });
}

#[test]
fn renames_with_every_flag() {
    on_each(|mount| {
        let top = mount.path();
        let at = |name: &str| top.join(name);
        let rename = |from, to, flags| rustix::fs::renameat_with(CWD, at(from), CWD, at(to), flags);
        fs::create_dir(at("d")).unwrap();
        fs::write(at("a"), "a").unwrap();
        fs::write(at("d/b"), "b").unwrap();
        assert_eq!(rename("a", "d/b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
        rename("a", "d/b", RenameFlags::EXCHANGE).unwrap();
        assert_eq!(fs::read(at("a")).unwrap(), b"b");
        assert_eq!(fs::read(at("d/b")).unwrap(), b"a");
        rename("a", "d/b", RenameFlags::empty()).unwrap();
        assert!(!at("a").exists());
        assert_eq!(fs::read(at("d/b")).unwrap(), b"b");
        rename("d/b", "c", RenameFlags::WHITEOUT).unwrap();
        assert_eq!(fs::symlink_metadata(at("d/b")).unwrap().rdev(), 0);
        assert_eq!(fs::read(at("c")).unwrap(), b"b");
    });
}

#[test]
fn a_whiteout_belongs_to_who_leaves_it() {
    on_each(|mount| {
        let script = "import ctypes; open('a', 'w'); \
                      print(ctypes.CDLL(None).renameat2(-100, b'a', -100, b'b', 4))";
        fs::write(mount.path().with_extension("py"), script).unwrap();
        let said = shell(&mount.path(), USER, "python3 ../mnt.py; stat -c '%u %F %t,%T' a");
        if said.contains("not found") {
            println!("skipped: needs python3");
            return;
        }
        assert_eq!(said, format!("0\n{USER} character special file 0,0"));
    });
}

#[test]
fn special_files_and_their_numbers() {
    on_each(|mount| {
        let path = mount.path().join("node");
        for (major, minor) in [(8, 1), (259, 300), (10, 229)] {
            let device = rustix::fs::makedev(major, minor);
            let mode = Mode::from_raw_mode(0o640);
            rustix::fs::mknodat(CWD, &path, FileType::BlockDevice, mode, device).unwrap();
            let metadata = fs::metadata(&path).unwrap();
            assert_eq!(metadata.rdev(), device);
            assert_eq!(metadata.mode(), 0o060_640 & !0o022);
            fs::remove_file(&path).unwrap();
        }
    });
}

#[test]
fn contents_and_holes() {
    on_each(|mount| {
        let mut file = open(&mount.path().join("file"));
        let big: Vec<u8> = (0..5_000_000u32).map(|i| (i % 253) as u8).collect();
        file.write_all(&big).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut back = Vec::new();
        file.read_to_end(&mut back).unwrap();
        assert!(back == big);
        file.set_len(10_000).unwrap();
        file.write_all_at(b"end", 20_000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 20_003);
        let mut middle = [1u8; 10];
        file.read_exact_at(&mut middle, 9_995).unwrap();
        assert_eq!(middle[..5], big[9_995..10_000]);
        assert_eq!(middle[5..], [0; 5]);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 0, 4096).unwrap();
        file.read_exact_at(&mut middle, 4091).unwrap();
        assert_eq!(middle[..5], [0; 5]);
        assert_eq!(middle[5..], big[4096..4101]);
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 30_000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 30_000);
        let collapse = FallocateFlags::COLLAPSE_RANGE;
        assert_eq!(rustix::fs::fallocate(&file, collapse, 0, 4096), Err(Errno::OPNOTSUPP));
        // The model has no holes but the one at the end.
        let (hole, data) = if mount.kind == Kind::Model { (30_000, 0) } else { (0, 4096) };
        assert_eq!(rustix::fs::seek(&file, Rustix::Hole(0)).unwrap(), hole);
        assert_eq!(rustix::fs::seek(&file, Rustix::Data(0)).unwrap(), data);
        assert_eq!(rustix::fs::seek(&file, Rustix::Data(30_000)), Err(Errno::NXIO));
        // Before the beginning, as on Linux's btrfs: from there.
        assert_eq!(rustix::fs::seek(&file, Rustix::Hole(u64::MAX)).unwrap(), hole);
        assert_eq!(rustix::fs::seek(&file, Rustix::Data(1 << 63)).unwrap(), data);
    });
}

#[test]
fn copies_inside_the_mount() {
    on_each(|mount| {
        let (from, to) = (mount.path().join("from"), mount.path().join("to"));
        let big: Vec<u8> = (0..3_000_000u32).map(|i| (i % 241) as u8).collect();
        fs::write(&from, &big).unwrap();
        fs::write(&to, "to be replaced").unwrap();
        let (source, target) = (open(&from), open(&to));
        let mut copied = 0;
        while copied < big.len() as u64 {
            let (mut here, mut there) = (copied, copied);
            let length = big.len() - copied as usize;
            copied += rustix::fs::copy_file_range(
                &source,
                Some(&mut here),
                &target,
                Some(&mut there),
                length,
            )
            .unwrap() as u64;
        }
        assert!(fs::read(&to).unwrap() == big);
    });
}

#[test]
fn an_unlinked_file_lives_while_it_is_open() {
    on_each(|mount| {
        let path = mount.path().join("gone");
        let mut file = open(&path);
        file.write_all(b"still").unwrap();
        fs::remove_file(&path).unwrap();
        assert!(!path.exists());
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        file.write_all(b" here").unwrap();
        let mut bytes = [0; 10];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"still here");
    });
}

#[test]
fn a_file_without_a_name_can_get_one() {
    on_each(|mount| {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let file = File::from(rustix::fs::open(mount.path(), flags, Mode::from(0o600)).unwrap());
        file.write_all_at(b"new", 0).unwrap();
        let descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let path = mount.path().join("named");
        rustix::fs::linkat(CWD, descriptor, CWD, &path, AtFlags::SYMLINK_FOLLOW).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().nlink(), 1);
    });
}

#[test]
fn listings_are_complete_while_names_change() {
    on_each(|mount| {
        let directory = mount.path().join("many");
        fs::create_dir(&directory).unwrap();
        for i in 0..3000 {
            File::create(directory.join(format!("a-rather-long-name-{i:05}"))).unwrap();
        }
        let mut seen = HashSet::new();
        for (i, entry) in fs::read_dir(&directory).unwrap().enumerate() {
            let entry = entry.unwrap();
            assert!(entry.file_type().unwrap().is_file());
            assert!(seen.insert(entry.file_name()), "twice: {:?}", entry.file_name());
            fs::remove_file(entry.path()).unwrap();
            File::create(directory.join(format!("new-{i}"))).unwrap();
            if i == 5000 {
                break;
            }
        }
        let old = seen.iter().filter(|name| name.to_str().unwrap().starts_with("a-")).count();
        assert_eq!(old, 3000);
        let inodes: HashSet<u64> = fs::read_dir(&directory)
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().ino())
            .collect();
        assert_eq!(inodes.len(), fs::read_dir(&directory).unwrap().count());
    });
}

#[test]
fn attributes_and_times() {
    on_each(|mount| {
        let path = mount.path().join("file");
        let file = open(&path);
        let statx = |flags| rustix::fs::statx(CWD, &path, AtFlags::empty(), flags).unwrap();
        let before = statx(StatxFlags::BASIC_STATS | StatxFlags::BTIME);
        assert!(StatxFlags::from_bits_retain(before.stx_mask).contains(StatxFlags::BTIME));
        assert_eq!(before.stx_btime.tv_sec, before.stx_mtime.tv_sec);
        let old = std::time::SystemTime::UNIX_EPOCH - std::time::Duration::from_millis(1500);
        file.set_times(fs::FileTimes::new().set_accessed(old).set_modified(old)).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (-2, 500_000_000));
        assert!(metadata.ctime() > 0);
        file.write_all_at(b"x", 0).unwrap();
        assert!(fs::metadata(&path).unwrap().mtime() > 0);
        assert_eq!(fs::metadata(&path).unwrap().atime(), -2);
        file.read_exact_at(&mut [0; 1], 0).unwrap();
        drop(file);
        let space = rustix::fs::statvfs(mount.path()).unwrap();
        assert_eq!((space.f_bsize, space.f_namemax), (4096, 255));
        let blocks = if mount.kind == Kind::Model { 1 << 18 } else { 1 << 17 };
        assert_eq!(space.f_blocks, blocks);
        assert_eq!(fs::metadata(mount.path()).unwrap().ino(), 256);
    });
}

#[test]
fn extended_attributes() {
    on_each(|mount| {
        let path = mount.path().join("file");
        let file = open(&path);
        let set = |name, value: &[u8], flags| rustix::fs::fsetxattr(&file, name, value, flags);
        set("user.a", b"value", XattrFlags::CREATE).unwrap();
        assert_eq!(set("user.a", b"", XattrFlags::CREATE), Err(Errno::EXIST));
        assert_eq!(set("user.b", b"", XattrFlags::REPLACE), Err(Errno::NODATA));
        set("trusted.b", b"", XattrFlags::empty()).unwrap();
        let mut buffer = [0u8; 64];
        assert_eq!(rustix::fs::fgetxattr(&file, "user.a", &mut buffer), Ok(5));
        assert_eq!(&buffer[..5], b"value");
        assert_eq!(rustix::fs::fgetxattr(&file, "user.a", &mut buffer[..3]), Err(Errno::RANGE));
        assert_eq!(rustix::fs::fgetxattr(&file, "user.c", &mut buffer), Err(Errno::NODATA));
        let length = rustix::fs::flistxattr(&file, &mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"trusted.b\0user.a\0");
        rustix::fs::fremovexattr(&file, "user.a").unwrap();
        assert_eq!(rustix::fs::fremovexattr(&file, "user.a"), Err(Errno::NODATA));
    });
}

#[test]
fn set_id_bits_end_with_writes_and_new_owners() {
    on_each(|mount| {
        let path = mount.path().join("program");
        fs::write(&path, "x").unwrap();
        let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
        let set = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        set(0o6777);
        shell(&mount.path(), USER, "echo more >>program");
        assert_eq!(mode(), 0o777);
        set(0o6777);
        shell(&mount.path(), USER, "truncate -s 1 program");
        assert_eq!(mode(), 0o777);
        // Without group execution the bit stays for those of the group.
        set(0o6767);
        shell(&mount.path(), USER, "echo more >>program");
        assert_eq!(mode(), 0o767);
        std::os::unix::fs::chown(&path, None, Some(USER)).unwrap();
        set(0o6767);
        shell(&mount.path(), USER, "echo more >>program");
        assert_eq!(mode(), 0o2767);
        set(0o6777);
        fs::write(&path, "by root, who may keep them").unwrap();
        assert_eq!(mode(), 0o6777);
        std::os::unix::fs::chown(&path, Some(USER), None).unwrap();
        assert_eq!(mode(), 0o777);
    });
}

#[test]
fn the_kernel_checks_permissions() {
    on_each(|mount| {
        let top = mount.path();
        fs::write(top.join("secret"), "").unwrap();
        fs::set_permissions(top.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
        assert!(shell(&top, USER, "cat secret").contains("Permission denied"));
        assert!(shell(&top, USER, "chmod 666 secret").contains("Operation not permitted"));
        assert_eq!(
            shell(&top, USER, "umask 027; mkdir d; : >d/f; stat -c '%u %a' d d/f"),
            "1000 750\n1000 640"
        );
        fs::set_permissions(&top, fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(shell(&top, USER, "rm -f secret").contains("Operation not permitted"));
        assert!(shell(&top, USER + 1, "ls d").contains("Permission denied"));
        fs::create_dir(top.join("shared")).unwrap();
        std::os::unix::fs::chown(top.join("shared"), None, Some(77)).unwrap();
        fs::set_permissions(top.join("shared"), fs::Permissions::from_mode(0o2777)).unwrap();
        let made = "cd shared; : >f; mkdir d; stat -c '%g %a' f d";
        assert_eq!(shell(&top, USER, made), "77 644\n77 2755");
    });
}

#[test]
fn fakeroot_as_an_ordinary_user() {
    if !can_mount() || !crate::server::users().contains(&Some(USER)) {
        return;
    }
    let mount = Mount::foreground(Kind::Model, Some(USER), "fakeroot");
    let script = ": >f; chown 7:8 f; chmod 0 f; cat f && stat -c '%u:%g %a' f; \
                  mknod n b 8 1; mkdir d; stat -c '%u:%g' d";
    let said = shell(&mount.path(), USER, script);
    assert_eq!(said, "7:8 0\nmknod: n: Operation not permitted\n0:0");
}

#[test]
fn control_attributes_and_the_kernels_caches() {
    on_each(|mount| {
        let top = mount.path();
        let path = top.join("sub");
        assert!(client::is_live(&top) && !client::is_live(Path::new("/")));
        assert!(!path.exists());
        assert_eq!(fs::read_dir(&top).unwrap().count(), 0);
        client::create_subvolume(&path).unwrap();
        assert!(path.exists());
        assert_eq!(fs::read_dir(&top).unwrap().count(), 1);
        assert_eq!(client::create_subvolume(&path), Err(Errno::EXIST));
        client::delete_subvolume(&path).unwrap();
        assert!(!path.exists());
        assert_eq!(fs::read_dir(&top).unwrap().count(), 0);
        fs::write(top.join("file"), "kept").unwrap();
        client::snapshot(&top, &path, true).unwrap();
        assert!(path.exists());
        if mount.kind == Kind::Model {
            assert_eq!(client::snapshot(&path, &top.join("t"), true), Err(Errno::INVAL));
            assert_eq!(client::subvolume(&path).unwrap().name, "a\nb");
            assert_eq!(client::subvolumes(&top).unwrap().len(), 995);
            assert_eq!(client::facts(&top).unwrap().label, b"model");
            assert_eq!(client::spaces(&top), Err(Errno::NOTTY));
        } else {
            subvolumes_of_the_engine(&top, &path);
        }
        let names = shell(&top, 0, "getfattr -d -m - . ");
        assert_eq!(names, "");
    });
}

fn subvolumes_of_the_engine(top: &Path, path: &Path) {
    assert_eq!(fs::read(path.join("file")).unwrap(), b"kept");
    let refused = fs::write(path.join("new"), "").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    let facts = client::subvolume(path).unwrap();
    assert_eq!((facts.name.to_str(), facts.parent, facts.read_only), (Some("sub"), 5, true));
    assert_eq!(fs::metadata(path).unwrap().ino(), facts.id << 40 | 256);
    client::set_read_only(path, false).unwrap();
    fs::write(path.join("file"), "changed").unwrap();
    assert_eq!(fs::read(top.join("file")).unwrap(), b"kept");
    assert!(fs::rename(top.join("file"), path.join("other")).is_err());
    let ids: Vec<u64> = client::subvolumes(top).unwrap().iter().map(|facts| facts.id).collect();
    assert_eq!(ids, [5, facts.id]);
    client::set_default(path).unwrap();
    assert_eq!(client::default_subvolume(top).unwrap(), facts.id);
    client::set_default(top).unwrap();
    client::set_label(top, b"new").unwrap();
    let whole = client::facts(top).unwrap();
    assert_eq!(
        (whole.label.as_slice(), whole.nodesize, whole.devices.len()),
        (&b"new"[..], 16384, 1)
    );
    assert!(client::spaces(top).unwrap().iter().all(|space| space.used <= space.total));
    fs::create_dir_all(path.join("a/b")).unwrap();
    assert_eq!(client::path_in_subvolume(&path.join("a/b")).unwrap(), b"a/b");
    let held = || {
        let figures = client::stats(top).unwrap();
        figures.iter().find(|(name, _)| name == "held_by_kernel").unwrap().1
    };
    (0..100).for_each(|at| fs::write(path.join(format!("a/b/{at}")), "").unwrap());
    let before = held();
    assert!(before >= 100, "{before}");
    client::delete_subvolume(path).unwrap();
    // The kernel says so in its own time.
    let deadline = Instant::now() + PATIENCE;
    while held() > before - 100 {
        assert!(Instant::now() < deadline, "{} of {before} are held", held());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!path.exists());
    client::commit(top).unwrap();
}

#[test]
fn ioctls_of_btrfs() {
    on_each(|mount| {
        let script = r#"
import fcntl, os, struct
d = os.open('.', os.O_RDONLY)
info = bytearray(1024)
fcntl.ioctl(d, 0x8400941f, info)
print(struct.unpack_from('<I', info, 32)[0])
def call(number, *args): fcntl.ioctl(d, number, bytearray(struct.pack(*args)))
call(0x5000940e, '<q4088s', 0, b'made')
print(os.path.isdir('made'))
call(0x50009417, '<qQQ32x4040s', d, 0, 2, b'snap')
print(os.path.isdir('snap'))
call(0x50009401, '<q4088s', d, b'first')
print(os.path.isdir('first'), os.access('first', os.W_OK))
call(0x5000940f, '<q4088s', 0, b'made')
print(os.path.exists('made'))
for number in (0x5000940f, 0x9499):
    try: call(number, '<q4088s', 0, b'none')
    except OSError as e: print(e.errno)
"#;
        fs::write(mount.path().with_extension("py"), script).unwrap();
        let said = shell(&mount.path(), 0, "python3 ../mnt.py");
        if said.contains("not found") {
            println!("skipped: needs python3");
            return;
        }
        let want = "16384\nTrue\nTrue\nTrue True\nFalse\n2\n25";
        assert_eq!(said, want);
        let refused = shell(&mount.path(), USER, "python3 ../mnt.py");
        assert!(refused.contains("PermissionError"), "{refused}");
    });
}

/// A listing ends where the directory did when it began, whatever is renamed meanwhile and whoever else lists it.
#[test]
fn a_listing_ends_though_others_list_what_it_renames() {
    let script = r#"
import os, signal
os.mkdir('few')
for i in range(3): open(f'few/f{i}', 'x').close()
reader = os.scandir('few')
got = [next(reader).name for _ in range(3)]
for _ in range(5):
    os.rename('few/f0', 'few/t'); os.rename('few/t', 'few/f0')
    assert sorted(os.listdir('few')) == ['f0', 'f1', 'f2']
    got += [entry.name for entry in reader]
print(sorted(got))
for count in (200, 3000):
    os.mkdir('many')
    for i in range(count): open(f'many/f{i}', 'x').close()
    lister = os.fork()
    while lister == 0:
        names = os.listdir('many')
        assert len(set(names)) == len(names), names
    renamed = 0
    for entry in os.scandir('many'):
        os.rename(entry.path, entry.path + '.x')
        renamed += 1
        if renamed == 5 * count: break
    ended = os.waitpid(lister, os.WNOHANG)[0]
    os.kill(lister, signal.SIGKILL)
    if not ended: os.waitpid(lister, 0)
    names = os.listdir('many')
    print(renamed, ended, len(names), max(map(len, names)) <= len('f1000.x'))
    for name in names: os.unlink('many/' + name)
    os.rmdir('many')
"#;
    on_each(|mount| {
        fs::write(mount.path().with_extension("py"), script).unwrap();
        let said = shell(&mount.path(), 0, "python3 ../mnt.py");
        if said.contains("not found") {
            println!("skipped: needs python3");
            return;
        }
        assert_eq!(said, "['f0', 'f1', 'f2']\n200 0 200 True\n3000 0 3000 True");
    });
}

#[test]
fn access_control_lists() {
    on_each(|mount| {
        let top = mount.path();
        let script = "mkdir d; setfacl -m u:1001:rwx d && setfacl -d -m u:1001:rx,g::r d; umask 077; \
                  : >d/f; mkdir d/s; stat -c %a d d/f d/s; getfacl -ncp d/f; getfacl -ncp d/s; \
                  chmod 604 d/f; getfacl -ncp d/f | grep mask; setfacl -b d/f; stat -c %a d/f; \
                  getfattr -d -m - d/f; setfattr -x system.posix_acl_access d/f; echo $?";
        let said = shell(&top, USER, script);
        if said.contains("not found") {
            println!("skipped: needs setfacl");
            return;
        }
        let want = "775\n644\n755\n\
                user::rw-\nuser:1001:r-x\t#effective:r--\ngroup::r--\nmask::r--\nother::r--\n\n\
                user::rwx\nuser:1001:r-x\ngroup::r--\nmask::r-x\nother::r-x\n\
                default:user::rwx\ndefault:user:1001:r-x\ndefault:group::r--\n\
                default:mask::r-x\ndefault:other::r-x\n\n\
                mask::---\n604\n0";
        assert_eq!(said, want);
        assert_eq!(shell(&top, USER + 1, ": >d/by-acl; stat -c %u d/by-acl"), "1001");
        assert!(shell(&top, USER + 2, ": >d/no").contains("Permission denied"));
    });
}
