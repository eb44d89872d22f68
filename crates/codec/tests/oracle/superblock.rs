//! Every checksum kind against the superblock that `mkfs.btrfs` writes.

use std::fs::File;
use std::os::unix::fs::FileExt;

use buttress_codec::ChecksumKind;

use crate::image;

/// First superblock: at 64 KiB, 4 KiB long, the digest in its first 32 bytes.
const SUPER_OFFSET: u64 = 64 << 10;

fn made_by_mkfs(kind: ChecksumKind, directory: &std::path::Path) -> Option<[u8; 4096]> {
    let path = directory.join(kind.name());
    File::create(&path).unwrap().set_len(128 << 20).unwrap();
    // The option's spelling of xxhash64 is "xxhash".
    let name = if kind == ChecksumKind::XxHash64 { "xxhash" } else { kind.name() };
    let args = ["-q", "--csum", name, path.to_str().unwrap()];
    let Ok(made) = image::start("mkfs.btrfs", &args) else {
        eprintln!("skipped: no mkfs.btrfs");
        return None;
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut block = [0; 4096];
    File::open(&path).unwrap().read_exact_at(&mut block, SUPER_OFFSET).unwrap();
    Some(block)
}

#[test]
fn superblocks_of_every_kind_verify() {
    let directory = tempfile::tempdir().unwrap();
    for kind in ChecksumKind::ALL {
        let Some(mut block) = made_by_mkfs(kind, directory.path()) else { return };
        let number = u16::from_le_bytes([block[0xc4], block[0xc5]]);
        assert_eq!(ChecksumKind::from_u16(number), Some(kind));
        let (field, body) = block.split_at_mut(32);
        assert!(kind.verify(body, field), "{kind}");
        assert_eq!(field, kind.digest(body).as_field(), "{kind}");
        body[100] ^= 1;
        assert!(!kind.verify(body, field), "{kind}");
    }
}
