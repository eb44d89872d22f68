//! Whether what a batch changes can be changed.
//!
//! Where a block lies, and who refers to it, is said by trees that are never shared. Their blocks are written anew when that changes, each with all above
//! it, and each gives its one reference up, which changes what is said of it, and so on. A block without its item in the extent tree, or of another tree
//! there, would end the commit when the batch is half done. So the way to all that a batch changes is looked at first, and what needs such a block stays
//! where it is.
//!
//! Not known ahead is where new tree blocks come to: what is damaged there ends the commit, as it ends any other one that comes there.

use std::collections::{BTreeMap, BTreeSet};

use buttress_ondisk::view::InlineRef;
use buttress_ondisk::{Key, kind, objectid};

use super::super::Settler;
use crate::error::{Error, Result};
use crate::refs::owners::Owners;
use crate::space::Range;
use crate::tree::View;

/// A tree that is never shared, and a key at which it changes.
type Place = (u64, Key);
/// The same from one key to another one, both included.
type Stretch = (Place, Key);

/// What was looked at and found good.
#[derive(Default)]
pub(super) struct Ways {
    /// Blocks, which have the one reference of their tree.
    sound: BTreeSet<u64>,
    /// From a place on up to which key all is in one leaf, the way to which is sound.
    spans: BTreeMap<Place, Option<Key>>,
}

impl Ways {
    /// The key behind the leaf of a place, if the way to that was looked at.
    fn behind(&self, (tree, key): Place) -> Option<Option<Key>> {
        let (_, behind) = self.spans.range((tree, Key::MIN)..=(tree, key)).next_back()?;
        behind.is_none_or(|behind| key < behind).then_some(*behind)
    }
}

/// Where the trees change with an extent, or tree block, that comes or goes, or that is referred to by others: its item and its references behind that, and
/// what is said of free space from before it to what follows it.
fn stretches_of(extent: Range) -> [Stretch; 2] {
    let Range { start, .. } = extent;
    let free = |at| Key::new(at, u8::MAX, u64::MAX);
    [
        (
            (objectid::EXTENT_TREE, Key::new(start, kind::METADATA_ITEM, u64::MAX)),
            Key::new(start, u8::MAX, u64::MAX),
        ),
        ((objectid::FREE_SPACE_TREE, free(start)), free(extent.end())),
    ]
}

fn just(place: Place) -> Stretch {
    (place, place.1)
}

impl Settler<'_, '_> {
    /// Nothing is in the way of what changes with an extent or a tree block.
    pub(super) fn can_change(
        &self,
        ways: &mut Ways,
        owners: &Owners<'_>,
        bytenr: u64,
    ) -> Result<()> {
        self.lead_to(ways, owners, stretches_of(self.block_at(bytenr)).to_vec())
    }

    fn block_at(&self, bytenr: u64) -> Range {
        Range::new(bytenr, self.commit.core().features.nodesize as u64)
    }

    /// The same, with the checksums of data.
    pub(super) fn can_change_data(
        &self,
        ways: &mut Ways,
        owners: &Owners<'_>,
        data: Range,
    ) -> Result<()> {
        let sums = |at| Key::new(objectid::EXTENT_CSUM, kind::EXTENT_CSUM, at);
        let sums = ((objectid::CSUM_TREE, sums(data.start)), sums(data.end() - 1));
        let stretches = stretches_of(data).into_iter().chain([sums]).collect();
        self.lead_to(ways, owners, stretches)
    }

    /// The same of what a tree that is never shared has at a key.
    pub(super) fn can_change_at(
        &self,
        ways: &mut Ways,
        owners: &Owners<'_>,
        place: Place,
    ) -> Result<()> {
        self.lead_to(ways, owners, vec![just(place)])
    }

    /// The same of a block group that goes with its chunk when it is vacant.
    pub(super) fn can_remove_group(
        &self,
        ways: &mut Ways,
        owners: &Owners<'_>,
        start: u64,
    ) -> Result<()> {
        let space = &self.commit.core().space;
        let groups = match self.roots.block_group {
            Some(_) => objectid::BLOCK_GROUP_TREE,
            None => objectid::EXTENT_TREE,
        };
        let chunk = Key::new(objectid::FIRST_CHUNK_TREE, kind::CHUNK_ITEM, start);
        let device = Key::new(objectid::DEV_ITEMS, kind::DEV_ITEM, space.devid());
        let mut places = vec![
            (groups, Key::new(start, kind::BLOCK_GROUP_ITEM, u64::MAX)),
            (objectid::FREE_SPACE_TREE, Key::new(start, u8::MAX, u64::MAX)),
            (objectid::CHUNK_TREE, chunk),
            (objectid::CHUNK_TREE, device),
        ];
        places.extend(space.device_ranges_of(start).iter().map(|range| {
            (objectid::DEV_TREE, Key::new(space.devid(), kind::DEV_EXTENT, range.start))
        }));
        self.lead_to(ways, owners, places.into_iter().map(just).collect())
    }

    /// The blocks on the way to all that can be written anew, and so those on the way to what is said of these, to the end.
    fn lead_to(
        &self,
        ways: &mut Ways,
        owners: &Owners<'_>,
        mut waiting: Vec<Stretch>,
    ) -> Result<()> {
        while let Some(((tree, mut key), last)) = waiting.pop() {
            loop {
                let behind = match ways.behind((tree, key)) {
                    Some(known) => known,
                    None => self.leads_to(ways, owners, (tree, key), &mut waiting)?,
                };
                match behind {
                    Some(behind) if behind <= last => key = behind,
                    _ => break,
                }
            }
        }
        Ok(())
    }

    /// The same of the blocks on the way to one leaf; what changes with these is `waiting`. Answers the key behind the leaf.
    fn leads_to(
        &self,
        ways: &mut Ways,
        owners: &Owners<'_>,
        (tree, key): Place,
        waiting: &mut Vec<Stretch>,
    ) -> Result<Option<Key>> {
        let Some(view) = self.describing(tree) else { return Ok(None) };
        let mut met = vec![view.root().bytenr];
        let behind = view.show_way(&key, &mut |block| met.push(block.bytenr()))?;
        for bytenr in met {
            if ways.sound.contains(&bytenr) {
                continue;
            }
            if owners.count_of(bytenr, &InlineRef::TreeBlock { root: tree })? != 1 {
                let what = "a block of a tree that is never shared has no reference by that";
                return Err(Error::inconsistent(objectid::EXTENT_TREE, what, bytenr));
            }
            ways.sound.insert(bytenr);
            waiting.extend(stretches_of(self.block_at(bytenr)));
        }
        ways.spans.insert((tree, key), behind);
        Ok(behind)
    }

    /// A tree that describes the filesystem, as this commit has it by now.
    pub(super) fn describing(&self, tree: u64) -> Option<View<'_>> {
        let root = match tree {
            objectid::ROOT_TREE => Some(self.roots.root),
            objectid::CHUNK_TREE => Some(self.roots.chunk),
            _ => self.roots.by_id().iter().find(|(id, _)| *id == tree)?.1,
        };
        Some(View::new(&self.commit.core().blocks, tree, root?))
    }
}
