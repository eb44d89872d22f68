//! The subvolumes in memory.
//!
//! There may be thousands of snapshots, and who walks over them looks at each for a moment. Where there are more than a few,
//! one that is clean and that nobody has used since the table was looked over twice leaves it: of its files is kept only how
//! often they are held, and the next one who looks for it opens it again, as it was published.
//!
//! What a commit writes it holds until that is published, so whatever leaves comes back as it was.
//!
//! Opening reads from the device, and is done without the lock of the table: who waits for one subvolume keeps nobody from the
//! others. Where something has left the table meanwhile, it may have been this subvolume, with changes, and is opened again.
//!
//! Each operation looks for its subvolume, mostly the same one. So that many processors do not take one cache line from each other for that, threads have a
//! table of their own before this one ([`Striped`]), of which each subvolume is held once more ([`Near`]). It has only what this one has: who takes something out here takes it out
//! there before anybody can put it in again, for which a share of the lock of this table is needed.

use std::ops::Deref;
use std::sync::Arc;

use parking_lot::RwLock;

use super::forest::Subvolume;
use crate::error::Result;
use crate::hash::Spread;
use crate::inode::Asleep;
use crate::stripes::Striped;

/// So many subvolumes stay in memory whoever uses them: as long as there are no more, none has to be opened again.
const FEW: usize = 32;
/// The table is looked over when one subvolume of so many is new: what that costs does not grow with their number.
const NEW_SHARE: usize = 8;

#[derive(Debug, Default)]
struct Table {
    subvolumes: Spread<u64, Arc<Subvolume>>,
    /// Of those that left, what is needed when they come back.
    asleep: Spread<u64, Asleep>,
    /// How often some have left the table.
    departures: u64,
    /// Opened since the table was looked over.
    new: usize,
    /// Inodes that each one may remember, as it was when the table was looked over.
    share: Option<usize>,
}

impl Table {
    /// Puts in what was opened, which is not here.
    fn put_opened(&mut self, mut subvolume: Subvolume) -> Arc<Subvolume> {
        let id = subvolume.id;
        if let Some(asleep) = self.asleep.remove(&id) {
            subvolume.tree.wake(asleep);
        }
        if let Some(share) = self.share {
            subvolume.tree.keep_about(share);
        }
        let subvolume = Arc::new(subvolume);
        self.subvolumes.insert(id, subvolume.clone());
        self.new += 1;
        subvolume
    }
}

/// A subvolume, as some threads hold it: to copy this counts among them alone.
#[derive(Clone, Debug)]
pub struct Near(Arc<Shared>);

/// What all threads hold.
#[derive(Debug)]
struct Shared(Arc<Subvolume>);

impl Near {
    /// The subvolume, as it is held by all.
    pub fn shared(&self) -> Arc<Subvolume> {
        self.0.0.clone()
    }
}

impl Deref for Near {
    type Target = Subvolume;

    fn deref(&self) -> &Subvolume {
        &self.0.0
    }
}

/// Subvolumes that some threads have in a table of their own at most.
const NEAR_MAX: usize = 64;

/// The subvolumes in memory.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    table: RwLock<Table>,
    near: Striped<RwLock<Spread<u64, Near>>>,
}

impl Loaded {
    /// The subvolume `id`, if it is here.
    pub fn get(&self, id: u64) -> Option<Arc<Subvolume>> {
        self.table.read().subvolumes.get(&id).cloned()
    }

    /// The subvolume `id`, if threads like this one had it lately.
    pub fn get_near(&self, id: u64) -> Option<Near> {
        self.near.mine().read().get(&id).cloned()
    }

    /// Has threads like this one find a subvolume nearby, if it is here.
    pub fn bring_near(&self, subvolume: Arc<Subvolume>) -> Near {
        let near = Near(Arc::new(Shared(subvolume)));
        let table = self.table.read();
        if table.subvolumes.get(&near.id).is_some_and(|here| Arc::ptr_eq(here, &near.0.0)) {
            let mut mine = self.near.mine().write();
            if mine.len() >= NEAR_MAX {
                mine.clear();
            }
            mine.insert(near.id, near.clone());
        }
        near
    }

    /// The subvolume `id`, which `open` opens if it is not here.
    pub fn get_or_open(
        &self,
        id: u64,
        open: impl Fn() -> Result<Subvolume>,
    ) -> Result<Arc<Subvolume>> {
        loop {
            let departures = self.table.read().departures;
            let opened = open();
            let table = &mut *self.table.write();
            if let Some(found) = table.subvolumes.get(&id) {
                return Ok(found.clone());
            }
            if table.departures == departures {
                return opened.map(|subvolume| table.put_opened(subvolume));
            }
        }
    }
    /// Puts in a new subvolume.
    pub fn insert(&self, subvolume: Arc<Subvolume>) {
        let table = &mut *self.table.write();
        self.near.all().for_each(|near| drop(near.write().remove(&subvolume.id)));
        table.subvolumes.insert(subvolume.id, subvolume);
    }

    /// Takes out one that was dropped.
    pub fn remove(&self, id: u64) {
        let table = &mut *self.table.write();
        table.departures += 1;
        self.near.all().for_each(|near| drop(near.write().remove(&id)));
        table.subvolumes.remove(&id);
        table.asleep.remove(&id);
    }

    /// What somebody is opening right now may be out of date by then: it is opened again.
    pub fn have_others_open_again(&self) {
        self.table.write().departures += 1;
    }

    /// All that are here.
    pub fn all(&self) -> Vec<Arc<Subvolume>> {
        self.table.read().subvolumes.values().cloned().collect()
    }

    /// Those of which this is so.
    pub fn those(&self, is_one: impl Fn(&Subvolume) -> bool) -> Vec<Arc<Subvolume>> {
        self.table.read().subvolumes.values().filter(|it| is_one(it)).cloned().collect()
    }

    /// Whether there is one of which this is so.
    pub fn any(&self, what: impl FnMut(&Arc<Subvolume>) -> bool) -> bool {
        self.table.read().subvolumes.values().any(what)
    }

    /// Looks over the table if enough have come since that was done.
    pub fn rest_when_new(&self, inodes: usize) {
        let table = self.table.read();
        let enough = table.new * NEW_SHARE >= table.subvolumes.len().max(FEW);
        drop(table);
        if enough {
            self.rest(inodes);
        }
    }

    /// Looks over the table: the trees share `inodes` inodes to remember, and those that nobody uses leave.
    pub fn rest(&self, inodes: usize) {
        let all = self.all();
        let awake = all.iter().filter(|subvolume| !subvolume.tree.is_resting()).count();
        let share = inodes / awake.max(1).next_power_of_two();
        {
            let table = &mut *self.table.write();
            (table.new, table.share) = (0, Some(share));
        }
        let resting = all.iter().filter(|subvolume| subvolume.tree.rest(share)).count();
        let many = all.len() > FEW;
        drop(all);
        if resting > 0 && many {
            self.leave();
        }
    }

    fn leave(&self) {
        let Table { subvolumes, asleep, departures, .. } = &mut *self.table.write();
        let before = subvolumes.len();
        self.near.all().for_each(|near| near.write().clear());
        subvolumes.retain(|id, subvolume| {
            // Who uses it has an `Arc` that it got under the lock of the table.
            let left = Arc::get_mut(subvolume).and_then(Subvolume::asleep);
            let stays = left.is_none();
            asleep.extend(left.map(|left| (*id, left)));
            stays
        });
        *departures += u64::from(subvolumes.len() < before);
    }
}
