//! Names: each is told three times (by hash and by index in its directory, and in the inode that it names), and inodes
//! without links are told twice (in the inode and as an orphan).
//!
//! Every telling is a [`Claim`]. One side of a pair adds its hash to the tree's sum, the other one takes it away. When the sum
//! is not zero, [`explain`] walks the tree again with the sum spread over buckets, and once more to collect the claims of
//! the buckets that are not zero. So memory follows the damage.

use std::collections::HashSet;

use buttress_ondisk::item::{InodeItem, file_type};
use buttress_ondisk::{Key, kind, objectid, view};
use buttress_volume::search;

use super::path::{report, report_name};
use crate::{
    context::Context,
    kinds::Kind,
    roots::Tree,
    seeds::Seeds,
    walk::{Leaf, Visitor, walk},
};

/// Sums that a tree is spread over when its one sum is not zero.
const BUCKETS: usize = 4096;
/// Bytes that a claim takes in memory, about.
const RECORD_BYTES: usize = 192;

/// What an item says about a name or an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim<'a> {
    /// A directory has a name, by hash.
    Hashed { dir: u64, name: &'a [u8], location: Key, file_type: u8 },
    /// A directory has a name, by index.
    Indexed { dir: u64, index: u64, name: &'a [u8], location: Key, file_type: u8 },
    /// An inode has a name. The type is that of its mode.
    Ref { dir: u64, index: u64, name: &'a [u8], inode: u64, file_type: u8 },
    /// The top directory is its own parent.
    Top {
        /// Whether the name is what it has to be.
        own: bool,
    },
    /// An inode has no links.
    Unlinked { inode: u64 },
    /// An inode is to be deleted.
    Orphan { inode: u64 },
}

/// Which pair a term belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pair {
    /// A name by hash (adds) and by index.
    Entry,
    /// A name by index (adds) and in its inode.
    Name,
    /// No links (adds) and an orphan item.
    Orphan,
}

/// What a claim adds to a sum, or takes away from it.
#[derive(Clone, Copy, Debug)]
struct Term {
    pair: Pair,
    hash: u64,
    adds: bool,
}

/// Whether an object of a tree of files is an inode.
pub(super) fn is_inode(id: u64) -> bool {
    (objectid::FIRST_FREE..=objectid::LAST_FREE).contains(&id)
}

/// Calls `take` with every claim of an item; `mode` is that of the inode that the item is of (0: unknown).
pub(super) fn claims(key: &Key, data: &[u8], mode: u32, take: &mut dyn FnMut(Claim<'_>)) {
    let id = key.objectid;
    let inode = is_inode(id);
    match key.kind {
        kind::INODE_ITEM if inode && nlink(data) == Some(0) => take(Claim::Unlinked { inode: id }),
        kind::ORPHAN_ITEM if id == objectid::ORPHAN => take(Claim::Orphan { inode: key.offset }),
        kind::INODE_REF if inode && id == objectid::FIRST_FREE && key.offset == id => {
            let own = |it: &view::NameRef<'_>| it.name == b".." && it.index == 0;
            view::inode_refs(data).for_each(|it| take(Claim::Top { own: own(&it) }));
        }
        kind::INODE_REF if inode => {
            for view::NameRef { index, name } in view::inode_refs(data) {
                let (dir, file_type) = (key.offset, file_type::of_mode(mode));
                take(Claim::Ref { dir, index, name, inode: id, file_type });
            }
        }
        kind::INODE_EXTREF if inode => {
            for view::ExtNameRef { parent, index, name } in view::inode_extrefs(data) {
                let (dir, file_type) = (parent, file_type::of_mode(mode));
                take(Claim::Ref { dir, index, name, inode: id, file_type });
            }
        }
        kind::DIR_ITEM | kind::DIR_INDEX if inode => {
            for entry in view::dir_entries(data) {
                take(Claim::of_entry(key, &entry));
            }
        }
        _ => {}
    }
}

/// Judges the names of an item of a directory. Names of one hash are in one item: there a name that is told twice shows.
pub(super) fn judge(context: &Context<'_>, tree: &Tree, key: &Key, data: &[u8]) {
    let mut entries = view::dir_entries(data);
    while let Some(entry) = entries.next() {
        let place = (key.objectid, entry.name);
        if !view::is_name(entry.name) {
            let have = format_args!("the name {:?}", entry.name.escape_ascii().to_string());
            report_name(context, tree, Kind::NameBad, place, have, "one that a file can have");
        }
        if entries.clone().any(|other| other.name == entry.name) {
            let have = format_args!("inode or subvolume {} and another", entry.location.objectid);
            report_name(context, tree, Kind::NameTwice, place, have, "each name once");
        }
    }
}

fn nlink(data: &[u8]) -> Option<u32> {
    InodeItem::of(data).map(|item| item.nlink.get())
}

impl<'a> Claim<'a> {
    fn of_entry(key: &Key, entry: &view::DirEntry<'a>) -> Claim<'a> {
        let (name, location) = (entry.name, entry.location);
        let file_type = entry.file_type;
        if key.kind == kind::DIR_ITEM {
            return Claim::Hashed { dir: key.objectid, name, location, file_type };
        }
        Claim::Indexed { dir: key.objectid, index: key.offset, name, location, file_type }
    }

    /// Calls `take` with what the claim adds and takes away.
    fn terms(&self, seeds: &Seeds, mut take: impl FnMut(Term)) {
        let hash = |words: &[u64], bytes: &[u8]| seeds.hash(words, bytes);
        let entry = |dir, name, at: Key, file_type: u8| {
            hash(&[1, dir, at.objectid, at.kind.into(), at.offset, file_type.into()], name)
        };
        let name_of = |dir, index, name, inode, file_type: u8| {
            hash(&[2, dir, index, inode, file_type.into()], name)
        };
        match *self {
            Claim::Hashed { dir, name, location, file_type } => {
                let hash = entry(dir, name, location, file_type);
                take(Term { pair: Pair::Entry, hash, adds: true });
            }
            Claim::Indexed { dir, index, name, location, file_type } => {
                let hash = entry(dir, name, location, file_type);
                take(Term { pair: Pair::Entry, hash, adds: false });
                if location.kind == kind::INODE_ITEM {
                    let hash = name_of(dir, index, name, location.objectid, file_type);
                    take(Term { pair: Pair::Name, hash, adds: true });
                }
            }
            Claim::Ref { dir, index, name, inode, file_type } => {
                let hash = name_of(dir, index, name, inode, file_type);
                take(Term { pair: Pair::Name, hash, adds: false });
            }
            Claim::Top { .. } => {}
            Claim::Unlinked { inode } => {
                take(Term { pair: Pair::Orphan, hash: hash(&[3, inode], b""), adds: true });
            }
            Claim::Orphan { inode } => {
                take(Term { pair: Pair::Orphan, hash: hash(&[3, inode], b""), adds: false });
            }
        }
    }

    /// What it adds to the sum of its tree.
    pub fn sum(&self, seeds: &Seeds) -> u64 {
        let mut sum = 0u64;
        self.terms(seeds, |term| {
            sum = if term.adds { sum.wrapping_add(term.hash) } else { sum.wrapping_sub(term.hash) };
        });
        sum
    }
}

/// Walks a tree for its claims alone.
struct Claims<'f> {
    id: u64,
    mode: u32,
    take: &'f mut dyn FnMut(Claim<'_>),
}

impl Visitor for Claims<'_> {
    fn leaf(&mut self, leaf: &Leaf<'_>) {
        for (key, data) in leaf.items() {
            if key.objectid != self.id {
                (self.id, self.mode) = (key.objectid, 0);
            }
            if key.kind == kind::INODE_ITEM {
                self.mode = InodeItem::of(data).map_or(0, |item| item.mode.get());
            }
            claims(&key, data, self.mode, self.take);
        }
    }
}

fn walk_claims(context: &Context<'_>, tree: &Tree, mut take: impl FnMut(Claim<'_>)) {
    let mut claims = Claims { id: 0, mode: 0, take: &mut take };
    walk(context, tree, Key::MIN..=Key::MAX, &mut claims);
}

/// A claim kept.
#[derive(Clone, Debug)]
struct Record {
    pair: Pair,
    hash: u64,
    adds: bool,
    dir: u64,
    index: u64,
    inode: u64,
    file_type: u8,
    name: Box<[u8]>,
}

impl Record {
    fn of(claim: &Claim<'_>, term: &Term) -> Record {
        let (dir, index, inode, file_type, name) = match *claim {
            Claim::Hashed { dir, name, location, file_type } => {
                (dir, 0, location.objectid, file_type, name)
            }
            Claim::Indexed { dir, index, name, location, file_type } => {
                (dir, index, location.objectid, file_type, name)
            }
            Claim::Ref { dir, index, name, inode, file_type } => {
                (dir, index, inode, file_type, name)
            }
            Claim::Unlinked { inode } | Claim::Orphan { inode } => (0, 0, inode, 0, &b""[..]),
            Claim::Top { .. } => (0, 0, 0, 0, &b""[..]),
        };
        let Term { pair, hash, adds } = *term;
        Record { pair, hash, adds, dir, index, inode, file_type, name: name.into() }
    }

    /// The name as such, whatever type is told.
    fn untyped(&self) -> (u64, u64, u64, &[u8]) {
        (self.dir, self.index, self.inode, &self.name)
    }

    /// The name for people.
    fn shown(&self) -> String {
        self.name.escape_ascii().to_string()
    }
}

/// The buckets that are not zero, and the claims in them as far as memory goes.
struct Closer {
    seeds: Seeds,
    bad: Vec<bool>,
    records: Vec<Record>,
    records_max: usize,
}

fn bucket(hash: u64) -> usize {
    (hash % BUCKETS as u64) as usize
}

impl Closer {
    fn is_bad(&self, hash: u64) -> bool {
        self.bad.get(bucket(hash)).copied().unwrap_or(false)
    }

    fn take(&mut self, claim: &Claim<'_>) {
        let seeds = self.seeds;
        claim.terms(&seeds, |term| {
            if self.is_bad(term.hash) {
                self.records.push(Record::of(claim, &term));
            }
        });
        while self.records.len() > self.records_max {
            self.narrow();
        }
    }

    /// Gives up half of the buckets: what is in the others is enough to see what is wrong.
    fn narrow(&mut self) {
        let half = self.bad.iter().filter(|bad| **bad).count() / 2;
        let mut left = half;
        for bad in &mut self.bad {
            *bad = *bad && left > 0;
            left -= usize::from(*bad);
        }
        let bad = std::mem::take(&mut self.bad);
        self.records.retain(|it| bad.get(bucket(it.hash)).copied().unwrap_or(false));
        self.bad = bad;
    }

    /// The claims that nothing answers.
    fn unanswered(mut self) -> Vec<Record> {
        self.records.sort_by_key(|it| (it.hash, it.adds));
        let mut left = Vec::new();
        for same in self.records.chunk_by(|a, b| a.hash == b.hash) {
            let adding = same.iter().filter(|it| it.adds).count();
            let taking = same.len() - adding;
            let more = adding.abs_diff(taking);
            let side = same.iter().filter(|it| it.adds == (adding > taking));
            left.extend(side.take(more).cloned());
        }
        left
    }
}

/// Says which names and orphans of a tree do not agree.
pub(super) fn explain(context: &Context<'_>, tree: &Tree) {
    let mut sums = vec![0u64; BUCKETS];
    walk_claims(context, tree, |claim| {
        claim.terms(&context.seeds, |Term { hash, adds, .. }| {
            if let Some(sum) = sums.get_mut(bucket(hash)) {
                *sum = if adds { sum.wrapping_add(hash) } else { sum.wrapping_sub(hash) };
            }
        });
    });
    let bad = sums.iter().map(|sum| *sum != 0).collect();
    let records_max = (context.options.memory_bytes / RECORD_BYTES).max(1);
    let mut closer = Closer { seeds: context.seeds, bad, records: Vec::new(), records_max };
    walk_claims(context, tree, |claim| closer.take(&claim));
    tell(context, tree, &closer.unanswered());
}

/// Names of inodes that differ from an entry in the type only.
fn untyped(left: &[Record], adds: bool) -> HashSet<(u64, u64, u64, &[u8])> {
    let names = left.iter().filter(|it| it.pair == Pair::Name && it.adds == adds);
    names.map(Record::untyped).collect()
}

fn tell(context: &Context<'_>, tree: &Tree, left: &[Record]) {
    let (entries, names) = (untyped(left, true), untyped(left, false));
    for it in left {
        let say = |kind, have: &dyn std::fmt::Display, expect: &str| {
            report_name(context, tree, kind, (it.dir, &it.name), have, expect);
        };
        let location = format_args!("inode or subvolume {} of type {}", it.inode, it.file_type);
        match (it.pair, it.adds) {
            (Pair::Entry, true) => say(Kind::DirItemNoIndex, &location, "the same by index"),
            (Pair::Entry, false) => say(Kind::DirIndexNoItem, &location, "the same by hash"),
            (Pair::Name, true) if names.contains(&it.untyped()) => {
                say(Kind::DirEntryType, &it.file_type, "the type of the inode");
            }
            (Pair::Name, true) => match exists(context, tree, it.inode) {
                Some(false) => say(Kind::DirEntryNoInode, &it.inode, "an inode"),
                _ => say(Kind::DirIndexNoRef, &location, "the same name in the inode"),
            },
            (Pair::Name, false) if entries.contains(&it.untyped()) => {}
            (Pair::Name, false) => {
                let have = format_args!("{} in {} at {}", it.shown(), it.dir, it.index);
                let expect = "the same name in the directory";
                report(context, tree, Kind::InodeRefNoIndex, it.inode, have, expect);
            }
            (Pair::Orphan, true) => {
                report(context, tree, Kind::InodeOrphan, it.inode, "no orphan item", "one");
            }
            (Pair::Orphan, false) => {
                let have = "an orphan item of an inode with links or without an item";
                report(context, tree, Kind::OrphanStale, it.inode, have, "none");
            }
        }
    }
}

/// Whether an inode has an item; `None` when damage hides it.
fn exists(context: &Context<'_>, tree: &Tree, inode: u64) -> Option<bool> {
    let key = Key::new(inode, kind::INODE_ITEM, 0);
    Some(search(context.volume, &tree.root, &key).ok()?.is_some())
}
