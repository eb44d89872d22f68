//! What subvolumes take, in words: a pass that goes on with each request ([`crate::mount::countings`]), and its results.

use buttress::costs::{Bytes, Progress, Share, Stage};
use rustix::io::Errno;

use super::words::{ANSWER_BYTES, Record, Writer};
use super::{Control, Mount};
use crate::mount::store::Answer;
use crate::protocol::channel::Request;

/// Bytes of a record, at most.
const RECORD_BYTES: usize = 200;

impl<S: Control> Mount<S> {
    /// The words about a counting: `count` begins one and answers its number. With that, `count.N` goes on, `costs-N.ID` tells of
    /// subvolumes from ID on, `asked-N.ID` asks about deleting ID, too, `sums.N` tells the sums, and `counted.N` forgets it.
    pub(super) fn counting_word(
        &self,
        request: &Request<'_>,
        word: &str,
        number: Option<u64>,
    ) -> Answer<Vec<u8>> {
        self.require_master(request)?;
        let of = |word: &str| word.parse::<u64>().map_err(|_| Errno::NODATA);
        match (word.split_once('-'), number) {
            (None, None) if word == "count" => {
                Ok(self.store.count_subvolumes()?.to_string().into_bytes())
            }
            (None, Some(counting)) => match word {
                "count" => Ok(progress_record(self.store.count_on(counting)?)),
                "sums" => Ok(sums_record(self.store.cost_sums(counting)?)),
                "counted" => {
                    self.store.end_counting(counting);
                    Ok(Vec::new())
                }
                _ => Err(Errno::NODATA),
            },
            (Some(("costs", counting)), Some(from)) => {
                let most = ANSWER_BYTES / RECORD_BYTES;
                let costs = self.store.costs(of(counting)?, from, most)?;
                Ok(costs.iter().flat_map(share_record).collect())
            }
            (Some(("asked", counting)), Some(id)) => {
                self.store.ask_about(of(counting)?, id)?;
                Ok(Vec::new())
            }
            _ => Err(Errno::NODATA),
        }
    }
}

fn progress_record(progress: Option<Progress>) -> Vec<u8> {
    let mut writer = Writer::default();
    match progress {
        Some(at) => write_progress(&mut writer, at),
        None => {
            writer.show("stage", "done");
        }
    }
    writer.end()
}

/// Writes how far a counting is.
pub(super) fn write_progress(writer: &mut Writer, at: Progress) {
    let stage = match at.stage {
        Stage::Nodes => "nodes",
        Stage::Extents => "extents",
    };
    writer.show("stage", stage).numbers("at", &[at.done, at.total]);
}

fn share_record((id, share): &(u64, Share)) -> Vec<u8> {
    let Share { referenced, exclusive, deleted } = share;
    Writer::default()
        .show("id", id)
        .numbers("referenced", &[referenced.data, referenced.metadata])
        .numbers("exclusive", &[exclusive.data, exclusive.metadata])
        .show("deleted", u8::from(*deleted))
        .end()
}

fn sums_record(sums: [Bytes; 3]) -> Vec<u8> {
    let mut writer = Writer::default();
    for (name, bytes) in ["total", "shared", "freed"].into_iter().zip(sums) {
        writer.numbers(name, &[bytes.data, bytes.metadata]);
    }
    writer.end()
}

impl Record {
    fn two_sizes(&self, key: &str) -> Option<Bytes> {
        let [data, metadata] = self.numbers(key)?;
        Some(Bytes { data, metadata })
    }

    /// Reads how far a counting is: `None` inside at its end.
    pub(crate) fn progress(&self) -> Option<Option<Progress>> {
        let stage = match self.text("stage")? {
            "done" => return Some(None),
            "nodes" => Stage::Nodes,
            "extents" => Stage::Extents,
            _ => return None,
        };
        let [done, total] = self.numbers("at")?;
        Some(Some(Progress { stage, done, total }))
    }

    /// Reads what a subvolume takes.
    pub(crate) fn share(&self) -> Option<(u64, Share)> {
        let share = Share {
            referenced: self.two_sizes("referenced")?,
            exclusive: self.two_sizes("exclusive")?,
            deleted: self.number::<u8>("deleted")? != 0,
        };
        Some((self.number("id")?, share))
    }

    /// Reads the sums.
    pub(crate) fn sums(&self) -> Option<[Bytes; 3]> {
        Some([self.two_sizes("total")?, self.two_sizes("shared")?, self.two_sizes("freed")?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_comes_back() {
        let bytes = |data| Bytes { data, metadata: u64::MAX };
        let share = Share { referenced: bytes(1), exclusive: bytes(2), deleted: true };
        let answer = [share_record(&(7, share)), sums_record([bytes(3), bytes(4), bytes(5)])];
        let records = Record::all(&answer.concat());
        assert_eq!(records.first().and_then(Record::share), Some((7, share)));
        assert_eq!(records.get(1).and_then(Record::sums), Some([bytes(3), bytes(4), bytes(5)]));
        for at in [None, Some(Progress { stage: Stage::Nodes, done: 1, total: 2 })] {
            let records = Record::all(&progress_record(at));
            assert_eq!(records.first().and_then(Record::progress), Some(at));
        }
    }
}
