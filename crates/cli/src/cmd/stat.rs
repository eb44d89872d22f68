//! `stat`: all there is to know about a file.

use std::ffi::OsString;
use std::io::Write;

use buttress_device::Access;
use clap::Args;
use serde_json::{Value, json};

use super::files::{Failures, session};
use super::ls;
use crate::args::Globals;
use crate::clock::Zone;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::quote::write_name;
use crate::vnode::{Facts, Kind, Session, Target, Vnode};

/// Arguments of `stat`.
#[derive(Debug, Args)]
pub struct Stat {
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<OsString>,
    /// What a symbolic link leads to
    #[arg(short = 'L', long)]
    dereference: bool,
}

/// Prints what there is to know.
pub fn run(args: &Stat, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let mut failures = Failures::new(globals);
    let mut list = Vec::new();
    session(globals, Access::ReadOnly, |session| {
        for target in &args.targets {
            let target = Target::any(target, globals);
            let done = one(&target, args, globals, session, &mut list, out);
            failures.note(done, out)?;
        }
        Ok(())
    })?;
    if globals.format == Format::Json {
        output::write_json_of_operands(out, "stat", list)?;
    }
    failures.end()
}

fn one(
    target: &Target,
    args: &Stat,
    globals: &Globals,
    session: &mut Session<'_>,
    list: &mut Vec<Value>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let vnode = session.find(target, args.dereference)?;
    let facts = vnode.facts().map_err(|why| vnode.failure("cannot read", why))?;
    match globals.format {
        Format::Json => {
            list.push(json(&vnode.name(), &vnode, &facts)?);
            Ok(())
        }
        Format::Text => text(&vnode, &facts, out),
    }
}

fn text(vnode: &Vnode, facts: &Facts, out: &mut dyn Write) -> Result<(), Failure> {
    let zone = Zone::local();
    let time = |time: crate::vnode::Time| zone.at(time.sec).with_nanos(time.nsec);
    write!(out, "  File: ")?;
    write_name(out, &vnode.name())?;
    if facts.kind == Kind::Symlink {
        let target = vnode.read_link().map_err(|why| vnode.failure("cannot read", why))?;
        write!(out, " -> ")?;
        write_name(out, &target)?;
    }
    let Facts { kind, mode, uid, gid, nlink, size, allocated, ino, volume, .. } = *facts;
    let (name, letters) = (kind.name(), ls::mode_text(kind, mode));
    let volume = match vnode.image_node() {
        Some(_) => format!("Subvolume: {volume}"),
        None => format!("Device: {volume}"),
    };
    writeln!(out, "\n  Size: {size:<15} Allocated: {allocated:<15} {name}")?;
    write!(out, " Inode: {ino:<15} Links: {nlink:<7} {volume}")?;
    if matches!(kind, Kind::Character | Kind::Block) {
        write!(out, "   Device type: {},{}", facts.device.0, facts.device.1)?;
    }
    writeln!(out, "\n  Mode: ({mode:04o}/{letters})  Uid: {uid}  Gid: {gid}")?;
    writeln!(out, "Access: {}", time(facts.atime))?;
    writeln!(out, "Modify: {}", time(facts.mtime))?;
    writeln!(out, "Change: {}", time(facts.ctime))?;
    match facts.otime {
        Some(otime) => writeln!(out, " Birth: {}", time(otime))?,
        None => writeln!(out, " Birth: -")?,
    }
    for (name, value) in vnode.xattrs().map_err(|why| vnode.failure("cannot read", why))? {
        write!(out, " Xattr: ")?;
        write_name(out, &name)?;
        writeln!(out, " ({} bytes)", value.len())?;
    }
    Ok(())
}

/// A file as JSON.
pub fn json(name: &[u8], vnode: &Vnode, facts: &Facts) -> Result<Value, Failure> {
    let zone = Zone::local();
    let time = |time: crate::vnode::Time| zone.at(time.sec).with_nanos(time.nsec);
    let target = match facts.kind {
        Kind::Symlink => {
            let target = vnode.read_link().map_err(|why| vnode.failure("cannot read", why))?;
            output::text_json(&target)
        }
        _ => Value::Null,
    };
    Ok(json!({
        "name": output::text_json(name),
        "path": output::text_json(&vnode.name()),
        "type": facts.kind.word(),
        "target": target,
        "mode": format!("{:04o}", facts.mode),
        "uid": facts.uid,
        "gid": facts.gid,
        "links": facts.nlink,
        "size": facts.size,
        "allocated": facts.allocated,
        "device": ls::device_json(facts),
        "subvolume": vnode.image_node().map(|_| facts.volume),
        "inode": facts.ino,
        "atime": time(facts.atime),
        "mtime": time(facts.mtime),
        "ctime": time(facts.ctime),
        "otime": facts.otime.map(time),
    }))
}
