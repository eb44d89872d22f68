//! Logs with any bytes in them: they are replayed or refused, and what is refused leaves the image as it was.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress::{Filesystem, Options};
use buttress_check::{Kind, Progress, Severity};
use buttress_device::testing::RecordingDevice;
use buttress_device::{Access, MemoryDevice};
use buttress_ondisk::item::{InodeItem, RootItem, mode};
use buttress_ondisk::{HEADER_LEN, kind};
use buttress_testkit::damage::{Patient, bytes::item};
use buttress_testkit::facts::facts_of_library;
use buttress_testkit::ops::rng::Rng;
use buttress_testkit::oracle::{root_or_skip, temp_dir};
use buttress_volume::Volume;
use zerocopy::FromBytes;

use crate::cases::CASES;
use crate::reach::reach;
use crate::{Failed, make};

/// Images.
const SAMPLE: [&str; 5] =
    ["deleted and new", "cloned over", "many links", "xattrs", "reserved and written"];
/// Images of which each inode becomes one of another kind.
const KINDS: [&str; 4] = ["deleted and new", "symbolic links", "cloned over", "xattrs"];
/// Changes of each; more with `BUTTRESS_LOGS`.
const CHANGES: u64 = 150;

/// Addresses of all blocks of the logs.
fn blocks(patient: &Patient) -> Result<Vec<u64>, Failed> {
    let mut waiting = vec![patient.volume().superblock().log_root.get()];
    let mut found = Vec::new();
    while let Some(at) = waiting.pop() {
        found.push(at);
        let block = patient.block(at)?;
        if !block.is_leaf() {
            waiting.extend((0..block.len()).map(|slot| block.child(slot).bytenr));
            continue;
        }
        for (key, data) in (0..block.len()).map(|slot| block.item(slot)) {
            let root = RootItem::read(data).filter(|_| key.kind == kind::ROOT_ITEM);
            waiting.extend(root.map(|root| root.bytenr.get()));
        }
    }
    Ok(found)
}

/// Changes some bytes of a block, where there are items or keys.
fn change(rng: &mut Rng, bytes: &mut [u8], used: &[usize]) {
    for _ in 0..1 + rng.below(3) {
        let at = *rng.pick(used);
        let Some(byte) = bytes.get_mut(at) else { continue };
        *byte = match rng.below(4) {
            0 => byte.wrapping_add(1),
            1 => 0,
            2 => *byte ^ 1 << rng.below(8),
            _ => rng.below(256) as u8,
        };
    }
}

/// What is wrong with a filesystem into which such a log was replayed, if it is more than the log itself can make wrong.
fn faults(device: &MemoryDevice) -> Result<Vec<String>, Failed> {
    let volume = Volume::open(vec![Arc::new(device.snapshot())], Access::ReadOnly)?.volume;
    let options = buttress_check::Options { threads: 1, ..Default::default() };
    let report = buttress_check::check(&volume, &options, &Progress::default());
    let of_log = |kind: Kind| OF_LOG.iter().any(|known| format!("{kind:?}").starts_with(known));
    let wrong = report
        .issues
        .iter()
        .filter(|issue| issue.kind.severity() == Severity::Error && !of_log(issue.kind));
    Ok(wrong.map(|issue| format!("{:?}: {issue}", issue.kind)).collect())
}

/// What a log says of the content of files, right or wrong, is what the files are.
const OF_LOG: [&str; 1] = ["FileCsum"];

/// A log of which some bytes are others.
fn changed(base: &MemoryDevice, seed: u64) -> Result<&'static str, Failed> {
    let mut rng = Rng::new(seed);
    let patient = Patient::of(base)?;
    let all = blocks(&patient)?;
    let at = *rng.pick(&all);
    let block = patient.block(at)?;
    let used: Vec<usize> = (HEADER_LEN..block.as_bytes().len())
        .filter(|at| block.as_bytes().get(*at).is_some_and(|byte| *byte != 0))
        .collect();
    patient.edit_block(at, |bytes| change(&mut rng, bytes, &used))?;
    hostile(&patient.device().snapshot())
}

/// Whether it is replayed or refused.
fn hostile(disk: &MemoryDevice) -> Result<&'static str, Failed> {
    let shown = Filesystem::open_device(Arc::new(disk.snapshot()), Options::read_only())?;
    let _whatever_can_be_read = facts_of_library(&shown);
    let _whatever_is_told = reach(&shown);
    let recorded = Arc::new(RecordingDevice::new(disk));
    let options = Options::read_write().background(false);
    let opened = Filesystem::open_device(recorded.clone(), options);
    let fs = match opened {
        Ok(fs) => fs,
        Err(_) if recorded.event_count() == 0 => return Ok("refused"),
        Err(error) => return Err(format!("refused, but something was written: {error}").into()),
    };
    fs.close()?;
    let faults = faults(&recorded.current())?;
    if faults.is_empty() { Ok("replayed") } else { Err(faults.join("; ").into()) }
}

/// The places of inodes in a log: blocks, and slots in them.
fn inodes(patient: &Patient) -> Result<Vec<(u64, usize)>, Failed> {
    let mut found = Vec::new();
    for at in blocks(patient)? {
        let block = patient.block(at)?;
        let slots = if block.is_leaf() { 0..block.len() } else { 0..0 };
        let inodes = slots.filter(|slot| block.item(*slot).0.kind == kind::INODE_ITEM);
        found.extend(inodes.map(|slot| (at, slot)));
    }
    Ok(found)
}

/// A log with one inode of another kind, as it is, without a length, and as one of which only the existence was logged.
fn inodes_of_other_kinds(base: &MemoryDevice) -> Result<BTreeMap<&'static str, u64>, Failed> {
    let mut came = BTreeMap::new();
    for (at, slot) in inodes(&Patient::of(base)?)? {
        for (kind, how) in (0..16).flat_map(|kind| (0..4).map(move |how| (kind, how))) {
            let patient = Patient::of(base)?;
            edit_inode(&patient, (at, slot), |inode| {
                inode.mode = (inode.mode.get() & mode::PERMISSIONS | kind << 12).into();
                if how & 1 != 0 {
                    inode.size = 0.into();
                }
                if how & 2 != 0 {
                    inode.generation = 0.into();
                }
            })?;
            let judged = hostile(&patient.device().snapshot());
            let what = judged.map_err(|error| format!("{at}, {slot}: {kind:x}, {how}: {error}"))?;
            *came.entry(what).or_default() += 1;
        }
    }
    Ok(came)
}

fn edit_inode(
    patient: &Patient,
    (at, slot): (u64, usize),
    edit: impl FnOnce(&mut InodeItem),
) -> Result<(), Failed> {
    patient.edit_block(at, |bytes| {
        let mut range = 0..0;
        item(bytes, slot, |head| {
            let start = HEADER_LEN + head.offset.get() as usize;
            range = start..start + head.size.get() as usize;
        });
        if let Ok((inode, _)) = InodeItem::mut_from_prefix(&mut bytes[range]) {
            edit(inode);
        }
    })?;
    Ok(())
}

#[test]
fn inodes_of_other_kinds_are_replayed_or_refused() {
    if !root_or_skip() {
        return;
    }
    let mut failed = Vec::new();
    for case in CASES.iter().filter(|case| KINDS.contains(&case.name)) {
        let dir = temp_dir().unwrap();
        make(case, true, dir.path()).unwrap();
        let base = MemoryDevice::load(dir.path().join("ours")).unwrap();
        match inodes_of_other_kinds(&base) {
            Ok(came) => println!("{}: {came:?}", case.name),
            Err(error) => failed.push(format!("{}: {error}", case.name)),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn any_bytes_are_replayed_or_refused() {
    if !root_or_skip() {
        return;
    }
    let given = std::env::var("BUTTRESS_LOGS").ok();
    let count = given.map_or(CHANGES, |text| text.parse().expect("a number"));
    let (mut failed, mut came) = (Vec::new(), BTreeMap::<&str, u64>::new());
    for case in CASES.iter().filter(|case| SAMPLE.contains(&case.name)) {
        let dir = temp_dir().unwrap();
        make(case, true, dir.path()).unwrap();
        let base = MemoryDevice::load(dir.path().join("ours")).unwrap();
        for seed in 0..count {
            match changed(&base, seed) {
                Ok(what) => *came.entry(what).or_default() += 1,
                Err(error) => failed.push(format!("{}, seed {seed}: {error}", case.name)),
            }
        }
    }
    println!("{came:?}");
    assert!(failed.is_empty(), "{}:\n{}", failed.len(), failed.join("\n"));
}
