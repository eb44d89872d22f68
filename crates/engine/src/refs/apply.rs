//! Merging a folded log into the extent tree.
//!
//! The records of one extent form a group. Its item is read once, changed in memory and written once; references that
//! do not fit into the item, or that already have items of their own, follow under keys of their own.
//!
//! What goes, goes for good, and with its checksums. So before an extent goes, each reference that is said to go has been found, none is left, and it is as long as
//! those who let go of it say: where one of that is not so, something else may refer to it, and the commit fails.

use std::collections::HashMap;

use buttress_codec::crc32c::extent_data_ref_hash;
use buttress_ondisk::item::{ExtentDataRef, SharedDataRef, TreeBlockInfo, extent_flags};
use buttress_ondisk::view::InlineRef;
use buttress_ondisk::{Key, SECTOR, kind};
use zerocopy::IntoBytes;

use super::extent::{count_after, data_ref};
use super::{Extent, Owned, Record};
use crate::error::{Error, Result};
use crate::tree::Merge;

const EXTENT_TREE: u64 = buttress_ondisk::objectid::EXTENT_TREE;

/// What the extent tree's change means for space and checksums.
#[derive(Debug, Default)]
pub struct Applied {
    /// Data extents that appeared: address and bytes.
    pub new_data: Vec<(u64, u64)>,
    /// Data extents that went: address and bytes. Their checksums must go too.
    pub freed_data: Vec<(u64, u64)>,
    /// Tree blocks that went.
    pub freed_blocks: Vec<u64>,
    /// What trees have allocated, and what of that went, where [`Form::owners`] asks for it.
    pub owned: Owned,
}

/// How extents are written down on this filesystem.
#[derive(Debug)]
pub struct Form<'a> {
    /// Bytes of a tree block.
    pub nodesize: usize,
    /// Tree blocks have `METADATA_ITEM`s.
    pub skinny: bool,
    /// The running commit.
    pub generation: u64,
    /// First keys of new tree blocks, needed where `skinny` is not set.
    pub first_keys: &'a HashMap<u64, Key>,
    /// Simple quotas count what was allocated since this transaction: who has allocated data is written down with these.
    pub owners: Option<u64>,
}

/// Merges `records` (folded, all those of each extent) into the extent tree. `told` hears of each extent its records, and what they have made of it.
pub fn apply(
    merge: &mut Merge<'_>,
    form: &Form<'_>,
    records: &[Record],
    applied: &mut Applied,
    told: &mut dyn FnMut(&[Record], &Extent),
) -> Result<()> {
    let mut room = Room::default();
    for group in records.chunk_by(|a, b| a.bytenr == b.bytenr) {
        if group.iter().any(|record| record.delta != 0 || record.marks != 0) {
            apply_group(merge, form, group, applied, told, &mut room)?;
        }
    }
    Ok(())
}

/// Memory for one item at a time, of which there are many.
#[derive(Default)]
struct Room {
    inline: Vec<(InlineRef, i64)>,
    bytes: Vec<u8>,
}

fn apply_group(
    merge: &mut Merge<'_>,
    form: &Form<'_>,
    group: &[Record],
    applied: &mut Applied,
    told: &mut dyn FnMut(&[Record], &Extent),
    room: &mut Room,
) -> Result<()> {
    let bytenr = group[0].bytenr;
    let found = match merge.peek(&Key::new(bytenr, kind::EXTENT_ITEM, 0))? {
        Some((key, data)) if key.objectid == bytenr && key.kind <= kind::METADATA_ITEM => {
            Some((key, Extent::read_into(&key, data, std::mem::take(&mut room.inline))?))
        }
        _ => None,
    };
    let (key, old) = match found {
        Some((key, extent)) => (key, Some(extent)),
        None => match new_key(form, group) {
            Some(key) => (key, None),
            None => return Ok(()),
        },
    };
    let is_new = old.is_none();
    must_agree(group, is_new, key)?;
    let mut extent = old.unwrap_or_else(|| new_extent(form, group));
    must_be_meant(group, key, &extent)?;
    let keyed = change(&mut extent, form, group)?;
    if extent.refs < 0 {
        return Err(Error::inconsistent(
            EXTENT_TREE,
            "an extent would have fewer than no references",
            key,
        ));
    }
    if let Some(since) = form.owners {
        note_owner(&mut extent, form, group, (is_new, since), (key, applied));
    }
    told(group, &extent);
    if extent.refs == 0 {
        return drop_extent(merge, form, (key, &extent, keyed), is_new, applied);
    }
    room.bytes.clear();
    extent.write(&mut room.bytes);
    merge.put(key, &room.bytes)?;
    room.inline = std::mem::take(&mut extent.inline);
    if is_new && extent.flags & extent_flags::DATA != 0 {
        applied.new_data.push((bytenr, key.offset));
    }
    apply_keyed(merge, keyed)
}

/// Notes that the owner of an extent has it from now on, or no more. Whose a tree block is, its header says, and whoever takes the last reference away
/// has read that.
fn note_owner(
    extent: &mut Extent,
    form: &Form<'_>,
    group: &[Record],
    (is_new, since): (bool, u64),
    (key, applied): (Key, &mut Applied),
) {
    let (is_data, goes) = (extent.flags & extent_flags::DATA != 0, extent.refs == 0);
    if is_new == goes || extent.generation < since {
        return;
    }
    let said = group.iter().find(|record| record.kind == kind::EXTENT_OWNER_REF);
    let by_trees = || {
        let is_meant = |record: &&Record| match is_new {
            true => record.is_reference() && record.marks & Record::NEW != 0,
            false => record.kind == kind::TREE_BLOCK_REF && record.delta < 0,
        };
        group.iter().find(is_meant)
    };
    let owner = match is_data && !is_new {
        true => extent.owner(),
        false => said.or_else(by_trees).map(|record| record.owner),
    };
    let Some(owner) = owner.filter(|owner| *owner > 0) else { return };
    if is_data && is_new {
        extent.set_owner(owner);
    }
    let bytes = if is_data { key.offset } else { form.nodesize as u64 };
    applied.owned.add(owner, bytes, is_new);
}

/// What is new has no item, and whatever else is referred to has one.
fn must_agree(group: &[Record], is_new: bool, key: Key) -> Result<()> {
    let allocated = group.iter().any(|record| record.marks & Record::NEW != 0);
    match (allocated, is_new) {
        (true, false) => {
            Err(Error::inconsistent(EXTENT_TREE, "what was allocated is in use already", key))
        }
        (false, true) => Err(Error::inconsistent(EXTENT_TREE, "an extent has no item", key)),
        _ => Ok(()),
    }
}

/// Those who refer to it, or no longer do, mean what the item is of: tree blocks tree blocks, and files extents of that length.
fn must_be_meant(group: &[Record], key: Key, extent: &Extent) -> Result<()> {
    let is_data = extent.flags & extent_flags::DATA != 0;
    let is_meant = |record: &Record| match record.sectors {
        0 => !is_data,
        sectors => is_data && key.offset == u64::from(sectors) * SECTOR,
    };
    if group.iter().filter(|record| record.is_reference()).all(is_meant) {
        return Ok(());
    }
    let what = "an extent is not what refers to it says";
    Err(Error::inconsistent(EXTENT_TREE, what, key))
}

/// Where a new extent's item goes. `None` when the group allocates nothing (a mark for a block that went before).
fn new_key(form: &Form<'_>, group: &[Record]) -> Option<Key> {
    let record = group.iter().find(|record| record.is_reference())?;
    let bytenr = record.bytenr;
    Some(if record.sectors > 0 {
        Key::new(bytenr, kind::EXTENT_ITEM, u64::from(record.sectors) * SECTOR)
    } else if form.skinny {
        Key::new(bytenr, kind::METADATA_ITEM, record.level.into())
    } else {
        Key::new(bytenr, kind::EXTENT_ITEM, form.nodesize as u64)
    })
}

fn new_extent(form: &Form<'_>, group: &[Record]) -> Extent {
    let data = group.iter().any(|record| record.sectors > 0);
    if data {
        // What has moved counts as before: it is older than simple quotas, or not.
        let is_moved = |it: &&Record| it.kind == kind::EXTENT_OWNER_REF && it.ino > 0;
        let generation = group.iter().find(is_moved).map_or(form.generation, |it| it.ino);
        return Extent::new(generation, extent_flags::DATA, None);
    }
    let info = (!form.skinny).then(|| TreeBlockInfo {
        key: form.first_keys.get(&group[0].bytenr).copied().unwrap_or_default().into(),
        level: group.iter().find(|record| record.kind != 0).map_or(0, |record| record.level),
    });
    Extent::new(form.generation, extent_flags::TREE_BLOCK, info)
}

/// Changes the item; answers the records that concern items of their own.
fn change(extent: &mut Extent, form: &Form<'_>, group: &[Record]) -> Result<Vec<Record>> {
    let mut has_keyed = extent.has_keyed();
    let mut keyed = Vec::new();
    // Losses first: they make room.
    for gains in [false, true] {
        let is_meant = |record: &&Record| {
            record.is_reference() && record.delta != 0 && (record.delta > 0) == gains
        };
        for record in group.iter().filter(is_meant) {
            if extent.change_inline(record)? {
            } else if gains && !has_keyed && extent.has_room(record.kind, form.nodesize) {
                extent.add_inline(record);
            } else {
                has_keyed = true;
                keyed.push(*record);
            }
            extent.refs = extent.refs.saturating_add(record.delta.into());
        }
    }
    if group.iter().any(|record| record.marks & Record::FULL_BACKREF != 0) {
        extent.flags |= extent_flags::FULL_BACKREF;
    }
    Ok(keyed)
}

fn drop_extent(
    merge: &mut Merge<'_>,
    form: &Form<'_>,
    (key, extent, keyed): (Key, &Extent, Vec<Record>),
    is_new: bool,
    applied: &mut Applied,
) -> Result<()> {
    let mut is_left = extent.inline.iter().any(|(_, count)| *count > 0);
    if is_new {
        // Allocated and freed within the same log: the tree never heard of it, but the space was taken.
        if extent.flags & extent_flags::DATA != 0 {
            applied.new_data.push((key.objectid, key.offset));
        }
    } else {
        merge.delete(&key)?;
        let mut going: HashMap<_, i64> =
            keyed.iter().map(|record| (name_of(record), -i64::from(record.delta))).collect();
        let first = Key::new(key.objectid, kind::EXTENT_OWNER_REF, 0);
        let last = Key::new(key.objectid, kind::SHARED_DATA_REF, u64::MAX);
        merge.delete_range(first, last, |key, data| {
            let is_meant = key.kind == kind::EXTENT_OWNER_REF
                || name_in(&key, data)
                    .is_some_and(|(name, count)| going.remove(&name) == Some(count));
            is_left |= !is_meant;
        })?;
        is_left |= !going.is_empty();
    }
    if is_left {
        let what = "the references of an extent are not those that go";
        return Err(Error::inconsistent(EXTENT_TREE, what, key));
    }
    if extent.flags & extent_flags::DATA != 0 {
        applied.freed_data.push((key.objectid, key.offset));
    } else {
        debug_assert!(form.nodesize > 0);
        applied.freed_blocks.push(key.objectid);
    }
    Ok(())
}

/// What tells a reference from the others of its extent: its kind, and whose it is.
type Name = (u8, u64, u64, u64);

fn name_of(record: &Record) -> Name {
    (record.kind, record.owner, record.ino, record.offset)
}

/// The name of a reference that has an item of its own, and how often it counts.
fn name_in(key: &Key, data: &[u8]) -> Option<(Name, i64)> {
    let parent = (key.kind, key.offset, 0, 0);
    Some(match key.kind {
        kind::EXTENT_DATA_REF => {
            let item = ExtentDataRef::of(data)?;
            let name = (key.kind, item.root.get(), item.objectid.get(), item.offset.get());
            (name, item.count.get().into())
        }
        kind::SHARED_DATA_REF => (parent, SharedDataRef::of(data)?.count.get().into()),
        _ => (parent, 1),
    })
}

fn apply_keyed(merge: &mut Merge<'_>, records: Vec<Record>) -> Result<()> {
    let mut keyed: Vec<(Key, Record)> =
        records.into_iter().map(|record| (keyed_key(&record), record)).collect();
    keyed.sort_unstable();
    for same in keyed.chunk_by(|a, b| a.0.kind == b.0.kind) {
        match same[0].0.kind {
            kind::EXTENT_DATA_REF => apply_hashed(merge, same)?,
            _ => same.iter().try_for_each(|(key, record)| apply_plain(merge, *key, record))?,
        }
    }
    Ok(())
}

fn missing(key: Key) -> Error {
    Error::inconsistent(EXTENT_TREE, "a reference that goes is missing", key)
}

fn apply_plain(merge: &mut Merge<'_>, key: Key, record: &Record) -> Result<()> {
    let count = match merge.find(&key)? {
        None if record.delta > 0 => 0,
        None => return Err(missing(key)),
        Some(data) => count_of(record, &key, data).ok_or_else(|| missing(key))?,
    };
    write_keyed(merge, key, record, count_after(count, record)?)
}

/// References whose keys are hashes. One that meets another under its hash goes to the next free key; where one in
/// between is deleted later, there is a gap before it. So a reference that goes is looked for behind gaps, too.
fn apply_hashed(merge: &mut Merge<'_>, records: &[(Key, Record)]) -> Result<()> {
    let mut records = records.iter().copied().peekable();
    let mut waiting: Vec<Record> = Vec::new();
    let Some(&(mut key, _)) = records.peek() else { return Ok(()) };
    loop {
        while let Some((_, record)) = records.next_if(|(base, _)| *base <= key) {
            waiting.push(record);
        }
        let taken = place_hashed(merge, key, &mut waiting)?;
        let base = records.peek().map(|(base, _)| *base);
        key = match (waiting.is_empty(), base) {
            (true, None) => return Ok(()),
            (true, Some(base)) => base,
            (false, base) => {
                let next = key.offset.checked_add(1).ok_or_else(|| missing(key))?;
                let next = Key { offset: next, ..key };
                if taken { next } else { behind_gap(merge, next, base)? }
            }
        };
    }
}

/// Has one of the waiting references take `key`, if it may; whether there is one now.
fn place_hashed(merge: &mut Merge<'_>, key: Key, waiting: &mut Vec<Record>) -> Result<bool> {
    let found = match merge.find(&key)? {
        Some(data) => {
            let named = |record: &Record| count_of(record, &key, data);
            let at = waiting.iter().position(|record| named(record).is_some());
            match at.and_then(|at| Some((at, named(&waiting[at])?))) {
                Some(found) => Some(found),
                None => return Ok(true),
            }
        }
        None => waiting.iter().position(|record| record.delta > 0).map(|at| (at, 0)),
    };
    let Some((at, count)) = found else { return Ok(false) };
    let record = waiting.remove(at);
    write_keyed(merge, key, &record, count_after(count, &record)?)?;
    Ok(true)
}

/// The next reference of the extent from `from` on, or `base` if that comes first.
fn behind_gap(merge: &mut Merge<'_>, from: Key, base: Option<Key>) -> Result<Key> {
    let next = merge.peek(&from)?.map(|(key, _)| key);
    let next = next.filter(|key| (key.objectid, key.kind) == (from.objectid, from.kind));
    next.into_iter().chain(base).min().ok_or_else(|| missing(from))
}

fn keyed_key(record: &Record) -> Key {
    let offset = match record.kind {
        kind::EXTENT_DATA_REF => extent_data_ref_hash(record.owner, record.ino, record.offset),
        _ => record.owner,
    };
    Key::new(record.bytenr, record.kind, offset)
}

/// How many references the item counts, if it is the one that the record names.
fn count_of(record: &Record, key: &Key, data: &[u8]) -> Option<i64> {
    name_in(key, data).filter(|(name, _)| *name == name_of(record)).map(|(_, count)| count)
}

fn write_keyed(merge: &mut Merge<'_>, key: Key, record: &Record, count: i64) -> Result<()> {
    if count == 0 {
        merge.delete(&key)?;
        return Ok(());
    }
    match record.kind {
        kind::EXTENT_DATA_REF => {
            let item = data_ref(record.owner, record.ino, record.offset, count as u32);
            merge.put(key, item.as_bytes())
        }
        kind::SHARED_DATA_REF => {
            merge.put(key, SharedDataRef { count: (count as u32).into() }.as_bytes())
        }
        _ => merge.put(key, &[]),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet, HashMap};

    use super::*;
    use crate::refs::{RefLog, Target};
    use crate::tree::tests::{Fake, blocks};
    use crate::tree::{Blocks, Root, View};

    const BYTENR: u64 = 1 << 30;

    struct Bench {
        blocks: Blocks,
        next: u64,
        live: BTreeSet<u64>,
        root: Option<Root>,
        generation: u64,
    }

    impl Bench {
        fn new() -> Bench {
            Bench {
                blocks: blocks(),
                next: 1 << 40,
                live: BTreeSet::new(),
                root: None,
                generation: 9,
            }
        }

        fn apply(&mut self, changes: &[((u64, u64), i32)]) {
            let marks = if self.root.is_none() { Record::NEW } else { 0 };
            self.try_apply(changes, marks).unwrap();
        }

        fn try_apply(&mut self, changes: &[((u64, u64), i32)], marks: u8) -> Result<()> {
            let mut log = RefLog::default();
            for &((ino, offset), delta) in changes {
                let target = Target::Data { bytenr: BYTENR, sectors: 1, ino, offset };
                log.by_tree(target, 5, delta, marks);
            }
            self.generation += 1;
            let mut fake = Fake {
                blocks: &self.blocks,
                generation: self.generation,
                next: &mut self.next,
                live: &mut self.live,
                reusable: Vec::new(),
                placed: 0,
            };
            let mut merge = Merge::new(&self.blocks, 5, self.root, &mut fake).unwrap();
            let form = Form {
                nodesize: 4096,
                skinny: true,
                generation: 7,
                first_keys: &HashMap::new(),
                owners: None,
            };
            log.fold(|records| {
                apply(&mut merge, &form, records, &mut Applied::default(), &mut |_, _| ())
            })?;
            self.root = Some(merge.finish().unwrap());
            Ok(())
        }

        /// References that have items of their own, and how often each counts.
        fn keyed(&self) -> BTreeMap<(u64, u64), i64> {
            let first = Key::new(BYTENR, kind::EXTENT_DATA_REF, 0);
            let view = View::new(&self.blocks, 5, self.root.unwrap());
            let mut cursor = view.range(first, Key { offset: u64::MAX, ..first });
            let mut found = BTreeMap::new();
            while let Some(item) = cursor.next().unwrap() {
                let one = ExtentDataRef::of(item.data()).unwrap();
                let count = i64::from(one.count.get());
                let name = (one.objectid.get(), one.offset.get());
                assert!(found.insert(name, count).is_none(), "{name:?} is there twice");
            }
            found
        }
    }

    /// An extent goes with its last reference, and with no other one in its place.
    #[test]
    fn what_is_not_said_to_go_stays() {
        let goes = |has: &[((u64, u64), i32)], goes: &[((u64, u64), i32)]| {
            let mut bench = Bench::new();
            bench.apply(has);
            let last = bench.keyed().into_keys().next_back();
            (last, bench.try_apply(goes, 0).is_ok())
        };
        let [a, b] = [(257, 0), (258, 0)];
        assert!(!goes(&[(a, 1)], &[(b, -1)]).1);
        assert!(!goes(&[(a, 1)], &[(b, -2), (a, 1)]).1);
        assert!(goes(&[(a, 1)], &[(a, -1)]).1);
        // The same of references that have items of their own.
        let many: Vec<_> = (0..200).map(|n| ((300 + n, 0), 1)).collect();
        let mut gone: Vec<_> = many.iter().map(|(name, _)| (*name, -1)).collect();
        let (last, all) = goes(&many, &gone);
        assert!(all);
        gone.retain(|(name, _)| Some(*name) != last);
        gone.push((b, -1));
        assert!(!goes(&many, &gone).1);
    }

    /// Two references of one hash, found by trying.
    fn alike() -> [(u64, u64); 2] {
        let mut seen: HashMap<u64, (u64, u64)> = HashMap::new();
        for n in 0..1u64 << 20 {
            let name = (257 + n % 1021 * 7, n.wrapping_mul(0x9e37_79b9) % (1 << 31) * 4096);
            let other = seen.insert(extent_data_ref_hash(5, name.0, name.1), name);
            if let Some(other) = other.filter(|other| other.0 != name.0) {
                return [other, name];
            }
        }
        panic!("so many checksums of 32 bits, and no two alike");
    }

    #[test]
    fn references_that_hash_alike_come_and_go() {
        let mut bench = Bench::new();
        let ([a, b], other) = (alike(), (999, 0));
        // Fill the item itself, so that what comes has items of its own.
        let filler: Vec<_> = (0..200).map(|n| ((300 + n, 4096), 1)).collect();
        bench.apply(&filler);
        let base = bench.keyed();
        assert!(!base.is_empty() && !base.contains_key(&a));
        let expect = |more: &[((u64, u64), i64)]| {
            let mut all = base.clone();
            all.extend(more.iter().copied());
            all
        };
        bench.apply(&[(a, 1), (b, 2), (other, 1)]);
        assert_eq!(bench.keyed(), expect(&[(a, 1), (b, 2), (other, 1)]));
        bench.apply(&[(a, 3), (b, 1)]);
        assert_eq!(bench.keyed(), expect(&[(a, 4), (b, 3), (other, 1)]));
        // Whichever came first goes: the other one is found behind the gap.
        let first = Key::new(BYTENR, kind::EXTENT_DATA_REF, extent_data_ref_hash(5, a.0, a.1));
        let item = View::new(&bench.blocks, 5, bench.root.unwrap()).get(&first).unwrap().unwrap();
        let is_a = ExtentDataRef::of(item.data()).unwrap().objectid.get() == a.0;
        let ((gone, its), (left, count)) = if is_a { ((a, 4), (b, 3)) } else { ((b, 3), (a, 4)) };
        bench.apply(&[(gone, -its)]);
        assert_eq!(bench.keyed(), expect(&[(left, count.into()), (other, 1)]));
        bench.apply(&[(left, -1)]);
        assert_eq!(bench.keyed(), expect(&[(left, i64::from(count) - 1), (other, 1)]));
        bench.apply(&[(left, 1 - count), (other, -1)]);
        assert_eq!(bench.keyed(), base);
    }

    /// What an operation says of references, and what the extent tree says, must go together: anything else is damage, or a
    /// bug, and would get worse.
    #[test]
    fn references_that_contradict_the_tree_are_refused() {
        let says = |bench: &mut Bench, name, delta, marks| {
            bench.try_apply(&[(name, delta)], marks).unwrap_err().to_string()
        };
        let (inline, other) = ((300, 0), (301, 0));
        let missing = says(&mut Bench::new(), inline, 1, 0);
        assert!(missing.contains("has no item") && missing.contains("1073741824"), "{missing}");
        let mut bench = Bench::new();
        bench.apply(&[(inline, 1), (other, 2)]);
        let twice = says(&mut bench, inline, 1, Record::NEW);
        assert!(twice.contains("in use already"), "{twice}");
        let below = says(&mut bench, inline, -2, 0);
        assert!(below.contains("not there"), "{below}");
        // The same for references in items of their own.
        let many: Vec<_> = (0..200).map(|n| ((400 + n, 4096), 1)).collect();
        bench.apply(&many);
        let (keyed, count) = bench.keyed().into_iter().next().unwrap();
        let below = says(&mut bench, keyed, -1 - count as i32, 0);
        assert!(below.contains("not there"), "{below}");
    }
}
