//! What is on a device already: what [`util_linux`] says, and where that is missing, the magic numbers that the best
//! known formats start with.

use buttress_device::{BlockDevice, DeviceError};

use crate::util_linux;

struct Magic {
    name: &'static str,
    offset: u64,
    bytes: &'static [u8],
}

const fn magic(name: &'static str, offset: u64, bytes: &'static [u8]) -> Magic {
    Magic { name, offset, bytes }
}

/// Magic numbers at fixed offsets. What is named first is told first: a partition table after the filesystems, because
/// some of them carry its signature too.
const MAGICS: &[Magic] = &[
    magic("btrfs", 0x10040, b"_BHRfS_M"),
    magic("xfs", 0, b"XFSB"),
    magic("crypto_LUKS", 0, b"LUKS\xba\xbe"),
    magic("squashfs", 0, b"hsqs"),
    magic("ntfs", 3, b"NTFS    "),
    magic("exfat", 3, b"EXFAT   "),
    magic("vfat", 0x36, b"FAT12"),
    magic("vfat", 0x36, b"FAT16"),
    magic("vfat", 0x52, b"FAT32"),
    magic("f2fs", 0x400, &0xf2f5_2010u32.to_le_bytes()),
    magic("erofs", 0x400, &0xe0f5_e1e2u32.to_le_bytes()),
    magic("swap", 4086, b"SWAPSPACE2"),
    magic("swap", 4086, b"SWAP-SPACE"),
    magic("LVM2_member", 0x218, b"LVM2 001"),
    magic("linux_raid_member", 0, &0xa92b_4efcu32.to_le_bytes()),
    magic("linux_raid_member", 4096, &0xa92b_4efcu32.to_le_bytes()),
    magic("reiserfs", 0x10034, b"ReIsEr"),
    magic("jfs", 0x8000, b"JFS1"),
    magic("bcache", 4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    magic("nilfs2", 0x406, &0x3434u16.to_le_bytes()),
    magic("apfs", 32, b"NXSB"),
    magic("hfsplus", 0x400, b"H+\0\x04"),
    magic("udf", 0x8001, b"BEA01"),
    magic("BitLocker", 3, b"-FVE-FS-"),
    magic("bcachefs", 4120, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
    magic("iso9660", 0x8001, b"CD001"),
    magic("gpt", 512, b"EFI PART"),
    magic("gpt", 4096, b"EFI PART"),
    magic("dos", 510, b"\x55\xaa"),
];

/// Names what is on the device: a filesystem, swap, a volume manager's member or a partition table; `None` when no known
/// signature is there.
pub fn existing_signature(device: &dyn BlockDevice) -> Result<Option<String>, DeviceError> {
    signature_within(device, device.size())
}

/// The same in the first `size` bytes of the device.
pub(crate) fn signature_within(
    device: &dyn BlockDevice,
    size: u64,
) -> Result<Option<String>, DeviceError> {
    match util_linux::probe(device, size) {
        Some(found) => Ok(Some(found)),
        None => built_in(device, size),
    }
}

/// The same by the magic numbers in this module.
fn built_in(device: &dyn BlockDevice, size: u64) -> Result<Option<String>, DeviceError> {
    if let Some(ext) = ext(device)? {
        return Ok(Some(ext.into()));
    }
    for magic in MAGICS {
        let found: Option<Vec<u8>> = read(device, magic.offset, magic.bytes.len())?;
        if found.is_some_and(|found| found == magic.bytes) {
            return Ok(Some(magic.name.into()));
        }
    }
    if zfs(device)? {
        return Ok(Some("zfs_member".into()));
    }
    backup_gpt(device, size)
}

/// ZFS has nothing at a fixed place that stays: its first label ends with a ring of roots of which any may be written.
fn zfs(device: &dyn BlockDevice) -> Result<bool, DeviceError> {
    const RING: std::ops::Range<u64> = 128 << 10..256 << 10;
    const MAGIC: u64 = 0x00ba_b10c;
    let Some(ring) = read(device, RING.start, (RING.end - RING.start) as usize)? else {
        return Ok(false);
    };
    let magics = [MAGIC.to_le_bytes(), MAGIC.to_be_bytes()];
    Ok(ring.chunks(1024).any(|root| magics.iter().any(|magic| root.starts_with(magic))))
}

/// The copy of a partition table that is left in the last sector when the first is gone.
fn backup_gpt(device: &dyn BlockDevice, size: u64) -> Result<Option<String>, DeviceError> {
    for sector in [512, 4096] {
        let Some(last) = size.checked_sub(sector) else { continue };
        if read(device, last, 8)?.is_some_and(|found| found == b"EFI PART") {
            return Ok(Some("gpt".into()));
        }
    }
    Ok(None)
}

/// ext2, ext3 and ext4 share a magic number; features tell them apart.
fn ext(device: &dyn BlockDevice) -> Result<Option<&'static str>, DeviceError> {
    const MAGIC: u16 = 0xef53;
    const HAS_JOURNAL: u32 = 4;
    /// Extents, 64 bit, flexible block groups and what else only ext4 has.
    const EXT4_INCOMPAT: u32 = !0x1f;
    let Some(superblock) = read(device, 0x400, 0x68)? else { return Ok(None) };
    let half = |at: usize| superblock.get(at..at + 2)?.try_into().ok().map(u16::from_le_bytes);
    let word = |at: usize| superblock.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    if half(0x38) != Some(MAGIC) {
        return Ok(None);
    }
    let (compat, incompat) = (word(0x5c).unwrap_or(0), word(0x60).unwrap_or(0));
    Ok(Some(if incompat & EXT4_INCOMPAT != 0 {
        "ext4"
    } else if compat & HAS_JOURNAL != 0 {
        "ext3"
    } else {
        "ext2"
    }))
}

/// Reads a range; `None` when the device ends before it.
fn read(device: &dyn BlockDevice, offset: u64, len: usize) -> Result<Option<Vec<u8>>, DeviceError> {
    if offset.saturating_add(len as u64) > device.size() {
        return Ok(None);
    }
    let mut bytes = vec![0; len];
    device.read_at(offset, &mut bytes)?;
    Ok(Some(bytes))
}
