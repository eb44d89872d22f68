//! Promises that are made ahead: what the next operations of a thread may need.
//!
//! Every operation that changes something is promised room before it begins ([`super::reserve`]), and gives back what it did not need. The sums of all promises are under one
//! lock, which many processors would take from each other all the time. So where there is plenty of room some operations are promised theirs at once, and threads have them in
//! hand ([`Allotment`]), each processor its own.
//!
//! What is in hand counts as promised. It can do no more than that some operation would have been let in that is not, or a chunk made later: so whoever is about to be refused, and who
//! asks whether nobody is promised anything, takes back first what all have in hand, and nobody gets any until he has looked again ([`Space::take_back`]). So does the freeze: a commit
//! is judged by what was promised to operations. And so does who makes promises dearer than they were. Nothing is handed out that would need another look at the room there is, so near
//! the end of it each operation asks for itself.
//!
//! Locks: an allotment, or all of them in their order, and then the pool.

use super::bound::Total;
use super::reserve::{Need, Promises, Shortage, USUAL, usual_like};
use super::{Pool, Space};
use parking_lot::{Mutex, MutexGuard};

/// Operations that are promised their needs at a time. A choice: the lock of all is taken less by this factor, and each processor has a megabyte of data and a hundred leaves in hand, or four
/// times as much where operations give back what they were promised.
const OPERATIONS: u64 = 16;
/// Bytes of data of an operation that takes its promise out of what is in hand; others move as much that a lock is nothing.
const DATA_MAX: u64 = USUAL.data;
/// So many times what is handed out at once may be in hand, as what was not needed comes back.
const IN_HAND_MAX: u64 = 4;

/// What some threads have in hand.
#[derive(Debug, Default)]
pub(super) struct Allotment {
    left: Total,
    /// Trees that there were.
    volumes: u64,
}

/// Whether it is an operation as most are: others are looked at one by one.
fn is_usual(need: Need) -> bool {
    need.own == 0 && need.data <= DATA_MAX && !(need.subvolume || need.reclaiming || need.sharing)
}

impl Space {
    /// [`Space::reserve`] for an operation that has joined a transaction, and lasts no longer than that runs.
    pub fn reserve_for_operation(&self, need: Need) -> Result<(), Shortage> {
        // The next deletion after one that came alone says whether others can be beside it again.
        let alone = need.deleting && self.was_alone();
        if is_usual(need) && !alone && self.take_in_hand(need) {
            return Ok(());
        }
        self.reserve(need)
    }

    fn take_in_hand(&self, need: Need) -> bool {
        let mut mine = self.allotments.mine().lock();
        let wanted = Total::of(need);
        if mine.volumes == self.count_volumes()
            && let Some(left) = mine.left.less_if_part(wanted)
        {
            mine.left = left;
            return true;
        }
        let pool = &mut *self.pool.lock();
        let volumes = self.count_volumes();
        if mine.volumes != volumes {
            pool.give_back(&mut mine);
            mine.volumes = volumes;
        }
        // Of what some operations do not need there may be enough: it does not add up.
        let full = usual_like(need).times(OPERATIONS);
        let more = full.less(mine.left);
        let running = pool.promises.running.and(more);
        let promises = Promises { running, ..pool.promises };
        if !pool.credit.covers(promises, volumes) {
            return false;
        }
        pool.promises = promises;
        mine.left = mine.left.and(more).less(wanted);
        true
    }

    /// [`Space::unreserve`] for what [`Space::reserve_for_operation`] has promised, or part of it, in the same transaction.
    pub fn unreserve_for_operation(&self, need: Need) {
        if !is_usual(need) || self.is_alone() {
            return self.unreserve(need);
        }
        let mut mine = self.allotments.mine().lock();
        if mine.volumes != self.count_volumes() {
            return self.unreserve(need);
        }
        mine.left = mine.left.plus(need);
        let most = Total::of(USUAL).times(OPERATIONS * IN_HAND_MAX);
        if !mine.left.is_within(most) {
            self.pool.lock().give_back(&mut mine);
        }
    }

    /// Nobody has anything in hand, nor gets any, as long as the answer is held.
    pub(super) fn take_back(&self) -> TakenBack<'_> {
        let mut hands: Vec<_> = self.allotments.all().map(Mutex::lock).collect();
        let mut pool = self.pool.lock();
        hands.iter_mut().for_each(|allotment| pool.give_back(allotment));
        TakenBack { _hands: hands }
    }
}

/// Nobody has anything in hand.
pub(super) struct TakenBack<'a> {
    _hands: Vec<MutexGuard<'a, Allotment>>,
}

impl Pool {
    /// Takes back what some threads have in hand.
    fn give_back(&mut self, allotment: &mut Allotment) {
        self.promises.running = self.promises.running.less(std::mem::take(&mut allotment.left));
    }
}
