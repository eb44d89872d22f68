//! Balances and changes of the device's size on a live mount: begun by a control word, and asked for again and again until they are done, as a
//! request that waits cannot be killed.

use buttress::ondisk::item::{BalanceItem, balance_flags};
use buttress::{Balance, BalanceStop, Balanced, Balancing, Emptied, Emptying};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::abi::{BalanceCtl, EXCLUSIVE_RUNS, VolArgs, balance};
use super::ioctl::{Output, input, output};
use super::words::{ANSWER_BYTES, Record, Writer};
use super::{Control, Mount};
use crate::mount::store::Answer;
use crate::mount::task::TaskState;
use crate::protocol::channel::Request;

/// How it is with balances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalanceFacts {
    /// The one that runs, or the last one of this mount.
    pub task: TaskState<Balancing, Balanced>,
    /// What the one is about that runs, or that was paused or interrupted.
    pub unfinished: Option<Balance>,
}

/// How it is with the size of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResizeFacts {
    /// A change of it that is under way, or the last one of this mount.
    pub task: TaskState<Emptying, ()>,
    /// Bytes of the device that the filesystem has.
    pub size: u64,
    /// Bytes that the device has.
    pub most: u64,
    /// Bytes that it could have at least.
    pub least: u64,
}

impl<S: Control> Mount<S> {
    /// The word `balance`.
    pub(super) fn balance_facts(&self, request: &Request<'_>) -> Answer<Vec<u8>> {
        self.require_master(request)?;
        Ok(balance_record(&self.store.balance_facts()?))
    }

    /// The same set.
    pub(super) fn balance_word(&self, request: &Request<'_>, value: &[u8]) -> Answer<()> {
        self.require_master(request)?;
        self.require_writable_mount(request)?;
        let text = std::str::from_utf8(value).map_err(|_| Errno::INVAL)?;
        match text.split_once(' ').unwrap_or((text, "")) {
            ("start", item) => {
                let item = unhex(item).ok_or(Errno::INVAL)?;
                let balance = Balance::of_item(&item).map_err(|_| Errno::INVAL)?;
                self.store.start_balance(balance)
            }
            ("resume", "") => self.store.resume_balance(),
            ("pause", "") => self.store.stop_balance(BalanceStop::Pause),
            ("cancel", "") => self.store.stop_balance(BalanceStop::Cancel),
            _ => Err(Errno::INVAL),
        }
    }

    /// The word `resize`.
    pub(super) fn resize_facts(&self, request: &Request<'_>) -> Answer<Vec<u8>> {
        self.require_master(request)?;
        Ok(resize_record(&self.store.resize_facts()?))
    }

    /// The same set: the new size in bytes, or `cancel`.
    pub(super) fn resize_word(&self, request: &Request<'_>, value: &[u8]) -> Answer<()> {
        self.require_master(request)?;
        self.require_writable_mount(request)?;
        match std::str::from_utf8(value).map_err(|_| Errno::INVAL)? {
            "cancel" => self.store.cancel_resize(),
            size => self.store.resize(size.parse().map_err(|_| Errno::INVAL)?),
        }
    }
}

/// What programs written for btrfs ask. Those that wait cannot be killed meanwhile; BALANCE_CTL, which pauses and cancels, does not come by FUSE, as
/// its number says that there is something to copy where there is none.
impl<S: Control> Mount<S> {
    pub(super) fn balance_v2(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<Output> {
        self.require_master(request)?;
        self.require_writable_mount(request)?;
        let mut args: BalanceCtl = input(bytes)?;
        if args.flags & balance::RESUME != 0 {
            self.store.resume_balance()?;
        } else {
            let known = balance_flags::DATA | balance_flags::METADATA | balance_flags::SYSTEM;
            if args.flags & !(known | balance_flags::FORCE) != 0 {
                return Err(Errno::INVAL);
            }
            self.store.start_balance(balance_of(&args)?)?;
        }
        let ended = self.store.wait_for_balance().unwrap_or(Err(Errno::CANCELED));
        self.fill(&mut args)?;
        let refused = match ended {
            Ok(done) => (done.no_room > 0).then_some(Errno::NOSPC),
            Err(Errno::INTR) => Some(Errno::CANCELED),
            Err(errno) => Some(errno),
        };
        Ok(Output { refused, ..output(&args)? })
    }

    pub(super) fn balance_progress(&self, request: &Request<'_>) -> Answer<Output> {
        self.require_master(request)?;
        let facts = self.store.balance_facts()?;
        let balance = facts.unfinished.ok_or(Errno::NOTCONN)?;
        let item = balance.to_item();
        let item = BalanceItem::of(&item).ok_or(Errno::IO)?;
        let mut args: BalanceCtl = zerocopy::FromZeros::new_zeroed();
        args.flags = item.flags.get();
        for (part, of) in args.parts.iter_mut().zip(&item.parts) {
            for (word, bytes) in part.iter_mut().zip(of.as_bytes().as_chunks().0) {
                *word = u64::from_le_bytes(*bytes);
            }
        }
        self.fill(&mut args)?;
        output(&args)
    }

    /// How far the one that runs is, or the last one was.
    fn fill(&self, args: &mut BalanceCtl) -> Answer<()> {
        let task = self.store.balance_facts()?.task;
        let at = task.progress.unwrap_or_default();
        (args.expected, args.considered) = (at.expected, at.considered);
        args.completed = match &task.ended {
            Some(Ok(done)) => done.completed,
            _ => at.completed,
        };
        let asked = match task.stop {
            Some(BalanceStop::Pause) => balance::PAUSE_REQ,
            Some(BalanceStop::Cancel) => balance::CANCEL_REQ,
            None => 0,
        };
        args.state = if task.running { balance::RUNNING | asked } else { asked };
        Ok(())
    }

    /// `[DEVID:]SIZE`, where the size is `max`, or bytes, or `+` or `-` and bytes; or `cancel`. A balance that runs or is paused, or another resize, is no
    /// error to Linux, but an answer.
    pub(super) fn resize_ioctl(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<Output> {
        match self.resize_as_asked(request, bytes) {
            Err(Errno::INPROGRESS) => Ok(Output { value: EXCLUSIVE_RUNS, ..Output::default() }),
            done => done.map(|()| Output::default()),
        }
    }

    fn resize_as_asked(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<()> {
        self.require_master(request)?;
        self.require_writable_mount(request)?;
        let args: VolArgs = input(bytes)?;
        let text = args.name.split(|byte| *byte == 0).next().unwrap_or_default();
        let text = std::str::from_utf8(text).map_err(|_| Errno::INVAL)?;
        let (devid, size) = match text.split_once(':') {
            Some((devid, size)) => (devid.parse().map_err(|_| Errno::INVAL)?, size),
            None => (1, text),
        };
        if size == "cancel" {
            return self.store.cancel_resize();
        }
        if self.store.facts()?.devices.iter().all(|device| device.id != devid) {
            return Err(Errno::NODEV);
        }
        let ResizeFacts { size: now, most, .. } = self.store.resize_facts()?;
        let bytes = |text: &str| {
            let text = text.to_ascii_lowercase();
            crate::options::parse_bytes(&text).ok_or(Errno::INVAL)
        };
        let size = match (size.strip_prefix('+'), size.strip_prefix('-')) {
            (Some(more), _) => now.checked_add(bytes(more)?).ok_or(Errno::RANGE)?,
            (_, Some(less)) => now.checked_sub(bytes(less)?).ok_or(Errno::INVAL)?,
            _ if size == "max" => most,
            _ => bytes(size)?,
        };
        self.store.resize(size)?;
        self.store.wait_for_resize()
    }
}

/// The balance that the struct asks for.
fn balance_of(args: &BalanceCtl) -> Answer<Balance> {
    let mut item = BalanceItem { flags: args.flags.into(), ..BalanceItem::default() };
    for (part, of) in item.parts.iter_mut().zip(&args.parts) {
        for (bytes, word) in part.as_mut_bytes().as_chunks_mut().0.iter_mut().zip(of) {
            *bytes = word.to_le_bytes();
        }
    }
    Balance::of_item(item.as_bytes()).map_err(|_| Errno::INVAL)
}

/// What a new balance is set with.
pub(crate) fn start_word(balance: &Balance) -> String {
    format!("start {}", hex(&balance.to_item()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(byte).collect()
}

fn balance_record(facts: &BalanceFacts) -> Vec<u8> {
    let mut writer = Writer::default();
    let BalanceFacts { task, unfinished } = facts;
    write_task(&mut writer, task);
    if let Some(Balancing { considered, expected, completed, group }) = task.progress {
        writer.numbers("at", &[considered, expected, completed]);
        write_emptying(&mut writer, &group);
    }
    if let Some(balance) = unfinished {
        writer.show("unfinished", hex(&balance.to_item()));
    }
    let Some(Ok(Balanced { considered, completed, no_room, emptied })) = &task.ended else {
        return writer.end();
    };
    let Emptied { moved, data, blocks, failed } = emptied;
    let count = failed.len() as u64;
    let figures = [*considered, *completed, *no_room, *moved, *data, *blocks, count];
    let mut answer = writer.numbers("done", &figures).end();
    for (bytenr, why) in failed {
        let record = Writer::default().show("bytenr", bytenr).show("why", why).end();
        if answer.len() + record.len() > ANSWER_BYTES {
            break;
        }
        answer.extend(record);
    }
    answer
}

fn resize_record(facts: &ResizeFacts) -> Vec<u8> {
    let mut writer = Writer::default();
    let ResizeFacts { task, size, most, least } = facts;
    write_task(&mut writer, task);
    task.progress.iter().for_each(|at| write_emptying(&mut writer, at));
    if let Some(Ok(())) = task.ended {
        writer.show("done", 1);
    }
    writer.numbers("sizes", &[*size, *most, *least]).end()
}

pub(super) fn write_task<P, R>(writer: &mut Writer, task: &TaskState<P, R>) {
    writer.show("running", u8::from(task.running));
    if let Some(stop) = task.stop {
        writer.show("stop", if stop == BalanceStop::Pause { "pause" } else { "cancel" });
    }
    if let Some(Err(errno)) = task.ended {
        writer.show("failed", errno.raw_os_error());
    }
}

fn write_emptying(writer: &mut Writer, Emptying { had, has, moved }: &Emptying) {
    writer.numbers("group", &[*had, *has, *moved]);
}

impl Record {
    pub(super) fn task<P, R>(
        &self,
        progress: Option<P>,
        done: Option<R>,
    ) -> Option<TaskState<P, R>> {
        let failed = self.number("failed").map(|errno| Err(Errno::from_raw_os_error(errno)));
        Some(TaskState {
            running: self.number::<u8>("running")? != 0,
            progress,
            stop: match self.text("stop") {
                Some("pause") => Some(BalanceStop::Pause),
                Some(_) => Some(BalanceStop::Cancel),
                None => None,
            },
            ended: failed.or(done.map(Ok)),
        })
    }

    fn emptying(&self) -> Option<Emptying> {
        let [had, has, moved] = self.numbers("group")?;
        Some(Emptying { had, has, moved })
    }

    /// Reads how it is with balances: of what could not be moved as much as an answer has room for, and how much there is.
    pub(crate) fn balance(records: &[Record]) -> Option<BalanceFacts> {
        let (first, failed) = records.split_first()?;
        let progress = first.numbers("at").map(|[considered, expected, completed]| Balancing {
            considered,
            expected,
            completed,
            group: first.emptying().unwrap_or_default(),
        });
        let unmoved =
            |record: &Record| Some((record.number("bytenr")?, record.text("why")?.to_owned()));
        let done = first.numbers("done").map(
            |[considered, completed, no_room, moved, data, blocks, count]| {
                let mut failed: Vec<_> = failed.iter().filter_map(unmoved).collect();
                let left_out = count.saturating_sub(failed.len() as u64);
                if left_out > 0 {
                    failed.push((0, format!("so it is with {left_out} more")));
                }
                let emptied = Emptied { moved, data, blocks, failed };
                Balanced { considered, completed, no_room, emptied }
            },
        );
        let unfinished = match first.text("unfinished") {
            Some(item) => Some(Balance::of_item(&unhex(item)?).ok()?),
            None => None,
        };
        Some(BalanceFacts { task: first.task(progress, done)?, unfinished })
    }

    /// Reads how it is with the size.
    pub(crate) fn resize(&self) -> Option<ResizeFacts> {
        let [size, most, least] = self.numbers("sizes")?;
        let done = self.number::<u8>("done").map(|_| ());
        Some(ResizeFacts { task: self.task(self.emptying(), done)?, size, most, least })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_it_is_comes_back() {
        let group = Emptying { had: 3, has: 2, moved: 1 };
        let at = Balancing { considered: 7, expected: 5, completed: 1, group };
        let failed = vec![(4096, "a checksum\nis wrong".to_owned()), (8192, "gone".to_owned())];
        let emptied = Emptied { moved: 1, data: u64::MAX, blocks: 2, failed };
        let done = Balanced { considered: 7, completed: 4, no_room: 2, emptied };
        let running = TaskState { running: true, progress: Some(at), stop: None, ended: None };
        let stop = Some(BalanceStop::Cancel);
        let balance = Balance { data: Some(Default::default()), ..Default::default() };
        for (task, unfinished) in [
            (TaskState { stop, ..running.clone() }, Some(balance)),
            (TaskState { running: false, ended: Some(Ok(done)), ..running.clone() }, None),
            (TaskState { ended: Some(Err(Errno::NOSPC)), progress: None, ..running }, None),
        ] {
            let facts = BalanceFacts { task, unfinished };
            let records = Record::all(&balance_record(&facts));
            assert_eq!(Record::balance(&records), Some(facts));
        }
        let task =
            TaskState { running: false, progress: Some(group), stop: None, ended: Some(Ok(())) };
        let facts = ResizeFacts { task, size: 1, most: 2, least: 3 };
        let records = Record::all(&resize_record(&facts));
        assert_eq!(records.first().and_then(Record::resize), Some(facts));
    }

    #[test]
    fn of_very_much_that_cannot_be_moved_some_is_told() {
        let failed = (0..5000).map(|at| (at, "the checksum is wrong".to_owned())).collect();
        let done =
            Balanced { emptied: Emptied { failed, ..Default::default() }, ..Default::default() };
        let task = TaskState { running: false, progress: None, stop: None, ended: Some(Ok(done)) };
        let answer = balance_record(&BalanceFacts { task, unfinished: None });
        assert!(answer.len() <= ANSWER_BYTES);
        let facts = Record::balance(&Record::all(&answer)).unwrap();
        let failed = facts.task.ended.unwrap().unwrap().emptied.failed;
        assert!(failed.len() > 1000 && failed.last().unwrap().1.ends_with("more"), "{failed:?}");
    }
}
