//! Which part of an image file a filesystem takes that does not begin at its start: others may have the rest.

use std::{ops::Range, path::Path, sync::Arc};

use buttress_device::{Access, BlockDevice, FileDevice, OffsetDevice};

use crate::super_io;

/// The bytes of a file that the filesystem which begins at `offset` takes, as its superblock says, or all that follow where none
/// can be read. `None` where it begins with the file, which is its own then, and for disks.
///
/// Whoever holds this part and no more writes to no more of it, so what the superblock says later does not matter.
pub fn part_at(path: &Path, offset: u64) -> Option<Range<u64>> {
    // A look before the open: opening a FIFO would wait for its other end.
    if offset == 0 || !path.is_file() {
        return None;
    }
    let file = Arc::new(FileDevice::open(path, Access::ReadOnly).ok()?);
    let window = OffsetDevice::new(file, offset, None).ok()?;
    let rest = window.size();
    let taken = super_io::choose(&window).map(|it| it.superblock.dev_item.total_bytes.get());
    let len = taken.ok().filter(|len| (1..=rest).contains(len)).unwrap_or(rest);
    Some(offset..offset.saturating_add(len))
}
