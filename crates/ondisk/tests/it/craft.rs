//! Leaves with items that are rare on real filesystems, put in place of a block of an image.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::process::Command;

use buttress_ondisk::build::{LeafBuilder, Stamp};
use buttress_ondisk::print::{self, Style};
use buttress_ondisk::{BlockHead, Key, TreeBlock, kind, objectid};

use crate::image::Image;
use crate::print::same;

/// Bytes that are neither zero nor repeat soon.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len).map(|_| (next() >> 32) as u8).collect()
}

fn words(list: &[u64]) -> Vec<u8> {
    list.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Items in any order.
fn items() -> Vec<(Key, Vec<u8>)> {
    let mut all = Vec::new();
    let mut add = |objectid, kind, offset, data| all.push((Key::new(objectid, kind, offset), data));
    let sizes = [
        (kind::INODE_ITEM, 160),
        (kind::ROOT_ITEM, 439),
        (kind::DEV_ITEM, 98),
        (kind::DEV_EXTENT, 48),
        (kind::BLOCK_GROUP_ITEM, 24),
        (kind::QGROUP_STATUS, 32),
        (kind::QGROUP_INFO, 40),
        (kind::QGROUP_LIMIT, 40),
        (kind::FREE_SPACE_INFO, 8),
        (kind::DIR_LOG_ITEM, 8),
        (kind::DIR_LOG_INDEX, 8),
        (kind::SHARED_DATA_REF, 4),
        (kind::EXTENT_DATA_REF, 28),
        (kind::UUID_RECEIVED_SUBVOL, 24),
    ];
    for (kind, size) in sizes {
        for seed in 1..4 {
            let mut data = noise(size, seed);
            match kind {
                // The seconds of the four times, within reach of a calendar.
                kind::INODE_ITEM => {
                    [117, 129, 141, 153].iter().for_each(|&at| data[at..at + 3].fill(0))
                }
                kind::BLOCK_GROUP_ITEM => data[16] = 1,
                _ => {}
            }
            if kind == kind::BLOCK_GROUP_ITEM {
                data[17..].fill(0);
            }
            add(seed, kind, seed.wrapping_mul(0x0123_4567_89ab_cdef), data);
        }
        if ![kind::INODE_ITEM, kind::BLOCK_GROUP_ITEM].contains(&kind) {
            add(u64::MAX - u64::from(kind % 16), kind, u64::MAX, noise(size, 77));
        }
    }
    for id in (0..14)
        .chain((1..14).map(|down| 0u64.wrapping_sub(down)))
        .chain([0u64.wrapping_sub(255), 256])
    {
        for kind in [kind::ORPHAN_ITEM, kind::FREE_SPACE_EXTENT, kind::QGROUP_RELATION] {
            add(id, kind, id, vec![]);
        }
        add(id, 37, id, vec![1]);
        add(id, 172, id, vec![]);
        add(id, 230, id, vec![]);
        add(id, 120, id, vec![]);
    }
    add(objectid::BALANCE, kind::TEMPORARY_ITEM, 0, noise(448, 9));
    add(7, kind::TEMPORARY_ITEM, 3, vec![0; 8]);
    add(7, kind::PERSISTENT_ITEM, 3, vec![0; 8]);
    add(0, kind::PERSISTENT_ITEM, 3, words(&[1, 2, 3, 4, 5]));
    add(objectid::FREE_SPACE, 0, 4096, noise(41, 5));
    add(7, kind::STRING_ITEM, 3, b"some text".to_vec());
    add(7, kind::DEV_REPLACE, 3, vec![0; 80]);
    file_extents(&mut add);
    references(&mut add);
    all.sort();
    all.dedup_by_key(|(key, _)| *key);
    all
}

fn file_extents(add: &mut impl FnMut(u64, u8, u64, Vec<u8>)) {
    for compression in 0..6u8 {
        for kind in 0..4u8 {
            let mut data = words(&[9, 4096]);
            data.extend([compression, 0, 0, 0, kind]);
            data.extend(noise(32, u64::from(compression) + 1));
            add(500, kind::EXTENT_DATA, u64::from(compression) << 16 | u64::from(kind) << 12, data);
        }
    }
}

fn references(add: &mut impl FnMut(u64, u8, u64, Vec<u8>)) {
    for flags in [0, 1, 2, 3, 0x101, 0x102, 0x200] {
        let mut data = words(&[3, 8, flags]);
        if flags & 2 != 0 {
            data.extend(noise(18, 3));
        }
        data.push(kind::SHARED_DATA_REF);
        data.extend(words(&[4096]));
        data.extend([2, 0, 0, 0]);
        add(0x1000 * flags, kind::EXTENT_ITEM, 16384, data);
    }
    let mut data = words(&[3, 8, 2]);
    for (kind, word) in [(kind::TREE_BLOCK_REF, 7), (kind::TREE_BLOCK_REF, 300)] {
        data.push(kind);
        data.extend(words(&[word]));
    }
    data.push(kind::SHARED_BLOCK_REF);
    data.extend(words(&[8192]));
    add(0x9000, kind::METADATA_ITEM, 3, data);
    for flags in 0..0x800u64 {
        if ((flags & 7).count_ones() == 1 || flags & 7 == 5) && (flags >> 3).count_ones() <= 1 {
            add(0x10_0000 + flags, kind::BLOCK_GROUP_ITEM, 1, words(&[1, 256, flags]));
        }
    }
    for flags in 0..16 {
        add(0, kind::QGROUP_STATUS, flags, words(&[1, 2, flags, 4]));
    }
}

/// Puts `block` in place of what is at its address in the image.
fn place(image: &Image, block: &TreeBlock) {
    let file = OpenOptions::new().write(true).open(&image.path).unwrap();
    for physical in image.copies(block.bytenr()) {
        file.write_all_at(block.as_bytes(), physical).unwrap();
    }
}

/// Leaves that hold all of `items`.
fn leaves(image: &Image, stamp: &Stamp) -> Vec<TreeBlock> {
    let size = image.gate.nodesize as usize;
    let mut done = Vec::new();
    let mut leaf = LeafBuilder::new(size);
    for (key, data) in items() {
        if !leaf.push(key, &data) {
            done.push(std::mem::replace(&mut leaf, LeafBuilder::new(size)));
            assert!(leaf.push(key, &data));
        }
    }
    done.push(leaf);
    let seal = |leaf: LeafBuilder| {
        let block = leaf.finish(stamp);
        let csum = image.gate.csum.digest(&block.as_bytes()[32..]);
        block.sealed(csum.as_bytes())
    };
    done.into_iter().map(seal).collect()
}

/// Prints crafted leaves as progs do. Spoils the image.
pub fn crafted_leaves_print_alike(image: &Image) {
    let victim = image.tree_root(objectid::UUID_TREE);
    let stamp = Stamp {
        fsid: image.gate.metadata_fsid,
        chunk_tree_uuid: victim.head().chunk_tree_uuid,
        bytenr: victim.bytenr(),
        generation: victim.generation(),
        owner: victim.owner(),
        flags: BlockHead::WRITTEN | BlockHead::RELOC | 1 << 5,
    };
    for block in leaves(image, &stamp) {
        place(image, &block);
        let mut ours = b"btrfs-progs v6.2\n".to_vec();
        print::print_block(&mut ours, &block, &image.gate, &Style::default()).unwrap();
        let done = Command::new("btrfs")
            .args(["inspect-internal", "dump-tree", "-b", &block.bytenr().to_string()])
            .arg(&image.path)
            .env("TZ", "UTC")
            .output()
            .unwrap();
        same("crafted leaf", &ours, &done.stdout);
    }
}
