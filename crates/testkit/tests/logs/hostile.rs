//! Logs with any bytes in them: they are replayed or refused, and what is refused leaves the image as it was.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
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

use crate::cases::{CASES, Case, case};
use crate::reach::{files, reach};
use crate::{Failed, make};

/// Images.
const SAMPLE: [&str; 5] =
    ["deleted and new", "cloned over", "many links", "xattrs", "reserved and written"];
/// Images of which each inode becomes one of another kind.
const KINDS: [&str; 4] = ["deleted and new", "symbolic links", "cloned over", "xattrs"];
/// Images of which each name comes to lead to each of these inodes, and to be in each of these directories.
const NAMES: [&str; 4] =
    ["a new directory", "a file in new directories", "deleted and new", "many links"];
/// One more of these, in which directories that were there are logged.
const BELOW_EACH_OTHER: Case<'_> = case(
    "below each other",
    "mkdir -p d/e/f; commit; put d/e/f/a 0 3; sync d/e/f; put d/e/a 0 5; sync d/e; put d/a 0 9; sync d",
);
const INODES: RangeInclusive<u64> = 256..=266;
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
    let _all_of_them = files(&shown)?;
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
    let _all_of_them = files(&fs)?;
    fs.close()?;
    let faults = faults(&recorded.current())?;
    if faults.is_empty() { Ok("replayed") } else { Err(faults.join("; ").into()) }
}

/// The places of a kind of items in a log: blocks, and slots in them.
fn places(patient: &Patient, kind: u8) -> Result<Vec<(u64, usize)>, Failed> {
    let mut found = Vec::new();
    for at in blocks(patient)? {
        let block = patient.block(at)?;
        let slots = if block.is_leaf() { 0..block.len() } else { 0..0 };
        let items = slots.filter(|slot| block.item(*slot).0.kind == kind);
        found.extend(items.map(|slot| (at, slot)));
    }
    Ok(found)
}

/// A log with one inode of another kind, as it is, without a length, and as one of which only the existence was logged.
fn inodes_of_other_kinds(base: &MemoryDevice) -> Result<BTreeMap<&'static str, u64>, Failed> {
    let mut came = BTreeMap::new();
    for (at, slot) in places(&Patient::of(base)?, kind::INODE_ITEM)? {
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
        let range = data_of(bytes, slot);
        if let Ok((inode, _)) = InodeItem::mut_from_prefix(&mut bytes[range]) {
            edit(inode);
        }
    })?;
    Ok(())
}

/// Where a leaf has the data of an item.
fn data_of(bytes: &mut [u8], slot: usize) -> Range<usize> {
    let mut range = 0..0;
    item(bytes, slot, |head| {
        let start = HEADER_LEN + head.offset.get() as usize;
        range = start..start + head.size.get() as usize;
    });
    range
}

/// A log with one name that leads to another inode, or one by which an inode is in another directory.
fn names_elsewhere(base: &MemoryDevice) -> Result<BTreeMap<&'static str, u64>, Failed> {
    let mut came = BTreeMap::new();
    for kind in [kind::DIR_INDEX, kind::INODE_REF] {
        for (at, slot) in places(&Patient::of(base)?, kind)? {
            for other in INODES {
                let patient = Patient::of(base)?;
                patient.edit_block(at, |bytes| match kind {
                    // It begins with the key of what it leads to.
                    kind::DIR_INDEX => {
                        let range = data_of(bytes, slot);
                        bytes[range][..8].copy_from_slice(&u64::to_le_bytes(other));
                    }
                    _ => item(bytes, slot, |head| head.key.offset = other.into()),
                })?;
                let judged = hostile(&patient.device().snapshot());
                let what =
                    judged.map_err(|error| format!("{kind} {at} {slot} {other}: {error}"))?;
                *came.entry(what).or_default() += 1;
            }
        }
    }
    Ok(came)
}

fn named<'c>(names: &[&str]) -> Vec<&'c Case<'c>> {
    CASES.iter().filter(|case| names.contains(&case.name)).collect()
}

/// All of these, of each of some logs.
fn judge_all(
    cases: &[&Case<'_>],
    judge: impl Fn(&MemoryDevice) -> Result<BTreeMap<&'static str, u64>, Failed>,
) -> Result<(), Failed> {
    if !root_or_skip() {
        return Ok(());
    }
    for case in cases {
        let dir = temp_dir()?;
        make(case, true, dir.path())?;
        let base = MemoryDevice::load(dir.path().join("ours"))?;
        let came = judge(&base).map_err(|error| format!("{}: {error}", case.name))?;
        println!("{}: {came:?}", case.name);
    }
    Ok(())
}

#[test]
fn inodes_of_other_kinds_are_replayed_or_refused() -> Result<(), Failed> {
    judge_all(&named(&KINDS), inodes_of_other_kinds)
}

#[test]
fn names_that_lead_elsewhere_are_replayed_or_refused() -> Result<(), Failed> {
    let mut cases = named(&NAMES);
    cases.push(&BELOW_EACH_OTHER);
    judge_all(&cases, names_elsewhere)
}

#[test]
fn any_bytes_are_replayed_or_refused() {
    if !root_or_skip() {
        return;
    }
    let given = std::env::var("BUTTRESS_LOGS").ok();
    let count = given.map_or(CHANGES, |text| text.parse().expect("a number"));
    let (mut failed, mut came) = (Vec::new(), BTreeMap::<&str, u64>::new());
    for case in named(&SAMPLE) {
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
