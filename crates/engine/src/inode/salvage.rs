//! Directories of which blocks cannot be read, for who reads what is left.

use buttress_ondisk::view::{dir_entries, is_name};
use buttress_ondisk::{Key, kind, objectid};

use super::attributes::mode;
use super::state::{State, Stored};
use super::tree::FileTree;
use super::{Attributes, Inode, TOP};
use crate::error::{Error, Result};
use crate::tree::{Met, Past};
use crate::txn::{Core, Op};

impl FileTree {
    /// A directory whose inode item cannot be read, as its names can, or it is the top one: of nobody but root, and of no time. Of a file nothing is made
    /// up: where it ends is nowhere else.
    pub(super) fn salvaged(&self, core: &Core, ino: u64, why: Error) -> Result<State> {
        let key = |index| Key::new(ino, kind::DIR_INDEX, index);
        let mut names = Past::new(&self.view(core), key(0), key(u64::MAX));
        if ino > objectid::LAST_FREE || ino != TOP && names.meet(&mut |_| Ok(()))?.is_none() {
            return Err(why);
        }
        core.warn(format!(
            "owner, mode and times of directory {ino} of tree {} are lost: {why}",
            self.id
        ));
        let attributes =
            Attributes { mode: mode::DIRECTORY | 0o700, nlink: 1, ..Attributes::default() };
        let mut state = State::loaded(attributes);
        state.stored = Stored::Unknown;
        Ok(state)
    }

    /// The names that a directory has by hash, as far as they can be read, in no order.
    pub fn names_by_hash(
        &self,
        op: &Op<'_>,
        dir: &Inode,
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        if self.root().is_none() {
            return Ok(());
        }
        let key = |hash| Key::new(dir.ino, kind::DIR_ITEM, hash);
        let mut items = Past::new(&self.view(op.core), key(0), key(u64::MAX));
        while let Some(met) = items.meet(&mut |_| Ok(()))? {
            if let Met::Item(item) = met {
                let names = dir_entries(item.data()).map(|entry| entry.name);
                names.filter(|name| is_name(name)).for_each(&mut *each);
            }
        }
        Ok(())
    }
}
