//! The names of an inode, as the inode itself knows them: `INODE_REF` items, one for each parent with all the names in it,
//! and `INODE_EXTREF` items for those that do not fit there.

use buttress_ondisk::item::{InodeExtref, InodeRef};
use buttress_ondisk::view::{inode_extrefs, inode_refs};
use buttress_ondisk::{Key, kind};

use buttress_codec::crc32c::extref_hash;

use super::many_names::ManyNames;
use super::name::Name;
use super::state::{Changes, State};
use crate::error::{Errno, Error, Result};
use crate::tree::View;

/// Bytes of a name's head in an `INODE_REF`.
pub(super) const REF_LEN: usize = size_of::<InodeRef>();
/// Bytes of a name's head in an `INODE_EXTREF`.
pub(super) const EXTREF_LEN: usize = size_of::<InodeExtref>();

/// A name gained or lost.
#[derive(Clone, Debug)]
pub struct NameChange {
    /// The directory.
    pub parent: u64,
    /// The index in it.
    pub index: u64,
    /// The name.
    pub name: Name,
    /// Gained, or lost.
    pub gained: bool,
    /// Gained where layers below, or the tree, may have an entry of that name.
    pub taken: bool,
}

impl NameChange {
    pub(super) fn is(&self, parent: u64, name: &[u8]) -> bool {
        self.parent == parent && self.name.as_bytes() == name
    }
}

/// The names that a layer gains and loses; one in nearly every case.
#[derive(Clone, Debug, Default)]
pub enum Names {
    /// Nothing changed.
    #[default]
    None,
    /// One change.
    One(NameChange),
    /// Several.
    Many(Box<ManyNames>),
}

impl Names {
    /// The changes, in the order they were made.
    pub fn as_slice(&self) -> &[NameChange] {
        match self {
            Names::None => &[],
            Names::One(change) => std::slice::from_ref(change),
            Names::Many(many) => many.as_slice(),
        }
    }

    fn push(&mut self, new: NameChange) {
        if let Names::None = self {
            *self = Names::One(new);
            return;
        }
        if let Names::One(_) = self
            && let Names::One(one) = std::mem::take(self)
        {
            let mut many = Box::<ManyNames>::default();
            many.push(one);
            *self = Names::Many(many);
        }
        if let Names::Many(many) = self {
            many.push(new);
        }
    }

    /// The inode has a name more.
    pub fn gain(&mut self, parent: u64, index: u64, name: &[u8], taken: bool) {
        self.push(NameChange { parent, index, name: Name::new(name), gained: true, taken });
    }

    /// The inode has this name no more.
    pub fn lose(&mut self, parent: u64, index: u64, name: &[u8]) {
        let was_gained = match self {
            Names::One(change) if change.gained && change.is(parent, name) => {
                *self = Names::None;
                true
            }
            Names::Many(many) => many.ungain(parent, name),
            _ => false,
        };
        if !was_gained {
            let name = Name::new(name);
            self.push(NameChange { parent, index, name, gained: false, taken: false });
        }
    }

    /// The index of a name that the layer gained; `Some(None)` when it lost the name.
    fn index_of(&self, parent: u64, name: &[u8]) -> Option<Option<u64>> {
        let index = |changes: &mut dyn Iterator<Item = &NameChange>| {
            let mut known = None;
            for change in changes {
                match change.gained {
                    true => return Some(Some(change.index)),
                    false => known = Some(None),
                }
            }
            known
        };
        match self {
            Names::Many(many) => index(&mut many.of(parent, name)),
            few => index(&mut few.as_slice().iter().filter(|change| change.is(parent, name))),
        }
    }

    /// Bytes of the names gained in `parent`, as an `INODE_REF` holds them.
    fn weight_in(&self, parent: u64) -> usize {
        match self {
            Names::One(it) if it.gained && it.parent == parent => {
                REF_LEN + it.name.as_bytes().len()
            }
            Names::Many(many) => many.weight_in(parent),
            _ => 0,
        }
    }

    /// Bytes of the names gained whose `INODE_EXTREF` would be under `hash`.
    fn weight_of(&self, hash: u64) -> usize {
        match self {
            Names::One(it) if it.gained && extref_hash(it.parent, it.name.as_bytes()) == hash => {
                EXTREF_LEN + it.name.as_bytes().len()
            }
            Names::Many(many) => many.weight_of(hash),
            _ => 0,
        }
    }
}

impl State {
    fn layers_of_names(&self) -> impl Iterator<Item = &Names> {
        let frozen = self.frozen_changes().map(|changes: &Changes| &changes.names);
        [Some(&self.live.names), frozen].into_iter().flatten()
    }

    /// The index of the name in the directory `parent`.
    pub(super) fn index_of_name(
        &self,
        ino: u64,
        view: &View<'_>,
        parent: u64,
        name: &[u8],
    ) -> Result<u64> {
        self.find_index_of_name(ino, view, parent, name)?.ok_or_else(|| {
            let key = Key::new(ino, kind::INODE_REF, parent);
            Error::inconsistent(view.owner(), "a directory entry has no inode ref", key)
        })
    }

    /// The same, if it has that name.
    pub(super) fn find_index_of_name(
        &self,
        ino: u64,
        view: &View<'_>,
        parent: u64,
        name: &[u8],
    ) -> Result<Option<u64>> {
        for layer in self.layers_of_names() {
            if let Some(known) = layer.index_of(parent, name) {
                return Ok(known);
            }
        }
        if self.on_disk { index_in_tree(ino, view, parent, name) } else { Ok(None) }
    }

    /// All names: the directory, the index in it, and the name.
    pub(super) fn all_names(&self, ino: u64, view: &View<'_>) -> Result<Vec<(u64, u64, Vec<u8>)>> {
        let mut names = Vec::new();
        if self.on_disk {
            let from = Key::new(ino, kind::INODE_REF, 0);
            let mut cursor = view.range(from, Key::new(ino, kind::INODE_EXTREF, u64::MAX));
            while let Some(item) = cursor.next()? {
                if item.key().kind == kind::INODE_REF {
                    let parent = item.key().offset;
                    let refs = inode_refs(item.data());
                    names.extend(refs.map(|it| (parent, it.index, it.name.to_vec())));
                } else {
                    let refs = inode_extrefs(item.data());
                    names.extend(refs.map(|it| (it.parent, it.index, it.name.to_vec())));
                }
            }
        }
        let mut layers: Vec<&Names> = self.layers_of_names().collect();
        layers.reverse();
        for layer in layers {
            for change in layer.as_slice().iter().filter(|change| !change.gained) {
                names.retain(|(parent, _, name)| !change.is(*parent, name));
            }
            for change in layer.as_slice().iter().filter(|change| change.gained) {
                names.push((change.parent, change.index, change.name.as_bytes().to_vec()));
            }
        }
        Ok(names)
    }

    /// A directory that holds one of the names: of a directory, its parent.
    pub(super) fn parent(&self, ino: u64, view: &View<'_>) -> Result<Option<u64>> {
        for layer in self.layers_of_names() {
            if let Some(change) = layer.as_slice().iter().find(|change| change.gained) {
                return Ok(Some(change.parent));
            }
        }
        if !self.on_disk || self.attributes.nlink == 0 {
            return Ok(None);
        }
        let from = Key::new(ino, kind::INODE_REF, 0);
        let to = Key::new(ino, kind::INODE_EXTREF, u64::MAX);
        let item = view.range(from, to).next()?;
        Ok(item.and_then(|item| match item.key().kind {
            kind::INODE_REF => Some(item.key().offset),
            _ => inode_extrefs(item.data()).next().map(|name| name.parent),
        }))
    }

    /// Refuses a name more when the items that would hold it are full.
    pub(super) fn room_for_name(
        &self,
        ino: u64,
        view: &View<'_>,
        parent: u64,
        name: &[u8],
        extref: bool,
    ) -> Result<()> {
        let max = super::item_len_max(view.blocks().nodesize());
        let length = |key: Key| -> Result<usize> {
            Ok(if self.on_disk { view.get(&key)?.map_or(0, |item| item.data().len()) } else { 0 })
        };
        let pending: usize = self.layers_of_names().map(|names| names.weight_in(parent)).sum();
        let used = pending + length(Key::new(ino, kind::INODE_REF, parent))?;
        if used + REF_LEN + name.len() <= max {
            return Ok(());
        }
        if !extref {
            return Err(Error::User(Errno::MLINK));
        }
        let hash = extref_hash(parent, name);
        let pending: usize = self.layers_of_names().map(|names| names.weight_of(hash)).sum();
        let used = pending + length(Key::new(ino, kind::INODE_EXTREF, hash))?;
        if used + EXTREF_LEN + name.len() <= max { Ok(()) } else { Err(Error::User(Errno::MLINK)) }
    }
}

fn index_in_tree(ino: u64, view: &View<'_>, parent: u64, name: &[u8]) -> Result<Option<u64>> {
    if let Some(item) = view.get(&Key::new(ino, kind::INODE_REF, parent))?
        && let Some(found) = inode_refs(item.data()).find(|it| it.name == name)
    {
        return Ok(Some(found.index));
    }
    let key = Key::new(ino, kind::INODE_EXTREF, extref_hash(parent, name));
    let Some(item) = view.get(&key)? else { return Ok(None) };
    let found = inode_extrefs(item.data()).find(|it| it.parent == parent && it.name == name);
    Ok(found.map(|it| it.index))
}
