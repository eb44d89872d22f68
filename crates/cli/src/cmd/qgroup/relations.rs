//! `qgroup assign` and `qgroup remove`: which groups are in which.
//!
//! What a group has and shares with others is not known apart. Where that makes its numbers wrong, all is counted anew.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use buttress_fuse::mount::control::QgroupChange;
use clap::Args;
use rustix::io::Errno;

use super::{change, changing, id_of};
use crate::args::Globals;
use crate::cmd::quota::{counted, refused};
use crate::device;
use crate::error::Failure;
use crate::vfs::Vfs;

/// Arguments of `qgroup assign` and `qgroup remove`.
#[derive(Debug, Args)]
pub struct Relation {
    /// The member: LEVEL/NUMBER, or the path of a subvolume
    #[arg(value_name = "SRC")]
    member: OsString,
    /// The group that it is put into, or taken out of
    #[arg(value_name = "DST")]
    group: OsString,
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// Count anew where numbers are wrong after it (the default)
    #[arg(long, overrides_with = "no_rescan")]
    rescan: bool,
    /// Leave them wrong, for a rescan that is to come
    #[arg(long, overrides_with = "rescan")]
    no_rescan: bool,
}

/// Puts a group into another one.
pub fn assign(args: &Relation, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    related(args, |member, group| QgroupChange::Assign { member, group }, globals, out)
}

/// Takes a group out of another one.
pub fn remove(args: &Relation, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    related(args, |member, group| QgroupChange::Remove { member, group }, globals, out)
}

fn related(
    args: &Relation,
    how: impl FnOnce(u64, u64) -> QgroupChange,
    globals: &Globals,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    changing(&args.target, globals, |session, _, vfs| {
        let member = id_of(&args.member, session, vfs, globals)?;
        let group = id_of(&args.group, session, vfs, globals)?;
        if change(vfs, how(member, group))? {
            return Ok(());
        }
        if args.no_rescan {
            let name = vfs.name();
            let why = "quotas may be inconsistent, rescan needed";
            device::warn(globals, Path::new(&name), &why);
            return Ok(());
        }
        rescan(vfs, globals)?;
        if globals.talks() {
            writeln!(out, "Quota data changed, rescan scheduled")?;
        }
        Ok(())
    })
}

/// Counts anew: of a live mount the process behind it does, while the command ends.
pub fn rescan(vfs: &Vfs, globals: &Globals) -> Result<(), Failure> {
    match counted(globals, |told| vfs.rescan_quotas(told)) {
        // The one that is running finds what has changed, and begins anew.
        Err(why) if why.is(Errno::INPROGRESS) => Ok(()),
        done => done.map_err(|why| refused("cannot rescan quotas of", vfs, why)),
    }
}
