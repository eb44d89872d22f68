//! `quota status`, with the text of newer btrfs-progs but for what only a running kernel has: the levels above which a deletion makes its
//! quotas wrong. Here deletions are counted.

use std::ffi::OsString;
use std::io::Write;

use buttress_device::Access;
use clap::Args;
use serde_json::json;

use super::refused;
use crate::args::Globals;
use crate::cmd::files::with_vfs;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::vfs::quotas::{self, Quotas};

/// Arguments of `quota status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// Print nothing; the exit code is 0 when they are on, and 1 when not
    #[arg(long)]
    is_enabled: bool,
}

/// Prints how it is with quotas.
pub fn run(args: &StatusArgs, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let found = with_vfs(&args.target, Access::ReadOnly, globals, |vfs| {
        vfs.quotas().map_err(|why| refused("cannot read the quotas of", vfs, why))
    })?;
    let found = found.filter(Quotas::are_on);
    if args.is_enabled {
        return if found.is_some() { Ok(()) } else { Err(Failure::said()) };
    }
    match globals.format {
        Format::Json => json(found.as_ref(), out),
        Format::Text => text(args, found.as_ref(), out),
    }
}

fn yes(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "no" }
}

/// How many groups are of subvolumes.
fn of_subvolumes(quotas: &Quotas) -> usize {
    quotas.groups.keys().filter(|id| quotas::level(**id) == 0).count()
}

fn text(args: &StatusArgs, found: Option<&Quotas>, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "Quotas on {}:", args.target.display())?;
    let mut line = |name: &str, value: &dyn std::fmt::Display| {
        writeln!(out, "  {name:<24} {value}").map_err(Failure::from)
    };
    line("Enabled:", &yes(found.is_some()))?;
    let Some(quotas) = found else { return Ok(()) };
    let mode = match quotas.are_simple() {
        true => "squota (simple accounting)",
        false => "qgroup (full accounting)",
    };
    line("Mode:", &mode)?;
    line("Inconsistent:", &yes(quotas.are_wrong()))?;
    line("Override limits:", &"no")?;
    line("Total count:", &quotas.groups.len())?;
    line("Level 0:", &of_subvolumes(quotas))
}

fn json(found: Option<&Quotas>, out: &mut dyn Write) -> Result<(), Failure> {
    let value = match found {
        None => json!({ "enabled": false }),
        Some(quotas) => json!({
            "enabled": true,
            "mode": if quotas.are_simple() { "squota" } else { "qgroup" },
            "inconsistent": quotas.are_wrong(),
            "rescan": quotas.are_scanned(),
            "total_count": quotas.groups.len(),
            "level0_count": of_subvolumes(quotas),
        }),
    };
    Ok(output::write_json(out, "quota-status", value)?)
}
