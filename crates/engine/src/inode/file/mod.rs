//! The data of one file.
//!
//! What has changed since the last commit is held as [`FileChanges`], one for each transaction: the *live* layer of the
//! running one over the *frozen* layer of the one that commits, over the extents in the tree ([`Layers`]). A layer maps
//! ranges of whole sectors to what they hold now, and that is absolute: wherever a layer holds anything, lower layers do
//! not count. So a reader gets the same answer whether it sees the tree before or after the commit under a frozen layer.
//!
//! Small writes are buffered; large ones get an extent and go to the disk at once, with their checksums computed on the
//! way. A commit takes the layer through two steps. [`prepare()`] writes what is buffered, decides whether a
//! small file is kept in its item, and settles `nbytes`; [`FileChanges::emit`] turns the layer into items, references and
//! checksums. Data is always written to free space, or to space that the file has reserved and that reads as zeros whatever
//! is in it; never over what the last commit knows. So a crash leaves the file of the last commit.
//!
//! Where what is: `changes` has the states of a layer and what always holds of them, `check` holds a layer against that,
//! `piece` the values, `layers` looks through them. Operations: `read` and `seek`; `write`, which buffers (`buffer`), writes at
//! once (`direct`), to reserved space where it may (`prealloc`); `shape`. The commit: `prepare`, which writes the buffers
//! (`flush`), and `emit`.
//!
//! A new extent belongs to its piece alone until it is emitted: it can be cut anywhere, and what is cut off is free space
//! again after the freeze (somebody may be reading it until then). A clone makes it a shared extent first, which stays
//! whole and goes back when the last piece has let it go.

mod buffer;
mod changes;
mod check;
mod csums;
mod direct;
mod emit;
mod flush;
mod layers;
mod log;
mod map;
mod piece;
mod prealloc;
mod prepare;
mod ranges;
mod read;
mod replaced;
mod replay;
mod seek;
mod shape;
mod stored;
#[cfg(test)]
mod tests;
mod write;

pub use changes::{FILE_END, FileChanges, space_needed};
pub use flush::Layered;
pub(super) use flush::flush_all;
pub use layers::Layers;
pub use log::Logged;
pub use map::{Content, ItemAt, Segment, committed};
pub use prepare::{INLINE_MAX, Prepared, prepare};
pub use read::{Cache, ReadPlan};
pub use replay::{LoggedData, span_of};
pub use seek::{Mapping, Place, Seek};
pub use shape::{PARTS_MAX, Shared};
pub use stored::{Part, Stored, StoredIn};
pub use write::DIRECT_MIN;
