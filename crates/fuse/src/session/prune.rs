//! Nodes that nobody uses any more and the kernel goes on remembering, because no name leads to them: what was open below a subvolume
//! when that was deleted. The kernel says when it forgets a node, and mostly not when one is closed (opens are answered ENOSYS). Until
//! it forgets them all the subvolume stays, and its space with it. So as long as there are such nodes, it is asked every now and then to
//! prune those that are unused (`FUSE_NOTIFY_PRUNE`, since Linux 6.18). Older kernels refuse that, and forget when memory is short.
//! So it is with nodes of which pages were refused when the kernel sent them (`mount/refused.rs`): it goes on to show what nobody has written.
//!
//! **Crash argument.** To prune an inode the kernel waits for the pages of it that are being read ahead. This process answers those
//! reads, and killed meanwhile it could neither answer nor end. (Where memory is short the kernel may make any server wait so.) So
//! it asks, for some nodes at a time, right after all reads are answered that had been queued before, as far as [`super::places`]
//! shows: to be in the way, an inode that nobody uses would have to be opened, read ahead and closed just then, by somebody whose
//! working directory is in the deleted subvolume, or, of a file of which pages were refused, by anybody just at the end of a pause. Of writing nothing is left once a file is neither open nor mapped. Pruning takes no
//! lock of a directory. No other process asks for us, as in [`super::parked`]: while it did, nobody could unmount.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::Errno;

use super::Shared;
use crate::protocol::abi::opcode;

/// From a deletion to the first time that is asked: mostly the kernel has forgotten all by then.
const FIRST: Duration = Duration::from_millis(500);
/// The same where pages were refused: who stored to them lets go of them in a moment.
const SOON: Duration = Duration::from_millis(100);
/// Longest pause where pages were refused: they are shown so long.
const LONGEST_SHOWN: Duration = Duration::from_secs(1);
/// Longest pause otherwise. Whoever works in a deleted subvolume loses what the kernel remembers of it each time.
const LONGEST: Duration = Duration::from_secs(10);
/// Nodes of one notification. Linux takes so many at a time in any case.
const NODES_MAX: usize = 512;
/// How often it is looked, where the threads of a mount have more to do than they can, whether they have received all.
const LOOKS: usize = 100;

/// What the kernel should let go of.
#[derive(Default, PartialEq, Eq)]
struct Lingers {
    /// Deleted subvolumes of which it keeps nodes.
    subvolumes: Vec<u64>,
    /// Nodes of which it may show pages that were refused.
    refused: Vec<u64>,
}

impl Lingers {
    fn is_empty(&self) -> bool {
        self.subvolumes.is_empty() && self.refused.is_empty()
    }

    fn pause(&self) -> Duration {
        if self.refused.is_empty() { FIRST } else { SOON }
    }

    fn longest(&self) -> Duration {
        if self.refused.is_empty() { LONGEST } else { LONGEST_SHOWN }
    }
}

/// Who asks, while there is somebody to ask for.
pub(super) struct Pruner {
    shared: Weak<Shared>,
    /// A thread does so. It stays set where the kernel does not know the question.
    runs: AtomicBool,
}

impl Pruner {
    pub(super) fn new(shared: Weak<Shared>) -> Self {
        Self { shared, runs: AtomicBool::new(false) }
    }
}

impl Shared {
    /// After a request of a kind that may have deleted a subvolume. Without a thread for it the next request of such a kind tries
    /// again.
    pub(super) fn prune_after(&self, opcode: u32) {
        let runs = &self.pruner.runs;
        let may_matter = match opcode {
            opcode::SETXATTR | opcode::IOCTL | opcode::RMDIR => true,
            opcode::WRITE => self.handler.shows_refused(),
            _ => false,
        };
        if !may_matter
            || runs.load(Ordering::SeqCst)
            || self.lingers().is_empty()
            || runs.swap(true, Ordering::SeqCst)
        {
            return;
        }
        let Some(shared) = self.pruner.shared.upgrade() else { return };
        let thread = std::thread::Builder::new().name("buttress-prune".to_owned());
        if thread.spawn(move || shared.prune_what_lingers()).is_err() {
            runs.store(false, Ordering::SeqCst);
        }
    }

    fn prune_what_lingers(&self) {
        let runs = &self.pruner.runs;
        let mut before = Lingers::default();
        let mut pause = self.lingers().pause();
        while !self.ends_within(pause) {
            let mut lingers = self.lingers();
            if lingers.is_empty() {
                runs.store(false, Ordering::SeqCst);
                // One may have been deleted before that was to be seen.
                lingers = self.lingers();
                if lingers.is_empty() || runs.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
            let mut nodes = self.handler.kept_of(&lingers.subvolumes);
            nodes.extend(&lingers.refused);
            // It stays set: that will not change.
            if self.prune(&nodes) == Err(Errno::INVAL) {
                return;
            }
            pause = if lingers == before {
                lingers.longest().min(pause * 3 / 2)
            } else {
                lingers.pause()
            };
            before = lingers;
        }
    }

    fn lingers(&self) -> Lingers {
        let (subvolumes, refused) = (self.handler.lingering(), self.handler.refused_nodes());
        Lingers { subvolumes, refused }
    }

    /// Asks for these nodes.
    fn prune(&self, nodes: &[u64]) -> Result<(), Errno> {
        for some in nodes.chunks(NODES_MAX) {
            if !self.places.wait_for_queued(LOOKS) {
                break;
            }
            self.channel.prune(some)?;
        }
        Ok(())
    }
}
