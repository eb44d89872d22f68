//! What is there at first, and each operation that may follow.

use buttress::Node;

use crate::model::Model;
use crate::ops::{Op, parse};

/// What is there: committed, and done since then.
pub struct Base {
    /// A name for it.
    pub name: &'static str,
    /// Committed.
    pub old: &'static str,
    /// Done after that commit.
    pub new: &'static str,
}

/// In words with `;` between them.
pub fn operations(words: &str) -> Vec<Op> {
    let words = words.split(';').map(str::trim).filter(|word| !word.is_empty());
    words.map(|word| parse(word).expect("the tables hold operations only")).collect()
}

/// Where sequences begin.
pub const BASES: [Base; 3] = [
    Base {
        name: "all is new",
        old: "mkdir /A 755 0",
        new: "file /A/foo 644 0; write /A/foo 0 20000 1; mkdir /B 755 0; file /foo 644 0; write /foo 0 900 3",
    },
    Base {
        name: "some is new",
        old: "mkdir /A 755 0; file /A/foo 644 0; write /A/foo 0 20000 1; setxattr /A/foo user.x 20 1 any; file /foo 644 0; \
              write /foo 0 900 3",
        new: "mkdir /B 755 0; file /A/bar 644 0; write /A/bar 0 9000 5",
    },
    Base {
        name: "all is old",
        old: "mkdir /A 755 0; mkdir /B 755 0; file /A/foo 644 0; write /A/foo 0 20000 1; setxattr /A/foo user.x 20 1 any; \
              file /A/bar 644 0; write /A/bar 0 900 3; link /A/bar /B/foo; file /foo 644 0; write /foo 0 9000 5",
        new: "",
    },
];

const FILES: [&str; 4] = ["/A/foo", "/A/bar", "/B/foo", "/foo"];

/// Each operation in words; some take two steps.
pub fn kinds() -> Vec<String> {
    let mut found = Vec::new();
    for at in FILES {
        found.push(format!("file {at} 600 7"));
        found.push(format!("unlink {at}"));
        found.push(format!("write {at} 4096 5000 7"));
        found.push(format!("truncate {at} 300"));
        found.push(format!("chmod {at} 640"));
        for to in FILES.iter().filter(|to| **to != at) {
            found.push(format!("link {at} {to}"));
            found.push(format!("rename {at} {to} replace"));
            if at < *to {
                found.push(format!("rename {at} {to} exchange"));
            }
        }
    }
    for at in ["/A/foo", "/foo"] {
        found.push(format!("write {at} 0 70000 9"));
        found.push(format!("truncate {at} 50000"));
        found.push(format!("allocate {at} punch 4096 8192"));
        found.push(format!("allocate {at} reserve 16384 40000"));
        found.push(format!("allocate {at} zero-keep 2000 9000"));
        found.push(format!("setxattr {at} user.x 30 7 any"));
        found.push(format!("chown {at} 3 4"));
        found.push(format!("utimes {at} 77 99"));
    }
    let others = "clone /A/foo 0 8192 /foo 0; clone /A/foo 4096 4096 /A/bar 0\n\
        clone /A/foo 0 4096 /A/foo 8192\n\
        rmxattr /A/foo user.x\n\
        setxattr /A user.d 9 7 any\n\
        chmod /A 700\n\
        mkdir /A/C 755 0\n\
        mkdir /B/foo 755 0\n\
        mkdir /A/C 755 0; file /A/C/new 644 0\n\
        rmdir /B\n\
        symlink /A/bar 0 somewhere/else\n\
        symlink /B/foo 0 foo\n\
        mknod /A/bar 600 0 fifo 0\n\
        tmpfile 1 /A 600; write @1 0 6000 7; link @1 /A/bar\n\
        tmpfile 2 /B 600; link @2 /B/foo; write @2 0 100 7\n\
        hold 3 /A/foo; unlink /A/foo; write @3 0 10 7\n\
        rename /A /B replace\n\
        rename /B /A/C replace\n\
        rename /A /C replace\n\
        rename /A /B exchange\n\
        rename /B /A/bar exchange\n\
        commit";
    found.extend(others.lines().map(|line| line.trim().to_owned()));
    found
}

/// Paths of what an operation touches: what it names, and the directories of these.
pub fn touched(ops: &[Op]) -> Vec<String> {
    let mut found = Vec::new();
    for op in ops {
        let text = op.to_string();
        for path in text.split(' ').filter(|word| word.starts_with('/')) {
            let parent = path.rsplit_once('/').map_or("", |(dir, _)| dir);
            found.push(path.to_owned());
            found.push(if parent.is_empty() { "/".into() } else { parent.to_owned() });
        }
    }
    found
}

/// One path for each of the files and directories that can be made durable.
pub fn durable(model: &Model, paths: &[String]) -> Vec<String> {
    let (mut seen, mut found) = (Vec::<Node>::new(), Vec::new());
    for path in paths {
        let Ok(node) = model.resolve(path) else { continue };
        let Some(inode) = model.inode(node) else { continue };
        let opens = inode.directory().is_some() || inode.content().is_some();
        if opens && !seen.contains(&node) {
            seen.push(node);
            found.push(path.clone());
        }
    }
    found
}
