//! POSIX ACLs, as far as a filesystem has to know them: what a new file takes over from its directory, and how an access
//! ACL and the mode say the same.
//!
//! An ACL is kept as the kernel hands it over: a version (2) in 4 bytes, then 8 bytes for each entry: tag and permissions
//! in 2 bytes each, and an id in 4, all little-endian, entries sorted by tag.

use super::types::{FileKind, New};
use crate::error::{Errno, Error, Result};

/// The xattr of the access ACL.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The xattr of the ACL that new files in a directory take over.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// What a new file begins with.
#[derive(Debug, Default)]
pub(super) struct Born {
    /// The lowest 12 bits of its mode.
    pub mode: u32,
    /// Its ACLs.
    pub xattrs: Vec<(&'static [u8], Vec<u8>)>,
}

impl Born {
    pub fn xattrs_len(&self) -> usize {
        self.xattrs.iter().map(|(name, value)| 60 + name.len() + value.len()).sum()
    }
}

/// EINVAL for what is no ACL.
pub(super) fn check(acl: &[u8]) -> Result<()> {
    parse(acl).map(drop)
}

/// What a new file takes over from its directory's default ACL, if that has one; without, the umask counts.
pub(super) fn inherit(default: Option<&[u8]>, new: &New) -> Result<Born> {
    let Some(default) = default.filter(|_| new.kind != FileKind::Symlink) else {
        return Ok(Born { mode: new.mode & 0o7777 & !(new.umask & 0o777), xattrs: Vec::new() });
    };
    let mut entries = parse(default)?;
    let mode = restrict(&mut entries, new.mode & 0o7777);
    let mut xattrs = Vec::new();
    if !says_no_more_than_a_mode(&entries) {
        xattrs.push((ACCESS, print(&entries)));
    }
    if new.kind == FileKind::Directory {
        xattrs.push((DEFAULT, default.to_vec()));
    }
    Ok(Born { mode, xattrs })
}

/// The mode of a file of mode `mode` once it has the access ACL `acl`, and whether the ACL says more than the mode does
/// (if not, it need not be kept).
pub fn mode_of(acl: &[u8], mode: u32) -> Result<(u32, bool)> {
    let entries = parse(acl)?;
    let of =
        |tag| entries.iter().find(|entry| entry.tag == tag).map(|it| u32::from(it.permissions));
    let user = of(USER_OBJ).unwrap_or(0);
    let group = of(MASK).or(of(GROUP_OBJ)).unwrap_or(0);
    let other = of(OTHER).unwrap_or(0);
    let mode = mode & !0o777 | user << 6 | group << 3 | other;
    Ok((mode, !says_no_more_than_a_mode(&entries)))
}

/// The access ACL `acl` once the mode is `mode`.
pub fn with_mode(acl: &[u8], mode: u32) -> Result<Vec<u8>> {
    let mut entries = parse(acl)?;
    let has_mask = entries.iter().any(|entry| entry.tag == MASK);
    for entry in &mut entries {
        match entry.tag {
            USER_OBJ => entry.permissions = bits(mode >> 6),
            GROUP_OBJ if !has_mask => entry.permissions = bits(mode >> 3),
            MASK => entry.permissions = bits(mode >> 3),
            OTHER => entry.permissions = bits(mode),
            _ => {}
        }
    }
    Ok(print(&entries))
}

fn bits(mode: u32) -> u16 {
    (mode & 7) as u16
}

/// Leaves what both the entries and the mode allow; answers that mode.
fn restrict(entries: &mut [Entry], mode: u32) -> u32 {
    let has_mask = entries.iter().any(|entry| entry.tag == MASK);
    let mut mode = mode;
    for entry in entries {
        let shift = match entry.tag {
            USER_OBJ => 6,
            GROUP_OBJ if !has_mask => 3,
            MASK => 3,
            OTHER => 0,
            _ => continue,
        };
        entry.permissions &= bits(mode >> shift);
        mode = mode & !(7 << shift) | u32::from(entry.permissions) << shift;
    }
    mode
}

fn says_no_more_than_a_mode(entries: &[Entry]) -> bool {
    entries.iter().all(|entry| matches!(entry.tag, USER_OBJ | GROUP_OBJ | OTHER))
}

fn parse(acl: &[u8]) -> Result<Vec<Entry>> {
    let bad = || Error::User(Errno::INVAL);
    let (version, rest) = acl.split_first_chunk::<4>().ok_or_else(bad)?;
    if u32::from_le_bytes(*version) != VERSION || rest.len() % 8 != 0 {
        return Err(bad());
    }
    let entry = |bytes: &[u8]| {
        let &[t0, t1, p0, p1, i0, i1, i2, i3] = bytes else { return Err(bad()) };
        let tag = u16::from_le_bytes([t0, t1]);
        if !matches!(tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER) {
            return Err(bad());
        }
        let permissions = u16::from_le_bytes([p0, p1]) & 7;
        let id = u32::from_le_bytes([i0, i1, i2, i3]);
        // So a user namespace shows somebody whom it does not know. Linux takes no file with such an ACL.
        if matches!(tag, USER | GROUP) && id == u32::MAX {
            return Err(bad());
        }
        Ok(Entry { tag, permissions, id })
    };
    rest.chunks_exact(8).map(entry).collect()
}

fn print(entries: &[Entry]) -> Vec<u8> {
    let mut acl = VERSION.to_le_bytes().to_vec();
    for entry in entries {
        acl.extend(entry.tag.to_le_bytes());
        acl.extend(entry.permissions.to_le_bytes());
        acl.extend(entry.id.to_le_bytes());
    }
    acl
}
