//! Devices joined into one logical address space: superblocks, chunk map, stripes, checksummed reads.
//!
//! Trees speak of logical addresses; a [`Volume`] knows which bytes of which devices stand behind
//! them. Terms: a *chunk* maps a logical range; its *stripes* are the device ranges behind it; its
//! *profile* says how the bytes spread over them; a *copy* is one of the places that hold the same
//! byte; the *gate* (of `buttress-ondisk`) turns bytes into checked structures. Reading believes a
//! copy only when it passes the gate or has its checksum, and turns to the next one otherwise.
//!
//! Everything is written for any number of devices and every profile; what is not proven yet is
//! refused at the open, by name.

#![deny(clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::indexing_slicing, reason = "tests index what they built"))]

mod backup_roots;
mod block_io;
mod chunk_map;
mod data_io;
mod error;
mod features;
mod foreign;
mod open;
mod part;
mod plan;
mod profile;
mod super_io;
mod torn;
mod volume;
mod walk;
mod warning;
mod zero_log;

pub use buttress_device::Access;
pub use buttress_ondisk::check::Expect;
pub use chunk_map::{Chunk, ChunkFault, ChunkMap, Overlap, Stripe};
pub use data_io::Sums;
pub use error::{CopyFault, CopyFaults, ExpectedDigest, VolumeError};
pub use open::Opened;
pub use part::part_at;
pub use plan::{COPIES_MAX, Location, Piece, Row, pieces};
pub use profile::Profile;
pub use volume::{Member, Stats, Volume};
pub use walk::{TreeRoot, search, search_back, search_from, walk, walk_blocks};
pub use warning::{Age, Rescue, Warning};
pub use zero_log::{Log, zero_log};
