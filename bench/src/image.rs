//! Row 10: an image from a directory tree.

use std::fs;
use std::path::Path;

use crate::linux;
use crate::{Row, Scale, median, seconds};

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
    let (mut here, mut there, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    let mut sizes = (0, 0);
    for _ in 0..scale.rounds {
        let dir = linux::ram();
        let image = dir.path().join("ours");
        let mut failed = None;
        here.push(seconds(|| failed = ours(&image, tree.path()).err()));
        notes.extend(failed);
        sizes.0 = used(&image);
        let image = dir.path().join("theirs");
        let (path, root) =
            (image.to_string_lossy().into_owned(), tree.path().to_string_lossy().into_owned());
        let made = fs::File::create(&image).and_then(|file| file.set_len(4 << 30));
        let mut result = made.map_err(|error| error.to_string());
        let took = seconds(|| {
            result = linux::run("mkfs.btrfs", &["-q", "-f", "--rootdir", &root, &path]).map(drop);
        });
        match result {
            Ok(()) => there.push(took),
            Err(why) => notes.push(why),
        }
        sizes.1 = used(&image);
    }
    notes.dedup();
    let mut figures = vec![("here".to_owned(), median(here), "s")];
    if !there.is_empty() {
        figures.push(("mkfs.btrfs --rootdir".to_owned(), median(there), "s"));
        figures.push(("ratio".to_owned(), figures[1].1 / figures[0].1, "x"));
    }
    figures.push(("image here".to_owned(), sizes.0 as f64 / 1048576.0, "MiB on disk"));
    figures.push(("image of mkfs.btrfs".to_owned(), sizes.1 as f64 / 1048576.0, "MiB on disk"));
    Row { number: 10, work: format!("an image from {files} files"), figures, notes }
}

fn used(image: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(image).map_or(0, |meta| meta.blocks() * 512)
}

fn ours(image: &Path, tree: &Path) -> Result<(), String> {
    let command = std::env::current_exe().map_err(|error| error.to_string())?;
    let command = command.with_file_name("buttress");
    if !command.exists() {
        return Err("build the command first: cargo build --release".to_owned());
    }
    let (command, image, tree) =
        (command.to_string_lossy(), image.to_string_lossy(), tree.to_string_lossy());
    linux::run(&command, &["mkfs", "-q", "--size", "4G", "--rootdir", &tree, &image]).map(drop)
}
