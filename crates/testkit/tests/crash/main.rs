//! Every crash point, and devices that fail: samples. All of it is what `make crash` is for.

use std::collections::BTreeSet;

use buttress_testkit::crash::record::{Recording, record};
use buttress_testkit::crash::run::{Plan, on_threads, run};
use buttress_testkit::crash::states::{self, Loss, Maker, State};
use buttress_testkit::crash::workloads::{Script, Workload, all, fsyncs};
use buttress_testkit::crash::{cold, enumerate, faults, judge};
use buttress_testkit::model::QuotaMode;
use buttress_testkit::ops::parse_all;
use buttress_testkit::ops::run::Runner;

/// Judged states of the sample.
const SAMPLE: u64 = 2000;
/// Threads that judge.
const THREADS: usize = 2;

/// The seed of the samples: another one with `BUTTRESS_SEED`.
fn seed() -> u64 {
    let given = std::env::var("BUTTRESS_SEED").ok();
    let seed = given.map_or(1, |text| text.parse().expect("BUTTRESS_SEED is a number"));
    println!("seed {seed}");
    seed
}

fn none(failures: &[String]) {
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn a_sample_of_crash_states() {
    let plan =
        Plan { seed: seed(), states_max: 70, check_every: 30, mount_every: 100, ..Plan::default() };
    let (total, failures) = on_threads(THREADS, &all(), |workload| {
        let outcome = run(workload, &plan);
        (outcome.tally, outcome.failures)
    });
    println!("{total:?}");
    none(&failures);
    assert!(total.distinct >= SAMPLE, "only {} states were judged", total.distinct);
    // A part of a part of all states: most torn superblocks show themselves which commit was the last.
    assert!(total.on_request * 2 < total.torn_superblocks, "{total:?}");
}

#[test]
fn a_sample_of_crash_states_with_fsyncs() {
    let plan =
        Plan { seed: seed(), states_max: 50, check_every: 40, mount_every: 45, ..Plan::default() };
    let (total, failures) = on_threads(THREADS, &fsyncs(), |workload| {
        let outcome = run(workload, &plan);
        (outcome.tally, outcome.failures)
    });
    println!("{total:?}");
    none(&failures);
    assert!(total.distinct >= SAMPLE && total.fsyncs > 2000, "{total:?}");
}

/// Some of all short sequences.
fn sequences() -> enumerate::Plan {
    enumerate::Plan {
        pairs: seed() as usize % 97..enumerate::count(),
        every: 97,
        threads: THREADS,
        check_every: 100,
        linux_every: 0,
        strict: false,
        tree_log: true,
        quotas: QuotaMode::Off,
        empty: false,
    }
}

#[test]
fn a_sample_of_short_sequences() {
    let linux_every = if buttress_testkit::oracle::is_root() { 100 } else { 0 };
    let plan = enumerate::Plan { linux_every, ..sequences() };
    let (tally, failures) = enumerate::run(&plan).expect("disks to begin with");
    println!("{tally:?}");
    none(&failures);
    assert!(tally.sequences > 500 && tally.states > 3000, "{tally:?}");
}

/// Between an operation and the fsync of it, or the next one, a block group moves, and whoever counts is told nothing of it.
#[test]
fn a_sample_of_short_sequences_with_emptied_groups() {
    for quotas in [QuotaMode::Off, QuotaMode::Full, QuotaMode::Simple] {
        let plan = enumerate::Plan { every: 1999, empty: true, quotas, ..sequences() };
        let (tally, failures) = enumerate::run(&plan).expect("disks to begin with");
        println!("{quotas:?}: {tally:?}");
        none(&failures);
        assert!(tally.sequences > 20 && tally.states > 200, "{tally:?}");
    }
}

/// States from before an fsync has returned are no good as states after it.
#[test]
fn a_promise_that_is_not_kept_is_found_out() {
    for name in ["fsync: appends", "fsync: renames", "fsync: a mail spool", "fsync: xattrs"] {
        let found = fsyncs().into_iter().find(|workload| workload.name == name);
        let workload = found.expect("in the table");
        let mut recording = record(&workload).expect("recorded");
        for done in &mut recording.ops {
            if done.synced.is_some() && done.ended > done.began {
                done.ended = done.began + 1;
            }
        }
        let mut maker = Maker::new(&recording.history);
        let states = states::all(&recording.history, 0, 1);
        let broken = states.into_iter().filter(|state| {
            let disk = maker.make(*state);
            judge::glance(&recording, &workload.config, &disk).is_err()
        });
        assert!(broken.count() > 50, "{name} has kept everything too early");
    }
}

/// Quotas as they were before they were switched are no good once that is acknowledged.
#[test]
fn quotas_that_are_switched_too_late_are_found_out() {
    let found = all().into_iter().find(|workload| workload.name == "quotas");
    let workload = found.expect("in the table");
    let mut recording = record(&workload).expect("recorded");
    let (mut maker, mut switched) = (Maker::new(&recording.history), 0);
    for (at, done) in recording.ops.iter().enumerate() {
        let [before, after] = [at, at + 1].map(|at| recording.models[at].quotas);
        if before == after {
            continue;
        }
        switched += 1;
        let disk = maker.make(State { cut: done.ended, loss: Loss::None, seed: 0 });
        let glance = |recording: &Recording| judge::glance(recording, &workload.config, &disk);
        glance(&recording).expect("as it was acknowledged");
        recording.models[at].quotas = after;
        recording.models[at + 1].quotas = before;
        assert!(glance(&recording).is_err(), "{} has come too late", done.op);
        recording.models[at].quotas = before;
        recording.models[at + 1].quotas = after;
    }
    assert!(switched > 10, "{switched} times");
}

#[test]
fn a_sample_of_failing_devices() {
    let seed = seed();
    let (total, failures) =
        on_threads(THREADS, &all(), |workload| faults::run(workload, 1, seed, None));
    println!("{total:?}");
    none(&failures);
    assert!(total.aborted > 100 && total.survived > 5, "{total:?}");
}

/// One in so many reads fails: all of them with `BUTTRESS_LONG`.
fn share_of_reads() -> u64 {
    if std::env::var_os("BUTTRESS_LONG").is_some() { 1 } else { 30 }
}

#[test]
fn a_sample_of_reads_that_fail_where_nothing_is_cached() {
    let (seed, every) = (seed(), share_of_reads());
    let (total, failures) =
        on_threads(THREADS, &all(), |workload| cold::run(workload, every, seed));
    println!("{total:?}");
    none(&failures);
    assert!(total.runs > 300 && total.refused > 200 && total.done > 5, "{total:?}");
}

/// The judge sees what a medium does that takes no notice of barriers: else it would see nothing.
#[test]
fn a_medium_without_barriers_is_found_out() {
    let plan = Plan { no_barriers: true, states_max: 200, ..Plan::default() };
    for name in ["overwrites", "subvolumes", "random, 4K", "fsync: appends", "fsync: random, 4K"] {
        let found = all().into_iter().chain(fsyncs()).find(|workload| workload.name == name);
        let workload = found.expect("in the table");
        assert!(!run(&workload, &plan).failures.is_empty(), "{name} lost nothing");
    }
}

/// Words of operations in the workloads that are written down.
fn words(workload: &Workload) -> BTreeSet<String> {
    let Script::Words(script) = workload.script else { return BTreeSet::new() };
    let ops = parse_all(&script()).expect("operations");
    ops.iter().filter_map(|op| op.to_string().split(' ').next().map(str::to_owned)).collect()
}

#[test]
fn the_workloads_with_fsyncs_do_what_they_say() {
    let workloads = fsyncs();
    let names: BTreeSet<_> = workloads.iter().map(|workload| workload.name).collect();
    assert!(names.len() >= 40 && names.len() == workloads.len());
    for workload in &workloads {
        let Script::Words(script) = workload.script else { continue };
        let mut runner = Runner::new(&workload.config).expect("a filesystem");
        let ops = parse_all(&script()).expect("operations");
        ops.iter().for_each(|op| runner.step(op).expect("done"));
        let counts = runner.counts;
        assert_eq!((counts.refused, counts.skipped), (0, 0), "{}", workload.name);
    }
    let found: BTreeSet<String> = workloads.iter().flat_map(words).collect();
    let changing = "file mkdir symlink mknod tmpfile link unlink rmdir rename write truncate allocate clone setxattr rmxattr \
                    chmod chown utimes subvolume snapshot delete hold release commit reopen fsync beside await";
    for word in changing.split(' ') {
        assert!(found.contains(word), "no workload does {word}");
    }
}

#[test]
fn the_workloads_cover_every_operation() {
    let workloads = all();
    let names: BTreeSet<_> = workloads.iter().map(|workload| workload.name).collect();
    assert!(names.len() >= 25 && names.len() == workloads.len());
    let found: BTreeSet<String> = workloads.iter().flat_map(words).collect();
    let changing = "file mkdir symlink mknod tmpfile link unlink rmdir rename write truncate allocate clone setxattr rmxattr \
                    chmod chown utimes subvolume snapshot delete readonly hold release commit clean reopen \
                    empty quotas";
    for word in changing.split(' ') {
        assert!(found.contains(word), "no workload does {word}");
    }
    let of = |choose: fn(&Workload) -> bool| workloads.iter().filter(|it| choose(it)).count();
    for nodesize in [4096, 16384, 65536] {
        assert!(workloads.iter().any(|workload| workload.config.nodesize == nodesize));
    }
    assert!(of(|it| it.config.dup) >= 3 && of(|it| it.config.mixed) >= 3);
}
