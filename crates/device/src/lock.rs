//! Locks on image files, so that two programs do not write to one.
//!
//! Two kinds are taken and respected. An advisory `flock` of the whole file keeps our own programs apart, and whoever else
//! uses it. Virtual machines hold images, too, and QEMU keeps to another protocol, described in its documentation of image
//! locking: locks of single bytes that belong to the open file description. Only shared locks are ever held, so that
//! taking them cannot fail; that a byte is locked by anybody is the message.
//!
//! | bytes | locked by a program that |
//! |---|---|
//! | 100 + permission | has this permission and uses it |
//! | 200 + permission | wants nobody else to have it |
//!
//! The permissions: 0 reading what is consistent, 1 writing, 2 writing what is there already, 3 changing the size. (What 4
//! stands for is QEMU's own business.) Whoever opens a file first takes his bytes, then looks: is a permission that he
//! wants unwanted by another, or is one used that he does not want others to have? Then he lets go and gives up. As both
//! sides take before they look, two who come at the same time may both give up, but never both go on.
//!
//! A writer of ours reads, writes and resizes, and wants nobody else to write or resize. Whoever needs a file to stay as
//! it is reads, and wants the same. A mere reader takes nothing; he only looks, and says that somebody writes. The bytes
//! need not exist, and what they hold does not matter.
//!
//! Who has a part of a file only, as a partition of a disk that is in it, leaves the other parts to others, who may write
//! there: he wants nobody to resize, and says that he writes. Which part it is he says in bytes that QEMU does not look at: those
//! that are as far from the beginning of a region as his part is from that of the file. What is made of several disks has its part
//! somewhere within a larger one, which only keeps those out who have all of a part there.
//!
//! | region | locked by a program that |
//! |---|---|
//! | from 2^60 on | writes to this part |
//! | from 2 * 2^60 on | wants nobody else to write to this part |
//! | from 3 * 2^60 on | has something within this part |
//!
//! Locks can be taken by whoever may read a file: he can keep its writers off. So messages say who has one.
//!
//! Filesystems without locks (some network filesystems) have none of this, which is no reason not to work on them.

use std::fs::{File, TryLockError};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    libc,
};

use crate::{DeviceError, holders};

/// How a file is to be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    /// It must stay as it is.
    Still,
    /// It is written, and by nobody else.
    Writing,
    /// A part of it must stay as it is.
    StillPart,
    /// A part of it is written.
    WritingPart,
}

const USED: i64 = 100;
const UNWANTED: i64 = 200;
const READ: i64 = 0;
const WRITE: i64 = 1;
const REWRITE: i64 = 2;
const RESIZE: i64 = 3;

/// Bytes of a region for parts.
const REGION: i64 = 1 << 60;
const PART_WRITTEN: i64 = REGION;
const PART_UNWANTED: i64 = 2 * REGION;
const PART_WITHIN: i64 = 3 * REGION;

/// A part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its bytes.
    pub range: Range<u64>,
    /// Whether it is all of them that are meant, or something within.
    pub exact: bool,
}

impl Part {
    /// The same seen from something that begins so many bytes before.
    pub fn moved(&self, bytes: u64) -> Part {
        let end = |at: u64| at.saturating_add(bytes);
        Part { range: end(self.range.start)..end(self.range.end), exact: self.exact }
    }

    /// Whether it has bytes of a range.
    pub fn meets(&self, range: &Range<u64>) -> bool {
        self.range.start < range.end && range.start < self.range.end
    }

    /// Its bytes in a region; `None` for a part that no file can have.
    fn within(&self, region: i64) -> Option<(i64, i64)> {
        let start = i64::try_from(self.range.start).ok()?;
        let length = i64::try_from(self.range.end).ok()?.checked_sub(start)?;
        let fits = length > 0 && start.checked_add(length)? <= REGION;
        fits.then_some((region + start, length))
    }
}

impl Hold {
    /// The same of a part of the file.
    pub fn of_part(self) -> Hold {
        match self {
            Hold::Still | Hold::StillPart => Hold::StillPart,
            Hold::Writing | Hold::WritingPart => Hold::WritingPart,
        }
    }

    fn uses(self) -> &'static [i64] {
        match self {
            Hold::Still | Hold::StillPart => &[READ],
            Hold::Writing => &[READ, WRITE, RESIZE],
            Hold::WritingPart => &[READ, WRITE],
        }
    }

    /// What nobody else is to do.
    fn unwanted(self) -> &'static [i64] {
        match self {
            Hold::Still | Hold::Writing => &[WRITE, RESIZE],
            Hold::StillPart | Hold::WritingPart => &[RESIZE],
        }
    }

    /// What nobody else may be doing: what QEMU calls writing what is there already is writing all the same.
    fn forbidden(self) -> &'static [i64] {
        match self {
            Hold::Still | Hold::Writing => &[WRITE, REWRITE, RESIZE],
            Hold::StillPart | Hold::WritingPart => &[RESIZE],
        }
    }
}

/// Takes all locks, or none and says who is in the way. They last until [`release`], or until the file is closed.
pub(crate) fn take(name: &str, file: &File, hold: Hold) -> Result<(), DeviceError> {
    let (tried, why) = match hold {
        Hold::Writing => (file.try_lock(), "another program has locked it"),
        Hold::Still | Hold::StillPart | Hold::WritingPart => {
            (file.try_lock_shared(), "another program has locked it for writing")
        }
    };
    match tried {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(busy(name, file, why)),
        Err(TryLockError::Error(e)) => return Err(DeviceError::open(name, e)),
    }
    if take_bytes(file, hold) {
        return Ok(());
    }
    release(file);
    Err(busy(name, file, "another program, as a virtual machine, has locked it"))
}

/// The same for a part of the file, if there is one.
pub(crate) fn take_either(
    name: &str,
    file: &File,
    hold: Hold,
    part: Option<&Part>,
) -> Result<(), DeviceError> {
    let Some(part) = part else { return take(name, file, hold) };
    take(name, file, hold.of_part())?;
    if take_range(file, hold.of_part() == Hold::WritingPart, part) {
        return Ok(());
    }
    release(file);
    Err(busy(name, file, "another program has locked this part of it"))
}

/// Lets go of all locks. A child that this program is about to start has the file open, too, until it becomes another
/// program, and would hold them that long.
pub(crate) fn release(file: &File) {
    // They end with the file anyway. Without a length these are all from there on.
    let _no_such_locks = set(file, libc::F_UNLCK, USED, 0);
    let _nor_this_one = file.unlock();
}

/// Whether somebody else uses the file, or a part of it, for writing, as far as he says so.
pub(crate) fn is_written(file: &File, part: Option<&Part>) -> bool {
    let is_used = |it: &i64| is_locked(file, USED + it);
    let meets = |part: &Part, region| {
        part.within(region).is_some_and(|(start, length)| is_range_locked(file, start, length))
    };
    let all = Part { range: 0..REGION as u64, exact: true };
    let regions = [PART_WRITTEN, PART_WITHIN];
    match part {
        // Who writes to a part only says which one.
        Some(part) if regions.into_iter().any(|region| meets(&all, region)) => {
            regions.into_iter().any(|region| meets(part, region))
        }
        _ => Hold::Still.forbidden().iter().any(is_used),
    }
}

/// Keeps those off who write to a file, or a part of it, by our rules, until it is dropped. For readers; virtual machines are not
/// minded.
#[derive(Debug)]
pub struct Reader {
    file: File,
}

impl Reader {
    /// [`DeviceError::Busy`] where somebody writes. `None` for what is no file, or cannot be opened or locked.
    pub fn take(path: &Path, part: Option<Range<u64>>) -> Result<Option<Self>, DeviceError> {
        // A look before the open: opening a FIFO would wait for its other end.
        let Some(file) = path.is_file().then(|| File::open(path).ok()).flatten() else {
            return Ok(None);
        };
        let part = Part { range: part.unwrap_or(0..REGION as u64), exact: true };
        let busy = |file| busy(&path.display().to_string(), file, "another program writes to it");
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => return Err(busy(&file)),
            Err(TryLockError::Error(_)) => return Ok(None),
            Ok(()) => {}
        }
        let reader = Self { file };
        match take_range(&reader.file, false, &part) {
            true => Ok(Some(reader)),
            false => Err(busy(&reader.file)),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        release(&self.file);
    }
}

/// Looked up before our own locks are gone or after makes no difference: they are not named.
fn busy(name: &str, file: &File, why: &str) -> DeviceError {
    let who = holders::named(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())));
    DeviceError::Busy { device: name.into(), why: format!("{why}{who}") }
}

/// Takes the bytes of a hold and looks whether others allow it.
fn take_bytes(file: &File, hold: Hold) -> bool {
    let used = hold.uses().iter().map(|it| USED + it);
    for byte in used.chain(hold.unwanted().iter().map(|it| UNWANTED + it)) {
        match set(file, libc::F_RDLCK, byte, 1) {
            Ok(()) => {}
            // Somebody has an exclusive lock there, which the protocol does not know: he wants to be alone.
            Err(Errno::EAGAIN | Errno::EACCES) => return false,
            Err(_) => return true,
        }
    }
    let against = hold.uses().iter().map(|it| UNWANTED + it);
    !against.chain(hold.forbidden().iter().map(|it| USED + it)).any(|byte| is_locked(file, byte))
}

/// Takes the bytes of a part and looks whether others allow it.
fn take_range(file: &File, writes: bool, part: &Part) -> bool {
    let (own, against): (&[i64], &[i64]) = match (part.exact, writes) {
        (true, true) => {
            (&[PART_WRITTEN, PART_UNWANTED], &[PART_WRITTEN, PART_UNWANTED, PART_WITHIN])
        }
        (true, false) => (&[PART_UNWANTED], &[PART_WRITTEN, PART_WITHIN]),
        (false, true) => (&[PART_WITHIN], &[PART_WRITTEN, PART_UNWANTED]),
        (false, false) => (&[PART_WITHIN], &[PART_WRITTEN]),
    };
    let ranges = |of: &[i64]| of.iter().filter_map(|it| part.within(*it)).collect::<Vec<_>>();
    for (start, length) in ranges(own) {
        match set(file, libc::F_RDLCK, start, length) {
            Ok(()) => {}
            Err(Errno::EAGAIN | Errno::EACCES) => return false,
            Err(_) => return true,
        }
    }
    !ranges(against).into_iter().any(|(start, length)| is_range_locked(file, start, length))
}

fn range(kind: i32, start: i64, len: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start as libc::off_t,
        l_len: len as libc::off_t,
        // As these locks ask for.
        l_pid: 0,
    }
}

fn set(file: &File, kind: i32, start: i64, len: i64) -> Result<(), Errno> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&range(kind, start, len))).map(drop)
}

/// Whether another open file has a lock on this byte. Not knowing is no.
fn is_locked(file: &File, byte: i64) -> bool {
    is_range_locked(file, byte, 1)
}

fn is_range_locked(file: &File, start: i64, length: i64) -> bool {
    let mut found = range(libc::F_WRLCK, start, length);
    let asked = fcntl(file, FcntlArg::F_OFD_GETLK(&mut found));
    asked.is_ok() && i32::from(found.l_type) != libc::F_UNLCK
}
