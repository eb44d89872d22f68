//! A tree block: the unit in which every tree is read and written.
//!
//! A [`TreeBlock`] is immutable and has passed the gate (or was built by [`crate::build`]), so its accessors do not
//! fail: indices beyond the last slot are the only caller's mistake and panic.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::check::Corruption;
use crate::key::{DiskKey, Key};
use crate::layout::disk;
use crate::{CHILD_LEN, HEADER_LEN, ITEM_LEN};

disk!(
    /// The first 101 bytes of each tree block.
    BlockHead, HEADER_LEN, {
        /// Checksum of all that follows it, padded with zeros.
        csum: [u8; 32],
        /// The metadata uuid of the filesystem.
        fsid: [u8; 16],
        /// The block's own logical address.
        bytenr: U64,
        /// 56 bits of flags, then the backref revision (1) in the top byte.
        flags: U64,
        /// The uuid of the chunk tree.
        chunk_tree_uuid: [u8; 16],
        /// The transaction that wrote it.
        generation: U64,
        /// The tree that wrote it.
        owner: U64,
        /// How many items or children.
        nritems: U32,
        /// 0 for a leaf.
        level: u8,
    }
);

impl BlockHead {
    /// Set in each block once it was written.
    pub const WRITTEN: u64 = 1;
    /// Set while relocation moves the block.
    pub const RELOC: u64 = 2;
    /// The backref revision of every filesystem since 2.6.30.
    pub const MIXED_BACKREF_REV: u64 = 1;
}

disk!(
    /// The head of an item in a leaf: its key and where its data is.
    ItemHead, ITEM_LEN, {
        /// The item's key.
        key: DiskKey,
        /// Where its data starts, counted from the end of the block head.
        offset: U32,
        /// Bytes of its data.
        size: U32,
    }
);

disk!(
    /// A child pointer in a node.
    ChildHead, CHILD_LEN, {
        /// The first key of the child.
        key: DiskKey,
        /// The child's logical address.
        bytenr: U64,
        /// The child's generation.
        generation: U64,
    }
);

/// A child pointer, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildPtr {
    /// The first key of the child.
    pub key: Key,
    /// The child's logical address.
    pub bytenr: u64,
    /// The child's generation.
    pub generation: u64,
}

/// An item that a reader was not given: the gate has left it out of its leaf.
#[derive(Clone, Debug)]
pub struct Lost {
    /// Its key, which is in order in its leaf.
    pub key: Key,
    /// What is wrong with it, and where it is.
    pub why: Arc<Corruption>,
}

/// A checked, immutable tree block.
#[derive(Clone)]
pub struct TreeBlock {
    bytes: Box<[u8]>,
    /// What [`crate::Gate::block_beside`] has left out, by key. Empty for all others, and for whatever is written.
    lost: Box<[Lost]>,
}

impl TreeBlock {
    /// Takes bytes that are known to be well formed: built by us, or past the gate.
    pub(crate) fn trusted(bytes: Box<[u8]>) -> TreeBlock {
        debug_assert!(bytes.len() >= HEADER_LEN);
        TreeBlock { bytes, lost: Box::default() }
    }

    /// The leaf without these of its items (slots in order, and why), which it is known to have. Their data stay where they are, and
    /// nobody finds them.
    pub(crate) fn without(mut self, faults: Vec<(usize, Corruption)>) -> TreeBlock {
        let lost = faults.iter().map(|(slot, _)| *slot);
        let lost: Vec<usize> = lost.collect();
        let keys: Vec<Key> = lost.iter().map(|&slot| self.key(slot)).collect();
        let stay = (0..self.len()).filter(|slot| lost.binary_search(slot).is_err());
        let stay: Vec<usize> = stay.collect();
        for (to, &from) in stay.iter().enumerate() {
            let at = HEADER_LEN + from * ITEM_LEN;
            self.bytes.copy_within(at..at + ITEM_LEN, HEADER_LEN + to * ITEM_LEN);
        }
        let mut head = *self.head();
        head.nritems = (stay.len() as u32).into();
        self.bytes[..HEADER_LEN].copy_from_slice(head.as_bytes());
        let whys = faults.into_iter().map(|(_, why)| Arc::new(why));
        self.lost = keys.into_iter().zip(whys).map(|(key, why)| Lost { key, why }).collect();
        self
    }

    /// Items of the leaf that are not in it here, by key: what is at these keys is damaged, not absent.
    pub fn lost(&self) -> &[Lost] {
        &self.lost
    }

    /// Why there is no item at `key`, if it was left out.
    pub fn lost_at(&self, key: &Key) -> Option<&Lost> {
        let at = self.lost.binary_search_by(|lost| lost.key.cmp(key)).ok()?;
        self.lost.get(at)
    }

    /// Its first key, and its last one, as they are on the disk; `None` when it is empty there.
    pub fn span(&self) -> Option<(Key, Key)> {
        let own = self.len().checked_sub(1).map(|last| (self.key(0), self.key(last)));
        let lost = self.lost.first().zip(self.lost.last()).map(|(a, b)| (a.key, b.key));
        match (own, lost) {
            (Some(own), Some(lost)) => Some((own.0.min(lost.0), own.1.max(lost.1))),
            (own, lost) => own.or(lost),
        }
    }

    /// Its bytes, for another block to be read into.
    pub fn into_bytes(self) -> Box<[u8]> {
        self.bytes
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The whole block, as it stands on the disk.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The block's head.
    pub fn head(&self) -> &BlockHead {
        BlockHead::ref_from_bytes(&self.bytes[..HEADER_LEN])
            .expect("the length is that of the head")
    }

    /// Its logical address.
    pub fn bytenr(&self) -> u64 {
        self.head().bytenr.get()
    }

    /// The transaction that wrote it.
    pub fn generation(&self) -> u64 {
        self.head().generation.get()
    }

    /// The tree that wrote it.
    pub fn owner(&self) -> u64 {
        self.head().owner.get()
    }

    /// Its flags, without the backref revision.
    pub fn flags(&self) -> u64 {
        self.head().flags.get() & ((1 << 56) - 1)
    }

    /// How many items or children it has.
    pub fn len(&self) -> usize {
        self.head().nritems.get() as usize
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its level: 0 is a leaf.
    pub fn level(&self) -> u8 {
        self.head().level
    }

    /// Whether it is a leaf.
    pub fn is_leaf(&self) -> bool {
        self.level() == 0
    }

    fn stride(&self) -> usize {
        if self.is_leaf() { ITEM_LEN } else { CHILD_LEN }
    }

    /// The key in slot `slot`.
    pub fn key(&self, slot: usize) -> Key {
        assert!(slot < self.len(), "slot {slot} of {}", self.len());
        let at = HEADER_LEN + slot * self.stride();
        read_key(&self.bytes[at..at + 17])
    }

    /// The heads of a leaf's items, in order.
    pub fn item_heads(&self) -> &[ItemHead] {
        assert!(self.is_leaf(), "a node has no items");
        let heads = &self.bytes[HEADER_LEN..HEADER_LEN + self.len() * ITEM_LEN];
        <[ItemHead]>::ref_from_bytes(heads).expect("the length is that of the heads")
    }

    /// The head of item `slot` of a leaf.
    pub fn item_head(&self, slot: usize) -> &ItemHead {
        &self.item_heads()[slot]
    }

    /// The data of item `slot` of a leaf.
    pub fn data(&self, slot: usize) -> &[u8] {
        self.data_of(self.item_head(slot))
    }

    /// The data of the item of the leaf that has this head.
    pub fn data_of(&self, head: &ItemHead) -> &[u8] {
        let start = HEADER_LEN + head.offset.get() as usize;
        &self.bytes[start..start + head.size.get() as usize]
    }

    /// Key and data of item `slot` of a leaf.
    pub fn item(&self, slot: usize) -> (Key, &[u8]) {
        (self.key(slot), self.data(slot))
    }

    /// Child `slot` of a node.
    pub fn child(&self, slot: usize) -> ChildPtr {
        assert!(!self.is_leaf() && slot < self.len(), "child {slot} of {}", self.len());
        let at = HEADER_LEN + slot * CHILD_LEN;
        let head = ChildHead::ref_from_bytes(&self.bytes[at..at + CHILD_LEN])
            .expect("the length is that of the head");
        ChildPtr {
            key: head.key.into(),
            bytenr: head.bytenr.get(),
            generation: head.generation.get(),
        }
    }

    /// Where `key` is: `Ok` its slot, or `Err` the slot where it would be inserted.
    pub fn search(&self, key: &Key) -> Result<usize, usize> {
        let stride = self.stride();
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = (low + high) / 2;
            let at = HEADER_LEN + middle * stride;
            match compare(&self.bytes[at..at + 17], key) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// The child of a node under which `key` belongs.
    pub fn child_for(&self, key: &Key) -> usize {
        match self.search(key) {
            Ok(slot) => slot,
            Err(slot) => slot.saturating_sub(1),
        }
    }

    /// Bytes of a leaf used by items, heads included.
    pub fn leaf_used(&self) -> usize {
        match self.len() {
            0 => 0,
            n => {
                let lowest = self.item_head(n - 1).offset.get() as usize;
                n * ITEM_LEN + (self.bytes.len() - HEADER_LEN - lowest)
            }
        }
    }
}

impl fmt::Debug for TreeBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeBlock")
            .field("bytenr", &self.bytenr())
            .field("owner", &self.owner())
            .field("level", &self.level())
            .field("generation", &self.generation())
            .field("len", &self.len())
            .finish()
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

fn read_key(at: &[u8]) -> Key {
    Key { objectid: word(&at[..8]), kind: at[8], offset: word(&at[9..17]) }
}

fn compare(at: &[u8], key: &Key) -> Ordering {
    word(&at[..8])
        .cmp(&key.objectid)
        .then_with(|| at[8].cmp(&key.kind))
        .then_with(|| word(&at[9..17]).cmp(&key.offset))
}
