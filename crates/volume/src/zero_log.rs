//! Giving up a log that waits for replay: the superblock names it no more.
//!
//! Only superblocks are read and written, so it works however damaged the trees are. What was fsynced after the last commit is lost;
//! all else stays. The primary superblock is written between barriers and its copies after it, as in a commit: a crash leaves the log, or
//! none.

use std::sync::Arc;

use buttress_device::{Access, BlockDevice};

use crate::error::VolumeError;
use crate::open::{check_supported, only_device, refuse_mounted, refuse_old};
use crate::super_io;
use crate::volume::Volume;
use crate::warning::Rescue;

/// Where a log was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// Logical address of the root of the tree that lists the logs; 0: there was none.
    pub root: u64,
    /// Its level.
    pub level: u8,
}

/// Gives up the log of the filesystem on these devices (one, for now), if one waits. What it was is returned.
pub fn zero_log(devices: Vec<Arc<dyn BlockDevice>>, rescue: Rescue) -> Result<Log, VolumeError> {
    let device = only_device(devices)?;
    let name = device.name().to_string();
    if device.is_read_only() {
        return Err(VolumeError::ReadOnly { device: name });
    }
    let chosen = super_io::choose(&*device)?;
    check_supported(&name, &chosen.superblock, Rescue::default())?;
    refuse_mounted(&*device, &chosen.superblock)?;
    refuse_old(&name, &chosen.superblock, chosen.mirror.as_ref(), rescue)?;
    if let Some(other) = chosen.replaced {
        return Err(VolumeError::Replaced { device: name, other });
    }
    let mut next = chosen.superblock;
    let log = Log { root: next.log_root.get(), level: next.log_root_level };
    if log.root != 0 {
        (next.log_root, next.log_root_level) = (0.into(), 0);
        let (sb, primary) = (chosen.superblock, chosen.primary);
        let volume = Volume::of(device, sb, primary, Access::ReadWrite, Rescue::default());
        let failed = volume.write_superblocks(&next)?;
        if let Some(error) = failed.into_iter().next() {
            return Err(error.into());
        }
    }
    Ok(log)
}
