//! Leaves that somebody may be left alone with, held against leaves of other trees: what both name, nobody has alone.
//!
//! Leaves that begin at the same key are versions of one, mostly. In the order of their trees they are a chain, of which each is compared with the one before
//! it and the one behind. What neither names is looked for in trees beside the one that is left. Chains have nothing to do with each other: several
//! threads take them, as most of the time goes into reading leaves. What comes of it does not depend on who has done it.

use std::collections::HashMap;

use buttress_ondisk::{Key, TreeBlock, kind};

use super::alike::{Alike, Named, keep_unnamed, named, unlike};
use crate::error::Result;
use crate::hash::Spread;
use crate::refs::RootSet;
use crate::threads;
use crate::tree::{Blocks, Finger, LeafReader, View};

/// Trees on each side of one, by their numbers, whose leaves are compared with one of its leaves.
pub const BESIDE: usize = 2;
/// Fewer extents are looked for one by one sooner than whole leaves are compared.
const FEW: usize = 4;
/// Trees for which fingers are kept in others: each keeps a node in memory.
const SIDES_MAX: usize = 16;
/// So many leaves are worth being handed to another thread.
const PIECE: usize = 32;
/// Pieces that are compared before what comes of them is told: what a leaf names takes up to half of its bytes.
const PIECES: usize = 16;

/// A leaf that some trees have lost who have no groups, and that somebody may be left alone with.
#[derive(Debug)]
pub struct LoneLeaf {
    /// Which version of a leaf it is of: a number by its first key. That others may have the same costs looking for items that are not there.
    pub version_of: u64,
    /// One that reaches it, and whether it is in no group but its own.
    pub tree: u64,
    pub is_plain: bool,
    pub bytenr: u64,
    pub generation: u64,
    /// Those who have lost it.
    pub lost: RootSet,
    /// Whether the next one is a version of the same leaf, and what both name nobody has alone.
    pub is_like_next: bool,
}

/// What leaves are held against.
#[derive(Debug)]
pub struct Comparing<'a, 's> {
    pub blocks: &'a Blocks,
    /// For each tree that is left with a leaf those that its leaves are compared with.
    pub others: &'s HashMap<u64, Vec<View<'a>>>,
    /// Whether one thread does it all, in order.
    pub is_sequential: bool,
}

/// Finds out of which leaf each one is a version, by its first key: what led to it says that, if it is `known`, else the leaf is read. One that is empty goes.
pub fn find_versions(
    blocks: &Blocks,
    lone: &mut Vec<LoneLeaf>,
    known: impl Fn(&LoneLeaf) -> Option<Key> + Sync,
    is_sequential: bool,
) -> Result<()> {
    let first_key = |one: &LoneLeaf| match known(one) {
        Some(key) => Ok(Some(key)),
        None => {
            let leaf = blocks.read(one.bytenr, 0, one.generation, 0)?;
            Ok(leaf.span().map(|(first, _)| first))
        }
    };
    let pieces: Vec<&[LoneLeaf]> = lone.chunks(PIECE).collect();
    let keys = threads::map_unless(is_sequential, &pieces, |piece| {
        piece.iter().map(first_key).collect::<Result<Vec<_>>>()
    })?;
    let mut keys = keys.into_iter().flatten();
    lone.retain_mut(|one| {
        let key = keys.next().flatten();
        one.version_of = key.map_or(0, version_of);
        key.is_some()
    });
    Ok(())
}

fn version_of(Key { objectid, kind, offset }: Key) -> u64 {
    objectid.rotate_left(40) ^ offset.rotate_left(8) ^ u64::from(kind)
}

impl Comparing<'_, '_> {
    /// Tells of each of these, in their order, what it names that somebody may be left alone with.
    pub fn all(
        &self,
        lone: &[LoneLeaf],
        mut found: impl FnMut(&LoneLeaf, &[(Key, u64)]),
    ) -> Result<()> {
        for some in pieces(lone).chunks(PIECES) {
            let named = threads::map_unless(self.is_sequential, some, |piece| self.piece(piece))?;
            let leaves = some.iter().copied().flatten();
            leaves.zip(named.into_iter().flatten()).for_each(|(one, named)| found(one, &named));
        }
        Ok(())
    }

    /// The same of chains, one after the other.
    fn piece(&self, lone: &[LoneLeaf]) -> Result<Vec<Named>> {
        let mut found = Vec::with_capacity(lone.len());
        let mut alike = Alike::default();
        let mut beside = Spread::default();
        let mut leaves = LeafReader::new(self.blocks, kind::EXTENT_DATA);
        let (mut mine, mut others) = (Named::new(), Named::new());
        // The leaf, and the tree of the one before it, if what it names that this one does not is in `rest`.
        let (mut next, mut rest) = (None, Named::new());
        for (number, one) in lone.iter().enumerate() {
            let (leaf, before) = match next.take() {
                Some((leaf, before)) => (leaf, Some(before)),
                None => (leaves.read(one.bytenr, one.generation)?, None),
            };
            let other = lone.get(number + 1).filter(|_| one.is_like_next);
            if let Some(other) = other {
                let leaf_of_other = leaves.read(other.bytenr, other.generation)?;
                alike.differing([&leaf, &leaf_of_other], [&mut mine, &mut others]);
                match before {
                    None => std::mem::swap(&mut rest, &mut mine),
                    Some(_) => keep_both(&mut rest, &mine),
                }
                next = Some((leaf_of_other, one.tree));
            }
            let compared = [before, other.map(|other| other.tree)];
            if beside.len() >= SIDES_MAX {
                beside.clear();
            }
            let trees = beside.entry(one.tree).or_insert_with(|| self.beside(one.tree));
            keep_lonely(&leaf, &mut rest, trees, compared);
            leaves.let_go(leaf);
            found.push(std::mem::take(&mut rest));
            std::mem::swap(&mut rest, &mut others);
        }
        Ok(found)
    }

    /// The trees beside one in which what it is left with is looked for: the nearest ones of either side come first.
    fn beside(&self, tree: u64) -> [Vec<Finger<'_>>; 2] {
        let others = self.others.get(&tree).map_or(&[][..], Vec::as_slice);
        let (before, behind): (Vec<View<'_>>, Vec<_>) =
            others.iter().partition(|other| other.owner() < tree);
        [before, behind].map(|side| side.into_iter().map(Finger::new).collect())
    }
}

/// Takes from `rest`, which a leaf names, what trees beside the one that is left of it name, too, as nobody has the other alone. It was compared with those of two
/// trees, or one; with none, `rest` is all that it names.
fn keep_lonely(
    leaf: &TreeBlock,
    rest: &mut Named,
    others: &mut [Vec<Finger<'_>>; 2],
    compared: [Option<u64>; 2],
) {
    let mut is_known = compared != [None; 2];
    if is_known && rest.is_empty() {
        return;
    }
    let [before, behind] = others;
    // What those behind it do not have is overwritten there, so the nearest one before it has it; and the other way round. So they take turns.
    let [likely, unlikely] =
        if compared[0].is_none() { [before, behind] } else { [behind, before] };
    let (mut likely, mut unlikely) = (likely.iter_mut(), unlikely.iter_mut());
    let by_turns = (0..BESIDE).flat_map(|_| [likely.next(), unlikely.next()]);
    for other in by_turns.flatten() {
        match rest.len() {
            _ if !is_known => (*rest, is_known) = (unlike(leaf, other), true),
            0 => break,
            FEW.. => keep_both(rest, &unlike(leaf, other)),
            // More of them may be in the leaf beside the one that was compared.
            _ if compared.contains(&Some(other.owner())) => {}
            _ => keep_unnamed(rest, other),
        }
    }
    if !is_known {
        *rest = named(leaf);
    }
}

/// Whole chains, so many that each piece is worth a thread.
fn pieces(lone: &[LoneLeaf]) -> Vec<&[LoneLeaf]> {
    let (mut pieces, mut rest) = (Vec::new(), lone);
    while !rest.is_empty() {
        let behind = rest.iter().skip(PIECE - 1).position(|one| !one.is_like_next);
        let (piece, others) = rest.split_at(behind.map_or(rest.len(), |at| at + PIECE));
        pieces.push(piece);
        rest = others;
    }
    pieces
}

/// Leaves what another list of what leaves name has, too; they are in order.
fn keep_both(one: &mut Named, other: &[(Key, u64)]) {
    one.retain(|(key, _)| other.binary_search_by_key(key, |it| it.0).is_ok());
}
