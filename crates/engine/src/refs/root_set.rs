//! Sets of trees, each kept once.
//!
//! Who reaches a block is a set of trees, and most blocks of a filesystem share a few of these sets. So a set is a small
//! number ([`RootSet`]): equal sets are the same number, and comparing, copying and storing one costs nothing, however many
//! snapshots it has.
//!
//! A set is a binary trie over the trees' ids, 64 of them in a word. Each node of a trie is kept once, too: sets that
//! differ in a few trees share all other nodes. A union costs what differs between the two, and is remembered. Ten thousand
//! sets, each with one snapshot more than the one before, take a few nodes each, not ten thousand numbers.
//!
//! What holds: nodes are never changed, and a trie has one form only. A fork has two sides that are not empty, and a word
//! has a bit at least; so equal sets are made of equal nodes.
//!
//! Memory grows with the nodes, some hundred bytes each ([`RootSets::bytes`]), and is given back only with the whole table
//! ([`RootSets::clear`]): whoever owns it forgets all numbers of sets with it.
//!
//! **Bounded** ([`RootSets::bounded`]): snapshots share blocks in few ways; trees that somebody has made up may in as many ways as they have
//! blocks. A table that is full makes no new nodes and says so ([`RootSets::is_full`]). What it answers then is wrong: whoever has asked
//! looks before he uses it, and ends with an error.

use std::collections::HashMap;

use crate::hash::Spread;

/// A set of trees in a [`RootSets`]; of no use with another one, nor after [`RootSets::clear`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RootSet(u32);

impl RootSet {
    /// No tree.
    pub const EMPTY: RootSet = RootSet(0);

    /// Its number in its [`RootSets`].
    pub fn number(self) -> u32 {
        self.0
    }

    /// Whether it has no tree.
    pub fn is_empty(self) -> bool {
        self == RootSet::EMPTY
    }
}

/// Ids of trees in a word.
const WORD: u64 = 64;
/// Results that are remembered at most, a power of two: a later one takes the place of an earlier one.
const REMEMBERED: usize = 1 << 14;
/// Bytes of a node, in the list and in the table, about.
const NODE_BYTES: u64 = 120;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Node {
    /// Trees `word * 64 ..`, those that have their bit.
    Word { word: u64, bits: u64 },
    /// Words that agree above `bit`: on one side those that have it clear, on the other those that have it set.
    Fork { prefix: u64, bit: u32, clear: RootSet, set: RootSet, trees: u64 },
}

/// Two sets and their union.
type Union = (RootSet, RootSet, RootSet);

/// All sets of trees that somebody has asked for.
#[derive(Debug)]
pub struct RootSets {
    /// By number less one.
    nodes: Vec<Node>,
    numbers: HashMap<Node, RootSet>,
    /// The sets of one tree that were asked for.
    singles: Spread<u64, RootSet>,
    /// Unions, by their parts.
    unions: Vec<Union>,
    bytes_max: u64,
    is_full: bool,
}

impl Default for RootSets {
    fn default() -> RootSets {
        RootSets::bounded(u64::MAX)
    }
}

impl RootSets {
    /// None yet, and so many bytes of memory for them.
    pub fn bounded(bytes_max: u64) -> RootSets {
        let (nodes, unions) = (Vec::new(), Vec::new());
        let (numbers, singles) = (HashMap::new(), Spread::default());
        RootSets { nodes, numbers, singles, unions, bytes_max, is_full: false }
    }

    /// Whether there was no room for a set: what was answered since is wrong.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// The set of one tree.
    pub fn single(&mut self, tree: u64) -> RootSet {
        if let Some(known) = self.singles.get(&tree) {
            return *known;
        }
        let single = self.word(tree / WORD, 1 << (tree % WORD));
        // One that is remembered is a node, so these take no more room.
        if !single.is_empty() {
            self.singles.insert(tree, single);
        }
        single
    }

    /// The set of these trees, which are sorted for it.
    pub fn of(&mut self, trees: &mut [u64]) -> RootSet {
        if let [tree] = *trees {
            return self.single(tree);
        }
        trees.sort_unstable();
        let words = trees.chunk_by(|one, other| one / WORD == other / WORD);
        let mut sets: Vec<RootSet> = words
            .map(|trees| {
                let bits = trees.iter().fold(0, |bits, tree| bits | 1 << (tree % WORD));
                self.word(trees.first().map_or(0, |tree| tree / WORD), bits)
            })
            .collect();
        // Neighbours are united first: that leaves no nodes behind that nobody uses.
        while sets.len() > 1 {
            sets = sets
                .chunks(2)
                .map(|pair| match *pair {
                    [one, other] => self.union(one, other),
                    _ => pair.first().copied().unwrap_or_default(),
                })
                .collect();
        }
        sets.first().copied().unwrap_or_default()
    }

    /// The trees of either set.
    pub fn union(&mut self, one: RootSet, other: RootSet) -> RootSet {
        if one == other || other.is_empty() {
            return one;
        }
        if one.is_empty() {
            return other;
        }
        let (one, other) = (one.min(other), one.max(other));
        let known = place(one, other, self.unions.len());
        if let Some((a, b, both)) = self.unions.get(known)
            && (*a, *b) == (one, other)
        {
            return *both;
        }
        let both = self.unite(one, other);
        self.remember_more();
        let place = place(one, other, self.unions.len());
        if let Some(kept) = self.unions.get_mut(place) {
            *kept = (one, other, both);
        }
        both
    }

    /// Has as many unions remembered as there are sets, or more, if there is room: a few sets take no large table.
    fn remember_more(&mut self) {
        let sets = self.nodes.len();
        if self.unions.len() >= sets.min(REMEMBERED) {
            return;
        }
        let more = (2 * sets).next_power_of_two().clamp(64, REMEMBERED);
        if self.bytes() + (more * size_of::<Union>()) as u64 <= self.bytes_max {
            self.unions = vec![Union::default(); more];
        }
    }

    /// The set without `tree`: the same number when it is not in it.
    pub fn without(&mut self, from: RootSet, tree: u64) -> RootSet {
        match self.node(from) {
            None => from,
            Some(Node::Word { word, bits }) if word == tree / WORD => {
                self.word(word, bits & !(1 << (tree % WORD)))
            }
            Some(Node::Word { .. }) => from,
            Some(Node::Fork { prefix, bit, clear, set, .. }) => {
                if !belongs(tree / WORD, prefix, bit) {
                    return from;
                }
                // As deep as a number of a word has bits.
                let (clear, set) = match is_set(tree / WORD, bit) {
                    false => (self.without(clear, tree), set),
                    true => (clear, self.without(set, tree)),
                };
                self.fork(prefix, bit, clear, set)
            }
        }
    }

    /// The trees of `from` that are not in `other`.
    pub fn difference(&mut self, from: RootSet, other: RootSet) -> RootSet {
        if other.is_empty() || from.is_empty() {
            return from;
        }
        let mut rest: Vec<u64> =
            self.trees(from).filter(|tree| !self.contains(other, *tree)).collect();
        self.of(&mut rest)
    }

    /// Whether all trees of `part` are in `whole`.
    pub fn is_subset(&mut self, part: RootSet, whole: RootSet) -> bool {
        self.union(part, whole) == whole
    }

    /// Whether `tree` is in the set.
    pub fn contains(&self, mut set: RootSet, tree: u64) -> bool {
        while let Some(node) = self.node(set) {
            match node {
                Node::Word { word, bits } => {
                    return word == tree / WORD && bits & 1 << (tree % WORD) != 0;
                }
                Node::Fork { prefix, bit, .. } if !belongs(tree / WORD, prefix, bit) => break,
                Node::Fork { bit, clear, set: other, .. } => {
                    set = if is_set(tree / WORD, bit) { other } else { clear };
                }
            }
        }
        false
    }

    /// How many trees are in it.
    pub fn len(&self, set: RootSet) -> u64 {
        match self.node(set) {
            None => 0,
            Some(Node::Word { bits, .. }) => u64::from(bits.count_ones()),
            Some(Node::Fork { trees, .. }) => trees,
        }
    }

    /// The only tree that is in it; `None` when there are none or several.
    pub fn only(&self, set: RootSet) -> Option<u64> {
        if self.len(set) == 1 { self.trees(set).next() } else { None }
    }

    /// The trees that are in it, ascending.
    pub fn trees(&self, set: RootSet) -> impl Iterator<Item = u64> + '_ {
        let mut rest = vec![set];
        let (mut word, mut bits) = (0, 0u64);
        std::iter::from_fn(move || {
            while bits == 0 {
                match self.node(rest.pop()?)? {
                    Node::Word { word: next, bits: all } => (word, bits) = (next, all),
                    Node::Fork { clear, set, .. } => rest.extend([set, clear]),
                }
            }
            let tree = word * WORD + u64::from(bits.trailing_zeros());
            bits &= bits - 1;
            Some(tree)
        })
    }

    /// Bytes of memory that it takes, about.
    pub fn bytes(&self) -> u64 {
        let remembered = size_of::<Union>() * self.unions.len();
        self.nodes.len() as u64 * NODE_BYTES + remembered as u64
    }

    /// Bytes of memory that it may take.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Forgets all sets: their numbers mean nothing any more, but for [`RootSet::EMPTY`].
    pub fn clear(&mut self) {
        *self = RootSets::bounded(self.bytes_max);
    }

    fn node(&self, set: RootSet) -> Option<Node> {
        self.nodes.get((set.0 as usize).checked_sub(1)?).copied()
    }

    fn number(&mut self, node: Node) -> RootSet {
        if let Some(known) = self.numbers.get(&node) {
            return *known;
        }
        let next = u32::try_from(self.nodes.len() + 1).ok();
        let Some(next) = next.filter(|_| self.bytes() < self.bytes_max) else {
            self.is_full = true;
            return RootSet::EMPTY;
        };
        let next = RootSet(next);
        self.nodes.push(node);
        self.numbers.insert(node, next);
        next
    }

    fn word(&mut self, word: u64, bits: u64) -> RootSet {
        if bits == 0 { RootSet::EMPTY } else { self.number(Node::Word { word, bits }) }
    }

    fn fork(&mut self, prefix: u64, bit: u32, clear: RootSet, set: RootSet) -> RootSet {
        if clear.is_empty() {
            return set;
        }
        if set.is_empty() {
            return clear;
        }
        let trees = self.len(clear) + self.len(set);
        self.number(Node::Fork { prefix, bit, clear, set, trees })
    }

    /// The union of two sets that have trees. As deep as a number of a word has bits.
    fn unite(&mut self, one: RootSet, other: RootSet) -> RootSet {
        let (Some(a), Some(b)) = (self.node(one), self.node(other)) else { return one };
        let ((at, low), (to, high)) = (a.place(), b.place());
        match (a, b) {
            (Node::Word { word, bits }, Node::Word { word: same, bits: more }) if word == same => {
                self.word(word, bits | more)
            }
            (Node::Fork { clear, set, .. }, Node::Fork { clear: c, set: s, .. })
                if (at, low) == (to, high) =>
            {
                let (clear, set) = (self.union(clear, c), self.union(set, s));
                self.fork(at, low - 1, clear, set)
            }
            (Node::Fork { prefix, bit, clear, set, .. }, _)
                if low > high && belongs(to, prefix, bit) =>
            {
                self.unite_side(prefix, bit, (clear, set), (other, to))
            }
            (_, Node::Fork { prefix, bit, clear, set, .. })
                if high > low && belongs(at, prefix, bit) =>
            {
                self.unite_side(prefix, bit, (clear, set), (one, at))
            }
            _ => self.join((one, at), (other, to)),
        }
    }

    /// The union of a fork and a set that belongs to one side of it, of which the number of a word is told.
    fn unite_side(
        &mut self,
        prefix: u64,
        bit: u32,
        (clear, set): (RootSet, RootSet),
        (other, word): (RootSet, u64),
    ) -> RootSet {
        let (clear, set) = match is_set(word, bit) {
            false => (self.union(clear, other), set),
            true => (clear, self.union(set, other)),
        };
        self.fork(prefix, bit, clear, set)
    }

    /// The union of two sets, neither of which belongs to a side of the other.
    fn join(&mut self, one: (RootSet, u64), other: (RootSet, u64)) -> RootSet {
        let bit = (one.1 ^ other.1).checked_ilog2().unwrap_or(0);
        let (clear, set) = if is_set(one.1, bit) { (other, one) } else { (one, other) };
        self.fork(above(set.1, bit), bit, clear.0, set.0)
    }
}

impl Node {
    /// Where in the trie it is: a word's number, and how many of its lowest bits are open.
    fn place(&self) -> (u64, u32) {
        match *self {
            Node::Word { word, .. } => (word, 0),
            Node::Fork { prefix, bit, .. } => (prefix, bit + 1),
        }
    }
}

fn is_set(word: u64, bit: u32) -> bool {
    word >> bit & 1 == 1
}

/// The bits of `word` above `bit`.
fn above(word: u64, bit: u32) -> u64 {
    word >> bit >> 1 << bit << 1
}

/// Whether a word is below the fork of `prefix` at `bit`.
fn belongs(word: u64, prefix: u64, bit: u32) -> bool {
    above(word, bit) == prefix
}

/// Where the union of two sets is remembered, of so many places, a power of two.
fn place(one: RootSet, other: RootSet, places: usize) -> usize {
    let both = u64::from(one.0) << 32 | u64::from(other.0);
    (both.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize & places.wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn made(sets: &mut RootSets, trees: &BTreeSet<u64>) -> RootSet {
        trees.iter().fold(RootSet::EMPTY, |all, tree| {
            let one = sets.single(*tree);
            sets.union(all, one)
        })
    }

    /// Ids as they are: near each other, far apart, and at both ends.
    fn some_id(at: &mut u64) -> u64 {
        *at = at.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let number = *at >> 33;
        match number % 8 {
            0 => 5,
            1 => u64::MAX - number % 256,
            2 => number << 20,
            3 => 1 << (number % 64),
            _ => 256 + number % 500,
        }
    }

    #[test]
    fn sets_are_what_their_trees_are_and_equal_ones_are_one() {
        let (mut sets, mut at) = (RootSets::default(), 7);
        let mut known: Vec<(BTreeSet<u64>, RootSet)> = vec![(BTreeSet::new(), RootSet::EMPTY)];
        for round in 0..3000 {
            let (a, b) = (some_id(&mut at) as usize, some_id(&mut at) as usize);
            let ((some, one), (more, other)) = (&known[a % known.len()], &known[b % known.len()]);
            let tree = some_id(&mut at);
            let (wanted, found) = match round % 3 {
                0 => (some | more, sets.union(*one, *other)),
                1 => {
                    let single = sets.single(tree);
                    (some | &BTreeSet::from([tree]), sets.union(single, *one))
                }
                _ => {
                    let tree = *some.iter().nth(round % (some.len() + 1)).unwrap_or(&tree);
                    let less = some.iter().copied().filter(|one| *one != tree).collect();
                    (less, sets.without(*one, tree))
                }
            };
            assert!(sets.trees(found).eq(wanted.iter().copied()));
            let less = sets.difference(*one, *other);
            assert!(sets.trees(less).eq((some - more).iter().copied()));
            assert_eq!(sets.len(found), wanted.len() as u64);
            assert_eq!(sets.only(found).is_some(), wanted.len() == 1);
            assert_eq!(sets.contains(found, tree), wanted.contains(&tree));
            assert_eq!(sets.is_subset(*one, found), some.is_subset(&wanted));
            assert_eq!(made(&mut sets, &wanted), found, "one form only");
            let mut trees: Vec<u64> = wanted.iter().copied().rev().collect();
            assert_eq!(sets.of(&mut trees), found);
            for (trees, set) in &known {
                assert_eq!(*trees == wanted, *set == found);
            }
            known.push((wanted, found));
            if known.len() > 40 {
                known.swap_remove(a % 41);
            }
        }
    }

    #[test]
    fn a_set_with_one_more_tree_takes_a_few_nodes() {
        let mut sets = RootSets::default();
        let mut all = RootSet::EMPTY;
        for tree in 256..10_256 {
            let one = sets.single(tree);
            all = sets.union(all, one);
        }
        assert_eq!(sets.len(all), 10_000);
        assert!(sets.nodes.len() < 100_000, "{} nodes", sets.nodes.len());
        let before = sets.nodes.len();
        assert_eq!(sets.union(all, all), all);
        assert_eq!(sets.without(all, 10_256), all);
        assert_eq!(sets.nodes.len(), before);
    }

    /// Whatever is asked, it takes no more memory than it may; and it says that it was too much.
    #[test]
    fn a_table_that_is_full_says_so_and_does_not_grow() {
        let room = 1 << 20;
        let (mut sets, mut at) = (RootSets::bounded(room), 3);
        let mut known = vec![RootSet::EMPTY];
        for _ in 0..100_000 {
            let (a, b) = (some_id(&mut at) as usize, some_id(&mut at) as usize);
            let single = sets.single(some_id(&mut at));
            let both = sets.union(known[a % known.len()], known[b % known.len()]);
            let more = sets.union(both, single);
            known.push(more);
            assert!(sets.bytes() <= room + NODE_BYTES, "{}", sets.bytes());
        }
        assert!(sets.is_full());
        sets.clear();
        assert!(!sets.is_full());
        let one = sets.single(256);
        assert_eq!(sets.only(one), Some(256));
    }
}
