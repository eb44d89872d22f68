//! Round trips, hostile input, and the framing rules that have no other witness here.

use proptest::prelude::*;

use super::*;

const SECTOR: usize = 4096;
const KINDS: [CompressionKind; 3] =
    [CompressionKind::Zlib, CompressionKind::Lzo, CompressionKind::Zstd];

fn encode(kind: CompressionKind, plain: &[u8]) -> Vec<u8> {
    compress(Compression::with_default_level(kind), plain, SECTOR).expect("compressible")
}

fn padded(mut stream: Vec<u8>) -> Vec<u8> {
    stream.resize(stream.len().next_multiple_of(SECTOR), 0);
    stream
}

/// Runs of repeated words and of noise, whose compressed segments have many lengths.
fn compressible() -> impl Strategy<Value = Vec<u8>> {
    let run = prop_oneof![
        proptest::collection::vec(any::<u8>(), 1..3000),
        (proptest::collection::vec(any::<u8>(), 1..20), 10..800usize)
            .prop_map(|(word, times)| word.repeat(times)),
    ];
    proptest::collection::vec(run, 1..20).prop_map(|runs| {
        let mut all = runs.concat();
        all.truncate(EXTENT_SIZE_MAX);
        all
    })
}

#[test]
fn numbers_and_names() {
    for (number, kind) in (1..).zip(KINDS) {
        assert_eq!(CompressionKind::from_u8(number), Some(kind));
        assert_eq!(kind.to_u8(), number);
        assert_eq!(Compression::with_default_level(kind).kind(), kind);
    }
    assert_eq!(CompressionKind::from_u8(0), None);
    assert_eq!(CompressionKind::from_u8(4), None);
}

#[test]
fn every_level_is_accepted() {
    let plain = b"a commit is a few sorted merges. ".repeat(3000);
    let zlib = (0..=u8::MAX).step_by(5).map(|level| Compression::Zlib { level });
    let zstd = (i8::MIN..=i8::MAX).step_by(5).map(|level| Compression::Zstd { level });
    for compression in zlib.chain(zstd) {
        let stream = padded(compress(compression, &plain, SECTOR).unwrap());
        let mut back = vec![0; plain.len()];
        let len = decompress(compression.kind(), &stream, &mut back, SECTOR).unwrap();
        assert!(len == plain.len() && back == plain, "{compression:?}");
    }
}

#[test]
fn what_does_not_shrink_is_refused() {
    let noise: Vec<u8> =
        (0..8192u32).flat_map(|n| n.wrapping_mul(0x9e37_79b1).to_le_bytes()).collect();
    let noise: Vec<u8> = noise.chunks(4).map(|word| word[0] ^ word[3]).collect();
    for kind in KINDS {
        let compression = Compression::with_default_level(kind);
        assert_eq!(compress(compression, b"", SECTOR), None);
        assert_eq!(compress(compression, b"a", SECTOR), None);
        assert_eq!(compress(compression, &vec![0; EXTENT_SIZE_MAX + 1], SECTOR), None);
        assert_eq!(compress(compression, &vec![0; SECTOR], 1000), None);
        if let Some(stream) = compress(compression, &noise, SECTOR) {
            assert!(stream.len() < noise.len());
        }
    }
}

#[test]
fn a_short_output_takes_the_first_bytes() {
    let plain: Vec<u8> =
        (0..100_000u32).flat_map(|n| (n / 7).to_le_bytes()).take(100_000).collect();
    for kind in KINDS {
        let stream = padded(encode(kind, &plain));
        for wanted in [0, 1, 4095, 4096, 5000, 99_999] {
            let mut output = vec![0; wanted];
            assert_eq!(decompress(kind, &stream, &mut output, SECTOR), Ok(wanted), "{kind}");
            assert!(output == plain[..wanted], "{kind}");
        }
        let mut output = vec![1; 100_010];
        assert_eq!(decompress(kind, &stream, &mut output, SECTOR), Ok(100_000), "{kind}");
        assert_eq!(output[100_000..], [0; 10]);
    }
}

#[test]
fn cut_streams_are_refused() {
    let plain: Vec<u8> = (0..9000u32).flat_map(|n| (n / 5).to_le_bytes()).collect();
    for kind in KINDS {
        let stream = encode(kind, &plain);
        for cut in [0, 1, 2, 3, 4, 7, 100, stream.len() / 2, stream.len() - 1] {
            // A cut inside zlib's last four bytes loses only the sum that nobody reads.
            let result = decompress(kind, &stream[..cut], &mut vec![0; plain.len()], SECTOR);
            let harmless = kind == CompressionKind::Zlib && cut + 4 >= stream.len();
            assert!(result.is_err() || harmless, "{kind} cut at {cut}");
        }
    }
}

#[test]
fn lzo_total_length_must_reach_the_last_sector() {
    let plain = b"0123456789abcdef".repeat(256);
    let stream = padded(encode(CompressionKind::Lzo, &plain));
    let mut longer = stream.clone();
    longer.resize(2 * SECTOR, 0);
    let mut output = vec![0; plain.len()];
    assert!(decompress(CompressionKind::Lzo, &stream, &mut output, SECTOR).is_ok());
    assert!(matches!(
        decompress(CompressionKind::Lzo, &longer, &mut output, SECTOR),
        Err(CodecError::Length { field: "total length", .. })
    ));
}

#[test]
fn lzo_length_fields_stay_within_a_sector() {
    // Every share of noise in the first sectors moves the later length fields; some of the streams
    // must meet the last three bytes of a sector.
    let mut met = 0;
    for noise in 0..200usize {
        let mut plain = vec![0u8; 32 * SECTOR];
        let mut state = noise as u32 | 1;
        for byte in plain.chunks_mut(SECTOR).flat_map(|sector| &mut sector[..1000 + noise]) {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (state >> 24) as u8;
        }
        let stream = encode(CompressionKind::Lzo, &plain);
        let mut at = 4;
        while at < stream.len() {
            let left = SECTOR - at % SECTOR;
            if left < 4 {
                assert!(stream[at..at + left].iter().all(|byte| *byte == 0));
                at += left;
                met += 1;
            }
            at += 4 + u32::from_le_bytes(*stream[at..].first_chunk().unwrap()) as usize;
        }
        assert_eq!(at, stream.len());
        let mut back = vec![0; plain.len()];
        decompress(CompressionKind::Lzo, &padded(stream), &mut back, SECTOR).unwrap();
        assert!(back == plain);
    }
    assert!(met > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn regular_round_trip(plain in compressible(), kind in 0..3usize) {
        let kind = KINDS[kind];
        if let Some(stream) = compress(Compression::with_default_level(kind), &plain, SECTOR) {
            prop_assert!(stream.len() < plain.len());
            let mut back = vec![0; plain.len()];
            prop_assert_eq!(decompress(kind, &padded(stream), &mut back, SECTOR), Ok(plain.len()));
            prop_assert!(back == plain);
        }
    }

    #[test]
    fn inline_round_trip(word in proptest::collection::vec(any::<u8>(), 1..200), kind in 0..3usize) {
        let kind = KINDS[kind];
        let plain = word.repeat(2000usize.div_ceil(word.len()));
        let stream = encode(kind, &plain);
        let mut back = vec![0; plain.len()];
        prop_assert_eq!(decompress_inline(kind, &stream, &mut back, SECTOR), Ok(plain.len()));
        prop_assert!(back == plain);
    }

    #[test]
    fn lzo1x_agrees_with_another_implementation(plain in compressible(), cut in 0..65_537usize) {
        let plain = &plain[..cut.min(plain.len())];
        let mut ours = Vec::new();
        lzo1x::encode(plain, &mut lzo1x::Places::new(), &mut ours);
        prop_assert!(ours.len() <= lzo1x::encoded_len_max(plain.len()));
        let mut back = vec![0; plain.len()];
        prop_assert_eq!(lzokay::decompress::decompress(&ours, &mut back), Ok(plain.len()));
        prop_assert!(back == plain);
        let theirs = lzokay::compress::compress(plain).unwrap();
        back.fill(0);
        prop_assert_eq!(lzo1x::decode(&theirs, &mut back), Some(plain.len()));
        prop_assert!(back == plain);
    }

    #[test]
    fn lzo1x_refuses_what_another_implementation_refuses(
        input in proptest::collection::vec(prop_oneof![any::<u8>(), 0..32u8, Just(0)], 0..60),
        room in 0..600usize,
    ) {
        let (mut ours, mut theirs) = (vec![0; room], vec![0; room]);
        let expect = lzokay::decompress::decompress(&input, &mut theirs).ok();
        prop_assert_eq!(lzo1x::decode(&input, &mut ours), expect);
        let len = expect.unwrap_or(0);
        prop_assert!(ours[..len] == theirs[..len]);
    }

    #[test]
    fn mutated_streams_end_somehow(
        plain in compressible(),
        kind in 0..3usize,
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let kind = KINDS[kind];
        if let Some(stream) = compress(Compression::with_default_level(kind), &plain, SECTOR) {
            let mut stream = padded(stream);
            for (place, value) in damage {
                let place = place.index(stream.len());
                stream[place] = value;
            }
            let mut output = vec![0; plain.len()];
            let _ = decompress(kind, &stream, &mut output, SECTOR);
            let _ = decompress_inline(kind, &stream, &mut output, SECTOR);
        }
    }

    #[test]
    fn random_bytes_end_somehow(
        mut input in proptest::collection::vec(any::<u8>(), 0..9000),
        kind in 0..3usize,
        room in 0..20_000usize,
        dressed: bool,
    ) {
        let kind = KINDS[kind];
        if dressed && input.len() > 16 {
            // Enough of a header to get past the first check.
            let total = input.len() as u32;
            match kind {
                CompressionKind::Zlib => input[..2].copy_from_slice(&[0x78, 0x5e]),
                CompressionKind::Lzo => input[..4].copy_from_slice(&total.to_le_bytes()),
                CompressionKind::Zstd => input[..4].copy_from_slice(&[0x28, 0xb5, 0x2f, 0xfd]),
            }
            if kind == CompressionKind::Lzo {
                input[4..8].copy_from_slice(&(total - 8).min(4000).to_le_bytes());
            }
        }
        let mut output = vec![0; room];
        let _ = decompress(kind, &input, &mut output, SECTOR);
        let _ = decompress_inline(kind, &input, &mut output, SECTOR);
    }
}
