//! What lies below files, without a tool to compare with: what is counted, waited for, refused, and where paths lead.

use std::fs::{File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::device::for_everybody;
use crate::live::Live;
use crate::run::{Place, Said, have_progs};

/// Without a tool to compare with: what is known of what was made.
#[test]
fn extents_count_once_and_references_each() {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    std::fs::write(place.join("large"), vec![5; 50_000]).unwrap();
    std::fs::write(place.join("small"), "inline").unwrap();
    place.ok("cp large small disk.img:/");
    place.ok("cp disk.img:/large disk.img:/clone");
    let expected = "\
Processed 3 files, 1 regular extents (2 refs), 1 inline.
Type       Perc     Disk Usage   Uncompressed Referenced  
TOTAL      100%     53254        53254        106502      
none       100%     53254        53254        106502      
";
    assert_eq!(place.ok("filesystem compsize -b disk.img"), expected);
    // Named twice, it is read twice, and its extents are where they were.
    let twice = place.json("filesystem compsize disk.img:/large disk.img:/large");
    assert_eq!(
        (&twice["files"], &twice["regular_extents"], &twice["refs"]),
        (&json!(2), &json!(1), &json!(2))
    );
    let listed = place.json("subvolume find-new disk.img: 0");
    let paths: Vec<&Value> =
        listed["extents"].as_array().unwrap().iter().map(|it| &it["path"]).collect();
    assert_eq!(paths, ["large", "small", "clone"]);
    let marker = listed["transid"].as_u64().unwrap();
    let none = place.json(&format!("subvolume find-new disk.img: {}", marker + 1));
    assert_eq!(none, json!({ "transid": marker, "extents": [] }));
}

/// An image with a subvolume that is deleted and not gone.
fn between(place: &Place) -> u64 {
    place.ok("mkfs -q --size 300M disk.img");
    place.ok("subvolume create -q disk.img:/gone");
    let id = place.ok("inspect-internal rootid disk.img:/gone").trim().parse().unwrap();
    let options = buttress::Options::read_write().background(false);
    let fs = buttress::Filesystem::open(place.join("disk.img"), options).unwrap();
    let dir = fs.resolve("/gone").unwrap();
    let file = buttress::New::of(buttress::FileKind::Regular, 0o644);
    fs.create(dir, b"file", &file).unwrap();
    fs.delete_subvolume(buttress::Node::ROOT, b"gone").unwrap();
    fs.commit().unwrap();
    std::fs::copy(place.join("disk.img"), place.join("between.img")).unwrap();
    id
}

#[test]
fn deleted_subvolumes_are_waited_for() {
    let place = Place::new();
    let id = between(&place);
    std::fs::copy(place.join("between.img"), place.join("other.img")).unwrap();
    assert!(!place.ok("subvolume list -d between.img").is_empty());
    let expected = format!("Waiting for 1 subvolume\nSubvolume id {id} is gone (1/1)\n");
    assert_eq!(place.ok("subvolume sync between.img"), expected);
    assert_eq!(place.ok("subvolume list -d between.img"), "");
    // Nothing is left to wait for, and what is not there is gone.
    assert_eq!(place.ok("subvolume sync between.img"), "");
    assert_eq!(place.ok(&format!("subvolume sync -s 5 between.img {id}")), expected);
    assert_eq!(place.json(&format!("subvolume sync other.img {id}")), json!([id]));
    assert_eq!(place.ok("subvolume list -d other.img"), "");
    if have_progs() {
        place.check("between.img");
        place.check("other.img");
    }
    place.ok("subvolume create -q other.img:/stays");
    let stays = place.ok("inspect-internal rootid other.img:/stays");
    let said = place.fails(&format!("subvolume sync other.img {}", stays.trim()));
    assert!(said.contains("it is not deleted"), "{said}");
}

#[test]
fn deleted_subvolumes_of_a_live_mount_are_waited_for() {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    place.ok("subvolume create -q disk.img:/one");
    let Some(live) = Live::of(&place, "") else { return };
    std::fs::write(place.join("mnt/one/file"), vec![1; 100_000]).unwrap();
    let id = place.ok("inspect-internal rootid mnt/one");
    let id = id.trim();
    place.ok("subvolume delete mnt/one");
    let expected = format!("Waiting for 1 subvolume\nSubvolume id {id} is gone (1/1)\n");
    assert_eq!(place.ok(&format!("subvolume sync mnt {id}")), expected);
    assert_eq!(place.ok("subvolume list -d mnt"), "");
    assert_eq!(place.ok("subvolume sync mnt"), "");
    let said = place.run("subvolume sync mnt 5");
    assert!(said.code == 2 && said.err.contains("out of range"), "{}", said.err);
    live.end();
}

/// Who has a file or a directory open goes on; when the last is closed, the subvolume goes, though Linux does not say that.
#[test]
fn a_deleted_subvolume_goes_when_nobody_uses_it_any_more() {
    if !linux_prunes() {
        eprintln!("skipped: before 6.18 Linux cannot be asked to forget what nobody uses");
        return;
    }
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    place.ok("subvolume create -q disk.img:/one");
    let Some(live) = Live::of(&place, "") else { return };
    let deep = place.join("mnt/one/deep/deeper");
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::write(deep.join("file"), vec![1; 300_000]).unwrap();
    for number in 0..1000 {
        std::fs::write(deep.join(number.to_string()), "").unwrap();
    }
    let (file, directory) = (File::open(deep.join("file")).unwrap(), File::open(&deep).unwrap());
    place.ok("subvolume delete -q mnt/one");
    let is_there = || !place.ok("subvolume list -d mnt").is_empty();
    // Longer than it takes to ask.
    std::thread::sleep(Duration::from_secs(2));
    let mut bytes = [0; 1000];
    file.read_exact_at(&mut bytes, 299_000).unwrap();
    assert_eq!(bytes, [1; 1000]);
    let names = std::fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd())).unwrap();
    assert_eq!(names.count(), 1001);
    assert!(is_there());
    drop(file);
    std::thread::sleep(Duration::from_secs(2));
    assert!(is_there(), "the directory is open");
    drop(directory);
    let until = Instant::now() + Duration::from_secs(60);
    while is_there() {
        assert!(Instant::now() < until, "it stays");
        std::thread::sleep(Duration::from_millis(100));
    }
    live.end();
}

/// Whether Linux has `FUSE_NOTIFY_PRUNE`.
fn linux_prunes() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(18))
}

/// No such inode, no subvolume, no btrfs: exit code 1, as of the tools, and it is said what is wrong.
#[test]
fn what_is_not_there_is_refused() {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    place.ok("mkdir disk.img:/dir");
    place.ok("ln -s dir disk.img:/link");
    std::fs::write(place.join("file"), "").unwrap();
    place.ok("cp file disk.img:/");
    std::fs::create_dir(place.join("elsewhere")).unwrap();
    let refused = |prefix: &str| {
        for (line, why) in [
            ("inspect-internal inode-resolve 999 @", "cannot resolve inode 999"),
            ("inspect-internal inode-resolve 256 @missing", "No such file or directory"),
            ("inspect-internal subvolid-resolve 999 @", "cannot resolve subvolume 999"),
            ("inspect-internal subvolid-resolve 0 @", "No such file or directory"),
            ("inspect-internal rootid @missing", "No such file or directory"),
            ("subvolume find-new @dir 0", "it is not a subvolume"),
            ("subvolume find-new @file 0", "it is not a subvolume"),
            ("filesystem compsize @missing", "No such file or directory"),
            ("filesystem du @missing", "No such file or directory"),
            ("filesystem compsize @link", "no files"),
            ("filesystem compsize @file", "all empty"),
            ("filesystem compsize @dir", "no files"),
        ] {
            let line = line.replace('@', prefix);
            let said = place.fails(&line);
            assert!(said.contains(why), "{line}: {said}");
        }
    };
    refused("disk.img:/");
    for line in [
        "inspect-internal inode-resolve 256 elsewhere",
        "inspect-internal subvolid-resolve 5 elsewhere",
        "inspect-internal rootid elsewhere",
        "inspect-internal list-chunks elsewhere",
        "subvolume find-new elsewhere 0",
        "subvolume sync elsewhere",
        "filesystem compsize elsewhere",
        "filesystem du elsewhere",
    ] {
        let said = place.fails(line);
        assert!(said.contains("neither a btrfs image nor on a live mount"), "{line}: {said}");
    }
    assert!(place.fails("inspect-internal tree-stats file").contains("cannot open"));
    // Those that are there count, and those that are not are said.
    std::fs::write(place.join("file"), "x").unwrap();
    place.ok("cp file disk.img:/other");
    let said = place.run("filesystem compsize disk.img:/missing disk.img:/other");
    assert_eq!(said.code, 1);
    assert!(said.text().starts_with("Processed 1 file,") && said.err.contains("missing"));
    let Some(live) = Live::of(&place, "") else { return };
    refused("mnt/");
    live.end();
}

/// Below a directory that is no subvolume the paths begin with that of the subvolume, so that they lead to the file; and a live mount takes
/// the numbers that it shows.
#[test]
fn paths_of_inodes_lead_there() {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    place.ok("mkdir disk.img:/dir");
    place.ok("subvolume create -q disk.img:/dir/sv");
    place.ok("mkdir disk.img:/dir/sv/deep");
    std::fs::write(place.join("file"), "x").unwrap();
    place.ok("cp file disk.img:/dir/sv/deep/file");
    let resolved = place.ok("inspect-internal inode-resolve 258 disk.img:/dir/sv/deep");
    assert_eq!(resolved, "disk.img:/dir/sv/deep/file\n");
    let resolved = place.json("inspect-internal inode-resolve 258 disk.img:/dir/sv");
    assert_eq!(resolved, json!(["disk.img:/dir/sv/deep/file"]));
    let id = place.json("inspect-internal rootid disk.img:/dir/sv/deep");
    assert_eq!(id, 256);
    let path = place.json("inspect-internal subvolid-resolve 256 disk.img");
    assert_eq!(path, "dir/sv");
    assert_eq!(place.ok("inspect-internal inode-resolve 257 disk.img"), "disk.img:/dir\n");
    let Some(live) = Live::of(&place, "") else { return };
    let shown = place.join("mnt/dir/sv/deep/file").metadata().unwrap().ino();
    for ino in [258, shown] {
        let resolved = place.ok(&format!("inspect-internal inode-resolve {ino} mnt/dir/sv"));
        assert_eq!(resolved, "mnt/dir/sv/deep/file\n");
        let resolved = place.ok(&format!("inspect-internal inode-resolve {ino} mnt/dir/sv/deep"));
        assert_eq!(std::fs::read(resolved.trim_end()).unwrap(), b"x");
    }
    live.end();
}

/// Who may read a file may know how it is stored; trees, and names that he might not find, are the administrator's.
#[test]
fn an_ordinary_user_measures_what_he_can_read() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    let program = for_everybody(&place);
    let Some(live) = Live::of(&place, "-o allow_other") else { return };
    for (name, mode) in [("open", 0o644), ("closed", 0o600)] {
        let path = place.join("mnt").join(name);
        std::fs::write(&path, [7; 100]).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
    std::fs::set_permissions(place.join("mnt"), Permissions::from_mode(0o755)).unwrap();
    let as_user = |line: &str| {
        let mut command = Command::new(&program);
        command.args(line.split(' ')).current_dir(place.path()).uid(1001).gid(1002);
        Said::of(command.output().unwrap())
    };
    let said = as_user("filesystem compsize mnt");
    assert!(said.code == 1 && said.err.contains("mnt/closed: Permission denied"), "{}", said.err);
    assert!(said.text().contains(", 0 regular extents (0 refs), 1 inline."), "{}", said.text());
    let said = as_user("inspect-internal rootid mnt/open");
    assert_eq!((said.code, said.text().as_str()), (0, "5\n"), "{}", said.err);
    for line in [
        "inspect-internal inode-resolve 257 mnt",
        "inspect-internal list-chunks mnt",
        "subvolume find-new mnt 0",
        "subvolume sync mnt",
    ] {
        let said = as_user(line);
        assert!(said.code == 1 && said.err.contains("not permitted"), "{line}: {}", said.err);
    }
    live.end();
}
