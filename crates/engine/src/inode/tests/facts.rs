//! What must hold in every published tree, read from its items alone.

use std::collections::{BTreeMap, BTreeSet};

use buttress_codec::crc32c::{extref_hash, name_hash};
use buttress_ondisk::item::InodeItem;
use buttress_ondisk::view::{dir_entries, inode_extrefs, inode_refs};
use buttress_ondisk::{Key, kind, objectid};

use crate::tree::View;

/// directory, name, inode
type Link = (u64, Vec<u8>, u64);

/// What the items of a tree say.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub inodes: BTreeMap<u64, InodeItem>,
    pub by_hash: BTreeSet<Link>,
    pub by_index: BTreeSet<(Link, u64)>,
    pub by_inode: BTreeSet<(Link, u64)>,
    pub xattrs: BTreeMap<(u64, Vec<u8>), Vec<u8>>,
    pub orphans: BTreeSet<u64>,
}

impl Facts {
    pub fn of(view: &View<'_>) -> Facts {
        let mut facts = Facts::default();
        let mut cursor = view.range(Key::MIN, Key::MAX);
        let mut last = None;
        while let Some(item) = cursor.next().unwrap() {
            let key = item.key();
            assert!(last < Some(key), "{key} after {last:?}");
            last = Some(key);
            facts.note(key, item.data());
        }
        facts
    }

    fn note(&mut self, key: Key, data: &[u8]) {
        let ino = key.objectid;
        match key.kind {
            kind::INODE_ITEM => drop(self.inodes.insert(ino, *InodeItem::of(data).unwrap())),
            kind::INODE_REF => {
                for it in inode_refs(data) {
                    self.by_inode.insert(((key.offset, it.name.to_vec(), ino), it.index));
                }
            }
            kind::INODE_EXTREF => {
                for it in inode_extrefs(data) {
                    assert_eq!(key.offset, extref_hash(it.parent, it.name));
                    self.by_inode.insert(((it.parent, it.name.to_vec(), ino), it.index));
                }
            }
            kind::XATTR_ITEM => {
                for it in dir_entries(data) {
                    assert_eq!(key.offset, name_hash(it.name));
                    self.xattrs.insert((ino, it.name.to_vec()), it.data.to_vec());
                }
            }
            kind::DIR_ITEM => {
                for it in dir_entries(data) {
                    assert_eq!(key.offset, name_hash(it.name));
                    self.by_hash.insert((ino, it.name.to_vec(), it.location.objectid));
                }
            }
            kind::DIR_INDEX => {
                let mut entries = dir_entries(data);
                let it = entries.next().unwrap();
                assert!(entries.next().is_none());
                self.by_index.insert(((ino, it.name.to_vec(), it.location.objectid), key.offset));
            }
            kind::ORPHAN_ITEM => {
                assert_eq!((ino, data), (objectid::ORPHAN, &[][..]));
                self.orphans.insert(key.offset);
            }
            kind::EXTENT_DATA => {}
            other => panic!("an item of kind {other}"),
        }
    }

    /// Names agree in all three places, link counts and directory sizes with them, orphan items with inodes without names.
    pub fn check(&self) {
        let mut links: BTreeSet<(Link, u64)> = self.by_inode.clone();
        assert!(links.remove(&((256, b"..".to_vec(), 256), 0)));
        assert_eq!(self.by_index, links);
        assert_eq!(self.by_hash, links.into_iter().map(|(link, _)| link).collect());
        let mut counts: BTreeMap<u64, u32> = BTreeMap::from([(256, 1)]);
        let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
        for (dir, name, ino) in &self.by_hash {
            *counts.entry(*ino).or_default() += 1;
            *sizes.entry(*dir).or_default() += 2 * name.len() as u64;
            assert!(self.inodes.contains_key(ino) && self.inodes.contains_key(dir));
        }
        for (ino, item) in &self.inodes {
            let count = counts.get(ino).copied().unwrap_or(0);
            assert_eq!(item.nlink.get(), count, "links of inode {ino}");
            assert_eq!(count == 0, self.orphans.contains(ino), "orphan item of inode {ino}");
            if item.mode.get() & 0o170_000 == 0o040_000 {
                let size = sizes.remove(ino).unwrap_or(0);
                assert_eq!(item.size.get(), size, "size of directory {ino}");
            }
        }
        assert!(sizes.is_empty(), "entries in what is no directory: {sizes:?}");
        assert!(self.orphans.iter().all(|ino| self.inodes.contains_key(ino)));
        assert!(self.xattrs.keys().all(|(ino, _)| self.inodes.contains_key(ino)));
    }
}
