//! What answers cost: neither blocks that are looked at nor memory grow by the product of extents and snapshots. Counted, not timed.

use std::sync::Arc;

use buttress::device::MemoryDevice;
use buttress::refs::owners::{Committed, Known, Owners};
use buttress::{Filesystem, New, Node, Options};

/// Extents of the file, and snapshots; `BUTTRESS_SCALE=1000000,10000` for more.
fn scale() -> (u64, u64) {
    let text = std::env::var("BUTTRESS_SCALE").unwrap_or_default();
    let numbers = text.split_once(',').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    numbers.unwrap_or((20_000, 300))
}

struct Costs {
    /// Blocks looked at, in the cache or not, by fiemap, and by asking which trees reach each extent.
    fiemap: u64,
    trees: u64,
}

fn uses(fs: &Filesystem) -> u64 {
    let (hits, misses) = fs.core().blocks.uses();
    hits + misses
}

fn ask(fs: &Filesystem, file: Node, extents: u64, trees: u64) -> Costs {
    let before = uses(fs);
    let (mut found, mut shared) = (Vec::new(), 0);
    for one in fs.fiemap(file, 0..u64::MAX).unwrap() {
        let one = one.unwrap();
        found.push(one.physical);
        shared += u64::from(one.flags & buttress::fiemap_flags::SHARED != 0);
    }
    let fiemap = uses(fs) - before;
    let all = if trees > 1 { extents } else { 0 };
    assert_eq!((found.len() as u64, shared), (extents, all));
    found.sort_unstable();
    let roots = fs.core().roots();
    let committed = Committed { root: roots.root, chunk: roots.chunk, extent: roots.extent };
    let (before, mut known, mut most) = (uses(fs), Known::new(1 << 20), 0);
    for at in found {
        let mut owners = Owners::new(&fs.core().blocks, committed, &mut known);
        let set = owners.trees_of(at).unwrap();
        assert_eq!(known.sets().len(set), trees);
        most = most.max(known.bytes());
    }
    println!(
        "{extents} extents, {trees} trees: {fiemap} blocks, {} for the sets, {most} bytes",
        uses(fs) - before
    );
    // What is kept, and the ancestors of one extent: a few trees' roots for each tree.
    assert!(most < (1 << 20) + trees * 400, "{most} bytes");
    Costs { fiemap, trees: uses(fs) - before }
}

#[test]
fn costs_follow_the_sum_of_extents_and_snapshots() {
    let (extents, snapshots) = scale();
    let device = Arc::new(MemoryDevice::new(64 << 30));
    let mut seed = buttress_mkfs::Environment::seeded(1);
    buttress_mkfs::make(&*device, &Default::default(), &mut seed).unwrap();
    let options = Options::read_write().background(false);
    let fs = Filesystem::open_device(device, options).unwrap();
    let file = fs.create(Node::ROOT, b"file", &New::file(0o644)).unwrap().node;
    for number in 0..extents {
        fs.write(file, number * 8192, &[7; 4096]).unwrap();
    }
    fs.commit().unwrap();
    let alone = ask(&fs, file, extents, 1);
    let home = fs.create_subvolume(Node::ROOT, b"snapshots", Default::default()).unwrap();
    for number in 0..snapshots {
        let name = format!("snapshot{number}");
        fs.snapshot(5, Node::top(home), name.as_bytes(), true).unwrap();
    }
    fs.commit().unwrap();
    let below = ask(&fs, file, extents, snapshots + 1);
    // Each node below the roots has a reference of each tree, and each is looked at once: not once for each extent.
    let nodes = extents / 100 / 300 + 4;
    let most = alone.fiemap + 64 * nodes;
    assert!(below.fiemap <= most, "{} blocks, {most} at most", below.fiemap);
    let most = 2 * alone.trees + 16 * nodes * (snapshots + 1);
    assert!(below.trees <= most, "{} blocks, {most} at most", below.trees);
}

/// Whoever is told of a long file keeps nobody from committing, and is told the rest as it is then.
#[test]
fn commits_go_on_between_the_parts() {
    let device = Arc::new(MemoryDevice::new(4 << 30));
    let mut seed = buttress_mkfs::Environment::seeded(1);
    buttress_mkfs::make(&*device, &Default::default(), &mut seed).unwrap();
    let options = Options::read_write().background(false);
    let fs = Filesystem::open_device(device, options).unwrap();
    let file = fs.create(Node::ROOT, b"file", &New::file(0o644)).unwrap().node;
    for number in 0..10_000 {
        fs.write(file, number * 8192, &[7; 4096]).unwrap();
    }
    let mut extents = fs.fiemap(file, 0..u64::MAX).unwrap();
    let shared = |flags: u32| flags & buttress::fiemap_flags::SHARED != 0;
    let (mut before, mut after, mut last) = (0, 0, 0);
    for number in 0.. {
        let Some(one) = extents.next() else { break };
        let one = one.unwrap();
        assert!(one.logical == number * 8192 && one.length == 4096);
        before += u64::from(!shared(one.flags));
        after += u64::from(shared(one.flags));
        last |= one.flags & buttress::fiemap_flags::LAST;
        if number == 3000 {
            fs.snapshot(5, Node::ROOT, b"snapshot", true).unwrap();
        }
    }
    assert_eq!((before + after, last), (10_000, buttress::fiemap_flags::LAST));
    // What was looked at already was in parts of some thousand.
    assert!((3001..8000).contains(&before), "{before} before the snapshot, {after} after it");
}
