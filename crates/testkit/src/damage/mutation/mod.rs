//! Mutations: any member of any structure of an image, made something else.
//!
//! The table of [`super::kinds`] names the damage that somebody thought of. This is the other half: a generator that knows
//! only the layouts of the format, takes an image apart into classes (the items of one kind in one kind of tree, the heads of
//! tree blocks, items and child pointers, the superblock), picks a class, one of its members and a field, and writes another
//! number there, or takes the item out, puts it in a second time, or makes it longer or shorter. Checksums are put right, so
//! that only a checker that knows what the field means can see it. Rare kinds come as often as frequent ones.
//!
//! Both checkers are asked about each mutation (`verdict`). What `btrfs check` reports, ours has to report; where only ours
//! does, a reason has to be in a table ([`excuses`]).

mod census;
mod change;
mod excuses;
mod kernel;
mod shape;
mod value;
mod verdict;

pub use census::Census;
pub use change::mutate;
pub use excuses::{Excuse, excuse, excuses};
pub use kernel::complaint;
pub use verdict::{Asked, Theirs, Verdicts, ask};
