//! What a file names without having a reference to it stays where it is.
//!
//! An extent whose reference no file meets is met where that reference leads: the file names something else there. Whose that is, its own references do not
//! say, so whoever moved it would take it from the file. Where it was moved before, or its group was, it is too late: who names what cannot be known
//! without a look at all trees.

use buttress_ondisk::view::InlineRef;
use buttress_ondisk::{Key, kind, objectid};

use super::super::Settler;
use super::{Plan, Relocation};
use crate::error::{Error, Result};
use crate::refs::owners::{FileRef, Owners};
use crate::space::Range;
use crate::tree::View;

impl Settler<'_, '_> {
    /// Leaves an extent where it is, and what files name instead of it.
    pub(super) fn leave(
        &self,
        plan: &mut Plan,
        owners: &mut Owners<'_>,
        relocation: &Relocation,
        (bytenr, error): (u64, Error),
    ) {
        plan.leave(bytenr, error.to_string());
        // What cannot be read names nothing that could be.
        let named = named_instead(owners, bytenr).unwrap_or_default();
        for range in named.into_iter().filter_map(|range| part_in(range, relocation.group)) {
            let found = self.extents_in(range).unwrap_or_default();
            let why = format!("a file that has a reference to {bytenr} names it, or a part of it");
            let is_new = |at: &u64| *at >= relocation.group.start && !plan.leaves(relocation, *at);
            for at in found.into_iter().filter(is_new).collect::<Vec<_>>() {
                plan.leave(at, why.clone());
            }
        }
    }

    /// The extents that have something of a range.
    fn extents_in(&self, range: Range) -> Result<Vec<u64>> {
        let core = self.commit.core();
        let extents = View::new(&core.blocks, objectid::EXTENT_TREE, self.roots.extent);
        let first = extents.last_key(&Key::new(range.start, kind::METADATA_ITEM, u64::MAX))?;
        let first = first.map_or(range.start, |key| key.objectid);
        let last = Key::new(range.end() - 1, u8::MAX, u64::MAX);
        let (mut found, mut items) = (Vec::new(), extents.range(Key::new(first, 0, 0), last));
        while let Some(item) = items.next()? {
            let key = item.key();
            if key.kind == kind::EXTENT_ITEM
                && key.objectid.saturating_add(key.offset) > range.start
            {
                found.push(key.objectid);
            }
        }
        Ok(found)
    }
}

/// What two ranges both have.
fn part_in(range: Range, group: Range) -> Option<Range> {
    let (start, end) = (range.start.max(group.start), range.end().min(group.end()));
    (start < end).then(|| Range::new(start, end - start))
}

/// What files name where references to an extent lead.
fn named_instead(owners: &mut Owners<'_>, bytenr: u64) -> Result<Vec<Range>> {
    let (head, refs) = owners.references(bytenr)?;
    let mut named = Vec::new();
    for one in refs {
        let InlineRef::ExtentData { root, objectid, offset, count } = one else { continue };
        let file = FileRef { ino: objectid, offset, count };
        named.extend(owners.named_instead(root, (bytenr, head.len), file)?);
    }
    Ok(named.into_iter().map(|(at, len)| Range::new(at, len)).collect())
}
