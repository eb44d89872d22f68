//! A data extent is copied: read, verified where it has checksums, and written to where it goes.
//!
//! This happens while a batch is planned, ahead of all changes: nothing leads to the copy before the commit is durable, and so an extent that
//! cannot be read, or written, is left where it is. Piece by piece, as an extent may be larger than memory has room for.

use buttress_ondisk::{Key, SECTOR, kind, objectid};
use buttress_volume::Sums;

use super::super::Settler;
use crate::error::{Error, Result};
use crate::space::Range;
use crate::tree::View;

/// Bytes that are copied at once.
const PIECE: usize = 1 << 20;

/// A data extent that was copied.
#[derive(Debug)]
pub(super) struct Moving {
    pub to: Range,
    /// Checksums, by where in the extent their first sector is.
    pub sums: Vec<(u64, Vec<u8>)>,
    /// The tree that has allocated it, where its item says so.
    pub owner: Option<u64>,
}

impl Settler<'_, '_> {
    /// Takes room for a data extent, and copies it there.
    pub(super) fn copy_data(
        &self,
        (bytenr, len): (u64, u64),
        owner: Option<u64>,
        grow: bool,
    ) -> Result<Moving> {
        let space = &self.commit.core().space;
        let sums = self.sums_of(bytenr, len)?;
        let to = space.allocate_extent(len, grow).ok_or(Error::NoSpace)?;
        match self.copy_content(bytenr, to, &sums) {
            Ok(()) => Ok(Moving { to, sums, owner }),
            Err(error) => {
                space.give_back(to)?;
                Err(error)
            }
        }
    }

    /// Copies all parts: those that checksums are of, and those between them.
    fn copy_content(&self, bytenr: u64, to: Range, sums: &[(u64, Vec<u8>)]) -> Result<()> {
        let size = self.commit.core().features.csum.size();
        let mut at = 0;
        for (from, digests) in sums {
            self.copy_part((bytenr, to.start), at..*from, None)?;
            let until = from + (digests.len() / size) as u64 * SECTOR;
            self.copy_part((bytenr, to.start), *from..until, Some(digests))?;
            at = until;
        }
        self.copy_part((bytenr, to.start), at..to.len, None)
    }

    /// Copies a part of an extent, which has one checksum for each sector where it has any.
    fn copy_part(
        &self,
        (from, to): (u64, u64),
        part: std::ops::Range<u64>,
        sums: Option<&[u8]>,
    ) -> Result<()> {
        let core = self.commit.core();
        let per_piece = PIECE / SECTOR as usize * core.features.csum.size();
        let mut sums = sums.map(|sums| sums.chunks(per_piece));
        let mut piece = Vec::new();
        for at in part.clone().step_by(PIECE) {
            piece.resize((part.end - at).min(PIECE as u64) as usize, 0);
            let verify = match &mut sums {
                Some(sums) => Sums::Verify(sums.next().unwrap_or_default()),
                None => Sums::None,
            };
            core.volume.read_data(from + at, &mut piece, verify)?;
            // Who moves data can do so later: nobody waits for room on a full disk, as a commit does.
            core.volume.write(to + at, &piece)?;
        }
        Ok(())
    }

    /// The checksums of a data extent, by where in it their first sector is.
    fn sums_of(&self, bytenr: u64, len: u64) -> Result<Vec<(u64, Vec<u8>)>> {
        let core = self.commit.core();
        let (size, end) = (core.features.csum.size(), bytenr + len);
        let view = View::new(&core.blocks, objectid::CSUM_TREE, self.roots.csum);
        let key = |at| Key::new(objectid::EXTENT_CSUM, kind::EXTENT_CSUM, at);
        let mut sums = Vec::new();
        let mut take = |key: Key, data: &[u8]| {
            if key.kind != kind::EXTENT_CSUM {
                return;
            }
            let until = key.offset.saturating_add((data.len() / size) as u64 * SECTOR);
            let (from, to) = (key.offset.max(bytenr), until.min(end));
            if from < to {
                let index = |at: u64| ((at - key.offset) / SECTOR) as usize * size;
                sums.push((from - bytenr, data[index(from)..index(to)].to_vec()));
            }
        };
        if let Some(item) = view.last_in(&key(0), &key(bytenr))? {
            take(item.key(), item.data());
        }
        let mut items = view.range(key(bytenr + 1), key(end - 1));
        while let Some(item) = items.next()? {
            take(item.key(), item.data());
        }
        Ok(sums)
    }
}
