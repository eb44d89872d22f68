//! Layers that a commit leaves where they were made: a crowd of small ones, and what may happen to one meanwhile.

use super::facts::Facts;
use super::*;
use crate::inode::{Location, LogExtent, SetAttributes};

fn chmod(lab: &Lab, inode: &Arc<Inode>, mode: u32) {
    let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
    lab.op(|op| lab.tree.set_attributes(op, inode, &set)).unwrap();
}

fn permissions(lab: &Lab, ino: u64) -> u32 {
    Facts::of(&lab.view()).inodes[&ino].mode.get() & 0o7777
}

#[test]
fn who_has_an_inode_at_the_end_of_its_commit_goes_on_with_the_same() {
    let lab = Lab::new(4096);
    lab.tree.keep_about(0);
    let top = lab.top();
    let name = |at: u32| format!("file{at}").into_bytes();
    let made: Vec<Arc<Inode>> =
        (0..500).map(|at| lab.create(&top, &name(at), NewKind::File).unwrap()).collect();
    let held: Vec<Arc<Inode>> = made.iter().step_by(7).cloned().collect();
    lab.tree.hold(&made[1]).unwrap();
    let numbers: Vec<u64> = made.iter().map(|inode| inode.ino).collect();
    drop(made);
    let transid = lab.freeze();
    let root = lab.emit(transid);
    chmod(&lab, &held[3], 0o600);
    lab.tree.publish(root);
    lab.tree.settle();
    assert!(lab.tree.loaded() < 100, "{} are still in memory", lab.tree.loaded());
    for inode in &held {
        assert!(Arc::ptr_eq(inode, &lab.get(inode.ino)), "inode {} is there twice", inode.ino);
        chmod(&lab, inode, 0o640);
    }
    for (at, ino) in (0..).zip(&numbers) {
        assert_eq!(permissions(&lab, *ino), 0o644);
        let named = lab.op(|op| lab.tree.lookup(op, &top, &name(at))).unwrap();
        assert_eq!(named.location, Location::Inode(*ino));
    }
    // It is still held: it lives on without its name.
    lab.op(|op| lab.tree.unlink(op, &top, &name(1))).unwrap();
    lab.commit();
    assert_eq!(lab.tree.attributes(&lab.core, &lab.get(numbers[1])).nlink, 0);
    assert!(held.iter().all(|inode| permissions(&lab, inode.ino) == 0o640));
    Facts::of(&lab.view()).check();
}

#[test]
fn a_change_after_a_commit_is_in_the_next_though_a_log_was_faster_than_its_end() {
    let lab = Lab::new(4096);
    let file = lab.create(&lab.top(), b"file", NewKind::File).unwrap();
    let transid = lab.freeze();
    let root = lab.emit(transid);
    chmod(&lab, &file, 0o600);
    lab.tree.publish(root);
    lab.op(|op| lab.tree.log(op, &file, LogExtent::Whole)).unwrap();
    lab.tree.settle();
    assert_eq!(permissions(&lab, file.ino), 0o644);
    lab.commit();
    assert_eq!(permissions(&lab, file.ino), 0o600);
}

#[test]
fn those_that_were_made_last_stay_in_memory() {
    let lab = Lab::new(4096);
    lab.tree.keep_about(640);
    let top = lab.top();
    for round in 0..4 {
        let make = |at: u32| {
            let name = format!("{round}-{at}").into_bytes();
            lab.create(&top, &name, NewKind::File).unwrap().ino
        };
        let made: Vec<u64> = (0..2000).map(make).collect();
        lab.commit();
        let there = |ino: &&u64| lab.tree.is_loaded(**ino);
        assert!(lab.tree.loaded() <= 640 + 64, "{}", lab.tree.loaded());
        let stay = made.iter().rev().take(320).filter(there).count();
        assert_eq!(stay, 320, "round {round}");
    }
}
