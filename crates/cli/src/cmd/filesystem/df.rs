//! `filesystem df`, with the text of btrfs-progs.

use std::ffi::OsString;
use std::io::Write;

use clap::Args;
use serde_json::{Value, json};

use crate::args::Globals;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::units::UnitArgs;
use crate::vfs::Space;

/// Arguments of `filesystem df`.
#[derive(Debug, Args)]
pub struct Df {
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
    #[command(flatten)]
    units: UnitArgs,
}

/// Prints space by kind.
pub fn run(args: &Df, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let info = super::info(&args.target, globals)?;
    if globals.format == Format::Json {
        let list: Vec<Value> = info.spaces.iter().map(json).collect();
        return Ok(output::write_json(out, "filesystem-df", list.into())?);
    }
    let units = args.units.units();
    for it in &info.spaces {
        let (total, used) = (units.show(it.total), units.show(it.used));
        // The reserve is a part of metadata, whose profile is said there.
        let profile = if it.is_global_reserve() { "single" } else { it.profile() };
        writeln!(out, "{}, {profile}: total={total}, used={used}", it.kind())?;
    }
    Ok(())
}

/// Space of one kind as JSON.
pub fn json(it: &Space) -> Value {
    json!({
        "bg-type": it.kind(),
        "bg-profile": if it.is_global_reserve() { "single" } else { it.profile() },
        "total": it.total,
        "used": it.used,
    })
}
