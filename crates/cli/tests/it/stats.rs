//! `--stats` and `filesystem stats`: what is said to have been done must fit what was asked for.

use std::collections::BTreeMap;

use buttress::stats::Stats;
use serde_json::Value;

use crate::live::Live;
use crate::run::Place;

/// A large file, in bytes, and how many small ones.
const LARGE: u64 = 8 << 20;
const SMALL: u64 = 300;
const NODESIZE: u64 = 16 << 10;

type Figures = BTreeMap<String, u64>;

/// Lines of a name and a number.
fn from_text(text: &str) -> Figures {
    let figures = text.lines().map(|line| {
        let mut words = line.split_whitespace();
        let (name, value) = (words.next().unwrap(), words.next().unwrap());
        assert_eq!(words.next(), None, "{line}");
        (name.to_owned(), value.parse().unwrap())
    });
    figures.collect()
}

fn from_json(value: &Value) -> Figures {
    let figures = value.as_object().unwrap().iter();
    figures.map(|(name, value)| (name.clone(), value.as_u64().unwrap())).collect()
}

/// What stderr of a command with `--stats` holds as JSON.
fn from_stderr(text: &str) -> Figures {
    let value: Value = serde_json::from_str(text).unwrap();
    assert_eq!(value["__header"]["version"], "1");
    from_json(&value["stats"])
}

/// That no figure is missing, and that those that depend on each other agree.
fn must_agree(figures: &Figures) {
    let names: Vec<_> = Stats::default().figures().into_iter().map(|(name, _)| name).collect();
    let mut expected: Vec<_> = names.iter().collect();
    expected.sort_unstable();
    assert_eq!(figures.keys().collect::<Vec<_>>(), expected);
    let of = |name: &str| figures[name];
    assert_eq!(
        of("items_per_leaf"),
        of("items_written").checked_div(of("leaves_written")).unwrap_or(0)
    );
    assert_eq!(of("tree_bytes_written"), (of("leaves_written") + of("nodes_written")) * NODESIZE);
    assert!(of("refs_folded") <= of("refs_logged"), "{figures:?}");
    assert!(of("leaves_made_apart") <= of("leaves_written"), "{figures:?}");
    if of("commits") == 0 {
        assert_eq!((of("merges"), of("leaves_written"), of("superblocks_us")), (0, 0, 0));
    } else {
        // A root tree, an extent tree and the tree of what was changed, at least.
        assert!(of("merges") >= 3 * of("commits"), "{figures:?}");
        assert!(of("leaves_written") >= 3 * of("commits"), "{figures:?}");
    }
}

/// That one large file and many small ones were written.
fn must_hold_files(figures: &Figures) {
    must_agree(figures);
    let of = |name: &str| figures[name];
    assert!(of("commits") >= 1);
    // Small files are in their items: no bytes of data.
    assert!((LARGE..LARGE + (1 << 20)).contains(&of("data_bytes_written")), "{figures:?}");
    // Inode, name, two entries and content of each; and checksums.
    assert!((5 * SMALL..20 * SMALL).contains(&of("items_written")), "{figures:?}");
    assert!(of("refs_folded") > of("leaves_written"), "each new block is referred to");
    assert!(of("cache_hits") > 0);
}

fn make_files(at: &std::path::Path) {
    std::fs::create_dir(at).unwrap();
    std::fs::write(at.join("large"), vec![7; LARGE as usize]).unwrap();
    for number in 0..SMALL {
        std::fs::write(at.join(format!("small{number}")), number.to_string()).unwrap();
    }
}

#[test]
fn a_command_says_what_it_did() {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    make_files(&place.join("tree"));
    let copied = place.run("--format json --stats cp -a tree disk.img:/");
    assert_eq!((copied.code, copied.text().as_str()), (0, ""));
    must_hold_files(&from_stderr(&copied.err));
    // Whoever only reads commits nothing, and finds what it reads more than once in the cache.
    let listed = place.run("--stats ls disk.img:/tree");
    assert_eq!((listed.code, listed.text().lines().count() as u64), (0, SMALL + 1));
    let figures = from_text(&listed.err);
    must_agree(&figures);
    assert_eq!((figures["commits"], figures["data_bytes_written"]), (0, 0));
    assert!(figures["cache_misses"] > 0 && figures["cache_hits"] > 0, "{figures:?}");
    // Nothing is said unasked.
    assert_eq!(place.run("ls disk.img:/tree").err, "");
}

#[test]
fn a_new_filesystem_says_how_it_was_filled() {
    let place = Place::new();
    make_files(&place.join("tree"));
    let made = place.run("--format json --stats mkfs -q --size 300M --rootdir tree disk.img");
    assert_eq!(made.code, 0, "{}", made.err);
    must_hold_files(&from_stderr(&made.err));
}

/// Requests so far; they come by one way or the other.
fn take_what_only_a_mount_knows(figures: &mut Figures) -> u64 {
    assert!(figures.remove("held_by_kernel").is_some());
    let ways = ["requests_by_dev_fuse", "requests_by_io_uring"];
    ways.map(|way| figures.remove(way).unwrap()).iter().sum()
}

#[test]
fn a_live_mount_says_what_it_did_so_far() {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    // Else a read that the kernel's cache does not answer moves a time of access.
    let Some(live) = Live::of(&place, "-o noatime") else { return };
    let mut before = from_text(&place.ok("filesystem stats mnt"));
    assert!(take_what_only_a_mount_knows(&mut before) > 0);
    must_agree(&before);
    assert_eq!((before["commits"], before["data_bytes_written"]), (0, 0));
    make_files(&place.join("mnt/tree"));
    place.ok("filesystem sync mnt");
    let mut after = from_json(&place.json("filesystem stats mnt/tree"));
    assert!(after["held_by_kernel"] > 1);
    assert!(take_what_only_a_mount_knows(&mut after) > 10);
    must_hold_files(&after);
    // Reading changes nothing but what the cache did.
    std::fs::read(place.join("mnt/tree/large")).unwrap();
    place.ok("filesystem sync mnt");
    let later = from_json(&place.json("filesystem stats mnt"));
    assert_eq!(later["commits"], after["commits"]);
    assert_eq!(later["data_bytes_written"], after["data_bytes_written"]);
    assert!(later["cache_hits"] >= after["cache_hits"]);
    live.end();
    std::fs::write(place.join("file"), "no mount").unwrap();
    let said = place.fails("filesystem stats file");
    assert!(said.contains("cannot ask file") && said.contains("live mount"), "{said}");
}
