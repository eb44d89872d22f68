//! Paths, for people. Looked up only when there is an issue to tell.

use buttress_ondisk::{Key, kind, objectid, view};
use buttress_volume::search_from;

use std::fmt;

use crate::{context::Context, issue::Place, kinds::Kind, roots::Tree};

/// Directories above each other that are followed.
const DEPTH_MAX: usize = 512;
/// Bytes of the longest path that is told.
const LEN_MAX: usize = 16 << 10;

/// A path of an inode, as far as its first name says; `None` when damage hides it.
pub(super) fn path(context: &Context<'_>, tree: &Tree, inode: u64) -> Option<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let (mut at, mut len) = (inode, 0);
    for _ in 0..DEPTH_MAX {
        if at == objectid::FIRST_FREE {
            names.reverse();
            return Some([b"/", &*names.join(&b'/')].concat());
        }
        let (parent, name) = first_name(context, tree, at)?;
        len += name.len() + 1;
        if len > LEN_MAX {
            return None;
        }
        names.push(name);
        at = parent;
    }
    None
}

/// The first name of an inode and the directory that it is in.
fn first_name(context: &Context<'_>, tree: &Tree, inode: u64) -> Option<(u64, Vec<u8>)> {
    let from = Key::new(inode, kind::INODE_REF, 0);
    let (key, data) = search_from(context.volume, &tree.root, &from).ok()??;
    match key.kind {
        _ if key.objectid != inode => None,
        kind::INODE_REF => {
            let name = view::inode_refs(&data).next()?.name.to_vec();
            Some((key.offset, name))
        }
        kind::INODE_EXTREF => {
            let found = view::inode_extrefs(&data).next()?;
            Some((found.parent, found.name.to_vec()))
        }
        _ => None,
    }
}

/// Reports an issue of an inode, with its path while issues of the kind are kept.
pub(super) fn report(
    context: &Context<'_>,
    tree: &Tree,
    kind: Kind,
    inode: u64,
    have: impl fmt::Display,
    expect: impl fmt::Display,
) {
    let mut place = Place::inode(tree.id(), inode);
    if !context.sink.is_full(kind) {
        place.path = path(context, tree, inode);
    }
    context.report(kind, place, have, expect);
}

/// Reports an issue of a name in a directory, with its path while issues of the kind are kept.
pub(super) fn report_name(
    context: &Context<'_>,
    tree: &Tree,
    kind: Kind,
    (dir, name): (u64, &[u8]),
    have: impl fmt::Display,
    expect: impl fmt::Display,
) {
    let mut place = Place::inode(tree.id(), dir);
    if !context.sink.is_full(kind) {
        let top = path(context, tree, dir);
        let slash: &[u8] = if dir == objectid::FIRST_FREE { b"" } else { b"/" };
        place.path = top.map(|top| [&*top, slash, name].concat());
    }
    context.report(kind, place, have, expect);
}
