//! `qgroup clear-stale`: takes groups away that subvolumes have left behind.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;

use buttress_fuse::mount::control::QgroupChange;
use clap::Args;

use super::relations::rescan;
use super::{change, changing};
use crate::args::Globals;
use crate::cmd::files::Failures;
use crate::cmd::quota::{are_off, refused};
use crate::error::Failure;
use crate::output::{self, Format};
use crate::vfs::Vfs;
use crate::vfs::quotas::{Quotas, level, shown};

/// Arguments of `qgroup clear-stale`.
#[derive(Debug, Args)]
pub struct ClearStale {
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
}

const CLEAR: &str = "cannot clear stale groups of";

/// Takes them away; one that stays does not keep the others.
pub fn run(args: &ClearStale, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let mut failures = Failures::new(globals);
    let mut gone = Vec::new();
    changing(&args.target, globals, |_, _, vfs| {
        let mut right = true;
        for id in stale(vfs)? {
            if globals.talks() {
                writeln!(out, "Delete stale qgroup {}", shown(id))?;
            }
            let done = change(vfs, QgroupChange::Destroy(id));
            right &= !matches!(done, Ok(false));
            failures.note(done.map(|_| gone.push(shown(id))), out)?;
        }
        if right { Ok(()) } else { rescan(vfs, globals) }
    })?;
    if globals.format == Format::Json {
        output::write_json(out, "qgroup-clear-stale", gone.into())?;
    }
    failures.end()
}

/// The groups of level 0 whose subvolume is gone; one that is being dropped still has its own.
fn stale(vfs: &Vfs) -> Result<Vec<u64>, Failure> {
    let refuse = |why| refused(CLEAR, vfs, why);
    let quotas = vfs.quotas().map_err(refuse)?.filter(Quotas::are_on);
    let Some(quotas) = quotas else { return Err(are_off(CLEAR, vfs)) };
    let there: BTreeSet<u64> = vfs.roots().map_err(refuse)?;
    let groups = quotas.groups.keys().copied();
    Ok(groups.filter(|id| level(*id) == 0 && !there.contains(id)).collect())
}
