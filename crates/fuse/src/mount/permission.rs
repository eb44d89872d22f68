//! Permissions that the kernel would check if it knew what is asked for.
//!
//! It checks files and names itself (`default_permissions`). An ioctl that makes or deletes subvolumes it passes on
//! unchecked, and what an id leads to it never sees; there the rules of inode_permission(9) are followed here: owner, group
//! and others by mode or ACL, then capabilities.

use std::ffi::OsStr;

use buttress::ondisk::item::mode::STICKY;
use rustix::io::Errno;

use super::acl::{self, Acl};
use super::caller::{Caller, Capability};
use super::store::{Answer, Attributes, Store};
use super::{Mount, protect};
use crate::nodes::Identity;

/// To list a directory.
pub(super) const READ: u16 = 4;
/// To change its names.
pub(super) const WRITE: u16 = 2;
/// To look names up.
pub(super) const SEARCH: u16 = 1;

/// Directories in each other: more than any path has.
const DEPTH_MAX: usize = 1 << 20;

impl<S: Store> Mount<S> {
    /// The attributes by which the kernel decides: with the owners that it is shown.
    fn judged(&self, node: &S::Node) -> Answer<Attributes> {
        let mut attributes = self.store.attributes(node)?;
        let shown = self.policy.shown;
        attributes.uid = shown.uid.unwrap_or(attributes.uid);
        attributes.gid = shown.gid.unwrap_or(attributes.gid);
        Ok(attributes)
    }

    /// Refuses a directory whose permissions do not allow `wanted`.
    pub(super) fn may(&self, caller: &Caller, node: &S::Node, wanted: u16) -> Answer<()> {
        let attributes = self.judged(node)?;
        if wanted & WRITE != 0 && attributes.flags & protect::IMMUTABLE != 0 {
            return Err(Errno::PERM);
        }
        if !self.policy.checks_permissions || self.grants(caller, node, &attributes, wanted)? {
            return Ok(());
        }
        let has = |capability| caller.has_over(capability, attributes.uid, attributes.gid);
        let by_capability =
            has(Capability::DacOverride) || wanted & WRITE == 0 && has(Capability::DacReadSearch);
        if by_capability { Ok(()) } else { Err(Errno::ACCESS) }
    }

    /// Whether mode or ACL allow `wanted`.
    fn grants(
        &self,
        caller: &Caller,
        node: &S::Node,
        attributes: &Attributes,
        wanted: u16,
    ) -> Answer<bool> {
        let class = |shift: u32| (attributes.mode >> shift) as u16 & wanted == wanted;
        if caller.uid == attributes.uid {
            return Ok(class(6));
        }
        let in_group = caller.is_in_group(attributes.gid);
        // Without group bits there is nothing that a list could allow: they are its mask.
        if attributes.mode & 0o070 != 0
            && let Some(value) = self.store.xattr(node, OsStr::new(acl::ACCESS))?
        {
            return Ok(Acl::parse(&value)?.grants(caller, in_group, wanted));
        }
        Ok(class(if in_group { 3 } else { 0 }))
    }

    /// Whether the caller may do what the owner of an inode may.
    pub(super) fn owns(&self, caller: &Caller, node: &S::Node) -> Answer<bool> {
        let Attributes { uid, gid, .. } = self.judged(node)?;
        let by_right =
            !self.policy.checks_permissions || caller.has_over(Capability::Fowner, uid, gid);
        Ok(by_right || uid == caller.uid)
    }

    /// Refuses to take `victim` out of a directory, as unlink(2) would.
    pub(super) fn may_unlink(
        &self,
        caller: &Caller,
        directory: &S::Node,
        victim: &S::Node,
    ) -> Answer<()> {
        self.may(caller, directory, WRITE | SEARCH)?;
        let sticky = self.judged(directory)?.mode & STICKY != 0;
        if sticky && !self.owns(caller, directory)? && !self.owns(caller, victim)? {
            return Err(Errno::PERM);
        }
        Ok(())
    }

    /// Refuses a caller who could not find `directory` by listing those above it, up to the first of `tops`. That one is
    /// answered; its own permissions are not asked.
    pub(super) fn may_reach(
        &self,
        caller: &Caller,
        tops: &[Identity],
        directory: &S::Node,
    ) -> Answer<S::Node> {
        let mut at = directory.clone();
        for _ in 0..DEPTH_MAX {
            let here = self.store.identity(&at);
            if tops.contains(&here) {
                return Ok(at);
            }
            self.may(caller, &at, READ | SEARCH)?;
            let above = self.store.parent(&at)?;
            if self.store.identity(&above) == here {
                break;
            }
            at = above;
        }
        Err(Errno::ACCESS)
    }
}
