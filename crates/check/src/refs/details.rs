//! The second look: where sums say that something is wrong, what it is.

use std::sync::Arc;

use super::{
    Referrer, SUMS, Shape,
    records::{Both, Extent, Records},
};
use crate::{context::Context, issue::Place, kinds::Kind, progress::Phase, run, space};

/// Bytes of memory that a kept reference takes, with its share of the maps.
const RECORD_LEN: u64 = 256;

/// Reads everything again, as often as memory makes it necessary, and reports what is wrong with the extents whose sums are
/// not zero. Ends early once so much was reported that more would only be counted.
pub(crate) fn explain(context: &Context<'_>) {
    let unequal = context.refs.unequal();
    if unequal.is_empty() {
        return;
    }
    let each = (context.refs.total() / SUMS as u64 + 1) * RECORD_LEN;
    let at_once = (context.options.memory_bytes as u64 / each).clamp(1, SUMS as u64) as usize;
    for sums in unequal.chunks(at_once) {
        context.progress.begin(Phase::Details, 0);
        let records = Arc::new(Records::new(context.seeds, sums));
        let again = context.again(Arc::clone(&records) as Arc<_>);
        space::record_again(&again);
        run::meet_all(&again);
        for (bytenr, extent) in records.take() {
            judge(context, bytenr, &extent);
        }
        if KINDS.iter().any(|&kind| context.sink.is_full(kind)) {
            break;
        }
    }
}

const KINDS: [Kind; 5] = [
    Kind::ExtentItemMissing,
    Kind::ExtentUnreferenced,
    Kind::ExtentRefMissing,
    Kind::ExtentRefExtra,
    Kind::ExtentRefCount,
];

fn judge(context: &Context<'_>, bytenr: u64, extent: &Extent) {
    let found = extent.refs.values().any(|both| both.found > 0);
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
    let shape = extent.refs.values().find_map(|both| both.found_as);
    let by = extent.refs.keys().next();
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
