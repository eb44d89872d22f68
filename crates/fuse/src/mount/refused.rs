//! Pages that were refused when the kernel sent them: what was stored to a shared mapping of a file in a read-only subvolume, or of an
//! immutable file. The kernel asks nobody before such a store and keeps the page after it was refused, so all who
//! read the file see what the disk does not have, until the page is dropped. So the nodes are listed here, and the kernel is asked
//! to let go of them (`session/prune.rs`) until it forgets them, which it does once nobody has them open or mapped.
//!
//! What there was no room for, or no way to the disk, is only counted: with the file the kernel would forget that nobody was told of that yet, which
//! whoever opens and fsyncs it next is told. Whoever asks for all to be written is told, too, once.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::session::RefusedPages;

/// [`RefusedPages`], to be counted by many.
#[derive(Debug, Default)]
struct Counts {
    no_room: AtomicU64,
    by_rule: AtomicU64,
    otherwise: AtomicU64,
}

impl Counts {
    fn now(&self) -> RefusedPages {
        RefusedPages {
            no_room: self.no_room.load(Ordering::SeqCst),
            by_rule: self.by_rule.load(Ordering::SeqCst),
            otherwise: self.otherwise.load(Ordering::SeqCst),
        }
    }
}

/// What was refused.
#[derive(Debug, Default)]
pub(super) struct Refused {
    so_far: Counts,
    told: Counts,
    /// Nodes of which the kernel may have such pages.
    nodes: Mutex<BTreeSet<u64>>,
    /// Whether there are any.
    any: AtomicBool,
}

impl Refused {
    /// Pages of `node` are refused. To be called before that is answered: who has the kernel send what it keeps looks at this then.
    pub fn add(&self, node: u64, errno: Errno) {
        let count = match errno {
            Errno::NOSPC => &self.so_far.no_room,
            // Who is at a limit of his own, or stores to what was deleted, is told by msync(2), and is in nobody's way.
            Errno::ROFS | Errno::PERM | Errno::DQUOT | Errno::NOENT | Errno::STALE => {
                &self.so_far.by_rule
            }
            _ => &self.so_far.otherwise,
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
        self.so_far.now()
    }

    /// Of how many of them somebody was told.
    pub fn told(&self) -> RefusedPages {
        self.told.now()
    }

    /// Somebody is told of these.
    pub fn tell(&self, refused: RefusedPages) {
        self.told.no_room.fetch_max(refused.no_room, Ordering::SeqCst);
        self.told.by_rule.fetch_max(refused.by_rule, Ordering::SeqCst);
        self.told.otherwise.fetch_max(refused.otherwise, Ordering::SeqCst);
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
