//! `filesystem trim`.

use std::ffi::OsString;
use std::io::Write;

use buttress_device::Access;
use clap::Args;
use indicatif::BinaryBytes;
use rustix::io::Errno;
use serde_json::json;

use crate::args::Globals;
use crate::cmd::copy::Progress;
use crate::cmd::files::session;
use crate::error::Failure;
use crate::interrupted;
use crate::output::{self, Format};
use crate::vfs::Vfs;
use crate::vnode::{FileError, Target};

/// Arguments of `filesystem trim`.
#[derive(Debug, Args)]
pub struct Trim {
    /// Leave out free space in pieces of fewer bytes (suffixes k, m, g, t)
    #[arg(short, long, value_name = "SIZE", default_value = "0")]
    minimum: String,
    /// A path on a live mount, or DEVICE: an unmounted image or disk
    #[arg(value_name = "TARGET")]
    target: OsString,
}

const CANNOT: &str = "cannot trim";

/// Gives back what is free.
pub fn run(args: &Trim, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let minimum = buttress_mkfs::parse_size(&args.minimum)
        .map_err(|_| Failure::usage(CANNOT, format!("{} is not a size", args.minimum)))?;
    let target = Target::any(&args.target, globals);
    let bytes = session(globals, Access::ReadWrite, |session| {
        let vfs = Vfs::of(&session.find(&target, true)?)?;
        let all = vfs.info()?.devices.iter().map(|device| device.size).sum();
        interrupted::hold();
        let progress = Progress::of_parts(globals);
        let done = vfs.trim(minimum, &mut |bytes| {
            progress.at("trimming", bytes, all);
            interrupted::signal().is_none()
        });
        progress.finish();
        interrupted::let_go();
        done.map_err(|why| refused(&vfs, why))
    })?;
    match globals.format {
        Format::Json => output::write_json(out, "trim", json!({ "trimmed": bytes }))?,
        Format::Text if globals.quiet => {}
        Format::Text => writeln!(out, "Trimmed {} ({bytes} bytes)", BinaryBytes(bytes))?,
    }
    Ok(())
}

fn refused(vfs: &Vfs, why: FileError) -> Failure {
    let errno = Errno::from_raw_os_error(why.errno);
    let failure = Failure::new(CANNOT, vfs.name(), why);
    match errno {
        Errno::OPNOTSUPP => failure.hint("What holds it cannot make holes in files, nor discard; `cp --sparse=always` to where that can be done makes a smaller copy."),
        Errno::INTR => Failure::new(CANNOT, vfs.name(), "it was interrupted")
            .hint("What was given back stays so; the next time goes over all of it."),
        _ => failure,
    }
}
