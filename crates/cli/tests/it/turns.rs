//! Who else uses an image: commands take turns, strangers are named, and what is in use is neither moved nor removed.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use buttress_testkit::oracle::{self, LoopDevice};

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat, renameat};

use crate::live::Live;
use crate::run::{KernelMount, Place, Said, have_progs};

fn image() -> Place {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    fs::write(place.join("one"), "one").unwrap();
    place
}

fn start(place: &Place, line: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_buttress"));
    command.args(line.split_whitespace()).current_dir(place.path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// A program that has a lock on a file until it is told to end.
struct Locked(Child);

impl Locked {
    fn new(place: &Place, how: &str) -> Locked {
        let mut command = Command::new("flock");
        command.args([how, "-n", "disk.img", "sh", "-c", "echo; exec cat"]);
        command.current_dir(place.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = child.stdout.as_mut().unwrap();
        std::io::Read::read_exact(out, &mut [0]).unwrap();
        Locked(child)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ended = self.0.wait();
    }
}

#[test]
fn commands_take_turns() {
    let place = image();
    for number in 0..20 {
        fs::write(place.join(&format!("file{number}")), format!("{number} ")).unwrap();
    }
    for round in 0..rounds() {
        place.ok(&format!("mkdir disk.img:/{round}"));
        let line = |number: u32| match number % 10 {
            // Readers and others are in the way for a moment, too.
            8 => format!("cat disk.img:/{round}"),
            9 => "check disk.img".to_owned(),
            _ => format!("cp file{number} disk.img:/{round}"),
        };
        let commands: Vec<_> =
            (0..20).map(|number| (number, start(&place, &line(number)))).collect();
        for (number, command) in commands {
            let output = command.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            let expected = if number % 10 == 8 { 1 } else { 0 };
            assert_eq!(output.status.code(), Some(expected), "round {round}, {number}: {said}");
        }
        assert_eq!(place.ok(&format!("ls disk.img:/{round}")).lines().count(), 16);
        place.ok(&format!("rm -r disk.img:/{round}"));
    }
    if have_progs() {
        place.check("disk.img");
    }
}

fn rounds() -> u32 {
    if std::env::var_os("BUTTRESS_LONG").is_some() { 100 } else { 3 }
}

/// Two commands that each have an image which the other one wants must not wait for each other.
#[test]
fn commands_on_two_images_come_to_an_end() {
    let place = image();
    place.ok("mkfs -q --size 300M second.img");
    let images = ["disk.img", "second.img"];
    for number in 0..8 {
        fs::write(place.join(&format!("file{number}")), "x").unwrap();
        place.ok(&format!("cp file{number} {}:/", images[number % 2]));
    }
    let begun = Instant::now();
    for round in 0..3 {
        let moves: Vec<_> = (0..8)
            .map(|number| {
                let (from, to) = (images[(number + round) % 2], images[(number + round + 1) % 2]);
                start(&place, &format!("mv {from}:/file{number} {to}:/"))
            })
            .collect();
        for command in moves {
            let output = command.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "round {round}: {said}");
        }
        // What names them one after the other gives up instead of waiting, or has both.
        let lines = ["rm -f disk.img:/no second.img:/no", "rm -f second.img:/no disk.img:/no"];
        let removals: Vec<_> = (0..8).map(|number| start(&place, lines[number % 2])).collect();
        for command in removals {
            let output = command.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() || said.contains("busy"), "round {round}: {said}");
        }
    }
    // Nobody has waited until his patience ended.
    assert!(begun.elapsed().as_secs() < 500);
    let all = place.ok("ls disk.img second.img");
    assert_eq!(all.lines().filter(|line| line.starts_with("file")).count(), 8);
}

/// Whatever names they use.
#[test]
fn commands_on_two_images_by_other_names_come_to_an_end() {
    let place = image();
    place.ok("mkfs -q --size 300M second.img");
    for (from, to) in [("disk.img", "z.img"), ("second.img", "y.img")] {
        fs::hard_link(place.join(from), place.join(to)).unwrap();
    }
    // The first names them in one order of their names, the second in the other.
    for number in 0..8 {
        fs::write(place.join(&format!("file{number}")), "x").unwrap();
        place.ok(&format!("cp file{number} {}:/", ["disk.img", "y.img"][number % 2]));
    }
    let begun = Instant::now();
    let names = [["disk.img", "second.img"], ["y.img", "z.img"]];
    for round in 0..6 {
        let moves: Vec<_> = (0..8)
            .map(|number| {
                let [mut from, mut to] = names[number % 2];
                if round % 2 == 1 {
                    std::mem::swap(&mut from, &mut to);
                }
                start(&place, &format!("mv {from}:/file{number} {to}:/"))
            })
            .collect();
        for command in moves {
            let output = command.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "round {round}: {said}");
        }
    }
    assert!(begun.elapsed().as_secs() < 500);
    // One image by two names is one.
    place.ok("mv disk.img:/file0 z.img:/other");
    assert_eq!(place.ok("ls disk.img").lines().filter(|line| *line == "other").count(), 1);
}

#[test]
fn who_waits_says_so_and_can_be_stopped() {
    let place = image();
    // What it copies does not come.
    let mut slow = Command::new(env!("CARGO_BIN_EXE_buttress"));
    slow.args(["cp", "/dev/stdin", "disk.img:/slow"]).current_dir(place.path());
    let mut slow = slow.stdin(Stdio::piped()).spawn().unwrap();
    let locked = || {
        let file = File::open(place.join("disk.img")).unwrap();
        file.try_lock_shared().is_err()
    };
    while !locked() {
        assert!(slow.try_wait().unwrap().is_none());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let mut waiting = start(&place, "cp one disk.img:/");
    let mut stopped = start(&place, "mv one disk.img:/");
    std::thread::sleep(std::time::Duration::from_secs(1));
    let pid = rustix::process::Pid::from_child(&stopped);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(stopped.wait().unwrap().code().is_none(), "it ends by the signal");
    // Who only reads is not kept.
    assert_eq!(place.run("ls disk.img").text(), "");
    let mut said = String::new();
    let mut words = BufReader::new(waiting.stderr.take().unwrap());
    words.read_line(&mut said).unwrap();
    let expected = format!("waiting for process {}, another command that uses it", slow.id());
    assert!(said.contains(&expected), "{said}");
    drop(slow.stdin.take());
    assert!(slow.wait().unwrap().success());
    words.read_to_string(&mut said).unwrap();
    assert!(waiting.wait().unwrap().success(), "{said}");
    assert_eq!(place.ok("ls disk.img"), "one\nslow\n");
}

#[test]
fn a_stranger_who_has_the_lock_is_named() {
    let place = image();
    for how in ["-x", "-s"] {
        let stranger = Locked::new(&place, how);
        let pid = stranger.0.id();
        let begun = Instant::now();
        for line in ["cp one disk.img:/", "rm disk.img:/one", "mkfs -f disk.img"] {
            let said = place.fails(line);
            assert!(said.contains(&format!("process {pid} (flock)")), "{line}: {said}");
            assert!(said.contains(&format!("kill {pid}")), "{line}: {said}");
        }
        assert!(begun.elapsed().as_secs() < 60, "nobody waits for strangers");
    }
    place.ok("cp one disk.img:/");
}

/// Every way to move, remove or replace an image, or a directory with it to another filesystem.
fn refused(place: &Place, run: &dyn Fn(&str) -> Said) {
    let before = fs::metadata(place.join("disk.img")).unwrap();
    let elsewhere = tempfile::TempDir::new_in("/dev/shm").ok();
    let to_elsewhere = elsewhere.as_ref().map(|elsewhere| {
        fs::set_permissions(elsewhere.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let elsewhere = elsewhere.path().display();
        [format!("mv disk.img {elsewhere}"), format!("mv disk.img {elsewhere}/moved.img")]
    });
    if to_elsewhere.is_none() {
        println!("skipped: no other filesystem to move an image to");
    }
    for line in to_elsewhere.into_iter().flatten().chain([
        "mv disk.img moved.img".to_owned(),
        "mv other/disk.img .".to_owned(),
        "cp -r other/. .".to_owned(),
        "ln -sf one/disk.img .".to_owned(),
        "rm disk.img".to_owned(),
        "rm -f --offset 1M disk.img".to_owned(),
        "rm -r .".to_owned(),
        format!("rm -r {}", place.path().display()),
    ]) {
        let said = run(&line);
        assert_eq!(said.code, 1, "{line}: {}", said.err);
        let after = fs::metadata(place.join("disk.img"));
        let after = after.unwrap_or_else(|error| panic!("{line}: {error}: {}", said.err));
        assert_eq!(
            (before.ino(), before.len()),
            (after.ino(), after.len()),
            "{line}: {}",
            said.err
        );
        // What else was in a directory may have gone.
        fs::create_dir_all(place.join("other")).unwrap();
        fs::write(place.join("other/disk.img"), "other").unwrap();
        fs::write(place.join("one"), "one").unwrap();
    }
}

#[test]
fn an_image_in_use_stays_where_it_is() {
    if !Path::new("/dev/shm").is_dir() {
        println!("skipped: there is no /dev/shm");
        return;
    }
    let place = image();
    fs::create_dir(place.join("other")).unwrap();
    fs::write(place.join("other/disk.img"), "other").unwrap();
    let all = |place: &Place| {
        refused(place, &|line| place.run(line));
        if rustix::process::geteuid().is_root() {
            refused(place, &|line| as_stranger(place, line));
        }
    };
    let locked = Locked::new(&place, "-x");
    all(&place);
    drop(locked);
    let reader = Locked::new(&place, "-s");
    all(&place);
    drop(reader);
    if let Some(live) = Live::of(&place, "") {
        // Not below it.
        fs::write(place.join("mnt/kept"), "kept").unwrap();
        all(&place);
        fs::write(place.join("mnt/kept"), "kept").unwrap();
        live.end();
    }
    if oracle::root_or_skip() {
        fs::create_dir_all(place.join("mnt")).unwrap();
        let device = LoopDevice::attach(&place.join("disk.img")).unwrap();
        all(&place);
        drop(device);
    }
    if let Some(mount) = KernelMount::of(&place, "disk.img") {
        all(&place);
        drop(mount);
    }
    place.ok("mv disk.img moved.img");
    place.ok("check moved.img");
}

/// A directory below which an image has a longer path than the system takes; a handle of the one that it is in.
fn too_deep(place: &Place, image: &str) -> std::os::fd::OwnedFd {
    let name = "n".repeat(200);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    fs::create_dir(place.join("top")).unwrap();
    let mut at = openat(CWD, place.join("top"), flags, Mode::empty()).unwrap();
    for _ in 0..25 {
        mkdirat(&at, &name, Mode::from_raw_mode(0o755)).unwrap();
        at = openat(&at, &name, flags, Mode::empty()).unwrap();
    }
    renameat(CWD, place.join(image), &at, image).unwrap();
    at
}

#[test]
fn an_image_in_use_stays_however_long_its_path_is() {
    let place = image();
    let stays = |what: &str| {
        let directory = too_deep(&place, "disk.img");
        let said = place.fails("rm -r top");
        assert!(said.contains(&format!("/disk.img: busy: {what}")), "{said}");
        renameat(&directory, "disk.img", CWD, place.join("disk.img")).unwrap();
        place.ok("rm -r top");
    };
    if let Some(live) = Live::of(&place, "") {
        stays("it is mounted on ");
        // And by another name.
        fs::hard_link(place.join("disk.img"), place.join("second.img")).unwrap();
        let said = place.fails("mv second.img third.img");
        assert!(said.contains("busy: it is mounted on "), "{said}");
        fs::remove_file(place.join("second.img")).unwrap();
        live.end();
    }
    if let Some(mount) = KernelMount::of(&place, "disk.img") {
        stays("it may back the loop device ");
        // Nor is it written to by another name.
        fs::hard_link(place.join("disk.img"), place.join("second.img")).unwrap();
        let _directory = too_deep(&place, "disk.img");
        let said = place.fails("cp one second.img:/");
        assert!(said.contains("same id"), "{said}");
        drop(mount);
        place.ok("cp one second.img:/");
    }
}

/// Runs the command as a user who may write to the directory and not open the image.
fn as_stranger(place: &Place, line: &str) -> Said {
    let program = place.join("program");
    if !program.exists() {
        // Not here: what is open for writing here, whatever another test starts at that moment has open, too, and then it cannot be run.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_buttress")).arg(&program).status();
        assert!(copied.unwrap().success());
    }
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(place.join("other"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(place.join("disk.img"), fs::Permissions::from_mode(0o600)).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=1001", "--regid=1001", "--clear-groups"]).arg(&program);
    command.args(line.split_whitespace()).current_dir(place.path());
    Said::of(oracle::start(&mut command).unwrap())
}

#[test]
fn what_was_meant_for_the_inside_does_not_remove_the_image() {
    let place = image();
    let mut mbr = vec![0; 1 << 20];
    mbr[510..512].copy_from_slice(&[0x55, 0xaa]);
    mbr[450] = 0x83;
    mbr[454] = 8;
    fs::write(place.join("mbr.img"), &mbr).unwrap();
    for line in [
        "rm disk.img",
        "rm -rf disk.img",
        "rm --offset 1M disk.img",
        "rm -rf --offset 1M disk.img",
        "rm -rf --offset 1M disk.img one",
        "rm mbr.img",
        "rm -rf mbr.img",
        "rm -rf --offset 4096 mbr.img",
        "rm -r disk.img/",
        "rm -rf disk.img:",
        "rm -rf disk.img:/",
    ] {
        let said = place.fails(line);
        assert!(said.contains("cannot"), "{line}: {said}");
        assert!(place.join("disk.img").exists() && place.join("mbr.img").exists(), "{line}");
    }
    assert!(place.fails("rm mbr.img").contains("it is a disk image with partitions"));
    if oracle::root_or_skip() {
        let device = LoopDevice::attach(&place.join("mbr.img")).unwrap();
        let path = device.path().display().to_string();
        assert!(place.fails(&format!("rm {path}")).contains("it is a disk"));
        place.fails(&format!("rm -rf --offset 1M {path}"));
        assert!(device.path().exists());
    }
    // Nor is anything else done to the image itself.
    let before = fs::metadata(place.join("disk.img")).unwrap();
    for line in ["chmod 777", "chown 1:1", "ls", "stat", "cat", "mkdir", "subvolume create"] {
        let line = format!("{line} disk.img --offset 1M");
        let said = place.fails(&line);
        // What makes something finds that the top directory is there already.
        let expected = ["no btrfs filesystem there", "exists"];
        assert!(expected.iter().any(|it| said.contains(it)), "{line}: {said}");
    }
    let after = fs::metadata(place.join("disk.img")).unwrap();
    assert_eq!((before.mode(), before.uid()), (after.mode(), after.uid()));
    // A file is a file.
    fs::write(place.join("one"), "one").unwrap();
    place.ok("rm one");
}

#[test]
fn an_image_does_not_go_into_itself() {
    let place = image();
    place.ok("cp one disk.img");
    fs::hard_link(place.join("disk.img"), place.join("second.img")).unwrap();
    fs::create_dir(place.join("dir")).unwrap();
    fs::hard_link(place.join("disk.img"), place.join("dir/third.img")).unwrap();
    for line in [
        "cp disk.img disk.img:/",
        "cp disk.img disk.img",
        "cp second.img disk.img:/copy",
        "cp -r dir disk.img:/",
        "mv disk.img disk.img:/",
        "mv second.img disk.img:/",
        "mv dir disk.img:/",
    ] {
        let said = place.fails(line);
        assert!(said.contains("an image does not go into itself"), "{line}: {said}");
    }
    // Nor over itself.
    fs::write(place.join("inner"), "inner").unwrap();
    place.ok("cp inner disk.img:/second.img");
    for line in ["cp disk.img:/second.img .", "cp -r disk.img:/. .", "mv disk.img:/second.img ."] {
        let said = place.fails(line);
        assert!(said.contains("second.img"), "{line}: {said}");
    }
    assert_eq!(place.ok("cat disk.img:/one disk.img:/second.img"), "oneinner");
    assert_eq!(fs::metadata(place.join("second.img")).unwrap().len(), 300 << 20);
    place.ok("check disk.img");
}

/// Programs of the system claim a new disk for a moment; who keeps it is refused.
#[test]
fn a_disk_that_is_claimed_for_a_moment_is_had_after_it() {
    if !oracle::root_or_skip() {
        return;
    }
    let place = image();
    let device = LoopDevice::attach(&place.join("disk.img")).unwrap();
    let path = device.path().display().to_string();
    let claim = || {
        let mut options = File::options();
        let exclusive = rustix::fs::OFlags::EXCL.bits() as i32;
        std::os::unix::fs::OpenOptionsExt::custom_flags(options.read(true), exclusive);
        // Nor may it be another's, as of a child that is not its program yet.
        (0..100).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            options.open(device.path()).ok()
        })
    };
    fs::create_dir(place.join("mnt")).unwrap();
    for line in ["mkfs -q -f DISK", "check DISK", "cp one DISK:/", "mount DISK mnt"] {
        let claimed = claim().unwrap();
        let release = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(300));
            drop(claimed);
        });
        let said = place.run(&line.replace("DISK", &path));
        release.join().unwrap();
        assert_eq!(said.code, 0, "{line}: {}", said.err);
    }
    place.umount("mnt");
    let claimed = claim().unwrap();
    assert!(place.fails(&format!("cp one {path}:/")).contains("busy: it is mounted, or another"));
    drop(claimed);
}

/// Who may not read an image, but may write to its directory, cannot tell it from other files.
#[test]
fn what_cannot_be_read_is_not_replaced() {
    if !oracle::root_or_skip() {
        return;
    }
    let place = image();
    fs::create_dir(place.join("other")).unwrap();
    for line in ["mv one disk.img", "cp one disk.img", "mv -n one disk.img"] {
        let said = as_stranger(&place, line);
        assert!(said.err.contains("Permission denied") || line.contains("-n"), "{}", said.err);
        assert_eq!(fs::metadata(place.join("disk.img")).unwrap().len(), 300 << 20, "{line}");
    }
}

#[test]
fn an_image_is_not_made_within_what_it_is_filled_from() {
    let place = Place::new();
    fs::create_dir_all(place.join("tree/dir")).unwrap();
    std::os::unix::fs::symlink("tree/dir", place.join("link")).unwrap();
    for line in ["tree tree/disk.img", "tree link/disk.img", ". disk.img", "tree tree/dir/disk.img"]
    {
        let said = place.fails(&format!("mkfs --size 300M --rootdir {line}"));
        assert!(said.contains("it would be a part of itself"), "{line}: {said}");
    }
    assert!(!place.join("tree/disk.img").exists() && !place.join("disk.img").exists());
    place.ok("mkfs -q --size 300M --rootdir tree tree.img");
    place.ok("mkfs -q --size 300M --rootdir tree treeing.img");
    if oracle::root_or_skip() {
        // Only the name of a disk lies there.
        let device = LoopDevice::attach(&place.join("treeing.img")).unwrap();
        let number = fs::metadata(device.path()).unwrap().rdev();
        let (node, mode) = (place.join("tree/disk"), rustix::fs::Mode::from_raw_mode(0o600));
        let kind = rustix::fs::FileType::BlockDevice;
        rustix::fs::mknodat(rustix::fs::CWD, &node, kind, mode, number).unwrap();
        place.ok("mkfs -q -f --rootdir tree tree/disk");
        assert_eq!(place.ok("ls tree/disk"), "dir\ndisk\n");
        fs::remove_file(node).unwrap();
    }
    assert_eq!(place.ok("ls tree.img"), "dir\n");
}

#[test]
fn a_copy_of_an_image_in_use_is_warned_of() {
    let place = image();
    let locked = Locked::new(&place, "-x");
    let said = place.run("cp disk.img copy.img");
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.err.contains("warning: disk.img: busy: "), "{}", said.err);
    drop(locked);
    place.ok("cp disk.img copy.img");
}
