//! Row 10: an image from a directory tree.

use std::fs;
use std::path::Path;

use crate::linux;
use crate::{Row, Scale, Side, median, seconds};

/// Files of the full tree: 55,500, some 631 MB, in directories of 100.
fn grow(dir: &Path, files: u64) {
    for at in 0..files {
        let sub = dir.join(format!("d{:03}/d{:02}", at / 10_000, at / 100 % 100));
        if at % 100 == 0 {
            fs::create_dir_all(&sub).expect("room");
        }
        let size = match at % 20 {
            0 => 64 << 10,
            1..=4 => 24 << 10,
            5..=9 => 9 << 10,
            10..=15 => 3 << 10,
            _ => 700,
        };
        let bytes = (at as u32).to_le_bytes().repeat(size / 4);
        fs::write(sub.join(format!("file{at}")), bytes).expect("room");
    }
}

/// Seconds and image bytes on both sides.
pub fn row(scale: Scale) -> Row {
    let files = scale.of(55_500);
    let tree = linux::ram();
    grow(tree.path(), files);
    let mut row = Row::new(10, format!("an image from {files} files"));
    let (mut here, mut there) = (Vec::new(), Vec::new());
    let mut sizes = (0, 0);
    for _ in 0..scale.rounds {
        let dir = linux::ram();
        if scale.wants(Side::Here) {
            let image = dir.path().join("ours");
            let mut failed = None;
            here.push(seconds(|| failed = ours(&image, tree.path()).err()));
            failed.into_iter().for_each(|why| row.note(why));
            sizes.0 = used(&image);
        }
        if scale.wants(Side::Linux) {
            let image = dir.path().join("theirs");
            let mut result = Ok(());
            let took = seconds(|| result = theirs(&image, tree.path()));
            match result {
                Ok(()) => there.push(took),
                Err(why) => row.note(why),
            }
            sizes.1 = used(&image);
        }
    }
    let mut medians = Vec::new();
    for (name, times) in [("mkfs.btrfs --rootdir", there), ("here", here)] {
        if !times.is_empty() {
            medians.push(median(times));
            row.add(name, medians[medians.len() - 1], "s");
        }
    }
    row.ratio("ratio", medians);
    row.add("image here", sizes.0 as f64 / 1048576.0, "MiB on disk");
    row.add("image of mkfs.btrfs", sizes.1 as f64 / 1048576.0, "MiB on disk");
    row
}

fn theirs(image: &Path, tree: &Path) -> Result<(), String> {
    let made = fs::File::create(image).and_then(|file| file.set_len(4 << 30));
    made.map_err(|error| error.to_string())?;
    let (image, tree) = (image.to_string_lossy(), tree.to_string_lossy());
    linux::run("mkfs.btrfs", &["-q", "-f", "--rootdir", &tree, &image]).map(drop)
}

fn used(image: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(image).map_or(0, |meta| meta.blocks() * 512)
}

fn ours(image: &Path, tree: &Path) -> Result<(), String> {
    let command = crate::mounts::sibling("buttress")?;
    let (command, image, tree) =
        (command.to_string_lossy(), image.to_string_lossy(), tree.to_string_lossy());
    linux::run(&command, &["mkfs", "-q", "--size", "4G", "--rootdir", &tree, &image]).map(drop)
}
