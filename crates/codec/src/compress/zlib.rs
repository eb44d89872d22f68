//! zlib streams.
//!
//! The kernel looks at the two header bytes, decodes raw deflate and never reads the Adler-32 at
//! the end: the extent's own checksums have already vouched for the bytes. So do we.

use std::cell::RefCell;

use flate2::{Compress, Decompress, FlushCompress, FlushDecompress, Status};

use super::{CodecError, CompressionKind};

/// Level that the kernel takes when none is given.
pub const LEVEL_DEFAULT: u8 = 3;

const LEVEL_MAX: u8 = 9;
const HEADER_LEN: usize = 2;
/// Compression method "deflate" in the low half of the first header byte (RFC 1950).
const METHOD_DEFLATE: u8 = 8;
/// The header's flag for a preset dictionary, which btrfs does not have.
const PRESET_DICTIONARY: u8 = 0x20;

thread_local! {
    static INFLATE: RefCell<Decompress> = RefCell::new(Decompress::new(false));
    /// The context of the level used last.
    static DEFLATE: RefCell<Option<(u8, Compress)>> = const { RefCell::new(None) };
}

fn header_is_sound([first, second]: [u8; HEADER_LEN]) -> bool {
    let window_log_8 = first >> 4;
    first & 0x0f == METHOD_DEFLATE
        && window_log_8 <= 7
        && second & PRESET_DICTIONARY == 0
        && u16::from_be_bytes([first, second]).is_multiple_of(31)
}

/// Decodes one stream at the start of `input` until it ends or `output` is full; returns the
/// length of the output in bytes.
pub fn decompress(input: &[u8], output: &mut [u8]) -> Result<usize, CodecError> {
    let kind = CompressionKind::Zlib;
    let Some((&header, deflated)) = input.split_first_chunk() else {
        return Err(CodecError::Truncated { kind, input_len: input.len(), produced: 0 });
    };
    if !header_is_sound(header) {
        return Err(CodecError::Damaged { kind, at: 0, produced: 0 });
    }
    INFLATE.with_borrow_mut(|inflate| {
        inflate.reset(false);
        let status = inflate.decompress(deflated, output, FlushDecompress::Finish);
        let produced = inflate.total_out() as usize;
        let full = produced == output.len();
        match status {
            Ok(Status::StreamEnd) => Ok(produced),
            Ok(_) if full => Ok(produced),
            Ok(_) => Err(CodecError::Truncated { kind, input_len: input.len(), produced }),
            Err(_) => {
                let at = HEADER_LEN.saturating_add(inflate.total_in() as usize);
                Err(CodecError::Damaged { kind, at, produced })
            }
        }
    })
}

/// Encodes `input`; `None` unless the result is shorter.
#[must_use]
pub fn compress(level: u8, input: &[u8]) -> Option<Vec<u8>> {
    let level = if level == 0 { LEVEL_DEFAULT } else { level.min(LEVEL_MAX) };
    let mut output = vec![0; input.len().checked_sub(1)?];
    let len = DEFLATE.with_borrow_mut(|slot| {
        let deflate = context_of_level(slot, level);
        match deflate.compress(input, &mut output, FlushCompress::Finish) {
            Ok(Status::StreamEnd) => Some(deflate.total_out() as usize),
            _ => None,
        }
    })?;
    output.truncate(len);
    Some(output)
}

fn context_of_level(slot: &mut Option<(u8, Compress)>, level: u8) -> &mut Compress {
    if slot.as_ref().is_some_and(|(of, _)| *of != level) {
        *slot = None;
    }
    let fresh = || (level, Compress::new(flate2::Compression::new(u32::from(level)), true));
    let (_, deflate) = slot.get_or_insert_with(fresh);
    deflate.reset();
    deflate
}
