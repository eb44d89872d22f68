//! Extended attributes.
//!
//! They are kept as the caller gives them, whatever the namespace; who may touch which is not decided here. Only `btrfs.*` is
//! the filesystem's own: it knows `btrfs.compression` and nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_ondisk::item::{DirItem, inode_flags};
use buttress_ondisk::view::dir_entries;
use buttress_ondisk::{Key, NAME_LEN_MAX, kind};

use super::Inode;
use super::log::{StoredXattr, StoredXattrs};
use super::name::{Hashed, Name};
use super::state::{State, Stored};
use super::tree::FileTree;
use crate::error::{Errno, Error, Result};
use crate::tree::View;
use crate::txn::Op;

/// The filesystem's own property.
pub(super) const COMPRESSION: &[u8] = b"btrfs.compression";

/// Bytes of xattrs that an inode in memory remembers after a commit at most, for logs. A choice: an ACL and a label.
const REMEMBERED_MAX: usize = 256;

/// The xattrs that a layer sets, or removes.
#[derive(Clone, Debug, Default)]
pub struct Xattrs(BTreeMap<Name, Option<Box<[u8]>>>);

impl Xattrs {
    /// Sets the value, or removes the xattr.
    pub fn set(&mut self, name: &[u8], value: Option<Box<[u8]>>) {
        self.0.insert(Name::new(name), value);
    }

    /// What the layer says of the name.
    fn find(&self, name: &[u8]) -> Option<Option<&[u8]>> {
        self.0.get(name).map(Option::as_deref)
    }

    /// What there is when the layer is put over these, unless it is too much to be remembered.
    pub fn over(&self, below: &[StoredXattr]) -> Option<Arc<StoredXattrs>> {
        let beneath = below.iter().filter(|(name, _)| !self.0.contains_key(name)).cloned();
        let set = self.0.iter().filter_map(|(name, value)| Some((name.clone(), value.clone()?)));
        let all: StoredXattrs = beneath.chain(set).collect();
        let bytes: usize =
            all.iter().map(|(name, value)| name.as_bytes().len() + value.len()).sum();
        (bytes <= REMEMBERED_MAX).then(|| Arc::new(all))
    }

    /// All that the layer says.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, Option<&[u8]>)> {
        self.0.iter().map(|(name, value)| (name, value.as_deref()))
    }
}

/// What setting an xattr expects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetXattr {
    /// Nothing.
    #[default]
    Any,
    /// That there is none yet (EEXIST).
    Create,
    /// That there is one already (ENODATA).
    Replace,
}

impl State {
    fn layers_of_xattrs(&self) -> impl Iterator<Item = &Xattrs> {
        let frozen = self.frozen_changes().and_then(|changes| changes.xattrs.as_deref());
        [self.live.xattrs.as_deref(), frozen].into_iter().flatten()
    }

    /// The value of an xattr.
    pub(super) fn find_xattr(
        &self,
        ino: u64,
        view: &View<'_>,
        name: Hashed<'_>,
    ) -> Result<Option<Vec<u8>>> {
        for layer in self.layers_of_xattrs() {
            if let Some(known) = layer.find(name.bytes) {
                return Ok(known.map(<[u8]>::to_vec));
            }
        }
        match &self.stored {
            Stored::Nothing => return Ok(None),
            Stored::These(stored) => {
                let found = stored.iter().find(|(other, _)| other.as_bytes() == name.bytes);
                return Ok(found.map(|(_, value)| value.to_vec()));
            }
            Stored::Unknown if !self.on_disk => return Ok(None),
            Stored::Unknown => {}
        }
        let Some(item) = view.get(&Key::new(ino, kind::XATTR_ITEM, name.hash.into()))? else {
            return Ok(None);
        };
        let found = dir_entries(item.data()).find(|it| it.name == name.bytes);
        Ok(found.map(|found| found.data.to_vec()))
    }

    /// The names of all xattrs, sorted.
    fn xattr_names(&self, ino: u64, view: &View<'_>) -> Result<Vec<Name>> {
        let mut names = BTreeMap::new();
        if self.on_disk {
            let key = |hash| Key::new(ino, kind::XATTR_ITEM, hash);
            let mut cursor = view.range(key(0), key(u64::MAX));
            while let Some(item) = cursor.next()? {
                names.extend(dir_entries(item.data()).map(|it| (Name::new(it.name), true)));
            }
        }
        let layers: Vec<&Xattrs> = self.layers_of_xattrs().collect();
        for layer in layers.into_iter().rev() {
            names.extend(layer.iter().map(|(name, value)| (name.clone(), value.is_some())));
        }
        Ok(names.into_iter().filter_map(|(name, there)| there.then_some(name)).collect())
    }

    /// Refuses a value that has no room in the item of its hash, beside what is there.
    fn room_for_xattr(
        &self,
        ino: u64,
        view: &View<'_>,
        name: Hashed<'_>,
        value: &[u8],
    ) -> Result<()> {
        let mut used = weight(name.bytes, value.len());
        for layer in self.layers_of_xattrs() {
            let others = layer.iter().filter(|(other, _)| {
                other.as_bytes() != name.bytes && Hashed::of(other.as_bytes()).hash == name.hash
            });
            used += others
                .filter_map(|(other, value)| Some(weight(other.as_bytes(), value?.len())))
                .sum::<usize>();
        }
        if self.on_disk
            && let Some(item) = view.get(&Key::new(ino, kind::XATTR_ITEM, name.hash.into()))?
        {
            let others = dir_entries(item.data()).filter(|it| it.name != name.bytes);
            used += others.map(|it| weight(it.name, it.data.len())).sum::<usize>();
        }
        if used > super::item_len_max(view.blocks().nodesize()) {
            Err(Error::User(Errno::NOSPC))
        } else {
            Ok(())
        }
    }
}

impl FileTree {
    /// The value of an xattr; ENODATA when there is none.
    pub fn xattr(&self, op: &Op<'_>, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        let name = xattr_name(name)?;
        let state = inode.read();
        state.alive()?;
        let found = state.find_xattr(inode.ino, &self.view(op.core), name)?;
        found.ok_or(Error::User(Errno::NODATA))
    }

    /// Whether an inode is known to have no xattrs.
    pub fn is_without_xattrs(&self, inode: &Inode) -> bool {
        let state = inode.read();
        let stored_none = !state.on_disk || matches!(state.stored, Stored::Nothing);
        stored_none && state.layers_of_xattrs().next().is_none()
    }

    /// The names of all xattrs, sorted.
    pub fn xattrs(&self, op: &Op<'_>, inode: &Inode) -> Result<Vec<Name>> {
        let state = inode.read();
        state.alive()?;
        state.xattr_names(inode.ino, &self.view(op.core))
    }

    /// Sets an xattr. E2BIG over 64 KiB, ENOSPC when it does not fit in a leaf.
    pub fn set_xattr(
        &self,
        op: &Op<'_>,
        inode: &Arc<Inode>,
        name: &[u8],
        value: &[u8],
        expect: SetXattr,
    ) -> Result<()> {
        self.writable()?;
        let name = xattr_name(name)?;
        if value.len() > 1 << 16 {
            return Err(Error::User(Errno::TOOBIG));
        }
        let mut state = inode.write();
        let view = self.view(op.core);
        state.alive()?;
        let meaning = meaning(name.bytes, value, &state)?;
        if let Meaning::Ignored = meaning {
            return Ok(());
        }
        room_for_value(&view, name, value)?;
        if expect != SetXattr::Any {
            let there = state.find_xattr(inode.ino, &view, name)?.is_some();
            match expect {
                SetXattr::Create if there => return Err(Error::User(Errno::EXIST)),
                SetXattr::Replace if !there => return Err(Error::User(Errno::NODATA)),
                _ => {}
            }
        }
        state.room_for_xattr(inode.ino, &view, name, value)?;
        state.touch(inode, self, op)?;
        let mut kept = Some(value.into());
        if let Meaning::Property(flags) = meaning {
            state.attributes.flags = flags;
            kept = kept.filter(|_| !value.is_empty());
        }
        op.step("flags without their xattr");
        state.xattrs().set(name.bytes, kept);
        state.attributes.ctime = op.now;
        Ok(())
    }

    /// Removes an xattr; ENODATA when there is none.
    pub fn remove_xattr(&self, op: &Op<'_>, inode: &Arc<Inode>, name: &[u8]) -> Result<()> {
        self.writable()?;
        let name = xattr_name(name)?;
        let mut state = inode.write();
        let view = self.view(op.core);
        state.alive()?;
        let meaning = meaning(name.bytes, b"", &state)?;
        if state.find_xattr(inode.ino, &view, name)?.is_none() {
            return Err(Error::User(Errno::NODATA));
        }
        state.touch(inode, self, op)?;
        state.xattrs().set(name.bytes, None);
        op.step("an xattr is gone");
        if let Meaning::Property(flags) = meaning {
            state.attributes.flags = flags;
        }
        state.attributes.ctime = op.now;
        Ok(())
    }
}

/// Bytes that an xattr takes of an item.
pub(super) fn weight(name: &[u8], value: usize) -> usize {
    size_of::<DirItem>() + name.len() + value
}

/// Refuses a value that has no room in any item. Linux asks that first, and only then what is there.
fn room_for_value(view: &View<'_>, name: Hashed<'_>, value: &[u8]) -> Result<()> {
    let max = super::item_len_max(view.blocks().nodesize());
    let fits = weight(name.bytes, value.len()) <= max && value.len() <= usize::from(u16::MAX);
    if fits { Ok(()) } else { Err(Error::User(Errno::NOSPC)) }
}

fn xattr_name(name: &[u8]) -> Result<Hashed<'_>> {
    match name.len() {
        1..=NAME_LEN_MAX if !name.contains(&0) => Ok(Hashed::of(name)),
        1..=NAME_LEN_MAX => Err(Error::User(Errno::INVAL)),
        _ => Err(Error::User(Errno::RANGE)),
    }
}

/// What setting an xattr means.
enum Meaning {
    /// Nothing to the filesystem.
    Plain,
    /// A property; the inode flags are these afterwards.
    Property(u64),
    /// A property that this kind of inode does not have: ignored, as Linux does.
    Ignored,
}

const COMPRESSIONS: [&[u8]; 3] = [b"zlib", b"lzo", b"zstd"];

/// What new inodes take over of a directory's compression: the kind without its level, as on Linux.
pub(super) fn compression_kind(value: &[u8]) -> &[u8] {
    COMPRESSIONS.into_iter().find(|kind| value.starts_with(kind)).unwrap_or(value)
}

/// What setting `name` to `value` means; an empty value resets a property.
fn meaning(name: &[u8], value: &[u8], state: &State) -> Result<Meaning> {
    if !name.starts_with(b"btrfs.") {
        return Ok(Meaning::Plain);
    }
    let compressed = COMPRESSIONS.iter().any(|kind| value.starts_with(kind));
    let set = match value {
        _ if name != COMPRESSION => return Err(Error::User(Errno::INVAL)),
        b"" => 0,
        b"no" | b"none" => inode_flags::NOCOMPRESS,
        _ if compressed => inode_flags::COMPRESS,
        _ => return Err(Error::User(Errno::INVAL)),
    };
    if !state.attributes.is_regular() && !state.attributes.is_directory() {
        return Ok(Meaning::Ignored);
    }
    // What is written in place, or has no checksums, cannot be compressed.
    if state.attributes.flags & (inode_flags::NODATACOW | inode_flags::NODATASUM) != 0 {
        return Err(Error::User(Errno::INVAL));
    }
    let kept = state.attributes.flags & !(inode_flags::COMPRESS | inode_flags::NOCOMPRESS);
    Ok(Meaning::Property(kept | set))
}
