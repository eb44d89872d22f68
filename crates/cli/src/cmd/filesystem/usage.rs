//! `filesystem usage`, with the text of btrfs-progs.

use std::ffi::OsString;
use std::io::Write;

use buttress_ondisk::item::chunk_type;
use clap::Args;
use serde_json::{Value, json};

use super::df;
use crate::args::Globals;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::units::{UnitArgs, Units};
use crate::vfs::{Info, Space};

/// Arguments of `filesystem usage`.
#[derive(Debug, Args)]
pub struct UsageArgs {
    /// DEVICE[:PATH] or paths on live mounts
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<OsString>,
    #[command(flatten)]
    units: UnitArgs,
    /// A table, with a column for each kind of block groups
    #[arg(short = 'T')]
    tabular: bool,
}

/// Sums over the whole filesystem, bytes of the device unless said otherwise.
struct Overall {
    size: u64,
    allocated: u64,
    unallocated: u64,
    used: u64,
    /// Bytes of data that fit, if all new chunks are data chunks.
    free: u64,
    /// The same if new chunks have the profile with most copies.
    free_min: u64,
    reserve: Space,
    data_ratio: f64,
    metadata_ratio: f64,
    /// The kinds that have groups of several profiles.
    several_profiles: Vec<&'static str>,
}

impl Overall {
    fn of(info: &Info) -> Overall {
        let groups = || info.spaces.iter().filter(|it| !it.is_global_reserve());
        let of_kind = |kind: u64| groups().filter(move |it| it.flags & kind != 0);
        let ratio = |kind: u64| {
            let total = total_of(of_kind(kind).map(|it| it.total));
            let raw = total_of(of_kind(kind).map(|it| it.total.saturating_mul(it.copies())));
            if total == 0 { 1.0 } else { raw as f64 / total as f64 }
        };
        let size = total_of(info.devices.iter().map(|it| it.size));
        let allocated = total_of(info.devices.iter().map(|it| it.used));
        let unallocated = size.saturating_sub(allocated);
        let none = Space { flags: 0, total: 0, used: 0 };
        let reserve = info.spaces.iter().find(|it| it.is_global_reserve()).copied().unwrap_or(none);
        let (data, data_ratio) = (chunk_type::DATA, ratio(chunk_type::DATA));
        let mixed = of_kind(data).any(|it| it.flags & chunk_type::METADATA != 0);
        let inside =
            of_kind(data).map(|it| it.total.saturating_sub(it.used).saturating_mul(it.copies()));
        // As btrfs-progs reckons: with groups of several profiles, the next bytes take as many copies as those that are there on the average.
        let inside = (total_of(inside) as f64 / data_ratio) as u64;
        let inside = inside.saturating_sub(if mixed { reserve.total } else { 0 });
        let copies = groups().map(Space::copies).max().unwrap_or(1).max(1);
        Overall {
            size,
            allocated,
            unallocated,
            used: total_of(groups().map(|it| it.used.saturating_mul(it.copies()))),
            free: inside.saturating_add((unallocated as f64 / data_ratio) as u64),
            free_min: inside.saturating_add(unallocated / copies),
            reserve,
            data_ratio,
            metadata_ratio: ratio(chunk_type::METADATA),
            several_profiles: with_several_profiles(info),
        }
    }
}

/// The sum, or what comes nearest to it: damaged items say what they want.
fn total_of(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

/// Prints how full filesystems are. As JSON one is told of by itself, and several in a list.
pub fn run(args: &UsageArgs, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let mut list = Vec::new();
    let failures = super::of_each(&args.targets, globals, out, |info, out| {
        let overall = Overall::of(&info);
        if globals.format == Format::Json {
            list.push(json(&info, &overall));
            return Ok(());
        }
        let units = args.units.units();
        sums(&info, &overall, units, out)?;
        if args.tabular { table(&info, units, out) } else { groups(&info, units, out) }
    })?;
    match list.pop_if(|_| args.targets.len() == 1) {
        Some(only) => output::write_json(out, "filesystem-usage", only)?,
        None => output::write_json_of_operands(out, "filesystem-usage", list)?,
    }
    failures.end()
}

fn sums(info: &Info, it: &Overall, units: Units, out: &mut dyn Write) -> Result<(), Failure> {
    let show = |bytes| units.show(bytes);
    let width = units.width();
    writeln!(out, "Overall:")?;
    writeln!(out, "    Device size:\t\t{:>width$}", show(it.size))?;
    writeln!(out, "    Device allocated:\t\t{:>width$}", show(it.allocated))?;
    writeln!(out, "    Device unallocated:\t\t{:>width$}", show(it.unallocated))?;
    writeln!(out, "    Device missing:\t\t{:>width$}", show(0))?;
    writeln!(out, "    Device slack:\t\t{:>width$}", show(0))?;
    writeln!(out, "    Used:\t\t\t{:>width$}", show(it.used))?;
    let (free, min) = (show(it.free), show(it.free_min));
    writeln!(out, "    Free (estimated):\t\t{free:>width$}\t(min: {min})")?;
    writeln!(out, "    Free (statfs, df):\t\t{:>width$}", show(info.available))?;
    writeln!(out, "    Data ratio:\t\t\t{:>width$.2}", it.data_ratio)?;
    writeln!(out, "    Metadata ratio:\t\t{:>width$.2}", it.metadata_ratio)?;
    let (total, used) = (show(it.reserve.total), show(it.reserve.used));
    writeln!(out, "    Global reserve:\t\t{total:>width$}\t(used: {used})")?;
    let several = match it.several_profiles.as_slice() {
        [] => String::new(),
        kinds => format!("\t({})", kinds.join(", ")),
    };
    let answer = if several.is_empty() { "no" } else { "yes" };
    Ok(writeln!(out, "    Multiple profiles:\t\t{answer:>width$}{several}")?)
}

/// The kinds of block groups that have several profiles, in the words of btrfs-progs.
fn with_several_profiles(info: &Info) -> Vec<&'static str> {
    let kinds = [
        ("Data", "data"),
        ("Metadata", "metadata"),
        ("Data+Metadata", "mixed"),
        ("System", "system"),
    ];
    let several = |kind: &str| info.spaces.iter().filter(|it| it.kind() == kind).count() > 1;
    kinds.into_iter().filter(|(kind, _)| several(kind)).map(|(_, name)| name).collect()
}

/// The kinds of block groups, in the order in which they are shown.
pub fn in_order(info: &Info) -> impl Iterator<Item = &Space> {
    let order = ["Data", "Data+Metadata", "Metadata", "System"];
    order.into_iter().flat_map(|kind| info.spaces.iter().filter(move |it| it.kind() == kind))
}

/// A column of the table.
struct Column {
    /// Two lines above it.
    head: [String; 2],
    /// One for each device.
    devices: Vec<String>,
    /// The sum, and what is used of it.
    foot: [String; 2],
    /// Whether cells begin at its left edge.
    left: bool,
}

impl Column {
    fn new(head: [&str; 2], devices: Vec<String>, foot: [String; 2]) -> Column {
        Column { head: head.map(str::to_owned), devices, foot, left: false }
    }

    fn width(&self) -> usize {
        let cells = self.head.iter().chain(&self.devices).chain(&self.foot);
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    }

    fn cell(&self, text: &str, left: bool) -> String {
        let width = self.width();
        if left { format!("{text:<width$}") } else { format!("{text:>width$}") }
    }

    /// Its part of each line.
    fn lines(&self) -> Vec<String> {
        let dashes = "-".repeat(self.width());
        let head = self.head.iter().map(|text| self.cell(text, true));
        let devices = self.devices.iter().map(|text| self.cell(text, self.left));
        let foot = self.foot.iter().map(|text| self.cell(text, self.left));
        let ruled = |lines: Vec<String>| [vec![dashes.clone()], lines].concat();
        [head.collect(), ruled(devices.collect()), ruled(foot.collect())].concat()
    }
}

fn columns(info: &Info, units: Units) -> Vec<Column> {
    let of_each = |show: &dyn Fn(&crate::vfs::Device) -> String| {
        info.devices.iter().map(show).collect::<Vec<_>>()
    };
    let unallocated = |it: &crate::vfs::Device| it.size.saturating_sub(it.used);
    let sum = |of: &dyn Fn(&crate::vfs::Device) -> u64| {
        [units.show(total_of(info.devices.iter().map(of))), String::new()]
    };
    let none = || [String::new(), String::new()];
    let paths = Column {
        left: true,
        ..Column::new(
            ["", "Path"],
            of_each(&|it| it.path.clone()),
            ["Total".to_owned(), "Used".to_owned()],
        )
    };
    let mut columns =
        vec![Column::new(["", "Id"], of_each(&|it| it.id.to_string()), none()), paths];
    for it in in_order(info) {
        // Of the first device, as long as there is only one.
        let mut devices = of_each(&|_| "-".to_owned());
        if let Some(first) = devices.first_mut() {
            *first = units.show(it.total.saturating_mul(it.copies()));
        }
        let foot = [units.show(it.total), units.show(it.used)];
        columns.push(Column::new([it.kind(), it.profile()], devices, foot));
    }
    let free = of_each(&|it| units.show(unallocated(it)));
    columns.push(Column::new(["", "Unallocated"], free, sum(&unallocated)));
    let sizes = of_each(&|it| units.show(it.size));
    columns.push(Column::new(["", "Total"], sizes, sum(&|it| it.size)));
    columns.push(Column::new(["", "Slack"], of_each(&|_| "-".to_owned()), sum(&|_| 0)));
    columns
}

fn table(info: &Info, units: Units, out: &mut dyn Write) -> Result<(), Failure> {
    let columns: Vec<_> = columns(info, units).iter().map(Column::lines).collect();
    writeln!(out)?;
    for line in 0..columns.first().map_or(0, Vec::len) {
        let cells: Vec<&str> = columns.iter().map(|column| column[line].as_str()).collect();
        writeln!(out, "{}", cells.join(" "))?;
    }
    Ok(())
}

fn groups(info: &Info, units: Units, out: &mut dyn Write) -> Result<(), Failure> {
    let path = info.devices.first().map_or("", |it| it.path.as_str());
    for it in in_order(info) {
        let percent = if it.total == 0 { 0.0 } else { it.used as f64 * 100.0 / it.total as f64 };
        let (total, used) = (units.show(it.total), units.show(it.used));
        let on_device = units.show(it.total.saturating_mul(it.copies()));
        let (kind, profile) = (it.kind(), it.profile());
        writeln!(out, "\n{kind},{profile}: Size:{total}, Used:{used} ({percent:.2}%)")?;
        writeln!(out, "   {path}\t{on_device:>10}")?;
    }
    writeln!(out, "\nUnallocated:")?;
    for device in &info.devices {
        let free = units.show(device.size.saturating_sub(device.used));
        writeln!(out, "   {}\t{free:>10}", device.path)?;
    }
    Ok(())
}

fn json(info: &Info, it: &Overall) -> Value {
    let groups: Vec<_> = info.spaces.iter().map(df::json).collect();
    let device = |it: &crate::vfs::Device| {
        let unallocated = it.size.saturating_sub(it.used);
        json!({
            "devid": it.id,
            "path": it.path,
            "size": it.size,
            "allocated": it.used,
            "unallocated": unallocated,
        })
    };
    let devices: Vec<_> = info.devices.iter().map(device).collect();
    json!({
        "overall": {
            "device-size": it.size,
            "device-allocated": it.allocated,
            "device-unallocated": it.unallocated,
            "device-missing": 0,
            "device-slack": 0,
            "used": it.used,
            "free-estimated": it.free,
            "free-estimated-min": it.free_min,
            "free-statfs": info.available,
            "data-ratio": it.data_ratio,
            "metadata-ratio": it.metadata_ratio,
            "global-reserve": it.reserve.total,
            "global-reserve-used": it.reserve.used,
            "multiple-profiles": !it.several_profiles.is_empty(),
        },
        "block-groups": groups,
        "devices": devices,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_do_not_wrap() {
        let space = |flags| Space { flags, total: u64::MAX, used: 1 };
        let info = Info {
            fsid: uuid::Uuid::nil(),
            label: Vec::new(),
            devices: Vec::new(),
            spaces: vec![space(chunk_type::DATA | chunk_type::DUP), space(chunk_type::DATA)],
            available: 0,
        };
        let overall = Overall::of(&info);
        assert_eq!((overall.free, overall.used), (u64::MAX, 3));
    }
}
