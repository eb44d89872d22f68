//! zstd frames.
//!
//! The kernel decodes with room for a window of 128 KiB and refuses frames that want more, so
//! both directions are held to that here. Only the first frame counts; what follows it is padding.

use std::cell::RefCell;

use zstd::zstd_safe::{CCtx, CParameter, DCtx, DParameter, InBuffer, OutBuffer, ResetDirective};

use super::{CodecError, CompressionKind};

/// Level that the kernel takes when none is given.
pub const LEVEL_DEFAULT: i8 = 3;

const LEVELS: std::ops::RangeInclusive<i8> = -15..=15;
/// log2 of the largest window the kernel has room for.
const WINDOW_LOG_MAX: u32 = 17;
/// Decoder calls for one extent: each one fills the output, empties the input or ends the frame,
/// except that a call may stop at an inner buffer's end.
const STEPS_MAX: usize = 1 << 16;

thread_local! {
    static DECODER: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
    static ENCODER: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
}

fn decoder() -> Option<DCtx<'static>> {
    let mut context = DCtx::try_create()?;
    context.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX)).ok()?;
    Some(context)
}

/// Decodes the frame at the start of `input` until it ends or `output` is full; returns the length
/// of the output in bytes.
pub fn decompress(input: &[u8], output: &mut [u8]) -> Result<usize, CodecError> {
    let kind = CompressionKind::Zstd;
    DECODER.with_borrow_mut(|slot| {
        if slot.is_none() {
            *slot = decoder();
        }
        let context = slot.as_mut().ok_or(CodecError::OutOfMemory { kind })?;
        // A context that does not reset is not kept.
        if context.reset(ResetDirective::SessionOnly).is_err() {
            *slot = None;
            return Err(CodecError::OutOfMemory { kind });
        }
        decode_frame(context, input, output)
    })
}

fn decode_frame(
    context: &mut DCtx<'static>,
    input: &[u8],
    output: &mut [u8],
) -> Result<usize, CodecError> {
    let kind = CompressionKind::Zstd;
    let room = output.len();
    let mut from = InBuffer::around(input);
    let mut to = OutBuffer::around(output);
    for _ in 0..STEPS_MAX {
        let before = (from.pos(), to.pos());
        let hint = context
            .decompress_stream(&mut to, &mut from)
            .map_err(|_| CodecError::Damaged { kind, at: from.pos(), produced: to.pos() })?;
        if hint == 0 || to.pos() == room {
            return Ok(to.pos());
        }
        if before == (from.pos(), to.pos()) {
            break;
        }
    }
    Err(CodecError::Truncated { kind, input_len: input.len(), produced: to.pos() })
}

/// Encodes `input` as one frame; `None` unless the result is shorter.
#[must_use]
pub fn compress(level: i8, input: &[u8]) -> Option<Vec<u8>> {
    let level =
        if level == 0 { LEVEL_DEFAULT } else { level.clamp(*LEVELS.start(), *LEVELS.end()) };
    let mut output = vec![0; input.len().checked_sub(1)?];
    let len = ENCODER.with_borrow_mut(|slot| {
        if slot.is_none() {
            *slot = CCtx::try_create();
        }
        let context = slot.as_mut()?;
        context.reset(ResetDirective::SessionAndParameters).ok()?;
        context.set_parameter(CParameter::CompressionLevel(i32::from(level))).ok()?;
        context.set_parameter(CParameter::WindowLog(WINDOW_LOG_MAX)).ok()?;
        context.compress2(output.as_mut_slice(), input).ok()
    })?;
    output.truncate(len);
    Some(output)
}
