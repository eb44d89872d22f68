//! Closing block groups: what is in one moves elsewhere, and nothing comes to it meanwhile.
//!
//! A closed group counts as full, so nobody is promised its free space. The commit that finds it vacant gives its chunk back, as that of any
//! other vacant group, though it were the last one of its class.

use super::extents::Range;
use super::reserve::{Need, Promises};
use super::{Class, Space};

/// Blocks that the chunk tree has room for elsewhere, before a group of it is closed: some ways to its leaves.
const SYSTEM_LEAST: u64 = 64;

/// A block group, as who balances sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupInfo {
    /// The first logical address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Type and profile, as in the chunk item.
    pub flags: u64,
    /// Bytes that are used, as the last commit counts.
    pub used: u64,
    /// Whether nothing comes to it.
    pub closed: bool,
}

impl GroupInfo {
    /// The logical addresses.
    pub fn range(&self) -> Range {
        Range::new(self.start, self.len)
    }
}

impl Space {
    /// All block groups, by address.
    pub fn groups(&self) -> Vec<GroupInfo> {
        let mut all = Vec::new();
        for slot in &self.slots {
            all.extend(slot.set.lock().groups().map(|group| GroupInfo {
                start: group.range.start,
                len: group.range.len,
                flags: group.flags,
                used: group.used,
                closed: group.is_closed(),
            }));
        }
        all.sort_unstable_by_key(|group| group.start);
        all
    }

    /// No chunk comes or goes from now on: what would say so cannot be written.
    pub fn keep_chunks(&self) {
        let mut pool = self.pool.lock();
        pool.device.is_fixed = true;
        pool.credit = Default::default();
    }

    /// Where the device has the parts of a block group: first byte and bytes of each.
    pub fn device_ranges_of(&self, start: u64) -> Vec<Range> {
        let pool = self.pool.lock();
        let ranges = |chunk| super::device::device_ranges(chunk).collect();
        pool.chunks.get(&start).map(ranges).unwrap_or_default()
    }

    /// Closes the group that starts there, or opens it again. Whether there is one. Where its free space is does not matter, and is not
    /// read: who closes and opens is no operation.
    pub fn close_group(&self, start: u64, closed: bool) -> bool {
        let Some((_, class)) = self.index.find(start) else { return false };
        let slot = self.slot(class);
        let mut pool = self.pool.lock();
        // What others may have without a look was reckoned with it.
        pool.credit = Default::default();
        let mut set = slot.set.lock();
        set.change(&slot.counters, start, |group| group.close(closed)).is_some()
    }

    /// Closes the group that starts there, where what was promised so far has room without it; with what only deletions may use, if
    /// `reclaiming`. Whether it is closed.
    pub fn close_group_if_room(&self, start: u64, reclaiming: bool) -> bool {
        let Some((found, class)) = self.index.find(start) else { return false };
        let slot = self.slot(class);
        if found != start || !self.close_group(start, true) {
            return false;
        }
        let _taken_back = self.take_back();
        // Nobody was promised anything of it since.
        let mut pool = self.pool.lock();
        let has_room = match class {
            Class::System => {
                let left = slot.counters.read().nodes;
                left >= SYSTEM_LEAST || self.add_chunk(&mut pool, Class::System, true)
            }
            _ if reclaiming => self.outlook(&pool, true).fits_deletions(pool.promises),
            _ => self.outlook(&pool, true).fits_promises(pool.promises),
        };
        drop(pool);
        if !has_room {
            self.close_group(start, false);
        }
        has_room
    }

    /// Leaves of the root tree that the items of so many subvolumes are in at most.
    pub fn leaves_of_roots(&self, trees: u64) -> u64 {
        self.outlook(&self.pool.lock(), false).leaves_of_roots(trees)
    }

    /// What keeps the group that starts there from being vacant, in bytes: used, and let go or promised. `None` where there is no such group.
    pub fn left_in_group(&self, start: u64) -> Option<(u64, u64)> {
        let (found, _) = self.index.find(start)?;
        (found == start).then_some(())?;
        self.with_group(start, |group| {
            let others = group.pinned_bytes() + group.held_bytes() + group.promised_bytes();
            (group.used, others)
        })
    }

    /// The class that there is too little room of for somebody who needs this; `None` where it is both, or neither any more.
    pub fn scarce(&self, need: Need) -> Option<Class> {
        let _taken_back = self.take_back();
        let pool = self.pool.lock();
        let running = pool.promises.running.plus(need);
        match self.outlook(&pool, true).missing(Promises { running, ..pool.promises }, need) {
            (0, 0) => None,
            (_, 0) => Some(Class::Data),
            (0, _) => Some(Class::Metadata),
            _ => None,
        }
    }

    /// Whether data and metadata share groups.
    pub fn is_mixed(&self) -> bool {
        self.mixed
    }

    /// The class of the group that an address is in.
    pub fn class_at(&self, at: u64) -> Option<Class> {
        self.index.find(at).map(|(_, class)| class)
    }
}
