//! `subvolume get-default` and `set-default`.

use std::ffi::OsString;
use std::io::Write;

use buttress_device::Access;
use buttress_ondisk::objectid;
use clap::Args;
use rustix::io::Errno;

use super::delete::no_such_subvolume;
use super::list;
use crate::args::Globals;
use crate::clock::Zone;
use crate::cmd::files::session;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::vfs::{self, Vfs};
use crate::vnode::Target;

/// Arguments of `subvolume get-default`.
#[derive(Debug, Args)]
pub struct GetDefault {
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
}

/// Arguments of `subvolume set-default`.
#[derive(Debug, Args)]
pub struct SetDefault {
    /// The subvolume: DEVICE[:PATH] or a path on a live mount; or its id, and then the filesystem
    #[arg(value_name = "TARGET", num_args = 1..=2, required = true)]
    targets: Vec<OsString>,
}

/// Prints the default subvolume.
pub fn get(args: &GetDefault, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let (id, all) = session(globals, Access::ReadOnly, |session| {
        let vnode = session.find(&Target::any(&args.target, globals), true)?;
        let vfs = Vfs::of(&vnode)?;
        Ok((vfs.default_subvolume()?, vfs.subvolumes_past()?.0))
    })?;
    let found = all.iter().find(|it| it.id == id);
    if globals.format == Format::Json {
        let value = found.map_or(id.into(), |it| list::json(it, &Zone::local()));
        return Ok(output::write_json(out, "subvolume-default", value)?);
    }
    match found {
        Some(it) if id != objectid::FS_TREE => {
            write!(out, "ID {id} gen {} top level {} path ", it.generation, it.parent)?;
            out.write_all(&it.path)?;
            writeln!(out)?;
        }
        Some(_) => writeln!(out, "ID {id} (FS_TREE)")?,
        None => writeln!(out, "ID {id}")?,
    }
    Ok(())
}

/// Chooses the default subvolume.
pub fn set(args: &SetDefault, globals: &Globals, _out: &mut dyn Write) -> Result<(), Failure> {
    session(globals, Access::ReadWrite, |session| match args.targets.as_slice() {
        [one] => {
            let vnode = session.find(&Target::any(one, globals), true)?;
            Vfs::of(&vnode)?.subvolume_at(&vnode)?;
            vfs::set_default(&vnode)
                .map_err(|why| vnode.failure("cannot make the default subvolume of", why))
        }
        [id, filesystem] => {
            let id = id.to_str().and_then(|id| id.parse().ok()).ok_or_else(|| {
                let why = format!("{} is no subvolume id", id.to_string_lossy());
                Failure::usage("cannot set the default subvolume", why)
            })?;
            let vnode = session.find(&Target::any(filesystem, globals), true)?;
            let vfs = Vfs::of(&vnode)?;
            vfs.set_default_by_id(id).map_err(|why| match why.is(Errno::NOENT) {
                true => no_such_subvolume(id, &vfs),
                false => vnode.failure("cannot set the default subvolume of", why),
            })
        }
        _ => Err(Failure::usage("cannot set the default subvolume", "none was named")),
    })
}
