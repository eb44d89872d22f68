//! What a log needs of transactions: the turn, blocks, and the superblock that names it.
//!
//! A log belongs to the running transaction and is read beside the last commit. It is written while none is under way that is
//! not durable, by whoever has the turn; so the transaction cannot end meanwhile, and operations go on.
//!
//! Crash argument: a version of the log has its blocks where neither the last commit nor the last version of the log has any, and they
//! are durable, with all data that they name, before a superblock names them. A crash leaves the last version or this one. Blocks that
//! only an older version has serve the next one, after that superblock is durable. All of them are let go of by the commit of the
//! transaction, as if the last commit had had them: nobody else gets them before that is durable, and its superblock names no log. So are
//! data that a file has let go of meanwhile: a log may name them. Where a barrier or the superblock fails, nobody knows what is durable,
//! and nothing is written any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_ondisk::build::Stamp;
use buttress_ondisk::{TreeBlock, objectid};
use parking_lot::Mutex;

use super::commit::Sealed;
use super::exchange::NEW_BLOCK_FLAGS;
use super::{Core, Logging, Op};
use crate::error::{Error, Result};
use crate::space::{Range, Space};
use crate::tree::{Exchange, Root};

/// Space that the log of the running transaction keeps from others.
#[derive(Debug, Default)]
pub struct LogSpace {
    /// Addresses of its blocks.
    blocks: Mutex<Vec<u64>>,
    /// Data that files have let go of since there was a log.
    data: Mutex<Vec<Range>>,
    /// There is one, or somebody writes one.
    active: AtomicBool,
}

impl LogSpace {
    /// Data that was allocated in the running transaction is not used any more.
    pub fn release(&self, space: &Space, range: Range) -> Result<()> {
        if !self.active.load(Ordering::Acquire) {
            return space.release(range);
        }
        self.data.lock().push(range);
        Ok(())
    }

    /// Whether there is a log, which a commit has to end.
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// In the commit, after the freeze: what was kept is let go of.
    pub(super) fn end(&self, space: &Space, node: u64) -> Result<()> {
        self.active.store(false, Ordering::Release);
        let blocks = std::mem::take(&mut *self.blocks.lock());
        blocks.into_iter().try_for_each(|start| space.free(Range::new(start, node)))?;
        let data = std::mem::take(&mut *self.data.lock());
        data.into_iter().try_for_each(|range| space.release(range))
    }
}

/// The turn to write a log: no commit is under way, but for what follows after its transaction is durable, and none begins.
#[derive(Debug)]
pub struct LogTurn<'a> {
    core: &'a Core,
    _turn: Logging<'a>,
}

impl<'a> LogTurn<'a> {
    /// Waits for it; `None` when `done` says so, of the last transaction that is durable.
    pub fn wait(core: &'a Core, done: impl Fn(u64) -> bool) -> Option<LogTurn<'a>> {
        core.txn.begin_log(done).map(|turn| LogTurn { core, _turn: turn })
    }

    /// Joins the running transaction: from here on, data that files let go of are kept.
    pub fn join(&self) -> Result<Op<'a>> {
        self.core.log.active.store(true, Ordering::Release);
        self.core.txn.join(self.core)
    }

    /// Writes blocks, has all that was written so far durable, and then has the superblock name `root` as the log.
    pub fn publish(&self, transid: u64, blocks: &[Arc<TreeBlock>], root: Root) -> Result<()> {
        let core = self.core;
        let nodesize = core.features.nodesize as u64;
        let mut blocks = blocks.to_vec();
        blocks.sort_unstable_by_key(|block| block.bytenr());
        for run in blocks.chunk_by(|a, b| a.bytenr() + nodesize == b.bytenr()) {
            let sealed = Sealed::of(core, transid, run)?;
            core.volume.write_parts(run[0].bytenr(), &sealed.parts())?;
        }
        core.env.step("a log is written");
        // An operation beside this one may have panicked, and left half of what it was about to whoever looked next.
        core.txn.check()?;
        let published = core.volume.write_log_root(root.bytenr, root.level).map_err(Error::from);
        // What a failed barrier has lost the next one does not bring back, nor is it known which superblock is there now: no commit
        // can be built upon that.
        published.inspect_err(|error| {
            core.txn.abort(error);
            core.warn(format!(
                "nothing more is written, as a log could not be made durable: {error}"
            ));
        })
    }
}

/// Blocks of the log's trees: those of the version that is durable, and of the one being made.
#[derive(Debug, Default)]
pub struct LogTree {
    /// Blocks that no version has any more.
    spare: Vec<u64>,
    /// Those that only the durable version has.
    replaced: Vec<u64>,
    /// Those that only the new version has.
    new: Vec<Arc<TreeBlock>>,
    /// All that were allocated.
    count: usize,
    /// What the heads of all have in common: the filesystem, and its chunk tree.
    ids: Option<[[u8; 16]; 2]>,
}

impl LogTree {
    /// How many blocks were allocated.
    pub fn count(&self) -> usize {
        self.count
    }

    /// What an exchange of one tree of it takes.
    pub fn exchange<'e>(&'e mut self, core: &'e Core, transid: u64) -> LogExchange<'e> {
        LogExchange { core, transid, blocks: self }
    }

    /// The blocks that the new version does not share with the durable one.
    pub fn new_blocks(&self) -> &[Arc<TreeBlock>] {
        &self.new
    }

    /// The new version is durable.
    pub fn published(&mut self, core: &Core) {
        self.new.drain(..).for_each(|block| core.blocks.let_go(block.bytenr()));
        for bytenr in self.replaced.drain(..) {
            core.blocks.forget(bytenr);
            self.spare.push(bytenr);
        }
    }

    /// It will never be.
    pub fn abandon(&mut self, core: &Core) {
        self.new.drain(..).for_each(|block| core.blocks.forget(block.bytenr()));
    }
}

/// One tree of a log while it is merged.
#[derive(Debug)]
pub struct LogExchange<'e> {
    core: &'e Core,
    transid: u64,
    blocks: &'e mut LogTree,
}

impl Exchange for LogExchange<'_> {
    fn generation(&self) -> u64 {
        self.transid
    }

    fn release(&mut self, old: &Arc<TreeBlock>) -> Result<()> {
        let bytenr = old.bytenr();
        match self.blocks.new.iter().position(|block| block.bytenr() == bytenr) {
            Some(at) => {
                self.blocks.new.swap_remove(at);
                self.core.blocks.forget(bytenr);
                self.blocks.spare.push(bytenr);
            }
            None => self.blocks.replaced.push(bytenr),
        }
        Ok(())
    }

    fn place(&mut self, _level: u8) -> Result<Stamp> {
        let bytenr = match self.blocks.spare.pop() {
            Some(bytenr) => bytenr,
            None => {
                let bytenr = self.core.space.allocate_log_block().ok_or(Error::NoSpace)?;
                self.core.log.blocks.lock().push(bytenr);
                self.blocks.count += 1;
                bytenr
            }
        };
        let volume = &self.core.volume;
        let ids = || [volume.superblock().metadata_fsid(), volume.chunk_tree_uuid()];
        let [fsid, chunk_tree_uuid] = *self.blocks.ids.get_or_insert_with(ids);
        Ok(Stamp {
            fsid,
            chunk_tree_uuid,
            bytenr,
            generation: self.transid,
            owner: objectid::TREE_LOG,
            flags: NEW_BLOCK_FLAGS,
        })
    }

    fn placed(&mut self, block: TreeBlock) -> Result<()> {
        let block = Arc::new(block);
        self.core.blocks.hold(block.clone());
        self.blocks.new.push(block);
        Ok(())
    }
}
