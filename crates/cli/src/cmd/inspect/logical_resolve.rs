//! `inspect-internal logical-resolve`: the files that refer to the data at an address.
//!
//! Text, order and limit are those of btrfs-progs: answers as many as a buffer of Linux has room for, and the paths of the subvolume that
//! TARGET is in. Of other subvolumes btrfs-progs knows where they are mounted, or says that they are not; here they are reached
//! with `--all`, by the paths that they have below TARGET's. A deleted subvolume ends btrfs-progs; here it has its line, too.
//! What there is no room for btrfs-progs leaves out in silence; here its number is a warning.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::num::ParseIntError;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use buttress::{Referrer, Referrers, WantedReferrers};
use buttress_device::Access;
use buttress_ondisk::objectid;
use clap::Args;
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::args::Globals;
use crate::cmd::files::{Failures, session};
use crate::device;
use crate::error::Failure;
use crate::output::{self, Format, JsonList};
use crate::quote::write_name;
use crate::vfs::{Subvolume, Vfs, trees};
use crate::vnode::{Session, Target, Vnode};

/// Arguments of `logical-resolve`.
#[derive(Debug, Args)]
pub struct LogicalResolve {
    /// Print inode, offset and subvolume, and no paths
    #[arg(short = 'P')]
    inodes: bool,
    /// Take all that refer to any part of the extent
    #[arg(short = 'o')]
    whole: bool,
    /// Room for answers as in Linux, in bytes: one of 24 for each, behind 16; 16 MiB at most (default: 65536)
    #[arg(short = 's', value_name = "BUFSIZE", value_parser = number, default_value = "65536", hide_default_value = true)]
    size: u64,
    /// Print paths in other subvolumes, too
    #[arg(short, long)]
    all: bool,
    /// The logical address, in bytes
    #[arg(value_name = "LOGICAL", value_parser = number)]
    logical: u64,
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
}

/// Bytes that Linux takes for an answer, before the answers, and for all of them at most.
const ANSWER: u64 = 24;
const HEAD: u64 = 16;
const SIZE_MAX: u64 = 16 << 20;

/// A number as strtoull(3) reads it.
fn number(text: &str) -> Result<u64, ParseIntError> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    match (hex, text.strip_prefix('0')) {
        (Some(hex), _) => u64::from_str_radix(hex, 16),
        (_, Some(octal)) if !octal.is_empty() => u64::from_str_radix(octal, 8),
        _ => text.parse(),
    }
}

impl LogicalResolve {
    fn wanted(&self) -> WantedReferrers {
        let most = self.size.min(SIZE_MAX).saturating_sub(HEAD) / ANSWER;
        // Below a million.
        WantedReferrers { logical: self.logical, whole: self.whole, most: most as usize }
    }
}

/// Prints the files.
pub fn run(args: &LogicalResolve, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let mut failures = Failures::new(globals);
    session(globals, Access::ReadOnly, |session| {
        let vnode = session.find(&Target::any(&args.target, globals), true)?;
        let vfs = Vfs::of(&vnode)?;
        let all = vfs.referrers(&args.wanted()).map_err(|why| {
            let what = format!("cannot resolve logical address {} of", args.logical);
            match why.is(Errno::NOENT) {
                true => Failure::new(what, vfs.name(), "no data extent is there"),
                false => Failure::new(what, vfs.name(), why),
            }
        })?;
        match args.inodes {
            true => numbers(&all.found, globals.format, out)?,
            false => {
                let mut paths = Paths::new(args, globals, &vfs, &vnode, session)?;
                paths.print(&all, session, &mut failures, out)?;
            }
        }
        out.flush()?;
        if all.left_out > 0 {
            let text = format!("{} more have no room; a larger -s BUFSIZE makes it", all.left_out);
            device::warn(globals, Path::new(&vfs.name()), &text);
        }
        Ok(())
    })?;
    failures.end()
}

fn numbers(all: &[Referrer], format: Format, out: &mut dyn Write) -> Result<(), Failure> {
    if format == Format::Json {
        let mut list = JsonList::new("logical-resolve");
        for it in all {
            list.push(out, as_json(it))?;
        }
        return Ok(list.end(out, false)?);
    }
    for it in all {
        writeln!(out, "inode {} offset {} root {}", it.ino, it.offset, it.tree)?;
    }
    Ok(())
}

fn as_json(it: &Referrer) -> Value {
    json!({ "inode": it.ino, "offset": it.offset, "root": it.tree })
}

/// How files of a subvolume are called.
#[derive(Clone)]
struct Named {
    /// Its path from the top level; `None` when it is deleted.
    path: Option<Vec<u8>>,
    /// How to ask it, and what the user would call its top; `None` when TARGET does not lead there.
    top: Option<(Vfs, Vec<u8>)>,
}

/// Finds paths.
struct Paths<'a> {
    args: &'a LogicalResolve,
    globals: &'a Globals,
    vfs: &'a Vfs,
    /// The top of the subvolume that TARGET is in, and its id.
    top: Vnode,
    own: u64,
    subvolumes: Vec<Subvolume>,
    known: HashMap<u64, Named>,
}

impl<'a> Paths<'a> {
    fn new(
        args: &'a LogicalResolve,
        globals: &'a Globals,
        vfs: &'a Vfs,
        vnode: &Vnode,
        session: &mut Session<'_>,
    ) -> Result<Paths<'a>, Failure> {
        let own = vfs.subvolume_of(vnode)?;
        let name =
            vfs.top_above(vnode).map_err(|why| vnode.failure("cannot find the top above", why))?;
        let top = session.find(&Target::any(OsStr::from_bytes(&name), globals), true)?;
        let (subvolumes, _hidden) = vfs.subvolumes_past()?;
        let mut known = HashMap::new();
        let here = subvolumes.iter().find(|it| it.id == own).map(|it| it.path.clone());
        known.insert(own, Named { path: here, top: Some((vfs.clone(), name)) });
        Ok(Paths { args, globals, vfs, top, own, subvolumes, known })
    }

    fn print(
        &mut self,
        all: &Referrers,
        session: &mut Session<'_>,
        failures: &mut Failures<'_>,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        let mut list = JsonList::new("logical-resolve");
        for it in &all.found {
            let named = self.named(it.tree, session)?;
            let paths = match self.paths(&named, it) {
                Ok(paths) => paths,
                Err(why) => {
                    failures.note(Err(why), out)?;
                    Some(Vec::new())
                }
            };
            match self.globals.format {
                Format::Json => list.push(out, with_paths(it, &named, paths))?,
                Format::Text => text(it, &named, paths, out)?,
            }
        }
        if self.globals.format == Format::Json {
            list.end(out, false)?;
        }
        Ok(())
    }

    /// What the user would call the paths of a file; `None` when TARGET does not lead there.
    fn paths(&self, named: &Named, it: &Referrer) -> Result<Option<Vec<Vec<u8>>>, Failure> {
        let Some((vfs, top)) = &named.top else { return Ok(None) };
        let paths = vfs.paths_of_inode(it.tree, it.ino).map_err(|why| {
            let what = format!("cannot resolve inode {} of subvolume {} of", it.ino, it.tree);
            Failure::new(what, vfs.name(), why)
        })?;
        Ok(Some(paths.iter().map(|path| trees::below(top, path)).collect()))
    }

    fn named(&mut self, id: u64, session: &mut Session<'_>) -> Result<Named, Failure> {
        if let Some(known) = self.known.get(&id) {
            return Ok(known.clone());
        }
        let path = self.subvolumes.iter().find(|it| it.id == id).map(|it| it.path.clone());
        let top = match &path {
            Some(path) if self.args.all || self.globals.format == Format::Json => {
                self.top_of(path, session)?
            }
            _ => None,
        };
        let named = Named { path, top };
        self.known.insert(id, named.clone());
        Ok(named)
    }

    /// The top of another subvolume, which has this path from the top level.
    fn top_of(
        &self,
        path: &[u8],
        session: &mut Session<'_>,
    ) -> Result<Option<(Vfs, Vec<u8>)>, Failure> {
        let here = self.known.get(&self.own).and_then(|it| it.path.clone()).unwrap_or_default();
        let target = self.vfs.vnode_below(&self.top, &here, path);
        let Some(target) = target else { return Ok(None) };
        let vnode = session.find(&target, false)?;
        Ok(Some((Vfs::of(&vnode)?, vnode.name())))
    }
}

fn with_paths(it: &Referrer, named: &Named, paths: Option<Vec<Vec<u8>>>) -> Value {
    let mut value = as_json(it);
    let text = |bytes: &Vec<u8>| output::text_json(bytes);
    value["subvolume"] = named.path.as_ref().map_or(Value::Null, text);
    value["paths"] = paths.map_or(Value::Null, |paths| paths.iter().map(text).collect());
    value
}

fn text(
    it: &Referrer,
    named: &Named,
    paths: Option<Vec<Vec<u8>>>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let Some(paths) = paths else {
        write!(out, "inode {} subvol ", it.ino)?;
        match &named.path {
            Some(_) if it.tree == objectid::FS_TREE => write!(out, "<toplevel>")?,
            Some(path) => write_name(out, path)?,
            None => write!(out, "DELETED")?,
        }
        return Ok(writeln!(out, " could not be accessed: not mounted")?);
    };
    for path in paths {
        out.write_all(&path)?;
        writeln!(out)?;
    }
    Ok(())
}
