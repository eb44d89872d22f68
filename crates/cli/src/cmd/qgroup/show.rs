//! `qgroup show`, with the columns of btrfs-progs.
//!
//! Behind a group of a higher level stands how many groups are in it. (btrfs-progs 6.2 counts those that it is in, and ends by a signal when
//! it is to sort by paths, or to print a limit as JSON.)

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use buttress_device::Access;
use clap::Args;
use serde_json::{Value, json};

use crate::args::Globals;
use crate::cmd::files::{Failures, session};
use crate::cmd::quota::{are_off, refused};
use crate::device;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::units::{UnitArgs, Units};
use crate::vfs::Vfs;
use crate::vfs::quotas::{Group, Quotas, level, shown};
use crate::vnode::Target;

/// Arguments of `qgroup show`.
#[derive(Debug, Args)]
pub struct Show {
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// Print the groups that it is in
    #[arg(short = 'p', help_heading = "Columns")]
    parents: bool,
    /// Print the groups that are in it
    #[arg(short = 'c', help_heading = "Columns")]
    children: bool,
    /// Print the limit of what it refers to
    #[arg(short = 'r', help_heading = "Columns")]
    max_rfer: bool,
    /// Print the limit of what only it refers to
    #[arg(short = 'e', help_heading = "Columns")]
    max_excl: bool,
    /// Only the group of the subvolume at TARGET, and those that it is in, directly or not
    #[arg(short = 'F', help_heading = "Filters")]
    with_parents: bool,
    /// Only the group of the subvolume at TARGET
    #[arg(short = 'f', help_heading = "Filters")]
    own: bool,
    /// Sort by these: qgroupid, rfer, excl, max_rfer, max_excl, path, each with + or - before it
    #[arg(long, value_name = "KEYS", value_delimiter = ',', allow_hyphen_values = true, value_parser = parse_key)]
    sort: Vec<SortKey>,
    /// Make everything durable first, and count it
    #[arg(long)]
    sync: bool,
    #[command(flatten)]
    units: UnitArgs,
}

/// What to sort by.
#[derive(Clone, Copy, Debug)]
pub struct SortKey {
    by: SortBy,
    falling: bool,
}

#[derive(Clone, Copy, Debug)]
enum SortBy {
    Id,
    Rfer,
    Excl,
    MaxRfer,
    MaxExcl,
    Path,
}

fn parse_key(text: &str) -> Result<SortKey, &'static str> {
    let falling = text.starts_with('-');
    let by = match text.strip_prefix(['+', '-']).unwrap_or(text) {
        "qgroupid" => SortBy::Id,
        "rfer" => SortBy::Rfer,
        "excl" => SortBy::Excl,
        "max_rfer" => SortBy::MaxRfer,
        "max_excl" => SortBy::MaxExcl,
        "path" => SortBy::Path,
        _ => return Err("there are qgroupid, rfer, excl, max_rfer, max_excl and path"),
    };
    Ok(SortKey { by, falling })
}

impl SortKey {
    fn compare(&self, one: &Row, other: &Row) -> Ordering {
        // As in btrfs-progs, no limit is like one of nothing.
        let limit = Option::unwrap_or_default;
        let order = match self.by {
            SortBy::Id => one.id.cmp(&other.id),
            SortBy::Rfer => one.group.rfer.cmp(&other.group.rfer),
            SortBy::Excl => one.group.excl.cmp(&other.group.excl),
            SortBy::MaxRfer => limit(one.group.max_rfer).cmp(&limit(other.group.max_rfer)),
            SortBy::MaxExcl => limit(one.group.max_excl).cmp(&limit(other.group.max_excl)),
            // Groups without a subvolume come last.
            SortBy::Path => {
                (one.path.is_none(), &one.path).cmp(&(other.path.is_none(), &other.path))
            }
        };
        if self.falling { order.reverse() } else { order }
    }
}

/// A line of the table.
struct Row {
    id: u64,
    group: Group,
    /// The path of its subvolume; empty for the top level.
    path: Option<Vec<u8>>,
}

impl Row {
    /// What stands in the column of the path.
    fn place(&self) -> Vec<u8> {
        match (&self.path, self.group.members.len()) {
            (Some(path), _) if path.is_empty() => b"<toplevel>".to_vec(),
            (Some(path), _) => path.clone(),
            (None, _) if level(self.id) == 0 => b"<stale>".to_vec(),
            (None, 1) => b"<1 member qgroup>".to_vec(),
            (None, count) => format!("<{count} member qgroups>").into_bytes(),
        }
    }
}

/// What is known of the paths of subvolumes, and what hides others.
type Paths = (BTreeMap<u64, Vec<u8>>, Vec<Failure>);

/// Lists groups.
pub fn run(args: &Show, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    const LIST: &str = "cannot list the groups of";
    let (quotas, (paths, passed), here) = session(globals, Access::ReadOnly, |session| {
        let vnode = session.find(&Target::any(&args.target, globals), true)?;
        let vfs = Vfs::of(&vnode)?;
        // An image that is only read has nothing that waits.
        if args.sync && vnode.image_node().is_none() {
            vfs.sync()?;
        }
        let quotas = vfs.quotas().map_err(|why| refused(LIST, &vfs, why))?;
        let Some(quotas) = quotas else { return Err(are_off(LIST, &vfs)) };
        warn(&quotas, &vfs, globals);
        Ok((quotas, paths(&vfs)?, vfs.subvolume_of(&vnode)?))
    })?;
    let mut rows = rows(quotas, paths, args, here);
    rows.sort_by(|one, other| {
        let orders = args.sort.iter().map(|key| key.compare(one, other));
        orders.fold(Ordering::Equal, Ordering::then)
    });
    match globals.format {
        Format::Json => {
            let list: Vec<Value> = rows.iter().map(json).collect();
            output::write_json(out, "qgroup-show", list.into())?;
        }
        Format::Text => text(&rows, args, out)?,
    }
    let mut failures = Failures::new(globals);
    passed.into_iter().try_for_each(|failure| failures.note(Err(failure), out))?;
    failures.end()
}

/// Says why numbers may be wrong, in the words of btrfs-progs.
fn warn(quotas: &Quotas, vfs: &Vfs, globals: &Globals) {
    let what = match quotas {
        quotas if !quotas.are_on() => "quota disabled, qgroup data may be out of date",
        quotas if quotas.are_scanned() => "rescan is running, qgroup data may be incorrect",
        quotas if quotas.are_wrong() => "qgroup data inconsistent, rescan recommended",
        _ => return,
    };
    device::warn(globals, Path::new(&vfs.name()), &what);
}

fn paths(vfs: &Vfs) -> Result<Paths, Failure> {
    let (known, passed) = vfs.subvolumes_past()?;
    Ok((known.into_iter().map(|it| (it.id, it.path)).collect(), passed))
}

/// The groups asked for, by their numbers.
fn rows(quotas: Quotas, mut paths: BTreeMap<u64, Vec<u8>>, args: &Show, here: u64) -> Vec<Row> {
    let wanted = args.with_parents.then(|| quotas.with_parents(here));
    let is_wanted = |id: u64| match &wanted {
        Some(wanted) => wanted.contains(&id),
        None => !args.own || id == here,
    };
    let groups = quotas.groups.into_iter().filter(|(id, _)| is_wanted(*id));
    groups.map(|(id, group)| Row { id, group, path: paths.remove(&id) }).collect()
}

/// A column: its title, how wide it is at least, and what stands there.
struct Column {
    title: &'static str,
    /// Numbers end in the same place, the others begin there.
    is_number: bool,
    width: usize,
    cells: Vec<String>,
}

impl Column {
    fn new(title: &'static str, least: usize, cells: Vec<String>) -> Column {
        let width = cells.iter().map(String::len).fold(least, usize::max);
        Column { title, is_number: false, width, cells }
    }

    fn of_numbers(title: &'static str, least: usize, cells: Vec<String>) -> Column {
        Column { is_number: true, ..Column::new(title, least, cells) }
    }

    fn write(&self, cell: &str, out: &mut dyn Write) -> Result<(), Failure> {
        let width = self.width;
        match self.is_number {
            true => write!(out, "{cell:>width$} ")?,
            false => write!(out, "{cell:<width$} ")?,
        }
        Ok(())
    }
}

fn columns(rows: &[Row], args: &Show) -> Vec<Column> {
    let units = args.units.units();
    let cells = |cell: &dyn Fn(&Row) -> String| rows.iter().map(cell).collect();
    let mut all = vec![
        Column::new("Qgroupid", 9, cells(&|row| shown(row.id))),
        Column::of_numbers("Referenced", 12, cells(&|row| units.show(row.group.rfer))),
        Column::of_numbers("Exclusive", 12, cells(&|row| units.show(row.group.excl))),
    ];
    if args.max_rfer {
        let most = cells(&|row| limit(row.group.max_rfer, units));
        all.push(Column::of_numbers("Max referenced", 15, most));
    }
    if args.max_excl {
        let most = cells(&|row| limit(row.group.max_excl, units));
        all.push(Column::of_numbers("Max exclusive", 14, most));
    }
    if args.parents {
        all.push(Column::new("Parent", 8, cells(&|row| list(&row.group.parents))));
    }
    if args.children {
        all.push(Column::new("Child", 5, cells(&|row| list(&row.group.members))));
    }
    all
}

fn limit(most: Option<u64>, units: Units) -> String {
    most.map_or("none".to_owned(), |most| units.show(most))
}

fn list(ids: &[u64]) -> String {
    let ids: Vec<String> = ids.iter().map(|id| shown(*id)).collect();
    if ids.is_empty() { "-".to_owned() } else { ids.join(",") }
}

fn text(rows: &[Row], args: &Show, out: &mut dyn Write) -> Result<(), Failure> {
    let columns = columns(rows, args);
    let dashes = |title: &str| "-".repeat(title.len());
    for title in [str::to_owned as fn(&str) -> String, dashes] {
        for column in &columns {
            column.write(&title(column.title), out)?;
        }
        writeln!(out, "  {} ", title("Path"))?;
    }
    for (index, row) in rows.iter().enumerate() {
        for column in &columns {
            column.write(column.cells.get(index).map_or("", String::as_str), out)?;
        }
        write!(out, "  ")?;
        out.write_all(&row.place())?;
        writeln!(out)?;
    }
    Ok(())
}

fn json(row: &Row) -> Value {
    let ids = |ids: &[u64]| ids.iter().map(|id| shown(*id)).collect::<Vec<_>>();
    let limit = |most: Option<u64>| most.map_or("none".into(), Value::from);
    json!({
        "qgroupid": shown(row.id),
        "referenced": row.group.rfer,
        "max_referenced": limit(row.group.max_rfer),
        "exclusive": row.group.excl,
        "max_exclusive": limit(row.group.max_excl),
        "path": output::text_json(row.path.as_deref().unwrap_or_default()),
        "stale": row.path.is_none() && level(row.id) == 0,
        "parents": ids(&row.group.parents),
        "children": ids(&row.group.members),
    })
}
