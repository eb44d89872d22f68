//! Immutable and append-only inodes. On other filesystems the kernel keeps their rules; of those behind FUSE it does not
//! know them, so they are kept here. The answer is EPERM, for root, too. So are the rules of the empty directories that
//! stand in a snapshot where its source holds subvolumes.

use std::ffi::OsStr;

use rustix::io::Errno;

use super::Mount;
use super::store::{Answer, Store};
use crate::nodes::STUB;
use crate::protocol::abi::fattr;

/// `FS_IMMUTABLE_FL`: nothing about the inode changes.
pub(super) const IMMUTABLE: u32 = 0x10;
/// `FS_APPEND_FL`: it only grows.
const APPEND: u32 = 0x20;
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
        if self.store.identity(directory).ino == STUB {
            return Err(Errno::PERM);
        }
        self.without(directory, IMMUTABLE)
    }

    /// The same for a file that open(2) is to make, which Linux refuses by another number.
    pub(super) fn may_create(&self, directory: &S::Node) -> Answer<()> {
        match self.store.identity(directory).ino {
            STUB => Err(Errno::ACCESS),
            _ => self.may_add(directory),
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
