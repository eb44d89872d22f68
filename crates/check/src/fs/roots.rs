//! Subvolumes as the root tree tells them: root items, their names in both directions and in the directory, the default.

use std::collections::{BTreeMap, BTreeSet};

use buttress_ondisk::{Key, kind, objectid, view};
use buttress_volume::search;

use crate::{
    context::Context,
    issue::Place,
    kinds::Kind,
    roots::Tree,
    walk::{Leaf, Visitor, walk},
};

/// A name of a subvolume.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    dir: u64,
    index: u64,
    name: Vec<u8>,
}

/// What the root tree says about subvolumes, root items aside.
#[derive(Default)]
struct Collect {
    /// `ROOT_REF`: by parent and subvolume.
    refs: BTreeMap<(u64, u64), Name>,
    /// `ROOT_BACKREF`: by parent and subvolume.
    back: BTreeMap<(u64, u64), Name>,
    orphans: BTreeSet<u64>,
    /// Where the entry `default` points.
    default: Option<Key>,
    /// Something could not be read: nothing is missed.
    lost: bool,
}

impl Visitor for Collect {
    fn leaf(&mut self, leaf: &Leaf<'_>) {
        for (key, data) in leaf.items() {
            let named = view::root_ref(data).map(|(head, name)| Name {
                dir: head.dirid.get(),
                index: head.sequence.get(),
                name: name.to_vec(),
            });
            match (key.kind, named) {
                (kind::ROOT_REF, Some(name)) => {
                    self.refs.insert((key.objectid, key.offset), name);
                }
                (kind::ROOT_BACKREF, Some(name)) => {
                    self.back.insert((key.offset, key.objectid), name);
                }
                (kind::ORPHAN_ITEM, _) if key.objectid == objectid::ORPHAN => {
                    self.orphans.insert(key.offset);
                }
                (kind::DIR_ITEM, _) if key.objectid == objectid::ROOT_TREE_DIR => {
                    let mut entries = view::dir_entries(data);
                    self.default = entries.find(|it| it.name == b"default").map(|it| it.location);
                }
                _ => {}
            }
        }
    }

    fn lost(&mut self, _from: Key, _to: Option<Key>) {
        self.lost = true;
    }
}

/// Judges root items, root references and the directories of the root tree. The root tree was walked already.
pub(crate) fn check_roots(context: &Context<'_>) {
    let mut found = Collect::default();
    walk(context, &context.root_tree(), Key::MIN..=Key::MAX, &mut found);
    let subvolumes = context.roots.all().filter(|tree| objectid::is_subvolume(tree.id()));
    for tree in subvolumes {
        check_item(context, tree, &found);
    }
    for tree in context.roots.all().filter(|tree| tree.holds_files()) {
        if tree.item.root_dirid.get() != objectid::FIRST_FREE {
            let place = Place::item(objectid::ROOT_TREE, tree.key);
            context.report(Kind::RootDirid, place, tree.item.root_dirid, objectid::FIRST_FREE);
        }
    }
    for (&(parent, id), name) in &found.refs {
        check_ref(context, (parent, id), name, &found);
    }
    for &(parent, id) in found.back.keys() {
        if !found.refs.contains_key(&(parent, id)) && !found.lost {
            let place = Place::item(objectid::ROOT_TREE, Key::new(id, kind::ROOT_BACKREF, parent));
            context.report(Kind::RootBackrefNoRef, place, "no ROOT_REF", "the same in both");
        }
    }
    check_orphans(context, &found);
    if let Some(location) = found.default
        && context.roots.find(location.objectid).is_none()
        && !found.lost
    {
        let place = Place::tree(objectid::ROOT_TREE);
        context.report(Kind::DefaultSubvolume, place, location, "a subvolume that exists");
    }
}

/// Judges the root item of a subvolume.
fn check_item(context: &Context<'_>, tree: &Tree, found: &Collect) {
    let (id, refs) = (tree.id(), tree.item.refs.get());
    let say = |kind, have: &str, expect: &str| {
        context.report(kind, Place::item(objectid::ROOT_TREE, tree.key), have, expect);
    };
    if refs > 1 {
        say(Kind::RootRefs, &format!("{refs} references"), "0 or 1");
    }
    if refs > 0 && Key::from(tree.item.drop_progress).objectid != 0 {
        say(Kind::RootDropping, "a deletion in progress", "none in a subvolume with a reference");
    }
    if id == objectid::FS_TREE || found.lost {
        return;
    }
    if refs == 0 && !found.orphans.contains(&id) {
        say(Kind::RootOrphan, "no references and no orphan item", "an orphan item");
    }
    let is_named = found.back.keys().chain(found.refs.keys()).any(|(_, child)| *child == id);
    if refs > 0 && !is_named {
        say(Kind::RootUnnamed, "a subvolume without a name", "a name in another subvolume");
    }
}

/// Judges a name of a subvolume.
fn check_ref(context: &Context<'_>, (parent, id): (u64, u64), name: &Name, found: &Collect) {
    let place = || Place::item(objectid::ROOT_TREE, Key::new(parent, kind::ROOT_REF, id));
    let shown = name.name.escape_ascii();
    let have = format_args!("{shown} in {} at {}", name.dir, name.index);
    if !view::is_name(&name.name) {
        context.report(Kind::NameBad, place(), have, "a name that a file can have");
    }
    match found.back.get(&(parent, id)) {
        None if found.lost => {}
        None => context.report(Kind::RootRefNoBackref, place(), "no ROOT_BACKREF", have),
        Some(back) if back != name => {
            let other = back.name.escape_ascii();
            let expect = format_args!("{other} in {} at {}", back.dir, back.index);
            context.report(Kind::RootRefDiffers, place(), have, expect);
        }
        Some(_) => {}
    }
    let (Some(above), Some(_)) = (context.roots.find(parent), context.roots.find(id)) else {
        if !found.lost {
            context.report(Kind::RootRefNoRoot, place(), have, "subvolumes that exist");
        }
        return;
    };
    if above.item.refs.get() > 0 && has_entry(context, above, id, name) == Some(false) {
        context.report(Kind::RootRefNoEntry, place(), have, "an entry in that directory");
    }
}

/// Whether a directory has the entry of a subvolume; `None` when damage hides it.
fn has_entry(context: &Context<'_>, parent: &Tree, id: u64, name: &Name) -> Option<bool> {
    let key = Key::new(name.dir, kind::DIR_INDEX, name.index);
    let data = search(context.volume, &parent.root, &key).ok()?;
    let is_it = |it: view::DirEntry<'_>| {
        (it.location.objectid, it.location.kind) == (id, kind::ROOT_ITEM) && it.name == name.name
    };
    Some(data.is_some_and(|data| view::dir_entries(&data).any(is_it)))
}

/// Orphan items are of trees that are to be deleted.
fn check_orphans(context: &Context<'_>, found: &Collect) {
    for &id in &found.orphans {
        let tree = context.roots.find(id);
        let is_stale = tree.is_none_or(|tree| tree.item.refs.get() > 0);
        if objectid::is_subvolume(id) && is_stale {
            let place = Place::tree(id);
            context.report(Kind::RootOrphanStale, place, "an orphan item", "none");
        }
    }
}
