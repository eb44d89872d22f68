//! What does not open says where, why, and what to do next; also as the answer of a mount, which another process has found.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use crate::run::{Place, have_progs};

const SUPERBLOCKS: [u64; 2] = [64 << 10, 64 << 20];

fn image() -> Place {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    std::fs::write(place.join("file"), vec![7; 100_000]).unwrap();
    place.ok("cp file disk.img:/file");
    std::fs::create_dir(place.join("mnt")).unwrap();
    place
}

/// Writes over a part of each superblock.
fn spoil(place: &Place, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(place.join("disk.img")).unwrap();
    for start in SUPERBLOCKS {
        file.write_all_at(bytes, start + at).unwrap();
    }
}

fn cut(place: &Place, len: u64) {
    OpenOptions::new().write(true).open(place.join("disk.img")).unwrap().set_len(len).unwrap();
}

/// Each command fails and says all of it.
fn says(place: &Place, lines: &[&str], words: &[&str]) {
    for line in lines {
        let said = place.fails(line);
        for word in words {
            assert!(said.contains(word), "{line}: {word}: {said}");
        }
    }
}

const WRITING: [&str; 2] = ["mkdir disk.img:/d", "mount disk.img mnt"];
const READING: [&str; 2] = ["ls disk.img:/", "mount -o ro disk.img mnt"];

#[test]
fn a_filesystem_whose_superblocks_are_gone() {
    let place = image();
    spoil(&place, 0, &[0; 4096]);
    let words = [
        "no btrfs filesystem",
        "no superblock at 64 KiB, and no copy of it at 64 MiB or 256 GiB",
        "--offset",
        "If a btrfs was here",
        "copy it before anything is changed",
        "`buttress mkfs` makes a new and empty filesystem, over what is left.",
    ];
    let of_mount = &words[1..];
    says(&place, &["ls disk.img:/", "check disk.img"], &words);
    says(&place, &["mount disk.img mnt"], of_mount);
}

#[test]
fn a_filesystem_whose_superblocks_are_bad() {
    let place = image();
    spoil(&place, 200, b"something");
    let words = [
        "corrupt superblock: offset=65536, checksum mismatch",
        "No copy of it, at 64 MiB or 256 GiB",
        "dump-super -aF",
        "check -s 1",
        "before anything is changed",
    ];
    says(&place, &READING, &words);
    says(&place, &WRITING, &words);
    place.ok("inspect-internal dump-super -aF disk.img");
}

#[test]
fn an_image_whose_end_is_cut_off() {
    let place = image();
    cut(&place, 200 << 20);
    let words = [
        "can only be opened read-only: it has 209715200 bytes, the filesystem takes 314572800\n",
        "copied or downloaded",
        "-o ro",
        "check --check-data-csum",
        "truncate -s",
    ];
    says(&place, &WRITING, &words);
    let said = place.run("cat disk.img:/file");
    assert!(said.code == 0 && said.out == vec![7; 100_000], "{}", said.err);
    assert!(said.err.contains("takes 314572800: its end is cut off"), "{}", said.err);
    // As it is said.
    cut(&place, 300 << 20);
    place.ok("mkdir disk.img:/d");
    place.check("disk.img");
    // Less than it takes to open it.
    cut(&place, 20 << 20);
    let words = ["is past the end of ", "Its end is cut off, and nothing can be read without"];
    says(&place, &READING, &words);
    assert!(!place.fails("ls disk.img:/").contains("--rescue"));
}

#[test]
fn one_of_several_devices() {
    if !have_progs() {
        return;
    }
    let place = Place::new();
    std::fs::create_dir(place.join("mnt")).unwrap();
    for name in ["disk.img", "other.img"] {
        std::fs::File::create(place.join(name)).unwrap().set_len(300 << 20).unwrap();
    }
    place.progs("mkfs.btrfs", "-q -d raid1 -m raid1 disk.img other.img");
    let words = [
        "a filesystem on 2 devices, of which this is number 1, is not supported",
        "btrfs device scan",
        "-o ro,degraded",
    ];
    says(&place, &READING, &words);
    says(&place, &WRITING, &words);
    says(&place, &["check disk.img"], &words);
    let second = place.fails("ls other.img:/");
    assert!(second.contains("of which this is number 2"), "{second}");
}
