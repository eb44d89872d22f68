//! What keeps a block group from being vacant though nothing of it is left to move.
//!
//! The extent tree is asked what is in a group, so what it does not know stays: the group counts it as used, and it is never moved. Most often that is a
//! block of a tree that is never shared, which has lost its item. It is told with the reason, as whatever else stays.

use buttress_ondisk::{Key, kind, objectid};

use super::super::Settler;
use super::{Plan, Relocation};
use crate::error::Result;
use crate::refs::owners::Owners;
use crate::space::Range;
use crate::tree::View;

/// What to do about it.
const ADVICE: &str = "`buttress check` tells what is damaged";

impl Settler<'_, '_> {
    /// Tells what of the group is used and unknown to the extent tree, once there is nothing else to move.
    pub(super) fn tell_unsaid(
        &self,
        plan: &mut Plan,
        owners: &Owners<'_>,
        relocation: &Relocation,
    ) -> Result<()> {
        let done = &plan.done;
        let is_end = done.moved == 0 && done.too_small.is_none() && done.refused.is_none();
        let Range { start, .. } = relocation.group;
        let used = self.commit.core().space.left_in_group(start).map_or(0, |(used, _)| used);
        if !is_end || used <= self.said_of(relocation.group)? {
            return Ok(());
        }
        let before = plan.left.len();
        for tree in self.never_shared() {
            let Some(view) = self.describing(tree) else { continue };
            let group = relocation.group.start..relocation.group.end();
            let is_meant = |at| group.contains(&at) && !plan.leaves(relocation, at);
            // What cannot be read names nothing that could be.
            for (at, why) in owners.unsaid((tree, &view), is_meant).unwrap_or_default() {
                plan.leave(at, format!("{why}; {ADVICE}"));
            }
        }
        if plan.left.len() == before && relocation.but.is_empty() {
            let what = "more of the block group is in use than the extent tree knows of";
            plan.leave(start, format!("{what}; {ADVICE}"));
        }
        Ok(())
    }

    /// Bytes of a group that the extent tree knows of.
    fn said_of(&self, group: Range) -> Result<u64> {
        let core = self.commit.core();
        let node = core.features.nodesize as u64;
        let extents = View::new(&core.blocks, objectid::EXTENT_TREE, self.roots.extent);
        let last = Key::new(group.end() - 1, u8::MAX, u64::MAX);
        let (mut said, mut items) = (0_u64, extents.range(Key::new(group.start, 0, 0), last));
        while let Some(item) = items.next()? {
            said = said.saturating_add(match item.key() {
                Key { kind: kind::EXTENT_ITEM, offset, .. } => offset,
                Key { kind: kind::METADATA_ITEM, .. } => node,
                _ => 0,
            });
        }
        Ok(said)
    }
}
