//! `-o memory=` bounds the whole process that serves a mount, not only its caches.

use std::fs::{self, File};
use std::io::Write;
use std::process::Command;

use buttress_testkit::oracle;

use crate::daemon::{Place, buttress, wait_until};

/// The least that a mount may be given.
const LEAST: u64 = 32 << 20;
/// Directories, and files in each: with more memory to use, they take more.
const FILES: (u32, u32) = (20, 600);

/// Files, a large one, a snapshot, all of it read by several at once: many times the bound.
#[test]
fn the_least_memory_is_enough_and_is_kept_to() {
    let Some(place) = Place::new() else { return };
    let daemon = place.mount("memory=32M");
    let (top, snapshot) = (place.mountpoint(), place.mountpoint().join("snapshot"));
    for directory in 0..FILES.0 {
        let directory = top.join(directory.to_string());
        fs::create_dir(&directory).unwrap();
        for file in 0..FILES.1 {
            fs::write(directory.join(file.to_string()), vec![1; file as usize]).unwrap();
        }
    }
    let mut large = File::create(top.join("large")).unwrap();
    for piece in 0..120 {
        large.write_all(&vec![piece; 1 << 20]).unwrap();
    }
    drop(large);
    buttress(&["subvolume", "snapshot", "-q"], &[&top, &snapshot]);
    std::thread::scope(|scope| {
        for directory in [&top, &snapshot] {
            scope.spawn(move || {
                let mut read = Command::new("sh");
                read.args([
                    "-c",
                    "ls -lR . >/dev/null; cat large [0-9]*/* >/dev/null 2>&1; rm -rf 1*",
                ]);
                assert!(read.current_dir(directory).status().unwrap().success());
            });
        }
    });
    let peak = daemon.memory_peak();
    assert!(peak <= LEAST, "{} KiB at the peak", peak >> 10);
    daemon.unmount();
    oracle::check(&place.image(), true).unwrap();
}

/// What waits for a commit is in the heap, and that may have huge pages, but for what it began with.
#[test]
fn the_heap_may_have_huge_pages() {
    let setting = "/sys/kernel/mm/transparent_hugepage/enabled";
    if !fs::read_to_string(setting).is_ok_and(|modes| !modes.contains("[never]")) {
        eprintln!("skipped: {setting} allows none");
        return;
    }
    let Some(place) = Place::new() else { return };
    let daemon = place.mount("memory=128M");
    // So small that they wait for the commit.
    for file in 0..6_000 {
        fs::write(place.mountpoint().join(file.to_string()), vec![1; 2_000]).unwrap();
    }
    assert!(daemon.heap().0 > 16 << 20, "{:?}", daemon.heap());
    // Linux is told of it with the next request.
    wait_until("huge pages", || {
        let _it_is_not_there = place.mountpoint().join("nothing").metadata();
        let (heap, huge) = daemon.heap();
        heap - huge < 2 << 20
    });
    daemon.unmount();
}
