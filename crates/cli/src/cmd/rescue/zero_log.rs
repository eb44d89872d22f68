//! `rescue zero-log`.

use std::io::Write;
use std::path::PathBuf;

use buttress_device::Access;
use clap::Args;
use serde_json::json;

use crate::args::Globals;
use crate::device;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::quote::harmless;

/// Arguments of `rescue zero-log`.
#[derive(Debug, Args)]
pub struct ZeroLog {
    /// Image file or block device, not mounted
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
}

/// Gives up the log of a filesystem, and says where it was.
pub fn run(args: &ZeroLog, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let path = &args.device;
    let opened = device::open(path, Access::ReadWrite, globals)?;
    let rescue = globals.rescue.words();
    let log = buttress_volume::zero_log(vec![opened], rescue)
        .map_err(|error| device::volume_failure(path, &error))?;
    match globals.format {
        Format::Json => {
            let place = path.display().to_string();
            let gone = json!({
                "device": place, "log_root": log.root, "log_root_level": log.level
            });
            output::write_json(out, "zero-log", gone)?;
        }
        Format::Text => {
            let place = path.display().to_string();
            writeln!(
                out,
                "Clearing log on {}, previous log_root {}, level {}",
                harmless(&place),
                log.root,
                log.level
            )?;
        }
    }
    Ok(())
}
