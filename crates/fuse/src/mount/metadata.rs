//! Attributes, extended attributes, and what changes them on the way: set-id bits that end with a
//! write or a new owner, access times that move with a read.

use std::ffi::OsStr;
use std::time::{SystemTime, UNIX_EPOCH};

use buttress::check_namespace;
use buttress::ondisk::item::mode::{
    DIRECTORY, GROUP_EXECUTE, PERMISSIONS, SET_GID, SET_UID, TYPE_MASK as TYPE,
};
use rustix::fs::{IFlags, XattrFlags};
use rustix::io::Errno;

use super::caller::{Caller, Capability};
use super::control::{Control, words};
use super::store::{Answer, Attributes, SetAttributes, SetTime, SetXattr, Store, Time};
use super::{Mount, acl, attributes, reply_sized};
use crate::options::AccessTimes;
use crate::protocol::abi::{self, fattr};
use crate::protocol::channel::{Reply, Request};

/// Seconds after which a relative access time moves even without a change.
const DAY: i64 = 86_400;

/// `FS_NOATIME_FL`: the access time of this inode stays.
const NOATIME: u32 = IFlags::NOATIME.bits();

impl<S: Store> Mount<S> {
    pub(super) fn getattr(&self, request: &Request<'_>) -> Answer<abi::AttrOut> {
        let attributes = self.store.attributes(&self.node(request.nodeid())?)?;
        Ok(self.policy.shown.attr_out(request.nodeid(), &attributes))
    }

    pub(super) fn statx(&self, request: &Request<'_>) -> Answer<abi::StatxOut> {
        let attributes = self.store.attributes(&self.node(request.nodeid())?)?;
        Ok(self.policy.shown.statx(request.nodeid(), &attributes))
    }

    pub(super) fn setattr(&self, request: &Request<'_>) -> Answer<abi::AttrOut> {
        let wish: abi::SetattrIn = request.body().read()?;
        let node = self.node(request.nodeid())?;
        self.may_set(&node, wish.valid)?;
        let mut change = changes(&wish);
        let chown = change.uid.is_some() || change.gid.is_some();
        if chown || wish.valid & fattr::KILL_SUIDGID != 0 {
            let before = self.store.attributes(&node)?;
            let mode = change.mode.map_or(before.mode, |mode| before.mode & TYPE | mode);
            let directory = mode & TYPE == DIRECTORY;
            let kept = (!directory).then(|| self.without_set_ids(request, mode, &before));
            change.mode = Some(kept.flatten().unwrap_or(mode & PERMISSIONS));
        }
        self.keep_times(&node, &wish, &mut change)?;
        let after = self.store.set_attributes(&node, &change)?;
        if let Some(mode) = change.mode.filter(|_| wish.valid & fattr::MODE != 0) {
            self.chmod_acl(request.nodeid(), &node, mode)?;
        }
        self.file_changed(self.policy.shown.attr_out(request.nodeid(), &after))
    }

    /// truncate(2) to the length that a file has changes no time; ftruncate(2), which comes with a handle, does, and so does open(2) with
    /// `O_TRUNC`, which comes without one.
    fn keep_times(
        &self,
        node: &S::Node,
        wish: &abi::SetattrIn,
        change: &mut SetAttributes,
    ) -> Answer<()> {
        let about = wish.valid & !(fattr::LOCKOWNER | fattr::KILL_SUIDGID);
        if about == fattr::SIZE && wish.size > 0 {
            let before = self.store.attributes(node)?;
            if before.size == wish.size {
                let same = change.mode.is_none_or(|mode| mode == before.mode & PERMISSIONS);
                change.mtime = Some(SetTime::To(before.mtime));
                change.ctime = same.then_some(before.ctime);
            }
        }
        Ok(())
    }

    /// Takes set-id bits away before the contents are changed by somebody without the right to keep them.
    pub(super) fn clear_set_ids(&self, request: &Request<'_>, node: &S::Node) -> Answer<()> {
        let before = self.store.attributes(node)?;
        let kept = self.without_set_ids(request, before.mode, &before);
        let Some(mode) = kept else { return Ok(()) };
        let change = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        self.store.set_attributes(node, &change).map(drop)
    }

    /// The permissions that are left of `mode` (with its type), if any bit must go.
    fn without_set_ids(
        &self,
        request: &Request<'_>,
        mode: u32,
        before: &Attributes,
    ) -> Option<u32> {
        let shown = self.policy.shown;
        let (uid, gid) = (shown.uid.unwrap_or(before.uid), shown.gid.unwrap_or(before.gid));
        without_set_ids(mode, || {
            let caller = Caller::of(request);
            caller.is_in_group(gid) || caller.has_over(Capability::Fsetid, uid, gid)
        })
    }

    /// Moves the access time after a read, as `relatime` and its like say. That it cannot be moved
    /// (a read-only subvolume, no space) does not spoil the read.
    pub(super) fn accessed(&self, node: &S::Node) {
        if self.policy.access_times == AccessTimes::Never {
            return;
        }
        if let Ok(attributes) = self.store.attributes(node) {
            self.accessed_with(node, &attributes);
        }
    }

    /// The same for one whose attributes are known.
    pub(super) fn accessed_with(&self, node: &S::Node, attributes: &Attributes) {
        if self.policy.access_times == AccessTimes::Never {
            return;
        }
        let directory = attributes.mode & TYPE == DIRECTORY;
        if directory && !self.policy.directory_access_times || attributes.flags & NOATIME != 0 {
            return;
        }
        if self.policy.access_times == AccessTimes::Strict || outdated(attributes, now) {
            let _the_read_counts = self.store.accessed(node);
        }
    }

    pub(super) fn statfs(&self) -> Answer<abi::StatfsOut> {
        Ok(attributes::statfs(&self.store.space()?))
    }

    pub(super) fn listxattr(&self, request: &Request<'_>, reply: Reply<'_>) {
        let Ok(wish) = request.body().read::<abi::GetxattrIn>() else {
            return reply.refuse(Errno::INVAL);
        };
        let names = self.node(request.nodeid()).and_then(|node| self.store.xattrs(&node));
        let list = names.map(|names| {
            let ended = names.into_iter().map(|mut name| {
                name.push(0);
                name
            });
            ended.collect::<Vec<_>>().concat()
        });
        reply_sized(reply, wish.size, list);
    }

    pub(super) fn removexattr(&self, request: &Request<'_>) -> Answer<()> {
        let name = request.body().text()?;
        check_namespace(name.as_encoded_bytes())?;
        let node = self.node(request.nodeid())?;
        self.has_xattrs(&node)?;
        self.may_touch(&node)?;
        match self.store.remove_xattr(&node, name) {
            // Where there is no list, there is none afterwards.
            Err(Errno::NODATA) if acl::is_one(name) => {}
            removed => removed?,
        }
        self.file_changed(())
    }

    /// Refuses what stands in a snapshot where its source holds a subvolume: there is no inode that could have attributes.
    fn has_xattrs(&self, node: &S::Node) -> Answer<()> {
        if self.store.identity(node).is_stub() { Err(Errno::OPNOTSUPP) } else { Ok(()) }
    }
}

impl<S: Control> Mount<S> {
    pub(super) fn getxattr(&self, request: &Request<'_>, reply: Reply<'_>) {
        let mut body = request.body();
        let Ok(wish) = body.read::<abi::GetxattrIn>() else { return reply.refuse(Errno::INVAL) };
        let value = body.text().and_then(|name| match words::word(name) {
            Some(word) => {
                self.send_notices(reply.channel());
                self.get_word(request, word)
            }
            None => {
                check_namespace(name.as_encoded_bytes())?;
                self.find_xattr(request.nodeid(), name)?.ok_or(Errno::NODATA)
            }
        });
        reply_sized(reply, wish.size, value);
    }

    /// The value of an xattr that the filesystem has. Properties are more than what is stored.
    fn find_xattr(&self, id: u64, name: &OsStr) -> Answer<Option<Vec<u8>>> {
        if self.nodes.is_plain(id) && !name.as_encoded_bytes().starts_with(b"btrfs.") {
            return Ok(None);
        }
        let changes = self.nodes.xattr_changes();
        let node = self.node(id)?;
        if acl::is_one(name) && self.store.identity(&node).is_stub() {
            // Linux asks for it before it lets anybody in.
            return Ok(None);
        }
        self.has_xattrs(&node)?;
        let found = self.store.xattr(&node, name)?;
        if found.is_none() && self.store.is_plain(&node) {
            self.nodes.found_plain(id, changes);
        }
        Ok(found)
    }

    pub(super) fn setxattr(&self, request: &Request<'_>, reply: Reply<'_>) {
        let channel = reply.channel();
        reply.result(self.set_any_xattr(request));
        self.send_notices(channel);
    }

    fn set_any_xattr(&self, request: &Request<'_>) -> Answer<()> {
        let mut body = request.body();
        let wish: abi::SetxattrIn = body.read()?;
        let name = body.text()?;
        let value = body.bytes(wish.size as usize)?;
        if let Some(word) = words::word(name) {
            return self.set_word(request, word, value);
        }
        check_namespace(name.as_encoded_bytes())?;
        self.nodes.change_xattrs(request.nodeid(), || {
            self.set_stored_xattr(request, &wish, (name, value))
        })
    }

    fn set_stored_xattr(
        &self,
        request: &Request<'_>,
        wish: &abi::SetxattrIn,
        (name, value): (&OsStr, &[u8]),
    ) -> Answer<()> {
        let node = self.node(request.nodeid())?;
        self.has_xattrs(&node)?;
        self.may_touch(&node)?;
        let how = match XattrFlags::from_bits_retain(wish.flags) {
            flags if flags.is_empty() => SetXattr::Any,
            XattrFlags::CREATE => SetXattr::Create,
            XattrFlags::REPLACE => SetXattr::Replace,
            // It is to be there, and it is not to be there.
            flags if flags == XattrFlags::CREATE | XattrFlags::REPLACE => {
                let is_there = self.store.xattr(&node, name)?.is_some();
                return Err(if is_there { Errno::EXIST } else { Errno::NODATA });
            }
            _ => return Err(Errno::INVAL),
        };
        match name.to_str() {
            Some(acl::ACCESS) => self.set_access_acl(&node, value)?,
            Some(acl::DEFAULT) => {
                self.store.set_xattr(&node, name, value, how)?;
                self.nodes.mark(request.nodeid(), false);
            }
            _ => self.store.set_xattr(&node, name, value, how)?,
        }
        if wish.setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0 {
            let mode = self.store.attributes(&node)?.mode & PERMISSIONS & !SET_GID;
            let change = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
            self.store.set_attributes(&node, &change)?;
        }
        self.file_changed(())
    }
}

/// What a SETATTR changes.
#[expect(clippy::cast_possible_wrap, reason = "seconds travel as the bits of a signed number")]
fn changes(wish: &abi::SetattrIn) -> SetAttributes {
    let has = |bit| wish.valid & bit != 0;
    let time = |given, now, sec: u64, nsec: u32| match (has(given), has(now)) {
        (_, true) => Some(SetTime::Now),
        (true, false) => Some(SetTime::To(Time { sec: sec as i64, nsec })),
        (false, false) => None,
    };
    SetAttributes {
        mode: has(fattr::MODE).then_some(wish.mode & PERMISSIONS),
        uid: has(fattr::UID).then_some(wish.uid),
        gid: has(fattr::GID).then_some(wish.gid),
        size: has(fattr::SIZE).then_some(wish.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, wish.atime, wish.atimensec),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, wish.mtime, wish.mtimensec),
        ctime: has(fattr::CTIME).then_some(Time { sec: wish.ctime as i64, nsec: wish.ctimensec }),
    }
}

/// The permissions that are left of `mode`, if any bit must go. A set-group-ID bit without group execution makes no program
/// run as the group, and stays where the caller could set it.
fn without_set_ids(mode: u32, could_set: impl FnOnce() -> bool) -> Option<u32> {
    let mut kept = mode & PERMISSIONS & !SET_UID;
    if kept & SET_GID != 0 && (kept & GROUP_EXECUTE != 0 || !could_set()) {
        kept &= !SET_GID;
    }
    (kept != mode & PERMISSIONS).then_some(kept)
}

/// The rule of `relatime`: not after the last change, or a day old.
fn outdated(attributes: &Attributes, now: impl FnOnce() -> Time) -> bool {
    attributes.atime <= attributes.mtime
        || attributes.atime <= attributes.ctime
        || now().sec.saturating_sub(attributes.atime.sec) >= DAY
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nsec: since.subsec_nanos() }
}

#[cfg(test)]
mod tests {
    use buttress::ondisk::item::mode::REGULAR as FILE;

    use super::*;

    #[test]
    fn set_ids_end_as_linux_ends_them() {
        let kept = |mode| (without_set_ids(mode, || true), without_set_ids(mode, || false));
        assert_eq!(kept(FILE | 0o6755), (Some(0o755), Some(0o755)));
        assert_eq!(kept(FILE | 0o2745), (None, Some(0o745)));
        assert_eq!(kept(FILE | 0o6745), (Some(0o2745), Some(0o745)));
        assert_eq!(kept(FILE | 0o644), (None, None));
    }

    #[test]
    fn relative_access_times() {
        let at = |sec| Time { sec, nsec: 0 };
        let file = Attributes { atime: at(10), mtime: at(5), ctime: at(5), ..Default::default() };
        assert!(!outdated(&file, || at(11)));
        assert!(outdated(&file, || at(10 + DAY)));
        assert!(outdated(&Attributes { mtime: at(10), ..file }, || at(11)));
    }
}
