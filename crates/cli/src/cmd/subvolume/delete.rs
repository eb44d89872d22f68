//! `subvolume delete`.
//!
//! In an image the space is free when the command returns; on a live mount the daemon frees it in the background.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use buttress_device::Access;
use buttress_fuse::client;
use buttress_ondisk::objectid;
use clap::Args;
use rustix::io::Errno;

use crate::args::Globals;
use crate::cmd::copy::Progress;
use crate::cmd::files::{Failures, session};
use crate::error::{self, Failure};
use crate::output::{self, Format};
use crate::quote;
use crate::vfs::{self, Subvolume, Vfs};
use crate::vnode::{FileError, Kind, Session, Target, Vnode};

/// Arguments of `subvolume delete`.
#[derive(Debug, Args)]
pub struct Delete {
    /// The subvolumes: DEVICE:PATH or paths on a live mount. A symbolic link is followed, and stays
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<OsString>,
    /// Delete the subvolume with this id of the filesystem at TARGET
    #[arg(short = 'i', long, value_name = "ID")]
    subvolid: Option<u64>,
    /// Wait until the deletion is durable
    #[arg(short, long)]
    commit_after: bool,
    /// Wait until each deletion is durable
    #[arg(short = 'C', long)]
    commit_each: bool,
    /// The subvolumes in it too
    #[arg(short = 'R', long)]
    recursive: bool,
}

/// Deletes subvolumes.
pub fn run(args: &Delete, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let mut failures = Failures::new(globals);
    let mut deleted = Vec::new();
    session(globals, Access::ReadWrite, |session| {
        let mut filesystems = Vec::new();
        for target in &args.targets {
            let done = one(&Target::any(target, globals), args, globals, session, out);
            let done = done.map(|(name, vfs)| {
                deleted.push(output::text_json(&name));
                filesystems.push(vfs);
            });
            failures.note(done, out)?;
        }
        let progress = Progress::spinner(globals, "freeing their space");
        for vfs in filesystems {
            if args.commit_after {
                vfs.sync()?;
            }
            vfs.clean()?;
        }
        progress.finish();
        Ok(())
    })?;
    if globals.format == Format::Json {
        output::write_json_of_operands(out, "subvolume-delete", deleted)?;
    }
    failures.end()
}

fn one(
    target: &Target,
    args: &Delete,
    globals: &Globals,
    session: &mut Session<'_>,
    out: &mut dyn Write,
) -> Result<(Vec<u8>, Vfs), Failure> {
    let target = match args.subvolid {
        Some(id) => {
            let vnode = session.find(target, true)?;
            match Vfs::of(&vnode)? {
                Vfs::Live(path) => return anywhere(&path, id, args, globals, out),
                vfs => by_id(&vfs, id)?,
            }
        }
        // Refused before anything in it is gone.
        None if target.ends_with_dots() => {
            let why = "it has no name of its own";
            return Err(Failure::new("cannot use", target.shown(), why));
        }
        None => behind_link(target, session)?,
    };
    let vnode = session.find(&target, false)?;
    let vfs = Vfs::of(&vnode)?;
    let id = vfs.subvolume_at(&vnode)?;
    if id == vfs.default_subvolume()? {
        return Err(is_default(&vnode));
    }
    let (directory, name) = session.find_parent(&target)?;
    // Nobody can ask the subvolume itself any more when it is gone.
    let above = Vfs::of(&directory)?;
    if args.recursive {
        below(&vfs, id, &vnode, session, globals, out)?;
    }
    let vfs = above;
    vfs::delete_subvolume(&directory, &name).map_err(|why| refused(&vnode, &why))?;
    if args.commit_each {
        vfs.sync()?;
    }
    say(&vnode, &vfs, args, globals, out)?;
    Ok((vnode.name(), vfs))
}

/// What a symbolic link leads to, as btrfs-progs deletes that, and the link stays; else the target itself.
fn behind_link(target: &Target, session: &mut Session<'_>) -> Result<Target, Failure> {
    let link = session.find(&target.without_slashes(), false)?;
    let facts = link.facts().map_err(|why| link.failure("cannot read", why))?;
    if facts.kind != Kind::Symlink {
        return Ok(target.clone());
    }
    let vnode = session.find(target, true)?;
    let vfs = Vfs::of(&vnode)?;
    match &vfs {
        Vfs::Image(_) => by_id(&vfs, vfs.subvolume_at(&vnode)?),
        Vfs::Live(path) => {
            let path = path.canonicalize();
            path.map(Target::Host).map_err(|why| vnode.failure("cannot find", error::text(&why)))
        }
    }
}

fn is_default(place: &dyn std::fmt::Display) -> Failure {
    Failure::new("cannot delete", place, "it is the default subvolume").hint(
        "Choose another one first: buttress subvolume set-default 5 TARGET chooses the top level.",
    )
}

/// Deletes a subvolume of a live mount wherever it lies, be it outside of what the mount shows.
fn anywhere(
    path: &Path,
    id: u64,
    args: &Delete,
    globals: &Globals,
    out: &mut dyn Write,
) -> Result<(Vec<u8>, Vfs), Failure> {
    let vfs = Vfs::Live(path.into());
    let all = vfs.subvolumes()?;
    let wanted = all.iter().find(|it| it.id == id).ok_or_else(|| no_such_subvolume(id, &vfs))?;
    let name = quote::shown(&wanted.path).into_owned();
    let mut doomed = if args.recursive { inside(&all, &wanted.path) } else { Vec::new() };
    doomed.push(wanted);
    // What is refused in the end is refused before the first one is gone.
    let default = vfs.default_subvolume()?;
    if let Some(one) = doomed.iter().find(|it| it.id == default) {
        return Err(is_default(&quote::shown(&one.path)));
    }
    if id == objectid::FS_TREE {
        return Err(Failure::new("cannot delete", &name, "it is the top level"));
    }
    for subvolume in doomed {
        let name = quote::shown(&subvolume.path);
        client::delete_subvolume_by_id(path, subvolume.id)
            .map_err(|errno| refused(&name, &errno.into()))?;
        if args.commit_each {
            vfs.sync()?;
        }
        say(&name, &vfs, args, globals, out)?;
    }
    Ok((wanted.path.clone(), vfs))
}

/// The subvolumes inside one with a path, the deepest first.
fn inside<'a>(all: &'a [Subvolume], path: &[u8]) -> Vec<&'a Subvolume> {
    let is_inside = |it: &&Subvolume| match path {
        b"" => !it.path.is_empty(),
        _ => it.path.strip_prefix(path).is_some_and(|rest| rest.starts_with(b"/")),
    };
    let mut inside: Vec<_> = all.iter().filter(is_inside).collect();
    inside.sort_by_key(|it| std::cmp::Reverse(it.path.len()));
    inside
}

fn refused(place: &dyn std::fmt::Display, why: &FileError) -> Failure {
    let failure = Failure::new("cannot delete", place, why);
    match why.is(Errno::NOTEMPTY) {
        true => failure.hint("It holds other subvolumes: delete those first, or add -R."),
        false => failure,
    }
}

fn say(
    name: &dyn std::fmt::Display,
    vfs: &Vfs,
    args: &Delete,
    globals: &Globals,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    if globals.talks() {
        let durable = matches!(vfs, Vfs::Image(_)) || args.commit_after || args.commit_each;
        let how = if durable { "commit" } else { "no-commit" };
        writeln!(out, "Delete subvolume ({how}): '{name}'")?;
    }
    Ok(())
}

/// Deletes the subvolumes inside a subvolume, the deepest first.
fn below(
    vfs: &Vfs,
    id: u64,
    vnode: &Vnode,
    session: &mut Session<'_>,
    globals: &Globals,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let all = vfs.subvolumes()?;
    let here = all.iter().find(|it| it.id == id).map(|it| it.path.clone()).unwrap_or_default();
    let default = vfs.default_subvolume()?;
    if let Some(one) = inside(&all, &here).iter().find(|it| it.id == default) {
        return Err(is_default(&quote::shown(&one.path)));
    }
    for subvolume in inside(&all, &here) {
        let Some(target) = vfs.vnode_below(vnode, &here, &subvolume.path) else { continue };
        let vnode = session.find(&target, false)?;
        let (directory, name) = session.find_parent(&target)?;
        let removed = vfs::delete_subvolume(&directory, &name);
        removed.map_err(|why| vnode.failure("cannot delete", why))?;
        if globals.talks() {
            writeln!(out, "Delete subvolume (no-commit): '{vnode}'")?;
        }
    }
    Ok(())
}

/// The subvolume of an image with an id, as a target.
fn by_id(vfs: &Vfs, id: u64) -> Result<Target, Failure> {
    let (all, _hidden) = vfs.subvolumes_past()?;
    let wanted = all.iter().find(|it| it.id == id).ok_or_else(|| no_such_subvolume(id, vfs))?;
    match vfs {
        Vfs::Image(image) => {
            Ok(Target::Image { device: image.device().into(), path: wanted.path.clone() })
        }
        Vfs::Live(path) => Ok(Target::Host(path.clone())),
    }
}

/// That no subvolume has an id.
pub fn no_such_subvolume(id: u64, vfs: &Vfs) -> Failure {
    Failure::new(format!("cannot find subvolume {id} of"), vfs.name(), "there is none")
}
