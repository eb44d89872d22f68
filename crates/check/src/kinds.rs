//! The kinds of issues: one table with the stable id, the severity and the rule of each.
//!
//! Ids are for scripts and never change their meaning.

use crate::issue::Severity::{self, Error, Warning};

macro_rules! kinds {
    ($($name:ident, $severity:expr, $id:literal, $about:literal;)*) => {
        /// What rule an issue breaks.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind { $(#[doc = $about] $name,)* }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Kind] = &[$(Kind::$name,)*];

            /// The stable id, in lower case with dashes.
            pub fn id(self) -> &'static str {
                match self { $(Kind::$name => $id,)* }
            }

            /// How bad it is.
            pub fn severity(self) -> Severity {
                match self { $(Kind::$name => $severity,)* }
            }

            /// What is wrong, in a sentence.
            pub fn about(self) -> &'static str {
                match self { $(Kind::$name => $about,)* }
            }
        }
    };
}

kinds! {
    // Superblocks, chunks, devices.
    SuperBad, Error, "super-bad", "A superblock does not pass the gate.";
    SuperStale, Warning, "super-stale", "A superblock copy is of another commit than the primary.";
    // Tree blocks.
    TreeBlockBad, Error, "tree-block-bad", "No copy of a tree block can be read and passes the gate.";
    TreeBlockItem, Error, "tree-block-item", "A tree block has its checksum and still holds something that cannot be.";
    TreeBlockCopy, Warning, "tree-block-copy", "One copy of a tree block is bad, another one is good.";
    TreeKeyOrder, Error, "tree-key-order", "The keys of a block reach into the next one.";
    RootItemBad, Error, "root-item-bad", "A root item cannot be read.";
    RootMissing, Error, "root-missing", "A tree that every filesystem has is not in the root tree.";
    // Files, directories and subvolumes: crate::fs.
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_well_formed() {
        for (at, kind) in Kind::ALL.iter().enumerate() {
            assert!(Kind::ALL[at + 1..].iter().all(|other| other.id() != kind.id()), "{kind:?}");
            assert!(kind.id().bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{kind:?}");
            assert!(kind.about().ends_with('.'), "{kind:?}");
        }
    }
}
