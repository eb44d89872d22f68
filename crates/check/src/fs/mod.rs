//! What trees of files say about themselves: inodes, names, file extents; and what the root tree, the uuid tree and the quota
//! tree say about those trees.
//!
//! Called by [`crate::run`]: [`check_part`] for each part of each tree of files, in parallel; [`finish_tree`] when all parts of
//! a tree are done; the others once each.

use std::ops::RangeInclusive;

use buttress_ondisk::Key;

use crate::{
    context::Context,
    roots::Tree,
    walk::{Nobody, walk},
};

/// What one part of a tree leaves to be added to the others: sums that must cancel each other in the whole tree.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {}

/// Judges the inodes of a tree whose keys are in the range, which begins and ends between inodes. It has to walk all of the
/// range (subtrees known from before aside): that is also how references are counted.
pub(crate) fn check_part(context: &Context<'_>, tree: &Tree, range: RangeInclusive<Key>) -> Part {
    walk(context, tree, range, &mut Nobody);
    Part {}
}

/// Judges a tree as a whole, after all its parts.
pub(crate) fn finish_tree(_context: &Context<'_>, _tree: &Tree, _parts: &[Part]) {}

/// Judges root items, root references and the directories of the root tree. The root tree was walked already.
pub(crate) fn check_roots(_context: &Context<'_>) {}

/// Judges the uuid tree.
pub(crate) fn check_uuid_tree(context: &Context<'_>, tree: &Tree) {
    walk(context, tree, Key::MIN..=Key::MAX, &mut Nobody);
}

/// Judges the quota tree. Called last: all references are known by then.
pub(crate) fn check_quota_tree(context: &Context<'_>, tree: &Tree) {
    walk(context, tree, Key::MIN..=Key::MAX, &mut Nobody);
}
