//! Groups of quotas: made, put into each other, limited.

use super::Filesystem;
use super::types::{Node, Owner};
use crate::error::{Errno, Error, Result};

/// A limit of a group that is to be set: what is `None` stays, and `Some(None)` takes a limit away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewLimits {
    /// Most bytes that the group may refer to.
    pub rfer: Option<Option<u64>>,
    /// Most bytes that only the group may refer to.
    pub excl: Option<Option<u64>>,
}

impl Filesystem {
    /// Whether quotas are on.
    pub fn has_quotas(&self) -> bool {
        false
    }

    /// Whether quotas are on and wrong, until they are counted anew ([`Filesystem::count_quotas`]; with a worker that comes by itself).
    pub fn has_wrong_quotas(&self) -> bool {
        false
    }

    /// Switches quotas off: groups, relations and limits are gone. Nothing where they are off.
    pub fn disable_quotas(&self) -> Result<()> {
        Err(Error::User(Errno::NOSYS))
    }

    /// Makes a group: level and number, as in `level << 48 | number`. EEXIST when it is there, ENOTCONN when quotas are off.
    pub fn create_qgroup(&self, _id: u64) -> Result<()> {
        Err(Error::User(Errno::NOSYS))
    }

    /// Takes a group away. ENOENT when there is none, EBUSY when it has members or is that of a subvolume that is there.
    pub fn destroy_qgroup(&self, _id: u64) -> Result<()> {
        Err(Error::User(Errno::NOSYS))
    }

    /// Puts a group into another one of a higher level; whether all groups' numbers are right after that: else they are counted anew. EINVAL when the
    /// level is not higher, ENOENT when one of both is not there, EEXIST when it is in it already.
    pub fn assign_qgroup(&self, _member: u64, _group: u64) -> Result<bool> {
        Err(Error::User(Errno::NOSYS))
    }

    /// Takes a group out of another one; whether all groups' numbers are right after that. ENOENT when it is not in it.
    pub fn remove_qgroup(&self, _member: u64, _group: u64) -> Result<bool> {
        Err(Error::User(Errno::NOSYS))
    }

    /// Limits a group. ENOENT when there is none.
    pub fn limit_qgroup(&self, _id: u64, _limits: NewLimits) -> Result<()> {
        Err(Error::User(Errno::NOSYS))
    }

    /// The same as [`Filesystem::create_subvolume`], in these groups from the beginning: ENOENT when one of them is not there.
    pub fn create_subvolume_in(
        &self,
        dir: Node,
        name: &[u8],
        owner: Owner,
        _groups: &[u64],
    ) -> Result<u64> {
        self.create_subvolume(dir, name, owner)
    }

    /// The same as [`Filesystem::snapshot`], in these groups from the beginning: ENOENT when one of them is not there.
    pub fn snapshot_in(
        &self,
        source: u64,
        dir: Node,
        name: &[u8],
        read_only: bool,
        _groups: &[u64],
    ) -> Result<u64> {
        self.snapshot(source, dir, name, read_only)
    }
}
