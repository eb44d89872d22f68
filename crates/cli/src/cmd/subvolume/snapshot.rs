//! `subvolume snapshot`.

use std::ffi::OsString;
use std::io::Write;

use buttress_device::Access;
use clap::Args;
use rustix::io::Errno;
use serde_json::json;

use super::create::refused;
use crate::args::Globals;
use crate::cmd::copy::{base_name, destination};
use crate::cmd::files::session;
use crate::cmd::qgroup::groups_of;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::vfs::{self, Vfs};
use crate::vnode::{Kind, Target};

/// Arguments of `subvolume snapshot`.
#[derive(Debug, Args)]
pub struct Snapshot {
    /// The subvolume: DEVICE[:PATH] or a path on a live mount
    source: OsString,
    /// Where the snapshot goes: a new name, or the directory for it
    destination: OsString,
    /// Make it read-only
    #[arg(short = 'r', long)]
    readonly: bool,
    /// Put it into this group of quotas: LEVEL/NUMBER. Can be given several times
    #[arg(short = 'i', value_name = "QGROUPID")]
    groups: Vec<OsString>,
}

/// Makes a snapshot.
pub fn run(args: &Snapshot, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    session(globals, Access::ReadWrite, |session| {
        let source = Target::any(&args.source, globals);
        let target = Target::any(&args.destination, globals);
        let vnode = session.find(&source, true)?;
        let vfs = Vfs::of(&vnode)?;
        vfs.subvolume_at(&vnode)?;
        let groups = groups_of(&args.groups, session, &vfs, globals)?;
        let new = ("cannot make a snapshot at", Kind::Directory);
        let (directory, name) = destination(session, &target, base_name(&source), false, new)?;
        let Some(name) = name else {
            return Err(vnode
                .failure("cannot name a snapshot of", "the top level has no name")
                .hint("Give the snapshot's own name in DESTINATION."));
        };
        let made = vfs::snapshot(&vnode, &directory, &name, args.readonly, &groups);
        made.map_err(|why| match why.is(Errno::XDEV) {
            true => {
                let what = format!("cannot make a snapshot of {vnode} at");
                Failure::new(what, directory.entry_name(&name), "not in the same filesystem")
            }
            false => refused("cannot create", &directory, &name, (&vfs, &groups), &why),
        })?;
        if globals.format == Format::Json {
            let value = json!({
                "source": output::text_json(&vnode.name()),
                "path": output::text_json(&directory.entry(&name)),
                "readonly": args.readonly,
            });
            output::write_json(out, "subvolume-snapshot", value)?;
        }
        if globals.talks() {
            let kind = if args.readonly { "readonly snapshot" } else { "snapshot" };
            writeln!(out, "Create a {kind} of '{vnode}' in '{}'", directory.entry_name(&name))?;
        }
        Ok(())
    })
}
