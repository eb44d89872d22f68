//! Reservations: an operation is told before it starts whether its commit will find room.
//!
//! A commit writes new blocks next to the old ones, so it needs room for every block it touches, for
//! the items that are new, and for what settling itself costs ([`super::bound`]). That bound is kept
//! as a few sums for the running transaction and for the one that commits; an operation adds its
//! share, and is refused when the sums would no longer fit into free metadata and the chunks that
//! could still be made. Data is promised in the same way, in bytes.
//!
//! What is rewritten comes back once the commit is done; what a commit adds does not. So an operation
//! has to leave a part (the global reserve) that only operations which give space back may use, and
//! these leave what deleting a subvolume takes, and the smallest step of dropping it, which nobody waits
//! for: a filesystem that was filled here can always delete, and where snapshots share what is deleted, which takes more
//! room at first, it can delete what they do not share, and drop them. What deletions need grows with the trees that describe
//! space, and these with each deletion: before one is refused they are packed, for which all leave room. Linux may leave less than all that:
//! then a deletion comes alone, with a bound that is counted and not reckoned ([`super::alone`]).
//!
//! Chunks of one class are only made out of device space that the promises of the other do not need.

use std::sync::atomic::Ordering;

use buttress_ondisk::LEVELS_MAX;

use super::bound::{Bound, Total, Trees};
use super::device::{GRAIN, copies};
use super::set::Sums;
use super::{Class, Pool, Space};

/// What an operation may need until it is committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Leaves of subvolumes that it may touch.
    pub leaves: u32,
    /// Of these leaves, those that somebody has looked at: no snapshot shares them, nor a block above them. Good for the transaction
    /// that runs, as long as nothing is shared in it or in the one that commits.
    pub own: u32,
    /// Leaves of trees that no snapshot shares, as the root tree.
    pub private: u32,
    /// Bytes of items that it may add to them, and of checksums.
    pub bytes: u32,
    /// Data extents that it may gain or lose a reference to.
    pub refs: u32,
    /// Tree blocks that it may do that to, besides those of the leaves that it touches.
    pub nodes: u32,
    /// Bytes of data that it will allocate.
    pub data: u64,
    /// It gives space back: it may use the global reserve.
    pub deleting: bool,
    /// It deletes a subvolume: it may use what other deletions leave, too.
    pub subvolume: bool,
    /// It gives a chunk back: it may use the global reserve, though what it does is no deletion.
    pub reclaiming: bool,
    /// Whoever asks tries with less, or elsewhere, where there is no room: no block group is emptied for his sake.
    pub modest: bool,
    /// It makes an inode with values and a short name, beside others that are new: that takes less memory until it is committed.
    pub small: bool,
    /// From now on leaves of files may be shared with snapshots: what was promised before must fit then, too.
    pub sharing: bool,
    /// The subvolume whose quota groups it is charged to; 0: the one that is changed, if it is one's content.
    pub charged_to: u64,
}

/// For [`Need::charged_to`]: nobody. Who knows better what is gained charges that himself.
pub const NOBODY: u64 = u64::MAX;

/// Why an operation was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// A commit may make room: let go of everything, commit, and ask again, at most a few times
    /// (commits themselves let blocks go, which looks like room to come); then it is `NoSpace`.
    CommitFirst,
    /// There is no room.
    NoSpace,
}

/// What operations were promised.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Promises {
    pub(super) running: Total,
    pub(super) committing: Total,
    /// What was promised is one deletion, or one step of dropping a subvolume, that comes alone, and this is its bound.
    pub(super) alone: Option<Bound>,
}

impl Promises {
    /// What runs now commits; what committed is done.
    pub fn freeze(&mut self) {
        self.committing = std::mem::take(&mut self.running);
    }

    /// What both transactions were promised.
    pub fn all(&self) -> Total {
        self.running.and(self.committing)
    }

    /// Bytes of data that the commit was promised.
    fn frozen_data(&self) -> u64 {
        self.committing.data
    }

    fn data(&self) -> u64 {
        self.running.data.saturating_add(self.committing.data)
    }

    /// Where something becomes shared, nobody knows what is his own: neither before that is committed, nor after it in the same transaction.
    fn without_what_may_be_wrong(&self, need: Need) -> Need {
        if self.all().shares() { Need { own: 0, ..need } } else { need }
    }

    /// Promised data was allocated. Only the sum of both transactions matters.
    fn use_data(&mut self, len: u64) {
        let old = self.committing.data.min(len);
        self.committing.data -= old;
        self.running.data = self.running.data.saturating_sub(len - old);
    }
}

/// How things were when a transaction was frozen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub outlook: Outlook,
    /// Bytes of data that it was promised.
    pub data: u64,
}

/// Tree blocks that the global reserve has at least beside what one deletion takes, if metadata is large enough: as many as four more
/// touch, each 8 leaves ([`DELETION`]) and the three nodes above each, so that not each deletion waits for a commit.
const RESERVE_MIN: u64 = 4 * 8 * (1 + 3);
/// Bytes that it has at most: as much as Linux's (`btrfs_update_global_block_rsv`).
const RESERVE_MAX: u64 = 512 << 20;
/// One of so many parts of the groups is the reserve at most: of those that data and metadata share, which are data's for the most
/// part, and of metadata's own. A choice: the rest is for files, also where a filesystem is small.
const RESERVE_PARTS: (u64, u64) = (16, 3);
/// The same of the device, where metadata has no chunk that large yet: a bit more than such a chunk would be, a tenth at most
/// (`space/chunks.rs`).
const DEVICE_PARTS: u64 = 8;

/// By so many blocks the packed trees may have grown before packing them again is worth it: one of the four deletions.
const PACK_BLOCKS: u64 = RESERVE_MIN / 4;
/// Bytes of free metadata below which a data chunk leaves room on the device for a metadata chunk; on a small device one of so many
/// parts of it, which is a fifth of a chunk.
const HEADROOM_BELOW: (u64, u64) = (32 << 20, 50);
/// Bytes by which a chunk has to be longer where superblocks lie in it: each of the three takes a stripe of 64 KiB; rounded up.
const MIRRORS: u64 = 256 << 10;
/// Metadata is tight when it could not become so many times as large. A choice: then the trees are counted, which takes reading their
/// nodes, and what the root items say is not believed any more; before that no bound comes near what is free.
const TIGHT: u64 = 8;

const NOTHING: Need = Need {
    leaves: 0,
    own: 0,
    private: 0,
    bytes: 0,
    refs: 0,
    nodes: 0,
    data: 0,
    deleting: false,
    subvolume: false,
    reclaiming: false,
    modest: false,
    small: false,
    sharing: false,
    charged_to: 0,
};
/// What the usual deletion needs: that of a file of two extents. Five leaves have its entry (by name and by index), its inode, that
/// of the directory and an orphan item, and two its extents (`inode/steps.rs`); one is to spare.
const DELETION: Need = Need { leaves: 8, bytes: 120, refs: 2, deleting: true, ..NOTHING };
/// The same where nobody shares these leaves.
const OWN_DELETION: Need = Need { own: DELETION.leaves, ..DELETION };
/// What deleting a subvolume needs: three leaves with its entry (by name and by index) and the inode of the directory, and one to spare;
/// four of the root tree, with its root item, the two references and an orphan item, and two of the uuid tree. The bytes are those
/// of a root item in its longest form and an orphan item (489), and some to spare.
pub const SUBVOLUME_DELETION: Need =
    Need { leaves: 4, private: 6, bytes: 600, deleting: true, subvolume: true, ..NOTHING };
/// What an extent needs that there would not be if free space were not in pieces: the item of a file extent (78 bytes, rounded up)
/// and a reference.
const PIECE: Need = Need { bytes: 100, refs: 1, ..NOTHING };

/// What somebody who wants room must leave to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leave {
    /// The global reserve: for whoever deletes, or gives chunks back.
    Reserve,
    /// What deleting a file takes that is shared with nobody, and what is left by who does that.
    Own,
    /// What deleting a subvolume takes, and the smallest step of dropping it.
    Subvolume,
    /// What this step takes.
    Floor,
    /// Nothing.
    Nothing,
}

impl Leave {
    fn of(need: Need) -> Leave {
        match need {
            Need { subvolume: true, .. } => Leave::Floor,
            Need { reclaiming: true, .. } => Leave::Subvolume,
            Need { deleting: true, .. } if need.own >= need.leaves => Leave::Subvolume,
            Need { deleting: true, .. } => Leave::Own,
            _ => Leave::Reserve,
        }
    }
}

/// The state that promises are held against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outlook {
    /// Bytes of a tree block.
    pub node: u64,
    /// Data and metadata share their groups.
    pub mixed: bool,
    /// The data class (both, when mixed).
    pub data: Sums,
    /// The metadata class (both, when mixed).
    pub metadata: Sums,
    /// Copies that new data chunks take on the device.
    pub data_copies: u64,
    /// Copies that new metadata chunks take.
    pub metadata_copies: u64,
    /// Bytes of the device.
    pub device: u64,
    /// Bytes of it that chunks could take.
    pub room: u64,
    /// Device bytes to leave for a metadata chunk when a data chunk is made.
    pub headroom: u64,
    /// Blocks of the trees that describe space.
    pub trees: Trees,
    /// Leaves of files may be shared with snapshots.
    pub shared: bool,
    /// Trees that operations may be at: subvolumes that are or were open.
    pub volumes: u64,
}

impl Outlook {
    /// Tree blocks that the smallest step of dropping a subvolume may write: a leaf goes, or counts by its address.
    fn floor(&self) -> u64 {
        self.bound(Total::dropping(self.extents_of_leaf(), self.nodes_of_step(), 1)).blocks
    }

    /// References to tree blocks that this step may change: those of a node, and of the blocks on the way to it.
    pub(super) fn nodes_of_step(&self) -> u64 {
        self.children_of_node() + 2 * LEVELS_MAX as u64
    }

    /// Bytes that only deletions may use: enough for one, for the next ones after it, and for dropping subvolumes.
    pub fn global_reserve(&self) -> u64 {
        let bound = self.bound(Total::default());
        let after = self.after(Leave::Reserve, Total::default(), bound);
        after.saturating_sub(bound.growth).saturating_mul(self.node)
    }

    /// Tree blocks that operations which come to `total`, and so to `bound`, need to be free for all that comes after them.
    /// First the trees that describe space can be packed, and then there has to be room for what others need.
    fn after(&self, leave: Leave, total: Total, bound: Bound) -> u64 {
        let (nothing, most) = (Total::default(), self.reserve_max() / self.node);
        let subvolume = nothing.plus(SUBVOLUME_DELETION);
        // Where metadata is so small that all this would be too much of it, who may use what others leave still leaves less.
        let (later, most) = match leave {
            Leave::Nothing => return bound.growth,
            Leave::Floor => (nothing, most / 2),
            Leave::Subvolume => (subvolume, most / 4 * 3),
            Leave::Own => (subvolume.plus(OWN_DELETION), most / 8 * 7),
            Leave::Reserve => (subvolume.plus(DELETION), most),
        };
        let both = self.bound(total.and(later));
        let packing = both.growth.saturating_add(self.packing_after(both));
        let packed = both.growth.saturating_sub(both.gaps).saturating_add(self.floor());
        let spare = if leave == Leave::Reserve { RESERVE_MIN } else { 0 };
        packed.max(packing).saturating_add(spare).min(bound.growth.saturating_add(most))
    }

    /// Bytes that operations leave to others at most. Where metadata has no chunk that large yet, there is room for one: data
    /// leaves as much.
    fn reserve_max(&self) -> u64 {
        let most = match self.mixed {
            true => self.metadata.total / RESERVE_PARTS.0,
            false => (self.metadata.total / RESERVE_PARTS.1)
                .max(self.device / DEVICE_PARTS / self.metadata_copies.max(1)),
        };
        most.min(RESERVE_MAX)
    }

    /// Bytes by which promises exceed what existing groups hold: of data, and of metadata. What is to be left is needed when
    /// all is committed: then only what has grown is gone.
    fn short(&self, promises: Promises, leave: Leave) -> (u64, u64) {
        let total = promises.all();
        let bound = promises.alone.unwrap_or_else(|| self.bound(total));
        let after = self.after(leave, total, bound).saturating_mul(self.node);
        let metadata = bound.blocks.saturating_mul(self.node).max(after);
        let data = promises.data();
        if self.mixed {
            return (data.saturating_add(metadata).saturating_sub(self.data.free), 0);
        }
        let free = self.metadata.nodes * self.node;
        (data.saturating_sub(self.data.free), metadata.saturating_sub(free))
    }

    /// Device bytes that chunks for the shortages take.
    fn device_need(&self, (data, metadata): (u64, u64)) -> (u64, u64) {
        let whole = |bytes: u64| bytes.div_ceil(GRAIN).saturating_mul(GRAIN);
        // A superblock's stripes may lie in a new chunk.
        let padded = |bytes: u64| if bytes > 0 { whole(bytes + MIRRORS) } else { 0 };
        let data = padded(data).saturating_mul(self.data_copies);
        (data, padded(metadata).saturating_mul(self.metadata_copies))
    }

    fn fits(&self, promises: Promises, leave: Leave) -> bool {
        if promises.alone.is_some() {
            return false;
        }
        let short = self.short(promises, leave);
        if short == (0, 0) {
            return true;
        }
        let (data, metadata) = self.device_need(short);
        let polite = data > 0 && leave == Leave::Reserve && !self.mixed;
        let headroom = if polite { self.headroom } else { 0 };
        data.saturating_add(metadata.max(headroom)) <= self.room
    }

    /// Whether promises still fit when a group of a class vanishes and its device space is not there
    /// yet.
    pub fn fits_without(self, class: Class, bytes: u64, nodes: u64, promises: Promises) -> bool {
        let less = |mut sums: Sums| {
            sums.free = sums.free.saturating_sub(bytes);
            sums.nodes = sums.nodes.saturating_sub(nodes);
            sums.total = sums.total.saturating_sub(bytes);
            sums
        };
        let (mut data, mut metadata) = (self.data, self.metadata);
        if class == Class::Data {
            data = less(data);
        }
        if class == Class::Metadata || (self.mixed && class == Class::Data) {
            metadata = less(metadata);
        }
        Outlook { data, metadata, ..self }.fits(promises, Leave::Reserve)
    }

    /// How it will be when metadata has grown by so many blocks.
    pub fn grown_by(self, blocks: u64) -> Outlook {
        let bytes = blocks.saturating_mul(self.node);
        let metadata = Sums {
            used: self.metadata.used.saturating_add(bytes),
            free: self.metadata.free.saturating_sub(bytes),
            nodes: self.metadata.nodes.saturating_sub(blocks),
            ..self.metadata
        };
        Outlook { metadata, ..self }
    }

    /// Whether what nobody shares can be deleted, and after that a subvolume.
    pub fn has_room_for_own(self) -> bool {
        let running = Total::default().plus(OWN_DELETION);
        self.fits(Promises { running, ..Promises::default() }, Leave::Subvolume)
    }

    /// Whether promises fit, and leave what only deletions may use.
    pub fn fits_promises(self, promises: Promises) -> bool {
        self.fits(promises, Leave::Reserve)
    }

    /// The same, for whoever may use that, too.
    pub fn fits_deletions(self, promises: Promises) -> bool {
        self.fits(promises, Leave::Subvolume)
    }

    /// Bytes by which promises exceed what existing groups hold, for whoever needs this: of data, and of metadata.
    pub fn missing(self, promises: Promises, need: Need) -> (u64, u64) {
        self.short(promises, Leave::of(need))
    }

    /// The same, after commits have finished all that runs and freed all that is pinned.
    fn after_commits(&self) -> Outlook {
        let settle = |mut sums: Sums| {
            sums.free += sums.pinned;
            sums.nodes += sums.pinned / self.node;
            sums
        };
        Outlook { data: settle(self.data), metadata: settle(self.metadata), ..*self }
    }

    /// Device bytes that a new chunk of a class may take, so that other promises stay good. What was promised is kept, even out of
    /// the headroom and out of what is left for deletions: these may have used it.
    pub fn limit(&self, class: Class, promises: Promises) -> u64 {
        let polite = self.device_need(self.short(promises, Leave::Reserve));
        let (data, metadata) = self.device_need(self.short(promises, Leave::Nothing));
        let without = |bytes: u64| self.room.saturating_sub(bytes);
        match class {
            Class::Data | Class::Metadata if self.mixed => self.room,
            Class::Data => without(polite.1.max(self.headroom)).max(data.min(without(metadata))),
            Class::Metadata => without(data).max(metadata.min(self.room)),
            Class::System => without(data.saturating_add(polite.1)),
        }
    }
}

/// How far promises may go before everything is looked at again: these were found to fit, and so does what comes to less
/// ([`Outlook::bound`] never falls by more than [`MARGIN`] blocks when more is announced).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Credit {
    most: Total,
    /// Trees that there were.
    volumes: u64,
}

/// Tree blocks to spare when it is asked how far promises may go: by more the bound never falls when more is announced. It has eight
/// parts, and in each two blocks come and go where what is filled takes the place of what splits ([`Bound`]). Tests compare random
/// needs.
const MARGIN: u64 = 16;
/// Operations that a look is to be good for, if there is room for them; else so many, or so many. A look costs as much as some tens of comparisons,
/// which 64 operations hardly feel; but some are promised ahead ([`super::allot`]).
const AHEAD: [u64; 3] = [1024, 64, 8];
/// What each of them takes, at least: that of making a file with a short name, and a write that goes to the disk at once.
pub(super) const USUAL: Need = Need { leaves: 6, bytes: 600, refs: 4, data: 64 << 10, ..NOTHING };

/// What the next operations may need where one needs this. Who writes no data is not asked to have room for any: a small data chunk would be in
/// the way of who only makes files.
pub(super) fn usual_like(need: Need) -> Total {
    let data = if need.data > 0 { USUAL.data } else { 0 };
    Total::of(need).at_least(Total::of(Need { data, ..USUAL }))
}

impl Credit {
    pub(super) fn covers(&self, promises: Promises, volumes: u64) -> bool {
        self.volumes == volumes && promises.all().is_within(self.most)
    }

    /// Promised data was allocated: what was free for it is not any more.
    fn use_data(&mut self, len: u64) {
        self.most.data = self.most.data.saturating_sub(len);
    }
}

impl Outlook {
    /// How far promises may go from here on, where the last one was `need`.
    fn credit(&self, promises: Promises, need: Need) -> Credit {
        let each = usual_like(need);
        let ahead = |operations| promises.all().and(each.times(operations));
        let most = AHEAD.into_iter().map(ahead).find(|most| self.has_room_for_less(*most));
        most.map_or_else(Credit::default, |most| Credit { most, volumes: self.volumes })
    }

    /// Whether promises that come to no more than `most` fit.
    pub fn has_room_for_less(&self, most: Total) -> bool {
        let running = most.plus_bytes(MARGIN * self.node);
        self.fits(Promises { running, ..Promises::default() }, Leave::Reserve)
    }

    /// Whether promises that come to `total` fit.
    #[cfg(test)]
    pub fn has_room_for(&self, total: Total) -> bool {
        self.fits(Promises { running: total, ..Promises::default() }, Leave::Reserve)
    }
}

impl Space {
    /// The state that promises are held against; `room` is left 0 unless `device` is asked for,
    /// because it costs a walk over the device's holes.
    pub(crate) fn outlook(&self, pool: &Pool, device: bool) -> Outlook {
        let copies_of = |class| copies(pool.type_of(class));
        let data_copies = copies_of(Class::Data);
        let metadata_copies = copies_of(Class::Metadata);
        let metadata = self.sums(Class::Metadata);
        let enough = HEADROOM_BELOW.0.min(pool.device.total() / HEADROOM_BELOW.1);
        let headroom = match metadata.free + metadata.pinned < enough {
            true => pool.usual_len(Class::Metadata) * metadata_copies,
            false => 0,
        };
        Outlook {
            node: self.node,
            mixed: self.mixed,
            data: self.sums(Class::Data),
            metadata,
            data_copies,
            metadata_copies,
            device: pool.device.total(),
            room: if device { pool.device.room(data_copies.max(metadata_copies)) } else { 0 },
            headroom,
            trees: pool.trees,
            shared: self.shared.load(Ordering::Relaxed),
            volumes: self.count_volumes(),
        }
    }

    pub(super) fn count_volumes(&self) -> u64 {
        self.volumes.load(Ordering::Relaxed).max(1)
    }

    /// The counters of a class. Where free space lies is unknown when nothing can be written; how much there is
    /// follows from what is used.
    fn sums(&self, class: Class) -> Sums {
        let mut sums = self.slot(class).counters.read();
        if !self.free_known {
            sums.free = sums.total.saturating_sub(sums.used).saturating_sub(sums.excluded);
            sums.nodes = sums.free / self.node;
        }
        sums
    }

    /// At the freeze: what the commit will be judged by.
    pub(crate) fn start(&self, pool: &mut Pool) {
        let data = pool.promises.frozen_data();
        pool.start = Some(Start { outlook: self.outlook(pool, false), data });
        self.placed.store(0, Ordering::Relaxed);
        self.has_written.store(false, Ordering::Relaxed);
    }

    /// Lets an operation in, before it changes anything. What it was promised counts until the
    /// commit of its transaction is done; call [`Space::unreserve`] when it changes nothing.
    ///
    /// Data must be reserved before [`Space::allocate_data`] takes it.
    pub fn reserve(&self, need: Need) -> Result<(), Shortage> {
        if self.try_to_reserve(need) == Ok(()) {
            return Ok(());
        }
        // Others may have taken back meanwhile what was in the way.
        let _taken_back = self.take_back();
        self.try_to_reserve(need)
    }

    fn try_to_reserve(&self, need: Need) -> Result<(), Shortage> {
        let mut pool = self.pool.lock();
        let need = pool.promises.without_what_may_be_wrong(need);
        let running = match need.sharing {
            // What was looked at is nobody's own any more.
            true => pool.promises.running.without_own(),
            false => pool.promises.running,
        };
        let wanted = Promises { running: running.plus(need), ..pool.promises };
        let sharing = need.sharing && !self.shared.load(Ordering::Relaxed);
        if sharing {
            // All that was promised so far costs more from now on.
            pool.credit = Credit::default();
        }
        if pool.credit.covers(wanted, self.count_volumes()) {
            self.let_in(&mut pool, wanted, need);
            return Ok(());
        }
        let leave = Leave::of(need);
        let look = |pool: &Pool, device| {
            let outlook = self.outlook(pool, device);
            Outlook { shared: outlook.shared || need.sharing, ..outlook }
        };
        let mut outlook = look(&pool, false);
        if !outlook.fits(wanted, leave) {
            self.thaw();
            outlook = look(&pool, true);
            if !outlook.fits(wanted, leave) {
                let alone = Promises { running: Total::default().plus(need), ..Default::default() };
                outlook.room += pool.leaving();
                // What was deleted and not committed yet is not counted anywhere: how much of it nobody else has is known
                // after the commit only. Nor is what was written since the last commit and written over again.
                let helps = pool.promises.all().deletions > 0
                    || need.data > 0 && self.has_written.load(Ordering::Relaxed)
                    || outlook.after_commits().fits(alone, leave)
                    || need.deleting && self.ask(&pool);
                return Err(if helps { Shortage::CommitFirst } else { Shortage::NoSpace });
            }
        }
        self.let_in(&mut pool, wanted, need);
        pool.credit = outlook.credit(wanted, need);
        // Never back: others may have found out meanwhile.
        self.shared.fetch_or(outlook.shared, Ordering::Relaxed);
        Ok(())
    }

    fn let_in(&self, pool: &mut Pool, wanted: Promises, need: Need) {
        pool.promises = wanted;
        if need.deleting {
            self.was_alone.store(false, Ordering::Relaxed);
        }
    }

    /// Room for the commit under way to drop parts of deleted subvolumes: how many references to data extents it may let go of,
    /// at most `refs`, and at least `least` or none at all; and in how many subvolumes, at most `trees`. Nobody waits for it, so
    /// it takes what others leave.
    pub fn reserve_upkeep(&self, refs: u64, least: u64, trees: u64) -> (u64, u64) {
        self.thaw();
        let _taken_back = self.take_back();
        let mut pool = self.pool.lock();
        let outlook = self.outlook(&pool, true);
        let (mut refs, mut trees) = (refs, trees.max(1));
        while refs >= least {
            let nodes = refs.max(outlook.nodes_of_step());
            let total = Total::dropping(refs, nodes, outlook.leaves_of_roots(trees));
            let wanted =
                Promises { committing: pool.promises.committing.and(total), ..pool.promises };
            if outlook.fits(wanted, Leave::Nothing) {
                pool.promises = wanted;
                return (refs, trees);
            }
            refs = if refs > least || trees > 1 { (refs / 2).max(least) } else { 0 };
            trees = (trees / 2).max(1);
        }
        self.ask(&pool);
        (0, 0)
    }

    /// Has the next commit pack the trees that describe space, if they have grown since the last time; whether it will.
    pub fn ask_to_pack(&self) -> bool {
        self.ask(&self.pool.lock())
    }

    fn ask(&self, pool: &Pool) -> bool {
        let packed = self.packed.load(Ordering::Relaxed);
        let worth = pool.trees.packable() > packed.saturating_add((packed / 8).min(PACK_BLOCKS));
        self.pack.fetch_or(worth, Ordering::Relaxed) || worth
    }

    /// Whether somebody has asked for the trees that describe space to be packed, since this was asked last.
    pub fn take_packing(&self) -> bool {
        self.pack.swap(false, Ordering::Relaxed)
    }

    /// They cannot be packed: nobody asks again.
    pub fn never_pack(&self) {
        self.packed.store(u64::MAX, Ordering::Relaxed);
    }

    /// Whether there is room for the commit under way to pack them; then it is promised.
    pub fn reserve_packing(&self) -> bool {
        self.thaw();
        let _taken_back = self.take_back();
        let mut pool = self.pool.lock();
        let outlook = self.outlook(&pool, true);
        let committing = pool.promises.committing.and(Total::packing());
        let wanted = Promises { committing, ..pool.promises };
        let fits = outlook.fits(wanted, Leave::Nothing);
        if fits {
            pool.promises = wanted;
        }
        fits
    }

    /// The trees that describe space were packed, and are this large.
    pub fn note_packed(&self, trees: Trees) {
        self.packed.store(trees.packable(), Ordering::Relaxed);
    }

    /// Data extents that one leaf of a file may name: what dropping one takes in one go.
    pub fn extents_of_leaf(&self) -> u64 {
        self.outlook(&self.pool.lock(), false).extents_of_leaf()
    }

    /// References to tree blocks that the smallest step of dropping a subvolume may change.
    pub fn nodes_of_step(&self) -> u64 {
        self.outlook(&self.pool.lock(), false).nodes_of_step()
    }

    /// The needs of taking a snapshot: it refers to all that its source's root refers to.
    pub fn snapshot_need(&self) -> Need {
        let outlook = self.outlook(&self.pool.lock(), false);
        let number = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        Need {
            private: 6,
            bytes: 700,
            refs: number(outlook.extents_of_leaf()),
            nodes: number(outlook.children_of_node()),
            sharing: true,
            ..Need::default()
        }
    }

    /// How large the trees are that describe space, as of the last commit.
    pub fn set_trees(&self, trees: Trees) {
        let _taken_back = self.take_back();
        let mut pool = self.pool.lock();
        // What has become smaller since it was packed may grow by gaps again.
        let packed = self.packed.load(Ordering::Relaxed);
        if packed != u64::MAX {
            self.packed.fetch_min(trees.packable(), Ordering::Relaxed);
        }
        pool.trees = trees;
        pool.credit = Credit::default();
    }

    /// What was said last with [`Space::set_trees`].
    pub fn trees(&self) -> Trees {
        self.pool.lock().trees
    }

    /// From now on, leaves of files may be shared with snapshots (or count by their address, as a balance leaves them).
    pub fn set_shared(&self) {
        if !self.is_shared() {
            let _taken_back = self.take_back();
            let mut pool = self.pool.lock();
            self.shared.store(true, Ordering::Relaxed);
            pool.credit = Credit::default();
        }
    }

    /// One more subvolume is open.
    pub fn note_volume(&self) {
        self.volumes.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether metadata could not become several times as large as it is.
    pub fn is_tight(&self) -> bool {
        let outlook = self.outlook(&self.pool.lock(), true);
        let more = outlook.metadata.free + outlook.metadata.pinned;
        more + outlook.room / outlook.metadata_copies.max(1)
            < outlook.metadata.used.saturating_mul(TIGHT)
    }

    /// Whether somebody has counted the trees that describe space.
    pub fn trees_are_counted(&self) -> bool {
        self.counted.load(Ordering::Relaxed)
    }

    /// From now on [`Space::set_trees`] says what was counted.
    pub fn note_trees_counted(&self) {
        self.counted.store(true, Ordering::Relaxed);
    }

    /// Whether leaves of files may be shared with snapshots.
    pub fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed)
    }

    /// The operation that reserved this in the running transaction has changed nothing.
    pub fn unreserve(&self, need: Need) {
        let mut pool = self.pool.lock();
        pool.promises.running = pool.promises.running.minus(need);
        if pool.promises.all() == Total::default() {
            self.end_alone(&mut pool.promises);
        }
    }

    /// The commit is done: what its transaction was promised has been used or is not needed. Without
    /// this call the promises last until the next freeze. By how many tree blocks it took more than that, or
    /// has grown by more, is answered: none, ever.
    pub fn committed(&self) -> u64 {
        let mut pool = self.pool.lock();
        self.known.committed();
        let promised = std::mem::take(&mut pool.promises.committing);
        let alone = self.end_alone(&mut pool.promises);
        let Some(start) = pool.start.take() else { return 0 };
        let bound = alone.unwrap_or_else(|| start.outlook.bound(promised.of_data(start.data)));
        let placed = self.placed.load(Ordering::Relaxed);
        let used = self.slot(Class::Metadata).counters.read().used / self.node;
        let grown = used.saturating_sub(start.outlook.metadata.used / self.node);
        let grown = if self.mixed { 0 } else { grown.saturating_sub(bound.growth) };
        placed.saturating_sub(bound.blocks).max(grown)
    }

    /// Promised data was allocated: `piece` when it got less than was wanted, and the rest becomes an extent of its own.
    pub(crate) fn use_promise(&self, len: u64, piece: bool) {
        let mut pool = self.pool.lock();
        pool.promises.use_data(len);
        pool.credit.use_data(len);
        self.has_written.store(true, Ordering::Relaxed);
        if piece {
            pool.promises.running = pool.promises.running.plus(PIECE);
        }
    }
}
