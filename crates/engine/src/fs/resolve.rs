//! Which files refer to the data at an address: Linux's LOGICAL_INO.
//!
//! It is of the last commit, which is made now where there is something to commit. An extent may have millions of references, so the
//! question is answered in steps, each of which holds the gate for some hundred of them ([`Resolving`]). When a commit has come between two
//! of them, it begins anew: the answer is always that of one version. Where a log waits that is only read,
//! it is that of what a replay makes of it (`replayed.rs`).

use super::Filesystem;
use crate::error::{Errno, Error, Result};
use crate::refs::owners::{Committed, Referrers, Resolving, Wanted};

/// Bytes that an answer takes while it is looked for and put in order.
const ANSWER_BYTES: u64 = 88;
/// What answers may take, as a multiple of what is kept of who reaches what, and how many there may always be: those of the buffer that
/// btrfs-progs has for them.
const ANSWERS_FACTOR: u64 = 8;
const ANSWERS_MIN: u64 = 2730;
/// How often it begins anew because a commit was faster.
const TRIES: u32 = 8;

impl Filesystem {
    /// The files that refer to the data at a logical address, in the order of Linux; fewer than are wanted where memory is little.
    /// `ENOENT` where no data extent has it, `EBUSY` when commits keep coming faster than it can be answered.
    pub fn referrers(&self, wanted: Wanted) -> Result<Referrers> {
        if !self.is_read_only() {
            self.commit()?;
        }
        self.referrers_committed(wanted).map(|(answer, _)| answer)
    }

    /// The same of the last commit, and which that is: what waits for the next one is not told.
    pub fn referrers_committed(&self, wanted: Wanted) -> Result<(Referrers, u64)> {
        let fs = self.replayed();
        let inner = fs.inner();
        let _alone = inner.resolving.lock();
        let room = inner.options.owners_bytes.saturating_mul(ANSWERS_FACTOR) / ANSWER_BYTES;
        let room = usize::try_from(room.max(ANSWERS_MIN)).unwrap_or(usize::MAX);
        let wanted = Wanted { most: wanted.most.min(room), ..wanted };
        let begin = || Resolving::new(wanted, inner.options.owners_bytes);
        let (mut resolving, mut version, mut tries) = (begin(), None, TRIES);
        loop {
            let more = inner.read(|op| {
                let roots = op.core.roots();
                let generation = roots.root.generation;
                if version.replace(generation).is_some_and(|before| before != generation) {
                    tries = tries.checked_sub(1).ok_or(Error::User(Errno::BUSY))?;
                    resolving = begin();
                }
                let committed =
                    Committed { root: roots.root, chunk: roots.chunk, extent: roots.extent };
                resolving.step(&op.core.blocks, committed)
            })?;
            if !more {
                return Ok((resolving.answer(), version.unwrap_or_default()));
            }
        }
    }
}
