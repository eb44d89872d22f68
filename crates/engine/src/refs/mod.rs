//! References as a log.
//!
//! Whoever gains or loses a reference to an extent or a tree block appends one small [`Record`] to a [`RefLog`]. The
//! commit sorts and folds the log and merges it into the extent tree in one pass ([`apply`]). Which blocks several trees
//! share is decided once per block ([`Sharing`]).
//!
//! Crash argument: the log lives in memory and belongs to one commit; the extent tree that the commit writes already
//! holds all of it.

mod apply;
mod extent;
mod fold;
mod graph;
mod log;
mod owned;
pub mod owners;
mod packed;
mod root_set;
mod sharing;
pub mod usage;

pub use apply::{Applied, Form, apply};
pub use extent::Extent;
pub use graph::{Above, Added, Graph, MovingData};
pub use log::{Record, RefLog, Target};
pub use owned::Owned;
pub use root_set::{RootSet, RootSets};
pub use sharing::{By, Sharing, child_refs, may_be_shared, own_at_end};
