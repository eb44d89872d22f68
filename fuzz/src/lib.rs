//! What the fuzz targets share: the reader of the fuzzer's bytes, images that it may change, ways through a filesystem.
//!
//! `fuzz/prepare` makes the images and the seeds (`src/seeds.rs`); `make fuzz-smoke` runs every target for a minute. A
//! finding becomes a test in the crate where the fault was, with its bytes built in code.

pub mod blocks;
pub mod explore;
pub mod image;
pub mod input;
