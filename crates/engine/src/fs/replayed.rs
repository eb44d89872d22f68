//! Who shares what, where a log waits that is only read.
//!
//! What such a filesystem's files are is in layers of inodes, above the last commit. Who reaches an extent is in no layer: only a commit folds that
//! into the extent tree. So with the first question about it the log is replayed and committed once more, on a device that keeps what is written in
//! memory ([`OverlayDevice`]), and a filesystem that is opened there answers from then on. Files are not read from it: a commit trusts what the
//! disk says of free space, and whoever reads what is left of a damaged filesystem must not.
//!
//! Where that fails (no room, damage, something that forbids writing) the last commit is what is told, and a warning says so and why.

use std::sync::{Arc, OnceLock};

use buttress_device::{Access, BlockDevice, OverlayDevice};
use buttress_volume::{Rescue, Volume};

use super::open::load;
use super::{Filesystem, Options};
use crate::error::Result;
use crate::log::replay::replay;
use crate::subvol::Forest;

/// A filesystem with its log replayed, made when it is asked for first.
pub(super) struct Replayed {
    device: Arc<dyn BlockDevice>,
    options: Options,
    made: OnceLock<Option<Filesystem>>,
}

impl Replayed {
    /// Of the filesystem on a device. It may have half of the memory.
    pub fn new(device: Arc<dyn BlockDevice>, options: &Options) -> Replayed {
        Replayed { device, options: options.clone(), made: OnceLock::new() }
    }

    fn make(&self) -> Result<Filesystem> {
        let share = self.options.room / 4;
        let overlay = Arc::new(OverlayDevice::within(self.device.clone(), share));
        let options = self.options.clone().cache_bytes(share);
        // Nothing that is for reading only, and with the roots of an older commit there would be no log. Quotas are nobody's business who
        // only reads.
        let rescue = Rescue { backup_super: options.rescue.backup_super, ..Rescue::default() };
        let writing = Options { write: true, rescue, ..options.clone() };
        let writing = writing.mark_quota_inconsistent(true);
        let rescue = Rescue { replays_log: true, ..rescue };
        let volume = Volume::open_rescue(vec![overlay.clone()], Access::ReadWrite, rescue)?.volume;
        let core = load(Arc::new(volume), &writing)?;
        replay(&core, &Forest::load(&core)?)?;
        drop(core);
        Filesystem::open_device(overlay, Options { room: share, ..options })
    }
}

impl Filesystem {
    /// The filesystem that knows who shares what: this one, or one with its log replayed.
    pub(super) fn replayed(&self) -> Filesystem {
        let made = |it: &Replayed| match it.make() {
            Ok(made) => Some(made),
            Err(error) => {
                self.core().warn(format!("who shares what is told of the last commit, without the log that waits: {error}"));
                None
            }
        };
        let replayed = self.inner().replayed.as_ref();
        let replayed = replayed.and_then(|it| it.made.get_or_init(|| made(it)).as_ref());
        replayed.unwrap_or(self).clone()
    }
}
