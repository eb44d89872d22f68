//! Rows 5 and 6: a balance of metadata, with full quotas and without: nodes of 4 KiB, many small files, and snapshots in each of which a few
//! files have changed.
//!
//! "Extents that quotas looked at" are those whose old and new roots a commit asks for. A balance changes nothing about who reaches what, so it need not
//! ask at all; Linux says how many it asks about in a trace point only.

use std::path::Path;

use buttress::{Balance, BalanceFilter, Filesystem, New, Node, Options, Owner};

use crate::linux::{self, Mounted};
use crate::{Row, Scale, Side, create, median, seconds};

/// Bytes of the image; it is sparse.
const IMAGE: u64 = 16 << 30;
/// Files at full size, and in a directory.
const FILES: u64 = 200_000;
const DIRECTORY: u64 = 1000;
/// Bytes of the files, by turns: two of them are in their leaves.
const LENGTHS: [usize; 4] = [500, 1500, 3000, 6000];
/// Files that change in each snapshot.
const CHANGED: u64 = 3;
/// Snapshots of row 5, and of row 6.
const FEW: u64 = 16;
const MANY: u64 = 64;

/// Subvolumes with small files.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Files.
    pub files: u64,
    /// Snapshots of their subvolume, which change a little.
    pub snapshots: u64,
    /// Whether full quotas count.
    pub quotas: bool,
    /// Bytes of a tree block.
    pub nodesize: u32,
}

/// Makes an image.
pub fn fill(image: &Path, shape: Shape) -> buttress::Result<()> {
    let nodesize = Some(shape.nodesize);
    create::fresh_as(image, IMAGE, &buttress_mkfs::Options { nodesize, ..Default::default() });
    let fs = Filesystem::open(image, Options::read_write())?;
    let id = fs.create_subvolume(Node::ROOT, b"work", Owner::default())?;
    let mut dir = Node::top(id);
    for number in 0..shape.files {
        if number.is_multiple_of(DIRECTORY) {
            let name = dir_of(number);
            dir = fs.create(Node::top(id), name.as_bytes(), &New::directory(0o755))?.node;
        }
        let file = fs.create(dir, name_of(number).as_bytes(), &New::file(0o600))?.node;
        let len = LENGTHS[number as usize % LENGTHS.len()];
        fs.write(file, 0, &vec![number as u8; len])?;
    }
    for snapshot in 0..shape.snapshots {
        let name = format!("snapshot{snapshot:02}");
        let top = fs.snapshot(id, Node::ROOT, name.as_bytes(), false)?;
        for change in 0..CHANGED {
            let number = (snapshot * 37 * DIRECTORY + change) % shape.files;
            let mut at = Node::top(top);
            for name in [dir_of(number), name_of(number)] {
                let found = fs.lookup(at, name.as_bytes())?;
                at = found.expect("it was made").node;
            }
            fs.write(at, 0, &[snapshot as u8; 100])?;
        }
    }
    if shape.quotas {
        fs.count_quotas(|_| true)?;
    }
    fs.close()
}

fn dir_of(number: u64) -> String {
    format!("dir{:03}", number / DIRECTORY)
}

fn name_of(number: u64) -> String {
    format!("file{number:06}")
}

/// As `-m` of btrfs-progs: groups of the chunk tree, too.
fn of_metadata() -> Balance {
    let all = Some(BalanceFilter::default());
    Balance { metadata: all.clone(), system: all, ..Balance::default() }
}

/// Seconds here, and extents that quotas looked at.
fn here(image: &Path) -> buttress::Result<(f64, u64)> {
    let options = Options::read_write().memory(buttress_fuse::budget::by_default());
    let fs = Filesystem::open(image, options)?;
    let mut done = Ok(());
    let took = seconds(|| {
        done = fs
            .balance(&of_metadata(), |_| std::ops::ControlFlow::Continue(()))
            .and_then(|_| fs.commit())
            .map(drop);
    });
    done?;
    let stats = fs.stats();
    if std::env::var_os("BENCH_STATS").is_some() {
        eprintln!("{took:.3} s, {stats:#?}");
    }
    fs.close()?;
    Ok((took, stats.quota_extents.iter().sum()))
}

/// Seconds on Linux.
fn there(image: &Path, at: &Path) -> Result<f64, String> {
    let mount = Mounted::new(image, at)?;
    let mut done = Ok(String::new());
    let took = seconds(|| done = mount.btrfs(&["balance", "start", "-m"]));
    done.map(|_| took)
}

/// What was measured of one shape.
#[derive(Default)]
struct Measured {
    here: Vec<f64>,
    linux: Vec<f64>,
    looked_at: u64,
}

impl Measured {
    fn add(&self, row: &mut Row, shape: Shape) {
        let mut medians = Vec::new();
        for (side, figures) in [("Linux", &self.linux), ("here", &self.here)] {
            if !figures.is_empty() {
                medians.push(median(figures.clone()));
                row.add(&format!("{side}, {}", shape.name()), medians[medians.len() - 1], "s");
            }
        }
        row.ratio(&format!("ratio, {}", shape.name()), medians);
        if shape.quotas && !self.here.is_empty() {
            let looked_at = self.looked_at as f64;
            row.add("here, extents that quotas looked at", looked_at, "");
        }
    }
}

impl Shape {
    fn name(self) -> String {
        let quotas = if self.quotas { "quotas on" } else { "no quotas" };
        format!("{} snapshots, {quotas}", self.snapshots)
    }
}

/// Seconds on both sides, each on a copy of the same image.
fn measure(scale: Scale, shape: Shape, linux_too: bool, row: &mut Row) -> Measured {
    let dir = linux::ram();
    let path = |name: &str| dir.path().join(name);
    let (image, copy) = (path("image"), path("copy"));
    let mut measured = Measured::default();
    if let Err(why) = fill(&image, shape) {
        row.note(format!("the image cannot be made: {why}"));
        return measured;
    }
    let again = || {
        let paths = [image.to_string_lossy(), copy.to_string_lossy()];
        linux::run("cp", &["--sparse=always", &paths[0], &paths[1]])
    };
    for _ in 0..scale.rounds {
        if scale.wants(Side::Here) {
            let took = again().and_then(|_| here(&copy).map_err(|why| why.to_string()));
            match took {
                Ok((took, looked_at)) => {
                    measured.here.push(took);
                    measured.looked_at = measured.looked_at.max(looked_at);
                }
                Err(why) => row.note(why),
            }
        }
        if scale.wants(Side::Linux) && linux_too {
            match again().and_then(|_| there(&copy, &path("mnt"))) {
                Ok(took) => measured.linux.push(took),
                Err(why) => row.note(why),
            }
        }
    }
    measured
}

/// Row 5.
pub fn row(scale: Scale) -> Row {
    let files = scale.of(FILES);
    let mut row = Row::new(5, format!("balance -m of {files} small files below {FEW} snapshots"));
    for quotas in [true, false] {
        let shape = Shape { files, snapshots: FEW, quotas, nodesize: 4096 };
        measure(scale, shape, true, &mut row).add(&mut row, shape);
    }
    row
}

/// Row 6, with row 5 on our side beside it.
pub fn row_of_many(scale: Scale) -> Row {
    let files = scale.of(FILES);
    let mut row = Row::new(6, format!("balance -m of {files} small files below {MANY} snapshots"));
    for quotas in [true, false] {
        let shape = Shape { files, snapshots: MANY, quotas, nodesize: 4096 };
        let few = Shape { snapshots: FEW, ..shape };
        let (few, many) =
            (measure(scale, few, false, &mut row), measure(scale, shape, true, &mut row));
        many.add(&mut row, shape);
        let both = [&many, &few].map(|it| it.here.clone());
        if both.iter().all(|figures| !figures.is_empty()) {
            let name = format!("here, to {FEW} snapshots, {}", shape.name());
            row.ratio(&name, both.map(median).to_vec());
        }
    }
    row
}
