//! Records as the log keeps them: of each field as many bytes as its value needs, some 16 in all where a [`Record`] has 48.
//!
//! A large log costs fresh memory more than anything else, so the smaller one is the faster one. Fields are written and read
//! as whole words, of which only the bytes that count are kept: nothing branches on a length.

use buttress_ondisk::{SECTOR, kind};

use super::Record;

/// What a packed record takes at most. Writing and reading one touches all of it, whatever its length.
pub(super) const ROOM: usize = 48;

/// The header says how long each field is, four bits for each; above them are kind, level and marks.
const HEADER: usize = size_of::<u32>();
const FIELDS: usize = 6;
const LENGTH_BITS: u32 = 4;
const KIND_AT: u32 = 24;
const LEVEL_AT: u32 = 27;
const MARKS_AT: u32 = 30;
const _: () = assert!(FIELDS as u32 * LENGTH_BITS == KIND_AT);
const _: () = assert!(Record::NEW + Record::FULL_BACKREF == 3);
/// Four fields of eight bytes at most, two of four, and the last one written as a word.
const _: () = assert!(HEADER + 4 * 8 + 4 + 8 <= ROOM);

/// What a record may be of, by its number in the header.
const KINDS: [u8; 8] = [
    0,
    kind::TREE_BLOCK_REF,
    kind::EXTENT_DATA_REF,
    kind::SHARED_BLOCK_REF,
    kind::SHARED_DATA_REF,
    kind::EXTENT_OWNER_REF,
    0,
    0,
];

/// Addresses and offsets are whole sectors: their low bits, which are zeros, go to the other end, where they take nothing.
const SECTOR_BITS: u32 = SECTOR.trailing_zeros();

/// Writes a record; how many bytes it takes is returned.
#[inline]
pub(super) fn pack(record: &Record, room: &mut [u8; ROOM]) -> usize {
    let number = KINDS.iter().position(|kind| *kind == record.kind).unwrap_or(0) as u32;
    let marks = u32::from(record.marks & 3);
    let mut header =
        number << KIND_AT | u32::from(record.level & 7) << LEVEL_AT | marks << MARKS_AT;
    let fields: [u64; FIELDS] = [
        record.bytenr.rotate_right(SECTOR_BITS),
        record.owner,
        record.ino,
        record.offset.rotate_right(SECTOR_BITS),
        record.sectors.into(),
        // One gained is 2, one lost is 1.
        ((record.delta << 1) ^ (record.delta >> 31)).cast_unsigned().into(),
    ];
    let mut at = HEADER;
    for (field, value) in fields.into_iter().enumerate() {
        let bytes = (u64::BITS + 7 - value.leading_zeros()) / 8;
        room[at..at + 8].copy_from_slice(&value.to_le_bytes());
        header |= bytes << (field as u32 * LENGTH_BITS);
        at += bytes as usize;
    }
    room[..HEADER].copy_from_slice(&header.to_le_bytes());
    at
}

/// The record at the start of `room`.
#[inline]
pub(super) fn unpack(room: &[u8; ROOM]) -> Record {
    let header = header(room);
    let mut at = HEADER;
    let mut next = |field: u32| {
        let bytes = length(header, field);
        let value = word(room, at, bytes);
        at += bytes as usize;
        value
    };
    let bytenr = next(0).rotate_left(SECTOR_BITS);
    let (owner, ino) = (next(1), next(2));
    let offset = next(3).rotate_left(SECTOR_BITS);
    let (sectors, delta) = (next(4) as u32, next(5) as u32);
    Record {
        bytenr,
        kind: KINDS[(header >> KIND_AT & 7) as usize],
        level: (header >> LEVEL_AT & 7) as u8,
        marks: (header >> MARKS_AT) as u8,
        delta: (delta >> 1).cast_signed() ^ -(delta & 1).cast_signed(),
        owner,
        ino,
        offset,
        sectors,
    }
}

/// The address of the record at the start of `room`.
#[inline]
pub(super) fn address(room: &[u8; ROOM]) -> u64 {
    word(room, HEADER, length(header(room), 0)).rotate_left(SECTOR_BITS)
}

/// Bytes of the record at the start of `room`.
#[inline]
pub(super) fn packed_len(room: &[u8; ROOM]) -> usize {
    let header = header(room);
    // Neighbours are added to pairs, the three pairs then to each other.
    let pairs = (header & 0x0f_0f0f) + (header >> LENGTH_BITS & 0x0f_0f0f);
    HEADER + ((pairs + (pairs >> 8) + (pairs >> 16)) & 0xff) as usize
}

#[inline]
fn header(room: &[u8; ROOM]) -> u32 {
    u32::from_le_bytes([room[0], room[1], room[2], room[3]])
}

#[inline]
fn length(header: u32, field: u32) -> u32 {
    header >> (field * LENGTH_BITS) & ((1 << LENGTH_BITS) - 1)
}

/// The first `bytes` bytes of the word at `at`.
#[inline]
fn word(room: &[u8; ROOM], at: usize, bytes: u32) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&room[at..at + 8]);
    let keep = u64::MAX.checked_shr(u64::BITS - 8 * bytes).unwrap_or(0);
    u64::from_le_bytes(word) & keep
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packs a record and unpacks it; how long it was.
    fn there_and_back(record: Record) -> usize {
        let mut room = [0xa5; ROOM];
        let len = pack(&record, &mut room);
        assert_eq!(packed_len(&room), len);
        assert_eq!(address(&room), record.bytenr);
        // What comes behind a record is another one.
        room[len..].fill(0x5a);
        assert_eq!(unpack(&room), record);
        len
    }

    #[test]
    fn what_is_packed_comes_back() {
        let words = [0, 1, 255, 256, 4096, 1 << 40, u64::MAX - 4095, u64::MAX];
        let deltas = [0, 1, -1, 2, 127, -128, i32::MIN, i32::MAX];
        let mut at = 7u64;
        for _ in 0..20_000 {
            at = at.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let number = |shift: u32| (at >> shift) as usize % 8;
            there_and_back(Record {
                bytenr: words[number(20)],
                kind: KINDS[number(23) % 5],
                level: number(26) as u8,
                marks: number(29) as u8 % 4,
                delta: deltas[number(32)],
                owner: words[number(35)],
                ino: words[number(38)],
                offset: words[number(41)],
                sectors: words[number(44)] as u32,
            });
        }
    }

    #[test]
    fn a_record_takes_what_its_values_need() {
        let word = u64::MAX;
        let longest = Record {
            bytenr: word,
            kind: kind::SHARED_DATA_REF,
            level: 7,
            marks: 3,
            delta: i32::MIN,
            owner: word,
            ino: word,
            offset: word,
            sectors: u32::MAX,
        };
        assert_eq!(there_and_back(longest), 44);
        let (kind, delta, owner) = (kind::TREE_BLOCK_REF, -1, 256);
        let zero = Record { bytenr: 0, ino: 0, offset: 0, sectors: 0, level: 0, ..longest };
        assert_eq!(there_and_back(Record { bytenr: 30 << 20, kind, delta, owner, ..zero }), 9);
        assert_eq!(there_and_back(Record { kind: 0, delta: 0, owner: 0, ..zero }), HEADER);
    }
}
