//! Items of the extent tree: extents, tree blocks and who refers to them.

use super::leaf::Item;
use super::{Checked, Fault, ensure};
use crate::LEVELS_MAX;
use crate::item::{ExtentDataRef, ExtentItem, SharedDataRef, TreeBlockInfo, extent_flags};
use crate::key::{Key, kind, objectid};
use crate::superblock::incompat;
use crate::view::{self, InlineRef, InlineRefs};

pub(super) fn extent_item(item: &Item<'_>) -> Checked {
    let metadata = item.key.kind == kind::METADATA_ITEM;
    ensure!(
        !metadata || item.gate.feature(incompat::SKINNY_METADATA),
        "metadata item without the skinny-metadata feature",
        item.key,
        "an extent item"
    );
    item.aligned(item.key.objectid, "unaligned extent")?;
    let Some((head, info, mut refs)) = view::inline_refs(&item.key, item.data) else {
        return Err(Fault::new("extent item too short", item.data.len(), size_of::<ExtentItem>()));
    };
    item.age(head.generation.get(), "extent generation from the future")?;
    let flags = head.flags.get();
    match flags & (extent_flags::DATA | extent_flags::TREE_BLOCK) {
        extent_flags::DATA => data_extent(item, flags)?,
        extent_flags::TREE_BLOCK => tree_block(item, info.as_ref())?,
        both => ensure!(false, "invalid extent flags", format_args!("{both:#x}"), "1 or 2"),
    }
    let mut sum = 0u64;
    let mut last = None;
    loop {
        if flags & extent_flags::DATA != 0 {
            sum = sum.saturating_add(pass_shared(item, &mut refs, &mut last));
        }
        let Some(found) = refs.next() else { break };
        inline_ref(item, &found, flags)?;
        in_order(&found, &mut last)?;
        sum = sum.saturating_add(found.count());
    }
    ensure!(refs.rest().is_empty(), "invalid inline reference", first(refs.rest()), "a known kind");
    let total = head.refs.get();
    ensure!(
        sum <= total,
        "more inline references than references",
        sum,
        format_args!("at most {total}")
    );
    no_overlap(item)
}

/// Passes the references by leaves that come next, as far as they keep all rules, and answers what they count.
fn pass_shared(item: &Item<'_>, refs: &mut InlineRefs<'_>, last: &mut Option<(u8, u64)>) -> u64 {
    let mut most = match *last {
        Some((before, most)) if before == kind::SHARED_DATA_REF => most,
        Some((before, _)) if before > kind::SHARED_DATA_REF => return 0,
        _ => u64::MAX,
    };
    let (mut passed, mut sum) = (0, 0);
    for one in refs.next_shared() {
        let (parent, count) = (one.head.offset.get(), one.count.get());
        if parent > most || count == 0 || !item.gate.aligned(parent) {
            break;
        }
        most = parent;
        passed += 1;
        sum += u64::from(count);
    }
    if passed > 0 {
        refs.skip_shared(passed);
        *last = Some((kind::SHARED_DATA_REF, most));
    }
    sum
}

fn first(rest: &[u8]) -> String {
    let kind = rest.first().copied().unwrap_or(0);
    format!("kind {kind} with {} bytes left", rest.len())
}

fn data_extent(item: &Item<'_>, flags: u64) -> Checked {
    ensure!(
        item.key.kind == kind::EXTENT_ITEM,
        "metadata item that holds data",
        item.key,
        "an extent item"
    );
    ensure!(
        item.key.offset != 0 && item.gate.aligned(item.key.offset),
        "invalid extent length",
        item.key.offset,
        format_args!("a multiple of {}", item.gate.sectorsize)
    );
    ensure!(
        flags & extent_flags::FULL_BACKREF == 0,
        "data extent with full backrefs",
        format_args!("flags {flags:#x}"),
        "1"
    );
    Ok(())
}

fn tree_block(item: &Item<'_>, info: Option<&TreeBlockInfo>) -> Checked {
    let level = match info {
        Some(info) => u64::from(info.level),
        None => item.key.offset,
    };
    ensure!(
        level < LEVELS_MAX as u64,
        "invalid level of a tree block",
        level,
        format_args!("below {LEVELS_MAX}")
    );
    if info.is_some() {
        ensure!(
            item.key.offset == u64::from(item.gate.nodesize),
            "invalid length of a tree block",
            item.key.offset,
            item.gate.nodesize
        );
    }
    Ok(())
}

fn inline_ref(item: &Item<'_>, found: &InlineRef, flags: u64) -> Checked {
    let of_data = !matches!(found, InlineRef::TreeBlock { .. } | InlineRef::SharedBlock { .. });
    ensure!(
        of_data == (flags & extent_flags::DATA != 0),
        "inline reference does not fit the kind of extent",
        found.kind(),
        if of_data { "a reference to a block" } else { "a reference to data" }
    );
    match *found {
        InlineRef::TreeBlock { .. } => Ok(()),
        InlineRef::SharedBlock { parent } => item.aligned(parent, "unaligned parent"),
        InlineRef::ExtentData { root, objectid, offset, count } => {
            data_ref_fields(item, root, objectid, offset)?;
            counted(count)
        }
        InlineRef::SharedData { parent, count } => {
            item.aligned(parent, "unaligned parent")?;
            counted(count)
        }
        InlineRef::Owner { .. } => {
            ensure!(
                item.gate.feature(incompat::SIMPLE_QUOTA),
                "owner reference without the simple-quota feature",
                found.kind(),
                "no such reference"
            );
            Ok(())
        }
    }
}

/// Inline references stand by ascending kind, and within a kind by descending rank (see [`InlineRef::rank`]).
fn in_order(found: &InlineRef, last: &mut Option<(u8, u64)>) -> Checked {
    let (kind, rank) = (found.kind(), found.rank());
    if let Some((before, most)) = last.replace((kind, rank)) {
        ensure!(
            before < kind || (before == kind && rank <= most),
            "inline references out of order",
            format_args!("kind {kind} rank {rank:#x}"),
            format_args!("after kind {before} rank {most:#x}")
        );
    }
    Ok(())
}

fn counted(count: u32) -> Checked {
    ensure!(count != 0, "reference with a count of zero", 0, "one or more");
    Ok(())
}

fn data_ref_fields(item: &Item<'_>, root: u64, inode: u64, offset: u64) -> Checked {
    let holds_files = super::is_subvolume(root)
        || matches!(root, objectid::ROOT_TREE | objectid::DATA_RELOC_TREE);
    ensure!(holds_files, "invalid tree in a data reference", root, "a tree with files");
    let known = (objectid::FIRST_FREE..=objectid::LAST_FREE).contains(&inode)
        || inode == objectid::FREE_INO
        || root == objectid::ROOT_TREE;
    ensure!(known, "invalid inode in a data reference", inode, objectid::FIRST_FREE);
    item.aligned(offset, "unaligned offset in a data reference")
}

/// An extent starts at or after the end of the one before it in the leaf.
fn no_overlap(item: &Item<'_>) -> Checked {
    let Some((before, _)) = item.before else { return Ok(()) };
    let length = match before.kind {
        kind::EXTENT_ITEM => before.offset,
        kind::METADATA_ITEM => u64::from(item.gate.nodesize),
        _ => return Ok(()),
    };
    let end = before.objectid.saturating_add(length);
    ensure!(
        end <= item.key.objectid,
        "extent overlaps the one before",
        item.key.objectid,
        format_args!("at least {end}")
    );
    Ok(())
}

pub(super) fn block_ref(item: &Item<'_>) -> Checked {
    item.sized(0)?;
    item.aligned(item.key.objectid, "unaligned extent")?;
    if item.key.kind == kind::SHARED_BLOCK_REF {
        item.aligned(item.key.offset, "unaligned parent")?;
    }
    Ok(())
}

pub(super) fn data_ref(item: &Item<'_>) -> Checked {
    item.aligned(item.key.objectid, "unaligned extent")?;
    ensure!(
        !item.data.is_empty() && item.data.len().is_multiple_of(size_of::<ExtentDataRef>()),
        "wrong item size",
        item.data.len(),
        format_args!("a multiple of {}", size_of::<ExtentDataRef>())
    );
    for bytes in item.data.chunks_exact(size_of::<ExtentDataRef>()) {
        let Some(InlineRef::ExtentData { root, objectid, offset, count }) =
            view::keyed_ref(&Key { kind: kind::EXTENT_DATA_REF, ..item.key }, bytes)
        else {
            continue;
        };
        data_ref_fields(item, root, objectid, offset)?;
        counted(count)?;
    }
    Ok(())
}

pub(super) fn shared_data_ref(item: &Item<'_>) -> Checked {
    item.sized(size_of::<SharedDataRef>())?;
    item.aligned(item.key.objectid, "unaligned extent")?;
    item.aligned(item.key.offset, "unaligned parent")?;
    SharedDataRef::of(item.data).map_or(Ok(()), |shared| counted(shared.count.get()))
}
