//! `property`: what can be read and set by name: `ro` of subvolumes, `label` of filesystems, `compression` of files and directories.

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
use crate::vnode::{self, Target, Vnode};

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
    /// Only this one: ro, label or compression
    name: Option<String>,
    /// Look at the target as an inode, subvolume, filesystem or device
    #[arg(short = 't', value_name = "TYPE", value_parser = parse_kind)]
    kind: Option<Kind>,
}

/// Arguments of `property set`.
#[derive(Debug, Args)]
pub struct Set {
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// ro, label or compression
    name: String,
    /// true or false; the label; zlib, lzo, zstd, with :LEVEL, none, or '' for what the mount says
    value: OsString,
    /// Look at the target as an inode, subvolume, filesystem or device
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
    /// What an inode, subvolume, filesystem or device can have, whatever the target is
    #[arg(short = 't', value_name = "TYPE", value_parser = parse_kind)]
    kind: Option<Kind>,
}

/// What has a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Subvolume,
    Filesystem,
    Inode,
}

/// The xattr that a property of an inode is.
const COMPRESSION: &[u8] = b"btrfs.compression";

fn parse_kind(text: &str) -> Result<Kind, String> {
    match text {
        "s" | "subvol" => Ok(Kind::Subvolume),
        "f" | "filesystem" | "d" | "device" => Ok(Kind::Filesystem),
        "i" | "inode" => Ok(Kind::Inode),
        _ => Err("there are inode, subvol, filesystem and device (i, s, f, d)".into()),
    }
}

const ABOUT: [(&str, Kind, &str); 3] = [
    ("ro", Kind::Subvolume, "read-only status of a subvolume"),
    ("label", Kind::Filesystem, "label of the filesystem"),
    ("compression", Kind::Inode, "compression algorithm for the file or directory"),
];

/// Does what was asked.
pub fn run(command: &Property, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    match command {
        Property::Get(args) => get(args, globals, out),
        Property::Set(args) => set(args, globals),
        Property::List(args) => list(args, globals, out),
    }
}

/// What a vnode is: the top of a subvolume, and of the filesystem, and something with data or below which there can be some?
fn kinds(vfs: &Vfs, vnode: &Vnode) -> Result<Vec<Kind>, Failure> {
    let mut kinds = match vfs.subvolume_at(vnode) {
        Ok(objectid::FS_TREE) => vec![Kind::Subvolume, Kind::Filesystem],
        Ok(_) => vec![Kind::Subvolume],
        Err(_) => Vec::new(),
    };
    let facts = vnode.facts().map_err(|why| vnode.failure("cannot read", why))?;
    if matches!(facts.kind, vnode::Kind::Regular | vnode::Kind::Directory) {
        kinds.push(Kind::Inode);
    }
    Ok(kinds)
}

/// The properties of a vnode: names and values.
fn values(vfs: &Vfs, vnode: &Vnode, args: &Get) -> Result<Map<String, Value>, Failure> {
    let mut found = Map::new();
    let kinds = kinds(vfs, vnode)?;
    for (name, of, _) in ABOUT {
        let is_asked = args.kind.is_none_or(|kind| kind == of)
            && args.name.as_deref().is_none_or(|wanted| wanted == name);
        if !kinds.contains(&of) || !is_asked {
            continue;
        }
        let value = match of {
            Kind::Subvolume => {
                let id = vfs.subvolume_at(vnode)?;
                let (all, _hidden) = vfs.subvolumes_past()?;
                all.iter().any(|it| it.id == id && it.read_only).into()
            }
            Kind::Filesystem => output::text_json(&vfs.info()?.label),
            Kind::Inode => match compression(vnode)? {
                Some(value) => output::text_json(&value),
                None => Value::Null,
            },
        };
        found.insert(name.into(), value);
    }
    Ok(found)
}

/// The compression that is set for a file or directory.
fn compression(vnode: &Vnode) -> Result<Option<Vec<u8>>, Failure> {
    let all = vnode.xattrs().map_err(|why| vnode.failure("cannot read", why))?;
    Ok(all.into_iter().find(|(name, _)| name == COMPRESSION).map(|(_, value)| value))
}

fn get(args: &Get, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let found = session(globals, Access::ReadOnly, |session| {
        let vnode = session.find(&Target::any(&args.target, globals), true)?;
        let vfs = Vfs::of(&vnode)?;
        let found = values(&vfs, &vnode, args)?;
        match &args.name {
            Some(name) if !found.contains_key(name) => Err(refused(name, args.kind, &vnode)),
            _ => Ok(found),
        }
    })?;
    if globals.format == Format::Json {
        return Ok(output::write_json(out, "properties", found.into())?);
    }
    for (name, value) in &found {
        match value {
            Value::Null => {}
            Value::String(text) => writeln!(out, "{name}={text}")?,
            other => writeln!(out, "{name}={other}")?,
        }
    }
    Ok(())
}

/// Why a vnode, looked at as `asked`, has no such property.
fn refused(name: &str, asked: Option<Kind>, vnode: &Vnode) -> Failure {
    let Some((_, of, _)) = ABOUT.iter().find(|(known, ..)| *known == name) else {
        return Failure::usage("cannot use property", format!("{name} is unknown"))
            .hint("There are ro, label and compression.");
    };
    let why = match of {
        _ if asked.is_some_and(|kind| kind != *of) => "it is none of what -t names",
        Kind::Subvolume => "it is not a subvolume",
        Kind::Filesystem => "it is not the top of a filesystem",
        Kind::Inode => "it is neither a file nor a directory",
    };
    vnode.failure(&format!("cannot use property {name} of"), why)
}

fn set(args: &Set, globals: &Globals) -> Result<(), Failure> {
    session(globals, Access::ReadWrite, |session| {
        let vnode = session.find(&Target::any(&args.target, globals), true)?;
        let vfs = Vfs::of(&vnode)?;
        let of = ABOUT.iter().find(|(name, ..)| *name == args.name).map(|(_, of, _)| *of);
        let kinds = kinds(&vfs, &vnode)?;
        let fits = |of: &Kind| kinds.contains(of) && args.kind.is_none_or(|kind| kind == *of);
        match of.filter(fits) {
            Some(Kind::Subvolume) => set_read_only(args, &vfs, &vnode),
            Some(Kind::Filesystem) => vfs.set_label(args.value.as_bytes()),
            Some(Kind::Inode) => set_compression(args, &vnode),
            None => Err(refused(&args.name, args.kind, &vnode)),
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

fn set_compression(args: &Set, vnode: &Vnode) -> Result<(), Failure> {
    vnode.set_xattr(COMPRESSION, args.value.as_bytes()).map_err(|why| {
        let unknown = why.is(rustix::io::Errno::INVAL);
        let failure = vnode.failure("cannot set property compression of", why);
        match unknown {
            true => failure.hint("It is zlib, lzo or zstd, with a level (zstd:3), or none; '' leaves it to the mount. What is written in place (chattr +C) has none."),
            false => failure,
        }
    })
}

fn list(args: &List, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let kinds = session(globals, Access::ReadOnly, |session| {
        let vnode = session.find(&Target::any(&args.target, globals), true)?;
        let vfs = Vfs::of(&vnode)?;
        args.kind.map_or_else(|| kinds(&vfs, &vnode), |kind| Ok(vec![kind]))
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
