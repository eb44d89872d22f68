//! The device is told what is free: once, by whoever asks for it ([`Filesystem::trim`]), or from time to time ([`super::Discard`]).
//!
//! What was deleted is free after the commit that follows the next one, as a rule, so that nobody waits: who wants the device to hear of it has
//! it settled at once. What is remembered to be told later is lost with a crash, or where there is too much of it; then `trim` finds it.
//!
//! Crash argument: `space/trim.rs`.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::{Duration, Instant};

use buttress_ondisk::{Key, SECTOR, kind};

use super::{Discard, Filesystem, Inner};
use crate::error::{Errno, Error, Result};
use crate::space::{self, Piece, Trim};
use crate::txn::{Upkeep, settle_freed};

/// From one time to the next at least, where what is free shall become larger pieces before. Linux waits for twelve times as long, and tells
/// of a few pieces a second then.
const PAUSE: Duration = Duration::from_secs(10);
/// The same where that has failed.
const PAUSE_FAILED: Duration = Duration::from_secs(300);
/// So long the worker does nothing else, at most.
const AT_ONCE: Duration = Duration::from_secs(1);
/// So long it takes at the end, at most: what is left is found by who asks for all.
const AT_END: Duration = Duration::from_secs(10);
/// Bytes of pieces that are worth it, at least: as on Linux (`BTRFS_ASYNC_DISCARD_MIN_FILTER`).
const WORTH: u64 = 32 << 10;
/// So much that was let go is worth settling for its own sake: a commit of nothing lets go of less.
const MUCH: u64 = 1 << 20;

impl Filesystem {
    /// Tells the device of all that is free, so that an image takes less room on its disk, and a disk knows what it need not keep (FITRIM). What was
    /// deleted is committed before; of subvolumes that are being dropped only what is gone already is free. `range` is one of logical addresses, as on Linux, of which
    /// whole sectors count; the parts of the device that no chunk has are told of in any case. Shorter pieces than `min` bytes are left out. `told` hears again and again how many
    /// bytes of the device that were so far, and may end it by `false` (EINTR); it must not use the filesystem. Answers the bytes. EOPNOTSUPP where what holds the
    /// device can do nothing about it, EROFS where it is read-only.
    pub fn trim(
        &self,
        range: Range<u64>,
        min: u64,
        mut told: impl FnMut(u64) -> bool,
    ) -> Result<u64> {
        let inner = self.inner();
        inner.core.check_writable()?;
        // Where nothing has changed, nothing is written.
        match inner.forest.has_dead() {
            true => drop(inner.commit_for_space(Upkeep::Little)?),
            false => {
                inner.commit()?;
                settle_freed(&inner.core)?;
            }
        }
        let start =
            range.start.checked_next_multiple_of(SECTOR).unwrap_or(u64::MAX / SECTOR * SECTOR);
        let window = space::Range::new(start, (range.end / SECTOR * SECTOR).saturating_sub(start));
        let all = space::Range::new(0, u64::MAX);
        inner.trim(min, &mut told, |trim| {
            let space = &inner.core.space;
            Ok(space.trim_groups(window, trim)? && space.trim_device(all, trim)?)
        })
    }
}

impl Inner {
    fn trim(
        &self,
        min: u64,
        told: &mut dyn FnMut(u64) -> bool,
        work: impl FnOnce(&mut Trim<'_>) -> Result<bool>,
    ) -> Result<u64> {
        let (volume, devid) = (&self.core.volume, self.core.space.devid());
        let at = Cell::new(0);
        let (refused, told) = (Cell::new(None), RefCell::new(told));
        let goes_on = || {
            let is_over = !(*told.borrow_mut())(at.get());
            refused.set(refused.get().or(is_over.then_some(Errno::INTR)));
            refused.get().is_none()
        };
        let mut tell = |piece: Piece| {
            let told = match piece {
                Piece::Logical(range) => volume.discard(range.start, range.len)?,
                Piece::Device(range) => volume.discard_on(devid, range.start, range.len)?,
            };
            at.set(at.get() + told);
            refused.set((!volume.can_discard()).then_some(Errno::OPNOTSUPP));
            Ok(goes_on())
        };
        let mut gaps = |window| if goes_on() { self.gaps(window).map(Some) } else { Ok(None) };
        let mut trim = Trim { min, gaps: &mut gaps, tell: &mut tell };
        work(&mut trim)?;
        refused.get().map_or(Ok(at.get()), |errno| Err(Error::User(errno)))
    }

    /// The gaps between the extents of the last commit in a range of addresses.
    fn gaps(&self, window: space::Range) -> Result<Vec<space::Range>> {
        let core = &self.core;
        // As long as this is under way, the trees of the last commit stay where they are.
        let _op = core.txn.join_to_read(core)?;
        if core.space.have(window.start).is_err() {
            // Whoever wants room of it hears why.
            return Ok(Vec::new());
        }
        let view = core.extent_view();
        let len_of = |key: &Key| match key.kind {
            kind::EXTENT_ITEM => Some(key.offset),
            kind::METADATA_ITEM => Some(core.features.nodesize as u64),
            _ => None,
        };
        let mut extents = Vec::new();
        // One that begins before it may reach into it; behind that its references may be, and the group's own item.
        let before_id = |id: u64| id.checked_sub(1).map(|id| Key::new(id, u8::MAX, u64::MAX));
        let mut before = before_id(window.start);
        while let Some(key) = before.map(|key| view.last_key(&key)).transpose()?.flatten() {
            if let Some(len) = len_of(&key) {
                extents.push(space::Range::new(key.objectid, len));
                break;
            }
            before = match key.kind {
                kind::METADATA_ITEM.. => {
                    Some(Key::new(key.objectid, kind::METADATA_ITEM, u64::MAX))
                }
                0 => before_id(key.objectid),
                other => Some(Key::new(key.objectid, other - 1, u64::MAX)),
            };
        }
        let last = Key::new(window.end() - 1, u8::MAX, u64::MAX);
        let mut items = view.range(Key::new(window.start, 0, 0), last);
        while let Some(item) = items.next()? {
            let key = item.key();
            extents.extend(len_of(&key).map(|len| space::Range::new(key.objectid, len)));
        }
        Ok(window.without(extents))
    }

    /// Tells the device what has become free since the last time.
    fn discard_freed(&self, goes_on: &dyn Fn() -> bool) -> Result<Discarded> {
        if self.core.space.pinned_bytes() >= MUCH {
            settle_freed(&self.core)?;
        }
        let space = &self.core.space;
        match self.trim(WORTH, &mut |_| goes_on(), |trim| space.trim_freed(trim)) {
            Ok(_) => Ok(Discarded::All),
            Err(Error::User(Errno::INTR)) => Ok(Discarded::Some),
            Err(Error::User(_)) => {
                let why = "what holds it makes no holes in files, and discards nothing";
                self.core.warn(format!("what has become free is not given back: {why}"));
                Ok(Discarded::Nothing)
            }
            // It is a hint: nobody needs it.
            Err(error) => {
                self.core.check_writable()?;
                self.core.warn(format!("what has become free cannot be given back: {error}"));
                Ok(Discarded::Nothing)
            }
        }
    }

    /// The same at the end, when nobody waits for anything but that.
    pub(super) fn discard_at_end(&self) {
        if self.options.discard.is_some() {
            let begun = Instant::now();
            let _a_hint = self.discard_freed(&|| begun.elapsed() < AT_END);
            self.core.space.forget_freed();
        }
    }
}

/// How far that came.
enum Discarded {
    /// To the end.
    All,
    /// The rest is for the next time.
    Some,
    /// It has failed.
    Nothing,
}

/// When the worker tells the device.
pub(super) struct Discarding {
    /// Not before that.
    next: Instant,
}

impl Discarding {
    pub(super) fn new() -> Discarding {
        Discarding { next: Instant::now() }
    }

    /// After a commit, or what could have been one. Whether there is more to do, which others wait for no longer than a second.
    pub(super) fn step(&mut self, inner: &Inner, goes_on: &dyn Fn() -> bool) -> Result<bool> {
        let pause = match inner.options.discard {
            None => return Ok(false),
            Some(Discard::Sync) => Duration::ZERO,
            Some(Discard::Async) => PAUSE,
        };
        let begun = Instant::now();
        if begun < self.next {
            return Ok(false);
        }
        let (pause, is_more) =
            match inner.discard_freed(&|| goes_on() && begun.elapsed() < AT_ONCE)? {
                Discarded::All => (pause, false),
                Discarded::Some => (Duration::ZERO, true),
                Discarded::Nothing => (PAUSE_FAILED, false),
            };
        self.next = Instant::now() + pause;
        Ok(is_more)
    }
}
