//! `subvolume show`, with the text of btrfs-progs.

use std::ffi::OsString;
use std::io::Write;

use buttress_device::Access;
use clap::Args;
use serde_json::Value;
use uuid::Uuid;

use super::list;
use crate::args::Globals;
use crate::clock::Zone;
use crate::cmd::files::session;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::units::UnitArgs;
use crate::vfs::{Subvolume, Vfs};
use crate::vnode::{Target, Time};

/// Arguments of `subvolume show`.
#[derive(Debug, Args)]
pub struct Show {
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// The subvolume with this id of the filesystem at TARGET
    #[arg(short, long, value_name = "ID")]
    rootid: Option<u64>,
    /// The subvolume with this uuid of the filesystem at TARGET
    #[arg(short, long, value_name = "UUID", conflicts_with = "rootid")]
    uuid: Option<Uuid>,
    /// Accepted: only quotas have sizes here.
    #[command(flatten)]
    units: UnitArgs,
}

/// Prints what there is to know about a subvolume.
pub fn run(args: &Show, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let (all, id) = session(globals, Access::ReadOnly, |session| {
        let vnode = session.find(&Target::any(&args.target, globals), true)?;
        let vfs = Vfs::of(&vnode)?;
        let (all, _hidden) = vfs.subvolumes_past()?;
        let id = match (args.rootid, args.uuid) {
            (Some(id), _) => id,
            (_, Some(uuid)) => all.iter().find(|it| it.uuid == uuid).map_or(0, |it| it.id),
            _ => vfs.subvolume_at(&vnode)?,
        };
        Ok((all, id))
    })?;
    let Some(shown) = all.iter().find(|it| it.id == id) else {
        let place = args.target.to_string_lossy();
        return Err(Failure::new(
            "cannot show a subvolume of",
            place,
            "there is none with this id or uuid",
        ));
    };
    let is_snapshot = |it: &&Subvolume| !shown.uuid.is_nil() && it.parent_uuid == shown.uuid;
    let snapshots: Vec<&Subvolume> = all.iter().filter(is_snapshot).collect();
    match globals.format {
        Format::Text => text(shown, &snapshots, out),
        Format::Json => {
            let mut value = list::json(shown, &Zone::local());
            let paths: Vec<Value> =
                snapshots.iter().map(|it| output::text_json(&it.path)).collect();
            if let Some(object) = value.as_object_mut() {
                object.insert("snapshots".into(), paths.into());
            }
            Ok(output::write_json(out, "subvolume-show", value)?)
        }
    }
}

fn text(it: &Subvolume, snapshots: &[&Subvolume], out: &mut dyn Write) -> Result<(), Failure> {
    let zone = Zone::local();
    let time = |time: Time| match time.sec {
        0 => "-".to_owned(),
        sec => zone.at(sec).to_string(),
    };
    let uuid = |uuid: Uuid| if uuid.is_nil() { "-".into() } else { uuid.to_string() };
    let is_top = it.path.is_empty();
    let (path, name): (&[u8], &[u8]) = match is_top {
        true => (b"/", b"<FS_TREE>"),
        false => (&it.path, &it.name),
    };
    let [made, sent, received] = it.transids;
    let [otime, stime, rtime] = it.times;
    out.write_all(path)?;
    write!(out, "\n\tName: \t\t\t")?;
    out.write_all(name)?;
    writeln!(out, "\n\tUUID: \t\t\t{}", uuid(it.uuid))?;
    writeln!(out, "\tParent UUID: \t\t{}", uuid(it.parent_uuid))?;
    writeln!(out, "\tReceived UUID: \t\t{}", uuid(it.received_uuid))?;
    writeln!(out, "\tCreation time: \t\t{}", time(otime))?;
    writeln!(out, "\tSubvolume ID: \t\t{}", it.id)?;
    writeln!(out, "\tGeneration: \t\t{}", it.generation)?;
    writeln!(out, "\tGen at creation: \t{made}")?;
    writeln!(out, "\tParent ID: \t\t{}", it.parent)?;
    writeln!(out, "\tTop level ID: \t\t{}", it.parent)?;
    writeln!(out, "\tFlags: \t\t\t{}", if it.read_only { "readonly" } else { "-" })?;
    writeln!(out, "\tSend transid: \t\t{sent}")?;
    writeln!(out, "\tSend time: \t\t{}", time(stime))?;
    writeln!(out, "\tReceive transid: \t{received}")?;
    writeln!(out, "\tReceive time: \t\t{}", time(rtime))?;
    writeln!(out, "\tSnapshot(s):")?;
    for snapshot in snapshots {
        write!(out, "\t\t\t\t")?;
        out.write_all(&snapshot.path)?;
        writeln!(out)?;
    }
    Ok(())
}
