//! `inspect-internal inode-resolve`: all paths of an inode of a subvolume.
//!
//! They begin with what the user called the subvolume. Below a directory that is not the top of one they would lead nowhere, so there they
//! begin with the path of the top.

use std::ffi::OsString;
use std::io::Write;

use buttress_device::Access;
use clap::Args;
use serde_json::Value;

use crate::args::Globals;
use crate::cmd::files::session;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::vfs::{Vfs, trees};
use crate::vnode::{FileError, Target};

/// Arguments of `inode-resolve`.
#[derive(Debug, Args)]
pub struct InodeResolve {
    /// The inode's number, in the subvolume or as `ls -i` shows it on a live mount
    #[arg(value_name = "INODE")]
    ino: u64,
    /// The subvolume: DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
}

/// Prints the paths.
pub fn run(args: &InodeResolve, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let what = format!("cannot resolve inode {} of", args.ino);
    let paths = session(globals, Access::ReadOnly, |session| {
        let vnode = session.find(&Target::any(&args.target, globals), true)?;
        let vfs = Vfs::of(&vnode)?;
        let refuse = |why: FileError| vnode.failure(&what, why);
        let subvolume = vfs.subvolume_of(&vnode)?;
        let paths = vfs.paths_of_inode(subvolume, args.ino).map_err(refuse)?;
        let top = vfs.top_above(&vnode).map_err(refuse)?;
        Ok(paths.iter().map(|path| trees::below(&top, path)).collect::<Vec<_>>())
    })?;
    match globals.format {
        Format::Text => {
            for path in paths {
                out.write_all(&path)?;
                writeln!(out)?;
            }
        }
        Format::Json => {
            let paths: Vec<Value> = paths.iter().map(|path| output::text_json(path)).collect();
            output::write_json(out, "inode-resolve", paths.into())?;
        }
    }
    Ok(())
}
