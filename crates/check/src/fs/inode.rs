//! One inode: what its items say, and whether they agree.

use buttress_codec::crc32c::extref_hash;
use buttress_ondisk::item::mode::{DIRECTORY, REGULAR, SYMLINK, TYPE_MASK as TYPE};
use buttress_ondisk::item::{InodeItem, inode_flags};
use buttress_ondisk::superblock::incompat;
use buttress_ondisk::{Key, objectid, view};

use super::{names::Claim, path::report};
use crate::{context::Context, kinds::Kind, roots::Tree};

/// The items of one inode, added up as they come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Inode {
    /// Its number; 0 for none.
    pub id: u64,
    /// Some of its items could not be read: it is not judged.
    pub partial: bool,
    /// Whether it has an inode item.
    pub begun: bool,
    /// Type and permissions, as its item says.
    pub mode: u32,
    /// Links, as its item says.
    pub nlink: u32,
    /// Bytes, as its item says.
    pub size: u64,
    /// Bytes on the disk, as its item says.
    pub nbytes: u64,
    /// Whether its data has no checksums.
    pub nodatasum: bool,
    /// Names that it says to have.
    pub names: u64,
    /// Whether it is the top directory and says so.
    pub is_top: bool,
    /// Bytes of the names in it, by hash and by index.
    pub entry_bytes: u64,
    /// File extents.
    pub extents: u64,
    /// Bytes that its file extents take.
    pub extent_bytes: u64,
    /// Where the last file extent ends.
    pub extent_end: u64,
    /// Where the first range without a file extent begins.
    pub gap: Option<u64>,
    /// Bytes of its target, if it has one as symbolic links have.
    pub target_len: Option<u64>,
}

impl Inode {
    /// Takes what the inode item says.
    pub fn begin(&mut self, item: &InodeItem) {
        self.begun = true;
        self.mode = item.mode.get();
        self.nlink = item.nlink.get();
        self.size = item.size.get();
        self.nbytes = item.nbytes.get();
        self.nodatasum = item.flags.get() & inode_flags::NODATASUM != 0;
    }

    /// Takes a claim that one of its items makes.
    pub fn claim(&mut self, claim: &Claim<'_>) {
        match claim {
            Claim::Hashed { name, .. } | Claim::Indexed { name, .. } => {
                self.entry_bytes = self.entry_bytes.saturating_add(name.len() as u64);
            }
            Claim::Ref { .. } => self.names += 1,
            Claim::Top { own } => {
                self.names += 1;
                self.is_top = *own;
            }
            Claim::Unlinked { .. } | Claim::Orphan { .. } => {}
        }
    }

    /// Whether it can have data.
    pub fn holds_data(&self) -> bool {
        matches!(self.mode & TYPE, REGULAR | SYMLINK)
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.mode & TYPE == SYMLINK
    }

    /// Whether it is being deleted, and some of its extents are gone already: Linux counts them at the end.
    fn is_half_gone(&self) -> bool {
        self.nlink == 0 && self.nbytes > self.extent_bytes
    }

    /// Judges an item of extended attributes.
    pub fn xattr(&mut self, context: &Context<'_>, tree: &Tree, data: &[u8]) {
        let mut entries = view::dir_entries(data);
        while let Some(entry) = entries.next() {
            if entries.clone().any(|other| other.name == entry.name) {
                let have = format_args!("{:?} twice", entry.name.escape_ascii().to_string());
                report(context, tree, Kind::XattrTwice, self.id, have, "each name once");
            }
        }
    }

    /// Judges the key of an item of extended references.
    pub fn extref(&mut self, context: &Context<'_>, tree: &Tree, key: &Key, data: &[u8]) {
        // Names that a dump has hidden need not have their hashes.
        let names = view::inode_extrefs(data).filter(|_| !context.volume.gate().metadump);
        for found in names {
            let hash = extref_hash(found.parent, found.name);
            if hash != key.offset {
                report(context, tree, Kind::InodeExtrefHash, self.id, key.offset, hash);
            }
        }
    }

    /// Judges it when all its items were seen.
    pub fn judge(&self, context: &Context<'_>, tree: &Tree) {
        if self.partial {
            return;
        }
        let say = |kind, have: u64, expect: u64| report(context, tree, kind, self.id, have, expect);
        if !self.begun {
            let what = "items without an inode item";
            return report(context, tree, Kind::InodeMissing, self.id, what, "an inode item");
        }
        if self.id == objectid::FIRST_FREE && (self.mode & TYPE != DIRECTORY || !self.is_top) {
            let have = format_args!("mode {:#o}, {} names", self.mode, self.names);
            report(context, tree, Kind::TopDirBad, self.id, have, "a directory named ..");
        }
        if u64::from(self.nlink) != self.names {
            say(Kind::InodeNlink, self.nlink.into(), self.names);
        }
        match self.mode & TYPE {
            DIRECTORY if self.size != self.entry_bytes => {
                say(Kind::DirSize, self.size, self.entry_bytes);
            }
            REGULAR | SYMLINK if self.nbytes != self.extent_bytes && !self.is_half_gone() => {
                say(Kind::InodeNbytes, self.nbytes, self.extent_bytes);
            }
            _ => {}
        }
        self.judge_content(context, tree);
    }

    /// Whether it holds what its type can hold.
    fn judge_content(&self, context: &Context<'_>, tree: &Tree) {
        let mode = format_args!("in an inode of mode {:#o}", self.mode).to_string();
        let say = |kind, have: &str, expect: &str| {
            report(context, tree, kind, self.id, format_args!("{have} {mode}"), expect);
        };
        if self.mode & TYPE != DIRECTORY && self.entry_bytes > 0 {
            say(Kind::DirEntryOdd, "directory entries", "none");
        }
        if !self.holds_data() && self.extents > 0 {
            say(Kind::FileExtentOdd, "file extents", "none");
        }
        if self.is_symlink() && self.target_len != Some(self.size) {
            let have = match self.target_len {
                Some(len) => format!("a target of {len} bytes"),
                None => "no target in one inline extent".to_owned(),
            };
            let expect = format_args!("one inline extent of {} bytes", self.size).to_string();
            report(context, tree, Kind::SymlinkBad, self.id, have, expect);
        }
        self.judge_holes(context, tree);
    }

    /// Without the no-holes feature, every byte of a file is in a file extent.
    fn judge_holes(&self, context: &Context<'_>, tree: &Tree) {
        let no_holes = context.sb.incompat_flags.get() & incompat::NO_HOLES != 0;
        if no_holes || self.nlink == 0 || !self.holds_data() {
            return;
        }
        let end = self.gap.unwrap_or(self.extent_end);
        if end < self.size {
            let have = format_args!("nothing from {end} on");
            let expect = format_args!("file extents up to {}", self.size);
            report(context, tree, Kind::FileExtentHole, self.id, have, expect);
        }
    }
}
