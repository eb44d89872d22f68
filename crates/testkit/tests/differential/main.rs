//! The kernel's mount and ours, operation by operation; `make differential` is the long run.

#![allow(clippy::unwrap_used, reason = "a test says by failing what went wrong")]

use buttress_testkit::differential::{self, Pair, Shape};
use buttress_testkit::ops::generate::{Generator, Profile};
use buttress_testkit::oracle;

/// Operations of each seed.
const OPS: u64 = 700;

/// Not a test by itself: the process of our mount.
#[test]
fn serve() {
    differential::serve();
}

fn sequence(seed: u64) {
    if std::env::var_os("BUTTRESS_DIFFERENTIAL_IMAGE").is_some() || !oracle::root_or_skip() {
        return;
    }
    if !std::path::Path::new("/dev/fuse").exists() {
        return oracle::skip("there is no /dev/fuse");
    }
    let profile = Profile { files_max: 200, bytes_max: 8 << 20, ..Profile::default() };
    let mut generator = Generator::new(seed, profile);
    let mut pair = Pair::new(&Shape::of_seed(seed)).unwrap();
    for number in 0..OPS {
        let op = generator.next(pair.model());
        pair.step(&op).unwrap_or_else(|error| panic!("seed {seed}, operation {number}: {error}"));
    }
    println!("{:?}", pair.finish().unwrap());
}

#[test]
fn the_same_operations_give_the_same() {
    sequence(1);
}

#[test]
fn the_same_operations_give_the_same_with_another_shape() {
    sequence(2);
}
