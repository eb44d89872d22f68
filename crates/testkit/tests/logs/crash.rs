//! A power loss during replay: the log is replayed at the next open, or was.

use std::sync::Arc;

use buttress::{Filesystem, Options};
use buttress_device::MemoryDevice;
use buttress_device::testing::RecordingDevice;
use buttress_testkit::crash::judge::has_primary;
use buttress_testkit::crash::states::{Maker, all};
use buttress_testkit::facts::{Facts, facts_of_library};
use buttress_testkit::oracle::{check, root_or_skip, temp_dir};

use crate::cases::{CASES, Case};
use crate::{Failed, items, make, same_facts};

/// Shuffled states of each epoch.
const PER_EPOCH: u64 = 24;
/// Of so many states `btrfs check` judges one.
const CHECKED: usize = 40;
/// Those of which the crashes are looked at: names and data, a mixed filesystem, one with two subvolumes.
const SAMPLE: [&str; 4] = ["deleted and new", "cloned over", "small nodes", "two subvolumes"];

/// Where the primary superblock is torn, a copy is written on from, on request: it has to know of the log.
fn facts_after(device: &MemoryDevice) -> Result<Facts, Failed> {
    let options = Options::read_write().background(false).use_backup_super(!has_primary(device));
    let fs = Filesystem::open_device(Arc::new(device.snapshot()), options)?;
    let facts = facts_of_library(&fs)?;
    fs.close()?;
    Ok(facts)
}

/// How many states there were.
fn crashes(case: &Case<'_>) -> Result<usize, Failed> {
    let dir = temp_dir()?;
    make(case, true, dir.path())?;
    let base = MemoryDevice::load(dir.path().join("ours"))?;
    let expect = items::ageless(&facts_after(&base)?);
    let device = Arc::new(RecordingDevice::new(&base));
    let options = Options::read_write().background(false);
    Filesystem::open_device(device.clone(), options)?.close()?;
    let history = device.history();
    let (states, mut maker) = (all(&history, PER_EPOCH, 1), Maker::new(&history));
    for (number, state) in states.iter().enumerate() {
        let disk = maker.make(*state).device;
        let have = facts_after(&disk).map_err(|error| format!("{state}: {error}"))?;
        same_facts(&format!("{state}"), &have, &expect)?;
        if number % CHECKED == 0 && has_primary(&disk) {
            let after = RecordingDevice::new(&disk);
            let after = Arc::new(after);
            Filesystem::open_device(after.clone(), Options::read_write().background(false))?
                .close()?;
            let image = dir.path().join("after");
            after.current().store(&image)?;
            check(&image, true)?;
        }
    }
    Ok(states.len())
}

#[test]
fn a_power_loss_during_replay_loses_nothing() {
    if !root_or_skip() {
        return;
    }
    let (mut failed, mut states) = (Vec::new(), 0);
    for case in CASES.iter().filter(|case| SAMPLE.contains(&case.name)) {
        match crashes(case) {
            Ok(count) => states += count,
            Err(error) => failed.push(format!("{}: {error}", case.name)),
        }
    }
    println!("{states} states");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
