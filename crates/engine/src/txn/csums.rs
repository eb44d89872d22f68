//! Checksums of data that a commit adds to the csum tree, and ranges whose checksums go.
//!
//! A csum item holds the checksums of a run of sectors: its key is the address of the first one. New runs are appended
//! to the item before them where they touch it and it has room; the rest becomes items as large as a leaf allows.

use buttress_ondisk::{ITEM_LEN, Key, LeafBuilder, SECTOR, kind, objectid};

use crate::error::Result;
use crate::tree::Merge;

/// What changes in the csum tree.
#[derive(Debug, Default)]
pub struct CsumLog {
    added: Vec<(u64, Vec<u8>)>,
    removed: Vec<(u64, u64)>,
}

fn key(bytenr: u64) -> Key {
    Key::new(objectid::EXTENT_CSUM, kind::EXTENT_CSUM, bytenr)
}

impl CsumLog {
    /// The checksums, one after the other, of the sectors from `bytenr` on.
    pub fn push(&mut self, bytenr: u64, digests: Vec<u8>) {
        if !digests.is_empty() {
            self.added.push((bytenr, digests));
        }
    }

    /// The data extent at `bytenr` went.
    pub fn remove(&mut self, bytenr: u64, len: u64) {
        self.removed.push((bytenr, len));
    }

    /// Appends another log.
    pub fn append(&mut self, other: &mut CsumLog) {
        self.added.append(&mut other.added);
        self.removed.append(&mut other.removed);
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }

    /// Merges the changes into the csum tree; `size` is the bytes of one checksum. A range that is removed and added is
    /// replaced.
    pub fn emit(mut self, merge: &mut Merge<'_>, size: usize, nodesize: usize) -> Result<()> {
        self.removed.sort_unstable();
        self.added.sort_unstable_by_key(|(bytenr, _)| *bytenr);
        let mut writer = Writer { merge, size, room: item_room(nodesize, size), open: None };
        let mut removed = self.removed.iter().copied().peekable();
        for (bytenr, digests) in &self.added {
            while let Some((start, len)) = removed.next_if(|(start, _)| *start <= *bytenr) {
                writer.remove(start, len)?;
            }
            writer.add(*bytenr, digests)?;
        }
        for (start, len) in removed {
            writer.remove(start, len)?;
        }
        writer.close()
    }
}

/// Bytes of checksums in the largest item, as the kernel bounds it.
fn item_room(nodesize: usize, size: usize) -> usize {
    let room = LeafBuilder::room(nodesize) - 2 * ITEM_LEN;
    (room / size - 1).min(4096) * size
}

struct Writer<'w, 'm> {
    merge: &'w mut Merge<'m>,
    size: usize,
    room: usize,
    /// The item being written.
    open: Option<(u64, Vec<u8>)>,
}

impl Writer<'_, '_> {
    fn sectors(&self, bytes: usize) -> u64 {
        (bytes / self.size) as u64 * SECTOR
    }

    fn end(&self) -> Option<u64> {
        self.open.as_ref().map(|(start, digests)| start + self.sectors(digests.len()))
    }

    fn close(&mut self) -> Result<()> {
        if let Some((start, digests)) = self.open.take() {
            self.merge.put(key(start), &digests)?;
        }
        Ok(())
    }

    /// Appends checksums of sectors that have none yet.
    fn add(&mut self, mut bytenr: u64, mut digests: &[u8]) -> Result<()> {
        if self.end() != Some(bytenr) {
            self.close()?;
            self.take_over(bytenr)?;
        }
        while !digests.is_empty() {
            let have = self.open.as_ref().map_or(0, |(_, open)| open.len());
            if have >= self.room {
                self.close()?;
                continue;
            }
            let take = digests.len().min(self.room - have);
            let (now, later) = digests.split_at(take);
            self.open.get_or_insert_with(|| (bytenr, Vec::new())).1.extend_from_slice(now);
            bytenr += self.sectors(take);
            digests = later;
        }
        Ok(())
    }

    /// Goes on with the old item that ends at `bytenr`, if there is one with room.
    fn take_over(&mut self, bytenr: u64) -> Result<()> {
        let Some((found, data)) = self.merge.peek_floor(&key(bytenr.saturating_sub(SECTOR)))?
        else {
            return Ok(());
        };
        let size = self.size;
        let ends = found.offset.saturating_add((data.len() / size) as u64 * SECTOR);
        if found.kind != kind::EXTENT_CSUM || ends != bytenr || data.len() >= self.room / 4 * 3 {
            return Ok(());
        }
        let digests = data.to_vec();
        self.merge.delete(&found)?;
        self.open = Some((found.offset, digests));
        Ok(())
    }

    /// Removes the checksums of `len` bytes from `start` on, cutting items that reach beyond.
    fn remove(&mut self, start: u64, len: u64) -> Result<()> {
        let end = start + len;
        if let Some(reach) = self.end() {
            if reach <= start {
                self.close()?;
            } else if let Some((at, digests)) = self.open.take() {
                self.cut(at, &digests, start, end)?;
                if reach >= end {
                    return Ok(());
                }
            }
        }
        while let Some((found, data)) = self.merge.peek_floor(&key(start))? {
            let size = self.size;
            let at = found.offset;
            let ends = at.saturating_add((data.len() / size) as u64 * SECTOR);
            if found.kind != kind::EXTENT_CSUM || at >= end {
                break;
            }
            if ends > start {
                let digests = data.to_vec();
                self.merge.delete(&found)?;
                self.cut(at, &digests, start, end)?;
            } else if !self.skip_to(&key(start))? {
                break;
            }
            if ends >= end {
                break;
            }
        }
        Ok(())
    }

    /// Leaves the old item at or before `from` behind; whether another one follows.
    fn skip_to(&mut self, from: &Key) -> Result<bool> {
        Ok(self.merge.peek(from)?.is_some())
    }

    /// What is left of an item that was taken out: its part before `start` is put back, its part from `end` on stays
    /// open.
    fn cut(&mut self, at: u64, digests: &[u8], start: u64, end: u64) -> Result<()> {
        let size = self.size;
        let index = |address: u64| ((address - at) / SECTOR) as usize * size;
        if at < start {
            self.merge.put(key(at), &digests[..index(start)])?;
        }
        if at + self.sectors(digests.len()) > end {
            let from = end.max(at);
            self.open = Some((from, digests[index(from)..].to_vec()));
        }
        Ok(())
    }
}
