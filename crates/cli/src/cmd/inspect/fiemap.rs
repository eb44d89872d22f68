//! `inspect-internal fiemap`: where the data of files are. The text is that of `filefrag -b4096`, byte for byte.

use std::ffi::OsString;
use std::io::Write;

use buttress::{FileExtent, fiemap_flags};
use buttress_device::Access;
use clap::Args;
use serde_json::json;

use crate::args::Globals;
use crate::cmd::files::{Failures, session};
use crate::error::Failure;
use crate::output::{self, Format, JsonList};
use crate::quote::write_name;
use crate::vnode::{Session, Target, Vnode};

/// Arguments of `fiemap`.
#[derive(Debug, Args)]
pub struct Fiemap {
    /// DEVICE:PATH or a path on a live mount
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<OsString>,
    /// Each extent: addresses and lengths in blocks of 4096 bytes
    #[arg(short, long)]
    verbose: bool,
}

/// Bytes of a block.
const BLOCK: u64 = 4096;
/// The type of the filesystem, as statfs(2) tells it of btrfs.
const MAGIC: u32 = 0x9123_683e;

/// Flags by the names that filefrag and JSON have for them, in their order.
const FLAGS: [(u32, &str); 8] = [
    (fiemap_flags::LAST, "last"),
    (fiemap_flags::UNKNOWN, "unknown_loc"),
    (fiemap_flags::DELALLOC, "delalloc"),
    (fiemap_flags::ENCODED, "encoded"),
    (fiemap_flags::NOT_ALIGNED, "not_aligned"),
    (fiemap_flags::INLINE, "inline"),
    (fiemap_flags::UNWRITTEN, "unwritten"),
    (fiemap_flags::SHARED, "shared"),
];

/// Prints where the data are.
pub fn run(args: &Fiemap, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let mut failures = Failures::new(globals);
    let name = if args.verbose { "extents" } else { "files" };
    let mut list = JsonList::new(name);
    let (mut some, mut columns) = (false, Columns::default());
    session(globals, Access::ReadOnly, |session| {
        for target in &args.targets {
            let target = Target::any(target, globals);
            let done = match globals.format {
                Format::Json => as_json(&target, args, session, &mut list, out),
                Format::Text => as_text(&target, args, session, &mut columns, out),
            };
            some |= done.is_ok();
            failures.note(done, out)?;
        }
        Ok(())
    })?;
    if globals.format == Format::Json {
        list.end(out, !some)?;
    }
    failures.end()
}

type Extents = Box<dyn Iterator<Item = crate::vnode::Result<FileExtent>>>;

/// The file, how long it is, and its extents.
fn open(target: &Target, session: &mut Session<'_>) -> Result<(Vnode, u64, Extents), Failure> {
    let vnode = session.find(target, true)?;
    let facts = vnode.facts().map_err(|why| vnode.failure("cannot read", why))?;
    if facts.kind != crate::vnode::Kind::Regular {
        let why = format!("only regular files have extents: it is a {}", facts.kind.name());
        return Err(vnode.failure("cannot tell where the data are of", why));
    }
    let extents = vnode.fiemap();
    let extents = extents.map_err(|why| vnode.failure("cannot tell where the data are of", why))?;
    Ok((vnode, facts.size, extents))
}

fn as_json(
    target: &Target,
    args: &Fiemap,
    session: &mut Session<'_>,
    list: &mut JsonList,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let (vnode, size, extents) = open(target, session)?;
    let path = output::text_json(&vnode.name());
    let mut pieces = Pieces::default();
    for one in extents {
        let one = one.map_err(|why| vnode.failure("cannot tell all of", why))?;
        pieces.add(&one);
        if args.verbose {
            let flags: Vec<&str> = names(one.flags).collect();
            let value = json!({
                "path": path,
                "logical": one.logical,
                "physical": one.physical,
                "length": one.length,
                "flags": flags,
            });
            list.push(out, value)?;
        }
    }
    if !args.verbose {
        list.push(out, json!({ "path": path, "size": size, "extents": pieces.count }))?;
    }
    Ok(())
}

fn as_text(
    target: &Target,
    args: &Fiemap,
    session: &mut Session<'_>,
    columns: &mut Columns,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let (vnode, size, extents) = open(target, session)?;
    let name = vnode.name();
    if args.verbose {
        if columns.width == 0 {
            writeln!(out, "Filesystem type is: {MAGIC:x}")?;
        }
        write!(out, "File size of ")?;
        write_name(out, &name)?;
        let blocks = size.div_ceil(BLOCK);
        let plural = if blocks == 1 { "" } else { "s" };
        writeln!(out, " is {size} ({blocks} block{plural} of {BLOCK} bytes)")?;
        columns.width = columns.width.max(width(size));
    }
    let mut table = Table { size, width: columns.width, rows: 0 };
    let mut pieces = Pieces::default();
    for one in extents {
        let one = one.map_err(|why| vnode.failure("cannot tell all of", why))?;
        let expected = pieces.add(&one);
        if args.verbose {
            table.row(&one, expected, out)?;
        }
    }
    write_name(out, &name)?;
    let plural = if pieces.count == 1 { "" } else { "s" };
    writeln!(out, ": {} extent{plural} found", pieces.count)?;
    Ok(())
}

fn names(flags: u32) -> impl Iterator<Item = &'static str> {
    FLAGS.into_iter().filter(move |(flag, _)| flags & flag != 0).map(|(_, name)| name)
}

/// Counts the pieces in which a file is on the disk: a record that goes on where the last one ended, or would have ended without the hole
/// between them, belongs to the same piece.
#[derive(Debug, Default)]
struct Pieces {
    count: u64,
    last: Option<FileExtent>,
}

impl Pieces {
    /// Adds a record; answers where it would be if it were in place, in bytes, when it is elsewhere.
    fn add(&mut self, next: &FileExtent) -> Option<u64> {
        let (logical, physical, length) =
            self.last.map_or((0, 0, 0), |last| (last.logical, last.physical, last.length));
        let dense = physical.saturating_add(length);
        let expected = physical.saturating_add(next.logical.saturating_sub(logical));
        let elsewhere = next.logical != 0 && next.physical != dense && next.physical != expected;
        self.count += u64::from(elsewhere || self.last.is_none());
        self.last = Some(*next);
        elsewhere.then_some(expected)
    }
}

/// The columns of filefrag: once a file needs wide ones, they are wide for those after it.
#[derive(Debug, Default)]
struct Columns {
    /// Of offsets; 0 before the first file.
    width: usize,
}

/// The rows of a file.
struct Table {
    size: u64,
    width: usize,
    rows: u64,
}

/// How wide offsets in a file are.
fn width(size: u64) -> usize {
    size.div_ceil(BLOCK).checked_ilog10().map_or(0, |log| log as usize).max(8)
}

impl Table {
    fn row(
        &mut self,
        one: &FileExtent,
        expected: Option<u64>,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        if self.rows == 0 {
            let [logical, physical] = ["logical_offset:", "physical_offset:"];
            let wide = 2 * self.width + 4;
            writeln!(
                out,
                " ext: {logical:>wide$} {physical:>23} length:   expected: flags:",
                wide = wide - 1
            )?;
        }
        // What is in no place on the disk has no blocks there.
        let unit = if one.flags & fiemap_flags::NOT_ALIGNED != 0 { 1 } else { BLOCK };
        let (start, place, len) = (one.logical / unit, one.physical / unit, one.length / unit);
        let last = |first: u64| first.saturating_add(len.saturating_sub(1));
        let width = self.width;
        write!(out, "{:>4}: {start:>width$}..{:>width$}:", self.rows, last(start))?;
        write!(out, " {place:>10}..{:>10}: {len:>6}:", last(place))?;
        match expected {
            Some(expected) => write!(out, " {:>10}:", expected / unit)?,
            None => write!(out, "{:>12}", "")?,
        }
        let end = (one.end() >= self.size).then_some("eof");
        let flags: Vec<&str> = names(one.flags).chain(end).collect();
        // That of filefrag has a comma before the end even where there is no flag before that.
        let before = if flags == ["eof"] { "," } else { " " };
        let flags = flags.join(",");
        writeln!(out, "{}{flags}", if flags.is_empty() { "" } else { before })?;
        self.rows += 1;
        Ok(())
    }
}
