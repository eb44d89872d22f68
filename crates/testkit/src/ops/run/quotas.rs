//! Quota groups are made, put into each other and taken apart while a sequence runs; what they count is compared all the time.

use buttress::{Errno, NewLimits, Node};

use super::super::rng::Rng;
use super::{Result, Runner, compare, fail};

/// Groups of levels 1 to 3, so many of each.
const NUMBERS: u64 = 3;
/// Blocks that a limited group gains by what is not charged: roots of snapshots in the same group, and deletions.
const SLACK: u64 = 16;

impl Runner {
    /// Some changes of groups, as the number of operations says.
    pub(super) fn change_groups(&mut self) -> Result<()> {
        if !self.config.quotas || self.disk.is_none() {
            return Ok(());
        }
        let mut rng = Rng::new(self.counts.done ^ 0x9_0a75);
        for _ in 0..rng.below(4) {
            self.change_group(&mut rng)?;
        }
        self.had = compare::Quotas::of(self.fs())?.usage;
        Ok(())
    }

    /// No group has more than it may, and than it had when it was limited or got a member.
    pub(super) fn within_limits(&self) -> Result<()> {
        let quotas = compare::Quotas::of(self.fs())?;
        let slack = SLACK * u64::from(self.config.nodesize);
        for (id, most) in &quotas.limits {
            let had = self.had.get(id).map_or(0, |had| had.0);
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
                self.had = compare::Quotas::of(self.fs())?.usage;
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
        if !self.config.quotas || self.disk.is_none() {
            return Ok(Vec::new());
        }
        let mut rng = Rng::new(self.counts.done ^ 0x5ba9);
        let quotas = compare::Quotas::of(self.fs())?;
        Ok(quotas.usage.keys().copied().filter(|id| id >> 48 > 0 && rng.one_in(3)).collect())
    }
}
