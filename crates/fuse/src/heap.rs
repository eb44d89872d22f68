//! The heap of a process that serves a mount: what glibc's allocator is told, and pages of two megabytes for it.
//!
//! Each request looks at an inode, leaves and tables that nobody has looked at for long. With pages of 4 KiB the processor has to find
//! out first where each of them is, in a virtual machine by up to 24 further looks at memory: more than the request's own work
//! (docs/performance.md, "Where memory is"). So Linux is told that the heap may have huge pages. It is told again of what the heap has grown by, by
//! whoever handles the next request (`look`): the heap grows by megabytes at a time, most of which is not used until then. Where one growth
//! ends and the next one begins there is no huge page, as Linux keeps them apart. So it grows by as much as may stay unused, a sixteenth of
//! `memory=` within bounds. glibc can do so by itself (`glibc.malloc.hugetlb`), but the one of Debian 12 only now and then: it compares a
//! string that has no end.
//!
//! Only the program decides what becomes of its heap, so nothing here is done before it has called [`set_up`].
//!
//! # Unsafe
//!
//! mallopt(3), sbrk(2) and madvise(2) are in no safe library. The first takes two numbers, the second is asked for the end of the heap and moves
//! nothing. The third is given what lies between two ends of the heap, and advice that changes no contents, whoever has that memory
//! by then.
#![allow(unsafe_code, reason = "calls that no safe library has; see above")]

#[cfg(target_env = "gnu")]
pub(crate) use gnu::look;
#[cfg(target_env = "gnu")]
pub use gnu::set_up;

/// Other allocators do as they think best.
#[cfg(not(target_env = "gnu"))]
pub fn set_up(_options: &crate::options::MountOptions) {}

#[cfg(not(target_env = "gnu"))]
pub(crate) fn look() {}

#[cfg(target_env = "gnu")]
mod gnu {
    use std::env;
    use std::ptr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rustix::mm::{Advice, madvise};

    use crate::budget::by_default;
    use crate::options::MountOptions;

    /// Bounds of what the heap grows by.
    const PAD: std::ops::RangeInclusive<u64> = 8 << 20..=32 << 20;
    /// The part of a mount's memory that this is within them.
    const PAD_SHARE: u64 = 16;

    /// Bytes by which the heap grows, and that stay when it shrinks. What nobody has used takes no memory.
    fn pad(options: &MountOptions) -> i32 {
        let memory = options.memory.unwrap_or_else(by_default);
        i32::try_from((memory / PAD_SHARE).clamp(*PAD.start(), *PAD.end())).unwrap_or(i32::MAX)
    }

    /// What the allocator is told, unless the user has told it something else by that variable. One heap: data are taken in by one
    /// thread and let go of by another, and with a heap for each thread the memory of a mount under mixed load was 224 MiB instead of 133
    /// MiB, at the same speed. And what is large goes back to the system at once, instead of leaving holes in the heap.
    fn told(pad: i32) -> [(&'static str, i32, i32); 4] {
        [
            ("MALLOC_ARENA_MAX", libc::M_ARENA_MAX, 1),
            ("MALLOC_MMAP_THRESHOLD_", libc::M_MMAP_THRESHOLD, 512 << 10),
            ("MALLOC_TRIM_THRESHOLD_", libc::M_TRIM_THRESHOLD, pad.saturating_add(1 << 20)),
            ("MALLOC_TOP_PAD_", libc::M_TOP_PAD, pad),
        ]
    }

    /// Where the heap ended when somebody looked. 0: nobody is to look.
    static SEEN: AtomicUsize = AtomicUsize::new(0);

    /// Tells the allocator, and has its heap looked after from now on. For a program that does little else than serving mounts, before it
    /// starts threads.
    pub fn set_up(options: &MountOptions) {
        for (name, what, value) in told(pad(options)) {
            if env::var_os(name).is_none() {
                // SAFETY: two numbers. It fails where they mean nothing, which only costs memory.
                let _told = unsafe { libc::mallopt(what, value) };
            }
        }
        SEEN.store(end(), Ordering::Relaxed);
    }

    /// Tells Linux of what the heap has grown by.
    pub(crate) fn look() {
        let seen = SEEN.load(Ordering::Relaxed);
        if seen == 0 {
            return;
        }
        let end = end();
        if end != seen {
            grown(seen, end);
        }
    }

    /// Where the heap ends. glibc knows that by itself.
    fn end() -> usize {
        // SAFETY: it is moved by nothing.
        let end = unsafe { libc::sbrk(0) }.addr();
        if end == usize::MAX { 0 } else { end }
    }

    #[cold]
    fn grown(seen: usize, end: usize) {
        let mine = SEEN.compare_exchange(seen, end, Ordering::Relaxed, Ordering::Relaxed);
        if mine.is_err() || end < seen {
            return;
        }
        let from = ptr::without_provenance_mut(seen);
        // SAFETY: no contents change; see above. Refused where the kernel has no such pages.
        let _as_it_likes = unsafe { madvise(from, end - seen, Advice::LinuxHugepage) };
    }
}
