//! Many threads at once: nothing is given to two of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_ondisk::SECTOR;
use parking_lot::Mutex;

use super::super::{Class, Need, Range, Space};
use super::{Disk, NODE, Random, free_of};

/// Who has what; two owners of a byte are an error at once.
#[derive(Default)]
struct Owned(Mutex<BTreeMap<u64, u64>>);

impl Owned {
    fn add(&self, range: Range) {
        let mut map = self.0.lock();
        let before = map.range(..range.end()).next_back();
        assert!(before.is_none_or(|(s, l)| s + l <= range.start), "{range:?} is given twice");
        map.insert(range.start, range.len);
    }

    fn remove(&self, range: Range) {
        assert_eq!(self.0.lock().remove(&range.start), Some(range.len));
    }
}

fn work(space: &Space, owned: &Owned, done: &Mutex<Vec<Range>>, seed: u64) {
    let mut random = Random(seed);
    let mut mine = Vec::new();
    for _ in 0..1500 {
        let want = (1 + random.below(60)) * SECTOR;
        if random.below(3) > 0 && space.reserve(Need { data: want, ..Need::default() }).is_ok() {
            if let Some(run) = space.allocate_data(SECTOR, want) {
                owned.add(run);
                mine.push(run);
            }
        } else if let Some(run) = random.take(&mut mine) {
            owned.remove(run);
            space.give_back(run).unwrap();
        }
    }
    done.lock().append(&mut mine);
}

#[test]
fn threads_and_a_commit_share_space() {
    share_space(None);
}

/// The same when all that may leave memory does so at once.
#[test]
fn threads_and_a_commit_share_space_that_leaves_and_comes_back() {
    share_space(Some(0));
}

fn share_space(share: Option<u64>) {
    let mut disk = Disk { share, ..Disk::empty(600 << 20) };
    let space = disk.load(NODE, true).unwrap();
    let (owned, done) = (Owned::default(), Mutex::default());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|seed| {
                scope.spawn({
                    let (s, o, d) = (&space, &owned, &done);
                    move || work(s, o, d, seed)
                })
            })
            .collect();
        let (space, owned, disk, stop) = (&space, &owned, &mut disk, &stop);
        let commits = scope.spawn(move || {
            let mut blocks: Vec<u64> = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let new = (0..20).map(|_| space.allocate_block(Class::Metadata).unwrap());
                let new: Vec<u64> = new.collect();
                new.iter().for_each(|&at| owned.add(Range::new(at, NODE)));
                for at in std::mem::replace(&mut blocks, new) {
                    owned.remove(Range::new(at, NODE));
                    space.free(Range::new(at, NODE)).unwrap();
                }
                disk.settle(space);
                space.committed();
                space.freeze();
            }
        });
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        commits.join().unwrap();
    });
    for run in done.into_inner() {
        space.account_new(run).unwrap();
    }
    disk.settle(&space);
    let again = {
        let used: u64 = owned.0.lock().values().sum();
        assert_eq!(space.bytes_used(), used);
        disk.load(NODE, true).unwrap()
    };
    assert_eq!(free_of(&again), free_of(&space));
    assert!(share.is_none() || space.reads() > 0);
}
