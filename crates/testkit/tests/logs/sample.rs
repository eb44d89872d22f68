//! The replay of logs that Linux leaves, workload by workload: a sample. All workloads are what `logrun` is for.

use std::collections::BTreeSet;

use buttress_testkit::logs::all;
use buttress_testkit::logs::make::Left;
use buttress_testkit::logs::run::{Plan, run, summary, table};
use buttress_testkit::oracle;

/// Workloads of the sample.
const SAMPLE: usize = 40;

/// Whether Linux can be asked here.
fn has_linux() -> bool {
    if !oracle::root_or_skip() {
        return false;
    }
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let btrfs = known.lines().any(|line| line.trim() == "btrfs");
    if !btrfs {
        oracle::skip("the kernel here has no btrfs");
    }
    btrfs
}

#[test]
fn a_sample_of_logs_is_replayed_as_linux_does() {
    if !has_linux() {
        return;
    }
    // Neighbours in the list are alike: the sample is the same each time, and has some of each part.
    let mut sample = all();
    sample.sort_by_key(|it| xxhash_rust::xxh64::xxh64(it.name.as_bytes(), 0));
    sample.truncate(SAMPLE);
    let verdicts = run(&sample, &Plan { threads: 3, keep: None });
    println!("{}", summary(&verdicts));
    let failed = table(&verdicts);
    assert!(failed.is_empty(), "\n{failed}");
    assert!(
        verdicts.iter().filter(|it| it.left == Some(Left::Log)).count() * 3 > sample.len() * 2,
        "few logs"
    );
}

#[test]
fn the_workloads_have_names_of_their_own() {
    let workloads = all();
    let names: BTreeSet<_> = workloads.iter().map(|it| &it.name).collect();
    assert!(names.len() == workloads.len() && names.len() >= 300, "{} names", names.len());
    for it in &workloads {
        assert!(it.after.contains("sync"), "{} makes nothing durable", it.name);
    }
}
