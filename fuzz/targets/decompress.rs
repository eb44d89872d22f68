//! The decompressors on any bytes, and on what the compressors made of any bytes.
#![no_main]

use buttress_codec::CompressionKind;
use buttress_codec::compress::{Compression, compress, decompress, decompress_inline};
use buttress_fuzz::input::Input;
use libfuzzer_sys::fuzz_target;

const SECTOR: usize = 4096;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let how = input.byte();
    let kinds = [CompressionKind::Zlib, CompressionKind::Lzo, CompressionKind::Zstd];
    let kind = kinds[usize::from(how % 3)];
    let room = usize::from(input.short()) * 2 + usize::from(how >> 7);
    let rest = input.rest();
    let mut output = vec![0x5a; room];
    for done in [
        decompress(kind, rest, &mut output, SECTOR),
        decompress_inline(kind, rest, &mut output, SECTOR),
        decompress(kind, rest, &mut output, SECTOR << (how >> 3 & 7)),
    ] {
        assert!(done.is_err() || done.is_ok_and(|count| count <= room));
    }
    let compression = Compression::with_default_level(kind);
    let Some(packed) = compress(compression, rest, SECTOR) else { return };
    let mut again = vec![0; rest.len()];
    let padded = packed.len().next_multiple_of(SECTOR);
    let mut extent = packed.clone();
    extent.resize(padded, 0);
    assert_eq!(decompress(kind, &extent, &mut again, SECTOR), Ok(rest.len()));
    assert_eq!(again, rest);
    if rest.len() <= SECTOR {
        assert_eq!(decompress_inline(kind, &packed, &mut again, SECTOR), Ok(rest.len()));
        assert_eq!(again, rest);
    }
});
