//! What is free is given back: an image takes less room on its disk, and whatever is not free is the same.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use crate::live::Live;
use crate::run::{KernelMount, Place};

const MIB: u64 = 1 << 20;

/// Bytes that the image takes on its disk.
fn taken(place: &Place) -> u64 {
    std::fs::metadata(place.join("disk.img")).unwrap().blocks() * 512
}

/// Whether images become smaller where the tests are.
fn can_shrink(place: &Place) -> bool {
    let said = place.run("filesystem trim disk.img");
    if said.code != 0 {
        println!("skipped: {}", said.err);
    }
    said.code == 0
}

fn image() -> Option<Place> {
    let place = Place::new();
    place.ok("mkfs -q --size 600M disk.img");
    can_shrink(&place).then_some(place)
}

fn fill(place: &Place, bytes: u64) {
    std::fs::write(place.join("big"), vec![7; bytes as usize]).unwrap();
}

/// Waits for what the mount does by itself; it has failed when that does not come.
fn wait_until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(300), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Linux has made files and deleted most of them; what is left, it reads as before, and so do we.
#[test]
fn an_image_of_the_kernel_takes_less() {
    let place = Place::new();
    place.ok("mkfs -q --size 600M disk.img");
    let Some(mount) = KernelMount::with(&place, "disk.img", "nodiscard") else { return };
    for number in 0..100_u8 {
        std::fs::write(mount.path().join(format!("f{number}")), vec![number; 2_500_000]).unwrap();
    }
    // Not all filesystems: other tests copy what Linux has not committed.
    place.progs("sync", &format!("-f {}", mount.path().display()));
    for number in (0..100).filter(|number| number % 7 != 0) {
        std::fs::remove_file(mount.path().join(format!("f{number}"))).unwrap();
    }
    drop(mount);
    let before = taken(&place);
    if !can_shrink(&place) {
        return;
    }
    let after = taken(&place);
    assert!(before > 200 * MIB && after < 60 * MIB, "{before} {after}");
    place.check("disk.img");
    for again in [false, true] {
        let mount = KernelMount::of(&place, "disk.img").unwrap();
        for number in (0..100_u8).filter(|number| number % 7 == 0) {
            let found = std::fs::read(mount.path().join(format!("f{number}"))).unwrap();
            assert!(found == vec![number; 2_500_000], "{number}");
        }
        std::fs::write(mount.path().join("more"), vec![again as u8; 30_000_000]).unwrap();
    }
    // In large pieces there is less that is free.
    let all = place.json("filesystem trim disk.img")["trimmed"].as_u64().unwrap();
    let some = place.json("filesystem trim -m 64m disk.img")["trimmed"].as_u64().unwrap();
    assert!(some < all && all < 600 * MIB, "{some} {all}");
    let said = place.run("filesystem trim -m x disk.img");
    assert_eq!((said.code, said.err.contains("x is not a size")), (2, true), "{}", said.err);
    place.check("disk.img");
}

#[test]
fn a_live_mount_gives_back_when_it_is_asked() {
    let Some(place) = image() else { return };
    let Some(live) = Live::of(&place, "") else { return };
    std::fs::write(place.join("mnt/kept"), vec![1; 5_000_000]).unwrap();
    for way in ["fstrim", "ours"] {
        std::fs::write(place.join("mnt/gone"), vec![2; 150_000_000]).unwrap();
        place.ok("filesystem sync mnt");
        std::fs::remove_file(place.join("mnt/gone")).unwrap();
        place.ok("filesystem sync mnt");
        assert!(taken(&place) > 140 * MIB, "{way}: nobody has asked");
        if way == "ours" {
            // The kernel says some time later that nobody has the file any more.
            wait_until("what was deleted to be given back", || {
                let said = place.ok("filesystem trim mnt");
                assert!(said.starts_with("Trimmed ") && said.ends_with(" bytes)\n"), "{said}");
                taken(&place) < 40 * MIB
            });
        } else {
            match std::process::Command::new("fstrim").arg(place.join("mnt")).output() {
                Ok(done) => assert!(done.status.success(), "{done:?}"),
                Err(error) => println!("skipped: fstrim: {error}"),
            }
        }
    }
    // Several at once take turns.
    let all = std::thread::scope(|scope| {
        let ask = || place.json("filesystem trim mnt")["trimmed"].as_u64().unwrap();
        let others: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
        others.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(all.iter().all(|bytes| *bytes > 500 * MIB), "{all:?}");
    assert!(std::fs::read(place.join("mnt/kept")).unwrap() == vec![1; 5_000_000]);
    live.end();
    place.check("disk.img");
}

#[test]
fn a_mount_gives_back_by_itself_when_it_may() {
    for (option, at_once) in [("discard=async", false), ("discard", true), ("nodiscard", false)] {
        let Some(place) = image() else { return };
        let Some(live) = Live::of(&place, &format!("-o commit=1,{option}")) else { return };
        std::fs::write(place.join("mnt/gone"), vec![2; 150_000_000]).unwrap();
        place.ok("filesystem sync mnt");
        std::fs::remove_file(place.join("mnt/gone")).unwrap();
        std::fs::write(place.join("mnt/kept"), vec![1; 5_000_000]).unwrap();
        if at_once {
            wait_until(option, || taken(&place) < 40 * MIB);
        }
        live.end();
        assert_eq!(taken(&place) < 40 * MIB, option != "nodiscard", "{option}: {}", taken(&place));
        place.check("disk.img");
        assert_eq!(place.run("cat disk.img:/kept").out, vec![1; 5_000_000]);
    }
}

/// What a chunk had that is gone is given back, too, and no copy of the superblock with it.
#[test]
fn what_no_chunk_has_is_free() {
    let Some(place) = image() else { return };
    fill(&place, 300 << 20);
    place.ok("cp big disk.img:/");
    place.ok("rm disk.img:/big");
    place.ok("balance start -dusage=10 -musage=10 disk.img");
    place.ok("filesystem trim disk.img");
    assert!(taken(&place) < 30 * MIB, "{}", taken(&place));
    place.check("disk.img");
    // Where nothing is to be done nothing is written.
    let before = std::fs::read(place.join("disk.img")).unwrap();
    place.ok("filesystem trim disk.img");
    assert!(std::fs::read(place.join("disk.img")).unwrap() == before);
    // The second copy still is one.
    let copy = place.progs("btrfs", "inspect-internal dump-super -s 1 disk.img");
    assert!(String::from_utf8(copy).unwrap().contains("[match]"));
}
