//! Limits: an operation is told before it starts whether its groups have room for it.
//!
//! What is not counted yet is charged: the bytes that an operation may write, and a block for each leaf that it may touch, as any of them may
//! split. Where snapshots may have these leaves, too, the operation copies them and the nodes above: that is nothing to who counts what is referred to, as
//! the copies take the place of what they are of, but what a group has for itself grows by it, and so does what it has allocated, as what it leaves behind stays its
//! own. So groups with such a limit are charged for copies, too ([`Charge`]). With simple quotas they grow by copies of what is older than these, too, as that counts for nobody: so
//! copies in a subvolume that was there before are always charged. An operation is refused where what a group has and what was charged since would go beyond its limit; so nothing that was
//! accepted fails later, and no limit is overrun. Charges are more than what comes of them. So whoever is refused has a commit count that first,
//! and asks again.
//!
//! Who gives space back is let in always, and is charged for no copies (so it is on Linux): below a snapshot that takes room at first, and a group
//! that is full must be able to shrink. By these copies, and by an item or two that a deletion adds, a group may go beyond its limit.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::groups::{Groups, Usage};

/// By what the groups of an operation's subvolume may grow, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charge {
    /// Data, and tree blocks that the tree has not had.
    pub new: u64,
    /// Copies of tree blocks that others may have, too.
    pub copies: u64,
}

impl Charge {
    /// Nothing is copied.
    pub fn new(bytes: u64) -> Charge {
        Charge { new: bytes, copies: 0 }
    }
}

/// What has a limit, and what was charged to it.
#[derive(Debug, Default)]
pub struct Charges {
    /// Whether any group has a limit: nobody else takes the lock.
    are_limited: AtomicBool,
    /// Simple quotas are charged for nothing that somebody else has allocated, and for all copies.
    are_simple: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    groups: Vec<Limited>,
    /// The limited groups that a subvolume is in.
    over: HashMap<u64, Vec<usize>>,
    /// Those of these subvolumes that may have tree blocks from before simple quotas.
    older: HashSet<u64>,
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
    /// Bytes of a charge that count in this group.
    fn part(&self, charge: Charge, are_simple: bool) -> u64 {
        let copies = if are_simple || self.most[1].is_some() { charge.copies } else { 0 };
        charge.new.saturating_add(copies)
    }

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

    /// Whether a subvolume may have tree blocks from before simple quotas, and a limited group gains their copies.
    pub fn may_copy_older(&self, subvolume: u64) -> bool {
        self.are_limited()
            && self.are_simple.load(Ordering::Acquire)
            && self.state.lock().older.contains(&subvolume)
    }

    /// Something is deleted, and what groups have may be less when that is counted.
    pub fn note_deletion(&self) {
        if self.are_limited() {
            self.state.lock().deleted[0] = true;
        }
    }

    /// Charges the groups of a subvolume, all or none.
    pub fn charge(&self, subvolume: u64, charge: Charge) -> Result<(), Exceeded> {
        self.charge_but(subvolume, charge, None)
    }

    /// The same of what another subvolume has already: groups that this one is in, too, and limits of what is exclusive, have nothing to do with it.
    pub fn charge_shared(&self, subvolume: u64, bytes: u64, of: u64) -> Result<(), Exceeded> {
        match self.are_simple.load(Ordering::Acquire) {
            true => Ok(()),
            false => self.charge_but(subvolume, Charge::new(bytes), Some(of)),
        }
    }

    fn charge_but(&self, subvolume: u64, charge: Charge, of: Option<u64>) -> Result<(), Exceeded> {
        if charge == Charge::default() || !self.are_limited() {
            return Ok(());
        }
        let are_simple = self.are_simple.load(Ordering::Acquire);
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
                && !group.has_room(group.part(charge, are_simple))
            {
                let is_charged = group.running > 0 || group.frozen > 0;
                return Err(Exceeded { may_shrink: is_charged || deleted.contains(&true) });
            }
        }
        for at in over {
            if let Some(group) = groups.get_mut(*at)
                && is_meant(*at, group)
            {
                let bytes = group.part(charge, are_simple);
                group.running = group.running.saturating_add(bytes);
            }
        }
        Ok(())
    }

    /// Gives back what was charged in the running transaction and is not needed.
    pub fn give_back(&self, subvolume: u64, charge: Charge) {
        if charge == Charge::default() || !self.are_limited() {
            return;
        }
        let are_simple = self.are_simple.load(Ordering::Acquire);
        let State { groups, over, .. } = &mut *self.state.lock();
        for at in over.get(&subvolume).into_iter().flatten() {
            if let Some(group) = groups.get_mut(*at) {
                let bytes = group.part(charge, are_simple);
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
        let (mut over, mut older) = (HashMap::new(), HashSet::new());
        if !limited.is_empty() {
            for (subvolume, above) in groups.with_wanted() {
                let at: Vec<usize> =
                    above.iter().filter_map(|id| places.get(id).copied()).collect();
                if !at.is_empty() {
                    over.insert(subvolume, at);
                    older.extend(groups.may_have_older(subvolume).then_some(subvolume));
                }
            }
        }
        self.are_limited.store(!limited.is_empty(), Ordering::Release);
        let (deleted, shape) = (state.deleted, Some(groups.shape()));
        *state = State { groups: limited, over, older, deleted, shape };
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
    use super::{Charge, Charges, Exceeded, Groups};

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
        assert_eq!(charges.charge(300, Charge::new(101)), Err(Exceeded { may_shrink: false }));
        charges.charge(300, Charge::new(60)).unwrap();
        assert_eq!(charges.charge(300, Charge::new(60)), Err(Exceeded { may_shrink: true }));
        charges.freeze();
        charges.charge(300, Charge::new(40)).unwrap();
        assert_eq!(charges.charge(300, Charge::new(1)), Err(Exceeded { may_shrink: true }));
        charges.settle(&groups, false);
        assert_eq!(charges.charge(300, Charge::new(1)), Err(Exceeded { may_shrink: true }));
        charges.settle(&groups, true);
        charges.charge(300, Charge::new(60)).unwrap();
        charges.give_back(300, Charge::new(60));
        charges.charge(300, Charge::new(60)).unwrap();
        charges.charge(301, Charge::new(1000)).unwrap();
    }

    /// What is copied counts where a group is limited in what it has for itself, and with simple quotas; it may be all of a charge.
    #[test]
    fn copies_count_where_a_group_grows_by_them() {
        let copy = Charge { new: 0, copies: 101 };
        let (charges, mut groups) = (Charges::default(), groups());
        charges.settle(&groups, true);
        charges.charge(300, copy).unwrap();
        charges.charge(300, Charge::new(100)).unwrap();
        charges.give_back(300, Charge { new: 100, ..copy });
        let above = 1 << 48 | 1;
        groups.limit(above, NewLimits { rfer: Some(None), excl: Some(Some(100)) }).unwrap();
        charges.settle(&groups, true);
        assert_eq!(charges.charge(300, copy), Err(Exceeded { may_shrink: false }));
        groups.limit(above, NewLimits { rfer: Some(Some(100)), excl: Some(None) }).unwrap();
        groups.begin_simple(7, &[]);
        charges.settle(&groups, true);
        assert_eq!(charges.charge(300, copy), Err(Exceeded { may_shrink: false }));
        charges.charge(300, Charge { new: 40, copies: 60 }).unwrap();
        assert_eq!(charges.charge(300, Charge::new(1)), Err(Exceeded { may_shrink: true }));
        charges.give_back(300, Charge { new: 0, copies: 60 });
        charges.charge(300, Charge::new(60)).unwrap();
    }

    #[test]
    fn a_limit_that_is_taken_away_holds_nobody() {
        let (charges, mut groups) = (Charges::default(), groups());
        charges.settle(&groups, true);
        groups.limit(1 << 48 | 1, NewLimits { rfer: Some(None), excl: None }).unwrap();
        charges.settle(&groups, true);
        charges.charge(300, Charge::new(1000)).unwrap();
    }
}
