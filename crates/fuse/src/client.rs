//! The other end of the control attributes: what a command does on a live mount, with no more than
//! getxattr(2) and setxattr(2).
//!
//! Every function takes a path on the mount; errors are the kernel's, EOPNOTSUPP or ENODATA where
//! the path is not on a buttress mount.

use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use buttress::costs::{Bytes, Progress, Share};
use buttress::{Balance, BalanceStop, Balanced, Balancing, Emptying, Referrers, WantedReferrers};
use rustix::fs::{Mode, OFlags, XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

pub use crate::mount::control::ExtentFacts;
use crate::mount::control::quotas::groups_word;
use crate::mount::control::relocation::start_word;
use crate::mount::control::words::{PREFIX, Record};
use crate::mount::control::{
    BalanceFacts, Facts, FoundItem, QgroupChange, QuotaFacts, ResizeFacts, SpaceFacts, StoredPart,
    SubvolumeFacts, TreeKey, trees,
};

/// How often all is asked for again because a commit came in between.
const REFERRERS_TRIES: u32 = 8;
/// How often it is asked how far something is that takes long: at first, and at most.
const TASK_PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// Most bytes of one attribute.
const VALUE_BYTES_MAX: usize = 1 << 16;

/// Pauses that grow.
struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Self {
        Pauses(TASK_PAUSES.0)
    }
}

impl Pauses {
    fn wait(&mut self) {
        std::thread::sleep(self.0);
        self.0 = (self.0 * 2).min(TASK_PAUSES.1);
    }
}

/// Whether `path` lies on a mount of ours that answers.
pub fn is_live(path: &Path) -> bool {
    get(path, "subvolume").is_ok()
}

/// Makes an empty subvolume at `path`.
pub fn create_subvolume(path: &Path) -> Result<(), Errno> {
    create_subvolume_in(path, &[])
}

/// The same, in groups of quotas from the beginning.
pub fn create_subvolume_in(path: &Path, groups: &[u64]) -> Result<(), Errno> {
    let (directory, name) = split(path)?;
    match groups {
        [] => set(directory, "subvolume", name.as_bytes())?,
        _ => {
            let head = format!("{} ", groups_word(groups));
            set(directory, "subvolume-in", &[head.as_bytes(), name.as_bytes()].concat())?;
        }
    }
    settled(directory)
}

/// Makes a snapshot of the subvolume at `source` at `path`.
pub fn snapshot(source: &Path, path: &Path, read_only: bool) -> Result<(), Errno> {
    snapshot_in(source, path, read_only, &[])
}

/// The same, in groups of quotas from the beginning.
pub fn snapshot_in(
    source: &Path,
    path: &Path,
    read_only: bool,
    groups: &[u64],
) -> Result<(), Errno> {
    let (directory, name) = split(path)?;
    let metadata = std::fs::metadata(source).map_err(errno)?;
    if metadata.dev() != std::fs::metadata(directory).map_err(errno)?.dev() {
        return Err(Errno::XDEV);
    }
    let kind = if read_only { "ro" } else { "rw" };
    let head = format!("{} {kind} ", metadata.ino());
    let (word, groups) = match groups {
        [] => ("snapshot", String::new()),
        _ => ("snapshot-in", format!("{} ", groups_word(groups))),
    };
    set(directory, word, &[head.as_bytes(), groups.as_bytes(), name.as_bytes()].concat())?;
    settled(directory)
}

/// Deletes the subvolume at `path`.
pub fn delete_subvolume(path: &Path) -> Result<(), Errno> {
    let (directory, name) = split(path)?;
    set(directory, "delete", name.as_bytes())?;
    settled(directory)?;
    // The kernel looks the name up, finds it gone, and forgets all that it has seen below. Nobody else might ever look.
    let _gone = path.symlink_metadata();
    Ok(())
}

/// Deletes the subvolume with this id, wherever it lies in the filesystem that `path` is on.
pub fn delete_subvolume_by_id(path: &Path, id: u64) -> Result<(), Errno> {
    set(path, "delete-id", id.to_string().as_bytes())?;
    settled(path)
}

/// The options of the mount that are the same for all mounts of the filesystem.
pub fn options(path: &Path) -> Result<Vec<String>, Errno> {
    let text = get(path, "options")?;
    let text = String::from_utf8(text).map_err(|_| Errno::PROTO)?;
    Ok(text.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect())
}

/// Describes the subvolume `path` lies in.
pub fn subvolume(path: &Path) -> Result<SubvolumeFacts, Errno> {
    one_subvolume(&get(path, "subvolume")?)
}

/// Describes a subvolume by its id.
pub fn subvolume_by_id(path: &Path, id: u64) -> Result<SubvolumeFacts, Errno> {
    one_subvolume(&get(path, &format!("subvolume.{id}"))?)
}

/// All subvolumes in ascending order of their ids, the top level first.
pub fn subvolumes(path: &Path) -> Result<Vec<SubvolumeFacts>, Errno> {
    list(path, "subvolumes")
}

/// Subvolumes that are deleted and whose space is not free yet, in ascending order of their ids. They have no name.
pub fn deleted_subvolumes(path: &Path) -> Result<Vec<SubvolumeFacts>, Errno> {
    list(path, "deleted")
}

fn list(path: &Path, word: &str) -> Result<Vec<SubvolumeFacts>, Errno> {
    let mut all: Vec<SubvolumeFacts> = Vec::new();
    loop {
        let from = all.last().map_or(0, |last| last.id.saturating_add(1));
        let records = Record::all(&get(path, &format!("{word}.{from}"))?);
        if records.is_empty() {
            return Ok(all);
        }
        for record in records {
            all.push(record.subvolume().ok_or(Errno::PROTO)?);
        }
    }
}

/// The path of the file at `path` inside its subvolume.
pub fn path_in_subvolume(path: &Path) -> Result<Vec<u8>, Errno> {
    get(path, "path")
}

/// Where a subvolume is, as a path inside the subvolume that holds it; empty for the top level.
pub fn place_of_subvolume(path: &Path, id: u64) -> Result<Vec<u8>, Errno> {
    get(path, &format!("place.{id}"))
}

/// Makes the subvolume at `path` read-only or writable.
pub fn set_read_only(path: &Path, read_only: bool) -> Result<(), Errno> {
    set(path, "readonly", if read_only { b"1" } else { b"0" })
}

/// Id of the subvolume mounted by default.
pub fn default_subvolume(path: &Path) -> Result<u64, Errno> {
    let text = get(path, "default")?;
    std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok()).ok_or(Errno::PROTO)
}

/// Makes the subvolume at `path` the default.
pub fn set_default(path: &Path) -> Result<(), Errno> {
    set(path, "default", b"")
}

/// Makes the subvolume with this id the default; 0 is the top level.
pub fn set_default_by_id(path: &Path, id: u64) -> Result<(), Errno> {
    set(path, "default-id", id.to_string().as_bytes())
}

/// How the file at `path` is stored from an offset on (0, or where the last answer ended), and where to go on: what is written
/// but not durable yet is left out.
pub fn stored(path: &Path, from: u64) -> Result<StoredPart, Errno> {
    trees::stored_part(&get(path, &format!("stored.{from}"))?).ok_or(Errno::PROTO)
}

/// All paths of inode `ino` inside the subvolume that `path` lies in; `..` for its top directory.
pub fn paths_of_inode(path: &Path, ino: u64) -> Result<Vec<Vec<u8>>, Errno> {
    let mut all = Vec::new();
    loop {
        let answer = get(path, &format!("paths.{ino}.{}", all.len()))?;
        let Some(answer) = answer.strip_suffix(&[0]) else { return Ok(all) };
        all.extend(answer.split(|byte| *byte == 0).map(<[u8]>::to_vec));
    }
}

/// The files that refer to the data at a logical address, in the last commit, which is made first; and how many there are besides. `EBUSY`
/// where commits come faster than they can be told.
pub fn referrers(path: &Path, wanted: &WantedReferrers) -> Result<Referrers, Errno> {
    for _ in 0..REFERRERS_TRIES {
        if let Some(all) = referrers_of_one_commit(path, wanted)? {
            return Ok(all);
        }
    }
    Err(Errno::BUSY)
}

/// `None` when a commit came between two answers.
fn referrers_of_one_commit(
    path: &Path,
    wanted: &WantedReferrers,
) -> Result<Option<Referrers>, Errno> {
    let (mut found, mut first) = (Vec::new(), None);
    loop {
        let answer = get(path, &trees::referrers_word(wanted, found.len()))?;
        let part = trees::take_referrers(&answer).ok_or(Errno::PROTO)?;
        let (generation, total, left_out) = (part.generation, part.total, part.left_out);
        if *first.get_or_insert(generation) != generation {
            return Ok(None);
        }
        let some = !part.found.is_empty();
        found.extend(part.found);
        // A mount that does not go on must not keep anybody for ever.
        if !some || found.len() as u64 >= total {
            return Ok(Some(Referrers { found, left_out }));
        }
    }
}

/// Items of a tree (0: of the subvolume that `path` lies in) from `from` to `to`, both included, of leaves that transaction
/// `since` or a later one wrote, until `each` answers `false`. What was done before is made durable first, and seen.
pub fn search(
    path: &Path,
    tree: u64,
    (mut from, to): (TreeKey, TreeKey),
    since: u64,
    each: &mut dyn FnMut(FoundItem<'_>) -> bool,
) -> Result<(), Errno> {
    loop {
        let answer = get(path, &trees::Wanted { tree, from, to, since }.word())?;
        let (mut rest, mut last) = (&answer[..], None);
        while !rest.is_empty() {
            let item = trees::take_item(&mut rest).ok_or(Errno::PROTO)?;
            if !each(item) {
                return Ok(());
            }
            last = Some(item.key);
        }
        match last.filter(|last| *last < to).and_then(TreeKey::next) {
            Some(next) => from = next,
            None => return Ok(()),
        }
    }
}

/// The extents of the file at `path` from `from` on, as many as fit into an answer; none at its end. What only
/// the kernel's pages have is not known there before an fsync(2) of the file.
pub fn fiemap(path: &Path, from: u64) -> Result<Vec<ExtentFacts>, Errno> {
    let records = Record::all(&get(path, &format!("fiemap.{from}"))?);
    records.iter().map(|record| record.extent().ok_or(Errno::PROTO)).collect()
}

/// Facts about the filesystem.
pub fn facts(path: &Path) -> Result<Facts, Errno> {
    Record::facts(&Record::all(&get(path, "facts")?)).ok_or(Errno::PROTO)
}

/// Space in use, by kind of block group.
pub fn spaces(path: &Path) -> Result<Vec<SpaceFacts>, Errno> {
    let records = Record::all(&get(path, "spaces")?);
    records.iter().map(|record| record.space().ok_or(Errno::PROTO)).collect()
}

/// What the process behind the mount has done so far, by name.
pub fn stats(path: &Path) -> Result<Vec<(String, u64)>, Errno> {
    let records = Record::all(&get(path, "stats")?);
    records.first().and_then(Record::figures).ok_or(Errno::PROTO)
}

/// What subvolumes take.
#[derive(Clone, Debug, Default)]
pub struct SubvolumeCosts {
    /// Each of them, by its id.
    pub shares: Vec<(u64, Share)>,
    /// What all take together, each thing once.
    pub total: Bytes,
    /// What of it several refer to, each thing once.
    pub shared: Bytes,
    /// What would be free without those asked about.
    pub freed: Bytes,
}

/// Has the process behind the mount commit, and count what subvolumes take, and what would be free without those in `ids`.
/// `told` hears how far it is. EBUSY where commits come faster than it can count, ECANCELED where others have too much counted
/// at the same time.
pub fn subvolume_costs(
    path: &Path,
    ids: &[u64],
    told: &mut dyn FnMut(Progress),
) -> Result<SubvolumeCosts, Errno> {
    commit(path)?;
    let number = String::from_utf8(get(path, "count")?).map_err(|_| Errno::PROTO)?;
    let first = |answer: Vec<u8>| Record::all(&answer).into_iter().next().ok_or(Errno::PROTO);
    loop {
        let answer = first(get(path, &format!("count.{number}"))?)?;
        match answer.progress().ok_or(Errno::PROTO)? {
            Some(progress) => told(progress),
            None => break,
        }
    }
    let mut shares: Vec<(u64, Share)> = Vec::new();
    loop {
        let from = shares.last().map_or(0, |(id, _)| id.saturating_add(1));
        let records = Record::all(&get(path, &format!("costs-{number}.{from}"))?);
        if records.is_empty() {
            break;
        }
        for record in records {
            shares.push(record.share().ok_or(Errno::PROTO)?);
        }
    }
    ids.iter().try_for_each(|id| get(path, &format!("asked-{number}.{id}")).map(drop))?;
    let sums = first(get(path, &format!("sums.{number}"))?)?;
    let [total, shared, freed] = sums.sums().ok_or(Errno::PROTO)?;
    get(path, &format!("counted.{number}"))?;
    Ok(SubvolumeCosts { shares, total, shared, freed })
}

/// How it is with quotas.
pub fn quotas(path: &Path) -> Result<QuotaFacts, Errno> {
    let records = Record::all(&get(path, "quota")?);
    records.first().and_then(Record::quotas).ok_or(Errno::PROTO)
}

/// Has the process behind the mount begin to switch quotas on: they are when all is counted.
pub fn enable_quotas(path: &Path) -> Result<(), Errno> {
    set(path, "quota", b"on")
}

/// Switches simple quotas on; what is on already stays.
pub fn enable_simple_quotas(path: &Path) -> Result<(), Errno> {
    set(path, "quota", b"simple")
}

/// Switches quotas off.
pub fn disable_quotas(path: &Path) -> Result<(), Errno> {
    set(path, "quota", b"off")
}

/// Has the process behind the mount begin to count quotas anew. EINPROGRESS where it does already, ENOTCONN where they are off.
pub fn rescan_quotas(path: &Path) -> Result<(), Errno> {
    set(path, "quota", b"rescan")
}

/// Waits while quotas are counted because somebody has asked for that, and fails as the last counting has. `told` hears how far it is.
pub fn wait_for_quotas(path: &Path, told: &mut dyn FnMut(Progress)) -> Result<(), Errno> {
    let mut pauses = Pauses::default();
    loop {
        let count = quotas(path)?.count;
        if !count.running {
            return count.failed.map_or(Ok(()), Err);
        }
        count.progress.into_iter().for_each(&mut *told);
        pauses.wait();
    }
}

/// Changes a group of quotas; whether all numbers are right after that.
pub fn change_qgroup(path: &Path, change: QgroupChange) -> Result<bool, Errno> {
    set(path, "qgroup", change.word().as_bytes())?;
    Ok(!quotas(path)?.wrong)
}

/// How it is with balances.
pub fn balance_facts(path: &Path) -> Result<BalanceFacts, Errno> {
    Record::balance(&Record::all(&get(path, "balance")?)).ok_or(Errno::PROTO)
}

/// Has the process behind the mount begin a balance; it goes on by itself.
pub fn start_balance(path: &Path, balance: &Balance) -> Result<(), Errno> {
    set(path, "balance", start_word(balance).as_bytes())
}

/// Has it go on with the balance that was paused or interrupted. ENOTCONN where there is none.
pub fn resume_balance(path: &Path) -> Result<(), Errno> {
    set(path, "balance", b"resume")
}

/// Has a balance that runs end, soon; one that is paused can be cancelled. ENOTCONN where there is none.
pub fn stop_balance(path: &Path, why: BalanceStop) -> Result<(), Errno> {
    let word: &[u8] = if why == BalanceStop::Pause { b"pause" } else { b"cancel" };
    set(path, "balance", word)
}

/// Waits while a balance runs: `told` hears how far it is. What came of it; an error for none.
pub fn wait_for_balance(
    path: &Path,
    told: &mut dyn FnMut(Balancing) -> Option<BalanceStop>,
) -> Result<Balanced, Errno> {
    let mut pauses = Pauses::default();
    loop {
        let task = balance_facts(path)?.task;
        if !task.running {
            return task.ended.unwrap_or(Err(Errno::NOTCONN));
        }
        if let Some(why) = told(task.progress.unwrap_or_default()) {
            match stop_balance(path, why) {
                Err(Errno::NOTCONN) | Ok(()) => {}
                Err(errno) => return Err(errno),
            }
        }
        pauses.wait();
    }
}

/// Has the process behind the mount tell its device what is free, and waits: `told` hears how many bytes that are so far, and may end it by
/// `false`. Answers the bytes. Meanwhile the mount is in use.
pub fn trim(path: &Path, min: u64, told: &mut dyn FnMut(u64) -> bool) -> Result<u64, Errno> {
    let place = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", place.as_raw_fd()));
    let ask = |word: &str| {
        let records = Record::all(&get(&path, word)?);
        records.first().and_then(Record::trim).ok_or(Errno::PROTO)
    };
    let mut pauses = Pauses::default();
    let begin = format!("trim.{min}");
    loop {
        match ask(&begin) {
            // Another one is waited for.
            Err(Errno::INPROGRESS) if told(0) => pauses.wait(),
            Err(Errno::INPROGRESS) => return Err(Errno::INTR),
            Err(errno) => return Err(errno),
            Ok(_) => break,
        }
    }
    loop {
        let task = ask("trim")?;
        if !task.running {
            return task.ended.unwrap_or(Err(Errno::NOTCONN));
        }
        if !told(task.progress.unwrap_or_default()) {
            match ask("trim-end") {
                Err(Errno::NOTCONN) | Ok(_) => {}
                Err(errno) => return Err(errno),
            }
        }
        pauses.wait();
    }
}

/// How it is with the size of the device.
pub fn resize_facts(path: &Path) -> Result<ResizeFacts, Errno> {
    Record::all(&get(path, "resize")?).first().and_then(Record::resize).ok_or(Errno::PROTO)
}

/// Has the process behind the mount give the device another size; what takes long of that goes on by itself.
pub fn resize(path: &Path, size: u64) -> Result<(), Errno> {
    set(path, "resize", size.to_string().as_bytes())
}

/// Waits while the size changes: `told` hears how far that is, and may end it by `false`.
pub fn wait_for_resize(path: &Path, told: &mut dyn FnMut(Emptying) -> bool) -> Result<(), Errno> {
    let mut pauses = Pauses::default();
    loop {
        let task = resize_facts(path)?.task;
        if !task.running {
            return task.ended.unwrap_or(Ok(()));
        }
        if !told(task.progress.unwrap_or_default()) {
            match set(path, "resize", b"cancel") {
                Err(Errno::NOTCONN) | Ok(()) => {}
                Err(errno) => return Err(errno),
            }
        }
        pauses.wait();
    }
}

/// Renames the filesystem.
pub fn set_label(path: &Path, label: &[u8]) -> Result<(), Errno> {
    set(path, "label", label)
}

/// Makes everything durable that was done on the mount before.
pub fn commit(path: &Path) -> Result<(), Errno> {
    get(path, "commit").map(drop)
}

/// Why [`commit`] fails, in words, where the mount can tell.
pub fn why_no_commit(path: &Path) -> Option<String> {
    String::from_utf8(get(path, "why").ok()?).ok().filter(|why| !why.is_empty())
}

fn one_subvolume(answer: &[u8]) -> Result<SubvolumeFacts, Errno> {
    Record::all(answer).first().and_then(Record::subvolume).ok_or(Errno::PROTO)
}

fn get(path: &Path, word: &str) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0u8; VALUE_BYTES_MAX];
    let length = getxattr(path, format!("{PREFIX}{word}"), &mut buffer)?;
    buffer.truncate(length);
    Ok(buffer)
}

fn set(path: &Path, word: &str, value: &[u8]) -> Result<(), Errno> {
    setxattr(path, format!("{PREFIX}{word}"), value, XattrFlags::empty())
}

/// Waits until the kernel sees what was done to names.
fn settled(directory: &Path) -> Result<(), Errno> {
    get(directory, "settled").map(drop)
}

/// Directory and name of something that is to be made or deleted.
fn split(path: &Path) -> Result<(&Path, &OsStr), Errno> {
    let name = path.file_name().ok_or(Errno::INVAL)?;
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    Ok((directory.unwrap_or(Path::new(".")), name))
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
