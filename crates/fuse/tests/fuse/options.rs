//! What mount options do, on the engine.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use buttress_fuse::client;
use buttress_fuse::options::MountOptions;
use rustix::io::Errno;

use crate::rights::{Kernel, as_root};
use crate::server::{Kind, Mount, USER, can_mount, exists, spawn, users};

fn engine(user: Option<u32>, options: &'static str) -> Option<Mount> {
    can_mount().then(|| Mount::foreground(Kind::Engine, user, options))
}

/// A shell command that must succeed; what it prints.
fn run(user: u32, script: &str) -> String {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={user}"), format!("--regid={user}")]);
    command.args(["--clear-groups", "sh", "-ec", script]);
    let output = spawn(command.stdout(Stdio::piped())).wait_with_output().unwrap();
    assert!(output.status.success(), "{script}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_subvolume_as_the_top() {
    let Some(mount) = engine(None, "") else { return };
    let top = mount.path();
    client::create_subvolume(&top.join("home")).unwrap();
    fs::write(top.join("home/file"), "inside").unwrap();
    let ino = fs::metadata(top.join("home/file")).unwrap().ino();
    client::create_subvolume(&top.join("home/nested")).unwrap();
    assert_eq!(ino >> 40, 256);
    let mount = mount.again("subvol=/home,noatime");
    let top = mount.path();
    assert_eq!(fs::read(top.join("file")).unwrap(), b"inside");
    assert_eq!(fs::metadata(top.join("file")).unwrap().ino(), ino & 0xff_ffff_ffff);
    assert_eq!(fs::metadata(top.join("nested")).unwrap().ino(), 257 << 40 | 256);
    assert_eq!(fs::metadata(top.join("nested/..")).unwrap().ino(), 256);
    client::set_default(&top).unwrap();
    let mount = mount.again("");
    assert!(mount.path().join("nested").exists());
    let mount = mount.again("subvolid=5");
    assert!(mount.path().join("home/nested").exists());
    mount.end();
}

/// Values of options that Linux knows are right here where they are there.
#[test]
fn what_linux_refuses_is_refused() {
    if !can_mount() {
        return;
    }
    let Some(kernel) = Kernel::mount("rw") else { return };
    for word in [
        "compress",
        "compress=",
        "compress=no",
        "compress=zlib:3",
        "compress=zstd",
        "compress=nonsense",
        "compress=zstd:x",
        "compress-force=lzo",
        "compress-force=nonsense",
        "autodefrag",
        "autodefrag=1",
        "ssd",
        "ssd=1",
        "nossd",
        "discard",
        "discard=async",
        "discard=x",
        "nodiscard=1",
        "space_cache=v2",
        "space_cache=v9",
        "thread_pool=4",
        "thread_pool=0",
        "thread_pool=x",
        "thread_pool",
        "metadata_ratio=5",
        "metadata_ratio=x",
        "max_inline=2k",
        "max_inline",
        "nobarrier",
        "nobarrier=1",
        "noflushoncommit",
        "nodatacow=x",
        "enospc_debug=1",
        "skip_balance",
        "skip_balance=1",
        "fatal_errors=bug",
        "fatal_errors=x",
        "rescan_uuid_tree=1",
        "nosuch",
    ] {
        let linux = as_root(&kernel.path(), &format!("mount -o remount,{word} . && echo -n fine"));
        let ours = MountOptions::default().apply(word);
        assert_eq!(ours.is_ok(), linux.ends_with("fine"), "{word}: {linux} {ours:?}");
    }
}

#[test]
fn read_only_writes_nothing() {
    let Some(mount) = engine(None, "") else { return };
    fs::write(mount.path().join("file"), "x").unwrap();
    let mount = mount.again("ro");
    let before = fs::metadata(mount.image()).unwrap().modified().unwrap();
    assert_eq!(fs::read(mount.path().join("file")).unwrap(), b"x");
    let refused = fs::write(mount.path().join("new"), "").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    let image = mount.image();
    let mount = mount.again("ro");
    assert_eq!(fs::metadata(image).unwrap().modified().unwrap(), before);
    mount.end();
}

#[test]
fn an_image_built_by_an_ordinary_user() {
    if !can_mount() || !users().contains(&Some(USER)) {
        return;
    }
    let mount = Mount::foreground(Kind::Engine, Some(USER), "fakeroot");
    let top = mount.path();
    let script = "cd TOP; umask 022; mkdir -p etc/a; echo root >etc/passwd; chmod 400 etc/passwd; \
                  chown 33:44 etc/a; ln -s passwd etc/link; cat etc/passwd; stat -c %u:%g:%a etc/*";
    let said = run(USER, &script.replace("TOP", top.to_str().unwrap()));
    assert_eq!(said, "root\n33:44:755\n0:0:777\n0:0:400\n");
    mount.end();
}

#[test]
fn owners_are_shown_as_asked() {
    let Some(mount) = engine(None, "uid=7,gid=8") else { return };
    fs::write(mount.path().join("file"), "").unwrap();
    let shown = fs::metadata(mount.path().join("file")).unwrap();
    assert_eq!((shown.uid(), shown.gid()), (7, 8));
    let mount = mount.again("");
    assert_eq!(fs::metadata(mount.path().join("file")).unwrap().uid(), 0);
    mount.end();
}

#[test]
fn the_kernel_collects_writes() {
    let Some(mount) = engine(None, "writeback_cache") else { return };
    let path = mount.path().join("file");
    let mut file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
    for i in 0..10_000 {
        writeln!(file, "line {i}").unwrap();
    }
    let length = file.metadata().unwrap().len();
    file.write_all_at(b"LINE", 0).unwrap_or_default();
    file.set_len(length - 3).unwrap();
    // Until then the kernel may still send what it has collected, and that moves the time of the last change.
    file.sync_all().unwrap();
    drop(file);
    let before = fs::read(&path).unwrap();
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let mount = mount.again("");
    assert!(fs::read(mount.path().join("file")).unwrap() == before);
    assert_eq!(fs::metadata(mount.path().join("file")).unwrap().modified().unwrap(), modified);
    mount.end();
}

#[test]
fn what_is_synchronous_survives_a_kill() {
    for options in ["sync", "", "dirsync"] {
        let Some(mut mount) = engine(None, options) else { return };
        let path = mount.path().join("file");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"durable").unwrap();
        if options.is_empty() {
            file.sync_all().unwrap();
            File::open(mount.path()).unwrap().sync_all().unwrap();
        }
        let server = mount.server.as_mut().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
        drop(file);
        let mount = mount.after_kill();
        let found = fs::read(mount.path().join("file")).unwrap();
        // dirsync is about the name alone.
        assert!(found == b"durable" || options == "dirsync");
        mount.end();
    }
}

/// Nor does root join what an ordinary user serves.
#[test]
fn two_servers_never_share_an_image() {
    if !can_mount() {
        return;
    }
    let Some(user) = users().into_iter().flatten().next() else { return };
    let Some(mount) = engine(Some(user), "") else { return };
    let other = tempfile::tempdir().unwrap();
    let error = buttress_fuse::mount(
        &mount.image(),
        other.path(),
        &buttress_fuse::MountOptions::default(),
        buttress_fuse::Ground::Foreground,
    );
    assert!(error.unwrap_err().to_string().contains("busy"));
    mount.end();
}

#[test]
fn inode_flags_that_can_be_kept() {
    let Some(mount) = engine(None, "") else { return };
    if !exists(Command::new("lsattr").arg("-V")) {
        println!("skipped: needs chattr and lsattr");
        return;
    }
    let top = mount.path();
    let shown = |top: &Path| run(0, &format!("cd {}; lsattr -d file dir", top.display()));
    let change = "cd TOP; touch file; mkdir dir; chattr +dAS file; chattr +D dir; \
                  for flag in c C; do ! chattr +$flag file 2>/dev/null; done";
    run(0, &change.replace("TOP", top.to_str().unwrap()));
    let said = shown(&top);
    let flags = |text: &str| -> Vec<String> {
        let first = |line: &str| line.split(' ').next().unwrap_or_default().replace('-', "");
        text.lines().map(first).collect()
    };
    assert_eq!(flags(&said), ["SdA", "D"], "{said}");
    let mount = mount.again("");
    assert_eq!(shown(&mount.path()), said);
    mount.end();
}

/// The kernel does not know these flags of a filesystem behind FUSE: the server keeps their rules.
#[test]
fn immutable_and_append_only_files() {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    let Some(mount) = engine(None, "") else { return };
    let top = mount.path();
    let at = |name: &str| top.join(name);
    for name in ["fixed", "log"] {
        fs::write(at(name), "content").unwrap();
    }
    fs::create_dir_all(at("dir/inner")).unwrap();
    let open = |name: &str| fs::File::open(at(name)).unwrap();
    let set = |name: &str, flags| ioctl_setflags(open(name), flags);
    set("fixed", IFlags::IMMUTABLE).unwrap();
    set("dir", IFlags::IMMUTABLE).unwrap();
    set("log", IFlags::APPEND).unwrap();
    assert_eq!(ioctl_getflags(open("fixed")).unwrap(), IFlags::IMMUTABLE);
    let refused = |result: std::io::Result<()>| {
        assert_eq!(result.map_err(|error| error.raw_os_error()), Err(Some(1)));
    };
    for name in ["fixed", "log"] {
        refused(fs::write(at(name), "other"));
        refused(fs::remove_file(at(name)));
        refused(fs::rename(at(name), at("moved")));
        refused(fs::hard_link(at(name), at("linked")));
        refused(fs::set_permissions(at(name), fs::Permissions::from_mode(0o600)));
        let flags = rustix::fs::XattrFlags::empty();
        refused(rustix::fs::setxattr(at(name), "user.x", b"y", flags).map_err(Into::into));
    }
    refused(fs::write(at("dir/new"), ""));
    refused(fs::remove_dir(at("dir/inner")));
    refused(fs::rename(at("dir/inner"), at("inner")));
    let append = |name: &str| fs::OpenOptions::new().append(true).open(at(name)).unwrap();
    std::io::Write::write_all(&mut append("log"), b", and more").unwrap();
    assert_eq!(fs::read(at("log")).unwrap(), b"content, and more");
    refused(std::io::Write::write_all(&mut append("fixed"), b"more"));
    let mount = mount.again("");
    let top = mount.path();
    refused(fs::write(top.join("fixed"), "other"));
    for name in ["fixed", "log", "dir"] {
        ioctl_setflags(fs::File::open(top.join(name)).unwrap(), IFlags::empty()).unwrap();
    }
    fs::write(top.join("fixed"), "other").unwrap();
    fs::remove_dir(top.join("dir/inner")).unwrap();
    mount.end();
}

/// With the writeback cache the kernel says when a file has changed; that it writes later is no change.
#[test]
fn times_with_the_writeback_cache() {
    let Some(mount) = engine(None, "writeback_cache") else { return };
    let path = mount.path().join("file");
    let file = fs::File::create(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[1; 10_000], 0).unwrap();
    let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    file.set_modified(time).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let mount = mount.again("");
    let path = mount.path().join("file");
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), time);
    mount.end();
}

#[test]
fn access_times_are_shown_as_mounted() {
    let Some(mount) = engine(None, "noatime,nodiratime") else { return };
    if !rustix::process::geteuid().is_root() {
        return mount.end();
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let path = mount.path();
    let line = mounts.lines().find(|line| line.contains(path.to_str().unwrap())).unwrap();
    let options: Vec<_> = line.split(' ').nth(3).unwrap().split(',').collect();
    assert!(options.contains(&"noatime") && options.contains(&"nodiratime"), "{line}");
    mount.end();
}

#[test]
fn strict_access_times_move_with_each_open() {
    let Some(mount) = engine(None, "strictatime") else { return };
    let path = mount.path().join("file");
    fs::write(&path, "read twice").unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000);
    for time in 0..3 {
        let times = fs::FileTimes::new().set_accessed(old);
        OpenOptions::new().write(true).open(&path).unwrap().set_times(times).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().atime(), 1000);
        assert_eq!(fs::read(&path).unwrap(), b"read twice");
        assert!(fs::metadata(&path).unwrap().atime() > 1000, "read {time}");
    }
    mount.end();
}
