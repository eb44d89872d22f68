//! One open /dev/fuse: requests in, replies and notifications out.
//!
//! Several threads may read one channel; the kernel hands each request to exactly one of them.
//! Each request but FORGET, BATCH_FORGET and INTERRUPT must be answered once, or its caller hangs:
//! [`Reply`] sees to it by answering EIO when it is dropped unanswered, a panic included.

use std::ffi::OsStr;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::abi::{self, InHeader, OutHeader};

/// Most parts one reply is gathered from besides its header (below the kernel's 1024).
pub const PARTS_MAX: usize = 32;

/// The open device of one mount. Dropping the last one aborts the connection: the kernel answers
/// all further use of the mount with ENOTCONN.
#[derive(Debug)]
pub struct Channel {
    fd: OwnedFd,
}

impl Channel {
    /// Takes an open /dev/fuse that a mount is attached to.
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Whether the kernel still has a superblock, mounted or about to be, that asks here.
    pub fn is_connected(&self) -> bool {
        let mut asked = [PollFd::new(&self.fd, PollFlags::empty())];
        let now = Timespec::default();
        rustix::event::poll(&mut asked, Some(&now)).is_ok()
            && !asked[0].revents().intersects(PollFlags::ERR)
    }

    /// Waits for the next request. `None`: unmounted, or the connection was aborted.
    ///
    /// `buffer` must hold a whole request: `max_write` plus a page for the headers, and at least the
    /// 8192 bytes that the kernel insists on.
    pub fn receive<'b>(&self, buffer: &'b mut [u8]) -> Result<Option<Request<'b>>, Errno> {
        let length = loop {
            match rustix::io::read(&self.fd, &mut *buffer) {
                Ok(length) => break length,
                // ENOENT: the caller was interrupted before the request could be copied.
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Err(error) => return Err(error),
            }
        };
        Request::parse(buffer.get(..length).unwrap_or_default()).map(Some).ok_or(Errno::PROTO)
    }

    /// Answers request `unique` with the concatenation of `parts`.
    pub fn answer(&self, unique: u64, parts: &[&[u8]]) -> Result<(), Errno> {
        self.send(0, unique, parts)
    }

    /// Answers request `unique` with an error.
    pub fn refuse(&self, unique: u64, errno: Errno) -> Result<(), Errno> {
        self.send(errno.raw_os_error().saturating_neg(), unique, &[])
    }

    /// Tells the kernel to drop what it caches of a node: attributes, and pages of the byte range
    /// (`length` 0: to the end of the file; negative `offset`: attributes alone).
    ///
    /// Must not be called while a request on that node is being handled by the same thread: the
    /// kernel may hold the pages' locks until that request is answered.
    ///
    /// The notifications about names (`INVAL_ENTRY`, `DELETE`) are not here because they lock the
    /// directory, which makes a process that is killed at that moment immortal.
    pub fn inval_inode(&self, nodeid: u64, offset: i64, length: i64) -> Result<(), Errno> {
        let message = abi::NotifyInvalInode { ino: nodeid, off: offset, len: length };
        forgiving(self.send(abi::notify::INVAL_INODE, 0, &[message.as_bytes()]))
    }

    /// Asks the kernel to forget those of these nodes that nobody uses. EINVAL from one that does not know this (before Linux 6.18).
    ///
    /// The kernel waits for pages that are being read, as for [`Self::inval_inode`].
    pub fn prune(&self, nodes: &[u64]) -> Result<(), Errno> {
        let count = u32::try_from(nodes.len()).map_err(|_| Errno::TOOBIG)?;
        let message = abi::NotifyPrune { count, ..abi::NotifyPrune::default() };
        self.send(abi::notify::PRUNE, 0, &[message.as_bytes(), nodes.as_bytes()])
    }

    fn send(&self, error: i32, unique: u64, parts: &[&[u8]]) -> Result<(), Errno> {
        let total: usize =
            size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let len = u32::try_from(total).map_err(|_| Errno::TOOBIG)?;
        let header = OutHeader { len, error, unique };
        let mut slices = [IoSlice::new(&[]); PARTS_MAX + 1];
        let slices = slices.get_mut(..=parts.len()).ok_or(Errno::TOOBIG)?;
        for (slot, part) in slices.iter_mut().zip([header.as_bytes()].iter().chain(parts)) {
            *slot = IoSlice::new(part);
        }
        loop {
            match rustix::io::writev(&self.fd, slices) {
                Err(Errno::INTR) => {}
                other => return other.map(drop),
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A notification about something the kernel does not cache is no failure.
fn forgiving(sent: Result<(), Errno>) -> Result<(), Errno> {
    match sent {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// One message of the kernel, borrowed from the buffer it was received into.
#[derive(Debug)]
pub struct Request<'b> {
    header: InHeader,
    fixed: &'b [u8],
    body: &'b [u8],
}

impl<'b> Request<'b> {
    fn parse(message: &'b [u8]) -> Option<Self> {
        let (header, body) = InHeader::read_from_prefix(message).ok()?;
        if usize::try_from(header.len).ok()? != message.len() {
            return None;
        }
        Self::in_parts(header, &[], body)
    }

    /// A request whose body is in two places: its fixed part, if that is not with the rest.
    pub(super) fn in_parts(header: InHeader, fixed: &'b [u8], rest: &'b [u8]) -> Option<Self> {
        let extensions = usize::from(header.total_extlen) * 8;
        let body = rest.get(..rest.len().checked_sub(extensions)?)?;
        Some(Self { header, fixed, body })
    }

    /// The same request, with its body in another place.
    pub fn over<'c>(&self, body: &'c [u8]) -> Request<'c> {
        Request { header: self.header, fixed: &[], body }
    }

    /// What is asked (`abi::opcode`).
    pub fn opcode(&self) -> u32 {
        self.header.opcode
    }

    /// The number the reply must carry.
    pub fn unique(&self) -> u64 {
        self.header.unique
    }

    /// The node asked about.
    pub fn nodeid(&self) -> u64 {
        self.header.nodeid
    }

    /// User id of the caller in the mount's user namespace.
    pub fn uid(&self) -> u32 {
        self.header.uid
    }

    /// Group id of the caller in the mount's user namespace.
    pub fn gid(&self) -> u32 {
        self.header.gid
    }

    /// Process id of the caller as the server sees it; 0 for the kernel's own writeback.
    pub fn pid(&self) -> u32 {
        self.header.pid
    }

    /// Everything after the header.
    pub fn body(&self) -> Body<'b> {
        Body { fixed: self.fixed, rest: self.body }
    }
}

/// Takes a request's body apart, front to back.
#[derive(Clone, Copy, Debug)]
pub struct Body<'b> {
    /// What comes before the rest, and is not with it.
    fixed: &'b [u8],
    rest: &'b [u8],
}

impl<'b> Body<'b> {
    /// The next fixed part.
    pub fn read<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, Errno> {
        if !self.fixed.is_empty() {
            let (value, _) = T::read_from_prefix(self.fixed).map_err(|_| Errno::INVAL)?;
            self.fixed = &[];
            return Ok(value);
        }
        let (value, rest) = T::read_from_prefix(self.rest).map_err(|_| Errno::INVAL)?;
        self.rest = rest;
        Ok(value)
    }

    /// The next name, which ends with a nul byte.
    pub fn text(&mut self) -> Result<&'b OsStr, Errno> {
        let end = self.rest.iter().position(|&byte| byte == 0).ok_or(Errno::INVAL)?;
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest.get(1..).unwrap_or_default();
        Ok(OsStr::from_bytes(text))
    }

    /// The next `length` bytes.
    pub fn bytes(&mut self, length: usize) -> Result<&'b [u8], Errno> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Errno::INVAL)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// All that is left.
    pub fn rest(self) -> &'b [u8] {
        self.rest
    }
}

/// The one answer a request gets. Dropping it unanswered answers EIO.
#[derive(Debug)]
pub struct Reply<'c> {
    channel: &'c Channel,
    unique: u64,
    /// Where it is gathered, if it does not go back by the channel.
    tray: Option<Tray<'c>>,
    due: bool,
}

/// Where an answer is put that goes back with the memory that the request came in.
#[derive(Debug)]
pub struct Tray<'c> {
    room: &'c mut [u8],
    gathered: &'c mut Gathered,
}

/// What such an answer has come to.
#[derive(Debug)]
pub struct Gathered {
    /// 0 or a negative errno.
    pub error: i32,
    /// Bytes of the room that it takes.
    pub length: usize,
}

impl Default for Gathered {
    /// What is said where nothing is.
    fn default() -> Self {
        Self { error: Errno::IO.raw_os_error().saturating_neg(), length: 0 }
    }
}

impl<'c> Tray<'c> {
    /// Nothing in it yet.
    pub fn new(room: &'c mut [u8], gathered: &'c mut Gathered) -> Self {
        Self { room, gathered }
    }

    fn put(&mut self, error: i32, parts: &[&[u8]]) -> Result<(), Errno> {
        let mut length = 0;
        for part in parts {
            let room = self.room.get_mut(length..length + part.len()).ok_or(Errno::TOOBIG)?;
            room.copy_from_slice(part);
            length += part.len();
        }
        *self.gathered = Gathered { error, length };
        Ok(())
    }
}

impl<'c> Reply<'c> {
    /// The answer to `request`, due on `channel`.
    pub fn new(channel: &'c Channel, request: &Request<'_>) -> Self {
        Self { channel, unique: request.unique(), tray: None, due: true }
    }

    /// The answer to `request` that is gathered on a tray; notifications go by `channel`.
    pub fn gathered(channel: &'c Channel, request: &Request<'_>, tray: Tray<'c>) -> Self {
        Self { channel, unique: request.unique(), tray: Some(tray), due: true }
    }

    /// Whether it goes back by a ring.
    pub fn is_gathered(&self) -> bool {
        self.tray.is_some()
    }

    fn send(&mut self, error: i32, parts: &[&[u8]]) -> Result<(), Errno> {
        match &mut self.tray {
            Some(tray) => tray.put(error, parts),
            None => self.channel.send(error, self.unique, parts),
        }
    }

    /// Where data of at most `length` bytes can be put without a copy, for [`Reply::filled`]; `None` where there is no such place.
    pub fn room(&mut self, length: usize) -> Option<&mut [u8]> {
        self.tray.as_mut()?.room.get_mut(..length)
    }

    /// Success with so many bytes, which are in their [`Reply::room`] already.
    pub fn filled(mut self, length: usize) {
        if let Some(tray) = &mut self.tray
            && length <= tray.room.len()
        {
            *tray.gathered = Gathered { error: 0, length };
            self.due = false;
        }
    }

    /// FORGET and its like: there is no answer.
    pub fn nothing(mut self) {
        self.due = false;
    }

    /// Success without data.
    pub fn done(self) {
        self.parts(&[]);
    }

    /// Success with one message.
    pub fn value<T: IntoBytes + Immutable>(self, value: &T) {
        self.parts(&[value.as_bytes()]);
    }

    /// Success with data gathered from at most [`PARTS_MAX`] places.
    pub fn parts(mut self, parts: &[&[u8]]) {
        // ENOENT: the caller is gone with its connection. Anything else leaves the request
        // unanswered, and the drop answers it.
        let sent = self.send(0, parts);
        self.due = !matches!(sent, Ok(()) | Err(Errno::NOENT | Errno::NODEV));
    }

    /// Failure.
    pub fn refuse(mut self, errno: Errno) {
        self.due = false;
        let _gone = self.send(errno.raw_os_error().saturating_neg(), &[]);
    }

    /// `Ok`: a message; `Err`: the errno.
    pub fn result<T: IntoBytes + Immutable>(self, result: Result<T, Errno>) {
        match result {
            Ok(value) => self.value(&value),
            Err(errno) => self.refuse(errno),
        }
    }

    /// The channel the answer goes to.
    pub fn channel(&self) -> &'c Channel {
        self.channel
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        if self.due {
            let _gone = self.send(Errno::IO.raw_os_error().saturating_neg(), &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(opcode: u32, body: &[u8], total_extlen: u16) -> Vec<u8> {
        let len = u32::try_from(size_of::<InHeader>() + body.len()).unwrap();
        let header = InHeader { len, opcode, total_extlen, ..InHeader::default() };
        [header.as_bytes(), body].concat()
    }

    #[test]
    fn a_request_comes_apart_in_order() {
        let rename = abi::Rename2In { newdir: 7, flags: 1, padding: 0 };
        let bytes = message(abi::opcode::RENAME2, &[rename.as_bytes(), b"old\0new\0"].concat(), 0);
        let request = Request::parse(&bytes).unwrap();
        let mut body = request.body();
        assert_eq!(body.read::<abi::Rename2In>().unwrap(), rename);
        assert_eq!(body.text().unwrap(), "old");
        assert_eq!(body.text().unwrap(), "new");
        assert!(body.text().is_err());
    }

    #[test]
    fn extensions_and_wrong_lengths_are_no_body() {
        let bytes = message(abi::opcode::MKDIR, b"12345678extended", 1);
        assert_eq!(Request::parse(&bytes).unwrap().body().rest(), b"12345678");
        assert!(Request::parse(&bytes[..bytes.len() - 1]).is_none());
        assert!(Request::parse(&message(1, b"", 3)).is_none());
    }

    #[test]
    fn an_unanswered_reply_says_eio() {
        let (ours, kernels) = std::os::unix::net::UnixStream::pair().unwrap();
        let channel = Channel::new(OwnedFd::from(ours));
        let bytes = message(abi::opcode::GETATTR, b"", 0);
        drop(Reply::new(&channel, &Request::parse(&bytes).unwrap()));
        let mut answer = [0u8; 16];
        std::io::Read::read_exact(&mut &kernels, &mut answer).unwrap();
        let header = OutHeader::read_from_bytes(&answer).unwrap();
        assert_eq!(header, OutHeader { len: 16, error: -5, unique: 0 });
    }
}
