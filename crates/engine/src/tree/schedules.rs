//! Readers and commits under a scheduler that tries many orders of their steps.
//!
//! One thread commits: it takes the gate alone, merges, reuses addresses as the filesystem does (what commit N freed is taken
//! again from freeze N + 1 on), and publishes. The others hold the gate, read whatever version is published, and must find
//! exactly what that version holds, from its first item to its last.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use buttress_ondisk::Key;

use super::tests::{Fake, Rng, blocks};
use super::{Blocks, Merge, Root, View};
use crate::sync::Mutex;
use crate::txn::Transactions;

const COMMITS: u64 = 4;
const READERS: usize = 2;

struct Shared {
    blocks: Blocks,
    gate: Transactions,
    /// The published version and what it holds.
    published: Mutex<(Root, BTreeMap<Key, u64>)>,
}

fn change(merge: &mut Merge<'_>, model: &mut BTreeMap<Key, u64>, rng: &mut Rng) {
    let keys: BTreeSet<Key> = (0..6).map(|_| Key::new(rng.next(400), 1, 0)).collect();
    for key in keys {
        let value = rng.next(u64::MAX >> 32);
        if rng.next(3) == 0 {
            merge.delete(&key).unwrap();
            model.remove(&key);
        } else {
            merge.put(key, &value.to_le_bytes().repeat(16)).unwrap();
            model.insert(key, value);
        }
    }
}

fn commits(shared: &Shared, mut next: u64, mut live: BTreeSet<u64>, seed: u64) {
    let mut rng = Rng(seed);
    let (mut reusable, mut freed) = (Vec::new(), Vec::new());
    for _ in 0..COMMITS {
        let transid = shared.gate.freeze(|_| reusable.append(&mut freed)).unwrap();
        let (root, mut model) = shared.published.lock().clone();
        let before = live.clone();
        let mut fake = Fake {
            blocks: &shared.blocks,
            generation: transid,
            next: &mut next,
            live: &mut live,
            reusable: std::mem::take(&mut reusable),
            placed: 0,
        };
        let mut merge = Merge::new(&shared.blocks, 5, Some(root), &mut fake).unwrap();
        change(&mut merge, &mut model, &mut rng);
        let root = merge.finish().unwrap();
        reusable = fake.reusable;
        freed.extend(before.difference(&live));
        *shared.published.lock() = (root, model);
    }
}

fn reads(shared: &Shared) {
    for _ in 0..COMMITS {
        let _gate = shared.gate.enter();
        let (root, model) = shared.published.lock().clone();
        shuttle::thread::yield_now();
        let mut cursor = View::new(&shared.blocks, 5, root).range(Key::MIN, Key::MAX);
        let mut found = BTreeMap::new();
        while let Some(item) = cursor.next().unwrap() {
            let word = item.data()[..8].try_into().unwrap();
            found.insert(item.key(), u64::from_le_bytes(word));
            shuttle::thread::yield_now();
        }
        assert_eq!(found, model);
    }
}

#[test]
fn readers_see_whole_versions_in_every_schedule() {
    let run = || {
        let blocks = blocks();
        let (mut next, mut live) = (1 << 40, BTreeSet::new());
        let mut fake = Fake {
            blocks: &blocks,
            generation: 1,
            next: &mut next,
            live: &mut live,
            reusable: Vec::new(),
            placed: 0,
        };
        let mut model = BTreeMap::new();
        let mut merge = Merge::new(&blocks, 5, None, &mut fake).unwrap();
        for at in 0..60 {
            merge.put(Key::new(at * 7, 1, 0), &at.to_le_bytes().repeat(16)).unwrap();
            model.insert(Key::new(at * 7, 1, 0), at);
        }
        let root = merge.finish().unwrap();
        let published = Mutex::new((root, model));
        let shared = Arc::new(Shared { blocks, gate: Transactions::new(1), published });
        let threads: Vec<_> = (0..READERS)
            .map(|_| {
                let shared = shared.clone();
                shuttle::thread::spawn(move || reads(&shared))
            })
            .collect();
        commits(&shared, next, live, 42);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    };
    shuttle::check_random(run, 300);
    shuttle::check_pct(run, 150, 3);
}
