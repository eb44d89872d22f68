//! What is durable when: after a pause, after each way of saying sync, and when whoever unmounts, or opens the image next,
//! goes on. Each is shown by a kill without a last word, or by an image that is read at once.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use buttress_testkit::mapped::Mapped;
use buttress_testkit::oracle::{self, LoopDevice};

use crate::daemon::{NAMESPACES, Place, buttress, plain_umount, try_buttress, umount, wait_until};
use crate::random::Random;

/// Rounds with kills in every run, and when there is time.
const ROUNDS: (u64, u64) = (4, 60);
/// Unmounts that are followed by a mount at once, likewise.
const AGAIN: (u64, u64) = (40, 150);
/// Where the superblock has its generation.
const GENERATION: u64 = (64 << 10) + 0x48;

fn long() -> bool {
    std::env::var_os("BUTTRESS_LONG").is_some_and(|value| value == "1")
}

fn of((short, full): (u64, u64)) -> u64 {
    if long() { full } else { short }
}

fn generation(image: &Path) -> u64 {
    let mut bytes = [0; 8];
    File::open(image).unwrap().read_exact_at(&mut bytes, GENERATION).unwrap();
    u64::from_le_bytes(bytes)
}

/// Files with content that tells them apart, in a directory of their own.
fn write_files(top: &Path, round: u64, random: &mut Random) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = top.join(format!("round{round}"));
    fs::create_dir(&directory).unwrap();
    let files = (0..1 + random.below(60)).map(|number| {
        let bits = random.below(18);
        let length = random.below(1 << bits) as usize;
        let content = vec![random.next() as u8; length];
        fs::write(directory.join(number.to_string()), &content).unwrap();
        (PathBuf::from(format!("round{round}/{number}")), content)
    });
    files.collect()
}

fn assert_there(top: &Path, files: &[(PathBuf, Vec<u8>)], what: &str) {
    for (path, content) in files {
        let found =
            fs::read(top.join(path)).unwrap_or_else(|error| panic!("{what}: {path:?}: {error}"));
        assert!(found == *content, "{what}: {path:?}");
    }
}

#[test]
fn a_pause_makes_durable() {
    let Some(place) = Place::new() else { return };
    let mut random = Random::seeded();
    for round in 0..of(ROUNDS) {
        let mut daemon = place.mount("commit=300");
        let files = write_files(&place.mountpoint(), round, &mut random);
        let (last, content) = files.last().unwrap();
        wait_until("a commit after a pause", || on_image(&place, last).as_ref() == Some(content));
        daemon.kill();
        daemon.clean_up();
        let daemon = place.mount("commit=300");
        assert_there(&place.mountpoint(), &files, &format!("round {round}"));
        daemon.unmount();
    }
    oracle::check(&place.image(), true).unwrap();
}

/// What is on the image now, whatever the daemon keeps.
fn on_image(place: &Place, path: &Path) -> Option<Vec<u8>> {
    let mut inside = place.image().into_os_string();
    inside.push(":");
    inside.push(path);
    let mut command = Command::new(env!("CARGO_BIN_EXE_buttress"));
    let output = command.args(["-q", "cat"]).arg(inside).output().unwrap();
    output.status.success().then_some(output.stdout)
}

#[test]
fn who_never_pauses_is_committed_all_the_same() {
    let Some(place) = Place::new() else { return };
    let mut daemon = place.mount("commit=1");
    let writing = AtomicBool::new(true);
    let last = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut file = File::create(place.mountpoint().join("log")).unwrap();
            let mut lines = 0;
            while writing.load(Ordering::SeqCst) {
                writeln!(file, "{lines}").unwrap();
                lines += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            lines
        });
        let before = generation(&place.image());
        wait_until("three commits", || generation(&place.image()) >= before + 3);
        daemon.kill();
        // The writer may be told of the end by an error; that is its end, too.
        writing.store(false, Ordering::SeqCst);
        writer.join().unwrap_or(0)
    });
    println!("killed after {last} lines");
    daemon.clean_up();
    let daemon = place.mount("ro");
    let log = fs::read_to_string(place.mountpoint().join("log")).unwrap();
    assert!(log.starts_with("0\n1\n"), "{} bytes", log.len());
    daemon.unmount();
}

/// A file every other page of which was changed through a mapping, and its content.
fn map_file(top: &Path, round: u64) -> (Mapped, Vec<u8>) {
    const PAGES: usize = 1000;
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true);
    let file = file.open(top.join(format!("mapped{round}"))).unwrap();
    file.set_len((PAGES * 4096) as u64).unwrap();
    let mapped = Mapped::shared(&file, PAGES * 4096).unwrap();
    let mut content = vec![0; PAGES * 4096];
    for page in (0..PAGES).step_by(2) {
        let at = page * 4096 + page;
        content[at..at + 5].copy_from_slice(b"dirty");
        mapped.write(at, b"dirty").unwrap();
    }
    (mapped, content)
}

/// A place whose image is mounted through a loop device, as root mounts a disk.
fn disk(place: &Place) -> Option<LoopDevice> {
    oracle::root_or_skip().then(|| LoopDevice::attach(&place.image()).unwrap())
}

#[test]
fn sync_is_sync_on_a_disk_that_root_mounts() {
    let Some(place) = Place::new() else { return };
    let Some(disk) = disk(&place) else { return };
    let mut random = Random::seeded();
    let top = place.mountpoint();
    let mut all = Vec::new();
    for round in 0..of(ROUNDS) {
        let mut daemon = place.mount_source(disk.path(), "commit=300");
        assert_there(&top, &all, &format!("before round {round}"));
        all.extend(write_files(&top, round, &mut random));
        let mapped = map_file(&top, round);
        all.push((PathBuf::from(format!("mapped{round}")), mapped.1));
        let mut sync = Command::new("sync");
        if round % 2 == 0 {
            sync.arg("-f").arg(&top);
        }
        assert!(sync.status().unwrap().success());
        // More, of which nothing is promised.
        fs::write(top.join("late"), vec![1; random.below(1 << 20) as usize]).unwrap();
        std::thread::sleep(Duration::from_millis(random.below(100)));
        daemon.kill();
        daemon.clean_up_disk();
    }
    let daemon = place.mount_source(disk.path(), "");
    assert_there(&top, &all, "at the end");
    daemon.unmount();
    oracle::check(disk.path(), true).unwrap();
}

#[test]
fn umount_waits_on_a_disk_that_root_mounts() {
    let Some(place) = Place::new() else { return };
    let Some(disk) = disk(&place) else { return };
    let mut random = Random::seeded();
    let top = place.mountpoint();
    for round in 0..of(ROUNDS) {
        buttress(&["mount", "-o", "commit=300"], &[disk.path(), &top]);
        let files = write_files(&top, round, &mut random);
        fs::write(top.join("much"), vec![round as u8; 8 << 20]).unwrap();
        let nobody_makes_any = NAMESPACES.read();
        plain_umount(&top);
        // The kernel's own btrfs goes on at once.
        tool(Command::new("mount").args(["-t", "btrfs"]).args([disk.path(), &top]));
        drop(nobody_makes_any);
        assert_there(&top, &files, &format!("round {round}"));
        assert!(fs::read(top.join("much")).unwrap() == vec![round as u8; 8 << 20]);
        plain_umount(&top);
    }
    oracle::check(disk.path(), true).unwrap();
}

#[test]
fn a_disk_has_one_daemon_and_dies_with_it() {
    let Some(place) = Place::new() else { return };
    let Some(disk) = disk(&place) else { return };
    let (top, other) = (place.mountpoint(), place.mountpoint().with_file_name("other"));
    fs::create_dir(&other).unwrap();
    let mut daemon = place.mount_source(disk.path(), "commit=300");
    for words in [&["mount"][..], &["mount", "-r"]] {
        buttress(words, &[disk.path(), &other]);
        assert_eq!(fs::metadata(&other).unwrap().dev(), fs::metadata(&top).unwrap().dev());
        plain_umount(&other);
    }
    let inside = format!("{}:/x", disk.path().display());
    let said = try_buttress(&["mkdir", &inside], &[]).unwrap_err();
    assert!(said.contains("busy"), "{said}");
    // An unmount that waits for a daemon that is killed meanwhile must not wait for ever, nor keep the daemon from dying.
    fs::write(top.join("many"), vec![5; 64 << 20]).unwrap();
    let unmounting = Command::new("umount").arg("-i").arg(&top).spawn();
    std::thread::sleep(Duration::from_millis(5));
    daemon.kill();
    unmounting.unwrap().wait().unwrap();
    daemon.clean_up_disk();
    oracle::check(disk.path(), true).unwrap();
}

fn tool(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn whoever_opens_the_image_next_finds_all() {
    let Some(place) = Place::new() else { return };
    let (image, top) = (place.image(), place.mountpoint());
    let copy = image.with_extension("copy");
    for round in 0..of(AGAIN) {
        buttress(&["mount", "-o", "commit=300"], &[&image, &top]);
        let content = vec![round as u8; 1 << 20];
        for file in 0..20 {
            fs::write(top.join(format!("small{file}")), round.to_string()).unwrap();
        }
        fs::write(top.join("file"), &content).unwrap();
        plain_umount(&top);
        if round % 3 == 2 {
            let mut inside = image.clone().into_os_string();
            inside.push(":file");
            buttress(&["cp"], &[inside.as_ref(), &copy]);
            assert!(fs::read(&copy).unwrap() == content, "round {round}");
        }
        buttress(&["mount"], &[&image, &top]);
        assert!(fs::read(top.join("file")).unwrap() == content, "round {round}");
        assert_eq!(fs::read_to_string(top.join("small19")).unwrap(), round.to_string());
        plain_umount(&top);
    }
    buttress(&["check", "--check-data-csum"], &[&image]);
    oracle::check(&image, true).unwrap();
}

#[test]
fn the_helper_of_umount_waits() {
    let Some(place) = Place::new() else { return };
    let (image, top) = (place.image(), place.mountpoint());
    let helper = image.with_file_name("umount.fuse.buttress");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_buttress"), &helper).unwrap();
    for round in 0..of((5, 50)) {
        buttress(&["mount", "-o", "commit=300"], &[&image, &top]);
        fs::write(top.join("file"), vec![round as u8; 8 << 20]).unwrap();
        for file in 0..2000 {
            fs::write(top.join(format!("small{file}")), round.to_string()).unwrap();
        }
        let output = Command::new(&helper).arg(&top).args(["-n", "-t", "fuse.buttress"]).output();
        let (output, last) = (output.unwrap(), generation(&image));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(place.is_free(), "round {round}");
        assert_eq!(generation(&image), last, "round {round}: a commit came after the end");
    }
    oracle::check(&image, true).unwrap();
}

#[test]
fn umount_does_not_wait_for_a_lock_of_somebody_else() {
    let Some(place) = Place::new() else { return };
    buttress(&["mount", "-o", "commit=300"], &[&place.image(), &place.mountpoint()]);
    fs::write(place.mountpoint().join("file"), "x").unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = File::open(place.image()).unwrap();
            // Gets it as soon as the daemon lets go of it.
            file.lock().unwrap();
            wait_until("the unmount", || done.load(Ordering::SeqCst));
            file.unlock().unwrap();
        });
        umount(&place.mountpoint());
        done.store(true, Ordering::SeqCst);
    });
    oracle::check(&place.image(), true).unwrap();
}
