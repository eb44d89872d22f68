//! `inspect-internal`: our text is that of btrfs-progs.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use buttress_device::MemoryDevice;
use buttress_testkit::damage::Patient;

use crate::run::{Place, have_progs};

/// Fails with the first line that differs.
fn same(what: &str, ours: &[u8], theirs: &[u8]) {
    if ours == theirs {
        return;
    }
    let (ours, theirs) = (String::from_utf8_lossy(ours), String::from_utf8_lossy(theirs));
    for (index, (our, their)) in ours.lines().zip(theirs.lines()).enumerate() {
        assert_eq!(our, their, "{what}: line {}", index + 1);
    }
    panic!("{what}: {} lines, theirs has {}", ours.lines().count(), theirs.lines().count());
}

/// Images: made by `mkfs.btrfs` with files in it, and by us.
fn images(place: &Place) -> [&'static str; 2] {
    let source = place.join("source/dir");
    std::fs::create_dir_all(&source).unwrap();
    std::fs::write(source.join("small"), "inline").unwrap();
    std::fs::write(source.join("large"), vec![7; 300_000]).unwrap();
    std::os::unix::fs::symlink("small", source.join("link")).unwrap();
    std::fs::File::create(place.join("theirs.img")).unwrap().set_len(300 << 20).unwrap();
    place.progs("mkfs.btrfs", "-q -L theirs --rootdir source theirs.img");
    place.ok("mkfs -q --size 300M -L ours ours.img");
    ["theirs.img", "ours.img"]
}

#[test]
fn text_is_that_of_btrfs_progs() {
    if !have_progs() {
        return;
    }
    let place = Place::new();
    for image in images(&place) {
        for options in [
            "dump-super",
            "dump-super -f",
            "dump-super -a",
            "dump-super -fa",
            "dump-super -s 1",
            "dump-super -s 2",
            "dump-super --bytenr 67108864",
            "dump-super -F --bytenr 4096",
            "dump-tree",
            "dump-tree -e",
            "dump-tree -d",
            "dump-tree -r",
            "dump-tree -R",
            "dump-tree -u",
            "dump-tree -t fs",
            "dump-tree -t 5",
            "dump-tree -t chunk",
            "dump-tree -t 300",
            "dump-tree --dfs",
            "dump-tree --hide-names",
            "dump-tree --csum-headers --csum-items",
        ] {
            let line = format!("inspect-internal {options} {image}");
            let theirs = place.progs("btrfs", &line);
            same(&line, place.ok(&line).as_bytes(), &theirs);
        }
    }
}

#[test]
fn blocks_by_address() {
    if !have_progs() {
        return;
    }
    let place = Place::new();
    for image in images(&place) {
        let sb = &place.json(&format!("inspect dump-super {image}"))[0];
        for options in ["", "--follow"] {
            let (root, chunk) = (&sb["root"], &sb["chunk_root"]);
            let line = format!("inspect-internal dump-tree -b {root} -b {chunk} {options} {image}");
            same(&line, place.ok(&line).as_bytes(), &place.progs("btrfs", &line));
        }
    }
    let said = place.fails("inspect-internal dump-tree -b 123 ours.img");
    assert!(said.contains("cannot print block 123 of ours.img: a block's address"), "{said}");
}

#[test]
fn trees_as_json() {
    let place = Place::new();
    place.ok("mkfs -q --size 200M disk.img");
    let blocks = place.json("inspect-internal dump-tree disk.img");
    let blocks = blocks.as_array().unwrap();
    let owner = |id: u64| blocks.iter().filter(|block| block["owner"] == id).count();
    assert_eq!((owner(1), owner(3), owner(5)), (1, 1, 1));
    let fs = place.json("inspect-internal dump-tree -t fs disk.img");
    assert_eq!(fs[0]["items"][0]["name"], "key (256 INODE_ITEM 0)");
    assert_eq!(fs[0]["items"][0]["key"], serde_json::json!([256, 1, 0]));
}

#[test]
fn damage_is_said_and_passed_over() {
    let place = Place::new();
    place.ok("mkfs -q --size 200M -m single disk.img");
    let blocks = place.json("inspect-internal dump-tree -t fs disk.img");
    let bytenr = blocks[0]["bytenr"].as_u64().unwrap();
    // Chunks of a new filesystem with single metadata lie where their addresses say.
    let file = OpenOptions::new().write(true).open(place.join("disk.img")).unwrap();
    file.write_all_at(&[0xff; 16384], bytenr).unwrap();
    let said = place.run("inspect-internal dump-tree disk.img");
    assert_eq!(said.code, 1);
    assert!(
        said.err.contains(&format!("warning: disk.img: tree block at logical {bytenr}")),
        "{}",
        said.err
    );
    assert!(
        said.err.ends_with("cannot print all of disk.img: 1 tree blocks cannot be read\n"),
        "{}",
        said.err
    );
    assert!(said.text().contains("\nuuid "), "the rest is printed");
    let said = place.run("--format json inspect-internal dump-tree disk.img");
    assert_eq!(said.code, 1);
    assert!(said.err.contains("1 tree blocks cannot be read"), "{}", said.err);
    let shown: serde_json::Value = serde_json::from_str(&said.text()).unwrap();
    let owners = shown["blocks"].as_array().unwrap().iter().map(|it| it["owner"].as_u64());
    let owners: Vec<_> = owners.flatten().collect();
    assert!(owners.contains(&1) && owners.contains(&7) && !owners.contains(&5), "{owners:?}");
}

#[test]
fn a_bad_item_is_said_and_shown_among_the_others() {
    let place = Place::new();
    place.ok("mkfs -q --size 200M disk.img");
    place.ok("cp /etc/hostname disk.img:/one");
    let patient = Patient::of(&MemoryDevice::load(place.join("disk.img")).unwrap()).unwrap();
    // Linux refuses the whole leaf for it.
    patient.inode("one", |it| it.mode = 0o644.into()).unwrap();
    patient.device().store(place.join("disk.img")).unwrap();
    let text = place.run("inspect-internal dump-tree -t fs disk.img");
    let json = place.run("--format json inspect-internal dump-tree -t fs disk.img");
    let what = "invalid file type in an inode's mode";
    for said in [&text, &json] {
        assert_eq!(said.code, 0, "{}", said.err);
        assert_eq!(said.err.matches("warning:").count(), 1, "{}", said.err);
        assert!(said.err.contains(what), "{}", said.err);
    }
    let shown: serde_json::Value = serde_json::from_str(&json.text()).unwrap();
    let items = shown["blocks"][0]["items"].as_array().unwrap();
    assert_eq!(items.len(), text.text().matches("\titem ").count());
    let has = |text: &str| items.iter().any(|it| it.to_string().contains(text));
    assert!(has("name: one") && has("mode 644"), "{shown}");
}

#[test]
fn nothing_that_is_no_filesystem_is_printed() {
    let place = Place::new();
    std::fs::write(place.join("empty"), "").unwrap();
    std::fs::write(place.join("zeros"), vec![0; 1 << 20]).unwrap();
    for (line, why) in [
        ("dump-tree zeros", "cannot open zeros: no btrfs filesystem there"),
        ("dump-tree empty", "cannot open empty: no btrfs filesystem there"),
        ("dump-tree nowhere", "cannot open nowhere: No such file or directory"),
        ("dump-tree .", "cannot open .: it is a directory, not an image or a disk"),
        ("dump-super zeros", "cannot read the superblock of zeros: bad magic at 65536"),
        ("dump-super .", "cannot open .: it is a directory, not an image or a disk"),
    ] {
        let said = place.fails(&format!("inspect-internal {line}"));
        assert!(said.starts_with(&format!("buttress: {why}\n")), "{line}: {said}");
    }
}
