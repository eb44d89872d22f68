//! `inspect-internal subvolid-resolve`: the path of a subvolume by its id.

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

/// Arguments of `subvolid-resolve`.
#[derive(Debug, Args)]
pub struct SubvolIdResolve {
    /// The subvolume's id
    #[arg(value_name = "ID")]
    id: u64,
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
}

/// Prints the path from the top of the filesystem: an empty one for that itself.
pub fn run(args: &SubvolIdResolve, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let path = session(globals, Access::ReadOnly, |session| {
        let vnode = session.find(&Target::any(&args.target, globals), true)?;
        let vfs = Vfs::of(&vnode)?;
        vfs.path_of_subvolume(args.id).map_err(|why| {
            Failure::new(format!("cannot resolve subvolume {} of", args.id), vfs.name(), why)
        })
    })?;
    match globals.format {
        Format::Text => {
            out.write_all(&path)?;
            writeln!(out)?;
        }
        Format::Json => {
            output::write_json(out, "subvolid-resolve", output::text_json(&path))?;
        }
    }
    Ok(())
}
