//! Development only: image corpus, facts about trees, kernel and btrfs-progs oracles.
//!
//! Tests compare buttress with the real thing. This crate drives the real thing (`oracle`), puts
//! what a mounted tree shows into a comparable form (`facts`), and describes the kernel-made
//! images that have to be read identically (`corpus`). `model` and `ops` are a filesystem in memory and random operations
//! on both; `crash` replays every state that a power loss may leave of them. `logs` has the logs that Linux leaves,
//! `usage` what subvolumes take, counted by walking all of them.

pub mod corpus;
pub mod crash;
pub mod damage;
pub mod differential;
pub mod facts;
pub mod load;
pub mod logs;
pub mod mapped;
pub mod memory;
pub mod model;
pub mod ops;
pub mod oracle;
pub mod reach;
pub mod usage;
