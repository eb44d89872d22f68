//! Full quotas: what each group of subvolumes refers to, and what only it has, kept right by each commit.
//!
//! A commit that has settled knows two versions: the last one, and the one that it makes. Of each extent whose references have changed it finds out
//! which trees reached it and which do, and the groups gain and lose its bytes by the difference. Groups are written by the same
//! commit, so what the quota tree says is of the version that it is in; the status item has that version's number, by which Linux knows it too.
//!
//! **What is looked at** ([`Changes`]): extents with records in the log of references, as they are merged into the extent tree. Most are decided by
//! what is seen there. Of the others who has lost them is known, and only who reaches them now is asked (`counting.rs`).
//!
//! **A snapshot** shares all but its root with its source. It is left out of the sets of the commit that takes it, and then gets the source's
//! numbers and limits; both have one block for themselves. Groups of higher levels follow by a formula where they have both, or nothing else, or where
//! the source shared nothing (`edit.rs`, as when a group enters another one).
//!
//! **A deleted subvolume** reaches what it has until that is dropped, and what it shares nobody else has alone until then. Its own group goes with the
//! commit that deletes it (Linux and btrfs-progs accept that): so nobody counts what it loses, which is most of what dropping a snapshot changes. One that is
//! in another group keeps its group until nothing is left of it, as that other group has what it has. Nor does the group of the source of a snapshot go
//! before the snapshot has got its numbers.
//!
//! **Simple quotas** count by who has allocated something (`simple.rs`).
//!
//! **Limits** are held when an operation begins ([`Charges`]).
//!
//! **Locks**: the gate before the groups (`Core::quota`), and these before [`Charges`], which takes no other. A commit holds the groups while it
//! counts, and needs no gate for that.
//!
//! **Where it is not known** (damage, more to go through than a commit may take, a snapshot in a group that may have part of it already) the
//! quotas are marked as inconsistent, as Linux does, until all is counted anew: the worker does that by itself, by a pass over the last commit.

use std::collections::BTreeSet;

use buttress_ondisk::Key;
use buttress_ondisk::item::{RootItem, root_flags};

use crate::refs::usage::Costs;

mod account;
mod alike;
mod bystanders;
mod changes;
mod charges;
mod comparing;
mod counting;
mod edit;
mod groups;
mod simple;

pub use account::{Versions, account};
pub use bystanders::{Bystanders, Remembered};
pub use changes::Changes;
pub use charges::{Charge, Charges};
pub use edit::NewLimits;
pub use groups::{Groups, is_of_subvolume};

/// What was counted in one version, for the commit behind it to go on from.
#[derive(Debug)]
pub struct Counted {
    /// What each subvolume takes.
    pub costs: Costs,
    /// The subvolumes that are deleted.
    pub dead: BTreeSet<u64>,
    /// The generation of the version.
    pub version: u64,
    /// Whether quotas are switched on by that where they are off.
    pub switches_on: bool,
}

/// Whether this filesystem's quotas are counted.
#[derive(Debug, Default)]
pub enum Quota {
    /// It has none, or they are off.
    #[default]
    Off,
    /// By each commit.
    Counted(Groups),
    /// The next commit switches simple ones on.
    Beginning,
    /// They are simple ones, counted by each commit.
    Simple(Groups),
    /// They are on and wrong, and each commit says so. The worker counts them anew.
    Inconsistent(Groups),
    /// The same, and they stay so, whatever they have: on request.
    Left,
    /// The next commit takes them away.
    Leaving,
}

/// Whether a subvolume is deleted and waits to be dropped. A snapshot that has no name yet is not: what nobody can reach in it is taken away first.
pub fn is_deleted(item: &RootItem) -> bool {
    let is_marked = item.flags.get() & root_flags::DEAD != 0;
    item.refs.get() == 0 && (is_marked || Key::from(item.drop_progress) != Key::MIN)
}

impl Quota {
    /// Whether what is allocated counts by who has allocated it, be it from the next commit on.
    pub fn is_simple(&self) -> bool {
        matches!(self, Quota::Beginning | Quota::Simple(_))
    }

    /// Whether each commit counts who has what it changes.
    pub fn is_counted(&self) -> bool {
        matches!(self, Quota::Counted(_))
    }

    /// The groups, where they are known.
    pub fn groups(&mut self) -> Option<&mut Groups> {
        match self {
            Quota::Counted(groups) | Quota::Inconsistent(groups) | Quota::Simple(groups) => {
                Some(groups)
            }
            Quota::Off | Quota::Beginning | Quota::Left | Quota::Leaving => None,
        }
    }

    /// Each commit counts no more, until all is counted anew. Simple ones are never wrong.
    pub fn distrust(&mut self) {
        if let Quota::Counted(groups) | Quota::Inconsistent(groups) = self {
            *self = Quota::Inconsistent(std::mem::take(groups));
        }
    }
}
