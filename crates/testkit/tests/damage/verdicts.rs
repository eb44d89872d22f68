//! The two checkers, asked.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use buttress_check::{Options, Progress, Report, check_devices};
use buttress_device::MemoryDevice;
use buttress_testkit::damage::Base;
use buttress_testkit::oracle::{check_verdict, is_clean_line};

/// All healthy images, made once.
pub fn healthy() -> &'static BTreeMap<Base, MemoryDevice> {
    static MADE: LazyLock<BTreeMap<Base, MemoryDevice>> =
        LazyLock::new(|| Base::ALL.into_iter().map(|base| (base, base.make().unwrap())).collect());
    &MADE
}

/// What `btrfs check` says: its verdict in one word, and its report.
pub fn theirs(device: &MemoryDevice, path: &Path, data: bool) -> (&'static str, String) {
    device.store(path).unwrap();
    let (success, report) = check_verdict(path, data).unwrap();
    match report.lines().all(is_clean_line) {
        _ if !success => ("fails", report),
        false => ("warns", report),
        true => ("is content", report),
    }
}

/// What our checker finds; an error when the filesystem is not supported or cannot be read.
pub fn ours(device: Arc<MemoryDevice>, data: bool) -> Result<Report, String> {
    let options = Options { check_data_csum: data, threads: 2, ..Options::default() };
    check_devices(vec![device], &options, &Progress::default()).map_err(|error| error.to_string())
}

/// A report in lines.
pub fn lines(report: &Report) -> String {
    let lines: Vec<_> = report.issues.iter().map(|issue| format!("  {issue}\n")).collect();
    lines.concat()
}
