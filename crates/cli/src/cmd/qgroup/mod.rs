//! `qgroup`: groups of quotas.
//!
//! A group is named as in btrfs-progs: LEVEL/NUMBER. Where one that is there is meant, the path of a subvolume stands for its own.

pub mod groups;
pub mod limit;
pub mod relations;
pub mod show;
pub mod stale;

use std::ffi::{OsStr, OsString};
use std::io::Write;

use buttress_device::Access;
use buttress_fuse::mount::control::QgroupChange;
use clap::Subcommand;
use rustix::io::Errno;

use crate::args::Globals;
use crate::cmd::files::session;
use crate::cmd::quota::{are_off, refused};
use crate::error::Failure;
use crate::vfs::Vfs;
use crate::vfs::quotas::{parse, shown};
use crate::vnode::{FileError, Session, Target, Vnode};

/// The commands of this group.
#[derive(Debug, Subcommand)]
pub enum Qgroup {
    /// Put a group into one of a higher level
    Assign(relations::Relation),
    /// Take a group out of another one
    Remove(relations::Relation),
    /// Make a group
    Create(groups::Group),
    /// Take a group away
    Destroy(groups::Group),
    /// Take away the groups of subvolumes, and relations of groups, that are not there any more
    ClearStale(stale::ClearStale),
    /// List groups, what they have, and their limits
    Show(show::Show),
    /// Limit what a group may have
    #[command(override_usage = "buttress qgroup limit [OPTIONS] <SIZE|none> [QGROUPID] <TARGET>")]
    Limit(limit::Limit),
}

/// Does what was asked.
pub fn run(command: &Qgroup, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    match command {
        Qgroup::Assign(args) => relations::assign(args, globals, out),
        Qgroup::Remove(args) => relations::remove(args, globals, out),
        Qgroup::Create(args) => groups::create(args, globals),
        Qgroup::Destroy(args) => groups::destroy(args, globals),
        Qgroup::ClearStale(args) => stale::run(args, globals, out),
        Qgroup::Show(args) => show::run(args, globals, out),
        Qgroup::Limit(args) => limit::run(args, globals),
    }
}

/// Finds what a target names, and the filesystem that it is in; images are opened for writing.
fn changing(
    target: &OsStr,
    globals: &Globals,
    action: impl FnOnce(&mut Session<'_>, &Vnode, &Vfs) -> Result<(), Failure>,
) -> Result<(), Failure> {
    session(globals, Access::ReadWrite, |session| {
        let vnode = session.find(&Target::any(target, globals), true)?;
        let vfs = Vfs::of(&vnode)?;
        action(session, &vnode, &vfs)
    })
}

/// The number of a new group.
fn parse_id(text: &str) -> Result<u64, &'static str> {
    parse(text).ok_or("expects LEVEL/NUMBER, as in 1/100")
}

/// The number of a group that somebody names by it, or by the path of a subvolume of the same filesystem.
fn id_of(
    name: &OsStr,
    session: &mut Session<'_>,
    vfs: &Vfs,
    globals: &Globals,
) -> Result<u64, Failure> {
    if let Some(id) = name.to_str().and_then(parse) {
        return Ok(id);
    }
    let wrong = || {
        let why = "neither LEVEL/NUMBER nor the path of a subvolume";
        Failure::new("cannot understand the group", name.display(), why)
    };
    let vnode = session.find(&Target::any(name, globals), true).map_err(|_| wrong())?;
    if !is_in(&vnode, vfs) {
        let why = format!("it is not in the filesystem of {}", vfs.name());
        return Err(vnode.failure("cannot use", why));
    }
    vfs.subvolume_at(&vnode)
}

fn is_in(vnode: &Vnode, vfs: &Vfs) -> bool {
    match (vfs, Vfs::of(vnode)) {
        (Vfs::Image(one), Ok(Vfs::Image(other))) => one.is(&other),
        (Vfs::Live(one), Ok(Vfs::Live(other))) => crate::vfs::is_same_mount(one, &other),
        _ => false,
    }
}

/// The groups that a new subvolume is to be put into.
pub fn groups_of(
    names: &[OsString],
    session: &mut Session<'_>,
    vfs: &Vfs,
    globals: &Globals,
) -> Result<Vec<u64>, Failure> {
    names.iter().map(|name| id_of(name, session, vfs, globals)).collect()
}

/// Why a new subvolume cannot be put into its groups; `None`: it is not about them.
pub fn refused_groups(
    what: &str,
    place: &str,
    vfs: &Vfs,
    groups: &[u64],
    why: &FileError,
) -> Option<Failure> {
    if groups.is_empty() {
        return None;
    }
    let about = |why: &str| Some(Failure::new(what, place, why));
    let all: Vec<String> = groups.iter().map(|id| shown(*id)).collect();
    let all = all.join(", ");
    match why {
        why if why.is(Errno::NOTCONN) => Some(are_off(what, vfs)),
        why if why.is(Errno::NOENT) => about(&format!("there is no such group: {all}")),
        why if why.is(Errno::INVAL) => {
            about(&format!("only groups above level 0 hold subvolumes: {all}"))
        }
        _ => None,
    }
}

/// Changes a group; whether all numbers are right after that.
fn change(vfs: &Vfs, change: QgroupChange) -> Result<bool, Failure> {
    vfs.change_qgroup(change).map_err(|why| {
        let what = said(change);
        match reason(change, &why) {
            Some(why) => Failure::new(what, vfs.name(), why),
            None => refused(&what, vfs, why),
        }
    })
}

fn said(change: QgroupChange) -> String {
    match change {
        QgroupChange::Create(id) => format!("cannot create group {} of", shown(id)),
        QgroupChange::Destroy(id) => format!("cannot destroy group {} of", shown(id)),
        QgroupChange::Limit(id, _) => format!("cannot limit group {} of", shown(id)),
        QgroupChange::Assign { member, group } => {
            format!("cannot assign group {} to {} of", shown(member), shown(group))
        }
        QgroupChange::Remove { member, group } => {
            format!("cannot remove group {} from {} of", shown(member), shown(group))
        }
    }
}

/// What an error means for a change, where it is no common one.
fn reason(change: QgroupChange, why: &FileError) -> Option<&'static str> {
    use QgroupChange::{Assign, Create, Destroy, Limit, Remove};
    const NONE: &str = "there is no such group";
    let reasons = match change {
        Create(_) => &[
            (Errno::EXIST, "there is one already"),
            (Errno::INVAL, "groups of level 0 come with their subvolumes"),
        ][..],
        Destroy(_) => &[
            (Errno::NOENT, NONE),
            (
                Errno::BUSY,
                "it has members, its subvolume is there, or what that has allocated (simple quotas)",
            ),
        ],
        Assign { .. } => &[
            (Errno::NOENT, NONE),
            (Errno::EXIST, "it is in it already"),
            (Errno::INVAL, "the level of a group must be higher than those of its members"),
        ],
        Remove { .. } => &[(Errno::NOENT, "it is not in it")],
        Limit(..) => &[(Errno::NOENT, NONE)],
    };
    reasons.iter().find(|(errno, _)| why.is(*errno)).map(|(_, words)| *words)
}
