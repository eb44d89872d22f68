//! A device that fails when told to: the N-th operation of a kind, a range of bytes, from some
//! moment on altogether; that shrinks, turns read-only, or applies a write and still reports a
//! failure. Rules can be changed while it is in use.

use std::{io, ops::Range, sync::Arc};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{BlockDevice, DeviceError, Op, error::check_range};

/// How much of a write or discard takes effect although it reports a failure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    #[default]
    Nothing,
    /// The first half, in sectors of 512 bytes.
    Half,
    /// All of it.
    Whole,
}

/// One planned failure of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationFault {
    /// Which operations are counted; `None` counts all.
    pub op: Option<Op>,
    /// How many of them succeed first, counted from the moment the fault is planned.
    pub after: u64,
    /// Whether it, and each later one, fails; otherwise only one does.
    pub sticky: bool,
    /// How much takes effect all the same.
    pub effect: Effect,
    /// What the failure is called.
    pub errno: Errno,
    /// Whether it is a panic instead ([`PANIC`]), before anything takes effect.
    pub panics: bool,
}

/// What a planned panic says.
pub const PANIC: &str = "a planned panic of the device";

impl Default for OperationFault {
    /// The next operation fails (EIO) and does nothing.
    fn default() -> Self {
        let (op, effect, errno) = (None, Effect::Nothing, Errno::IO);
        Self { op, after: 0, sticky: false, effect, errno, panics: false }
    }
}

#[derive(Debug, Default)]
struct Rules {
    operations: Vec<OperationFault>,
    ranges: Vec<(Op, Range<u64>)>,
    size: Option<u64>,
    read_only: bool,
    gone: bool,
    counts: [u64; 5],
    failed: u64,
}

/// What the rules say about one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Pass,
    Fail(Effect, Errno),
    Panic,
}

/// A device with scripted failures above another one.
#[derive(Debug)]
pub struct FaultyDevice {
    inner: Arc<dyn BlockDevice>,
    rules: Mutex<Rules>,
}

impl FaultyDevice {
    /// A device that behaves like `inner` until told otherwise.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Self {
        Self { inner, rules: Mutex::default() }
    }

    /// Plans a failure of an operation counted from now.
    pub fn fail_operation(&self, fault: OperationFault) {
        self.rules.lock().operations.push(fault);
    }

    /// Fails, once, the `n`-th write from now (0 is the next).
    pub fn fail_write(&self, n: u64) {
        let op = Some(Op::Write);
        self.fail_operation(OperationFault { op, after: n, ..OperationFault::default() });
    }

    /// Fails, once, the `n`-th barrier from now (0 is the next).
    pub fn fail_barrier(&self, n: u64) {
        let op = Some(Op::Barrier);
        self.fail_operation(OperationFault { op, after: n, ..OperationFault::default() });
    }

    /// Fails every operation of this kind that touches the range of bytes.
    pub fn fail_range(&self, op: Op, range: Range<u64>) {
        self.rules.lock().ranges.push((op, range));
    }

    /// The device is gone: everything fails (ENODEV).
    pub fn vanish(&self) {
        self.rules.lock().gone = true;
    }

    /// The device now ends at `size` bytes.
    pub fn shorten(&self, size: u64) {
        self.rules.lock().size = Some(size);
    }

    /// The device refuses writes, or takes them again.
    pub fn set_read_only(&self, read_only: bool) {
        self.rules.lock().read_only = read_only;
    }

    /// Flips all bits of a range of the inner device: bit rot.
    pub fn rot(&self, range: Range<u64>) -> Result<(), DeviceError> {
        let mut buf = vec![0; range.end.saturating_sub(range.start) as usize];
        self.inner.read_at(range.start, &mut buf)?;
        buf.iter_mut().for_each(|byte| *byte = !*byte);
        self.inner.write_at(range.start, &buf)
    }

    /// Forgets every rule.
    pub fn heal(&self) {
        let mut rules = self.rules.lock();
        *rules = Rules { counts: rules.counts, failed: rules.failed, ..Rules::default() };
    }

    /// Operations of this kind so far, failed ones too.
    pub fn count(&self, op: Op) -> u64 {
        self.rules.lock().counts.get(op as usize).copied().unwrap_or(0)
    }

    /// Operations that a planned failure has met so far.
    pub fn failed(&self) -> u64 {
        self.rules.lock().failed
    }

    fn judge(&self, op: Op, offset: u64, len: u64) -> Result<Verdict, DeviceError> {
        let mut rules = self.rules.lock();
        if let Some(count) = rules.counts.get_mut(op as usize) {
            *count += 1;
        }
        if rules.gone {
            let source = io::Error::from(rustix::io::Errno::NODEV);
            return Err(DeviceError::io(self.name(), op, offset, len as usize, source));
        }
        if rules.read_only && matches!(op, Op::Write | Op::Discard) {
            return Err(DeviceError::read_only(self.name(), op, offset, len));
        }
        if let Some(size) = rules.size {
            check_range(self.name(), size, op, offset, len)?;
        }
        Ok(rules.verdict(op, offset, len))
    }

    /// Does as much of an operation as the rules allow: `action` is given the bytes.
    fn perform(
        &self,
        op: Op,
        offset: u64,
        len: u64,
        action: impl FnOnce(u64) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        match self.judge(op, offset, len)? {
            Verdict::Pass => action(len),
            Verdict::Panic => panic!("{PANIC}"),
            Verdict::Fail(effect, errno) => {
                match effect {
                    Effect::Nothing => {}
                    Effect::Half => action(len / 2 / 512 * 512)?,
                    Effect::Whole => action(len)?,
                }
                let source = io::Error::from(errno);
                Err(DeviceError::io(self.name(), op, offset, len as usize, source))
            }
        }
    }
}

impl Rules {
    fn verdict(&mut self, op: Op, offset: u64, len: u64) -> Verdict {
        let end = offset.saturating_add(len);
        let touches = |range: &Range<u64>| range.start < end && offset < range.end;
        if self.ranges.iter().any(|(kind, range)| *kind == op && touches(range)) {
            return Verdict::Fail(Effect::Nothing, Errno::IO);
        }
        let mut verdict = Verdict::Pass;
        self.operations.retain_mut(|fault| {
            if fault.op.is_some_and(|kind| kind != op) {
                return true;
            }
            if fault.after > 0 {
                fault.after -= 1;
                return true;
            }
            verdict = match fault.panics {
                true => Verdict::Panic,
                false => Verdict::Fail(fault.effect, fault.errno),
            };
            fault.sticky
        });
        self.failed += u64::from(verdict != Verdict::Pass);
        verdict
    }
}

impl BlockDevice for FaultyDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.rules.lock().size.unwrap_or_else(|| self.inner.size())
    }

    fn is_read_only(&self) -> bool {
        self.rules.lock().read_only || self.inner.is_read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let len = buf.len() as u64;
        self.perform(Op::Read, offset, len, |_| self.inner.read_at(offset, buf))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let write = |len: u64| match data.get(..len as usize) {
            Some(part) if !part.is_empty() => self.inner.write_at(offset, part),
            _ => Ok(()),
        };
        self.perform(Op::Write, offset, data.len() as u64, write)
    }

    fn barrier(&self) -> Result<(), DeviceError> {
        self.perform(Op::Barrier, 0, 0, |_| self.inner.barrier())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.perform(Op::Discard, offset, len, |len| self.inner.discard(offset, len))
    }
}
