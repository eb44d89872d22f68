//! The device is told what is free on a live mount: by FITRIM, which waits until it is done, and by words that begin it and ask how far it is, as a
//! request that waits cannot be killed.

use buttress::ondisk::SECTOR;
use rustix::io::Errno;

use super::abi::TrimRange;
use super::ioctl::{Output, input, output};
use super::words::{Record, Writer};
use super::{Control, Mount};
use crate::mount::store::Answer;
use crate::mount::task::TaskState;
use crate::protocol::channel::Request;

/// How far it is, or the last one was, in bytes that the device was told of.
pub type TrimFacts = TaskState<u64, u64>;

/// What somebody wants of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskTrim {
    /// To know how it is.
    State,
    /// That it begins: of addresses from the first one to before the second one, runs of at least so many bytes. EINPROGRESS where it runs.
    Begin(u64, u64, u64),
    /// That it ends, soon. ENOTCONN where none runs.
    Cancel,
    /// The same, when no other one runs any more, and to wait until it is done.
    Do(u64, u64, u64),
}

impl<S: Control> Mount<S> {
    /// The words about it.
    pub(super) fn trim_word(&self, request: &Request<'_>, asked: AskTrim) -> Answer<Vec<u8>> {
        self.require_master(request)?;
        Ok(trim_record(&self.store.trim(asked)?))
    }

    /// What fstrim(8) asks. Like Linux, it refuses less than a sector, and what goes beyond all addresses, unless that is all there is.
    pub(super) fn trim_ioctl(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<Output> {
        self.require_master(request)?;
        self.require_writable_mount(request)?;
        let mut range: TrimRange = input(bytes)?;
        let end = match range.len {
            u64::MAX => range.len,
            0..SECTOR => return Err(Errno::INVAL),
            len => range.start.checked_add(len).ok_or(Errno::INVAL)?,
        };
        let done = self.store.trim(AskTrim::Do(range.start, end, range.minlen))?;
        range.len = done.ended.unwrap_or(Err(Errno::IO))?;
        output(&range)
    }
}

fn trim_record(facts: &TrimFacts) -> Vec<u8> {
    let mut writer = Writer::default();
    super::relocation::write_task(&mut writer, facts);
    if let Some(bytes) = facts.progress {
        writer.show("at", bytes);
    }
    if let Some(Ok(bytes)) = facts.ended {
        writer.show("done", bytes);
    }
    writer.end()
}

impl Record {
    /// Reads how it is.
    pub(crate) fn trim(&self) -> Option<TrimFacts> {
        self.task(self.number("at"), self.number("done"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_it_is_comes_back() {
        let running = TrimFacts { running: true, progress: Some(7), stop: None, ended: None };
        for facts in [
            TrimFacts { running: false, ended: Some(Ok(u64::MAX)), ..running.clone() },
            TrimFacts { ended: Some(Err(Errno::OPNOTSUPP)), progress: None, ..running.clone() },
            running,
        ] {
            let records = Record::all(&trim_record(&facts));
            assert_eq!(records.first().and_then(Record::trim), Some(facts));
        }
    }
}
