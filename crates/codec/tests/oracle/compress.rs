//! Streams made by the kernel are decoded here, streams made here are decoded by the kernel.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;

use buttress_codec::compress::{EXTENT_SIZE_MAX, compress, decompress, decompress_inline};
use buttress_codec::{Compression, CompressionKind};

use crate::image::{Extent, Image, SECTOR};

const KINDS: [CompressionKind; 3] =
    [CompressionKind::Zlib, CompressionKind::Lzo, CompressionKind::Zstd];

/// Random bytes, each sector with a share of them that grows with `seed` and zeros after it, so
/// that streams have many lengths and LZO's length fields meet the ends of sectors.
fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; len];
    for (index, sector) in bytes.chunks_mut(SECTOR).enumerate() {
        let noise = (200 + seed as usize * 150 + index * 3).min(sector.len());
        for byte in &mut sector[..noise] {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = (state >> 32) as u8;
        }
        let text = b"every commit is a few sorted merges. ".iter().cycle();
        sector[noise..].iter_mut().zip(text).for_each(|(byte, letter)| *byte = *letter);
    }
    bytes
}

fn files() -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> =
        (0..12).map(|seed| (format!("whole{seed}"), content(seed, EXTENT_SIZE_MAX))).collect();
    files.push(("zeros".into(), vec![0; EXTENT_SIZE_MAX]));
    files.push(("long".into(), content(3, 3 * EXTENT_SIZE_MAX + 5000)));
    files.push(("odd".into(), content(4, 9001)));
    files.push(("tiny".into(), b"abc ".repeat(50)));
    files.push(("inline".into(), content(1, 1900)));
    files
}

/// Lets the kernel write all files; returns their contents by inode number.
fn fill(image: &Image, kind: CompressionKind) -> HashMap<u64, Vec<u8>> {
    image.mounted(&format!("compress-force={kind}"), |root| {
        let write = |(name, bytes): (String, Vec<u8>)| {
            let mut file = File::create(root.join(name)).unwrap();
            file.write_all(&bytes).unwrap();
            file.sync_all().unwrap();
            (file.metadata().unwrap().ino(), bytes)
        };
        files().into_iter().map(write).collect()
    })
}

fn plain_of<'a>(contents: &'a HashMap<u64, Vec<u8>>, extent: &Extent) -> &'a [u8] {
    let whole = &contents[&extent.ino][extent.file_offset as usize..];
    &whole[..extent.ram_len.min(whole.len())]
}

#[test]
fn streams_of_the_kernel_decode() {
    for kind in KINDS {
        let Some(image) = Image::make() else { return };
        let contents = fill(&image, kind);
        let extents = image.compressed_extents();
        assert!(extents.iter().any(|extent| extent.inline), "{kind}: no inline extent");
        assert!(extents.len() > 12, "{kind}: {} compressed extents", extents.len());
        for extent in extents {
            assert_eq!(extent.kind, Some(kind));
            let bytes = image.read(&extent);
            let mut plain = vec![0xaa; extent.ram_len];
            let decode = if extent.inline { decompress_inline } else { decompress };
            let len = decode(kind, &bytes, &mut plain, SECTOR)
                .unwrap_or_else(|error| panic!("{extent:?}: {error}"));
            let expect = plain_of(&contents, &extent);
            // The kernel encodes no further than the end of the file, within the last sector.
            assert!(len == extent.ram_len || len == expect.len(), "{extent:?}: {len}");
            assert!(plain.starts_with(expect), "{extent:?}");
            assert!(plain[expect.len()..].iter().all(|byte| *byte == 0), "{extent:?}");
        }
    }
}

#[test]
fn the_kernel_decodes_our_streams() {
    for kind in KINDS {
        let Some(image) = Image::make() else { return };
        let contents = fill(&image, kind);
        let mut replaced = 0;
        for extent in image.compressed_extents() {
            let mut plain = plain_of(&contents, &extent).to_vec();
            plain.resize(extent.ram_len, 0);
            let ours = compress(Compression::with_default_level(kind), &plain, SECTOR).unwrap();
            // The extent item says how many sectors there are, so only an equal number will do.
            if !extent.inline && ours.len().next_multiple_of(SECTOR) == extent.disk_len {
                image.overwrite(&extent, &ours);
                replaced += 1;
            }
        }
        assert!(replaced >= 4, "{kind}: only {replaced} extents of equal size");
        // The checksum tree still has the sums of the old bytes.
        image.mounted("ro,rescue=ignoredatacsums", |root| {
            for (name, expect) in files() {
                let have = fs::read(root.join(&name)).unwrap();
                assert!(have == expect, "{kind}: {name} differs");
            }
        });
    }
}
