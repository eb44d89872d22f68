//! Our checker against `btrfs check`: time, and memory at its highest, on one image of many files.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use buttress::{Filesystem, New, Node, Options};

use crate::{Row, Scale, Side, linux, median};

/// Bytes of the image.
const IMAGE: u64 = 12 << 30;
/// Files in a directory.
const DIRECTORY: u64 = 1000;

/// Makes the files: every tenth has a data extent, half of the others have some bytes inline.
fn fill(image: &Path, files: u64) {
    crate::create::fresh(image, IMAGE);
    let fs = Filesystem::open(image, Options::read_write()).expect("a fresh image opens");
    let mut dir = Node { subvolume: 5, ino: 256 };
    for at in 0..files {
        if at % DIRECTORY == 0 {
            let top = Node { subvolume: 5, ino: 256 };
            let name = format!("dir{:04}", at / DIRECTORY);
            dir = fs.create(top, name.as_bytes(), &New::directory(0o755)).expect("room").node;
        }
        let name = format!("file{at:07}");
        let node = fs.create(dir, name.as_bytes(), &New::file(0o600)).expect("room").node;
        let len = match at % 10 {
            0 => 8192,
            1..=5 => 200,
            _ => continue,
        };
        fs.write(node, 0, &vec![at as u8; len]).expect("room");
    }
    fs.close().expect("a commit");
}

/// Runs a command, such as a checker, which has to find nothing; seconds and the most KiB of memory it had.
pub fn run(command: &mut Command) -> Result<(f64, f64), String> {
    let text = |error: std::io::Error| error.to_string();
    let began = Instant::now();
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().map_err(text)?;
    let status = format!("/proc/{}/status", child.id());
    let mut most = 0.0;
    let ended = loop {
        if let Some(ended) = child.try_wait().map_err(text)? {
            break ended;
        }
        let said = std::fs::read_to_string(&status).unwrap_or_default();
        let peak = said.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        most = peak.unwrap_or(most);
        std::thread::sleep(Duration::from_millis(2));
    };
    match ended.success() {
        true => Ok((began.elapsed().as_secs_f64(), most)),
        false => Err(format!("{command:?}: {ended}")),
    }
}

/// Seconds and MiB on both sides.
pub fn row(scale: Scale) -> Row {
    let files = scale.of(1_000_000);
    let dir = linux::ram();
    let image = dir.path().join("image");
    fill(&image, files);
    let ours = std::env::current_exe().unwrap_or_default().with_file_name("buttress");
    let mut row = Row::new(12, format!("check {files} files"));
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        for (side, program, args, figures) in [
            (Side::Here, ours.as_path(), &["-q", "check"][..], &mut here),
            (Side::Linux, Path::new("btrfs"), &["check"][..], &mut there),
        ] {
            if !scale.wants(side) {
                continue;
            }
            match run(Command::new(program).args(args).arg(&image)) {
                Ok(figure) => figures.push(figure),
                Err(why) => row.note(why),
            }
        }
    }
    let mut medians = Vec::new();
    for (name, figures) in [("btrfs check", there), ("here", here)] {
        if !figures.is_empty() {
            let seconds = median(figures.iter().map(|it| it.0).collect());
            medians.push(seconds);
            row.add(name, seconds, "s");
            let memory = median(figures.iter().map(|it| it.1 / 1024.0).collect());
            row.add(&format!("{name}, memory"), memory, "MiB");
        }
    }
    row.ratio("ratio", medians);
    row
}
