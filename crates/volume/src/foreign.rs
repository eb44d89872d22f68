//! Other filesystems' signatures. When the primary superblock is gone and a mirror is still there,
//! the device may have been given to another filesystem since; writing would destroy that one.

use buttress_device::BlockDevice;

/// Name, place in bytes, and the bytes there.
const SIGNATURES: [(&str, u64, &[u8]); 14] = [
    ("an ext2, ext3 or ext4 filesystem", 0x438, &[0x53, 0xef]),
    ("an XFS filesystem", 0, b"XFSB"),
    ("a LUKS container", 0, b"LUKS\xba\xbe"),
    ("an NTFS filesystem", 3, b"NTFS    "),
    ("an exFAT filesystem", 3, b"EXFAT   "),
    ("a FAT filesystem", 0x36, b"FAT1"),
    ("a FAT filesystem", 0x52, b"FAT32"),
    ("a squashfs filesystem", 0, b"hsqs"),
    ("an F2FS filesystem", 0x400, &[0x10, 0x20, 0xf5, 0xf2]),
    ("an EROFS filesystem", 0x400, &[0xe2, 0xe1, 0xf5, 0xe0]),
    ("swap space", 0xff6, b"SWAPSPACE2"),
    ("an LVM physical volume", 0x200, b"LABELONE"),
    ("a partition table", 0x200, b"EFI PART"),
    ("an ISO 9660 filesystem", 0x8001, b"CD001"),
];

/// What has taken the device over, if its signature is known.
pub(crate) fn filesystem(device: &dyn BlockDevice) -> Option<&'static str> {
    let matches = |at: u64, magic: &[u8]| {
        let mut bytes = vec![0; magic.len()];
        device.read_at(at, &mut bytes).is_ok() && bytes == magic
    };
    SIGNATURES.into_iter().find(|(_, at, magic)| matches(*at, magic)).map(|(name, ..)| name)
}
