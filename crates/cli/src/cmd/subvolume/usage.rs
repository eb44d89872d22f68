//! `subvolume usage`: what each subvolume refers to and has for itself, and what would be free without some of them.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use buttress::costs::{Bytes, Share};
use buttress_device::Access;
use buttress_fuse::client::SubvolumeCosts;
use buttress_ondisk::objectid;
use clap::Args;
use serde_json::{Value, json};

use crate::args::Globals;
use crate::cmd::copy::Progress;
use crate::cmd::files::{Failures, session};
use crate::error::Failure;
use crate::output::{self, Format};
use crate::units::{UnitArgs, Units};
use crate::vfs::{Subvolume, Vfs};
use crate::vnode::Target;

/// What stands for the path of the top level, as in btrfs-progs.
const TOP_LEVEL: &[u8] = b"<toplevel>";

/// Arguments of `subvolume usage`.
#[derive(Debug, Args)]
pub struct UsageArgs {
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// Say what deleting this subvolume would free, or all of these together: its path from the top level, or its id
    #[arg(long, value_name = "SUBVOLUME")]
    if_deleted: Vec<OsString>,
    #[command(flatten)]
    units: UnitArgs,
}

/// A line of the table.
struct Row {
    id: u64,
    path: Vec<u8>,
    share: Share,
}

/// Prints what subvolumes take.
pub fn run(args: &UsageArgs, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let (known, passed, ids, costs) = session(globals, Access::ReadOnly, |session| {
        let vnode = session.find(&Target::any(&args.target, globals), true)?;
        let vfs = Vfs::of(&vnode)?;
        let (known, passed) = vfs.subvolumes_past()?;
        let ids = args.if_deleted.iter().map(|name| chosen(&vfs, &known, name));
        let ids = ids.collect::<Result<Vec<u64>, Failure>>()?;
        let progress = Progress::of_parts(globals);
        let costs =
            vfs.subvolume_costs(&ids, &mut |what, done, total| progress.at(what, done, total));
        progress.finish();
        Ok((known, passed, ids, costs?))
    })?;
    let rows = rows(&known, &costs);
    match globals.format {
        Format::Json => {
            output::write_json(out, "subvolume-usage", json(&rows, &ids, &costs))?;
        }
        Format::Text => text(&rows, &ids, &costs, args.units.units(), out)?,
    }
    let mut failures = Failures::new(globals);
    passed.into_iter().try_for_each(|failure| failures.note(Err(failure), out))?;
    failures.end()
}

/// The id of a subvolume that somebody names.
fn chosen(vfs: &Vfs, known: &[Subvolume], name: &OsStr) -> Result<u64, Failure> {
    let path = name.as_bytes();
    let path = path.strip_prefix(b"/").unwrap_or(path);
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let id = name.to_str().and_then(|text| text.parse::<u64>().ok());
    let by_path = known.iter().find(|it| it.path == path && it.id != objectid::FS_TREE);
    let found = by_path.or_else(|| known.iter().find(|it| Some(it.id) == id));
    let wrong = |why: &str| {
        Failure::new("cannot tell of", name.display(), why).hint(format!(
            "buttress subvolume list {} prints the paths from the top level, and the ids.",
            vfs.name()
        ))
    };
    match found {
        Some(it) if it.id == objectid::FS_TREE => Err(wrong("the top level cannot be deleted")),
        Some(it) => Ok(it.id),
        None => Err(wrong("there is no such subvolume")),
    }
}

fn rows(known: &[Subvolume], costs: &SubvolumeCosts) -> Vec<Row> {
    let path = |id: u64, share: &Share| match known.iter().find(|it| it.id == id) {
        Some(_) if id == objectid::FS_TREE => TOP_LEVEL.to_vec(),
        Some(it) => it.path.clone(),
        None if share.deleted => b"DELETED".to_vec(),
        None => b"-".to_vec(),
    };
    let row = |(id, share): &(u64, Share)| Row { id: *id, path: path(*id, share), share: *share };
    costs.shares.iter().map(row).collect()
}

fn text(
    rows: &[Row],
    ids: &[u64],
    costs: &SubvolumeCosts,
    units: Units,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    const HEAD: [&str; 5] = ["ID", "Ref data", "Ref metadata", "Excl data", "Excl metadata"];
    let cells = |row: &Row| {
        let Share { referenced, exclusive, .. } = row.share;
        let sizes = [referenced.data, referenced.metadata, exclusive.data, exclusive.metadata];
        let [a, b, c, d] = sizes.map(|bytes| units.show(bytes));
        [row.id.to_string(), a, b, c, d]
    };
    let table: Vec<[String; 5]> =
        std::iter::once(HEAD.map(str::to_owned)).chain(rows.iter().map(cells)).collect();
    let mut widths = [0; 5];
    for line in &table {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.len().max(*width);
        }
    }
    let paths = std::iter::once(&b"Path"[..]).chain(rows.iter().map(|row| &*row.path));
    for (line, path) in table.iter().zip(paths) {
        for (cell, width) in line.iter().zip(widths) {
            write!(out, "{cell:>width$}  ")?;
        }
        out.write_all(path)?;
        writeln!(out)?;
    }
    writeln!(out)?;
    let mut sum = |what: &str, bytes: &Bytes| {
        let (data, metadata) = (units.show(bytes.data), units.show(bytes.metadata));
        writeln!(out, "{what}: data {data}, metadata {metadata}")
    };
    sum("In all subvolumes", &costs.total)?;
    sum("Shared by several", &costs.shared)?;
    if !ids.is_empty() {
        sum("Free if deleted", &costs.freed)?;
    }
    Ok(())
}

fn bytes(it: &Bytes) -> Value {
    json!({ "data": it.data, "metadata": it.metadata })
}

fn json(rows: &[Row], ids: &[u64], costs: &SubvolumeCosts) -> Value {
    let row = |row: &Row| {
        json!({
            "ID": row.id,
            "path": output::text_json(&row.path),
            "deleted": row.share.deleted,
            "referenced": bytes(&row.share.referenced),
            "exclusive": bytes(&row.share.exclusive),
        })
    };
    let freed = match ids.is_empty() {
        true => Value::Null,
        false => json!({ "IDs": ids, "freed": bytes(&costs.freed) }),
    };
    json!({
        "subvolumes": rows.iter().map(row).collect::<Vec<_>>(),
        "total": bytes(&costs.total),
        "shared": bytes(&costs.shared),
        "if-deleted": freed,
    })
}
