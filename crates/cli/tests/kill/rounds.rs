//! The rounds of kill and check.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use buttress_testkit::oracle;

use crate::daemon::{Place, buttress, try_buttress};
use crate::journal::{Journal, State, differences, look};
use crate::random::Random;
use crate::writer::{SNAPSHOTS, Writer, subvolume};

/// Threads that write.
const WRITERS: usize = 4;
/// Rounds in every run, and when there is time.
const ROUNDS: (usize, usize) = (8, 100);
/// After so many rounds comes a new image.
const ROUNDS_OF_AN_IMAGE: usize = 10;
/// A file that the kernel writes after each round.
const KERNEL_FILE: &str = "kernel";

#[test]
fn killed_at_random_moments() {
    let Some(place) = Place::new() else { return };
    let mut random = Random::seeded();
    let long = std::env::var_os("BUTTRESS_LONG").is_some_and(|value| value == "1");
    let rounds = if long { ROUNDS.1 } else { ROUNDS.0 };
    let mut states = Vec::new();
    for round in 0..rounds {
        if round % ROUNDS_OF_AN_IMAGE == 0 {
            place.make_image();
            states.clear();
        }
        let logs = random.below(2) == 0;
        let mut journals = until_killed(&place, &states, round, logs, &mut random);
        oracle::check(&place.image(), true).unwrap();
        states = after(&place, round);
        for (number, (journal, state)) in journals.iter_mut().zip(&states).enumerate() {
            let done = match logs {
                true => journal.allows(state),
                false => {
                    journal.acknowledge_commits();
                    journal.explains(state)
                }
            };
            let done = done.unwrap_or_else(|why| panic!("round {round}, writer {number}: {why}"));
            let (all, acknowledged) = (journal.ops.len(), journal.acknowledged);
            println!(
                "  writer {number}: {acknowledged} acknowledged <= {done} there <= {all} done"
            );
        }
    }
}

/// Mounts, lets the writers work, and kills the daemon; what they did.
fn until_killed(
    place: &Place,
    states: &[State],
    round: usize,
    logs: bool,
    random: &mut Random,
) -> Vec<Journal> {
    let often = if random.below(2) == 0 { "commit=1" } else { "commit=30" };
    let options = &format!("{often},{}", if logs { "treelog" } else { "notreelog" });
    let moment = Duration::from_millis(20 + random.below(1500));
    let balances = random.below(2) == 0;
    let beside = if balances { " while it balances" } else { "" };
    println!("round {round}: {options}, killed after {moment:?}{beside}");
    let mut daemon = place.mount(options);
    let states = begin(&place.mountpoint(), states);
    let killed = AtomicBool::new(false);
    let journals = thread::scope(|scope| {
        let start = |(number, state)| {
            let seed = random.next();
            let writer = Writer::new(number, &place.mountpoint(), state, seed, &killed);
            scope.spawn(move || writer.work())
        };
        let writers: Vec<_> = states.into_iter().enumerate().map(start).collect();
        if balances {
            scope.spawn(|| balance_until(&killed, &place.mountpoint()));
        }
        thread::sleep(moment);
        killed.store(true, Ordering::SeqCst);
        daemon.kill();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    // One that was killed while it balanced goes on with that.
    let said = daemon.said();
    assert!(said.lines().all(|line| line.contains("interrupted goes on")), "{said}");
    daemon.clean_up();
    journals
}

/// Has all block groups written anew, again and again; on a full filesystem that fails.
fn balance_until(killed: &AtomicBool, mountpoint: &Path) {
    while !killed.load(Ordering::SeqCst) {
        let _it_may_fail =
            try_buttress(&["balance", "start", "--full-balance", "-q"], &[mountpoint]);
    }
}

/// On a new image makes what the writers need; on one with a past compares what our mount shows
/// with what was found after the last round.
fn begin(mountpoint: &Path, states: &[State]) -> Vec<State> {
    if states.is_empty() {
        fs::create_dir(mountpoint.join(SNAPSHOTS)).unwrap();
        for number in 0..WRITERS {
            buttress(&["subvolume", "create", "-q"], &[&mountpoint.join(subvolume(number))]);
        }
        fs::File::open(mountpoint).unwrap().sync_all().unwrap();
        return vec![State::default(); WRITERS];
    }
    let found = states_of(mountpoint);
    for (state, found) in states.iter().zip(&found) {
        assert_eq!(differences(state, found), [] as [&str; 0]);
    }
    found
}

/// What the image shows after a kill: to the kernel, which also changes something; to an ordinary
/// user through our own mount.
fn after(place: &Place, round: usize) -> Vec<State> {
    if !oracle::root_or_skip() {
        let daemon = place.mount("commit=30");
        let states = states_of(&place.mountpoint());
        daemon.unmount();
        oracle::check(&place.image(), true).unwrap();
        return states;
    }
    let mount = oracle::KernelMount::new(&place.image(), "").unwrap();
    let states = states_of(mount.path());
    let file = mount.path().join(KERNEL_FILE);
    if !round.is_multiple_of(ROUNDS_OF_AN_IMAGE) {
        assert_eq!(fs::read_to_string(&file).unwrap(), (round - 1).to_string());
    }
    fs::write(&file, round.to_string()).unwrap();
    mount.finish().unwrap();
    states
}

fn states_of(top: &Path) -> Vec<State> {
    let mut states: Vec<_> = (0..WRITERS)
        .map(|number| State { live: look(&top.join(subvolume(number))), ..State::default() })
        .collect();
    for entry in fs::read_dir(top.join(SNAPSHOTS)).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let owner = |number: &usize| name.starts_with(&format!("{}-", subvolume(*number)));
        let owner = (0..WRITERS).find(owner).unwrap();
        states[owner].snapshots.insert(name, Arc::new(look(&entry.path())));
    }
    states
}
