//! What `btrfs check` says about every kind of damage is what the table says.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use buttress_device::MemoryDevice;
use buttress_testkit::damage::{Base, Kind, Patient, Verdict, kinds};
use buttress_testkit::oracle::{check_verdict, is_clean_line, root_or_skip, temp_dir};

/// What `btrfs check` says: its verdict in one word, and its report.
fn said(device: &MemoryDevice, path: &Path, data: bool) -> (&'static str, String) {
    device.store(path).unwrap();
    let (success, report) = check_verdict(path, data).unwrap();
    match report.lines().all(is_clean_line) {
        _ if !success => ("fails", report),
        false => ("warns", report),
        true => ("is content", report),
    }
}

fn healthy() -> BTreeMap<Base, MemoryDevice> {
    Base::ALL.into_iter().map(|base| (base, base.make().unwrap())).collect()
}

/// What is wrong with how a kind of damage is told.
fn fault(kind: &Kind, healthy: &BTreeMap<Base, MemoryDevice>, path: &Path) -> Option<String> {
    let patient = Patient::of(&healthy[&kind.base]).unwrap();
    if let Err(error) = (kind.make)(&patient) {
        return Some(format!("{}: {error}", kind.name));
    }
    let (verdict, report) = said(patient.device(), path, kind.data);
    if std::env::var_os("BUTTRESS_SHOW").is_some() {
        println!("=== {} {verdict}\n{report}", kind.name);
    }
    let expected = match kind.verdict {
        Verdict::Fails => "fails",
        Verdict::Warns => "warns",
        Verdict::Misses(_) => "is content",
    };
    (verdict != expected).then(|| format!("{}: btrfs check {verdict}", kind.name))
}

#[test]
fn every_kind() {
    if !root_or_skip() {
        return;
    }
    let (healthy, kinds) = (healthy(), kinds());
    let dir = temp_dir().unwrap();
    for (base, device) in &healthy {
        let (verdict, report) = said(device, &dir.path().join("healthy"), true);
        assert_eq!(verdict, "is content", "{base:?}: {report}");
    }
    let (next, faults) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let path = dir.path().join(worker.to_string());
            let (next, faults, kinds, healthy) = (&next, &faults, &kinds, &healthy);
            scope.spawn(move || {
                while let Some(kind) = kinds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    faults.lock().unwrap().extend(fault(kind, healthy, &path));
                }
            });
        }
    });
    let faults = faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), kinds.len(), faults.join("\n"));
}
