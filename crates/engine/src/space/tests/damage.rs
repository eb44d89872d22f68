//! Damaged trees: an error, or free space whose sums are those of the block groups; never a panic.
//!
//! A free run that is only moved, but counts the same, cannot be seen without reading all extents:
//! the checksums of tree blocks are what stands against that.

use std::collections::BTreeMap;

use buttress_ondisk::Key;

use super::super::{Class, Range, Space};
use super::{Disk, NODE, Random, free_of};

/// A disk with a few used groups of each class, and its extent tree.
fn disk() -> Disk {
    let mut disk = Disk::empty(300 << 20);
    let space = disk.load(NODE, true).unwrap();
    let mut random = Random(5);
    let mut extents = Vec::new();
    for _ in 0..40 {
        let run = space.allocate_data(4096, (1 + random.below(3000)) * 4096).unwrap();
        space.account_new(run).unwrap();
        extents.push(run);
        let class = if random.below(4) == 0 { Class::System } else { Class::Metadata };
        let block = space.allocate_block(class).unwrap();
        disk.extent.items.insert(Key::new(block, 169, 0), Vec::new());
    }
    for _ in 0..15 {
        let run = random.take(&mut extents).unwrap();
        space.free(run).unwrap();
    }
    let item = |run: &Range| (Key::new(run.start, 168, run.len), Vec::new());
    disk.extent.items.extend(extents.iter().map(item));
    disk.settle(&space);
    disk
}

fn pick(random: &mut Random, disk: &mut Disk) -> (usize, Key) {
    loop {
        let which = random.below(4) as usize;
        let tree = [&disk.free_space, &disk.groups, &disk.device, &disk.chunk][which];
        let at = random.below(tree.items.len() as u64) as usize;
        if let Some(key) = tree.items.keys().nth(at) {
            return (which, *key);
        }
    }
}

fn damage(random: &mut Random, disk: &mut Disk) {
    let (which, key) = pick(random, disk);
    let tree = match which {
        0 => &mut disk.free_space,
        1 => &mut disk.groups,
        2 => &mut disk.device,
        _ => &mut disk.chunk,
    };
    let mut data = tree.items.remove(&key).unwrap();
    match random.below(5) {
        0 => {}
        1 if !data.is_empty() => {
            let at = random.below(data.len() as u64) as usize;
            data[at] ^= 1 << random.below(8);
            tree.items.insert(key, data);
        }
        2 => {
            data.truncate(random.below(data.len() as u64) as usize);
            tree.items.insert(key, data);
        }
        3 => {
            let offset = key.offset ^ (1 << random.below(64));
            tree.items.insert(Key { offset, ..key }, data);
        }
        _ => {
            let objectid = key.objectid ^ (1 << random.below(64));
            tree.items.insert(Key { objectid, ..key }, data);
        }
    }
}

/// Free bytes of each group.
fn sums(space: &Space) -> BTreeMap<u64, u64> {
    let sum = |runs: Vec<Range>| runs.iter().map(|run| run.len).sum();
    free_of(space).into_iter().map(|(start, runs)| (start, sum(runs))).collect()
}

#[test]
fn damage_is_refused_or_mended() {
    let whole = disk();
    let chunks = whole.chunks();
    let right = sums(&whole.load(NODE, true).unwrap());
    let (mut refused, mut same) = (0, 0);
    for seed in 0..1500 {
        let mut bad = whole.clone();
        damage(&mut Random(seed), &mut bad);
        match bad.load_chunks(chunks.clone(), NODE, true) {
            Err(_) => refused += 1,
            Ok(space) => {
                assert_eq!(sums(&space), right, "seed {seed}");
                same += 1;
            }
        }
    }
    assert!(refused > 100 && same > 100, "{refused} {same}");
}
