//! What the kernel wrote passes the gate.

use crate::image::Image;
use buttress_ondisk::kind;
use std::collections::BTreeSet;

/// Every block of every image passes, and the images hold the items that matter.
pub fn blocks_pass(images: &[(String, Image)]) {
    let mut kinds = BTreeSet::new();
    for (name, image) in images {
        let blocks = image.every_block();
        assert!(blocks.len() > 10, "{name}: {} blocks", blocks.len());
        for block in &blocks {
            image.gate.verify(block).unwrap();
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
