//! Chunks: which bytes of which devices stand behind the logical addresses that trees speak of.
//!
//! Chunks never overlap, and a logical address outside all of them means nothing. The map changes
//! only when a chunk is made or given back, and is looked up on every read and write: it is a sorted
//! list behind a shared pointer, replaced as a whole, searched by halving without an allocation. Who
//! looks writes nothing that another processor looks at, and keeps nobody from replacing it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::{ArcSwap, Guard};
use buttress_ondisk::{
    Key, SECTOR, STRIPE_LEN,
    item::{ChunkItem, StripeItem, chunk_type, split},
    kind, objectid,
};
use parking_lot::Mutex;
use zerocopy::IntoBytes;

use crate::profile::Profile;

/// One device's part of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stripe {
    /// The device's number.
    pub devid: u64,
    /// Bytes from the device's start.
    pub offset: u64,
    /// The device's uuid.
    pub dev_uuid: [u8; 16],
}

/// A range of logical addresses and the device ranges behind it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Chunk {
    /// First logical address.
    pub logical: u64,
    /// Bytes of logical space.
    pub length: u64,
    /// Bytes that go to one device before the next one's turn; 64 KiB.
    pub stripe_len: u64,
    /// Type and profile, see [`chunk_type`].
    pub type_flags: u64,
    /// The device ranges, in the order that the profile's arithmetic counts them.
    pub stripes: Vec<Stripe>,
    /// Copies of each stripe in RAID10 (2); 0 or 1 otherwise.
    pub sub_stripes: u16,
}

/// Why bytes do not describe a usable chunk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChunkFault {
    /// The item is shorter than its head, or than its stripes.
    #[error("a chunk item of {len} bytes is too short")]
    Short {
        /// Bytes there are.
        len: usize,
    },
    /// More than one profile bit, or none that is known.
    #[error("profile bits {flags:#x} name no profile")]
    Profile {
        /// The type flags.
        flags: u64,
    },
    /// The numbers do not fit the profile.
    #[error("{what} is {have} in a {profile} chunk")]
    Geometry {
        /// The member.
        what: &'static str,
        /// Its value.
        have: u64,
        /// The chunk's profile.
        profile: Profile,
    },
}

impl Chunk {
    /// Reads a chunk item (its key's offset is `logical`) and checks that the profile's arithmetic
    /// works on it: no later computation overflows or divides by zero.
    pub fn decode(logical: u64, data: &[u8]) -> Result<Chunk, ChunkFault> {
        let short = || ChunkFault::Short { len: data.len() };
        let (head, mut rest) = split::<ChunkItem>(data).ok_or_else(short)?;
        let count = head.num_stripes.get();
        let mut stripes = Vec::with_capacity(usize::from(count).min(data.len() / 32 + 1));
        for _ in 0..count {
            let (item, after) = split::<StripeItem>(rest).ok_or_else(short)?;
            stripes.push(Stripe {
                devid: item.devid.get(),
                offset: item.offset.get(),
                dev_uuid: item.dev_uuid,
            });
            rest = after;
        }
        let chunk = Chunk {
            logical,
            length: head.length.get(),
            stripe_len: head.stripe_len.get(),
            type_flags: head.chunk_type.get(),
            stripes,
            sub_stripes: head.sub_stripes.get(),
        };
        chunk.check()?;
        Ok(chunk)
    }

    /// The chunk item's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let head = ChunkItem {
            length: self.length.into(),
            owner: objectid::EXTENT_TREE.into(),
            stripe_len: self.stripe_len.into(),
            chunk_type: self.type_flags.into(),
            io_align: (STRIPE_LEN as u32).into(),
            io_width: (STRIPE_LEN as u32).into(),
            sector_size: (SECTOR as u32).into(),
            num_stripes: (self.stripes.len() as u16).into(),
            sub_stripes: self.sub_stripes.into(),
        };
        let mut bytes = head.as_bytes().to_vec();
        for stripe in &self.stripes {
            let item = StripeItem {
                devid: stripe.devid.into(),
                offset: stripe.offset.into(),
                dev_uuid: stripe.dev_uuid,
            };
            bytes.extend_from_slice(item.as_bytes());
        }
        bytes
    }

    /// The key of its item in the chunk tree.
    pub fn key(&self) -> Key {
        Key::new(objectid::FIRST_CHUNK_TREE, kind::CHUNK_ITEM, self.logical)
    }

    /// The first logical address after it.
    pub fn end(&self) -> u64 {
        self.logical.saturating_add(self.length)
    }

    /// Whether the address is inside.
    pub fn contains(&self, logical: u64) -> bool {
        self.logical <= logical && logical - self.logical < self.length
    }

    /// Its profile. [`Profile::Single`] for flags that name none, which a checked chunk has not.
    pub fn profile(&self) -> Profile {
        Profile::from_flags(self.type_flags).unwrap_or(Profile::Single)
    }

    /// Bytes it takes on each of its stripes' devices.
    pub fn device_len(&self) -> u64 {
        let across = self.profile().data_stripes(self.stripes.len() as u64, self.sub_stripes);
        match across {
            0 | 1 => self.length,
            // Whole rows: the last stripe of a row may be cut short, its row is not.
            _ => self.length.div_ceil(across * self.stripe_len.max(1)) * self.stripe_len,
        }
    }

    fn check(&self) -> Result<(), ChunkFault> {
        let flags = self.type_flags;
        let profile = Profile::from_flags(flags).ok_or(ChunkFault::Profile { flags })?;
        let fault = |what, have| Err(ChunkFault::Geometry { what, have, profile });
        let count = self.stripes.len() as u64;
        if self.stripe_len != STRIPE_LEN {
            return fault("stripe length", self.stripe_len);
        }
        if !self.logical.is_multiple_of(SECTOR) {
            return fault("logical address", self.logical);
        }
        if self.length == 0
            || !self.length.is_multiple_of(SECTOR)
            || self.length > i64::MAX as u64
            || self.length.checked_add(self.logical).is_none()
        {
            return fault("length", self.length);
        }
        if flags & chunk_type::TYPE_MASK == 0 {
            return fault("type", flags);
        }
        if !profile.accepts(count) {
            return fault("number of stripes", count);
        }
        if profile == Profile::Raid10
            && (self.sub_stripes != 2 || !count.is_multiple_of(u64::from(self.sub_stripes)))
        {
            return fault("number of sub-stripes", u64::from(self.sub_stripes));
        }
        let fits = |stripe: &Stripe| stripe.offset.checked_add(self.device_len()).is_some();
        match self.stripes.iter().find(|stripe| !fits(stripe)) {
            Some(stripe) => fault("stripe offset", stripe.offset),
            None => Ok(()),
        }
    }
}

type List = Vec<Arc<Chunk>>;

/// All chunks, by logical address.
#[derive(Debug, Default)]
pub struct ChunkMap {
    list: Mutex<List>,
    /// The list as everybody finds it,
    shown: ArcSwap<List>,
    /// unless it has changed since. Many that come in a row, as when a filesystem is opened, are shown
    /// together.
    has_changed: AtomicBool,
}

/// The chunks that there are now, for as long as it is held.
#[derive(Debug)]
pub(crate) struct Chunks(Guard<Arc<List>>);

impl Chunks {
    /// The chunk that holds the address.
    pub fn find(&self, logical: u64) -> Option<&Arc<Chunk>> {
        let after = self.0.partition_point(|chunk| chunk.logical <= logical);
        self.0.get(after.checked_sub(1)?).filter(|chunk| chunk.contains(logical))
    }
}

/// Two chunks claim the same logical address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the chunk at {logical} overlaps the one at {other}")]
pub struct Overlap {
    /// The chunk that was to be added.
    pub logical: u64,
    /// The one that is there.
    pub other: u64,
}

impl ChunkMap {
    /// The chunk that holds the address.
    pub fn find(&self, logical: u64) -> Option<Arc<Chunk>> {
        self.now().find(logical).cloned()
    }

    /// The chunks that there are now.
    pub(crate) fn now(&self) -> Chunks {
        if self.has_changed.load(Ordering::Acquire) {
            let list = self.list.lock();
            self.shown.store(Arc::new(list.clone()));
            self.has_changed.store(false, Ordering::Release);
        }
        Chunks(self.shown.load())
    }

    /// All chunks, by rising address.
    pub fn all(&self) -> Arc<Vec<Arc<Chunk>>> {
        Guard::into_inner(self.now().0)
    }

    /// Adds a chunk. The very same chunk again changes nothing.
    pub fn add(&self, chunk: Chunk) -> Result<(), Overlap> {
        let mut list = self.list.lock();
        let at = list.partition_point(|other| other.logical < chunk.logical);
        let before = at.checked_sub(1).and_then(|index| list.get(index));
        let behind = list.get(at);
        if behind.is_some_and(|other| **other == chunk) {
            return Ok(());
        }
        let clash = before
            .filter(|other| other.end() > chunk.logical)
            .or(behind.filter(|other| other.logical < chunk.end()));
        if let Some(other) = clash {
            return Err(Overlap { logical: chunk.logical, other: other.logical });
        }
        list.insert(at, Arc::new(chunk));
        self.has_changed.store(true, Ordering::Release);
        Ok(())
    }

    /// Removes the chunk that starts at the address; whether there was one.
    pub fn remove(&self, logical: u64) -> bool {
        let mut list = self.list.lock();
        let Ok(at) = list.binary_search_by_key(&logical, |chunk| chunk.logical) else {
            return false;
        };
        list.remove(at);
        self.has_changed.store(true, Ordering::Release);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(logical: u64, length: u64) -> Chunk {
        let stripe = Stripe { devid: 1, offset: 1 << 20, dev_uuid: [1; 16] };
        let type_flags = chunk_type::DATA;
        let stripes = vec![stripe];
        Chunk { logical, length, stripe_len: STRIPE_LEN, type_flags, stripes, sub_stripes: 1 }
    }

    #[test]
    fn lookups_meet_the_edges() {
        let map = ChunkMap::default();
        assert_eq!(map.find(0), None);
        for logical in [1 << 30, 1 << 20, 3 << 20] {
            map.add(chunk(logical, 1 << 20)).unwrap();
        }
        let found = |logical| map.find(logical).map(|chunk| chunk.logical);
        assert_eq!(found((1 << 20) - 1), None);
        assert_eq!(found(1 << 20), Some(1 << 20));
        assert_eq!(found((2 << 20) - 1), Some(1 << 20));
        assert_eq!(found(2 << 20), None);
        assert_eq!(found(u64::MAX), None);
        assert_eq!(map.add(chunk(3 << 20, 1 << 20)), Ok(()));
        let clash = |logical, length| map.add(chunk(logical, length)).unwrap_err().other;
        assert_eq!(clash(2 << 20, 2 << 20), 3 << 20);
        assert_eq!(clash((4 << 20) - 4096, 4096), 3 << 20);
        assert_eq!(clash(3 << 20, 4096), 3 << 20);
        map.add(chunk(2 << 20, 1 << 20)).unwrap();
        assert!(map.remove(3 << 20) && !map.remove(3 << 20));
        assert_eq!(found(3 << 20), None);
        assert_eq!(map.all().len(), 3);
    }

    #[test]
    fn nonsense_is_no_chunk() {
        let good = chunk(1 << 20, 1 << 20);
        assert_eq!(Chunk::decode(1 << 20, &good.encode()), Ok(good.clone()));
        let refused = |change: fn(&mut Chunk)| {
            let mut bad = good.clone();
            change(&mut bad);
            assert!(Chunk::decode(bad.logical, &bad.encode()).is_err(), "{bad:?}");
        };
        refused(|chunk| chunk.length = 0);
        refused(|chunk| chunk.length = !4095);
        refused(|chunk| chunk.logical = 1);
        refused(|chunk| chunk.stripe_len = 0);
        refused(|chunk| chunk.stripes.clear());
        refused(|chunk| chunk.type_flags = 0);
        refused(|chunk| chunk.type_flags |= chunk_type::DUP | chunk_type::RAID1);
        refused(|chunk| chunk.type_flags |= chunk_type::RAID6);
        refused(|chunk| chunk.type_flags |= chunk_type::RAID10);
        refused(|chunk| chunk.stripes[0].offset = u64::MAX - 4095);
        assert!(Chunk::decode(0, &good.encode()[..79]).is_err());
        assert!(Chunk::decode(0, &[]).is_err());
    }
}
