//! Reading the logs that wait.
//!
//! All of their blocks pass the gate before anything is done with what they say. How much memory replay takes follows from how much
//! they say, so a log has to be small enough for the memory that there is; Linux commits long before it writes one as large.

use std::collections::BTreeSet;

use buttress_ondisk::item::RootItem;
use buttress_ondisk::{Key, TreeBlock, kind, objectid};

use crate::error::{Error, Result, Unsupported};
use crate::space::{Class, Range};
use crate::tree::{Root, View};
use crate::txn::{Core, root_of};

/// Of the memory for blocks and for what waits, logs may take this part: as layers, what they say takes about twice as much.
const SHARE: u64 = 4;

/// The log of one subvolume.
#[derive(Clone, Copy, Debug)]
pub struct Log<'a> {
    /// The subvolume.
    pub subvolume: u64,
    /// Its items.
    pub view: View<'a>,
}

/// The logs of a filesystem.
#[derive(Debug)]
pub struct Logs<'a> {
    /// One for each subvolume that has any, the largest number first.
    pub logs: Vec<Log<'a>>,
    /// Addresses of all their blocks.
    blocks: BTreeSet<u64>,
}

/// Goes over all blocks of a tree, each once.
struct Walk<'c> {
    core: &'c Core,
    blocks: BTreeSet<u64>,
    most: u64,
}

impl Walk<'_> {
    fn tree(&mut self, view: &View<'_>) -> Result<()> {
        self.below(view, &*view.root_block()?)
    }

    /// As deep as the tree has levels.
    fn below(&mut self, view: &View<'_>, block: &TreeBlock) -> Result<()> {
        let node = self.core.features.nodesize as u64;
        let wrong = |what| Err(Error::inconsistent(objectid::TREE_LOG, what, block.bytenr()));
        if !self.blocks.insert(block.bytenr()) {
            return wrong("a block of a log belongs to it twice");
        }
        if self.blocks.len() as u64 > self.most / node {
            return Err(Error::Unsupported(Unsupported::LargeLog));
        }
        if let Some(lost) = block.lost().first() {
            return Err(Error::Corrupt(lost.why.clone()));
        }
        match block.is_leaf() {
            true => Ok(()),
            false => {
                (0..block.len()).try_for_each(|slot| self.below(view, &*view.child(block, slot)?))
            }
        }
    }
}

/// The logs that the superblock names; `None` when it names none.
pub fn waiting(core: &Core) -> Result<Option<Logs<'_>>> {
    let superblock = core.volume.superblock();
    if superblock.log_root.get() == 0 {
        return Ok(None);
    }
    let root = Root {
        bytenr: superblock.log_root.get(),
        generation: superblock.generation.get().saturating_add(1),
        level: superblock.log_root_level,
    };
    let list = View::new(&core.blocks, objectid::TREE_LOG, root);
    let mut walk = Walk { core, blocks: BTreeSet::new(), most: core.room / SHARE };
    walk.tree(&list)?;
    let mut logs = Vec::new();
    let key = |id| Key::new(objectid::TREE_LOG, kind::ROOT_ITEM, id);
    let mut items = list.range(key(0), key(u64::MAX));
    while let Some(item) = items.next()? {
        let what = "a log has a root item that is too short";
        let found = RootItem::read(item.data())
            .ok_or_else(|| Error::inconsistent(objectid::TREE_LOG, what, item.key()))?;
        let view = View::new(&core.blocks, objectid::TREE_LOG, root_of(&found));
        walk.tree(&view)?;
        logs.push(Log { subvolume: item.key().offset, view });
    }
    logs.reverse();
    Ok(Some(Logs { logs, blocks: walk.blocks }))
}

impl Logs<'_> {
    fn ranges<'s>(&'s self, core: &'s Core) -> impl Iterator<Item = Range> + 's {
        let node = core.features.nodesize as u64;
        self.blocks.iter().map(move |&start| Range::new(start, node))
    }

    /// Keeps everybody from their blocks: until the superblock names them no more, a crash has them replayed again.
    pub fn claim(&self, core: &Core) -> Result<()> {
        self.ranges(core).try_for_each(|range| core.space.claim(range, Class::Metadata))
    }

    /// They are done with: their blocks are free.
    pub fn give_back(self, core: &Core) -> Result<()> {
        self.ranges(core).try_for_each(|range| {
            core.blocks.forget(range.start);
            core.space.give_back(range)
        })
    }
}
