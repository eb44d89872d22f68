//! Random operations, with commits under them.

use super::{Fixture, NODATASUM, Random, tools};
use crate::inode::file::{FileChanges, PARTS_MAX, Seek};

const SIZE_MAX: u64 = 1 << 20;

fn range(random: &mut Random) -> (u64, u64) {
    let offset = match random.below(4) {
        0 => random.below(3000),
        1 => random.below(SIZE_MAX / 4096) * 4096,
        _ => random.below(SIZE_MAX),
    };
    let len = match random.below(4) {
        0 => 1 + random.below(100),
        1 => 1 + random.below(20_000),
        2 => 4096 * (1 + random.below(10)),
        _ => 1 + random.below(300_000),
    };
    (offset, len)
}

fn zero(model: &mut [u8], offset: u64, len: u64) {
    let end = ((offset + len) as usize).min(model.len());
    let start = (offset as usize).min(end);
    model[start..end].fill(0);
}

fn clone(fixture: &Fixture, random: &mut Random, from: usize, to: usize) {
    let sector = 4096;
    let size = fixture.files.lock()[from].size();
    let offset = random.below(size / sector + 1) * sector;
    let whole = random.below(2) == 0;
    let len = match whole {
        true => size - offset.min(size),
        false => (random.below(40) * sector).min(size.saturating_sub(offset) / sector * sector),
    };
    let target = random.below(SIZE_MAX / sector) * sector;
    let aligned = len.is_multiple_of(sector) || target + len >= fixture.files.lock()[to].size();
    let overlaps = from == to && target < offset + len && offset < target + len;
    if len == 0 || !aligned || overlaps {
        return;
    }
    // Both halves in one operation, as it has to be.
    let op = fixture.core.txn.join(&fixture.core).expect("joins");
    let root = *fixture.root.lock();
    let mut files = fixture.files.lock();
    let shared = files[from].with(op.core, root, |live, layers| {
        live.share(&op, layers, size, offset, (len, u64::MAX), PARTS_MAX)
    });
    let shared = shared.expect("shares");
    let bytes = files[from].model[offset as usize..(offset + len) as usize].to_vec();
    let file = &mut files[to];
    let size = file.size();
    file.with(op.core, root, |live, layers| live.clone_from(&op, layers, size, target, shared))
        .expect("clones");
    let end = (target + len) as usize;
    if file.model.len() < end {
        file.model.resize(end, 0);
    }
    file.model[target as usize..end].copy_from_slice(&bytes);
}

fn punch_or_zero(fixture: &Fixture, random: &mut Random, at: usize) {
    let (offset, len) = range(random);
    let kind = random.below(3);
    fixture.op(at, |file, op, root| {
        let size = file.size();
        let keep = kind == 1;
        file.with(op.core, root, |live, layers| match kind {
            0 => live.punch(op, layers, offset, len),
            _ => live.zero_range(op, layers, offset, len, keep),
        })
        .expect("zeroes");
        if kind == 2 && offset + len > size {
            file.model.resize((offset + len) as usize, 0);
        }
        zero(&mut file.model, offset, len);
    });
}

fn allocate(fixture: &Fixture, random: &mut Random, at: usize) {
    let (offset, len) = range(random);
    let keep = random.below(2) == 0;
    fixture.op(at, |file, op, root| {
        let size = file.size();
        file.with(op.core, root, |live, layers| live.allocate(op, layers, offset, len, keep))
            .expect("allocates");
        if !keep && offset + len > size {
            file.model.resize((offset + len) as usize, 0);
        }
    });
}

/// What is said to be a hole reads as zeros, and data end where a hole starts.
fn seek(fixture: &Fixture, random: &mut Random, at: usize) {
    fixture.op(at, |file, op, root| {
        let size = file.size();
        if size == 0 {
            return;
        }
        let from = random.below(size);
        let found = file.with(op.core, root, |live, layers| live.seek(layers, from, Seek::Data));
        let data = found.unwrap_or(size);
        assert!(file.model[from as usize..data as usize].iter().all(|byte| *byte == 0));
    });
}

pub fn step(fixture: &Fixture, random: &mut Random) {
    let count = fixture.files.lock().len() as u64;
    let at = random.below(count) as usize;
    match random.below(12) {
        0..=4 => {
            let (offset, len) = range(random);
            let bytes = random.bytes(len as usize);
            fixture.write(at, offset, &bytes);
        }
        5 => {
            let new =
                if random.below(3) == 0 { random.below(5000) } else { random.below(SIZE_MAX) };
            fixture.truncate(at, new);
        }
        6 => punch_or_zero(fixture, random, at),
        7 => allocate(fixture, random, at),
        8 | 9 => {
            let to = random.below(count) as usize;
            clone(fixture, random, at, to);
        }
        10 => seek(fixture, random, at),
        _ => {
            let (offset, len) = range(random);
            fixture.compare(at, offset, len as usize);
        }
    }
    fixture.check_layers();
    if random.below(8) == 0 {
        fixture.compare_all();
    }
}

fn run(seed: u64, mkfs: &[&str], flags: u64, rounds: usize) {
    if !tools() {
        return;
    }
    println!("seed {seed} {mkfs:?}");
    let mut random = Random(seed);
    let mut fixture = Fixture::new(mkfs, 256 << 20, 3, flags);
    for round in 0..rounds {
        for _ in 0..random.below(30) {
            step(&fixture, &mut random);
        }
        let mut inner = Random(random.below(u64::MAX) | 1);
        fixture.commit_with(move |fixture| {
            fixture.compare_all();
            for _ in 0..inner.below(6) {
                step(fixture, &mut inner);
            }
        });
        fixture.compare_all();
        if round % 8 == 7 {
            fixture = fixture.check();
        }
    }
    fixture.check();
}

#[test]
fn random_with_defaults() {
    run(0x1234_5678_9abc, &[], 0, 48);
}

#[test]
fn random_with_explicit_holes() {
    run(0x9876_5432_1fed, &["-O", "^no-holes"], 0, 32);
}

#[test]
fn random_without_checksums() {
    run(0x1357_9bdf_0246, &[], NODATASUM, 24);
}

#[test]
fn random_with_small_nodes_and_long_checksums() {
    run(0xfeed_beef_cafe, &["-n", "4096", "--csum", "sha256"], 0, 24);
}

#[test]
fn random_with_mixed_groups() {
    run(0xabad_1dea_0001, &["-M", "-n", "4096", "-O", "^no-holes"], 0, 24);
}

/// Two seeds, or those of `BUTTRESS_SEEDS=from..to`.
#[test]
fn random_with_other_seeds() {
    let seeds = std::env::var("BUTTRESS_SEEDS").unwrap_or("1..3".into());
    let (from, to) = seeds.split_once("..").expect("BUTTRESS_SEEDS is from..to");
    let number = |text: &str| text.parse().expect("BUTTRESS_SEEDS is made of numbers");
    let forms: [&[&str]; 3] = [&[], &["-O", "^no-holes"], &["-M", "-n", "4096"]];
    for seed in number(from)..number(to) {
        let flags = if seed % 5 == 0 { NODATASUM } else { 0 };
        run(u64::wrapping_mul(seed, 0x9e37_79b9_7f4a_7c15), forms[seed as usize % 3], flags, 16);
    }
}

#[test]
fn layers_can_be_sent_and_shared() {
    fn check<T: Send + Sync>() {}
    check::<FileChanges>();
}
