//! How far a check has come, for who wants to watch it from another thread.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// What a check is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Superblocks, chunks and devices.
    Devices,
    /// The extent tree, with block groups, free space and checksums beside it.
    Extents,
    /// All other trees.
    Trees,
    /// Damage is looked at closer.
    Details,
    /// Data is read and compared with its checksums.
    Data,
}

impl Phase {
    const ALL: [Phase; 5] =
        [Phase::Devices, Phase::Extents, Phase::Trees, Phase::Details, Phase::Data];

    /// A few words.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Devices => "devices",
            Phase::Extents => "extents",
            Phase::Trees => "trees",
            Phase::Details => "details",
            Phase::Data => "data",
        }
    }
}

/// A check's progress. All numbers are bytes.
#[derive(Debug, Default)]
pub struct Progress {
    phase: AtomicU8,
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// The phase, the bytes done in it, and all its bytes as far as they are known (0: not known).
    pub fn now(&self) -> (Phase, u64, u64) {
        let phase = Phase::ALL.get(usize::from(self.phase.load(Relaxed))).copied();
        (phase.unwrap_or(Phase::Devices), self.done.load(Relaxed), self.total.load(Relaxed))
    }

    pub(crate) fn begin(&self, phase: Phase, total: u64) {
        self.done.store(0, Relaxed);
        self.total.store(total, Relaxed);
        self.phase.store(phase as u8, Relaxed);
    }

    pub(crate) fn advance(&self, bytes: u64) {
        self.done.fetch_add(bytes, Relaxed);
    }
}
