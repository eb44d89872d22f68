//! Who reaches each data extent: the extent tree from its start to its end, each extent with all its references.
//!
//! Blocks that trees lead to are looked at in passing: each has its item there, with a reference for each block that leads to it.

use buttress_ondisk::item::extent_flags;
use buttress_ondisk::view::{InlineRef, inline_refs, keyed_ref};
use buttress_ondisk::{Key, kind, objectid};

use super::blocks::{AllReached, Reached, set_of};
use super::owned::{Owned, Place};
use super::upwards::Upwards;
use super::{Bytes, Shared};
use crate::error::{Error, Result};
use crate::refs::root_set::RootSet;
use crate::tree::{Blocks, Root, View};

/// References that take as long as reading a block, about.
const REFS_OF_BLOCK: u64 = 64;

/// An extent item of which references may follow.
#[derive(Clone, Copy, Debug)]
struct Open {
    key: Key,
    /// Bytes of a data extent; 0 of what is not counted.
    len: u64,
    /// References that it says it has.
    refs: u64,
    /// References met so far.
    met: u64,
    set: RootSet,
}

/// The pass over the extent tree.
#[derive(Debug)]
pub(super) struct Extents {
    root: Root,
    next: Key,
    open: Option<Open>,
    met: u64,
    lookup: Lookup,
    /// The next leaf, and the next node, that the extent tree must have.
    due: [usize; 2],
    /// The trees of which another one reaches some block.
    mixed: Option<RootSet>,
}

/// Finds out who reaches a leaf.
#[derive(Debug)]
pub(super) struct Lookup {
    pub reached: AllReached,
    pub owned: Owned,
    pub upwards: Upwards,
}

impl Lookup {
    /// The trees that reach the leaf at `bytenr`; `None` when none does.
    pub fn leaf(&mut self, cx: &mut Context<'_>, bytenr: u64) -> Result<Option<RootSet>> {
        if bytenr < self.reached.end {
            return Ok(set_of(&self.reached.leaves, bytenr));
        }
        let set = self.upwards.leaf(cx, &mut self.owned, &self.reached.nodes, bytenr)?;
        Ok((!set.is_empty()).then_some(set))
    }
}

/// What every part of the pass needs at hand.
pub(super) struct Context<'a> {
    pub shared: &'a mut Shared,
    pub blocks: &'a Blocks,
    pub extents: View<'a>,
}

fn wrong(what: &'static str, key: &Key) -> Error {
    Error::inconsistent(objectid::EXTENT_TREE, what, key)
}

impl Extents {
    pub(super) fn new(root: Root, reached: AllReached) -> Extents {
        let lookup = Lookup { reached, owned: Owned::default(), upwards: Upwards::default() };
        Extents { root, next: Key::MIN, open: None, met: 0, lookup, due: [0, 0], mixed: None }
    }

    /// All sets that it has.
    pub(super) fn sets(&mut self) -> impl Iterator<Item = &mut RootSet> {
        self.lookup.upwards.forget();
        let reached = &mut self.lookup.reached;
        let blocks = reached.leaves.iter_mut().chain(&mut reached.nodes).map(|one| &mut one.set);
        let open = self.open.iter_mut().map(|open| &mut open.set);
        blocks.chain(open).chain(&mut self.mixed)
    }

    /// Where it is.
    pub(super) fn at(&self) -> u64 {
        self.next.objectid
    }

    /// Reads some leaves of the extent tree; whether there are more.
    pub(super) fn step(
        &mut self,
        shared: &mut Shared,
        blocks: &Blocks,
        budget: usize,
    ) -> Result<bool> {
        let extents = View::new(blocks, objectid::EXTENT_TREE, self.root);
        let mut cx = Context { shared, blocks, extents };
        let mut items = extents.range(self.next, Key::MAX);
        let (mut leaf, mut read, before) = (0, 0, self.met);
        let reads = self.lookup.owned.reads;
        while let Some(item) = items.next()? {
            let key = item.key();
            if leaf != item.leaf().bytenr() {
                leaf = item.leaf().bytenr();
                read += 1;
            }
            let others = self.lookup.owned.reads - reads;
            let spent = read + others + (self.met - before) / REFS_OF_BLOCK;
            if spent > budget.max(1) as u64 && key > self.next {
                self.next = key;
                return Ok(true);
            }
            self.item(&mut cx, &key, item.data())?;
        }
        self.close(&mut cx)?;
        self.require_none_before(u64::MAX)?;
        Ok(false)
    }

    fn item(&mut self, cx: &mut Context<'_>, key: &Key, data: &[u8]) -> Result<()> {
        match key.kind {
            kind::EXTENT_ITEM | kind::METADATA_ITEM => {
                self.close(cx)?;
                self.begin(cx, key, data)
            }
            kind::TREE_BLOCK_REF
            | kind::SHARED_BLOCK_REF
            | kind::EXTENT_DATA_REF
            | kind::SHARED_DATA_REF => {
                let one = keyed_ref(key, data).ok_or_else(|| wrong("a short reference", key))?;
                self.reference(cx, key, &one)
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, cx: &mut Context<'_>, key: &Key, data: &[u8]) -> Result<()> {
        let (head, _, refs) =
            inline_refs(key, data).ok_or_else(|| wrong("an extent item is too short", key))?;
        let block =
            key.kind == kind::METADATA_ITEM || head.flags.get() & extent_flags::TREE_BLOCK != 0;
        let count = head.refs.get();
        if block {
            self.block(cx, key, count)?;
        }
        let len = if block { 0 } else { key.offset };
        self.open = Some(Open { key: *key, len, refs: count, met: 0, set: RootSet::EMPTY });
        for one in refs {
            self.reference(cx, key, &one)?;
        }
        Ok(())
    }

    /// All references of an extent are met.
    fn close(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        if open.met != open.refs {
            return Err(wrong("the references of an extent do not add up", &open.key));
        }
        if open.len > 0 && !open.set.is_empty() {
            let bytes = Bytes { data: open.len, metadata: 0 };
            *cx.shared.costs.entry(open.set).or_default() += bytes;
        }
        Ok(())
    }

    fn reference(&mut self, cx: &mut Context<'_>, key: &Key, one: &InlineRef) -> Result<()> {
        let open = self.open.filter(|open| open.key.objectid == key.objectid);
        let mut open = open.ok_or_else(|| wrong("a reference without its extent", key))?;
        open.met = open.met.saturating_add(one.count());
        self.met += 1;
        let more = match *one {
            _ if open.len == 0 => RootSet::EMPTY,
            InlineRef::ExtentData { root, objectid, offset, count } => {
                let place = Place { ino: objectid, offset, bytenr: key.objectid, len: open.len };
                self.by_tree(cx, key, root, &place, count)?
            }
            InlineRef::SharedData { parent, .. } => match self.lookup.leaf(cx, parent)? {
                Some(set) => set,
                None if cx.shared.others => RootSet::EMPTY,
                None => return Err(wrong("a reference of a leaf that no subvolume has", key)),
            },
            _ => RootSet::EMPTY,
        };
        open.set = cx.shared.sets.union(open.set, more);
        self.open = Some(open);
        Ok(())
    }

    /// Who reaches the leaves in which tree `root` refers to an extent.
    fn by_tree(
        &mut self,
        cx: &mut Context<'_>,
        key: &Key,
        root: u64,
        place: &Place,
        count: u32,
    ) -> Result<RootSet> {
        if !objectid::is_subvolume(root) {
            return Ok(RootSet::EMPTY);
        }
        let Some(tree) = cx.shared.trees.get(&root).copied() else {
            return Err(wrong("a reference of a tree that is not there", key));
        };
        let mixed = *self.mixed.get_or_insert_with(|| mixed(cx.shared));
        if !cx.shared.sets.contains(mixed, root) {
            return Ok(cx.shared.sets.single(root));
        }
        let lookup = &mut self.lookup;
        let found = lookup.find(cx, &tree, place, count)?;
        found.ok_or_else(|| wrong("a reference of a tree that does not have it", key))
    }

    /// A tree block: what leads to it must be what refers to it.
    fn block(&mut self, cx: &Context<'_>, key: &Key, refs: u64) -> Result<()> {
        self.require_none_before(key.objectid)?;
        let reached = &self.lookup.reached;
        for (list, due) in [&reached.leaves, &reached.nodes].into_iter().zip(&mut self.due) {
            let Some(one) = list.get(*due).filter(|one| one.bytenr == key.objectid) else {
                continue;
            };
            *due += 1;
            let parents = u64::from(one.parents);
            if refs < parents || refs > parents && !cx.shared.others {
                let what = "a tree block has not as many references as blocks lead to it";
                return Err(wrong(what, key));
            }
        }
        Ok(())
    }

    /// No block that a tree leads to lies before `bytenr` and was not met.
    fn require_none_before(&self, bytenr: u64) -> Result<()> {
        let reached = &self.lookup.reached;
        let missing = |list: &[Reached], due: usize| {
            list.get(due).filter(|one| one.bytenr < bytenr).map(|one| one.bytenr)
        };
        let [leaf, node] = self.due;
        match missing(&reached.leaves, leaf).or(missing(&reached.nodes, node)) {
            None => Ok(()),
            Some(bytenr) => Err(Error::inconsistent(
                objectid::EXTENT_TREE,
                "a tree block has no extent item",
                bytenr,
            )),
        }
    }
}

/// The trees that share some block with others.
fn mixed(shared: &mut Shared) -> RootSet {
    let mut all = RootSet::EMPTY;
    for set in shared.costs.keys() {
        if shared.sets.len(*set) > 1 {
            all = shared.sets.union(all, *set);
        }
    }
    all
}
