//! LZO1X segments in btrfs' framing.
//!
//! A stream begins with its total length (le32, its own four bytes included). Segments follow,
//! each a le32 length and that many bytes of LZO1X, which decode to one sector of file data, the
//! last one to what is left. A segment's data may run over the end of a sector of the stream, its
//! length field may not: where fewer than four bytes are left in a sector they are zero and the
//! field starts in the next one. An inline extent is one segment, so it has no such padding.

use std::cell::RefCell;

use super::lzo1x::{self, Places, encoded_len_max};
use super::{CodecError, CompressionKind, EXTENT_SIZE_MAX};

/// Length of a length field, bytes.
const LENGTH_LEN: usize = 4;
const KIND: CompressionKind = CompressionKind::Lzo;

thread_local! {
    static PLACES: RefCell<Places> = const { RefCell::new(Places::new()) };
}

fn check_length(
    field: &'static str,
    have: usize,
    min: usize,
    max: usize,
) -> Result<(), CodecError> {
    if (min..=max).contains(&have) {
        Ok(())
    } else {
        Err(CodecError::Length { kind: KIND, field, have, min, max })
    }
}

fn length_at(input: &[u8], at: usize) -> Option<usize> {
    let field = input.get(at..)?.first_chunk::<LENGTH_LEN>()?;
    usize::try_from(u32::from_le_bytes(*field)).ok()
}

/// Bytes of padding before a length field that would start at `at`.
fn padding_at(at: usize, sector: usize) -> usize {
    let left = at.next_multiple_of(sector) - at;
    if left < LENGTH_LEN { left } else { 0 }
}

/// Decodes a regular extent, `input` being all of it with its padding to whole sectors, until the
/// stream ends or `output` is full; returns the length of the output in bytes.
pub fn decompress(input: &[u8], output: &mut [u8], sector: usize) -> Result<usize, CodecError> {
    let truncated =
        |produced| CodecError::Truncated { kind: KIND, input_len: input.len(), produced };
    let total = length_at(input, 0).ok_or_else(|| truncated(0))?;
    let within_last_sector = input.len().saturating_sub(sector - 1);
    let most = input.len().min(EXTENT_SIZE_MAX);
    check_length("total length", total, within_last_sector.max(LENGTH_LEN), most)?;
    let stream = input.get(..total).ok_or_else(|| truncated(0))?;
    let mut at = LENGTH_LEN;
    let mut produced = 0;
    while at < total && produced < output.len() {
        let len = length_at(stream, at).ok_or_else(|| truncated(produced))?;
        check_length("segment length", len, 0, encoded_len_max(sector))?;
        at += LENGTH_LEN;
        let segment = stream.get(at..at + len).ok_or_else(|| truncated(produced))?;
        produced += decode_segment(segment, output.get_mut(produced..), sector)
            .ok_or(CodecError::Damaged { kind: KIND, at, produced })?;
        at += len;
        at += padding_at(at, sector);
    }
    Ok(produced)
}

/// Decodes an inline extent, which is one segment and nothing else.
pub fn decompress_inline(
    input: &[u8],
    output: &mut [u8],
    sector: usize,
) -> Result<usize, CodecError> {
    let truncated = CodecError::Truncated { kind: KIND, input_len: input.len(), produced: 0 };
    let total = length_at(input, 0).ok_or_else(|| truncated.clone())?;
    check_length("total length", total, input.len(), input.len())?;
    let len = length_at(input, LENGTH_LEN).ok_or_else(|| truncated.clone())?;
    let segment = input.get(2 * LENGTH_LEN..).ok_or(truncated)?;
    check_length("segment length", len, segment.len(), segment.len())?;
    decode_segment(segment, Some(output), sector).ok_or(CodecError::Damaged {
        kind: KIND,
        at: 2 * LENGTH_LEN,
        produced: 0,
    })
}

/// Decodes one segment to the start of `output`; what does not fit there is dropped. `None` for a
/// damaged segment.
fn decode_segment(segment: &[u8], output: Option<&mut [u8]>, sector: usize) -> Option<usize> {
    let output = output?;
    if let Some(whole) = output.get_mut(..sector) {
        return lzo1x::decode(segment, whole);
    }
    let mut scratch = vec![0; sector];
    let len = lzo1x::decode(segment, &mut scratch)?.min(output.len());
    output.get_mut(..len)?.copy_from_slice(scratch.get(..len)?);
    Some(len)
}

/// Encodes `input`; `None` unless the result is shorter.
#[must_use]
pub fn compress(input: &[u8], sector: usize) -> Option<Vec<u8>> {
    let mut output = Vec::with_capacity(input.len() + encoded_len_max(sector));
    output.extend_from_slice(&[0; LENGTH_LEN]);
    PLACES.with_borrow_mut(|places| {
        for plain in input.chunks(sector) {
            output.resize(output.len() + padding_at(output.len(), sector), 0);
            let field = output.len();
            output.extend_from_slice(&[0; LENGTH_LEN]);
            lzo1x::encode(plain, places, &mut output);
            let segment_len = output.len() - field - LENGTH_LEN;
            set_length(&mut output, field, segment_len)?;
            if output.len() >= input.len() {
                return None;
            }
        }
        Some(())
    })?;
    let total = output.len();
    set_length(&mut output, 0, total)?;
    Some(output)
}

fn set_length(output: &mut [u8], at: usize, len: usize) -> Option<()> {
    *output.get_mut(at..)?.first_chunk_mut()? = u32::try_from(len).ok()?.to_le_bytes();
    Some(())
}
