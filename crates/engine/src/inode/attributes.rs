//! What `stat` tells of an inode, and how it is changed.

use std::sync::Arc;

use buttress_ondisk::SECTOR;
pub use buttress_ondisk::item::mode;
use buttress_ondisk::item::{InodeItem, file_type, inode_flags};

use super::Inode;
use super::state::State;
use super::tree::FileTree;
use crate::env::Time;
use crate::error::{Errno, Error, Result};
use crate::txn::{Core, Op};

/// The values of an inode's item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The transaction that made the inode; with the number it never repeats.
    pub generation: u64,
    /// The transaction that last changed it.
    pub transid: u64,
    /// Bytes of the file; of a directory, twice the sum of its names' lengths.
    pub size: u64,
    /// Bytes that its extents take, inline data included.
    pub nbytes: u64,
    /// Whether `nbytes` leaves out all that pending changes replace. Where it does not, who asks again or the commit looks up the rest.
    pub is_settled: bool,
    /// Links; always 1 for a directory that has a name.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Type and permissions, see [`mode`].
    pub mode: u32,
    /// Device number of a device node: `major << 20 | minor`.
    pub rdev: u64,
    /// `buttress_ondisk::item::inode_flags`.
    pub flags: u64,
    /// Counts changes.
    pub sequence: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Creation.
    pub otime: Time,
}

impl Attributes {
    /// The values in an item.
    pub fn read(item: &InodeItem) -> Attributes {
        Attributes {
            generation: item.generation.get(),
            transid: item.transid.get(),
            size: item.size.get(),
            nbytes: item.nbytes.get(),
            is_settled: true,
            nlink: item.nlink.get(),
            uid: item.uid.get(),
            gid: item.gid.get(),
            mode: item.mode.get(),
            rdev: item.rdev.get(),
            flags: item.flags.get(),
            sequence: item.sequence.get(),
            atime: Time::from_disk(&item.atime),
            ctime: Time::from_disk(&item.ctime),
            mtime: Time::from_disk(&item.mtime),
            otime: Time::from_disk(&item.otime),
        }
    }

    /// The item with these values.
    pub fn item(&self) -> InodeItem {
        InodeItem {
            generation: self.generation.into(),
            transid: self.transid.into(),
            size: self.size.into(),
            nbytes: self.nbytes.into(),
            nlink: self.nlink.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            mode: self.mode.into(),
            rdev: self.rdev.into(),
            flags: self.flags.into(),
            sequence: self.sequence.into(),
            atime: self.atime.to_disk(),
            ctime: self.ctime.to_disk(),
            mtime: self.mtime.to_disk(),
            otime: self.otime.to_disk(),
            ..InodeItem::default()
        }
    }

    /// The type bits of the mode.
    pub fn kind(&self) -> u32 {
        self.mode & mode::TYPE_MASK
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind() == mode::DIRECTORY
    }

    /// Whether it is a regular file.
    pub fn is_regular(&self) -> bool {
        self.kind() == mode::REGULAR
    }

    /// Its type as directory entries tell it (`buttress_ondisk::item::file_type`).
    pub fn file_type(&self) -> u8 {
        file_type::of_mode(self.mode)
    }

    /// Content and inode changed at `now`.
    pub(super) fn modified(&mut self, now: Time) {
        self.mtime = now;
        self.ctime = now;
    }
}

/// The flags that can be set and taken away.
const SETTABLE: u64 = inode_flags::KNOWN & !(inode_flags::PREALLOC | inode_flags::ROOT_ITEM_INIT);

/// What [`FileTree::set_attributes`] changes: whatever is given.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttributes {
    /// Permissions (the lowest 12 bits are taken).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes of a regular file.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<Time>,
    /// Last change of the content.
    pub mtime: Option<Time>,
    /// Last change of the inode; the operation's time when absent.
    pub ctime: Option<Time>,
    /// Creation.
    pub otime: Option<Time>,
    /// All inode flags.
    pub flags: Option<u64>,
}

/// Refuses flags that an inode cannot get. What neither Linux nor we know must not reach the disk, where it is damage; what the filesystem says by itself is not
/// the caller's; and whether data have checksums is said before there are any.
pub fn may_have_flags(now: &Attributes, flags: u64) -> Result<()> {
    let changes = now.flags ^ flags;
    if changes & !SETTABLE != 0 {
        return Err(Error::User(Errno::OPNOTSUPP));
    }
    if changes & (inode_flags::NODATASUM | inode_flags::NODATACOW) != 0
        && now.is_regular()
        && now.size != 0
    {
        return Err(Error::User(Errno::INVAL));
    }
    Ok(())
}

impl FileTree {
    /// What `stat` tells. Bytes written and not placed yet count as taken.
    pub fn attributes(&self, core: &Core, inode: &Inode) -> Attributes {
        self.shown(core, inode.ino, &inode.read())
    }

    /// The same of an inode that is locked. What pending changes replace is looked up, of much some each time; until all of it is known, a file
    /// takes no more than it needs where nothing is reserved behind its end.
    pub(super) fn shown(&self, core: &Core, ino: u64, state: &State) -> Attributes {
        let mut attributes = state.attributes;
        let mut nbytes = attributes.nbytes.saturating_add(state.bytes_not_placed());
        attributes.is_settled = true;
        if state.may_replace_content() {
            let (replaced, all) = state.bytes_replaced(ino, self.view(core));
            attributes.is_settled = all;
            nbytes = nbytes.saturating_sub(replaced);
            if !all && attributes.flags & inode_flags::PREALLOC == 0 {
                nbytes = nbytes.min(attributes.size.div_ceil(SECTOR).saturating_mul(SECTOR));
            }
        }
        attributes.nbytes = nbytes;
        attributes
    }

    /// Changes what `set` names; the values after the change are returned. EINVAL where it would change whether what a file has is checksummed;
    /// EOPNOTSUPP for flags that are not `SETTABLE`. Times are the caller's to check.
    pub fn set_attributes(
        &self,
        op: &Op<'_>,
        inode: &Arc<Inode>,
        set: &SetAttributes,
    ) -> Result<Attributes> {
        self.writable()?;
        let mut state = inode.write();
        if let Some(flags) = set.flags {
            may_have_flags(&state.attributes, flags)?;
        }
        state.touch(inode, self, op)?;
        if let Some(size) = set.size {
            self.resize(op, inode, &mut state, size)?;
        }
        let values = &mut state.attributes;
        if let Some(mode) = set.mode {
            values.mode = values.mode & mode::TYPE_MASK | mode & mode::PERMISSIONS;
        }
        op.step("some attributes are set");
        values.uid = set.uid.unwrap_or(values.uid);
        values.gid = set.gid.unwrap_or(values.gid);
        values.atime = set.atime.unwrap_or(values.atime);
        values.mtime = set.mtime.unwrap_or(values.mtime);
        values.otime = set.otime.unwrap_or(values.otime);
        values.flags = set.flags.unwrap_or(values.flags);
        values.ctime = set.ctime.unwrap_or(op.now);
        Ok(self.shown(op.core, inode.ino, &state))
    }

    /// Notes an access at the operation's time, when the mount wants access times.
    pub fn accessed(&self, op: &Op<'_>, inode: &Arc<Inode>) -> Result<()> {
        self.writable()?;
        let mut state = inode.write();
        state.touch(inode, self, op)?;
        state.attributes.atime = op.now;
        Ok(())
    }
}

/// The refusal of something that only a directory can do, or only something else.
pub(super) fn must_be_directory(attributes: &Attributes) -> Result<()> {
    if attributes.is_directory() { Ok(()) } else { Err(Error::User(Errno::NOTDIR)) }
}
