//! The gate: the one place where bytes become tree blocks and superblocks.
//!
//! Every member of a block is checked here, so that no other code has to: the head (checksum, address, uuid, level,
//! generation, owner), the order of the keys, the layout of the data, and then each item by its kind. The rules are
//! those that the kernel enforces when it reads a block; a few more bound what a reader would have to allocate. Whether a name
//! can be one is for whoever uses it to ask ([`crate::view::is_name`]): it is no reason to lose what lies beside it.
//! A refusal is a [`Corruption`]: where, what, what was found and what had to be there.

mod chunk;
mod extent;
mod inode;
mod leaf;
mod root;
mod superblock;
#[cfg(test)]
mod tests;

use std::fmt;

use buttress_codec::ChecksumKind;
use zerocopy::FromBytes;

use crate::block::{BlockHead, TreeBlock};
use crate::build::NodeBuilder;
use crate::key::{Key, objectid};
use crate::superblock::{Superblock, super_flags};
use crate::{HEADER_LEN, ITEM_LEN, LEVELS_MAX};

pub use superblock::superblock;

/// Which part of the bytes is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CorruptionKind {
    /// The checksum does not match.
    Checksum,
    /// The head of the block, or what the parent said about it.
    Header,
    /// The layout of a leaf.
    Leaf,
    /// A child pointer of a node.
    Node,
    /// An item of a leaf.
    Item,
    /// The superblock.
    Superblock,
}

/// Bytes that cannot be what they claim to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Corruption {
    /// Which part is wrong.
    pub kind: CorruptionKind,
    /// The tree that owns the block; 0 where unknown.
    pub root: u64,
    /// Logical address of the block (of a superblock: its offset on the device).
    pub block: u64,
    /// The item or child.
    pub slot: Option<usize>,
    /// The rule that is broken.
    pub what: &'static str,
    /// What was found.
    pub have: String,
    /// What had to be there.
    pub expect: String,
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (block, root) = (self.block, self.root);
        match self.kind {
            CorruptionKind::Superblock => write!(f, "corrupt superblock: offset={block}")?,
            CorruptionKind::Leaf | CorruptionKind::Item => {
                write!(f, "corrupt leaf: root={root} block={block}")?
            }
            CorruptionKind::Node => write!(f, "corrupt node: root={root} block={block}")?,
            CorruptionKind::Checksum | CorruptionKind::Header => {
                write!(f, "corrupt tree block: root={root} block={block}")?
            }
        }
        if let Some(slot) = self.slot {
            write!(f, " slot={slot}")?;
        }
        write!(f, ", {}, have {} expect {}", self.what, self.have, self.expect)
    }
}

/// A broken rule, before it is known where.
#[derive(Debug)]
pub(crate) struct Fault {
    what: &'static str,
    have: String,
    expect: String,
}

impl Fault {
    #[cold]
    fn new(what: &'static str, have: impl fmt::Display, expect: impl fmt::Display) -> Fault {
        Fault { what, have: have.to_string(), expect: expect.to_string() }
    }

    #[cold]
    fn at(self, kind: CorruptionKind, root: u64, block: u64, slot: Option<usize>) -> Corruption {
        let Fault { what, have, expect } = self;
        Corruption { kind, root, block, slot, what, have, expect }
    }
}

type Checked = Result<(), Fault>;

/// `Err` when `ok` does not hold.
macro_rules! ensure {
    ($ok:expr, $what:expr, $have:expr, $expect:expr $(,)?) => {
        if !$ok {
            return Err($crate::check::Fault::new($what, $have, $expect));
        }
    };
}
pub(crate) use ensure;

/// Whether a tree id is that of a subvolume, and no qgroup of a higher level (their ids share the number space).
fn is_subvolume(id: u64) -> bool {
    objectid::is_subvolume(id) && id >> 48 == 0
}

/// Whether a block of tree `owner` may be met in tree `wanted`: subvolumes share blocks, and a balance may have moved them.
pub fn may_own(owner: u64, wanted: u64) -> bool {
    match wanted {
        0 | objectid::TREE_RELOC => true,
        id if objectid::is_subvolume(id) => is_subvolume(owner) || owner == objectid::TREE_RELOC,
        id => owner == id,
    }
}

/// What the reader of a block knows about it beforehand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expect {
    /// Its logical address.
    pub bytenr: u64,
    /// Its level.
    pub level: Option<u8>,
    /// Its generation.
    pub generation: Option<u64>,
    /// The tree it was found in. Blocks of subvolumes are shared between them, so for those it is only checked that
    /// the block belongs to some subvolume.
    pub owner: Option<u64>,
    /// Its first key.
    pub first_key: Option<Key>,
}

impl Expect {
    /// Only the address is known.
    pub fn at(bytenr: u64) -> Expect {
        Expect { bytenr, ..Expect::default() }
    }
}

/// Bad items that a leaf may have for the others to be read: with more of them it is no leaf with a bad item, and what is kept of each
/// takes more memory than the item.
const LOST_MAX: usize = 16;

/// What all blocks of one filesystem have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// The checksum of the filesystem.
    pub csum: ChecksumKind,
    /// The uuid that its tree blocks carry.
    pub metadata_fsid: [u8; 16],
    /// Bytes of a tree block.
    pub nodesize: u32,
    /// Bytes of a sector.
    pub sectorsize: u32,
    /// Incompatible features.
    pub incompat: u64,
    /// Whether it was restored from a dump of metadata, whose names need not have their hashes: a dump may hide names.
    pub metadump: bool,
    /// Whether blocks pass whatever their checksums say: for who only reads, and has found no copy that passes otherwise.
    pub unverified: bool,
    /// Generation of the superblock. One more is accepted: tree logs are written ahead of it.
    pub generation_max: u64,
}

impl Gate {
    /// The gate for the filesystem of a (checked) superblock.
    pub fn of(sb: &Superblock) -> Gate {
        let dumps = super_flags::METADUMP | super_flags::METADUMP_V2;
        Gate {
            csum: ChecksumKind::from_u16(sb.csum_type.get()).unwrap_or(ChecksumKind::Crc32c),
            metadata_fsid: sb.metadata_fsid(),
            nodesize: sb.nodesize.get(),
            sectorsize: sb.sectorsize.get(),
            incompat: sb.incompat_flags.get(),
            metadump: sb.flags.get() & dumps != 0,
            unverified: false,
            generation_max: sb.generation.get(),
        }
    }

    /// The last generation that may appear anywhere.
    fn newest(&self) -> u64 {
        self.generation_max.saturating_add(1)
    }

    fn aligned(&self, value: u64) -> bool {
        // It is a power of two.
        value & u64::from(self.sectorsize.saturating_sub(1)) == 0
    }

    fn feature(&self, bit: u64) -> bool {
        self.incompat & bit != 0
    }

    /// Lets a block through when every member of it is well formed.
    pub fn block(&self, bytes: Box<[u8]>, expect: &Expect) -> Result<TreeBlock, Corruption> {
        self.admit(bytes, expect, None)
    }

    /// Lets a leaf through for who looks at its items of one kind and at nothing else in it: the data of other items are not looked at, here
    /// neither. So nobody else must get it, and it must never be written.
    pub fn leaf_for(
        &self,
        kind: u8,
        bytes: Box<[u8]>,
        expect: &Expect,
    ) -> Result<TreeBlock, Corruption> {
        self.admit(bytes, &Expect { level: Some(0), ..*expect }, Some(kind))
    }

    fn admit(
        &self,
        bytes: Box<[u8]>,
        expect: &Expect,
        only: Option<u8>,
    ) -> Result<TreeBlock, Corruption> {
        let root = expect.owner.unwrap_or(0);
        let head = self
            .size(&bytes)
            .map_err(|fault| fault.at(CorruptionKind::Header, root, expect.bytenr, None))?;
        let root = expect.owner.unwrap_or(head.owner.get());
        let at = |kind| move |fault: Fault| fault.at(kind, root, expect.bytenr, None);
        self.checksum(&bytes, &head).map_err(at(CorruptionKind::Checksum))?;
        self.head(&head, expect).map_err(at(CorruptionKind::Header))?;
        let block = TreeBlock::trusted(bytes);
        self.content(&block, root, only)?;
        self.first_key(&block, expect).map_err(at(CorruptionKind::Header))?;
        Ok(block)
    }

    /// For who only reads: lets a leaf through, too, in which everything but some items is well formed, without those. Where they were
    /// is known ([`TreeBlock::lost`]), so that nobody takes them for absent. What is made of such a block must never be written.
    pub fn block_beside(&self, bytes: Box<[u8]>, expect: &Expect) -> Result<TreeBlock, Corruption> {
        let refused = match self.block(bytes.clone(), expect) {
            Err(refused) if refused.kind == CorruptionKind::Item => refused,
            other => return other,
        };
        let block = TreeBlock::trusted(bytes);
        let root = expect.owner.unwrap_or(block.owner());
        leaf::frame(self, &block, root)?;
        self.first_key(&block, expect)
            .map_err(|fault| fault.at(CorruptionKind::Header, root, expect.bytenr, None))?;
        let bad = leaf::bad_items(self, &block, root);
        if bad.is_empty() || bad.len() > LOST_MAX {
            return Err(refused);
        }
        Ok(block.without(bad))
    }

    /// Checks a block that is to be written, all but its checksum, which it gets then.
    pub fn verify(&self, block: &TreeBlock, expect: &Expect) -> Result<(), Corruption> {
        if let Some(lost) = block.lost().first() {
            return Err((*lost.why).clone());
        }
        let root = expect.owner.unwrap_or(block.owner());
        let head = self.size(block.as_bytes()).and_then(|head| self.head(&head, expect));
        head.map_err(|fault| fault.at(CorruptionKind::Header, root, expect.bytenr, None))?;
        self.content(block, root, None)
    }

    /// For tools that rescue what they can: checks only what makes the block walkable (size, level, number of items,
    /// where their data is), neither checksum nor head nor items. Read its items with [`crate::view`].
    pub fn salvage(&self, bytes: Box<[u8]>) -> Result<TreeBlock, Corruption> {
        let fail = |fault: Fault| fault.at(CorruptionKind::Header, 0, 0, None);
        let head = self.size(&bytes).map_err(fail)?;
        let level = head.level;
        if usize::from(level) >= LEVELS_MAX {
            return Err(fail(Fault::new(
                "level too high",
                level,
                format_args!("below {LEVELS_MAX}"),
            )));
        }
        self.head_len(&head).map_err(fail)?;
        let block = TreeBlock::trusted(bytes);
        let inside = |slot| {
            let item = block.item_head(slot);
            let end = u64::from(item.offset.get()) + u64::from(item.size.get());
            end + HEADER_LEN as u64 <= u64::from(self.nodesize)
        };
        if block.is_leaf()
            && let Some(slot) = (0..block.len()).find(|&slot| !inside(slot))
        {
            let fault = Fault::new("item data outside the block", slot, "data inside");
            return Err(fault.at(
                CorruptionKind::Leaf,
                head.owner.get(),
                head.bytenr.get(),
                Some(slot),
            ));
        }
        Ok(block)
    }

    fn size(&self, bytes: &[u8]) -> Result<BlockHead, Fault> {
        ensure!(
            bytes.len() == self.nodesize as usize,
            "wrong block size",
            bytes.len(),
            self.nodesize
        );
        match BlockHead::read_from_prefix(bytes) {
            Ok((head, _)) => Ok(head),
            Err(_) => Err(Fault::new("wrong block size", bytes.len(), HEADER_LEN)),
        }
    }

    fn checksum(&self, bytes: &[u8], head: &BlockHead) -> Checked {
        if self.unverified {
            return Ok(());
        }
        let digest = self.csum.digest(bytes.get(32..).unwrap_or_default());
        let stored = &head.csum[..digest.len()];
        ensure!(
            stored == digest.as_bytes(),
            "checksum mismatch",
            format_args!("0x{}", Hex(stored)),
            digest
        );
        Ok(())
    }

    fn head(&self, head: &BlockHead, expect: &Expect) -> Checked {
        let bytenr = head.bytenr.get();
        ensure!(bytenr == expect.bytenr, "wrong address", bytenr, expect.bytenr);
        ensure!(
            self.aligned(bytenr),
            "address not aligned",
            bytenr,
            format_args!("a multiple of {}", self.sectorsize)
        );
        ensure!(
            head.fsid == self.metadata_fsid,
            "wrong fsid",
            uuid::Uuid::from_bytes(head.fsid),
            uuid::Uuid::from_bytes(self.metadata_fsid)
        );
        ensure!(
            usize::from(head.level) < LEVELS_MAX,
            "level too high",
            head.level,
            format_args!("below {LEVELS_MAX}")
        );
        if let Some(level) = expect.level {
            ensure!(head.level == level, "wrong level", head.level, level);
        }
        self.head_ages(head, expect)?;
        self.head_owner(head.owner.get(), expect)?;
        self.head_len(head)
    }

    fn head_ages(&self, head: &BlockHead, expect: &Expect) -> Checked {
        let generation = head.generation.get();
        if let Some(wanted) = expect.generation {
            ensure!(generation == wanted, "wrong generation", generation, wanted);
        }
        ensure!(
            generation <= self.newest(),
            "generation from the future",
            generation,
            format_args!("at most {}", self.newest())
        );
        ensure!(
            head.flags.get() & BlockHead::WRITTEN != 0,
            "block not marked as written",
            format_args!("flags {:#x}", head.flags.get()),
            "the flag WRITTEN"
        );
        Ok(())
    }

    fn head_owner(&self, owner: u64, expect: &Expect) -> Checked {
        let Some(wanted) = expect.owner else { return Ok(()) };
        let fits = may_own(owner, wanted);
        if objectid::is_subvolume(wanted) {
            ensure!(fits, "wrong owner", owner, "a subvolume");
        }
        ensure!(fits, "wrong owner", owner, wanted);
        Ok(())
    }

    fn head_len(&self, head: &BlockHead) -> Checked {
        let len = head.nritems.get() as usize;
        let size = self.nodesize as usize;
        let most = match head.level {
            0 => size.saturating_sub(HEADER_LEN) / ITEM_LEN,
            _ => NodeBuilder::capacity(size),
        };
        ensure!(len <= most, "too many items", len, format_args!("at most {most}"));
        Ok(())
    }

    fn content(&self, block: &TreeBlock, root: u64, only: Option<u8>) -> Result<(), Corruption> {
        if block.is_leaf() {
            return leaf::check(self, block, root, only);
        }
        let fail = |slot| {
            move |fault: Fault| fault.at(CorruptionKind::Node, root, block.bytenr(), Some(slot))
        };
        if block.is_empty() {
            return Err(fail(0)(Fault::new("node without children", 0, "one or more")));
        }
        (0..block.len()).try_for_each(|slot| self.child(block, slot).map_err(fail(slot)))
    }

    fn child(&self, block: &TreeBlock, slot: usize) -> Checked {
        let child = block.child(slot);
        ensure!(child.bytenr != 0, "null child address", 0, "an address");
        ensure!(
            self.aligned(child.bytenr),
            "child address not aligned",
            child.bytenr,
            format_args!("a multiple of {}", self.sectorsize)
        );
        ensure!(
            child.generation <= self.newest(),
            "child from the future",
            child.generation,
            format_args!("at most {}", self.newest())
        );
        if let Some(before) = slot.checked_sub(1) {
            let before = block.key(before);
            ensure!(
                before < child.key,
                "keys out of order",
                child.key,
                format_args!("above {before}")
            );
        }
        Ok(())
    }

    fn first_key(&self, block: &TreeBlock, expect: &Expect) -> Checked {
        let Some(wanted) = expect.first_key else { return Ok(()) };
        ensure!(!block.is_empty(), "no first key", "none", wanted);
        ensure!(block.key(0) == wanted, "wrong first key", block.key(0), wanted);
        Ok(())
    }
}

/// Bytes in hexadecimal.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
