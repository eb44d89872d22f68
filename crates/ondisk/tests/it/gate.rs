//! What the kernel wrote passes the gate.

use crate::image::Image;
use buttress_ondisk::print::{self, Style};
use buttress_ondisk::{Expect, kind};
use std::collections::BTreeSet;

/// Every block of every image passes, and the images hold the items that matter.
pub fn blocks_pass(images: &[(String, Image)]) {
    let mut kinds = BTreeSet::new();
    for (name, image) in images {
        let blocks = image.every_block();
        assert!(blocks.len() > 10, "{name}: {} blocks", blocks.len());
        for block in &blocks {
            image.gate.verify(block, &Expect::at(block.bytenr())).unwrap();
            if block.is_leaf() {
                kinds.extend((0..block.len()).map(|slot| block.key(slot).kind));
            }
        }
    }
    for wanted in [
        kind::INODE_EXTREF,
        kind::XATTR_ITEM,
        kind::EXTENT_DATA,
        kind::EXTENT_CSUM,
        kind::METADATA_ITEM,
        kind::FREE_SPACE_INFO,
        kind::QGROUP_LIMIT,
        kind::ROOT_BACKREF,
        kind::UUID_SUBVOL,
        kind::DEV_EXTENT,
        kind::ORPHAN_ITEM,
        kind::EXTENT_DATA_REF,
        kind::SHARED_DATA_REF,
    ] {
        assert!(kinds.contains(&wanted), "no item of kind {wanted} in the images: {kinds:?}");
    }
}

/// Real blocks with a few bytes changed: refused or not, nothing panics, and whatever can be walked can be printed.
pub fn mutated_blocks_never_panic(image: &Image) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as usize % below
    };
    let (mut passed, mut refused) = (0, 0);
    for block in image.every_block().iter().filter(|block| !block.is_empty()) {
        for _ in 0..20 {
            let mut bytes: Box<[u8]> = block.as_bytes().into();
            for _ in 0..1 + next(3) {
                let heads = 32 + next(69 + block.len() * 25);
                let at = if next(2) == 0 { heads } else { 32 + next(bytes.len() - 32) };
                bytes[at] = [0, 0xff, bytes[at] ^ 1 << next(8), next(256) as u8][next(4)];
            }
            let digest = image.gate.csum.digest(&bytes[32..]);
            bytes[..digest.len()].copy_from_slice(digest.as_bytes());
            match image.gate.block(bytes.clone(), &Expect::at(block.bytenr())) {
                Ok(_) => passed += 1,
                Err(_) => refused += 1,
            }
            if let Ok(block) = image.gate.salvage(bytes) {
                let style = Style { csum_items: true, ..Style::default() };
                print::print_block(&mut std::io::sink(), &block, &image.gate, &style).unwrap();
            }
        }
    }
    assert!(passed > 0 && refused > 0, "{passed} passed, {refused} refused");
}
