//! What trees of files say about themselves: inodes, names, file extents; and what the root tree, the uuid tree and the quota
//! tree say about those trees.
//!
//! Called by [`crate::run`]: [`check_part`] for each part of each tree of files, in parallel; [`finish_tree`] when all parts of
//! a tree are done; the others once each.
//!
//! All items of an inode are neighbours, so an inode is judged with a state of a few words ([`inode::Inode`]). What inodes
//! say about each other (a name in a directory and in the inode it names, an inode without links and its orphan item) is
//! added to one sum per tree by one side and taken away by the other ([`names`]). Only when that sum is not zero, the tree is
//! walked again to find out what it was. Subtrees that snapshots share are judged once ([`memo`]).

mod cache_files;
mod extents;
mod inode;
mod memo;
mod names;
mod path;
mod quotas;
mod roots;
mod uuids;
mod visit;

use std::ops::RangeInclusive;

use buttress_ondisk::Key;

use crate::{
    context::Context,
    roots::Tree,
    walk::{Nobody, walk},
};

pub(crate) use cache_files::check_root_tree;
pub(crate) use memo::Memo;
pub(crate) use quotas::check_quota_tree;
pub(crate) use roots::check_roots;
pub(crate) use uuids::check_uuid_tree;

/// What one part of a tree leaves to be added to the others: sums that must cancel each other in the whole tree.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    /// What the names and orphans of the part add up to.
    sum: u64,
    /// Something could not be read: sums say nothing.
    lost: bool,
}

/// Judges the inodes of a tree whose keys are in the range, which begins and ends between inodes. It has to walk all of the
/// range (subtrees known from before aside): that is also how references are counted.
pub(crate) fn check_part(context: &Context<'_>, tree: &Tree, range: RangeInclusive<Key>) -> Part {
    if is_dead(tree) {
        walk(context, tree, range, &mut Nobody);
        return Part::default();
    }
    let mut files = visit::Files::new(context, tree);
    walk(context, tree, range, &mut files);
    files.finish()
}

/// Judges a tree as a whole, after all its parts.
pub(crate) fn finish_tree(context: &Context<'_>, tree: &Tree, parts: &[Part]) {
    let sum = parts.iter().fold(0u64, |sum, part| sum.wrapping_add(part.sum));
    if sum != 0 && !parts.iter().any(|part| part.lost) {
        names::explain(context, tree);
    }
}

/// Whether a tree is being deleted: what is left of it may contradict itself.
fn is_dead(tree: &Tree) -> bool {
    tree.item.refs.get() == 0
}
