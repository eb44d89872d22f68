//! Checksums of one range against its data: there must be none where there is no data. Whether data that needs checksums
//! has them is the files' matter, which say what needs them.

use buttress_ondisk::{Key, SECTOR, kind, objectid};

use super::{Range, free::Run};
use crate::{
    context::{Context, add},
    cursor::{Cursor, Event},
    issue::Place,
    kinds::Kind,
    roots::Tree,
};

/// The comparison of one range.
pub(super) struct Coverage<'a, 'b> {
    context: &'a Context<'b>,
    cursor: Cursor<'a, 'b>,
    first: u64,
    /// The first address after the range.
    end: u64,
    /// What is left of the checksums that the cursor has given last.
    run: Option<Run>,
    /// Where the checksums before end.
    before: u64,
    lost: bool,
}

impl<'a, 'b> Coverage<'a, 'b> {
    pub fn new(context: &'a Context<'b>, tree: &Tree, range: &Range) -> Coverage<'a, 'b> {
        let (first, end) = (range.first, range.last.saturating_add(1));
        let key = Key::new(objectid::EXTENT_CSUM, kind::EXTENT_CSUM, first);
        let cursor = Cursor::near(context, tree, key);
        let mut coverage =
            Coverage { context, cursor, first, end, run: None, before: 0, lost: false };
        coverage.advance();
        coverage
    }

    /// There is data from `start` to before `end`.
    pub fn data(&mut self, start: u64, end: u64) {
        while let Some((from, to)) = self.run.filter(|(from, _)| *from < end) {
            if from < start {
                self.extra(from, to.min(start));
            }
            if to <= end {
                self.advance();
            } else {
                self.run = Some((end, to));
            }
        }
    }

    /// There is no more data.
    pub fn finish(&mut self) {
        while let Some((from, to)) = self.run {
            self.extra(from, to);
            self.advance();
        }
    }

    fn extra(&self, from: u64, to: u64) {
        let place = Place {
            tree: Some(objectid::CSUM_TREE),
            ..Place::logical(from, to.saturating_sub(from))
        };
        self.context.report(Kind::CsumExtra, place, "checksums", "a data extent");
    }

    /// The next checksums that are in the range.
    fn advance(&mut self) {
        self.run = None;
        while !self.lost && self.run.is_none() {
            let Some(event) = self.cursor.get() else { return };
            let Some((start, end)) = run(self.context, &event) else {
                if matches!(event, Event::Lost(..)) {
                    self.lost = true;
                }
                self.cursor.next();
                continue;
            };
            if start >= self.end {
                return;
            }
            self.cursor.next();
            self.take(start, end);
        }
    }

    fn take(&mut self, start: u64, end: u64) {
        // Reported in the range where it starts.
        if start < self.before && start >= self.first {
            let place = Place::logical(start, end - start);
            self.context.report(Kind::CsumOverlap, place, start, self.before);
        }
        self.before = self.before.max(end);
        let (start, end) = (start.max(self.first), end.min(self.end));
        if start < end {
            let sums = (end - start) / SECTOR * self.context.volume.checksum_kind().size() as u64;
            add(&self.context.sizes.csums, sums);
            self.run = Some((start, end));
        }
    }
}

/// The addresses that a checksum item is for; `None` for anything else.
pub(crate) fn run(context: &Context<'_>, event: &Event<'_>) -> Option<Run> {
    let Event::Item(key, data) = event else { return None };
    if key.kind != kind::EXTENT_CSUM {
        return None;
    }
    let sectors = data.len() / context.volume.checksum_kind().size();
    Some((key.offset, key.offset.saturating_add(sectors as u64 * SECTOR)))
}
