//! What is on a device already is found before it is overwritten: what util-linux knows, and what we know without it.

use std::path::Path;

use buttress_device::{Access, BlockDevice, FileDevice, MemoryDevice};
use buttress_mkfs::{Environment, MkfsError, Options, existing_signature};

use crate::host::run;

const SIZE: u64 = 256 << 20;
/// The smallest that all of them make something of: xfs wants more than 300 MB.
const SIZE_OF_OTHERS: u64 = 320 << 20;

fn refusal(device: &dyn BlockDevice) -> String {
    match buttress_mkfs::make(device, &Options::default(), &mut Environment::seeded(1)) {
        Err(MkfsError::Exists { what, .. }) => what,
        other => panic!("{other:?}"),
    }
}

/// Programs that make something, and what util-linux calls it.
const MAKERS: [(&str, &[&str], &str); 8] = [
    ("mkfs.nilfs2", &["-q"], "nilfs2"),
    ("mkfs.ext4", &["-q", "-F"], "ext4"),
    ("mkfs.xfs", &["-q", "-f"], "xfs"),
    ("mkfs.btrfs", &["-q"], "btrfs"),
    ("mkfs.vfat", &[], "vfat"),
    ("mkfs.f2fs", &["-q"], "f2fs"),
    ("mkfs.bcachefs", &["-q"], "bcachefs"),
    ("mkswap", &[], "swap"),
];

#[test]
fn what_others_have_made() {
    let dir = tempfile::tempdir().unwrap();
    for (program, options, name) in MAKERS {
        let path = dir.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(SIZE_OF_OTHERS).unwrap();
        let place = path.display().to_string();
        match run(program, &[options, &[place.as_str()]].concat()) {
            Some(output) if output.status.success() => {}
            Some(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                println!("skipped: {program}: {}", said.trim());
                continue;
            }
            None => {
                println!("skipped: no {program}");
                continue;
            }
        }
        let before = std::fs::read(&path).unwrap();
        let device = FileDevice::open(&path, Access::ReadWrite).unwrap();
        assert_eq!(refusal(&device), name, "{program}");
        drop(device);
        assert!(before == std::fs::read(&path).unwrap(), "{program}: what was refused has changed");
    }
}

fn put(path: &Path, at: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// What needs more than a magic number, by hand: members of a pool of ZFS and of an array of md, whose superblock may be at
/// the end, and the backup of a partition table.
#[test]
fn what_is_made_of_several_disks() {
    if run("blkid", &["--version"]).is_none() {
        println!("skipped: no blkid");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let empty = || {
        std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
        path.clone()
    };
    let found = || existing_signature(&FileDevice::open(&path, Access::ReadOnly).unwrap()).unwrap();
    empty();
    assert_eq!(found(), None);
    for root in 0..8 {
        put(&path, (128 << 10) + root * 1024, &0x00ba_b10c_u64.to_le_bytes());
    }
    assert_eq!(found().as_deref(), Some("zfs_member"));
    // The superblock of an array of version 0.90, in the last whole 64 KiB but one.
    let mut md = 0xa92b_4efc_u32.to_le_bytes().to_vec();
    md.extend(0u32.to_le_bytes());
    md.extend(90u32.to_le_bytes());
    put(&empty(), SIZE - (64 << 10), &md);
    assert_eq!(found().as_deref(), Some("linux_raid_member"));
}

/// Without util-linux, or where it cannot look: in memory.
#[test]
fn what_is_known_without_help() {
    let cases: [(&str, u64, &[u8]); 6] = [
        ("zfs_member", (128 << 10) + 5 * 1024, &0x00ba_b10c_u64.to_be_bytes()),
        ("nilfs2", 0x406, &[0x34, 0x34]),
        ("jfs", 0x8000, b"JFS1"),
        ("gpt", SIZE - 512, b"EFI PART"),
        ("btrfs", 0x10040, b"_BHRfS_M"),
        ("xfs", 0, b"XFSB"),
    ];
    for (name, at, bytes) in cases {
        let device = MemoryDevice::new(SIZE);
        device.write_at(at, bytes).unwrap();
        assert_eq!(refusal(&device), name);
    }
}
