//! Quotas: what the quota tree says, and what is changed.
//!
//! All of the tree is kept while it is looked at, some hundred bytes for each group. An image with more items than anybody's groups have is refused,
//! so that no image eats the memory.

use std::collections::{BTreeMap, BTreeSet};

use buttress_fuse::client;
use buttress_fuse::mount::control::{QgroupChange, QuotaFacts};
use buttress_ondisk::item::{QgroupInfo, QgroupLimit, QgroupStatus, RootItem, qgroup_status_flags};
use buttress_ondisk::{Key, kind, objectid};
use rustix::io::Errno;

use super::{Told, Vfs, say};
use crate::vnode::FileError;

/// Bits of a group's number below its level.
const LEVEL_SHIFT: u32 = 48;
/// Most items of a quota tree.
const ITEMS_MAX: usize = 1 << 20;
/// `BTRFS_QGROUP_LIMIT_MAX_RFER` and `BTRFS_QGROUP_LIMIT_MAX_EXCL`: which limits a group has.
const MAX_RFER: u64 = 1 << 0;
const MAX_EXCL: u64 = 1 << 1;

/// The level of a group: 0 for those of subvolumes.
pub fn level(id: u64) -> u64 {
    id >> LEVEL_SHIFT
}

/// Its number within its level: of level 0 the id of the subvolume.
pub fn number(id: u64) -> u64 {
    id & ((1 << LEVEL_SHIFT) - 1)
}

/// As btrfs-progs writes it: `LEVEL/NUMBER`.
pub fn shown(id: u64) -> String {
    format!("{}/{}", level(id), number(id))
}

/// Reads `LEVEL/NUMBER`.
pub fn parse(text: &str) -> Option<u64> {
    let decimal = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u64>().ok().filter(|_| is_number)
    };
    let (level, number) = text.split_once('/')?;
    let level = decimal(level).filter(|level| *level < 1 << (u64::BITS - LEVEL_SHIFT))?;
    let number = decimal(number).filter(|number| *number < 1 << LEVEL_SHIFT)?;
    Some(level << LEVEL_SHIFT | number)
}

/// A group.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Bytes that it refers to.
    pub rfer: u64,
    /// Bytes that only it refers to.
    pub excl: u64,
    /// How many bytes it may refer to.
    pub max_rfer: Option<u64>,
    /// How many bytes only it may refer to.
    pub max_excl: Option<u64>,
    /// The groups that it is in.
    pub parents: Vec<u64>,
    /// Those that are in it.
    pub members: Vec<u64>,
}

/// What quotas count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// What each group refers to, and what only it does.
    Full,
    /// What subvolumes have allocated.
    Simple,
}

/// What the quota tree says.
#[derive(Clone, Debug, Default)]
pub struct Quotas {
    /// The transaction of the last update.
    generation: u64,
    /// See `qgroup_status_flags`.
    flags: u64,
    /// How far a rescan of Linux has come.
    pub rescan: u64,
    /// The groups, by their numbers.
    pub groups: BTreeMap<u64, Group>,
    /// Member and parent of relations of which at least one group is missing.
    pub orphans: Vec<(u64, u64)>,
    /// Member and parent of all relations.
    relations: Vec<(u64, u64)>,
    /// Items there were.
    items: usize,
}

impl Quotas {
    fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }

    /// Whether quotas are on; there may be a tree of those that were.
    pub fn are_on(&self) -> bool {
        self.has(qgroup_status_flags::ON)
    }

    /// Whether they are wrong until the next rescan.
    pub fn are_wrong(&self) -> bool {
        self.has(qgroup_status_flags::INCONSISTENT)
    }

    /// Whether a rescan has begun.
    pub fn are_scanned(&self) -> bool {
        self.has(qgroup_status_flags::RESCAN)
    }

    /// Whether they are simple ones, which count what a subvolume has made.
    pub fn are_simple(&self) -> bool {
        self.has(qgroup_status_flags::SIMPLE_MODE)
    }

    /// A group and all that it is in, directly or not.
    pub fn with_parents(&self, id: u64) -> BTreeSet<u64> {
        let (mut found, mut next) = (BTreeSet::new(), vec![id]);
        while let Some(id) = next.pop() {
            // A circle is what somebody has made up.
            if found.insert(id) {
                next.extend(self.groups.get(&id).iter().flat_map(|group| &group.parents));
            }
        }
        found
    }

    /// Takes an item; whether there is room for more.
    fn take(&mut self, key: Key, data: &[u8]) -> bool {
        self.items += 1;
        match key.kind {
            kind::QGROUP_STATUS => {
                if let Some(status) = QgroupStatus::of(data) {
                    self.generation = status.generation.get();
                    (self.flags, self.rescan) = (status.flags.get(), status.rescan.get());
                }
            }
            kind::QGROUP_INFO => {
                let group = self.groups.entry(key.offset).or_default();
                if let Some(info) = QgroupInfo::of(data) {
                    (group.rfer, group.excl) = (info.rfer.get(), info.excl.get());
                }
            }
            kind::QGROUP_LIMIT => {
                let group = self.groups.entry(key.offset).or_default();
                if let Some(limit) = QgroupLimit::of(data) {
                    let set =
                        |flag: u64, most: u64| (limit.flags.get() & flag != 0).then_some(most);
                    group.max_rfer = set(MAX_RFER, limit.max_rfer.get());
                    group.max_excl = set(MAX_EXCL, limit.max_excl.get());
                }
            }
            // Each relation is there twice: once from below, once from above.
            kind::QGROUP_RELATION if key.objectid < key.offset => {
                self.relations.push((key.objectid, key.offset));
            }
            _ => {}
        }
        self.items <= ITEMS_MAX
    }

    /// Relates the groups, once all are known.
    fn relate(&mut self) {
        for (member, parent) in std::mem::take(&mut self.relations) {
            if !self.groups.contains_key(&member) || !self.groups.contains_key(&parent) {
                self.orphans.push((member, parent));
                continue;
            }
            self.groups.entry(member).or_default().parents.push(parent);
            self.groups.entry(parent).or_default().members.push(member);
        }
    }
}

impl Vfs {
    /// What the quota tree of the last commit says; `None` where there is none, as quotas are off.
    pub fn quotas(&self) -> Result<Option<Quotas>, FileError> {
        let mut quotas = Quotas::default();
        let all = Key::new(0, 0, 0)..=Key::MAX;
        let searched =
            self.search(objectid::QUOTA_TREE, all, 0, &mut |key, _, data| quotas.take(key, data));
        match searched {
            Err(why) if why.is(Errno::NOENT) => return Ok(None),
            searched => searched?,
        }
        if quotas.items > ITEMS_MAX {
            return Err(FileError::of(format!("there are more than {ITEMS_MAX} of their items")));
        }
        quotas.relate();
        // Whoever wrote last may know nothing of quotas, but for simple ones, which are an incompatible feature.
        if let Vfs::Image(image) = self
            && !quotas.are_simple()
            && quotas.generation < image.fs().info().generation
        {
            quotas.flags |= qgroup_status_flags::INCONSISTENT;
        }
        Ok(Some(quotas))
    }

    /// Which quotas are on, for whoever changes something; `None` where they are off.
    pub fn quota_mode(&self) -> Result<Option<Mode>, FileError> {
        let (on, simple) = match self {
            Vfs::Image(image) => (image.fs().has_quotas(), image.fs().has_simple_quotas()),
            Vfs::Live(path) => {
                let QuotaFacts { on, simple, .. } = client::quotas(path)?;
                (on, simple)
            }
        };
        Ok(on.then_some(if simple { Mode::Simple } else { Mode::Full }))
    }

    /// The ids of all subvolumes, those that are being deleted among them.
    pub fn roots(&self) -> Result<BTreeSet<u64>, FileError> {
        let mut all = BTreeSet::new();
        let keys = Key::new(objectid::FS_TREE, kind::ROOT_ITEM, 0)..=Key::MAX;
        self.search(objectid::ROOT_TREE, keys, 0, &mut |key, _, data| {
            let is_root = key.kind == kind::ROOT_ITEM && RootItem::read(data).is_some();
            if is_root && objectid::is_subvolume(key.objectid) {
                all.insert(key.objectid);
            }
            true
        })?;
        Ok(all)
    }

    /// Switches simple quotas on, where quotas are off.
    pub fn enable_simple_quotas(&self) -> Result<(), FileError> {
        match self {
            Vfs::Image(image) => Ok(image.fs().enable_simple_quotas()?),
            Vfs::Live(path) => Ok(client::enable_simple_quotas(path)?),
        }
    }

    /// Switches full quotas on, where quotas are off, which is done when all is counted.
    pub fn enable_quotas(&self, told: Told<'_>) -> Result<(), FileError> {
        match self {
            Vfs::Image(_) => self.count_quotas(told),
            Vfs::Live(path) => {
                client::enable_quotas(path)?;
                self.wait_for_quotas(told)
            }
        }
    }

    /// Switches quotas off.
    pub fn disable_quotas(&self) -> Result<(), FileError> {
        match self {
            Vfs::Image(image) => Ok(image.fs().disable_quotas()?),
            Vfs::Live(path) => Ok(client::disable_quotas(path)?),
        }
    }

    /// Counts quotas anew: of an image now, on a live mount the process behind it begins to. EINPROGRESS where it does so already, ENOTCONN
    /// where they are off, EINVAL where they are simple ones.
    pub fn rescan_quotas(&self, told: Told<'_>) -> Result<(), FileError> {
        match self {
            Vfs::Image(image) if image.fs().has_quotas() => self.count_quotas(told),
            Vfs::Image(_) => Err(Errno::NOTCONN.into()),
            Vfs::Live(path) => Ok(client::rescan_quotas(path)?),
        }
    }

    /// Waits while they are counted.
    pub fn wait_for_quotas(&self, told: Told<'_>) -> Result<(), FileError> {
        match self {
            Vfs::Image(_) => Ok(()),
            Vfs::Live(path) => Ok(client::wait_for_quotas(path, &mut |at| say(told, at))?),
        }
    }

    /// How it is with quotas for the process behind a live mount; `None` of an image.
    pub fn live_quotas(&self) -> Result<Option<QuotaFacts>, FileError> {
        match self {
            Vfs::Image(_) => Ok(None),
            Vfs::Live(path) => Ok(Some(client::quotas(path)?)),
        }
    }

    fn count_quotas(&self, told: Told<'_>) -> Result<(), FileError> {
        let Vfs::Image(image) = self else { return Ok(()) };
        image.fs().count_quotas(|at| {
            say(told, at);
            true
        })?;
        Ok(())
    }

    /// Changes a group; whether all numbers are right after that. ENOTCONN where quotas are off.
    pub fn change_qgroup(&self, change: QgroupChange) -> Result<bool, FileError> {
        match self {
            Vfs::Image(image) if image.fs().has_quotas() => {
                change.refused()?;
                Ok(change.apply(image.fs())?)
            }
            Vfs::Image(_) => Err(Errno::NOTCONN.into()),
            Vfs::Live(path) => Ok(client::change_qgroup(path, change)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_btrfs_progs_reads_them() {
        for (text, id) in [
            ("0/5", Some(5)),
            ("01/05", Some(1 << 48 | 5)),
            ("1/281474976710655", Some((2 << 48) - 1)),
            ("65535/1", Some(65535 << 48 | 1)),
            ("65536/1", None),
            ("1/281474976710656", None),
            ("1//1", None),
            ("1/", None),
            ("/1", None),
            ("+1/1", None),
            ("0x1/1", None),
            ("5", None),
            ("", None),
        ] {
            assert_eq!(parse(text), id, "{text}");
        }
        assert_eq!(shown(1 << 48 | 5), "1/5");
    }

    #[test]
    fn a_circle_of_groups_ends() {
        let mut quotas = Quotas::default();
        for (member, parent) in [(1, 2), (2, 3)] {
            quotas.take(Key::new(member, kind::QGROUP_RELATION, parent), &[]);
            quotas.take(Key::new(parent, kind::QGROUP_RELATION, member), &[]);
        }
        for group in [1, 2, 3] {
            quotas.take(Key::new(0, kind::QGROUP_INFO, group), &[]);
        }
        quotas.relate();
        assert_eq!(quotas.groups.get(&2).unwrap().members, [1]);
        assert!(quotas.orphans.is_empty());
        quotas.groups.get_mut(&3).unwrap().parents.push(1);
        assert_eq!(quotas.with_parents(1), BTreeSet::from([1, 2, 3]));
    }

    #[test]
    fn relations_to_nothing_are_no_groups() {
        let mut quotas = Quotas::default();
        quotas.take(Key::new(0, kind::QGROUP_INFO, 1), &[]);
        quotas.take(Key::new(1, kind::QGROUP_RELATION, 2), &[]);
        quotas.relate();
        assert_eq!((quotas.groups.len(), &quotas.orphans[..]), (1, &[(1, 2)][..]));
    }

    #[test]
    fn there_is_an_end_of_items() {
        let mut quotas = Quotas::default();
        let taken = (0..).take_while(|_| quotas.take(Key::new(0, 0, 0), &[])).count();
        assert_eq!(taken, ITEMS_MAX);
    }
}
