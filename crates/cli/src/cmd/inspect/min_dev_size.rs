//! `inspect-internal min-dev-size`, with the text of btrfs-progs.

use std::ffi::OsString;
use std::io::Write;

use buttress_device::Access;
use clap::Args;
use serde_json::json;

use crate::args::Globals;
use crate::cmd::files::session;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::units::Units;
use crate::vfs::Vfs;
use crate::vnode::Target;

/// Arguments of `inspect-internal min-dev-size`.
#[derive(Debug, Args)]
pub struct MinDevSize {
    /// A path on a live mount, or DEVICE: an unmounted image or disk
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// The number of the device
    #[arg(long, value_name = "ID", default_value_t = 1)]
    id: u64,
}

/// Prints the size to which `filesystem resize` can make the device smaller.
pub fn run(args: &MinDevSize, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    const CANNOT: &str = "cannot tell how small";
    let target = Target::any(&args.target, globals);
    let size = session(globals, Access::ReadOnly, |session| {
        let vfs = Vfs::of(&session.find(&target, true)?)?;
        if vfs.info()?.devices.iter().all(|device| device.id != args.id) {
            let why = format!("there is no device {}", args.id);
            return Err(Failure::new(CANNOT, vfs.name(), why));
        }
        let sizes = vfs.device_size();
        Ok(sizes.map_err(|why| Failure::new(CANNOT, vfs.name(), why))?.least)
    })?;
    match globals.format {
        Format::Json => output::write_json(out, "min-dev-size", json!({ "size": size }))?,
        Format::Text => {
            let fitting = Units::Fitting { base: 1024 };
            writeln!(out, "{size} bytes ({})", fitting.show(size))?;
        }
    }
    Ok(())
}
