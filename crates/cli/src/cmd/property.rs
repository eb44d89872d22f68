//! `property`: what can be read and set by name: `ro` of subvolumes, `label` of filesystems.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use buttress_device::Access;
use buttress_ondisk::objectid;
use clap::{Args, Subcommand};
use serde_json::{Map, Value};

use super::files::session;
use crate::args::Globals;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::vfs::{self, Vfs};
use crate::vnode::{Target, Vnode};

/// The commands of this group.
#[derive(Debug, Subcommand)]
pub enum Property {
    /// Print properties
    Get(Get),
    /// Set a property
    Set(Set),
    /// Print which properties there are
    List(List),
}

/// Arguments of `property get`.
#[derive(Debug, Args)]
pub struct Get {
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// Only this one: ro or label
    name: Option<String>,
    /// Look at the target as a subvolume, filesystem or device
    #[arg(short = 't', value_name = "TYPE", value_parser = parse_kind)]
    kind: Option<Kind>,
}

/// Arguments of `property set`.
#[derive(Debug, Args)]
pub struct Set {
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// ro or label
    name: String,
    /// true or false; the label
    value: OsString,
    /// Look at the target as a subvolume, filesystem or device
    #[arg(short = 't', value_name = "TYPE", value_parser = parse_kind)]
    kind: Option<Kind>,
    /// Make a received subvolume writable although that spoils it as a base for receiving
    #[arg(short, long)]
    force: bool,
}

/// Arguments of `property list`.
#[derive(Debug, Args)]
pub struct List {
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
}

/// What has a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Subvolume,
    Filesystem,
}

fn parse_kind(text: &str) -> Result<Kind, String> {
    match text {
        "s" | "subvol" => Ok(Kind::Subvolume),
        "f" | "filesystem" | "d" | "device" => Ok(Kind::Filesystem),
        _ => Err("there are subvol, filesystem and device (s, f, d)".into()),
    }
}

const ABOUT: [(&str, Kind, &str); 2] = [
    ("ro", Kind::Subvolume, "read-only status of a subvolume"),
    ("label", Kind::Filesystem, "label of the filesystem"),
];

/// Does what was asked.
pub fn run(command: &Property, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    match command {
        Property::Get(args) => get(args, globals, out),
        Property::Set(args) => set(args, globals),
        Property::List(args) => list(args, globals, out),
    }
}

/// What a vnode is: the top of a subvolume, and of the filesystem?
fn kinds(vfs: &Vfs, vnode: &Vnode) -> Vec<Kind> {
    match vfs.subvolume_at(vnode) {
        Ok(objectid::FS_TREE) => vec![Kind::Subvolume, Kind::Filesystem],
        Ok(_) => vec![Kind::Subvolume],
        Err(_) => Vec::new(),
    }
}

/// The properties of a vnode: names and values.
fn values(vfs: &Vfs, vnode: &Vnode, kind: Option<Kind>) -> Result<Map<String, Value>, Failure> {
    let mut found = Map::new();
    for (name, of, _) in ABOUT {
        if !kinds(vfs, vnode).contains(&of) || kind.is_some_and(|kind| kind != of) {
            continue;
        }
        let value = match of {
            Kind::Subvolume => {
                let id = vfs.subvolume_at(vnode)?;
                let (all, _hidden) = vfs.subvolumes_past()?;
                all.iter().any(|it| it.id == id && it.read_only).into()
            }
            Kind::Filesystem => output::text_json(&vfs.info()?.label),
        };
        found.insert(name.into(), value);
    }
    Ok(found)
}

fn get(args: &Get, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let mut found = session(globals, Access::ReadOnly, |session| {
        let vnode = session.find(&Target::any(&args.target, globals), true)?;
        let vfs = Vfs::of(&vnode)?;
        let found = values(&vfs, &vnode, args.kind)?;
        match &args.name {
            Some(name) if !found.contains_key(name) => Err(refused(name, &vnode)),
            _ => Ok(found),
        }
    })?;
    if let Some(wanted) = &args.name {
        found.retain(|name, _| name == wanted);
    }
    if globals.format == Format::Json {
        return Ok(output::write_json(out, "properties", found.into())?);
    }
    for (name, value) in &found {
        match value {
            Value::String(text) => writeln!(out, "{name}={text}")?,
            other => writeln!(out, "{name}={other}")?,
        }
    }
    Ok(())
}

fn refused(name: &str, vnode: &Vnode) -> Failure {
    match ABOUT.iter().find(|(known, ..)| *known == name) {
        None => Failure::usage("cannot use property", format!("{name} is unknown"))
            .hint("There are ro and label."),
        Some((_, Kind::Subvolume, _)) => {
            vnode.failure("cannot use property ro of", "it is not a subvolume")
        }
        Some((_, Kind::Filesystem, _)) => {
            vnode.failure("cannot use property label of", "it is not the top of a filesystem")
        }
    }
}

fn set(args: &Set, globals: &Globals) -> Result<(), Failure> {
    session(globals, Access::ReadWrite, |session| {
        let vnode = session.find(&Target::any(&args.target, globals), true)?;
        let vfs = Vfs::of(&vnode)?;
        let of = ABOUT.iter().find(|(name, ..)| *name == args.name).map(|(_, of, _)| *of);
        let fits = |of: &Kind| {
            kinds(&vfs, &vnode).contains(of) && args.kind.is_none_or(|kind| kind == *of)
        };
        match of.filter(fits) {
            Some(Kind::Subvolume) => set_read_only(args, &vfs, &vnode),
            Some(Kind::Filesystem) => vfs.set_label(args.value.as_bytes()),
            None => Err(refused(&args.name, &vnode)),
        }
    })
}

fn set_read_only(args: &Set, vfs: &Vfs, vnode: &Vnode) -> Result<(), Failure> {
    let read_only = match args.value.to_str() {
        Some("true") => true,
        Some("false") => false,
        _ => return Err(Failure::usage("cannot set property ro", "it is true or false")),
    };
    let id = vfs.subvolume_at(vnode)?;
    let received = |it: &vfs::Subvolume| it.id == id && it.read_only && !it.received_uuid.is_nil();
    if !read_only && !args.force && vfs.subvolumes()?.iter().any(received) {
        return Err(vnode
            .failure(
                "cannot make writable",
                "it was received, and would be no base for receiving any more",
            )
            .hint("Make a snapshot of it instead and write to that, or add -f."));
    }
    vfs::set_read_only(vnode, read_only)
        .map_err(|why| vnode.failure("cannot set property ro of", why))
}

fn list(args: &List, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let kinds = session(globals, Access::ReadOnly, |session| {
        let vnode = session.find(&Target::any(&args.target, globals), true)?;
        Ok(kinds(&Vfs::of(&vnode)?, &vnode))
    })?;
    let known = ABOUT.iter().filter(|(_, of, _)| kinds.contains(of));
    if globals.format == Format::Json {
        let map: Map<_, _> =
            known.map(|(name, _, about)| ((*name).into(), (*about).into())).collect();
        return Ok(output::write_json(out, "property-list", map.into())?);
    }
    for (name, _, about) in known {
        writeln!(out, "{name:<20}{about}")?;
    }
    Ok(())
}
