//! What differs between two trees, in words.

use std::fmt::Debug;

use super::text::escaped;
use super::{Fact, Facts};

/// One line per difference between `have` and `expect`; none when they are alike.
pub fn diff(have: &Facts, expect: &Facts) -> Vec<String> {
    let mut lines = Vec::new();
    for (path, expected) in &expect.paths {
        let name = escaped(path);
        match have.paths.get(path) {
            None => lines.push(format!("/{name}: missing, expect a {:?}", expected.kind)),
            Some(found) => compare(&name, found, expected, &mut lines),
        }
    }
    for (path, found) in &have.paths {
        if !expect.paths.contains_key(path) {
            lines.push(format!("/{}: not expected, have a {:?}", escaped(path), found.kind));
        }
    }
    lines
}

/// Compares two facts about one path.
fn compare(name: &str, have: &Fact, expect: &Fact, lines: &mut Vec<String>) {
    let mut field = |what: &str, differs: bool, have: &dyn Debug, expect: &dyn Debug| {
        if differs {
            lines.push(format!("/{name}: {what}: have {have:?}, expect {expect:?}"));
        }
    };
    field("kind", have.kind != expect.kind, &have.kind, &expect.kind);
    field("mode", have.mode != expect.mode, &Octal(have.mode), &Octal(expect.mode));
    field("uid", have.uid != expect.uid, &have.uid, &expect.uid);
    field("gid", have.gid != expect.gid, &have.gid, &expect.gid);
    field("nlink", have.nlink != expect.nlink, &have.nlink, &expect.nlink);
    field("size", have.size != expect.size, &have.size, &expect.size);
    field("mtime", have.mtime != expect.mtime, &have.mtime, &expect.mtime);
    field("rdev", have.rdev != expect.rdev, &have.rdev, &expect.rdev);
    let (found, wanted) = (readable(&have.target), readable(&expect.target));
    field("target", found != wanted, &found, &wanted);
    field("content", have.content != expect.content, &have.content, &expect.content);
    let (found, wanted) = (readable(&have.same_as), readable(&expect.same_as));
    field("same inode as", found != wanted, &found, &wanted);
    if have.xattrs != expect.xattrs {
        compare_xattrs(name, have, expect, lines);
    }
}

/// Compares attributes one by one.
fn compare_xattrs(name: &str, have: &Fact, expect: &Fact, lines: &mut Vec<String>) {
    for (attribute, wanted) in &expect.xattrs {
        let found = have.xattrs.get(attribute);
        if found != Some(wanted) {
            let (found, wanted) = (found.map(|value| escaped(value)), escaped(wanted));
            let attribute = escaped(attribute);
            lines.push(format!("/{name}: xattr {attribute}: have {found:?}, expect {wanted:?}"));
        }
    }
    for attribute in have.xattrs.keys().filter(|key| !expect.xattrs.contains_key(*key)) {
        lines.push(format!("/{name}: xattr {}: not expected", escaped(attribute)));
    }
}

/// Bytes as text, if any.
fn readable(bytes: &Option<Vec<u8>>) -> Option<String> {
    bytes.as_deref().map(escaped)
}

/// A mode shown as people write it.
struct Octal(u32);

impl Debug for Octal {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:#o}", self.0)
    }
}
