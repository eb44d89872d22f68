//! `subvolume show`, with the text of btrfs-progs.

use std::ffi::OsString;
use std::io::Write;

use buttress_device::Access;
use clap::Args;
use rustix::io::Errno;
use serde_json::{Value, json};
use uuid::Uuid;

use super::list;
use crate::args::Globals;
use crate::clock::Zone;
use crate::cmd::files::session;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::units::{UnitArgs, Units};
use crate::vfs::quotas::{self, Group};
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
    #[command(flatten)]
    units: UnitArgs,
}

/// Prints what there is to know about a subvolume.
pub fn run(args: &Show, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let (all, id, group) = session(globals, Access::ReadOnly, |session| {
        let vnode = session.find(&Target::any(&args.target, globals), true)?;
        let vfs = Vfs::of(&vnode)?;
        let (all, _hidden) = vfs.subvolumes_past()?;
        let id = match (args.rootid, args.uuid) {
            (Some(id), _) => id,
            (_, Some(uuid)) => all.iter().find(|it| it.uuid == uuid).map_or(0, |it| it.id),
            _ => vfs.subvolume_at(&vnode)?,
        };
        Ok((all, id, group_of(&vfs, id)?))
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
        Format::Text => {
            text(shown, &snapshots, out)?;
            group.map_or(Ok(()), |group| group_text(id, &group, args.units.units(), out))
        }
        Format::Json => {
            let mut value = list::json(shown, &Zone::local());
            let paths: Vec<Value> =
                snapshots.iter().map(|it| output::text_json(&it.path)).collect();
            if let Some(object) = value.as_object_mut() {
                object.insert("snapshots".into(), paths.into());
                object.extend(group.map(|group| ("quota group".into(), group_json(id, &group))));
            }
            Ok(output::write_json(out, "subvolume-show", value)?)
        }
    }
}

/// The group of quotas that a subvolume has; none where quotas are off, and for who may not see them.
fn group_of(vfs: &Vfs, id: u64) -> Result<Option<Group>, Failure> {
    match vfs.quotas() {
        Err(why) if why.is(Errno::PERM) => Ok(None),
        Err(why) => Err(Failure::new("cannot read the quotas of", vfs.name(), why)),
        Ok(quotas) => Ok(quotas.and_then(|mut quotas| quotas.groups.remove(&id))),
    }
}

fn group_text(id: u64, group: &Group, units: Units, out: &mut dyn Write) -> Result<(), Failure> {
    let limit = |most: Option<u64>| most.map_or("-".to_owned(), |most| units.show(most));
    writeln!(out, "\tQuota group:\t\t{}", quotas::shown(id))?;
    writeln!(out, "\t  Limit referenced:\t{}", limit(group.max_rfer))?;
    writeln!(out, "\t  Limit exclusive:\t{}", limit(group.max_excl))?;
    writeln!(out, "\t  Usage referenced:\t{}", units.show(group.rfer))?;
    Ok(writeln!(out, "\t  Usage exclusive:\t{}", units.show(group.excl))?)
}

fn group_json(id: u64, group: &Group) -> Value {
    json!({
        "qgroupid": quotas::shown(id),
        "max_referenced": group.max_rfer,
        "max_exclusive": group.max_excl,
        "referenced": group.rfer,
        "exclusive": group.excl,
    })
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
