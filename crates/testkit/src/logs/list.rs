//! The workloads. Names say what was done and what was fsynced, and stay.

mod named;
mod pairs;
mod shapes;
mod single;

use super::{PLAIN, Workload};

/// The files that most workloads change, committed.
pub(super) const BASE: &str = "\
    mkdir d; mkdir e; mkdir d/sub; mkdir d/empty; \
    file d/f; write d/f 0 20000; setxattr d/f user.a 20; \
    file d/g; write d/g 0 100; \
    file d/big; write d/big 0 256k; \
    file d/two; write d/two 0 9000; link d/two e/two; \
    file e/x; write e/x 0 5000; \
    symlink d/l f; fifo d/p; file d/p2; file d/sub/s; write d/sub/s 0 3000";

/// All workloads.
pub fn all() -> Vec<Workload> {
    [single::workloads(), pairs::workloads(), named::workloads(), shapes::workloads()]
        .into_iter()
        .flatten()
        .collect()
}

/// A workload on what most filesystems are, on a new mount.
fn plain(name: String, before: &str, after: String) -> Workload {
    Workload { name, shape: PLAIN, before: before.to_owned(), anew: true, after }
}
