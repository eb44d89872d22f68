//! The engine against a model of a filesystem: sequences that once failed, and short runs of random ones. Longer ones are
//! what `modelrun` is for.

use std::sync::Arc;

use buttress::Discard;
use buttress_device::BlockDevice;
use buttress_testkit::model::QuotaMode;
use buttress_testkit::ops::brim::{self, Brim};
use buttress_testkit::ops::generate::{Generator, Profile};
use buttress_testkit::ops::run::{Config, Runner};
use buttress_testkit::ops::{parse_all, shrink, threads};

/// Runs a sequence; with a check of the image at its end.
fn replay(config: Config, text: &str) {
    let ops = parse_all(text).expect("operations");
    if let Err(failure) = shrink::run(&config, &ops, true) {
        panic!("{failure}");
    }
}

/// Runs random operations, and lets Linux judge what comes of them.
fn random(seed: u64, config: Config, profile: Profile, count: u64) {
    println!("seed {seed} {config:?}");
    let mut runner = Runner::new(&config).expect("an empty filesystem");
    let mut generator = Generator::new(seed, profile);
    for number in 0..count {
        let op = generator.next(runner.model());
        if let Err(failure) = runner.step(&op) {
            panic!("seed {seed}, operation {number}: {failure}");
        }
    }
    if let Err(failure) = runner.finish() {
        panic!("seed {seed}: {failure}");
    }
    println!("seed {seed}: {:?}", runner.counts);
    assert!(runner.counts.done > count / 3, "few operations had something to do");
}

#[test]
fn attributes_after_a_change_count_what_is_buffered() {
    let config = Config::default();
    let mut runner = Runner::new(&config).expect("an empty filesystem");
    for op in parse_all("file /a 644 0\nwrite /a 0 9000 1").expect("operations") {
        runner.step(&op).expect("done");
    }
    let node = runner.model().resolve("/a").expect("made");
    let change = buttress::Change { mode: Some(0o600), ..buttress::Change::default() };
    let answer = runner.fs().set_attributes(node, &change).expect("changed");
    assert_eq!(answer.blocks_bytes, runner.fs().attributes(node).expect("there").blocks_bytes);
    assert!(answer.blocks_bytes >= 9000);
}

#[test]
fn a_subvolume_has_its_name_where_a_file_must_not_replace() {
    replay(Config::default(), "subvolume /b 1\nfile /h 644 0\nrename /h /b noreplace");
    replay(Config::default(), "subvolume /b 1\nrename /b /b noreplace");
}

#[test]
fn a_copied_entry_is_a_stub_also_where_the_subvolume_comes_to_live() {
    replay(
        Config::default(),
        "subvolume /s 0
         snapshot / /t false
         rename /s /t/other replace
         list /t/
         reopen",
    );
}

#[test]
fn subvolumes_change_places() {
    replay(
        Config::default(),
        "subvolume /s 0
         subvolume /s/inner 0
         subvolume /t 0
         mkdir /d 755 0
         file /d/f 644 0
         rename /t /s/inner exchange
         rename /s/inner /d exchange
         rename /d/f /t exchange
         rename /s /d exchange
         snapshot / /c false
         rename /c/t /c/d exchange
         rename /c/d /c/s replace
         rename /d/inner /s exchange
         check
         reopen",
    );
}

#[test]
fn a_snapshot_has_no_files_without_names() {
    replay(
        Config { nodesize: 65536, ..Config::default() },
        "mkdir /o 2755 2000
         mkdir /a 777 0
         mkdir /a/p 1777 1000
         setxattr /a/p trusted.t 65371 670605 any
         file /k.txt 755 1000
         mkdir /c 600 0
         mkdir /l 4755 2000
         hold 3 /k.txt
         unlink /k.txt
         mkdir /l/i 755 0
         snapshot / /l/i/d true
         snapshot /l/i/d /c/a true
         check",
    );
}

#[test]
fn a_full_filesystem_opens_with_files_to_clean_up_and_can_be_emptied() {
    let mut text = String::from("file /held 644 0\nwrite /held 0 100000 1\nhold 1 /held\n");
    text.push_str("unlink /held\ncommit\n");
    for number in 0..20 {
        text.push_str(&format!("file /f{number} 644 0\nwrite /f{number} 0 4000000 {number}1\n"));
    }
    text.push_str("reopen\ndrain\nreopen\n");
    let config =
        Config { size: 64 << 20, nodesize: 4096, mixed: true, dup: false, ..Config::default() };
    replay(config, &text);
}

#[test]
fn a_subvolume_stays_where_it_is_in_one_that_is_read_only() {
    replay(
        Config::default(),
        "subvolume /s 0
         subvolume /s/t 0
         readonly /s true
         rename /s/t /s/t replace
         rename /s/t /u replace",
    );
}

#[test]
fn a_file_without_a_name_is_held_once_more_and_let_go_of() {
    replay(
        Config::default(),
        "file /a 644 0
         hold 0 /a
         unlink /a
         hold 0 @0
         look @0
         release 0
         reopen",
    );
}

#[test]
fn random_operations() {
    for seed in 1..=6 {
        let config = Config::of_seed(seed, 1 << 30);
        let numbered = if seed == 4 { 300 } else { 0 };
        random(seed, config, Profile { check_every: 1000, numbered, ..Profile::default() }, 2000);
    }
}

#[test]
fn random_operations_where_space_runs_out() {
    for seed in 101..=102 {
        let config = Config::of_seed(seed, 64 << 20);
        random(seed, config, Profile { check_every: 900, ..Profile::filling() }, 1500);
    }
}

/// Shared and scattered, and not a block to spare: see `ops::brim`. `make brim` runs more of them.
/// The device after some operations.
fn device_after(seed: u64, config: &Config, count: u64) -> Vec<u8> {
    let device = Arc::new(config.make().expect("a filesystem"));
    let mut runner = Runner::over(device.clone(), config).expect("an empty filesystem");
    let mut generator = Generator::new(seed, Profile::default());
    for _ in 0..count {
        let op = generator.next(runner.model());
        runner.step(&op).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
    runner.finish_unmounted().unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    let mut bytes = vec![0; config.size as usize];
    device.read_at(0, &mut bytes).expect("a device in memory");
    bytes
}

/// Where free space lies leaves memory and is read again: what is decided is the same, to the byte.
#[test]
fn free_space_that_leaves_memory_changes_nothing() {
    let usual = Config { size: 128 << 20, dup: false, reproducible: true, ..Config::default() };
    for seed in [71, 72] {
        let same = |free_space_max| {
            let config = Config { free_space_max, nodesize: 4096, ..usual };
            device_after(seed, &config, 1500)
        };
        assert!(same(0) == same(u64::MAX), "seed {seed}");
    }
}

#[test]
fn random_operations_on_the_brim() {
    for seed in [2, 11, 23] {
        let (config, filling) = Brim::of_seed(seed);
        brim(seed, &config, Brim { extents: filling.extents.min(3000), ..filling }, 400);
    }
}

/// Deletions make the extent tree larger, and with it what the next ones are promised, until not even snapshots can be deleted: before
/// that it is packed.
#[test]
fn deleting_goes_on_where_deletions_have_filled_the_trees_with_gaps() {
    let (config, filling) = Brim::of_seed(105);
    brim(105, &config, filling, 2000);
}

fn brim(seed: u64, config: &Config, filling: Brim, ops: u64) {
    println!("seed {seed} {config:?} {filling:?}");
    let mut run = brim::Run::new(seed, config, filling).expect("an empty filesystem");
    let mut go = || {
        run.fill()?;
        run.own_goes()?;
        (0..ops).try_for_each(|_| run.random())?;
        run.finish()
    };
    if let Err(failure) = go() {
        panic!("seed {seed}: {failure}");
    }
    println!("seed {seed}: {:?}", run.runner().counts);
}

#[test]
fn random_operations_on_the_brim_in_threads() {
    let (config, filling) = Brim::of_seed(14);
    let filling = Brim { extents: filling.extents.min(2000), ..filling };
    println!("seed 14 {config:?} {filling:?}");
    match brim::in_threads(14, &config, filling, 3, 300) {
        Ok(counts) => println!("seed 14: {counts:?}"),
        Err(failure) => panic!("seed 14: {failure}"),
    }
}

#[test]
fn random_operations_in_threads() {
    let config = Config::of_seed(201, 1 << 30);
    println!("seed 201 {config:?}");
    match threads::run(&config, 201, 8, 600) {
        Ok(counts) => println!("seed 201: {counts:?}"),
        Err(failure) => panic!("seed 201: {failure}"),
    }
}

#[test]
fn a_sequence_that_does_not_fail_is_left_alone() {
    let ops = parse_all("mkdir /a 755 0\nfile /a/b 644 0\ncommit").expect("operations");
    let (kept, failure) =
        shrink::shrink(&Config::default(), &ops, false, std::time::Duration::from_secs(1));
    assert_eq!(kept, ops);
    assert!(failure.0.contains("does not fail"));
}

/// Quota groups are right after each commit, whatever was done: as a pass over it counts them, and as Linux's checker does.
#[test]
fn quotas_are_counted_by_each_commit() {
    for seed in 300..304 {
        let config = Config { quotas: QuotaMode::Full, ..Config::of_seed(seed, 1 << 30) };
        random(seed, config, Profile { check_every: 1500, ..Profile::default() }, 6000);
    }
}

/// The same of simple quotas, as our checker adds them up.
#[test]
fn simple_quotas_are_counted_by_each_commit() {
    for seed in 310..314 {
        let config = Config { quotas: QuotaMode::Simple, ..Config::of_seed(seed, 1 << 30) };
        random(seed, config, Profile { check_every: 1500, ..Profile::default() }, 6000);
    }
}

/// They are right, too, when they are switched off and on and to the other kind, while block groups are emptied.
#[test]
fn quotas_are_switched_in_between() {
    for seed in 320..323 {
        let profile = Profile {
            check_every: 700,
            quotas_every: 50,
            empty_every: 170,
            trim_every: 130,
            ..Profile::default()
        };
        random(seed, Config::of_seed(seed, 1 << 30), profile, 4000);
    }
}

/// What the device was told to be free is zeros then, and nobody misses it: neither the next operations, nor Linux's checker.
#[test]
fn nobody_misses_what_the_device_was_told_to_be_free() {
    for seed in 330..334 {
        let profile =
            Profile { check_every: 700, empty_every: 170, trim_every: 40, ..Profile::default() };
        let config = Config { discard: Some(Discard::Sync), ..Config::of_seed(seed, 1 << 30) };
        random(seed, config, profile, 4000);
    }
}
