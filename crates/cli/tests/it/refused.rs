//! A system that refuses threads: everything works with fewer of them, down to none, or says why not. Never a panic, and never a
//! filesystem that is less than its last commit.

use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::{Command, Output};

use buttress::{Balance, BalanceFilter, BalanceStop, Errno, Filesystem, Options};
use buttress_testkit::oracle::is_root;

use crate::run::{Place, have_progs};

/// Processes and threads that the user may have.
const ALLOWED: [u32; 9] = [1, 3, 4, 6, 8, 10, 13, 17, 24];
/// Files that are written to a mount.
const FILES: usize = 25;

/// A user whom nobody else is: the system counts his threads wherever they run.
fn nobody_else() -> u32 {
    60_000 + std::process::id() % 5000
}

/// A user with a name, without which nobody may mount, and as whom nothing runs on a machine of today.
fn named() -> Option<u32> {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let of = |name| users.lines().find_map(|line| line.strip_prefix(name)?.split(':').nth(2));
    ["uucp:", "news:", "games:"].into_iter().find_map(of).and_then(|id| id.parse().ok())
}

/// Held while programs run as the user with a name: another copy of these tests beside this one would take his threads, too.
fn alone() -> std::fs::File {
    let users = std::fs::File::open("/etc/passwd").unwrap();
    users.lock().unwrap();
    users
}

/// Runs a program as the owner of the place, who may have `allowed` processes and threads if that is given.
fn run(place: &Place, allowed: Option<u32>, words: &[&str]) -> Output {
    let user = std::fs::metadata(place.path()).unwrap().uid().to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).current_dir(place.path());
    if let Some(allowed) = allowed {
        command.args(["prlimit", &format!("--nproc={allowed}")]);
    }
    command.args(words).output().unwrap()
}

fn ours<'w>(words: &'w str) -> Vec<&'w str> {
    let program: &'w str = env!("CARGO_BIN_EXE_buttress");
    std::iter::once(program).chain(words.split(' ')).collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// It has worked, or has said in a line why not.
fn well(what: &str, output: &Output) -> bool {
    let text = said(output);
    assert!(!text.contains("panicked"), "{what}: {text}");
    if !output.status.success() {
        assert_eq!(output.status.code(), Some(1), "{what}: {text}");
        assert!(text.contains("Resource temporarily unavailable"), "{what}: {text}");
    }
    output.status.success()
}

fn must(what: &str, output: &Output) {
    assert!(well(what, output), "{what}: {}", said(output));
}

/// A place where `user` may do everything; none where the tests run as an ordinary user, or there are no tools.
fn place(user: Option<u32>) -> Option<Place> {
    let tools = ["setpriv", "prlimit"].map(|tool| Command::new(tool).arg("--version").output());
    let Some(user) = user.filter(|_| is_root() && tools.iter().all(Result::is_ok)) else {
        println!("skipped: needs root, a user for it, setpriv and prlimit");
        return None;
    };
    let place = Place::new();
    chown(place.path(), Some(user), Some(user)).unwrap();
    Some(place)
}

#[test]
fn images_are_made_filled_and_checked_with_few_threads() {
    let Some(place) = place(Some(nobody_else())) else { return };
    let made = "mkdir tree; for at in $(seq 300); do head -c ${at}00 /dev/urandom >tree/$at; done; cp -r tree/. tree/more";
    run(&place, None, &["sh", "-c", made]);
    for allowed in ALLOWED {
        let run = |words: &str| run(&place, Some(allowed), &ours(words));
        must("mkfs", &run("mkfs -q -f --size 200M --rootdir tree disk.img"));
        must("cp", &run("cp -r tree disk.img:/more"));
        must("subvolume", &run("subvolume create disk.img:/one"));
        must("check", &run("check --check-data-csum disk.img"));
        if have_progs() {
            place.check("disk.img");
        }
    }
}

/// Writes files to a mount and makes them durable, as the user whom threads are refused.
fn write(place: &Place) {
    let script = format!(
        "for at in $(seq {FILES}); do head -c 30000 /dev/zero >mnt/$at || exit 1; sync mnt/$at || exit 1; done; \
         mkdir mnt/dir && mv mnt/1 mnt/dir/1"
    );
    let output = run(place, None, &["sh", "-c", &script]);
    assert!(output.status.success(), "{}", said(&output));
}

/// Returns when the system has forgotten the user's processes that have ended: it counts them for a moment longer.
fn forgotten(place: &Place) {
    let alone = || run(place, Some(2), &["sh", "-c", "true & wait"]).status.success();
    while !alone() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// An image whose top directory is the user's, and a directory to mount it on.
fn make_for(place: &Place) {
    must("mkdir", &run(place, None, &["mkdir", "-p", "top", "mnt"]));
    must("mkfs", &run(place, None, &ours("mkfs -q -f --size 200M --rootdir top disk.img")));
}

#[test]
fn mounts_are_served_with_few_threads_or_not_at_all() {
    let _alone = alone();
    let Some(place) = place(named()) else { return };
    if !Path::new("/dev/fuse").exists() {
        println!("skipped: there is no /dev/fuse");
        return;
    }
    let mut served = 0;
    for allowed in ALLOWED {
        make_for(&place);
        forgotten(&place);
        if !well("mount", &run(&place, Some(allowed), &ours("mount disk.img mnt"))) {
            continue;
        }
        served += 1;
        write(&place);
        must("umount", &run(&place, None, &ours("umount mnt")));
        must("check", &run(&place, None, &ours("check --check-data-csum disk.img")));
        let listed = said(&run(&place, None, &ours("ls disk.img:/")));
        assert_eq!(listed.lines().count(), FILES, "{listed}");
        if have_progs() {
            place.check("disk.img");
        }
    }
    assert!(served >= 3, "served {served} times");
}

/// Begins a balance in an image and pauses it.
fn pause_balance(image: &Path) {
    let fs = Filesystem::open(image, Options::read_write().background(false)).unwrap();
    let balance = Balance { data: Some(BalanceFilter::default()), ..Balance::default() };
    let stopped = fs.balance(&balance, |_| ControlFlow::Break(BalanceStop::Pause));
    assert_eq!(stopped.unwrap_err().errno(), Errno::INTR);
    fs.close().unwrap();
}

/// A mount goes on with a balance that was paused, beside what it serves. Where the system has no thread for that it stays paused: nobody waits for its
/// end before he is served, or told that he is not.
#[test]
fn a_balance_that_gets_no_thread_stays_paused() {
    let _alone = alone();
    let Some(place) = place(named()) else { return };
    if !Path::new("/dev/fuse").exists() {
        println!("skipped: there is no /dev/fuse");
        return;
    }
    let (mut paused, mut went_on) = (0, 0);
    for allowed in ALLOWED {
        make_for(&place);
        pause_balance(&place.join("disk.img"));
        forgotten(&place);
        let mounted = run(&place, Some(allowed), &ours("mount disk.img mnt"));
        let (is_served, text) = (well("mount", &mounted), said(&mounted));
        let stays = text.contains("stays paused");
        assert!(stays || !is_served || text.contains("goes on"), "{text}");
        if is_served {
            went_on += u32::from(!stays);
            write(&place);
            must("umount", &run(&place, None, &ours("umount mnt")));
        }
        if stays {
            paused += 1;
            let status = said(&run(&place, None, &ours("balance status disk.img")));
            assert!(status.contains("is paused"), "{allowed}: {status}");
            must("resume", &run(&place, None, &ours("balance resume disk.img")));
        }
        must("check", &run(&place, None, &ours("check --check-data-csum disk.img")));
    }
    assert!(paused > 0 && went_on > 0, "{paused} stayed paused, {went_on} went on");
}

#[test]
fn a_limit_on_files_is_told_before_the_mount_meets_it() {
    let place = Place::new();
    let tool = Command::new("prlimit").arg("--version").output();
    if !Path::new("/dev/fuse").exists() || tool.is_err() {
        println!("skipped: needs /dev/fuse and prlimit");
        return;
    }
    std::fs::create_dir(place.join("mnt")).unwrap();
    place.ok("mkfs -q -f --size 200M disk.img");
    let mount = |limit: &str, line: &str| {
        let mut command = Command::new("prlimit");
        command.arg(format!("--fsize={limit}")).args(ours(line));
        command.current_dir(place.path()).output().unwrap()
    };
    let refused = mount("1048576:1048576", "mount disk.img mnt");
    let text = said(&refused);
    assert!(!refused.status.success(), "{text}");
    assert!(text.contains("files of 1048576 bytes at most, and it has 209715200"), "{text}");
    // To read nothing is written, and what one has set for oneself one can take back.
    for (limit, line) in [
        ("1048576:1048576", "mount -o ro disk.img mnt"),
        ("1048576:unlimited", "mount disk.img mnt"),
    ] {
        let mounted = mount(limit, line);
        assert!(mounted.status.success(), "{limit}: {}", said(&mounted));
        if !line.contains("ro") {
            std::fs::write(place.join("mnt/file"), vec![1; 8 << 20]).unwrap();
            place.ok("filesystem sync mnt");
        }
        let said = place.umount("mnt");
        assert_eq!(said.code, 0, "{}", said.err);
    }
    assert_eq!(place.ok("cat disk.img:/file").len(), 8 << 20);
}

#[test]
fn mounts_are_served_with_few_descriptors_or_not_at_all() {
    let place = Place::new();
    let tool = Command::new("prlimit").arg("--version").output();
    if !Path::new("/dev/fuse").exists() || tool.is_err() {
        println!("skipped: needs /dev/fuse and prlimit");
        return;
    }
    std::fs::create_dir(place.join("mnt")).unwrap();
    let mut served = 0;
    for allowed in 8..32 {
        place.ok("mkfs -q -f --size 200M disk.img");
        let limit = format!("--nofile={allowed}");
        let mut command = Command::new("prlimit");
        command.arg(limit).args(ours("mount -o commit=300 disk.img mnt"));
        let mounted = command.current_dir(place.path()).output().unwrap();
        let text = said(&mounted);
        let is_there = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let is_there = is_there.contains(place.join("mnt").to_str().unwrap());
        assert_eq!(is_there, mounted.status.success(), "{allowed}: {text}");
        if !is_there {
            assert!(text.contains("Too many open files"), "{allowed}: {text}");
            continue;
        }
        served += 1;
        std::fs::write(place.join("mnt/file"), "content").unwrap();
        let durable = std::fs::File::open(place.join("mnt/file")).and_then(|file| file.sync_all());
        durable.unwrap();
        let said = place.umount("mnt");
        assert_eq!(said.code, 0, "{allowed}: {}", said.err);
        assert_eq!(place.ok("cat disk.img:/file"), "content");
    }
    assert!(served >= 3, "served {served} times");
}
