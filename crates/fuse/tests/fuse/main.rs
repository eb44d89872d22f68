//! The front end against the kernel. See `server` for how the servers run.
#![allow(clippy::unwrap_used, reason = "a failed test may panic anywhere")]

mod behaviour;
#[path = "../../examples/null/filesystem.rs"]
mod filesystem;
mod kernel;
mod mapped;
mod model;
mod opens;
mod options;
mod policy;
mod requests;
mod rights;
mod server;
mod session;
