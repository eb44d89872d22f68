//! A block group is emptied in the middle of a sequence, or the device is told what is free: nothing that anybody can see changes by it.

use buttress::Errno;

use super::{Result, Runner, fail};

impl Runner {
    /// Empties a block group: the one with the least in it, or one by its number.
    /// The device is told of all that is free: nobody misses it.
    pub(super) fn trim(&mut self) -> Result<()> {
        // Sometimes a part of it, which need not be whole sectors.
        let odd = self.counts.done % 5 * 54321;
        match self.fs().trim(odd..u64::MAX - odd, odd, |_| true) {
            Ok(_) => self.check_quotas(),
            Err(error) => fail(format!("trim: {error}")),
        }
    }

    pub(super) fn empty(&mut self, number: u64) -> Result<()> {
        let groups = self.fs().block_groups();
        let least = groups.iter().min_by_key(|group| (group.used, group.start));
        let (index, count) = (number as usize % (groups.len() + 1), groups.len());
        let chosen = if index == count { least } else { groups.get(index) };
        let Some(group) = chosen.copied() else { return Ok(()) };
        match self.fs().empty_block_group(group.start, |_| true) {
            Ok(emptied) => {
                self.counts.done += 1;
                let no_space = buttress::Error::NoSpace.to_string();
                match emptied.failed.iter().find(|(_, why)| *why != no_space) {
                    None => self.check_quotas(),
                    Some((bytenr, why)) => fail(format!("{bytenr} of {group:?} stays: {why}")),
                }
            }
            Err(error) if matches!(error.errno(), Errno::NOSPC | Errno::BUSY | Errno::NOENT) => {
                self.counts.no_space += 1;
                Ok(())
            }
            Err(error) => fail(format!("{group:?}: {error}")),
        }
    }
}
