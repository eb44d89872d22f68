//! The module under a commit that keeps its blocks in memory: operations, layers, emission and publishing, step by step.

mod blocks;
mod data;
mod early;
mod facts;
mod in_place;
pub(super) mod model;
mod operations;
mod threads;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_device::{Access, BlockDevice, MemoryDevice};
use buttress_ondisk::TreeBlock;
use buttress_ondisk::build::Stamp;
use buttress_volume::Volume;

use super::{FileTree, Inode, NewInode, NewKind, Step, TOP};
use crate::env::{Env, Time};
use crate::error::{Errno, Result};
use crate::refs::RefLog;
use crate::space::{Space, SpaceRoots};
use crate::tree::{Blocks, Exchange, Merge, Root, View};
use crate::txn::{Core, CsumLog, Emit, Features, Op, Roots};

/// The tree's id in these tests.
const TREE: u64 = 256;

/// Places blocks one after the other and keeps them in the cache.
struct Placer<'a> {
    blocks: &'a Blocks,
    next: &'a AtomicU64,
    generation: u64,
}

impl Exchange for Placer<'_> {
    fn generation(&self) -> u64 {
        self.generation
    }

    fn release(&mut self, _old: &Arc<TreeBlock>) -> Result<()> {
        Ok(())
    }

    fn place(&mut self, _level: u8) -> Result<Stamp> {
        let bytenr = self.next.fetch_add(self.blocks.nodesize() as u64, Ordering::Relaxed);
        let (fsid, chunk_tree_uuid) = ([1; 16], [2; 16]);
        let (generation, owner) = (self.generation, TREE);
        Ok(Stamp { fsid, chunk_tree_uuid, bytenr, generation, owner, flags: 1 })
    }

    fn placed(&mut self, block: TreeBlock) -> Result<()> {
        self.blocks.hold(Arc::new(block));
        Ok(())
    }
}

/// A tree, and what operations and commits of it need.
struct Lab {
    core: Core,
    tree: FileTree,
    next_block: AtomicU64,
}

impl Lab {
    /// A committed tree that holds its top directory only.
    fn new(nodesize: u32) -> Lab {
        let core = core(nodesize);
        let tree = FileTree::open(&core, TREE, None, false).unwrap();
        let lab = Lab { core, tree, next_block: AtomicU64::new(1 << 40) };
        lab.op(|op| lab.tree.create_top(op, 0o755, 0, 0, None));
        lab.commit();
        lab
    }

    fn op<R>(&self, work: impl FnOnce(&Op<'_>) -> R) -> R {
        let op = self.core.txn.join(&self.core).unwrap();
        let done = work(&op);
        while let Some(mut leaving) = self.tree.take_leaving() {
            while self.tree.let_go(&op, &mut leaving, 3).unwrap() == Step::Again {}
        }
        done
    }

    fn top(&self) -> Arc<Inode> {
        self.get(TOP)
    }

    fn get(&self, ino: u64) -> Arc<Inode> {
        self.op(|op| self.tree.get(op, ino)).unwrap()
    }

    fn freeze(&self) -> u64 {
        self.core
            .txn
            .freeze(|_| {
                self.tree.freeze();
            })
            .unwrap()
    }

    /// Steps 2 and 3 of a commit; publishing is left to the caller.
    fn emit(&self, transid: u64) -> Root {
        self.tree.prepare(&self.core, transid).unwrap();
        self.emit_prepared(transid)
    }

    fn emit_prepared(&self, transid: u64) -> Root {
        let blocks = &self.core.blocks;
        let mut placer = Placer { blocks, next: &self.next_block, generation: transid };
        let mut merge = Merge::new(blocks, TREE, self.tree.root(), &mut placer).unwrap();
        let (mut refs, mut csums) = (RefLog::default(), CsumLog::default());
        let mut emit = Emit {
            merge: &mut merge,
            refs: &mut refs,
            csums: &mut csums,
            core: &self.core,
            transid,
            tree: TREE,
            meanwhile: &|| Ok(()),
        };
        self.tree.emit(&mut emit).unwrap();
        merge.finish().unwrap()
    }

    fn commit(&self) {
        let transid = self.freeze();
        let root = self.emit(transid);
        self.tree.publish(root);
        self.tree.settle();
    }

    /// As after a crash: what was not committed is lost.
    fn reopen(&mut self) {
        self.tree = FileTree::open(&self.core, TREE, self.tree.root(), false).unwrap();
    }

    fn view(&self) -> View<'_> {
        View::new(&self.core.blocks, TREE, self.tree.root().unwrap())
    }

    fn create(&self, dir: &Arc<Inode>, name: &[u8], kind: NewKind<'_>) -> Result<Arc<Inode>> {
        let new = NewInode { kind, permissions: 0o644, uid: 1000, gid: 100 };
        self.op(|op| self.tree.create(op, dir, name, &new))
    }
}

fn core(nodesize: u32) -> Core {
    core_on(Arc::new(MemoryDevice::new(256 << 20)), nodesize)
}

fn core_on(device: Arc<dyn BlockDevice>, nodesize: u32) -> Core {
    let options = buttress_mkfs::Options { nodesize: Some(nodesize), ..Default::default() };
    let mut random = buttress_mkfs::Environment::seeded(1);
    buttress_mkfs::make(&*device, &options, &mut random).unwrap();
    let volume = Volume::open(vec![device], Access::ReadWrite).unwrap().volume;
    let ticks = AtomicU64::new(1_000_000_000);
    let clock = move || Time { sec: ticks.fetch_add(1, Ordering::Relaxed) as i64, nsec: 5 };
    let env = Env::new(clock, |bytes| bytes.fill(7));
    open_core(Blocks::new(Arc::new(volume), 8 << 20), env)
}

fn open_core(blocks: Blocks, env: Env) -> Core {
    let volume = blocks.volume().clone();
    let features = Features::of(&volume.superblock(), volume.checksum_kind());
    let roots = Roots::load(&blocks, &volume.superblock()).unwrap();
    let places = SpaceRoots {
        extent: roots.extent,
        free_space: roots.free_space,
        block_group: roots.block_group,
        device: roots.dev,
        chunk: roots.chunk,
    };
    let space = Space::load(&blocks, &places, true).unwrap();
    Core::new(blocks, space, features, env, roots, false)
}

fn errno<T>(result: Result<T>) -> Option<Errno> {
    result.err().map(|error| error.errno())
}
