//! Writes what the fuzzers start from: blocks, items and extents of the images, one file each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use buttress_codec::CompressionKind;
use buttress_codec::compress::{Compression, compress};
use buttress_fuzz::blocks::OWNERS;
use buttress_fuzz::image::{directory, images};

/// Files of each target, at most.
const FILES_MAX: usize = 400;

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut seeds: BTreeMap<&str, Vec<Vec<u8>>> = BTreeMap::new();
    let mut add = |target, bytes: Vec<u8>| seeds.entry(target).or_default().push(bytes);
    for (number, image) in images().iter().enumerate() {
        for (at, block) in image.blocks().enumerate() {
            let choice = match block.len() {
                65536 => 3,
                16384 => 2,
                _ => 0,
            };
            match (at, block[100]) {
                (0, _) => add("superblock", [&[1], &block[..]].concat()),
                (_, 0) => {
                    items(&block).into_iter().for_each(|item| add("items", item));
                    add("leaf", [&[choice, 0], &block[..]].concat());
                }
                (_, level) => add("node", [&[choice, level - 1], &block[..]].concat()),
            }
        }
        let number = number as u8;
        for target in ["dump_tree", "open_walk", "open_write"] {
            add(target, vec![number, 0, 0, 0]);
            for step in 0..40 {
                let bytes = (0..60_u8).map(|at| at.wrapping_mul(step).wrapping_mul(37) ^ step);
                add(target, std::iter::once(number).chain(bytes).collect());
            }
        }
    }
    for kind in [CompressionKind::Zlib, CompressionKind::Lzo, CompressionKind::Zstd] {
        for text in ["a".repeat(9000), "some words of text ".repeat(300), format!("{kind:?}").repeat(20)] {
            let packed = compress(Compression::with_default_level(kind), text.as_bytes(), 4096);
            let how = kind.to_u8().saturating_sub(1);
            add("decompress", [&[how, 0, 0x20], &packed.unwrap_or_default()[..]].concat());
        }
    }
    for seed in 0..32_u8 {
        let tape: Vec<u8> = (0..1500_u32).map(|at| (at * at * (7 + u32::from(seed)) >> 5) as u8).collect();
        add("ops_model", [&[seed], &tape[..]].concat());
    }
    println!("{} images in {}", images().len(), directory().display());
    for (target, mut files) in seeds {
        files.sort();
        files.dedup();
        let step = files.len().div_ceil(FILES_MAX);
        write(&corpus.join(target), files.into_iter().step_by(step).collect())?;
    }
    Ok(())
}

fn write(dir: &PathBuf, files: Vec<Vec<u8>>) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    println!("{}: {} seeds", dir.display(), files.len());
    for (number, bytes) in files.iter().enumerate() {
        std::fs::write(dir.join(format!("seed-{number}")), bytes)?;
    }
    Ok(())
}

/// Items of a leaf, each as the target `items` reads one.
fn items(leaf: &[u8]) -> Vec<Vec<u8>> {
    let number = |at: usize| u32::from_le_bytes([leaf[at], leaf[at + 1], leaf[at + 2], leaf[at + 3]]);
    let heads = (0..number(96) as usize).map(|slot| 101 + slot * 25);
    let tree = u64::from_le_bytes(leaf[88..96].try_into().unwrap_or_default());
    let owner = OWNERS.iter().position(|it| *it == tree).unwrap_or(4) as u8;
    let item = |head: usize| {
        let (offset, size) = (101 + number(head + 17) as usize, number(head + 21) as usize);
        let body = &leaf[offset..offset + size.min(511)];
        let mut bytes = vec![owner * 2, 200, leaf[head + 8], 200];
        bytes.extend(&leaf[head..head + 8]);
        bytes.push(200);
        bytes.extend(&leaf[head + 9..head + 17]);
        bytes.extend((body.len() as u16).to_le_bytes());
        bytes.extend(body);
        bytes
    };
    heads.map(item).collect()
}
