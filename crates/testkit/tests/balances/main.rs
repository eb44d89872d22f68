//! What a balance leaves that Linux was interrupted in: such an image opens read-write, and what is left goes.
//!
//! The images are the kernel's: it balances a filesystem, and its backing file is cloned now and then, which is what a power loss would leave
//! ([`live`]). Some are of snapshots, small nodes, quotas, of writers beside the balance, and of conversions.

#![allow(clippy::unwrap_used, reason = "a test says by failing what went wrong")]

mod crash;
mod hostile;
mod judge;
mod live;
mod moments;
