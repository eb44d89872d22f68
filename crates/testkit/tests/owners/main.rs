//! Who reaches which extents, and what fiemap makes of it: against a resolver that enumerates everything, and against the kernel.
#![allow(clippy::unwrap_used, reason = "a test fails where it unwraps")]

mod corpus;
mod graphs;
mod hostile;
mod judge;
mod layouts;
mod scale;
