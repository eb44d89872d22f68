//! Inodes, their names, and the entries of directories.

use std::collections::BTreeSet;
use std::sync::Arc;

use buttress_ondisk::item::{InodeItem, file_type, mode};
use buttress_ondisk::view::{FileExtentItem, dir_entries, inode_extrefs, inode_refs};
use buttress_ondisk::{Key, kind};

use buttress_codec::crc32c::extref_hash;

use super::Replay;
use crate::error::Result;
use crate::inode::{Entry, Inode, ListedEntry, Location, LoggedName, TOP};

/// Entries that are looked at at a time.
const LIST_LEN: usize = 256;
/// Leaves that a name may touch: two of its directory, the inodes of both, and one that holds the rest of a long inode.
const NAME_LEAVES: u32 = 5;

impl Replay<'_> {
    /// Stage 1: what the log does not have goes, then the inode becomes what it says.
    pub(super) fn inode(&mut self, ino: u64, item: &InodeItem) -> Result<()> {
        let is = |wanted| item.mode.get() & mode::TYPE_MASK == wanted;
        if let Some(inode) = self.tree.find(self.op, ino)? {
            // No number is given again while the last commit has it.
            if !is(inode.attributes_now().mode & mode::TYPE_MASK) {
                let key = Key::new(ino, kind::INODE_ITEM, 0);
                return Err(self.wrong("a log makes an inode what it is not", key));
            }
            let log = self.log;
            self.tree.replay_lost_xattrs(self.op, &inode, |name, hash| {
                let item = log.get(&Key::new(ino, kind::XATTR_ITEM, hash.into()))?;
                Ok(item.is_some_and(|item| dir_entries(item.data()).any(|it| it.name == name)))
            })?;
            if is(mode::DIRECTORY) && inode.attributes_now().is_directory() {
                self.lost_entries(&inode)?;
            }
        }
        if is(mode::SYMLINK) {
            self.must_have_target(ino, item)?;
        }
        let inode = self.tree.replay_inode(self.op, ino, item)?;
        if is(mode::REGULAR) {
            self.tree.replay_end(self.op, &inode)?;
        }
        self.linked.insert(ino);
        Ok(())
    }

    /// A symbolic link is as long as its target, which comes with it or is there already: nothing changes it. Of one of which only the
    /// existence was logged (its generation is 0 then) the log has no length, but such a one is there.
    fn must_have_target(&self, ino: u64, item: &InodeItem) -> Result<()> {
        let key = Key::new(ino, kind::EXTENT_DATA, 0);
        let there = self.tree.find(self.op, ino)?.map(|there| there.attributes_now().size);
        let target = match self.log.get(&key)? {
            Some(target) => match FileExtentItem::read(target.data()) {
                Some(FileExtentItem::Inline { ram_bytes, compression: 0, data, .. }) => {
                    Some(ram_bytes).filter(|len| *len == data.len() as u64)
                }
                _ => None,
            },
            None => there,
        };
        let len = there.filter(|_| item.generation.get() == 0).unwrap_or(item.size.get());
        match len > 0 && target == Some(len) {
            true => Ok(()),
            false => Err(self.wrong("a log has a symbolic link without its target", key)),
        }
    }

    /// Removes the entries that the log would have if they were there still.
    fn lost_entries(&mut self, dir: &Arc<Inode>) -> Result<()> {
        let key = |index| Key::new(dir.ino, kind::DIR_LOG_INDEX, index);
        let mut ranges = self.log.range(key(0), key(u64::MAX));
        while let Some(item) = ranges.next()? {
            let end = item.data().get(..8).and_then(|it| it.try_into().ok());
            let end = end.map(u64::from_le_bytes);
            let end = end.ok_or_else(|| self.wrong("a range of a log is too short", item.key()))?;
            self.remove_entries(dir, (item.key().offset, end), true)?;
        }
        Ok(())
    }

    /// Removes entries in a range of indexes: those that the log does not have, or all.
    fn remove_entries(
        &mut self,
        dir: &Arc<Inode>,
        (mut from, to): (u64, u64),
        unless_logged: bool,
    ) -> Result<()> {
        loop {
            let some = self.tree.list_some(self.op, dir, (from, to), LIST_LEN)?;
            for (index, name, entry) in &some {
                if !unless_logged || !self.has_entry(dir.ino, *index, name)? {
                    self.drop_entry(dir, name, *entry)?;
                }
            }
            let next = some.last().and_then(|(index, ..): &ListedEntry| index.checked_add(1));
            match next.filter(|next| *next <= to && some.len() == LIST_LEN) {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    fn has_entry(&self, dir: u64, index: u64, name: &[u8]) -> Result<bool> {
        let item = self.log.get(&Key::new(dir, kind::DIR_INDEX, index))?;
        Ok(item.is_some_and(|item| dir_entries(item.data()).any(|it| it.name == name)))
    }

    /// Takes an entry away, and the name from the inode that it leads to.
    fn drop_entry(&mut self, dir: &Arc<Inode>, name: &[u8], entry: Entry) -> Result<()> {
        let key = Key::new(dir.ino, kind::DIR_INDEX, 0);
        let Location::Inode(ino) = entry.location else {
            return Err(self.wrong("a log takes a subvolume's name away", key));
        };
        let inode = self.must_have(ino, key)?;
        self.linked.insert(ino);
        self.unlink(dir, &inode, name)
    }

    fn unlink(&mut self, dir: &Arc<Inode>, inode: &Arc<Inode>, name: &[u8]) -> Result<()> {
        self.need(NAME_LEAVES, 0, 0)?;
        self.tree.replay_unlink(self.op, dir, inode, name)
    }

    /// An inode without which the log makes no sense.
    pub(super) fn must_have(&self, ino: u64, key: Key) -> Result<Arc<Inode>> {
        let found = self.tree.find(self.op, ino)?;
        found.ok_or_else(|| self.wrong("a log needs an inode that is not there", key))
    }

    // ---- stage 2 ----

    /// An entry of a directory.
    pub(super) fn entry(&mut self, key: &Key, data: &[u8]) -> Result<()> {
        let logged = dir_entries(data).next();
        let logged = logged.ok_or_else(|| self.wrong("a directory index is empty", *key))?;
        let dir = self.must_have(key.objectid, *key)?;
        // New subvolumes are never in a log, and those that the directory has are not changed by one.
        if logged.location.kind != kind::INODE_ITEM {
            return Ok(());
        }
        let ino = logged.location.objectid;
        let target = self.tree.find(self.op, ino)?;
        // The inode knows best of what kind it is.
        let known = target.as_ref().map(|target| target.attributes_now().file_type());
        let file_type = known.unwrap_or(logged.file_type);
        let wanted = Entry { location: Location::Inode(ino), file_type };
        let named = self.tree.find_name(self.op, &dir, logged.name)?;
        let index = self.tree.find_index(self.op, &dir, key.offset)?;
        let at_index = index.filter(|(name, _)| name == logged.name).map(|(_, entry)| entry);
        if named == Some(wanted) {
            // Where only the index is another, the name comes with the inode's own, if at all.
            return Ok(());
        }
        if let (Some(other), Some(_)) = (named.or(at_index), &target) {
            self.drop_entry(&dir, logged.name, other)?;
        }
        // It comes with the inode's own names.
        if self.has_reference(ino, key.objectid, logged.name)? {
            return Ok(());
        }
        let Some(target) = target else { return Ok(()) };
        self.need(NAME_LEAVES, 3 * data.len(), 0)?;
        let name = LoggedName { index: key.offset, name: logged.name };
        self.tree.replay_entry(self.op, &dir, name, wanted)?;
        self.tree.replay_reference(self.op, &target, dir.ino, name)?;
        match file_type {
            file_type::DIRECTORY => self.named.insert(ino),
            _ => self.linked.insert(ino),
        };
        Ok(())
    }

    /// Whether the log has this name among those of the inode itself.
    fn has_reference(&self, ino: u64, parent: u64, name: &[u8]) -> Result<bool> {
        if let Some(item) = self.log.get(&Key::new(ino, kind::INODE_REF, parent))?
            && inode_refs(item.data()).any(|it| it.name == name)
        {
            return Ok(true);
        }
        let key = Key::new(ino, kind::INODE_EXTREF, extref_hash(parent, name));
        let Some(item) = self.log.get(&key)? else { return Ok(false) };
        Ok(inode_extrefs(item.data()).any(|it| it.parent == parent && it.name == name))
    }

    // ---- stage 3 ----

    /// Names of an inode, as it knows them itself: in these directories it has no others.
    pub(super) fn references(&mut self, key: &Key, data: &[u8]) -> Result<()> {
        let ino = key.objectid;
        if key.kind == kind::INODE_REF {
            // The top directory knows itself as its parent.
            if ino == key.offset {
                return Ok(());
            }
            let names: Vec<_> = inode_refs(data).map(|it| (it.index, it.name)).collect();
            return self.names_in(ino, key.offset, &names, key);
        }
        for it in inode_extrefs(data) {
            self.names_in(ino, it.parent, &[(it.index, it.name)], key)?;
        }
        Ok(())
    }

    fn names_in(&mut self, ino: u64, parent: u64, names: &[(u64, &[u8])], key: &Key) -> Result<()> {
        // Not every directory is logged; what cannot be found by any name is deleted when links are counted.
        let Some(dir) = self.tree.find(self.op, parent)? else { return Ok(()) };
        let inode = self.must_have(ino, *key)?;
        let known = self.tree.names_of(self.op, &inode)?;
        for (_, _, name) in known.iter().filter(|it| it.0 == parent) {
            // A log need not have all items of an inode's names. What it has of one replaces that one.
            let is_extref = self.tree.is_extref(self.op, &inode, parent, name)?;
            let same_item = match key.kind {
                kind::INODE_REF => !is_extref,
                _ => is_extref && extref_hash(parent, name) == key.offset,
            };
            if same_item && !self.has_reference(ino, parent, name)? {
                self.linked.insert(ino);
                self.unlink(&dir, &inode, name)?;
            }
        }
        let file_type = inode.attributes_now().file_type();
        let wanted = Entry { location: Location::Inode(ino), file_type };
        if file_type == file_type::DIRECTORY {
            self.named.insert(ino);
        }
        for &(index, name) in names {
            self.need(NAME_LEAVES, 3 * name.len() + 80, 0)?;
            let logged = LoggedName { index, name };
            if !self.is_entry(&dir, logged, ino)? {
                if let Some(other) = self.tree.find_name(self.op, &dir, name)? {
                    self.drop_entry(&dir, name, other)?;
                }
                self.tree.replay_entry(self.op, &dir, logged, wanted)?;
            }
            self.tree.replay_reference(self.op, &inode, parent, logged)?;
        }
        Ok(())
    }

    /// Whether a directory has just this entry.
    fn is_entry(&self, dir: &Inode, name: LoggedName<'_>, ino: u64) -> Result<bool> {
        let at = self.tree.find_index(self.op, dir, name.index)?;
        let leads = |entry: &Entry| entry.location == Location::Inode(ino);
        if !at.is_some_and(|(found, entry)| found == name.name && leads(&entry)) {
            return Ok(false);
        }
        Ok(self.tree.find_name(self.op, dir, name.name)?.is_some_and(|entry| leads(&entry)))
    }

    // ---- at the end ----

    /// Counts the links of all inodes that have been touched. A directory that is nowhere takes its entries with it.
    pub(super) fn count_links(&mut self) -> Result<()> {
        while let Some(ino) = self.linked.pop_last() {
            let Some(inode) = self.tree.find(self.op, ino)? else { continue };
            self.need(2, 0, 0)?;
            let links = self.tree.replay_links(self.op, &inode)?;
            if links == 0 && inode.attributes_now().is_directory() {
                self.remove_entries(&inode, (0, u64::MAX), false)?;
            }
        }
        Ok(())
    }

    /// A directory has one name, and is not below itself: who walks through a subvolume that is said to be otherwise finds no end.
    pub(super) fn check_directories(&self) -> Result<()> {
        if self.named.contains(&TOP) {
            let key = Key::new(TOP, kind::INODE_REF, 0);
            return Err(self.wrong("a log gives the top directory a name", key));
        }
        let mut reached = BTreeSet::from([TOP]);
        for &ino in &self.named {
            let (mut at, mut way) = (ino, BTreeSet::new());
            while !reached.contains(&at) {
                let key = Key::new(at, kind::INODE_REF, 0);
                if !way.insert(at) {
                    return Err(self.wrong("a log has a directory below itself", key));
                }
                let inode = self.must_have(at, key)?;
                let names = self.tree.names_of(self.op, &inode)?;
                match names.as_slice() {
                    // It is deleted.
                    [] => break,
                    [(parent, ..)] => at = *parent,
                    _ => return Err(self.wrong("a log gives a directory another name", key)),
                }
            }
            reached.append(&mut way);
        }
        Ok(())
    }
}
