//! `quota`: quotas as a whole.
//!
//! An image is counted by the command itself; on a live mount the process behind it counts, and goes on when the command is killed.

pub mod rescan;
pub mod status;
pub mod switch;

use std::io::Write;

use clap::Subcommand;
use rustix::io::Errno;

use crate::args::Globals;
use crate::cmd::copy::Progress;
use crate::error::Failure;
use crate::vfs::{Told, Vfs};
use crate::vnode::FileError;

/// The commands of this group.
#[derive(Debug, Subcommand)]
pub enum Quota {
    /// Switch quotas on, and count what there is
    Enable(switch::Enable),
    /// Switch quotas off: groups and limits are gone
    Disable(switch::Disable),
    /// Count anew what groups have
    Rescan(rescan::Rescan),
    /// Print whether quotas are on, and right
    Status(status::StatusArgs),
}

/// Does what was asked.
pub fn run(command: &Quota, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    match command {
        Quota::Enable(args) => switch::enable(args, globals),
        Quota::Disable(args) => switch::disable(args, globals),
        Quota::Rescan(args) => rescan::run(args, globals, out),
        Quota::Status(args) => status::run(args, globals, out),
    }
}

/// Counts, and shows how far it is.
pub fn counted(
    globals: &Globals,
    count: impl FnOnce(Told<'_>) -> Result<(), FileError>,
) -> Result<(), FileError> {
    let progress = Progress::of_parts(globals);
    let done = count(&mut |what, done, total| progress.at(what, done, total));
    progress.finish();
    done
}

/// Why something about quotas was not done to a filesystem.
pub fn refused(what: &str, vfs: &Vfs, why: FileError) -> Failure {
    if why.is(Errno::NOTCONN) {
        return are_off(what, vfs);
    }
    let busy = why.is(Errno::BUSY);
    let failure = Failure::new(what, vfs.name(), why);
    match busy {
        true => failure
            .hint("It changes faster than it can be counted; try again when less is written."),
        false => failure,
    }
}

/// Something cannot be done without quotas.
pub fn are_off(what: &str, vfs: &Vfs) -> Failure {
    let name = vfs.name();
    let hint = format!("`buttress quota enable {name}` switches them on.");
    Failure::new(what, name, "quotas are not enabled").hint(hint)
}
