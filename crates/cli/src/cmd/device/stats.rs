//! `device stats`, with the text of btrfs-progs.

use std::ffi::OsString;
use std::io::Write;

use buttress_device::Access;
use buttress_ondisk::{Key, kind, objectid};
use clap::Args;
use serde_json::{Map, Value};

use crate::args::Globals;
use crate::cmd::files::with_vfs;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::vfs::{Device, Vfs};
use crate::vnode::FileError;

/// Arguments of `device stats`.
#[derive(Debug, Args)]
pub struct Stats {
    /// DEVICE or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// End with exit code 64 where anything was counted
    #[arg(short, long)]
    check: bool,
    /// A table
    #[arg(short = 'T')]
    tabular: bool,
}

/// What is counted, in the order of the item: its name, and the heading of its column.
const COUNTERS: [(&str, &str); 5] = [
    ("write_io_errs", "Write errors"),
    ("read_io_errs", "Read errors"),
    ("flush_io_errs", "Flush errors"),
    ("corruption_errs", "Corruption errors"),
    ("generation_errs", "Generation errors"),
];

type Counts = [u64; COUNTERS.len()];

/// Exit code that says that something was counted, as with btrfs-progs.
const COUNTED: u8 = 64;

/// Prints what was counted.
pub fn run(args: &Stats, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let all = with_vfs(&args.target, Access::ReadOnly, globals, |vfs| {
        let with_counts = |it: Device| counts(vfs, it.id).map(|counts| (it, counts));
        let all = vfs.info()?.devices.into_iter().map(with_counts).collect::<Result<Vec<_>, _>>();
        all.map_err(|why| Failure::new("cannot read the counters of", vfs.name(), why))
    })?;
    match globals.format {
        Format::Json => {
            output::write_json(out, "device-stats", all.iter().map(json).collect())?;
        }
        Format::Text if args.tabular => table(&all, out)?,
        Format::Text => lines(&all, out)?,
    }
    out.flush()?;
    let is_clean = all.iter().all(|(_, counts)| counts.iter().all(|count| *count == 0));
    if args.check && !is_clean { Err(Failure::said_with(COUNTED)) } else { Ok(()) }
}

/// What was counted for a device: nothing as long as there is no item.
fn counts(vfs: &Vfs, device: u64) -> Result<Counts, FileError> {
    let key = Key::new(objectid::DEV_STATS, kind::PERSISTENT_ITEM, device);
    let mut counts = Counts::default();
    vfs.search(objectid::DEV_TREE, key..=key, 0, &mut |_, _, data| {
        // An older kernel may have written fewer.
        for (count, bytes) in counts.iter_mut().zip(data.as_chunks().0) {
            *count = u64::from_le_bytes(*bytes);
        }
        false
    })?;
    Ok(counts)
}

fn lines(all: &[(Device, Counts)], out: &mut dyn Write) -> Result<(), Failure> {
    for (device, counts) in all {
        for ((name, _), count) in COUNTERS.iter().zip(counts) {
            writeln!(out, "[{}].{name:<16} {count}", device.path)?;
        }
    }
    Ok(())
}

fn table(all: &[(Device, Counts)], out: &mut dyn Write) -> Result<(), Failure> {
    let heads = ["Id", "Path"].into_iter().chain(COUNTERS.iter().map(|(_, head)| *head));
    let row = |(device, counts): &(Device, Counts)| {
        let counts = counts.iter().map(u64::to_string);
        [device.id.to_string(), device.path.clone()].into_iter().chain(counts).collect()
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let width = |(column, head): (usize, &str)| {
        let widths = cells(column).map(|cell| cell.chars().count());
        widths.max().unwrap_or(0).max(head.len())
    };
    let widths: Vec<usize> = heads.clone().enumerate().map(width).collect();
    let head: Vec<_> = heads.zip(&widths).map(|(head, width)| format!("{head:<width$}")).collect();
    writeln!(out, "{}", head.join(" "))?;
    let rule: Vec<_> = widths.iter().map(|width| "-".repeat(*width)).collect();
    writeln!(out, "{}", rule.join(" "))?;
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            // Numbers end at the right edge of their column, paths begin at the left one.
            if column == 1 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        writeln!(out, "{}", cells.collect::<Vec<_>>().join(" "))?;
    }
    Ok(())
}

/// The members of btrfs-progs, where numbers are text.
fn json((device, counts): &(Device, Counts)) -> Value {
    let mut map = Map::new();
    map.insert("device".into(), device.path.clone().into());
    map.insert("devid".into(), device.id.to_string().into());
    for ((name, _), count) in COUNTERS.iter().zip(counts) {
        map.insert((*name).into(), count.to_string().into());
    }
    map.into()
}
