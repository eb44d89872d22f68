//! Tree blocks and whole trees, as `dump-tree` prints them.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, Write};

use super::names::{Flags, KeyText, ObjectText};
use super::{Style, print_item, uuid};
use crate::block::{BlockHead, ChildPtr, TreeBlock};
use crate::build::NodeBuilder;
use crate::check::{Expect, Gate};
use crate::item::RootItem;
use crate::key::{Key, kind, objectid};
use crate::superblock::Superblock;
use crate::{HEADER_LEN, ITEM_LEN};

/// Reads tree blocks for a dump: `None` for a block that cannot be read.
pub type Source<'a> = &'a mut dyn FnMut(&Expect) -> Option<TreeBlock>;

/// What `dump-tree` prints: its options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DumpTree {
    /// `-e`: only extent and device trees.
    pub extents: bool,
    /// `-d`: only root, chunk and device trees.
    pub device: bool,
    /// `-r`: only where each tree is.
    pub roots: bool,
    /// `-R`: as `-r`, and the backups of roots in the superblock.
    pub backups: bool,
    /// `-u`: only the uuid tree.
    pub uuid: bool,
    /// `-t`: only this tree, see [`tree_by_name`].
    pub tree: Option<u64>,
    /// `-b`: only these blocks; they are printed in the order of their addresses.
    pub blocks: Vec<u64>,
    /// `--follow`: with `blocks`, everything below them too.
    pub follow: bool,
    /// `--dfs`: a child before its next sibling; otherwise level by level.
    pub dfs: bool,
    /// How blocks are printed.
    pub style: Style,
}

/// The tree id that `-t` means: a number, or a name in any case, with or without `BTRFS_` before it and `_TREE` or
/// `_TREE_OBJECTID` after it.
pub fn tree_by_name(name: &str) -> Option<u64> {
    const NAMES: [(&str, u64); 16] = [
        ("ROOT", objectid::ROOT_TREE),
        ("EXTENT", objectid::EXTENT_TREE),
        ("CHUNK", objectid::CHUNK_TREE),
        ("DEVICE", objectid::DEV_TREE),
        ("DEV", objectid::DEV_TREE),
        ("FS", objectid::FS_TREE),
        ("CSUM", objectid::CSUM_TREE),
        ("CHECKSUM", objectid::CSUM_TREE),
        ("QUOTA", objectid::QUOTA_TREE),
        ("UUID", objectid::UUID_TREE),
        ("FREE_SPACE", objectid::FREE_SPACE_TREE),
        ("TREE_LOG_FIXUP", objectid::TREE_LOG_FIXUP),
        ("TREE_LOG", objectid::TREE_LOG),
        ("TREE_RELOC", objectid::TREE_RELOC),
        ("DATA_RELOC", objectid::DATA_RELOC_TREE),
        ("BLOCK_GROUP", objectid::BLOCK_GROUP_TREE),
    ];
    if let Ok(number) = name.parse::<u64>() {
        return (number > 0).then_some(number);
    }
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix("BTRFS_").unwrap_or(&upper);
    let bare = bare.strip_suffix("_OBJECTID").unwrap_or(bare);
    let found = |bare: &str| NAMES.iter().find(|(name, _)| *name == bare).map(|(_, id)| *id);
    found(bare).or_else(|| found(bare.strip_suffix("_TREE")?))
}

/// Prints one block.
pub fn print_block(
    out: &mut dyn Write,
    block: &TreeBlock,
    gate: &Gate,
    style: &Style,
) -> io::Result<()> {
    let (bytenr, len, generation) = (block.bytenr(), block.len(), block.generation());
    let owner = ObjectText(block.owner(), 0);
    let size = block.as_bytes().len();
    let kind = if block.is_leaf() { "leaf" } else { "node" };
    if block.is_leaf() {
        let free = size as i64 - HEADER_LEN as i64 - block.leaf_used() as i64;
        write!(out, "leaf {bytenr} items {len} free space {free} ")?;
    } else {
        let free = NodeBuilder::capacity(size).saturating_sub(len);
        write!(out, "node {bytenr} level {} items {len} free space {free} ", block.level())?;
    }
    writeln!(out, "generation {generation} owner {owner}")?;
    head(out, kind, block, gate, style)?;
    for slot in 0..block.len() {
        if block.is_leaf() {
            leaf_item(out, block, slot, gate, style)?;
        } else {
            let ChildPtr { key, bytenr, generation } = block.child(slot);
            writeln!(out, "\t{} block {bytenr} gen {generation}", KeyText(key))?;
        }
    }
    out.flush()
}

const BLOCK_FLAGS: [(u64, &str); 2] =
    [(BlockHead::WRITTEN, "WRITTEN"), (BlockHead::RELOC, "RELOC")];

fn head(
    out: &mut dyn Write,
    kind: &str,
    block: &TreeBlock,
    gate: &Gate,
    style: &Style,
) -> io::Result<()> {
    let (bytenr, flags) = (block.bytenr(), block.flags());
    let revision = block.head().flags.get() >> 56;
    write!(out, "{kind} {bytenr} flags 0x{flags:x}({}) ", Flags(flags, &BLOCK_FLAGS, "none"))?;
    write!(out, "backref revision {revision}")?;
    if style.csum_headers {
        write!(out, " csum 0x")?;
        let csum = &block.head().csum[..gate.csum.size()];
        csum.iter().try_for_each(|byte| write!(out, "{byte:02x}"))?;
    }
    writeln!(out)?;
    writeln!(out, "fs uuid {}", uuid(block.head().fsid))?;
    writeln!(out, "chunk uuid {}", uuid(block.head().chunk_tree_uuid))
}

fn leaf_item(
    out: &mut dyn Write,
    block: &TreeBlock,
    slot: usize,
    gate: &Gate,
    style: &Style,
) -> io::Result<()> {
    debug_assert!(block.len() * ITEM_LEN < block.as_bytes().len());
    let (key, head) = (block.key(slot), block.item_head(slot));
    let (offset, size) = (head.offset, head.size);
    writeln!(out, "\titem {slot} {} itemoff {offset} itemsize {size}", KeyText(key))?;
    print_item(out, &key, block.data(slot), gate, style)
}

/// Prints a block and, with `follow`, everything below it. Returns the addresses that could not be read.
pub fn dump_block(
    out: &mut dyn Write,
    block: &TreeBlock,
    gate: &Gate,
    source: Source<'_>,
    options: &DumpTree,
) -> io::Result<Vec<u64>> {
    let mut lost = Vec::new();
    print_block(out, block, gate, &options.style)?;
    let mut queue: VecDeque<(ChildPtr, u8)> = children(block).collect();
    while let Some((child, level)) = queue.pop_front() {
        let expect = Expect {
            bytenr: child.bytenr,
            level: Some(level),
            generation: Some(child.generation),
            owner: None,
            first_key: None,
        };
        let Some(block) = source(&expect) else {
            lost.push(child.bytenr);
            continue;
        };
        print_block(out, &block, gate, &options.style)?;
        if options.dfs {
            let below: Vec<_> = children(&block).collect();
            below.into_iter().rev().for_each(|child| queue.push_front(child));
        } else {
            queue.extend(children(&block));
        }
    }
    Ok(lost)
}

/// The children of a node, with their level; none of a leaf.
fn children(block: &TreeBlock) -> impl Iterator<Item = (ChildPtr, u8)> {
    let len = if block.is_leaf() { 0 } else { block.len() };
    (0..len).map(|slot| (block.child(slot), block.level().saturating_sub(1)))
}

/// Prints what `options` ask for. Returns the addresses of blocks that could not be read.
pub fn dump_tree(
    out: &mut dyn Write,
    sb: &Superblock,
    source: Source<'_>,
    options: &DumpTree,
) -> io::Result<Vec<u64>> {
    writeln!(out, "btrfs-progs v6.2")?;
    let mut dump = Dump { out, gate: Gate::of(sb), sb, source, options, lost: Vec::new() };
    dump.run()?;
    Ok(dump.lost)
}

struct Dump<'a> {
    out: &'a mut dyn Write,
    gate: Gate,
    sb: &'a Superblock,
    source: Source<'a>,
    options: &'a DumpTree,
    lost: Vec<u64>,
}

/// A tree with a root item: its key, address, level and generation.
struct Found {
    key: Key,
    root: Expect,
}

impl Dump<'_> {
    fn run(&mut self) -> io::Result<()> {
        if !self.options.blocks.is_empty() {
            return self.blocks();
        }
        let (tops, options) = (self.tops(), self.options);
        if let Some(id) = options.tree
            && let Some((name, top)) =
                tops.iter().find(|(name, _)| Some(*name) == top_name(id)).copied()
        {
            writeln!(self.out, "{name}")?;
            return self.tree(&top);
        }
        if !options.extents && !options.uuid && options.tree.is_none() {
            self.print_tops(&tops)?;
        }
        for (name, top) in &tops {
            if *name != "chunk tree" {
                self.listed(top)?;
            }
        }
        if options.extents || options.device || options.uuid {
            return Ok(());
        }
        if options.backups {
            self.backups()?;
        }
        writeln!(self.out, "total bytes {}", self.sb.total_bytes)?;
        writeln!(self.out, "bytes used {}", self.sb.bytes_used)?;
        writeln!(self.out, "uuid {}", uuid(self.sb.fsid))
    }

    fn blocks(&mut self) -> io::Result<()> {
        let sorted: BTreeSet<u64> = self.options.blocks.iter().copied().collect();
        for bytenr in sorted {
            let Some(block) = (self.source)(&Expect::at(bytenr)) else {
                self.lost.push(bytenr);
                continue;
            };
            self.print(&block, self.options.follow)?;
        }
        Ok(())
    }

    fn print(&mut self, block: &TreeBlock, follow: bool) -> io::Result<()> {
        if !follow {
            return print_block(self.out, block, &self.gate, &self.options.style);
        }
        let lost = dump_block(self.out, block, &self.gate, self.source, self.options)?;
        self.lost.extend(lost);
        Ok(())
    }

    fn read(&mut self, expect: &Expect) -> Option<TreeBlock> {
        let block = (self.source)(expect);
        if block.is_none() {
            self.lost.push(expect.bytenr);
        }
        block
    }

    fn tree(&mut self, root: &Expect) -> io::Result<()> {
        match self.read(root) {
            Some(block) => self.print(&block, true),
            None => Ok(()),
        }
    }

    /// The trees that the superblock points to, in the order of printing.
    fn tops(&self) -> Vec<(&'static str, Expect)> {
        let top = |bytenr, level, generation| Expect {
            bytenr,
            level: Some(level),
            generation,
            ..Expect::default()
        };
        let sb = self.sb;
        let mut tops = vec![
            ("root tree", top(sb.root.get(), sb.root_level, Some(sb.generation.get()))),
            (
                "chunk tree",
                top(sb.chunk_root.get(), sb.chunk_root_level, Some(sb.chunk_root_generation.get())),
            ),
        ];
        if sb.log_root.get() != 0 {
            tops.push(("log root tree", top(sb.log_root.get(), sb.log_root_level, None)));
        }
        tops
    }

    fn print_tops(&mut self, tops: &[(&'static str, Expect)]) -> io::Result<()> {
        for (name, top) in tops {
            if self.options.roots || self.options.backups {
                let level = top.level.unwrap_or(0);
                writeln!(self.out, "{name}: {} level {level}", top.bytenr)?;
            } else {
                writeln!(self.out, "{name}")?;
                self.tree(top)?;
            }
        }
        Ok(())
    }

    /// Prints the trees whose root items are in the tree at `top`.
    fn listed(&mut self, top: &Expect) -> io::Result<()> {
        for found in self.root_items(top) {
            let (name, options) = (tree_name(found.key.objectid), self.options);
            let wanted = match options {
                DumpTree { tree: Some(id), .. } => found.key.objectid == *id,
                DumpTree { extents: true, .. } => matches!(name, "extent" | "device"),
                DumpTree { device: true, .. } => name == "device",
                DumpTree { uuid: true, .. } => name == "uuid",
                _ => true,
            };
            if wanted {
                write!(self.out, "{name} tree {}", KeyText(found.key))?;
                self.one(&found)?;
            }
        }
        Ok(())
    }

    fn one(&mut self, found: &Found) -> io::Result<()> {
        let options = self.options;
        if options.roots || options.backups {
            let level = found.root.level.unwrap_or(0);
            return writeln!(self.out, " {} level {level}", found.root.bytenr);
        }
        if options.extents {
            writeln!(self.out)?;
            return self.leaves(&found.root);
        }
        writeln!(self.out, " ")?;
        self.tree(&found.root)
    }

    /// Prints only the leaves of a tree.
    fn leaves(&mut self, root: &Expect) -> io::Result<()> {
        let mut stack = vec![*root];
        while let Some(expect) = stack.pop() {
            let Some(block) = self.read(&expect) else { continue };
            if block.is_leaf() {
                self.print(&block, false)?;
            }
            let below: Vec<_> =
                children(&block).map(|(child, level)| under(&child, level)).collect();
            stack.extend(below.into_iter().rev());
        }
        Ok(())
    }

    fn root_items(&mut self, top: &Expect) -> Vec<Found> {
        let mut found = Vec::new();
        let mut stack = vec![*top];
        while let Some(expect) = stack.pop() {
            let Some(block) = self.read(&expect) else { continue };
            let below: Vec<_> =
                children(&block).map(|(child, level)| under(&child, level)).collect();
            stack.extend(below.into_iter().rev());
            if block.is_leaf() {
                found.extend((0..block.len()).filter_map(|slot| root_of(&block, slot)));
            }
        }
        found
    }

    fn backups(&mut self) -> io::Result<()> {
        for (index, it) in self.sb.root_backups.iter().enumerate() {
            writeln!(self.out, "btrfs root backup slot {index}")?;
            writeln!(self.out, "\ttree root gen {} block {}", it.tree_root_gen, it.tree_root)?;
            for (name, generation, block) in [
                ("extent root", it.extent_root_gen, it.extent_root),
                ("chunk root", it.chunk_root_gen, it.chunk_root),
                ("device root", it.dev_root_gen, it.dev_root),
                ("csum root", it.csum_root_gen, it.csum_root),
                ("fs root", it.fs_root_gen, it.fs_root),
            ] {
                writeln!(self.out, "\t\t{name} gen {generation} block {block}")?;
            }
            let (used, total, devices) = (it.bytes_used, it.total_bytes, it.num_devices);
            writeln!(self.out, "\t\t{used} used {total} total {devices} devices")?;
        }
        Ok(())
    }
}

fn under(child: &ChildPtr, level: u8) -> Expect {
    Expect {
        bytenr: child.bytenr,
        level: Some(level),
        generation: Some(child.generation),
        ..Expect::default()
    }
}

fn root_of(block: &TreeBlock, slot: usize) -> Option<Found> {
    let (key, data) = block.item(slot);
    if key.kind != kind::ROOT_ITEM {
        return None;
    }
    let item = RootItem::read(data)?;
    let root = Expect {
        bytenr: item.bytenr.get(),
        level: Some(item.level),
        generation: Some(item.generation.get()),
        ..Expect::default()
    };
    Some(Found { key, root })
}

/// The heading of a tree that the superblock points to.
fn top_name(id: u64) -> Option<&'static str> {
    match id {
        objectid::ROOT_TREE => Some("root tree"),
        objectid::CHUNK_TREE => Some("chunk tree"),
        objectid::TREE_LOG => Some("log root tree"),
        _ => None,
    }
}

fn tree_name(id: u64) -> &'static str {
    match id {
        objectid::ROOT_TREE => "root",
        objectid::EXTENT_TREE => "extent",
        objectid::CHUNK_TREE => "chunk",
        objectid::DEV_TREE => "device",
        objectid::FS_TREE => "fs",
        objectid::ROOT_TREE_DIR => "directory",
        objectid::CSUM_TREE => "checksum",
        objectid::ORPHAN => "orphan",
        objectid::TREE_LOG => "log",
        objectid::TREE_LOG_FIXUP => "log fixup",
        objectid::TREE_RELOC => "reloc",
        objectid::DATA_RELOC_TREE => "data reloc",
        objectid::EXTENT_CSUM => "extent checksum",
        objectid::QUOTA_TREE => "quota",
        objectid::UUID_TREE => "uuid",
        objectid::FREE_SPACE_TREE => "free space",
        objectid::BLOCK_GROUP_TREE => "block group",
        objectid::MULTIPLE => "multiple",
        _ => "file",
    }
}
