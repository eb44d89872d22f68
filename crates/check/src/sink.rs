//! Where issues go: counted by kind, and kept up to a number, so that a thoroughly damaged filesystem fills no memory.

use std::sync::atomic::{AtomicU64, Ordering};

use buttress_ondisk::objectid;
use buttress_volume::VolumeError;
use parking_lot::Mutex;

use crate::{
    issue::{Issue, Place, Severity},
    kinds::Kind,
};

/// Takes issues from all threads.
#[derive(Debug)]
pub(crate) struct Sink {
    counts: Vec<AtomicU64>,
    kept: Mutex<Vec<Issue>>,
    issues_max: usize,
}

impl Sink {
    /// A sink that keeps so many issues in full.
    pub fn new(issues_max: usize) -> Sink {
        let counts = Kind::ALL.iter().map(|_| AtomicU64::new(0)).collect();
        Sink { counts, kept: Mutex::new(Vec::new()), issues_max }
    }

    /// Takes an issue. Of one kind at most a quarter of all that are kept, so that no kind hides the others.
    pub fn add(&self, issue: Issue) {
        let Some(count) = self.counts.get(issue.kind as usize) else { return };
        let before = count.fetch_add(1, Ordering::Relaxed);
        if before >= (self.issues_max / 4).max(1) as u64 {
            return;
        }
        let mut kept = self.kept.lock();
        if kept.len() < self.issues_max {
            kept.push(issue);
        }
    }

    /// How many issues of a kind there were.
    pub fn count(&self, kind: Kind) -> u64 {
        self.counts.get(kind as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Whether issues of the kind are only counted from now on.
    pub fn is_full(&self, kind: Kind) -> bool {
        self.count(kind) >= (self.issues_max / 4).max(1) as u64
    }

    /// How many issues of each kind there were, without those that did not occur.
    pub fn counts(&self) -> Vec<(Kind, u64)> {
        let all = Kind::ALL.iter().map(|&kind| (kind, self.count(kind)));
        all.filter(|(_, count)| *count > 0).collect()
    }

    /// The issues that were kept, in a stable order.
    pub fn take(&self) -> Vec<Issue> {
        let mut issues = std::mem::take(&mut *self.kept.lock());
        issues.sort();
        issues
    }
}

/// Sizes that were added up on the way, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// All extents that the extent tree records.
    pub used: u64,
    /// Checksums of data.
    pub csums: u64,
    /// Tree blocks.
    pub tree_blocks: u64,
    /// Tree blocks of subvolumes.
    pub fs_tree_blocks: u64,
    /// Tree blocks of the extent tree.
    pub extent_tree_blocks: u64,
    /// Room in tree blocks that holds nothing.
    pub waste: u64,
    /// Data extents.
    pub data_allocated: u64,
    /// File content that refers to them, uncompressed.
    pub data_referenced: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// How many issues of each kind there were, without those that did not occur.
    pub counts: Vec<(Kind, u64)>,
    /// The issues in full, up to [`crate::Options::issues_max`].
    pub issues: Vec<Issue>,
    /// Sizes.
    pub totals: Totals,
}

impl Report {
    /// The report on a filesystem that is too damaged to be opened: one issue, which says why. `None` for errors that are not about
    /// what is on the medium.
    pub fn of_refusal(error: &VolumeError) -> Option<Report> {
        let (kind, place) = match error {
            VolumeError::Superblock { .. } => (Kind::SuperBad, Place::default()),
            VolumeError::SystemArray { .. } => (Kind::SuperBad, Place::default()),
            VolumeError::DeviceItem { .. } => (Kind::SuperDevice, Place::default()),
            VolumeError::Chunk { logical, .. } => {
                (Kind::ChunkBad, Place { logical: Some(*logical), ..Place::default() })
            }
            VolumeError::ChunkPlace { logical, .. } => {
                (Kind::ChunkPlace, Place { logical: Some(*logical), ..Place::default() })
            }
            VolumeError::Block { logical, .. } | VolumeError::Unmapped { logical, .. } => {
                (Kind::TreeBlockBad, Place::block(objectid::CHUNK_TREE, *logical))
            }
            VolumeError::Tree { block, .. } => {
                (Kind::TreeKeyOrder, Place::block(objectid::CHUNK_TREE, *block))
            }
            _ => return None,
        };
        let issue = Issue::new(kind, place, error, "a filesystem that can be opened");
        Some(Report { counts: vec![(kind, 1)], issues: vec![issue], totals: Totals::default() })
    }

    /// Whether there is no error. Warnings do not count.
    pub fn is_clean(&self) -> bool {
        self.count(Severity::Error) == 0
    }

    /// How many issues of a severity there were.
    pub fn count(&self, severity: Severity) -> u64 {
        let of = self.counts.iter().filter(|(kind, _)| kind.severity() == severity);
        of.map(|(_, count)| count).sum()
    }

    /// Whether there was an issue of this kind.
    pub fn has(&self, kind: Kind) -> bool {
        self.counts.iter().any(|(found, _)| *found == kind)
    }
}
