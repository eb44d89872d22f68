//! What every state must be.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use buttress::{Filesystem, Node};
use buttress_check::{Kind, Options, Progress};
use buttress_device::{Access, BlockDevice, MemoryDevice};
use buttress_ondisk::check::{self, Expect};
use buttress_ondisk::item::RootItem;
use buttress_ondisk::superblock::{SUPERBLOCK_LEN, SUPERBLOCK_OFFSETS};
use buttress_ondisk::{Key, TreeBlock, kind, objectid};
use buttress_volume::{Rescue, TreeRoot, Volume, VolumeError, walk, walk_blocks};

use super::found;
use super::half::half;
use super::promise::{self, Span};
use super::record::{Expected, Recording};
use super::states::Disk;
use crate::model::{Model, QuotaMode};
use crate::ops::run::{Clock, Config, Failure, Result, Runner, engine, fail, open, options};
use crate::ops::{Make, Op, compare, kernel};
use crate::oracle::{KernelMount, SIMPLE_QUOTAS, btrfs, temp_dir};

/// The file that shows that a filesystem can be written.
const PROBE: &str = "/written-after-the-crash";

/// Judges a state; answers what the filesystem in it holds.
pub fn judge(recording: &Recording, config: &Config, disk: &Disk) -> Result<Model> {
    examine(config, &disk.device, |transid| in_time(recording, disk.state.cut, transid))
}

/// Judges a disk whose transaction leaves a choice, which `expect` names; answers what the filesystem holds.
pub fn examine<'r>(
    config: &Config,
    device: &MemoryDevice,
    expect: impl FnOnce(u64) -> Result<Expected<'r>>,
) -> Result<Model> {
    let memory = Arc::new(device.snapshot());
    let disk: Arc<dyn BlockDevice> = memory.clone();
    let Opened { fs, model, clock, logged, nameless } = opened(config, device, &disk, expect)?;
    blocks(fs.volume())?;
    let faults = fs.volume().stats();
    if faults.bad_blocks + faults.bad_sectors > 0 {
        return fail(format!("copies are bad: {faults:?}"));
    }
    checker(device, logged)?;
    let mut runner = Runner::resume(fs, disk, config, clock, model.clone());
    again(&mut runner)?;
    if logged {
        // A number that nothing durable has may have gone to the file that was made since. Other subvolumes are rid of theirs when
        // somebody changes something there.
        let there = |node: &&Node| {
            node.subvolume == Node::ROOT.subvolume
                && runner.model().inode(**node).is_none()
                && runner.fs().attributes(**node).is_ok()
        };
        if let Some(node) = nameless.iter().find(there) {
            return fail(format!("{node:?} has no name and is still there"));
        }
    }
    // What has been replayed, and what goes on to be counted.
    if logged || model.quotas != QuotaMode::Off {
        drop(runner);
        checker(&memory, false)?;
    }
    Ok(model)
}

/// Judges a state by what can be seen of its files only; answers what the filesystem in it holds.
pub fn glance(recording: &Recording, config: &Config, disk: &Disk) -> Result<Model> {
    let copy: Arc<dyn BlockDevice> = Arc::new(disk.device.snapshot());
    let expect = |transid| in_time(recording, disk.state.cut, transid);
    Ok(opened(config, &disk.device, &copy, expect)?.model)
}

/// What a disk has been opened as.
struct Opened {
    fs: Filesystem,
    model: Model,
    clock: Clock,
    logged: bool,
    /// Files that had names, and whose space the next mount must have given back.
    nameless: BTreeSet<Node>,
}

/// Opens the copy `disk` of a device to be written, and compares what it holds with what it may hold.
fn opened<'r>(
    config: &Config,
    device: &MemoryDevice,
    disk: &Arc<dyn BlockDevice>,
    expect: impl FnOnce(u64) -> Result<Expected<'r>>,
) -> Result<Opened> {
    let (transid, logged) = committed(device)?;
    let clock = Clock::default();
    let fs = match is_refused(device) {
        false => engine("open", open(disk, config, &clock))?,
        true => on_request(disk, config, &clock, logged)?,
    };
    warnings(&fs, device)?;
    let expected = expect(transid)?;
    let model = match &expected.span {
        Some(span) if logged => replayed(&fs, config, span),
        _ if logged => fail("a log of fsyncs waits where there can be none"),
        span => same(&fs, &expected).and_then(|model| match span {
            Some(span) if !span.synced.is_empty() => {
                let found = found::model(&fs, config.nodesize)?;
                promise::check(span, &found).map(|()| model)
            }
            _ => Ok(model),
        }),
    };
    let model = model.map_err(|Failure(why)| {
        let log = if logged { ", with a log" } else { "" };
        let mirror = if has_primary(device) { "" } else { ", by a mirror" };
        Failure(format!("transaction {transid}{log}{mirror}, {}: {why}", expected.when))
    })?;
    let nameless = match &expected.span {
        Some(span) if logged => promise::nameless(span, &model),
        _ => BTreeSet::new(),
    };
    Ok(Opened { fs, model, clock, logged, nameless })
}

/// The transaction of the superblock that a disk is opened by, and whether a log of fsyncs waits.
pub fn committed(device: &MemoryDevice) -> Result<(u64, bool)> {
    let opened = Volume::open(vec![Arc::new(device.snapshot())], Access::ReadOnly);
    let volume = opened.map_err(|error| Failure(format!("open: {error}")))?.volume;
    let superblock = volume.superblock();
    Ok((superblock.generation.get(), superblock.log_root.get() != 0))
}

/// What the filesystem holds after its log has been replayed, if that may be.
fn replayed(fs: &Filesystem, config: &Config, span: &Span<'_>) -> Result<Model> {
    let found = found::model(fs, config.nodesize)?;
    promise::check(span, &found)?;
    // What has lost its last name may wait for the next mount with that.
    let named = |node: &&Node| fs.attributes(**node).is_ok_and(|found| found.nlink > 0);
    match promise::nameless(span, &found).iter().find(named) {
        Some(node) => fail(format!("{node:?} has no name, but links")),
        None => Ok(found),
    }
}

/// Whether what is left of a torn primary superblock does not show that the mirror is of the last commit. Then writing is
/// refused, unless the user asks for it: a finished commit that was damaged later may look the same.
pub fn is_refused(device: &MemoryDevice) -> bool {
    let rescue = Rescue { replays_log: true, ..Rescue::default() };
    let opened = Volume::open_rescue(vec![Arc::new(device.snapshot())], Access::ReadWrite, rescue);
    !has_primary(device) && matches!(opened, Err(VolumeError::OldMirror { .. }))
}

/// Opens such a disk: for reading as it is, for writing on request, and both show the same commit; what replays a log makes one more.
fn on_request(
    disk: &Arc<dyn BlockDevice>,
    config: &Config,
    clock: &Clock,
    logged: bool,
) -> Result<Filesystem> {
    let reader = engine(
        "open read-only",
        Filesystem::open_device(disk.clone(), buttress::Options::read_only()),
    )?;
    let writable = options(config, clock).use_backup_super(true);
    let writer = engine("open on request", Filesystem::open_device(disk.clone(), writable))?;
    match reader.info().generation + u64::from(logged) == writer.info().generation {
        true => Ok(writer),
        false => fail("reading shows another commit than writing"),
    }
}

/// Our own checker's word on a disk, data included.
fn checker(device: &MemoryDevice, logged: bool) -> Result<()> {
    let opened = Volume::open(vec![Arc::new(device.snapshot())], Access::ReadOnly);
    let volume = opened.map_err(|error| Failure(format!("checker: {error}")))?.volume;
    let options = Options { check_data_csum: true, threads: 1, ..Options::default() };
    let report = buttress_check::check(&volume, &options, &Progress::default());
    // What a power loss alone does to superblocks: the primary is torn, a mirror is torn or a commit behind.
    let torn = |kind: Kind| match kind {
        Kind::SuperBad => !has_primary(device),
        Kind::SuperMirror | Kind::SuperStale => true,
        Kind::LogWaits => logged,
        _ => false,
    };
    let faults = report.issues.iter().filter(|issue| !torn(issue.kind));
    let lines: Vec<_> = faults.map(ToString::to_string).collect();
    if lines.is_empty() { Ok(()) } else { fail(format!("checker: {}", lines.join("; "))) }
}

/// Whether the primary superblock is whole.
pub fn has_primary(device: &MemoryDevice) -> bool {
    let mut bytes = [0; SUPERBLOCK_LEN];
    device.read_at(SUPERBLOCK_OFFSETS[0], &mut bytes).is_ok() && check::superblock(&bytes).is_ok()
}

/// Opening had nothing to say, unless the primary superblock is torn.
fn warnings(fs: &Filesystem, device: &MemoryDevice) -> Result<()> {
    match &fs.warnings()[..] {
        [] => Ok(()),
        [_] if !has_primary(device) => Ok(()),
        warnings => fail(format!("opened with {warnings:?}")),
    }
}

/// The transaction is not too old and not too new.
fn in_time(recording: &Recording, cut: usize, transid: u64) -> Result<Expected<'_>> {
    let promised = recording.promised(cut);
    if transid < promised {
        return fail(format!("transaction {transid}, but {promised} was acknowledged"));
    }
    match recording.version(transid) {
        Some(version) if version.began <= cut => Ok(recording.at(version, transid, cut)),
        Some(version) => fail(format!(
            "transaction {transid} of operation {}, which had not begun",
            version.number
        )),
        None => fail(format!("transaction {transid} never was")),
    }
}

/// The model that the filesystem equals: the one after the operation is the likeliest.
fn same(fs: &Filesystem, expected: &Expected<'_>) -> Result<Model> {
    let mut reasons = Vec::new();
    for model in expected.models.iter().rev() {
        match compare::all(fs, model) {
            Ok(()) => return Ok(model.clone()),
            Err(Failure(why)) => reasons.push(why),
        }
    }
    if let (Some(node), [before, after]) = (expected.stepped, expected.models) {
        let part = half(fs, before, after, node);
        match part.and_then(|model| compare::all(fs, &model).map(|()| model)) {
            Ok(model) => return Ok(model),
            Err(Failure(why)) => reasons.push(why),
        }
    }
    fail(format!("none of what may be there: {}", reasons.join("; nor: ")))
}

// ---- blocks ----

/// Reads every copy of every block of every tree through the gate. What is gone of a tree that is half dropped may be anywhere by now, and so may what was
/// there.
fn blocks(volume: &Volume) -> Result<()> {
    let superblock = volume.superblock();
    let root = TreeRoot::root_tree(&superblock);
    let mut trees = vec![(TreeRoot::chunk_tree(&superblock), Key::MIN), (root, Key::MIN)];
    let listed = walk(volume, &root, Key::MIN..=Key::MAX, |key, data| {
        let item = RootItem::read(data).filter(|_| key.kind == kind::ROOT_ITEM);
        if let Some(item) = item {
            let tree = TreeRoot {
                bytenr: item.bytenr.get(),
                level: item.level,
                generation: Some(item.generation.get()),
                owner: Some(key.objectid).filter(|id| *id != objectid::TREE_RELOC),
            };
            trees.push((tree, Key::from(item.drop_progress)));
        }
        ControlFlow::<()>::Continue(())
    });
    listed.map(drop).map_err(|error| Failure(format!("root tree: {error}")))?;
    for (tree, first) in trees {
        let walked = walk_blocks(volume, &tree, first..=Key::MAX, |block| {
            match second_copy(volume, block) {
                Ok(()) => ControlFlow::Continue(()),
                Err(failure) => ControlFlow::Break(failure),
            }
        });
        let name = tree.owner.unwrap_or_default();
        match walked {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(Failure(why))) => return fail(format!("tree {name}: {why}")),
            Err(error) => return fail(format!("tree {name}: {error}")),
        }
    }
    Ok(())
}

fn second_copy(volume: &Volume, block: &TreeBlock) -> Result<()> {
    let chunks = volume.chunks();
    let chunk = chunks.iter().find(|it| (it.logical..it.end()).contains(&block.bytenr()));
    let copies = chunk.map_or(0, |chunk| chunk.profile().copies());
    let expect = Expect {
        level: Some(block.level()),
        generation: Some(block.generation()),
        ..Expect::at(block.bytenr())
    };
    for copy in 1..copies {
        let read = volume.read_block_from(block.bytenr(), &expect, copy);
        read.map_err(|error| Failure(format!("copy {copy}: {error}")))?;
    }
    Ok(())
}

// ---- after the crash ----

/// The filesystem can be written, and holds that, too, when it is opened again.
fn again(runner: &mut Runner) -> Result<()> {
    let at = PROBE.to_owned();
    let ops = [
        Op::Make { at: at.clone(), what: Make::File, mode: 0o600, owner: 0 },
        Op::Write { at: at.clone(), offset: 0, len: 6000, seed: 7 },
        Op::SetXattr {
            at,
            name: "user.after".into(),
            len: 9,
            seed: 3,
            how: buttress::SetXattr::Any,
        },
        Op::Clean,
    ];
    for op in &ops {
        runner.step(op)?;
    }
    // Where there was no room for a file, a commit of nothing must still be possible.
    if runner.counts.no_space > 0 {
        engine("label", runner.fs().set_label(b"crashed"))?;
    }
    runner.step(&Op::Reopen)
}

// ---- oracles ----

fn oracle<T, E: std::fmt::Display>(result: std::result::Result<T, E>) -> Result<T> {
    result.map_err(|error| Failure(error.to_string()))
}

/// Linux mounts the disk read-only and finds what the model holds; then writable, makes a file, and has nothing to say in its
/// log; what it leaves passes `btrfs check`, and we find what it made.
pub fn linux(device: &MemoryDevice, config: &Config, model: &Model) -> Result<()> {
    // A log is replayed on a writable device only; the times that Linux gives directories then are its own.
    let (_, logged) = committed(device)?;
    if !logged {
        kernel::mounted(device, model)?;
    }
    let dir = oracle(temp_dir())?;
    let image = dir.path().join("image");
    oracle(device.store(&image))?;
    let mount = oracle(KernelMount::new(&image, "subvolid=5,noatime"))?;
    match logged {
        false => kernel::tree(model, Node::ROOT, mount.path())?,
        true => kernel::tree_but_times(model, Node::ROOT, mount.path())?,
    }
    let made = std::fs::write(mount.path().join(&PROBE[1..]), [7; 6000]);
    let full = matches!(&made, Err(error) if error.raw_os_error() == Some(28));
    if !full {
        oracle(made)?;
    }
    oracle(mount.finish())?;
    let after = oracle(MemoryDevice::load(&image))?;
    kernel::check_with_quotas(&after, config)?;
    let after: Arc<dyn BlockDevice> = Arc::new(after);
    let fs = engine("open what Linux wrote", open(&after, config, &Clock::default()))?;
    let found = engine("lookup", fs.lookup(Node::ROOT, &PROBE.as_bytes()[1..]))?;
    if found.is_none() && !full { fail("what Linux wrote is not there") } else { Ok(()) }
}

/// `btrfs check` by way of the first mirror, for a disk whose primary superblock is torn.
pub fn progs_by_mirror(device: &MemoryDevice, config: &Config) -> Result<()> {
    let dir = oracle(temp_dir())?;
    let image = dir.path().join("image");
    oracle(device.store(&image))?;
    let path = image.to_string_lossy();
    match oracle(btrfs(&["check", "--super", "1", "--check-data-csum", &path])) {
        Ok(report) if report.contains("no error found") => Ok(()),
        // Numbers of what is dropped half way are seen when all is dropped, by which the primary superblock is whole again.
        Ok(why) | Err(Failure(why)) if why.contains("Counts for qgroup id") => {
            let rest = Arc::new(device.snapshot());
            let options = options(config, &Clock::default()).use_backup_super(true);
            let fs = engine("open", Filesystem::open_device(rest.clone(), options))?;
            engine("clean", fs.clean())?;
            engine("close", fs.close())?;
            kernel::check(&rest)
        }
        // Ours has judged those.
        Err(Failure(why)) if why.contains(SIMPLE_QUOTAS) => Ok(()),
        Ok(why) => Err(Failure(why)),
        Err(failure) => Err(failure),
    }
}
