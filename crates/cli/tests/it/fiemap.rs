//! `inspect-internal fiemap`: the text is that of filefrag on a mount of the kernel, on images and on live mounts.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::{FallocateFlags, fallocate, ioctl_ficlone};

use crate::live::Live;
use crate::run::{KernelMount, Place};

const NAMES: [&str; 10] = [
    "pieces",
    "inline",
    "empty",
    "holes",
    "reserved",
    "clone",
    "compressed",
    "both",
    "long",
    "first",
];

fn fill(top: &Path) {
    let make = |name: &str| {
        OpenOptions::new().read(true).write(true).create_new(true).open(top.join(name)).unwrap()
    };
    let write = |file: &File, at: u64, len: usize| {
        // Noise, which no compression makes smaller.
        let mut state = at + 1;
        let noise = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        };
        file.write_all_at(&(0..len).map(noise).collect::<Vec<u8>>(), at).unwrap();
        file.sync_all().unwrap();
    };
    let pieces = make("pieces");
    write(&pieces, 0, 200_000);
    let holes = make("holes");
    write(&holes, 4096, 8192);
    write(&pieces, 40_960, 8192);
    write(&holes, 40_960, 8192);
    holes.set_len(100_000).unwrap();
    write(&make("inline"), 0, 700);
    make("empty");
    let reserved = make("reserved");
    fallocate(&reserved, FallocateFlags::KEEP_SIZE, 0, 400_000).unwrap();
    write(&reserved, 65_536, 16_384);
    ioctl_ficlone(make("clone"), &pieces).unwrap();
    for (name, len) in [("compressed", 300_000), ("both", 4096)] {
        let file = make(name);
        let text = vec![b'a'; len];
        let mut property = Command::new("btrfs");
        property.args(["property", "set"]).arg(top.join(name)).args(["compression", "zstd"]);
        assert!(property.status().unwrap().success());
        file.write_all_at(&text, 0).unwrap();
        file.sync_all().unwrap();
    }
    // Behind what is inline.
    let both = File::options().write(true).open(top.join("both")).unwrap();
    write(&both, 8192, 8192);
    let long = make("long");
    write(&long, 1 << 45, 8192);
    write(&pieces, 81_920, 8192);
    write(&long, (1 << 45) + (1 << 30), 4096);
    write(&make("first"), 102_400, 4096);
}

/// What filefrag says, by options, of all files and of each.
fn said_by_filefrag(top: &Path) -> Vec<String> {
    let say = |words: &[&str]| {
        let mut command = Command::new("filefrag");
        let output = command.arg("-b4096").args(words).current_dir(top).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let all = [&["-v"], &NAMES[..]].concat();
    let mut said = vec![say(&all), say(&NAMES)];
    said.extend(NAMES.map(|name| say(&["-v", name])));
    said
}

fn same(place: &Place, prefix: &str, theirs: &[String]) {
    let say = |options: &str, names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| format!("{prefix}{name}")).collect();
        let line = format!("inspect-internal fiemap {options} {}", names.join(" "));
        place.ok(&line).replace(prefix, "")
    };
    let mut ours = vec![say("-v", &NAMES), say("", &NAMES)];
    ours.extend(NAMES.map(|name| say("--verbose", &[name])));
    for (our, their) in ours.iter().zip(theirs) {
        assert_eq!(our, their, "{prefix}");
    }
}

#[test]
fn text_is_that_of_filefrag() {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    let Some(mount) = KernelMount::of(&place, "disk.img") else { return };
    fill(mount.path());
    drop(mount);
    let Some(mount) = KernelMount::read_only(&place, "disk.img") else { return };
    let theirs = said_by_filefrag(mount.path());
    drop(mount);
    same(&place, "disk.img:/", &theirs);
    let Some(live) = Live::of(&place, "-o ro") else { return };
    same(&place, "mnt/", &theirs);
    live.end();
    let said = place.fails("inspect-internal fiemap disk.img:/ disk.img:/nothing");
    assert!(said.contains("only regular files have extents: it is a directory"), "{said}");
    assert!(said.contains("disk.img:/nothing"), "{said}");
    std::fs::write(place.join("elsewhere"), "x").unwrap();
    let said = place.fails("inspect-internal fiemap elsewhere");
    assert!(said.contains("it is on no mount of buttress"), "{said}");
}

#[test]
fn extents_as_json() {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    std::fs::write(place.join("data"), vec![7; 300_000]).unwrap();
    place.ok("cp data disk.img:/one");
    let files = place.json("inspect-internal fiemap disk.img:/one");
    assert_eq!(files[0]["extents"], 1);
    assert_eq!((&files[0]["size"], &files[0]["path"]), (&300_000.into(), &"disk.img:/one".into()));
    let alone = place.json("inspect-internal fiemap -v disk.img:/one");
    assert_eq!(alone[0]["flags"], serde_json::json!(["last"]));
    assert_eq!((&alone[0]["logical"], &alone[0]["length"]), (&0.into(), &303_104.into()));
    place.ok("cp disk.img:/one disk.img:/two");
    place.ok("subvolume snapshot disk.img:/ disk.img:/snapshot");
    for path in ["one", "two", "snapshot/one"] {
        let line = format!("inspect-internal fiemap -v disk.img:/{path}");
        let shared = place.json(&line);
        assert_eq!(shared[0]["flags"], serde_json::json!(["last", "shared"]), "{path}");
        assert_eq!(shared[0]["physical"], alone[0]["physical"]);
    }
}

/// What is written on a mount is told at once, and by many parts where there are many extents.
#[test]
fn a_live_mount_tells_what_was_just_written() {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    let Some(live) = Live::of(&place, "") else { return };
    let file = File::create(place.join("mnt/file")).unwrap();
    for number in 0..1500 {
        file.write_all_at(&[7; 4096], number * 3 * 4096).unwrap();
    }
    let extents = place.json("inspect-internal fiemap -v mnt/file");
    let extents = extents.as_array().unwrap();
    assert_eq!(extents.len(), 1500);
    for (number, one) in extents.iter().enumerate() {
        assert_eq!(one["logical"], number as u64 * 3 * 4096);
        assert!(one["physical"].as_u64().unwrap() > 0, "{one}");
    }
    drop(file);
    live.end();
}
