//! A walk over a part of a tree of files: items go to the inode that they are of.

use buttress_ondisk::item::InodeItem;
use buttress_ondisk::{Key, kind, objectid};

use super::{Part, extents::Extents, inode::Inode, memo::Known, names};
use crate::{
    context::Context,
    csums::Lookup,
    roots::Tree,
    walk::{Leaf, Subtree, Visitor},
};

/// What is remembered of a subtree while it is read.
#[derive(Clone, Copy, Debug)]
struct Entered {
    inode: Inode,
    sum: u64,
    losses: u64,
}

/// Judges inodes, one after the other.
pub(super) struct Files<'a, 'b> {
    context: &'a Context<'b>,
    tree: &'a Tree,
    lookup: Lookup<'a, 'b>,
    inode: Inode,
    sum: u64,
    /// How often something could not be read.
    losses: u64,
    /// For each subtree being read: how things were when it was entered, if that is of use.
    entered: Vec<Option<Entered>>,
}

impl<'a, 'b> Files<'a, 'b> {
    /// Before the first inode.
    pub fn new(context: &'a Context<'b>, tree: &'a Tree) -> Files<'a, 'b> {
        Files {
            context,
            tree,
            lookup: Lookup::new(context),
            inode: Inode::default(),
            sum: 0,
            losses: 0,
            entered: Vec::new(),
        }
    }

    /// After the last inode.
    pub fn finish(mut self) -> Part {
        self.close();
        Part { sum: self.sum, lost: self.losses > 0 }
    }

    /// Judges the inode whose items have all been seen.
    fn close(&mut self) {
        if self.inode.id != 0 {
            self.inode.judge(self.context, self.tree);
        }
        self.inode = Inode::default();
    }

    fn item(&mut self, key: &Key, data: &[u8]) {
        if !names::is_inode(key.objectid) {
            let seeds = self.context.seeds;
            names::claims(key, data, 0, &mut |claim| {
                self.sum = self.sum.wrapping_add(claim.sum(&seeds));
            });
            return;
        }
        if key.objectid != self.inode.id {
            self.close();
            self.inode = Inode { id: key.objectid, ..Inode::default() };
        }
        let (context, tree) = (self.context, self.tree);
        match key.kind {
            kind::INODE_ITEM => {
                if let Some(item) = InodeItem::of(data) {
                    self.inode.begin(item);
                }
            }
            kind::EXTENT_DATA => {
                let mut extents = Extents { context, tree, lookup: &mut self.lookup };
                extents.item(&mut self.inode, key.offset, data);
                return;
            }
            kind::XATTR_ITEM => return self.inode.xattr(context, tree, data),
            kind::INODE_EXTREF => self.inode.extref(context, tree, key, data),
            kind::DIR_ITEM | kind::DIR_INDEX => names::judge(context, tree, key, data),
            _ => {}
        }
        let (inode, sum) = (&mut self.inode, &mut self.sum);
        names::claims(key, data, inode.mode, &mut |claim| {
            *sum = sum.wrapping_add(claim.sum(&context.seeds));
            inode.claim(&claim);
        });
    }

    /// The subtree and how things are now, for the memo; only nodes, and only what every snapshot would see alike.
    fn known(&self, subtree: &Subtree) -> Option<Known> {
        let of_use = subtree.level > 0 && subtree.whole && objectid::is_subvolume(self.tree.id());
        let (bytenr, generation) = (subtree.ptr.bytenr, subtree.ptr.generation);
        of_use.then_some(Known { bytenr, generation, inode: self.inode })
    }
}

impl Visitor for Files<'_, '_> {
    fn want(&mut self, subtree: &Subtree) -> bool {
        let Some(known) = self.known(subtree) else {
            self.entered.push(None);
            return true;
        };
        if let Some((sum, inode)) = self.context.memo.get(&known) {
            self.sum = self.sum.wrapping_add(sum);
            self.inode = inode;
            return false;
        }
        let (inode, sum, losses) = (self.inode, self.sum, self.losses);
        self.entered.push(Some(Entered { inode, sum, losses }));
        true
    }

    fn leaf(&mut self, leaf: &Leaf<'_>) {
        for (key, data) in leaf.items() {
            self.item(&key, data);
        }
    }

    fn done(&mut self, subtree: &Subtree) {
        let Some(Some(entered)) = self.entered.pop() else { return };
        if entered.losses != self.losses {
            return;
        }
        let (bytenr, generation) = (subtree.ptr.bytenr, subtree.ptr.generation);
        let known = Known { bytenr, generation, inode: entered.inode };
        self.context.memo.add(known, (self.sum.wrapping_sub(entered.sum), self.inode));
    }

    fn lost(&mut self, from: Key, to: Option<Key>) {
        self.losses += 1;
        if from.objectid != self.inode.id {
            self.close();
        }
        // The inode that goes on behind the gap has lost items, too; that of the gap's start is judged no more.
        let id = to.map_or(0, |to| to.objectid);
        self.inode = Inode { id, partial: true, ..self.inode };
    }
}
