//! What 64 snapshots take: our pass against a rescan of Linux's quotas, on one image.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use buttress::{Filesystem, New, Node, Options, Owner};

use crate::linux::Mounted;
use crate::{Row, Scale, Side, check, linux, median, seconds};

/// Bytes of the image.
const IMAGE: u64 = 16 << 30;
/// Files at full size.
const FILES: u64 = 200_000;
/// Files in a directory.
const DIRECTORY: u64 = 1000;
/// Snapshots.
const SNAPSHOTS: u64 = 64;
/// One file in so many changes between two snapshots.
const UNCHANGED: u64 = 100;
/// Bytes of a file: an extent of its own.
const LEN: usize = 4096;

/// Makes the files, and the snapshots with changes between them, all over the directories.
fn fill(image: &Path, files: u64) -> buttress::Result<()> {
    crate::create::fresh(image, IMAGE);
    let fs = Filesystem::open(image, Options::read_write())?;
    let id = fs.create_subvolume(Node::ROOT, b"work", Owner::default())?;
    let mut nodes = Vec::new();
    let mut dir = Node::top(id);
    for at in 0..files {
        if at % DIRECTORY == 0 {
            let name = format!("dir{:04}", at / DIRECTORY);
            dir = fs.create(Node::top(id), name.as_bytes(), &New::directory(0o755))?.node;
        }
        let node = fs.create(dir, format!("file{at:07}").as_bytes(), &New::file(0o600))?.node;
        fs.write(node, 0, &vec![at as u8; LEN])?;
        nodes.push(node);
    }
    for round in 0..SNAPSHOTS {
        fs.snapshot(id, Node::ROOT, format!("snapshot{round:02}").as_bytes(), true)?;
        let first = round * 37 % UNCHANGED;
        for node in nodes.iter().skip(first as usize).step_by(UNCHANGED as usize) {
            fs.write(*node, 0, &vec![round as u8; LEN])?;
        }
    }
    fs.close()
}

/// Referenced and exclusive bytes, by subvolume.
type Counts = BTreeMap<u64, (u64, u64)>;

/// Seconds of a rescan with nothing cached, and what it has counted.
fn rescan(image: &Path, at: &Path) -> Result<(f64, Counts), String> {
    {
        let mount = Mounted::new(image, at)?;
        mount.btrfs(&["quota", "enable"])?;
        mount.btrfs(&["quota", "rescan", "-w"])?;
    }
    let mount = Mounted::new(image, at)?;
    let mut done = Ok(String::new());
    let took = seconds(|| done = mount.btrfs(&["quota", "rescan", "-w"]));
    done?;
    linux::sync(at)?;
    let text = mount.btrfs(&["qgroup", "show", "--raw"])?;
    let counts = text.lines().filter_map(|line| {
        let mut words = line.strip_prefix("0/")?.split_whitespace();
        let mut next = || words.next()?.parse::<u64>().ok();
        Some((next()?, (next()?, next()?)))
    });
    Ok((took, counts.collect()))
}

/// The same numbers, as we count them.
fn counts(image: &Path) -> buttress::Result<Counts> {
    let costs = Filesystem::open(image, Options::read_only())?.subvolume_costs(|_| true)?;
    let sums = costs.subvolumes();
    Ok(sums.map(|(id, it)| (id, (it.referenced.sum(), it.exclusive.sum()))).collect())
}

/// Seconds on both sides, and our memory.
pub fn row(scale: Scale) -> Row {
    let files = scale.of(FILES);
    let dir = linux::ram();
    let (image, mnt) = (dir.path().join("image"), dir.path().join("mnt"));
    let work = format!("bytes of {SNAPSHOTS} snapshots of {files} files, 1 % changed between them");
    let mut row = Row::new(17, work);
    if let Err(why) = fill(&image, files) {
        row.note(format!("the image cannot be made: {why}"));
        return row;
    }
    let ours = std::env::current_exe().unwrap_or_default().with_file_name("buttress");
    let (mut here, mut memory, mut there) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        if scale.wants(Side::Linux) {
            match rescan(&image, &mnt) {
                Ok((took, theirs)) => {
                    there.push(took);
                    match counts(&image) {
                        Ok(ours) if ours == theirs => {}
                        Ok(_) => row.note("the two sides do not count the same".to_owned()),
                        Err(why) => row.note(why.to_string()),
                    }
                }
                Err(why) => row.note(why),
            }
        }
        if scale.wants(Side::Here) {
            let mut command = Command::new(&ours);
            match check::run(command.args(["subvolume", "usage"]).arg(&image)) {
                Ok((took, most)) => (here.push(took), memory.push(most / 1024.0)).1,
                Err(why) => row.note(why),
            }
        }
    }
    let mut medians = Vec::new();
    for (name, figures) in [("Linux, quota rescan", there), ("here", here)] {
        if !figures.is_empty() {
            medians.push(median(figures));
            row.add(name, medians[medians.len() - 1], "s");
        }
    }
    row.ratio("ratio", medians);
    if !memory.is_empty() {
        row.add("here, memory", median(memory), "MiB");
    }
    row
}
