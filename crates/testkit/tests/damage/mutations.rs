//! A sample of mutations (see `buttress_testkit::damage::mutation`): what `btrfs check` reports, ours reports, and where only ours
//! does, there is a reason. `BUTTRESS_LONG=1` takes 20,000, and `mutations` asks about any number.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

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
