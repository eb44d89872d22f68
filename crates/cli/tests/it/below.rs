//! What lies below files: compsize, find-new, sync, and the small commands of `inspect-internal`, each beside the tool whose text it has, on
//! the kernel's mount of the same filesystem.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::live::Live;
use crate::run::{KernelMount, Place, Said, have_progs};

/// Whether compsize is there; says so when not.
fn have_compsize() -> bool {
    let there = Command::new("compsize").arg("--help").output().is_ok();
    if !there {
        println!("skipped: compsize is not installed");
    }
    there
}

/// Runs a tool in a directory.
pub fn tool(directory: &Path, line: &str) -> Said {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap());
    Said::of(command.args(words).current_dir(directory).env("TZ", "UTC").output().unwrap())
}

/// Runs a tool, which must succeed; its output.
pub fn said(directory: &Path, line: &str) -> String {
    let said = tool(directory, line);
    assert_eq!(said.code, 0, "{line}: {}", said.err);
    said.text()
}

/// Numbers that look like chance and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Files of all kinds of content, written by the kernel in several transactions: all compressions, inline and not, reserved space, holes,
/// clones, parts written over, hard links, a subvolume and a snapshot of it that has gone on.
fn fill(top: &Path) {
    said(top, "btrfs subvolume create sv");
    let sv = top.join("sv");
    std::fs::create_dir_all(sv.join("dir/deep")).unwrap();
    let mut numbers = Numbers(7);
    let noise: Vec<u8> = (0..400_000).map(|_| numbers.below(256) as u8).collect();
    for (name, compression) in [("plain", ""), ("zlib", "zlib"), ("lzo", "lzo"), ("zstd", "zstd")] {
        for (size, content) in [("small", vec![b'a'; 1500]), ("large", vec![b'b'; 700_000])] {
            let path = sv.join(format!("dir/{name}-{size}"));
            std::fs::File::create(&path).unwrap();
            if !compression.is_empty() {
                said(
                    top,
                    &format!("btrfs property set {} compression {compression}", path.display()),
                );
            }
            std::fs::write(path, content).unwrap();
        }
    }
    std::fs::write(sv.join("noise"), &noise).unwrap();
    std::fs::write(sv.join("empty"), "").unwrap();
    std::os::unix::fs::symlink("noise", sv.join("link")).unwrap();
    said(&sv, "fallocate -l 1M reserved");
    said(&sv, "btrfs filesystem sync .");
    said(&sv, "cp --reflink=always noise dir/deep/clone");
    std::fs::hard_link(sv.join("noise"), sv.join("dir/hard")).unwrap();
    std::fs::hard_link(sv.join("noise"), sv.join("dir/deep/hard")).unwrap();
    said(top, "btrfs subvolume snapshot sv snap");
    for round in 0..6 {
        let file = std::fs::File::options().write(true).open(sv.join("noise")).unwrap();
        for _ in 0..8 {
            let at = numbers.below(90) * 4096;
            file.write_all_at(&noise[..4096 * (1 + numbers.below(3) as usize)], at).unwrap();
        }
        let at = numbers.below(90) * 4096;
        said(&sv, &format!("fallocate -p -o {at} -l 8192 dir/plain-large"));
        said(&sv, &format!("cp --reflink=always dir/zstd-large snap{round}"));
        std::fs::write(sv.join(format!("new{round}")), &noise[..1 + numbers.below(9000) as usize])
            .unwrap();
        said(&sv, "btrfs filesystem sync .");
    }
    // One extent of which one file has what is written, and another one what is reserved; the order of names is not that in which they were made.
    said(&sv, "fallocate -l 1M both");
    let file = std::fs::File::options().write(true).open(sv.join("both")).unwrap();
    file.write_all_at(&noise[..300_000], 0).unwrap();
    said(&sv, "btrfs filesystem sync .");
    said(&sv, "cp --reflink=always both z-reserved");
    said(&sv, "fallocate -p -o 0 -l 500K z-reserved");
    said(&sv, "cp --reflink=always both a-written");
    said(&sv, "fallocate -p -o 200K -l 2M a-written");
    std::fs::remove_file(sv.join("both")).unwrap();
    std::fs::write(top.join("outside"), &noise[..50_000]).unwrap();
    said(top, "btrfs filesystem sync .");
}

/// A filesystem that the kernel has made, and mounted.
pub fn made_by_kernel(options: &str) -> Option<(Place, KernelMount)> {
    if !have_progs() {
        return None;
    }
    let place = Place::new();
    std::fs::File::create(place.join("disk.img")).unwrap().set_len(400 << 20).unwrap();
    match options.strip_prefix("ours ") {
        None => drop(place.progs("mkfs.btrfs", &format!("-q {options} disk.img"))),
        Some(options) => drop(place.ok(&format!("mkfs -q {options} disk.img"))),
    }
    let mount = KernelMount::of(&place, "disk.img")?;
    fill(mount.path());
    drop(mount);
    // What is looked at is not changed by who looks.
    let mount = KernelMount::without_atime(&place, "disk.img")?;
    Some((place, mount))
}

/// Fails with the first line that differs.
pub fn same_lines(what: &str, ours: &str, theirs: &str) {
    for (ours, theirs) in ours.lines().zip(theirs.lines()) {
        assert_eq!(ours, theirs, "{what}");
    }
    assert_eq!(ours.lines().count(), theirs.lines().count(), "{what}");
}

/// A word of a command about the kernel's mount, said of an image or of a mount of ours.
fn on(prefix: &str, word: &str) -> String {
    match word {
        "." => prefix.to_owned(),
        _ => format!("{prefix}{word}"),
    }
}

const SIZES: [&str; 7] = [
    "@.",
    "-b @.",
    "-x @.",
    "-b @sv @sv/dir",
    "@snap",
    "@sv/noise @sv/dir/deep/clone",
    "@sv/dir/zlib-small",
];

/// The same line about a place below the kernel's mount, and about one of ours.
pub fn lines(line: &str, prefix: &str) -> (String, String) {
    let each = |prefix: &str| {
        let words = line.split(' ').map(|word| match word.strip_prefix('@') {
            Some(path) => on(prefix, path),
            None => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    };
    let theirs = line.replace('@', "");
    (theirs, each(prefix))
}

/// What the tools say on the kernel's mount, by our line.
fn answers(mount: &Path) -> Vec<(String, String)> {
    let mut all = Vec::new();
    if have_compsize() {
        for line in SIZES {
            let (theirs, _) = lines(line, "");
            all.push((
                format!("filesystem compsize {line}"),
                said(mount, &format!("compsize {theirs}")),
            ));
        }
    }
    let mut as_they_are = |line: String| {
        let (theirs, _) = lines(&line, "");
        let text = said(mount, &format!("btrfs {theirs}"));
        all.push((line, text));
    };
    for subvolume in ["sv", "snap", "."] {
        for since in [0, 8, 9, 10, 11, 13, 1000] {
            as_they_are(format!("subvolume find-new @{subvolume} {since}"));
        }
    }
    for path in [".", "sv", "snap", "sv/dir", "sv/link", "outside", "sv/dir/deep/hard"] {
        as_they_are(format!("inspect-internal rootid @{path}"));
    }
    for id in [5, 256, 257] {
        as_they_are(format!("inspect-internal subvolid-resolve {id} @."));
        as_they_are(format!("inspect-internal subvolid-resolve {id} @sv/dir"));
    }
    all
}

/// Every inode below a directory but links to it, by its number.
fn inodes(directory: &Path, found: &mut BTreeMap<u64, PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let facts = path.symlink_metadata().unwrap();
        found.insert(facts.ino(), path.clone());
        if facts.is_dir() {
            inodes(&path, found);
        }
    }
}

/// All paths of all inodes of a subvolume, without its own.
fn paths_of_inodes(mount: &Path) -> Vec<(u64, String)> {
    let mut found = BTreeMap::new();
    inodes(&mount.join("sv"), &mut found);
    let resolve = |ino: &u64| {
        let text = said(mount, &format!("btrfs inspect-internal inode-resolve {ino} sv"));
        (*ino, text)
    };
    found.keys().chain([&256]).map(resolve).collect()
}

#[test]
fn text_is_that_of_the_tools_on_images_and_on_live_mounts() {
    for options in ["", "-O ^no-holes", "ours -O block-group-tree -n 4096", "-M"] {
        let Some((place, mount)) = made_by_kernel(options) else { return };
        let (answers, paths) = (answers(mount.path()), paths_of_inodes(mount.path()));
        drop(mount);
        let same = |prefix: &str| {
            for (line, theirs) in &answers {
                let (_, line) = lines(line, prefix);
                same_lines(&format!("{options}: {line}"), &place.ok(&line), theirs);
            }
            for (ino, theirs) in &paths {
                let ours = place.ok(&format!("inspect-internal inode-resolve {ino} {prefix}sv"));
                let theirs = theirs.replace("sv/", &format!("{prefix}sv/"));
                assert_eq!(ours, theirs, "{options}: inode {ino}");
            }
        };
        same("disk.img:/");
        let Some(live) = Live::of(&place, "-o noatime") else { continue };
        same("mnt/");
        chunks_are_those_of_the_trees(&place, "mnt");
        live.end();
        chunks_are_those_of_the_trees(&place, "disk.img");
    }
}

/// A number behind a word in a line of dump-tree.
fn number(line: &str, word: &str) -> u64 {
    let mut words = line.split_whitespace().skip_while(|it| *it != word);
    words.nth(1).unwrap_or_else(|| panic!("no {word} in {line}")).parse().unwrap()
}

/// The trees that chunks and block groups are in, as dump-tree prints them.
fn trees_of_chunks(place: &Place) -> [Said; 3] {
    let line = |tree| format!("-q inspect-internal dump-tree -t {tree} disk.img");
    ["chunk", "extent", "block_group"].map(|tree| place.run(&line(tree)))
}

/// `list-chunks` against what dump-tree says of the chunk tree and the block groups: not every version of btrfs-progs has the command.
fn chunks_are_those_of_the_trees(place: &Place, target: &str) {
    // Of a live mount the trees may change meanwhile.
    for _ in 0..100 {
        let before = trees_of_chunks(place);
        let listed = place.json(&format!("-q inspect-internal list-chunks {target}"));
        let sorted = format!("-q inspect-internal list-chunks --raw --sort lstart,pstart {target}");
        let text = place.ok(&sorted);
        let after = trees_of_chunks(place);
        let same = before.iter().zip(&after).all(|(one, other)| one.out == other.out);
        if same && before.iter().all(|said| said.code == 0) {
            return chunks_are_those(&before.map(|said| said.text()), &listed, &text);
        }
    }
    panic!("the trees never rest");
}

fn chunks_are_those([chunks, extents, groups]: &[String; 3], listed: &Value, sorted: &str) {
    let mut used = BTreeMap::new();
    for text in [extents, groups] {
        let lines: Vec<_> = text.lines().collect();
        // A node that leads to such an item has its key, too.
        let is_item = |line: &str| {
            line.contains(" BLOCK_GROUP_ITEM ") && line.trim_start().starts_with("item ")
        };
        for pair in lines.windows(2).filter(|pair| is_item(pair[0])) {
            let start: u64 = pair[0].split(['(', ' ']).nth(4).unwrap().parse().unwrap();
            used.insert(start, number(pair[1], "used"));
        }
    }
    let (mut wanted, mut chunk) = (Vec::new(), (0, 0));
    for line in chunks.lines().map(str::trim) {
        if let Some((_, key)) = line.split_once("CHUNK_ITEM ") {
            chunk.0 = key.split(')').next().unwrap().parse().unwrap();
        } else if line.starts_with("length ") {
            chunk.1 = number(line, "length");
        } else if line.starts_with("stripe ") {
            let (lstart, length) = chunk;
            let place = (number(line, "devid"), number(line, "offset"));
            wanted.push((place, lstart, length, used[&lstart]));
        }
    }
    assert!(wanted.len() >= 2, "{wanted:?}");
    wanted.sort_unstable();
    let mut logical = wanted.clone();
    logical.sort_unstable_by_key(|it| (it.1, it.0));
    let listed = listed.as_array().unwrap();
    assert_eq!(listed.len(), wanted.len());
    for (index, (ours, theirs)) in listed.iter().zip(&wanted).enumerate() {
        let ((devid, pstart), lstart, length, used) = *theirs;
        let lnumber = logical.iter().position(|it| it == theirs).unwrap() + 1;
        let names = ["devid", "pstart", "lstart", "length", "used"];
        let ours_of = |name: &str| ours[name].as_u64().unwrap();
        assert_eq!(names.map(ours_of), [devid, pstart, lstart, length, used]);
        assert_eq!((&ours["pnumber"], &ours["lnumber"]), (&(index + 1).into(), &lnumber.into()));
    }
    let start = |line: &str| line.split_whitespace().nth(7).unwrap().parse().unwrap();
    let starts: Vec<u64> = sorted.lines().skip(2).map(start).collect();
    assert_eq!(starts, logical.iter().map(|it| it.1).collect::<Vec<_>>());
}

/// What an fsync has left in a log counts as it would after its replay, and reading replays nothing.
#[test]
fn what_waits_in_a_log_counts() {
    if !have_progs() || !have_compsize() {
        return;
    }
    let place = Place::new();
    std::fs::File::create(place.join("disk.img")).unwrap().set_len(400 << 20).unwrap();
    place.progs("mkfs.btrfs", "-q disk.img");
    let Some(mount) = KernelMount::with(&place, "disk.img", "loop,commit=3600") else { return };
    let top = mount.path();
    said(top, "btrfs property set . compression zstd");
    std::fs::write(top.join("file"), vec![1; 500_000]).unwrap();
    said(top, "btrfs filesystem sync .");
    let file = std::fs::File::options().write(true).open(top.join("file")).unwrap();
    file.write_all_at(&[2; 40_000], 200_000).unwrap();
    file.sync_all().unwrap();
    for (name, len) in [("new", 300_000), ("inline", 1000)] {
        let file = std::fs::File::create(top.join(name)).unwrap();
        file.write_all_at(&vec![3; len], 0).unwrap();
        file.sync_all().unwrap();
    }
    std::fs::copy(place.join("disk.img"), place.join("logged.img")).unwrap();
    drop(file);
    drop(mount);
    let waiting = place.ok("inspect-internal dump-super logged.img");
    let log = waiting.lines().find(|line| line.starts_with("log_root\t")).unwrap();
    assert!(!log.trim_end().ends_with("\t0"), "{log}");
    let ours = place.run("filesystem compsize -b logged.img");
    assert_eq!(ours.code, 0, "{}", ours.err);
    let all = place.run("inspect-internal inode-resolve 259 logged.img:");
    assert_eq!(all.text(), "logged.img:/inline\n", "{}", all.err);
    std::fs::rename(place.join("logged.img"), place.join("replayed.img")).unwrap();
    let Some(mount) = KernelMount::of(&place, "replayed.img") else { return };
    assert_eq!(ours.text(), said(mount.path(), "compsize -b ."));
}

#[test]
fn trees_are_counted_as_btrfs_progs_does() {
    if !have_progs() {
        return;
    }
    let place = Place::new();
    std::fs::File::create(place.join("disk.img")).unwrap().set_len(400 << 20).unwrap();
    place.progs("mkfs.btrfs", "-q -n 4096 disk.img");
    let same = || {
        for options in ["", "-b"] {
            let line = format!("inspect-internal tree-stats {options} disk.img");
            let theirs = place.progs("btrfs", &line);
            let without_time = |text: &str| {
                let lines = text.lines().filter(|line| !line.contains("Total read time: "));
                lines.map(|line| format!("{line}\n")).collect::<String>()
            };
            let ours = without_time(&place.ok(&line));
            same_lines(&line, &ours, &without_time(&String::from_utf8(theirs).unwrap()));
        }
    };
    same();
    let Some(mount) = KernelMount::of(&place, "disk.img") else { return };
    let mut numbers = Numbers(3);
    for round in 0..40 {
        for _ in 0..60 {
            let path = mount.path().join(format!("f{}", numbers.below(5000)));
            match numbers.below(3) {
                0 => drop(std::fs::remove_file(path)),
                _ => std::fs::write(path, vec![b'x'; numbers.below(6000) as usize]).unwrap(),
            }
        }
        if round % 4 == 0 {
            said(mount.path(), "btrfs filesystem sync .");
        }
    }
    drop(mount);
    same();
    let stats = place.json("inspect-internal tree-stats -t fs disk.img");
    assert!(
        stats[0]["seeks"].as_u64() > Some(20) && stats[0]["levels"].as_u64() > Some(1),
        "{stats}"
    );
    assert!(place.fails("inspect-internal tree-stats -t 999 disk.img").contains("there is none"));
}
