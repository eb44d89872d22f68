//! Building tree blocks: leaves and nodes are filled once, front to back, and then never change.

use zerocopy::{FromBytes, IntoBytes};

use crate::block::{BlockHead, ChildHead, ChildPtr, ItemHead, TreeBlock};
use crate::key::Key;
use crate::{CHILD_LEN, HEADER_LEN, ITEM_LEN};

/// What goes into the head of a block when it is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The metadata uuid of the filesystem.
    pub fsid: [u8; 16],
    /// The uuid of the chunk tree.
    pub chunk_tree_uuid: [u8; 16],
    /// The block's logical address.
    pub bytenr: u64,
    /// The transaction that writes it.
    pub generation: u64,
    /// The tree that writes it.
    pub owner: u64,
    /// Flags such as [`BlockHead::WRITTEN`].
    pub flags: u64,
}

fn stamp(bytes: &mut [u8], stamp: &Stamp, len: usize, level: u8) {
    let head = BlockHead {
        csum: [0; 32],
        fsid: stamp.fsid,
        bytenr: stamp.bytenr.into(),
        flags: (stamp.flags | BlockHead::MIXED_BACKREF_REV << 56).into(),
        chunk_tree_uuid: stamp.chunk_tree_uuid,
        generation: stamp.generation.into(),
        owner: stamp.owner.into(),
        nritems: (len as u32).into(),
        level,
    };
    bytes[..HEADER_LEN].copy_from_slice(head.as_bytes());
}

/// Fills a leaf, in key order.
#[derive(Debug)]
pub struct LeafBuilder {
    bytes: Box<[u8]>,
    len: usize,
    /// Where the data of the last item starts, counted from the start of the block.
    data: usize,
}

impl LeafBuilder {
    /// An empty leaf of `nodesize` bytes.
    pub fn new(nodesize: usize) -> LeafBuilder {
        LeafBuilder { bytes: vec![0; nodesize].into_boxed_slice(), len: 0, data: nodesize }
    }

    /// Bytes that items may take, heads included, in a leaf of `nodesize`.
    pub const fn room(nodesize: usize) -> usize {
        nodesize - HEADER_LEN
    }

    /// How many items it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes left for further items, heads included.
    pub fn free(&self) -> usize {
        self.data - (HEADER_LEN + self.len * ITEM_LEN)
    }

    /// The last key, if any.
    pub fn last_key(&self) -> Option<Key> {
        (self.len > 0).then(|| self.key(self.len - 1))
    }

    /// The first key, if any.
    pub fn first_key(&self) -> Option<Key> {
        (self.len > 0).then(|| self.key(0))
    }

    fn key(&self, slot: usize) -> Key {
        let at = HEADER_LEN + slot * ITEM_LEN;
        let head = ItemHead::ref_from_bytes(&self.bytes[at..at + ITEM_LEN]).expect("sized");
        head.key.into()
    }

    /// Appends an item and returns its data to be filled in, or `None` (and nothing changes) when it does not fit.
    pub fn push_uninit(&mut self, key: Key, size: usize) -> Option<&mut [u8]> {
        debug_assert!(
            self.last_key().is_none_or(|last| last < key),
            "{:?} before {key}",
            self.last_key()
        );
        if self.free() < ITEM_LEN + size {
            return None;
        }
        self.data -= size;
        let head = ItemHead {
            key: key.into(),
            offset: ((self.data - HEADER_LEN) as u32).into(),
            size: (size as u32).into(),
        };
        let at = HEADER_LEN + self.len * ITEM_LEN;
        self.bytes[at..at + ITEM_LEN].copy_from_slice(head.as_bytes());
        self.len += 1;
        Some(&mut self.bytes[self.data..self.data + size])
    }

    /// Appends an item; `false` (and nothing changes) when it does not fit.
    pub fn push(&mut self, key: Key, data: &[u8]) -> bool {
        match self.push_uninit(key, data.len()) {
            Some(room) => {
                room.copy_from_slice(data);
                true
            }
            None => false,
        }
    }

    /// Appends slots `from..to` of another leaf, as many as fit; returns the first slot not taken.
    pub fn push_range(&mut self, block: &TreeBlock, from: usize, to: usize) -> usize {
        for slot in from..to {
            let (key, data) = block.item(slot);
            if !self.push(key, data) {
                return slot;
            }
        }
        to
    }

    /// The finished leaf; its checksum is still zero.
    pub fn finish(mut self, head: &Stamp) -> TreeBlock {
        stamp(&mut self.bytes, head, self.len, 0);
        TreeBlock::trusted(self.bytes)
    }
}

/// Fills a node, in key order.
#[derive(Debug)]
pub struct NodeBuilder {
    bytes: Box<[u8]>,
    len: usize,
}

impl NodeBuilder {
    /// An empty node of `nodesize` bytes.
    pub fn new(nodesize: usize) -> NodeBuilder {
        NodeBuilder { bytes: vec![0; nodesize].into_boxed_slice(), len: 0 }
    }

    /// How many children a node of `nodesize` bytes holds.
    pub const fn capacity(nodesize: usize) -> usize {
        (nodesize - HEADER_LEN) / CHILD_LEN
    }

    /// How many children it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a child; `false` when the node is full.
    pub fn push(&mut self, child: &ChildPtr) -> bool {
        if self.len == NodeBuilder::capacity(self.bytes.len()) {
            return false;
        }
        let head = ChildHead {
            key: child.key.into(),
            bytenr: child.bytenr.into(),
            generation: child.generation.into(),
        };
        let at = HEADER_LEN + self.len * CHILD_LEN;
        self.bytes[at..at + CHILD_LEN].copy_from_slice(head.as_bytes());
        self.len += 1;
        true
    }

    /// The finished node of `level` (1 or more); its checksum is still zero.
    pub fn finish(mut self, level: u8, head: &Stamp) -> TreeBlock {
        stamp(&mut self.bytes, head, self.len, level);
        TreeBlock::trusted(self.bytes)
    }
}

impl TreeBlock {
    /// The same items under another head; the checksum is zero again.
    pub fn stamped(mut self, head: &Stamp) -> TreeBlock {
        let (len, level) = (self.len(), self.level());
        stamp(self.bytes_mut(), head, len, level);
        self
    }

    /// The same block with `csum` in its head.
    pub fn sealed(mut self, csum: &[u8]) -> TreeBlock {
        let bytes = self.bytes_mut();
        bytes[..32].fill(0);
        bytes[..csum.len()].copy_from_slice(csum);
        self
    }
}
