//! A device whose reads wait when told to, so that a test sees who waits with them.

use std::{ops::Range, sync::Arc};

use parking_lot::{Condvar, Mutex};

use crate::{BlockDevice, DeviceError};

#[derive(Debug, Default)]
struct State {
    held: Vec<Range<u64>>,
    /// Reads that wait.
    waiting: usize,
}

impl State {
    fn holds(&self, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len);
        self.held.iter().any(|range| range.start < end && offset < range.end)
    }
}

/// A device above another one.
#[derive(Debug)]
pub struct HoldingDevice {
    inner: Arc<dyn BlockDevice>,
    state: Mutex<State>,
    changed: Condvar,
}

impl HoldingDevice {
    /// A device that behaves like `inner` until told otherwise.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Self {
        Self { inner, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Reads that touch the range of bytes wait from now on.
    pub fn hold(&self, range: Range<u64>) {
        self.state.lock().held.push(range);
    }

    /// Returns as soon as a read waits.
    pub fn until_one_waits(&self) {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| state.waiting == 0);
    }

    /// All go on.
    pub fn let_go(&self) {
        self.state.lock().held.clear();
        self.changed.notify_all();
    }
}

impl BlockDevice for HoldingDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let len = buf.len() as u64;
        let mut state = self.state.lock();
        if state.holds(offset, len) {
            state.waiting += 1;
            self.changed.notify_all();
            self.changed.wait_while(&mut state, |state| state.holds(offset, len));
            state.waiting -= 1;
        }
        drop(state);
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.inner.write_at(offset, data)
    }

    fn barrier(&self) -> Result<(), DeviceError> {
        self.inner.barrier()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, len)
    }
}
