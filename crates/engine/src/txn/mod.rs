//! Transactions: operations join the running one, a commit makes it durable.
//!
//! An operation holds the gate shared for as long as it runs ([`Transactions::join`]); there is one for each processor, and a thread holds its own. A commit takes them
//! all, alone, for a moment, the *freeze*: the running transaction becomes the committing one and a new one begins. From then on the
//! operations of the next transaction run beside the commit.
//!
//! Whatever an operation could be reading is older than the gate it holds, so space that commit N freed may be reused
//! once freeze N + 1 has had the gate to itself.
//!
//! Crash argument: a commit writes new blocks only to space that the last superblock does not reach, makes them durable
//! with a barrier, and only then writes superblocks. A crash leaves the last commit, or this one whole. A commit that
//! fails latches the first cause ([`Transactions::abort`]); nothing is written after it.
//!
//! A panic is a failure, too. A commit that it ends is an abort (`Guard`); so is an operation, which may have changed half
//! of what it was about: it aborts before it lets go of the gate, and no transaction is frozen after that. One that only
//! reads leaves nothing half done.

mod commit;
mod core;
mod csums;
mod early;
mod exchange;
mod log;
#[cfg(all(test, feature = "shuttle"))]
mod schedules;
mod settle;
mod shape;
mod share;
mod superblock;
mod waiting;

pub use self::commit::{
    Commit, Participant, Upkeep, UuidChange, commit, commit_covering, commit_for_space, relocate,
    settle_freed,
};
pub use self::core::{Core, Features, Roots, root_of};
pub use self::csums::CsumLog;
pub use self::exchange::TreeCommit;
pub use self::log::{LogSpace, LogTree, LogTurn};
pub use self::settle::{Relocated, Relocation, TooSmall, new_root_item};
pub use self::share::{Share, Taken};
pub use self::waiting::{
    CHANGE_BYTES, EXTENT_BYTES, SMALL_CHANGE_BYTES, Urgency, Waiting, WaitingMax,
};

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use crate::env::Time;
use crate::error::{Errno, Error, Result};
use crate::quota::Charge;
use crate::refs::RefLog;
use crate::space::{NODES_ABOVE, Need};
use crate::stripes::Striped;
use crate::sync::{Condvar, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, wait};
use crate::tree::Merge;

/// Which transaction runs, and who may join it.
#[derive(Debug)]
pub struct Transactions {
    gate: Striped<RwLock<()>>,
    /// Somebody waits for the gate, or has it: who comes waits at the door, so that he waits for those who are under way and no others.
    is_closing: CachePadded<AtomicBool>,
    door: RwLock<()>,
    running: AtomicU64,
    committed: AtomicU64,
    turn: Mutex<Turn>,
    /// Notified whenever a commit is durable or has ended, and when a log is written.
    ended: Condvar,
    aborted: OnceLock<Arc<str>>,
    /// Since when the times below are counted.
    opened: Instant,
    /// When somebody last asked for something to be durable, in milliseconds; 0: never.
    asked: AtomicU64,
    /// Since when somebody waits, or has waited, for who keeps others out last; 0: nobody has.
    first_held_up: AtomicU64,
}

/// Who has asked for something to be durable is expected to do so again, for so long.
const ASKS_AGAIN: u64 = 1000;

/// Whose turn it is to commit or to write a log: one at a time.
#[derive(Debug, Default)]
struct Turn {
    /// Somebody commits, or writes a log.
    taken: bool,
    /// The last transaction is durable and its trees are there for all to read; whoever has committed it drops its layers. No commit
    /// begins, but a log may be written.
    settling: bool,
    /// The last transaction that is durable.
    durable: u64,
    /// The last transaction of which the commit has ended, and well.
    ended: u64,
    /// How often it was taken.
    count: u64,
    /// How many wait for it, besides who drops subvolumes.
    waiting: usize,
    /// Who drops subvolumes has let somebody go first: the next one is his.
    promised: bool,
}

/// The turn of whoever commits; passed on when it is dropped.
#[derive(Debug)]
struct Committing<'a> {
    txn: &'a Transactions,
}

impl Drop for Committing<'_> {
    fn drop(&mut self) {
        let mut turn = self.txn.turn.lock();
        // Who has settled has passed it on already.
        turn.taken &= turn.settling;
        (turn.settling, turn.ended) = (false, turn.durable);
        drop(turn);
        self.txn.ended.notify_all();
    }
}

impl Committing<'_> {
    /// What follows a commit keeps everybody out: it waits until no log is written, and none is from here on.
    fn take_back(&self) {
        let mut turn = self.txn.turn.lock();
        while turn.taken && turn.settling {
            turn = wait(&self.txn.ended, turn);
        }
        (turn.taken, turn.settling) = (true, false);
    }
}

/// The turn of whoever writes a log; passed on when it is dropped.
#[derive(Debug)]
struct Logging<'a> {
    txn: &'a Transactions,
}

impl Drop for Logging<'_> {
    fn drop(&mut self) {
        self.txn.turn.lock().taken = false;
        self.txn.ended.notify_all();
    }
}

/// An operation that has joined the running transaction.
#[derive(Debug)]
pub struct Op<'a> {
    /// The filesystem's shared parts.
    pub core: &'a Core,
    /// The running transaction.
    pub transid: u64,
    /// When the operation started.
    pub now: Time,
    /// Whether leaves may be shared with snapshots: where they come to be while it is under way, those have what it does.
    has_shared: bool,
    /// Whether a panic from here on is an abort: not of what only reads, nor where the thread was on its way out of one already.
    guarded: bool,
    /// Bytes that it leaves in memory besides what every operation does.
    left: AtomicU64,
    _gate: RwLockReadGuard<'a, ()>,
}

impl Drop for Op<'_> {
    fn drop(&mut self) {
        if self.guarded && std::thread::panicking() {
            self.core.txn.abort_for("an operation panicked");
        }
    }
}

/// The gate, held alone.
#[derive(Debug)]
struct Shut<'a> {
    txn: &'a Transactions,
    _gate: Vec<RwLockWriteGuard<'a, ()>>,
    _door: RwLockWriteGuard<'a, ()>,
}

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        self.txn.is_closing.store(false, Ordering::Relaxed);
    }
}

/// Aborts when it is dropped, unless it was disarmed before.
#[derive(Debug)]
struct Guard<'a> {
    txn: &'a Transactions,
    what: &'static str,
}

impl Guard<'_> {
    /// All that was begun is done.
    fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.txn.abort_for(self.what);
    }
}

/// Why a commit failed, and what to do about it where that is known.
fn with_advice(cause: &Error) -> String {
    let advice = match cause {
        Error::Corrupt(_) | Error::Inconsistent { .. } => {
            "; `buttress check` tells what is damaged"
        }
        _ => "",
    };
    format!("{cause}{advice}")
}

impl Op<'_> {
    /// A step is taken, see [`crate::Env::watched`].
    pub(crate) fn step(&self, what: &'static str) {
        self.core.env.step(what);
    }

    /// It leaves so many extents that a file gains or loses to be committed. What changes only a few need not say so.
    pub(crate) fn leave_extents(&self, count: usize) {
        self.leave_bytes((count as u64).saturating_mul(EXTENT_BYTES));
    }

    /// It leaves so many bytes in memory besides.
    pub(crate) fn leave_bytes(&self, bytes: u64) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Charges so many bytes more to the groups of a subvolume: EDQUOT where one of them has no room.
    pub(crate) fn charge(&self, subvolume: u64, bytes: u64) -> Result<()> {
        self.charge_all(subvolume, Charge::new(bytes))
    }

    /// The same of what another subvolume has already.
    pub(crate) fn charge_shared(&self, subvolume: u64, bytes: u64, of: u64) -> Result<()> {
        let charged = self.core.charges.charge_shared(subvolume, bytes, of);
        charged.map_err(|_| Error::User(Errno::DQUOT))
    }

    fn charge_all(&self, subvolume: u64, charge: Charge) -> Result<()> {
        self.core.charges.charge(subvolume, charge).map_err(|_| Error::User(Errno::DQUOT))
    }

    /// Charges what it may need.
    pub(crate) fn charge_need(&self, need: Need) -> Result<()> {
        self.charge_all(need.charged_to, self.charged(need))
    }

    /// By what the groups of its subvolume may grow: its data, and each leaf that it adds to may split. Where snapshots may have the leaves that it changes, or simple
    /// quotas know nothing of them yet, it copies them, and the nodes above. Who gives space back is charged for data that it writes anew, parts of sectors, and nothing else.
    pub(crate) fn charged(&self, need: Need) -> Charge {
        let (node, leaves) = (self.core.features.nodesize as u64, u64::from(need.leaves));
        if need.deleting {
            return Charge::new(need.data);
        }
        let splits = if need.bytes > 0 { leaves } else { 0 };
        let are_copied = self.has_shared || self.core.charges.may_copy_older(need.charged_to);
        let copied = if are_copied { copied(leaves) } else { 0 };
        Charge { new: need.data.saturating_add(splits * node), copies: copied * node }
    }

    /// Gives back part of what it was promised: it does not need that.
    pub(crate) fn unreserve(&self, need: Need) {
        self.core.space.unreserve_for_operation(need);
        self.core.charges.give_back(need.charged_to, self.charged(need));
    }

    /// All that it said it leaves.
    pub(crate) fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }
}

/// Blocks that are copied with so many leaves: those, and the nodes above, of which the root is above all.
fn copied(leaves: u64) -> u64 {
    if leaves == 0 { 0 } else { leaves * NODES_ABOVE + 1 }
}

/// What emitting changes into a tree gets to work with.
pub struct Emit<'m, 'a> {
    /// The merge of the tree.
    pub merge: &'m mut Merge<'a>,
    /// References gained and lost.
    pub refs: &'m mut RefLog,
    /// Checksums of new data.
    pub csums: &'m mut CsumLog,
    /// The filesystem's shared parts.
    pub core: &'m Core,
    /// The committing transaction.
    pub transid: u64,
    /// The tree.
    pub tree: u64,
    /// Writes some of what is placed: called now and then by those who make parts of a tree.
    pub meanwhile: &'m (dyn Fn() -> Result<()> + Sync),
}

impl Transactions {
    /// The next transaction to run is `committed + 1`.
    pub fn new(committed: u64) -> Transactions {
        Transactions {
            gate: Striped::default(),
            is_closing: CachePadded::default(),
            door: RwLock::new(()),
            running: AtomicU64::new(committed + 1),
            committed: AtomicU64::new(committed),
            turn: Mutex::new(Turn { durable: committed, ended: committed, ..Turn::default() }),
            ended: Condvar::default(),
            aborted: OnceLock::new(),
            opened: Instant::now(),
            asked: AtomicU64::new(0),
            first_held_up: AtomicU64::new(0),
        }
    }

    /// Somebody waits until something is durable.
    pub fn note_asked(&self) {
        self.asked.store(self.milliseconds(), Ordering::Relaxed);
    }

    /// Whether somebody waits until something is durable, or has lately.
    pub fn is_waited_for(&self) -> bool {
        let asked = self.asked.load(Ordering::Relaxed);
        asked != 0 && self.milliseconds() < asked + ASKS_AGAIN
    }

    fn milliseconds(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX / 2).max(1)
    }

    fn microseconds(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_micros()).unwrap_or(u64::MAX / 2).max(1)
    }

    /// Joins the running transaction. The answer must not be held while waiting for space or for a commit.
    pub fn join<'a>(&'a self, core: &'a Core) -> Result<Op<'a>> {
        let gate = self.enter();
        let (now, guarded) = (core.env.now(), !std::thread::panicking());
        let left = AtomicU64::new(0);
        let has_shared = core.space.is_shared();
        Ok(Op { core, transid: self.running(), now, has_shared, guarded, left, _gate: gate })
    }

    /// The same for what changes nothing that a commit would write.
    pub fn join_to_read<'a>(&'a self, core: &'a Core) -> Result<Op<'a>> {
        let mut op = self.join(core)?;
        op.guarded = false;
        Ok(op)
    }

    /// Holds the gate: no transaction ends while it is held.
    pub(crate) fn enter(&self) -> RwLockReadGuard<'_, ()> {
        if self.is_closing.load(Ordering::Relaxed) {
            self.note_held_up();
            drop(self.door.read());
        }
        let gate = self.gate.mine();
        gate.try_read().unwrap_or_else(|| {
            self.note_held_up();
            gate.read()
        })
    }

    /// Has the gate alone: nobody is under way, and nobody comes in.
    fn shut(&self) -> Shut<'_> {
        let door = self.door.write();
        self.is_closing.store(true, Ordering::Relaxed);
        let gate = self.gate.all().map(RwLock::write).collect();
        Shut { txn: self, _gate: gate, _door: door }
    }

    /// Somebody waits from now on, for the gate or for a turn.
    fn note_held_up(&self) {
        let now = self.microseconds();
        let _first =
            self.first_held_up.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whoever has the turn begins to keep others out: who waits for it waits from now on.
    fn begin_to_hold_up(&self) {
        let waiting = self.turn.lock().waiting > 0;
        let now = if waiting { self.microseconds() } else { 0 };
        self.first_held_up.store(now, Ordering::Relaxed);
    }

    /// How long somebody has waited since then, who has come first; nothing where nobody has.
    fn held_up(&self) -> Option<Duration> {
        let first = self.first_held_up.load(Ordering::Relaxed);
        (first > 0).then(|| Duration::from_micros(self.microseconds().saturating_sub(first)))
    }

    /// The running transaction.
    pub fn running(&self) -> u64 {
        self.running.load(Ordering::Acquire)
    }

    /// The last transaction that is durable.
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Acquire)
    }

    /// Why nothing can be written any more, if a commit failed or something panicked.
    pub fn aborted(&self) -> Option<Error> {
        self.aborted.get().map(|cause| Error::Aborted(cause.clone()))
    }

    /// Refuses when a commit failed, or something panicked.
    pub fn check(&self) -> Result<()> {
        self.aborted().map_or(Ok(()), Err)
    }

    /// Latches the first cause.
    pub fn abort(&self, cause: &Error) {
        let _ = self.aborted.set(with_advice(cause).into());
    }

    fn abort_for(&self, what: &'static str) {
        let _ = self.aborted.set(what.into());
    }

    /// Waits for the turn to commit; `None` when others have committed transaction `covered` meanwhile: whoever waits shares the
    /// next commit with all who wait, and does not stand in line behind those that come later.
    fn begin_commit(&self, covered: Option<u64>) -> Option<Committing<'_>> {
        self.take_turn(
            |turn| covered.is_some_and(|transid| turn.ended >= transid),
            |turn| !turn.taken && !turn.settling,
        )?;
        Some(Committing { txn: self })
    }

    /// The same; `None` as soon as `covered` is durable: for whoever wants nothing else of it.
    fn begin_to_make_durable(&self, covered: u64) -> Option<Committing<'_>> {
        let is_free = |turn: &Turn| !turn.taken && !turn.settling;
        self.take_turn(|turn| turn.durable >= covered, is_free)?;
        Some(Committing { txn: self })
    }

    /// Waits for the turn to write a log; `None` when `done` says so of the last transaction that is durable.
    fn begin_log(&self, done: impl Fn(u64) -> bool) -> Option<Logging<'_>> {
        self.take_turn(|turn| done(turn.durable), |turn| !turn.taken)?;
        Some(Logging { txn: self })
    }

    /// Takes the turn as soon as it is free; `None` where the caller is done before.
    fn take_turn(
        &self,
        is_done: impl Fn(&Turn) -> bool,
        is_free: impl Fn(&Turn) -> bool,
    ) -> Option<()> {
        let mut turn = self.turn.lock();
        turn.waiting += 1;
        let taken = loop {
            if is_done(&turn) {
                break None;
            }
            if is_free(&turn) && !turn.promised {
                turn.take();
                break Some(());
            }
            self.note_held_up();
            turn = wait(&self.ended, turn);
        };
        turn.waiting -= 1;
        if taken.is_none() && turn.waiting == 0 {
            self.ended.notify_all();
        }
        taken
    }

    /// Waits for the turn to make a commit that nobody waits for: who waits for one goes first, but not one after the other. Where several
    /// wait so, they may all go before the next one who does.
    fn begin_upkeep(&self) -> Committing<'_> {
        let mut turn = self.turn.lock();
        let before = turn.count;
        loop {
            let others_went = turn.count > before;
            if !turn.taken && !turn.settling && (others_went || turn.waiting == 0) {
                turn.promised = false;
                turn.take();
                return Committing { txn: self };
            }
            turn.promised |= others_went;
            turn = wait(&self.ended, turn);
        }
    }

    /// Has the gate alone: the running transaction becomes the committing one while `frozen` runs. Refuses when an operation
    /// for which the gate was waited has left something half done.
    pub(crate) fn freeze(&self, frozen: impl FnOnce(u64)) -> Result<u64> {
        let _gate = self.shut();
        self.check()?;
        let transid = self.running.fetch_add(1, Ordering::AcqRel);
        frozen(transid);
        Ok(transid)
    }

    /// The same where nobody is let in until the answer is let go of; `ahead` runs before.
    fn freeze_alone<T>(
        &self,
        ahead: impl FnOnce() -> std::result::Result<(), T>,
        frozen: impl FnOnce(u64),
    ) -> Result<std::result::Result<(u64, Shut<'_>), T>> {
        let gate = self.shut();
        self.check()?;
        if let Err(why) = ahead() {
            return Ok(Err(why));
        }
        let transid = self.running.fetch_add(1, Ordering::AcqRel);
        frozen(transid);
        Ok(Ok((transid, gate)))
    }

    /// Has the gate alone, as nothing is under way: what was let go of before is read by nobody any more.
    fn pause(&self, quiet: impl FnOnce()) -> Result<()> {
        let _gate = self.shut();
        self.check()?;
        quiet();
        Ok(())
    }

    /// The transaction being committed is durable, and its trees are there for all to read. Who waited for that goes on, and a log may be
    /// written while the committer, which has the turn, drops what the trees have now.
    fn durable(&self, transid: u64) {
        self.committed.store(transid, Ordering::Release);
        let mut turn = self.turn.lock();
        (turn.taken, turn.settling, turn.durable) = (false, true, transid);
        drop(turn);
        self.ended.notify_all();
    }
}

impl Turn {
    fn take(&mut self) {
        (self.taken, self.count) = (true, self.count + 1);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use super::{Mutex, Transactions};

    /// Four wait while a fifth commits what they have written: none of them commits again. Who has written since does.
    #[test]
    fn who_waits_shares_a_commit() {
        let txn = Transactions::new(7);
        let turn = txn.begin_commit(Some(8)).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert!(txn.begin_commit(Some(8)).is_none()));
            }
            assert_eq!(txn.freeze(|_| {}).unwrap(), 8);
            txn.durable(8);
            drop(turn);
        });
        assert!(txn.begin_commit(Some(9)).is_some());
        assert!(txn.begin_commit(None).is_some());
    }

    /// Who waits for the turn or for the gate while others are kept out is seen, and nobody else.
    #[test]
    fn who_is_held_up_is_seen() {
        let txn = Transactions::new(7);
        let is_seen = || {
            let begun = std::time::Instant::now();
            while txn.held_up().is_none() && begun.elapsed().as_secs() < 20 {
                std::thread::yield_now();
            }
            txn.held_up().is_some()
        };
        for waits_before in [false, true] {
            std::thread::scope(|scope| {
                let turn = txn.begin_commit(None).unwrap();
                let wait = || drop(txn.begin_commit(None));
                let other = waits_before.then(|| scope.spawn(wait));
                while waits_before && txn.turn.lock().waiting == 0 {
                    std::thread::yield_now();
                }
                txn.begin_to_hold_up();
                assert_eq!(txn.held_up().is_some(), waits_before);
                let other = other.unwrap_or_else(|| scope.spawn(wait));
                assert!(is_seen());
                drop(turn);
                other.join().unwrap();
            });
        }
        txn.begin_to_hold_up();
        drop(txn.enter());
        assert!(txn.held_up().is_none(), "the gate was open");
        std::thread::scope(|scope| {
            let gate = txn.shut();
            scope.spawn(|| drop(txn.enter()));
            assert!(is_seen());
            drop(gate);
        });
    }

    /// A commit waits for those who are under way, and for nobody who comes later, whichever processor he is on.
    #[test]
    fn who_comes_while_the_gate_closes_waits_at_the_door() {
        let txn = Transactions::new(7);
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let under_way = txn.enter();
            scope.spawn(|| {
                let _shut = txn.shut();
                order.lock().push("shut");
            });
            while !txn.is_closing.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            for _ in 0..8 {
                scope.spawn(|| {
                    drop(txn.enter());
                    order.lock().push("in");
                });
            }
            while txn.held_up().is_none_or(|since| since < Duration::from_millis(20)) {
                std::thread::yield_now();
            }
            assert!(order.lock().is_empty(), "{order:?}");
            drop(under_way);
        });
        assert_eq!(order.lock()[..2], ["shut", "in"]);
    }

    /// A commit that has come to nothing covers nobody.
    #[test]
    fn a_failed_commit_passes_the_turn_on() {
        let txn = Transactions::new(7);
        let turn = txn.begin_commit(Some(8)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(txn.begin_commit(Some(8)).is_some()));
            txn.freeze(|_| {}).unwrap();
            drop(turn);
        });
    }

    /// One who drops, commit after commit, lets each who waits for room go first, and comes to his turn all the same.
    #[test]
    fn who_drops_lets_others_go_first_but_not_for_ever() {
        let (txn, upkeep) = (Transactions::new(7), std::sync::atomic::AtomicUsize::new(0));
        let done = std::sync::atomic::AtomicBool::new(false);
        let (upkeep, done, txn) = (&upkeep, &done, &txn);
        let load = std::sync::atomic::Ordering::SeqCst;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while !done.load(load) {
                    drop(txn.begin_upkeep());
                    upkeep.fetch_add(1, load);
                }
            });
            let wait_for_room = || {
                (0..1000).for_each(|_| drop(txn.begin_commit(None)));
            };
            let others: Vec<_> = (0..4).map(|_| scope.spawn(wait_for_room)).collect();
            others.into_iter().for_each(|other| other.join().unwrap());
            // All have gone; it has a turn at the latest now.
            while upkeep.load(load) == 0 {
                std::thread::yield_now();
            }
            done.store(true, load);
        });
    }
}
