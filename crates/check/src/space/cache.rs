//! The v1 free space cache: files of the root tree with the free space of each block group. Judged only where the kernel would
//! take it for valid (its generations match); otherwise the kernel makes it anew and nothing depends on it.
//!
//! A cache file is made of pages of 4096 bytes. The first one begins with the checksums of all pages and a generation; then come
//! entries of 17 bytes (start, length, kind), none across two pages; then one page for each bitmap, in the order of the entries.
//! Places that superblocks may stand in are never free in a cache.

use std::collections::{BTreeMap, VecDeque};

use buttress_codec::crc32c::crc32c_raw;
use buttress_ondisk::{
    Key, SECTOR, STRIPE_LEN,
    item::{FreeSpaceHeader, InodeItem},
    kind, objectid,
    superblock::{SUPERBLOCK_OFFSETS, compat_ro},
    view::FileExtentItem,
};
use buttress_volume::{Chunk, Profile};

use super::{
    Range,
    free::{Run, bits},
};
use crate::{
    context::Context,
    cursor::{Cursor, Event},
    issue::Place,
    kinds::Kind,
    walk::{Leaf, Visitor, walk},
};

const PAGE: usize = SECTOR as usize;
const ENTRY_LEN: usize = 17;
const ENTRY_EXTENT: u8 = 1;
const ENTRY_BITMAP: u8 = 2;
/// What the superblock says where no caches are kept.
const NO_CACHES: [u64; 2] = [0, u64::MAX];
/// The mode of every cache file.
const MODE: u32 = 0o100_600;
/// The largest cache file that is looked at: more than a group of any size needs.
const FILE_LEN_MAX: u64 = 64 << 20;

/// The caches of all block groups, by the start of the group.
#[derive(Default)]
pub(super) struct Caches {
    headers: BTreeMap<u64, FreeSpaceHeader>,
}

impl Visitor for Caches {
    fn leaf(&mut self, leaf: &Leaf<'_>) {
        for (key, data) in leaf.items() {
            if key.objectid == objectid::FREE_SPACE
                && key.kind == 0
                && let Some(header) = FreeSpaceHeader::of(data)
            {
                self.headers.insert(key.offset, *header);
            }
        }
    }
}

impl Caches {
    /// All of them; none when a free space tree is used instead, or when they are of another commit.
    pub fn of(context: &Context<'_>) -> Caches {
        let mut caches = Caches::default();
        let sb = &context.sb;
        let tree = sb.compat_ro_flags.get() & compat_ro::FREE_SPACE_TREE != 0;
        let (have, expect) = (sb.cache_generation.get(), sb.generation.get());
        if !NO_CACHES.contains(&have) && have != expect {
            context.report(Kind::CacheStale, Place::default(), have, expect);
        }
        if !tree && sb.cache_generation == sb.generation {
            let range =
                Key::new(objectid::FREE_SPACE, 0, 0)..=Key::new(objectid::FREE_SPACE, 0, u64::MAX);
            walk(context, &context.root_tree(), range, &mut caches);
        }
        caches
    }

    /// The cache of a group, read; `None` when there is none to compare with.
    pub fn check(&self, context: &Context<'_>, range: &Range) -> Option<CacheCheck> {
        let chunk = range.chunk.as_ref()?;
        let header = self.headers.get(&chunk.logical)?;
        match read(context, header) {
            Ok(Some(runs)) => {
                let (runs, twice) = merged(runs);
                Some(CacheCheck {
                    runs,
                    reserved: reserved(chunk),
                    place: Place::logical(chunk.logical, chunk.length),
                    wrong: twice.map(|run| (Some(run), None)),
                })
            }
            Ok(None) => {
                let place = Place::logical(chunk.logical, chunk.length);
                let have = format_args!("a cache of generation {}", header.generation);
                context.report(Kind::CacheStale, place, have, "that of its inode");
                None
            }
            Err(why) => {
                let place = Place::logical(chunk.logical, chunk.length);
                context.report(Kind::CacheBad, place, why, "a cache that can be read");
                None
            }
        }
    }
}

/// The free space that a cache file holds; `None` when it is of another generation.
fn read(context: &Context<'_>, header: &FreeSpaceHeader) -> Result<Option<Vec<Run>>, &'static str> {
    let location = Key::from(header.location);
    let tree = context.root_tree();
    let mut cursor = Cursor::at(context, &tree, location);
    let inode = match cursor.get() {
        Some(Event::Item(key, data)) if key == location => InodeItem::of(data).copied(),
        _ => None,
    };
    let inode = inode.ok_or("no inode")?;
    if inode.generation != header.generation {
        return Ok(None);
    }
    if inode.mode.get() != MODE {
        return Err("an inode of another mode");
    }
    let size = inode.size.get();
    if size == 0 || size > FILE_LEN_MAX || !size.is_multiple_of(SECTOR) {
        return Err("a file of an impossible size");
    }
    let mut content = vec![0; size as usize];
    let mut end = 0;
    while let Some(Event::Item(key, data)) = cursor.get() {
        if key.objectid != location.objectid {
            break;
        }
        if key.kind == kind::EXTENT_DATA && key.offset == end {
            end = end.saturating_add(read_extent(context, key.offset, data, &mut content)?);
        }
        cursor.next();
    }
    if end < size {
        return Err("a file with a hole");
    }
    parse(&content, header).map(Some)
}

/// Reads an extent of a cache file; how many bytes of the file it is.
fn read_extent(
    context: &Context<'_>,
    at: u64,
    data: &[u8],
    content: &mut [u8],
) -> Result<u64, &'static str> {
    let Some(FileExtentItem::Regular {
        compression: 0,
        prealloc: false,
        disk_bytenr,
        offset,
        num_bytes,
        ..
    }) = FileExtentItem::read(data)
    else {
        return Err("an extent of another kind");
    };
    if disk_bytenr == 0 {
        return Err("a file with a hole");
    }
    let end = at.saturating_add(num_bytes).min(content.len() as u64);
    if let Some(part) = content.get_mut(at as usize..end as usize) {
        let logical = disk_bytenr.saturating_add(offset);
        context.volume.read_raw(logical, part, 0).map_err(|_| "data that cannot be read")?;
    }
    Ok(num_bytes)
}

fn parse(content: &[u8], header: &FreeSpaceHeader) -> Result<Vec<Run>, &'static str> {
    let pages = content.len() / PAGE;
    let sums_len = pages * 4;
    let sums = content.get(..sums_len).ok_or("no room for checksums")?;
    let entries = usize::try_from(header.num_entries.get()).unwrap_or(usize::MAX);
    let mut reader = Pages { content, sums, page: 0, at: sums_len };
    reader.verify()?;
    if reader.take(8)? != header.generation.get().to_le_bytes() {
        return Err("content of another generation");
    }
    let mut runs = Vec::new();
    let mut bitmaps = Vec::new();
    for _ in 0..entries.min(content.len() / ENTRY_LEN) {
        let entry = reader.take(ENTRY_LEN)?;
        let word = |at: usize| {
            let bytes = entry.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            u64::from_le_bytes(bytes.unwrap_or_default())
        };
        match entry.last() {
            Some(&ENTRY_EXTENT) => runs.push((word(0), word(0).saturating_add(word(8)))),
            Some(&ENTRY_BITMAP) => bitmaps.push(word(0)),
            _ => return Err("an entry of an unknown kind"),
        }
    }
    for start in bitmaps {
        let mut found = VecDeque::new();
        bits(start, u64::MAX, reader.next_page()?, &mut found);
        runs.extend(found);
    }
    Ok(runs)
}

/// Takes a cache file apart page by page, each against its checksum.
struct Pages<'a> {
    content: &'a [u8],
    sums: &'a [u8],
    page: usize,
    /// Where to go on in the page.
    at: usize,
}

impl<'a> Pages<'a> {
    fn bytes(&self) -> Result<&'a [u8], &'static str> {
        let start = self.page * PAGE;
        self.content.get(start..start + PAGE).ok_or("fewer pages than entries")
    }

    fn verify(&self) -> Result<(), &'static str> {
        let skip = if self.page == 0 { self.sums.len() } else { 0 };
        let bytes = self.bytes()?.get(skip..).ok_or("too many pages")?;
        let sum = !crc32c_raw(u32::MAX, bytes);
        let stored = self.sums.get(self.page * 4..self.page * 4 + 4);
        if stored == Some(&sum.to_le_bytes()) { Ok(()) } else { Err("a page without its checksum") }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], &'static str> {
        if self.at + len > PAGE {
            self.turn()?;
        }
        let bytes = self.bytes()?.get(self.at..self.at + len).ok_or("an entry cut off")?;
        self.at += len;
        Ok(bytes)
    }

    fn turn(&mut self) -> Result<(), &'static str> {
        self.page += 1;
        self.at = 0;
        self.verify()
    }

    fn next_page(&mut self) -> Result<&'a [u8], &'static str> {
        self.turn()?;
        self.bytes()
    }
}

/// Sorted, and neighbours made one; and the first run that is told twice.
fn merged(mut runs: Vec<Run>) -> (VecDeque<Run>, Option<Run>) {
    runs.sort_unstable();
    let mut whole: VecDeque<Run> = VecDeque::new();
    let mut twice = None;
    for run in runs {
        if let Some(last) = whole.back().filter(|last| last.1 > run.0) {
            twice = twice.or(Some((run.0, run.1.min(last.1))));
        }
        match whole.back_mut() {
            Some(last) if last.1 >= run.0 => last.1 = last.1.max(run.1),
            _ => whole.push_back(run),
        }
    }
    (whole, twice)
}

/// The logical addresses of a chunk behind which superblocks may stand: whole stripes.
fn reserved(chunk: &Chunk) -> Vec<Run> {
    let mut found = Vec::new();
    if chunk.logical < SUPERBLOCK_OFFSETS[0] {
        found.push((chunk.logical, SUPERBLOCK_OFFSETS[0] + STRIPE_LEN));
    }
    let simple = matches!(chunk.profile(), Profile::Single | Profile::Dup | Profile::Raid1);
    for stripe in chunk.stripes.iter().filter(|_| simple) {
        for place in SUPERBLOCK_OFFSETS {
            if let Some(depth) = place.checked_sub(stripe.offset).filter(|at| *at < chunk.length) {
                let start = chunk.logical + depth / STRIPE_LEN * STRIPE_LEN;
                found.push((start, start.saturating_add(STRIPE_LEN)));
            }
        }
    }
    found.sort_unstable();
    found
}

/// The comparison of one group.
pub(super) struct CacheCheck {
    runs: VecDeque<Run>,
    reserved: Vec<Run>,
    place: Place,
    /// The first difference.
    wrong: Option<(Option<Run>, Option<Run>)>,
}

impl CacheCheck {
    /// From `start` to before `end` nothing is used.
    pub fn gap(&mut self, start: u64, end: u64) {
        let mut at = start;
        for (from, to) in self.reserved.clone() {
            if to <= at || from >= end {
                continue;
            }
            if at < from {
                self.expect((at, from));
            }
            at = to.min(end);
        }
        if at < end {
            self.expect((at, end));
        }
    }

    fn expect(&mut self, run: Run) {
        let have = self.runs.pop_front();
        if have != Some(run) && self.wrong.is_none() {
            self.wrong = Some((have, Some(run)));
        }
    }

    /// There is no further gap.
    pub fn finish(mut self, context: &Context<'_>) {
        let left = self.runs.pop_front();
        let wrong = self.wrong.or(left.map(|run| (Some(run), None)));
        if let Some((have, expect)) = wrong {
            context.report(Kind::CacheMismatch, self.place, show(have), show(expect));
        }
    }
}

fn show(run: Option<Run>) -> String {
    match run {
        Some((start, end)) => format!("free space from {start} to {end}"),
        None => "no more free space".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_leave_out_what_superblocks_need() {
        let check = |runs: &[Run], gap: Run| {
            let mut check = CacheCheck {
                runs: runs.iter().copied().collect(),
                reserved: vec![(100, 110), (200, 210)],
                place: Place::default(),
                wrong: None,
            };
            check.gap(gap.0, gap.1);
            check.wrong.is_none() && check.runs.is_empty()
        };
        assert!(check(&[(0, 50)], (0, 50)));
        assert!(check(&[(0, 100), (110, 200), (210, 300)], (0, 300)));
        assert!(check(&[(110, 120)], (105, 120)));
        assert!(check(&[(90, 100)], (90, 105)));
        assert!(check(&[], (100, 110)));
        assert!(!check(&[(90, 101)], (90, 105)));
    }

    #[test]
    fn runs_are_merged() {
        let whole = VecDeque::from([(0, 6), (8, 9)]);
        assert_eq!(merged(vec![(5, 6), (0, 2), (2, 5), (8, 9)]), (whole.clone(), None));
        assert_eq!(merged(vec![(0, 3), (2, 6), (8, 9)]), (whole, Some((2, 3))));
    }
}
