//! Threads that share directories while commits go on: nothing waits for ever, and every commit is whole.

use std::sync::atomic::AtomicBool;

use super::facts::Facts;
use super::model::Random;
use super::*;
use crate::inode::{Location, Rename};

/// Errors that races between the threads may lead to.
const RACES: [Errno; 6] =
    [Errno::NOENT, Errno::EXIST, Errno::NOTEMPTY, Errno::INVAL, Errno::ISDIR, Errno::NOTDIR];

fn fine<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            assert!(RACES.contains(&error.errno()), "{error}");
            None
        }
    }
}

/// A directory that is there, at most three levels down.
fn somewhere(lab: &Lab, op: &Op<'_>, random: &mut Random) -> Arc<Inode> {
    let mut dir = lab.tree.get(op, TOP).unwrap();
    for _ in 0..random.below(4) {
        let name = [b'a' + random.below(5) as u8];
        let Some(entry) = fine(lab.tree.lookup(op, &dir, &name)) else { break };
        let Location::Inode(ino) = entry.location else { break };
        let Some(inode) = fine(lab.tree.get(op, ino)) else { break };
        if !lab.tree.attributes(&lab.core, &inode).is_directory() {
            break;
        }
        dir = inode;
    }
    dir
}

fn work(lab: &Lab, seed: u64, steps: usize) {
    let mut random = Random(seed);
    for _ in 0..steps {
        lab.op(|op| {
            let (from, to) = (somewhere(lab, op, &mut random), somewhere(lab, op, &mut random));
            let (a, b) = ([b'a' + random.below(5) as u8], [b'a' + random.below(5) as u8]);
            let kind = if random.below(2) == 0 { NewKind::Directory } else { NewKind::File };
            let new = NewInode { kind, permissions: 0o755, uid: 0, gid: 0 };
            match random.below(8) {
                0..3 => drop(fine(lab.tree.create(op, &from, &a, &new))),
                3 => drop(fine(lab.tree.unlink(op, &from, &a))),
                4 => drop(fine(lab.tree.rmdir(op, &from, &a))),
                5 => drop(fine(lab.tree.rename(op, (&from, &a), (&to, &b), Rename::Exchange))),
                _ => drop(fine(lab.tree.rename(op, (&from, &a), (&to, &b), Rename::Replace))),
            }
        });
    }
}

#[test]
fn threads_and_commits_together() {
    let lab = Lab::new(4096);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..5u64)
            .map(|seed| {
                let lab = &lab;
                scope.spawn(move || work(lab, seed * 7919, 2000))
            })
            .collect();
        let committer = scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                lab.commit();
                Facts::of(&lab.view()).check();
            }
        });
        let failed = workers.into_iter().filter_map(|worker| worker.join().err()).count();
        done.store(true, Ordering::Release);
        committer.join().unwrap();
        assert_eq!(failed, 0);
    });
    lab.commit();
    Facts::of(&lab.view()).check();
}
