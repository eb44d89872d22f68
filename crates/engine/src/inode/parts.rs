//! The emission of a tree, cut into parts so that several threads make its leaves.
//!
//! Parts follow each other in key order. Those of which the tree holds nothing (new inodes, the names in a new directory,
//! names appended to a directory) become drafts, several at once; then one thread puts everything else and grafts the
//! drafts in between. Where the cuts are depends on what has changed only, never on how many threads there are.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use buttress_ondisk::{Key, kind, objectid};

use super::emit::{emit_added, emit_by_hash, emit_inode};
use super::entries::Entries;
use super::state::Changes;
use super::tree::{Committing, FileTree};
use crate::error::Result;
use crate::refs::RefLog;
use crate::stats;
use crate::threads;
use crate::tree::Draft;
use crate::txn::{CsumLog, Emit};

/// New inodes in a part: a hundred leaves or more. Few in tests, so that they have parts.
const INODES: usize = if cfg!(test) { 4 } else { 8192 };
/// Fewer new inodes than this are not worth a draft.
const INODES_MIN: usize = if cfg!(test) { 3 } else { 1024 };

/// Whether the entries of a directory by name are emitted in parts: nothing of them is in the tree.
pub(super) fn by_hash(changes: &Changes) -> bool {
    changes.created && changes.entries.as_ref().is_some_and(|entries| entries.are_many())
}

/// Whether the entries of a directory by index are emitted in parts: they come after all that the tree holds.
pub(super) fn by_index(changes: &Changes) -> bool {
    let entries = changes.entries.as_ref();
    entries.is_some_and(|entries| entries.are_many() && entries.removed().next().is_none())
}

/// What follows what came before, in key order.
enum Part {
    /// These inodes, of which the tree may hold something.
    Known(Range<usize>),
    /// These inodes, which are new.
    New(Range<usize>),
    /// Entries of a new directory, by name.
    ByHash(Directory, Vec<u32>),
    /// Entries that are appended to a directory, by index.
    ByIndex(Directory, Range<usize>),
}

#[derive(Clone)]
struct Directory {
    ino: u64,
    changes: Arc<Changes>,
}

impl Directory {
    fn entries(&self) -> Option<&Entries> {
        self.changes.entries.as_deref()
    }
}

/// What a draft brings besides its leaves.
#[derive(Default)]
struct Made {
    draft: Draft,
    refs: RefLog,
    csums: CsumLog,
    orphans: Vec<(u64, bool)>,
}

impl FileTree {
    /// Step 3 of a commit: everything that changed, as one ascending stream of items. Orphan items, whose object id is
    /// larger than any inode's, come last.
    pub fn emit(&self, emit: &mut Emit<'_, '_>) -> Result<()> {
        let committing = self.committing.lock();
        let parts = cut(&committing)?;
        let (core, transid, tree) = (emit.core, emit.transid, emit.tree);
        let drafts = threads::map(&parts, |part| {
            let mut made = Made::default();
            if !matches!(part, Part::Known(_)) {
                let Made { refs, csums, orphans, .. } = &mut made;
                made.draft = Draft::fill(&core.blocks, tree, |merge| {
                    let mut emit = Emit { merge, refs, csums, core, transid, tree };
                    emit_part(&mut emit, &committing, part, orphans)
                })?;
            }
            Ok(made)
        })?;
        let stale = self.committing_stale_orphans();
        let mut orphans: BTreeMap<u64, bool> = stale.into_iter().map(|ino| (ino, false)).collect();
        for (part, mut made) in parts.iter().zip(drafts) {
            if let Part::Known(_) = part {
                emit_part(emit, &committing, part, &mut made.orphans)?;
            }
            stats::add(&core.counters.grafted, made.draft.len() as u64);
            emit.merge.graft(made.draft)?;
            emit.refs.append(&mut made.refs);
            emit.csums.append(&mut made.csums);
            orphans.extend(made.orphans);
        }
        for (ino, there) in orphans {
            let key = Key::new(objectid::ORPHAN, kind::ORPHAN_ITEM, ino);
            match there {
                true => emit.merge.put(key, &[])?,
                false => emit.merge.delete(&key).map(|_| ())?,
            }
        }
        Ok(())
    }
}

fn emit_part(
    emit: &mut Emit<'_, '_>,
    committing: &Committing,
    part: &Part,
    orphans: &mut Vec<(u64, bool)>,
) -> Result<()> {
    match part {
        Part::Known(range) | Part::New(range) => {
            for (ino, inode) in committing.inodes.get(range.clone()).unwrap_or_default() {
                let Some(frozen) = inode.read().frozen.clone() else { continue };
                emit_inode(emit, *ino, &frozen)?;
                orphans.extend(frozen.changes.orphan.map(|there| (*ino, there)));
            }
            Ok(())
        }
        Part::ByHash(directory, hashes) => {
            let mut hashes = hashes.clone();
            hashes.sort_unstable();
            let mut entries = directory.entries().into_iter();
            entries.try_for_each(|it| emit_by_hash(emit, directory.ino, it, &hashes))
        }
        Part::ByIndex(directory, range) => {
            let entries = directory.entries().into_iter();
            let added = entries.flat_map(|it| it.added_in(range.clone()));
            emit_added(emit, directory.ino, added)
        }
    }
}

/// Cuts what is committed into parts.
fn cut(committing: &Committing) -> Result<Vec<Part>> {
    let directories = threads::map(&committing.large, |at| Ok(cut_directory(committing, *at)))?;
    let mut parts = Vec::new();
    let mut from = 0;
    for (at, directory) in committing.large.iter().zip(directories) {
        cut_inodes(committing, from..at + 1, &mut parts);
        parts.extend(directory);
        from = at + 1;
    }
    cut_inodes(committing, from..committing.inodes.len(), &mut parts);
    Ok(parts)
}

fn cut_inodes(committing: &Committing, range: Range<usize>, parts: &mut Vec<Part>) {
    let old_to = committing.new_from.clamp(range.start, range.end);
    if range.end - old_to < INODES_MIN {
        parts.push(Part::Known(range));
        return;
    }
    parts.push(Part::Known(range.start..old_to));
    let starts = (old_to..range.end).step_by(INODES);
    parts.extend(starts.map(|from| Part::New(from..(from + INODES).min(range.end))));
}

/// The parts of a large directory's entries.
fn cut_directory(committing: &Committing, at: usize) -> Vec<Part> {
    let Some((ino, inode)) = committing.inodes.get(at) else { return Vec::new() };
    let Some(frozen) = inode.read().frozen.clone() else { return Vec::new() };
    let directory = Directory { ino: *ino, changes: frozen.changes };
    let mut parts = Vec::new();
    let Some(entries) = directory.entries() else { return parts };
    if by_hash(&directory.changes) {
        let hashes = entries.hashes().into_iter();
        parts.extend(hashes.map(|hashes| Part::ByHash(directory.clone(), hashes)));
    }
    if by_index(&directory.changes) {
        let added = entries.parts_of_added();
        parts.extend(added.map(|range| Part::ByIndex(directory.clone(), range)));
    }
    parts
}
