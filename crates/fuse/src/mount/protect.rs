//! Immutable and append-only inodes. On other filesystems the kernel keeps their rules; of those behind FUSE it does not
//! know them, so they are kept here, and at each change instead of once at open(2): asking for each file that is opened would
//! cost ten times the CPU where it is in the kernel's cache, and twice where it is not. Where the kernel asks nevertheless
//! (`strictopen`, `strictatime`), opening is refused as Linux refuses it, and each change still is: an append-only file may be
//! open for writing anywhere since before it was one, or since fcntl(2) took O_APPEND off, of which nobody is told. The answer is
//! EPERM, for root, too. So are the rules of the empty directories that stand in a snapshot where its source holds subvolumes.

use std::ffi::OsStr;

use rustix::fs::{IFlags, OFlags};
use rustix::io::Errno;

use super::Mount;
use super::control::Control;
use super::store::{Answer, Store};
use crate::protocol::abi::fattr;

/// `FS_IMMUTABLE_FL`: nothing about the inode changes.
pub(super) const IMMUTABLE: u32 = IFlags::IMMUTABLE.bits();
/// `FS_APPEND_FL`: it only grows.
const APPEND: u32 = IFlags::APPEND.bits();
/// Both.
pub(super) const PROTECTING: u32 = IMMUTABLE | APPEND;

impl<S: Store> Mount<S> {
    /// Refuses an inode with one of the flags.
    fn without(&self, node: &S::Node, flags: u32) -> Answer<()> {
        if self.store.attributes(node)?.flags & flags == 0 { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Refuses to change names, modes or extended attributes of a protected inode.
    pub(super) fn may_touch(&self, node: &S::Node) -> Answer<()> {
        self.without(node, PROTECTING)
    }

    /// Refuses to write to a protected file; one that is append-only may be written to from its end on.
    pub(super) fn may_write(&self, node: &S::Node, offset: u64) -> Answer<()> {
        let attributes = self.store.attributes(node)?;
        let refused = match offset < attributes.size {
            true => PROTECTING,
            false => IMMUTABLE,
        };
        if attributes.flags & refused == 0 { Ok(()) } else { Err(Errno::PERM) }
    }

    /// What the kernel has collected it writes in whole pages, those of a file that is append-only with what is before its
    /// end. That must be as it was: a shared mapping, which the kernel does not refuse, could have changed it. Answers how
    /// much of `data` it is.
    pub(super) fn unchanged(&self, node: &S::Node, offset: u64, data: &[u8]) -> Answer<usize> {
        let attributes = self.store.attributes(node)?;
        if attributes.flags & APPEND == 0 {
            return Ok(0);
        }
        let below = usize::try_from(attributes.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let (before, _) = data.split_at(below.min(data.len()));
        let mut now = vec![0; before.len()];
        let (length, _) = self.store.read(node, offset, &mut now)?;
        if now.get(..length) == Some(before) { Ok(length) } else { Err(Errno::PERM) }
    }

    /// Refuses to change what SETATTR asks for. That times become the present is the kernel's doing where a file that is
    /// append-only has grown.
    pub(super) fn may_set(&self, node: &S::Node, valid: u32) -> Answer<()> {
        const TO_NOW: u32 = fattr::ATIME_NOW | fattr::MTIME_NOW;
        const TIMES: u32 = fattr::ATIME | fattr::MTIME | fattr::CTIME | TO_NOW;
        let others = fattr::MODE | fattr::UID | fattr::GID | fattr::SIZE;
        let now = valid & others == 0 && valid & TIMES != 0 && valid & TO_NOW != 0;
        self.without(node, if now { IMMUTABLE } else { PROTECTING })
    }

    /// Refuses new names in an immutable directory, and in what stands for a subvolume.
    pub(super) fn may_add(&self, directory: &S::Node) -> Answer<()> {
        if self.store.identity(directory).is_stub() {
            return Err(Errno::PERM);
        }
        self.without(directory, IMMUTABLE)
    }

    /// The same for a file without content, which Linux refuses by another number, by open(2) and by mknod(2).
    pub(super) fn may_create(&self, directory: &S::Node) -> Answer<()> {
        match self.store.identity(directory).is_stub() {
            true => Err(Errno::ACCESS),
            false => self.may_add(directory),
        }
    }

    /// Refuses to take a protected name away, or any from a protected directory.
    pub(super) fn may_remove(&self, directory: &S::Node, name: &OsStr) -> Answer<()> {
        self.without(directory, PROTECTING)?;
        match self.store.lookup(directory, name)? {
            Some(node) => self.without(&node, PROTECTING),
            None => Ok(()),
        }
    }

    /// The same for a name that a rename may find taken.
    pub(super) fn may_replace(&self, directory: &S::Node, name: &OsStr) -> Answer<()> {
        match self.store.lookup(directory, name)? {
            Some(node) => {
                self.without(directory, PROTECTING)?;
                self.without(&node, PROTECTING)
            }
            None => self.may_add(directory),
        }
    }
}

impl<S: Control> Mount<S> {
    /// Refuses to open a file for writing that is protected or in a read-only subvolume; one that is append-only may be opened for writing
    /// at its end. That it is not cut the SETATTR sees to that follows where open(2) is to cut it.
    pub(super) fn may_open(&self, node: &S::Node, flags: OFlags) -> Answer<()> {
        if !flags.intersects(OFlags::WRONLY | OFlags::RDWR) {
            return Ok(());
        }
        // In the order of Linux.
        self.without(node, IMMUTABLE)?;
        // Of one that is deleted nothing is known any more.
        if self.store.subvolume(self.store.identity(node).subvolume).is_ok_and(|it| it.read_only) {
            return Err(Errno::ROFS);
        }
        if flags.contains(OFlags::APPEND) { Ok(()) } else { self.without(node, APPEND) }
    }
}
