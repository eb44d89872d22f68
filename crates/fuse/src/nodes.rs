//! Which inode a node id of the kernel means, and how often the kernel holds it.
//!
//! The kernel names files by 64-bit node ids and shows inode numbers to programs; both must be
//! unique in a mount, although btrfs numbers inodes anew in each subvolume. So:
//!
//! | inode | node id | inode number shown |
//! |---|---|---|
//! | top of the mounted subvolume | 1 | 256 |
//! | others in the mounted subvolume | their own number | the same |
//! | in another subvolume | `subvolume << 40 \| number` | the same |
//! | what stands in a snapshot for a subvolume | `2^62 \| the snapshot << 31 \| the subvolume` | the same |
//! | what does not fit (numbers of 2^40, subvolumes of 2^22) | made up, from 2^63 | the same |
//!
//! Where a filesystem can be mounted several times, the subvolume that has all others below it counts as the mounted one for
//! node ids, and the one that was mounted first for the numbers shown ([`Numbers`]).
//!
//! Both numbers depend on the inode alone but for the made-up ones, so they survive a remount, and
//! an id the kernel has forgotten still names its inode.
//!
//! A node is *held* once for each entry given to the kernel, until as many FORGETs have come back;
//! while it is held the filesystem keeps its inode, so an unlinked file lives as long as it is open.
//!
//! The kernel may hold millions, and mostly such as were made one after the other. So how often each is held stands in pages of
//! neighbours: of an entry of its own, the table's costs would be most.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::protocol::abi::ROOT_ID;

/// Inode number of the top directory of every subvolume.
pub const SUBVOLUME_TOP: u64 = 256;
/// Inode numbers below this fit into a node id.
const INO_LIMIT: u64 = 1 << INO_BITS;
const INO_BITS: u32 = 40;
/// Subvolume ids below this fit into a node id.
const SUBVOLUME_LIMIT: u64 = STUBS >> INO_BITS;
/// First id of a stub.
const STUBS: u64 = 1 << 62;
/// Ids of the subvolume that a stub is in, and of the one it stands for, that fit into a node id.
const STUB_LIMIT: u64 = 1 << STUB_BITS;
const STUB_BITS: u32 = 31;
/// First made-up id.
const MADE_UP: u64 = 1 << 63;
const SHARDS: usize = 64;

/// An inode of the filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Id of the subvolume's tree; of a stub see [`buttress::Node`].
    pub subvolume: u64,
    /// Inode number in that subvolume.
    pub ino: u64,
}

impl Identity {
    /// As the filesystem names it.
    pub fn node(self) -> buttress::Node {
        buttress::Node { subvolume: self.subvolume, ino: self.ino }
    }

    /// Whether it stands in a snapshot for a subvolume.
    pub fn is_stub(self) -> bool {
        self.node().is_stub()
    }

    /// The subvolume that it is in.
    pub fn within(self) -> u64 {
        self.node().within()
    }
}

impl From<buttress::Node> for Identity {
    fn from(node: buttress::Node) -> Identity {
        Identity { subvolume: node.subvolume, ino: node.ino }
    }
}

/// The nodes the kernel holds.
pub struct NodeTable {
    mounted: u64,
    shards: Vec<Mutex<Shard>>,
    held: AtomicUsize,
    pages: AtomicUsize,
    /// How often xattrs of any node were changed, or were going to be.
    xattr_changes: AtomicU64,
    made_up: Mutex<MadeUp>,
}

/// Neighbours of a page.
const PAGE: u64 = 8;
/// What a page takes, here and in the filesystem, which has its own, in tables that are between half and seven eighths full.
const PAGE_BYTES: u64 = 132;
/// What [`NodeTable::mark`] remembers; the bits above it count.
const MARK: u32 = 1;
/// It has no xattrs.
const PLAIN: u32 = 2;
const ONCE: u32 = 4;

type Page = [u32; PAGE as usize];
/// By page; one has at least one node that is held.
type Shard = HashMap<u64, Page, BuildHasherDefault<Mixer>>;

/// Ids for what does not fit. They are never reused while mounted.
#[derive(Default)]
struct MadeUp {
    ids: HashMap<Identity, u64>,
    identities: Vec<Identity>,
}

impl NodeTable {
    /// An empty table for a mount of subvolume `mounted`.
    pub fn new(mounted: u64) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let made_up = Mutex::default();
        let (held, pages) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let xattr_changes = AtomicU64::new(0);
        Self { mounted, shards, held, pages, xattr_changes, made_up }
    }

    /// The subvolume that is mounted.
    pub fn mounted(&self) -> u64 {
        self.mounted
    }

    /// The node id of an inode.
    pub fn id(&self, identity: Identity) -> u64 {
        let Identity { subvolume, ino } = identity;
        match identity {
            _ if identity.is_stub() => match identity.within() {
                within if within < STUB_LIMIT && ino < STUB_LIMIT => {
                    STUBS | within << STUB_BITS | ino
                }
                _ => self.make_up(identity),
            },
            _ if ino >= INO_LIMIT || subvolume >= SUBVOLUME_LIMIT => self.make_up(identity),
            _ if subvolume != self.mounted => subvolume << INO_BITS | ino,
            _ if ino == SUBVOLUME_TOP => ROOT_ID,
            _ => ino,
        }
    }

    /// The inode a node id names.
    pub fn identity(&self, id: u64) -> Option<Identity> {
        if id >= MADE_UP {
            let index = usize::try_from(id - MADE_UP).ok()?;
            return self.made_up.lock().identities.get(index).copied();
        }
        if id >= STUBS {
            let (within, of) = ((id - STUBS) >> STUB_BITS, id & (STUB_LIMIT - 1));
            return Some(buttress::Node::stub(within, of).into());
        }
        if id == ROOT_ID {
            return Some(Identity { subvolume: self.mounted, ino: SUBVOLUME_TOP });
        }
        let (subvolume, ino) = (id >> INO_BITS, id & (INO_LIMIT - 1));
        let subvolume = if subvolume == 0 { self.mounted } else { subvolume };
        Some(Identity { subvolume, ino })
    }

    fn make_up(&self, identity: Identity) -> u64 {
        let mut made_up = self.made_up.lock();
        let MadeUp { ids, identities } = &mut *made_up;
        *ids.entry(identity).or_insert_with(|| {
            identities.push(identity);
            MADE_UP + (identities.len() as u64 - 1)
        })
    }

    /// Whether a node is held.
    pub fn is_held(&self, id: u64) -> bool {
        self.look(id) >= ONCE
    }

    /// Counts one more entry given to the kernel. Before the first, `hold` must take hold of the
    /// inode.
    pub fn hold<E>(&self, id: u64, hold: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let (page, at) = place(id);
        let mut shard = self.shard(page).lock();
        if let Some(held) = shard.get_mut(&page).and_then(|counts| counts.get_mut(at))
            && *held >= ONCE
        {
            *held = held.checked_add(ONCE).unwrap_or(*held);
            return Ok(());
        }
        hold()?;
        let counts = shard.entry(page).or_insert_with(|| {
            self.pages.fetch_add(1, Ordering::Relaxed);
            Page::default()
        });
        counts.get_mut(at).into_iter().for_each(|held| *held = ONCE);
        self.held.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// How many nodes are held.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Bytes that they take, here and in the filesystem.
    pub fn bytes(&self) -> u64 {
        self.pages.load(Ordering::Relaxed) as u64 * PAGE_BYTES
    }

    /// Remembers one thing about a node for as long as it is held.
    pub fn mark(&self, id: u64, mark: bool) {
        let (page, at) = place(id);
        if let Some(held) = self.shard(page).lock().get_mut(&page).and_then(|it| it.get_mut(at))
            && *held >= ONCE
        {
            *held = if mark { *held | MARK } else { *held & !MARK };
        }
    }

    /// What [`Self::mark`] remembered; false at first.
    pub fn is_marked(&self, id: u64) -> bool {
        self.look(id) & MARK != 0
    }

    /// Whether a node is known to have no xattrs: who asks for one need not look at the inode. Linux asks for `security.capability` and
    /// ACLs again and again, and `ls -l` for a label of each file.
    pub fn is_plain(&self, id: u64) -> bool {
        self.look(id) & PLAIN != 0
    }

    /// To be asked before it is looked whether a node has xattrs: see [`Self::found_plain`].
    pub fn xattr_changes(&self) -> u64 {
        self.xattr_changes.load(Ordering::SeqCst)
    }

    /// A node was found without xattrs by who began to look when they had been changed so often. Nothing is remembered if they were
    /// changed since: who changes them counts before and after that, and then forgets what was remembered in between.
    pub fn found_plain(&self, id: u64, changes: u64) {
        let (page, at) = place(id);
        let mut shard = self.shard(page).lock();
        let held = shard.get_mut(&page).and_then(|counts| counts.get_mut(at));
        if let Some(held) = held.filter(|held| **held >= ONCE)
            && self.xattr_changes() == changes
        {
            *held |= PLAIN;
        }
    }

    /// Lets `change` change xattrs of a node that there was before.
    pub fn change_xattrs<T>(&self, id: u64, change: impl FnOnce() -> T) -> T {
        self.xattr_changes.fetch_add(1, Ordering::SeqCst);
        let done = change();
        self.xattr_changes.fetch_add(1, Ordering::SeqCst);
        let (page, at) = place(id);
        if let Some(held) = self.shard(page).lock().get_mut(&page).and_then(|it| it.get_mut(at)) {
            *held &= !PLAIN;
        }
        done
    }

    /// Takes `count` entries back; whether these were the last ones.
    pub fn forget(&self, id: u64, count: u64) -> bool {
        let (page, at) = place(id);
        let mut shard = self.shard(page).lock();
        let Some(counts) = shard.get_mut(&page) else { return false };
        let Some(held) = counts.get_mut(at).filter(|held| **held >= ONCE) else { return false };
        let count = u32::try_from(count).unwrap_or(u32::MAX).saturating_mul(ONCE);
        *held = held.saturating_sub(count);
        if *held >= ONCE {
            return false;
        }
        *held = 0;
        if *counts == Page::default() {
            shard.remove(&page);
            self.pages.fetch_sub(1, Ordering::Relaxed);
        }
        self.held.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// What is held of these subvolumes, which are in ascending order; the last numbers first, as what a directory has is mostly
    /// younger than it is. Looks at all that is held.
    pub fn held_of(&self, subvolumes: &[u64]) -> Vec<u64> {
        if subvolumes.is_empty() {
            return Vec::new();
        }
        let is_of = |id: u64| {
            self.identity(id).is_some_and(|found| subvolumes.binary_search(&found.within()).is_ok())
        };
        let mut all = Vec::new();
        for shard in &self.shards {
            let held = shard.lock().iter().flat_map(held_in).collect::<Vec<_>>();
            all.extend(held.into_iter().filter(|id| is_of(*id)));
        }
        all.sort_unstable_by(|one, other| other.cmp(one));
        all
    }

    /// Everything still held, at the end of a mount, neighbours together.
    pub fn drain(&self) -> Vec<u64> {
        let all = self.shards.iter().flat_map(|shard| std::mem::take(&mut *shard.lock()));
        let mut pages: Vec<_> = all.collect();
        pages.sort_unstable_by_key(|(page, _)| *page);
        self.pages.fetch_sub(pages.len(), Ordering::Relaxed);
        let ids: Vec<_> = pages.iter().flat_map(|(page, counts)| held_in((page, counts))).collect();
        self.held.fetch_sub(ids.len(), Ordering::Relaxed);
        ids
    }

    fn look(&self, id: u64) -> u32 {
        let (page, at) = place(id);
        let shard = self.shard(page).lock();
        shard.get(&page).and_then(|counts| counts.get(at)).copied().unwrap_or(0)
    }

    #[expect(clippy::indexing_slicing, reason = "the remainder is below the number of shards")]
    fn shard(&self, page: u64) -> &Mutex<Shard> {
        let mut mixer = Mixer::default();
        mixer.write_u64(page);
        &self.shards[(mixer.finish() >> 32) as usize % SHARDS]
    }
}

/// The nodes of a page that are held.
fn held_in((page, counts): (&u64, &Page)) -> impl Iterator<Item = u64> + use<> {
    let ids = (page * PAGE..).zip(*counts);
    ids.filter(|(_, held)| *held >= ONCE).map(|(id, _)| id)
}

/// The page of a node, and its place there.
fn place(id: u64) -> (u64, usize) {
    (id / PAGE, (id % PAGE) as usize)
}

/// How node ids and the inode numbers that programs see lead to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// The subvolume at the top of the connection.
    pub mounted: u64,
    /// The one whose inodes are shown by their own numbers.
    pub own: u64,
}

impl Numbers {
    /// The inode number programs see for a node id.
    pub fn shown(self, id: u64) -> u64 {
        let (subvolume, ino) = match id {
            STUBS.. => return id,
            ROOT_ID => (self.mounted, SUBVOLUME_TOP),
            _ => (id >> INO_BITS, id & (INO_LIMIT - 1)),
        };
        let subvolume = if subvolume == 0 { self.mounted } else { subvolume };
        if subvolume == self.own { ino } else { subvolume << INO_BITS | ino }
    }

    /// The node id behind an inode number that programs see.
    pub fn id_of_shown(self, shown: u64) -> u64 {
        if shown >= STUBS {
            return shown;
        }
        let (subvolume, ino) = (shown >> INO_BITS, shown & (INO_LIMIT - 1));
        let subvolume = if subvolume == 0 { self.own } else { subvolume };
        match ino {
            _ if subvolume != self.mounted => subvolume << INO_BITS | ino,
            SUBVOLUME_TOP => ROOT_ID,
            _ => ino,
        }
    }
}

/// Spreads node ids, which mostly count up, over all bits. The kernel is the only source of keys,
/// so nobody can choose colliding ones.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stub(within: u64, of: u64) -> Identity {
        buttress::Node::stub(within, of).into()
    }

    fn at(subvolume: u64, ino: u64) -> Identity {
        Identity { subvolume, ino }
    }

    #[test]
    fn ids_and_inodes_lead_to_each_other() {
        let table = NodeTable::new(260);
        let inodes = [
            at(260, 256),
            at(260, 257),
            at(260, INO_LIMIT - 1),
            at(260, INO_LIMIT),
            at(5, 256),
            at(256, 256),
            at(SUBVOLUME_LIMIT - 1, INO_LIMIT - 1),
            at(SUBVOLUME_LIMIT, 256),
            at(u64::MAX, u64::MAX),
            stub(260, 5),
            stub(260, 300),
            stub(300, 260),
            stub(STUB_LIMIT - 1, STUB_LIMIT - 1),
            stub(STUB_LIMIT, 300),
            stub(300, STUB_LIMIT),
        ];
        let ids: Vec<u64> = inodes.iter().map(|&inode| table.id(inode)).collect();
        let numbers = Numbers { mounted: 260, own: 260 };
        for (i, id) in ids.iter().enumerate() {
            assert_eq!(table.identity(*id), Some(inodes[i]));
            assert!(!ids[..i].contains(id));
            assert_eq!(table.id(inodes[i]), *id);
            assert_eq!(numbers.id_of_shown(numbers.shown(*id)), *id);
        }
        assert_eq!(ids[0], ROOT_ID);
        assert_eq!(numbers.shown(ids[0]), 256);
        assert_eq!(ids[4], 5 << 40 | 256);
        assert!(ids[3] >= MADE_UP);
    }

    #[test]
    fn inodes_of_one_subvolume_are_shown_by_their_own_numbers() {
        let (table, numbers) = (NodeTable::new(5), Numbers { mounted: 5, own: 260 });
        for (inode, shown) in [
            (at(260, 256), 256),
            (at(260, 257), 257),
            (at(5, 256), 5 << 40 | 256),
            (at(5, 257), 5 << 40 | 257),
            (stub(257, 300), 1 << 62 | 257 << 31 | 300),
            (stub(258, 300), 1 << 62 | 258 << 31 | 300),
            (at(300, 256), 300 << 40 | 256),
            (at(260, INO_LIMIT), MADE_UP),
        ] {
            let id = table.id(inode);
            assert_eq!((numbers.shown(id), numbers.id_of_shown(shown)), (shown, id), "{inode:?}");
        }
    }

    #[test]
    fn a_node_lives_until_its_last_forget() {
        let table = NodeTable::new(5);
        assert_eq!(table.hold(300, || Err(())), Err(()));
        assert!(!table.is_held(300));
        table.hold(300, || Ok::<_, ()>(())).unwrap();
        table.hold(300, || Err(())).unwrap();
        assert!(!table.forget(300, 1));
        assert!(table.is_held(300));
        assert_eq!(table.held(), 1);
        assert!(table.forget(300, 1));
        assert_eq!(table.held(), 0);
        assert!(!table.is_held(300));
        assert!(!table.forget(300, 1));
    }

    #[test]
    fn a_node_is_plain_until_somebody_changes_its_xattrs() {
        let table = NodeTable::new(5);
        let held = || Ok::<_, ()>(());
        table.hold(300, held).unwrap();
        let changes = table.xattr_changes();
        table.found_plain(301, changes);
        table.found_plain(300, changes);
        assert!(table.is_plain(300) && !table.is_plain(301) && !table.is_marked(300));
        // Somebody has looked before, another one looks in between and remembers too late.
        let in_between = table.change_xattrs(300, || {
            table.found_plain(300, changes);
            table.xattr_changes()
        });
        assert!(!table.is_plain(300));
        table.found_plain(300, changes);
        table.found_plain(300, in_between);
        assert!(!table.is_plain(300));
        table.found_plain(300, table.xattr_changes());
        table.hold(300, held).unwrap();
        assert!(table.is_plain(300) && !table.forget(300, 1) && table.is_plain(300));
        table.change_xattrs(300, || table.found_plain(300, table.xattr_changes()));
        assert!(!table.is_plain(300));
        table.found_plain(300, table.xattr_changes());
        assert!(table.forget(300, 1));
        table.hold(300, held).unwrap();
        assert!(!table.is_plain(300), "what is remembered ends with the last hold");
    }

    #[test]
    fn neighbours_do_not_touch_each_other() {
        let table = NodeTable::new(5);
        let held = || Ok::<_, ()>(());
        for id in [300, 301, 303, 1 << 50] {
            table.hold(id, held).unwrap();
        }
        table.mark(301, true);
        table.mark(302, true);
        let marked: Vec<u64> = (296..312).filter(|id| table.is_marked(*id)).collect();
        assert_eq!(marked, [301]);
        table.hold(302, held).unwrap();
        assert!(!table.is_marked(302), "what is remembered ends with the last hold");
        table.hold(301, held).unwrap();
        assert!(!table.forget(301, 1));
        assert!(table.is_marked(301) && table.forget(301, u64::MAX));
        assert!(!table.is_marked(301));
        assert_eq!(table.held_of(&[1 << 10]), [1 << 50]);
        assert_eq!(table.held_of(&[5]), [303, 302, 300]);
        assert_eq!(table.held_of(&[]), [0; 0]);
        let bytes = table.bytes();
        assert_eq!(table.drain(), [300, 302, 303, 1 << 50]);
        assert_eq!((table.held(), table.bytes()), (0, 0));
        assert!(bytes > 0);
    }
}
