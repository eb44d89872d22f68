//! The free space tree: for each block group how many free runs it has, and where they are.
//!
//! A group starts with a `FREE_SPACE_INFO`; then come either one `FREE_SPACE_EXTENT` for each run, or,
//! where runs are many, `FREE_SPACE_BITMAP`s that together cover the whole group: a bit for each
//! sector, set when it is free, the lowest bit of each byte first. The stripes under superblocks
//! count as free here.

use std::collections::{BTreeMap, BTreeSet};

use buttress_ondisk::item::FreeSpaceInfo;
use buttress_ondisk::{ITEM_LEN, Key, SECTOR, kind};
use zerocopy::IntoBytes;

use super::extents::Range;
use super::group::{Group, join};
use super::{Dirty, Edit, Items, Space};
use crate::error::Result;

/// Bytes of a whole bitmap.
pub(super) const BITMAP_LEN: u64 = 256;
/// Bytes of logical space that a whole bitmap covers.
pub(super) const BITMAP_COVERS: u64 = BITMAP_LEN * 8 * SECTOR;
/// Set in [`FreeSpaceInfo::flags`] when there are bitmaps.
const USES_BITMAPS: u32 = 1;
/// By how many runs a group must be below the point where bitmaps began to pay, before it goes back
/// to extents.
const HYSTERESIS: u64 = 100;

/// Whether a group with so many runs is written as bitmaps, when it was (or was not) so far: they are
/// begun when extents would take more room in leaves, and given up well below that.
fn wants_bitmaps(len: u64, runs: u64, so_far: bool) -> bool {
    let item = ITEM_LEN as u64;
    let high = len.div_ceil(BITMAP_COVERS) * (item + BITMAP_LEN) / item;
    if so_far { runs >= high.saturating_sub(HYSTERESIS) } else { runs > high }
}

/// The bitmaps of a group: where each starts, what it covers, its bytes.
fn bitmaps(group: Range, runs: &[Range]) -> Vec<(Range, Vec<u8>)> {
    let mut maps = Vec::new();
    let mut runs = runs.iter().copied().peekable();
    let mut rest: Option<Range> = None;
    let mut at = group.start;
    while at < group.end() {
        let covers = Range::new(at, BITMAP_COVERS.min(group.end() - at));
        let mut bits = vec![0u8; (covers.len / SECTOR).div_ceil(8) as usize];
        while let Some(run) = rest.take().or_else(|| runs.next_if(|run| run.start < covers.end())) {
            let end = run.end().min(covers.end());
            set_bits(&mut bits, (run.start - at) / SECTOR, (end - at) / SECTOR);
            if run.end() > end {
                rest = Some(Range::new(end, run.end() - end));
                break;
            }
        }
        maps.push((covers, bits));
        at = covers.end();
    }
    maps
}

fn set_bits(bits: &mut [u8], from: u64, to: u64) {
    for bit in from..to {
        if let Some(byte) = bits.get_mut((bit / 8) as usize) {
            *byte |= 1 << (bit % 8);
        }
    }
}

/// The runs of set bits; `None` when the bytes are not as many as `covers` needs, or bits beyond it
/// are set.
fn runs_of(covers: Range, bits: &[u8]) -> Option<Vec<Range>> {
    let sectors = covers.len / SECTOR;
    if !covers.len.is_multiple_of(SECTOR) || bits.len() as u64 != sectors.div_ceil(8) {
        return None;
    }
    let is_set = |bit: u64| bits.get((bit / 8) as usize).is_some_and(|b| b >> (bit % 8) & 1 != 0);
    let mut runs: Vec<Range> = Vec::new();
    for bit in 0..bits.len() as u64 * 8 {
        if !is_set(bit) {
            continue;
        }
        if bit >= sectors {
            return None;
        }
        let start = covers.start + bit * SECTOR;
        match runs.last_mut() {
            Some(last) if last.end() == start => last.len += SECTOR,
            _ => runs.push(Range::new(start, SECTOR)),
        }
    }
    Some(runs)
}

/// Puts items in order and deletes the old ones between them.
struct Replace<'a, E: Edit> {
    edit: &'a mut E,
    from: Key,
}

impl<E: Edit> Replace<'_, E> {
    fn drop_before(&mut self, key: Key) -> Result<()> {
        while let Some(old) = self.edit.peek(&self.from)?.filter(|old| *old < key) {
            self.edit.delete(&old)?;
            self.from = old.next();
        }
        Ok(())
    }

    fn put(&mut self, key: Key, data: &[u8]) -> Result<()> {
        self.drop_before(key)?;
        self.edit.put(key, data)?;
        self.from = key.next();
        Ok(())
    }
}

/// What a commit writes of one group.
#[derive(Debug)]
pub(super) struct News {
    bitmaps: bool,
    count: u64,
    /// Places in which the items are written anew, rising, and the free runs in each.
    places: Vec<(Range, Vec<Range>)>,
}

impl News {
    /// What the tree has not heard of. It has bitmaps so far (or not); `None`: it knows nothing of the group.
    pub(super) fn take(group: &mut Group, so_far: Option<bool>) -> News {
        let places = group.take_unwritten();
        let count = group.runs();
        let bitmaps = wants_bitmaps(group.range.len, count, so_far == Some(true));
        let places = match places.filter(|_| so_far == Some(bitmaps)) {
            Some(places) if bitmaps => covered(group.range, &places),
            Some(places) => group.widened(&places),
            None => vec![group.range],
        };
        let free = |place| (place, group.free_on_disk(place));
        News { bitmaps, count, places: places.into_iter().map(free).collect() }
    }
}

/// What the bitmaps cover in which one of the places is, rising.
fn covered(group: Range, places: &[Range]) -> Vec<Range> {
    let mut all: Vec<Range> = Vec::with_capacity(places.len());
    for place in places {
        let first = (place.start - group.start) / BITMAP_COVERS * BITMAP_COVERS + group.start;
        let end = (place.end() - group.start).next_multiple_of(BITMAP_COVERS) + group.start;
        let start = all.last().map_or(first, |last| first.max(last.end()));
        let end = end.min(group.end());
        if start < end {
            all.push(Range::new(start, end - start));
        }
    }
    all
}

/// Writes the items of a group that `news` tells of, once it knows whether there are bitmaps so far.
pub(super) fn emit_group<E: Edit>(
    edit: &mut E,
    group: Range,
    news: impl FnOnce(Option<bool>) -> Option<News>,
) -> Result<()> {
    let info_key = Key::new(group.start, kind::FREE_SPACE_INFO, group.len);
    let old = edit.find(&info_key)?.and_then(FreeSpaceInfo::of);
    let Some(news) = news(old.map(|info| info.flags.get() & USES_BITMAPS != 0)) else {
        return Ok(());
    };
    let flags = if news.bitmaps { USES_BITMAPS } else { 0 };
    let info = FreeSpaceInfo { extent_count: (news.count as u32).into(), flags: flags.into() };
    edit.put(info_key, info.as_bytes())?;
    for (place, runs) in news.places {
        let from = Key::new(place.start, 0, 0).max(info_key.next());
        let mut items = Replace { edit: &mut *edit, from };
        if news.bitmaps {
            for (covers, bits) in bitmaps(place, &runs) {
                items.put(Key::new(covers.start, kind::FREE_SPACE_BITMAP, covers.len), &bits)?;
            }
        } else {
            for run in runs {
                items.put(Key::new(run.start, kind::FREE_SPACE_EXTENT, run.len), &[])?;
            }
        }
        items.drop_before(Key::new(place.end(), 0, 0))?;
    }
    Ok(())
}

impl Space {
    /// Writes the free space of dirty groups into the free space tree, where it has changed: what it comes to is what writing
    /// all of it would, so the same operations make the same tree. A group is asked what has changed in the moment in which it
    /// is merged; what changes after that, also by this merge itself, makes it dirty again, for the next round.
    pub fn emit_free_space(&self, edit: &mut impl Edit, dirty: &Dirty) -> Result<()> {
        for (start, removed) in dirty.in_order() {
            if let Some(range) = removed {
                let from = Key::new(range.start, 0, 0);
                Replace { edit, from }.drop_before(Key::new(range.end(), 0, 0))?;
                continue;
            }
            if let Some(range) = self.with_group(start, |group| group.range) {
                self.have(start)?;
                emit_group(edit, range, |so_far| {
                    self.with_group_mut(start, |group| News::take(group, so_far))
                })?;
            }
        }
        Ok(())
    }
}

/// What the tree says of one group.
#[derive(Default)]
struct Said {
    info: Option<(u32, u32)>,
    runs: Vec<Range>,
    /// Items that are a run, and items that are a bitmap.
    extents: usize,
    bitmaps: usize,
    nonsense: bool,
    /// Bitmaps are not cut as they are written here.
    odd: bool,
}

impl Said {
    fn take(&mut self, group: Range, key: Key, data: &[u8]) {
        let covers = Range::new(key.objectid, key.offset);
        let inside = group.contains(covers)
            && key.objectid.checked_add(key.offset).is_some()
            && covers.start.is_multiple_of(SECTOR)
            && covers.len.is_multiple_of(SECTOR);
        match key.kind {
            kind::FREE_SPACE_INFO if covers == group && self.info.is_none() => {
                self.info =
                    FreeSpaceInfo::of(data).map(|info| (info.extent_count.get(), info.flags.get()));
            }
            kind::FREE_SPACE_EXTENT if inside => {
                self.extents += 1;
                self.runs.push(covers);
            }
            kind::FREE_SPACE_BITMAP if inside => match runs_of(covers, data) {
                Some(runs) => {
                    self.bitmaps += 1;
                    self.odd |= !(covers.start - group.start).is_multiple_of(BITMAP_COVERS)
                        || covers.len != BITMAP_COVERS.min(group.end() - covers.start);
                    self.runs.extend(runs);
                }
                None => self.nonsense = true,
            },
            _ => self.nonsense = true,
        }
    }

    /// Applies it to the group, of which nothing is free so far. Whether it makes sense.
    fn apply(mut self, group: &mut Group, used: u64) -> bool {
        let runs = join(std::mem::take(&mut self.runs));
        let counted = self.info.is_some_and(|(count, _)| count as usize == runs.len());
        let rising = runs.windows(2).all(|pair| pair[0].end() < pair[1].start);
        if self.nonsense || !counted || !rising {
            return false;
        }
        let parts = runs.iter().flat_map(|&run| group.without_excluded(run)).collect::<Vec<_>>();
        let done = group.add_all_free(&parts) && group.used == used;
        if done && self.is_ours(group.range, &runs) && group.free_on_disk(group.range) == runs {
            group.note_written();
        }
        done
    }

    /// Whether it says these runs in the items that would be written here.
    fn is_ours(&self, group: Range, runs: &[Range]) -> bool {
        let whole = group.len.div_ceil(BITMAP_COVERS) as usize;
        match self.info {
            Some((_, 0)) => self.bitmaps == 0 && self.extents == runs.len(),
            Some((_, USES_BITMAPS)) => !self.odd && self.extents == 0 && self.bitmaps == whole,
            _ => false,
        }
    }
}

/// Fills the groups from the tree. Returns those of which it makes no sense: they must be filled from the extents. When they take
/// more than `share` bytes of memory, where the others have free space is forgotten again.
pub(crate) fn load(
    tree: &dyn Items,
    groups: &mut BTreeMap<u64, (Group, u64)>,
    share: u64,
) -> Result<BTreeSet<u64>> {
    let (mut unknown, mut memory) = (BTreeSet::new(), 0);
    let mut finish = |group: &mut Group, used, said: Said| {
        if !said.apply(group, used) {
            unknown.insert(group.range.start);
        }
        if memory + group.free().memory() > share && group.can_leave() {
            group.leave();
        }
        memory += group.free().memory();
    };
    let mut groups = groups.values_mut();
    let (mut group, mut said) = (groups.next(), Said::default());
    tree.each(Key::MIN, Key::MAX, &mut |key, data| {
        while let Some((behind, used)) = group.as_mut().filter(|g| g.0.range.end() <= key.objectid)
        {
            finish(behind, *used, std::mem::take(&mut said));
            group = groups.next();
        }
        // Items of groups that are gone are left behind by old tools: nobody reads them.
        if let Some((group, _)) = group.as_ref().filter(|g| g.0.range.start <= key.objectid) {
            said.take(group.range, key, data);
        }
        Ok(())
    })?;
    for (group, used) in group.into_iter().chain(groups) {
        finish(group, *used, std::mem::take(&mut said));
    }
    Ok(unknown)
}

/// Fills one group, of which nothing is free so far. Whether what the tree says makes sense.
pub(crate) fn load_one(tree: &dyn Items, group: &mut Group, used: u64) -> Result<bool> {
    let (range, mut said) = (group.range, Said::default());
    let to = Key::new(range.end().saturating_sub(1), u8::MAX, u64::MAX);
    tree.each(Key::new(range.start, 0, 0), to, &mut |key, data| {
        said.take(range, key, data);
        Ok(())
    })?;
    Ok(said.apply(group, used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bitmaps_say_what_the_runs_say() {
        let group = Range::new(1 << 20, BITMAP_COVERS + (3 << 20));
        let runs = [
            Range::new(1 << 20, SECTOR),
            Range::new((1 << 20) + 8 * SECTOR, 2 * SECTOR),
            Range::new((1 << 20) + BITMAP_COVERS - SECTOR, 3 * SECTOR),
            Range::new(group.end() - SECTOR, SECTOR),
        ];
        let maps = bitmaps(group, &runs);
        assert_eq!(maps.len(), 2);
        assert_eq!(maps[0].1[..2], [1, 3]);
        assert_eq!(maps[1].1.len(), (3 << 20) / 4096 / 8);
        let back = maps.iter().flat_map(|(covers, bits)| runs_of(*covers, bits).unwrap());
        assert_eq!(join(back), runs);
    }

    #[test]
    fn bitmaps_begin_and_end_where_the_kernel_does() {
        // 1 GiB: 128 bitmaps of 281 bytes are as long as 1438 items of 25.
        assert!(!wants_bitmaps(1 << 30, 1438, false));
        assert!(wants_bitmaps(1 << 30, 1439, false));
        assert!(wants_bitmaps(1 << 30, 1338, true));
        assert!(!wants_bitmaps(1 << 30, 1337, true));
        // 8 MiB: 11 items; there is no way back.
        assert!(wants_bitmaps(8 << 20, 12, false));
        assert!(wants_bitmaps(8 << 20, 0, true));
    }

    #[test]
    fn bad_bitmaps_are_refused() {
        let covers = Range::new(0, 3 * SECTOR);
        assert_eq!(runs_of(covers, &[0b101]).unwrap().len(), 2);
        assert!(runs_of(covers, &[0b1000]).is_none());
        assert!(runs_of(covers, &[1, 0]).is_none());
        assert!(runs_of(Range::new(0, 5), &[1]).is_none());
    }
}
