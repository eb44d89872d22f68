//! Limits: an operation is told before it starts whether its groups have room for it.
//!
//! What is not counted yet is charged: the bytes that an operation may write, and a block for each leaf that it may touch, as any of them may
//! split. An operation is refused where what a group has and what was charged since would go beyond its limit; so nothing that was
//! accepted fails later, and no limit is overrun. Charges are more than what comes of them. So whoever is refused has a commit count that first,
//! and asks again.
//!
//! Who gives space back is let in always: below a snapshot that takes room at first, and a group that is full must be able to shrink.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::groups::{Groups, Usage};

/// What has a limit, and what was charged to it.
#[derive(Debug, Default)]
pub struct Charges {
    /// Whether any group has a limit: nobody else takes the lock.
    are_limited: AtomicBool,
    /// Simple quotas are charged for nothing that somebody else has allocated.
    are_simple: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    groups: Vec<Limited>,
    /// The limited groups that a subvolume is in.
    over: HashMap<u64, Vec<usize>>,
    /// Whether anything was deleted in the running transaction, and in those that were frozen and are not counted.
    deleted: [bool; 2],
    /// [`Groups::shape`] that this is of.
    shape: Option<u64>,
}

#[derive(Debug)]
struct Limited {
    id: u64,
    most: [Option<u64>; 2],
    usage: Usage,
    /// Bytes charged in the running transaction, and in those that were frozen and are not counted.
    running: u64,
    frozen: u64,
}

impl Limited {
    fn has_room(&self, bytes: u64) -> bool {
        let charged = self.running.saturating_add(self.frozen).saturating_add(bytes);
        let have = [self.usage.rfer, self.usage.excl];
        have.into_iter()
            .zip(self.most)
            .all(|(have, most)| most.is_none_or(|most| have.saturating_add(charged) <= most))
    }
}

/// A group has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceeded {
    /// Whether a commit may find that there is less: of what was charged, or by what was deleted.
    pub may_shrink: bool,
}

impl Charges {
    /// Whether any group has a limit.
    pub fn are_limited(&self) -> bool {
        self.are_limited.load(Ordering::Acquire)
    }

    /// Something is deleted, and what groups have may be less when that is counted.
    pub fn note_deletion(&self) {
        if self.are_limited() {
            self.state.lock().deleted[0] = true;
        }
    }

    /// Charges `bytes` to the groups of a subvolume, all or none.
    pub fn charge(&self, subvolume: u64, bytes: u64) -> Result<(), Exceeded> {
        self.charge_but(subvolume, bytes, None)
    }

    /// The same of what another subvolume has already: groups that this one is in, too, and limits of what is exclusive, have nothing to do with it.
    pub fn charge_shared(&self, subvolume: u64, bytes: u64, of: u64) -> Result<(), Exceeded> {
        match self.are_simple.load(Ordering::Acquire) {
            true => Ok(()),
            false => self.charge_but(subvolume, bytes, Some(of)),
        }
    }

    fn charge_but(&self, subvolume: u64, bytes: u64, of: Option<u64>) -> Result<(), Exceeded> {
        if bytes == 0 || !self.are_limited() {
            return Ok(());
        }
        let State { groups, over, deleted, .. } = &mut *self.state.lock();
        let has_it = of.and_then(|of| over.get(&of));
        let Some(over) = over.get(&subvolume) else { return Ok(()) };
        let is_meant = |at: usize, group: &Limited| match of {
            Some(_) => group.most[0].is_some() && !has_it.is_some_and(|it| it.contains(&at)),
            None => true,
        };
        for at in over {
            if let Some(group) = groups.get(*at)
                && is_meant(*at, group)
                && !group.has_room(bytes)
            {
                let is_charged = group.running > 0 || group.frozen > 0;
                return Err(Exceeded { may_shrink: is_charged || deleted.contains(&true) });
            }
        }
        for at in over {
            if let Some(group) = groups.get_mut(*at)
                && is_meant(*at, group)
            {
                group.running = group.running.saturating_add(bytes);
            }
        }
        Ok(())
    }

    /// Gives back what was charged in the running transaction and is not needed.
    pub fn give_back(&self, subvolume: u64, bytes: u64) {
        if bytes == 0 || !self.are_limited() {
            return;
        }
        let State { groups, over, .. } = &mut *self.state.lock();
        for at in over.get(&subvolume).into_iter().flatten() {
            if let Some(group) = groups.get_mut(*at) {
                group.running = group.running.saturating_sub(bytes);
            }
        }
    }

    /// No operation runs: what was charged so far is the committing transaction's.
    pub fn freeze(&self) {
        let State { groups, deleted: [running, frozen], .. } = &mut *self.state.lock();
        *frozen |= std::mem::take(running);
        for group in groups {
            group.frozen = group.frozen.saturating_add(std::mem::take(&mut group.running));
        }
    }

    /// What was frozen is in these numbers now, where `is_counted`; limits and relations may be others.
    pub fn settle(&self, groups: &Groups, is_counted: bool) {
        self.are_simple.store(groups.simple_since().is_some(), Ordering::Release);
        let mut state = self.state.lock();
        // Most commits change numbers only.
        if state.shape == Some(groups.shape()) {
            state.renew(groups, is_counted);
            return;
        }
        let mut limited: Vec<Limited> = groups
            .limited()
            .map(|(id, most, usage)| Limited { id, most, usage, running: 0, frozen: 0 })
            .collect();
        let places: HashMap<u64, usize> =
            limited.iter().enumerate().map(|(at, group)| (group.id, at)).collect();
        for old in &state.groups {
            if let Some(new) = places.get(&old.id).and_then(|at| limited.get_mut(*at)) {
                (new.running, new.frozen) = (old.running, old.frozen);
            }
        }
        let mut over: HashMap<u64, Vec<usize>> = HashMap::new();
        if !limited.is_empty() {
            for (subvolume, above) in groups.with_wanted() {
                let at: Vec<usize> =
                    above.iter().filter_map(|id| places.get(id).copied()).collect();
                if !at.is_empty() {
                    over.insert(subvolume, at);
                }
            }
        }
        self.are_limited.store(!limited.is_empty(), Ordering::Release);
        let (deleted, shape) = (state.deleted, Some(groups.shape()));
        *state = State { groups: limited, over, deleted, shape };
        state.renew(groups, is_counted);
    }
}

impl State {
    /// These are the numbers now; what was frozen is in them where `is_counted`.
    fn renew(&mut self, groups: &Groups, is_counted: bool) {
        for limited in &mut self.groups {
            limited.usage = groups.usage_of(limited.id);
            if is_counted {
                limited.frozen = 0;
            }
        }
        if is_counted {
            self.deleted[1] = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::NewLimits;
    use super::{Charges, Exceeded, Groups};

    /// Group 300 in 1/1, which may have 100 bytes.
    fn groups() -> Groups {
        let mut groups = Groups::default();
        let above = 1 << 48 | 1;
        groups.create(300).unwrap();
        groups.create(above).unwrap();
        assert!(groups.enter(300, above).unwrap());
        groups.limit(above, NewLimits { rfer: Some(Some(100)), excl: None }).unwrap();
        groups
    }

    #[test]
    fn what_is_charged_stays_below_the_limit_until_it_is_counted() {
        let (charges, groups) = (Charges::default(), groups());
        charges.settle(&groups, true);
        assert_eq!(charges.charge(300, 101), Err(Exceeded { may_shrink: false }));
        charges.charge(300, 60).unwrap();
        assert_eq!(charges.charge(300, 60), Err(Exceeded { may_shrink: true }));
        charges.freeze();
        charges.charge(300, 40).unwrap();
        assert_eq!(charges.charge(300, 1), Err(Exceeded { may_shrink: true }));
        charges.settle(&groups, false);
        assert_eq!(charges.charge(300, 1), Err(Exceeded { may_shrink: true }));
        charges.settle(&groups, true);
        charges.charge(300, 60).unwrap();
        charges.give_back(300, 60);
        charges.charge(300, 60).unwrap();
        charges.charge(301, 1000).unwrap();
    }

    #[test]
    fn a_limit_that_is_taken_away_holds_nobody() {
        let (charges, mut groups) = (Charges::default(), groups());
        charges.settle(&groups, true);
        groups.limit(1 << 48 | 1, NewLimits { rfer: Some(None), excl: None }).unwrap();
        charges.settle(&groups, true);
        charges.charge(300, 1000).unwrap();
    }
}
