//! Which kinds of items a tree holds. What no program has ever put there is damage, also where every reader passes it over:
//! it may be an item whose key has changed.

use buttress_ondisk::{Key, TreeBlock, kind, objectid};

use crate::{context::Context, issue::Place, kinds::Kind, roots::holds_files};

/// How an item goes with its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    /// It belongs there, or the tree is not known.
    Good,
    /// Kernels before 5.11 kept free inode numbers there.
    InodeCache,
    /// It is nothing that the tree holds.
    Odd,
}

/// Judges the kinds of the items of a leaf.
pub(crate) fn judge(context: &Context<'_>, leaf: &TreeBlock, tree: u64) {
    let group_tree = context.roots.find(objectid::BLOCK_GROUP_TREE).is_some();
    for slot in 0..leaf.len() {
        let key = leaf.key(slot);
        let place =
            || Place { slot: Some(slot), key: Some(key), ..Place::block(tree, leaf.bytenr()) };
        match fit(tree, &key, group_tree) {
            Fit::Good => {}
            Fit::InodeCache => {
                context.report(Kind::InodeCache, place(), "an inode cache", "none, it is not used");
            }
            Fit::Odd => {
                let have = format_args!("an item of kind {}", key.kind);
                context.report(Kind::ItemOdd, place(), have, "one of those that the tree holds");
            }
        }
    }
}

fn fit(tree: u64, key: &Key, group_tree: bool) -> Fit {
    let good = match tree {
        objectid::ROOT_TREE => in_root_tree(key),
        objectid::EXTENT_TREE => match key.kind {
            kind::BLOCK_GROUP_ITEM => !group_tree,
            other => matches!(other, kind::EXTENT_ITEM..=kind::SHARED_DATA_REF),
        },
        objectid::CHUNK_TREE => matches!(key.kind, kind::CHUNK_ITEM | kind::DEV_ITEM),
        objectid::DEV_TREE => {
            matches!(key.kind, kind::DEV_EXTENT | kind::PERSISTENT_ITEM | kind::DEV_REPLACE)
        }
        objectid::CSUM_TREE => key.kind == kind::EXTENT_CSUM,
        objectid::QUOTA_TREE => in_quota_tree(key),
        objectid::UUID_TREE => matches!(key.kind, kind::UUID_SUBVOL | kind::UUID_RECEIVED_SUBVOL),
        objectid::FREE_SPACE_TREE => {
            matches!(key.kind, kind::FREE_SPACE_INFO..=kind::FREE_SPACE_BITMAP)
        }
        objectid::BLOCK_GROUP_TREE => key.kind == kind::BLOCK_GROUP_ITEM,
        id if holds_files(id) => return in_files(key),
        _ => true,
    };
    if good { Fit::Good } else { Fit::Odd }
}

/// Root items and what goes with them, the files of free space caches, and a balance under way.
fn in_root_tree(key: &Key) -> bool {
    match key.kind {
        0 => key.objectid == objectid::FREE_SPACE,
        kind::ORPHAN_ITEM => key.objectid == objectid::ORPHAN,
        kind::TEMPORARY_ITEM => key.objectid == objectid::BALANCE,
        kind::DIR_ITEM => key.objectid == objectid::ROOT_TREE_DIR,
        kind::INODE_ITEM | kind::INODE_REF | kind::EXTENT_DATA => true,
        other => matches!(other, kind::ROOT_ITEM | kind::ROOT_REF | kind::ROOT_BACKREF),
    }
}

/// One status, and of each group what it counts and may count, by the group alone.
fn in_quota_tree(key: &Key) -> bool {
    match key.kind {
        kind::QGROUP_STATUS => (key.objectid, key.offset) == (0, 0),
        kind::QGROUP_INFO | kind::QGROUP_LIMIT => key.objectid == 0,
        other => other == kind::QGROUP_RELATION,
    }
}

/// Inodes, and those that are to be deleted.
fn in_files(key: &Key) -> Fit {
    if matches!(key.objectid, objectid::FREE_INO | objectid::FREE_SPACE) {
        return Fit::InodeCache;
    }
    let good = match key.kind {
        kind::ORPHAN_ITEM => key.objectid == objectid::ORPHAN,
        kind::INODE_ITEM
        | kind::INODE_REF
        | kind::INODE_EXTREF
        | kind::XATTR_ITEM
        | kind::VERITY_DESC_ITEM
        | kind::VERITY_MERKLE_ITEM
        | kind::DIR_ITEM
        | kind::DIR_INDEX
        | kind::EXTENT_DATA => (objectid::FIRST_FREE..=objectid::LAST_FREE).contains(&key.objectid),
        _ => false,
    };
    if good { Fit::Good } else { Fit::Odd }
}
