//! Pages that were refused when the kernel sent them: what was stored to a shared mapping of a file in a read-only subvolume, or of an
//! immutable file. The kernel asks nobody before such a store and keeps the page after it was refused, so all who
//! read the file see what the disk does not have, until the page is dropped. So the nodes are listed here, and the kernel is asked
//! to let go of them (`session/prune.rs`) until it forgets them, which it does once nobody has them open or mapped.
//!
//! What there was no room for, or no way to the disk, is only counted: with the file the kernel would forget that nobody was told of that yet, which
//! whoever opens and fsyncs it next is told. Of what found no room whoever asks for all to be written is told, too, once.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::session::RefusedPages;

/// What was refused.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// As [`RefusedPages`] has them.
    no_room: AtomicU64,
    told: AtomicU64,
    by_rule: AtomicU64,
    otherwise: AtomicU64,
    /// Nodes of which the kernel may have such pages.
    nodes: Mutex<BTreeSet<u64>>,
    /// Whether there are any.
    any: AtomicBool,
}

impl Refused {
    /// Pages of `node` are refused. To be called before that is answered: who has the kernel send what it keeps looks at this then.
    pub fn add(&self, node: u64, errno: Errno) {
        let count = match errno {
            Errno::NOSPC => &self.no_room,
            // Who is at a limit of his own is told by msync(2), and is in nobody's way.
            Errno::ROFS | Errno::PERM | Errno::DQUOT => &self.by_rule,
            _ => &self.otherwise,
        };
        count.fetch_add(1, Ordering::SeqCst);
        if matches!(errno, Errno::ROFS | Errno::PERM) {
            let mut nodes = self.nodes.lock();
            nodes.insert(node);
            self.any.store(true, Ordering::SeqCst);
        }
    }

    /// How many requests were refused so far.
    pub fn so_far(&self) -> RefusedPages {
        RefusedPages {
            no_room: self.no_room.load(Ordering::SeqCst),
            told: self.told.load(Ordering::SeqCst),
            by_rule: self.by_rule.load(Ordering::SeqCst),
            otherwise: self.otherwise.load(Ordering::SeqCst),
        }
    }

    /// Somebody is told of so many that found no room.
    pub fn told(&self, count: u64) {
        self.told.fetch_max(count, Ordering::SeqCst);
    }

    /// Whether the kernel may show such pages of any node.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    /// Those of which it may, in order.
    pub fn nodes(&self) -> Vec<u64> {
        self.nodes.lock().iter().copied().collect()
    }

    /// The kernel has forgotten a node, and its pages.
    pub fn forgotten(&self, node: u64) {
        if self.any() {
            let mut nodes = self.nodes.lock();
            nodes.remove(&node);
            self.any.store(!nodes.is_empty(), Ordering::SeqCst);
        }
    }
}
