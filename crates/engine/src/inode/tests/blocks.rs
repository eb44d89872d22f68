//! What a file takes (`st_blocks`) is right at once: what pending changes replace does not count beside them.

use buttress_ondisk::SECTOR;
use buttress_ondisk::item::inode_flags;

use super::*;
use crate::inode::SetAttributes;
use crate::inode::file::FILE_END;

const MIB: u64 = 1 << 20;

fn file(lab: &Lab, name: &[u8]) -> Arc<Inode> {
    let file = lab.create(&lab.top(), name, NewKind::File).unwrap();
    let flags = Some(inode_flags::NODATASUM);
    let set = SetAttributes { flags, ..SetAttributes::default() };
    lab.op(|op| lab.tree.set_attributes(op, &file, &set)).unwrap();
    file
}

fn write(lab: &Lab, file: &Arc<Inode>, offset: u64, len: u64) {
    lab.op(|op| lab.tree.write(op, file, offset, &vec![7; len as usize])).unwrap();
}

fn resize(lab: &Lab, file: &Arc<Inode>, size: u64) {
    let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
    lab.op(|op| lab.tree.set_attributes(op, file, &set)).unwrap();
}

fn allocate(lab: &Lab, file: &Arc<Inode>, offset: u64, len: u64, keep_size: bool) {
    lab.op(|op| lab.tree.allocate(op, file, offset, len, keep_size)).unwrap();
}

fn shown(lab: &Lab, file: &Inode) -> (u64, bool) {
    let attributes = lab.op(|op| lab.tree.attributes(op.core, file));
    (attributes.nbytes.div_ceil(SECTOR) * SECTOR, attributes.is_settled)
}

/// What the file has in extents, in memory and in its item, in whole sectors.
fn taken(lab: &Lab, file: &Inode) -> u64 {
    let mappings = lab.op(|op| lab.tree.extents(op, file, 0, FILE_END)).unwrap();
    mappings.iter().map(|it| it.len.div_ceil(SECTOR) * SECTOR).sum()
}

fn is_right(lab: &Lab, file: &Inode, expect: u64, what: &str) {
    assert_eq!(taken(lab, file), expect, "{what}: what it has");
    assert_eq!(shown(lab, file), (expect, true), "{what}");
}

/// Says `look` at each stage of a commit.
fn commit_slowly(lab: &Lab, look: &mut dyn FnMut(&str)) {
    let transid = lab.freeze();
    look("frozen");
    lab.tree.prepare(&lab.core, transid).unwrap();
    look("prepared");
    let root = lab.emit_prepared(transid);
    look("emitted");
    lab.tree.publish(root);
    look("published");
    lab.tree.settle();
    look("settled");
}

#[test]
fn reserved_space_that_is_written_counts_once() {
    let lab = Lab::new(4096);
    let file = file(&lab, b"file");
    allocate(&lab, &file, 0, 20 * MIB, false);
    is_right(&lab, &file, 20 * MIB, "reserved");
    lab.commit();
    for at in 0..160 {
        write(&lab, &file, at << 17, 1 << 17);
        is_right(&lab, &file, 20 * MIB, "written over");
    }
    let mut look = |stage: &str| is_right(&lab, &file, 20 * MIB, stage);
    commit_slowly(&lab, &mut look);
}

#[test]
fn a_file_that_is_cut_takes_less_at_once() {
    let lab = Lab::new(4096);
    let file = file(&lab, b"file");
    write(&lab, &file, 0, 50_000);
    lab.commit();
    resize(&lab, &file, 0);
    is_right(&lab, &file, 0, "empty");
    allocate(&lab, &file, 0, 4096, false);
    is_right(&lab, &file, 4096, "a sector");
    resize(&lab, &file, 0);
    is_right(&lab, &file, 0, "empty again");
    write(&lab, &file, MIB, 1 << 16);
    is_right(&lab, &file, 1 << 16, "far away");
    lab.commit();
    is_right(&lab, &file, 1 << 16, "committed");
    resize(&lab, &file, 600_000);
    is_right(&lab, &file, 0, "cut");
    commit_slowly(&lab, &mut |stage| is_right(&lab, &file, 0, stage));
}

#[test]
fn what_is_written_again_and_again_counts_once() {
    let mut lab = Lab::new(4096);
    let file = file(&lab, b"file");
    write(&lab, &file, 0, MIB);
    for round in 0..3 {
        lab.commit();
        write(&lab, &file, 0, MIB);
        is_right(&lab, &file, MIB, "written again");
        let transid = lab.freeze();
        for at in [0, 5 * 4096, 6 * 4096 + 7, MIB - 4096, 6 * 4096] {
            write(&lab, &file, at, 4096);
            is_right(&lab, &file, MIB, "over what is frozen");
        }
        let root = lab.emit(transid);
        is_right(&lab, &file, MIB, "over what is prepared");
        write(&lab, &file, 100_000, 300_000);
        is_right(&lab, &file, MIB, "more of it");
        lab.tree.publish(root);
        is_right(&lab, &file, MIB, "published");
        if round == 1 {
            resize(&lab, &file, 10_000);
            is_right(&lab, &file, 12_288, "cut");
        }
        lab.tree.settle();
        write(&lab, &file, 0, MIB);
        is_right(&lab, &file, MIB, "and once more");
    }
    lab.commit();
    lab.reopen();
    is_right(&lab, &lab.get(file.ino), MIB, "read again");
}

#[test]
fn a_file_in_its_item_counts_once() {
    let lab = Lab::new(4096);
    let file = file(&lab, b"file");
    write(&lab, &file, 0, 10);
    is_right(&lab, &file, 4096, "new");
    lab.commit();
    write(&lab, &file, 5, 10);
    commit_slowly(&lab, &mut |stage| is_right(&lab, &file, 4096, stage));
    write(&lab, &file, 2, 3);
    let transid = lab.freeze();
    write(&lab, &file, 1, 20_000);
    is_right(&lab, &file, 20_480, "over what is buffered and will be in an item");
    let root = lab.emit(transid);
    is_right(&lab, &file, 20_480, "over what is in an item");
    lab.tree.publish(root);
    lab.tree.settle();
    is_right(&lab, &file, 20_480, "all of it");
    resize(&lab, &file, 0);
    is_right(&lab, &file, 0, "nothing");
}

/// Writes each second sector.
fn scatter(lab: &Lab, file: &Arc<Inode>, sectors: u64) {
    (0..sectors).for_each(|at| write(lab, file, at * 2 * SECTOR, SECTOR));
}

#[test]
fn of_many_extents_some_are_looked_at_each_time() {
    let lab = Lab::new(4096);
    let file = file(&lab, b"file");
    scatter(&lab, &file, 700);
    lab.commit();
    write(&lab, &file, 0, 6 * MIB);
    let mut last = u64::MAX;
    let questions = (1..).find(|_| {
        let (now, is_settled) = shown(&lab, &file);
        assert!(now <= last && now >= 6 * MIB, "{now} after {last}");
        last = now;
        is_settled
    });
    assert_eq!(questions, Some(1400 / 128 + 1));
    is_right(&lab, &file, 6 * MIB, "all were looked at");
    resize(&lab, &file, MIB);
    is_right(&lab, &file, MIB, "nothing of what was replaced is looked at again");
}

#[test]
fn where_too_much_is_scattered_the_size_bounds_what_is_shown() {
    let lab = Lab::new(4096);
    let file = file(&lab, b"file");
    let sectors = 3000;
    write(&lab, &file, 0, sectors * 2 * SECTOR);
    lab.commit();
    scatter(&lab, &file, sectors);
    assert_eq!(shown(&lab, &file), (sectors * 2 * SECTOR, false));
    resize(&lab, &file, 10_000);
    is_right(&lab, &file, 12_288, "few ranges are left");
    write(&lab, &file, MIB, SECTOR);
    is_right(&lab, &file, 12_288 + SECTOR, "one more");
    resize(&lab, &file, 0);
    is_right(&lab, &file, 0, "none");
    lab.commit();
    is_right(&lab, &file, 0, "committed");
}

/// Random numbers that a seed repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn step(lab: &Lab, file: &Arc<Inode>, random: &mut Random) {
    let offset = match random.below(3) {
        0 => random.below(3000),
        1 => random.below(128) * SECTOR,
        _ => random.below(MIB),
    };
    let most = [3000, 20_000, 300_000][random.below(3) as usize];
    let len = 1 + random.below(most);
    match random.below(8) {
        0..=3 => write(lab, file, offset, len),
        4 => resize(lab, file, if random.below(3) == 0 { 0 } else { offset }),
        5 => lab.op(|op| lab.tree.punch(op, file, offset, len)).unwrap(),
        6 => {
            lab.op(|op| lab.tree.zero_range(op, file, offset, len, len.is_multiple_of(2))).unwrap()
        }
        _ => allocate(lab, file, offset, len, len.is_multiple_of(2)),
    }
}

#[test]
fn what_is_shown_is_what_a_commit_leaves() {
    for seed in 1..12_u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut lab = Lab::new(4096);
        let mut one = file(&lab, b"file");
        for round in 0..25 {
            let what = format!("seed {seed}, round {round}");
            for _ in 0..random.below(8) {
                step(&lab, &one, &mut random);
                // Nobody looks each time.
                if random.below(3) > 0 {
                    is_right(&lab, &one, taken(&lab, &one), &what);
                }
            }
            commit_slowly(&lab, &mut |stage| {
                is_right(&lab, &one, taken(&lab, &one), &format!("{what}, {stage}"));
                for _ in 0..random.below(3) {
                    step(&lab, &one, &mut random);
                }
                if random.below(2) == 0 {
                    is_right(&lab, &one, taken(&lab, &one), &format!("{what}, after {stage}"));
                }
            });
            let before = taken(&lab, &one);
            lab.commit();
            is_right(&lab, &one, before, &what);
            if random.below(4) == 0 {
                lab.reopen();
                one = lab.get(one.ino);
                is_right(&lab, &one, before, &what);
            }
        }
    }
}
