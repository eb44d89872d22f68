//! Data: extents that logs refer to, and their checksums.
//!
//! Data that were written after the last commit are in no extent tree: to it their space is free. It is claimed with the first
//! reference to them, and the commit makes the extent. What the extent tree knows gets one reference more, as in a clone.

use std::collections::BTreeMap;

use buttress_ondisk::item::{ExtentItem, extent_flags};
use buttress_ondisk::{Key, SECTOR, kind, objectid};

use super::Replay;
use crate::error::{Error, Result};
use crate::inode::file::LoggedData;
use crate::log::read::Log;
use crate::space::{Class, Range};
use crate::tree::View;
use crate::txn::Core;

/// The extents that logs have referred to so far.
pub(super) struct Extents<'l> {
    logs: &'l [Log<'l>],
    /// By address; `None` where the subvolume has all that is known of it.
    known: BTreeMap<u64, (u64, Option<LoggedData>)>,
}

impl<'l> Extents<'l> {
    pub fn new(logs: &'l [Log<'l>]) -> Extents<'l> {
        Extents { logs, known: BTreeMap::new() }
    }

    /// The extent at `bytenr`.
    fn get(&mut self, core: &Core, bytenr: u64, len: u64) -> Result<Option<LoggedData>> {
        let wrong = |what| {
            Err(Error::inconsistent(objectid::TREE_LOG, what, format_args!("{bytenr}+{len}")))
        };
        if let Some((known, data)) = self.known.get(&bytenr) {
            return if *known == len {
                Ok(data.clone())
            } else {
                wrong("two extents in one place")
            };
        }
        let aligned = bytenr.is_multiple_of(SECTOR) && len.is_multiple_of(SECTOR) && len > 0;
        if !aligned || bytenr.checked_add(len).is_none() {
            return wrong("an extent of a log makes no sense");
        }
        let range = Range::new(bytenr, len);
        let is_new = !is_known(core, range)?;
        if is_new && !core.read_only {
            core.space.claim(range, Class::Data)?;
        }
        let mut sums = Vec::new();
        for log in self.logs {
            logged_sums(&log.view, range, core.features.csum.size(), &mut sums)?;
        }
        // Who only reads lets nobody have anything: that nobody else has it does not matter then.
        let data = (is_new || !sums.is_empty()).then(|| {
            let is_new = is_new && !core.read_only;
            LoggedData::new(range, is_new, sums, core.features.csum.size())
        });
        self.known.insert(bytenr, (len, data.clone()));
        Ok(data)
    }
}

/// Whether the extent tree has just this extent. Where nothing is written, the log has all that matters of one that it does not have.
fn is_known(core: &Core, range: Range) -> Result<bool> {
    let key = Key::new(range.start, kind::EXTENT_ITEM, range.len);
    let item = match core.extent_view().get(&key) {
        Err(error) if core.read_only && error.is_damage() => return Ok(true),
        found => found?,
    };
    let Some(item) = item else { return Ok(false) };
    let flags = ExtentItem::of(item.data()).map_or(0, |item| item.flags.get());
    if flags & extent_flags::DATA == 0 {
        let what = "a log refers to what is no data";
        return Err(Error::inconsistent(objectid::TREE_LOG, what, key));
    }
    Ok(true)
}

/// The checksums that a log has of an extent: runs of sectors, each with the address of the first.
fn logged_sums(
    log: &View<'_>,
    range: Range,
    size: usize,
    sums: &mut Vec<(u64, Vec<u8>)>,
) -> Result<()> {
    let key = |at| Key::new(objectid::EXTENT_CSUM, kind::EXTENT_CSUM, at);
    let before = log.last_in(&key(0), &key(range.start))?.map_or(range.start, |it| it.key().offset);
    let mut items = log.range(key(before), key(range.end() - 1));
    while let Some(item) = items.next()? {
        let start = item.key().offset;
        let end = start.saturating_add((item.data().len() / size) as u64 * SECTOR);
        let (from, to) = (start.max(range.start), end.min(range.end()));
        let index = |at: u64| ((at - start) / SECTOR) as usize * size;
        if from < to
            && let Some(part) = item.data().get(index(from)..index(to))
        {
            sums.push((from, part.to_vec()));
        }
    }
    Ok(())
}

impl Replay<'_> {
    /// An item of a file's data.
    pub(super) fn extent(
        &mut self,
        key: &Key,
        data: &[u8],
        extents: &mut Extents<'_>,
    ) -> Result<()> {
        let inode = self.must_have(key.objectid, *key)?;
        let core = self.op.core;
        self.need(2, data.len() + 160, 2)?;
        self.tree.replay_extent(self.op, &inode, (key.offset, data), |bytenr, len| {
            extents.get(core, bytenr, len)
        })
    }
}
