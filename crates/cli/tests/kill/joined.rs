//! One filesystem mounted several times: by one daemon, which ends with the last of its mounts.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use buttress_fuse::protocol::mounts;
use buttress_testkit::oracle::{self, LoopDevice};
use rustix::fs::OFlags;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal};

use crate::daemon::{NAMESPACES, Place, buttress, try_buttress, umount, wait_until};

/// What is mounted, and how it is said to be free again.
enum Source {
    Image(PathBuf),
    Disk(LoopDevice),
}

impl Source {
    fn path(&self) -> &Path {
        match self {
            Self::Image(path) => path,
            Self::Disk(disk) => disk.path(),
        }
    }

    /// Whether neither a daemon nor the kernel has it.
    fn is_free(&self, place: &Place) -> bool {
        use std::os::unix::fs::OpenOptionsExt;
        let flags = OFlags::EXCL.bits() as i32;
        let claim = || File::options().read(true).custom_flags(flags).open(self.path()).is_ok();
        // A child that another test has just forked keeps a claim of this process until it runs its program.
        let pause = || {
            std::thread::sleep(Duration::from_millis(10));
            false
        };
        let claimed = || (0..1000).any(|_| claim() || pause());
        place.is_free() && (matches!(self, Self::Image(_)) || claimed())
    }
}

/// A filesystem with two subvolumes.
struct Two {
    place: Place,
    source: Source,
}

impl Two {
    /// As an image, and as a disk.
    fn all() -> Vec<Two> {
        if !oracle::root_or_skip() {
            return Vec::new();
        }
        let mut all = Vec::new();
        for disk in [false, true] {
            let Some(place) = Place::new() else { return Vec::new() };
            for name in ["@", "@home"] {
                let path = format!("{}:/{name}", place.image().display());
                buttress(&["subvolume", "create", "-q", &path], &[]);
            }
            let source = match disk {
                true => Source::Disk(LoopDevice::attach(&place.image()).unwrap()),
                false => Source::Image(place.image()),
            };
            all.push(Two { place, source });
        }
        all
    }

    /// A directory to mount on.
    fn at(&self, name: &str) -> PathBuf {
        let path = self.place.mountpoint().join(name);
        let _there_or_a_dead_mount = fs::create_dir_all(&path);
        path
    }

    fn mount(&self, options: &str, name: &str) -> PathBuf {
        let path = self.at(name);
        buttress(&["mount", "-o", options], &[self.source.path(), &path]);
        path
    }

    fn fails(&self, options: &str, name: &str) -> String {
        try_buttress(&["mount", "-o", options], &[self.source.path(), &self.at(name)]).unwrap_err()
    }

    /// In the foreground.
    fn start(&self, options: &str, name: &str) -> Child {
        let path = self.at(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_buttress"));
        command.args(["mount", "-f", "-o", options]).arg(self.source.path()).arg(&path);
        let mut child = command.stdin(Stdio::null()).spawn().unwrap();
        wait_until("the mount", || {
            assert!(child.try_wait().unwrap().is_none(), "no mount");
            is_mounted(&path)
        });
        child
    }

    /// Nothing is mounted any more, and nobody has the image.
    fn ended(&self) {
        assert!(self.place.is_free(), "somebody still has the image open");
        assert!(self.source.is_free(&self.place), "somebody still has the disk");
        oracle::check(self.source.path(), true).unwrap();
    }

    /// Bytes of a file, by the command.
    fn read(&self, path: &str) -> Vec<u8> {
        let copy = self.place.image().with_extension("copy");
        let from = format!("{}:{path}", self.source.path().display());
        buttress(&["cp", &from], &[&copy]);
        fs::read(copy).unwrap()
    }
}

impl Drop for Two {
    /// Takes off what a failed test has left.
    fn drop(&mut self) {
        let top = self.place.mountpoint();
        for mount in mounts::all().unwrap_or_default() {
            if mount.mountpoint.starts_with(&top) {
                let _perhaps_gone = rustix::mount::unmount(&mount.mountpoint, UnmountFlags::DETACH);
            }
        }
    }
}

fn is_mounted(path: &Path) -> bool {
    mounts::at(path).unwrap().is_some_and(|mount| mount.is_ours())
}

fn signal(child: &Child, signal: Signal) {
    rustix::process::kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn each_subvolume_has_its_mount() {
    for two in Two::all() {
        for first_goes_first in [true, false] {
            let top = two.mount("subvol=@,commit=300", "top");
            let home = two.mount("subvol=/@home", "home");
            let whole = two.mount("subvolid=5", "whole");
            fs::write(top.join("file"), "of the first").unwrap();
            fs::write(home.join("file"), "of the second").unwrap();
            assert_eq!(fs::read(whole.join("@/file")).unwrap(), b"of the first");
            assert_eq!(fs::read(whole.join("@home/file")).unwrap(), b"of the second");
            // Both ways, whatever the kernel remembers.
            fs::write(whole.join("@/file"), "changed").unwrap();
            assert_eq!(fs::read(top.join("file")).unwrap(), b"changed");
            fs::rename(whole.join("@home/file"), whole.join("@home/other")).unwrap();
            assert!(!home.join("file").exists() && home.join("other").exists());
            fs::remove_file(whole.join("@/file")).unwrap();
            assert!(!top.join("file").exists());
            // No other number than where it is mounted alone.
            assert_eq!(fs::metadata(&top).unwrap().ino(), 256);
            assert!(!top.join("../@home").exists() && !home.join("@").exists());
            umount(&whole);
            let (first, last) = if first_goes_first { (&top, &home) } else { (&home, &top) };
            umount(first);
            assert!(!is_mounted(first) && is_mounted(last));
            assert!(!two.source.is_free(&two.place));
            fs::write(last.join("many"), vec![7; 24 << 20]).unwrap();
            umount(last);
            two.ended();
            let path = if first_goes_first { "/@home/many" } else { "/@/many" };
            assert!(two.read(path) == vec![7; 24 << 20]);
        }
    }
}

#[test]
fn umount_of_the_system_waits_for_the_last_commit() {
    for two in Two::all().into_iter().filter(|two| matches!(two.source, Source::Disk(_))) {
        let top = two.mount("subvol=@,commit=300", "top");
        let home = two.mount("subvol=@home", "home");
        fs::write(top.join("first"), vec![1; 8 << 20]).unwrap();
        fs::write(home.join("second"), vec![2; 8 << 20]).unwrap();
        let nobody_makes_any = NAMESPACES.read();
        for path in [&top, &home] {
            let mut command = Command::new("umount");
            oracle::start_while("target is busy", command.arg("-i").arg(path)).unwrap();
            assert!(!is_mounted(path));
        }
        // The kernel's own btrfs takes the disk at once.
        let kernel = two.at("kernel");
        let mut mount = Command::new("mount");
        mount.args(["-t", "btrfs", "-o", "subvol=@home"]).arg(two.source.path()).arg(&kernel);
        assert!(mount.status().unwrap().success());
        drop(nobody_makes_any);
        assert!(fs::read(kernel.join("second")).unwrap() == vec![2; 8 << 20]);
        let mut umount = Command::new("umount");
        let done = oracle::start_while("target is busy", umount.arg(&kernel)).unwrap();
        assert!(done.status.success(), "{done:?}");
        two.ended();
    }
}

#[test]
fn the_same_again_and_read_only() {
    for two in Two::all() {
        let first = two.mount("subvol=@", "first");
        let second = two.mount("subvol=@", "second");
        let read_only = two.mount("ro,nosuid,nodev,noexec,subvol=@", "third");
        fs::write(second.join("file"), "x").unwrap();
        for other in [&first, &read_only] {
            assert_eq!(fs::read(other.join("file")).unwrap(), b"x");
        }
        let refused = fs::write(read_only.join("file"), "y").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
        let refused = try_buttress(&["subvolume", "create"], &[&read_only.join("sub")]);
        assert!(refused.unwrap_err().contains("Read-only file system"));
        let text = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = |path: &Path| {
            let path = format!(" {} ", path.display());
            text.lines().find(|line| line.contains(&path)).unwrap().to_owned()
        };
        assert!(line(&read_only).contains(" ro,nosuid,nodev,noexec"), "{text}");
        assert!(line(&second).contains(" rw,relatime"), "{text}");
        for (options, place) in
            [("subvol=@", "second"), ("subvol=@home", "second"), ("ro", "first")]
        {
            let said = two.fails(options, place);
            assert!(said.contains("it is mounted there already"), "{said}");
        }
        for path in [&first, &read_only] {
            umount(path);
            assert!(!is_mounted(path));
        }
        assert_eq!(fs::read(second.join("file")).unwrap(), b"x");
        umount(&second);
        two.ended();
    }
}

#[test]
fn options_of_all_mounts_agree() {
    for two in Two::all() {
        let top = two.mount("subvol=@,commit=120,noatime,allow_other", "top");
        for (options, word, how) in [
            ("allow_other,commit=7", "commit=7", "without"),
            ("allow_other,memory=64M", "memory=67108864", "without"),
            ("allow_other,writeback_cache", "writeback_cache", "without"),
            ("allow_other,strictatime", "strictatime", "without"),
            ("noatime", "allow_other", "with"),
        ] {
            let said = two.fails(&format!("{options},subvol=@home"), "home");
            let expected = format!(
                "mount option `{word}`: the filesystem is mounted on {} {how} it",
                top.display()
            );
            assert!(said.contains(&expected), "{said}");
            assert!(!is_mounted(&two.at("home")));
        }
        for (options, why) in [
            ("subvol=none", "subvolume none does not exist"),
            ("subvolid=999", "subvolume 999 does not exist"),
            ("subvol=@home,subvolid=256", "is not the one with id 256"),
        ] {
            let said = two.fails(&format!("allow_other,{options}"), "home");
            assert!(said.contains(why), "{options}: {said}");
        }
        fs::create_dir(top.join("plain")).unwrap();
        let said = two.fails("allow_other,subvol=@/plain", "home");
        assert!(said.contains("@/plain is not a subvolume"), "{said}");
        buttress(&["subvolume", "create", "-q"], &[&top.join("plain/deep")]);
        for options in ["subvol=@/plain/deep", "subvolid=258", "subvolid=257,subvol=/@home"] {
            let deep = two.mount(&format!("allow_other,commit=120,{options}"), "home");
            umount(&deep);
        }
        umount(&top);
        two.ended();
    }
}

/// As at boot those of fstab.
#[test]
fn mounts_side_by_side() {
    for two in Two::all() {
        for _ in 0..5 {
            let start = |subvolume: &str, number: u32| {
                let path = two.at(&format!("{subvolume}{number}"));
                let mut command = Command::new(env!("CARGO_BIN_EXE_buttress"));
                command.args(["mount", "-o", &format!("subvol={subvolume}")]);
                (command.arg(two.source.path()).arg(&path).spawn().unwrap(), path)
            };
            let started: Vec<_> =
                (0..3).flat_map(|number| [start("@", number), start("@home", number)]).collect();
            let mut paths = Vec::new();
            for (mut child, path) in started {
                assert!(child.wait().unwrap().success(), "{path:?}");
                paths.push(path);
            }
            let devices: Vec<u64> =
                paths.iter().map(|path| fs::metadata(path).unwrap().dev()).collect();
            assert!(devices.iter().all(|device| *device == devices[0]), "{devices:?}");
            for path in &paths {
                umount(path);
            }
            two.ended();
        }
    }
}

#[test]
fn a_signal_ends_all_mounts() {
    for two in Two::all() {
        let mut daemon = two.start("subvol=@,commit=300", "top");
        let home = two.mount("subvol=@home", "home");
        fs::write(home.join("file"), "kept").unwrap();
        // A file that is open keeps nothing from ending.
        let mut open = File::create(home.join("open")).unwrap();
        open.write_all(b"too").unwrap();
        signal(&daemon, Signal::TERM);
        assert!(daemon.wait().unwrap().success());
        assert!(!is_mounted(&two.at("top")) && !is_mounted(&home));
        drop(open);
        two.ended();
        assert_eq!(two.read("/@home/file"), b"kept");
        assert_eq!(two.read("/@home/open"), b"too");
    }
}

#[test]
fn a_later_mount_in_the_foreground_ends_by_itself() {
    for two in Two::all() {
        let top = two.mount("subvol=@,commit=300", "top");
        for by_signal in [true, false] {
            let mut joined = two.start("subvol=@home", "home");
            let home = two.at("home");
            fs::write(home.join("file"), "kept").unwrap();
            match by_signal {
                true => signal(&joined, Signal::INT),
                false => umount(&home),
            }
            assert!(joined.wait().unwrap().success());
            assert!(!is_mounted(&home) && is_mounted(&top));
        }
        // It serves nothing: when it dies, nobody else is the worse for it.
        let mut joined = two.start("subvol=@home", "home");
        joined.kill().unwrap();
        joined.wait().unwrap();
        assert_eq!(fs::read(two.at("home").join("file")).unwrap(), b"kept");
        umount(&two.at("home"));
        umount(&top);
        two.ended();
    }
}

#[test]
fn all_mounts_die_with_their_daemon() {
    for two in Two::all() {
        let mut daemon = two.start("subvol=@,commit=300", "top");
        let home = two.mount("subvol=@home", "home");
        fs::write(home.join("file"), "kept").unwrap();
        File::open(home.join("file")).unwrap().sync_all().unwrap();
        fs::write(home.join("many"), vec![5; 24 << 20]).unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        for path in [&two.at("top"), &home] {
            let refused = rustix::fs::statvfs(path).err();
            // Any of them, where the kernel still takes back the rings of the process.
            let dead = [
                rustix::io::Errno::NOTCONN,
                rustix::io::Errno::CONNABORTED,
                rustix::io::Errno::CANCELED,
            ];
            assert!(refused.is_some_and(|why| dead.contains(&why)), "{refused:?}");
            let said = try_buttress(&["umount", "-l"], &[path]).unwrap_err();
            assert!(said.contains("the last changes may be lost"), "{said}");
            assert_ne!(rustix::fs::statvfs(path).err(), refused, "it is still mounted");
        }
        wait_until("the image", || two.source.is_free(&two.place));
        let home = two.mount("subvol=@home", "home");
        assert_eq!(fs::read(home.join("file")).unwrap(), b"kept");
        umount(&home);
        two.ended();
    }
}

/// Whoever serves a mount decides what is in it.
#[test]
fn nobody_joins_the_mount_of_another_user() {
    const USER: &str = "1000";
    let by_user = |path: &Path| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", USER, "--regid", USER, "--clear-groups", "--"]).arg(path);
        command
    };
    let open = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    for two in Two::all().into_iter().filter(|two| matches!(two.source, Source::Image(_))) {
        if fs::metadata("/dev/fuse").unwrap().mode() & 0o006 != 0o006 {
            println!("skipped: /dev/fuse is closed to ordinary users");
            return;
        }
        let above = two.place.mountpoint();
        let program = above.with_file_name("buttress");
        let copy = ["-p", env!("CARGO_BIN_EXE_buttress"), program.to_str().unwrap()];
        assert!(Command::new("cp").args(copy).status().unwrap().success());
        open(above.parent().unwrap(), 0o777);
        open(&program, 0o755);
        open(two.source.path(), 0o666);
        let theirs = two.at("theirs");
        std::os::unix::fs::chown(&theirs, Some(1000), Some(1000)).unwrap();
        let try_user = || {
            let mut command = by_user(&program);
            command.args(["mount", "-o", "subvol=@home"]).arg(two.source.path()).arg(&theirs);
            command.output().unwrap()
        };
        let ours = two.mount("subvol=@,allow_other", "ours");
        let said = try_user();
        assert!(!said.status.success());
        assert!(String::from_utf8_lossy(&said.stderr).contains("is busy"), "{said:?}");
        umount(&ours);
        let said = try_user();
        assert!(said.status.success(), "{said:?}");
        let said = two.fails("subvol=@", "ours");
        assert!(said.contains("is busy"), "{said}");
        // Another subvolume is not below that mount.
        let other = two.at("other");
        std::os::unix::fs::chown(&other, Some(1000), Some(1000)).unwrap();
        let mut command = by_user(&program);
        command.args(["mount", "-o", "subvol=@"]).arg(two.source.path()).arg(&other);
        let said = String::from_utf8(command.output().unwrap().stderr).unwrap();
        let hint = format!(
            "\n  It is mounted on {}, as one of its subvolumes: unmount it, and mount all of it with -o subvolid=5.\n",
            theirs.display()
        );
        assert!(said.ends_with(&hint), "{said}");
        let said = by_user(&program).arg("umount").arg(&theirs).output().unwrap();
        assert!(said.status.success(), "{said:?}");
        two.ended();
    }
}

/// A process of an ordinary user that has the image and /dev/fuse open.
struct Reader(Child);

impl Reader {
    fn of(image: &Path) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "1000", "--regid", "1000", "--clear-groups", "--", "sh", "-c"]);
        command.arg(r#"exec 3<>/dev/fuse 4<"$0"; echo; exec cat"#).arg(image);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let out = child.stdout.as_mut().unwrap();
        std::io::Read::read_exact(out, &mut [0]).unwrap();
        Self(child)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ended = self.0.wait();
    }
}

#[test]
fn a_reader_of_the_image_is_not_taken_for_its_daemon() {
    for two in Two::all().into_iter().filter(|two| matches!(two.source, Source::Image(_))) {
        if fs::metadata("/dev/fuse").unwrap().mode() & 0o006 != 0o006 {
            println!("skipped: /dev/fuse is closed to ordinary users");
            return;
        }
        let above = two.place.image().parent().unwrap().to_owned();
        fs::set_permissions(above, fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(two.source.path(), fs::Permissions::from_mode(0o644)).unwrap();
        let top = two.mount("subvol=@,commit=300", "top");
        let reader = Reader::of(two.source.path());
        let home = two.mount("subvol=@home", "home");
        umount(&home);
        fs::write(top.join("many"), vec![7; 24 << 20]).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_buttress"));
        let output = oracle::start_while("it is busy", command.arg("umount").arg(&top)).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("stays mounted"), "{said}");
        assert!(two.source.is_free(&two.place), "umount has not waited");
        drop(reader);
        two.ended();
    }
}

#[test]
fn umount_of_the_source_takes_off_all_its_mounts() {
    for two in Two::all() {
        let top = two.mount("subvol=@,commit=300", "top");
        let home = two.mount("subvol=@home", "home");
        let again = two.mount("subvol=@", "again");
        let below = two.mount("subvol=@home", "again/below");
        fs::write(home.join("many"), vec![7; 24 << 20]).unwrap();
        umount(two.source.path());
        for path in [&top, &home, &again, &below] {
            assert!(!is_mounted(path), "{path:?}");
        }
        two.ended();
        // What is busy stays.
        let top = two.mount("subvol=@,commit=300", "top");
        let home = two.mount("subvol=@home", "home");
        let open = File::create(top.join("open")).unwrap();
        let said = try_buttress(&["umount"], &[two.source.path()]).unwrap_err();
        assert!(said.contains(&format!("cannot unmount {}: it is busy", top.display())), "{said}");
        assert!(is_mounted(&top) && !is_mounted(&home));
        drop(open);
        umount(two.source.path());
        two.ended();
    }
}

/// Whatever else is done to it.
#[test]
fn a_later_mount_in_the_foreground_ends_when_it_is_taken_off() {
    use rustix::mount::{MountFlags, mount_move, mount_remount};
    for two in Two::all() {
        let whole = two.mount("subvolid=5,commit=300", "whole");
        let mut joined = two.start("subvol=@home", "home");
        let mut home = two.at("home");
        fs::rename(whole.join("@home"), whole.join("@other")).unwrap();
        mount_remount(&home, MountFlags::BIND | MountFlags::RDONLY, "").unwrap();
        // Not where copies of mounts are made below its directory.
        let moved = two.at("moved");
        if mount_move(&home, &moved).is_ok() {
            home = moved;
        }
        std::thread::sleep(std::time::Duration::from_secs(1));
        assert!(joined.try_wait().unwrap().is_none() && is_mounted(&home));
        signal(&joined, Signal::INT);
        assert!(joined.wait().unwrap().success());
        assert!(!is_mounted(&home) && is_mounted(&whole));
        umount(&whole);
        two.ended();
    }
}

/// What is asked of the whole filesystem is answered through each mount.
#[test]
fn a_snapshot_has_what_was_written_through_another_mount() {
    for two in Two::all() {
        let whole = two.mount("commit=300", "whole");
        let home = two.mount("subvol=@home", "home");
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(true);
        let file = options.open(home.join("mapped")).unwrap();
        file.set_len(4096).unwrap();
        let mapped = buttress_testkit::mapped::Mapped::shared(&file, 4096).unwrap();
        mapped.write(5, b"dirty").unwrap();
        buttress(&["subvolume", "snapshot"], &[&whole.join("@home"), &whole.join("snapshot")]);
        assert_eq!(&fs::read(whole.join("snapshot/mapped")).unwrap()[5..10], b"dirty");
        drop((mapped, file));
        // A subvolume that is deleted is gone for each of them.
        buttress(&["subvolume", "delete"], &[&whole.join("snapshot")]);
        let path = two.at("gone");
        let said = try_buttress(&["mount", "-o", "subvol=snapshot"], &[two.source.path(), &path]);
        assert!(said.unwrap_err().contains("does not exist"));
        umount(&whole);
        umount(&home);
        two.ended();
    }
}

/// Whoever has no right to the whole filesystem knows what he could find on the mounts that he sees, and no more.
#[test]
fn what_is_not_mounted_is_not_to_be_found() {
    const BARE: &[&str] = &["--bounding-set=-all", "--inh-caps=-all"];
    const USER: &[&str] = &["--reuid=1000", "--regid=1000", "--clear-groups"];
    let run = |place: &Path, before: &str, who: &[&str], script: &str| {
        let who = who.join(" ");
        let made = |path: &&Path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".tmp"))
        };
        let own = place.ancestors().find(made).unwrap().display();
        // What other tests have mounted would be kept here when they unmount it.
        let others = format!(
            "grep -E \" - (fuse|btrfs)\" /proc/self/mountinfo | cut -d\" \" -f5 | grep -v \"^{own}/\" | xargs -r umount -l"
        );
        let script = format!(
            "{others} >/dev/null 2>&1; exec 2>&1; {before} exec setpriv {who} sh -c '{script}'"
        );
        let mut command = Command::new("unshare");
        // A private one would keep what other tests unmount.
        let elsewhere = ["--mount", "--propagation", "slave", "sh", "-c", &script];
        command.args(elsewhere).current_dir(place).stdin(Stdio::null());
        let _others_wait = NAMESPACES.write();
        String::from_utf8(command.output().unwrap().stdout).unwrap().trim().to_owned()
    };
    let names = |place: &Path, before: &str, who: &[&str]| {
        let list = "getfattr --only-values -n buttress.subvolumes.0 .";
        let said = run(place, before, who, list);
        let names: Vec<_> = said.lines().filter_map(|line| line.strip_prefix("name=")).collect();
        names.join(" ")
    };
    for two in Two::all() {
        let whole = two.mount("subvolid=5", "whole");
        fs::create_dir(whole.join("@home/u")).unwrap();
        for path in ["@/of-user", "@home/u/mine"] {
            buttress(&["subvolume", "create", "-q"], &[&whole.join(path)]);
        }
        for path in ["@/of-user", "@home/u", "@home/u/mine"] {
            std::os::unix::fs::chown(whole.join(path), Some(1000), Some(1000)).unwrap();
        }
        fs::write(whole.join("@/secret"), "of root").unwrap();
        let id = |path: &str| buttress_fuse::client::subvolume(&whole.join(path)).unwrap().id;
        let (root, of_user) = (id("@"), id("@/of-user"));
        let closed = |path: &str, mode| {
            fs::set_permissions(whole.join(path), fs::Permissions::from_mode(mode)).unwrap();
        };
        closed("@/secret", 0o600);
        umount(&whole);

        let home = two.mount("subvol=@home,allow_other", "home");
        let snapshot = |before: &str, who: &[&str], source: u64| {
            let value = format!("{} ro s", source << 40 | 256);
            let word = format!("setfattr -n buttress.snapshot -v \"{value}\" .");
            run(&home.join("u"), before, who, &word)
        };
        let refused = "setfattr: .: Permission denied";
        let hides = |before: &str| {
            for source in [root, 5] {
                // The directory is not to be what refuses.
                std::os::unix::fs::chown(home.join("u"), Some(0), Some(0)).unwrap();
                assert_eq!(snapshot(before, BARE, source), refused, "{source} {before}");
                std::os::unix::fs::chown(home.join("u"), Some(1000), Some(1000)).unwrap();
            }
            assert_eq!(snapshot(before, USER, of_user), refused, "{before}");
            for who in [BARE, USER] {
                assert_eq!(names(&home, before, who), " @home mine", "{who:?} {before}");
                for word in ["subvolume", "place"] {
                    let script = format!("getfattr -n buttress.{word}.{root} .");
                    let said = run(&home, before, who, &script);
                    assert!(said.contains("Permission denied"), "{said}");
                }
            }
            assert!(!home.join("u/s").exists());
        };
        hides("");
        assert_eq!(names(&home, "", &["--reuid=0"]), " @ @home of-user mine");

        // Who sees it mounted may find it, if nothing covers it.
        let top = two.mount("subvol=@,allow_other", "top");
        for who in [BARE, USER] {
            assert_eq!(names(&home, "", who), " @ @home of-user mine", "{who:?}");
        }
        assert_eq!(snapshot("", USER, of_user), "");
        buttress(&["subvolume", "delete"], &[&home.join("u/s")]);
        hides(&format!("umount -i {} || exit;", top.display()));
        hides(&format!("mount -t tmpfs none {} || exit;", top.display()));
        // Of a directory of it what lies below.
        let [top_path, home_path] = [&top, &home].map(|path| path.display());
        let bind = format!("mount --bind {home_path}/u {top_path} && cd {top_path} || exit;");
        assert_eq!(names(&home, &format!("{bind} umount -l {home_path};"), USER), " mine");
        let none = format!("umount -l {top_path}; umount -l {home_path};");
        assert_eq!(names(&home, &none, USER), "");
        umount(&top);

        // What lies above the mount is not asked for a permission.
        let whole = two.mount("subvolid=5,allow_other", "whole");
        fs::set_permissions(&whole, fs::Permissions::from_mode(0o700)).unwrap();
        umount(&whole);
        let own = "setfattr -n buttress.snapshot -v \"$(stat -c %i mine) rw copy\" .";
        assert_eq!(run(&home.join("u"), "", USER, own), "");
        assert_eq!(names(&home, "", USER), " @home mine copy");
        umount(&home);
        two.ended();
    }
}
