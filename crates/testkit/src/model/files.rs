//! Contents, attributes, xattrs.

use buttress::{Allocate, Change, Errno, Node, SetXattr};

use super::{Body, Content, Model, PAGE, Refusal};

/// Of the bytes of a tree block, what an xattr cannot have: the heads of the block, of the item and of the entry.
pub const XATTR_ROOM: usize = 101 + 25 + 30;

/// A part of a file.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// The file.
    pub node: Node,
    /// Where the part starts, in bytes.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl Model {
    /// The bytes of a file, if that is what it is.
    pub fn content(&self, node: Node) -> Option<&Content> {
        self.inode(node)?.content()
    }

    /// The bytes of a file, to be changed.
    pub fn content_mut(&mut self, node: Node) -> Option<&mut Content> {
        match &mut self.inode_mut(node)?.body {
            Body::File(content) => Some(content),
            _ => None,
        }
    }

    /// Reading.
    pub fn refuse_read(&self, node: Node) -> Refusal {
        match self.inode(node) {
            None => vec![Errno::NOENT, Errno::ISDIR],
            Some(inode) if inode.directory().is_some() => vec![Errno::ISDIR],
            Some(inode) if inode.content().is_none() => vec![Errno::INVAL],
            Some(_) => Vec::new(),
        }
    }

    /// Writing, cutting, allocating.
    pub fn refuse_write(&self, node: Node) -> Refusal {
        let mut refusal = self.refuse_change(node);
        refusal.extend(self.refuse_read(node));
        refusal
    }

    /// `fallocate`.
    pub fn allocate(&mut self, range: Range, mode: Allocate) {
        let Some(content) = self.content_mut(range.node) else { return };
        let end = range.offset + range.len;
        match mode {
            Allocate::Reserve { keep_size: true } => {}
            Allocate::Reserve { keep_size: false } => content.grow(end),
            Allocate::PunchHole => content.clear(range.offset, end.min(content.size())),
            Allocate::ZeroRange { keep_size } => {
                content.clear(range.offset, end.min(content.size()));
                if !keep_size {
                    content.grow(end);
                }
            }
        }
    }

    /// How many bytes a clone shares: up to the end of the source.
    pub fn clone_len(&self, from: Range) -> u64 {
        let size = self.content(from.node).map_or(0, Content::size);
        from.len.min(size.saturating_sub(from.offset))
    }

    /// Sharing `from` with `to` at `to_offset`. `None`: refusing and doing nothing would both be right.
    pub fn refuse_clone(&self, from: Range, to: Node, to_offset: u64) -> Option<Refusal> {
        let mut refusal = self.refuse_write(to);
        refusal.extend(self.refuse_read(from.node));
        let (Some(source), Some(target)) = (self.content(from.node), self.content(to)) else {
            return if self.clone_len(from) == 0 { None } else { Some(refusal) };
        };
        let len = self.clone_len(from);
        if len == 0 {
            return None;
        }
        let ends_well = (from.offset + len).is_multiple_of(PAGE)
            || from.offset + len == source.size() && to_offset + len >= target.size();
        let aligned = from.offset.is_multiple_of(PAGE) && to_offset.is_multiple_of(PAGE);
        let overlaps = from.node == to && from.offset.abs_diff(to_offset) < len;
        if !ends_well || !aligned || overlaps {
            refusal.push(Errno::INVAL);
        }
        Some(refusal)
    }

    /// Shares a range.
    pub fn clone_range(&mut self, from: Range, to: Node, to_offset: u64) {
        let Some(source) = self.content(from.node).cloned() else { return };
        if let Some(target) = self.content_mut(to) {
            target.copy(&source, from.offset, from.len, to_offset);
        }
    }

    /// Changing attributes.
    pub fn refuse_attributes(&self, node: Node, change: &Change) -> Refusal {
        let mut refusal = self.refuse_change(node);
        if change.size.is_some() {
            refusal.extend(self.refuse_read(node));
        }
        refusal
    }

    /// Changes attributes, but for the time of the change.
    pub fn set_attributes(&mut self, node: Node, change: &Change) {
        if let Some(size) = change.size
            && let Some(content) = self.content_mut(node)
        {
            content.resize(size);
        }
        let Some(inode) = self.inode_mut(node) else { return };
        inode.mode = change.mode.unwrap_or(inode.mode);
        inode.uid = change.uid.unwrap_or(inode.uid);
        inode.gid = change.gid.unwrap_or(inode.gid);
        inode.times.atime = change.atime.unwrap_or(inode.times.atime);
        inode.times.mtime = change.mtime.unwrap_or(inode.times.mtime);
    }

    /// Setting an xattr.
    pub fn refuse_xattr(&self, node: Node, name: &[u8], len: usize, how: SetXattr) -> Refusal {
        let mut refusal = self.refuse_change(node);
        let there = self.inode(node).is_some_and(|inode| inode.xattrs.contains_key(name));
        match how {
            // Asked first, whatever is there.
            _ if XATTR_ROOM + name.len() + len > self.nodesize as usize => {
                refusal.push(Errno::NOSPC);
            }
            SetXattr::Create if there => refusal.push(Errno::EXIST),
            SetXattr::Replace if !there => refusal.push(Errno::NODATA),
            _ => {}
        }
        if name.len() > 255 || name.is_empty() {
            refusal.push(Errno::RANGE);
        }
        refusal
    }

    /// Sets an xattr, or removes it.
    pub fn set_xattr(&mut self, node: Node, name: &[u8], value: Option<&[u8]>) {
        let Some(inode) = self.inode_mut(node) else { return };
        match value {
            Some(value) => inode.xattrs.insert(name.to_vec(), value.into()),
            None => inode.xattrs.remove(name),
        };
    }

    /// Removing an xattr.
    pub fn refuse_remove_xattr(&self, node: Node, name: &[u8]) -> Refusal {
        let mut refusal = self.refuse_change(node);
        if !self.inode(node).is_some_and(|inode| inode.xattrs.contains_key(name)) {
            refusal.push(Errno::NODATA);
        }
        refusal
    }
}
