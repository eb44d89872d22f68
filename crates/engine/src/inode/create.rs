//! Making inodes.

use std::sync::Arc;

use buttress_ondisk::item::{FileExtentHead, inode_flags};

use super::attributes::mode;
use super::name::Hashed;
use super::state::State;
use super::tree::FileTree;
use super::{Attributes, Entry, Inode, Location, TOP};
use crate::error::{Errno, Error, Result};
use crate::txn::{CHANGE_BYTES, Op};

/// What is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewKind<'a> {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link to this path.
    Symlink(&'a [u8]),
    /// A character device, `major << 20 | minor`.
    Character(u64),
    /// A block device, `major << 20 | minor`.
    Block(u64),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// An inode to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewInode<'a> {
    /// What it is.
    pub kind: NewKind<'a>,
    /// The lowest 12 bits of the mode (symbolic links get 0777).
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Group; in a directory with the set-group-id bit, that of the directory is taken instead.
    pub gid: u32,
}

impl NewInode<'_> {
    fn mode(&self) -> u32 {
        let kind = match self.kind {
            NewKind::File => mode::REGULAR,
            NewKind::Directory => mode::DIRECTORY,
            NewKind::Symlink(_) => return mode::SYMLINK | 0o777,
            NewKind::Character(_) => mode::CHARACTER,
            NewKind::Block(_) => mode::BLOCK,
            NewKind::Fifo => mode::FIFO,
            NewKind::Socket => mode::SOCKET,
        };
        kind | self.permissions & mode::PERMISSIONS
    }

    fn rdev(&self) -> u64 {
        match self.kind {
            NewKind::Character(rdev) | NewKind::Block(rdev) => rdev,
            _ => 0,
        }
    }

    /// The values of the new inode in a directory with the values `parent`.
    pub(super) fn attributes(&self, op: &Op<'_>, parent: Option<&Attributes>) -> Attributes {
        let (mut mode, mut gid) = (self.mode(), self.gid);
        if let Some(parent) = parent.filter(|parent| parent.mode & mode::SET_GID != 0) {
            gid = parent.gid;
            mode |= if mode & mode::TYPE_MASK == mode::DIRECTORY { mode::SET_GID } else { 0 };
        }
        Attributes {
            generation: op.transid,
            transid: op.transid,
            size: 0,
            nbytes: 0,
            is_settled: true,
            nlink: 1,
            uid: self.uid,
            gid,
            mode,
            rdev: self.rdev(),
            flags: parent.map_or(0, |parent| inherited_flags(parent.flags, mode)),
            sequence: 0,
            atime: op.now,
            ctime: op.now,
            mtime: op.now,
            otime: op.now,
        }
    }
}

/// The flags that files and directories take over from their directory.
fn inherited_flags(parent: u64, mode: u32) -> u64 {
    let kind = mode & mode::TYPE_MASK;
    if kind != mode::REGULAR && kind != mode::DIRECTORY {
        return 0;
    }
    let mut flags = parent & (inode_flags::COMPRESS | inode_flags::NOCOMPRESS);
    if parent & inode_flags::NODATACOW != 0 {
        flags = inode_flags::NODATACOW;
        flags |= if kind == mode::REGULAR { inode_flags::NODATASUM } else { 0 };
    }
    flags
}

/// The longest target of a symbolic link, in bytes.
fn target_len_max(nodesize: usize) -> usize {
    (super::item_len_max(nodesize) - size_of::<FileExtentHead>()).min(4095)
}

impl FileTree {
    /// Makes an inode and its first name. Nothing is read from the disk when the directory is new too.
    pub fn create(
        &self,
        op: &Op<'_>,
        dir: &Arc<Inode>,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Arc<Inode>> {
        self.writable()?;
        let name = Hashed::fresh(name)?;
        let mut parent = dir.write();
        let view = self.view(op.core);
        parent.usable_directory()?;
        let beneath = parent.free_for(dir.ino, &view, name, false)?;
        parent.know_next_index(dir.ino, &view)?;
        let mut state = self.blank(op, dir.ino, &parent, new)?;
        let ino = self.next_ino()?;
        parent.touch(dir, self, op)?;
        // What it takes over makes its layer large, and so does the first entry that of the directory.
        let large = [state.live.xattrs.is_some(), parent.live.entries.is_none()];
        op.leave_bytes(large.map(u64::from).iter().sum::<u64>() * CHANGE_BYTES);
        let file_type = state.attributes.file_type();
        let entry = Entry { location: Location::Inode(ino), file_type };
        let index = parent.add_entry(op, name, entry, beneath);
        parent.attributes.modified(op.now);
        op.step("an entry without its inode");
        state.live.names.gain(dir.ino, index, name.bytes, beneath);
        Ok(self.adopt(ino, state))
    }

    /// Makes a regular file without a name: it is deleted with its last hold, unless it gets a name by
    /// [`FileTree::link`] before. It comes with one hold.
    pub fn create_unnamed(
        &self,
        op: &Op<'_>,
        dir: &Arc<Inode>,
        new: &NewInode<'_>,
    ) -> Result<Arc<Inode>> {
        self.writable()?;
        let parent = dir.read();
        parent.usable_directory()?;
        let mut state = self.blank(op, dir.ino, &parent, new)?;
        self.count_hold()?;
        state.attributes.nlink = 0;
        state.live.orphan = Some(true);
        let inode = self.adopt(self.next_ino()?, state);
        inode.holds.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
        Ok(inode)
    }

    /// How files of the top directory are to be compressed: what a new subvolume in this one takes over, whichever directory it is in.
    pub fn compression_of_top(&self, op: &Op<'_>) -> Result<Option<Vec<u8>>> {
        let top = self.get(op, TOP)?;
        let state = top.read();
        if state.attributes.flags & inode_flags::COMPRESS == 0 {
            return Ok(None);
        }
        let name = Hashed::of(super::xattrs::COMPRESSION);
        state.find_xattr(TOP, &self.view(op.core), name)
    }

    /// Makes the top directory of a new tree.
    pub fn create_top(
        &self,
        op: &Op<'_>,
        permissions: u32,
        uid: u32,
        gid: u32,
        compression: Option<Vec<u8>>,
    ) -> Arc<Inode> {
        let new = NewInode { kind: NewKind::Directory, permissions, uid, gid };
        let mut state = State::created(new.attributes(op, None), op.transid);
        if let Some(kind) = compression {
            state.attributes.flags |= inode_flags::COMPRESS;
            let kind = super::xattrs::compression_kind(&kind);
            state.xattrs().set(super::xattrs::COMPRESSION, Some(kind.into()));
        }
        state.live.names.gain(TOP, 0, b"..", false);
        self.adopt(TOP, state)
    }

    /// The state of an inode that is new in a directory.
    fn blank(&self, op: &Op<'_>, dir: u64, parent: &State, new: &NewInode<'_>) -> Result<State> {
        let mut state = State::created(new.attributes(op, Some(&parent.attributes)), op.transid);
        if let NewKind::Symlink(target) = new.kind {
            check_target(target, op.core.blocks.nodesize())?;
            state.attributes.size = target.len() as u64;
            state.attributes.nbytes = target.len() as u64;
            state.live.symlink = Some(target.into());
        }
        if state.attributes.flags & inode_flags::COMPRESS != 0 {
            let view = self.view(op.core);
            let name = Hashed::of(super::xattrs::COMPRESSION);
            if let Some(value) = parent.find_xattr(dir, &view, name)? {
                let kind = super::xattrs::compression_kind(&value);
                state.xattrs().set(name.bytes, Some(kind.into()));
            }
        }
        Ok(state)
    }

    /// Puts a new inode into the table and on the list.
    pub(super) fn adopt(&self, ino: u64, mut state: State) -> Arc<Inode> {
        state.dirty = true;
        let inode = Inode::new(ino, state);
        self.list_dirty(&inode);
        self.remember_new(inode.clone());
        inode
    }
}

fn check_target(target: &[u8], nodesize: usize) -> Result<()> {
    match target.len() {
        0 => Err(Error::User(Errno::NOENT)),
        len if len > target_len_max(nodesize) => Err(Error::User(Errno::NAMETOOLONG)),
        _ if target.contains(&0) => Err(Error::User(Errno::INVAL)),
        _ => Ok(()),
    }
}
