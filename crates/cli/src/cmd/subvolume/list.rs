//! `subvolume list`, with the columns of btrfs-progs, and with `--usage` those of `subvolume usage` beside them: bytes of data and of tree
//! blocks together.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::Write;

use buttress::costs::{Bytes, Share};
use buttress_device::Access;
use buttress_ondisk::objectid;
use clap::Args;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::args::Globals;
use crate::clock::Zone;
use crate::cmd::copy::Progress;
use crate::cmd::files::{Failures, session};
use crate::error::Failure;
use crate::output::{self, Format};
use crate::vfs::{Subvolume, Vfs};
use crate::vnode::Target;

/// Arguments of `subvolume list`.
#[derive(Debug, Args)]
pub struct List {
    /// DEVICE[:PATH] or a path on a live mount. Without -a and -o, paths of what is below the subvolume at TARGET are shown from there
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// Only subvolumes directly below the one at TARGET
    #[arg(short = 'o')]
    below: bool,
    /// All paths from the top level, with <FS_TREE>/ before those that are not directly below the subvolume at TARGET
    #[arg(short = 'a')]
    all: bool,
    /// Print the parent's id
    #[arg(short = 'p', help_heading = "Columns")]
    parent: bool,
    /// Print the generation at creation
    #[arg(short = 'c', help_heading = "Columns")]
    ogeneration: bool,
    /// Print the generation
    #[arg(short = 'g', help_heading = "Columns")]
    generation: bool,
    /// Print the uuid
    #[arg(short = 'u', help_heading = "Columns")]
    uuid: bool,
    /// Print the uuid of what it is a snapshot of
    // Under the id of the option that -q is everywhere else, which it takes the place of here.
    #[arg(id = "quiet", short = 'q', help_heading = "Columns")]
    parent_uuid: bool,
    /// Print the uuid of what it was received from
    #[arg(short = 'R', help_heading = "Columns")]
    received_uuid: bool,
    /// Print what it refers to, and what only it refers to: bytes of data and metadata together. `subvolume usage` has them apart
    #[arg(long, help_heading = "Columns")]
    usage: bool,
    /// Only snapshots
    #[arg(short = 's', help_heading = "Filters")]
    snapshots: bool,
    /// Only read-only ones
    #[arg(short = 'r', help_heading = "Filters")]
    readonly: bool,
    /// Only deleted ones whose space is not free yet
    #[arg(short = 'd', conflicts_with_all = ["below", "all"], help_heading = "Filters")]
    deleted: bool,
    /// Only those with this generation, +GEN: or newer, -GEN: or older; given twice, both hold
    #[arg(short = 'G', value_name = "[+|-]GEN", allow_hyphen_values = true, value_parser = parse_bound, help_heading = "Filters")]
    generations: Vec<Bound>,
    /// Only those with this generation at creation, +GEN: or newer, -GEN: or older; given twice, both hold
    #[arg(short = 'C', value_name = "[+|-]GEN", allow_hyphen_values = true, value_parser = parse_bound, help_heading = "Filters")]
    ogenerations: Vec<Bound>,
    /// Print a table
    #[arg(short = 't')]
    table: bool,
    /// Sort by these: gen, ogen, rootid, path, each with + or - before it
    #[arg(long, value_name = "KEYS", value_delimiter = ',', allow_hyphen_values = true, value_parser = parse_key)]
    sort: Vec<SortKey>,
}

/// A bound on generations.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    Exactly(u64),
    AtLeast(u64),
    AtMost(u64),
}

impl Bound {
    fn holds(self, value: u64) -> bool {
        match self {
            Bound::Exactly(bound) => value == bound,
            Bound::AtLeast(bound) => value >= bound,
            Bound::AtMost(bound) => value <= bound,
        }
    }
}

fn parse_bound(text: &str) -> Result<Bound, std::num::ParseIntError> {
    match (text.strip_prefix('+'), text.strip_prefix('-')) {
        (Some(number), _) => number.parse().map(Bound::AtLeast),
        (_, Some(number)) => number.parse().map(Bound::AtMost),
        _ => text.parse().map(Bound::Exactly),
    }
}

/// What to sort by.
#[derive(Clone, Copy, Debug)]
pub struct SortKey {
    by: SortBy,
    falling: bool,
}

#[derive(Clone, Copy, Debug)]
enum SortBy {
    Generation,
    Ogeneration,
    Id,
    Path,
}

fn parse_key(text: &str) -> Result<SortKey, String> {
    let falling = text.starts_with('-');
    let by = match text.trim_start_matches(['+', '-']) {
        "gen" => SortBy::Generation,
        "ogen" => SortBy::Ogeneration,
        "rootid" => SortBy::Id,
        "path" => SortBy::Path,
        _ => return Err("there are gen, ogen, rootid and path".into()),
    };
    Ok(SortKey { by, falling })
}

impl SortKey {
    fn compare(&self, one: &Subvolume, other: &Subvolume) -> Ordering {
        let [made, ..] = one.transids;
        let [other_made, ..] = other.transids;
        let order = match self.by {
            SortBy::Generation => one.generation.cmp(&other.generation),
            SortBy::Ogeneration => made.cmp(&other_made),
            SortBy::Id => one.id.cmp(&other.id),
            SortBy::Path => one.path.cmp(&other.path),
        };
        if self.falling { order.reverse() } else { order }
    }
}

/// What subvolumes take, by their ids; nothing where nobody has asked for it.
type Shares = HashMap<u64, Share>;

/// Lists subvolumes.
pub fn run(args: &List, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let ((mut all, passed), here, shares) = session(globals, Access::ReadOnly, |session| {
        let vnode = session.find(&Target::any(&args.target, globals), true)?;
        let vfs = Vfs::of(&vnode)?;
        let all = match args.deleted {
            true => (vfs.deleted_subvolumes()?, Vec::new()),
            false => vfs.subvolumes_past()?,
        };
        let shares = if args.usage { shares(&vfs, globals)? } else { Shares::new() };
        Ok((all, vfs.subvolume_of(&vnode)?, shares))
    })?;
    let top = all.iter().find(|it| it.id == here).map(|it| it.path.clone()).unwrap_or_default();
    all.retain(|it| it.id != objectid::FS_TREE && wanted(it, args, here));
    // Sorted by what is printed, as btrfs-progs does.
    if globals.format == Format::Text {
        all.iter_mut().for_each(|it| it.path = seen_from(it, here, &top, args));
    }
    all.sort_by(|one, other| {
        let orders = args.sort.iter().map(|key| key.compare(one, other));
        orders.fold(Ordering::Equal, Ordering::then)
    });
    print(&all, &shares, args, globals, out)?;
    let mut failures = Failures::new(globals);
    passed.into_iter().try_for_each(|failure| failures.note(Err(failure), out))?;
    failures.end()
}

fn shares(vfs: &Vfs, globals: &Globals) -> Result<Shares, Failure> {
    let progress = Progress::of_parts(globals);
    let costs = vfs.subvolume_costs(&[], &mut |what, done, total| progress.at(what, done, total));
    progress.finish();
    Ok(costs?.shares.into_iter().collect())
}

fn print(
    all: &[Subvolume],
    shares: &Shares,
    args: &List,
    globals: &Globals,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let zone = Zone::local();
    if globals.format == Format::Json {
        let share = |it: &Subvolume| args.usage.then(|| shares.get(&it.id));
        let list: Vec<_> = all.iter().map(|it| with_share(json(it, &zone), share(it))).collect();
        return Ok(output::write_json(out, "subvolume-list", list.into())?);
    }
    let row = |it: &Subvolume| columns(it, shares.get(&it.id), args, &zone);
    let rows: Vec<Row<'_>> = all.iter().map(row).collect();
    match args.table {
        true => table(&rows, args, out),
        false => lines(&rows, out),
    }
}

fn wanted(it: &Subvolume, args: &List, here: u64) -> bool {
    let [made, ..] = it.transids;
    (!args.below || args.all || it.parent == here)
        && (!args.snapshots || !it.parent_uuid.is_nil())
        && (!args.readonly || it.read_only)
        && args.generations.iter().all(|bound| bound.holds(it.generation))
        && args.ogenerations.iter().all(|bound| bound.holds(made))
}

/// The path of a subvolume as btrfs-progs prints it for a target in the subvolume `here`, whose path is `top`: what is below that is seen from
/// there. With -o all are seen from the top level, and with -a, too, where those that are not directly in `here` are marked.
fn seen_from(it: &Subvolume, here: u64, top: &[u8], args: &List) -> Vec<u8> {
    if args.all && it.parent != here {
        return [b"<FS_TREE>/", &*it.path].concat();
    }
    let below = it.path.strip_prefix(top).and_then(|rest| rest.strip_prefix(b"/"));
    match below {
        Some(below) if !args.all && !args.below => below.to_vec(),
        _ => it.path.clone(),
    }
}

/// The columns of a subvolume: names and what is in them.
type Row<'a> = Vec<(&'a str, Vec<u8>)>;

/// The columns asked for.
fn columns<'a>(it: &Subvolume, share: Option<&Share>, args: &List, zone: &Zone) -> Row<'a> {
    let [made, ..] = it.transids;
    let [otime, ..] = it.times;
    let uuid = |uuid: Uuid| match uuid.is_nil() {
        true => format!("{:<36}", "-"),
        false => uuid.to_string(),
    };
    let time = zone.at(otime.sec).date_and_time();
    let ogeneration = args.ogeneration || args.snapshots || !args.ogenerations.is_empty();
    let all = [
        (true, "ID", it.id.to_string().into()),
        (true, "gen", it.generation.to_string().into()),
        (ogeneration, "cgen", made.to_string().into()),
        (args.parent, "parent", it.parent.to_string().into()),
        (true, "top level", it.parent.to_string().into()),
        (args.snapshots, "otime", time.into()),
        (args.parent_uuid, "parent_uuid", uuid(it.parent_uuid).into()),
        (args.received_uuid, "received_uuid", uuid(it.received_uuid).into()),
        (args.uuid, "uuid", uuid(it.uuid).into()),
        (args.usage, "referenced", bytes(share.map(|it| it.referenced.sum()))),
        (args.usage, "exclusive", bytes(share.map(|it| it.exclusive.sum()))),
        (true, "path", it.path.clone()),
    ];
    all.into_iter().filter(|(shown, ..)| *shown).map(|(_, name, text)| (name, text)).collect()
}

/// A number of bytes; one that came up while the others were counted has none.
fn bytes(sum: Option<u64>) -> Vec<u8> {
    sum.map_or("-".into(), |sum| sum.to_string().into())
}

fn lines(rows: &[Row<'_>], out: &mut dyn Write) -> Result<(), Failure> {
    for row in rows {
        let words: Vec<_> =
            row.iter().map(|(name, text)| [name.as_bytes(), text].join(&b' ')).collect();
        out.write_all(&words.join(&b' '))?;
        writeln!(out)?;
    }
    Ok(())
}

fn table(rows: &[Row<'_>], args: &List, out: &mut dyn Write) -> Result<(), Failure> {
    // The names of the columns do not depend on what is in them.
    let names = columns(&nothing(), None, args, &Zone::default());
    for (name, _) in &names {
        write!(out, "{name}\t")?;
    }
    writeln!(out)?;
    for (name, _) in &names {
        write!(out, "{}\t", "-".repeat(name.len()))?;
    }
    writeln!(out)?;
    for row in rows {
        for (index, (name, text)) in row.iter().enumerate() {
            let before = if index == 0 { "" } else { "\t" };
            // A heading wider than a tab stop.
            let after = if *name == "top level" { "\t" } else { "" };
            write!(out, "{before}")?;
            out.write_all(text)?;
            write!(out, "{after}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn nothing() -> Subvolume {
    Subvolume {
        id: 0,
        parent: 0,
        name: Vec::new(),
        path: Vec::new(),
        generation: 0,
        transids: [0; 3],
        times: Default::default(),
        uuid: Uuid::nil(),
        parent_uuid: Uuid::nil(),
        received_uuid: Uuid::nil(),
        read_only: false,
    }
}

/// With what it takes, where somebody asks for that.
fn with_share(mut value: Value, asked: Option<Option<&Share>>) -> Value {
    let Some(share) = asked else { return value };
    let bytes = |it: Bytes| json!({ "data": it.data, "metadata": it.metadata });
    value["referenced"] = share.map_or(Value::Null, |it| bytes(it.referenced));
    value["exclusive"] = share.map_or(Value::Null, |it| bytes(it.exclusive));
    value
}

/// A subvolume as JSON.
pub fn json(it: &Subvolume, zone: &Zone) -> Value {
    let [made, sent, received] = it.transids;
    let [otime, stime, rtime] = it.times;
    let time = |time: crate::vnode::Time| match time.sec {
        0 => Value::Null,
        sec => zone.at(sec).to_string().into(),
    };
    json!({
        "ID": it.id,
        "gen": it.generation,
        "cgen": made,
        "parent": it.parent,
        "top level": it.parent,
        "otime": time(otime),
        "stransid": sent,
        "stime": time(stime),
        "rtransid": received,
        "rtime": time(rtime),
        "parent_uuid": output::uuid_json(it.parent_uuid),
        "received_uuid": output::uuid_json(it.received_uuid),
        "uuid": output::uuid_json(it.uuid),
        "readonly": it.read_only,
        "name": output::text_json(&it.name),
        "path": output::text_json(&it.path),
    })
}
