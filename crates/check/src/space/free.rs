//! The free space tree of one block group against what its extents leave.
//!
//! A group's free space is written down as extents or as bitmaps. Both are read as runs, and compared with the gaps between
//! extents one by one. After the first difference the rest of the group is left alone.

use std::collections::VecDeque;

use buttress_ondisk::{Key, SECTOR, item::FreeSpaceInfo, kind};

use super::Range;
use crate::{
    context::Context,
    cursor::{Cursor, Event},
    issue::Place,
    kinds::Kind,
    roots::Tree,
};

/// Addresses from the first to before the second.
pub(super) type Run = (u64, u64);

/// Set in the flags of an info item whose group has bitmaps.
const BITMAPS: u32 = 1;

/// The comparison of one range.
pub(super) struct FreeCheck<'a, 'b> {
    context: &'a Context<'b>,
    cursor: Cursor<'a, 'b>,
    range: &'a Range,
    info: Option<FreeSpaceInfo>,
    runs: VecDeque<Run>,
    /// A run that the next one may still go on from.
    open: Option<Run>,
    /// Extents, or runs of bits.
    counted: u64,
    /// Whether there is nothing more to compare.
    over: bool,
}

impl<'a, 'b> FreeCheck<'a, 'b> {
    pub fn new(context: &'a Context<'b>, tree: &Tree, range: &'a Range) -> FreeCheck<'a, 'b> {
        let cursor = Cursor::at(context, tree, Key::new(range.first, 0, 0));
        FreeCheck {
            context,
            cursor,
            range,
            info: None,
            runs: VecDeque::new(),
            open: None,
            counted: 0,
            over: false,
        }
    }

    /// From `start` to before `end` nothing is used, and what is next to it is.
    pub fn gap(&mut self, start: u64, end: u64) {
        if self.over || self.range.chunk.is_none() {
            return;
        }
        let found = self.next_run();
        if found != Some((start, end)) && !self.over {
            self.differ(found, &format!("{start} to {end}"));
        }
    }

    /// There is no further gap.
    pub fn finish(&mut self) {
        if self.over {
            return;
        }
        if self.range.chunk.is_none() {
            return self.ghosts();
        }
        if let Some(run) = self.next_run() {
            return self.differ(Some(run), "no more free space");
        }
        if self.over {
            return;
        }
        match self.info {
            Some(info) if u64::from(info.extent_count.get()) != self.counted => {
                let have = info.extent_count.get();
                self.context.report(Kind::FreeCount, self.place(), have, self.counted);
            }
            Some(_) => {}
            None => self.bad_info("no info item"),
        }
    }

    /// Items where no chunk is: `mkfs.btrfs` leaves those of a group that it makes and removes again, before those that it
    /// keeps. They have to be whole all the same.
    fn ghosts(&mut self) {
        let mut group: Option<Run> = None;
        while let Some(Event::Item(key, _)) = self.cursor.get() {
            if key.objectid > self.range.last {
                return;
            }
            let run = (key.objectid, key.objectid.saturating_add(key.offset));
            let place = Place::logical(key.objectid, key.offset);
            let inside = group.is_some_and(|group| group.0 <= run.0 && run.1 <= group.1);
            if key.kind == kind::FREE_SPACE_INFO {
                group = Some(run);
                let behind_all = self.range.last == u64::MAX;
                let (issue, want) = match behind_all {
                    true => (Kind::FreeInfo, "nothing outside block groups"),
                    false => (
                        Kind::FreeExtra,
                        "nothing outside block groups (mkfs.btrfs leaves some, which is harmless)",
                    ),
                };
                self.context.report(issue, place, key, want);
            } else if !inside {
                self.context.report(Kind::FreeInfo, place, key, "an info item before it");
            }
            self.cursor.next();
        }
    }

    fn place(&self) -> Place {
        let len = self.range.last - self.range.first;
        Place::logical(self.range.first, len.saturating_add(1))
    }

    fn differ(&mut self, found: Option<Run>, expect: &str) {
        self.over = true;
        let have = match found {
            Some((start, end)) => format!("free space from {start} to {end}"),
            None => "no more free space".into(),
        };
        self.context.report(Kind::FreeMismatch, self.place(), have, expect);
    }

    fn bad_info(&mut self, have: &str) {
        self.over = true;
        self.context.report(Kind::FreeInfo, self.place(), have, "an info item of this group");
    }

    fn next_run(&mut self) -> Option<Run> {
        loop {
            let Some(run) = self.runs.pop_front() else {
                if self.read_item() {
                    continue;
                }
                return self.close(None);
            };
            match &mut self.open {
                Some(open) if open.1 == run.0 => open.1 = run.1,
                Some(_) => return self.close(Some(run)),
                None => self.open = Some(run),
            }
        }
    }

    fn close(&mut self, next: Option<Run>) -> Option<Run> {
        let done = std::mem::replace(&mut self.open, next);
        self.counted += u64::from(done.is_some() && self.has_bitmaps());
        done
    }

    fn has_bitmaps(&self) -> bool {
        self.info.is_some_and(|info| info.flags.get() & BITMAPS != 0)
    }

    /// Takes one item in; whether there was one.
    fn read_item(&mut self) -> bool {
        let (key, data) = match self.cursor.get() {
            Some(Event::Item(key, data)) if key.objectid <= self.range.last => (key, data),
            Some(Event::Lost(key, _)) if key.objectid <= self.range.last => {
                self.over = true;
                return false;
            }
            _ => return false,
        };
        let end = key.objectid.saturating_add(key.offset);
        let info = FreeSpaceInfo::of(data).copied();
        if key.kind == kind::FREE_SPACE_BITMAP {
            bits(key.objectid, end, data, &mut self.runs);
        }
        self.cursor.next();
        match key.kind {
            kind::FREE_SPACE_INFO => self.take_info(&key, info),
            kind::FREE_SPACE_EXTENT => {
                self.runs.push_back((key.objectid, end));
                self.counted += 1;
                self.needs_info(false);
            }
            kind::FREE_SPACE_BITMAP => self.needs_info(true),
            _ => {}
        }
        !self.over
    }

    fn take_info(&mut self, key: &Key, info: Option<FreeSpaceInfo>) {
        let own = self.range.chunk.as_ref();
        let own = own.is_some_and(|it| it.logical == key.objectid && it.length == key.offset);
        if !own || self.info.is_some() {
            return self.bad_info(&format!("info item {key}"));
        }
        self.info = info;
    }

    /// Extents and bitmaps come after the info item, which says which of them there are.
    fn needs_info(&mut self, bitmaps: bool) {
        if self.info.is_none() {
            self.bad_info("no info item");
        } else if self.has_bitmaps() != bitmaps {
            self.bad_info(if bitmaps {
                "bitmaps without the flag"
            } else {
                "extents and the flag"
            });
        }
    }
}

/// The runs of set bits; bit n stands for sector n from `start`. Bits at or after `end` do not count.
pub(super) fn bits(start: u64, end: u64, data: &[u8], runs: &mut VecDeque<Run>) {
    let mut open: Option<u64> = None;
    let mut at = start;
    for byte in data {
        if (*byte == 0 && open.is_none()) || (*byte == 0xff && open.is_some()) {
            at = at.saturating_add(8 * SECTOR);
            continue;
        }
        for bit in 0..8 {
            match (byte >> bit & 1 == 1, open) {
                (true, None) => open = Some(at),
                (false, Some(from)) => {
                    runs.push_back((from, at.min(end)));
                    open = None;
                }
                _ => {}
            }
            at = at.saturating_add(SECTOR);
        }
    }
    if let Some(from) = open {
        runs.push_back((from, at.min(end)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(data: &[u8], end: u64) -> Vec<Run> {
        let mut found = VecDeque::new();
        bits(0, end * SECTOR, data, &mut found);
        found.into_iter().map(|(from, to)| (from / SECTOR, to / SECTOR)).collect()
    }

    #[test]
    fn bits_become_runs() {
        assert_eq!(runs(&[0, 0], 16), []);
        assert_eq!(runs(&[0xff, 0xff], 16), [(0, 16)]);
        assert_eq!(runs(&[0b1000_0001, 0b0000_0011], 16), [(0, 1), (7, 10)]);
        assert_eq!(runs(&[0xf0, 0xff, 0xff], 18), [(4, 18)]);
        assert_eq!(runs(&[0b0101_0101], 8), [(0, 1), (2, 3), (4, 5), (6, 7)]);
    }
}
