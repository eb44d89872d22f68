//! Checksums of data: computing them, and looking them up in the csum tree.
//!
//! The csum tree has items of consecutive checksums, keyed by the address of the first sector. A reader goes forward
//! mostly, so the item found last is kept.
//!
//! A reader that joined before a commit published may still see a version of its file that refers to extents which that
//! commit let go: their checksums are in the csum tree before it. At most one commit publishes while a reader has
//! joined, so two versions are enough.

use buttress_codec::ChecksumKind;
use buttress_ondisk::{Key, SECTOR, kind, objectid};

use super::ranges::{Span, len};
use crate::error::Result;
use crate::tree::Item;
use crate::txn::Core;

/// The checksums of the sectors of `data`, back to back.
pub(super) fn digests(checksum: ChecksumKind, data: &[u8]) -> Vec<u8> {
    let size = checksum.size();
    let mut all = vec![0; data.len().div_ceil(SECTOR as usize) * size];
    for (sector, out) in data.chunks(SECTOR as usize).zip(all.chunks_exact_mut(size)) {
        checksum.digest_into(sector, out);
    }
    all
}

/// Looks checksums up.
pub(super) struct CsumReader<'a> {
    core: &'a Core,
    /// Bytes of one checksum.
    size: usize,
    /// The item found last, and the addresses it covers.
    current: Option<(Span, Item)>,
}

impl<'a> CsumReader<'a> {
    /// In the committed csum tree.
    pub fn new(core: &'a Core) -> CsumReader<'a> {
        CsumReader { core, size: core.features.csum.size(), current: None }
    }

    /// Whether nobody wants to know them.
    pub fn are_ignored(&self) -> bool {
        self.core.sums_ignored
    }

    /// The checksums of all sectors of `span`, or the address of the first sector that has none.
    pub fn digests(&mut self, span: &Span) -> Result<std::result::Result<Vec<u8>, u64>> {
        let mut all = Vec::with_capacity((len(span) / SECTOR) as usize * self.size);
        let mut pos = span.start;
        while pos < span.end {
            if !self.find(pos)? {
                return Ok(Err(pos));
            }
            let Some((covers, item)) = &self.current else { return Ok(Err(pos)) };
            let end = covers.end.min(span.end);
            let index = |at: u64| ((at - covers.start) / SECTOR) as usize * self.size;
            let Some(part) = item.data().get(index(pos)..index(end)) else { return Ok(Err(pos)) };
            all.extend_from_slice(part);
            pos = end;
        }
        Ok(Ok(all))
    }

    /// Makes the item that covers `pos` current; whether there is one.
    fn find(&mut self, pos: u64) -> Result<bool> {
        if self.current.as_ref().is_some_and(|(covers, _)| covers.contains(&pos)) {
            return Ok(true);
        }
        // That of now first: where a commit is published in between, it is the one before then.
        for view in [Core::csum_view, Core::csum_view_before] {
            let view = view(self.core);
            let key = Key::new(objectid::EXTENT_CSUM, kind::EXTENT_CSUM, pos);
            let Some(item) = view.last_at_or_before(&key)? else { continue };
            let found = item.key();
            if (found.objectid, found.kind) != (key.objectid, key.kind) {
                continue;
            }
            let sectors = (item.data().len() / self.size) as u64;
            let covers = found.offset..found.offset.saturating_add(sectors * SECTOR);
            if covers.contains(&pos) {
                self.current = Some((covers, item));
                return Ok(true);
            }
        }
        Ok(false)
    }
}
