//! Prints the figures to beat, both sides in one run, and writes them as JSON.
//!
//! "Linux" is the kernel's own btrfs on a loop device over an image in RAM; "here" is this project in process. Sides
//! alternate, and medians are quoted. Where root, the kernel or a tool is missing, a row says so instead of guessing.
//!
//! `BENCH_ROWS=1,3` chooses rows, `BENCH_SIDES=here,linux,mounts` sides, `BENCH_ROUNDS` the rounds (5), `BENCH_SCALE` the
//! size in percent (100 is what the table of targets says; the default is 20 so that a run takes minutes), `BENCH_THREADS=1,16`
//! the numbers of threads in rows 1 and 23, `BENCH_WORK=made,renamed` the work
//! in rows 1, 18 and 23, by a part of its name. `BENCH_COLD_MEMORY=1` takes memory as the host gives it (`host.rs`).

mod balance;
mod check;
mod commits;
mod create;
mod databases;
mod dbench;
mod everyday;
mod fiemap;
mod fsync;
mod host;
mod image;
mod latency;
mod leaves;
mod linux;
mod little;
mod memory;
mod mounts;
mod moves;
mod quotas;
mod reflog;
mod stream;
mod threads;
mod usage;
mod waits;

use std::time::Instant;

use serde_json::{Map, Value, json};

/// Who does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// buttress in process.
    Here,
    /// The kernel's btrfs, or btrfs-progs.
    Linux,
    /// Filesystems in user space, mounted.
    Mounts,
}

/// How much to do.
#[derive(Clone, Copy)]
pub struct Scale {
    /// Percent of the full size.
    pub percent: u64,
    /// Rounds, of which the median counts.
    pub rounds: usize,
    /// The sides wanted, by their numbers.
    sides: [bool; 3],
}

impl Scale {
    /// `full` things, scaled.
    pub fn of(&self, full: u64) -> u64 {
        (full * self.percent / 100).max(1)
    }

    /// Whether a side is wanted.
    pub fn wants(&self, side: Side) -> bool {
        self.sides[side as usize]
    }
}

/// A measured figure.
pub struct Figure {
    name: String,
    value: f64,
    unit: &'static str,
}

impl Figure {
    /// `value` in `unit`.
    pub fn new(name: &str, value: f64, unit: &'static str) -> Figure {
        Figure { name: name.to_owned(), value, unit }
    }
}

/// One measured row.
pub struct Row {
    /// The row's number in the table of targets.
    pub number: u32,
    /// What is measured.
    pub work: String,
    /// Figures, each with its name and unit.
    pub figures: Vec<Figure>,
    /// What is missing, or worth knowing.
    pub notes: Vec<String>,
}

impl Row {
    /// A row without figures. What is known of it is printed at once, so that who ends the bench early has seen it.
    pub fn new(number: u32, work: String) -> Row {
        println!("row {number}: {work}");
        Row { number, work, figures: Vec::new(), notes: Vec::new() }
    }

    /// Adds a figure.
    pub fn add(&mut self, name: &str, value: f64, unit: &'static str) {
        println!("    {name:<52} {value:>14.2} {unit}");
        self.figures.push(Figure::new(name, value, unit));
    }

    /// Adds how often the first value is the second, where both are there.
    pub fn ratio(&mut self, name: &str, of: Vec<f64>) {
        if let [one, other] = of[..] {
            self.add(name, one / other, "x");
        }
    }

    /// Says once what is missing.
    pub fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            println!("    ({note})");
            self.notes.push(note);
        }
    }
}

/// The middle of some figures.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    if figures.is_empty() { f64::NAN } else { figures[figures.len() / 2] }
}

/// Seconds that `work` takes.
pub fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The numbers of threads wanted of `all`.
pub fn wanted_threads(all: &[u64]) -> Vec<u64> {
    let Ok(chosen) = std::env::var("BENCH_THREADS") else { return all.to_vec() };
    chosen.split(',').filter_map(|threads| threads.trim().parse().ok()).collect()
}

/// Whether work of this name is wanted.
pub fn wants_work(name: &str) -> bool {
    std::env::var("BENCH_WORK").map_or(true, |all| all.split(',').any(|one| name.contains(one)))
}

fn scale() -> Scale {
    let sides = std::env::var("BENCH_SIDES").unwrap_or_else(|_| "here,linux,mounts".to_owned());
    let wants = |name: &str| sides.split(',').any(|side| side.trim() == name);
    Scale {
        percent: number("BENCH_SCALE", 20),
        rounds: (number("BENCH_ROUNDS", 5) as usize).max(1),
        sides: [wants("here"), wants("linux"), wants("mounts")],
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    if let (Some(what), Some(path)) = (args.next(), args.next()) {
        return match what.as_str() {
            "commits" => commits::child(&path),
            "fsyncs" => everyday::fsyncs(path.as_ref()).expect("files can be made and synced"),
            other => match other.strip_prefix("balance-") {
                Some(memory) => little::child(memory, path.as_ref()),
                None => memory::child(&what, path.as_ref()),
            },
        };
    }
    let scale = scale();
    let chosen = std::env::var("BENCH_ROWS").unwrap_or_else(|_| {
        "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23".to_owned()
    });
    let mut rows = Vec::new();
    for name in chosen.split(',') {
        let row = match name.trim() {
            "1" => create::row(scale),
            "2" => leaves::row(scale),
            "3" => reflog::row(scale),
            "4" => fiemap::row(scale),
            "5" => balance::row(scale),
            "6" => balance::row_of_many(scale),
            "7" => dbench::row(scale),
            "8" => fsync::row(scale),
            "9" => stream::row(scale),
            "10" => image::row(scale),
            "11" => memory::row(scale),
            "12" => check::row(scale),
            "13" => everyday::row(scale),
            "14" => commits::row(scale),
            "15" => latency::row(scale),
            "16" => databases::row(scale),
            "17" => usage::row(scale),
            "18" => quotas::row(scale),
            "19" => moves::row(scale),
            "20" => moves::row_of_shrinking(scale),
            "21" => waits::row(scale),
            "22" => little::row(scale),
            "23" => threads::row(scale),
            other => {
                eprintln!("there is no row {other}; there are 1 to 23");
                std::process::exit(2);
            }
        };
        rows.push(row);
    }
    write(&rows, scale);
}

fn write(rows: &[Row], scale: Scale) {
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            let figures: Map<String, Value> = row
                .figures
                .iter()
                .map(|Figure { name, value, unit }| (format!("{name} [{unit}]"), json!(value)))
                .collect();
            json!({ "row": row.number, "work": row.work, "figures": figures, "notes": row.notes })
        })
        .collect();
    let all = json!({ "scale_percent": scale.percent, "rounds": scale.rounds, "rows": rows });
    let path = "target/bench.json";
    match std::fs::write(path, format!("{all:#}\n")) {
        Ok(()) => println!("written to {path}"),
        Err(error) => eprintln!("bench: {path}: {error}"),
    }
}
