//! Changes of the root tree and the uuid tree that are not in them yet, in two layers like those of an inode.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use buttress_ondisk::Key;
use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::tree::Met;
use crate::txn::{Commit, Core, UuidChange};

type Items = BTreeMap<Key, Option<Vec<u8>>>;
/// Items as they will be.
pub type Found = BTreeMap<Key, Vec<u8>>;

#[derive(Debug, Default)]
struct Layers {
    live: Items,
    frozen: Items,
    live_uuids: Vec<UuidChange>,
    frozen_uuids: Vec<UuidChange>,
}

/// Items of the root tree and the uuid tree to come.
#[derive(Debug, Default)]
pub struct Pending {
    layers: Mutex<Layers>,
}

impl Pending {
    /// Puts (or deletes) an item of the root tree in the running transaction.
    pub fn put(&self, key: Key, item: Option<Vec<u8>>) {
        self.layers.lock().live.insert(key, item);
    }

    /// Changes the uuid tree in the running transaction.
    pub fn uuid(&self, change: UuidChange) {
        self.layers.lock().live_uuids.push(change);
    }

    /// Whether there is anything to commit.
    pub fn is_dirty(&self) -> bool {
        let layers = self.layers.lock();
        !layers.live.is_empty() || !layers.live_uuids.is_empty()
    }

    /// What changed so far belongs to the commit that begins.
    pub fn freeze(&self) {
        let layers = &mut *self.layers.lock();
        layers.frozen = std::mem::take(&mut layers.live);
        layers.frozen_uuids = std::mem::take(&mut layers.live_uuids);
    }

    /// Hands the frozen changes to the commit.
    pub fn emit(&self, commit: &Commit<'_>) {
        let layers = self.layers.lock();
        for (key, item) in &layers.frozen {
            commit.root_item(*key, item.clone());
        }
        for change in &layers.frozen_uuids {
            commit.uuid(*change);
        }
    }

    /// The commit is durable.
    pub fn published(&self) {
        let layers = &mut *self.layers.lock();
        layers.frozen.clear();
        layers.frozen_uuids.clear();
    }

    /// The item at `key`, as it will be.
    pub fn get(&self, core: &Core, key: &Key) -> Result<Option<Vec<u8>>> {
        {
            let layers = self.layers.lock();
            if let Some(item) = layers.live.get(key).or_else(|| layers.frozen.get(key)) {
                return Ok(item.clone());
            }
        }
        Ok(core.root_view().get(key)?.map(|item| item.data().to_vec()))
    }

    /// The items from `from` to `to`, both included, as they will be.
    pub fn range(&self, core: &Core, from: Key, to: Key) -> Result<Found> {
        self.range_past(core, from, to, &mut |_, why| Err(why))
    }

    /// The same; `told` hears of the keys of items that are damaged, and ends it with an error.
    pub fn range_past(
        &self,
        core: &Core,
        from: Key,
        to: Key,
        told: &mut dyn FnMut(Key, Error) -> Result<()>,
    ) -> Result<Found> {
        Ok(self.part_past(core, from..=to, usize::MAX, told)?.0)
    }

    /// The same of the first items in `range`: all of a tree, or of another object, at once, until there are `most`. Where
    /// the others start is returned, if there may be others.
    pub fn part_past(
        &self,
        core: &Core,
        range: RangeInclusive<Key>,
        most: usize,
        told: &mut dyn FnMut(Key, Error) -> Result<()>,
    ) -> Result<(Found, Option<Key>)> {
        let (from, to) = range.into_inner();
        let (live, frozen) = {
            let layers = self.layers.lock();
            let part = |items: &Items| {
                items.range(from..=to).map(|(k, v)| (*k, v.clone())).collect::<Items>()
            };
            (part(&layers.live), part(&layers.frozen))
        };
        let mut items = Found::new();
        let (mut cursor, mut rest) = (core.root_view().range(from, to), None);
        while let Some(met) = cursor.meet()? {
            let object = met.key().objectid;
            if items.len() >= most
                && items.last_key_value().is_some_and(|(last, _)| last.objectid < object)
            {
                rest = Some(Key::new(object, 0, 0));
                break;
            }
            match met {
                Met::Item(item) => drop(items.insert(item.key(), item.data().to_vec())),
                Met::Lost(key, why) => told(key, why)?,
            }
        }
        let here = |key: &Key| rest.is_none_or(|rest| *key < rest);
        for (key, item) in frozen.into_iter().chain(live).filter(|(key, _)| here(key)) {
            match item {
                Some(item) => items.insert(key, item),
                None => items.remove(&key),
            };
        }
        Ok((items, rest))
    }
}
