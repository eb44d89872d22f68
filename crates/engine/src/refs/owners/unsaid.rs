//! Blocks of trees that are never shared, of which the extent tree does not say what it has to.
//!
//! Each of them has one reference, by its tree. One that has none, or no item at all, is never written anew and never moves: the commit that lets go of it
//! would end there. So who is going to have such a tree changed, and can do without, looks first; and where something keeps a block group from being vacant of
//! which the extent tree says nothing, it is looked for here.

use buttress_ondisk::objectid;
use buttress_ondisk::view::InlineRef;

use super::Owners;
use crate::error::Result;
use crate::tree::View;

impl Owners<'_> {
    /// The blocks of tree `tree` that have not their one reference, of those that `is_meant` takes: where they are, and what is wrong with each.
    pub fn unsaid(
        &self,
        (tree, view): (u64, &View<'_>),
        is_meant: impl Fn(u64) -> bool,
    ) -> Result<Vec<(u64, String)>> {
        let mut met = Vec::new();
        view.each_block(&mut |bytenr, _| {
            if is_meant(bytenr) {
                met.push(bytenr);
            }
        })?;
        let wrong = |bytenr| Some((bytenr, self.why_unsaid(tree, bytenr)?));
        Ok(met.into_iter().filter_map(wrong).collect())
    }

    fn why_unsaid(&self, tree: u64, bytenr: u64) -> Option<String> {
        let why = match self.count_of(bytenr, &InlineRef::TreeBlock { root: tree }) {
            Ok(1) => return None,
            Ok(_) => "its item in the extent tree has no reference by that tree".to_string(),
            Err(error) => error.to_string(),
        };
        let name = name_of(tree);
        Some(format!("the block at {bytenr} of the {name} tree cannot be written anew: {why}"))
    }
}

fn name_of(tree: u64) -> &'static str {
    match tree {
        objectid::ROOT_TREE => "root",
        objectid::EXTENT_TREE => "extent",
        objectid::CHUNK_TREE => "chunk",
        objectid::DEV_TREE => "device",
        objectid::CSUM_TREE => "checksum",
        objectid::QUOTA_TREE => "quota",
        objectid::UUID_TREE => "uuid",
        objectid::FREE_SPACE_TREE => "free space",
        objectid::BLOCK_GROUP_TREE => "block group",
        _ => "same",
    }
}
