//! New subvolumes, and snapshots.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use buttress_codec::crc32c::name_hash;
use buttress_ondisk::item::{DirItem, RootItem, RootRef, file_type, root_flags};
use buttress_ondisk::key::DiskKey;
use buttress_ondisk::superblock::incompat;
use buttress_ondisk::{Key, kind, objectid};
use zerocopy::IntoBytes;

use super::forest::{Forest, Subvolume};
use super::relocation_trees::Doomed;
use crate::error::{Errno, Error, Result};
use crate::inode::Inode;
use crate::tree::Root;
use crate::txn::{Commit, Core, CsumLog, Op, TreeCommit, UuidChange};

/// A snapshot that the next commit takes.
#[derive(Clone, Debug)]
pub struct SnapshotRequest {
    /// What it is a snapshot of.
    pub source: Arc<Subvolume>,
    /// Its id.
    pub id: u64,
    /// Whether it can be changed.
    pub read_only: bool,
    /// Its uuid.
    pub uuid: [u8; 16],
}

/// A place for a name: a directory of a subvolume.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The subvolume.
    pub subvolume: &'a Subvolume,
    /// The directory in it.
    pub dir: &'a Arc<Inode>,
    /// The name.
    pub name: &'a [u8],
}

impl Place<'_> {
    /// ENOENT when the subvolume was deleted meanwhile.
    pub(super) fn alive(&self) -> Result<()> {
        if self.subvolume.is_dead() { Err(Error::User(Errno::NOENT)) } else { Ok(()) }
    }

    /// The same, and EROFS when the subvolume does not change.
    pub(super) fn changeable(&self) -> Result<()> {
        self.alive()?;
        if self.subvolume.tree.is_read_only() { Err(Error::User(Errno::ROFS)) } else { Ok(()) }
    }

    /// Whether both names are in the same directory.
    pub(super) fn is_beside(&self, other: &Place<'_>) -> bool {
        (self.subvolume.id, self.dir.ino) == (other.subvolume.id, other.dir.ino)
    }
}

impl Forest {
    /// Makes an empty subvolume at `place`; its id.
    pub fn create(
        &self,
        op: &Op<'_>,
        place: Place<'_>,
        mode: u32,
        uid: u32,
        gid: u32,
    ) -> Result<u64> {
        let _order = self.names.lock();
        place.alive()?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        if id > objectid::LAST_FREE {
            return Err(Error::User(Errno::NOSPC));
        }
        let compression = place.subvolume.tree.compression_of_top(op)?;
        let item = self.new_item(op);
        let subvolume = Subvolume::open(op.core, Key::new(id, kind::ROOT_ITEM, 0), item)?;
        let index = place.subvolume.tree.add_subvolume_entry(op, place.dir, place.name, id)?;
        op.step("an entry without its subvolume");
        subvolume.tree.create_top(op, mode, uid, gid, compression);
        subvolume.change(|_| ());
        op.step("a subvolume that is not in the forest");
        self.insert(Arc::new(subvolume));
        op.step("a subvolume without its name");
        self.name(place, id, index);
        self.pending.uuid(UuidChange::new(&item.uuid, kind::UUID_SUBVOL, id, true));
        Ok(id)
    }

    fn new_item(&self, op: &Op<'_>) -> RootItem {
        let mut item = RootItem::default();
        item.inode.generation = 1.into();
        item.inode.size = 3.into();
        item.inode.nbytes = (op.core.features.nodesize as u64).into();
        item.inode.nlink = 1.into();
        item.inode.mode = 0o40755.into();
        item.inode.flags = buttress_ondisk::item::inode_flags::ROOT_ITEM_INIT.into();
        item.root_dirid = objectid::FIRST_FREE.into();
        item.refs = 1.into();
        item.uuid = op.core.env.uuid();
        item.otransid = op.transid.into();
        item.ctransid = op.transid.into();
        item.generation = op.transid.into();
        item.generation_v2 = op.transid.into();
        item.otime = op.now.to_disk();
        item.ctime = op.now.to_disk();
        item
    }

    /// Notes both ways that subvolume `id` is at `place`, under directory index `index`.
    pub(super) fn name(&self, place: Place<'_>, id: u64, index: u64) {
        let head = RootRef {
            dirid: place.dir.ino.into(),
            sequence: index.into(),
            name_len: (place.name.len() as u16).into(),
        };
        let mut item = head.as_bytes().to_vec();
        item.extend_from_slice(place.name);
        let parent = place.subvolume.id;
        self.pending.put(Key::new(id, kind::ROOT_BACKREF, parent), Some(item.clone()));
        self.pending.put(Key::new(parent, kind::ROOT_REF, id), Some(item));
    }

    /// First half of a snapshot: the next commit copies `source`. The id of the snapshot, to be named by
    /// [`Forest::name_snapshot`] once that commit is durable. Until then it counts as deleted.
    pub fn request_snapshot(&self, op: &Op<'_>, source: u64, read_only: bool) -> Result<u64> {
        self.request_snapshot_with(op, source, read_only, |_| Ok(()))
    }

    /// The same; what else belongs to the snapshot is done with its id, unless that is refused.
    pub fn request_snapshot_with(
        &self,
        op: &Op<'_>,
        source: u64,
        read_only: bool,
        with: impl FnOnce(u64) -> Result<()>,
    ) -> Result<u64> {
        // From now on what the source has reserved may be the snapshot's, too.
        let source = self.get(op.core, source)?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        with(id)?;
        source.tree.note_snapshot(op.transid);
        op.core.space.set_shared();
        let uuid = op.core.env.uuid();
        self.snapshots.lock().push(SnapshotRequest { source, id, read_only, uuid });
        Ok(id)
    }

    /// Second half of a snapshot: gives `id` its name.
    pub fn name_snapshot(&self, op: &Op<'_>, id: u64, place: Place<'_>) -> Result<()> {
        let _order = self.names.lock();
        place.alive()?;
        let subvolume = self.find(op.core, id)?;
        let index = place.subvolume.tree.add_subvolume_entry(op, place.dir, place.name, id)?;
        op.step("an entry without its snapshot");
        let read_only = subvolume.item().flags.get() & root_flags::READ_ONLY != 0;
        subvolume.tree.set_read_only(read_only);
        subvolume.named_in.store(op.transid, Ordering::Release);
        subvolume.dead.store(false, Ordering::Release);
        subvolume.change(|item| item.refs = 1.into());
        op.step("a snapshot without its name");
        self.pending.put(Key::new(objectid::ORPHAN, kind::ORPHAN_ITEM, id), None);
        self.name(place, id, index);
        let item = subvolume.item();
        self.pending.uuid(UuidChange::new(&item.uuid, kind::UUID_SUBVOL, id, true));
        if item.received_uuid != [0; 16] {
            let kind = kind::UUID_RECEIVED_SUBVOL;
            self.pending.uuid(UuidChange::new(&item.received_uuid, kind, id, true));
        }
        Ok(())
    }

    /// The snapshot `id` between its two halves. Its tree can be changed, also when it is going to be read-only: what nobody
    /// can reach in it is deleted before it gets its name.
    pub fn unnamed_snapshot(&self, core: &Core, id: u64) -> Result<Arc<Subvolume>> {
        let subvolume = self.find(core, id)?;
        subvolume.tree.set_read_only(false);
        Ok(subvolume)
    }

    /// A snapshot that got no name after all is dropped like a deleted subvolume.
    pub fn abandon_snapshot(&self, id: u64) {
        self.dead.lock().push(Doomed::Subvolume(id));
        self.dropping.store(true, Ordering::Release);
    }

    /// Copies the source's root block, in the commit.
    pub(super) fn take_snapshot(
        &self,
        commit: &Commit<'_>,
        request: &SnapshotRequest,
        roots: &[(Arc<Subvolume>, Root)],
    ) -> Result<()> {
        let core = commit.core();
        let source = &request.source;
        let merged = roots.iter().find(|(one, _)| one.id == source.id).map(|(_, root)| *root);
        let Some(root) = merged.or_else(|| source.tree.root()) else {
            return Err(Error::User(Errno::NOENT));
        };
        let transid = commit.transid();
        let block = core.blocks.read(root.bytenr, root.level, root.generation, source.id)?;
        let mut tree = TreeCommit::of_subvolume(commit, request.id, transid);
        let copy = tree.copy_root(&block)?;
        commit.snapshot(request.id, source.id);
        commit.gather(&mut tree.refs, &mut CsumLog::default());
        let item = self.branch(source, transid, merged.is_none(), commit);
        self.note_snapshot(commit, request, item, copy);
        Ok(())
    }

    /// Notes in the source's root item that a snapshot was taken; answers the item.
    fn branch(
        &self,
        source: &Subvolume,
        transid: u64,
        clean: bool,
        commit: &Commit<'_>,
    ) -> RootItem {
        let mut state = source.state.lock();
        state.item.last_snapshot = transid.into();
        match state.frozen.as_mut() {
            Some(frozen) => frozen.last_snapshot = transid.into(),
            None => commit.root_item(source.key, Some(state.item.as_bytes().to_vec())),
        }
        debug_assert!(clean || state.frozen.is_some());
        state.frozen.unwrap_or(state.item)
    }

    fn note_snapshot(
        &self,
        commit: &Commit<'_>,
        request: &SnapshotRequest,
        source: RootItem,
        root: Root,
    ) {
        let (transid, now) = (commit.transid(), commit.core().env.now());
        let mut item = source;
        item.bytenr = root.bytenr.into();
        item.level = root.level;
        item.generation = transid.into();
        item.generation_v2 = transid.into();
        item.parent_uuid = source.uuid;
        item.uuid = request.uuid;
        item.otransid = transid.into();
        item.otime = now.to_disk();
        item.last_snapshot = transid.into();
        item.refs = 0.into();
        item.drop_progress = DiskKey::default();
        item.drop_level = 0;
        let flags = source.flags.get() & !root_flags::DEAD;
        if request.read_only {
            item.flags = (flags | root_flags::READ_ONLY).into();
        } else {
            item.flags = (flags & !root_flags::READ_ONLY).into();
            never_received(&mut item);
        }
        let key = Key::new(request.id, kind::ROOT_ITEM, transid);
        commit.root_item(key, Some(item.as_bytes().to_vec()));
        commit
            .root_item(Key::new(objectid::ORPHAN, kind::ORPHAN_ITEM, request.id), Some(Vec::new()));
    }

    /// The subvolume that is mounted when none is named.
    pub fn default_id(&self, core: &Core) -> Result<u64> {
        let key = default_key();
        let item = self.pending.get(core, &key)?;
        let location = item.as_deref().and_then(DirItem::of).map(|item| Key::from(item.location));
        Ok(location.map_or(objectid::FS_TREE, |location| location.objectid))
    }

    /// Makes `id` the subvolume that is mounted when none is named.
    pub fn set_default(&self, op: &Op<'_>, id: u64) -> Result<()> {
        self.get(op.core, id)?;
        let name = b"default";
        let head = DirItem {
            location: Key::new(id, kind::ROOT_ITEM, u64::MAX).into(),
            transid: op.transid.into(),
            data_len: 0.into(),
            name_len: (name.len() as u16).into(),
            file_type: file_type::DIRECTORY,
        };
        let mut item = head.as_bytes().to_vec();
        item.extend_from_slice(name);
        self.pending.put(default_key(), Some(item));
        self.superblock.lock().incompat |= incompat::DEFAULT_SUBVOL;
        Ok(())
    }

    /// Makes a subvolume read-only, or writable again. One that was received is no longer what was sent then, so nothing may be received that builds on it.
    pub fn set_read_only(&self, op: &Op<'_>, id: u64, read_only: bool) -> Result<()> {
        // What moves or deletes a subvolume must not find half of it refused.
        let _order = self.names.lock();
        let subvolume = self.get(op.core, id)?;
        if !read_only {
            self.lose_received_uuid(id, &subvolume.item());
        }
        subvolume.change(|item| {
            let flags = item.flags.get() & !root_flags::READ_ONLY;
            item.flags = (flags | if read_only { root_flags::READ_ONLY } else { 0 }).into();
            if !read_only {
                never_received(item);
            }
        });
        subvolume.tree.set_read_only(read_only);
        Ok(())
    }

    /// A subvolume is not found any more by what it was received as.
    pub(super) fn lose_received_uuid(&self, id: u64, item: &RootItem) {
        if item.received_uuid != [0; 16] {
            let kind = kind::UUID_RECEIVED_SUBVOL;
            self.pending.uuid(UuidChange::new(&item.received_uuid, kind, id, false));
        }
    }
}

impl Forest {
    /// What says of a balance that it has begun and not ended.
    pub fn balance_item(&self, core: &Core) -> Result<Option<Vec<u8>>> {
        self.pending.get(core, &balance_key())
    }

    /// Puts it, or takes it away.
    pub fn set_balance_item(&self, item: Option<Vec<u8>>) {
        self.pending.put(balance_key(), item);
    }
}

/// What is said of a subvolume that is not what somebody has sent.
fn never_received(item: &mut RootItem) {
    item.received_uuid = [0; 16];
    (item.stransid, item.rtransid) = (0.into(), 0.into());
    (item.stime, item.rtime) = Default::default();
}

fn balance_key() -> Key {
    Key::new(objectid::BALANCE, kind::TEMPORARY_ITEM, 0)
}

fn default_key() -> Key {
    Key::new(objectid::ROOT_TREE_DIR, kind::DIR_ITEM, name_hash(b"default"))
}
