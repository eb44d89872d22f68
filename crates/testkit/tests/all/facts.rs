//! Facts see what a user can see, and only that.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use buttress_testkit::facts::{Kind, diff, facts_of_dir, from_text, to_text};
use buttress_testkit::oracle::temp_dir;

/// Gives everything below `dir` one modification time.
fn settle(dir: &Path) {
    let when = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            settle(&entry.path());
        } else if kind.is_file() {
            File::open(entry.path()).unwrap().set_modified(when).unwrap();
        }
    }
    File::open(dir).unwrap().set_modified(when).unwrap();
}

/// A little tree.
fn populate(top: &Path) {
    fs::create_dir_all(top.join("a/b")).unwrap();
    fs::write(top.join("a/file"), b"content").unwrap();
    fs::hard_link(top.join("a/file"), top.join("a/b/again")).unwrap();
    File::create(top.join("sparse")).unwrap().write_at(b"x", 1 << 40).unwrap();
    settle(top);
}

#[test]
fn equal_trees_have_equal_facts_and_text_keeps_them() {
    let (one, two) = (temp_dir().unwrap(), temp_dir().unwrap());
    populate(one.path());
    populate(two.path());
    let facts = facts_of_dir(one.path()).unwrap();
    assert_eq!(diff(&facts, &facts_of_dir(two.path()).unwrap()), Vec::<String>::new());
    assert_eq!(from_text(&to_text(&facts)), Some(facts.clone()));
    assert_eq!(facts.paths.len(), 6);
    assert_eq!(facts.get("a/file").unwrap().same_as.as_deref(), Some(&b"a/b/again"[..]));
    assert_eq!(facts.get("a/b/again").unwrap().nlink, 2);
    assert_eq!(facts.get("sparse").unwrap().size, (1 << 40) + 1);
    assert_eq!(facts.get("a").unwrap().kind, Kind::Dir);
}

#[test]
fn every_change_is_a_difference() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 6] = [
        ("content", |top| fs::write(top.join("a/file"), b"CONTENT").unwrap()),
        ("mode", |top| {
            fs::set_permissions(top.join("sparse"), PermissionsExt::from_mode(0o700)).unwrap();
        }),
        ("not expected", |top| fs::write(top.join("new"), "").unwrap()),
        ("missing", |top| fs::remove_file(top.join("sparse")).unwrap()),
        ("kind", |top| {
            fs::remove_file(top.join("sparse")).unwrap();
            symlink("target", top.join("sparse")).unwrap();
        }),
        ("same inode", |top| {
            fs::remove_file(top.join("a/b/again")).unwrap();
            fs::write(top.join("a/b/again"), b"content").unwrap();
        }),
    ];
    for (word, change) in changes {
        let (one, two) = (temp_dir().unwrap(), temp_dir().unwrap());
        populate(one.path());
        populate(two.path());
        change(two.path());
        settle(two.path());
        let lines = diff(&facts_of_dir(two.path()).unwrap(), &facts_of_dir(one.path()).unwrap());
        assert!(lines.iter().any(|line| line.contains(word)), "{word}: {lines:#?}");
    }
}
