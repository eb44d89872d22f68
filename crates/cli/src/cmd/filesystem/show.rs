//! `filesystem show`, with the text of btrfs-progs.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use buttress_fuse::holder;
use buttress_fuse::protocol::mounts;
use clap::Args;
use rustix::io::Errno;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::args::Globals;
use crate::cmd::files::Failures;
use crate::error::{self, Failure};
use crate::output::{self, Format};
use crate::units::UnitArgs;
use crate::vfs::{Info, Vfs};
use crate::vnode::Target;

/// Arguments of `filesystem show`.
#[derive(Debug, Args)]
#[command(mut_arg("mbytes", |arg| arg.short(None)))]
pub struct Show {
    /// DEVICE, a path on a live mount, or uuid or label of what is mounted; without any, all that buttress has mounted and this user may ask
    #[arg(value_name = "TARGET")]
    targets: Vec<OsString>,
    /// Accepted: disks and images that are not mounted are not searched for
    #[arg(short = 'd', long)]
    all_devices: bool,
    /// Accepted: without a target only what is mounted is shown anyway
    #[arg(short, long)]
    mounted: bool,
    #[command(flatten)]
    units: UnitArgs,
}

/// Prints uuid, label and devices.
pub fn run(args: &Show, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let mut failures = Failures::new(globals);
    let mut list = Vec::new();
    let mut show = |info: Info, out: &mut dyn Write| {
        match globals.format {
            Format::Json => list.push(json(&info)),
            Format::Text => text(&info, args, out)?,
        }
        Ok::<_, Failure>(())
    };
    if args.targets.is_empty() {
        let entries = entries()?;
        if entries.is_empty() && globals.talks() {
            complain!("nothing is mounted by buttress; name an image or disk");
        }
        for info in mounted(&entries) {
            show(info, out)?;
        }
    }
    for target in &args.targets {
        match named(target, globals) {
            Ok(all) => all.into_iter().try_for_each(|info| show(info, out))?,
            Err(failure) => failures.note(Err(failure), out)?,
        }
    }
    if globals.format == Format::Json && (args.targets.is_empty() || !list.is_empty()) {
        output::write_json(out, "filesystem-list", list.into())?;
    }
    failures.end()
}

/// The filesystem at a target; what is no path may be the uuid or the label of what is mounted.
fn named(target: &OsString, globals: &Globals) -> Result<Vec<Info>, Failure> {
    let failure = match super::info(target, globals) {
        Ok(info) => return Ok(vec![info]),
        Err(failure) => failure,
    };
    let is_path = Path::new(target).symlink_metadata().is_ok();
    let is_in_image = matches!(Target::any(target, globals), Target::Image { .. });
    // Nothing has an empty name: what has no label is not meant by it.
    if is_path || is_in_image || target.is_empty() || !failure.is_about(Errno::NOENT) {
        return Err(failure);
    }
    let uuid = target.to_str().and_then(|text| Uuid::parse_str(text).ok());
    let is_it = |it: &Info| Some(it.fsid) == uuid || it.label == target.as_bytes();
    let all: Vec<_> = mounted(&entries()?).into_iter().filter(is_it).collect();
    if all.is_empty() {
        return Err(
            failure.or_hint("No filesystem with this label or uuid is mounted by buttress.")
        );
    }
    Ok(all)
}

/// Our mounts.
fn entries() -> Result<Vec<mounts::MountEntry>, Failure> {
    let all = mounts::all().map_err(|error| {
        Failure::new("cannot read", "/proc/self/mountinfo", error::text(&error))
    })?;
    Ok(all.into_iter().filter(mounts::MountEntry::is_ours).collect())
}

/// The filesystems on our mounts: each once, however often it is mounted.
fn mounted(entries: &[mounts::MountEntry]) -> Vec<Info> {
    let mut seen = HashSet::new();
    let mut list: Vec<Info> = Vec::new();
    for entry in entries {
        if seen.contains(&entry.device) {
            continue;
        }
        // Those that have died, that end just now, or that other users have mounted for themselves cannot be asked: `mount` lists them.
        if holder::is_dead(entry) {
            continue;
        }
        let Ok(info) = Vfs::Live(entry.mountpoint.clone()).info() else { continue };
        // Where it cannot be asked in one place, it perhaps can in another.
        seen.insert(entry.device);
        let is_same = |it: &Info| it.fsid == info.fsid && paths(it) == paths(&info);
        if !list.iter().any(is_same) {
            list.push(info);
        }
    }
    list
}

fn paths(info: &Info) -> Vec<&str> {
    info.devices.iter().map(|it| it.path.as_str()).collect()
}

fn text(info: &Info, args: &Show, out: &mut dyn Write) -> Result<(), Failure> {
    let units = args.units.units();
    let (count, used) = (info.devices.len(), units.show(info.used()));
    write!(out, "Label: ")?;
    match info.label.is_empty() {
        true => write!(out, "none")?,
        false => out.write_all(&[b"'", &*info.label, b"'"].concat())?,
    }
    writeln!(out, "  uuid: {}", info.fsid)?;
    writeln!(out, "\tTotal devices {count} FS bytes used {used}")?;
    for device in &info.devices {
        let (size, used) = (units.show(device.size), units.show(device.used));
        writeln!(out, "\tdevid {:>4} size {size} used {used} path {}", device.id, device.path)?;
    }
    Ok(writeln!(out)?)
}

fn json(info: &Info) -> Value {
    let devices: Vec<_> = info
        .devices
        .iter()
        .map(|it| {
            json!({
                "devid": it.id,
                "uuid": it.uuid.to_string(),
                "size": it.size,
                "used": it.used,
                "path": it.path,
            })
        })
        .collect();
    json!({
        "label": output::text_json(&info.label),
        "uuid": info.fsid.to_string(),
        "total_devices": info.devices.len(),
        "used": info.used(),
        "devices": devices,
    })
}
