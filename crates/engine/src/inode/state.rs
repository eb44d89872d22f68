//! An inode's state: its values as they are now, and the layers of changes over its tree.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use buttress_ondisk::item::inode_flags;

use super::Inode;
use super::attributes::Attributes;
use super::entries::Entries;
use super::file::{FileChanges, Layers};
use super::log::StoredXattrs;
use super::name_hashes::NameHashes;
use super::names::Names;
use super::tree::FileTree;
use super::xattrs::Xattrs;
use crate::error::{Errno, Error, Result};
use crate::tree::View;
use crate::txn::Op;

/// What one transaction changes of an inode.
#[derive(Debug, Default)]
pub struct Changes {
    /// The inode is made by this layer: nothing below knows it.
    pub created: bool,
    /// The inode is gone with all it had; nothing else in the layer counts.
    pub deleted: bool,
    /// The orphan item: `Some(true)` there is one, `Some(false)` there is none.
    pub orphan: Option<bool>,
    /// Names gained and lost.
    pub names: Names,
    /// Xattrs set and removed.
    pub xattrs: Option<Box<Xattrs>>,
    /// Entries of a directory.
    pub entries: Option<Box<Entries>>,
    /// Where a symbolic link that this layer makes leads.
    pub symlink: Option<Box<[u8]>>,
    /// Data of a file, once somebody has used it. Nobody else holds it before it is frozen.
    pub file: Option<Arc<FileChanges>>,
}

/// The layer of the transaction that is being committed. It is shared with who emits it, and with nobody before.
#[derive(Debug)]
pub struct Frozen {
    /// The values at the end of the transaction.
    pub attributes: Attributes,
    /// The changes, without those of the data.
    pub changes: Changes,
    /// The changes of the data, if there are any.
    pub file: Option<Arc<FileChanges>>,
}

/// What a commit writes of an inode: a layer that was moved aside, or a copy of one that stays where it is.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack while its items are made, and an allocation for each file is what it spares"
)]
pub enum Layer {
    /// The frozen layer.
    Moved(Arc<Frozen>),
    /// What a small one says.
    Copied(Frozen),
}

impl Deref for Layer {
    type Target = Frozen;

    fn deref(&self) -> &Frozen {
        match self {
            Layer::Moved(frozen) => frozen,
            Layer::Copied(frozen) => frozen,
        }
    }
}

/// What the lock of an inode guards.
#[derive(Debug)]
pub struct State {
    /// The values as they are now.
    pub attributes: Attributes,
    /// The changes of transaction `transid`.
    pub live: Changes,
    /// The transaction that `live` belongs to.
    pub transid: u64,
    /// Whether the inode is on the list of what `transid` changes.
    pub dirty: bool,
    /// The changes that are being committed.
    pub frozen: Option<Arc<Frozen>>,
    /// Whether the published version of the tree holds the inode. While false, no search in the tree finds anything.
    pub on_disk: bool,
    /// Deleted: no operation may use it any more.
    pub dead: bool,
    /// Whether the tree or `frozen` holds an orphan item.
    pub orphan: bool,
    /// The index that the directory gives next; 0 when it is not known yet.
    pub next_index: u64,
    /// Whether the tree may have names of the directory: of one that this mount has made, once it has been committed with some.
    pub names_in_tree: bool,
    /// The hashes of all names of the directory, if they are known.
    pub name_hashes: Option<Box<NameHashes>>,
    /// The transaction whose log has something of it; 0: none.
    pub logged: u64,
    /// That log has all of it as it was at this `sequence`.
    pub logged_whole: Option<u64>,
    /// Somebody was told that all of it is durable, and the log has nothing of it as it has no name: with a name it is logged whole.
    pub owed: bool,
    /// A name of it, or of a directory one in it, was given to another inode at once: there was no moment without that name, as there would
    /// be in a log that has the names or losses of this one alone.
    pub handed_over: bool,
    /// The log has its names, though the last commit has it.
    pub names_in_log: bool,
    /// What the log has to take away, if there is anything.
    pub gone: Option<Box<Gone>>,
    /// What tells its names apart from those that the log has.
    pub logged_names: u64,
    /// The log has to say which of its entries have gone: one of the last commit would be found again under a name that the log gave
    /// to another inode and takes away.
    pub uncovers: bool,
    /// It has changed since, and is on the list of those that have.
    pub relog: bool,
    /// Known to have no space reserved behind its end.
    pub ends_plainly: bool,
    /// The xattrs that the tree has of it.
    pub stored: Stored,
}

/// What a log has to take away of an inode.
#[derive(Debug, Default)]
pub struct Gone {
    /// Indexes of entries that have gone since all of it was logged.
    pub retracted: Vec<u64>,
    /// Directories in which replay takes names away that it had in the last commit.
    pub lost_in: Vec<u64>,
}

/// The xattrs that the tree has of an inode.
#[derive(Clone, Debug)]
pub enum Stored {
    /// Nobody has looked.
    Unknown,
    /// None, as of most inodes.
    Nothing,
    /// These.
    These(Arc<StoredXattrs>),
}

impl Stored {
    /// With a layer over them, unless that is not known, or too much to be remembered.
    fn below(&self, layer: &Xattrs) -> Stored {
        let all = match self {
            Stored::Unknown => None,
            Stored::Nothing => layer.over(&[]),
            Stored::These(stored) => layer.over(stored),
        };
        all.map_or(Stored::Unknown, Stored::These)
    }
}

impl State {
    /// An inode that the tree holds.
    pub fn loaded(attributes: Attributes) -> State {
        State {
            attributes,
            live: Changes::default(),
            transid: 0,
            dirty: false,
            frozen: None,
            on_disk: true,
            dead: false,
            orphan: attributes.nlink == 0,
            next_index: 0,
            names_in_tree: true,
            name_hashes: None,
            logged: 0,
            logged_whole: None,
            owed: false,
            handed_over: false,
            names_in_log: false,
            gone: None,
            logged_names: 0,
            uncovers: false,
            relog: false,
            ends_plainly: attributes.flags & inode_flags::PREALLOC == 0,
            stored: Stored::Unknown,
        }
    }

    /// An inode that transaction `transid` makes.
    pub fn created(attributes: Attributes, transid: u64) -> State {
        let live = Changes { created: true, ..Changes::default() };
        let next_index = if attributes.is_directory() { super::directory::FIRST_INDEX } else { 0 };
        State {
            live,
            transid,
            on_disk: false,
            orphan: false,
            names_in_tree: false,
            next_index,
            ..State::loaded(attributes)
        }
    }

    /// Whether the transaction has made it, and its log has had all of it once.
    pub fn is_logged_whole(&self, op: &Op<'_>) -> bool {
        self.live.created && self.logged == op.transid && self.logged_whole.is_some()
    }

    /// Refuses an inode that was deleted since it was found.
    pub fn alive(&self) -> Result<()> {
        if self.dead { Err(Error::User(Errno::NOENT)) } else { Ok(()) }
    }

    /// To be called before each change: makes `live` that of the operation's transaction, and lists the inode.
    pub fn touch(&mut self, inode: &Arc<Inode>, tree: &FileTree, op: &Op<'_>) -> Result<()> {
        self.alive()?;
        self.note_change(inode, tree, op);
        Ok(())
    }

    /// The same, whether or not the inode is on its way out.
    pub fn note_change(&mut self, inode: &Arc<Inode>, tree: &FileTree, op: &Op<'_>) {
        if self.transid != op.transid {
            self.rotate();
            self.transid = op.transid;
            op.step("layers are frozen");
        }
        if inode.plain.load(Ordering::Relaxed) {
            inode.plain.store(false, Ordering::Relaxed);
        }
        if !self.dirty {
            self.dirty = true;
            tree.list_dirty(inode);
        }
        if self.logged == op.transid && !std::mem::replace(&mut self.relog, true) {
            tree.relog(inode);
        }
        self.attributes.transid = op.transid;
        self.attributes.sequence = self.attributes.sequence.wrapping_add(1);
        op.step("an inode is listed");
    }

    /// Drops the frozen layer, which the tree has now; whether the inode stays.
    pub fn settle(&mut self) -> bool {
        let stays = self.frozen.as_ref().is_some_and(|frozen| !frozen.changes.deleted);
        if stays {
            self.names_in_tree |=
                self.frozen_changes().is_some_and(|changes| changes.entries.is_some());
            (self.frozen, self.on_disk) = (None, true);
        }
        stays
    }

    /// Drops the layer of transaction `transid`, which the tree has now, if it was committed from its place; whether it was.
    pub fn settle_in_place(&mut self, transid: u64) -> bool {
        let in_place = self.is_in_place(transid);
        if in_place {
            self.live.file = self.end_live().file;
            self.on_disk = true;
        }
        in_place
    }

    /// Whether nobody has moved the layer of transaction `transid`, which is over.
    fn is_in_place(&self, transid: u64) -> bool {
        self.dirty && self.transid == transid && self.frozen.is_none()
    }

    /// Whether a commit copies what `live` says, which is little, and leaves it where it is. Nobody changes it after the freeze: who changes
    /// the inode in the next transaction moves it first.
    pub fn stays_in_place(&self) -> bool {
        let Changes { deleted, orphan, names, xattrs, entries, symlink, file, .. } = &self.live;
        !*deleted
            && orphan.is_none()
            && !matches!(names, Names::Many(_))
            && xattrs.is_none()
            && entries.is_none()
            && symlink.is_none()
            && file.as_ref().is_none_or(|file| file.is_empty())
    }

    /// Whether what the commit of `transid` writes of the inode is that it was made, and little more.
    pub fn is_made_in(&self, transid: u64) -> bool {
        match &self.frozen {
            Some(frozen) => frozen.changes.created && frozen.file.is_none(),
            None => self.is_in_place(transid) && self.live.created && self.stays_in_place(),
        }
    }

    /// What the commit of transaction `transid` writes of the inode, if anything.
    pub fn committed(&self, transid: u64) -> Option<Layer> {
        if self.is_in_place(transid) {
            let Changes { created, names, .. } = &self.live;
            let changes = Changes { created: *created, names: names.clone(), ..Changes::default() };
            let attributes = self.attributes;
            return Some(Layer::Copied(Frozen { attributes, changes, file: None }));
        }
        self.frozen.clone().map(Layer::Moved)
    }

    /// Moves `live` to `frozen`.
    pub fn rotate(&mut self) {
        if !self.dirty {
            return;
        }
        debug_assert!(self.frozen.is_none(), "a commit began before the last one was published");
        let mut changes = self.end_live();
        let file = changes.file.take_if(|file| !file.is_empty());
        self.live.file = changes.file.take();
        self.frozen = Some(Arc::new(Frozen { attributes: self.attributes, changes, file }));
    }

    /// Takes `live`, and forgets what was noted of its transaction, which is over.
    fn end_live(&mut self) -> Changes {
        let changes = std::mem::take(&mut self.live);
        (self.dirty, self.relog) = (false, false);
        (self.logged_whole, self.owed, self.uncovers) = (None, false, false);
        (self.names_in_log, self.handed_over) = (false, false);
        self.gone = None;
        if changes.created {
            self.stored = Stored::Nothing;
        }
        if let Some(xattrs) = &changes.xattrs {
            self.stored = self.stored.below(xattrs);
        }
        if let Some(there) = changes.orphan {
            self.orphan = there;
        }
        changes
    }

    /// How much work it is to give the data of the frozen layer their places, in bytes that are written.
    pub fn work_to_place(&self) -> u64 {
        let file = self.frozen.as_ref().and_then(|frozen| frozen.file.as_ref());
        file.map_or(0, |file| file.work_to_place())
    }

    /// What a log has to take away, to be changed.
    pub fn gone(&mut self) -> &mut Gone {
        self.gone.get_or_insert_default()
    }

    /// The entries of the live layer, to be changed.
    pub fn entries(&mut self) -> &mut Entries {
        self.live.entries.get_or_insert_default()
    }

    /// The xattrs of the live layer, to be changed.
    pub fn xattrs(&mut self) -> &mut Xattrs {
        self.live.xattrs.get_or_insert_default()
    }

    /// The changes of the committing transaction.
    pub fn frozen_changes(&self) -> Option<&Changes> {
        self.frozen.as_ref().map(|frozen| &frozen.changes)
    }

    /// The file's changes of this transaction, and what lies below them.
    pub fn file_layers<'a>(
        &'a mut self,
        ino: u64,
        view: View<'a>,
    ) -> (&'a mut FileChanges, Layers<'a>) {
        let State { live, frozen, on_disk, attributes, .. } = self;
        let frozen = frozen.as_ref().and_then(|frozen| frozen.file.as_deref());
        let Attributes { size, flags, .. } = *attributes;
        let in_tree = *on_disk;
        let layers = Layers { ino, size, in_tree, frozen, view, flags, last_snapshot: None };
        let file = Arc::get_mut(live.file.get_or_insert_default());
        let file = file.expect("the live layer is shared with nobody");
        file.lies_over(layers.any());
        (file, layers)
    }

    /// The same, to read.
    pub fn layers<'a>(&'a self, ino: u64, view: View<'a>) -> Layers<'a> {
        let frozen = self.frozen.as_ref().and_then(|frozen| frozen.file.as_deref());
        let Attributes { size, flags, .. } = self.attributes;
        let in_tree = self.on_disk;
        Layers { ino, size, in_tree, frozen, view, flags, last_snapshot: None }
    }

    /// Whether changes are pending where the file may have had content before, which `nbytes` counts as well until they are settled.
    pub fn may_replace_content(&self) -> bool {
        let frozen = self.frozen.as_ref().and_then(|frozen| frozen.file.as_deref());
        let live = self.live.file.as_deref().is_some_and(FileChanges::is_unsettled);
        live && (self.on_disk || frozen.is_some_and(FileChanges::has_content))
            || self.on_disk && frozen.is_some_and(FileChanges::is_unsettled)
    }

    /// Bytes that pending changes replace and that count in `nbytes` or as [not placed](State::bytes_not_placed), too; and whether that is all of
    /// them. `view` is what the inode's tree is read with.
    pub fn bytes_replaced(&self, ino: u64, view: View<'_>) -> (u64, bool) {
        let layers = self.layers(ino, view);
        let lower = Layers { frozen: None, ..layers };
        let live = self.live.file.as_deref().map(|file| file.replaced(layers));
        let frozen = layers.frozen.map(|file| file.replaced(lower));
        let (live, frozen) = (live.unwrap_or((0, true)), frozen.unwrap_or((0, true)));
        (live.0.saturating_add(frozen.0), live.1 && frozen.1)
    }

    /// Bytes that were written and are not counted in `nbytes` yet.
    pub fn bytes_not_placed(&self) -> u64 {
        let frozen = self.frozen.as_ref().and_then(|frozen| frozen.file.as_deref());
        let frozen = frozen.map_or(0, FileChanges::unsettled_bytes);
        let live = self.live.file.as_deref().map_or(0, FileChanges::unsettled_bytes);
        live.saturating_add(frozen)
    }
}
