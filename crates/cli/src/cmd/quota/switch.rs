//! `quota enable` and `quota disable`.
//!
//! Full quotas are on when all is counted, so that they are right from the beginning; Linux counts behind the command. Simple ones have nothing to
//! count: what is there already is nobody's.

use std::ffi::OsString;

use buttress_device::Access;
use clap::Args;

use super::{counted, refused};
use crate::args::Globals;
use crate::cmd::files::with_vfs;
use crate::error::Failure;
use crate::vfs::Vfs;
use crate::vfs::quotas::Mode;

/// Arguments of `quota enable`.
#[derive(Debug, Args)]
pub struct Enable {
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// Simple quotas (Linux 6.7), which count what a subvolume allocates from now on, whoever else refers to it
    #[arg(short, long)]
    simple: bool,
}

/// Arguments of `quota disable`.
#[derive(Debug, Args)]
pub struct Disable {
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
}

const ENABLE: &str = "cannot enable quotas of";

/// Switches quotas on.
pub fn enable(args: &Enable, globals: &Globals) -> Result<(), Failure> {
    let wanted = if args.simple { Mode::Simple } else { Mode::Full };
    with_vfs(&args.target, Access::ReadWrite, globals, |vfs| {
        match vfs.quota_mode().map_err(|why| refused(ENABLE, vfs, why))? {
            Some(mode) if mode == wanted => return Ok(()),
            Some(mode) => return Err(are_others(mode, vfs)),
            None => {}
        }
        let done = match wanted {
            Mode::Simple => vfs.enable_simple_quotas(),
            Mode::Full => counted(globals, |told| vfs.enable_quotas(told)),
        };
        done.map_err(|why| refused(ENABLE, vfs, why))
    })
}

/// Quotas of the other kind are on. (Linux says nothing, and leaves them as they are.)
fn are_others(mode: Mode, vfs: &Vfs) -> Failure {
    let name = vfs.name();
    let hint = format!(
        "`buttress quota disable {name}` switches these off first; groups and limits are gone then."
    );
    let why = match mode {
        Mode::Simple => "simple quotas are on",
        Mode::Full => "full quotas are on",
    };
    Failure::new(ENABLE, name, why).hint(hint)
}

/// Switches quotas off.
pub fn disable(args: &Disable, globals: &Globals) -> Result<(), Failure> {
    with_vfs(&args.target, Access::ReadWrite, globals, |vfs| {
        vfs.disable_quotas().map_err(|why| refused("cannot disable quotas of", vfs, why))
    })
}
