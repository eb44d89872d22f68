//! What there is to know about subvolumes.

use std::collections::HashMap;

use buttress_ondisk::item::{RootItem, root_flags};
use buttress_ondisk::view::{is_name, root_ref};
use buttress_ondisk::{Key, kind, objectid};

use super::forest::Forest;
use crate::env::Time;
use crate::error::{Errno, Error, Passed, Result};
use crate::txn::Core;

/// Items of the root tree that are looked at before others may end the transaction.
const LISTED_ITEMS: usize = 1024;

/// A subvolume or snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubvolumeInfo {
    /// Its id.
    pub id: u64,
    /// The subvolume that holds it; 0 for the top one.
    pub parent: u64,
    /// The directory that holds it, an inode of `parent`.
    pub dir: u64,
    /// The index of its name there.
    pub index: u64,
    /// Its name; empty for the top one, and for a name that no file can have.
    pub name: Vec<u8>,
    /// The transaction of the last change.
    pub generation: u64,
    /// The transaction of the last change of its content.
    pub ctransid: u64,
    /// The transaction that made it.
    pub otransid: u64,
    /// The transaction when it was sent.
    pub stransid: u64,
    /// The transaction when it was received.
    pub rtransid: u64,
    /// Its uuid, all zeros for none.
    pub uuid: [u8; 16],
    /// The uuid of what it is a snapshot of.
    pub parent_uuid: [u8; 16],
    /// The uuid of what it was received from.
    pub received_uuid: [u8; 16],
    /// Flags of its root item.
    pub flags: u64,
    /// When its content last changed, it was made, sent, received.
    pub times: [Time; 4],
}

impl SubvolumeInfo {
    /// Whether it cannot be changed.
    pub fn is_read_only(&self) -> bool {
        self.flags & root_flags::READ_ONLY != 0
    }
}

impl Forest {
    /// What there is to know about subvolume `id`.
    pub fn info(&self, core: &Core, id: u64) -> Result<SubvolumeInfo> {
        let item = match self.get(core, id) {
            Ok(subvolume) => subvolume.item(),
            Err(error) => return Err(error),
        };
        let from = Key::new(id, kind::ROOT_BACKREF, 0);
        let backref = self.pending.range(core, from, Key { offset: u64::MAX, ..from })?;
        let place =
            backref.iter().next().and_then(|(key, data)| Some((key.offset, root_ref(data)?)));
        if place.is_none() && id != objectid::FS_TREE {
            return Err(Error::User(Errno::NOENT));
        }
        let (parent, dir, index, name) = match place {
            Some((parent, (head, name))) => {
                let name = if is_name(name) { name } else { b"" };
                (parent, head.dirid.get(), head.sequence.get(), name.to_vec())
            }
            None => (0, 0, 0, Vec::new()),
        };
        Ok(describe(id, &item, parent, dir, index, name))
    }

    /// Some of all subvolumes but the top one, by id, `from` the first on; which is the first of the others, if there may be
    /// others. `told` hears what is passed over, and ends it with an error.
    pub fn list(
        &self,
        core: &Core,
        from: u64,
        told: &mut dyn FnMut(Passed) -> Result<()>,
    ) -> Result<(Vec<SubvolumeInfo>, Option<u64>)> {
        let first = Key::new(from.max(objectid::FIRST_FREE), 0, 0);
        let last = Key::new(objectid::LAST_FREE, u8::MAX, u64::MAX);
        // What is here now stays here while it is listed, so that none is missed which is published meanwhile.
        let loaded = self.loaded();
        let mut lost = |key: Key, why| match key.kind {
            kind::ROOT_ITEM | kind::ROOT_BACKREF => told(Passed::Unreadable(why)),
            _ => Ok(()),
        };
        let (items, rest) = self.pending.part_past(core, first..=last, LISTED_ITEMS, &mut lost)?;
        let mut roots: HashMap<u64, RootItem> = HashMap::new();
        let mut found = Vec::new();
        for (key, data) in &items {
            if key.kind == kind::ROOT_ITEM
                && let Some(item) = RootItem::of_subvolume(data)
            {
                roots.insert(key.objectid, item);
            }
        }
        for subvolume in loaded {
            roots.insert(subvolume.id, subvolume.item());
        }
        for (key, data) in &items {
            if key.kind != kind::ROOT_BACKREF {
                continue;
            }
            let (Some(item), Some((head, name))) = (roots.get(&key.objectid), root_ref(data))
            else {
                continue;
            };
            if item.refs.get() > 0 && !is_name(name) {
                told(Passed::name(objectid::ROOT_TREE, key, name))?;
            } else if item.refs.get() > 0 {
                let (dir, index) = (head.dirid.get(), head.sequence.get());
                found.push(describe(key.objectid, item, key.offset, dir, index, name.to_vec()));
            }
        }
        Ok((found, rest.map(|rest| rest.objectid)))
    }
}

fn describe(
    id: u64,
    item: &RootItem,
    parent: u64,
    dir: u64,
    index: u64,
    name: Vec<u8>,
) -> SubvolumeInfo {
    SubvolumeInfo {
        id,
        parent,
        dir,
        index,
        name,
        generation: item.generation.get(),
        ctransid: item.ctransid.get(),
        otransid: item.otransid.get(),
        stransid: item.stransid.get(),
        rtransid: item.rtransid.get(),
        uuid: item.uuid,
        parent_uuid: item.parent_uuid,
        received_uuid: item.received_uuid,
        flags: item.flags.get(),
        times: [&item.ctime, &item.otime, &item.stime, &item.rtime].map(Time::from_disk),
    }
}
