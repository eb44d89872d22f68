//! `subvolume delete`.
//!
//! In an image the space is free when the command returns; on a live mount the daemon frees it in the background.

use std::ffi::OsString;
use std::io::Write;

use buttress_device::Access;
use clap::Args;
use rustix::io::Errno;
use serde_json::Value;

use crate::args::Globals;
use crate::cmd::copy::Progress;
use crate::cmd::files::{Failures, session};
use crate::error::Failure;
use crate::output::{self, Format};
use crate::spot::{Session, Spot, Target};
use crate::whole::{self, Whole};

/// Arguments of `subvolume delete`.
#[derive(Debug, Args)]
pub struct Delete {
    /// The subvolumes: DEVICE:PATH or paths on a live mount
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
        let mut wholes = Vec::new();
        for target in &args.targets {
            let done = one(&Target::any(target, globals), args, globals, session, out);
            let done = done.map(|(name, whole)| {
                deleted.push(name.into());
                wholes.push(whole);
            });
            failures.note(done, out)?;
        }
        let progress = Progress::spinner(globals, "freeing their space");
        for whole in wholes {
            if args.commit_after {
                whole.sync()?;
            }
            whole.clean()?;
        }
        progress.finish();
        Ok(())
    })?;
    if globals.format == Format::Json {
        output::write_json(out, "subvolume-delete", Value::Array(deleted))?;
    }
    failures.end()
}

fn one(
    target: &Target,
    args: &Delete,
    globals: &Globals,
    session: &mut Session<'_>,
    out: &mut dyn Write,
) -> Result<(String, Whole), Failure> {
    let target = match args.subvolid {
        Some(id) => by_id(target, id, session)?,
        None => target.clone(),
    };
    let spot = session.find(&target, false)?;
    let whole = Whole::of(&spot)?;
    let id = whole.subvolume_at(&spot)?;
    if id == whole.default_subvolume()? {
        return Err(spot.failure("cannot delete", "it is the default subvolume").hint(
            "Choose another one first: buttress subvolume set-default 5 TARGET chooses the top level.",
        ));
    }
    if args.recursive {
        below(&whole, id, &spot, session, globals, out)?;
    }
    let (directory, name) = session.find_parent(&target)?;
    delete(&whole, &directory, &name, &spot, args, globals, out)?;
    Ok((spot.to_string(), whole))
}

fn delete(
    whole: &Whole,
    directory: &Spot,
    name: &[u8],
    spot: &Spot,
    args: &Delete,
    globals: &Globals,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    whole::delete_subvolume(directory, name).map_err(|why| {
        let failure = spot.failure("cannot delete", &why);
        match why.is(Errno::NOTEMPTY) {
            true => failure.hint("It holds other subvolumes: delete those first, or add -R."),
            false => failure,
        }
    })?;
    if args.commit_each {
        whole.sync()?;
    }
    if globals.talks() {
        let durable = matches!(whole, Whole::Image(_)) || args.commit_after || args.commit_each;
        let how = if durable { "commit" } else { "no-commit" };
        writeln!(out, "Delete subvolume ({how}): '{spot}'")?;
    }
    Ok(())
}

/// Deletes the subvolumes inside a subvolume, the deepest first.
fn below(
    whole: &Whole,
    id: u64,
    spot: &Spot,
    session: &mut Session<'_>,
    globals: &Globals,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let all = whole.subvolumes()?;
    let here = all.iter().find(|it| it.id == id).map(|it| it.path.clone()).unwrap_or_default();
    let mut inside: Vec<_> = all
        .iter()
        .filter(|it| it.path.strip_prefix(&*here).is_some_and(|rest| rest.starts_with(b"/")))
        .collect();
    inside.sort_by_key(|it| std::cmp::Reverse(it.path.len()));
    for subvolume in inside {
        let Some(target) = whole.spot_below(spot, &here, &subvolume.path) else { continue };
        let spot = session.find(&target, false)?;
        let (directory, name) = session.find_parent(&target)?;
        let removed = whole::delete_subvolume(&directory, &name);
        removed.map_err(|why| spot.failure("cannot delete", why))?;
        if globals.talks() {
            writeln!(out, "Delete subvolume (no-commit): '{spot}'")?;
        }
    }
    Ok(())
}

/// The subvolume with an id, as a target.
pub fn by_id(target: &Target, id: u64, session: &mut Session<'_>) -> Result<Target, Failure> {
    let spot = session.find(target, true)?;
    let whole = Whole::of(&spot)?;
    let all = whole.subvolumes()?;
    let refuse =
        |why: &str| Failure::new(format!("cannot find subvolume {id} of"), whole.name(), why);
    let wanted = all.iter().find(|it| it.id == id).ok_or_else(|| refuse("there is none"))?;
    let here = whole.subvolume_at(&spot)?;
    let here = all.iter().find(|it| it.id == here).map(|it| it.path.clone()).unwrap_or_default();
    whole.spot_below(&spot, &here, &wanted.path).ok_or_else(|| {
        refuse("it is not below this directory")
            .hint("Name a directory of the mount above it, or its own.")
    })
}
