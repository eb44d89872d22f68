//! A sample of mutations (see `buttress_testkit::damage::mutation`): what `btrfs check` reports, ours reports, and where only ours
//! does, there is a reason. `BUTTRESS_LONG=1` takes 20,000, and `mutations` asks about any number.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_device::MemoryDevice;
use buttress_ondisk::Superblock;
use buttress_testkit::damage::mutation::{Census, Verdicts, ask, mutate};
use buttress_testkit::damage::{Base, Patient};
use buttress_testkit::ops::rng::Rng;
use buttress_testkit::oracle::{root_or_skip, temp_dir};

use crate::verdicts::healthy;

const SAMPLE: u64 = 350;
const LONG: u64 = 20_000;

#[test]
fn both_checkers_see_the_same_or_there_is_a_reason() {
    if !root_or_skip() {
        return;
    }
    let long = std::env::var("BUTTRESS_LONG").is_ok_and(|value| value != "0");
    let count = if long { LONG } else { SAMPLE };
    let bases: Vec<_> = Base::ALL
        .into_iter()
        .map(|base| (base, &healthy()[&base]))
        .map(|(base, image)| (base, image, Census::of(&Patient::of(image).unwrap()).unwrap()))
        .collect();
    let dir = temp_dir().unwrap();
    let (next, faults) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let path = dir.path().join(worker.to_string());
            let (bases, next, faults) = (&bases, &next, &faults);
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= count {
                        return;
                    }
                    let (base, image, census) = &bases[seed as usize % bases.len()];
                    let mut rng = Rng::new(seed);
                    let patient = Patient::of(image).unwrap();
                    let Some(told) = mutate(&patient, census, &mut rng).unwrap() else { continue };
                    let asked = ask(patient.device(), &path).unwrap();
                    match asked.verdicts() {
                        Verdicts::Agree | Verdicts::Excused(_) => {}
                        other => faults.lock().unwrap().push(format!(
                            "{base:?}, seed {seed}, {told}: {other:?}\n{}",
                            asked.text
                        )),
                    }
                }
            });
        }
    });
    let faults = faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{} of {count}:\n{}", faults.len(), faults.join("\n"));
}

/// One bit of a superblock's features or flags turned over.
fn with_bit(image: &MemoryDevice, set: usize, bit: u32) -> Patient {
    let patient = Patient::of(image).unwrap();
    let turned = |sb: &mut Superblock| {
        let word = match set {
            0 => &mut sb.flags,
            1 => &mut sb.incompat_flags,
            _ => &mut sb.compat_ro_flags,
        };
        *word = (word.get() ^ 1 << bit).into();
    };
    patient.superblock(turned).unwrap();
    patient
}

#[test]
fn both_see_every_feature_and_flag_of_a_superblock() {
    if !root_or_skip() {
        return;
    }
    let (dir, image) = (temp_dir().unwrap(), &healthy()[&Base::Main]);
    let path = dir.path().join("image");
    for (set, name) in ["flags", "incompat", "compat_ro"].into_iter().enumerate() {
        for bit in 0..u64::BITS {
            let asked = ask(with_bit(image, set, bit).device(), &path).unwrap();
            let verdicts = asked.verdicts();
            let fits = matches!(verdicts, Verdicts::Agree | Verdicts::Excused(_));
            assert!(fits, "{name}, bit {bit}: {verdicts:?}\n{}", asked.text);
        }
    }
}
