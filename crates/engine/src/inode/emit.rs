//! From frozen layers to items: step 3 of a commit.
//!
//! Inodes come in the order of their numbers, and each one's items in the order of their kinds, so that all is one ascending
//! stream of keys. Items that hold several names or
//! xattrs are merged with what the tree has in them.

use std::array::from_fn;

use buttress_codec::crc32c::extref_hash;
use buttress_ondisk::item::{DirItem, FileExtentHead, InodeExtref, InodeRef, file_type};
use buttress_ondisk::view::{dir_entries, inode_extrefs, inode_refs};
use buttress_ondisk::{Key, kind};
use zerocopy::IntoBytes;

use super::directory::ENTRY_LEN;
use super::entries::{self, Added, Entries, Said};
use super::file::FileChanges;
use super::name::{Hashed, Name};
use super::names::{EXTREF_LEN, NameChange, Names, REF_LEN};
use super::state::Frozen;
use super::xattrs::Xattrs;
use super::{parts, push_dir_item};
use crate::error::{Error, Result};
use crate::tree::Merge;
use crate::txn::Emit;

/// Puts an item, or deletes it.
fn store(merge: &mut Merge<'_>, key: Key, data: &[u8], there: bool) -> Result<()> {
    if there { merge.put(key, data) } else { merge.delete(&key).map(|_| ()) }
}

/// Everything of an inode, in the order of keys; but entries that are emitted in parts are left out.
pub(super) fn emit_inode(emit: &mut Emit<'_, '_>, ino: u64, frozen: &Frozen) -> Result<()> {
    let changes = &frozen.changes;
    if changes.deleted {
        return if changes.created { Ok(()) } else { delete_inode(emit, ino) };
    }
    let item = frozen.attributes.item();
    emit.merge.put(Key::new(ino, kind::INODE_ITEM, 0), item.as_bytes())?;
    emit_names(emit, ino, &changes.names)?;
    if let Some(xattrs) = &changes.xattrs {
        emit_xattrs(emit, ino, xattrs)?;
    }
    if let Some(entries) = &changes.entries
        && !parts::are_cut(changes)
    {
        let mut hashes = entries.hashes().concat();
        hashes.sort_unstable_by_key(|names| names.hash);
        emit_by_hash(emit, ino, entries, &hashes)?;
        emit_by_index(emit, ino, entries)?;
    }
    if let Some(target) = &changes.symlink {
        emit_symlink(emit, ino, target)?;
    }
    match &frozen.file {
        Some(file) => file.emit(emit, ino, frozen.attributes.size),
        None => Ok(()),
    }
}

fn delete_inode(emit: &mut Emit<'_, '_>, ino: u64) -> Result<()> {
    let data = kind::EXTENT_DATA;
    let (from, to) = (Key::new(ino, 0, 0), Key::new(ino, data - 1, u64::MAX));
    emit.merge.delete_range(from, to, |_, _| ())?;
    FileChanges::delete_all(emit, ino)?;
    let (from, to) = (Key::new(ino, data + 1, 0), Key::new(ino, u8::MAX, u64::MAX));
    emit.merge.delete_range(from, to, |_, _| ())
}

fn emit_symlink(emit: &mut Emit<'_, '_>, ino: u64, target: &[u8]) -> Result<()> {
    let head = FileExtentHead {
        generation: emit.transid.into(),
        ram_bytes: (target.len() as u64).into(),
        kind: FileExtentHead::INLINE,
        ..FileExtentHead::default()
    };
    let size = size_of_val(&head) + target.len();
    emit.merge.put_with(Key::new(ino, kind::EXTENT_DATA, 0), size, |room| {
        let (at, rest) = room.split_at_mut(size_of::<FileExtentHead>());
        at.copy_from_slice(head.as_bytes());
        rest.copy_from_slice(target);
    })
}

// ---- names ----

fn emit_names(emit: &mut Emit<'_, '_>, ino: u64, names: &Names) -> Result<()> {
    if let Names::One(change) = names
        && change.gained
    {
        let key = Key::new(ino, kind::INODE_REF, change.parent);
        if emit.merge.find(&key)?.is_none() {
            return put_ref(emit.merge, key, change);
        }
    }
    let mut sorted: Vec<&NameChange> = names.as_slice().iter().collect();
    sorted.sort_by_key(|change| change.parent);
    let mut rest = Vec::new();
    for group in sorted.chunk_by(|a, b| a.parent == b.parent) {
        emit_refs(emit, ino, group, &mut rest)?;
    }
    let hash = |change: &NameChange| extref_hash(change.parent, change.name.as_bytes());
    rest.sort_by_key(|change| hash(change));
    for group in rest.chunk_by(|a, b| hash(a) == hash(b)) {
        emit_extrefs(emit, Key::new(ino, kind::INODE_EXTREF, hash(group[0])), group)?;
    }
    Ok(())
}

/// The names in one directory. What is lost and not found here, and what is gained and has no room here, is left in `rest`.
fn emit_refs<'n>(
    emit: &mut Emit<'_, '_>,
    ino: u64,
    group: &[&'n NameChange],
    rest: &mut Vec<&'n NameChange>,
) -> Result<()> {
    let key = Key::new(ino, kind::INODE_REF, group[0].parent);
    let max = super::item_len_max(emit.core.blocks.nodesize());
    let mut lost: Vec<&NameChange> = group.iter().copied().filter(|it| !it.gained).collect();
    let mut item = Vec::new();
    for old in inode_refs(emit.merge.find(&key)?.unwrap_or_default()) {
        match lost.iter().position(|change| change.name.as_bytes() == old.name) {
            Some(at) => drop(lost.swap_remove(at)),
            None => push_ref(&mut item, old.index, old.name),
        }
    }
    rest.extend(lost);
    for change in group.iter().filter(|change| change.gained) {
        let name = change.name.as_bytes();
        if item.len() + REF_LEN + name.len() <= max {
            push_ref(&mut item, change.index, name);
        } else {
            rest.push(change);
        }
    }
    store(emit.merge, key, &item, !item.is_empty())
}

fn emit_extrefs(emit: &mut Emit<'_, '_>, key: Key, group: &[&NameChange]) -> Result<()> {
    let lost = |parent: u64, name: &[u8]| {
        let mut lost = group.iter().filter(|change| !change.gained);
        lost.any(|change| change.parent == parent && change.name.as_bytes() == name)
    };
    let mut item = Vec::new();
    for old in inode_extrefs(emit.merge.find(&key)?.unwrap_or_default()) {
        if !lost(old.parent, old.name) {
            push_extref(&mut item, old.parent, old.index, old.name);
        }
    }
    let max = super::item_len_max(emit.core.blocks.nodesize());
    for change in group.iter().filter(|change| change.gained) {
        let name = change.name.as_bytes();
        if !emit.core.features.extref || item.len() + EXTREF_LEN + name.len() > max {
            return Err(Error::inconsistent(emit.tree, "an inode has no room for a name", key));
        }
        push_extref(&mut item, change.parent, change.index, name);
    }
    store(emit.merge, key, &item, !item.is_empty())
}

/// The only name in a directory.
fn put_ref(merge: &mut Merge<'_>, key: Key, change: &NameChange) -> Result<()> {
    let name = change.name.as_bytes();
    let head = InodeRef { index: change.index.into(), name_len: (name.len() as u16).into() };
    merge.put_with(key, REF_LEN + name.len(), |room| {
        let (at, rest) = room.split_at_mut(REF_LEN);
        at.copy_from_slice(head.as_bytes());
        rest.copy_from_slice(name);
    })
}

pub(super) fn push_ref(item: &mut Vec<u8>, index: u64, name: &[u8]) {
    let head = InodeRef { index: index.into(), name_len: (name.len() as u16).into() };
    item.extend_from_slice(head.as_bytes());
    item.extend_from_slice(name);
}

pub(super) fn push_extref(item: &mut Vec<u8>, parent: u64, index: u64, name: &[u8]) {
    let name_len = (name.len() as u16).into();
    let head = InodeExtref { parent: parent.into(), index: index.into(), name_len };
    item.extend_from_slice(head.as_bytes());
    item.extend_from_slice(name);
}

// ---- xattrs ----

fn emit_xattrs(emit: &mut Emit<'_, '_>, ino: u64, xattrs: &Xattrs) -> Result<()> {
    let hashed = |(name, value): (_, _)| (Hashed::of(Name::as_bytes(name)).hash, name, value);
    let mut sorted: Vec<(u32, &Name, Option<&[u8]>)> = xattrs.iter().map(hashed).collect();
    sorted.sort_by_key(|&(hash, ..)| hash);
    for group in sorted.chunk_by(|a, b| a.0 == b.0) {
        let key = Key::new(ino, kind::XATTR_ITEM, group[0].0.into());
        let old = emit.merge.find(&key)?.unwrap_or_default();
        let mut item = kept(old, |name| group.iter().any(|(_, it, _)| it.as_bytes() == name));
        for (_, name, value) in group {
            if let Some(value) = value {
                let (none, transid) = (Key::default(), emit.transid);
                push_dir_item(&mut item, none, transid, file_type::XATTR, name.as_bytes(), value);
            }
        }
        store(emit.merge, key, &item, !item.is_empty())?;
    }
    Ok(())
}

/// The entries of an item that stay as they are.
fn kept(old: &[u8], changed: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut item = Vec::new();
    for it in dir_entries(old).filter(|it| !changed(it.name)) {
        push_dir_item(&mut item, it.location, it.transid, it.file_type, it.name, it.data);
    }
    item
}

// ---- directory entries ----

/// Names whose entries are looked at together.
const AT_A_TIME: usize = 16;

/// The items of entries by name, for hashes in ascending order.
pub(super) fn emit_by_hash(
    emit: &mut Emit<'_, '_>,
    ino: u64,
    entries: &Entries,
    hashes: &[entries::Names],
) -> Result<()> {
    for some in hashes.chunks(AT_A_TIME) {
        let alone: [_; AT_A_TIME] =
            from_fn(|at| some.get(at).and_then(|names| entries.only_added(*names)));
        for (&names, alone) in some.iter().zip(alone) {
            let key = Key::new(ino, kind::DIR_ITEM, names.hash.into());
            let old = emit.merge.find(&key)?;
            if let (None, Some((only, len))) = (old, alone) {
                put_added(emit, key, only, len)?;
                continue;
            }
            let gone = |name: &[u8]| entries.of(names).any(|said| said.name() == name);
            let mut item = old.map_or_else(Vec::new, |old| kept(old, gone));
            for added in entries.of(names).filter_map(Said::added) {
                push_added(&mut item, emit.transid, added);
            }
            store(emit.merge, key, &item, !item.is_empty())?;
        }
    }
    Ok(())
}

/// The items of entries by index.
pub(super) fn emit_by_index(emit: &mut Emit<'_, '_>, ino: u64, entries: &Entries) -> Result<()> {
    let mut removed = entries.removed().peekable();
    for added in entries.added() {
        while let Some(index) = removed.next_if(|&index| index < added.index) {
            emit.merge.delete(&index_key(ino, index))?;
        }
        removed.next_if_eq(&added.index);
        put_added(emit, index_key(ino, added.index), added, added.name.as_bytes().len())?;
    }
    for index in removed {
        emit.merge.delete(&index_key(ino, index))?;
    }
    Ok(())
}

/// The items by index of some added entries.
pub(super) fn emit_added<'e>(
    emit: &mut Emit<'_, '_>,
    ino: u64,
    mut added: impl Iterator<Item = &'e Added>,
) -> Result<()> {
    added.try_for_each(|added| {
        put_added(emit, index_key(ino, added.index), added, added.name.as_bytes().len())
    })
}

fn index_key(ino: u64, index: u64) -> Key {
    Key::new(ino, kind::DIR_INDEX, index)
}

/// An item with this entry alone, whose name has `len` bytes.
fn put_added(emit: &mut Emit<'_, '_>, key: Key, added: &Added, len: usize) -> Result<()> {
    let head = DirItem {
        location: added.location.key().into(),
        transid: emit.transid.into(),
        data_len: 0.into(),
        name_len: (len as u16).into(),
        file_type: added.file_type,
    };
    emit.merge.put_with(key, ENTRY_LEN + len, |room| {
        let (at, rest) = room.split_at_mut(ENTRY_LEN);
        at.copy_from_slice(head.as_bytes());
        rest.copy_from_slice(added.name.as_bytes());
    })
}

fn push_added(item: &mut Vec<u8>, transid: u64, added: &Added) {
    let Added { location, file_type, name, .. } = added;
    push_dir_item(item, location.key(), transid, *file_type, name.as_bytes(), &[]);
}
