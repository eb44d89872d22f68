//! What subvolumes take: how a pass over them is run beside everything else.

use buttress_ondisk::item::RootItem;
use buttress_ondisk::{Key, kind, objectid};

use super::Filesystem;
use crate::error::{Errno, Error, Result};
use crate::refs::usage::{Costs, Of, Pass, Progress, Tree};
use crate::txn::{Core, root_of};

/// Blocks that a step reads, about, before others may end the transaction.
const STEP_BLOCKS: usize = 256;
/// The part of the memory for tree blocks that a pass may have for leaves.
const SHARE: u64 = 4;

impl Filesystem {
    /// What each subvolume refers to and has for itself, and by [`Costs::freed_by`] what would be free without some of them: of the last
    /// commit, which is made now where there is something to commit. `told` hears how far it is and may end it by `false`: then the
    /// answer is EINTR. Damage ends it, too.
    pub fn subvolume_costs(&self, mut told: impl FnMut(Progress) -> bool) -> Result<Costs> {
        let inner = self.inner();
        inner.commit()?;
        let mut pass = inner.read(|op| begin(op.core))?;
        while inner.read(|op| pass.step(&op.core.blocks, STEP_BLOCKS))? {
            if !told(pass.progress()) {
                return Err(Error::User(Errno::INTR));
            }
        }
        Ok(pass.costs())
    }
}

/// A pass over the last commit.
fn begin(core: &Core) -> Result<Pass> {
    let (mut trees, mut others) = (Vec::new(), false);
    let from = Key::new(objectid::FS_TREE, kind::ROOT_ITEM, 0);
    let mut items = core.root_view().range(from, Key::MAX);
    while let Some(item) = items.next()? {
        let key = item.key();
        if key.kind != kind::ROOT_ITEM {
            continue;
        }
        others |= key.objectid == objectid::TREE_RELOC;
        if let Some(root) = RootItem::read(item.data())
            && objectid::is_subvolume(key.objectid)
        {
            trees.push(tree(key.objectid, &root));
        }
    }
    let end = core.extent_view().last_key(&Key::MAX)?.map_or(0, |key| key.objectid);
    let of = Of { trees, extents: core.roots().extent, end, others };
    Ok(Pass::new(of, &core.blocks, core.room / SHARE))
}

fn tree(id: u64, item: &RootItem) -> Tree {
    Tree {
        id,
        root: root_of(item),
        progress: (item.drop_progress.into(), item.drop_level),
        deleted: item.refs.get() == 0,
    }
}
