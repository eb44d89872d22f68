//! `inspect-internal rootid`: the number of the subvolume that holds a file.

use std::ffi::OsString;
use std::io::Write;

use buttress_device::Access;
use clap::Args;

use crate::args::Globals;
use crate::cmd::files::session;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::vfs::Vfs;
use crate::vnode::Target;

/// Arguments of `rootid`.
#[derive(Debug, Args)]
pub struct RootId {
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
}

/// Prints the id.
pub fn run(args: &RootId, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let id = session(globals, Access::ReadOnly, |session| {
        let vnode = session.find(&Target::any(&args.target, globals), true)?;
        Vfs::of(&vnode)?.subvolume_of(&vnode)
    })?;
    match globals.format {
        Format::Text => writeln!(out, "{id}")?,
        Format::Json => output::write_json(out, "rootid", id.into())?,
    }
    Ok(())
}
