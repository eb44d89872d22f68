//! What `memory=` is for: all memory of the process that serves a mount, as `VmRSS` counts it.
//!
//! The program itself comes first, then the buffers through which data pass between the kernel and the filesystem. The
//! filesystem has the rest, and divides it as [`buttress::Options::memory`] says. With little memory, requests are
//! smaller and fewer threads read them.

use crate::session::{TRANSFER_BYTES_MAX, readers_by_default};

/// The least that a mount can do with.
pub const MEMORY_MIN: u64 = 32 << 20;
/// What a mount may use when nothing is said.
pub const MEMORY: u64 = 512 << 20;
/// Program and libraries (7 MiB), the stacks of threads, and what the work on requests and a commit takes however little waits.
const PROGRAM: u64 = 16 << 20;
/// From here on, requests are as large as they can be.
const LARGE: u64 = 128 << 20;
/// What a file takes that the kernel holds, here and in the filesystem: how often, in two tables. It comes out of the
/// memory of the filesystem.
pub const HELD_BYTES: u64 = 80;
/// The largest transfer below that, in bytes.
const SMALL_TRANSFER: u32 = 256 << 10;
/// Buffers may have this part of the memory.
const BUFFERS_SHARE: u64 = 8;

/// How the memory of a mount is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bytes for the filesystem.
    pub filesystem: u64,
    /// Threads that read requests.
    pub readers: usize,
    /// Bytes of the largest transfer.
    pub transfer_bytes: u32,
}

impl Budget {
    /// Divides `memory` bytes.
    pub fn of(memory: u64) -> Budget {
        Budget::with_readers(memory.max(MEMORY_MIN), readers_by_default())
    }

    fn with_readers(memory: u64, wanted: usize) -> Budget {
        let transfer_bytes = if memory < LARGE { SMALL_TRANSFER } else { TRANSFER_BYTES_MAX };
        // One that receives, and one for the answer to a READ.
        let each = 2 * u64::from(transfer_bytes);
        let affordable = usize::try_from(memory / BUFFERS_SHARE / each).unwrap_or(usize::MAX);
        let readers = wanted.min(affordable).max(2);
        let buffers = each * readers as u64;
        let filesystem = memory.saturating_sub(PROGRAM + buffers);
        Budget { filesystem, readers, transfer_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What [`buttress::Options::memory`] takes at least.
    const FILESYSTEM_MIN: u64 = 12 << 20;

    #[test]
    fn the_parts_are_no_more_than_the_whole() {
        for mib in [32, 64, 127, 128, 512, 4096] {
            for wanted in [2, 4, 32, 256] {
                let memory = mib << 20;
                let budget = Budget::with_readers(memory, wanted);
                let buffers = 2 * budget.readers as u64 * u64::from(budget.transfer_bytes);
                assert_eq!(budget.filesystem + buffers + PROGRAM, memory);
                assert!(buffers <= memory / BUFFERS_SHARE);
                assert!(budget.filesystem >= FILESYSTEM_MIN.max(memory / 8 * 3));
                assert!(budget.readers <= wanted);
            }
        }
    }
}
