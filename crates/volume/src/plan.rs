//! Planning: where on the devices a logical range is.
//!
//! A range is cut into *pieces* that each lie in one stripe of one chunk, so that a piece is one run
//! of bytes on each device that holds it. Terms: a *row* is the set of 64 KiB stripes at one depth
//! of all devices of a striped chunk; RAID5 and RAID6 turn the order of a row's members by one with
//! each row, so that parity visits every device.
//!
//! Pure arithmetic without allocation; a chunk that passed [`Chunk::decode`] cannot overflow it.

use crate::{chunk_map::Chunk, profile::Profile};

/// Most copies that any profile keeps.
pub const COPIES_MAX: usize = 4;

/// A place on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Location {
    /// The device's number.
    pub devid: u64,
    /// Bytes from the device's start.
    pub offset: u64,
}

/// A run of logical bytes that is one run on each device that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// First logical address.
    pub logical: u64,
    /// Bytes.
    pub len: u64,
    copies: [Location; COPIES_MAX],
    count: u8,
}

impl Piece {
    /// Where each copy is.
    pub fn copies(&self) -> &[Location] {
        self.copies.get(..usize::from(self.count)).unwrap_or(&self.copies)
    }
}

/// The pieces of the part of a logical range that lies inside a chunk, by rising address.
pub fn pieces(chunk: &Chunk, logical: u64, len: u64) -> impl Iterator<Item = Piece> + '_ {
    let mut at = logical.max(chunk.logical);
    let end = logical.saturating_add(len).min(chunk.end());
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let len = run_len(chunk, at - chunk.logical).min(end - at);
        let piece = piece(chunk, at, len);
        at += len;
        Some(piece)
    })
}

/// Bytes from an offset in the chunk to the end of the run it is in.
fn run_len(chunk: &Chunk, offset: u64) -> u64 {
    match chunk.profile() {
        Profile::Raid0 | Profile::Raid10 | Profile::Raid5 | Profile::Raid6 => {
            chunk.stripe_len - offset % chunk.stripe_len
        }
        _ => chunk.length - offset,
    }
}

fn piece(chunk: &Chunk, logical: u64, len: u64) -> Piece {
    let mut piece = Piece { logical, len, copies: Default::default(), count: 0 };
    let offset = logical - chunk.logical;
    let profile = chunk.profile();
    let stripe_count = chunk.stripes.len() as u64;
    let across = profile.data_stripes(stripe_count, chunk.sub_stripes).max(1);
    let (number, within) = (offset / chunk.stripe_len, offset % chunk.stripe_len);
    let (row, column) = (number / across, number % across);
    let (first, depth) = match profile {
        Profile::Raid0 => (column, row * chunk.stripe_len + within),
        Profile::Raid10 => (column * u64::from(chunk.sub_stripes), row * chunk.stripe_len + within),
        Profile::Raid5 | Profile::Raid6 => {
            ((row + column) % stripe_count, row * chunk.stripe_len + within)
        }
        _ => (0, offset),
    };
    let holders = chunk.stripes.iter().skip(first as usize).take(profile.copies());
    for (copy, stripe) in piece.copies.iter_mut().zip(holders) {
        *copy = Location { devid: stripe.devid, offset: stripe.offset.saturating_add(depth) };
        piece.count += 1;
    }
    piece
}

/// A row of a RAID5 or RAID6 chunk: the unit that parity protects.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    chunk: &'a Chunk,
    number: u64,
}

impl<'a> Row<'a> {
    /// The row that holds a logical address; `None` outside the chunk or without parity.
    pub fn of(chunk: &'a Chunk, logical: u64) -> Option<Row<'a>> {
        if chunk.profile().parities() == 0 || !chunk.contains(logical) {
            return None;
        }
        let row = Row { chunk, number: 0 };
        let number = (logical - chunk.logical) / chunk.stripe_len / row.data_count().max(1);
        Some(Row { chunk, number })
    }

    /// Stripes of data in it.
    pub fn data_count(&self) -> u64 {
        let chunk = self.chunk;
        chunk.profile().data_stripes(chunk.stripes.len() as u64, chunk.sub_stripes)
    }

    /// The logical address of its first byte.
    pub fn logical(&self) -> u64 {
        self.chunk.logical + self.number * self.data_count() * self.chunk.stripe_len
    }

    /// Where member `index` is: the data stripes in order, then P, then Q. `None` past the last.
    pub fn member(&self, index: u64) -> Option<Location> {
        let count = self.chunk.stripes.len() as u64;
        if index >= count {
            return None;
        }
        let stripe = self.chunk.stripes.get(((self.number + index) % count) as usize)?;
        let depth = self.number * self.chunk.stripe_len;
        Some(Location { devid: stripe.devid, offset: stripe.offset.saturating_add(depth) })
    }

    /// Where the XOR parity is.
    pub fn p(&self) -> Option<Location> {
        self.member(self.data_count())
    }

    /// Where the second parity is; `None` in RAID5.
    pub fn q(&self) -> Option<Location> {
        self.member(self.data_count() + 1)
    }
}

#[cfg(test)]
mod tests {
    use buttress_ondisk::{STRIPE_LEN, item::chunk_type};

    use super::*;
    use crate::Stripe;

    fn chunk(profile: Profile, devices: u64) -> Chunk {
        let count = if profile == Profile::Dup { 2 } else { devices };
        let sub_stripes = if profile == Profile::Raid10 { 2 } else { 1 };
        let across = profile.data_stripes(count, sub_stripes);
        let stripe = |i| Stripe { devid: i + 1, offset: (i + 1) << 30, dev_uuid: [0; 16] };
        Chunk {
            logical: 5 << 20,
            length: across * (1 << 20),
            stripe_len: STRIPE_LEN,
            type_flags: chunk_type::DATA | profile.to_flags(),
            stripes: (0..count).map(stripe).collect(),
            sub_stripes,
        }
    }

    fn cases() -> impl Iterator<Item = Chunk> {
        let sizes = (1..=7u64).flat_map(|n| Profile::ALL.into_iter().map(move |p| (p, n)));
        sizes
            .filter(|(p, n)| {
                let stripes = if *p == Profile::Dup { 2 } else { *n };
                p.accepts(stripes) && (*p != Profile::Raid10 || stripes % 2 == 0)
            })
            .map(|(profile, devices)| chunk(profile, devices))
    }

    /// Every sector of a chunk has its own place, and the places fill the devices' parts exactly
    /// (with parity, together with the parity stripes).
    #[test]
    fn places_tile_the_device_ranges() {
        for chunk in cases() {
            let mut places = Vec::new();
            let mut next = chunk.logical;
            for piece in pieces(&chunk, 0, u64::MAX) {
                assert_eq!(piece.logical, next);
                assert_eq!(piece.copies().len(), chunk.profile().copies());
                next += piece.len;
                places.extend(piece.copies().iter().map(|at| (*at, piece.len)));
                if let Some(row) = Row::of(&chunk, piece.logical)
                    && row.logical() == piece.logical
                {
                    let parities = [row.p(), row.q()].into_iter().flatten();
                    places.extend(parities.map(|at| (at, chunk.stripe_len)));
                }
            }
            assert_eq!(next, chunk.end());
            places.sort_by_key(|(at, _)| (at.devid, at.offset));
            for stripe in &chunk.stripes {
                let mut at = stripe.offset;
                for (place, len) in places.iter().filter(|(at, _)| at.devid == stripe.devid) {
                    assert_eq!(place.offset, at, "{} x{}", chunk.profile(), chunk.stripes.len());
                    at += len;
                }
                assert_eq!(at - stripe.offset, chunk.device_len());
            }
        }
    }

    #[test]
    fn a_part_of_a_range_is_where_the_whole_says() {
        for chunk in cases() {
            let whole: Vec<Piece> = pieces(&chunk, chunk.logical, chunk.length).collect();
            for (logical, len) in [(4096, 8192), (61440, 8192), (100_000 & !4095, 300 << 10)] {
                let logical = chunk.logical + logical;
                let mut next = logical;
                for part in pieces(&chunk, logical, len) {
                    assert_eq!(part.logical, next);
                    next += part.len;
                    let holder = whole
                        .iter()
                        .find(|p| p.logical <= part.logical && part.logical < p.logical + p.len)
                        .unwrap();
                    let shift = part.logical - holder.logical;
                    assert!(shift + part.len <= holder.len);
                    for (a, b) in part.copies().iter().zip(holder.copies()) {
                        assert_eq!((a.devid, a.offset), (b.devid, b.offset + shift));
                    }
                }
                assert_eq!(next, logical + len);
            }
            assert_eq!(pieces(&chunk, chunk.end(), 4096).count(), 0);
            assert_eq!(pieces(&chunk, 0, chunk.logical).count(), 0);
        }
    }
}
