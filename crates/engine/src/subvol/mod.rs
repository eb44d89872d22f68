//! Subvolumes: the trees of files, how they come, branch and go.
//!
//! The [`Forest`] holds the subvolumes that are in memory and what has changed about them in the root tree and the uuid
//! tree. It is what a commit asks for changes ([`crate::txn::Participant`]).
//!
//! **A snapshot** takes two commits. The first copies the root block of the source's new version, and notes the new tree as
//! deleted (no references, an orphan item). The second gives it its name, its references and its uuid, as an ordinary
//! operation. A crash in between leaves a tree that the next open drops; the snapshot's content never holds its own name.
//!
//! **Deletion** takes the name away at once, marks the tree dead and lets commits drop it step by step ([`drop`]), noting
//! in its root item how far they came. While files of it are held it lingers: these can be used as before. What cannot be
//! dropped because a block cannot be read stops no commit; later ones try again.

mod create;
mod delete;
mod drop;
mod forest;
mod info;
mod loaded;
mod pace;
mod pending;
mod relocation_trees;
#[cfg(test)]
mod tests;

pub use create::Place;
pub use forest::{Forest, LEAVING_COMMITS, Subvolume};
pub use info::SubvolumeInfo;
pub use loaded::Near;
pub use relocation_trees::is_half_merged;
