//! Quota groups are made, put into each other and taken apart while a sequence runs; what they count is compared all the time.

use std::collections::BTreeMap;

use buttress::{Errno, Filesystem, NewLimits, Node};

use super::super::Op;
use super::super::rng::Rng;
use super::{Result, Runner, compare, engine, fail};
use crate::model::QuotaMode;

/// Groups of levels 1 to 3, so many of each.
const NUMBERS: u64 = 3;
/// Leaves that a deletion may split: an orphan item comes, and an extent is cut in two.
const SPLITS: u64 = 2;
/// A node that splits leaves so many children to each half, at least.
const CHILDREN: u64 = 32;
/// Nodes above a leaf; with the root they may all split by one leaf.
const NODES_ABOVE: u64 = 3;

/// What groups had when they were changed last, and what has happened since that nobody is refused for.
#[derive(Debug, Default)]
pub(super) struct Since {
    /// What they referred to, and had for themselves.
    had: BTreeMap<u64, (u64, u64)>,
    /// Operations that delete something, or part of it.
    deletions: u64,
    /// Subvolumes, each of which has a root from the beginning.
    roots: u64,
    /// Blocks that were copied before the filesystem was opened last.
    copied_before: u64,
    /// [`buttress::Stats::blocks_copied`] at the beginning, or when it was opened last.
    copied_from: u64,
}

impl Since {
    /// Blocks by which a group may have grown that had no room. Who deletes is let in always: he adds an item or two, each of which may split a leaf, and the
    /// nodes above some of these. With simple quotas he has also allocated the copies of what snapshots have, too: no more than all copies. (Other copies are
    /// charged, and leave less for these.)
    fn slack(&self, copied: u64) -> u64 {
        let leaves = self.deletions * SPLITS;
        let nodes = if leaves == 0 { 0 } else { leaves / CHILDREN + NODES_ABOVE };
        self.roots + leaves + nodes + copied
    }
}

/// Switches quotas on or off.
pub(super) fn switch(fs: &Filesystem, mode: QuotaMode) -> buttress::Result<()> {
    match mode {
        QuotaMode::Off => fs.disable_quotas(),
        QuotaMode::Full => fs.count_quotas(|_| true),
        QuotaMode::Simple => fs.enable_simple_quotas(),
    }
}

impl Runner {
    /// Whether there are quotas, and nobody else's filesystem has them.
    pub(super) fn has_quotas(&self) -> bool {
        self.model.quotas != QuotaMode::Off && self.disk.is_some()
    }

    pub(super) fn switch_quotas(&mut self, mode: QuotaMode) -> Result<()> {
        let refusal = self.model.refuse_quotas(mode);
        let answer = switch(self.fs(), mode);
        if self.judge(&refusal, true, answer)?.is_none() {
            return Ok(());
        }
        self.model.quotas = mode;
        if self.has_quotas() {
            self.begin_anew()?;
        }
        self.check_quotas()
    }

    /// An operation is done.
    pub(super) fn note_for_limits(&mut self, op: &Op) {
        let since = &mut self.since;
        match op {
            Op::Subvolume { .. } => since.roots += 1,
            // Files without names go from it before it has one.
            Op::Snapshot { .. } => {
                (since.roots, since.deletions) = (since.roots + 1, since.deletions + 1)
            }
            // A file may go for which there is another one.
            Op::Unlink { .. } | Op::Rmdir { .. } | Op::Rename { .. } | Op::Release { .. } => {
                since.deletions += 1
            }
            Op::Truncate { .. } | Op::Allocate { .. } | Op::RemoveXattr { .. } => {
                since.deletions += 1
            }
            Op::DeleteSubvolume { .. } | Op::Clean => since.deletions += 1,
            _ => {}
        }
    }

    /// Closing it ends the count of blocks that were copied.
    pub(super) fn note_close_for_limits(&mut self) -> Result<()> {
        if self.has_quotas() {
            engine("commit", self.fs().commit())?;
            self.since.copied_before += self.fs().stats().blocks_copied - self.since.copied_from;
            self.since.copied_from = 0;
            // Held files without names go with it, and what is left of them with the next open.
            self.since.deletions += self.model.handles.len() as u64;
        }
        Ok(())
    }

    fn begin_anew(&mut self) -> Result<()> {
        let had = compare::Quotas::of(self.fs())?.usage;
        let copied_from = self.fs().stats().blocks_copied;
        self.since = Since { had, copied_from, ..Since::default() };
        Ok(())
    }

    /// What a group had. One that has come since has the limit of what it is a snapshot of.
    fn had(&self, id: u64, quotas: &compare::Quotas) -> u64 {
        let had = |id: &u64| self.since.had.get(id).map(|had| had.0);
        let alike = quotas.limits.iter().filter(|(_, most)| quotas.limits.get(&id) == Some(most));
        had(&id).or_else(|| alike.filter_map(|(id, _)| had(id)).max()).unwrap_or(0)
    }

    /// Some changes of groups, as the number of operations says.
    pub(super) fn change_groups(&mut self) -> Result<()> {
        if !self.has_quotas() {
            return Ok(());
        }
        let mut rng = Rng::new(self.counts.done ^ 0x9_0a75);
        for _ in 0..rng.below(4) {
            self.change_group(&mut rng)?;
        }
        self.begin_anew()
    }

    /// No group has more than it may, and than it had when it was limited or got a member.
    pub(super) fn within_limits(&self) -> Result<()> {
        let quotas = compare::Quotas::of(self.fs())?;
        let copied = match self.model.quotas {
            QuotaMode::Simple => {
                self.since.copied_before + self.fs().stats().blocks_copied - self.since.copied_from
            }
            _ => 0,
        };
        let slack = self.since.slack(copied) * u64::from(self.config.nodesize);
        for (id, most) in &quotas.limits {
            let had = self.had(*id, &quotas);
            let (rfer, _) = quotas.usage.get(id).copied().unwrap_or_default();
            if rfer > had.max(*most) + slack {
                return fail(format!("group {id:x} may have {most}, had {had} and has {rfer}"));
            }
        }
        Ok(())
    }

    fn change_group(&mut self, rng: &mut Rng) -> Result<()> {
        let quotas = compare::Quotas::of(self.fs())?;
        let group = (1 + rng.below(3)) << 48 | rng.below(NUMBERS);
        let mut members: Vec<u64> = quotas.usage.keys().copied().collect();
        members.push(group);
        let member = *rng.pick(&members);
        let has = |id: u64| quotas.usage.contains_key(&id);
        let is_in = quotas.above.get(&member).is_some_and(|above| above.contains(&group));
        if rng.one_in(4) {
            return self.limit_group(rng, member, &quotas);
        }
        let (answer, expected) = match rng.below(8) {
            0..2 => {
                let expected = has(group).then_some(Errno::EXIST);
                (self.fs().create_qgroup(group).map(drop), expected)
            }
            2 => {
                let has_members = quotas.above.values().any(|above| above.contains(&group));
                let expected = match has(group) {
                    false => Some(Errno::NOENT),
                    true => has_members.then_some(Errno::BUSY),
                };
                (self.fs().destroy_qgroup(group).map(drop), expected)
            }
            3..7 => {
                let expected = match (member >> 48 < group >> 48, has(member) && has(group)) {
                    (false, _) => Some(Errno::INVAL),
                    (true, false) => Some(Errno::NOENT),
                    (true, true) => is_in.then_some(Errno::EXIST),
                };
                (self.fs().assign_qgroup(member, group).map(drop), expected)
            }
            _ => {
                let expected = (!is_in).then_some(Errno::NOENT);
                (self.fs().remove_qgroup(member, group).map(drop), expected)
            }
        };
        match (answer, expected) {
            (Ok(()), None) => {
                self.begin_anew()?;
                self.check_quotas()
            }
            (Err(error), Some(expected)) if error.errno() == expected => Ok(()),
            // It may have gone with its subvolume by now.
            (Err(error), None | Some(Errno::EXIST)) if error.errno() == Errno::NOENT => Ok(()),
            // A subvolume that was dropped has left it.
            (Ok(()), Some(Errno::BUSY)) => Ok(()),
            (Err(buttress::Error::NoSpace), _) => Ok(()),
            (answer, expected) => fail(format!(
                "group {:x}, member {:x}: {answer:?}, should be {expected:?}",
                group, member
            )),
        }
    }

    /// Limits a group to a bit more than it has, or takes the limit away.
    fn limit_group(&mut self, rng: &mut Rng, id: u64, quotas: &compare::Quotas) -> Result<()> {
        let has = quotas.usage.get(&id).map_or(0, |usage| usage.0);
        let most = rng.one_in(2).then(|| has + rng.below(8 << 20));
        let limits = NewLimits { rfer: Some(most), excl: None };
        match self.fs().limit_qgroup(id, limits) {
            Err(error) if error.errno() != Errno::NOENT => fail(format!("limit: {error}")),
            _ => Ok(()),
        }
    }

    /// A snapshot, in a group at times.
    pub(super) fn take_snapshot(
        &self,
        source: u64,
        dir: Node,
        name: &[u8],
        read_only: bool,
    ) -> Result<buttress::Result<u64>> {
        let groups = self.some_groups()?;
        Ok(self.fs().snapshot_in(source, dir, name, read_only, &groups))
    }

    /// Groups that a new subvolume may be put into: where there are quotas, and not always.
    pub(super) fn some_groups(&self) -> Result<Vec<u64>> {
        if !self.has_quotas() {
            return Ok(Vec::new());
        }
        let mut rng = Rng::new(self.counts.done ^ 0x5ba9);
        let quotas = compare::Quotas::of(self.fs())?;
        Ok(quotas.usage.keys().copied().filter(|id| id >> 48 > 0 && rng.one_in(3)).collect())
    }
}
