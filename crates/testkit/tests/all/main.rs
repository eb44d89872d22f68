//! The testkit against the machine it runs on.

mod facts;
mod oracle;
