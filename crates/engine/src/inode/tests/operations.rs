//! One property of the operations per test.

use std::ops::ControlFlow;

use super::facts::Facts;
use super::*;
use crate::inode::{Entry, Location, Rename, SetAttributes, SetXattr, mode};

fn list(lab: &Lab, dir: &Inode) -> Vec<(u64, Vec<u8>)> {
    let mut found = Vec::new();
    let each = |entry: crate::inode::DirectoryEntry<'_>| {
        found.push((entry.index, entry.name.to_vec()));
        ControlFlow::Continue(())
    };
    lab.op(|op| lab.tree.read_directory(op, dir, 0, each)).unwrap();
    found
}

fn names(lab: &Lab, dir: &Inode) -> Vec<Vec<u8>> {
    list(lab, dir).into_iter().map(|(_, name)| name).collect()
}

#[test]
fn entries_are_listed_by_index_across_layers() {
    let lab = Lab::new(4096);
    let top = lab.top();
    for name in [b"a", b"b", b"c"] {
        lab.create(&top, name, NewKind::File).unwrap();
    }
    lab.commit();
    lab.op(|op| lab.tree.unlink(op, &top, b"b")).unwrap();
    lab.create(&top, b"d", NewKind::Directory).unwrap();
    let transid = lab.freeze();
    lab.op(|op| lab.tree.unlink(op, &top, b"d")).err().unwrap();
    lab.op(|op| lab.tree.rmdir(op, &top, b"d")).unwrap();
    lab.create(&top, b"b", NewKind::File).unwrap();
    let expect = vec![(2, b"a".to_vec()), (4, b"c".to_vec()), (6, b"b".to_vec())];
    assert_eq!(list(&lab, &top), expect);
    let root = lab.emit(transid);
    assert_eq!(list(&lab, &top), expect);
    lab.tree.publish(root);
    lab.tree.settle();
    assert_eq!(list(&lab, &top), expect);
    let facts = Facts::of(&lab.view());
    facts.check();
    assert_eq!(facts.by_hash.len(), 3);
    lab.commit();
    assert_eq!(list(&lab, &top), expect);
    Facts::of(&lab.view()).check();
}

#[test]
fn a_new_tree_gets_its_top_directory_as_mkfs_makes_it() {
    let lab = Lab::new(4096);
    let facts = Facts::of(&lab.view());
    facts.check();
    assert_eq!(facts.inodes.len(), 1);
    let top = facts.inodes[&256];
    assert_eq!((top.nlink.get(), top.size.get(), top.mode.get()), (1, 0, 0o40755));
    assert_eq!(lab.op(|op| lab.tree.parent_of(op, &lab.top())).unwrap(), 256);
}

#[test]
fn an_open_file_outlives_its_name_and_a_crash_leaves_an_orphan() {
    let mut lab = Lab::new(4096);
    let top = lab.top();
    let file = lab.create(&top, b"file", NewKind::File).unwrap();
    let other = lab.create(&top, b"other", NewKind::File).unwrap();
    lab.tree.hold(&file).unwrap();
    lab.tree.hold(&other).unwrap();
    lab.commit();
    lab.op(|op| lab.tree.unlink(op, &top, b"file")).unwrap();
    lab.op(|op| lab.tree.unlink(op, &top, b"other")).unwrap();
    assert_eq!(lab.get(file.ino).ino, file.ino);
    lab.commit();
    let facts = Facts::of(&lab.view());
    facts.check();
    assert_eq!(facts.orphans.len(), 2);
    lab.op(|op| lab.tree.release(op, &other)).unwrap();
    assert_eq!(errno(lab.op(|op| lab.tree.get(op, other.ino))), Some(Errno::NOENT));
    lab.commit();
    assert_eq!(Facts::of(&lab.view()).orphans.len(), 1);

    lab.reopen();
    let orphans = lab.op(|op| lab.tree.orphans(op, 0)).unwrap();
    assert_eq!(orphans, [file.ino]);
    lab.op(|op| lab.tree.cleanup(op, file.ino)).unwrap();
    lab.commit();
    let facts = Facts::of(&lab.view());
    facts.check();
    assert_eq!(facts.inodes.len(), 1);
}

#[test]
fn what_comes_and_goes_in_one_transaction_leaves_nothing() {
    let lab = Lab::new(4096);
    let top = lab.top();
    for round in 0..100u32 {
        let dir = lab.create(&top, b"dir", NewKind::Directory).unwrap();
        let name = round.to_string();
        lab.create(&dir, name.as_bytes(), NewKind::Symlink(b"target")).unwrap();
        assert_eq!(errno(lab.op(|op| lab.tree.rmdir(op, &top, b"dir"))), Some(Errno::NOTEMPTY));
        lab.op(|op| lab.tree.unlink(op, &dir, name.as_bytes())).unwrap();
        lab.op(|op| lab.tree.rmdir(op, &top, b"dir")).unwrap();
        assert_eq!(errno(lab.create(&dir, b"late", NewKind::File)), Some(Errno::NOENT));
    }
    assert_eq!(lab.tree.loaded(), 1);
    lab.commit();
    let facts = Facts::of(&lab.view());
    facts.check();
    assert_eq!(facts.inodes.len(), 1);
}

#[test]
fn links_overflow_into_extended_refs_and_come_back() {
    let lab = Lab::new(4096);
    let top = lab.top();
    let file = lab.create(&top, b"name-000", NewKind::File).unwrap();
    let name = |at: u32| format!("name-{at:03}").into_bytes();
    for at in 1..600 {
        lab.op(|op| lab.tree.link(op, &file, &top, &name(at))).unwrap();
        if at % 250 == 0 {
            lab.commit();
        }
    }
    lab.commit();
    let facts = Facts::of(&lab.view());
    facts.check();
    assert_eq!(facts.inodes[&file.ino].nlink.get(), 600);
    for at in (0..600).step_by(2) {
        lab.op(|op| lab.tree.unlink(op, &top, &name(at))).unwrap();
    }
    lab.commit();
    Facts::of(&lab.view()).check();
    assert_eq!(lab.tree.attributes(&lab.core, &file).nlink, 300);
    for at in (1..600).step_by(2) {
        lab.op(|op| lab.tree.unlink(op, &top, &name(at))).unwrap();
    }
    lab.commit();
    assert_eq!(Facts::of(&lab.view()).inodes.len(), 1);
}

#[test]
fn without_extended_refs_a_full_item_is_emlink() {
    let mut lab = Lab::new(4096);
    lab.core.features.extref = false;
    let top = lab.top();
    let file = lab.create(&top, b"name-000", NewKind::File).unwrap();
    let link = |at: u32| {
        let name = format!("name-{at:03}");
        errno(lab.op(|op| lab.tree.link(op, &file, &top, name.as_bytes())))
    };
    let fits = (1..).take_while(|&at| link(at).is_none()).count();
    assert_eq!(link(900), Some(Errno::MLINK));
    // 4096 bytes less the heads of the block and the item, 18 bytes for each name, one made by create.
    assert_eq!(fits, (4096 - 101 - 25) / 18 - 1);
    lab.commit();
    Facts::of(&lab.view()).check();
    assert_eq!(link(901), Some(Errno::MLINK));
}

#[test]
fn a_directory_cannot_move_below_itself() {
    let lab = Lab::new(4096);
    let top = lab.top();
    let a = lab.create(&top, b"a", NewKind::Directory).unwrap();
    let b = lab.create(&a, b"b", NewKind::Directory).unwrap();
    lab.commit();
    let c = lab.create(&b, b"c", NewKind::Directory).unwrap();
    let rename = |from: &Arc<Inode>, name: &[u8], to: &Arc<Inode>, new: &[u8], mode| {
        errno(lab.op(|op| lab.tree.rename(op, (from, name), (to, new), mode)))
    };
    assert_eq!(rename(&top, b"a", &c, b"x", Rename::Replace), Some(Errno::INVAL));
    assert_eq!(rename(&top, b"a", &a, b"x", Rename::Replace), Some(Errno::INVAL));
    assert_eq!(rename(&b, b"c", &top, b"a", Rename::Replace), Some(Errno::NOTEMPTY));
    assert_eq!(rename(&b, b"c", &top, b"a", Rename::Exchange), Some(Errno::INVAL));
    assert_eq!(rename(&b, b"c", &top, b"c", Rename::Replace), None);
    assert_eq!(lab.op(|op| lab.tree.parent_of(op, &c)).unwrap(), TOP);
    assert_eq!(rename(&top, b"a", &c, b"a", Rename::NoReplace), None);
    assert_eq!(lab.op(|op| lab.tree.parent_of(op, &a)).unwrap(), c.ino);
    lab.commit();
    Facts::of(&lab.view()).check();
    assert_eq!(lab.op(|op| lab.tree.parent_of(op, &a)).unwrap(), c.ino);
}

#[test]
fn the_modes_of_rename() {
    let lab = Lab::new(4096);
    let top = lab.top();
    let a = lab.create(&top, b"a", NewKind::File).unwrap();
    let b = lab.create(&top, b"b", NewKind::Directory).unwrap();
    let rename = |from: &[u8], to: &[u8], mode| {
        errno(lab.op(|op| lab.tree.rename(op, (&top, from), (&top, to), mode)))
    };
    let at = |name: &[u8]| lab.op(|op| lab.tree.lookup(op, &top, name)).map(|entry| entry.location);
    assert_eq!(rename(b"a", b"b", Rename::NoReplace), Some(Errno::EXIST));
    assert_eq!(rename(b"a", b"b", Rename::Replace), Some(Errno::ISDIR));
    assert_eq!(rename(b"b", b"a", Rename::Replace), Some(Errno::NOTDIR));
    assert_eq!(rename(b"a", b"x", Rename::Exchange), Some(Errno::NOENT));
    assert_eq!(rename(b"a", b"b", Rename::Exchange), None);
    assert_eq!(at(b"a").unwrap(), Location::Inode(b.ino));
    assert_eq!(at(b"b").unwrap(), Location::Inode(a.ino));
    lab.commit();
    Facts::of(&lab.view()).check();
    let whiteout = Rename::Whiteout { uid: 1, gid: 2 };
    assert_eq!(rename(b"b", b"c", whiteout), None);
    assert_eq!(at(b"c").unwrap(), Location::Inode(a.ino));
    let Location::Inode(left) = at(b"b").unwrap() else { panic!("no inode") };
    let left = lab.tree.attributes(&lab.core, &lab.get(left));
    assert_eq!((left.kind(), left.rdev, left.uid, left.gid), (mode::CHARACTER, 0, 1, 2));
    lab.commit();
    Facts::of(&lab.view()).check();
}

#[test]
fn a_replaced_file_is_gone_and_hard_links_stay() {
    let lab = Lab::new(4096);
    let top = lab.top();
    let a = lab.create(&top, b"a", NewKind::File).unwrap();
    let b = lab.create(&top, b"b", NewKind::File).unwrap();
    lab.op(|op| lab.tree.link(op, &a, &top, b"a2")).unwrap();
    lab.commit();
    let rename = |from: &[u8], to: &[u8]| {
        lab.op(|op| lab.tree.rename(op, (&top, from), (&top, to), Rename::Replace))
    };
    rename(b"a", b"a2").unwrap();
    assert_eq!(lab.tree.attributes(&lab.core, &a).nlink, 2);
    rename(b"a", b"b").unwrap();
    assert_eq!(errno(lab.op(|op| lab.tree.get(op, b.ino))), Some(Errno::NOENT));
    assert_eq!(names(&lab, &top), [b"a2".to_vec(), b"b".to_vec()]);
    lab.commit();
    Facts::of(&lab.view()).check();
}

#[test]
fn xattrs_are_layered_and_limited() {
    let lab = Lab::new(4096);
    let file = lab.create(&lab.top(), b"f", NewKind::File).unwrap();
    let set = |name: &[u8], value: &[u8], expect| {
        errno(lab.op(|op| lab.tree.set_xattr(op, &file, name, value, expect)))
    };
    let get = |name: &[u8]| lab.op(|op| lab.tree.xattr(op, &file, name));
    assert_eq!(set(b"user.a", b"1", SetXattr::Replace), Some(Errno::NODATA));
    assert_eq!(set(b"user.a", b"1", SetXattr::Create), None);
    assert_eq!(set(b"user.a", b"2", SetXattr::Create), Some(Errno::EXIST));
    assert_eq!(set(b"user.b", b"", SetXattr::Any), None);
    lab.commit();
    assert_eq!(set(b"user.a", b"3", SetXattr::Replace), None);
    assert_eq!(errno(lab.op(|op| lab.tree.remove_xattr(op, &file, b"user.b"))), None);
    let transid = lab.freeze();
    assert_eq!(
        errno(lab.op(|op| lab.tree.remove_xattr(op, &file, b"user.b"))),
        Some(Errno::NODATA)
    );
    assert_eq!(set(b"user.c", b"4", SetXattr::Create), None);
    let root = lab.emit(transid);
    lab.tree.publish(root);
    lab.tree.settle();
    assert_eq!(get(b"user.a").unwrap(), b"3");
    let listed = lab.op(|op| lab.tree.xattrs(op, &file)).unwrap();
    let listed: Vec<&[u8]> = listed.iter().map(|name| name.as_bytes()).collect();
    assert_eq!(listed, [b"user.a", b"user.c"]);
    // What Linux 6.18 accepts with 4 KiB nodes.
    let room = 3934;
    assert_eq!(set(b"user.d", &vec![b'x'; room + 1], SetXattr::Any), Some(Errno::NOSPC));
    // Linux asks that before it looks what is there.
    assert_eq!(set(b"user.d", &vec![b'x'; room + 1], SetXattr::Replace), Some(Errno::NOSPC));
    assert_eq!(set(b"user.a", &vec![b'x'; room + 1], SetXattr::Create), Some(Errno::NOSPC));
    assert_eq!(set(b"user.d", &vec![b'x'; room], SetXattr::Any), None);
    lab.commit();
    assert_eq!(get(b"user.d").unwrap().len(), room);
    assert_eq!(set(b"btrfs.foo", b"x", SetXattr::Any), Some(Errno::INVAL));
    assert_eq!(set(b"btrfs.compression", b"zstd", SetXattr::Any), None);
    let flags = || lab.tree.attributes(&lab.core, &file).flags;
    assert_eq!(flags(), buttress_ondisk::item::inode_flags::COMPRESS);
    assert_eq!(set(b"btrfs.compression", b"", SetXattr::Any), None);
    assert_eq!((flags(), errno(get(b"btrfs.compression"))), (0, Some(Errno::NODATA)));
}

#[test]
fn a_new_file_takes_over_what_its_directory_says() {
    let lab = Lab::new(4096);
    let top = lab.top();
    let dir = lab.create(&top, b"dir", NewKind::Directory).unwrap();
    let set = SetAttributes { mode: Some(0o2755), gid: Some(77), ..SetAttributes::default() };
    lab.op(|op| lab.tree.set_attributes(op, &dir, &set)).unwrap();
    lab.op(|op| lab.tree.set_xattr(op, &dir, b"btrfs.compression", b"lzo", SetXattr::Any)).unwrap();
    let file = lab.create(&dir, b"f", NewKind::File).unwrap();
    let below = lab.create(&dir, b"d", NewKind::Directory).unwrap();
    assert_eq!(lab.tree.attributes(&lab.core, &file).gid, 77);
    assert_eq!(lab.tree.attributes(&lab.core, &below).mode, 0o42644);
    assert_eq!(lab.op(|op| lab.tree.xattr(op, &file, b"btrfs.compression")).unwrap(), b"lzo");
}

#[test]
fn entries_of_subvolumes() {
    let lab = Lab::new(4096);
    let top = lab.top();
    let dir = lab.create(&top, b"dir", NewKind::Directory).unwrap();
    let index = lab.op(|op| lab.tree.add_subvolume_entry(op, &dir, b"sub", 300)).unwrap();
    let there = lab.op(|op| lab.tree.lookup(op, &dir, b"sub")).unwrap();
    assert_eq!(there, Entry { location: Location::Subvolume(300), file_type: 2 });
    assert_eq!(errno(lab.op(|op| lab.tree.rmdir(op, &top, b"dir"))), Some(Errno::NOTEMPTY));
    assert_eq!(errno(lab.op(|op| lab.tree.rmdir(op, &dir, b"sub"))), Some(Errno::XDEV));
    lab.commit();
    assert_eq!(lab.op(|op| lab.tree.lookup(op, &dir, b"sub")).unwrap(), there);
    let wrong = lab.op(|op| lab.tree.remove_subvolume_entry(op, &dir, b"sub", 301));
    assert_eq!(errno(wrong), Some(Errno::NOENT));
    let removed = lab.op(|op| lab.tree.remove_subvolume_entry(op, &dir, b"sub", 300)).unwrap();
    assert_eq!(removed, index);
    lab.op(|op| lab.tree.rmdir(op, &top, b"dir")).unwrap();
    lab.commit();
    Facts::of(&lab.view()).check();
}

#[test]
fn symbolic_links() {
    let mut lab = Lab::new(4096);
    let top = lab.top();
    let link = lab.create(&top, b"link", NewKind::Symlink(b"to/there")).unwrap();
    let read = |lab: &Lab| lab.op(|op| lab.tree.read_link(op, &lab.get(link.ino))).unwrap();
    assert_eq!(read(&lab), b"to/there");
    lab.commit();
    lab.reopen();
    assert_eq!(read(&lab), b"to/there");
    let attributes = lab.tree.attributes(&lab.core, &lab.get(link.ino));
    assert_eq!((attributes.size, attributes.nbytes, attributes.mode), (8, 8, 0o120_777));
    assert_eq!(errno(lab.create(&lab.top(), b"x", NewKind::Symlink(b""))), Some(Errno::NOENT));
    // What Linux 6.18 accepts with 4 KiB nodes.
    let long = vec![b'x'; 3950];
    let refused = errno(lab.create(&lab.top(), b"x", NewKind::Symlink(&long)));
    assert_eq!(refused, Some(Errno::NAMETOOLONG));
    lab.create(&lab.top(), b"x", NewKind::Symlink(&long[1..])).unwrap();
    lab.commit();
    Facts::of(&lab.view()).check();
}

#[test]
fn a_read_only_tree_refuses() {
    let lab = Lab::new(4096);
    let top = lab.top();
    lab.tree.set_read_only(true);
    assert_eq!(errno(lab.create(&top, b"x", NewKind::File)), Some(Errno::ROFS));
    assert_eq!(errno(lab.op(|op| lab.tree.unlink(op, &top, b"x"))), Some(Errno::ROFS));
}

#[test]
fn inodes_that_nobody_uses_are_let_go() {
    let lab = Lab::new(16384);
    let top = lab.top();
    for round in 0..3u32 {
        for at in 0..40_000u32 {
            lab.create(&top, format!("{round}-{at}").as_bytes(), NewKind::File).unwrap();
        }
        lab.commit();
    }
    for ino in 257..110_000 {
        lab.get(ino);
    }
    assert!(lab.tree.loaded() < 75_000, "{}", lab.tree.loaded());
    Facts::of(&lab.view()).check();
}

/// Who makes so much that he has to wait for a commit has looked for nothing between it and the one before.
#[test]
fn what_a_commit_has_just_written_stays_for_who_waited_for_it() {
    let lab = Lab::new(4096);
    for few in [false, true] {
        let files = if few { 10 } else { 1000 };
        for at in 0..files {
            lab.create(&lab.top(), format!("{few} {at}").as_bytes(), NewKind::File).unwrap();
        }
        assert!(!lab.tree.rest(4096));
        lab.commit();
        assert_eq!(lab.tree.rest(4096), few);
        assert_eq!(lab.tree.loaded() > files, !few);
    }
    assert!(lab.tree.rest(4096));
}

/// More inodes than are remembered: a directory that knows its names stays all the same.
#[test]
fn a_directory_that_knows_many_names_stays() {
    let lab = Lab::new(4096);
    let top = lab.top();
    let dir = lab.create(&top, b"directory", NewKind::Directory).unwrap();
    for at in 0..5000u32 {
        lab.create(&dir, format!("{at}").as_bytes(), NewKind::File).unwrap();
    }
    let ino = dir.ino;
    drop((top, dir));
    lab.commit();
    lab.tree.keep_about(64);
    for ino in ino + 1..ino + 5000 {
        lab.get(ino);
    }
    assert!(lab.tree.loaded() < 1000, "{}", lab.tree.loaded());
    assert!(lab.get(ino).read().name_hashes.is_some());
}
