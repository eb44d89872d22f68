//! What is known already of one version: each block's owners, which items have an extent that is shared, and where trees are.
//!
//! Bounded. Each of the five kinds of answers has a tenth of the room, and sets have half of it. Between questions ([`Known::begin`]) what
//! has not been asked for during as many new answers of its kind as half its tenth holds is forgotten, and all sets when they take more than
//! their half. While a question is being answered the owners of leaves are forgotten so, too:
//! each reference leads to a leaf, whose own references are few. Those of nodes are not, as each would be resolved as often as it is
//! met then; nor are sets, which answers in the making refer to. For both there is a bound of its own ([`Known::check`]), far beyond what snapshots
//! and clones come to; who has made up trees that go beyond it is told so.

use buttress_ondisk::Key;

use super::super::{RootSet, RootSets};
use super::alone::Alone;
use crate::error::{Error, Result};
use crate::hash::Spread;
use crate::tree::Root;

/// Bytes that one kept answer takes, about.
const KEPT_BYTES: u64 = 48;
/// The least that is kept.
const BYTES_MIN: u64 = 64 << 10;
/// How much more than between questions one question may take, and what it may take at least.
const QUESTION_FACTOR: u64 = 4;
const QUESTION_MIN: u64 = 4 << 20;

/// Answers by number, in two generations: whoever is asked for comes into the young one.
#[derive(Debug)]
pub(super) struct Kept<T> {
    young: Spread<u64, T>,
    old: Spread<u64, T>,
    /// As many are kept at most, about; those of nodes while a question is answered all of them.
    most: u64,
    forgets: bool,
}

impl<T> Kept<T> {
    fn new(most: u64, forgets: bool) -> Kept<T> {
        Kept { young: Spread::default(), old: Spread::default(), most, forgets }
    }
}

impl<T: Copy> Kept<T> {
    pub fn get(&mut self, number: u64) -> Option<T> {
        if let Some(found) = self.young.get(&number) {
            return Some(*found);
        }
        let found = self.old.remove(&number)?;
        self.young.insert(number, found);
        Some(found)
    }

    pub fn put(&mut self, number: u64, answer: T) {
        self.young.insert(number, answer);
        if self.forgets {
            self.trim();
        }
    }

    /// Forgets the old ones when there are many young ones.
    fn trim(&mut self) {
        if self.young.len() as u64 > self.most / 2 {
            self.old = std::mem::take(&mut self.young);
        }
    }

    fn clear(&mut self) {
        *self = Kept::new(self.most, self.forgets);
    }

    fn len(&self) -> u64 {
        (self.young.len() + self.old.len()) as u64
    }
}

/// Which of 64 items of a leaf that only one tree reaches have an extent that is shared, where that is known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answers {
    known: u64,
    shared: u64,
}

impl Answers {
    /// The number of the answers that item `slot` is among.
    pub fn group(slot: u32) -> u32 {
        slot / u64::BITS
    }

    /// Whether the extent of item `slot` is shared.
    pub fn of(&self, slot: u32) -> Option<bool> {
        let bit = 1 << (slot % u64::BITS);
        (self.known & bit != 0).then_some(self.shared & bit != 0)
    }

    /// Notes one.
    pub fn put(&mut self, slot: u32, shared: bool) {
        let bit = slot % u64::BITS;
        self.known |= 1 << bit;
        self.shared |= u64::from(shared) << bit;
    }

    fn with(self, more: Answers) -> Answers {
        Answers { known: self.known | more.known, shared: self.shared | more.shared }
    }
}

/// The number that the answers of an item are kept by: leaves are at whole sectors, and have fewer items than 64 for each byte of one.
fn answers_at(leaf: u64, slot: u32) -> u64 {
    leaf + u64::from(Answers::group(slot))
}

/// What is known of one version.
#[derive(Debug)]
pub struct Known {
    /// The root tree of the version.
    version: Option<Root>,
    bytes_max: u64,
    question_max: u64,
    /// Whether the version has relocation trees.
    pub(super) relocates: Option<bool>,
    pub(super) alone: Kept<Alone>,
    /// Of leaves.
    leaves: Kept<RootSet>,
    /// Of nodes.
    nodes: Kept<RootSet>,
    /// Where trees are, and where what is left of each begins.
    pub(super) trees: Kept<(Root, Key)>,
    /// Of the items of a leaf, 64 together.
    items: Kept<Answers>,
    /// The sets of trees that were answered. A [`RootSet`] is of use until the next question.
    pub(super) sets: RootSets,
    /// How often all sets were forgotten.
    epoch: u64,
}

impl Known {
    /// Nothing yet, and `bytes_max` bytes at most between questions, 64 KiB at least; while one is answered four times as many,
    /// 4 MiB at least.
    pub fn new(bytes_max: u64) -> Known {
        let question_max = bytes_max.saturating_mul(QUESTION_FACTOR).max(QUESTION_MIN);
        Known::within(bytes_max, question_max)
    }

    /// The same with another bound for one question.
    #[doc(hidden)]
    pub fn within(bytes_max: u64, question_max: u64) -> Known {
        let bytes_max = bytes_max.max(BYTES_MIN);
        let most = bytes_max / 10 / KEPT_BYTES;
        Known {
            version: None,
            bytes_max,
            question_max,
            relocates: None,
            alone: Kept::new(most, true),
            leaves: Kept::new(most, true),
            nodes: Kept::new(most, false),
            trees: Kept::new(most, true),
            items: Kept::new(most, true),
            sets: RootSets::bounded(question_max),
            epoch: 0,
        }
    }

    /// How often all sets were forgotten: those of another number mean nothing.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The sets of trees that the last question was answered with.
    pub fn sets(&self) -> &RootSets {
        &self.sets
    }

    /// Bytes of memory that it takes, about.
    pub fn bytes(&self) -> u64 {
        let kept = self.alone.len() + self.leaves.len() + self.nodes.len() + self.trees.len();
        let kept = kept + self.items.len();
        kept * KEPT_BYTES + self.sets.bytes()
    }

    /// The trees that reach a block, where that is known.
    pub(super) fn reach(&mut self, bytenr: u64) -> Option<RootSet> {
        self.leaves.get(bytenr).or_else(|| self.nodes.get(bytenr))
    }

    /// Keeps which trees reach a block.
    pub(super) fn put_reach(&mut self, bytenr: u64, level: u8, trees: RootSet) {
        let kept = if level == 0 { &mut self.leaves } else { &mut self.nodes };
        kept.put(bytenr, trees);
    }

    /// What is known of item `slot` of a leaf, and of those beside it that have the same number but for the lowest six bits.
    pub(super) fn answers(&mut self, leaf: u64, slot: u32) -> Answers {
        self.items.get(answers_at(leaf, slot)).unwrap_or_default()
    }

    /// Keeps these, too.
    pub(super) fn put_answers(&mut self, leaf: u64, slot: u32, more: Answers) {
        let answers = self.answers(leaf, slot).with(more);
        self.items.put(answers_at(leaf, slot), answers);
    }

    /// Refuses to go on with a question that takes too much; it has come to the block at `bytenr`.
    pub(super) fn check(&self, bytenr: u64) -> Result<()> {
        let nodes = self.nodes.len() * KEPT_BYTES;
        if self.sets.is_full() || nodes > self.question_max {
            return Err(Error::memory("who reaches an extent", format_args!("block {bytenr}")));
        }
        Ok(())
    }

    /// What is asked from now on is about the version of this root tree.
    pub(super) fn is_of(&mut self, version: Root) {
        if self.version.replace(version) != Some(version) {
            let (bytes_max, question_max) = (self.bytes_max, self.question_max);
            *self = Known { version: Some(version), ..Known::within(bytes_max, question_max) };
        }
    }

    /// A question begins: what is too much is forgotten.
    pub(super) fn begin(&mut self) {
        self.alone.trim();
        self.leaves.trim();
        self.nodes.trim();
        self.trees.trim();
        self.items.trim();
        if self.sets.is_full() || self.sets.bytes() > self.bytes_max / 2 {
            self.leaves.clear();
            self.nodes.clear();
            self.sets.clear();
            self.epoch += 1;
        }
    }
}
