//! Quotas: switched on and off and counted anew, and their groups.
//!
//! A request that waits cannot be killed, but a rescan may take long: the ioctls that wait for one do so, as programs expect, and our own
//! command asks a control word again and again instead. Quotas are on when all is counted, so who switches them on waits, too.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use buttress::costs::Progress;
use buttress::ondisk::objectid;
use buttress::{Filesystem, NewLimits};
use rustix::io::Errno;

use super::abi::{QgroupAssign, QgroupCreate, QuotaCtl, QuotaRescan, quota_cmd};
use super::counting::write_progress;
use super::ioctl::{Output, input, output};
use super::words::{Record, Writer};
use super::{Control, Mount};
use crate::mount::store::Answer;
use crate::protocol::channel::Request;

/// Bits of a group's number below its level.
const LEVEL_SHIFT: u32 = 48;

/// A counting of quotas that somebody has asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaCount {
    /// Whether it runs.
    pub running: bool,
    /// How far it is.
    pub progress: Option<Progress>,
    /// How it failed, or the last one has; of one that runs this says nothing.
    pub failed: Option<Errno>,
}

/// How it is with quotas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaFacts {
    /// Whether they are on.
    pub on: bool,
    /// Whether they are simple ones.
    pub simple: bool,
    /// Whether they are on and wrong, until they are counted anew.
    pub wrong: bool,
    /// Whether they are.
    pub count: QuotaCount,
}

/// A change of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QgroupChange {
    /// Makes it.
    Create(u64),
    /// Takes it away.
    Destroy(u64),
    /// Puts it into another one.
    Assign {
        /// What is put.
        member: u64,
        /// Where to.
        group: u64,
    },
    /// Takes it out of another one.
    Remove {
        /// What is taken.
        member: u64,
        /// Where from.
        group: u64,
    },
    /// Limits it.
    Limit(u64, NewLimits),
}

impl QgroupChange {
    /// Does it; whether all numbers are right after that.
    pub fn apply(self, fs: &Filesystem) -> buttress::Result<bool> {
        match self {
            QgroupChange::Create(id) => fs.create_qgroup(id).map(|()| true),
            QgroupChange::Destroy(id) => fs.destroy_qgroup(id),
            QgroupChange::Assign { member, group } => fs.assign_qgroup(member, group),
            QgroupChange::Remove { member, group } => fs.remove_qgroup(member, group),
            QgroupChange::Limit(id, limits) => fs.limit_qgroup(id, limits).map(|()| true),
        }
    }

    /// Why Linux does not take it, whatever groups there are.
    pub fn refused(self) -> Answer<()> {
        match self {
            // Those of subvolumes come and go with these.
            QgroupChange::Create(0) => Err(Errno::INVAL),
            QgroupChange::Create(id) if is_of_subvolume(id) => Err(Errno::INVAL),
            _ => Ok(()),
        }
    }

    /// As it is set.
    pub(crate) fn word(self) -> String {
        match self {
            QgroupChange::Create(id) => format!("create {id}"),
            QgroupChange::Destroy(id) => format!("destroy {id}"),
            QgroupChange::Assign { member, group } => format!("assign {member} {group}"),
            QgroupChange::Remove { member, group } => format!("remove {member} {group}"),
            QgroupChange::Limit(id, NewLimits { rfer, excl }) => {
                format!("limit {id} {} {}", limit_word(rfer), limit_word(excl))
            }
        }
    }

    fn read(value: &[u8]) -> Option<QgroupChange> {
        let words: Vec<&str> = std::str::from_utf8(value).ok()?.split(' ').collect();
        let id = |text: &str| text.parse::<u64>().ok();
        Some(match words[..] {
            ["create", it] => QgroupChange::Create(id(it)?),
            ["destroy", it] => QgroupChange::Destroy(id(it)?),
            ["assign", member, group] => {
                QgroupChange::Assign { member: id(member)?, group: id(group)? }
            }
            ["remove", member, group] => {
                QgroupChange::Remove { member: id(member)?, group: id(group)? }
            }
            ["limit", it, rfer, excl] => {
                let limits = NewLimits { rfer: read_limit(rfer)?, excl: read_limit(excl)? };
                QgroupChange::Limit(id(it)?, limits)
            }
            _ => return None,
        })
    }
}

/// Whether Linux takes it for the group of a subvolume, be there one or not.
fn is_of_subvolume(id: u64) -> bool {
    id >> LEVEL_SHIFT == 0 && objectid::is_subvolume(id)
}

/// `-`: as it is; `none`: no limit; else the number.
fn limit_word(limit: Option<Option<u64>>) -> String {
    match limit {
        None => "-".to_owned(),
        Some(None) => "none".to_owned(),
        Some(Some(bytes)) => bytes.to_string(),
    }
}

fn read_limit(text: &str) -> Option<Option<Option<u64>>> {
    match text {
        "-" => Some(None),
        "none" => Some(Some(None)),
        _ => Some(Some(Some(text.parse().ok()?))),
    }
}

/// Groups that a new subvolume is put into, as they stand in words.
pub(crate) fn groups_word(groups: &[u64]) -> String {
    let words: Vec<String> = groups.iter().map(u64::to_string).collect();
    words.join(",")
}

/// Reads them.
pub(super) fn read_groups(text: &[u8]) -> Answer<Vec<u64>> {
    let text = std::str::from_utf8(text).map_err(|_| Errno::INVAL)?;
    text.split(',').map(|word| word.parse().map_err(|_| Errno::INVAL)).collect()
}

impl<S: Control> Mount<S> {
    /// For what changes quotas that are on: of the whole filesystem, through a mount that may be written to.
    fn require_quotas(&self, request: &Request<'_>) -> Answer<()> {
        self.require_master(request)?;
        if !self.store.quotas()?.on {
            return Err(Errno::NOTCONN);
        }
        self.require_writable_mount(request)
    }

    pub(super) fn quota_ctl(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<()> {
        self.require_master(request)?;
        self.require_writable_mount(request)?;
        let wish: QuotaCtl = input(bytes)?;
        match wish.cmd {
            quota_cmd::ENABLE => {
                self.begin_quotas()?;
                self.store.wait_for_quotas()
            }
            quota_cmd::DISABLE => self.store.disable_quotas(),
            quota_cmd::ENABLE_SIMPLE => self.begin_simple_quotas(),
            _ => Err(Errno::INVAL),
        }
    }

    /// Switches simple quotas on where there are none. As on Linux, those of the other kind stay, and nobody is told.
    fn begin_simple_quotas(&self) -> Answer<()> {
        match self.store.quotas()?.on {
            true => Ok(()),
            false => self.store.enable_simple_quotas(),
        }
    }

    /// Begins to count them anew. Simple ones cannot be: what was there before them counts for nobody.
    fn recount_quotas(&self) -> Answer<()> {
        match self.store.quotas()?.simple {
            true => Err(Errno::INVAL),
            false => self.store.count_quotas(),
        }
    }

    /// Begins to switch quotas on where they are off.
    fn begin_quotas(&self) -> Answer<()> {
        if self.store.quotas()?.on {
            return Ok(());
        }
        match self.store.count_quotas() {
            Err(Errno::INPROGRESS) => Ok(()),
            begun => begun,
        }
    }

    /// As Linux answers it, 1 where numbers are wrong after it.
    pub(super) fn qgroup_assign(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<Output> {
        self.require_quotas(request)?;
        let QgroupAssign { assign, src: member, dst: group } = input(bytes)?;
        let change = match assign {
            0 => QgroupChange::Remove { member, group },
            _ => QgroupChange::Assign { member, group },
        };
        let right = self.change_qgroup(request, change)?;
        Ok(Output { value: i32::from(!right), ..Output::default() })
    }

    pub(super) fn qgroup_create(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<()> {
        self.require_quotas(request)?;
        let wish: QgroupCreate = input(bytes)?;
        let change = match wish.create {
            0 => QgroupChange::Destroy(wish.qgroupid),
            _ => QgroupChange::Create(wish.qgroupid),
        };
        self.change_qgroup(request, change).map(drop)
    }

    fn change_qgroup(&self, request: &Request<'_>, change: QgroupChange) -> Answer<bool> {
        self.require_quotas(request)?;
        change.refused()?;
        self.store.change_qgroup(change)
    }

    pub(super) fn quota_rescan(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<()> {
        self.require_quotas(request)?;
        let wish: QuotaRescan = input(bytes)?;
        match wish.flags {
            0 => self.recount_quotas(),
            _ => Err(Errno::INVAL),
        }
    }

    /// What is wrong is counted, sooner or later, also where nobody has asked for it.
    pub(super) fn quota_rescan_status(&self, request: &Request<'_>) -> Answer<Output> {
        self.require_master(request)?;
        let QuotaFacts { wrong, count, .. } = self.store.quotas()?;
        let progress = count.progress.filter(|_| count.running).map_or(0, |it| it.done);
        output(&QuotaRescan {
            flags: u64::from(wrong || count.running),
            progress,
            ..QuotaRescan::default()
        })
    }

    /// How a rescan went is no matter of who waits for it, as in Linux.
    pub(super) fn quota_rescan_wait(&self, request: &Request<'_>) -> Answer<()> {
        self.require_master(request)?;
        let _how_it_went = self.store.wait_for_quotas();
        Ok(())
    }

    /// The word `quota`.
    pub(super) fn quota_facts(&self, request: &Request<'_>) -> Answer<Vec<u8>> {
        self.require_master(request)?;
        Ok(quota_record(&self.store.quotas()?))
    }

    /// The same set: begins what takes long.
    pub(super) fn quota_word(&self, request: &Request<'_>, value: &[u8]) -> Answer<()> {
        self.require_master(request)?;
        match value {
            b"on" => self.begin_quotas(),
            b"simple" => self.begin_simple_quotas(),
            b"off" => self.store.disable_quotas(),
            b"rescan" => {
                self.require_quotas(request)?;
                self.recount_quotas()
            }
            _ => Err(Errno::INVAL),
        }
    }

    /// The word `qgroup`.
    pub(super) fn qgroup_word(&self, request: &Request<'_>, value: &[u8]) -> Answer<()> {
        let change = QgroupChange::read(value).ok_or(Errno::INVAL)?;
        self.change_qgroup(request, change).map(drop)
    }

    /// The word `subvolume-in`: groups and name.
    pub(super) fn subvolume_in_word(&self, request: &Request<'_>, value: &[u8]) -> Answer<()> {
        let space = value.iter().position(|&byte| byte == b' ').ok_or(Errno::INVAL)?;
        let (groups, name) = value.split_at(space);
        let name = OsStr::from_bytes(name.get(1..).unwrap_or_default());
        self.make_subvolume(request, name, &read_groups(groups)?)
    }
}

fn quota_record(facts: &QuotaFacts) -> Vec<u8> {
    let QuotaFacts { on, simple, wrong, count } = facts;
    let mut writer = Writer::default();
    let running = &count.running;
    for (name, is_so) in [("on", on), ("simple", simple), ("wrong", wrong), ("running", running)] {
        writer.show(name, u8::from(*is_so));
    }
    if let Some(progress) = count.progress {
        write_progress(&mut writer, progress);
    }
    if let Some(errno) = count.failed {
        writer.show("failed", errno.raw_os_error());
    }
    writer.end()
}

impl Record {
    /// Reads how it is with quotas.
    pub(crate) fn quotas(&self) -> Option<QuotaFacts> {
        let is_so = |name: &str| self.number::<u8>(name).map(|bit| bit != 0);
        let count = QuotaCount {
            running: is_so("running")?,
            progress: self.progress().flatten(),
            failed: self.number("failed").map(Errno::from_raw_os_error),
        };
        let (on, simple, wrong) = (is_so("on")?, is_so("simple")?, is_so("wrong")?);
        Some(QuotaFacts { on, simple, wrong, count })
    }
}

#[cfg(test)]
mod tests {
    use buttress::costs::Stage;

    use super::*;

    #[test]
    fn changes_come_back_as_they_went() {
        let limits = |rfer, excl| QgroupChange::Limit(7, NewLimits { rfer, excl });
        for change in [
            QgroupChange::Create(1 << LEVEL_SHIFT | 7),
            QgroupChange::Destroy(u64::MAX),
            QgroupChange::Assign { member: 5, group: 1 << LEVEL_SHIFT },
            QgroupChange::Remove { member: 5, group: 1 << LEVEL_SHIFT },
            limits(None, Some(None)),
            limits(Some(Some(u64::MAX)), None),
        ] {
            assert_eq!(QgroupChange::read(change.word().as_bytes()), Some(change));
        }
        for wrong in ["", "create", "create x", "create 1 2", "limit 5 - ", "limit 5 1"] {
            assert_eq!(QgroupChange::read(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(read_groups(groups_word(&[1, u64::MAX]).as_bytes()), Ok(vec![1, u64::MAX]));
        assert_eq!(read_groups(b""), Err(Errno::INVAL));
    }

    #[test]
    fn groups_of_subvolumes_are_not_made() {
        for (id, is_made) in [(0, false), (5, false), (6, true), (256, false), (1 << 48, true)] {
            assert_eq!(QgroupChange::Create(id).refused().is_ok(), is_made, "{id}");
        }
    }

    #[test]
    fn how_it_is_comes_back() {
        let progress = Some(Progress { stage: Stage::Extents, done: 1, total: 2 });
        let count = QuotaCount { running: true, progress, failed: Some(Errno::BUSY) };
        let full = QuotaFacts { on: true, wrong: true, count, simple: false };
        let simple = QuotaFacts { on: true, simple: true, ..QuotaFacts::default() };
        for facts in [full, simple, QuotaFacts::default()] {
            let records = Record::all(&quota_record(&facts));
            assert_eq!(records.first().and_then(Record::quotas), Some(facts));
        }
    }
}
