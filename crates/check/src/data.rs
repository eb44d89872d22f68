//! All data that has checksums is read and compared, every copy of it.
//!
//! Neighbouring sectors that are bad in the same way are one issue: damage comes in ranges.

use buttress_codec::Digest;
use buttress_ondisk::{Key, SECTOR, kind, objectid};
use buttress_volume::{Chunk, VolumeError};

use crate::{
    context::Context,
    cursor::{Cursor, Event},
    issue::Place,
    kinds::Kind,
    progress::Phase,
    run::in_parallel,
    space::csum_run,
};

/// Bytes read at a time.
const PIECE: usize = 1 << 20;

/// Reads the data of all chunks, several at once.
pub(crate) fn check(context: &Context<'_>, csum_bytes: u64) {
    if context.roots.find(objectid::CSUM_TREE).is_none() {
        return;
    }
    let sum_len = context.volume.checksum_kind().size() as u64;
    context.progress.begin(Phase::Data, csum_bytes / sum_len * SECTOR);
    let chunks = context.volume.chunks();
    in_parallel(context.options.threads, &chunks, |chunk| {
        let runs = vec![None; chunk.profile().copies()];
        Reader { context, chunk, buf: vec![0; PIECE], runs }.read();
    });
}

/// What is wrong with a sector.
enum Wrong {
    /// Its checksum is another one.
    Sum(Digest),
    /// It cannot be read.
    Unreadable(VolumeError),
}

/// Bad sectors behind each other, in one copy.
#[derive(Clone, Debug)]
struct Run {
    logical: u64,
    sectors: u64,
    /// Whether they cannot be read.
    unreadable: bool,
    /// What was found in the first one, and what had to be there.
    have: String,
    expect: String,
}

impl Run {
    fn end(&self) -> u64 {
        self.logical + self.sectors * SECTOR
    }
}

struct Reader<'a, 'b> {
    context: &'a Context<'b>,
    chunk: &'a Chunk,
    buf: Vec<u8>,
    /// The bad sectors met last in each copy, which may go on.
    runs: Vec<Option<Run>>,
}

impl Reader<'_, '_> {
    fn read(&mut self) {
        self.compare();
        for copy in 0..self.runs.len() {
            self.tell(copy);
        }
    }

    fn compare(&mut self) {
        let Some(tree) = self.context.roots.find(objectid::CSUM_TREE) else { return };
        let first = Key::new(objectid::EXTENT_CSUM, kind::EXTENT_CSUM, self.chunk.logical);
        let mut cursor = Cursor::near(self.context, tree, first);
        while let Some(event) = cursor.get() {
            if let Some((start, _)) = csum_run(self.context, &event)
                && let Event::Item(_, sums) = event
            {
                if start >= self.chunk.end() {
                    break;
                }
                self.item(start, sums);
            }
            cursor.next();
        }
    }

    /// The part of a checksum item that is in the chunk.
    fn item(&mut self, start: u64, sums: &[u8]) {
        let size = self.context.volume.checksum_kind().size();
        let skip = self.chunk.logical.saturating_sub(start) / SECTOR;
        let sums = sums.get(skip as usize * size..).unwrap_or_default();
        let mut at = start + skip * SECTOR;
        for sums in sums.chunks(PIECE / SECTOR as usize * size) {
            let sectors = (sums.len() / size) as u64;
            let inside = self.chunk.end().saturating_sub(at) / SECTOR;
            let sectors = sectors.min(inside);
            let sums = sums.get(..sectors as usize * size).unwrap_or_default();
            for copy in 0..self.chunk.profile().copies() {
                self.piece(at, sums, copy);
            }
            self.context.progress.advance(sectors * SECTOR);
            at += sectors * SECTOR;
        }
    }

    fn piece(&mut self, at: u64, sums: &[u8], copy: usize) {
        let kind = self.context.volume.checksum_kind();
        let sectors = sums.len() / kind.size();
        let len = sectors * SECTOR as usize;
        let Some(buf) = self.buf.get_mut(..len) else { return };
        if self.context.volume.read_raw(at, buf, copy).is_err() {
            return self.one_by_one(at, sums, copy);
        }
        for (index, sum) in sums.chunks_exact(kind.size()).enumerate() {
            let start = index * SECTOR as usize;
            let Some(sector) = self.buf.get(start..start + SECTOR as usize) else { return };
            if !kind.verify(sector, sum) {
                let wrong = Wrong::Sum(kind.digest(sector));
                self.bad(at + start as u64, copy, &wrong, sum);
            }
        }
    }

    /// A piece that cannot be read as a whole.
    fn one_by_one(&mut self, at: u64, sums: &[u8], copy: usize) {
        let kind = self.context.volume.checksum_kind();
        let mut sector = vec![0; SECTOR as usize];
        for (index, sum) in sums.chunks_exact(kind.size()).enumerate() {
            let logical = at + index as u64 * SECTOR;
            let read: Result<(), VolumeError> =
                self.context.volume.read_raw(logical, &mut sector, copy);
            match read {
                Ok(()) if kind.verify(&sector, sum) => {}
                Ok(()) => self.bad(logical, copy, &Wrong::Sum(kind.digest(&sector)), sum),
                Err(error) => self.bad(logical, copy, &Wrong::Unreadable(error), sum),
            }
        }
    }

    /// A bad sector: one more of those before it, or the first of others.
    fn bad(&mut self, logical: u64, copy: usize, wrong: &Wrong, sum: &[u8]) {
        let unreadable = matches!(wrong, Wrong::Unreadable(_));
        if let Some(Some(run)) = self.runs.get_mut(copy)
            && run.end() == logical
            && run.unreadable == unreadable
        {
            run.sectors += 1;
            return;
        }
        self.tell(copy);
        let have = match wrong {
            Wrong::Sum(digest) => digest.to_string(),
            Wrong::Unreadable(error) => error.to_string(),
        };
        let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
        let run = Run { logical, sectors: 1, unreadable, have, expect: format!("0x{sum}") };
        if let Some(place) = self.runs.get_mut(copy) {
            *place = Some(run);
        }
    }

    /// Reports the bad sectors of a copy that were met last.
    fn tell(&mut self, copy: usize) {
        let Some(run) = self.runs.get_mut(copy).and_then(Option::take) else { return };
        let Run { logical, sectors, have, expect, .. } = run;
        let place = Place::logical(logical, sectors * SECTOR);
        let copy = copy + 1;
        match sectors {
            1 => {
                let have = format_args!("copy {copy}: {have}");
                self.context.report(Kind::DataCsum, place, have, expect);
            }
            _ => {
                let have = format_args!("copy {copy}: {sectors} bad sectors, the first {have}");
                let expect = format_args!("the first {expect}");
                self.context.report(Kind::DataCsum, place, have, expect);
            }
        }
    }
}
