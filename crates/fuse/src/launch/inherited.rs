//! What the command was given open by whoever started it, and the process of a mount must not keep: a lock of flock(1) would be held, and
//! the reader of a pipe would wait, for as long as the mount is there.
//!
//! # Unsafe
//!
//! A descriptor that another program has left open has a number and no owner here. It is borrowed to be marked, and neither read,
//! written nor closed. Were it closed meanwhile, by another thread, another file might be marked, which the process that is
//! about to be started does not get then; all files that this program opens itself are marked anyway.
#![allow(unsafe_code, reason = "descriptors that nobody here owns; see above")]

use std::env;
use std::fs;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use rustix::io::{FdFlags, fcntl_setfd};

/// What the system uses itself: input, output and errors are seen to by who starts a process.
const STANDARD: RawFd = 2;

/// Sees to it that processes which are started from here on have none of these, but those that the arguments name (`/dev/fd/9`).
pub(super) fn keep_from_children() {
    let Ok(open) = fs::read_dir("/proc/self/fd") else { return };
    let numbers = open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for number in numbers.filter(|number| *number > STANDARD && !is_named(*number)) {
        // SAFETY: just listed as open; see above.
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        // One that is gone again, as that of the listing, is kept by nobody.
        let _marked = fcntl_setfd(borrowed, FdFlags::CLOEXEC);
    }
}

fn is_named(number: RawFd) -> bool {
    let end = format!("/fd/{number}");
    env::args_os().any(|argument| argument.as_bytes().ends_with(end.as_bytes()))
}
