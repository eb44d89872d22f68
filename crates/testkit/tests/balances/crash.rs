//! A power loss while what a balance has left is cleaned up: whoever opens it next goes on, and nothing else has changed.

use std::sync::Arc;

use buttress::{Filesystem, Options};
use buttress_device::testing::RecordingDevice;
use buttress_device::{Access, MemoryDevice};
use buttress_testkit::crash::judge::has_primary;
use buttress_testkit::crash::states::{Maker, all};
use buttress_testkit::facts::{Facts, diff, facts_of_library};
use buttress_testkit::oracle::{check, root_or_skip, skip, temp_dir};
use buttress_volume::Volume;

use crate::judge::{Failed, Left, left, left_in};
use crate::live::{Kind, Live};

/// Few files, so that each state is soon judged.
const SMALL: Kind =
    Kind { nodesize: "4096", quotas: true, writes: false, words: &["--full-balance"], files: 150 };
/// Shuffled states of each epoch.
const PER_EPOCH: u64 = 3;
/// States that are judged, about.
const STATES: usize = 150;
/// Of so many states `btrfs check` judges one.
const CHECKED: usize = 30;
/// Blocks that a commit drops.
const FEW_BLOCKS: usize = 24;

/// The device of a moment at which there are relocation trees and files of relocated data; what is left in it.
pub fn caught(seed: u64) -> Option<(MemoryDevice, Left)> {
    let live = Live::new(SMALL);
    let found = live.moment(seed, |copy| {
        left(copy).is_ok_and(|left| left.merging + left.dropping > 1 && left.files > 0)
    })?;
    Some((MemoryDevice::load(&found).unwrap(), left(&found).unwrap()))
}

/// Opens it, waits until nothing is left, and tells what it has.
fn after(device: &Arc<MemoryDevice>) -> Result<Facts, Failed> {
    let options = Options::read_write().background(false).use_backup_super(!has_primary(device));
    let fs = Filesystem::open_device(device.clone(), options)?;
    let facts = facts_of_library(&fs)?;
    fs.clean()?;
    if facts_of_library(&fs)? != facts {
        return Err("cleaning has changed files".into());
    }
    fs.close()?;
    let volume = Volume::open(vec![device.clone()], Access::ReadOnly)?.volume;
    match left_in(&volume)? {
        left if left.is_nothing() && left.balance.is_some() => Ok(facts),
        left => Err(format!("{left:?}").into()),
    }
}

/// How many states there were.
fn crashes(base: &MemoryDevice) -> Result<usize, Failed> {
    let expect = after(&Arc::new(base.snapshot()))?;
    let device = Arc::new(RecordingDevice::new(base));
    let options = Options::read_write().background(false).drop_blocks_max(FEW_BLOCKS);
    let fs = Filesystem::open_device(device.clone(), options)?;
    fs.clean()?;
    fs.close()?;
    let history = device.history();
    let (states, mut maker) = (all(&history, PER_EPOCH, 1), Maker::new(&history));
    let step = states.len().div_ceil(STATES).max(1);
    let (mut judged, dir) = (0, temp_dir()?);
    for state in states.iter().step_by(step) {
        let disk = Arc::new(maker.make(*state).device.snapshot());
        let have = after(&disk).map_err(|error| format!("{state}: {error}"))?;
        if let [first, ..] = &diff(&have, &expect)[..] {
            return Err(format!("{state}: {first}").into());
        }
        if judged % CHECKED == 0 && has_primary(&disk) {
            let image = dir.path().join("after");
            disk.store(&image)?;
            check(&image, true).map_err(|error| format!("{state}: {error}"))?;
        }
        judged += 1;
    }
    Ok(judged)
}

#[test]
fn a_power_loss_while_cleaning_loses_nothing() {
    if !root_or_skip() {
        return;
    }
    let Some((base, left)) = caught(3) else {
        return skip("each balance ended before a copy had a relocation tree");
    };
    println!("{left:?}");
    println!("{} states", crashes(&base).unwrap());
}
