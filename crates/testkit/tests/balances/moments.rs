//! Images of random moments of balances.

use buttress_testkit::oracle::{root_or_skip, temp_dir};

use crate::judge::{Left, judge};
use crate::live::{KINDS, moments};

fn number(name: &str, usual: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(usual, |text| text.parse().expect("a number"))
}

/// Judges the image that `BUTTRESS_MOMENT` names.
#[test]
fn one_moment() {
    if let Some(image) = std::env::var_os("BUTTRESS_MOMENT") {
        let image = std::path::PathBuf::from(image);
        for turn in 0..number("BUTTRESS_TURNS", 2) as usize {
            println!("{:?}", judge(&image, turn).unwrap());
        }
    }
}

/// More with `BUTTRESS_BALANCES=50`; others with `BUTTRESS_SEED`.
#[test]
fn what_a_balance_leaves_goes_and_all_else_stays() {
    if !root_or_skip() {
        return;
    }
    let (seed, count) = (number("BUTTRESS_SEED", 1), number("BUTTRESS_BALANCES", 2) as usize);
    let kinds = if count < 2 * KINDS.len() { &KINDS[..2] } else { &KINDS[..] };
    let (mut failed, mut all, mut with) = (Vec::new(), Left::default(), [0; 4]);
    for (at, kind) in kinds.iter().enumerate() {
        let share = count / kinds.len() + usize::from(at < count % kinds.len());
        let dir = temp_dir().unwrap();
        let moments = moments(*kind, share, seed + at as u64, dir.path());
        if moments.len() < share {
            failed.push(format!("{kind:?}: only {} moments", moments.len()));
        }
        for (number, image) in moments.iter().enumerate() {
            match judge(image, number + seed as usize) {
                Ok(had) => {
                    let kinds = [had.merging, had.dropping, had.files, had.extents];
                    with.iter_mut().zip(kinds).for_each(|(sum, one)| *sum += usize::from(one > 0));
                    all.add(&had);
                }
                Err(error) => {
                    let kept = std::env::temp_dir().join(format!("buttress-moment-{at}-{number}"));
                    let kept = std::fs::copy(image, &kept).map(|_| kept);
                    failed.push(format!("{kind:?}, moment {number} ({kept:?}): {error}"));
                }
            }
        }
    }
    println!("{count} moments; with trees to merge, to drop, files, extents: {with:?}; {all:?}");
    assert!(failed.is_empty(), "{} of {count}:\n{}", failed.len(), failed.join("\n"));
}
