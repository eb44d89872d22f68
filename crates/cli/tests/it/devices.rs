//! `device`: what is told of the device of a filesystem is what btrfs-progs tells.

use std::os::unix::fs::FileExt;

use serde_json::json;

use crate::live::Live;
use crate::run::{KernelMount, Place, Said};
use crate::vfs::same_text;

fn image() -> Place {
    let place = Place::new();
    place.ok("mkfs -q --size 400M disk.img");
    place
}

/// The device is the image here and a loop device there.
fn without_paths(text: String) -> String {
    let line = |line: &str| match line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((_, rest)) => format!("[PATH]{rest}"),
        None if line.starts_with('/') => line.split(", ID").skip(1).collect(),
        None => line.to_owned(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// The column of paths has the width of the longest.
fn words(text: String) -> String {
    let is_own = |word: &&str| !word.starts_with('/') && !word.starts_with("--");
    text.split_whitespace().filter(is_own).collect::<Vec<_>>().join(" ")
}

#[test]
fn counters_and_usage_as_btrfs_progs_tells_them() {
    let place = image();
    let lines = [
        "device stats @",
        "device stats -c @",
        "device usage @",
        "device usage -b @",
        "device usage -k @",
        "device usage --si -g @",
        "device usage @ @",
    ];
    same_text(&place, &lines, without_paths);
    same_text(&place, &["device stats -T @", "device stats -cT @"], words);
    let table = place.ok("device stats -T disk.img");
    let path = place.join("disk.img").display().to_string();
    let width = path.len();
    let counts = "           0           0            0                 0                 0";
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines[2], format!(" 1 {path} {counts}"));
    assert!(lines[0].starts_with(&format!("Id {:<width$} Write errors Read errors", "Path")));
    assert!(lines[1].starts_with(&format!("-- {} ------------ -----------", "-".repeat(width))));
    std::fs::write(place.join("file"), vec![7; 30_000_000]).unwrap();
    for name in ["a", "b", "c", "d", "e"] {
        place.ok(&format!("cp file disk.img:/{name}"));
    }
    place.ok("balance start -dconvert=dup,limit=1 disk.img");
    assert!(place.ok("device usage disk.img").contains("Data,DUP:"));
    same_text(&place, &["device usage @"], without_paths);
    let usage = place.json("device usage disk.img");
    assert_eq!((&usage[0]["devid"], &usage[0]["size"]), (&json!(1), &json!(400 << 20)));
    assert_eq!(usage[0]["block-groups"][0]["bg-type"], "Data");
    let said = place.run("device usage disk.img nowhere disk.img");
    assert_eq!((said.code, said.text().matches(", ID: 1\n").count()), (1, 2), "{}", said.err);
}

/// What Linux has counted and written down.
#[test]
fn counters_that_are_not_zero() {
    let place = image();
    std::fs::write(place.join("file"), [b"to be damaged soon, ".repeat(5000)].concat()).unwrap();
    place.ok("cp file disk.img:/file");
    let bytes = std::fs::read(place.join("disk.img")).unwrap();
    let at = bytes.windows(20).position(|window| window == b"to be damaged soon, ").unwrap();
    drop(bytes);
    let disk = std::fs::File::options().write(true).open(place.join("disk.img")).unwrap();
    disk.write_all_at(b"T", at as u64).unwrap();
    let Some(mount) = KernelMount::of(&place, "disk.img") else { return };
    std::fs::read(mount.path().join("file")).unwrap_err();
    drop(mount);
    same_text(&place, &["device stats @"], without_paths);
    let stats = place.json("device stats disk.img");
    let path = place.join("disk.img").display().to_string();
    let count = stats[0]["corruption_errs"].as_str().unwrap();
    assert!(count != "0" && stats[0]["write_io_errs"] == "0", "{stats}");
    assert_eq!((&stats[0]["device"], &stats[0]["devid"]), (&json!(path), &json!("1")));
    let ended = |said: &Said| assert_eq!((said.code, said.err.as_str()), (64, ""));
    for options in ["-c", "--check", "-cT", "-c --format json"] {
        let said = place.run(&format!("device stats {options} disk.img"));
        ended(&said);
        assert!(said.text().contains(count), "{}", said.text());
    }
    let Some(live) = Live::of(&place, "") else { return };
    ended(&place.run("device stats -c mnt"));
    live.end();
    assert!(place.fails("device stats nowhere").contains("No such file"));
    assert_eq!(place.run("device stats disk.img disk.img").code, 2);
}
