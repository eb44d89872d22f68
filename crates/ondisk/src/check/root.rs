//! Items about trees (root items and references), and the small kinds: checksums, free space, quotas, uuids.

use super::leaf::Item;
use super::{Checked, ensure};
use crate::item::{
    FreeSpaceHeader, FreeSpaceInfo, QgroupInfo, QgroupLimit, QgroupStatus, RootItem, RootRef,
    root_flags,
};
use crate::key::{Key, kind, objectid};
use crate::view;
use crate::{LEVELS_MAX, NAME_LEN_MAX};

pub(super) fn root_item(item: &Item<'_>) -> Checked {
    ensure!(item.key.objectid != 0, "root item of tree 0", item.key, "a tree");
    let (whole, legacy) = (size_of::<RootItem>(), RootItem::LEGACY_LEN);
    ensure!(
        item.data.len() == whole || item.data.len() == legacy,
        "wrong item size",
        item.data.len(),
        format_args!("{whole} or {legacy}")
    );
    let Some(root) = RootItem::read(item.data) else { return Ok(()) };
    item.age(root.generation.get(), "root generation from the future")?;
    item.age(root.generation_v2.get(), "root generation_v2 from the future")?;
    item.age(root.last_snapshot.get(), "root last_snapshot from the future")?;
    item.aligned(root.bytenr.get(), "unaligned root")?;
    for level in [root.level, root.drop_level] {
        ensure!(
            usize::from(level) < LEVELS_MAX,
            "invalid level of a root",
            level,
            format_args!("below {LEVELS_MAX}")
        );
    }
    let dropping = Key::from(root.drop_progress);
    ensure!(
        dropping.objectid == 0 || root.drop_level != 0,
        "deletion in progress at level 0",
        dropping,
        "a level above 0"
    );
    let known = root_flags::READ_ONLY | root_flags::DEAD;
    ensure!(
        root.flags.get() & !known == 0,
        "unknown root flags",
        format_args!("{:#x}", root.flags.get()),
        format_args!("bits of {known:#x}")
    );
    Ok(())
}

pub(super) fn root_ref(item: &Item<'_>) -> Checked {
    let head = size_of::<RootRef>();
    let Some((_, name)) = view::root_ref(item.data) else {
        ensure!(false, "root ref cut off", item.data.len(), "head and name");
        return Ok(());
    };
    item.sized(head + name.len())?;
    ensure!(
        (1..=NAME_LEN_MAX).contains(&name.len()),
        "invalid length of a subvolume's name",
        name.len(),
        format_args!("1 to {NAME_LEN_MAX}")
    );
    Ok(())
}

pub(super) fn csum(item: &Item<'_>) -> Checked {
    ensure!(
        item.key.objectid == objectid::EXTENT_CSUM,
        "invalid object of checksums",
        item.key.objectid as i64,
        objectid::EXTENT_CSUM as i64
    );
    item.aligned(item.key.offset, "unaligned start of checksums")?;
    let one = item.gate.csum.size();
    ensure!(
        item.data.len().is_multiple_of(one),
        "wrong item size",
        item.data.len(),
        format_args!("a multiple of {one}")
    );
    let sectors = |data: &[u8]| (data.len() / one) as u64;
    let end = |start: u64, data: &[u8]| {
        sectors(data)
            .checked_mul(item.gate.sectorsize.into())
            .and_then(|length| start.checked_add(length))
    };
    ensure!(
        end(item.key.offset, item.data).is_some(),
        "checksums overflow",
        item.key.offset,
        "below 2^64"
    );
    let Some((before, data)) = item.sibling() else { return Ok(()) };
    let before = end(before.offset, data).unwrap_or(u64::MAX);
    ensure!(
        before <= item.key.offset,
        "checksums overlap those before",
        item.key.offset,
        format_args!("at least {before}")
    );
    Ok(())
}

fn free_range(item: &Item<'_>) -> Checked {
    let Key { objectid: start, offset: length, .. } = item.key;
    item.aligned(start, "unaligned free space")?;
    ensure!(
        length != 0 && item.gate.aligned(length),
        "invalid length of free space",
        length,
        format_args!("a multiple of {}", item.gate.sectorsize)
    );
    ensure!(
        start.checked_add(length).is_some(),
        "free space overflows",
        format_args!("{start}+{length}"),
        "below 2^64"
    );
    Ok(())
}

pub(super) fn free_space_info(item: &Item<'_>) -> Checked {
    free_range(item)?;
    item.sized(size_of::<FreeSpaceInfo>())
}

pub(super) fn free_space_extent(item: &Item<'_>) -> Checked {
    free_range(item)?;
    item.sized(0)?;
    let Some((before, _)) = item.sibling_of_kind() else { return Ok(()) };
    let end = before.objectid.saturating_add(before.offset);
    ensure!(
        end <= item.key.objectid,
        "free space overlaps the one before",
        item.key.objectid,
        format_args!("at least {end}")
    );
    Ok(())
}

pub(super) fn free_space_bitmap(item: &Item<'_>) -> Checked {
    free_range(item)?;
    let bits = item.key.offset / u64::from(item.gate.sectorsize);
    let bytes = bits.div_ceil(8);
    ensure!(
        item.data.len() as u64 == bytes,
        "wrong size of a free space bitmap",
        item.data.len(),
        bytes
    );
    Ok(())
}

pub(super) fn qgroup(item: &Item<'_>) -> Checked {
    match item.key.kind {
        // Simple quotas append the generation at which they were enabled.
        kind::QGROUP_STATUS => {
            let (short, long) = (size_of::<QgroupStatus>(), size_of::<QgroupStatus>() + 8);
            ensure!(
                item.data.len() == short || item.data.len() == long,
                "wrong item size",
                item.data.len(),
                format_args!("{short} or {long}")
            );
            Ok(())
        }
        kind::QGROUP_INFO => item.sized(size_of::<QgroupInfo>()),
        kind::QGROUP_LIMIT => item.sized(size_of::<QgroupLimit>()),
        _ => item.sized(0),
    }
}

pub(super) fn uuid(item: &Item<'_>) -> Checked {
    ensure!(
        !item.data.is_empty() && item.data.len().is_multiple_of(8),
        "wrong item size",
        item.data.len(),
        "a multiple of 8"
    );
    Ok(())
}

pub(super) fn dev_stats(item: &Item<'_>) -> Checked {
    ensure!(
        item.data.len().is_multiple_of(8),
        "wrong item size",
        item.data.len(),
        "a multiple of 8"
    );
    Ok(())
}

pub(super) fn space_cache(item: &Item<'_>) -> Checked {
    item.sized(size_of::<FreeSpaceHeader>())
}
