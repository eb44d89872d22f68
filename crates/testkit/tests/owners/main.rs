//! Who reaches which extents, and what fiemap makes of it: against a resolver that enumerates everything, and against the kernel.
#![allow(clippy::unwrap_used, reason = "a test fails where it unwraps")]

/// A number from the environment; else `usual`, or `long` with `BUTTRESS_LONG`.
fn number(name: &str, usual: u64, long: u64) -> u64 {
    let said = std::env::var(name).ok().and_then(|text| text.parse().ok());
    let is_long = std::env::var_os("BUTTRESS_LONG").is_some();
    said.unwrap_or(if is_long { long } else { usual })
}

mod corpus;
mod graphs;
mod hostile;
mod judge;
mod layouts;
mod scale;
