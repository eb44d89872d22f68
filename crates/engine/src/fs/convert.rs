//! Between the words of the public interface and those of the layers below.

use buttress_ondisk::item::file_type;

use super::types::{Attributes, Change, FileKind, New, Node, Times};
use crate::env::Time;
use crate::error::{Errno, Error, Result};
use crate::inode::{self, NewInode, NewKind, SetAttributes, mode};

impl FileKind {
    /// What a directory entry's type means.
    pub(super) fn of_entry(kind: u8) -> FileKind {
        match kind {
            file_type::DIRECTORY => FileKind::Directory,
            file_type::CHARACTER => FileKind::Character,
            file_type::BLOCK => FileKind::Block,
            file_type::FIFO => FileKind::Fifo,
            file_type::SOCKET => FileKind::Socket,
            file_type::SYMLINK => FileKind::Symlink,
            _ => FileKind::Regular,
        }
    }

    /// What a mode's type bits mean.
    pub fn of_mode(bits: u32) -> FileKind {
        match bits & mode::TYPE_MASK {
            mode::DIRECTORY => FileKind::Directory,
            mode::CHARACTER => FileKind::Character,
            mode::BLOCK => FileKind::Block,
            mode::FIFO => FileKind::Fifo,
            mode::SOCKET => FileKind::Socket,
            mode::SYMLINK => FileKind::Symlink,
            _ => FileKind::Regular,
        }
    }

    /// The type bits of a mode.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::Regular => mode::REGULAR,
            FileKind::Directory => mode::DIRECTORY,
            FileKind::Symlink => mode::SYMLINK,
            FileKind::Character => mode::CHARACTER,
            FileKind::Block => mode::BLOCK,
            FileKind::Fifo => mode::FIFO,
            FileKind::Socket => mode::SOCKET,
        }
    }
}

impl Attributes {
    pub(super) fn of(node: Node, values: &inode::Attributes) -> Attributes {
        Attributes {
            node,
            kind: FileKind::of_mode(values.mode),
            mode: values.mode & mode::PERMISSIONS,
            uid: values.uid,
            gid: values.gid,
            nlink: values.nlink,
            size: values.size,
            blocks_bytes: values.nbytes,
            blocks_settled: values.is_settled,
            rdev: values.rdev,
            atime: values.atime,
            mtime: values.mtime,
            ctime: values.ctime,
            otime: values.otime,
            flags: values.flags,
            generation: values.generation,
            transid: values.transid,
        }
    }

    /// Those of the empty directory that stands where a snapshot has no copy of a subvolume.
    pub(super) fn of_stub(node: Node) -> Attributes {
        let zero = Time::default();
        Attributes {
            node,
            kind: FileKind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            nlink: 1,
            size: 0,
            blocks_bytes: 0,
            blocks_settled: true,
            rdev: 0,
            atime: zero,
            mtime: zero,
            ctime: zero,
            otime: zero,
            flags: 0,
            generation: 0,
            transid: 0,
        }
    }
}

impl Change {
    /// Sets times.
    pub(super) fn to_times(times: &Times) -> Change {
        Change {
            atime: Some(times.atime),
            mtime: Some(times.mtime),
            ctime: Some(times.ctime),
            otime: Some(times.otime),
            ..Change::default()
        }
    }

    /// EINVAL for times that are none.
    pub(super) fn check_times(&self) -> Result<()> {
        let times = [self.atime, self.mtime, self.ctime, self.otime];
        match times.into_iter().flatten().all(Time::is_time) {
            true => Ok(()),
            false => Err(Error::User(Errno::INVAL)),
        }
    }

    /// The change of a file that has these values now.
    pub(super) fn against(&self, now: &inode::Attributes) -> SetAttributes {
        let mut mode = self.mode;
        if self.drop_privileges && !now.is_directory() {
            let old = mode.unwrap_or(now.mode & mode::PERMISSIONS);
            let group = if old & 0o010 != 0 { mode::SET_GID } else { 0 };
            let new = old & !(0o4000 | group);
            mode = mode.or((new != old).then_some(new)).map(|_| new);
        }
        SetAttributes {
            mode,
            uid: self.uid,
            gid: self.gid,
            size: self.size,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            otime: self.otime,
            flags: self.flags,
        }
    }
}

impl New {
    /// What the inode layer makes; `permissions` are what is left of the mode.
    pub(super) fn inode(&self, permissions: u32) -> Result<NewInode<'_>> {
        if self.kind != FileKind::Symlink && !self.target.is_empty() {
            return Err(Error::User(Errno::INVAL));
        }
        let kind = match self.kind {
            FileKind::Regular => NewKind::File,
            FileKind::Directory => NewKind::Directory,
            FileKind::Symlink => NewKind::Symlink(&self.target),
            FileKind::Character => NewKind::Character(self.rdev),
            FileKind::Block => NewKind::Block(self.rdev),
            FileKind::Fifo => NewKind::Fifo,
            FileKind::Socket => NewKind::Socket,
        };
        Ok(NewInode { kind, permissions, uid: self.uid, gid: self.gid })
    }
}
