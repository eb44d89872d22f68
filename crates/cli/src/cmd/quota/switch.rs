//! `quota enable` and `quota disable`.
//!
//! Quotas are on when all is counted, so that they are right from the beginning; Linux counts behind the command.

use std::ffi::OsString;

use buttress_device::Access;
use clap::Args;

use super::{counted, refused, with_vfs};
use crate::args::Globals;
use crate::error::Failure;

/// Arguments of `quota enable`.
#[derive(Debug, Args)]
pub struct Enable {
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// Refused: simple quotas are not supported yet
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
    if args.simple {
        let why = "simple quotas are not supported yet";
        return Err(Failure::new(ENABLE, args.target.display(), why));
    }
    with_vfs(&args.target, Access::ReadWrite, globals, |vfs| {
        let done = counted(globals, |told| vfs.enable_quotas(told));
        done.map_err(|why| refused(ENABLE, vfs, why))
    })
}

/// Switches quotas off.
pub fn disable(args: &Disable, globals: &Globals) -> Result<(), Failure> {
    with_vfs(&args.target, Access::ReadWrite, globals, |vfs| {
        vfs.disable_quotas().map_err(|why| refused("cannot disable quotas of", vfs, why))
    })
}
