//! Access control lists, where FUSE leaves them to the server. The kernel reads them to check
//! permissions; here they are passed on to new inodes and kept in step with the mode.
//!
//! An ACL is stored as the xattr value that acl(5) tools write and btrfs keeps on disk: a version,
//! then entries of tag, permissions and id, all little endian.

use std::ffi::OsStr;

use buttress::ondisk::item::mode::{SET_IDS, STICKY};
use rustix::io::Errno;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Mount;
use super::caller::Caller;
use super::store::{Answer, SetAttributes, SetXattr, Store};

/// The xattr of the ACL that is checked.
pub const ACCESS: &str = "system.posix_acl_access";
/// The xattr of the ACL that new inodes in a directory get.
pub const DEFAULT: &str = "system.posix_acl_default";

/// Whether an xattr is an ACL.
pub fn is_one(name: &OsStr) -> bool {
    name == ACCESS || name == DEFAULT
}

const VERSION: u32 = 2;
const RWX: u16 = 7;

const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const NAMED_GROUP: u16 = 0x08;
const GROUP: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// One entry as it is stored.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct Entry {
    tag: U16,
    permissions: U16,
    id: U32,
}

/// An access control list.
pub(super) struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    pub(super) fn parse(value: &[u8]) -> Answer<Self> {
        let (version, rest) = U32::read_from_prefix(value).map_err(|_| Errno::INVAL)?;
        if version.get() != VERSION {
            return Err(Errno::OPNOTSUPP);
        }
        let entries = <[Entry]>::ref_from_bytes(rest).map_err(|_| Errno::INVAL)?;
        Ok(Self { entries: entries.to_vec() })
    }

    pub(super) fn value(&self) -> Vec<u8> {
        [U32::new(VERSION).as_bytes(), self.entries.as_bytes()].concat()
    }

    fn entry(&mut self, tag: u16) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.tag == tag)
    }

    /// The entry that shows in the mode's group bits.
    fn group_class(&mut self) -> Option<&mut Entry> {
        let tag = if self.entry(MASK).is_some() { MASK } else { GROUP };
        self.entry(tag)
    }

    /// Whether the mode says all that the list says.
    fn is_minimal(&self) -> bool {
        self.entries.iter().all(|entry| [OWNER, GROUP, OTHER].contains(&entry.tag.get()))
    }

    /// Applies `change` to the permissions of each class and that of the mode beside it, from the
    /// owner's to those of others; returns the nine bits the classes have then.
    fn classes(&mut self, mode: u32, change: impl Fn(u16, u16) -> u16) -> u32 {
        let mut bits = 0;
        for shift in [6, 3, 0] {
            let class = match shift {
                6 => self.entry(OWNER),
                3 => self.group_class(),
                _ => self.entry(OTHER),
            };
            let Some(class) = class else { continue };
            let asked = (mode >> shift) as u16 & RWX;
            class.permissions = change(class.permissions.get() & RWX, asked).into();
            bits |= u32::from(class.permissions.get()) << shift;
        }
        bits
    }

    /// What a new inode gets that asks for `mode` in a directory with this default: permissions
    /// that both grant. Returns the mode.
    fn inherit(&mut self, mode: u32) -> u32 {
        mode & !0o777 | self.classes(mode, |has, asked| has & asked)
    }

    /// The nine permission bits this list stands for.
    fn mode_bits(&mut self) -> u32 {
        self.classes(0, |has, _| has)
    }

    /// Whether somebody who is not the owner gets `wanted`: by an entry of his own alone if there is one, else by any of
    /// his groups that has all of it, else, if he is in none of them, by what others get.
    pub(super) fn grants(&self, caller: &Caller, in_group: bool, wanted: u16) -> bool {
        let of = |tag: u16| self.entries.iter().filter(move |entry| entry.tag == tag);
        let has = |entry: &Entry| entry.permissions.get() & wanted == wanted;
        let masked = |entry: &Entry| has(entry) && of(MASK).all(has);
        if let Some(user) = of(USER).find(|entry| entry.id.get() == caller.uid) {
            return masked(user);
        }
        let named = of(NAMED_GROUP).filter(|entry| caller.is_in_group(entry.id.get()));
        let mut groups = of(GROUP).filter(|_| in_group).chain(named).peekable();
        match groups.peek() {
            Some(_) => groups.any(masked),
            None => of(OTHER).all(has),
        }
    }

    /// Follows a chmod.
    fn chmod(&mut self, mode: u32) {
        self.classes(mode, |_, asked| asked);
    }
}

/// What a new inode of mode `mode` takes over from the default ACL `default` of its directory: its
/// mode then, and its access ACL if that says more than the mode.
pub fn inherited(default: &[u8], mode: u32) -> Answer<(u32, Option<Vec<u8>>)> {
    let mut acl = Acl::parse(default)?;
    let mode = acl.inherit(mode);
    Ok((mode, (!acl.is_minimal()).then(|| acl.value())))
}

impl<S: Store> Mount<S> {
    /// Whether a directory has a default ACL. That it has none is remembered while the kernel holds
    /// it.
    pub(super) fn has_default_acl(&self, id: u64, directory: &S::Node) -> Answer<bool> {
        if self.nodes.is_marked(id) || self.nodes.is_plain(id) {
            return Ok(false);
        }
        let has = self.store.xattr(directory, OsStr::new(DEFAULT))?.is_some();
        self.nodes.mark(id, !has);
        Ok(has)
    }

    /// Sets the access ACL, and the mode with it. A list that says no more than the mode is not
    /// stored.
    pub(super) fn set_access_acl(&self, node: &S::Node, value: &[u8]) -> Answer<()> {
        let mut acl = Acl::parse(value)?;
        let name = OsStr::new(ACCESS);
        if acl.is_minimal() {
            match self.store.remove_xattr(node, name) {
                Ok(()) | Err(Errno::NODATA) => {}
                Err(errno) => return Err(errno),
            }
        } else {
            self.store.set_xattr(node, name, value, SetXattr::Any)?;
        }
        let mode = self.store.attributes(node)?.mode & (SET_IDS | STICKY) | acl.mode_bits();
        let change = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        self.store.set_attributes(node, &change).map(drop)
    }

    /// Makes the access ACL follow a new mode.
    pub(super) fn chmod_acl(&self, id: u64, node: &S::Node, mode: u32) -> Answer<()> {
        if self.nodes.is_plain(id) {
            return Ok(());
        }
        let name = OsStr::new(ACCESS);
        let Some(value) = self.store.xattr(node, name)? else { return Ok(()) };
        let mut acl = Acl::parse(&value)?;
        acl.chmod(mode);
        // Whoever has taken it away since finds it again.
        let set = || self.store.set_xattr(node, name, &acl.value(), SetXattr::Any);
        self.nodes.change_xattrs(id, set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16)]) -> Acl {
        let entry = |&(tag, permissions): &(u16, u16)| Entry {
            tag: tag.into(),
            permissions: permissions.into(),
            id: U32::new(u32::MAX),
        };
        Acl { entries: entries.iter().map(entry).collect() }
    }

    #[test]
    fn a_mask_stands_for_the_group() {
        let mut list = acl(&[(OWNER, 7), (2, 6), (GROUP, 5), (MASK, 7), (OTHER, 1)]);
        assert_eq!(list.mode_bits(), 0o771);
        assert_eq!(list.inherit(0o100_640), 0o100_640);
        assert_eq!(list.entry(GROUP).unwrap().permissions, 5);
        assert_eq!(list.entry(MASK).unwrap().permissions, 4);
        list.chmod(0o4717);
        assert_eq!(list.mode_bits(), 0o717);
        assert!(!list.is_minimal());
    }

    #[test]
    fn a_minimal_list_is_a_mode() {
        let mut list = acl(&[(OWNER, 6), (GROUP, 4), (OTHER, 0)]);
        assert!(list.is_minimal());
        assert_eq!(list.mode_bits(), 0o640);
        let again = Acl::parse(&list.value()).unwrap();
        assert_eq!(again.entries.len(), 3);
        assert!(Acl::parse(&list.value()[..9]).is_err());
        assert!(Acl::parse(b"").is_err());
    }
}
