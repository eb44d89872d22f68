//! The second look: where sums say that something is wrong, what it is.

use std::sync::Arc;

use super::{
    Referrer, SUMS, Shape,
    records::{Both, Extent, RECORD_LEN, Records},
};
use crate::{context::Context, issue::Place, kinds::Kind, progress::Phase, run, space};

/// Reads everything again, as often as memory makes it necessary, and reports what is wrong with the extents whose sums are
/// not zero. Ends early once so much was reported that more would only be counted.
pub(crate) fn explain(context: &Context<'_>) {
    let unequal = context.refs.unequal();
    let max = context.options.memory_bytes / SHARE / RECORD_LEN;
    // Each side's word on each reference, and an item: as many for each sum as for the others, or the list says that it was full.
    let each = (context.refs.total() / SUMS as u64).saturating_mul(3) / 2 + 1;
    let mut at_once = (max as u64 / each).clamp(1, SUMS as u64) as usize;
    let mut left = &unequal[..];
    while !left.is_empty() && !KINDS.iter().any(|&kind| context.sink.is_full(kind)) {
        context.progress.begin(Phase::Details, 0);
        let (sums, rest) = left.split_at(at_once.min(left.len()));
        let records = Arc::new(Records::new(context.seeds, sums, max));
        let again = context.again(Arc::clone(&records) as Arc<_>);
        space::record_again(&again);
        run::meet_all(&again);
        if records.take(|bytenr, extent| judge(context, bytenr, extent)) {
            left = rest;
        } else if sums.len() > 1 {
            at_once = sums.len() / 2;
        } else {
            too_many(context, max);
            left = rest;
        }
    }
}

/// The part of the memory that records may take: what is kept of the extent with most of them takes less than the other part.
const SHARE: usize = 4;

/// More differs in the extents of one sum than there is memory for.
fn too_many(context: &Context<'_>, max: usize) {
    let have = format_args!("more than {max} references to a few extents, which differ");
    context.report(Kind::ExtentRefCount, Place::default(), have, "memory to look closer");
}

const KINDS: [Kind; 5] = [
    Kind::ExtentItemMissing,
    Kind::ExtentUnreferenced,
    Kind::ExtentRefMissing,
    Kind::ExtentRefExtra,
    Kind::ExtentRefCount,
];

fn judge(context: &Context<'_>, bytenr: u64, extent: &Extent) {
    let found = extent.refs.iter().any(|(_, both)| both.found > 0);
    match extent.item {
        None => missing_item(context, bytenr, extent, found),
        Some(shape) if !found => {
            let have = format_args!("{} recorded references", extent.refs.len());
            let place = place(bytenr, Some(shape));
            context.report(Kind::ExtentUnreferenced, place, have, "a tree that refers to it");
        }
        Some(shape) => {
            for (by, both) in &extent.refs {
                judge_ref(context, bytenr, shape, by, both);
            }
        }
    }
}

fn missing_item(context: &Context<'_>, bytenr: u64, extent: &Extent, found: bool) {
    let shape = extent.refs.iter().find_map(|(_, both)| both.found_as);
    let by = extent.refs.first().map(|(by, _)| by);
    let place = match by {
        Some(by) => with(place(bytenr, shape), by),
        None => place(bytenr, shape),
    };
    let have = match found {
        true => "references in trees and no extent item",
        false => "recorded references and no extent item",
    };
    context.report(Kind::ExtentItemMissing, place, have, "an extent item");
}

fn judge_ref(context: &Context<'_>, bytenr: u64, shape: Shape, by: &Referrer, both: &Both) {
    let place = with(place(bytenr, Some(shape)), by);
    let counts = |kind| {
        let have = format_args!("{} recorded by {}", both.recorded, name(by));
        context.report(kind, place.clone(), have, format_args!("{}", both.found));
    };
    match (both.found, both.recorded) {
        (0, 0) => {}
        (_, 0) => counts(Kind::ExtentRefMissing),
        (0, _) => counts(Kind::ExtentRefExtra),
        (found, recorded) if found != recorded => counts(Kind::ExtentRefCount),
        _ => {}
    }
    for seen in [both.found_as, both.also_as].into_iter().flatten() {
        judge_shape(context, &place, shape, seen);
    }
}

fn judge_shape(context: &Context<'_>, place: &Place, item: Shape, seen: Shape) {
    let say = |kind, have: String, expect: String| {
        context.report(kind, place.clone(), have, expect);
    };
    match (item, seen) {
        (
            Shape::Block { level, generation },
            Shape::Block { level: seen_level, generation: seen_generation },
        ) => {
            if level != seen_level {
                say(Kind::ExtentLevel, level.to_string(), seen_level.to_string());
            }
            if generation != seen_generation {
                say(Kind::ExtentGeneration, generation.to_string(), seen_generation.to_string());
            }
        }
        (Shape::Data { len }, Shape::Data { len: seen_len }) => {
            if len != seen_len {
                say(Kind::ExtentLength, len.to_string(), seen_len.to_string());
            }
        }
        (item, seen) => say(Kind::ExtentType, shape_name(item).into(), shape_name(seen).into()),
    }
}

fn shape_name(shape: Shape) -> &'static str {
    match shape {
        Shape::Block { .. } => "a tree block",
        Shape::Data { .. } => "data",
    }
}

fn name(by: &Referrer) -> String {
    match by {
        Referrer::Tree { root } => format!("tree {root}"),
        Referrer::Block { parent } => format!("parent block {parent}"),
        Referrer::File { root, inode, offset } => {
            format!("tree {root} inode {inode} offset {}", *offset as i64)
        }
        Referrer::Leaf { parent } => format!("leaf {parent}"),
    }
}

fn place(bytenr: u64, shape: Option<Shape>) -> Place {
    let len = match shape {
        Some(Shape::Data { len }) => Some(len),
        _ => None,
    };
    Place { logical: Some(bytenr), len, ..Place::default() }
}

fn with(place: Place, by: &Referrer) -> Place {
    match *by {
        Referrer::Tree { root } => Place { tree: Some(root), ..place },
        Referrer::File { root, inode, .. } => {
            Place { tree: Some(root), inode: Some(inode), ..place }
        }
        Referrer::Block { parent } | Referrer::Leaf { parent } => {
            Place { block: Some(parent), ..place }
        }
    }
}
