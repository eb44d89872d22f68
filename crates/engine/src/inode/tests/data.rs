//! Files' data through operations and commits. Checksums are left out: no checksum tree is committed here.

use buttress_ondisk::item::inode_flags;

use super::facts::Facts;
use super::*;
use crate::inode::{SetAttributes, Source};

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
    let len = lab.op(|op| lab.tree.read(op, file, 0, &mut buf)).unwrap();
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
    assert_eq!(lab.tree.attributes(&file).nbytes, 303_104);
    let transid = lab.freeze();
    write(&lab, &file, 100_000, b"later");
    model[100_000..100_005].copy_from_slice(b"later");
    assert_eq!(read(&lab, &file), model);
    let root = lab.emit(transid);
    assert_eq!(read(&lab, &file), model);
    resize(&lab, &file, 150_000);
    model.truncate(150_000);
    lab.tree.published(root);
    assert_eq!(read(&lab, &file), model);
    lab.commit();
    assert_eq!(read(&lab, &file), model);
    lab.reopen();
    let file = lab.get(file.ino);
    assert_eq!(read(&lab, &file), model);
    let attributes = lab.tree.attributes(&file);
    assert_eq!((attributes.size, attributes.nbytes), (150_000, 151_552));
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
    assert_eq!(lab.tree.attributes(&file).nbytes, 10);
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
    let source = Source { tree: &lab.tree, inode: &a, offset: 4096 };
    let cloned = lab.op(|op| lab.tree.clone_range(op, source, &b, 0, 0)).unwrap();
    assert_eq!(cloned, 131_072 - 4096);
    assert_eq!(read(&lab, &b), &data[4096..]);
    lab.commit();
    write(&lab, &a, 4096, b"changed");
    assert_eq!(read(&lab, &b), &data[4096..]);
    lab.commit();
    assert_eq!(read(&lab, &b), &data[4096..]);
    let overlap = Source { tree: &lab.tree, inode: &a, offset: 0 };
    let refused = lab.op(|op| lab.tree.clone_range(op, overlap, &a, 4096, 8192));
    assert_eq!(errno(refused), Some(Errno::INVAL));
}
