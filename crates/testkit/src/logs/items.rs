//! The items of the trees of files, as `btrfs inspect-internal dump-tree` prints them, in a form in which two images can be compared.
//!
//! Where an item is in its leaf says nothing, nor what each writer counts for itself: the transaction that changed an inode last, how
//! often that was, and the transaction that a part of an extent was cut in. Nor do holes: filesystems that write them down may cut one
//! into several, and `btrfs check` sees to it that none is missing.

use std::collections::BTreeMap;
use std::path::Path;

use super::make::text;
use super::moment::{Moment, OF_REPLAY};
use crate::oracle::btrfs;

/// What is said about an extent that is a hole.
const HOLE: &str = "; extent data disk byte 0 nr 0; ";

/// The items of each tree of files, by the tree's key: each item with the lines about it.
pub type Trees = BTreeMap<String, Vec<(String, String)>>;

/// Reads the trees of an image.
pub fn trees(image: &Path, then: Moment) -> Result<Trees, String> {
    let path = image.to_string_lossy();
    let dump = text(btrfs(&["inspect-internal", "dump-tree", &path]))?;
    Ok(parse(&dump, then))
}

fn parse(dump: &str, then: Moment) -> Trees {
    let mut trees = Trees::new();
    let mut tree: Option<String> = None;
    for line in dump.lines() {
        if let Some(key) = header(line) {
            tree = is_of_files(key).then(|| key.to_owned());
            if let Some(key) = &tree {
                trees.entry(key.clone()).or_default();
            }
            continue;
        }
        let Some(items) = tree.as_ref().and_then(|key| trees.get_mut(key)) else { continue };
        if let Some(rest) = line.strip_prefix("\titem ") {
            let key = rest.split_once("key ").map_or(rest, |(_, key)| key);
            let key = key.split(" itemoff").next().unwrap_or_default();
            items.push((key.to_owned(), String::new()));
        } else if line.starts_with("\t\t")
            && let Some((_, body)) = items.last_mut()
        {
            body.push_str(&without_choices(line.trim(), then));
            body.push_str("; ");
        }
    }
    trees.values_mut().for_each(|items| items.retain(|(_, body)| !body.contains(HOLE)));
    trees
}

/// The key of the tree that a line begins.
fn header(line: &str) -> Option<&str> {
    if line.starts_with(['\t', ' ']) {
        return None;
    }
    let (name, rest) = line.split_once(" key (")?;
    let begins = name.ends_with("tree") || name == "root tree" || name.starts_with("log ");
    if begins { rest.split_once(')').map(|(key, _)| key) } else { None }
}

/// Whether files are in the tree of this key.
fn is_of_files(key: &str) -> bool {
    let id = key.split(' ').next().unwrap_or_default();
    key.contains("ROOT_ITEM")
        && (id == "FS_TREE" || id.parse::<u64>().is_ok_and(|id| (256..1 << 63).contains(&id)))
}

/// A line without the numbers that each writer chooses.
fn without_choices(line: &str, then: Moment) -> String {
    if let Some(line) = without_time(line, then) {
        return line;
    }
    let of_extent = line.starts_with("generation ") && line.contains(" type ");
    let mut kept = Vec::new();
    let mut words = line.split(' ');
    while let Some(word) = words.next() {
        if matches!(word, "transid" | "sequence") || word == "generation" && of_extent {
            words.next();
        } else {
            kept.push(word);
        }
    }
    kept.join(" ")
}

/// A line that says a time, as `ctime 1795536705.26405 (2026-11-24 16:11:45)`; the part behind the point is a number.
fn without_time(line: &str, then: Moment) -> Option<String> {
    let (name, rest) = line.split_once(' ').filter(|it| it.0.ends_with("time"))?;
    let (sec, nsec) = rest.split(' ').next()?.split_once('.')?;
    let time = then.of((sec.parse().ok()?, nsec.parse().ok()?));
    Some(match time {
        OF_REPLAY => format!("{name} of the replay"),
        (sec, nsec) => format!("{name} {sec}.{nsec:09}"),
    })
}

/// The parts of two items that differ.
fn apart(have: &str, expect: &str) -> String {
    let (have, expect): (Vec<_>, Vec<_>) =
        (have.split("; ").collect(), expect.split("; ").collect());
    let only = |these: &[&str], those: &[&str]| {
        let parts: Vec<_> = these.iter().filter(|it| !those.contains(it)).copied().collect();
        parts.join("; ")
    };
    format!("have {}, expect {}", only(&have, &expect), only(&expect, &have))
}

/// What differs, a line for each item.
pub fn differs(have: &Trees, expect: &Trees) -> Vec<String> {
    let mut lines = Vec::new();
    for (tree, wanted) in expect {
        let Some(found) = have.get(tree) else {
            lines.push(format!("tree {tree}: missing"));
            continue;
        };
        let (found, wanted): (BTreeMap<_, _>, BTreeMap<_, _>) =
            (found.iter().cloned().collect(), wanted.iter().cloned().collect());
        for (key, body) in &wanted {
            match found.get(key) {
                Some(own) if own == body => {}
                Some(own) => lines.push(format!("tree {tree} {key}: {}", apart(own, body))),
                None => lines.push(format!("tree {tree} {key}: missing, expect {body}")),
            }
        }
        let more = found.iter().filter(|(key, _)| !wanted.contains_key(*key));
        lines.extend(more.map(|(key, body)| format!("tree {tree} {key}: not expected, {body}")));
    }
    let more = have.keys().filter(|tree| !expect.contains_key(*tree));
    lines.extend(more.map(|tree| format!("tree {tree}: not expected")));
    lines
}

#[cfg(test)]
mod tests {
    use super::{Moment, differs, parse};

    const DUMP: &str = "fs tree key (FS_TREE ROOT_ITEM 0) \n\
        leaf 30474240 items 2 free space 15842 generation 9 owner FS_TREE\n\
        \titem 0 key (256 INODE_ITEM 0) itemoff 16123 itemsize 160\n\
        \t\tgeneration 3 transid 9 size 2 nbytes 16384\n\
        \titem 1 key (257 INODE_ITEM 0) itemoff 16003 itemsize 160\n\
        \t\tgeneration 9 transid 9 size 0 nbytes 0\n\
        checksum tree key (CSUM_TREE ROOT_ITEM 0) \n\
        \titem 0 key (EXTENT_CSUM EXTENT_CSUM 1) itemoff 1 itemsize 4\n";

    #[test]
    fn only_what_counts_is_compared() {
        let now = Moment::now().unwrap();
        let one = parse(DUMP, now);
        assert_eq!(one.len(), 1);
        let other = parse(&DUMP.replace("transid 9", "transid 10").replace("16003", "15000"), now);
        assert!(differs(&other, &one).is_empty());
        let other = parse(&DUMP.replace("size 0", "size 1"), now);
        assert_eq!(differs(&other, &one).len(), 1);
    }
}
