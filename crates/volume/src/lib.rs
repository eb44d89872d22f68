//! Devices joined into one logical address space: superblocks, chunk map, stripes, checksummed reads.

mod chunk_map;
mod plan;
mod profile;

pub use chunk_map::{Chunk, ChunkFault, ChunkMap, Overlap, Stripe};
pub use plan::{COPIES_MAX, Location, Piece, Row, pieces};
pub use profile::Profile;
