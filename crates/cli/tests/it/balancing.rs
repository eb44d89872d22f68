//! `balance` and `filesystem resize` on live mounts: begun, paused, gone on with, cancelled, told of, and what the kernel makes of one that is paused.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::live::Live;
use crate::run::{KernelMount, Place, command_as, have_progs};

/// How often something is tried that may come too late.
const TRIES: u32 = 20;

/// Large files, and bytes of each.
const FILES: u64 = 8;
const LEN: u64 = 20 << 20;

/// A mounted filesystem of some block groups, full of what differs everywhere.
fn mounted(place: &Place) -> Option<Live<'_>> {
    place.ok("mkfs -q --size 3G disk.img");
    let live = Live::of(place, "")?;
    for number in 0..FILES {
        std::fs::write(place.join(&format!("mnt/file{number}")), content(number)).unwrap();
    }
    std::fs::create_dir(place.join("mnt/many")).unwrap();
    for number in 0..500_u64 {
        std::fs::write(place.join(&format!("mnt/many/{number}")), number.to_string()).unwrap();
    }
    place.ok("subvolume snapshot -q -r mnt mnt/snap");
    place.ok("filesystem sync mnt");
    Some(live)
}

fn content(number: u64) -> Vec<u8> {
    let words = (0..LEN / 8).map(|at| (at + (number << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).collect()
}

fn holds_what_was_written(top: &std::path::Path) {
    for from in [top.to_owned(), top.join("snap")] {
        for number in 0..FILES {
            let found = std::fs::read(from.join(format!("file{number}"))).unwrap();
            assert!(found == content(number), "file{number}");
        }
        for number in 0..500 {
            let found = std::fs::read_to_string(from.join(format!("many/{number}"))).unwrap();
            assert_eq!(found, number.to_string());
        }
    }
}

fn state(place: &Place, of: &str) -> Value {
    let said = place.run(&format!("--format json balance status {of}"));
    let value: Value = serde_json::from_slice(&said.out).unwrap();
    let state = value["balance-status"].clone();
    assert_eq!(said.code, i32::from(state["state"] != "none"), "{state}");
    state
}

/// Begins a balance and pauses it before it is done.
fn begin_and_pause(place: &Place) {
    for _ in 0..TRIES {
        place.ok("balance start --background -f -d -musage=95 -susage=1..90,limit=7 mnt");
        let said = place.run("balance pause mnt");
        match state(place, "mnt")["state"].as_str().unwrap() {
            "paused" => return,
            // It was done before.
            "none" => assert!(said.code == 0 || said.err.contains("none runs"), "{}", said.err),
            other => panic!("{other}"),
        }
    }
    panic!("a balance is always done before it can be paused");
}

/// `BTRFS_ERROR_DEV_EXCL_RUN_IN_PROGRESS`.
const EXCLUSIVE_RUNS: i32 = 8;

/// While a balance is paused the device is not resized.
fn keeps_its_size(place: &Place, target: &str) {
    for size in ["2G", "max", "min"] {
        let said = place.fails(&format!("filesystem resize {size} {target}"));
        assert!(said.contains("in progress") && said.contains("is paused"), "{target}: {said}");
    }
}

/// What the ioctl answers by which the device of a mount is made smaller; nothing where there is no python.
fn resize_ioctl(top: &std::path::Path) -> Option<i32> {
    let words = "import fcntl, os, struct, sys\n\
                 args = bytearray(struct.pack('<q4088s', 0, b'2G'))\n\
                 print(fcntl.ioctl(os.open(sys.argv[1], 0), 0x50009403, args))";
    let said = Command::new("python3").args(["-c", words]).arg(top).output().ok()?;
    let text = String::from_utf8_lossy(&said.stdout);
    Some(text.trim().parse().unwrap_or_else(|_| panic!("{said:?}")))
}

#[test]
fn a_balance_is_paused_and_goes_on() {
    let place = Place::new();
    let Some(live) = mounted(&place) else { return };
    let none = state(&place, "mnt");
    assert_eq!((&none["state"], &none["filters"]), (&json!("none"), &json!(null)));
    for line in ["pause mnt", "cancel mnt", "resume mnt"] {
        let said = place.run(&format!("balance {line}"));
        assert_eq!(said.code, 1, "{line}: {}", said.err);
    }
    begin_and_pause(&place);
    let paused = state(&place, "mnt");
    assert_eq!(paused["filters"]["metadata"], "usage=95");
    let refused = place.fails("balance start -d mnt");
    assert!(refused.contains("has begun and not ended"), "{refused}");
    assert!(place.fails("balance pause mnt").contains("none runs"));
    keeps_its_size(&place, "mnt");
    assert!(resize_ioctl(&place.join("mnt")).is_none_or(|answer| answer == EXCLUSIVE_RUNS));
    // It outlives the mount.
    live.end();
    assert_eq!(state(&place, "disk.img")["filters"], paused["filters"]);
    assert!(place.fails("balance start -d disk.img").contains("has begun and not ended"));
    keeps_its_size(&place, "disk.img");
    if have_progs() {
        place.check("disk.img");
    }
    let Some(live) = Live::of(&place, "-o skip_balance") else { return };
    assert_eq!(state(&place, "mnt")["state"], "paused");
    keeps_its_size(&place, "mnt");
    let done = place.json("balance resume mnt");
    assert_eq!(done["failed"], json!([]));
    assert_eq!(state(&place, "mnt")["state"], "none");
    place.ok("filesystem resize -- -100M mnt");
    holds_what_was_written(&place.join("mnt"));
    live.end();
    if have_progs() {
        place.check("disk.img");
    }
}

#[test]
fn a_mount_goes_on_with_it_and_another_forgets_it() {
    let place = Place::new();
    let Some(live) = mounted(&place) else { return };
    begin_and_pause(&place);
    live.end();
    let said = place.run("mount disk.img mnt");
    assert!(said.code == 0 && said.err.contains("goes on"), "{}", said.err);
    for _ in 0..TRIES * 50 {
        if state(&place, "mnt")["state"] == "none" {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(state(&place, "mnt")["state"], "none");
    begin_and_pause(&place);
    place.ok("balance cancel mnt");
    assert_eq!(state(&place, "mnt")["state"], "none");
    holds_what_was_written(&place.join("mnt"));
    begin_and_pause(&place);
    assert_eq!(place.umount("mnt").code, 0);
    place.ok("balance cancel disk.img");
    assert_eq!(state(&place, "disk.img")["state"], "none");
    if have_progs() {
        place.check("disk.img");
    }
}

/// Linux tells of ours what we tell, and goes on with it; and the other way round.
#[test]
fn the_kernel_and_we_go_on_with_each_other() {
    let place = Place::new();
    let Some(live) = mounted(&place) else { return };
    begin_and_pause(&place);
    live.end();
    let ours = place.run("balance status -v disk.img");
    {
        let Some(mount) = KernelMount::with(&place, "disk.img", "loop,skip_balance") else {
            return;
        };
        let top = mount.path().display().to_string();
        let theirs =
            Command::new("btrfs").args(["balance", "status", "-v", &top]).output().unwrap();
        assert_eq!(theirs.status.code(), Some(1));
        let theirs = String::from_utf8(theirs.stdout).unwrap().replace(&top, "disk.img");
        // Of a range it says a number, too, that is both ends of it.
        let rest = |text: &str| text.lines().skip(2).map(first_words).collect::<Vec<_>>();
        assert_eq!(rest(&ours.text()), rest(&theirs));
        assert_eq!(ours.text().lines().next(), theirs.lines().next());
        assert!(resize_ioctl(mount.path()).is_none_or(|answer| answer == EXCLUSIVE_RUNS));
        place.progs("btrfs", &format!("balance resume {top}"));
        holds_what_was_written(mount.path());
    }
    assert_eq!(state(&place, "disk.img")["state"], "none");
    for _ in 0..TRIES {
        let mount = KernelMount::of(&place, "disk.img").unwrap();
        let top = mount.path().display();
        place.progs("btrfs", &format!("balance start --background -d -m {top}"));
        // It fails where there is none any more.
        let _late = Command::new("btrfs")
            .args(["balance", "pause", &top.to_string()])
            .stderr(Stdio::null())
            .status();
        drop(mount);
        if state(&place, "disk.img")["state"] == "paused" {
            break;
        }
    }
    let paused = state(&place, "disk.img");
    assert_eq!(paused["filters"]["data"], "", "{paused}");
    place.ok("balance resume disk.img");
    assert_eq!(state(&place, "disk.img")["state"], "none");
    place.check("disk.img");
    let mount = KernelMount::of(&place, "disk.img").unwrap();
    holds_what_was_written(mount.path());
}

/// Without the numbers of ranges, flags that stand for them, and the one that says that it goes on.
fn first_words(line: &str) -> String {
    let parts = line.split(", ").filter(|part| !part.starts_with("usage=") || part.len() < 12);
    let line = parts.collect::<Vec<_>>().join(", ");
    line.replace("0x402", "0x400")
        .replace("0x442", "0x440")
        .replace("0x422", "0x420")
        .replace("flags 0x1f", "flags 0xf")
}

/// What a balance says that gets a signal after a while.
fn interrupted(place: &Place, target: &str, delay: Duration) -> String {
    let words = ["balance", "start", "--full-balance", "-q", target];
    let mut command = command_as("buttress", place.path(), &words);
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(delay);
    let pid = rustix::process::Pid::from_child(&child);
    let _gone = rustix::process::kill_process(pid, rustix::process::Signal::INT);
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// As with btrfs-progs: whoever waits is told, and all is well.
#[test]
fn a_balance_that_another_command_stops_ends_well() {
    let place = Place::new();
    let Some(live) = mounted(&place) else { return };
    for (stop, words) in
        [("pause", "balance paused by user\n"), ("cancel", "balance canceled by user\n")]
    {
        let is_told = (0..TRIES).any(|_| {
            let words_of_start = ["balance", "start", "-d", "-m", "mnt"];
            let mut command = command_as("buttress", place.path(), &words_of_start);
            let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            while child.try_wait().unwrap().is_none()
                && place.run(&format!("balance {stop} mnt")).code != 0
            {}
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(0), "{said}");
            let is_told = said == words;
            assert_eq!((is_told, said.is_empty()), (output.stdout.is_empty(), !is_told), "{said}");
            is_told
        });
        assert!(is_told, "a balance is always done before one can {stop} it");
        let state = state(&place, "mnt")["state"].clone();
        assert_eq!(state, if stop == "pause" { "paused" } else { "none" });
        place.run("balance cancel mnt");
    }
    holds_what_was_written(&place.join("mnt"));
    live.end();
}

#[test]
fn a_signal_cancels_a_balance() {
    let place = Place::new();
    let Some(live) = mounted(&place) else { return };
    for target in ["mnt", "disk.img"] {
        if target == "disk.img" {
            assert_eq!(place.umount("mnt").code, 0);
        }
        // Before it has begun a signal is like any other, and after that it may come too late: which of them it is depends on the machine.
        for turn in 0..6 {
            let said = interrupted(&place, target, Duration::from_millis(20 + 30 * turn));
            assert!(said.is_empty() || said.contains("it was cancelled"), "{target}: {said}");
            // What was asked by one who was killed may begin after that.
            let is_none = (0..TRIES).any(|_| {
                place.run(&format!("balance cancel {target}"));
                state(&place, target)["state"] == "none"
            });
            assert!(is_none, "{target}");
        }
    }
    drop(live);
    if have_progs() {
        place.check("disk.img");
    }
    let Some(live) = Live::of(&place, "") else { return };
    holds_what_was_written(&place.join("mnt"));
    live.end();
}

#[test]
fn a_mounted_filesystem_becomes_smaller_and_larger() {
    let place = Place::new();
    let Some(live) = mounted(&place) else { return };
    let gib = 1_u64 << 30;
    let least = place.json("inspect-internal min-dev-size mnt")["size"].as_u64().unwrap();
    assert!((300 << 20..2 * gib).contains(&least), "{least}");
    let resized = place.json("filesystem resize -- -1G mnt");
    assert_eq!(resized, json!({ "before": 3 * gib, "size": 2 * gib }));
    let refused = place.fails("filesystem resize 300M mnt");
    assert!(refused.contains("No space left"), "{refused}");
    assert!(place.run("filesystem resize --file max mnt").err.contains("not mounted"));
    // The file is longer than the filesystem, and becomes so beside it.
    place.ok("filesystem resize max mnt");
    std::fs::OpenOptions::new()
        .write(true)
        .open(place.join("disk.img"))
        .unwrap()
        .set_len(4 * gib)
        .unwrap();
    let resized = place.json("filesystem resize 1:max mnt");
    assert_eq!(resized, json!({ "before": 3 * gib, "size": 4 * gib }));
    assert!(place.fails("filesystem resize 2:max mnt").contains("no device 2"));
    assert!(place.fails("filesystem resize 5G mnt").contains("truncate"));
    place.ok("filesystem resize min mnt");
    place.ok("filesystem resize max mnt");
    holds_what_was_written(&place.join("mnt"));
    live.end();
    if have_progs() {
        place.check("disk.img");
        let Some(mount) = KernelMount::of(&place, "disk.img") else { return };
        holds_what_was_written(mount.path());
    }
}
