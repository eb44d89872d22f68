//! Files of the root tree: its own directory, which names the default subvolume, and the files that hold free space caches.

use buttress_ondisk::item::InodeItem;
use buttress_ondisk::item::mode::{DIRECTORY, TYPE_MASK as TYPE};
use buttress_ondisk::{Key, kind, objectid};

use super::{extents::Extents, inode::Inode, path::report};
use crate::{
    context::Context,
    csums::Lookup,
    kinds::Kind,
    walk::{Leaf, Visitor, walk},
};

/// The mode of every cache file.
const CACHE_MODE: u32 = 0o100_600;

struct Files<'a, 'b> {
    context: &'a Context<'b>,
    tree: &'a crate::roots::Tree,
    lookup: Lookup<'a, 'b>,
    inode: Inode,
}

/// Judges the inodes of the root tree and their extents. Cache files have no checksums of the usual kind.
pub(crate) fn check_root_tree(context: &Context<'_>) {
    let tree = context.root_tree();
    let lookup = Lookup::new(context);
    let mut files = Files { context, tree: &tree, lookup, inode: Inode::default() };
    walk(context, &tree, Key::MIN..=Key::MAX, &mut files);
}

impl Visitor for Files<'_, '_> {
    fn leaf(&mut self, leaf: &Leaf<'_>) {
        let (context, tree) = (self.context, self.tree);
        for (key, data) in leaf.items() {
            if key.objectid != self.inode.id {
                self.inode = Inode { id: key.objectid, ..Inode::default() };
            }
            match (key.kind, InodeItem::of(data)) {
                (kind::INODE_ITEM, Some(item)) => self.mode(&key, item.mode.get()),
                (kind::EXTENT_DATA, _) => {
                    let mut extents = Extents { context, tree, lookup: &mut self.lookup };
                    extents.item(&mut self.inode, key.offset, data);
                }
                _ => {}
            }
        }
    }
}

impl Files<'_, '_> {
    fn mode(&self, key: &Key, mode: u32) {
        let (good, expect) = match key.objectid {
            objectid::ROOT_TREE_DIR => (mode & TYPE == DIRECTORY, "a directory"),
            _ => (mode == CACHE_MODE, "0o100600, that of a free space cache"),
        };
        if !good {
            let have = format_args!("{mode:#o}");
            report(self.context, self.tree, Kind::RootTreeInode, key.objectid, have, expect);
        }
    }
}
