//! The groups of a balance are emptied in rounds. One that there is no room for is passed over, as on Linux; what others have given back may be room for
//! it in the next round. There is another round only where the last one has emptied a group, but for one of the other kind (below): no more than two for each group.
//!
//! What is converted goes to groups of the new profile, and those of the old one are closed meanwhile. Where that leaves no room for any, one group is
//! emptied into those that are to be converted later, which gives its chunk back.

use super::{Balance, Balanced, Balancing, profile_of};
use crate::error::{Errno, Error, Result};
use crate::fs::Filesystem;
use crate::fs::relocate::Emptying;
use crate::space::GroupInfo;

/// Where what is converted may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    /// To groups of the new profile.
    Converted,
    /// Also to those that are to be converted yet. Ends with the first group that is emptied.
    Waiting,
}

impl Filesystem {
    pub(super) fn empty_plan(
        &self,
        balance: &Balance,
        told: &mut dyn FnMut(Balancing) -> bool,
    ) -> Result<Balanced> {
        self.convert(balance)?;
        let mut left = self.balance_plan(balance);
        let considered = self.block_groups().len() as u64;
        let at = Balancing { considered, expected: left.len() as u64, ..Balancing::default() };
        let mut done = Balanced { considered, ..Balanced::default() };
        let mut goal = Goal::Converted;
        loop {
            let before = left.len();
            left =
                self.empty_round(balance, (left, goal), &mut done, &mut |completed, group| {
                    told(Balancing { completed, group, ..at })
                })?;
            let has_moved = left.len() < before;
            goal = match goal {
                _ if left.is_empty() => break,
                _ if has_moved => Goal::Converted,
                Goal::Converted if !balance.conversions().is_empty() => Goal::Waiting,
                _ => break,
            };
        }
        done.no_room = left.len() as u64;
        Ok(done)
    }

    /// Empties groups; answers those that there is no room for.
    fn empty_round(
        &self,
        balance: &Balance,
        (plan, goal): (Vec<GroupInfo>, Goal),
        done: &mut Balanced,
        told: &mut dyn FnMut(u64, Emptying) -> bool,
    ) -> Result<Vec<GroupInfo>> {
        let waiting = if goal == Goal::Waiting { &plan[..] } else { &[] };
        let _others = self.close_others(balance, waiting);
        let mut left = Vec::new();
        let mut groups = plan.iter();
        for group in groups.by_ref() {
            let completed = done.completed;
            // Who waits for it to stop is heard also where nothing can be emptied.
            let begins = Emptying { had: group.used, has: group.used, ..Emptying::default() };
            if !told(completed, begins) {
                return Err(Error::User(Errno::INTR));
            }
            match self.empty_block_group(group.start, |group| told(completed, group)) {
                Ok(emptied) => {
                    done.completed += u64::from(emptied.failed.is_empty());
                    done.emptied.moved += emptied.moved;
                    done.emptied.data += emptied.data;
                    done.emptied.blocks += emptied.blocks;
                    done.emptied.failed.extend(emptied.failed);
                }
                // It has become vacant by itself, and is gone.
                Err(Error::User(Errno::NOENT)) => done.completed += 1,
                Err(Error::NoSpace) => {
                    left.push(*group);
                    continue;
                }
                Err(error) => return Err(error),
            }
            if goal == Goal::Waiting {
                break;
            }
        }
        left.extend(groups);
        Ok(left)
    }

    /// What is converted goes to groups of the new profile, though others have room: these are closed as far as that can be done without, but for those
    /// that `waiting` has.
    fn close_others(&self, balance: &Balance, waiting: &[GroupInfo]) -> Closed<'_> {
        let can_close = |start: &u64| {
            self.inner().have_free_space(*start).is_ok()
                && self.core().space.close_group_if_room(*start, false)
        };
        let is_other = |group: &&GroupInfo| {
            let wish = balance.filter(group).and_then(|filter| filter.convert);
            wish.is_some_and(|profile| profile != profile_of(group.flags))
                && waiting.iter().all(|waits| waits.start != group.start)
        };
        let groups = self.block_groups();
        let others = groups.iter().filter(is_other).map(|group| group.start);
        Closed { fs: self, groups: others.filter(can_close).collect() }
    }
}

/// Groups that are closed for a while.
struct Closed<'a> {
    fs: &'a Filesystem,
    groups: Vec<u64>,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        for start in &self.groups {
            self.fs.core().space.close_group(*start, false);
        }
    }
}
