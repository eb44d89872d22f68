//! `qgroup clear-stale`: takes away the groups that subvolumes have left behind, and relations that groups have.

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
use crate::vfs::quotas::{Group, Quotas, level, shown};

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
        for stale in stale(vfs)? {
            if globals.talks() {
                writeln!(out, "Delete stale {}", stale.what)?;
            }
            let done = change(vfs, stale.end);
            right &= !matches!(done, Ok(false));
            failures.note(done.map(|_| gone.push(stale.name)), out)?;
        }
        if right { Ok(()) } else { rescan(vfs, globals) }
    })?;
    if globals.format == Format::Json {
        output::write_json(out, "qgroup-clear-stale", gone.into())?;
    }
    failures.end()
}

/// What is to go.
struct Stale {
    name: String,
    what: String,
    end: QgroupChange,
}

/// Relations of which a group is missing, and the groups of level 0 whose subvolume is gone. One that is being dropped still has its own, and so
/// has one that has allocated, by simple quotas, what others still refer to.
fn stale(vfs: &Vfs) -> Result<Vec<Stale>, Failure> {
    let refuse = |why| refused(CLEAR, vfs, why);
    let quotas = vfs.quotas().map_err(refuse)?.filter(Quotas::are_on);
    let Some(quotas) = quotas else { return Err(are_off(CLEAR, vfs)) };
    let there = vfs.roots().map_err(refuse)?;
    let relations = quotas.orphans.iter().map(|&(member, group)| {
        let name = format!("{} in {}", shown(member), shown(group));
        let what = format!("relation {name}");
        Stale { name, what, end: QgroupChange::Remove { member, group } }
    });
    let owns = |group: &Group| quotas.are_simple() && (group.rfer != 0 || group.excl != 0);
    let is_stale = |id: u64, group| level(id) == 0 && !there.contains(&id) && !owns(group);
    let groups = quotas.groups.iter().filter(|(id, group)| is_stale(**id, group));
    let groups = groups.map(|(&id, _)| {
        let name = shown(id);
        Stale { what: format!("qgroup {name}"), name, end: QgroupChange::Destroy(id) }
    });
    Ok(relations.chain(groups).collect())
}
