//! Files' data through operations and commits. Checksums are left out: no checksum tree is committed here.

use buttress_ondisk::item::inode_flags;

use super::facts::Facts;
use super::*;
use crate::inode::file::PARTS_MAX;
use crate::inode::{SetAttributes, Source};
use crate::space::Need;

fn file(lab: &Lab, name: &[u8]) -> Arc<Inode> {
    let file = lab.create(&lab.top(), name, NewKind::File).unwrap();
    let flags = Some(inode_flags::NODATASUM);
    let set = SetAttributes { flags, ..SetAttributes::default() };
    lab.op(|op| lab.tree.set_attributes(op, &file, &set)).unwrap();
    file
}

fn write(lab: &Lab, file: &Arc<Inode>, offset: u64, data: &[u8]) {
    lab.op(|op| lab.tree.write(op, file, offset, data)).unwrap();
}

fn read(lab: &Lab, file: &Inode) -> Vec<u8> {
    let mut buf = vec![0xaa; 1 << 20];
    let (len, _) = lab.op(|op| lab.tree.read(op, file, 0, &mut buf)).unwrap();
    buf.truncate(len);
    buf
}

fn resize(lab: &Lab, file: &Arc<Inode>, size: u64) {
    let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
    lab.op(|op| lab.tree.set_attributes(op, file, &set)).unwrap();
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

#[test]
fn what_is_written_is_read_before_during_and_after_commits() {
    let mut lab = Lab::new(4096);
    let file = file(&lab, b"file");
    let mut model = pattern(300_000);
    write(&lab, &file, 0, &model);
    assert_eq!(read(&lab, &file), model);
    assert_eq!(lab.tree.attributes(&lab.core, &file).nbytes, 303_104);
    let transid = lab.freeze();
    write(&lab, &file, 100_000, b"later");
    model[100_000..100_005].copy_from_slice(b"later");
    assert_eq!(read(&lab, &file), model);
    let root = lab.emit(transid);
    assert_eq!(read(&lab, &file), model);
    resize(&lab, &file, 150_000);
    model.truncate(150_000);
    lab.tree.publish(root);
    lab.tree.settle();
    assert_eq!(read(&lab, &file), model);
    lab.commit();
    assert_eq!(read(&lab, &file), model);
    lab.reopen();
    let file = lab.get(file.ino);
    assert_eq!(read(&lab, &file), model);
    let attributes = lab.tree.attributes(&lab.core, &file);
    assert_eq!((attributes.size, attributes.nbytes), (150_000, 151_552));
    Facts::of(&lab.view()).check();
}

#[test]
fn a_new_file_is_filled_at_once() {
    let mut lab = Lab::new(4096);
    let fill = |file: &Arc<Inode>, size: usize| {
        let mut data = pattern(size);
        data.resize(size.next_multiple_of(4096), 0);
        lab.op(|op| lab.tree.fill(op, file, &data, size as u64)).unwrap()
    };
    let (new, used, small) = (file(&lab, b"new"), file(&lab, b"used"), file(&lab, b"small"));
    let before = lab.tree.attributes(&lab.core, &new).mtime;
    assert!(fill(&new, 70_001));
    let after = lab.tree.attributes(&lab.core, &new);
    assert_eq!((after.size, after.nbytes, after.mtime), (70_001, 73_728, before));
    assert_eq!(read(&lab, &new), pattern(70_001));
    assert!(!fill(&new, 70_001), "it has content");
    assert!(!fill(&small, 2048), "this goes into an item");
    write(&lab, &used, 0, b"some");
    resize(&lab, &used, 0);
    assert!(!fill(&used, 5000) || read(&lab, &used) == pattern(5000));
    lab.commit();
    assert!(!fill(&small, 5000), "the tree holds it");
    write(&lab, &new, 3, b"changed");
    lab.commit();
    let mut model = pattern(70_001);
    model[3..10].copy_from_slice(b"changed");
    lab.reopen();
    assert_eq!(read(&lab, &lab.get(new.ino)), model);
    Facts::of(&lab.view()).check();
}

#[test]
fn a_small_file_is_inline() {
    let mut lab = Lab::new(16384);
    let file = file(&lab, b"file");
    write(&lab, &file, 0, b"some bytes");
    lab.commit();
    lab.reopen();
    let file = lab.get(file.ino);
    assert_eq!(read(&lab, &file), b"some bytes");
    assert_eq!(lab.tree.attributes(&lab.core, &file).nbytes, 10);
}

#[test]
fn temporary_files_give_their_space_back() {
    let lab = Lab::new(4096);
    lab.commit();
    let before = lab.core.space.usage();
    for _ in 0..20 {
        let file = file(&lab, b"temporary");
        lab.tree.hold(&file).unwrap();
        write(&lab, &file, 0, &pattern(200_000));
        lab.op(|op| lab.tree.unlink(op, &lab.top(), b"temporary")).unwrap();
        assert_eq!(read(&lab, &file).len(), 200_000);
        lab.op(|op| lab.tree.release(op, &file)).unwrap();
    }
    lab.commit();
    let facts = Facts::of(&lab.view());
    facts.check();
    assert_eq!(facts.inodes.len(), 1);
    assert_eq!(lab.core.space.usage().data.used, before.data.used);
}

#[test]
fn clones_share_data_and_part_when_written() {
    let lab = Lab::new(4096);
    let (a, b) = (file(&lab, b"a"), file(&lab, b"b"));
    let data = pattern(131_072);
    write(&lab, &a, 0, &data);
    let source = Source { tree: &lab.tree, inode: &a, offset: 4096, parts: PARTS_MAX };
    let cloned = lab.op(|op| lab.tree.clone_range(op, source, &b, 0, 0)).unwrap();
    assert_eq!(cloned, 131_072 - 4096);
    assert_eq!(read(&lab, &b), &data[4096..]);
    lab.commit();
    write(&lab, &a, 4096, b"changed");
    assert_eq!(read(&lab, &b), &data[4096..]);
    lab.commit();
    assert_eq!(read(&lab, &b), &data[4096..]);
    let overlap = Source { tree: &lab.tree, inode: &a, offset: 0, parts: PARTS_MAX };
    let refused = lab.op(|op| lab.tree.clone_range(op, overlap, &a, 4096, 8192));
    assert_eq!(errno(refused), Some(Errno::INVAL));
}

/// The most bytes of data that could be promised now.
fn promisable(lab: &Lab) -> u64 {
    let (mut fits, mut too_many) = (0, 1 << 40);
    while too_many - fits > 4096 {
        let data = fits + (too_many - fits) / 8192 * 4096;
        let need = Need { data, ..Need::default() };
        match lab.core.space.reserve(need) {
            Ok(()) => {
                lab.core.space.unreserve(need);
                fits = data.max(fits + 4096);
            }
            Err(_) => too_many = data,
        }
    }
    fits
}

#[test]
fn a_clone_of_what_the_commit_has_not_placed_is_promised_room() {
    let lab = Lab::new(4096);
    let (a, b) = (file(&lab, b"a"), file(&lab, b"b"));
    let data = pattern(1 << 20);
    for (part, bytes) in data.chunks(32 << 10).enumerate() {
        write(&lab, &a, part as u64 * (32 << 10), bytes);
    }
    let transid = lab.freeze();
    let before = promisable(&lab);
    let source = Source { tree: &lab.tree, inode: &a, offset: 0, parts: PARTS_MAX };
    lab.op(|op| lab.tree.clone_range(op, source, &b, 0, 0)).unwrap();
    assert!(promisable(&lab) + data.len() as u64 <= before + 4096);
    let root = lab.emit(transid);
    lab.tree.publish(root);
    lab.tree.settle();
    lab.commit();
    assert_eq!(read(&lab, &b), data);
}

#[test]
fn nothing_of_a_write_that_failed_shows_when_the_file_grows() {
    let lab = Lab::new(4096);
    let (big, small) = (file(&lab, b"big"), file(&lab, b"small"));
    write(&lab, &small, 0, b"some");
    let (mut at, mut len) = (0, 64 << 20);
    while len >= 4096 {
        match lab.op(|op| lab.tree.allocate(op, &big, at, len, false)) {
            Ok(()) => at += len,
            Err(_) => len /= 2,
        }
    }
    let data = vec![1; 1 << 20];
    for offset in [2, 5000] {
        let refused = lab.op(|op| lab.tree.write(op, &small, offset, &data));
        assert!(matches!(refused, Err(crate::Error::NoSpace)), "{refused:?}");
        assert_eq!(lab.tree.attributes(&lab.core, &small).size, 4);
        resize(&lab, &small, 3 << 12);
        let found = read(&lab, &small);
        assert!(found[4..].iter().all(|byte| *byte == 0), "a write at {offset}");
        resize(&lab, &small, 4);
    }
}

#[test]
fn an_orphan_that_says_it_is_large_is_cleaned_up_all_the_same() {
    let mut lab = Lab::new(4096);
    let new = NewInode { kind: NewKind::File, permissions: 0o644, uid: 0, gid: 0 };
    let file = lab.op(|op| lab.tree.create_unnamed(op, &lab.top(), &new)).unwrap();
    let flags = Some(inode_flags::NODATASUM);
    let set = SetAttributes { flags, ..SetAttributes::default() };
    lab.op(|op| lab.tree.set_attributes(op, &file, &set)).unwrap();
    write(&lab, &file, 0, b"first");
    write(&lab, &file, 1 << 40, b"last");
    resize(&lab, &file, 1 << 62);
    lab.commit();
    lab.reopen();
    let ino = lab.op(|op| lab.tree.orphans(op, 0)).unwrap()[0];
    lab.op(|op| lab.tree.cleanup(op, ino)).unwrap();
    lab.commit();
    let facts = Facts::of(&lab.view());
    facts.check();
    assert_eq!(facts.inodes.len(), 1);
}

#[test]
fn a_hole_in_a_hole_changes_nothing() {
    let lab = Lab::new(4096);
    let file = file(&lab, b"file");
    write(&lab, &file, 0, &pattern(5000));
    resize(&lab, &file, 1 << 20);
    lab.commit();
    let punch = |offset, len| {
        let before = lab.tree.attributes(&lab.core, &file).mtime;
        lab.op(|op| lab.tree.punch(op, &file, offset, len)).unwrap();
        lab.tree.attributes(&lab.core, &file).mtime != before
    };
    assert!(!punch(8192, 1 << 30), "all of it a hole");
    assert!(!punch(9000, 70), "part of a sector of a hole");
    assert!(punch(8191, 2), "a byte of the sector that has data");
    assert!(punch(0, 5), "data at once");
    assert!(punch(4096, 4096));
    assert!(!punch(4096, 4096), "a hole that is not committed yet");
}

/// A file of two sectors whose size says less, as Linux leaves it on the disk when it cuts one.
fn cut_by_linux(lab: &Lab, name: &[u8]) -> Arc<Inode> {
    let file = file(lab, name);
    write(lab, &file, 0, &pattern(8192));
    lab.commit();
    lab.op(|op| -> Result<()> {
        let mut state = file.write();
        state.touch(&file, &lab.tree, op)?;
        state.attributes.size = 5000;
        Ok(())
    })
    .unwrap();
    lab.commit();
    file
}

#[test]
fn what_linux_left_behind_the_end_never_shows() {
    let lab = Lab::new(4096);
    type Grow<'a> = &'a dyn Fn(&Arc<Inode>);
    let grow: [(&[u8], Grow<'_>); 7] = [
        (b"truncate", &|file| resize(&lab, file, 20_000)),
        (b"write behind", &|file| write(&lab, file, 9000, b"later")),
        (b"write far behind", &|file| write(&lab, file, 8192, &pattern(1 << 17))),
        (b"write beside", &|file| write(&lab, file, 6000, b"later")),
        (b"allocate", &|file| {
            lab.op(|op| lab.tree.allocate(op, file, 4096, 9000, false)).unwrap();
        }),
        (b"zero", &|file| {
            lab.op(|op| lab.tree.zero_range(op, file, 8192, 9000, false)).unwrap();
        }),
        (b"clone", &|file| {
            let source = cut_by_linux(&lab, b"source");
            let source = Source { tree: &lab.tree, inode: &source, offset: 0, parts: PARTS_MAX };
            lab.op(|op| lab.tree.clone_range(op, source, file, 8192, 0)).unwrap();
        }),
    ];
    for (name, grow) in grow {
        let file = cut_by_linux(&lab, name);
        grow(&file);
        let name = String::from_utf8_lossy(name);
        let found = read(&lab, &file);
        assert!(found.len() > 6000, "{name}");
        assert_eq!(found[..5000], pattern(5000), "{name}");
        assert!(found[5000..6000].iter().all(|byte| *byte == 0), "{name}");
        if &*name == "clone" {
            resize(&lab, &file, 16_384);
            assert!(read(&lab, &file)[13_192..].iter().all(|byte| *byte == 0), "{name}");
        }
    }
    lab.commit();
    Facts::of(&lab.view()).check();
}

#[test]
fn a_clone_that_is_refused_leaves_its_source_alone() {
    let lab = Lab::new(4096);
    let (a, b) = (file(&lab, b"a"), file(&lab, b"b"));
    let data = pattern(5000);
    write(&lab, &a, 0, &data);
    let source = Source { tree: &lab.tree, inode: &a, offset: 0, parts: PARTS_MAX };
    let refused = lab.op(|op| lab.tree.clone_range(op, source, &b, 100, 0));
    assert_eq!(errno(refused), Some(Errno::INVAL));
    let extents = lab.op(|op| lab.tree.extents(op, &a, 0, 8192)).unwrap();
    let whole = |number: u64| number.is_multiple_of(4096);
    assert!(extents.iter().all(|it| whole(it.start) && whole(it.len)), "{extents:?}");
    lab.commit();
    Facts::of(&lab.view()).check();
    assert_eq!(read(&lab, &a), data);
}
