//! `inspect-internal logical-resolve`: text and order are those of btrfs-progs on a mount of the kernel, on images and on live mounts.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::process::Command;

use rustix::fs::copy_file_range;

use crate::live::Live;
use crate::run::{KernelMount, Place, Said, have_progs};

/// Snapshots, clones whole and in part, hard links, subvolumes in each other, compressed and preallocated data, and trees of several
/// levels of which snapshots have some blocks only.
const FILL: &str = r"
set -e
noise() { head -c $1 /dev/urandom; }
btrfs -q subvolume create s1; btrfs -q subvolume create s1/nested; mkdir d
noise 262144 > f; cp --reflink=always f d/clone; ln f d/link; ln f s-link
cp --reflink=always f s1/in; cp --reflink=always f s1/nested/in
fallocate -l 65536 reserved; noise 8192 | dd of=reserved bs=8192 seek=1 conv=notrunc status=none
touch small zipped part twice s1/zip; btrfs property set zipped compression zstd
head -c 400000 /dev/zero | tr '\0' a > zipped; sync
";

/// Clones of parts of files: from where, where to, and how many bytes.
const PARTS: [(&str, u64, &str, u64, usize); 5] = [
    ("d/clone", 65536, "part", 131_072, 65536),
    ("d/clone", 0, "twice", 0, 65536),
    ("d/clone", 0, "twice", 65536, 65536),
    ("twice", 4096, "twice", 262_144, 8192),
    ("zipped", 131_072, "s1/zip", 4096, 65536),
];

const SHARE: &str = r"
set -e
head -c 4096 /dev/urandom | dd of=f bs=4096 seek=4 conv=notrunc status=none
btrfs -q subvolume snapshot . snap0
for n in $(seq 300); do cp --reflink=always d/clone d/c$n; done; sync
btrfs -q subvolume snapshot . snap1; btrfs -q subvolume snapshot -r s1 s1/ro
for n in $(seq 1 7 300); do rm d/c$n; done; touch d/*; sync
btrfs -q subvolume snapshot snap1 snap2; rm snap1/d/c1?; touch snap2/d/c2*; sync
btrfs -q subvolume delete -c snap0
";

/// On btrfs, copying within it shares.
fn share_parts(top: &Path) {
    for (from, at, to, place, len) in PARTS {
        let from = File::open(top.join(from)).unwrap();
        let to = File::options().write(true).open(top.join(to)).unwrap();
        let (mut at, mut place) = (at, place);
        let done = copy_file_range(&from, Some(&mut at), &to, Some(&mut place), len).unwrap();
        assert_eq!(done, len);
    }
}

fn sh(directory: &Path, script: &str) -> Said {
    let mut command = Command::new("sh");
    Said::of(command.args(["-c", script]).current_dir(directory).output().unwrap())
}

/// A filesystem that the kernel has filled, not mounted.
fn filled(nodesize: &str, then: &str) -> Option<Place> {
    let place = Place::new();
    place.ok(&format!("mkfs -q -n {nodesize} --size 512M disk.img"));
    if !have_progs() {
        return None;
    }
    let mount = KernelMount::of(&place, "disk.img")?;
    let top = mount.path();
    let run = |script: &str| {
        let said = sh(top, script);
        assert_eq!(said.code, 0, "{}", said.err);
    };
    run(FILL);
    share_parts(top);
    run(SHARE);
    run(then);
    drop(mount);
    Some(place)
}

/// Addresses in all data extents: the first byte, some inside, and the first one behind.
fn addresses(place: &Place) -> BTreeSet<u64> {
    let text = place.ok("inspect-internal dump-tree -t extent disk.img");
    let keys = text.lines().filter_map(|line| line.split_once("key (")?.1.split_once(')'));
    let extents = keys.filter_map(|(key, _)| {
        let (at, len) = key.split_once(" EXTENT_ITEM ")?;
        Some((at.parse::<u64>().unwrap(), len.parse::<u64>().unwrap()))
    });
    let of = |(at, len): (u64, u64)| [0, 1, 16384, 70_000, len - 1, len].map(|past| at + past);
    extents.flat_map(of).collect()
}

/// What btrfs-progs says of all addresses with some options, without what it calls the mount.
fn said_by_progs(
    mount: &Path,
    options: &str,
    addresses: &BTreeSet<u64>,
) -> Vec<(u64, i32, String)> {
    let ask = |at: &u64| {
        let said = sh(mount, &format!("btrfs inspect-internal logical-resolve {options} {at} ."));
        (*at, said.code, said.text().replace("./", ""))
    };
    addresses.iter().map(ask).collect()
}

fn same(place: &Place, prefix: &str, options: &str, theirs: &[(u64, i32, String)]) {
    for (at, code, text) in theirs {
        let target = prefix.trim_end_matches('/');
        let line = format!("-q inspect-internal logical-resolve {options} {at} {target}");
        let ours = place.run(&line);
        assert_eq!((ours.code, ours.text().replace(prefix, "")), (*code, text.clone()), "{line}");
        let why = "no data extent is there\n";
        assert!(ours.code == 0 || ours.err.ends_with(why), "{line}: {}", ours.err);
    }
}

fn judged(place: &Place) {
    let addresses = addresses(place);
    let Some(mount) = KernelMount::read_only(place, "disk.img") else { return };
    let all = ["-P", "-Po", "", "-o", "-P -s 300", "-s 16", "-P -s 0x1000000"];
    let theirs = all.map(|options| said_by_progs(mount.path(), options, &addresses));
    drop(mount);
    let some = |theirs: &[(u64, i32, String)], code| theirs.iter().any(|it| it.1 == code);
    assert!(some(&theirs[0], 0) && some(&theirs[0], 1));
    for (options, theirs) in all.iter().zip(&theirs) {
        // Which answers have room is another matter where not all have: their number is the same.
        if *options == "-P -s 300" {
            for (at, _, text) in theirs {
                let line = format!("-q inspect-internal logical-resolve {options} {at} disk.img");
                assert_eq!(place.run(&line).text().lines().count(), text.lines().count(), "{line}");
            }
            continue;
        }
        same(place, "disk.img:/", options, theirs);
    }
    let Some(live) = Live::of(place, "-o ro") else { return };
    same(place, "mnt/", "-Po", &theirs[1]);
    same(place, "mnt/", "", &theirs[2]);
    live.end();
}

#[test]
fn text_and_order_are_those_of_btrfs_progs() {
    if let Some(place) = filled("16384", "") {
        judged(&place);
    }
}

#[test]
fn in_trees_of_several_levels_too() {
    if let Some(place) = filled("4096", "") {
        judged(&place);
    }
}

/// A balance has blocks refer by their address.
#[test]
fn after_a_balance_too() {
    if let Some(place) = filled("4096", "btrfs -q balance start -f -m .") {
        judged(&place);
    }
}

/// The address of the first byte of a file.
fn address_of(place: &Place, file: &str) -> u64 {
    let extents = place.json(&format!("inspect-internal fiemap -v {file}"));
    extents[0]["physical"].as_u64().unwrap()
}

fn made() -> Place {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    std::fs::write(place.join("data"), vec![7; 300_000]).unwrap();
    place.ok("subvolume create disk.img:/sub");
    place.ok("mkdir disk.img:/sub/dir");
    place.ok("cp data disk.img:/one");
    place.ok("cp disk.img:/one disk.img:/sub/dir/two");
    place
}

#[test]
fn other_subvolumes_on_request_and_all_of_them_as_json() {
    let place = made();
    let at = address_of(&place, "disk.img:/one");
    let ask = |line: &str| place.ok(&format!("inspect-internal logical-resolve {line}"));
    let refused = "subvol sub could not be accessed: not mounted";
    assert_eq!(ask(&format!("{at} disk.img")), format!("inode 258 {refused}\ndisk.img:/one\n"));
    let all = "disk.img:/sub/dir/two\ndisk.img:/one\n";
    assert_eq!(ask(&format!("--all {at} disk.img:/sub/dir")), all);
    // Only what TARGET is in, by the paths that lead there.
    let above = "inode 257 subvol <toplevel> could not be accessed: not mounted\n";
    let own = ask(&format!("{at} disk.img:/sub/dir"));
    assert_eq!(own, format!("disk.img:/sub/dir/two\n{above}"));
    let shown = place.json(&format!("inspect-internal logical-resolve {} disk.img", at + 4096));
    let expected = serde_json::json!([
        { "inode": 258, "offset": 4096, "root": 256, "subvolume": "sub", "paths": ["disk.img:/sub/dir/two"] },
        { "inode": 257, "offset": 4096, "root": 5, "subvolume": "", "paths": ["disk.img:/one"] },
    ]);
    assert_eq!(shown, expected);
    let numbers = place.json(&format!("inspect-internal logical-resolve -P {at} disk.img"));
    assert_eq!(numbers[1], serde_json::json!({ "inode": 257, "offset": 0, "root": 5 }));
}

#[test]
fn what_has_no_room_is_said() {
    let place = made();
    let at = address_of(&place, "disk.img:/one");
    let said = place.run(&format!("inspect-internal logical-resolve -P -s 40 {at} disk.img"));
    assert_eq!((said.code, said.text().lines().count()), (0, 1));
    assert!(said.err.contains("1 more have no room"), "{}", said.err);
}

#[test]
fn addresses_without_data_are_refused() {
    let place = made();
    let super_block = &place.json("inspect-internal dump-super disk.img")[0];
    for at in ["0", "0x1000", "18446744073709551615", &super_block["root"].to_string()] {
        let said = place.fails(&format!("inspect-internal logical-resolve {at} disk.img"));
        let at = at.strip_prefix("0x").map_or(at, |_| "4096");
        let expected =
            format!("cannot resolve logical address {at} of disk.img: no data extent is there\n");
        assert!(said.ends_with(&expected), "{said}");
    }
    assert_eq!(place.run("inspect-internal logical-resolve 12z disk.img").code, 2);
    std::fs::write(place.join("elsewhere"), "x").unwrap();
    let said = place.fails("inspect-internal logical-resolve 0 elsewhere");
    assert!(said.contains("elsewhere"), "{said}");
}

/// As Linux has it, a deleted subvolume counts until it is dropped.
#[test]
fn a_deleted_subvolume_is_told_while_somebody_has_its_files() {
    let place = made();
    let Some(live) = Live::of(&place, "") else { return };
    let at = address_of(&place, "mnt/one");
    let ask =
        |options: &str| place.ok(&format!("inspect-internal logical-resolve {options} {at} mnt"));
    assert_eq!(ask("--all"), "mnt/sub/dir/two\nmnt/one\n");
    let held = File::open(place.join("mnt/sub/dir/two")).unwrap();
    place.ok("subvolume delete -q mnt/sub");
    assert_eq!(ask("-P"), "inode 258 offset 0 root 256\ninode 257 offset 0 root 5\n");
    let gone = "inode 258 subvol DELETED could not be accessed: not mounted\n";
    assert_eq!(ask(""), format!("{gone}mnt/one\n"));
    drop(held);
    live.end();
    place.ok("subvolume sync disk.img");
    let line = format!("inspect-internal logical-resolve {at} disk.img");
    assert_eq!(place.ok(&line), "disk.img:/one\n");
}

/// More answers than one request to the mount has room for.
#[test]
fn a_mount_tells_of_many() {
    let place = made();
    let Some(live) = Live::of(&place, "") else { return };
    let one = File::open(place.join("mnt/one")).unwrap();
    let many = File::create(place.join("mnt/many")).unwrap();
    for number in 0..3000 {
        let done = copy_file_range(&one, Some(&mut 0), &many, Some(&mut (number * 8192)), 4096);
        assert_eq!(done.unwrap(), 4096);
    }
    let at = address_of(&place, "mnt/one");
    let line = format!("inspect-internal logical-resolve -P -s 1000000 {at} mnt");
    let text = place.ok(&line);
    assert_eq!(text.lines().count(), 3002);
    let is_of_many = |line: &&str| line.starts_with("inode 258 ") && line.ends_with(" root 5");
    let offsets: BTreeSet<&str> = text.lines().filter(is_of_many).collect();
    assert_eq!(offsets.len(), 3000);
    let said = place.run(&line.replace(" -s 1000000", ""));
    assert_eq!((said.code, said.text().lines().count()), (0, 2730));
    assert!(said.err.contains("272 more have no room"), "{}", said.err);
    drop((one, many));
    live.end();
    assert_eq!(place.ok(&line.replace("mnt", "disk.img")), text);
}
