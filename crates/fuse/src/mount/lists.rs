//! Directory listings.
//!
//! A listing goes on at the directory index after that of the entry it gave last (1 after `.`, 2 after `..`; indexes begin at 2). An
//! index belongs to its name as long as the name stays, so a listing can go on after any change, even after the server was
//! restarted, without showing a name twice or skipping one that was there all along.
//!
//! It ends with the last index there was when it began, or who renames what he lists would never come to an end. There are no handles of directories
//! (a request each to open and close one), so a cookie says both ([`Cookie`]). The kernel keeps what one reader has been given, and
//! goes on there for another one only where it finds his cookie, that is, where both end at the same index.

use std::cell::{Cell, RefCell};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::Mount;
use super::store::{Answer, Store};
use crate::nodes::Identity;
use crate::protocol::abi::{self, Dirent, EntryOut, ROOT_ID};
use crate::protocol::channel::{Reply, Request};

/// `DT_DIR`.
const DIRECTORY_KIND: u32 = 4;
/// The index of the first name; those before it stand for these.
const FIRST_INDEX: u64 = 2;
const DOTS: [&str; 2] = [".", ".."];
/// Longest listing in one answer, in bytes.
const LIST_BYTES_MAX: usize = 1 << 20;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Where a listing goes on, and where it ends. 32-bit programs that know no larger offsets can list directories of whose names there were few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cookie {
    /// The first index that is not given yet; 0 of a listing that begins.
    next: u64,
    /// The last index that it shows.
    end: u64,
}

impl Cookie {
    /// Bits of the two in a cookie of 31 bits, and in one of 62.
    const SMALL: (u32, u32) = (15, 16);
    const LARGE: (u32, u32) = (31, 30);
    const IS_LARGE: u64 = 1 << 62;
    /// There is no room for the end.
    const IS_HUGE: u64 = 3 << 61;

    /// As the kernel keeps it: a positive number of 64 bits with sign. EOVERFLOW where the index is beyond all that directories have.
    fn encode(self) -> Answer<u64> {
        let fits = |bits: (u32, u32)| self.next >> bits.0 == 0 && self.end >> bits.1 == 0;
        match self {
            _ if fits(Self::SMALL) => Ok(self.end << Self::SMALL.0 | self.next),
            _ if fits(Self::LARGE) => Ok(Self::IS_LARGE | self.end << Self::LARGE.0 | self.next),
            _ if self.next >> 61 == 0 => Ok(Self::IS_HUGE | self.next),
            _ => Err(Errno::OVERFLOW),
        }
    }

    fn decode(offset: u64) -> Cookie {
        let split = |of: u64, bits: u32| Cookie { next: of & ((1 << bits) - 1), end: of >> bits };
        match offset {
            _ if offset & Self::IS_HUGE == Self::IS_HUGE => {
                Cookie { next: offset & !Self::IS_HUGE, end: u64::MAX }
            }
            _ if offset & Self::IS_LARGE != 0 => split(offset & !Self::IS_LARGE, Self::LARGE.0),
            _ => split(offset, Self::SMALL.0),
        }
    }
}

/// An entry on its way into a listing.
struct Gathered {
    index: u64,
    name: OsString,
    identity: Identity,
    kind: u32,
}

/// A listing being written.
struct Listing<'b> {
    buffer: &'b mut Vec<u8>,
    limit: usize,
    /// Each entry is preceded by its attributes.
    plus: bool,
}

impl Listing<'_> {
    /// Bytes an entry with this name takes.
    fn length(&self, name: &OsStr) -> usize {
        let plus = if self.plus { size_of::<EntryOut>() } else { 0 };
        plus + abi::dirent_len(name.len())
    }

    /// Whether an entry with this name still fits.
    fn fits(&self, name: &OsStr) -> bool {
        self.buffer.len() + self.length(name) <= self.limit
    }

    fn push(&mut self, entry: &EntryOut, ino: u64, cookie: u64, kind: u32, name: &OsStr) {
        if self.plus {
            self.buffer.extend_from_slice(entry.as_bytes());
        }
        let end = self.buffer.len() + abi::dirent_len(name.len());
        let namelen = u32::try_from(name.len()).unwrap_or(0);
        self.buffer.extend_from_slice(Dirent { ino, off: cookie, namelen, kind }.as_bytes());
        self.buffer.extend_from_slice(name.as_bytes());
        self.buffer.resize(end, 0);
    }
}

impl<S: Store> Mount<S> {
    pub(super) fn readdir(&self, request: &Request<'_>, reply: Reply<'_>) {
        self.reply_list(request, reply, false);
    }

    pub(super) fn readdirplus(&self, request: &Request<'_>, reply: Reply<'_>) {
        self.reply_list(request, reply, true);
    }

    fn reply_list(&self, request: &Request<'_>, reply: Reply<'_>, plus: bool) {
        BUFFER.with_borrow_mut(|buffer| {
            buffer.clear();
            match self.list_into(request, buffer, plus) {
                Ok(()) => reply.parts(&[buffer]),
                Err(errno) => reply.refuse(errno),
            }
        });
    }

    fn list_into(&self, request: &Request<'_>, buffer: &mut Vec<u8>, plus: bool) -> Answer<()> {
        let wish: abi::ReadIn = request.body().read()?;
        let node = self.node(request.nodeid())?;
        let limit = (wish.size as usize).min(LIST_BYTES_MAX);
        let mut listing = Listing { buffer, limit, plus };
        let Cookie { next, end } = Cookie::decode(wish.offset);
        let begins = wish.offset == 0;
        let (entries, complete) = self.gather(&node, next, &listing)?;
        let end = if begins { self.end_of_listing(&node, &entries, complete)? } else { end };
        if next < FIRST_INDEX {
            self.push_dots(&mut listing, request.nodeid(), &node, Cookie { next, end })?;
        }
        for entry in entries.iter().take_while(|entry| entry.index <= end) {
            if !self.push_entry(&mut listing, entry, end)? {
                break;
            }
        }
        if begins {
            self.accessed(&node);
        }
        Ok(())
    }

    fn push_dots(
        &self,
        listing: &mut Listing<'_>,
        id: u64,
        node: &S::Node,
        from: Cookie,
    ) -> Answer<()> {
        let above = match id {
            ROOT_ID => id,
            // It has no inode that knows.
            _ if self.store.identity(node).is_stub() => id,
            _ => match self.store.parent(node) {
                // It is listed all the same.
                Err(errno) if is_damage(errno) => id,
                parent => self.id(&parent?),
            },
        };
        for ((name, id), next) in DOTS.into_iter().zip([id, above]).zip(1..) {
            if next > from.next {
                let name = OsStr::new(name);
                if !listing.fits(name) {
                    return Err(Errno::INVAL);
                }
                // The kernel makes no entries of the dots, so they are not held either.
                let nothing = EntryOut::default();
                let cookie = Cookie { next, ..from }.encode()?;
                listing.push(&nothing, self.shown_ino(id), cookie, DIRECTORY_KIND, name);
            }
        }
        Ok(())
    }

    /// Entries from an index on, at least as many as fit after the dots before it, and whether those are all. They are gathered before
    /// their inodes are loaded, as the filesystem may hold the directory while it lists.
    fn gather(
        &self,
        node: &S::Node,
        next: u64,
        listing: &Listing<'_>,
    ) -> Answer<(Vec<Gathered>, bool)> {
        let dots = DOTS.iter().skip(usize::try_from(next).unwrap_or(usize::MAX));
        let dots: usize = dots.map(|name| listing.length(OsStr::new(name))).sum();
        let mut room = listing.limit.saturating_sub(dots);
        let mut entries = Vec::new();
        let mut complete = true;
        let listed = self.store.list(node, next.max(FIRST_INDEX), &mut |found| {
            let Some(left) = room.checked_sub(listing.length(found.name)) else {
                complete = false;
                return false;
            };
            room = left;
            entries.push(Gathered {
                index: found.index,
                name: found.name.to_owned(),
                identity: found.identity,
                kind: found.kind,
            });
            true
        });
        match listed {
            // What is before something that cannot be read is given; who goes on there is told.
            Err(_) if !entries.is_empty() => Ok((entries, false)),
            listed => listed.map(|()| (entries, complete)),
        }
    }

    /// The last index there is, for a listing that begins with these entries.
    fn end_of_listing(&self, node: &S::Node, entries: &[Gathered], complete: bool) -> Answer<u64> {
        let known = entries.last().map_or(0, |entry| entry.index);
        if complete { Ok(known) } else { self.last_index(node, known) }
    }

    /// The highest index in use, not below `known`: by ever longer leaps, then by halves. Where some cannot be read, the first of those, so that who lists comes
    /// to it and is told.
    fn last_index(&self, node: &S::Node, known: u64) -> Answer<u64> {
        let is_damaged = Cell::new(false);
        let first_from = |from: u64| {
            let mut found = None;
            let listed = self.store.list(node, from, &mut |entry| {
                found = Some(entry.index);
                false
            });
            match listed {
                Err(errno) if is_damage(errno) => is_damaged.set(true),
                listed => listed?,
            }
            Ok::<_, Errno>(found)
        };
        let (mut last, mut leap) = (known, 1u64);
        let mut free = loop {
            let Some(probe) = last.checked_add(leap) else { break u64::MAX };
            match first_from(probe)? {
                Some(found) => (last, leap) = (found, leap.saturating_mul(2)),
                None => break probe,
            }
        };
        while free - last > 1 {
            let probe = last + (free - last) / 2;
            match first_from(probe)? {
                Some(found) => last = found,
                None => free = probe,
            }
        }
        Ok(last.saturating_add(is_damaged.get().into()))
    }

    /// Adds one entry; `false` if there was no room for it.
    fn push_entry(&self, listing: &mut Listing<'_>, found: &Gathered, end: u64) -> Answer<bool> {
        if !listing.fits(&found.name) {
            return Ok(false);
        }
        let next = found.index.checked_add(1).ok_or(Errno::OVERFLOW)?;
        let cookie = Cookie { next, end }.encode()?;
        let ino = self.shown_ino(self.nodes.id(found.identity));
        let entry = if listing.plus { self.listed_entry(found) } else { EntryOut::default() };
        listing.push(&entry, ino, cookie, found.kind, &found.name);
        Ok(true)
    }

    /// The entry for a listed name, held like one that was looked up. Where the inode cannot be
    /// loaded the name is listed all the same, and looking it up says what is wrong.
    fn listed_entry(&self, found: &Gathered) -> EntryOut {
        let loaded = self.node(self.nodes.id(found.identity));
        loaded.and_then(|node| self.entry(&node)).unwrap_or_default()
    }
}

/// Whether something is there and cannot be read.
fn is_damage(errno: Errno) -> bool {
    matches!(errno, Errno::IO | Errno::UCLEAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_says_where_a_listing_goes_on_and_ends() {
        let (small, large) = ((1 << 15) - 1, (1 << 31) - 1);
        let mut seen = std::collections::BTreeSet::from([0]);
        for next in [1, 2, 3, small, small + 1, large] {
            for end in [0, 1, 2, 77, (1 << 16) - 1, 1 << 16, (1 << 30) - 1] {
                let cookie = Cookie { next, end };
                let offset = cookie.encode().unwrap();
                assert_eq!(Cookie::decode(offset), cookie);
                assert!(seen.insert(offset) && offset <= i64::MAX as u64);
                assert_eq!(offset >> 31 == 0, next <= small && end < 1 << 16);
            }
        }
        for (next, end) in [(large + 1, 5), (5, 1 << 30), ((1 << 61) - 1, 1 << 61)] {
            let offset = Cookie { next, end }.encode().unwrap();
            assert_eq!(Cookie::decode(offset), Cookie { next, end: u64::MAX });
            assert!(seen.insert(offset) && offset <= i64::MAX as u64);
        }
        assert_eq!(Cookie { next: 1 << 61, end: 0 }.encode(), Err(Errno::OVERFLOW));
        assert_eq!(Cookie::decode(0), Cookie { next: 0, end: 0 });
    }
}
