//! Scripts at random: few names, so that they get into each other's way.

use buttress_testkit::ops::rng::Rng;

const DIRS: [&str; 4] = [".", "d", "d/e", "f"];
const NAMES: [&str; 4] = ["a", "b", "c", "g"];

fn file(rng: &mut Rng) -> String {
    format!("{}/{}", pick(rng, &DIRS), pick(rng, &NAMES))
}

fn pick<'s>(rng: &mut Rng, of: &[&'s str]) -> &'s str {
    of[rng.below(of.len() as u64) as usize]
}

fn change(rng: &mut Rng) -> String {
    let (one, two) = (file(rng), file(rng));
    let (at, len) = (rng.below(300_000), 1 + rng.below(40_000));
    let sector = at / 4096 * 4096;
    match rng.below(24) {
        0..5 => format!("put {one} {at} {len}"),
        5 => format!("put {one} 0 {}", 1 + rng.below(3000)),
        6 => format!("truncate -s {at} {one}"),
        7 => format!("truncate -s {} {one}", rng.below(5000)),
        8 => format!("fallocate -p -o {at} -l {len} {one}"),
        9 => format!("fallocate -n -o {at} -l {len} {one}"),
        10 => format!("fallocate -z -o {sector} -l {len} {one}"),
        11 => format!("cp --reflink=always {one} {two}"),
        12..14 => format!("mv -T {one} {two}"),
        14 => format!(
            "mv -T {} {}",
            pick(rng, &DIRS[1..]),
            pick(rng, &["d/x", "f/e", "d", "d/e", "y"])
        ),
        15..17 => format!("ln {one} {two}"),
        17..19 => format!("rm -f {one}"),
        19 => format!("setfattr -n user.{} -v {at} {one}", pick(rng, &NAMES)),
        20 => format!("setfattr -x user.{} {one}", pick(rng, &NAMES)),
        21 => format!("mkdir -p {}", pick(rng, &DIRS)),
        22 => format!("rm -rf {}", pick(rng, &["d/e", "f", "d/x", "y"])),
        _ => format!("ln -s {at} {one}; chmod {:o} {two}", rng.below(0o1000)),
    }
}

fn fsync(rng: &mut Rng) -> String {
    match rng.below(4) {
        0 => format!("sync {}", pick(rng, &DIRS)),
        1 => format!("sync -d {}", file(rng)),
        _ => format!("sync {}", file(rng)),
    }
}

/// A script of some twenty steps. What cannot be done is not done.
pub fn script(seed: u64) -> String {
    let mut rng = Rng::new(seed);
    let mut lines = vec!["mkdir -p d/e f".to_owned()];
    let (before, after) = (5 + rng.below(15), 3 + rng.below(20));
    lines.extend((0..before).map(|_| change(&mut rng)));
    let mut text = quiet(&lines);
    text.push_str("commit; ");
    let mut lines = Vec::new();
    for _ in 0..after {
        lines.push(change(&mut rng));
        if rng.below(4) == 0 {
            lines.push(fsync(&mut rng));
        }
    }
    lines.extend([fsync(&mut rng), fsync(&mut rng)]);
    text.push_str(&quiet(&lines));
    text
}

fn quiet(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{{ {line}; }} 2>/dev/null || true\n")).collect()
}
