//! The uuid tree: which subvolume has a uuid, and which was received from one.

use std::collections::BTreeSet;

use buttress_ondisk::{Key, kind, objectid};

use crate::{
    context::Context,
    issue::Place,
    kinds::Kind,
    roots::Tree,
    walk::{Leaf, Visitor, walk},
};

/// Entries of the uuid tree: uuid, kind, subvolume.
#[derive(Default)]
struct Collect {
    entries: BTreeSet<([u8; 16], u8, u64)>,
    lost: bool,
}

impl Visitor for Collect {
    fn leaf(&mut self, leaf: &Leaf<'_>) {
        for (key, data) in leaf.items() {
            if !matches!(key.kind, kind::UUID_SUBVOL | kind::UUID_RECEIVED_SUBVOL) {
                continue;
            }
            for id in data.chunks_exact(8).filter_map(|it| it.first_chunk::<8>()) {
                self.entries.insert((uuid_of(&key), key.kind, u64::from_le_bytes(*id)));
            }
        }
    }

    fn lost(&mut self, _from: Key, _to: Option<Key>) {
        self.lost = true;
    }
}

/// A uuid is the key's object and offset, one after the other.
fn uuid_of(key: &Key) -> [u8; 16] {
    let both = u128::from(key.objectid) | u128::from(key.offset) << 64;
    both.to_le_bytes()
}

fn key_of(uuid: &[u8; 16], kind: u8) -> Key {
    let both = u128::from_le_bytes(*uuid);
    Key::new(both as u64, kind, (both >> 64) as u64)
}

/// Judges the uuid tree. The kernel puts it right when it is older than the filesystem; then it is not judged.
pub(crate) fn check_uuid_tree(context: &Context<'_>, tree: &Tree) {
    let mut found = Collect::default();
    walk(context, tree, Key::MIN..=Key::MAX, &mut found);
    if context.sb.uuid_tree_generation != context.sb.generation {
        return;
    }
    let mut wanted = BTreeSet::new();
    for tree in context.roots.all().filter(|tree| objectid::is_subvolume(tree.id())) {
        let (own, received) = (tree.item.uuid, tree.item.received_uuid);
        wanted.insert((own, kind::UUID_SUBVOL, tree.id()));
        wanted.insert((received, kind::UUID_RECEIVED_SUBVOL, tree.id()));
    }
    wanted.retain(|(uuid, ..)| *uuid != [0; 16]);
    let place = |&(uuid, kind, id): &([u8; 16], u8, u64)| Place {
        key: Some(key_of(&uuid, kind)),
        ..Place::tree(id)
    };
    let is_alive = |id: u64| context.roots.find(id).is_some_and(|tree| tree.item.refs.get() > 0);
    let missing = wanted.difference(&found.entries).filter(|(_, _, id)| is_alive(*id));
    for entry in missing.filter(|_| !found.lost) {
        context.report(Kind::UuidMissing, place(entry), "no entry of the uuid", "one");
    }
    for entry in found.entries.difference(&wanted) {
        context.report(Kind::UuidStale, place(entry), "an entry", "none of this uuid");
    }
}
