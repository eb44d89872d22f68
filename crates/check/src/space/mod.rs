//! Space: extents, block groups, free space and checksums, read side by side in the order of their addresses.
//!
//! The address space is cut into ranges: each chunk, and what is between chunks. A range is the work of one thread: it reads
//! the range's part of the extent tree, and beside it those of the block group, free space and checksum trees. So nothing has
//! to be remembered but where each tree stands.

mod cache;
mod coverage;
mod extents;
mod free;
mod range;

pub(crate) use coverage::run as csum_run;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use buttress_ondisk::{objectid, superblock::compat_ro};
use buttress_volume::Chunk;

use crate::{
    context::{Context, add},
    issue::Place,
    kinds::Kind,
    roots::Tree,
    run::in_parallel,
};

/// A range of logical addresses, up to and with the last one.
#[derive(Debug)]
pub(crate) struct Range {
    pub first: u64,
    pub last: u64,
    /// The chunk that it is; `None` between chunks.
    pub chunk: Option<Chunk>,
}

/// The trees that speak of space. Absent: it is not used, or cannot be read.
pub(crate) struct Trees {
    pub extents: Tree,
    pub groups: Option<Tree>,
    pub free: Option<Tree>,
    pub csums: Option<Tree>,
}

impl Trees {
    /// `None` without an extent tree: then nothing can be said about space.
    fn of(context: &Context<'_>) -> Option<Trees> {
        let find = |id| context.roots.find(id).copied();
        let has = |bits| context.sb.compat_ro_flags.get() & bits == bits;
        let free = compat_ro::FREE_SPACE_TREE | compat_ro::FREE_SPACE_TREE_VALID;
        Some(Trees {
            extents: find(objectid::EXTENT_TREE)?,
            groups: find(objectid::BLOCK_GROUP_TREE).filter(|_| has(compat_ro::BLOCK_GROUP_TREE)),
            free: find(objectid::FREE_SPACE_TREE).filter(|_| has(free)),
            csums: find(objectid::CSUM_TREE),
        })
    }
}

/// The whole address space in ranges.
fn ranges(context: &Context<'_>) -> Vec<Range> {
    let mut ranges = Vec::new();
    let mut at = 0;
    for chunk in context.volume.chunks() {
        if at < chunk.logical {
            ranges.push(Range { first: at, last: chunk.logical - 1, chunk: None });
        }
        at = chunk.end();
        ranges.push(Range { first: chunk.logical, last: at - 1, chunk: Some(chunk) });
    }
    ranges.push(Range { first: at, last: u64::MAX, chunk: None });
    ranges
}

/// Judges all of the space, and counts the references that the extent tree records.
pub(crate) fn check(context: &Context<'_>) {
    let Some(trees) = Trees::of(context) else { return };
    let caches = cache::Caches::of(context);
    let (used, whole) = (AtomicU64::new(0), AtomicBool::new(true));
    in_parallel(context.options.threads, &ranges(context), |one| {
        match range::check(context, &trees, &caches, one) {
            Some(bytes) => add(&used, bytes),
            None => whole.store(false, Relaxed),
        }
    });
    let (used, recorded) = (used.into_inner(), context.sb.bytes_used.get());
    add(&context.sizes.used, used);
    if whole.into_inner() && used != recorded {
        context.report(Kind::SuperUsed, Place::default(), recorded, used);
    }
}

/// Counts the references that the extent tree records once more, judging nothing.
pub(crate) fn record_again(context: &Context<'_>) {
    let Some(trees) = Trees::of(context) else { return };
    in_parallel(context.options.threads, &ranges(context), |range| {
        extents::read(context, &trees.extents, range, &mut extents::Nobody);
    });
}
