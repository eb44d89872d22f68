//! FUSE over io_uring: a ring of one entry, as one thread uses it.
//!
//! Linux 6.14 and newer hand a request to whoever serves it without read(2) and write(2): a thread lends the kernel a piece of
//! memory, its *entry*, and waits on its ring; the kernel fills in a request; the thread puts the answer in the same
//! place, and gives it back and waits for the next request with one system call. Each processor has a queue of its own, in which
//! the requests of programs on that processor wait for entries, so that who asks and who answers can stay on one processor.
//! (The kernel's documentation: `filesystems/fuse/fuse-io-uring`; the numbers are those of the public headers `linux/fuse.h`
//! and `linux/io_uring.h`.)
//!
//! An entry is two pieces of memory: the head, a `Head`, with the kernel's header of a request or an answer, the fixed part of
//! a request and how much follows; and the payload: all else that a request has, and all of an answer but its header.
//!
//! # Unsafe
//!
//! The kernel writes to the entry and reads from it behind the compiler's back. It does so between the submission of an
//! entry and its completion, and at no other time. So [`Ring::wait`] takes the ring exclusively, and no reference to the entry
//! exists meanwhile; `lent` says that the kernel has it, and then nobody gets a reference. Where a ring is dropped while the kernel has
//! the entry (which only a panic between the two could do), its memory is leaked. The rings' own memory is shared
//! with the kernel all the time: it is touched through raw pointers only, its indices through atomics, and what the kernel says
//! of its layout is checked against the length of the mapping before the first use.
#![allow(unsafe_code, reason = "memory that the kernel writes to; see above")]

use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapMut, MmapOptions, MmapRaw, UncheckedAdvice};
use rustix::io::Errno;
use rustix::io_uring::{
    IoringEnterFlags, IoringFeatureFlags, IoringSetupFlags, io_uring_enter, io_uring_params,
    io_uring_setup,
};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::abi::{InHeader, OutHeader, opcode};
use super::channel::{Gathered, Request, Tray};

/// `IORING_OP_URING_CMD`.
const URING_CMD: u8 = 46;
/// `FUSE_IO_URING_CMD_REGISTER`.
const REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`.
const COMMIT_AND_FETCH: u32 = 2;
/// `IORING_OFF_SQ_RING` and `IORING_OFF_SQES`.
const OFFSETS: (u64, u64) = (0, 0x1000_0000);
/// The head has a page of its own, so that the payload begins at one.
const HEAD_BYTES: usize = 4096;
/// The largest fixed part of a request.
const FIXED_BYTES: usize = 128;
/// Room for the answers to requests whose payload is still looked at: those have no data.
const SIDE_BYTES: usize = 512;
/// What [`Ring::body`] keeps of its room.
const BODY_BYTES: usize = 4096;
/// A payload that took no more is not worth giving back.
const LEAN_BYTES: usize = 64 << 10;

/// What travels beside the payload (`struct fuse_uring_req_header`).
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
struct Head {
    /// The header of a request or an answer.
    in_out: [u8; 128],
    /// The fixed part of a request.
    fixed: [u8; FIXED_BYTES],
    flags: u64,
    /// Which request an answer is for.
    commit_id: u64,
    /// Bytes of the payload.
    payload_bytes: u32,
    padding: u32,
    reserved: u64,
}
const _: () = assert!(size_of::<Head>() == 288 && size_of::<Head>() <= HEAD_BYTES);

/// A submission (`struct io_uring_sqe` of 128 bytes) with a command for FUSE (`struct fuse_uring_cmd_req`).
#[repr(C)]
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, Immutable)]
struct Submission {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    command: u32,
    padding: u32,
    address: u64,
    length: u32,
    command_flags: u32,
    user_data: u64,
    unused: [u32; 2],
    fuse_flags: u64,
    commit_id: u64,
    queue: u16,
    rest: [u8; 62],
}
const _: () = assert!(size_of::<Submission>() == 128);
const _: () = assert!(offset_of!(Submission, fuse_flags) == 48);

/// `struct io_uring_cqe`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Completion {
    user_data: u64,
    result: i32,
    flags: u32,
}

/// `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Piece {
    address: *const u8,
    length: usize,
}

/// A ring with one entry. It belongs to the thread that made it: the kernel refuses all others.
pub struct Ring {
    fd: OwnedFd,
    /// Indices of both queues, and completions.
    shared: MmapRaw,
    submissions: MmapRaw,
    at: Offsets,
    /// The head, and from the next page on the payload. Taken out where it is leaked.
    entry: Option<MmapMut>,
    /// The next submission, if there is one.
    next: Option<Submission>,
    /// The kernel has the entry.
    lent: bool,
    /// See [`Ring::found_none`].
    found_none: bool,
    /// Bytes of the payload that the last request and its answer took at most.
    used: usize,
    /// Answers to requests whose payload is still looked at.
    side: Box<[u8; SIDE_BYTES]>,
    /// Requests whose payload is overwritten by the answer.
    body: Vec<u8>,
    /// Not for other threads.
    _here: std::marker::PhantomData<*const ()>,
}

/// Where in the shared memory things are.
#[derive(Clone, Copy)]
struct Offsets {
    submission_tail: usize,
    completion_head: usize,
    completion_tail: usize,
    completion_mask: u32,
    completions: usize,
}

/// What became of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// There is a request.
    Request,
    /// The mount is gone.
    Ended,
}

impl Ring {
    /// A ring of the calling thread, with room for `payload_bytes` of a request or an answer. Fails where the system allows no rings.
    pub fn new(payload_bytes: usize) -> io::Result<Self> {
        // SAFETY: all zeros is a value of this struct of numbers.
        let mut params: io_uring_params = unsafe { MaybeUninit::zeroed().assume_init() };
        params.flags = IoringSetupFlags::SQE128
            | IoringSetupFlags::SINGLE_ISSUER
            | IoringSetupFlags::DEFER_TASKRUN
            | IoringSetupFlags::NO_SQARRAY;
        // SAFETY: the kernel reads and writes the struct, which is valid, within the call.
        let fd = unsafe { io_uring_setup(1, &mut params) }?;
        if !params.features.contains(IoringFeatureFlags::SINGLE_MMAP) {
            return Err(Errno::NOSYS.into());
        }
        let at = Offsets {
            submission_tail: params.sq_off.tail as usize,
            completion_head: params.cq_off.head as usize,
            completion_tail: params.cq_off.tail as usize,
            completion_mask: params.cq_entries.checked_sub(1).ok_or(Errno::PROTO)?,
            completions: params.cq_off.cqes as usize,
        };
        let shared_bytes = at.completions + params.cq_entries as usize * size_of::<Completion>();
        let indices = [at.submission_tail, at.completion_head, at.completion_tail];
        let fits = |offset: &usize| offset.is_multiple_of(4) && offset + 4 <= shared_bytes;
        if !params.cq_entries.is_power_of_two()
            || !at.completions.is_multiple_of(align_of::<Completion>())
            || !indices.iter().all(fits)
        {
            return Err(Errno::PROTO.into());
        }
        let map =
            |offset, length| MmapOptions::new().offset(offset).len(length).map_raw(fd.as_raw_fd());
        let shared = map(OFFSETS.0, shared_bytes)?;
        let submissions = map(OFFSETS.1, size_of::<Submission>())?;
        let entry = Some(MmapMut::map_anon(HEAD_BYTES + payload_bytes)?);
        let side = Box::new([0; SIDE_BYTES]);
        Ok(Self {
            fd,
            shared,
            submissions,
            at,
            entry,
            next: None,
            lent: false,
            found_none: false,
            used: 0,
            side,
            body: Vec::new(),
            _here: std::marker::PhantomData,
        })
    }

    /// Puts the entry in a processor's queue, which from here on counts on this thread. `device` is the mount's /dev/fuse.
    ///
    /// # Errors
    /// What the kernel refuses; then the queue does not have the entry.
    pub fn register(&mut self, device: BorrowedFd<'_>, queue: u16) -> Result<(), Errno> {
        let entry = self.entry.as_mut().ok_or(Errno::INVAL)?;
        let payload_bytes = entry.len() - HEAD_BYTES;
        let start = entry.as_mut_ptr();
        let pieces = [
            Piece { address: start, length: size_of::<Head>() },
            Piece { address: start.wrapping_add(HEAD_BYTES), length: payload_bytes },
        ];
        self.submit(Submission {
            command: REGISTER,
            address: pieces.as_ptr() as u64,
            length: 2,
            fd: device.as_raw_fd(),
            queue,
            ..Submission::new_zeroed()
        });
        while self.enter(1, 0, IoringEnterFlags::empty())? == 0 {
            std::thread::yield_now();
        }
        match self.completed() {
            Some(result) if result < 0 => {
                self.lent = false;
                Err(Errno::from_raw_os_error(result.saturating_neg()))
            }
            // A request there is when it is waited for only.
            Some(_) => Err(Errno::PROTO),
            None => Ok(()),
        }
    }

    /// Waits for the first request after [`Ring::register`]. After that: gives back the answer that [`Ring::serve`] has
    /// gathered, and waits for the next request.
    ///
    /// With `lean`, the memory of a large request or answer goes back to the system before the wait. With `watch`, it is found
    /// out whether a request was there already when the answer was given back ([`Ring::found_none`]), which takes a system call.
    ///
    /// # Errors
    /// What the kernel refuses; then the queue has lost this entry.
    pub fn wait(
        &mut self,
        device: BorrowedFd<'_>,
        queue: u16,
        lean: bool,
        watch: bool,
    ) -> Result<Waited, Errno> {
        let result = match self.next.take() {
            Some(answer) => {
                self.submit(Submission { fd: device.as_raw_fd(), queue, ..answer });
                self.complete(1, lean && self.used > LEAN_BYTES, watch)?
            }
            None if self.lent => self.complete(0, false, false)?,
            None => return Err(Errno::INVAL),
        };
        self.lent = false;
        if result >= 0 {
            return Ok(Waited::Request);
        }
        match Errno::from_raw_os_error(result.saturating_neg()) {
            Errno::NOTCONN | Errno::CONNABORTED | Errno::NODEV | Errno::CANCELED => {
                Ok(Waited::Ended)
            }
            error => Err(error),
        }
    }

    /// Whether no request was waiting in the queue when the last wait began, as far as was watched.
    pub fn found_none(&self) -> bool {
        self.found_none
    }

    fn index(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: aligned and within the mapping (`Ring::new`), which lives as long as this ring; both sides use it atomically.
        unsafe { AtomicU32::from_ptr(self.shared.as_mut_ptr().add(offset).cast()) }
    }

    /// Puts a submission where the kernel finds it when it is told; from here on it has the entry.
    fn submit(&mut self, submission: Submission) {
        let submission = Submission { opcode: URING_CMD, ..submission };
        // SAFETY: the mapping has room for one, begins at a page, and the kernel reads it only when it is told of the new tail.
        unsafe { ptr::write(self.submissions.as_mut_ptr().cast(), submission) };
        self.lent = true;
        let tail = self.index(self.at.submission_tail);
        tail.store(tail.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Tells the kernel of what is still `to_submit`, and waits until the entry comes back.
    fn complete(&mut self, mut to_submit: u32, lean: bool, watch: bool) -> Result<i32, Errno> {
        self.found_none = false;
        if lean || watch {
            // What is there by now comes with this call.
            to_submit -= self.enter(to_submit, 0, IoringEnterFlags::GETEVENTS)?.min(to_submit);
            self.found_none = to_submit == 0 && self.completed_at().is_none();
            if lean && self.found_none {
                self.forget_payload();
            }
        }
        loop {
            if let Some(result) = self.completed() {
                return Ok(result);
            }
            to_submit -= self.enter(to_submit, 1, IoringEnterFlags::GETEVENTS)?.min(to_submit);
        }
    }

    fn enter(&self, submit: u32, wait_for: u32, flags: IoringEnterFlags) -> Result<u32, Errno> {
        // SAFETY: no pointers are passed. What the submission points to lives as long as `Ring::register` (the pieces, which are
        // read when it is submitted) or until it is completed (the entry).
        match unsafe { io_uring_enter(&self.fd, submit, wait_for, flags) } {
            Err(Errno::INTR | Errno::AGAIN | Errno::BUSY) => Ok(0),
            other => other,
        }
    }

    /// The memory of the payload goes back to the system. The answer in it has been given back, and there is no request yet.
    fn forget_payload(&self) {
        let Some(entry) = &self.entry else { return };
        let payload_bytes = entry.len() - HEAD_BYTES;
        // SAFETY: nobody refers to the payload, and what is in it is of no use any more. The kernel fills in a request
        // only while this thread is in `io_uring_enter` (DEFER_TASKRUN).
        let advised = unsafe {
            entry.unchecked_advise_range(UncheckedAdvice::DontNeed, HEAD_BYTES, payload_bytes)
        };
        // It only takes more memory then.
        drop(advised);
    }

    fn completed_at(&self) -> Option<u32> {
        let at = self.index(self.at.completion_head).load(Ordering::Relaxed);
        let tail = self.index(self.at.completion_tail).load(Ordering::Acquire);
        (at != tail).then_some(at)
    }

    fn completed(&self) -> Option<i32> {
        let at = self.completed_at()?;
        let place = (at & self.at.completion_mask) as usize * size_of::<Completion>();
        let place = self.at.completions + place;
        // SAFETY: within the mapping and aligned (`Ring::new`); the kernel has written it before it moved the tail.
        let completion: Completion = unsafe { ptr::read(self.shared.as_ptr().add(place).cast()) };
        self.index(self.at.completion_head).store(at.wrapping_add(1), Ordering::Release);
        Some(completion.result)
    }

    /// Has the request handled that the kernel has put in the entry, and keeps the answer for [`Ring::wait`].
    ///
    /// # Errors
    /// `PROTO`: the kernel speaks another language.
    pub fn serve(&mut self, handle: impl FnOnce(&Request<'_>, Tray<'_>)) -> Result<(), Errno> {
        if self.lent {
            return Err(Errno::BUSY);
        }
        let entry = self.entry.as_mut().ok_or(Errno::INVAL)?;
        let (head, payload) = entry.split_at_mut(HEAD_BYTES);
        let (head, _) = Head::mut_from_prefix(head).map_err(|_| Errno::PROTO)?;
        let commit_id = head.commit_id;
        self.used = head.serve(payload, &mut self.body, &mut self.side, handle)?;
        self.next =
            Some(Submission { command: COMMIT_AND_FETCH, commit_id, ..Submission::new_zeroed() });
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.lent {
            // The kernel may still write to it.
            std::mem::forget(self.entry.take());
        }
    }
}

impl Head {
    /// Handles a request and puts the answer in its place. Returns the bytes of the payload that one of them took.
    ///
    /// The data of a WRITE stay in the payload, and `side` has room for the answer. All other requests are small: they move to
    /// `body`, so that what they ask for can be put in the payload at once.
    fn serve(
        &mut self,
        payload: &mut [u8],
        body: &mut Vec<u8>,
        side: &mut [u8; SIDE_BYTES],
        handle: impl FnOnce(&Request<'_>, Tray<'_>),
    ) -> Result<usize, Errno> {
        let (header, _) = InHeader::read_from_prefix(&self.in_out).map_err(|_| Errno::PROTO)?;
        let payload_bytes = self.payload_bytes as usize;
        let lengths = size_of::<InHeader>() + payload_bytes;
        let fixed_bytes = (header.len as usize).checked_sub(lengths).ok_or(Errno::PROTO)?;
        let fixed = self.fixed.get(..fixed_bytes).ok_or(Errno::PROTO)?;
        let data = payload.get(..payload_bytes).ok_or(Errno::PROTO)?;
        let mut gathered = Gathered::default();
        if header.opcode == opcode::WRITE {
            let request = Request::in_parts(header, fixed, data).ok_or(Errno::PROTO)?;
            handle(&request, Tray::new(side, &mut gathered));
            let answer = side.get(..gathered.length).ok_or(Errno::PROTO)?;
            payload.get_mut(..answer.len()).ok_or(Errno::PROTO)?.copy_from_slice(answer);
        } else {
            body.clear();
            body.extend_from_slice(fixed);
            body.extend_from_slice(data);
            let request = Request::in_parts(header, &[], body).ok_or(Errno::PROTO)?;
            handle(&request, Tray::new(payload, &mut gathered));
            body.shrink_to(BODY_BYTES);
        }
        self.payload_bytes = u32::try_from(gathered.length).map_err(|_| Errno::TOOBIG)?;
        let len = size_of::<OutHeader>() as u32 + self.payload_bytes;
        let answer = OutHeader { len, error: gathered.error, unique: header.unique };
        answer.write_to_prefix(&mut self.in_out).map_err(|_| Errno::PROTO)?;
        Ok(payload_bytes.max(gathered.length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::abi::{GetxattrIn, GetxattrOut, WriteIn, WriteOut};
    use crate::protocol::channel::{Channel, Reply};
    use std::os::fd::AsFd;

    fn channel() -> Channel {
        Channel::new(std::os::unix::net::UnixStream::pair().unwrap().0.into())
    }

    fn head(opcode: u32, fixed: &[u8], payload_bytes: usize) -> Head {
        let len = (size_of::<InHeader>() + fixed.len() + payload_bytes) as u32;
        let header = InHeader { len, opcode, unique: 7, ..InHeader::default() };
        let mut head = Head::new_zeroed();
        header.write_to_prefix(&mut head.in_out).unwrap();
        head.fixed[..fixed.len()].copy_from_slice(fixed);
        head.payload_bytes = payload_bytes as u32;
        head
    }

    fn answer(head: &Head) -> OutHeader {
        OutHeader::read_from_prefix(&head.in_out).unwrap().0
    }

    fn serve(
        head: &mut Head,
        payload: &mut [u8],
        handle: impl FnOnce(&Request<'_>, Reply<'_>),
    ) -> Result<usize, Errno> {
        let channel = channel();
        let handle = |request: &Request<'_>, tray: Tray<'_>| {
            handle(request, Reply::gathered(&channel, request, tray));
        };
        head.serve(payload, &mut Vec::new(), &mut [0; SIDE_BYTES], handle)
    }

    #[test]
    fn a_name_makes_room_for_what_it_asks_for() {
        let fixed = GetxattrIn { size: 64, padding: 0 };
        let mut payload = [0u8; 64];
        payload[..5].copy_from_slice(b"name\0");
        let mut head = head(opcode::GETXATTR, fixed.as_bytes(), 5);
        let used = serve(&mut head, &mut payload, |request, reply| {
            let mut body = request.body();
            assert_eq!(body.read::<GetxattrIn>().unwrap(), fixed);
            reply.parts(&[b"the value", body.text().unwrap().as_encoded_bytes()]);
        });
        assert_eq!(used, Ok(13));
        assert_eq!(answer(&head), OutHeader { len: 29, error: 0, unique: 7 });
        assert_eq!(&payload[..head.payload_bytes as usize], b"the valuename");
    }

    #[test]
    fn written_data_stay_where_they_are() {
        let wish = WriteIn { size: 6, ..WriteIn::default() };
        let mut payload = *b"abcdef--------";
        let mut head = head(opcode::WRITE, wish.as_bytes(), 6);
        let used = serve(&mut head, &mut payload, |request, reply| {
            let mut body = request.body();
            assert_eq!(body.read::<WriteIn>().unwrap(), wish);
            assert_eq!(body.bytes(6).unwrap(), b"abcdef");
            assert_eq!(body.bytes(1), Err(Errno::INVAL));
            reply.value(&WriteOut { size: 6, padding: 0 });
        });
        assert_eq!(used, Ok(8));
        assert_eq!(&payload[..8], WriteOut { size: 6, padding: 0 }.as_bytes());
    }

    #[test]
    fn an_answer_that_has_no_room_or_does_not_come_is_an_error() {
        let mut head = head(opcode::GETATTR, &[], 0);
        let io = OutHeader { len: 16, error: -5, unique: 7 };
        serve(&mut head, &mut [0; 4], |_, reply| reply.parts(&[b"12345"])).unwrap();
        assert_eq!(answer(&head), io);
        let mut head = super::tests::head(opcode::GETATTR, &[], 0);
        serve(&mut head, &mut [0; 4], |_, reply| drop(reply)).unwrap();
        assert_eq!(answer(&head), io);
    }

    #[test]
    fn lengths_that_contradict_each_other_are_refused() {
        let none = |_: &Request<'_>, _: Reply<'_>| panic!("there is no request");
        let mut wrong = head(opcode::LOOKUP, b"", 4);
        wrong.payload_bytes = 5000;
        assert_eq!(serve(&mut wrong, &mut [0; 4096], none), Err(Errno::PROTO));
        let mut wrong = head(opcode::LOOKUP, &[0; 128], 0);
        wrong.in_out[0] = 200;
        assert_eq!(serve(&mut wrong, &mut [0; 4096], none), Err(Errno::PROTO));
    }

    /// What a kernel lays out is what is used here: a ring of this kernel answers.
    #[test]
    fn a_file_that_is_no_fuse_device_is_refused() {
        let Ok(mut ring) = Ring::new(1 << 16) else {
            return eprintln!("skipped: no io_uring here");
        };
        let file = tempfile::tempfile().unwrap();
        assert!(ring.register(file.as_fd(), 0).is_err());
        assert!(!ring.lent);
        assert_eq!(ring.wait(file.as_fd(), 0, false, false), Err(Errno::INVAL));
    }

    #[test]
    fn get_xattr_fits() {
        assert!(size_of::<GetxattrOut>() <= SIDE_BYTES);
    }
}
