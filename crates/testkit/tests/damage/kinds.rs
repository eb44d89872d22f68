//! Every kind of damage: the issue that the table names is raised, and `btrfs check` says what the table says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use buttress_device::MemoryDevice;
use buttress_testkit::damage::{Base, Kind, Patient, UNOPENABLE, Verdict, kinds};
use buttress_testkit::oracle::{root_or_skip, temp_dir};

use crate::verdicts::{healthy, lines, ours, theirs};

/// Ids of all issues that were raised.
type Raised = Mutex<BTreeSet<&'static str>>;

/// What is wrong with how a kind of damage is judged.
fn fault(
    kind: &Kind,
    healthy: &BTreeMap<Base, MemoryDevice>,
    path: &Path,
    raised: &Raised,
) -> Option<String> {
    let patient = Patient::of(&healthy[&kind.base]).unwrap();
    if let Err(error) = (kind.make)(&patient) {
        return Some(format!("{}: {error}", kind.name));
    }
    let (verdict, report) = theirs(patient.device(), path, kind.data);
    let expected = match kind.verdict {
        Verdict::Fails => "fails",
        Verdict::Warns => "warns",
        Verdict::Misses(_) => "is content",
    };
    if verdict != expected {
        return Some(format!("{}: btrfs check {verdict}:\n{report}", kind.name));
    }
    let (found, clean, said) = match ours(patient.device().clone(), kind.data) {
        Ok(report) => {
            let found: BTreeSet<_> = report.counts.iter().map(|(kind, _)| kind.id()).collect();
            (found, report.is_clean(), lines(&report))
        }
        Err(error) => (BTreeSet::from([UNOPENABLE]), false, error),
    };
    if std::env::var_os("BUTTRESS_SHOW").is_some() {
        println!("=== {}: btrfs check {verdict}\n{said}", kind.name);
    }
    raised.lock().unwrap().extend(&found);
    if !found.contains(kind.issue) {
        return Some(format!("{}: no {}, but {found:?}", kind.name, kind.issue));
    }
    (clean && verdict == "fails").then(|| format!("{}: only we are content", kind.name))
}

#[test]
fn healthy_images_are_clean() {
    if !root_or_skip() {
        return;
    }
    let dir = temp_dir().unwrap();
    for (base, device) in healthy() {
        let (verdict, report) = theirs(device, &dir.path().join("image"), true);
        assert_eq!(verdict, "is content", "{base:?}: {report}");
        let report = ours(device.snapshot().into(), true).unwrap();
        assert!(report.is_clean(), "{base:?}:\n{}", lines(&report));
        // mkfs.btrfs forgets the free space of a chunk that it makes and removes again.
        let known = ["free-space-extra", "log-waits"];
        let other = report.counts.iter().find(|(kind, _)| !known.contains(&kind.id()));
        assert_eq!(other, None, "{base:?}:\n{}", lines(&report));
    }
}

#[test]
fn every_kind_of_damage_is_found() {
    if !root_or_skip() {
        return;
    }
    let (healthy, kinds) = (healthy(), kinds());
    assert!(kinds.len() >= 60);

    let dir = temp_dir().unwrap();
    let (next, faults) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let raised = Raised::default();
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let path = dir.path().join(worker.to_string());
            let (next, faults, raised) = (&next, &faults, &raised);
            let kinds = &kinds;
            scope.spawn(move || {
                while let Some(kind) = kinds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    faults.lock().unwrap().extend(fault(kind, healthy, &path, raised));
                }
            });
        }
    });
    let faults = faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), kinds.len(), faults.join("\n"));
    let raised = raised.into_inner().unwrap();
    let known = buttress_check::Kind::ALL.iter().map(|kind| kind.id());
    let missing: Vec<_> = known.filter(|id| !raised.contains(id)).collect();
    assert!(missing.is_empty(), "no damage leads to {missing:?}");
}
