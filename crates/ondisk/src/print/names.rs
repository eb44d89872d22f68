//! The names of object ids, item kinds, flags and times.

use std::fmt::{self, Display, Formatter};

use crate::item::{Timespec, chunk_type};
use crate::key::{Key, kind, objectid};

/// The name of an item kind, if it has one.
pub fn kind_name(kind: u8) -> Option<&'static str> {
    Some(match kind {
        kind::INODE_ITEM => "INODE_ITEM",
        kind::INODE_REF => "INODE_REF",
        kind::INODE_EXTREF => "INODE_EXTREF",
        kind::XATTR_ITEM => "XATTR_ITEM",
        kind::VERITY_DESC_ITEM => "VERITY_DESC_ITEM",
        kind::VERITY_MERKLE_ITEM => "VERITY_MERKLE_ITEM",
        kind::ORPHAN_ITEM => "ORPHAN_ITEM",
        kind::DIR_LOG_ITEM => "DIR_LOG_ITEM",
        kind::DIR_LOG_INDEX => "DIR_LOG_INDEX",
        kind::DIR_ITEM => "DIR_ITEM",
        kind::DIR_INDEX => "DIR_INDEX",
        kind::EXTENT_DATA => "EXTENT_DATA",
        CSUM_ITEM => "CSUM_ITEM",
        kind::EXTENT_CSUM => "EXTENT_CSUM",
        kind::ROOT_ITEM => "ROOT_ITEM",
        kind::ROOT_BACKREF => "ROOT_BACKREF",
        kind::ROOT_REF => "ROOT_REF",
        kind::EXTENT_ITEM => "EXTENT_ITEM",
        kind::METADATA_ITEM => "METADATA_ITEM",
        kind::TREE_BLOCK_REF => "TREE_BLOCK_REF",
        kind::EXTENT_DATA_REF => "EXTENT_DATA_REF",
        EXTENT_REF_V0 => "EXTENT_REF_V0",
        kind::SHARED_BLOCK_REF => "SHARED_BLOCK_REF",
        kind::SHARED_DATA_REF => "SHARED_DATA_REF",
        kind::BLOCK_GROUP_ITEM => "BLOCK_GROUP_ITEM",
        kind::FREE_SPACE_INFO => "FREE_SPACE_INFO",
        kind::FREE_SPACE_EXTENT => "FREE_SPACE_EXTENT",
        kind::FREE_SPACE_BITMAP => "FREE_SPACE_BITMAP",
        kind::DEV_EXTENT => "DEV_EXTENT",
        kind::DEV_ITEM => "DEV_ITEM",
        kind::CHUNK_ITEM => "CHUNK_ITEM",
        kind::QGROUP_STATUS => "QGROUP_STATUS",
        kind::QGROUP_INFO => "QGROUP_INFO",
        kind::QGROUP_LIMIT => "QGROUP_LIMIT",
        kind::QGROUP_RELATION => "QGROUP_RELATION",
        kind::TEMPORARY_ITEM => "TEMPORARY_ITEM",
        kind::PERSISTENT_ITEM => "PERSISTENT_ITEM",
        kind::DEV_REPLACE => "DEV_REPLACE",
        kind::UUID_SUBVOL => "UUID_KEY_SUBVOL",
        kind::UUID_RECEIVED_SUBVOL => "UUID_KEY_RECEIVED_SUBVOL",
        kind::STRING_ITEM => "STRING_ITEM",
        _ => return None,
    })
}

/// Checksums of the first years, by inode.
const CSUM_ITEM: u8 = 120;
/// References of the first years.
pub(super) const EXTENT_REF_V0: u8 = 180;

/// An object id with its name, as it is printed for items of `kind`.
#[derive(Clone, Copy, Debug)]
pub struct ObjectText(pub u64, pub u8);

impl Display for ObjectText {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ObjectText(id, kind) = *self;
        match kind {
            kind::PERSISTENT_ITEM if id == objectid::DEV_STATS => f.write_str("DEV_STATS"),
            kind::PERSISTENT_ITEM | kind::DEV_EXTENT => write!(f, "{id}"),
            kind::QGROUP_RELATION => write!(f, "{}", QgroupId(id)),
            kind::UUID_SUBVOL | kind::UUID_RECEIVED_SUBVOL => write!(f, "0x{id:016x}"),
            _ => match object_name(id, kind) {
                Some(name) => f.write_str(name),
                None => write!(f, "{id}"),
            },
        }
    }
}

fn object_name(id: u64, kind: u8) -> Option<&'static str> {
    Some(match id {
        objectid::ROOT_TREE if kind == kind::DEV_ITEM => "DEV_ITEMS",
        objectid::ROOT_TREE => "ROOT_TREE",
        objectid::EXTENT_TREE => "EXTENT_TREE",
        objectid::CHUNK_TREE => "CHUNK_TREE",
        objectid::DEV_TREE => "DEV_TREE",
        objectid::FS_TREE => "FS_TREE",
        objectid::ROOT_TREE_DIR => "ROOT_TREE_DIR",
        objectid::CSUM_TREE => "CSUM_TREE",
        objectid::QUOTA_TREE => "QUOTA_TREE",
        objectid::UUID_TREE => "UUID_TREE",
        objectid::FREE_SPACE_TREE => "FREE_SPACE_TREE",
        objectid::BLOCK_GROUP_TREE => "BLOCK_GROUP_TREE",
        objectid::BALANCE => "BALANCE",
        objectid::ORPHAN => "ORPHAN",
        objectid::TREE_LOG => "TREE_LOG",
        objectid::TREE_LOG_FIXUP => "LOG_FIXUP",
        objectid::TREE_RELOC => "TREE_RELOC",
        objectid::DATA_RELOC_TREE => "DATA_RELOC_TREE",
        objectid::EXTENT_CSUM => "EXTENT_CSUM",
        objectid::FREE_SPACE => "FREE_SPACE",
        objectid::FREE_INO => "FREE_INO",
        objectid::MULTIPLE => "MULTIPLE",
        objectid::FIRST_CHUNK_TREE if kind == kind::CHUNK_ITEM => "FIRST_CHUNK_TREE",
        u64::MAX => "-1",
        _ => return None,
    })
}

/// A qgroup id: level and subvolume.
struct QgroupId(u64);

impl Display for QgroupId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0 >> 48, self.0 & ((1 << 48) - 1))
    }
}

/// A key as dumps print it.
#[derive(Clone, Copy, Debug)]
pub struct KeyText(pub Key);

impl Display for KeyText {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Key { objectid, kind, offset } = self.0;
        write!(f, "key ({} ", ObjectText(objectid, kind))?;
        match kind_name(kind) {
            Some(name) => f.write_str(name)?,
            None if kind == 0 && objectid == objectid::FREE_SPACE => f.write_str("UNTYPED")?,
            None => write!(f, "UNKNOWN.{kind}")?,
        }
        match kind {
            kind::QGROUP_RELATION | kind::QGROUP_INFO | kind::QGROUP_LIMIT => {
                write!(f, " {})", QgroupId(offset))
            }
            kind::UUID_SUBVOL | kind::UUID_RECEIVED_SUBVOL => write!(f, " 0x{offset:016x})"),
            kind::ROOT_ITEM => write!(f, " {offset})"),
            _ if offset == u64::MAX => f.write_str(" -1)"),
            _ => write!(f, " {offset})"),
        }
    }
}

/// Names of flags joined by `|`, and what stands for no flag.
pub(super) struct Flags<'a>(pub u64, pub &'a [(u64, &'a str)], pub &'a str);

impl Display for Flags<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (_, name) in self.1.iter().filter(|(bit, _)| self.0 & bit != 0) {
            if !first {
                f.write_str("|")?;
            }
            f.write_str(name)?;
            first = false;
        }
        if first { f.write_str(self.2) } else { Ok(()) }
    }
}

/// Type and profile of a chunk or block group.
pub(super) struct ChunkType(pub u64);

const TYPES: [(u64, &str); 3] = [
    (chunk_type::DATA, "DATA"),
    (chunk_type::METADATA, "METADATA"),
    (chunk_type::SYSTEM, "SYSTEM"),
];

/// The first that is set is printed.
const PROFILES: [(u64, &str); 8] = [
    (chunk_type::RAID10, "RAID10"),
    (chunk_type::RAID1, "RAID1"),
    (chunk_type::DUP, "DUP"),
    (chunk_type::RAID0, "RAID0"),
    (chunk_type::RAID5, "RAID5"),
    (chunk_type::RAID6, "RAID6"),
    (chunk_type::RAID1C3, "RAID1C3"),
    (chunk_type::RAID1C4, "RAID1C4"),
];

impl Display for ChunkType {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}|", Flags(self.0, &TYPES, ""))?;
        match PROFILES.iter().find(|(bit, _)| self.0 & bit != 0) {
            Some((_, name)) => f.write_str(name),
            None => f.write_str("single"),
        }
    }
}

/// A time with its name, on a line of its own.
pub(super) struct TimeLine<'a>(pub &'a str, pub Timespec, pub i64);

impl Display for TimeLine<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (sec, nsec) = (self.1.sec.get(), self.1.nsec.get());
        let date = Date::of((sec as i64).saturating_add(self.2));
        writeln!(f, "\t\t{} {sec}.{nsec} ({date})", self.0)
    }
}

/// A point in time of the proleptic Gregorian calendar.
struct Date {
    year: i64,
    month: i64,
    day: i64,
    second: i64,
}

impl Date {
    /// From seconds since 1970. The year is counted from March, which puts the leap day at its end.
    fn of(sec: i64) -> Date {
        let (days, second) = (sec.div_euclid(86400), sec.rem_euclid(86400));
        let since = days + 719_468;
        let (era, in_era) = (since.div_euclid(146_097), since.rem_euclid(146_097));
        let year = (in_era - in_era / 1460 + in_era / 36524 - in_era / 146_096) / 365;
        let in_year = in_era - (365 * year + year / 4 - year / 100);
        let from_march = (5 * in_year + 2) / 153;
        let day = in_year - (153 * from_march + 2) / 5 + 1;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        Date { year: era * 400 + year + i64::from(month <= 2), month, day, second }
    }
}

impl Display for Date {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Date { year, month, day, second } = *self;
        write!(f, "{year}-{month:02}-{day:02} ")?;
        write!(f, "{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
    }
}
