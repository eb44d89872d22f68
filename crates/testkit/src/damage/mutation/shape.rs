//! Shapes: which fields an item has, and where, by its kind.

use buttress_ondisk::item::{
    BalanceItem, BlockGroupItem, ChunkItem, DevExtent, DevItem, DirItem, ExtentDataRef,
    ExtentInlineRef, ExtentItem, FileExtentHead, FileExtentTail, FreeSpaceHeader, FreeSpaceInfo,
    InodeExtref, InodeItem, InodeRef, QgroupInfo, QgroupLimit, QgroupStatus, RootItem, RootRef,
    SharedDataRef, StripeItem, TreeBlockInfo, extent_flags,
};
use buttress_ondisk::layout::{Field, Layout};
use buttress_ondisk::{Key, kind, objectid};

/// A number (or a run of bytes) of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name, with that of the structure.
    pub name: String,
    /// Bytes from the start of the item's data.
    pub at: usize,
    /// Bytes.
    pub len: usize,
    /// Bytes of each number in it.
    pub unit: usize,
}

/// Takes an item's data apart from its start to its end.
struct Cutter<'a> {
    data: &'a [u8],
    at: usize,
    members: Vec<Member>,
}

impl Cutter<'_> {
    /// The fields of a structure that begins at `start`.
    fn fields(&mut self, prefix: &str, fields: &[Field], start: usize) {
        for field in fields {
            let name = format!("{prefix}.{}", field.name);
            match field.inner {
                [] => {
                    let (at, len) = (start + field.offset, field.len);
                    self.members.push(Member { name, at, len, unit: field.unit });
                }
                inner => self.fields(&name, inner, start + field.offset),
            }
        }
    }

    /// A structure here, if there is room for it; whether there is.
    fn part<T: Layout>(&mut self, name: &str) -> bool {
        let fits = self.data.len() - self.at >= size_of::<T>();
        if fits {
            self.fields(name, T::FIELDS, self.at);
            self.at += size_of::<T>();
        }
        fits
    }

    /// Bytes here, as many as there are up to `len`.
    fn bytes(&mut self, name: &str, len: usize, unit: usize) {
        let len = len.min(self.data.len() - self.at);
        if len >= unit {
            self.members.push(Member { name: name.into(), at: self.at, len, unit });
        }
        self.at += len;
    }

    /// A little endian number of two bytes, `back` bytes before here.
    fn short(&self, back: usize) -> usize {
        let low = self.at.checked_sub(back).and_then(|at| self.data.get(at..at + 2));
        low.and_then(|it| it.try_into().ok()).map_or(0, |it| u16::from_le_bytes(it).into())
    }

    fn rest(&self) -> usize {
        self.data.len() - self.at
    }

    fn names(&mut self, kind: u8) {
        while self.rest() > 0 {
            let (whole, name_len, data_len) = match kind {
                kind::INODE_REF => (self.part::<InodeRef>("inode-ref"), self.short(2), 0),
                kind::INODE_EXTREF => (self.part::<InodeExtref>("inode-extref"), self.short(2), 0),
                kind::ROOT_REF | kind::ROOT_BACKREF => {
                    (self.part::<RootRef>("root-ref"), self.short(2), 0)
                }
                _ => (self.part::<DirItem>(entry_name(kind)), self.short(3), self.short(5)),
            };
            if !whole {
                return self.bytes("rest", usize::MAX, 1);
            }
            self.bytes(&format!("{}.name", kind_name(kind)), name_len, 1);
            self.bytes(&format!("{}.data", kind_name(kind)), data_len, 1);
        }
    }

    fn file_extent(&mut self) {
        self.part::<FileExtentHead>("extent-data");
        if self.data.get(self.at.wrapping_sub(1)) == Some(&FileExtentHead::INLINE) {
            return self.bytes("extent-data.inline", usize::MAX, 1);
        }
        self.part::<FileExtentTail>("extent-data");
    }

    fn extent_item(&mut self, key: &Key) {
        self.part::<ExtentItem>(kind_name(key.kind));
        let flags = ExtentItem::of(self.data).map_or(0, |item| item.flags.get());
        if key.kind == kind::EXTENT_ITEM && flags & extent_flags::TREE_BLOCK != 0 {
            self.part::<TreeBlockInfo>("tree-block-info");
        }
        while self.rest() > 0 {
            let found = self.data[self.at];
            match found {
                kind::EXTENT_DATA_REF => {
                    self.bytes("inline-ref.kind", 1, 1);
                    self.part::<ExtentDataRef>("inline-data-ref");
                }
                kind::SHARED_DATA_REF => {
                    self.part::<ExtentInlineRef>("inline-shared-data-ref");
                    self.part::<SharedDataRef>("inline-shared-data-ref");
                }
                kind::SHARED_BLOCK_REF => drop(self.part::<ExtentInlineRef>("inline-shared-block")),
                _ => drop(self.part::<ExtentInlineRef>("inline-tree-block")),
            }
            if self.rest() < size_of::<ExtentInlineRef>() {
                return self.bytes("rest", usize::MAX, 1);
            }
        }
    }

    fn chunk(&mut self) {
        self.part::<ChunkItem>("chunk");
        while self.part::<StripeItem>("stripe") {}
    }

    fn item(&mut self, key: &Key) {
        match key.kind {
            kind::INODE_ITEM => drop(self.part::<InodeItem>("inode-item")),
            kind::INODE_REF
            | kind::INODE_EXTREF
            | kind::DIR_ITEM
            | kind::DIR_INDEX
            | kind::XATTR_ITEM
            | kind::ROOT_REF
            | kind::ROOT_BACKREF => self.names(key.kind),
            kind::EXTENT_DATA => self.file_extent(),
            kind::ROOT_ITEM => drop(self.part::<RootItem>("root-item")),
            kind::EXTENT_ITEM | kind::METADATA_ITEM => self.extent_item(key),
            kind::EXTENT_DATA_REF => drop(self.part::<ExtentDataRef>("extent-data-ref")),
            kind::SHARED_DATA_REF => drop(self.part::<SharedDataRef>("shared-data-ref")),
            kind::BLOCK_GROUP_ITEM => drop(self.part::<BlockGroupItem>("block-group")),
            kind::FREE_SPACE_INFO => drop(self.part::<FreeSpaceInfo>("free-space-info")),
            kind::DEV_EXTENT => drop(self.part::<DevExtent>("dev-extent")),
            kind::DEV_ITEM => drop(self.part::<DevItem>("dev-item")),
            kind::CHUNK_ITEM => self.chunk(),
            kind::QGROUP_STATUS => drop(self.part::<QgroupStatus>("qgroup-status")),
            kind::QGROUP_INFO => drop(self.part::<QgroupInfo>("qgroup-info")),
            kind::QGROUP_LIMIT => drop(self.part::<QgroupLimit>("qgroup-limit")),
            kind::UUID_SUBVOL | kind::UUID_RECEIVED_SUBVOL => self.bytes("uuid.id", usize::MAX, 8),
            kind::PERSISTENT_ITEM => self.bytes("dev-stats.count", usize::MAX, 8),
            kind::TEMPORARY_ITEM => drop(self.part::<BalanceItem>("balance")),
            0 if key.objectid == objectid::FREE_SPACE => {
                self.part::<FreeSpaceHeader>("free-space-header");
            }
            _ => {}
        }
        let name = format!("{}.bytes", kind_name(key.kind));
        self.bytes(&name, usize::MAX, 1);
    }
}

fn entry_name(kind: u8) -> &'static str {
    match kind {
        kind::DIR_ITEM => "dir-item",
        kind::DIR_INDEX => "dir-index",
        _ => "xattr",
    }
}

/// The members of an item.
pub fn members(key: &Key, data: &[u8]) -> Vec<Member> {
    let mut cutter = Cutter { data, at: 0, members: Vec::new() };
    cutter.item(key);
    cutter.members
}

/// The members of a structure.
pub fn of_struct<T: Layout>(name: &str) -> Vec<Member> {
    let mut cutter = Cutter { data: &[], at: 0, members: Vec::new() };
    cutter.fields(name, T::FIELDS, 0);
    cutter.members
}

/// A kind of item, in words.
pub fn kind_name(kind: u8) -> &'static str {
    match kind {
        0 => "untyped",
        kind::INODE_ITEM => "inode-item",
        kind::INODE_REF => "inode-ref",
        kind::INODE_EXTREF => "inode-extref",
        kind::XATTR_ITEM => "xattr",
        kind::ORPHAN_ITEM => "orphan",
        kind::DIR_LOG_ITEM => "dir-log-item",
        kind::DIR_LOG_INDEX => "dir-log-index",
        kind::DIR_ITEM => "dir-item",
        kind::DIR_INDEX => "dir-index",
        kind::EXTENT_DATA => "extent-data",
        kind::EXTENT_CSUM => "csum",
        kind::ROOT_ITEM => "root-item",
        kind::ROOT_BACKREF => "root-backref",
        kind::ROOT_REF => "root-ref",
        kind::EXTENT_ITEM => "extent-item",
        kind::METADATA_ITEM => "metadata-item",
        kind::TREE_BLOCK_REF => "tree-block-ref",
        kind::EXTENT_DATA_REF => "extent-data-ref",
        kind::SHARED_BLOCK_REF => "shared-block-ref",
        kind::SHARED_DATA_REF => "shared-data-ref",
        kind::BLOCK_GROUP_ITEM => "block-group",
        kind::FREE_SPACE_INFO => "free-space-info",
        kind::FREE_SPACE_EXTENT => "free-space-extent",
        kind::FREE_SPACE_BITMAP => "free-space-bitmap",
        kind::DEV_EXTENT => "dev-extent",
        kind::DEV_ITEM => "dev-item",
        kind::CHUNK_ITEM => "chunk",
        kind::QGROUP_STATUS => "qgroup-status",
        kind::QGROUP_INFO => "qgroup-info",
        kind::QGROUP_LIMIT => "qgroup-limit",
        kind::QGROUP_RELATION => "qgroup-relation",
        kind::TEMPORARY_ITEM => "temporary",
        kind::PERSISTENT_ITEM => "persistent",
        kind::UUID_SUBVOL => "uuid-subvol",
        kind::UUID_RECEIVED_SUBVOL => "uuid-received",
        _ => "other",
    }
}

/// A tree, in a word.
pub fn tree_name(tree: u64) -> &'static str {
    match tree {
        objectid::ROOT_TREE => "root-tree",
        objectid::EXTENT_TREE => "extent-tree",
        objectid::CHUNK_TREE => "chunk-tree",
        objectid::DEV_TREE => "dev-tree",
        objectid::CSUM_TREE => "csum-tree",
        objectid::QUOTA_TREE => "quota-tree",
        objectid::UUID_TREE => "uuid-tree",
        objectid::FREE_SPACE_TREE => "free-space-tree",
        objectid::BLOCK_GROUP_TREE => "block-group-tree",
        objectid::DATA_RELOC_TREE => "data-reloc-tree",
        objectid::TREE_RELOC => "reloc-tree",
        objectid::TREE_LOG => "log-tree",
        objectid::FS_TREE => "top",
        _ => "subvolume",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(key: Key, data: &[u8]) -> Vec<String> {
        members(&key, data).into_iter().map(|it| it.name).collect()
    }

    #[test]
    fn every_byte_is_in_a_member() {
        let entry = [&[0; 25][..], &[3, 0, 4, 0, 8], b"nameabc"].concat();
        for (kind, data) in [
            (kind::XATTR_ITEM, [&*entry, &*entry].concat()),
            (kind::INODE_ITEM, vec![1; 160]),
            (kind::ROOT_ITEM, vec![1; 439]),
            (kind::EXTENT_DATA, vec![1; 53]),
            (kind::EXTENT_DATA, vec![0; 30]),
            (kind::CHUNK_ITEM, vec![2; 48 + 64]),
            (kind::EXTENT_CSUM, vec![2; 40]),
        ] {
            let key = Key::new(257, kind, 0);
            let mut at = 0;
            for member in members(&key, &data) {
                assert_eq!(member.at, at, "{member:?}");
                at += member.len;
            }
            assert_eq!(at, data.len(), "{kind}");
        }
    }

    #[test]
    fn parts_have_names() {
        let entry = [&[0; 25][..], &[3, 0, 4, 0, 8], b"nameabc"].concat();
        let found = names(Key::new(257, kind::XATTR_ITEM, 0), &entry);
        assert!(found.contains(&"xattr.location.objectid".into()), "{found:?}");
        assert_eq!(found[found.len() - 2..], ["xattr.name", "xattr.data"]);
    }
}
