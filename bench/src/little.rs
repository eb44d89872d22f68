//! Row 22: the most memory that a balance takes, where it may have little: 200,000 small extents in groups of data, leaves below 1,000 snapshots, and one block
//! that all of them share. Each measurement is a process of its own.

use std::path::Path;
use std::process::Command;

use buttress::{Balance, BalanceFilter, Filesystem, New, Node, Options, Owner};

use crate::{Row, Scale, Side, create, linux, seconds};

/// Bytes of the image; it is sparse.
const IMAGE: u64 = 16 << 30;
/// Files with an extent each.
const EXTENTS: u64 = 200_000;
/// Snapshots, and the files of what they share.
const SNAPSHOTS: u64 = 1000;
const SHARED: u64 = 2000;
/// MiB that the filesystem is told it has: less than the least that it takes, little, and plenty.
const MEMORY: [u64; 3] = [8, 32, 512];

/// What is on the image.
#[derive(Clone, Copy, Debug)]
enum Work {
    Extents,
    Snapshots,
}

fn fill(image: &Path, work: Work, scale: Scale) -> buttress::Result<()> {
    create::fresh(image, IMAGE);
    let fs = Filesystem::open(image, Options::read_write())?;
    let id = fs.create_subvolume(Node::ROOT, b"work", Owner::default())?;
    let files = match work {
        Work::Extents => scale.of(EXTENTS),
        Work::Snapshots => SHARED,
    };
    for number in 0..files {
        let name = format!("file{number:06}");
        let file = fs.create(Node::top(id), name.as_bytes(), &New::file(0o600))?.node;
        fs.write(file, 0, &[number as u8; 4096])?;
    }
    if matches!(work, Work::Snapshots) {
        for number in 0..scale.of(SNAPSHOTS) {
            let name = format!("snapshot{number:04}");
            let top = fs.snapshot(id, Node::ROOT, name.as_bytes(), false)?;
            // Each has a root of its own, and so each leaf has as many blocks above it.
            fs.create(Node::top(top), b"other", &New::file(0o600))?;
            if number % 50 == 0 {
                fs.commit()?;
            }
        }
    }
    fs.close()
}

/// The process that is measured: balances all with so many MiB, and prints the bytes of memory it used at most, before and after, and the seconds.
pub fn child(what: &str, image: &Path) {
    let memory: u64 = what.parse().expect("MiB");
    let fs = Filesystem::open(image, Options::read_write().memory(memory << 20));
    let fs = fs.expect("a filled image opens");
    let before = linux::peak_memory(std::process::id()).unwrap_or(0);
    let all = Some(BalanceFilter::default());
    let all = Balance { data: all.clone(), metadata: all.clone(), system: all, force: false };
    let mut done = Ok(Default::default());
    let took = seconds(|| done = fs.balance(&all, |_| std::ops::ControlFlow::Continue(())));
    let failed = done.map_or_else(
        |why| why.to_string(),
        |done| match done.emptied.failed.first() {
            Some((bytenr, why)) => format!("{bytenr}: {why}"),
            None => String::new(),
        },
    );
    let after = linux::peak_memory(std::process::id()).unwrap_or(0);
    fs.close().expect("a commit");
    println!("{before} {after} {took} {failed}");
}

fn measure(image: &Path, memory: u64) -> Result<(f64, f64, f64), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let out = Command::new(program).arg(format!("balance-{memory}")).arg(image).output();
    let out = out.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut words = text.trim().splitn(4, ' ');
    let mut next = || words.next()?.parse::<f64>().ok();
    let figures = (|| Some((next()?, next()?, next()?)))();
    let failed = words.next().unwrap_or_default();
    match figures {
        Some(figures) if failed.is_empty() => Ok(figures),
        Some(_) => Err(format!("with {memory} MiB: {failed}")),
        None => Err(format!("with {memory} MiB: {}", String::from_utf8_lossy(&out.stderr))),
    }
}

/// Peak memory of a balance.
pub fn row(scale: Scale) -> Row {
    let (extents, snapshots) = (scale.of(EXTENTS), scale.of(SNAPSHOTS));
    let mut row = Row::new(
        22,
        format!("memory of a balance: {extents} extents, or leaves below {snapshots} snapshots"),
    );
    let dir = linux::ram();
    for work in [Work::Extents, Work::Snapshots].into_iter().filter(|_| scale.wants(Side::Here)) {
        let image = dir.path().join("image");
        if let Err(why) = fill(&image, work, scale) {
            row.note(format!("the image cannot be made: {why}"));
            continue;
        }
        for memory in MEMORY {
            match measure(&image, memory) {
                Ok((before, after, took)) => {
                    let name = format!("{work:?}, with {memory} MiB");
                    row.add(&format!("{name}, opened"), before / 1048576.0, "MiB");
                    row.add(&format!("{name}, balanced"), after / 1048576.0, "MiB");
                    row.add(&format!("{name}, took"), took, "s");
                }
                Err(why) => row.note(format!("{work:?}, {why}")),
            }
        }
        let _gone = std::fs::remove_file(&image);
    }
    row
}
