//! Names as directories hold them: 1 to 255 bytes, most of them short.
//!
//! A pending entry is made for each file that is created, so a short name lives in the value itself and costs no
//! allocation; longer ones are shared.

use std::fmt;
use std::sync::Arc;

use buttress_codec::crc32c::name_hash;
use buttress_ondisk::view::has_separator;
use buttress_ondisk::{Key, NAME_LEN_MAX, kind};

use crate::error::{Errno, Error, Result};

/// A name (or the name of an xattr), cheap to clone.
#[derive(Clone)]
pub struct Name(Repr);

#[derive(Clone)]
enum Repr {
    Short { len: u8, bytes: [u8; Name::SHORT_MAX] },
    Long(Arc<[u8]>),
}

impl Name {
    /// Bytes that fit without an allocation.
    pub const SHORT_MAX: usize = 30;

    /// A copy of `bytes`.
    pub fn new(bytes: &[u8]) -> Name {
        if bytes.len() > Name::SHORT_MAX {
            return Name(Repr::Long(bytes.into()));
        }
        let mut short = [0; Name::SHORT_MAX];
        short[..bytes.len()].copy_from_slice(bytes);
        Name(Repr::Short { len: bytes.len() as u8, bytes: short })
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Short { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Long(bytes) => bytes,
        }
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Name {}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Name) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Name) -> std::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl std::borrow::Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.as_bytes()))
    }
}

/// A name that an operation was given, checked, with its hash computed once.
#[derive(Clone, Copy)]
pub(super) struct Hashed<'a> {
    pub bytes: &'a [u8],
    /// [`name_hash`]: the key offset of its `DIR_ITEM` or `XATTR_ITEM`.
    pub hash: u32,
}

impl<'a> Hashed<'a> {
    /// The key of its item in a directory.
    pub fn key(&self, dir: u64) -> Key {
        Key::new(dir, kind::DIR_ITEM, self.hash.into())
    }

    /// Any bytes, unchecked.
    pub fn of(bytes: &'a [u8]) -> Hashed<'a> {
        Hashed { bytes, hash: name_hash(bytes) as u32 }
    }

    /// A name that is looked up: too long ones and empty ones are nobody's.
    pub fn known(bytes: &'a [u8]) -> Result<Hashed<'a>> {
        match bytes.len() {
            0 => Err(Error::User(Errno::NOENT)),
            len if len > NAME_LEN_MAX => Err(Error::User(Errno::NAMETOOLONG)),
            _ => Ok(Hashed::of(bytes)),
        }
    }

    /// A name that is to be made: none of the names that mean something else.
    pub fn fresh(bytes: &'a [u8]) -> Result<Hashed<'a>> {
        if matches!(bytes, b"." | b"..") {
            return Err(Error::User(Errno::EXIST));
        }
        if has_separator(bytes) {
            return Err(Error::User(Errno::INVAL));
        }
        Hashed::known(bytes)
    }

    /// Bytes that it adds to its directory's size: once for the entry by name, once for the one by index.
    pub fn weight(&self) -> u64 {
        2 * self.bytes.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_names_keep_their_bytes() {
        for len in [0, 1, 29, 30, 31, 255] {
            let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            assert_eq!(Name::new(&bytes).as_bytes(), bytes);
            assert_eq!(Name::new(&bytes), Name::new(&bytes));
        }
        assert_eq!(size_of::<Name>(), 32);
    }

    #[test]
    fn names_that_cannot_be() {
        let errno = |result: Result<Hashed<'_>>| result.err().map(|error| error.errno());
        assert_eq!(errno(Hashed::fresh(b"")), Some(Errno::NOENT));
        assert_eq!(errno(Hashed::fresh(b"..")), Some(Errno::EXIST));
        assert_eq!(errno(Hashed::fresh(b"a/b")), Some(Errno::INVAL));
        assert_eq!(errno(Hashed::fresh(&[b'x'; 256])), Some(Errno::NAMETOOLONG));
        assert_eq!(errno(Hashed::fresh(&[b'x'; 255])), None);
    }
}
