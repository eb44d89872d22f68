//! Data: read with the checksum of each sector verified; a bad sector comes from another copy and is
//! repaired from it.

use buttress_device::{Access, DeviceError};
use buttress_ondisk::SECTOR;

use crate::{
    error::{CopyFault, CopyFaults, ExpectedDigest, VolumeError},
    plan::Location,
    volume::{Volume, count},
};

const SECTOR_LEN: usize = SECTOR as usize;

/// What is known about the content of data that is read.
#[derive(Debug, Clone, Copy)]
pub enum Sums<'a> {
    /// Nothing (nodatasum): what the device returns is believed.
    None,
    /// The checksums of its sectors, back to back, each as long as the filesystem's kind has them.
    Verify(&'a [u8]),
}

/// Why one copy failed, and where it is.
type Bad = (Location, CopyFault);

impl Volume {
    /// Reads a logical range, which may span chunks. With [`Sums::Verify`] the range is made of
    /// whole sectors, one checksum for each; the error names the first sector without a good copy.
    pub fn read_data(
        &self,
        logical: u64,
        buf: &mut [u8],
        sums: Sums<'_>,
    ) -> Result<(), VolumeError> {
        self.check_sums(logical, buf.len(), sums)?;
        self.for_pieces(logical, buf.len(), |copies, range| {
            let at = logical + range.start as u64;
            let sums = match sums {
                Sums::None => Sums::None,
                Sums::Verify(all) => Sums::Verify(self.sums_of(all, &range)),
            };
            self.read_piece(at, copies, buf.get_mut(range).unwrap_or_default(), sums)
        })
    }

    /// Reads one copy (from 0) of a logical range inside one chunk as it is, verifying nothing:
    /// for scrubs and checkers.
    pub fn read_raw(&self, logical: u64, buf: &mut [u8], copy: usize) -> Result<(), VolumeError> {
        let len = buf.len() as u64;
        self.chunk_of(logical, len)?;
        self.for_pieces(logical, buf.len(), |copies, range| {
            let at = copies.get(copy).ok_or(VolumeError::Unmapped { logical, len })?;
            Ok(self.read_location(at, buf.get_mut(range).unwrap_or_default())?)
        })
    }

    fn check_sums(&self, logical: u64, len: usize, sums: Sums<'_>) -> Result<(), VolumeError> {
        let Sums::Verify(all) = sums else { return Ok(()) };
        let bad = |what| Err(VolumeError::Request { logical, len: len as u64, what });
        if !logical.is_multiple_of(SECTOR) || !len.is_multiple_of(SECTOR_LEN) {
            return bad("only whole sectors have checksums");
        }
        if all.len() != len / SECTOR_LEN * self.checksum_kind().size() {
            return bad("not one checksum for each sector");
        }
        Ok(())
    }

    fn sums_of<'a>(&self, all: &'a [u8], range: &std::ops::Range<usize>) -> &'a [u8] {
        let size = self.checksum_kind().size();
        let sectors = range.start / SECTOR_LEN..range.end / SECTOR_LEN;
        all.get(sectors.start * size..sectors.end * size).unwrap_or_default()
    }

    fn read_location(&self, at: &Location, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.member(at.devid)?.read_at(at.offset, buf)
    }

    /// Reads a run that is one run on each device. The common case reads once and verifies; only
    /// sectors that are bad then are looked at one by one.
    fn read_piece(
        &self,
        logical: u64,
        copies: &[Location],
        buf: &mut [u8],
        sums: Sums<'_>,
    ) -> Result<(), VolumeError> {
        let Some(first) = copies.first() else {
            return Err(VolumeError::Unmapped { logical, len: buf.len() as u64 });
        };
        let failed = self.read_location(first, buf).err();
        let Sums::Verify(digests) = sums else {
            return match failed {
                None => Ok(()),
                Some(error) => self.read_unverified(logical, copies, buf, error),
            };
        };
        let kind = self.checksum_kind();
        let sectors = buf.chunks_exact_mut(SECTOR_LEN).zip(digests.chunks_exact(kind.size()));
        for (index, (sector, digest)) in sectors.enumerate() {
            if failed.is_some() || !kind.verify(sector, digest) {
                let skip = (index * SECTOR_LEN) as u64;
                self.recover_sector(logical + skip, copies, skip, sector, digest)?;
            }
        }
        Ok(())
    }

    /// The first copy could not be read and nothing tells good from bad: any that can be read.
    fn read_unverified(
        &self,
        logical: u64,
        copies: &[Location],
        buf: &mut [u8],
        error: DeviceError,
    ) -> Result<(), VolumeError> {
        let mut faults = vec![CopyFault::from(error)];
        for at in copies.iter().skip(1) {
            match self.read_location(at, buf) {
                Ok(()) => return Ok(()),
                Err(error) => faults.push(error.into()),
            }
        }
        Err(VolumeError::Data { logical, faults: CopyFaults(faults) })
    }

    /// Reads one sector from the first copy that has its checksum and repairs those before it.
    /// `skip` is where the sector is in the run whose copies start at `copies`.
    fn recover_sector(
        &self,
        logical: u64,
        copies: &[Location],
        skip: u64,
        sector: &mut [u8],
        digest: &[u8],
    ) -> Result<(), VolumeError> {
        let mut bad: Vec<Bad> = Vec::new();
        for copy in copies {
            let at = Location { offset: copy.offset.saturating_add(skip), ..*copy };
            match self.read_sector(&at, sector, digest) {
                Ok(()) => {
                    self.repair_sector(&at, &bad, sector, digest);
                    return Ok(());
                }
                Err(fault) => {
                    count(&self.counters.bad_sectors);
                    bad.push((at, fault));
                }
            }
        }
        let faults = CopyFaults(bad.into_iter().map(|(_, fault)| fault).collect());
        Err(VolumeError::Data { logical, faults })
    }

    fn read_sector(
        &self,
        at: &Location,
        sector: &mut [u8],
        digest: &[u8],
    ) -> Result<(), CopyFault> {
        let device = self.member(at.devid)?;
        device.read_at(at.offset, sector)?;
        if self.checksum_kind().verify(sector, digest) {
            return Ok(());
        }
        Err(CopyFault::Sector {
            device: device.name().into(),
            offset: at.offset,
            have: self.checksum_kind().digest(sector),
            expect: ExpectedDigest(digest.to_vec()),
        })
    }

    /// Rewrites bad copies of a sector, unless a writer has changed it meanwhile.
    fn repair_sector(&self, good: &Location, bad: &[Bad], sector: &[u8], digest: &[u8]) {
        if self.access != Access::ReadWrite || bad.is_empty() {
            return;
        }
        let _exclusive = self.repair.write();
        let mut again = vec![0; sector.len()];
        if self.read_sector(good, &mut again, digest).is_err() {
            return;
        }
        for (at, _) in bad {
            if self.read_sector(at, &mut again, digest).is_err() {
                let written = self.member(at.devid).and_then(|it| it.write_at(at.offset, sector));
                self.count_repair(written.is_ok());
            }
        }
    }
}
