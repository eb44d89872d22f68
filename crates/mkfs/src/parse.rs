//! The words of the command line: sizes, profiles, checksums.

use buttress_codec::ChecksumKind;

use crate::MkfsError;
use crate::options::{Profile, check_nodesize};

/// Reads a size in bytes: a number and, if wanted, one of `b k m g t p e` (powers of 1024, either case), which may be
/// followed by `b` or `ib`.
pub fn parse_size(text: &str) -> Result<u64, MkfsError> {
    let refuse = |why| MkfsError::Size { text: text.into(), why };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at_checked(digits).unwrap_or((text, ""));
    if number.is_empty() {
        return Err(refuse("it does not start with a number"));
    }
    let number: u64 = number.parse().map_err(|_| refuse("it is too large"))?;
    let factor = factor(&suffix.to_ascii_lowercase()).ok_or(refuse("unknown size descriptor"))?;
    number.checked_mul(factor).ok_or(refuse("it is too large"))
}

fn factor(suffix: &str) -> Option<u64> {
    let unit = match suffix {
        "" | "b" => return Some(1),
        _ => suffix.strip_suffix("ib").or(suffix.strip_suffix('b')).unwrap_or(suffix),
    };
    let power = ["k", "m", "g", "t", "p", "e"].iter().position(|name| *name == unit)?;
    1024u64.checked_pow(u32::try_from(power).ok()?.checked_add(1)?)
}

/// Reads a node size: a size that is a power of two from 4096 to 65536.
pub fn parse_nodesize(text: &str) -> Result<u32, MkfsError> {
    let size = parse_size(text)?;
    let Ok(nodesize) = u32::try_from(size) else {
        return Err(MkfsError::NodeSize { nodesize: size, why: "larger than 65536" });
    };
    check_nodesize(nodesize, false)?;
    Ok(nodesize)
}

/// Reads a profile, in either case. Profiles that need several devices are refused by name.
pub fn parse_profile(name: &str) -> Result<Profile, MkfsError> {
    match name.to_ascii_lowercase().as_str() {
        "single" => Ok(Profile::Single),
        "dup" => Ok(Profile::Dup),
        "raid0" | "raid1" | "raid1c3" | "raid1c4" | "raid10" | "raid5" | "raid6" => {
            Err(MkfsError::UnsupportedProfile { name: name.into() })
        }
        _ => Err(MkfsError::UnknownProfile { name: name.into() }),
    }
}

/// Reads a checksum's name, in either case.
pub fn parse_checksum(name: &str) -> Result<ChecksumKind, MkfsError> {
    match name.to_ascii_lowercase().as_str() {
        "crc32c" => Ok(ChecksumKind::Crc32c),
        "xxhash" | "xxhash64" => Ok(ChecksumKind::XxHash64),
        "sha256" => Ok(ChecksumKind::Sha256),
        "blake2" | "blake2b" => Ok(ChecksumKind::Blake2b),
        _ => Err(MkfsError::UnknownChecksum { name: name.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("12b", 12),
            ("8G", 8 << 30),
            ("512m", 512 << 20),
            ("1kib", 1024),
            ("3TB", 3 << 40),
            ("15e", 15 << 60),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
        for text in ["", "g", "-1", "16e", "99999999999999999999", "1x", "1.5g", "1gg", "1 g"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn node_sizes() {
        assert_eq!(parse_nodesize("16k").unwrap(), 16384);
        for text in ["2k", "128k", "12k", "8g"] {
            assert!(matches!(parse_nodesize(text), Err(MkfsError::NodeSize { .. })), "{text}");
        }
    }

    #[test]
    fn names() {
        assert_eq!(parse_profile("DUP").unwrap(), Profile::Dup);
        assert!(matches!(parse_profile("raid1"), Err(MkfsError::UnsupportedProfile { .. })));
        assert!(matches!(parse_profile("foo"), Err(MkfsError::UnknownProfile { .. })));
        assert_eq!(parse_checksum("xxhash").unwrap(), ChecksumKind::XxHash64);
        assert!(parse_checksum("md5").is_err());
    }
}
