//! `subvolume usage`: the same in an image, on a live mount and as Linux's quotas count it.

use serde_json::Value;

use crate::live::Live;
use crate::run::{KernelMount, Place};

fn image() -> Place {
    let place = Place::new();
    place.ok("mkfs -q --size 400M disk.img");
    place.ok("subvolume create -q disk.img:/one");
    for (name, len) in [("a", 300_000), ("b", 1_000_000), ("c", 50_000)] {
        std::fs::write(place.join(name), vec![7; len]).unwrap();
    }
    place.ok("cp a disk.img:/one");
    place.ok("mkdir disk.img:/dir");
    place.ok("subvolume snapshot -q -r disk.img:/one disk.img:/dir/first");
    place.ok("cp b disk.img:/one");
    place.ok("subvolume snapshot -q disk.img:/one disk.img:/dir/second");
    place.ok("rm disk.img:/one/b");
    place.ok("cp c disk.img:/dir/first.c");
    place.ok("cp c disk.img:/dir/second");
    place
}

fn row<'a>(all: &'a Value, path: &str) -> &'a Value {
    all["subvolumes"].as_array().unwrap().iter().find(|it| it["path"] == path).unwrap()
}

#[test]
fn what_subvolumes_take_is_told_as_table_and_as_json() {
    let place = image();
    let text = place.ok("subvolume usage -b disk.img");
    let lines: Vec<Vec<&str>> =
        text.lines().map(|line| line.split_whitespace().collect()).collect();
    let head = ["ID", "Ref", "data", "Ref", "metadata", "Excl", "data", "Excl", "metadata", "Path"];
    assert_eq!(lines[0], head);
    // Sectors.
    let (a, b, c) = ("303104", "1003520", "53248");
    let both = (303_104 + 1_003_520 + 53_248).to_string();
    let node = "16384";
    assert_eq!(lines[1], ["5", c, node, c, node, "<toplevel>"]);
    assert_eq!(lines[2], ["256", a, node, "0", node, "one"]);
    assert_eq!(lines[3], ["257", a, node, "0", node, "dir/first"]);
    let own = (1_003_520 + 53_248).to_string();
    assert_eq!(lines[4], ["258", &both, node, &own, node, "dir/second"]);
    assert!(lines[5].is_empty());
    let all = (303_104 + 1_003_520 + 2 * 53_248).to_string();
    assert_eq!(lines[6].join(" "), format!("In all subvolumes: data {all}, metadata 65536"));
    assert_eq!(lines[7].join(" "), format!("Shared by several: data {a}, metadata 0"));
    assert_eq!(lines.len(), 8);

    let json = place.json("subvolume usage disk.img --if-deleted dir/first --if-deleted 258");
    let second = row(&json, "dir/second");
    assert_eq!(second["referenced"]["data"].to_string(), both);
    assert_eq!(second["exclusive"]["data"].to_string(), own);
    assert_eq!(second["deleted"], false);
    assert_eq!(json["if-deleted"]["IDs"].to_string(), "[257,258]");
    assert_eq!(json["if-deleted"]["freed"]["data"].to_string(), own);
    assert_eq!(json["if-deleted"]["freed"]["metadata"], 32_768);
    assert_eq!(place.json("subvolume usage disk.img")["if-deleted"], Value::Null);
    let text = place
        .ok("su us --raw disk.img --if-deleted=/one --if-deleted dir/second/ --if-deleted 257");
    let free = format!("Free if deleted: data {}, metadata 49152\n", 303_104 + 1_003_520 + 53_248);
    assert!(text.ends_with(&free), "{text}");
    assert_ne!(b, c);
}

#[test]
fn who_asks_for_what_is_not_there_is_told() {
    let place = image();
    let said = place.fails("subvolume usage disk.img --if-deleted nothing");
    assert!(
        said.contains("there is no such subvolume") && said.contains("subvolume list"),
        "{said}"
    );
    let said = place.fails("subvolume usage disk.img --if-deleted 5");
    assert!(said.contains("cannot be deleted"), "{said}");
}

/// As the kernel counts after a rescan.
#[test]
fn quotas_of_the_kernel_count_the_same() {
    let place = image();
    let Some(mount) = KernelMount::of(&place, "disk.img") else { return };
    let top = mount.path().display().to_string();
    place.progs("btrfs", &format!("quota enable {top}"));
    place.progs("btrfs", &format!("quota rescan -w {top}"));
    let text = place.progs("btrfs", &format!("qgroup show --raw {top}"));
    let text = String::from_utf8(text).unwrap();
    let theirs: Vec<Vec<String>> = text
        .lines()
        .filter_map(|line| line.strip_prefix("0/"))
        .map(|line| line.split_whitespace().take(3).map(str::to_owned).collect())
        .collect();
    drop(mount);
    let json = place.json("subvolume usage disk.img");
    let sum = |bytes: &Value| bytes["data"].as_u64().unwrap() + bytes["metadata"].as_u64().unwrap();
    let ours = json["subvolumes"].as_array().unwrap().iter().map(|it| {
        let sums = [sum(&it["referenced"]), sum(&it["exclusive"])];
        vec![it["ID"].to_string(), sums[0].to_string(), sums[1].to_string()]
    });
    assert_eq!(ours.collect::<Vec<_>>(), theirs);
}

#[test]
fn a_live_mount_counts_what_was_just_written() {
    let place = image();
    let Some(live) = Live::of(&place, "") else { return };
    std::fs::copy(place.join("b"), place.join("mnt/one/d")).unwrap();
    let words = "--if-deleted dir/second --if-deleted one";
    let there = place.json(&format!("subvolume usage mnt {words}"));
    assert_eq!(row(&there, "one")["exclusive"]["data"], 1_003_520);
    assert_eq!(row(&there, "one")["referenced"]["data"], 1_003_520 + 303_104);
    live.end();
    assert_eq!(there, place.json(&format!("subvolume usage disk.img {words}")));
}

#[test]
fn a_list_has_it_beside_the_columns_of_btrfs_progs() {
    let place = image();
    let usage = place.json("subvolume usage disk.img");
    let sum = |it: &Value| it["data"].as_u64().unwrap() + it["metadata"].as_u64().unwrap();
    let columns = |path: &str| {
        let row = row(&usage, path);
        let (referenced, exclusive) = (sum(&row["referenced"]), sum(&row["exclusive"]));
        format!("referenced {referenced} exclusive {exclusive} path {path}")
    };
    let plain = place.ok("subvolume list -c disk.img");
    let text = place.ok("subvolume list --usage -c disk.img");
    assert_eq!(plain.lines().count(), 3);
    for (line, plain) in text.lines().zip(plain.lines()) {
        let (before, path) = plain.split_once("path ").unwrap();
        assert_eq!(line, format!("{before}{}", columns(path)));
    }
    // In front of the command it is what it is for all of them.
    assert!(place.ok("subvolume list -q disk.img").contains("parent_uuid"));
    assert_eq!(place.ok("-q subvolume list -c disk.img"), plain);
    assert_eq!(place.ok("-vq --offset 0 subvolume list -c disk.img"), plain);
    let table = place.ok("subvolume list -t --usage disk.img");
    let head = "ID\tgen\ttop level\treferenced\texclusive\tpath\t";
    assert_eq!(table.lines().next(), Some(head));
    let (list, plain) =
        (place.json("subvolume list --usage disk.img"), place.json("subvolume list disk.img"));
    for (one, plain) in list.as_array().unwrap().iter().zip(plain.as_array().unwrap()) {
        let row = row(&usage, one["path"].as_str().unwrap());
        assert_eq!(
            (&one["referenced"], &one["exclusive"]),
            (&row["referenced"], &row["exclusive"])
        );
        let mut one = one.clone();
        one.as_object_mut()
            .unwrap()
            .retain(|name, _| !["referenced", "exclusive"].contains(&&**name));
        assert_eq!(one, *plain);
    }
    let Some(live) = Live::of(&place, "") else { return };
    assert_eq!(place.ok("subvolume list --usage -c mnt"), text);
    // One that is deleted has something, too, while somebody has its files.
    let held = std::fs::File::open(place.join("mnt/dir/second/b")).unwrap();
    place.ok("subvolume delete -q mnt/dir/second");
    let deleted = place.ok("subvolume list -d --usage mnt");
    let columns = columns("dir/second").replace("dir/second", "DELETED");
    assert!(deleted.trim_end().ends_with(&columns), "{deleted}");
    drop(held);
    live.end();
}
