//! File extents: each in itself, and beside the one before it.

use buttress_ondisk::item::{ExtentItem, FileExtentHead, split};
use buttress_ondisk::view::FileExtentItem;
use buttress_ondisk::{Key, SECTOR, kind, objectid};
use buttress_volume::search;

use super::{inode::Inode, path::report};
use crate::{context::Context, csums::Lookup, kinds::Kind, roots::Tree};

/// Judges the file extents of a tree.
pub(super) struct Extents<'l, 'a, 'b> {
    pub context: &'a Context<'b>,
    pub tree: &'a Tree,
    pub lookup: &'l mut Lookup<'a, 'b>,
}

/// A file extent that is not inline.
#[derive(Clone, Copy)]
struct Regular {
    ram_bytes: u64,
    compressed: bool,
    prealloc: bool,
    disk_bytenr: u64,
    disk_num_bytes: u64,
    offset: u64,
    num_bytes: u64,
}

impl Extents<'_, '_, '_> {
    /// Takes a file extent of an inode that begins at `start` in the file.
    pub fn item(&mut self, inode: &mut Inode, start: u64, data: &[u8]) {
        let (Some((head, _)), Some(extent)) =
            (split::<FileExtentHead>(data), FileExtentItem::read(data))
        else {
            // The gate has said so.
            inode.partial = true;
            return;
        };
        inode.extents += 1;
        if start < inode.extent_end && inode.extents > 1 {
            let have = format_args!("file extent at {start}");
            let expect = format_args!("at least {}", inode.extent_end);
            report(self.context, self.tree, Kind::FileExtentOverlap, inode.id, have, expect);
        }
        if start > inode.extent_end && inode.gap.is_none() {
            inode.gap = Some(inode.extent_end);
        }
        self.head(inode, start, head);
        let end = match extent {
            FileExtentItem::Inline { ram_bytes, compression, data, .. } => {
                self.inline(inode, ram_bytes, compression, data);
                start.saturating_add(ram_bytes.div_ceil(SECTOR).saturating_mul(SECTOR))
            }
            FileExtentItem::Regular {
                ram_bytes,
                compression,
                prealloc,
                disk_bytenr,
                disk_num_bytes,
                offset,
                num_bytes,
                ..
            } => {
                let compressed = compression != 0;
                let extent = Regular {
                    ram_bytes,
                    compressed,
                    prealloc,
                    disk_bytenr,
                    disk_num_bytes,
                    offset,
                    num_bytes,
                };
                self.regular(inode, start, &extent);
                start.saturating_add(num_bytes)
            }
        };
        inode.extent_end = inode.extent_end.max(end);
    }

    fn bad(&self, inode: &Inode, start: u64, what: &str, have: u64, expect: &str) {
        let have = format_args!("{what} {have} in the file extent at {start}");
        report(self.context, self.tree, Kind::FileExtentBad, inode.id, have, expect);
    }

    fn head(&self, inode: &Inode, start: u64, head: &FileExtentHead) {
        let newest = self.context.sb.generation.get().saturating_add(1);
        if head.generation.get() > newest {
            self.bad(inode, start, "generation", head.generation.get(), "one of the past");
        }
        let encoding = u64::from(head.other_encoding.get());
        if encoding != 0 {
            self.bad(inode, start, "encoding", encoding, "0");
        }
    }

    fn inline(&self, inode: &mut Inode, ram_bytes: u64, compression: u8, data: &[u8]) {
        let room = if compression == 0 { data.len() as u64 } else { SECTOR };
        if ram_bytes > room.min(SECTOR) {
            let have = format_args!("{ram_bytes} bytes inline");
            report(
                self.context,
                self.tree,
                Kind::InlineExtentBad,
                inode.id,
                have,
                room.min(SECTOR),
            );
        }
        inode.extent_bytes = inode.extent_bytes.saturating_add(ram_bytes);
        // `mkfs.btrfs --rootdir` and `btrfs-convert` store a zero behind it, which its size does not count.
        let target = data.strip_suffix(&[0]).unwrap_or(data);
        let good =
            inode.is_symlink() && compression == 0 && inode.extents == 1 && !target.contains(&0);
        inode.target_len = good.then_some(target.len() as u64);
    }

    fn regular(&mut self, inode: &mut Inode, start: u64, extent: &Regular) {
        inode.target_len = None;
        let reach = extent.offset.saturating_add(extent.num_bytes);
        if extent.num_bytes == 0 {
            self.bad(inode, start, "num_bytes", 0, "more");
        }
        if reach > extent.ram_bytes {
            let expect = "what offset and num_bytes add up to";
            self.bad(inode, start, "ram_bytes", extent.ram_bytes, expect);
        }
        if extent.compressed && (extent.prealloc || inode.nodatasum) {
            let expect = "none in a preallocated extent or without checksums";
            self.bad(inode, start, "compression", 1, expect);
        }
        if extent.disk_bytenr == 0 {
            return;
        }
        if !extent.compressed && reach > extent.disk_num_bytes {
            let expect = "what offset and num_bytes add up to";
            self.bad(inode, start, "disk_num_bytes", extent.disk_num_bytes, expect);
        }
        inode.extent_bytes = inode.extent_bytes.saturating_add(extent.num_bytes);
        if self.tree.id() != objectid::DATA_RELOC_TREE && inode.begun {
            self.checksums(inode, start, extent);
        }
    }

    /// Written data have checksums unless the inode says otherwise; data not written have none.
    fn checksums(&mut self, inode: &Inode, start: u64, extent: &Regular) {
        let (at, len) = match extent.compressed {
            true => (extent.disk_bytenr, extent.disk_num_bytes),
            false => (extent.disk_bytenr.saturating_add(extent.offset), extent.num_bytes),
        };
        let Some(covered) = self.lookup.covered(at, len) else { return };
        let wanted = if inode.nodatasum || extent.prealloc { 0 } else { len };
        let kind = match covered.cmp(&wanted) {
            std::cmp::Ordering::Equal => return,
            std::cmp::Ordering::Less => Kind::FileCsumMissing,
            std::cmp::Ordering::Greater => Kind::FileCsumExtra,
        };
        if extent.prealloc && !self.is_sole(extent) {
            return;
        }
        let have = format_args!("checksums of {covered} bytes of the file extent at {start}");
        report(self.context, self.tree, kind, inode.id, have, wanted);
    }

    /// Whether the extent has one reference only: then no other file can have written it.
    fn is_sole(&self, extent: &Regular) -> bool {
        let key = Key::new(extent.disk_bytenr, kind::EXTENT_ITEM, extent.disk_num_bytes);
        let Some(tree) = self.context.roots.find(objectid::EXTENT_TREE) else { return false };
        let found = search(self.context.volume, &tree.root, &key).ok().flatten();
        found.is_some_and(|data| ExtentItem::of(&data).is_some_and(|item| item.refs.get() == 1))
    }
}
