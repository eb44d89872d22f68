//! Simple quotas: what each subvolume is charged, added up while all extents are gone through anyway.
//!
//! An extent counts for whoever has allocated it, for as long as anybody refers to it: a tree block for the owner in its head, data for the
//! owner that the extent item names first. What was there before they were switched on counts for nobody.

use std::collections::BTreeMap;

use buttress_ondisk::{
    Key, TreeBlock,
    item::{SimpleStatus, qgroup_status_flags},
    kind, objectid,
    superblock::incompat,
};
use parking_lot::Mutex;

use crate::{
    context::Context,
    cursor::{Cursor, Event},
};

/// Most subvolumes that are told apart. Who makes up more gets none counted.
const OWNERS_MAX: usize = 1 << 20;

/// Bytes by subvolume, of extents from some generation on.
#[derive(Debug)]
pub(crate) struct Charged {
    since: u64,
    bytes: Mutex<BTreeMap<u64, u64>>,
}

impl Charged {
    /// Nothing yet; `None` where simple quotas are off.
    pub fn of(context: &Context<'_>) -> Option<Charged> {
        if context.sb.incompat_flags.get() & incompat::SIMPLE_QUOTA == 0 {
            return None;
        }
        let tree = context.roots.find(objectid::QUOTA_TREE)?;
        let place = Key::new(0, kind::QGROUP_STATUS, 0);
        let cursor = Cursor::at(context, tree, place);
        let Some(Event::Item(key, data)) = cursor.get() else { return None };
        let found = SimpleStatus::of(data).filter(|_| key == place)?;
        let on = qgroup_status_flags::ON | qgroup_status_flags::SIMPLE_MODE;
        let is_on = found.status.flags.get() & on == on;
        is_on.then(|| Charged { since: found.enable_gen.get(), bytes: Mutex::default() })
    }

    /// Whether data of a generation have to say whose they are. The commit that has switched quotas on may have come upon data without.
    pub fn asks_for_owner(&self, generation: u64) -> bool {
        generation > self.since
    }

    /// An extent of a generation was met, the first time.
    pub fn add(&self, owner: u64, generation: u64, len: u64) {
        if generation < self.since || !objectid::is_subvolume(owner) {
            return;
        }
        let mut bytes = self.bytes.lock();
        if bytes.len() < OWNERS_MAX || bytes.contains_key(&owner) {
            let sum = bytes.entry(owner).or_default();
            *sum = sum.saturating_add(len);
        }
    }

    /// The same of a tree block.
    pub fn add_block(&self, block: &TreeBlock) {
        self.add(block.owner(), block.generation(), block.as_bytes().len() as u64);
    }

    /// What each subvolume is charged; `None` when they are too many.
    pub fn sums(&self) -> Option<BTreeMap<u64, u64>> {
        let bytes = self.bytes.lock();
        (bytes.len() < OWNERS_MAX).then(|| bytes.clone())
    }
}
