//! The emission of a tree, cut into parts so that several threads make its leaves.
//!
//! Parts follow each other in key order. Those of which the tree holds nothing (new inodes, the names in a new directory,
//! names appended to a directory) become drafts, several at once. So do names that come into or leave a directory that is there
//! already: by hash they go to all its leaves, and those are cut into stretches. One thread then puts everything else, and grafts in
//! between what was made. Where the cuts are depends on what has changed and on the tree, never on how many threads there are.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use buttress_ondisk::{Key, kind, objectid};

use super::emit::{emit_added, emit_by_hash, emit_by_index, emit_inode};
use super::entries::{Entries, Names};
use super::state::{Changes, Frozen};
use super::tree::{Committing, FileTree};
use crate::error::Result;
use crate::refs::RefLog;
use crate::stats;
use crate::threads;
use crate::tree::{Draft, Merge, Remade, Stretch, View, Wanted};
use crate::txn::{Core, CsumLog, Emit};

/// New inodes in a part: some thirty leaves or more. Few in tests, so that they have parts.
const INODES: usize = if cfg!(test) { 4 } else { 2048 };
/// Fewer new inodes than this are not worth a draft.
const INODES_MIN: usize = if cfg!(test) { 3 } else { 1024 };
/// What parts that are made at a time may take, in bytes: many leaves for each thread, and few before the first are written.
const AT_A_TIME: usize = 32 << 20;
/// Leaves in a stretch. Fewer in tests.
const STRETCH: usize = if cfg!(test) { 2 } else { 32 };

/// Whether the entries of a directory are emitted in parts.
pub(super) fn are_cut(changes: &Changes) -> bool {
    changes.entries.as_ref().is_some_and(|entries| entries.are_many())
}

/// What follows what came before, in key order.
enum Part {
    /// These inodes, of which the tree may hold something.
    Known(Range<usize>),
    /// The same, and all of it in some leaves.
    KnownIn(Range<usize>, Stretch),
    /// These inodes, which are new.
    New(Range<usize>),
    /// Entries by name, in the order of their hashes; of which the tree holds nothing when the directory is new.
    ByHash(Directory, Range<usize>),
    /// The same, and all of it in some leaves.
    ByHashIn(Directory, Range<usize>, Stretch),
    /// Entries that are appended to a directory, by index.
    Appended(Directory, Range<usize>),
    /// All entries that come or go, by index.
    ByIndex(Directory),
}

#[derive(Clone)]
struct Directory {
    ino: u64,
    frozen: Arc<Frozen>,
    /// All names that come or go, in the order of their hashes.
    hashes: Arc<[Names]>,
}

impl Directory {
    fn entries(&self) -> Option<&Entries> {
        self.frozen.changes.entries.as_deref()
    }
}

impl Part {
    /// The most memory that its leaves may take when they are made apart, about.
    fn bytes(&self, nodesize: usize) -> usize {
        match self {
            Part::Known(_) | Part::ByIndex(_) => 0,
            // Some have data in their items.
            Part::New(range) => range.len() * 512,
            // The node, the old leaves, the new ones.
            Part::KnownIn(_, stretch) => (1 + 2 * stretch.leaves()) * nodesize,
            Part::ByHashIn(_, range, stretch) => {
                (1 + 2 * stretch.leaves()) * nodesize + range.len() * 64
            }
            Part::ByHash(_, range) | Part::Appended(_, range) => range.len() * 64,
        }
    }
}

/// The leaves of a part.
#[derive(Default)]
enum Leaves {
    /// Not made apart.
    #[default]
    None,
    New(Draft),
    Old(Remade),
}

/// What making a part apart brings.
#[derive(Default)]
struct Made {
    leaves: Leaves,
    refs: RefLog,
    csums: CsumLog,
    orphans: Vec<(u64, bool)>,
}

impl FileTree {
    /// Step 3 of a commit: everything that changed, as one ascending stream of items. Orphan items, whose object id is
    /// larger than any inode's, come last.
    pub fn emit(&self, emit: &mut Emit<'_, '_>) -> Result<()> {
        let committing = self.committing.lock();
        let old = self.root().map(|root| View::new(&emit.core.blocks, emit.tree, root));
        let parts = cut(&committing, old.as_ref())?;
        let stale = self.committing_stale_orphans();
        let mut orphans: BTreeMap<u64, bool> = stale.into_iter().map(|ino| (ino, false)).collect();
        for parts in at_a_time(&parts, emit.core) {
            let Emit { core, transid, tree, meanwhile, .. } = *emit;
            let made = threads::map(parts, |part| {
                meanwhile()?;
                make_apart((core, transid, tree), &committing, part)
            })?;
            for (part, mut made) in parts.iter().zip(made) {
                match made.leaves {
                    Leaves::None => emit_part(emit, &committing, part, &mut made.orphans)?,
                    Leaves::New(draft) => {
                        stats::add(&core.counters.grafted, draft.len() as u64);
                        emit.merge.graft(draft)?;
                    }
                    Leaves::Old(remade) => {
                        stats::add(&core.counters.grafted, remade.leaves() as u64);
                        emit.merge.take_over(remade)?;
                    }
                }
                emit.refs.append(&mut made.refs);
                emit.csums.append(&mut made.csums);
                orphans.extend(made.orphans);
            }
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

/// Parts in a row, as many as there is memory for.
fn at_a_time<'p>(parts: &'p [Part], core: &Core) -> impl Iterator<Item = &'p [Part]> {
    let nodesize = core.features.nodesize;
    let room = (core.blocks.bytes_max() as usize / 4).min(AT_A_TIME);
    let mut rest = parts;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |part: &&Part| {
            bytes += part.bytes(nodesize);
            bytes <= room
        };
        let count = rest.iter().take_while(fits).count().max(1);
        let (first, behind) = rest.split_at_checked(count)?;
        rest = behind;
        Some(first)
    })
}

/// Makes the leaves of a part, if that can be done apart from the rest.
fn make_apart(
    (core, transid, tree): (&Core, u64, u64),
    committing: &Committing,
    part: &Part,
) -> Result<Made> {
    let mut made = Made::default();
    let Made { refs, csums, orphans, .. } = &mut made;
    let fill = |merge: &mut Merge<'_>| {
        let meanwhile = &|| Ok(());
        let mut emit = Emit { merge, refs, csums, core, transid, tree, meanwhile };
        emit_part(&mut emit, committing, part, orphans)
    };
    made.leaves = match part {
        Part::Known(_) | Part::ByIndex(_) => Leaves::None,
        Part::ByHash(directory, _) if !directory.frozen.changes.created => Leaves::None,
        Part::New(_) | Part::ByHash(..) | Part::Appended(..) => {
            Leaves::New(Draft::fill(&core.blocks, tree, fill)?)
        }
        Part::KnownIn(_, stretch) | Part::ByHashIn(_, _, stretch) => {
            Leaves::Old(stretch.remake(&core.blocks, tree, fill)?)
        }
    };
    Ok(made)
}

fn emit_part(
    emit: &mut Emit<'_, '_>,
    committing: &Committing,
    part: &Part,
    orphans: &mut Vec<(u64, bool)>,
) -> Result<()> {
    match part {
        Part::Known(range) | Part::KnownIn(range, _) | Part::New(range) => {
            for (ino, inode) in committing.inodes.get(range.clone()).unwrap_or_default() {
                let Some(layer) = inode.read().committed(emit.transid) else { continue };
                emit_inode(emit, *ino, &layer)?;
                orphans.extend(layer.changes.orphan.map(|there| (*ino, there)));
            }
            Ok(())
        }
        Part::ByHash(directory, range) | Part::ByHashIn(directory, range, _) => {
            let hashes = directory.hashes.get(range.clone()).unwrap_or_default();
            let mut entries = directory.entries().into_iter();
            entries.try_for_each(|it| emit_by_hash(emit, directory.ino, it, hashes))
        }
        Part::Appended(directory, range) => {
            let entries = directory.entries().into_iter();
            let added = entries.flat_map(|it| it.added_in(range.clone()));
            emit_added(emit, directory.ino, added)
        }
        Part::ByIndex(directory) => {
            let mut entries = directory.entries().into_iter();
            entries.try_for_each(|it| emit_by_index(emit, directory.ino, it))
        }
    }
}

/// Cuts what is committed into parts. `old` is the tree before.
fn cut(committing: &Committing, old: Option<&View<'_>>) -> Result<Vec<Part>> {
    let directories = threads::map(&committing.large, |at| cut_directory(committing, *at, old))?;
    let mut parts = Vec::new();
    let mut from = 0;
    for (at, directory) in committing.large.iter().zip(directories) {
        cut_inodes(committing, from..at + 1, old, &mut parts)?;
        parts.extend(directory);
        from = at + 1;
    }
    cut_inodes(committing, from..committing.inodes.len(), old, &mut parts)?;
    Ok(parts)
}

fn cut_inodes(
    committing: &Committing,
    range: Range<usize>,
    old: Option<&View<'_>>,
    parts: &mut Vec<Part>,
) -> Result<()> {
    let mut old_to = committing.new_from.clamp(range.start, range.end);
    if range.end - old_to < INODES_MIN {
        old_to = range.end;
    }
    cut_known(committing, range.start..old_to, old, parts)?;
    let starts = (old_to..range.end).step_by(INODES);
    parts.extend(starts.map(|from| Part::New(from..(from + INODES).min(range.end))));
    Ok(())
}

/// Inodes that the tree may hold: those of which all items lie in one stretch, and those between.
fn cut_known(
    committing: &Committing,
    range: Range<usize>,
    old: Option<&View<'_>>,
    parts: &mut Vec<Part>,
) -> Result<()> {
    let inodes = committing.inodes.get(range.clone()).unwrap_or_default();
    let mut at = range.start;
    if let (Some(old), [(first, _), .., (last, _)]) = (old, inodes)
        && inodes.len() >= INODES_MIN
    {
        let keys = (Key::new(*first, 0, 0), Key::new(last + 1, 0, 0));
        let changes = |from: &Key, to: &Key| {
            let next = inodes.partition_point(|(ino, _)| Key::new(ino + 1, 0, 0) <= *from);
            inodes.get(next).is_some_and(|(ino, _)| Key::new(*ino, 0, 0) < *to)
        };
        // All items of an inode that changes are on one side of a cut.
        let is_changed = |ino| committing.inodes.binary_search_by_key(&ino, |(it, _)| *it).is_ok();
        let may_cut = |key: &Key| key.kind <= kind::INODE_ITEM || !is_changed(key.objectid);
        let wanted = Wanted { keys, most: STRETCH, changes: &changes, may_cut: &may_cut };
        for stretch in Stretch::all(old, &wanted)? {
            let before = |end: Key| {
                range.start
                    + inodes.partition_point(|(it, _)| Key::new(*it, kind::INODE_ITEM, 0) < end)
            };
            let within = before(stretch.from())..before(stretch.to());
            if within.start < within.end {
                parts.push(Part::Known(at..within.start));
                at = within.end;
                parts.push(Part::KnownIn(within, stretch));
            }
        }
    }
    parts.push(Part::Known(at..range.end));
    Ok(())
}

/// The parts of a large directory's entries.
fn cut_directory(committing: &Committing, at: usize, old: Option<&View<'_>>) -> Result<Vec<Part>> {
    let Some((ino, inode)) = committing.inodes.get(at) else { return Ok(Vec::new()) };
    let Some(frozen) = inode.read().frozen.clone() else { return Ok(Vec::new()) };
    let changes = &frozen.changes;
    let mut parts = Vec::new();
    let Some(entries) = changes.entries.as_deref() else { return Ok(parts) };
    let mut hashes = entries.hashes();
    hashes.iter_mut().for_each(|part| part.sort_unstable_by_key(|names| names.hash));
    let lens: Vec<usize> = hashes.iter().map(Vec::len).collect();
    let hashes = hashes.concat().into();
    let directory = Directory { ino: *ino, frozen: frozen.clone(), hashes };
    if changes.created {
        let mut from = 0;
        for len in lens {
            parts.push(Part::ByHash(directory.clone(), from..from + len));
            from += len;
        }
    } else {
        cut_hashes(&directory, old, &mut parts)?;
    }
    if entries.removed().next().is_none() {
        let added = entries.parts_of_added();
        parts.extend(added.map(|range| Part::Appended(directory.clone(), range)));
    } else {
        parts.push(Part::ByIndex(directory));
    }
    Ok(parts)
}

/// Names of a directory that is there already.
fn cut_hashes(directory: &Directory, old: Option<&View<'_>>, parts: &mut Vec<Part>) -> Result<()> {
    let (ino, hashes) = (directory.ino, &directory.hashes);
    let key = |hash: u32| Key::new(ino, kind::DIR_ITEM, u64::from(hash));
    let before = |end: &Key| hashes.partition_point(|names| key(names.hash) < *end);
    let changes = |from: &Key, to: &Key| before(from) < before(to);
    let keys = (key(0), Key::new(ino, kind::DIR_ITEM + 1, 0));
    let wanted = Wanted { keys, most: STRETCH, changes: &changes, may_cut: &|_| true };
    let stretches = old.map(|old| Stretch::all(old, &wanted)).transpose()?;
    let mut at = 0;
    for stretch in stretches.unwrap_or_default() {
        let within = before(&stretch.from())..before(&stretch.to());
        if within.start < within.end {
            parts.push(Part::ByHash(directory.clone(), at..within.start));
            at = within.end;
            parts.push(Part::ByHashIn(directory.clone(), within, stretch));
        }
    }
    parts.push(Part::ByHash(directory.clone(), at..hashes.len()));
    Ok(())
}
