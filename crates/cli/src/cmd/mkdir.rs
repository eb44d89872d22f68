//! `mkdir`: makes directories.

use std::ffi::OsString;
use std::io::Write;

use buttress_device::Access;
use clap::Args;
use rustix::io::Errno;

use super::files::{Failures, session};
use crate::args::Globals;
use crate::error::Failure;
use crate::vnode::{FileError, Kind, New, Session, Target, Vnode};

/// Arguments of `mkdir`.
#[derive(Debug, Args)]
pub struct Mkdir {
    /// DEVICE:PATH or a path on a live mount
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<OsString>,
    /// Directories above too where they are missing; what is there is fine
    #[arg(short, long)]
    parents: bool,
    /// Permission bits, octal
    #[arg(short, long, value_name = "MODE", value_parser = parse_mode)]
    mode: Option<u32>,
}

/// Reads permission bits in octal.
pub fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err("an octal number up to 7777 is wanted, such as 755".into()),
    }
}

/// Makes the directories.
pub fn run(args: &Mkdir, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let mut failures = Failures::new(globals);
    session(globals, Access::ReadWrite, |session| {
        for target in &args.targets {
            let target = Target::any(target, globals);
            let done = match args.parents {
                true => with_parents(&target, args, session),
                false => one(&target, args, session),
            };
            failures.note(done, out)?;
        }
        Ok(())
    })?;
    failures.end()
}

fn one(target: &Target, args: &Mkdir, session: &mut Session<'_>) -> Result<(), Failure> {
    if target.is_top() {
        return Err(Failure::new("cannot make", target.shown(), FileError::errno(Errno::EXIST)));
    }
    let (parent, name) = session.find_parent(target)?;
    make(&parent, &name, args).map(|_| ())
}

fn make(parent: &Vnode, name: &[u8], args: &Mkdir) -> Result<Vnode, Failure> {
    let refuse = |why| Failure::new("cannot make", parent.entry_name(name), why);
    let mode = args.mode.unwrap_or(0o777);
    let made = parent.make(name, &New::plain(Kind::Directory, mode)).map_err(refuse)?;
    if let Some(mode) = args.mode {
        made.set_mode(mode).map_err(refuse)?;
    }
    Ok(made)
}

/// Makes the directories above a target where they are missing.
pub fn parents_of(target: &Target, session: &mut Session<'_>) -> Result<(), Failure> {
    let args = Mkdir { targets: Vec::new(), parents: true, mode: None };
    let above = match target {
        Target::Host(path) => Target::Host(path.parent().unwrap_or(path).into()),
        Target::Image { device, path } => {
            let path = path.strip_suffix(b"/").unwrap_or(path);
            let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
            let path = path.get(..end).unwrap_or_default().to_vec();
            Target::Image { device: device.clone(), path }
        }
    };
    with_parents(&above, &args, session)
}

/// Goes down from the top (or from here), making what is missing.
fn with_parents(target: &Target, args: &Mkdir, session: &mut Session<'_>) -> Result<(), Failure> {
    let (device, path) = match target {
        Target::Image { device, path } => (device, path),
        Target::Host(path) => {
            return std::fs::create_dir_all(path).map_err(|error| {
                Failure::new("cannot make", path.display(), crate::error::text(&error))
            });
        }
    };
    let mut prefix = Vec::new();
    // Below what was made nothing is there.
    let mut made: Option<Vnode> = None;
    for name in path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")) {
        if let Some(parent) = made.take().filter(|_| name != b"..") {
            made = Some(make(&parent, name, args)?);
        }
        prefix.push(b'/');
        prefix.extend_from_slice(name);
        if made.is_some() {
            continue;
        }
        let target = Target::Image { device: device.clone(), path: prefix.clone() };
        match session.find(&target, true) {
            Ok(vnode) => {
                if !vnode.is_directory().map_err(|why| vnode.failure("cannot read", why))? {
                    return Err(vnode.failure("cannot make", "Not a directory"));
                }
            }
            Err(_) => {
                let (parent, name) = session.find_parent(&target)?;
                match make(&parent, &name, args) {
                    Ok(vnode) => made = Some(vnode),
                    Err(failure) if failure.is_about(Errno::EXIST) => {}
                    Err(failure) => return Err(failure),
                }
            }
        }
    }
    Ok(())
}
