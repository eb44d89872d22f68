//! The testkit against the machine it runs on.
#![allow(clippy::unwrap_used, reason = "a test fails where it unwraps")]

mod corpus;
mod facts;
mod figures;
mod oracle;
