//! Directory listings.
//!
//! A cookie names the place after an entry: 1 after `.`, 2 after `..`, and the entry's directory
//! index plus one after any other (indexes begin at 2). An index belongs to its name as long as
//! the name stays, so a listing can go on after any change, even after the server was restarted,
//! without showing a name twice or skipping one that was there all along.

use std::cell::RefCell;
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
/// Longest listing in one answer, in bytes.
const LIST_BYTES_MAX: usize = 1 << 20;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
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
        if wish.offset < 2 {
            self.push_dots(&mut listing, request.nodeid(), &node, wish.offset)?;
        }
        let from = wish.offset.max(2);
        let (mut entries, complete) = self.gather(&node, from, &listing)?;
        let end = self.end_of_listing(request.nodeid(), &node, wish.offset, &entries, complete)?;
        entries.retain(|entry| entry.index <= end);
        for entry in entries {
            if !self.push_entry(&mut listing, &entry)? {
                break;
            }
        }
        if wish.offset == 0 {
            self.accessed(&node);
        }
        Ok(())
    }

    fn push_dots(
        &self,
        listing: &mut Listing<'_>,
        id: u64,
        node: &S::Node,
        after: u64,
    ) -> Answer<()> {
        let above = if id == ROOT_ID { id } else { self.id(&self.store.parent(node)?) };
        let dots = [(OsStr::new("."), id), (OsStr::new(".."), above)];
        for ((name, id), cookie) in dots.into_iter().zip(1..) {
            if cookie > after {
                if !listing.fits(name) {
                    return Err(Errno::INVAL);
                }
                // The kernel makes no entries of the dots, so they are not held either.
                let nothing = EntryOut::default();
                listing.push(&nothing, self.shown_ino(id), cookie, DIRECTORY_KIND, name);
            }
        }
        Ok(())
    }

    /// Entries from index `from` on, at least as many as fit, and whether those are all. They are
    /// gathered before their inodes
    /// are loaded, as the filesystem may hold the directory while it lists.
    fn gather(
        &self,
        node: &S::Node,
        from: u64,
        listing: &Listing<'_>,
    ) -> Answer<(Vec<Gathered>, bool)> {
        let mut room = listing.limit.saturating_sub(listing.buffer.len());
        let mut entries = Vec::new();
        let mut complete = true;
        self.store.list(node, from, &mut |found| {
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
        })?;
        Ok((entries, complete))
    }

    /// The last index a listing shows: the last there was when it began, so that it ends although
    /// names are made on the way. A listing begins at offset 0; who goes on where another began
    /// later shares that one's end.
    fn end_of_listing(
        &self,
        id: u64,
        node: &S::Node,
        offset: u64,
        entries: &[Gathered],
        complete: bool,
    ) -> Answer<u64> {
        if offset > 0 {
            return Ok(self.nodes.limit(id).unwrap_or(u64::MAX));
        }
        let known = entries.last().map_or(0, |entry| entry.index);
        let end = if complete { known } else { self.last_index(node, known)? };
        self.nodes.set_limit(id, end);
        Ok(end)
    }

    /// The highest index in use, not below `known`: by ever longer leaps, then by halves.
    fn last_index(&self, node: &S::Node, known: u64) -> Answer<u64> {
        let first_from = |from: u64| {
            let mut found = None;
            self.store.list(node, from, &mut |entry| {
                found = Some(entry.index);
                false
            })?;
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
        Ok(last)
    }

    /// Adds one entry; `false` if there was no room for it.
    fn push_entry(&self, listing: &mut Listing<'_>, found: &Gathered) -> Answer<bool> {
        if !listing.fits(&found.name) {
            return Ok(false);
        }
        let cookie = found.index.checked_add(1).ok_or(Errno::OVERFLOW)?;
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
