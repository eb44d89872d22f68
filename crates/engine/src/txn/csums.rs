//! Checksums of data that a commit adds to the csum tree, and ranges whose checksums go.
//!
//! A csum item holds the checksums of a run of sectors: its key is the address of the first one. New runs are appended
//! to the item before them where they touch it and it has room; the rest becomes items as large as a leaf allows.

use buttress_ondisk::{ITEM_LEN, Key, LeafBuilder, SECTOR, kind, objectid};

use crate::error::{Error, Result};
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

    /// Adds checksums of sectors. They should have none yet; what a damaged tree says of them gives way.
    fn add(&mut self, bytenr: u64, digests: &[u8]) -> Result<()> {
        let end = bytenr + self.sectors(digests.len());
        let mut behind = self.cut_open(bytenr, end)?;
        if self.end() != Some(bytenr) {
            self.close()?;
            behind.extend(self.take_over(bytenr, end)?);
        }
        let (mut pos, mut rest, size) = (bytenr, digests, self.size);
        let stale = |found: &Key| found.kind == kind::EXTENT_CSUM && found.offset < end;
        while let Some((found, data)) =
            self.merge.peek(&key(pos))?.filter(|(found, _)| stale(found))
        {
            let index = |from: u64, to: u64| ((to - from) / SECTOR) as usize * size;
            if let Some(more) = data.get(index(found.offset, end)..) {
                behind = more.to_vec();
            }
            let (now, later) = rest.split_at(index(pos, found.offset).min(rest.len()));
            self.append(pos, now)?;
            self.close()?;
            self.merge.delete(&found)?;
            (pos, rest) = (found.offset, later);
        }
        self.append(pos, rest)?;
        self.append(end, &behind)
    }

    /// Cuts the open item where it reaches into new sectors; what it has behind them is returned.
    fn cut_open(&mut self, start: u64, end: u64) -> Result<Vec<u8>> {
        let (size, reach) = (self.size, self.end());
        let Some((at, digests)) = &mut self.open else { return Ok(Vec::new()) };
        if reach.is_none_or(|reach| reach <= start) {
            return Ok(Vec::new());
        }
        let index = |address: u64| ((address - *at) / SECTOR) as usize * size;
        if *at > start {
            let what = "checksums overlap";
            return Err(Error::inconsistent(objectid::CSUM_TREE, what, key(*at)));
        }
        let behind = digests.get(index(end)..).map_or(Vec::new(), <[u8]>::to_vec);
        digests.truncate(index(start));
        Ok(behind)
    }

    /// Appends checksums to the open item, and to others as it gets full.
    fn append(&mut self, mut bytenr: u64, mut digests: &[u8]) -> Result<()> {
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

    /// Goes on with the old item that ends at `bytenr`, if there is one with room. One that reaches further, into what is
    /// new, is cut there; what it has behind `end` is returned.
    fn take_over(&mut self, bytenr: u64, end: u64) -> Result<Vec<u8>> {
        let none = Ok(Vec::new());
        let Some((found, data)) = self.merge.peek_floor(&key(bytenr.saturating_sub(SECTOR)))?
        else {
            return none;
        };
        let size = self.size;
        let ends = found.offset.saturating_add((data.len() / size) as u64 * SECTOR);
        if found.kind != kind::EXTENT_CSUM || found.offset >= bytenr || ends < bytenr {
            return none;
        }
        if ends == bytenr && data.len() >= self.room / 4 * 3 {
            return none;
        }
        let index = |address: u64| ((address - found.offset) / SECTOR) as usize * size;
        let (digests, behind) = (data.get(..index(bytenr)), data.get(index(end)..));
        let (digests, behind) = (digests.map(<[u8]>::to_vec), behind.map(<[u8]>::to_vec));
        self.merge.delete(&found)?;
        self.open = digests.map(|digests| (found.offset, digests));
        Ok(behind.unwrap_or_default())
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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::tree::tests::{Fake, blocks};
    use crate::tree::{Blocks, Root, View};

    /// Merges new runs (first sector, sectors, the byte that their checksums are made of) into the tree.
    fn add(blocks: &Blocks, root: Option<Root>, generation: u64, runs: &[(u64, u64, u8)]) -> Root {
        let (mut next, mut live) = ((1 << 40) + (generation << 30), BTreeSet::new());
        live.extend(root.map(|root| root.bytenr));
        let mut fake = Fake {
            blocks,
            generation,
            next: &mut next,
            live: &mut live,
            reusable: Vec::new(),
            placed: 0,
        };
        let mut merge = Merge::new(blocks, 5, root, &mut fake).unwrap();
        let mut log = CsumLog::default();
        for &(start, sectors, byte) in runs {
            log.push(start * SECTOR, vec![byte; sectors as usize * 4]);
        }
        log.emit(&mut merge, 4, 4096).unwrap();
        merge.finish().unwrap()
    }

    /// The checksum of each sector, and whether items overlap nowhere.
    fn sums(blocks: &Blocks, root: Root) -> BTreeMap<u64, u8> {
        let mut sums = BTreeMap::new();
        let mut cursor = View::new(blocks, 5, root).range(key(0), key(u64::MAX));
        while let Some(item) = cursor.next().unwrap() {
            for (at, digest) in item.data().chunks(4).enumerate() {
                let sector = item.key().offset / SECTOR + at as u64;
                assert!(sums.insert(sector, digest[0]).is_none(), "sector {sector} twice");
            }
        }
        sums
    }

    #[test]
    fn checksums_that_should_not_be_there_give_way_to_new_ones() {
        let stale = [(100, 10, 1), (120, 4, 1), (130, 30, 1), (200, 1, 1)];
        let cases: [&[(u64, u64, u8)]; 6] = [
            &[(104, 3, 2)],
            &[(90, 100, 2)],
            &[(110, 12, 2)],
            &[(95, 8, 2), (103, 2, 2), (118, 20, 2)],
            &[(132, 2, 2), (140, 4, 2), (144, 2, 2)],
            &[(100, 10, 2), (200, 1, 2)],
        ];
        for runs in cases {
            let blocks = blocks();
            let old = add(&blocks, None, 10, &stale);
            let new = add(&blocks, Some(old), 11, runs);
            let mut expect = BTreeMap::new();
            for &(start, sectors, byte) in stale.iter().chain(runs) {
                expect.extend((start..start + sectors).map(|sector| (sector, byte)));
            }
            assert_eq!(sums(&blocks, new), expect, "{runs:?}");
        }
    }
}
