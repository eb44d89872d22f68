//! Operations that the fuzzer chooses, on the engine and on the model of it.
#![no_main]

use buttress_testkit::ops::Op;
use buttress_testkit::ops::generate::{Generator, Profile};
use buttress_testkit::ops::run::{Config, Runner};
use libfuzzer_sys::fuzz_target;

/// Operations of one run.
const OPS_MAX: usize = 400;

fuzz_target!(|data: &[u8]| {
    let Some((seed, tape)) = data.split_first() else { return };
    let config = Config::of_seed(u64::from(*seed), 600 << 20);
    let profile = Profile { large: 128 << 10, bytes_max: 4 << 20, ..Profile::default() };
    let mut generator = Generator::of_tape(tape, profile);
    let mut runner = Runner::new(&config).expect("an empty filesystem");
    for _ in 0..OPS_MAX {
        if generator.is_at_end() {
            break;
        }
        let op = generator.next(runner.model());
        runner.step(&op).unwrap_or_else(|failure| panic!("{op}: {failure}"));
    }
    runner.step(&Op::Reopen).unwrap_or_else(|failure| panic!("the end: {failure}"));
});
