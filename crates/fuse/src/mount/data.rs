//! File contents. Reads go from a buffer straight to the kernel, writes from the receive buffer
//! straight to the filesystem. There are as many buffers as there are reads at a time.

use buttress::ondisk::item::mode::SET_IDS;

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

use super::Mount;
use super::caller::{Caller, Capability};
use super::control::Control;
use super::store::{Allocate, Answer, Store};
use crate::options::AccessTimes;
use crate::protocol::abi;
use crate::protocol::channel::{Body, Reply, Request};

/// Most bytes one COPY_FILE_RANGE copies; the caller asks again for the rest.
const COPY_BYTES_MAX: u64 = 1 << 30;
/// Longest READ answered, in bytes; the kernel asks for at most `max_pages`.
const READ_BYTES_MAX: usize = 4 << 20;

impl<S: Store> Mount<S> {
    pub(super) fn read(&self, request: &Request<'_>, mut reply: Reply<'_>) {
        let wish: abi::ReadIn = match request.body().read() {
            Ok(wish) => wish,
            Err(errno) => return reply.refuse(errno),
        };
        let size = (wish.size as usize).min(READ_BYTES_MAX);
        if let Some(room) = reply.room(size) {
            match self.read_into(request.nodeid(), &wish, room) {
                Ok(length) => reply.filled(length),
                Err(errno) => reply.refuse(errno),
            }
            return;
        }
        let mut buffer = self.buffers.lock().pop().unwrap_or_default();
        if buffer.len() < size {
            buffer.resize(size, 0);
        }
        match buffer.get_mut(..size).ok_or(Errno::INVAL) {
            Ok(room) => match self.read_into(request.nodeid(), &wish, room) {
                Ok(length) => reply.parts(&[room.get(..length).unwrap_or_default()]),
                Err(errno) => reply.refuse(errno),
            },
            Err(errno) => reply.refuse(errno),
        }
        self.buffers.lock().push(buffer);
    }

    fn read_into(&self, id: u64, wish: &abi::ReadIn, room: &mut [u8]) -> Answer<usize> {
        let node = self.node(id)?;
        let (length, attributes) = self.store.read(&node, wish.offset, room)?;
        if wish.flags & OFlags::NOATIME.bits() == 0 {
            self.accessed_with(&node, &attributes);
        }
        Ok(length)
    }

    pub(super) fn write(&self, request: &Request<'_>) -> Answer<abi::WriteOut> {
        let mut body = request.body();
        let wish: abi::WriteIn = body.read()?;
        let written = self.write_as(request, &wish, body);
        if let Err(errno) = &written
            && wish.write_flags & abi::WRITE_CACHE != 0
        {
            self.refused.add(request.nodeid(), *errno);
        }
        written
    }

    fn write_as(
        &self,
        request: &Request<'_>,
        wish: &abi::WriteIn,
        mut body: Body<'_>,
    ) -> Answer<abi::WriteOut> {
        let data = body.bytes(wish.size as usize)?;
        let node = self.node(request.nodeid())?;
        let cached = wish.write_flags & abi::WRITE_CACHE != 0;
        // Pages of a shared mapping. With its own cache of writes the kernel has set times of change already, and sends them.
        let timed = cached && self.policy.writeback_cache;
        // What was written before the file was protected the kernel has sent before that. Pages that come later would be a way
        // around it: this kernel lets such a file be opened for writing and mapped.
        self.may_write(&node, if cached { u64::MAX } else { wish.offset })?;
        let known = if cached { self.unchanged(&node, wish.offset, data)? } else { 0 };
        let (offset, data) = (wish.offset + known as u64, data.get(known..).unwrap_or_default());
        if wish.write_flags & abi::WRITE_KILL_SUIDGID != 0 {
            self.clear_set_ids(request, &node)?;
        }
        let written = match timed {
            _ if data.is_empty() => 0,
            false => self.store.write(&node, offset, data)?,
            true => self.store.write_back(&node, offset, data)?,
        };
        let size = u32::try_from(known + written).map_err(|_| Errno::IO)?;
        self.file_changed(abi::WriteOut { size, padding: 0 })
    }

    pub(super) fn fallocate(&self, request: &Request<'_>) -> Answer<()> {
        let wish: abi::FallocateIn = request.body().read()?;
        let how = allocation(wish.mode)?;
        let node = self.node(request.nodeid())?;
        match how {
            Allocate::Reserve { .. } => self.may_write(&node, u64::MAX)?,
            Allocate::Punch | Allocate::Zero { .. } => self.may_write(&node, 0)?,
        }
        self.end_set_ids(request, &node)?;
        self.store.allocate(&node, wish.offset, wish.length, how)?;
        self.file_changed(())
    }

    pub(super) fn copy_file_range(&self, request: &Request<'_>) -> Answer<abi::WriteOut> {
        let copied = self.copy(request)?;
        let size = u32::try_from(copied).map_err(|_| Errno::OVERFLOW)?;
        Ok(abi::WriteOut { size, padding: 0 })
    }

    pub(super) fn copy_file_range_64(
        &self,
        request: &Request<'_>,
    ) -> Answer<abi::CopyFileRangeOut> {
        Ok(abi::CopyFileRangeOut { bytes_copied: self.copy(request)? })
    }

    /// Clears set-id bits before a change whose request does not say whether the caller may keep
    /// them.
    fn end_set_ids(&self, request: &Request<'_>, node: &S::Node) -> Answer<()> {
        let mode = self.store.attributes(node)?.mode;
        if mode & SET_IDS == 0 || Caller::of(request).has(Capability::Fsetid) {
            return Ok(());
        }
        self.clear_set_ids(request, node)
    }

    fn copy(&self, request: &Request<'_>) -> Answer<u64> {
        let wish: abi::CopyFileRangeIn = request.body().read()?;
        let (from, to) = (self.node(request.nodeid())?, self.node(wish.nodeid_out)?);
        self.may_write(&to, wish.off_out)?;
        self.end_set_ids(request, &to)?;
        let length = wish.len.min(COPY_BYTES_MAX);
        let copied = self.store.copy((&from, wish.off_in), (&to, wish.off_out), length)?;
        self.file_changed(copied)
    }
}

impl<S: Control> Mount<S> {
    /// There are no handles: an open is only allowed or refused.
    pub(super) fn open(&self, request: &Request<'_>) -> Answer<abi::OpenOut> {
        let wish: abi::OpenIn = request.body().read()?;
        self.may_open(&self.node(request.nodeid())?, OFlags::from_bits_retain(wish.flags))?;
        // With `strictatime`, what is read after it is asked for, and moves the access time.
        let open_flags = match self.policy.access_times {
            AccessTimes::Strict => 0,
            _ => abi::fopen::KEEP_CACHE,
        };
        Ok(abi::OpenOut { open_flags, ..abi::OpenOut::default() })
    }
}

/// What a mode of fallocate(2) asks for.
fn allocation(mode: u32) -> Answer<Allocate> {
    const KEEP_SIZE: u32 = FallocateFlags::KEEP_SIZE.bits();
    const PUNCH: u32 = FallocateFlags::PUNCH_HOLE.bits() | KEEP_SIZE;
    const ZERO: u32 = FallocateFlags::ZERO_RANGE.bits();
    const ZERO_KEEP: u32 = ZERO | KEEP_SIZE;
    match mode {
        0 => Ok(Allocate::Reserve { keep_size: false }),
        KEEP_SIZE => Ok(Allocate::Reserve { keep_size: true }),
        PUNCH => Ok(Allocate::Punch),
        ZERO => Ok(Allocate::Zero { keep_size: false }),
        ZERO_KEEP => Ok(Allocate::Zero { keep_size: true }),
        _ => Err(Errno::OPNOTSUPP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modes_of_fallocate() {
        assert_eq!(allocation(0), Ok(Allocate::Reserve { keep_size: false }));
        assert_eq!(allocation(3), Ok(Allocate::Punch));
        assert_eq!(allocation(0x11), Ok(Allocate::Zero { keep_size: true }));
        assert_eq!(allocation(2), Err(Errno::OPNOTSUPP));
        assert_eq!(allocation(8), Err(Errno::OPNOTSUPP));
    }
}
