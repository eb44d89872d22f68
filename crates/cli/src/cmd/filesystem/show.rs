//! `filesystem show`, with the text of btrfs-progs.

use std::ffi::OsString;
use std::io::Write;

use clap::Args;
use serde_json::{Value, json};

use crate::args::Globals;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::units::UnitArgs;
use crate::vfs::Info;

/// Arguments of `filesystem show`.
#[derive(Debug, Args)]
#[command(mut_arg("mbytes", |arg| arg.short(None)))]
pub struct Show {
    /// DEVICE or a path on a live mount
    #[arg(value_name = "TARGET")]
    targets: Vec<OsString>,
    /// Accepted: only what is named is shown anyway
    #[arg(short = 'd', long)]
    all_devices: bool,
    /// Accepted: only what is named is shown anyway
    #[arg(short, long)]
    mounted: bool,
    #[command(flatten)]
    units: UnitArgs,
}

/// Prints uuid, label and devices.
pub fn run(args: &Show, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    if args.targets.is_empty() {
        return Err(Failure::usage("cannot show", "no image, disk or mount is named").hint(
            "Disks are not searched for filesystems: name them, as in `buttress filesystem show disk.img`; \
             `buttress mount` lists what is mounted.",
        ));
    }
    let mut list = Vec::new();
    for target in &args.targets {
        let info = super::info(target, globals)?;
        match globals.format {
            Format::Json => list.push(json(&info)),
            Format::Text => text(&info, args, out)?,
        }
    }
    if globals.format == Format::Json {
        output::write_json(out, "filesystem-list", list.into())?;
    }
    Ok(())
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
