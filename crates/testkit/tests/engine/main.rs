//! The library against the images that the kernel made.
#![allow(clippy::unwrap_used, reason = "a test fails where it unwraps")]

mod beside;
mod bytes;
mod checker;
mod contradictions;
mod corpus;
mod damage;
mod each;
mod emptied;
mod emptied_damaged;
mod flips;
mod memory;
mod ours;
mod swap;
mod theirs;
mod without;
