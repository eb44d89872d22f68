//! `subvolume create`.

use std::ffi::OsString;
use std::io::Write;

use buttress_device::Access;
use clap::Args;
use rustix::io::Errno;

use crate::args::Globals;
use crate::cmd::files::{Failures, session};
use crate::cmd::qgroup::{groups_of, refused_groups};
use crate::error::Failure;
use crate::output::{self, Format};
use crate::vfs::{self, Vfs};
use crate::vnode::{Session, Target, Vnode};

/// Arguments of `subvolume create`.
#[derive(Debug, Args)]
pub struct Create {
    /// Where: DEVICE:PATH or a path on a live mount
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<OsString>,
    /// Directories above too where they are missing
    #[arg(short, long)]
    parents: bool,
    /// Put it into this group of quotas: LEVEL/NUMBER. Can be given several times
    #[arg(short = 'i', value_name = "QGROUPID")]
    groups: Vec<OsString>,
}

const TAKEN: &str = "target path already exists";

/// Makes subvolumes.
pub fn run(args: &Create, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let mut failures = Failures::new(globals);
    let mut made = Vec::new();
    session(globals, Access::ReadWrite, |session| {
        for target in &args.targets {
            let done = one(&Target::any(target, globals), args, globals, session, out);
            failures.note(done.map(|name| made.push(output::text_json(&name))), out)?;
        }
        Ok(())
    })?;
    if globals.format == Format::Json {
        output::write_json_of_operands(out, "subvolume-create", made)?;
    }
    failures.end()
}

fn one(
    target: &Target,
    args: &Create,
    globals: &Globals,
    session: &mut Session<'_>,
    out: &mut dyn Write,
) -> Result<Vec<u8>, Failure> {
    if args.parents {
        crate::cmd::mkdir::parents_of(target, session)?;
    }
    if target.is_top() {
        return Err(Failure::new("cannot create", target.shown(), TAKEN));
    }
    let (directory, name) = session.find_parent(target)?;
    let vfs = Vfs::of(&directory)?;
    let groups = groups_of(&args.groups, session, &vfs, globals)?;
    let made = vfs::create_subvolume(&directory, &name, &groups);
    made.map_err(|why| refused("cannot create", &directory, &name, (&vfs, &groups), &why))?;
    if globals.talks() {
        writeln!(out, "Create subvolume '{}'", directory.entry_name(&name))?;
    }
    Ok(directory.entry(&name))
}

/// Why there is no new subvolume in a directory.
pub fn refused(
    what: &str,
    directory: &Vnode,
    name: &[u8],
    (vfs, groups): (&Vfs, &[u64]),
    why: &crate::vnode::FileError,
) -> Failure {
    let place = directory.entry_name(name);
    if let Some(failure) = refused_groups(what, &place, vfs, groups, why) {
        return failure;
    }
    match why {
        why if why.is(Errno::EXIST) => Failure::new(what, place, TAKEN),
        why => Failure::new(what, place, why),
    }
}
