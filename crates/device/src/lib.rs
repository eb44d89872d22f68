//! Block devices: files, disks, memory, windows, overlays, and a recording, faulting one for tests.
//!
//! Everything above this crate sees storage through [`BlockDevice`]: exact reads and writes at byte
//! offsets, and a [`barrier`](BlockDevice::barrier) that makes everything written before it durable.
//! Nothing here knows btrfs. The trait is small on purpose: a test device that tears, loses or
//! refuses writes ([`testing`]) then covers every layer above.
//!
//! Ordering contract: between two barriers, writes may reach the medium in any order, torn at
//! 512-byte sectors, or not at all. After a barrier returns without an error, all writes that had
//! returned before it was called are on the medium. After a barrier fails nothing is known about
//! the writes since the last good one, and repeating the barrier does not help.

#![deny(clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::indexing_slicing, reason = "tests index what they built"))]

mod chunks;
mod claim;
mod error;
mod file;
mod holders;
mod kernel;
mod lock;
mod memory;
mod offset;
mod overlay;
pub mod testing;

use std::{fmt, path::PathBuf};

pub use claim::Claim;
pub use error::{DeviceError, Op};
pub use file::{Access, FileDevice};
pub use holders::{UsedFiles, lock_holders, refuse_used};
pub use kernel::{disk_user, lost_mount};
pub use lock::Reader;
pub use memory::MemoryDevice;
pub use offset::OffsetDevice;
pub use overlay::OverlayDevice;

/// Storage that is read and written at byte offsets.
///
/// Shared as `Arc<dyn BlockDevice>`; every method may be called from several threads at once.
/// Writes of different threads to the same bytes leave some mix of them.
pub trait BlockDevice: Send + Sync + fmt::Debug {
    /// A name for messages: the path, or what stands in for one.
    fn name(&self) -> &str;

    /// Size in bytes that it has now: a file may be cut short by others.
    fn size(&self) -> u64;

    /// Whether every write is refused.
    fn is_read_only(&self) -> bool;

    /// The file or disk that this is (part of), and where in it this begins, in bytes. `None` when there is none, as for
    /// memory. For programs that look at it for us.
    fn place(&self) -> Option<(PathBuf, u64)> {
        None
    }

    /// What its users should hear about it: who else may be changing it now.
    fn concerns(&self) -> Vec<String> {
        Vec::new()
    }

    /// Fills `buf` from `offset` (bytes), wholly or not at all usefully: on an error the content
    /// of `buf` is unspecified. A range past the end is [`DeviceError::OutOfRange`].
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes all of `data` at `offset` (bytes). Durable only after a [`barrier`](Self::barrier).
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError>;

    /// Writes `parts` one behind the other from `offset` (bytes) on, as one write.
    fn write_parts_at(&self, offset: u64, parts: &[&[u8]]) -> Result<(), DeviceError> {
        match parts {
            [all] => self.write_at(offset, all),
            _ => self.write_at(offset, &parts.concat()),
        }
    }

    /// Returns when everything written before the call is durable.
    fn barrier(&self) -> Result<(), DeviceError>;

    /// Says that the content of the range (bytes) is not needed any more. A hint: afterwards the
    /// range reads as anything. Devices that cannot use it do nothing.
    fn discard(&self, _offset: u64, _len: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Whether it may be of use to [`discard`](Self::discard): `false` once what holds it was seen to do nothing then.
    fn can_discard(&self) -> bool {
        true
    }
}
