//! Where the chunks of a new filesystem are and how large they are.
//!
//! The places are those that `mkfs.btrfs` ends up with. It bootstraps from a small system and a small metadata chunk at
//! 1 MiB and 5 MiB (and one for data after them), which it keeps where the profile is single and deletes where it is
//! DUP; the final chunks follow in the order system, metadata, data. We never write the bootstrap chunks but leave
//! their room. Sizes follow what `mkfs.btrfs` 6.2 was seen to choose on devices from 16 MiB to 300 GiB.

use buttress_ondisk::STRIPE_LEN;
use buttress_ondisk::item::chunk_type::{DATA, METADATA, SYSTEM};

use crate::options::{Profile, Settled};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Bytes at the start of each device that no chunk may use.
const RESERVED: u64 = MIB;
const SYSTEM_SINGLE_LEN: u64 = 4 * MIB;
const SYSTEM_DUP_LEN: u64 = 8 * MIB;
/// The largest first chunk of profile single, metadata or data.
const SINGLE_LEN_MAX: u64 = 8 * MIB;

/// A chunk: a range of logical addresses and where its copies are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Type and profile, as on the disk.
    pub flags: u64,
    /// First logical address.
    pub logical: u64,
    /// Bytes.
    pub length: u64,
    /// Where each copy starts on the device, bytes.
    pub stripes: Vec<u64>,
}

impl Chunk {
    /// The device ranges of a logical range of this chunk (all bytes in one stripe: single and DUP have no striping).
    pub fn physical(&self, logical: u64) -> impl Iterator<Item = u64> {
        let within = logical.saturating_sub(self.logical);
        self.stripes.iter().map(move |start| start.saturating_add(within))
    }

    /// The first address after it.
    pub fn end(&self) -> u64 {
        self.logical.saturating_add(self.length)
    }
}

/// All chunks of a new filesystem.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub system: Chunk,
    /// Metadata; with mixed block groups data too.
    pub metadata: Chunk,
    /// `None` with mixed block groups.
    pub data: Option<Chunk>,
}

impl Layout {
    /// The chunks, in the order of their logical addresses.
    pub fn chunks(&self) -> Vec<&Chunk> {
        let mut all = vec![&self.system, &self.metadata];
        all.extend(&self.data);
        all.sort_by_key(|chunk| chunk.logical);
        all
    }

    /// Bytes of the device that chunks take.
    pub fn allocated(&self) -> u64 {
        self.chunks().iter().fold(0, |sum, chunk| {
            sum.saturating_add(chunk.length.saturating_mul(chunk.stripes.len() as u64))
        })
    }
}

/// Bytes that the smallest device has, as `mkfs.btrfs` counts them.
pub fn minimum_size(mixed: bool, metadata: Profile, data: Profile) -> u64 {
    let bootstrap = RESERVED + SYSTEM_SINGLE_LEN + SINGLE_LEN_MAX;
    match (mixed, metadata, data) {
        (true, Profile::Single, _) => 16 * MIB,
        (true, Profile::Dup, _) => bootstrap + 2 * SYSTEM_DUP_LEN + 2 * 64 * MIB,
        (false, metadata, data) => {
            let metadata = match metadata {
                Profile::Single => 2 * SINGLE_LEN_MAX,
                Profile::Dup => 2 * (SYSTEM_DUP_LEN + 32 * MIB),
            };
            let data = match data {
                Profile::Single => SINGLE_LEN_MAX,
                Profile::Dup => 2 * 64 * MIB,
            };
            // The sums stay far below 1 GiB.
            bootstrap.saturating_add(SINGLE_LEN_MAX).saturating_add(metadata).saturating_add(data)
        }
    }
}

/// Hands out addresses one after the other, logical and on the device.
struct Cursor {
    logical: u64,
    physical: u64,
}

impl Cursor {
    fn take(&mut self, flags: u64, profile: Profile, length: u64) -> Chunk {
        let mut chunk = Chunk {
            flags: flags | profile.bits(),
            logical: self.logical,
            length,
            stripes: Vec::new(),
        };
        self.logical = self.logical.saturating_add(length);
        for _ in 0..profile.copies() {
            chunk.stripes.push(self.physical);
            self.physical = self.physical.saturating_add(length);
        }
        chunk
    }

    /// Passes over the room of a bootstrap chunk.
    fn skip(&mut self, length: u64) {
        self.logical = self.logical.saturating_add(length);
        self.physical = self.physical.saturating_add(length);
    }
}

/// Plans the chunks of a filesystem of `total` bytes, which is at least [`minimum_size`].
pub(crate) fn plan(total: u64, settled: &Settled) -> Layout {
    let mut at = Cursor { logical: RESERVED, physical: RESERVED };
    let single = stripe_aligned(total / 10).min(SINGLE_LEN_MAX);
    let kind = if settled.mixed { METADATA | DATA } else { METADATA };
    let mut system = None;
    let mut metadata = None;
    match settled.metadata {
        Profile::Single => {
            system = Some(at.take(SYSTEM, Profile::Single, SYSTEM_SINGLE_LEN));
            metadata = Some(at.take(kind, Profile::Single, single));
        }
        Profile::Dup => at.skip(SYSTEM_SINGLE_LEN.saturating_add(single)),
    }
    let mut data = None;
    match (settled.mixed, settled.data) {
        (true, _) => {}
        (false, Profile::Single) => data = Some(at.take(DATA, Profile::Single, single)),
        (false, Profile::Dup) => at.skip(single),
    }
    let system = system.unwrap_or_else(|| at.take(SYSTEM, Profile::Dup, SYSTEM_DUP_LEN));
    let metadata = metadata.unwrap_or_else(|| at.take(kind, Profile::Dup, dup_len(total, kind)));
    if !settled.mixed && data.is_none() {
        data = Some(at.take(DATA, Profile::Dup, dup_len(total, DATA)));
    }
    Layout { system, metadata, data }
}

/// Bytes of the first DUP chunk of a kind on a device of `total` bytes.
fn dup_len(total: u64, kind: u64) -> u64 {
    let (least, most) = match kind & DATA {
        0 if total > 50 * GIB => (32 * MIB, GIB),
        0 => (32 * MIB, 256 * MIB),
        _ => (64 * MIB, GIB),
    };
    let tenth = total / 10;
    if tenth >= most { most } else { stripe_aligned(tenth / 2).max(least) }
}

fn stripe_aligned(length: u64) -> u64 {
    length & !(STRIPE_LEN - 1)
}
