//! Names that the last commit has and that lead elsewhere by now: what the log says of them needs no commit, and loses nobody.

use super::{Disturbed, mkdir, names, touch};
use crate::fs::{Filesystem, Node};
use crate::inode::Rename;

/// A file of the last commit with content of its own.
fn committed(fs: &Filesystem, dir: Node, name: &str, byte: u8) -> Node {
    let file = touch(fs, dir, name);
    fs.write(file, 0, &[byte; 9000]).unwrap();
    file
}

fn replace(fs: &Filesystem, from: Node, old: &str, to: Node, new: &str) {
    fs.rename(from, old.as_bytes(), to, new.as_bytes(), Rename::Replace).unwrap();
}

/// What a name leads to, by its content.
fn byte_of(fs: &Filesystem, dir: Node, name: &str) -> Option<u8> {
    let node = fs.lookup(dir, name.as_bytes()).unwrap()?.node;
    let mut have = vec![0; 10_000];
    let len = fs.read(node, 0, &mut have).unwrap();
    assert!(have[..len].iter().all(|byte| *byte == have[0]));
    Some(if len == 0 { 0 } else { have[0] })
}

/// Editors keep what there was under another name, and write the file anew.
#[test]
fn a_file_is_written_anew_beside_what_it_was() {
    let all = Disturbed::new();
    let (fs, dir) = (all.fs(), Node::ROOT);
    committed(fs, dir, "text", 1);
    let before = fs.commit().unwrap();
    replace(fs, dir, "text", dir, "text~");
    let text = committed(fs, dir, "text", 2);
    fs.sync(text).unwrap();
    assert_eq!(fs.info().generation, before, "{:?}", fs.stats().log_refused);
    let replayed = all.replayed();
    assert_eq!(names(&replayed, dir), ["text", "text~"]);
    assert_eq!(byte_of(&replayed, dir, "text"), Some(2));
    assert_eq!(byte_of(&replayed, dir, "text~"), Some(1));
}

/// A name is given to one file after the other, each of them durable, and then to none.
#[test]
fn a_name_that_was_taken_and_goes_leads_nowhere() {
    let all = Disturbed::new();
    let (fs, dir) = (all.fs(), Node::ROOT);
    committed(fs, dir, "name", 1);
    let other = committed(fs, dir, "other", 9);
    let before = fs.commit().unwrap();
    for byte in 2..5 {
        fs.unlink(dir, b"name").unwrap();
        let file = committed(fs, dir, "name", byte);
        fs.sync(file).unwrap();
        assert_eq!(byte_of(&all.replayed(), dir, "name"), Some(byte));
    }
    fs.unlink(dir, b"name").unwrap();
    fs.write(other, 0, b"x").unwrap();
    fs.sync(other).unwrap();
    assert_eq!(fs.info().generation, before, "{:?}", fs.stats().log_refused);
    assert_eq!(names(&all.replayed(), dir), ["other"]);
}

/// Databases rename what they have written and make the directory durable.
#[test]
fn a_file_of_the_last_commit_replaces_another_one() {
    let all = Disturbed::new();
    let fs = all.fs();
    let dir = mkdir(fs, Node::ROOT, "dir");
    committed(fs, dir, "state", 1);
    committed(fs, dir, "state.tmp", 2);
    let before = fs.commit().unwrap();
    replace(fs, dir, "state.tmp", dir, "state");
    fs.sync(dir).unwrap();
    assert_eq!(fs.info().generation, before, "{:?}", fs.stats().log_refused);
    let replayed = all.replayed();
    assert_eq!(names(&replayed, dir), ["state"]);
    assert_eq!(byte_of(&replayed, dir, "state"), Some(2));
}

/// A file is durable under a new name, and goes: at once or while the next log is made. The old name is not there again.
#[test]
fn what_goes_under_a_new_name_does_not_come_back_under_the_old_one() {
    for step in [None, Some("a log has its inodes"), Some("a log can be written")] {
        let all = Disturbed::new();
        let (fs, dir) = (all.fs(), Node::ROOT);
        let file = committed(fs, dir, "old", 1);
        let other = committed(fs, dir, "other", 9);
        fs.commit().unwrap();
        replace(fs, dir, "old", dir, "new");
        fs.sync(file).unwrap();
        assert_eq!(names(&all.replayed(), dir), ["new", "other"]);
        match step {
            None => {
                fs.unlink(dir, b"new").unwrap();
            }
            Some(step) => all.at(step, move |fs| {
                fs.unlink(dir, b"new").unwrap();
            }),
        }
        for byte in *b"xy" {
            fs.write(other, 0, &[byte]).unwrap();
            fs.sync(other).unwrap();
            let replayed = all.replayed();
            assert!(!names(&replayed, dir).contains(&"old".to_owned()), "{step:?}");
        }
        assert_eq!(names(&all.replayed(), dir), ["other"], "{step:?}");
    }
}

/// The old name of a file is given to another one that is being logged, and the file moves on meanwhile, to where the log cannot follow.
#[test]
fn what_lost_its_name_and_moves_on_meanwhile_is_not_lost() {
    for step in ["a log has its inodes", "a log has what changed"] {
        let all = Disturbed::new();
        let (fs, top) = (all.fs(), Node::ROOT);
        let dir = mkdir(fs, top, "dir");
        committed(fs, top, "name", 1);
        fs.commit().unwrap();
        replace(fs, top, "name", top, "moved");
        let file = committed(fs, top, "name", 2);
        if step == "a log has what changed" {
            all.at("a log has its inodes", move |fs| replace(fs, top, "moved", top, "again"));
            all.at(step, move |fs| replace(fs, top, "again", dir, "moved"));
            all.next.lock().reverse();
        } else {
            all.at(step, move |fs| replace(fs, top, "moved", dir, "moved"));
        }
        fs.sync(file).unwrap();
        let replayed = all.replayed();
        assert_eq!(byte_of(&replayed, top, "name"), Some(2), "{step}");
        let places = [(top, "moved"), (top, "again"), (dir, "moved")];
        let found: Vec<u8> =
            places.iter().filter_map(|(dir, name)| byte_of(&replayed, *dir, name)).collect();
        assert_eq!(found, [1], "{step}");
    }
}

/// A directory goes in which a file was that lives on elsewhere: what the log takes away with it must not be that file.
#[test]
fn a_directory_that_goes_takes_nothing_along() {
    let all = Disturbed::new();
    let (fs, top) = (all.fs(), Node::ROOT);
    let dir = mkdir(fs, top, "dir");
    let inner = mkdir(fs, dir, "inner");
    committed(fs, inner, "file", 1);
    fs.commit().unwrap();
    replace(fs, inner, "file", top, "file");
    fs.rmdir(dir, b"inner").unwrap();
    fs.rmdir(top, b"dir").unwrap();
    let new = committed(fs, top, "dir", 2);
    fs.sync(new).unwrap();
    fs.sync(top).unwrap();
    let replayed = all.replayed();
    assert_eq!(names(&replayed, top), ["dir", "file"]);
    assert_eq!(byte_of(&replayed, top, "file"), Some(1));
}

/// A file has lost one of its names and loses the other, to another file, while the log takes what it needs: both are needed then.
#[test]
fn what_has_another_name_loses_that_too_meanwhile() {
    let all = Disturbed::new();
    let (fs, top) = (all.fs(), Node::ROOT);
    let dir = mkdir(fs, top, "dir");
    let taker = committed(fs, top, "taker", 2);
    let file = committed(fs, top, "one", 1);
    fs.link(file, top, b"two").unwrap();
    fs.commit().unwrap();
    replace(fs, top, "taker", dir, "taker");
    replace(fs, top, "one", dir, "one");
    all.at("a log takes one more", move |fs| {
        replace(fs, top, "two", top, "three");
        replace(fs, dir, "taker", top, "two");
    });
    all.at("a log takes one more", |_| ());
    fs.sync(top).unwrap();
    let replayed = all.replayed();
    assert!(replayed.attributes(file).is_ok() && replayed.attributes(taker).is_ok());
    let found = [(top, "two"), (top, "three"), (dir, "one")];
    let found = found.iter().filter(|(dir, name)| byte_of(&replayed, *dir, name) == Some(1));
    assert!(found.count() > 0);
}

/// Two files of the last commit change places, as the first thing that happens to them.
#[test]
fn an_exchange_is_a_commit_whichever_end_is_durable() {
    for (ends, others) in [("a", "b"), ("b", "a")] {
        let all = Disturbed::new();
        let (fs, top) = (all.fs(), Node::ROOT);
        let files = [committed(fs, top, "a", 1), committed(fs, top, "b", 2)];
        fs.commit().unwrap();
        fs.rename(top, b"a", top, b"b", Rename::Exchange).unwrap();
        let file = files[usize::from(ends == "b")];
        fs.sync(file).unwrap();
        assert_eq!(fs.stats().log_writes, 0);
        let replayed = all.replayed();
        let now = u8::from(ends == "b") + 1;
        assert_eq!(byte_of(&replayed, top, others), Some(now));
        assert_eq!(byte_of(&replayed, top, ends), Some(3 - now));
    }
}
