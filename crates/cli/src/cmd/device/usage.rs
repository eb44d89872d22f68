//! `device usage`, with the text of btrfs-progs.

use std::ffi::OsString;
use std::io::Write;

use clap::Args;
use serde_json::{Value, json};

use crate::args::Globals;
use crate::cmd::filesystem::of_each;
use crate::cmd::filesystem::usage::in_order;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::units::{UnitArgs, Units};
use crate::vfs::{Device, Info, Space};

/// Arguments of `device usage`.
#[derive(Debug, Args)]
pub struct UsageArgs {
    /// DEVICE or paths on live mounts
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<OsString>,
    #[command(flatten)]
    units: UnitArgs,
}

/// How wide names and sizes are together.
const WIDTH: usize = 32;
/// How wide sizes are at least.
const SIZE: usize = 10;

/// Prints what of each device is in which kinds of block groups.
pub fn run(args: &UsageArgs, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let mut devices: Vec<Value> = Vec::new();
    let failures = of_each(&args.targets, globals, out, |info, out| {
        if globals.format == Format::Json {
            devices.extend(info.devices.iter().map(|device| json(device, &info)));
            return Ok(());
        }
        let told = info.devices.iter().map(|device| text(device, &info, args.units.units(), out));
        told.collect()
    })?;
    output::write_json_of_operands(out, "device-usage", devices)?;
    failures.end()
}

/// The block groups on a device, and their bytes there: all are on the first one, as there is no other.
fn on_device<'a>(device: &Device, info: &'a Info) -> impl Iterator<Item = (&'a Space, u64)> {
    let is_first = info.devices.first().is_some_and(|first| first.id == device.id);
    in_order(info).filter(move |_| is_first).map(|it| (it, it.total.saturating_mul(it.copies())))
}

fn text(device: &Device, info: &Info, units: Units, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "{}, ID: {}", device.path, device.id)?;
    let mut line = |name: &str, bytes: u64| {
        let width = WIDTH.saturating_sub(SIZE + name.len());
        writeln!(out, "   {name}{:width$}{:>SIZE$}", "", units.show(bytes))
    };
    line("Device size:", device.size)?;
    line("Device slack:", 0)?;
    for (space, bytes) in on_device(device, info) {
        line(&format!("{},{}:", space.kind(), space.profile()), bytes)?;
    }
    line("Unallocated:", device.size.saturating_sub(device.used))?;
    Ok(writeln!(out)?)
}

fn json(device: &Device, info: &Info) -> Value {
    let group = |(space, bytes): (&Space, u64)| json!({ "bg-type": space.kind(), "bg-profile": space.profile(), "size": bytes });
    json!({
        "devid": device.id,
        "path": device.path,
        "size": device.size,
        "slack": 0,
        "block-groups": on_device(device, info).map(group).collect::<Vec<_>>(),
        "unallocated": device.size.saturating_sub(device.used),
    })
}
