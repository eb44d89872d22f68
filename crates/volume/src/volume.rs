//! The volume: devices, superblock and chunk map together.
//!
//! Reading tries every copy before it gives up, and a bad copy is rewritten from a good one when the
//! volume is writable. Repairing has one danger: a reader of an old block and a writer that reuses
//! its place may meet half way, one copy old and one new, and the reader would "repair" the new one
//! with the old. So all copies of a write go out under a shared lock, and a repair first takes it
//! exclusively and looks at both copies again: then either both are old or both are new.
//!
//! Lock order: repair lock, superblock, its last bytes, chunk map.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use buttress_codec::ChecksumKind;
use buttress_device::{Access, BlockDevice, DeviceError};
use buttress_ondisk::{Superblock, check::Gate};
use parking_lot::{Mutex, RwLock};

use crate::{
    chunk_map::{Chunk, ChunkMap},
    error::VolumeError,
    plan::{Location, pieces},
    torn::Bytes,
};

/// A device of a volume.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its number.
    pub devid: u64,
    /// Its uuid.
    pub uuid: [u8; 16],
    /// Bytes that the filesystem uses of it.
    pub(crate) size: Arc<AtomicU64>,
    /// The device itself.
    pub device: Arc<dyn BlockDevice>,
}

impl Member {
    /// Bytes that the filesystem uses of it: as its device item says, or is going to.
    pub fn total_bytes(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }
}

/// What a volume has met since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Copies of tree blocks that were bad.
    pub bad_blocks: u64,
    /// Copies of data sectors that were bad.
    pub bad_sectors: u64,
    /// Copies (of either) rewritten from a good one.
    pub repaired: u64,
    /// Copies that could not be rewritten.
    pub repair_failures: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub bad_blocks: AtomicU64,
    pub bad_sectors: AtomicU64,
    pub repaired: AtomicU64,
    pub repair_failures: AtomicU64,
}

/// Adds one; the counters order nothing.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// An open filesystem's devices as one logical address space. Shared between threads by reference.
#[derive(Debug)]
pub struct Volume {
    pub(crate) members: Vec<Member>,
    pub(crate) access: Access,
    pub(crate) gate: Gate,
    /// Blocks of which no copy has its checksum are taken for what they are. Nobody writes then.
    pub(crate) takes_unverified: bool,
    /// Incompatible features that came since it was opened.
    pub(crate) more_features: AtomicU64,
    pub(crate) newest: AtomicU64,
    pub(crate) chunk_tree_uuid: [u8; 16],
    pub(crate) superblock: RwLock<Box<Superblock>>,
    /// The primary superblock's bytes as last read or written; `None` when they could not be read. Locked inside `superblock`.
    pub(crate) last_primary: Mutex<Option<Box<Bytes>>>,
    pub(crate) map: ChunkMap,
    pub(crate) repair: RwLock<()>,
    pub(crate) counters: Counters,
}

impl Volume {
    /// The superblock as last written, or as opened.
    pub fn superblock(&self) -> Superblock {
        **self.superblock.read()
    }

    /// Bytes of a tree block.
    pub fn nodesize(&self) -> u32 {
        self.gate.nodesize
    }

    /// Bytes of a sector; 4096.
    pub fn sectorsize(&self) -> u32 {
        self.gate.sectorsize
    }

    /// The checksum of the filesystem.
    pub fn checksum_kind(&self) -> ChecksumKind {
        self.gate.csum
    }

    /// How it was opened.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The uuid that every tree block's head carries for the chunk tree.
    pub fn chunk_tree_uuid(&self) -> [u8; 16] {
        self.chunk_tree_uuid
    }

    /// Its devices, by rising number.
    pub fn devices(&self) -> &[Member] {
        &self.members
    }

    /// What went wrong so far, and what was done about it.
    pub fn stats(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            bad_blocks: get(&self.counters.bad_blocks),
            bad_sectors: get(&self.counters.bad_sectors),
            repaired: get(&self.counters.repaired),
            repair_failures: get(&self.counters.repair_failures),
        }
    }

    /// The gate that tree blocks go through, with the newest generation known and all features.
    pub fn gate(&self) -> Gate {
        Gate {
            generation_max: self.newest.load(Ordering::Acquire),
            incompat: self.gate.incompat | self.more_features.load(Ordering::Acquire),
            ..self.gate
        }
    }

    /// Tree blocks may have what these incompatible features bring, which a superblock to come says.
    pub fn note_features(&self, incompat: u64) {
        self.more_features.fetch_or(incompat, Ordering::AcqRel);
    }

    /// Says that blocks of this generation may be met from now on, ahead of the superblock.
    pub fn note_generation(&self, generation: u64) {
        self.newest.fetch_max(generation, Ordering::AcqRel);
    }

    /// All chunks, by rising logical address.
    pub fn chunks(&self) -> Vec<Chunk> {
        self.map.all().iter().map(|chunk| Chunk::clone(chunk)).collect()
    }

    /// The chunk that holds a logical address.
    pub fn chunk_at(&self, logical: u64) -> Option<Arc<Chunk>> {
        self.map.find(logical)
    }

    /// Adds a chunk to the map (not to the chunk tree). One that overlaps another, or that does
    /// not fit its devices, is refused.
    pub fn add_chunk(&self, chunk: Chunk) -> Result<(), VolumeError> {
        crate::open::check_place(&self.members, &chunk)?;
        let logical = chunk.logical;
        self.map.add(chunk).map_err(|overlap| VolumeError::ChunkPlace {
            logical,
            what: "overlapping chunks",
            have: format!("chunk at {}", overlap.other),
            expect: "nothing else there".into(),
        })
    }

    /// The filesystem uses so many bytes of a device from now on, which a superblock to come says.
    pub fn resize(&self, devid: u64, bytes: u64) {
        for member in self.members.iter().filter(|member| member.devid == devid) {
            member.size.store(bytes, Ordering::Release);
        }
    }

    /// Removes the chunk that starts at the address from the map; whether there was one.
    pub fn remove_chunk(&self, logical: u64) -> bool {
        self.map.remove(logical)
    }

    /// Writes to every copy of a logical range. Durable after a [`barrier`](Self::barrier). The
    /// first failure ends it, with an unknown part written.
    pub fn write(&self, logical: u64, data: &[u8]) -> Result<(), VolumeError> {
        self.check_writable()?;
        let _shared = self.repair.read();
        self.for_pieces(logical, data.len(), |copies, range| {
            let part = data.get(range).unwrap_or_default();
            copies.iter().try_for_each(|at| Ok(self.member(at.devid)?.write_at(at.offset, part)?))
        })
    }

    /// The same for data in parts, one behind the other.
    pub fn write_parts(&self, logical: u64, parts: &[&[u8]]) -> Result<(), VolumeError> {
        self.check_writable()?;
        let _shared = self.repair.read();
        let len = parts.iter().map(|part| part.len()).sum();
        self.for_pieces(logical, len, |copies, range| {
            let parts = parts_in(parts, range);
            let each =
                |at: &Location| Ok(self.member(at.devid)?.write_parts_at(at.offset, &parts)?);
            copies.iter().try_for_each(each)
        })
    }

    /// Says that the content of a logical range is not needed any more. Answers the bytes of devices that this is.
    pub fn discard(&self, logical: u64, len: u64) -> Result<u64, VolumeError> {
        self.check_writable()?;
        let _shared = self.repair.read();
        let chunk = self.chunk_of(logical, len)?;
        let mut bytes = 0;
        for piece in pieces(&chunk, logical, len) {
            for at in piece.copies() {
                self.member(at.devid)?.discard(at.offset, piece.len)?;
                bytes += piece.len;
            }
        }
        Ok(bytes)
    }

    /// Says that the content of a range of a device is not needed any more.
    pub fn discard_on(&self, devid: u64, offset: u64, len: u64) -> Result<u64, VolumeError> {
        self.check_writable()?;
        let _shared = self.repair.read();
        self.member(devid)?.discard(offset, len)?;
        Ok(len)
    }

    /// Whether any device may be of use to that.
    pub fn can_discard(&self) -> bool {
        self.members.iter().any(|member| member.device.can_discard())
    }

    /// Returns when everything written before is durable on every device.
    pub fn barrier(&self) -> Result<(), VolumeError> {
        self.members.iter().try_for_each(|member| Ok(member.device.barrier()?))
    }

    pub(crate) fn check_writable(&self) -> Result<(), VolumeError> {
        match self.access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(VolumeError::ReadOnly { device: self.name() }),
        }
    }

    /// The first device's name, for messages about the whole.
    pub(crate) fn name(&self) -> String {
        self.members.first().map_or_else(String::new, |member| member.device.name().into())
    }

    pub(crate) fn member(&self, devid: u64) -> Result<&dyn BlockDevice, DeviceError> {
        let found = self.members.iter().find(|member| member.devid == devid);
        found.map(|member| &*member.device).ok_or_else(|| DeviceError::Open {
            device: format!("device {devid}"),
            source: Arc::new(std::io::ErrorKind::NotFound.into()),
        })
    }

    /// The chunk that holds the whole range.
    pub(crate) fn chunk_of(&self, logical: u64, len: u64) -> Result<Arc<Chunk>, VolumeError> {
        self.map
            .find(logical)
            .filter(|chunk| len <= chunk.end() - logical)
            .ok_or(VolumeError::Unmapped { logical, len })
    }

    /// Calls `action` for each piece of a range, which may span chunks, with the places of its
    /// copies and where the piece is in the caller's buffer.
    pub(crate) fn for_pieces(
        &self,
        logical: u64,
        len: usize,
        mut action: impl FnMut(&[Location], std::ops::Range<usize>) -> Result<(), VolumeError>,
    ) -> Result<(), VolumeError> {
        let unmapped = || VolumeError::Unmapped { logical, len: len as u64 };
        logical.checked_add(len as u64).ok_or_else(unmapped)?;
        let chunks = self.map.now();
        let mut done = 0;
        while done < len {
            let chunk = chunks.find(logical + done as u64).ok_or_else(unmapped)?;
            for piece in pieces(chunk, logical + done as u64, (len - done) as u64) {
                let range = done..done + piece.len as usize;
                done = range.end;
                action(piece.copies(), range)?;
            }
        }
        Ok(())
    }
}

/// What of parts one behind the other is in a range of the whole.
fn parts_in<'d>(parts: &[&'d [u8]], range: std::ops::Range<usize>) -> Vec<&'d [u8]> {
    let mut begin = 0;
    let cut = parts.iter().map(|part| {
        let (from, end) = (begin, begin + part.len());
        begin = end;
        let (from_in, to_in) = (range.start.max(from), range.end.min(end));
        part.get(from_in.saturating_sub(from)..to_in.saturating_sub(from)).unwrap_or_default()
    });
    cut.filter(|part| !part.is_empty()).collect()
}
