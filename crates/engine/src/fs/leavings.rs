//! What a balance has left that Linux was interrupted in: it goes when somebody opens the filesystem to write.
//!
//! Relocation trees are dropped by commits, like deleted subvolumes and with them ([`crate::subvol`]). Files of relocated data are deleted by operations,
//! in bounded steps: by the worker as soon as it runs, where there is none when the filesystem is opened, and at the end if nobody has come to it. Both go
//! on after a crash with what is left, and nobody waits for them, but who moves things himself: he has it done first ([`Inner::finish_relocation`]).

use super::worker::STALLED_MAX;
use super::{Filesystem, Inner};
use crate::error::{Error, Result};
use crate::txn::Upkeep;

impl Filesystem {
    /// Whether something is left of a balance that Linux was interrupted in, of a filesystem that is open to be written. It goes by and by; [`Filesystem::clean`] waits for it.
    pub fn has_leavings(&self) -> bool {
        self.inner().forest.has_relocated_data() || self.inner().forest.has_relocation_trees()
    }
}

impl Inner {
    /// Deletes what is left of files of relocated data. Where there is no room for that it is tried again; what cannot be read stays, and is said.
    pub(super) fn drop_relocated_data(&self) -> Result<()> {
        if !self.forest.has_relocated_data() {
            return Ok(());
        }
        let tree = self.forest.relocated_data(&self.core);
        match tree.and_then(|tree| self.clean_up(&tree)) {
            Err(Error::NoSpace) => return Err(Error::NoSpace),
            Err(error) => self.core.warn(format!(
                "the data that a balance was moving cannot be let go of: {error}; their space stays taken, and the next mount tries again"
            )),
            Ok(()) => {}
        }
        self.forest.no_relocated_data();
        self.core.check_writable()
    }

    /// Drops all that is left of a balance that Linux was interrupted in, and commits. Fails where damage is in the way.
    pub(super) fn finish_relocation(&self) -> Result<()> {
        let mut stalled = 0;
        while self.forest.has_relocation_trees() {
            self.commit_for_space(Upkeep::Much)?;
            stalled = if self.forest.is_stalled() { stalled + 1 } else { 0 };
            if stalled > STALLED_MAX {
                return Err(Error::NoSpace);
            }
        }
        self.drop_relocated_data()?;
        self.commit()?;
        self.forest.why_relocation_is_stuck().map_or(Ok(()), Err)
    }
}
