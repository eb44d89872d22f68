//! `check`: what it says and how it ends.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::run::Place;

/// Changes one byte of an image.
fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

fn image() -> Place {
    let place = Place::new();
    place.ok("mkfs -q --size 200M disk.img");
    std::fs::write(place.join("file"), vec![7; 100_000]).unwrap();
    place.ok("cp file disk.img:/file");
    place
}

#[test]
fn a_clean_filesystem() {
    let place = image();
    let text = place.ok("check --check-data-csum disk.img");
    assert!(text.starts_with("Checking filesystem on disk.img\nUUID: "), "{text}");
    assert!(text.contains("bytes used, no error found\n"), "{text}");
    assert_eq!(place.ok("-q check disk.img"), "");
    let report = place.json("check --readonly --mode lowmem disk.img");
    assert_eq!(report["clean"], true);
    assert_eq!(report["errors"], 0);
    assert!(report["totals"]["bytes-used"].as_u64().unwrap() > 100_000);
}

#[test]
fn damaged_data_shows_when_it_is_read() {
    let place = image();
    let at = find(&place.join("disk.img"), &[7; 4096]);
    flip(&place.join("disk.img"), at);
    place.ok("check disk.img");
    let said = place.run("check --check-data-csum disk.img");
    assert_eq!(said.code, 1);
    assert!(said.text().contains("error: data-csum: logical "), "{}", said.text());
    assert!(said.text().contains("error(s) found: 1"), "{}", said.text());
    let said = place.run("--format json check --check-data-csum --issues 1 disk.img");
    assert_eq!(said.code, 1);
    let report: serde_json::Value = serde_json::from_slice(&said.out).unwrap();
    assert_eq!(report["check"]["clean"], false);
    assert_eq!(report["check"]["issues"][0]["id"], "data-csum");
    assert_eq!(report["check"]["issues"][0]["length"], 4096);
    assert_eq!(report["check"]["kinds"][0]["count"], 1);
}

#[test]
fn files_with_bad_data_are_named() {
    let place = Place::new();
    place.ok("mkfs -q -d dup --size 600M disk.img");
    std::fs::write(place.join("file"), vec![7; 100_000]).unwrap();
    place.ok("subvolume create disk.img:/sub");
    place.ok("cp file disk.img:/sub/file");
    place.ok("subvolume snapshot disk.img:/sub disk.img:/snap");
    flip(&place.join("disk.img"), find(&place.join("disk.img"), &[7; 4096]));
    let said = place.run("check --check-data-csum disk.img");
    assert_eq!(said.code, 1, "{}", said.text());
    let text = said.text();
    assert!(text.contains("error: data-csum: logical "), "{text}");
    assert!(text.contains("\n  in /sub/file (inode 257 of subvolume 256)\n"), "{text}");
    assert!(text.contains("\n  in /snap/file (inode 257 of subvolume 257)\n"), "{text}");
    let said = place.run("--format json check --check-data-csum disk.img");
    let report: serde_json::Value = serde_json::from_slice(&said.out).unwrap();
    assert_eq!(report["check"]["issues"][0]["files"][0]["path"], "/sub/file", "{report}");
    assert_eq!(report["check"]["issues"][0]["files-more"], 0, "{report}");
    // Of many, the oldest.
    for number in 0..20 {
        place.ok(&format!("subvolume snapshot disk.img:/snap disk.img:/{number}"));
    }
    let text = place.run("check --check-data-csum disk.img").text();
    assert!(text.contains("\n  in /sub/file (inode 257 of subvolume 256)\n"), "{text}");
    assert!(text.contains("\n  in 14 more\n"), "{text}");
    for number in 0..20 {
        place.ok(&format!("subvolume delete disk.img:/{number}"));
    }
    // Data that nobody has is not looked at.
    place.ok("subvolume delete disk.img:/snap");
    place.ok("rm disk.img:/sub/file");
    let said = place.run("check --check-data-csum disk.img");
    assert!(!said.text().contains("  in "), "{}", said.text());
}

#[test]
fn a_damaged_range_is_one_issue() {
    let place = image();
    let path = place.join("disk.img");
    let at = find(&path, &[7; 4096]);
    // Two ranges: nine sectors, one that is good, and one more.
    (0..9).chain([10]).for_each(|sector| flip(&path, at + sector * 4096));
    let said = place.run("check --check-data-csum disk.img");
    let lines: Vec<_> =
        said.out.split(|byte| *byte == b'\n').filter(|it| it.starts_with(b"error: data")).collect();
    assert_eq!((said.code, lines.len()), (1, 2), "{}", said.text());
    assert!(said.text().contains("length 36864: have copy 1: 9 bad sectors, the first 0x"));
    let said = place.run("--format json check --check-data-csum disk.img");
    let report: serde_json::Value = serde_json::from_slice(&said.out).unwrap();
    let issues = report["check"]["issues"].as_array().unwrap();
    let ranges: Vec<_> = issues
        .iter()
        .map(|it| (it["logical"].as_u64().unwrap(), it["length"].as_u64().unwrap()))
        .collect();
    let first = ranges[0].0;
    assert_eq!(ranges, [(first, 9 * 4096), (first + 10 * 4096, 4096)]);
    assert_eq!(report["check"]["kinds"][0]["count"], 2);
}

#[test]
fn names_that_are_no_text_are_names() {
    use std::os::unix::ffi::OsStrExt;
    let place = Place::new();
    let name = std::ffi::OsStr::from_bytes(b"im\xffge");
    let run = |words: &[&str]| {
        let words: Vec<_> = words.iter().map(std::ffi::OsStr::new).chain([name]).collect();
        let said = place.run_words(&words);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{words:?}");
        said
    };
    run(&["mkfs", "-q", "--size", "200M"]);
    let said = run(&["check"]);
    assert!(said.out.starts_with(b"Checking filesystem on im\xffge\nUUID: "), "{}", said.text());
    let json = |said: &crate::run::Said| -> serde_json::Value {
        serde_json::from_slice(&said.out).unwrap()
    };
    let report = json(&run(&["--format", "json", "check"]));
    assert_eq!(report["check"]["device_hex"], "696dff6765");
    let label = std::ffi::OsStr::from_bytes(b"l\xffbel");
    let mut words: Vec<_> =
        ["--format", "json", "mkfs", "-f", "-L"].map(std::ffi::OsStr::new).to_vec();
    words.extend([label, name]);
    let said = place.run_words(&words);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    let made = json(&said);
    assert_eq!(made["mkfs"]["label_hex"], "6cff62656c");
    assert_eq!(made["mkfs"]["devices"][0]["path_hex"], "696dff6765");
    let fs = buttress::Filesystem::open(place.path().join(name), buttress::Options::read_only());
    assert_eq!(fs.unwrap().info().label, b"l\xffbel");
}

/// Where a sector of the image holds this.
fn find(path: &Path, content: &[u8]) -> u64 {
    let file = File::open(path).unwrap();
    let mut sector = vec![0; content.len()];
    let holds = |at: &u64| file.read_exact_at(&mut sector, *at).is_ok() && sector == content;
    (0..50_000).map(|number| number * 4096).find(holds).unwrap()
}

#[test]
fn a_mirror_of_the_superblock() {
    let place = image();
    flip(&place.join("disk.img"), 65536 + 200);
    let said = place.run("check disk.img");
    assert_eq!(said.code, 1);
    assert!(said.text().contains("error: super-bad: device 1 offset 65536"), "{}", said.text());
    assert_eq!(place.run("check -s 0 disk.img").code, 1);
    let said = place.run("check -s 1 disk.img");
    assert!(said.text().contains("UUID: "), "{}", said.text());
    assert_eq!(place.run("check -s 3 disk.img").code, 2);
}

#[test]
fn what_is_in_use_or_no_filesystem_is_refused() {
    let place = image();
    let writer = File::open(place.join("disk.img")).unwrap();
    writer.lock().unwrap();
    let said = place.fails("check disk.img");
    assert!(said.contains("busy: another program has locked it"), "{said}");
    assert!(said.contains("--force"), "{said}");
    place.ok("check --force disk.img");
    std::fs::write(place.join("empty"), vec![0; 1 << 20]).unwrap();
    assert!(place.fails("check empty").contains("no btrfs filesystem there"));
    assert!(place.fails("check nowhere").contains("No such file"));
}

/// What a command prints that succeeds and warns that there are no data.
fn shown(place: &Place, command: &str) -> String {
    let said = place.run(command);
    assert_eq!(said.code, 0, "{command}: {}", said.err);
    said.text()
}

/// A filesystem with a subvolume, as its metadata dump is restored; `None` where btrfs-image is not installed.
fn restored(hide: &[&str]) -> Option<Place> {
    let place = Place::new();
    std::fs::create_dir_all(place.join("tree/directory")).unwrap();
    std::fs::write(place.join("tree/directory/file"), vec![7; 100_000]).unwrap();
    std::fs::write(place.join("tree/small"), "text").unwrap();
    place.ok("mkfs -q --size 200M -O ^block-group-tree --rootdir tree disk.img");
    place.ok("subvolume create disk.img:/volume");
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new("btrfs-image");
        command.args(args).current_dir(place.path());
        command.output().is_ok_and(|output| output.status.success())
    };
    let dumped = run(&[hide, &["disk.img", "dump"]].concat());
    if !dumped {
        println!("skipped: needs btrfs-image");
        return None;
    }
    assert!(run(&["-r", "dump", "restored.img"]));
    Some(place)
}

#[test]
fn a_restored_metadata_dump_is_read() {
    let Some(place) = restored(&[]) else { return };
    shown(&place, "check --check-data-csum restored.img");
    assert!(shown(&place, "ls restored.img:/directory").contains("file"));
    assert!(shown(&place, "subvolume list restored.img").contains("path volume"));
    assert!(shown(&place, "inspect-internal dump-tree restored.img").contains("name: small"));
    let said = place.fails("mkdir restored.img:/new");
    assert!(said.contains("a dump of metadata"), "{said}");
}

/// Neither Linux nor btrfs-progs open it; btrfs-image fails, too, when it looks at what it has made.
#[test]
fn a_dump_restored_in_the_old_way_is_refused_by_name() {
    let Some(place) = restored(&[]) else { return };
    let mut command = std::process::Command::new("btrfs-image");
    command.args(["-r", "-o", "dump", "old.img"]).current_dir(place.path());
    let _fails = command.output().unwrap();
    for line in ["ls old.img", "check old.img", "mkdir old.img:/new"] {
        assert!(place.fails(line).contains("restored in the old way"), "{line}");
    }
}

#[test]
fn names_that_a_dump_has_hidden_need_no_hash() {
    let Some(place) = restored(&["-s"]) else { return };
    // Hidden names are any bytes: one that no file can have costs itself alone.
    let listed = place.run("ls restored.img");
    let hidden = listed.err.matches("a name that no file can have").count();
    assert_eq!(listed.text().lines().count() + hidden, 3, "{}{}", listed.text(), listed.err);
    assert!(shown(&place, "inspect-internal dump-tree restored.img").contains("DIR_INDEX"));
    let report = place.run("check restored.img").text();
    assert!(!report.contains("does not match its hash"), "{report}");
}
