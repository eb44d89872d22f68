//! The items of subvolumes in two images beside each other, in the words of `btrfs inspect-internal dump-tree`.

use std::path::Path;

use buttress_testkit::facts::Facts;
use buttress_testkit::oracle::btrfs;

/// Seconds since 1970 from which on a time is one of this run.
const RECENT: i64 = 1_704_067_200;

/// Without the times of the run: an inode that replay itself changes has the time of the replay.
pub fn ageless(facts: &Facts) -> Facts {
    let mut facts = facts.clone();
    for fact in facts.paths.values_mut() {
        if fact.mtime.0 >= RECENT {
            fact.mtime = (0, 0);
        }
    }
    facts
}

/// What does not depend on who wrote the item, and when.
fn told(line: &str, is_hole: bool) -> Option<String> {
    let line = line.trim();
    let starts = |what: &str| line.starts_with(what);
    if [
        "leaf ",
        "node ",
        "fs uuid",
        "chunk uuid",
        "btrfs-progs",
        "key (",
        "total bytes",
        "bytes used",
        "uuid ",
    ]
    .iter()
    .any(|it| starts(it))
    {
        return None;
    }
    if starts("item ") {
        let key = line.split_once("key ").map_or(line, |(_, key)| key);
        return Some(key.split(" itemoff").next().unwrap_or(key).to_owned());
    }
    // How long a hole was before it was cut is nobody's business.
    if starts("extent data offset ") && is_hole {
        return Some(line.split_whitespace().skip(4).take(2).collect());
    }
    // Of an inode: `generation 7 transid 8 size 0 nbytes 0`.
    if starts("generation ") && line.contains("transid") {
        let words: Vec<_> = line.split_whitespace().collect();
        return Some([&words[..2], &words[4..]].concat().join(" "));
    }
    if starts("generation ") {
        return Some(line.split_whitespace().skip(2).collect::<Vec<_>>().join(" "));
    }
    if starts("transid ") {
        return Some(line.split_whitespace().skip(2).collect::<Vec<_>>().join(" "));
    }
    if starts("sequence ") {
        return Some(line.split_whitespace().skip(2).collect::<Vec<_>>().join(" "));
    }
    for time in ["atime", "ctime", "mtime", "otime"] {
        let seconds = line.strip_prefix(time).and_then(|rest| rest.trim().split('.').next());
        if let Some(seconds) = seconds {
            let recent = seconds.parse::<i64>().is_ok_and(|seconds| seconds >= RECENT);
            return Some(if recent { format!("{time} recent") } else { line.to_owned() });
        }
    }
    Some(line.to_owned())
}

fn items(image: &Path, tree: &str) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let image = image.to_string_lossy();
    let text = btrfs(&["inspect-internal", "dump-tree", "-t", tree, &image])?;
    let mut is_hole = false;
    let told = |line: &str| {
        let told = told(line, is_hole);
        is_hole = line.contains("extent data disk byte 0 ");
        told
    };
    Ok(text.lines().filter_map(told).collect())
}

/// Subvolumes and checksums have to be the same.
pub fn same(ours: &Path, theirs: &Path) -> Result<(), Box<dyn std::error::Error>> {
    for tree in ["5", "256", "257"] {
        let (have, expect) = (items(ours, tree)?, items(theirs, tree)?);
        if have == expect {
            continue;
        }
        let at = have.iter().zip(&expect).take_while(|(a, b)| a == b).count();
        let part = |all: &[String]| {
            let from = at.saturating_sub(8);
            all.get(from..(at + 8).min(all.len())).unwrap_or_default().join("\n    ")
        };
        let text = format!("tree {tree} has\n    {}\n  expect\n    {}", part(&have), part(&expect));
        return Err(text.into());
    }
    Ok(())
}
