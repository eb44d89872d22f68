//! Makes btrfs filesystems, empty or from a directory tree.
//!
//! [`make`] writes what `mkfs.btrfs` of today leaves behind: the same trees with the same items, the same chunks at the
//! same places, without the temporary chunks and the history of transactions that the original goes through. All of it
//! belongs to one first transaction, and the result depends on nothing but the device's size, the [`Options`] and the
//! [`Environment`]: the same three give the same bytes.
//!
//! Order of writes: old signatures go first, then a barrier; then every tree block, then a barrier; then the
//! superblocks, the primary last. Whoever is interrupted leaves a device without a filesystem, or a whole one.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod environment;
mod error;
mod features;
mod layout;
mod make;
mod options;
mod parse;
pub mod populate;
mod signature;
mod summary;
mod tree;
mod trees;
mod util_linux;
mod withheld;

pub use environment::{Environment, Random};
pub use error::MkfsError;
pub use features::{Feature, FeatureRequest, FeatureSet, list_features, parse_features};
pub use layout::minimum_size;
pub use make::{check, make};
pub use options::{Options, Profile};
pub use parse::{parse_checksum, parse_nodesize, parse_profile, parse_size};
pub use signature::existing_signature;
pub use summary::{Group, Summary, pretty_size};
pub use withheld::Withheld;
