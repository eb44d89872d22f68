//! Leaves that somebody goes through once, for their items of one kind.
//!
//! What the cache has is taken from there. All others are read into the same few buffers again and again, are checked as far as they are looked at, and are not
//! kept: in the cache they would push out what is asked for again, and take new memory for it.

use std::sync::Arc;

use buttress_ondisk::TreeBlock;
use buttress_ondisk::check::Expect;

use super::blocks::Blocks;
use crate::error::Result;

/// Buffers that are kept: as many as there are leaves at a time.
const SPARE_MAX: usize = 2;

/// Reads leaves for their items of one kind: nothing else of them may be looked at but their head.
#[derive(Debug)]
pub struct LeafReader<'a> {
    blocks: &'a Blocks,
    kind: u8,
    spare: Vec<Box<[u8]>>,
}

impl<'a> LeafReader<'a> {
    /// For items of `kind`.
    pub fn new(blocks: &'a Blocks, kind: u8) -> LeafReader<'a> {
        LeafReader { blocks, kind, spare: Vec::new() }
    }

    /// The leaf at `bytenr`, which must be of `generation` and may be any tree's.
    pub fn read(&mut self, bytenr: u64, generation: u64) -> Result<Arc<TreeBlock>> {
        if let Some(known) = self.blocks.find(bytenr, 0, generation, 0) {
            return Ok(known);
        }
        let expect = Expect { generation: Some(generation), ..Expect::at(bytenr) };
        let room = self.spare.pop();
        let room = room.unwrap_or_else(|| vec![0; self.blocks.nodesize()].into_boxed_slice());
        match self.blocks.volume().read_leaf_for(self.kind, bytenr, &expect, room) {
            Some(leaf) => {
                self.blocks.count_read();
                Ok(Arc::new(leaf))
            }
            None => self.blocks.read(bytenr, 0, generation, 0),
        }
    }

    /// Nobody looks at this leaf any more.
    pub fn let_go(&mut self, leaf: Arc<TreeBlock>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.extend(Arc::into_inner(leaf).map(TreeBlock::into_bytes));
        }
    }
}
