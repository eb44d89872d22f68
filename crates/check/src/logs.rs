//! Logs that wait for replay. What is in them is not part of the last commit, and nothing refers to it; but replay takes it
//! into the trees, and the checksums of data that was fsynced have to come with it. So do names, and they have to be some.

use buttress_ondisk::item::{InodeItem, inode_flags};
use buttress_ondisk::view::FileExtentItem;
use buttress_ondisk::{Key, kind, objectid, view};

use crate::{
    context::Context,
    csums::Lookup,
    issue::Place,
    kinds::Kind,
    roots::Tree,
    run::collect,
    walk::{Leaf, Visitor, walk},
};

/// Judges the logs, if there are any.
pub(crate) fn check(context: &Context<'_>) {
    let Some(log) = context.log_tree() else { return };
    let place = Place::block(objectid::TREE_LOG, log.root.bytenr);
    context.report(Kind::LogWaits, place, "a log", "none, after an orderly unmount");
    for tree in collect(context, &log).all() {
        let (own, main) = (Lookup::of(context, Some(tree)), Lookup::new(context));
        let mut files = Files { context, tree, own, main, inode: 0, sums: true };
        walk(context, tree, Key::MIN..=Key::MAX, &mut files);
    }
}

/// The files of one log.
struct Files<'a, 'b> {
    context: &'a Context<'b>,
    tree: &'a Tree,
    /// Checksums in the log.
    own: Lookup<'a, 'b>,
    /// Checksums that were committed.
    main: Lookup<'a, 'b>,
    inode: u64,
    /// Whether the inode's data have checksums.
    sums: bool,
}

impl Visitor for Files<'_, '_> {
    fn leaf(&mut self, leaf: &Leaf<'_>) {
        for (key, data) in leaf.items() {
            if key.objectid != self.inode {
                (self.inode, self.sums) = (key.objectid, true);
            }
            match (key.kind, InodeItem::of(data)) {
                (kind::INODE_ITEM, Some(item)) => {
                    self.sums = item.flags.get() & inode_flags::NODATASUM == 0;
                }
                (kind::EXTENT_DATA, _) if self.sums => self.extent(&key, data),
                (kind::DIR_ITEM | kind::DIR_INDEX, _) => self.names(&key, data),
                _ => {}
            }
        }
    }
}

impl Files<'_, '_> {
    fn names(&self, key: &Key, data: &[u8]) {
        for entry in view::dir_entries(data).filter(|entry| !view::is_name(entry.name)) {
            let subvolume = self.tree.key.offset;
            let place = Place { key: Some(*key), ..Place::inode(subvolume, key.objectid) };
            let have = format_args!("the name {:?}", entry.name.escape_ascii().to_string());
            self.context.report(Kind::NameBad, place, have, "one that a file can have");
        }
    }

    fn extent(&mut self, key: &Key, data: &[u8]) {
        let Some(FileExtentItem::Regular {
            compression,
            prealloc: false,
            disk_bytenr,
            disk_num_bytes,
            offset,
            num_bytes,
            ..
        }) = FileExtentItem::read(data)
        else {
            return;
        };
        let (at, len) = match compression {
            0 => (disk_bytenr.saturating_add(offset), num_bytes),
            _ => (disk_bytenr, disk_num_bytes),
        };
        let (Some(own), Some(main)) = (self.own.covered(at, len), self.main.covered(at, len))
        else {
            return;
        };
        // An extent may have been committed in part.
        if disk_bytenr != 0 && own.saturating_add(main) < len {
            let place = Place {
                inode: Some(key.objectid),
                key: Some(*key),
                logical: Some(at),
                len: Some(len),
                ..Place::tree(self.tree.key.offset)
            };
            let have = format_args!("checksums of {} bytes", own.saturating_add(main));
            self.context.report(Kind::LogCsumMissing, place, have, len);
        }
    }
}
