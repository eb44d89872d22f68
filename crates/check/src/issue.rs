//! Issues: what is wrong, where, what was found and what had to be there.

use std::fmt;

use buttress_ondisk::Key;

use crate::kinds::Kind;

/// How bad an issue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Odd, but nothing is lost and nothing will break: the filesystem counts as clean.
    Warning,
    /// The filesystem contradicts itself.
    Error,
}

impl Severity {
    /// `warning` or `error`.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// Where an issue is: whatever of this is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The tree.
    pub tree: Option<u64>,
    /// Logical address of the tree block.
    pub block: Option<u64>,
    /// The item or child in the block.
    pub slot: Option<usize>,
    /// The item's key.
    pub key: Option<Key>,
    /// The inode.
    pub inode: Option<u64>,
    /// The inode's path in its subvolume, from `/`.
    pub path: Option<Vec<u8>>,
    /// Logical address of an extent, chunk or block group.
    pub logical: Option<u64>,
    /// Bytes of it.
    pub len: Option<u64>,
    /// A device's number.
    pub device: Option<u64>,
    /// Bytes from the start of the device.
    pub offset: Option<u64>,
}

impl Place {
    /// An item of a tree.
    pub fn item(tree: u64, key: Key) -> Place {
        Place { tree: Some(tree), key: Some(key), ..Place::default() }
    }

    /// A tree block.
    pub fn block(tree: u64, block: u64) -> Place {
        Place { tree: Some(tree), block: Some(block), ..Place::default() }
    }

    /// An inode of a tree.
    pub fn inode(tree: u64, inode: u64) -> Place {
        Place { tree: Some(tree), inode: Some(inode), ..Place::default() }
    }

    /// A tree as a whole.
    pub fn tree(tree: u64) -> Place {
        Place { tree: Some(tree), ..Place::default() }
    }

    /// A range of logical addresses.
    pub fn logical(logical: u64, len: u64) -> Place {
        Place { logical: Some(logical), len: Some(len), ..Place::default() }
    }

    /// A range of a device.
    pub fn device(device: u64, offset: u64) -> Place {
        Place { device: Some(device), offset: Some(offset), ..Place::default() }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut gap = "";
        let mut word = |f: &mut fmt::Formatter<'_>, name: &str, value: &dyn fmt::Display| {
            let before = std::mem::replace(&mut gap, " ");
            write!(f, "{before}{name} {value}")
        };
        let numbers = [
            ("device", self.device),
            ("offset", self.offset),
            ("logical", self.logical),
            ("length", self.len),
            ("tree", self.tree),
            ("block", self.block),
            ("slot", self.slot.map(|slot| slot as u64)),
        ];
        for (name, value) in numbers {
            if let Some(value) = value {
                word(f, name, &value)?;
            }
        }
        if let Some(key) = self.key {
            word(f, "key", &key)?;
        }
        if let Some(inode) = self.inode {
            word(f, "inode", &inode)?;
        }
        match &self.path {
            Some(path) => word(f, "path", &path.escape_ascii()),
            None => Ok(()),
        }
    }
}

/// Something that is not as it has to be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Issue {
    /// What rule is broken.
    pub kind: Kind,
    /// Where.
    pub place: Place,
    /// What was found.
    pub have: String,
    /// What had to be there.
    pub expect: String,
}

impl Issue {
    /// An issue from its parts.
    pub fn new(
        kind: Kind,
        place: Place,
        have: impl fmt::Display,
        expect: impl fmt::Display,
    ) -> Issue {
        Issue { kind, place, have: have.to_string(), expect: expect.to_string() }
    }
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.severity().name(), self.kind.id())?;
        if self.place != Place::default() {
            write!(f, ": {}", self.place)?;
        }
        write!(f, ": have {}, expect {}", self.have, self.expect)
    }
}
