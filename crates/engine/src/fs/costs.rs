//! What subvolumes take: how a pass over them is run beside everything else.
//!
//! A pass is of one version, and must not keep anybody from committing. So it is made in steps, each of which holds the gate for some
//! hundred blocks. What it reads is whole as long as its version is the last one when a step begins: what the next commit lets
//! go of is written over only after a moment in which no operation runs, and the step is one. When a commit has come in
//! between, the pass begins anew, with what is in the cache by then; its answer is always that of one version, never a
//! mixture. Where commits come faster than that, it gives up after some tries and says so. Nothing is kept from being
//! allocated for its sake, as that could make writers run out of space.

use buttress_ondisk::item::RootItem;
use buttress_ondisk::{Key, kind, objectid};

use super::{Filesystem, Inner};
use crate::error::{Errno, Error, Result};
use crate::refs::usage::{Costs, Of, Pass, Progress, Tree};
use crate::tree::View;
use crate::txn::{Core, root_of};

/// Blocks that a step reads, about, before others may end the transaction.
const STEP_BLOCKS: usize = 256;
/// The part of the memory for tree blocks that a pass may have for leaves.
const SHARE: u64 = 4;

/// How often a pass begins anew because a commit was faster.
const TRIES: u32 = 8;

impl Filesystem {
    /// What each subvolume refers to and has for itself, and by [`Costs::freed_by`] what would be free without some of them: of the last
    /// commit, which is made now where there is something to commit. `told` hears how far it is and may end it by `false`: then the
    /// answer is EINTR. EBUSY when commits keep coming faster than it can be counted. Damage ends it, too. Where a log waits
    /// that is only read, it is of what a replay makes of it.
    pub fn subvolume_costs(&self, mut told: impl FnMut(Progress) -> bool) -> Result<Costs> {
        self.inner().commit()?;
        let mut counting = self.count_subvolumes()?;
        while counting.step(self)? {
            if !told(counting.progress()) {
                return Err(Error::User(Errno::INTR));
            }
        }
        Ok(counting.costs())
    }

    /// Begins to count what subvolumes take, in the last commit.
    pub fn count_subvolumes(&self) -> Result<Counting> {
        self.count_subvolumes_within(self.core().room / SHARE)
    }

    /// The same with so many bytes for what is known of leaves.
    #[doc(hidden)]
    pub fn count_subvolumes_within(&self, memory: u64) -> Result<Counting> {
        Counting::begin(self.replayed().inner(), memory)
    }
}

impl Counting {
    fn begin(inner: &Inner, memory: u64) -> Result<Counting> {
        let (pass, generation) = inner.read(|op| begin(op.core, memory))?;
        Ok(Counting { pass, generation, memory, tries: 1 })
    }

    /// Begins with what a pass has of the memory.
    pub(super) fn of(inner: &Inner) -> Result<Counting> {
        Counting::begin(inner, inner.core.room / SHARE)
    }

    /// [`Counting::step`].
    pub(super) fn step_in(&mut self, inner: &Inner) -> Result<bool> {
        inner.read(|op| {
            if op.core.roots().root.generation == self.generation {
                return self.pass.step(&op.core.blocks, STEP_BLOCKS);
            }
            if self.tries == TRIES {
                return Err(Error::User(Errno::BUSY));
            }
            self.tries += 1;
            (self.pass, self.generation) = begin(op.core, self.memory)?;
            Ok(true)
        })
    }
}

/// Counting what subvolumes take, a step at a time, for who has to let others go on in between.
#[derive(Debug)]
pub struct Counting {
    pass: Pass,
    /// The version that it is of.
    generation: u64,
    memory: u64,
    tries: u32,
}

impl Counting {
    /// Goes on a bounded step, in the filesystem in which it was begun; whether there is more to do. EBUSY when commits keep coming
    /// faster than it can be counted. After an error it is of no use.
    pub fn step(&mut self, fs: &Filesystem) -> Result<bool> {
        self.step_in(fs.replayed().inner())
    }

    /// How far it is. It falls back when it has to begin anew.
    pub fn progress(&self) -> Progress {
        self.pass.progress()
    }

    /// The generation of the commit that was counted.
    pub(super) fn version(&self) -> u64 {
        self.generation
    }

    /// What was counted, when nothing is left to do.
    pub fn costs(self) -> Costs {
        self.pass.costs()
    }
}

/// A pass over the last commit, and which that is.
fn begin(core: &Core, memory: u64) -> Result<(Pass, u64)> {
    let (mut trees, mut others) = (Vec::new(), false);
    let from = Key::new(objectid::FS_TREE, kind::ROOT_ITEM, 0);
    let roots = core.roots();
    let view = View::new(&core.blocks, objectid::ROOT_TREE, roots.root);
    let mut items = view.range(from, Key::MAX);
    while let Some(item) = items.next()? {
        let key = item.key();
        if key.kind != kind::ROOT_ITEM {
            continue;
        }
        others |= key.objectid == objectid::TREE_RELOC;
        if let Some(root) = RootItem::read(item.data())
            && objectid::is_subvolume(key.objectid)
            && root.bytenr.get() != 0
        {
            trees.push(tree(key.objectid, &root));
        }
    }
    let extents = View::new(&core.blocks, objectid::EXTENT_TREE, roots.extent);
    let end = extents.last_key(&Key::MAX)?.map_or(0, |key| key.objectid);
    let of = Of { trees, extents: roots.extent, end, others };
    Ok((Pass::new(of, &core.blocks, memory), roots.root.generation))
}

fn tree(id: u64, item: &RootItem) -> Tree {
    Tree {
        id,
        root: root_of(item),
        progress: (item.drop_progress.into(), item.drop_level),
        deleted: item.refs.get() == 0,
    }
}
