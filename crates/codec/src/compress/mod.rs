//! The three compressions of file extents, in the form the kernel reads and writes.
//!
//! A *regular* compressed extent holds one stream of at most 128 KiB of file data; on disk it is
//! padded to whole sectors (the padding is checksummed but means nothing). An *inline* extent
//! holds one stream of at most one sector of file data, in the leaf, without padding. zlib and
//! zstd streams mark their own end. LZO has no container, so btrfs adds one, see [`lzo`].
//!
//! Reading follows the kernel: decoding stops as soon as the output is full, whatever comes after,
//! so a caller who wants only the first bytes of an extent passes a short output. A stream that
//! ends early is no error: the kernel encodes the last extent of a file only up to the file's end,
//! though `ram_bytes` covers whole sectors. The rest of the output is zeroed and the count says how
//! much was there.

pub mod lzo;
mod lzo1x;
pub mod zlib;
pub mod zstd;

use thiserror::Error;

/// Most file data behind one compressed extent, and the longest stream the kernel reads
/// (`BTRFS_MAX_UNCOMPRESSED`, `BTRFS_MAX_COMPRESSED`), bytes.
pub const EXTENT_SIZE_MAX: usize = 128 << 10;

/// Sector sizes that btrfs knows, bytes.
const SECTOR_SIZES: std::ops::RangeInclusive<usize> = (4 << 10)..=(64 << 10);

/// Which decoder a file extent needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompressionKind {
    /// A zlib stream (RFC 1950).
    Zlib,
    /// LZO1X segments in btrfs' own framing.
    Lzo,
    /// One zstd frame with a window of at most 128 KiB.
    Zstd,
}

impl CompressionKind {
    /// The kind with the number in a file extent item's `compression` field: 1, 2 or 3. `None`
    /// for 0, which means not compressed, and for unknown numbers.
    #[must_use]
    pub fn from_u8(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Zlib),
            2 => Some(Self::Lzo),
            3 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// The number stored in file extent items.
    #[must_use]
    pub fn to_u8(self) -> u8 {
        match self {
            Self::Zlib => 1,
            Self::Lzo => 2,
            Self::Zstd => 3,
        }
    }

    /// The name that mount options, properties and btrfs-progs use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Zlib => "zlib",
            Self::Lzo => "lzo",
            Self::Zstd => "zstd",
        }
    }
}

impl std::fmt::Display for CompressionKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// How to compress: a kind and, where it has one, its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// zlib.
    Zlib {
        /// 1 to 9; 0 means the default of 3, and more than 9 means 9.
        level: u8,
    },
    /// LZO, which has no levels.
    Lzo,
    /// zstd.
    Zstd {
        /// -15 to 15; 0 means the default of 3, and values outside are moved to the nearer end.
        level: i8,
    },
}

impl Compression {
    /// What the extent item says about data compressed this way.
    #[must_use]
    pub fn kind(self) -> CompressionKind {
        match self {
            Self::Zlib { .. } => CompressionKind::Zlib,
            Self::Lzo => CompressionKind::Lzo,
            Self::Zstd { .. } => CompressionKind::Zstd,
        }
    }

    /// The kind at its default level.
    #[must_use]
    pub fn with_default_level(kind: CompressionKind) -> Self {
        match kind {
            CompressionKind::Zlib => Self::Zlib { level: zlib::LEVEL_DEFAULT },
            CompressionKind::Lzo => Self::Lzo,
            CompressionKind::Zstd => Self::Zstd { level: zstd::LEVEL_DEFAULT },
        }
    }
}

/// Why a stream cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CodecError {
    /// A length in the stream's header lies outside what the stream can have.
    #[error("{kind} stream: {field} is {have}, expect {min} to {max}")]
    Length {
        /// The decoder.
        kind: CompressionKind,
        /// Which length.
        field: &'static str,
        /// Its value, bytes.
        have: usize,
        /// Least acceptable value, bytes.
        min: usize,
        /// Greatest acceptable value, bytes.
        max: usize,
    },
    /// The stream breaks its format.
    #[error("{kind} stream is damaged at byte {at}, after {produced} bytes of output")]
    Damaged {
        /// The decoder.
        kind: CompressionKind,
        /// How far into the input the decoder was, bytes.
        at: usize,
        /// Output made before, bytes.
        produced: usize,
    },
    /// The input ended before the stream and the output did.
    #[error("{kind} stream of {input_len} bytes is cut off, after {produced} bytes of output")]
    Truncated {
        /// The decoder.
        kind: CompressionKind,
        /// Length of the input, bytes.
        input_len: usize,
        /// Output made before, bytes.
        produced: usize,
    },
    /// The caller's sector size is none that btrfs knows.
    #[error("sector size {have} is not a power of two from 4096 to 65536")]
    SectorSize {
        /// The value, bytes.
        have: usize,
    },
    /// The decoder could not get its working memory.
    #[error("{kind} decoder: out of memory")]
    OutOfMemory {
        /// The decoder.
        kind: CompressionKind,
    },
}

fn check_sector(sector: usize) -> Result<(), CodecError> {
    if SECTOR_SIZES.contains(&sector) && sector.is_power_of_two() {
        Ok(())
    } else {
        Err(CodecError::SectorSize { have: sector })
    }
}

/// Decodes a regular extent.
///
/// `input` is the extent as it lies on disk, with its padding to whole sectors; `output` has room
/// for `ram_bytes`, or for as many of the first bytes as are wanted. Returns how many bytes the
/// stream held, at most `output.len()`; the rest of `output` is zeroed. After an error `output`
/// holds anything.
pub fn decompress(
    kind: CompressionKind,
    input: &[u8],
    output: &mut [u8],
    sector: usize,
) -> Result<usize, CodecError> {
    check_sector(sector)?;
    let produced = match kind {
        CompressionKind::Zlib => zlib::decompress(input, output),
        CompressionKind::Lzo => lzo::decompress(input, output, sector),
        CompressionKind::Zstd => zstd::decompress(input, output),
    }?;
    zero_from(output, produced);
    Ok(produced)
}

/// Decodes an inline extent: as [`decompress`], but `input` is exactly the stream.
pub fn decompress_inline(
    kind: CompressionKind,
    input: &[u8],
    output: &mut [u8],
    sector: usize,
) -> Result<usize, CodecError> {
    check_sector(sector)?;
    let produced = match kind {
        CompressionKind::Zlib => zlib::decompress(input, output),
        CompressionKind::Lzo => lzo::decompress_inline(input, output, sector),
        CompressionKind::Zstd => zstd::decompress(input, output),
    }?;
    zero_from(output, produced);
    Ok(produced)
}

fn zero_from(output: &mut [u8], produced: usize) {
    if let Some(rest) = output.get_mut(produced..) {
        rest.fill(0);
    }
}

/// Encodes `input`, without padding: for a regular extent the caller pads to whole sectors with
/// zeros, for an inline extent (`input` of at most one sector) the result is stored as it is.
///
/// `None` when the result would not be shorter than the input, when the input is empty or longer
/// than [`EXTENT_SIZE_MAX`], or when `sector` is no sector size.
#[must_use]
pub fn compress(compression: Compression, input: &[u8], sector: usize) -> Option<Vec<u8>> {
    if input.is_empty() || input.len() > EXTENT_SIZE_MAX || check_sector(sector).is_err() {
        return None;
    }
    match compression {
        Compression::Zlib { level } => zlib::compress(level, input),
        Compression::Lzo => lzo::compress(input, sector),
        Compression::Zstd { level } => zstd::compress(level, input),
    }
}

#[cfg(test)]
mod tests;
