//! All data that has checksums is read and compared, every copy of it.

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
        Reader { context, chunk, buf: vec![0; PIECE] }.read();
    });
}

struct Reader<'a, 'b> {
    context: &'a Context<'b>,
    chunk: &'a Chunk,
    buf: Vec<u8>,
}

impl Reader<'_, '_> {
    fn read(&mut self) {
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
        let sums = sums.chunks_exact(kind.size());
        for (index, (sector, sum)) in buf.chunks_exact(SECTOR as usize).zip(sums).enumerate() {
            if !kind.verify(sector, sum) {
                let logical = at + index as u64 * SECTOR;
                bad(self.context, logical, copy, &kind.digest(sector), sum);
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
                Ok(()) => bad(self.context, logical, copy, &kind.digest(&sector), sum),
                Err(error) => bad(self.context, logical, copy, &error, sum),
            }
        }
    }
}

fn bad(context: &Context<'_>, logical: u64, copy: usize, have: &dyn std::fmt::Display, sum: &[u8]) {
    let place = Place::logical(logical, SECTOR);
    let expect: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    let have = format_args!("copy {}: {have}", copy + 1);
    context.report(Kind::DataCsum, place, have, format_args!("0x{expect}"));
}
