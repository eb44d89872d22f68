//! Who shares a commit, under a scheduler that tries many orders of their steps.
//!
//! Each thread writes and then asks for a commit or for a log, as an fsync does. Whatever it had written by then must be durable when it is
//! answered, whoever made the commit, and nobody may wait for ever. No log is written beside a commit that is not durable, nor two at once.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Transactions;
use crate::sync::Mutex;

const THREADS: u32 = 3;
const ROUNDS: u32 = 3;

/// What stands for a filesystem: what the running transaction has, and what is durable.
struct Shared {
    txn: Transactions,
    running: Mutex<BTreeSet<u32>>,
    durable: Mutex<BTreeSet<u32>>,
    /// Somebody writes a log, or a commit is not durable yet.
    busy: Mutex<bool>,
}

impl Shared {
    fn alone(&self, work: impl FnOnce()) {
        assert!(!std::mem::replace(&mut *self.busy.lock(), true));
        work();
        *self.busy.lock() = false;
    }
}

/// As [`super::commit`] does it. Whether this thread had to commit itself.
fn commit(shared: &Shared) -> bool {
    let covered = shared.txn.running();
    let Some(_turn) = shared.txn.begin_commit(Some(covered)) else { return false };
    commit_alone(shared);
    true
}

/// As [`super::commit_covering`] does it.
fn make_durable(shared: &Shared) -> bool {
    let covered = shared.txn.running();
    let Some(_turn) = shared.txn.begin_to_make_durable(covered) else { return false };
    commit_alone(shared);
    true
}

fn commit_alone(shared: &Shared) {
    let mut frozen = BTreeSet::new();
    let mut transid = 0;
    shared.alone(|| {
        let freeze = |_| std::mem::swap(&mut frozen, &mut *shared.running.lock());
        transid = shared.txn.freeze(freeze).unwrap();
        shuttle::thread::yield_now();
        shared.durable.lock().append(&mut frozen);
    });
    shared.txn.durable(transid);
    shuttle::thread::yield_now();
}

/// A log has all that the running transaction has.
fn log(shared: &Shared) {
    let changed_in = shared.txn.running();
    let Some(_turn) = shared.txn.begin_log(|durable| durable >= changed_in) else { return };
    shared.alone(|| {
        let logged = shared.running.lock().clone();
        shuttle::thread::yield_now();
        shared.durable.lock().extend(logged);
    });
}

fn writes(shared: &Shared, thread: u32) -> u32 {
    let mut commits = 0;
    for round in 0..ROUNDS {
        let written = thread * ROUNDS + round;
        {
            let _gate = shared.txn.enter();
            shared.running.lock().insert(written);
        }
        match (thread + round) % 4 {
            0 => log(shared),
            1 => commits += u32::from(make_durable(shared)),
            _ => commits += u32::from(commit(shared)),
        }
        assert!(shared.durable.lock().contains(&written));
    }
    commits
}

#[test]
fn what_was_written_before_is_durable_after_in_every_schedule() {
    let run = || {
        let (running, durable) = (Mutex::default(), Mutex::default());
        let (txn, busy) = (Transactions::new(7), Mutex::default());
        let shared = Arc::new(Shared { txn, running, durable, busy });
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let shared = shared.clone();
                shuttle::thread::spawn(move || writes(&shared, thread))
            })
            .collect();
        let commits: u32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert!((1..=ROUNDS * THREADS).contains(&commits), "{commits}");
        assert_eq!(shared.txn.committed(), 7 + u64::from(commits));
    };
    shuttle::check_random(run, 2000);
    shuttle::check_pct(run, 1000, 3);
}
