//! `inspect-internal list-chunks`: where the chunks lie on the devices, and how full they are.
//!
//! A chunk has as many lines as it has stripes. In the order of the disks each gets its number there (PNumber); in the order of logical
//! addresses all get another one (LNumber).
//!
//! Where a log waits that is only read, it is what a replay makes of it.

use std::cmp::Ordering;
use std::ffi::OsString;
use std::io::Write;

use buttress_device::Access;
use buttress_ondisk::item::BlockGroupItem;
use buttress_ondisk::{Key, kind, objectid, view};
use clap::Args;
use serde_json::json;

use crate::args::Globals;
use crate::cmd::files::session;
use crate::error::Failure;
use crate::output::{Format, JsonList};
use crate::units::{UnitArgs, Units};
use crate::vfs::{Space, Vfs};
use crate::vnode::{FileError, Target};

/// Arguments of `list-chunks`.
#[derive(Debug, Args)]
pub struct ListChunks {
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// Sort by these, ascending: devid, pstart, lstart, usage, length (default: devid,pstart)
    #[arg(long, value_name = "KEYS", value_delimiter = ',', value_parser = parse_key)]
    sort: Vec<SortKey>,
    #[command(flatten)]
    units: UnitArgs,
}

/// What to sort by.
#[derive(Clone, Copy, Debug)]
pub enum SortKey {
    Devid,
    Pstart,
    Lstart,
    Usage,
    Length,
}

fn parse_key(text: &str) -> Result<SortKey, &'static str> {
    match text {
        "devid" => Ok(SortKey::Devid),
        "pstart" => Ok(SortKey::Pstart),
        "lstart" => Ok(SortKey::Lstart),
        "usage" => Ok(SortKey::Usage),
        "length" => Ok(SortKey::Length),
        _ => Err("there are devid, pstart, lstart, usage and length"),
    }
}

impl SortKey {
    fn compare(self, one: &Stripe, other: &Stripe) -> Ordering {
        match self {
            SortKey::Devid => one.devid.cmp(&other.devid),
            SortKey::Pstart => one.pstart.cmp(&other.pstart),
            SortKey::Lstart => one.lstart.cmp(&other.lstart),
            SortKey::Usage => one.usage().total_cmp(&other.usage()),
            SortKey::Length => one.length.cmp(&other.length),
        }
    }
}

/// A stripe of a chunk.
#[derive(Clone, Debug)]
struct Stripe {
    devid: u64,
    pnumber: u64,
    flags: u64,
    pstart: u64,
    /// Bytes of the whole chunk in the logical address space.
    length: u64,
    lnumber: u64,
    lstart: u64,
    used: u64,
}

impl Stripe {
    /// Per cent of the chunk that is used.
    fn usage(&self) -> f64 {
        if self.length == 0 { 0.0 } else { 100.0 * self.used as f64 / self.length as f64 }
    }

    fn pend(&self) -> u64 {
        self.pstart.saturating_add(self.length)
    }

    fn space(&self) -> Space {
        Space { flags: self.flags, total: self.length, used: self.used }
    }
}

/// Prints the chunks.
pub fn run(args: &ListChunks, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let mut all = session(globals, Access::ReadOnly, |session| {
        let vnode = session.find(&Target::any(&args.target, globals), true)?;
        let vfs = Vfs::of(&vnode)?;
        stripes(&vfs).map_err(|why| Failure::new("cannot list the chunks of", vfs.name(), why))
    })?;
    number(&mut all);
    let keys = match args.sort[..] {
        [] => &[SortKey::Devid, SortKey::Pstart][..],
        _ => &args.sort,
    };
    all.sort_by(|one, other| {
        keys.iter().map(|key| key.compare(one, other)).fold(Ordering::Equal, Ordering::then)
    });
    match globals.format {
        Format::Text => table(&all, args.units.units(), out),
        Format::Json => json(&all, out),
    }
}

/// The stripes of all chunks, in the order of their logical addresses.
fn stripes(vfs: &Vfs) -> Result<Vec<Stripe>, FileError> {
    let key = |offset| Key::new(objectid::FIRST_CHUNK_TREE, kind::CHUNK_ITEM, offset);
    let mut all = Vec::new();
    vfs.search(objectid::CHUNK_TREE, key(0)..=key(u64::MAX), 0, &mut |found, _, data| {
        if let Some((chunk, stripes)) = view::chunk(data) {
            all.extend(stripes.iter().map(|stripe| Stripe {
                devid: stripe.devid.get(),
                pnumber: 0,
                flags: chunk.chunk_type.get(),
                pstart: stripe.offset.get(),
                length: chunk.length.get(),
                lnumber: 0,
                lstart: found.offset,
                used: 0,
            }));
        }
        true
    })?;
    let mut last = (0, 0);
    for stripe in &mut all {
        if last.0 != stripe.lstart || last.1 == 0 {
            last = (stripe.lstart, used(vfs, stripe)?);
        }
        stripe.used = last.1;
    }
    Ok(all)
}

/// Bytes used in a chunk.
fn used(vfs: &Vfs, stripe: &Stripe) -> Result<u64, FileError> {
    let key = Key::new(stripe.lstart, kind::BLOCK_GROUP_ITEM, stripe.length);
    let mut used = None;
    for tree in [objectid::BLOCK_GROUP_TREE, objectid::EXTENT_TREE] {
        let found = vfs.search(tree, key..=key, 0, &mut |_, _, data| {
            used = BlockGroupItem::of(data).map(|group| group.used.get());
            false
        });
        match found {
            // Not every filesystem has a tree of its own for them.
            Err(why) if why.is(rustix::io::Errno::NOENT) => {}
            found => found?,
        }
        if used.is_some() {
            break;
        }
    }
    Ok(used.unwrap_or(0))
}

/// Numbers the stripes: from 1 on, by logical addresses over all devices, and by their places on each device.
fn number(all: &mut [Stripe]) {
    all.sort_by_key(|it| (it.lstart, it.devid, it.pstart));
    all.iter_mut().zip(1..).for_each(|(stripe, number)| stripe.lnumber = number);
    all.sort_by_key(|it| (it.devid, it.pstart));
    let mut last = (0, 0);
    for stripe in all {
        last = if last.0 == stripe.devid { (last.0, last.1 + 1) } else { (stripe.devid, 1) };
        stripe.pnumber = last.1;
    }
}

fn table(all: &[Stripe], units: Units, out: &mut dyn Write) -> Result<(), Failure> {
    let head = [
        "Devid",
        "PNumber",
        "Type/profile",
        "PStart",
        "Length",
        "PEnd",
        "LNumber",
        "LStart",
        "Usage%",
    ];
    let rows: Vec<[String; 9]> = all.iter().map(|it| row(it, units)).collect();
    let mut widths = [5, 7, 17, 9, 9, 9, 7, 9, 6];
    for row in &rows {
        widths.iter_mut().zip(row).for_each(|(width, cell)| *width = cell.len().max(*width));
    }
    line(&head, &widths, out)?;
    line(&widths.map(|width| "-".repeat(width)), &widths, out)?;
    rows.iter().try_for_each(|row| line(row, &widths, out))
}

fn row(it: &Stripe, units: Units) -> [String; 9] {
    let space = it.space();
    let kind = format!("{:>10}/{:<6}", space.kind(), space.profile());
    [
        it.devid.to_string(),
        it.pnumber.to_string(),
        kind,
        units.show(it.pstart),
        units.show(it.length),
        units.show(it.pend()),
        it.lnumber.to_string(),
        units.show(it.lstart),
        format!("{:.2}", it.usage()),
    ]
}

fn line(cells: &[impl AsRef<str>], widths: &[usize], out: &mut dyn Write) -> Result<(), Failure> {
    let cells = cells.iter().zip(widths);
    let cells: Vec<_> = cells.map(|(cell, &width)| format!("{:>width$}", cell.as_ref())).collect();
    Ok(writeln!(out, "{}", cells.join(" "))?)
}

fn json(all: &[Stripe], out: &mut dyn Write) -> Result<(), Failure> {
    let mut list = JsonList::new("list-chunks");
    for it in all {
        let space = it.space();
        list.push(
            out,
            json!({
                "devid": it.devid,
                "pnumber": it.pnumber,
                "type": space.kind(),
                "profile": space.profile(),
                "pstart": it.pstart,
                "length": it.length,
                "pend": it.pend(),
                "lnumber": it.lnumber,
                "lstart": it.lstart,
                "used": it.used,
                "usage": it.usage(),
            }),
        )?;
    }
    Ok(list.end(out, false)?)
}
