//! Whose a tree block is: what its head says about its owner, and what the extent tree says about how it refers to others.
//!
//! A block that files share refers to its children in the name of its owner, for as long as the owner itself refers to it.
//! When the owner leaves it to others, or a balance moves or copies it, it gets full backrefs: from then on it refers by its address.
//! So its owner's own reference is recorded as long as it has no full backrefs; but below a block that a balance has moved there is only that
//! one's, by its address, be it the owner's block or another's. Of a block with full backrefs nothing follows: a balance that has copied it and was
//! interrupted, or has merged otherwise, leaves it to its owner so. What the owner then reaches below it has only references by the address of that block:
//! it is right when the owner's tree leads there.

use buttress_ondisk::{
    BlockHead, Expect, Key, TreeBlock, kind, objectid,
    view::{InlineRef, inline_refs, keyed_ref},
};

use crate::{
    context::Context,
    cursor::{Cursor, Event},
    issue::Place,
    kinds::Kind,
    roots::holds_files,
};

/// How a block was reached.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Above {
    /// It is the root of its tree.
    Root,
    /// From this block, which has this owner, and may have been moved by a balance.
    Block { bytenr: u64, owner: u64, moved: bool },
}

impl Above {
    /// From a block.
    pub fn of(parent: &TreeBlock) -> Above {
        let moved = is_moved(parent);
        Above::Block { bytenr: parent.bytenr(), owner: parent.owner(), moved }
    }
}

/// Judges the owner of a block of a tree of files.
pub(crate) fn judge(context: &Context<'_>, block: &TreeBlock, tree: u64, above: Above) {
    if !holds_files(tree) {
        return;
    }
    let owner = block.owner();
    let by = match above {
        Above::Root => Some(tree),
        Above::Block { bytenr, .. } if context.full_backref.has(bytenr) => None,
        Above::Block { owner, .. } => Some(owner),
    };
    let place = || Place::block(tree, block.bytenr());
    if matches!(above, Above::Root) && owner != tree {
        return context.report(Kind::TreeBlockOwner, place(), owner, tree);
    }
    if context.full_backref.has(block.bytenr()) {
        return;
    }
    let mut parents = Vec::new();
    let recorded = match by {
        Some(root) if root == owner => Some(true),
        _ => is_recorded(context, block.bytenr(), owner, &mut parents),
    };
    let is_below_moved = || {
        matches!(above, Above::Block { moved: true, .. })
            || parents.iter().any(|parent| is_moved_at(context, *parent, block.level() + 1))
    };
    if recorded == Some(false) && !is_below_moved() && !is_led_to(context, block) {
        context.report(Kind::TreeBlockOwner, place(), owner, "a tree that refers to it");
    }
}

/// Whether the tree of a block's owner leads to it, by the block's first key; also where damage hides that.
fn is_led_to(context: &Context<'_>, block: &TreeBlock) -> bool {
    let Some(tree) = context.roots.find(block.owner()).filter(|_| !block.is_empty()) else {
        return false;
    };
    let (key, mut expect) = (block.key(0), tree.root.expect());
    loop {
        let Ok(above) = context.volume.read_block(expect.bytenr, &expect) else { return true };
        if above.level() <= block.level() || above.is_empty() {
            return false;
        }
        let child = above.child(above.child_for(&key));
        if above.level() == block.level() + 1 {
            return child.bytenr == block.bytenr();
        }
        expect = Expect {
            level: Some(above.level() - 1),
            generation: Some(child.generation),
            ..Expect::at(child.bytenr)
        };
    }
}

/// Whether a balance has moved a block.
fn is_moved(block: &TreeBlock) -> bool {
    block.flags() & BlockHead::RELOC != 0
}

/// The same of the block at an address; not where it cannot be read, which is said elsewhere.
fn is_moved_at(context: &Context<'_>, bytenr: u64, level: u8) -> bool {
    let expect = Expect { level: Some(level), ..Expect::at(bytenr) };
    context.volume.read_block(bytenr, &expect).is_ok_and(|block| is_moved(&block))
}

/// Whether the extent tree records a reference of a tree to a block; `None` when damage hides it. The blocks that refer to it by their addresses go to
/// `parents`.
fn is_recorded(
    context: &Context<'_>,
    bytenr: u64,
    tree: u64,
    parents: &mut Vec<u64>,
) -> Option<bool> {
    let extents = context.roots.find(objectid::EXTENT_TREE)?;
    let mut is_it = |found: InlineRef| {
        if let InlineRef::SharedBlock { parent } = found {
            parents.push(parent);
        }
        found == InlineRef::TreeBlock { root: tree }
    };
    let mut cursor = Cursor::at(context, extents, Key::new(bytenr, 0, 0));
    while let Some(event) = cursor.get() {
        let Event::Item(key, data) = event else { return None };
        if key.objectid != bytenr {
            break;
        }
        let found = match key.kind {
            kind::EXTENT_ITEM | kind::METADATA_ITEM => {
                inline_refs(&key, data).is_some_and(|(.., mut refs)| refs.any(&mut is_it))
            }
            _ => keyed_ref(&key, data).is_some_and(&mut is_it),
        };
        if found {
            return Some(true);
        }
        cursor.next();
    }
    Some(false)
}
