//! A device on which a commit is held up just before its superblock, so that operations and fsyncs fall into the time in which
//! it is under way. Nobody is held up for long: an fsync may have to wait for the commit, and must not wait for ever.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use buttress_device::testing::RecordingDevice;
use buttress_device::{BlockDevice, DeviceError};
use buttress_ondisk::superblock::SUPERBLOCK_OFFSETS;

/// How long the superblock is held up at most.
const PATIENCE: Duration = Duration::from_millis(40);

#[derive(Debug, Default)]
struct State {
    closed: bool,
    /// Somebody has come to the gate since it was closed.
    reached: bool,
}

/// A recording device with a gate before the primary superblock.
#[derive(Debug)]
pub struct GateDevice {
    inner: Arc<RecordingDevice>,
    state: Mutex<State>,
    changed: Condvar,
}

impl GateDevice {
    /// The gate is open.
    pub fn new(inner: Arc<RecordingDevice>) -> GateDevice {
        GateDevice { inner, state: Mutex::default(), changed: Condvar::new() }
    }

    /// The next superblock waits.
    pub fn close(&self) {
        *self.lock() = State { closed: true, reached: false };
    }

    /// Nobody waits any more.
    pub fn open(&self) {
        self.lock().closed = false;
        self.changed.notify_all();
    }

    /// Whether somebody has come to the gate; waits a little for that.
    pub fn is_reached(&self) -> bool {
        let state = self.lock();
        let waited =
            self.changed.wait_timeout_while(state, Duration::from_millis(1), |it| !it.reached);
        waited.unwrap_or_else(PoisonError::into_inner).0.reached
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self) {
        let mut state = self.lock();
        if !state.closed {
            return;
        }
        state.reached = true;
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(state, PATIENCE, |it| it.closed);
        waited.unwrap_or_else(PoisonError::into_inner).0.closed = false;
    }
}

impl BlockDevice for GateDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        if offset == SUPERBLOCK_OFFSETS[0] {
            self.pass();
        }
        self.inner.write_at(offset, data)
    }

    fn barrier(&self) -> Result<(), DeviceError> {
        self.inner.barrier()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, len)
    }
}
