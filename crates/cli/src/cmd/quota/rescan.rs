//! `quota rescan`, with the text of btrfs-progs. Nobody would count an image later: there it is done when the command ends.

use std::ffi::OsString;
use std::io::Write;

use buttress_device::Access;
use clap::Args;
use rustix::io::Errno;
use serde_json::json;

use super::{counted, refused};
use crate::args::Globals;
use crate::cmd::files::with_vfs;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::vfs::Vfs;

/// Arguments of `quota rescan`.
#[derive(Debug, Args)]
pub struct Rescan {
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// Print whether a rescan is running, and begin none
    #[arg(short, long, conflicts_with_all = ["wait", "wait_norescan"])]
    status: bool,
    /// Wait until it is done; one that is running already will do
    #[arg(short, long)]
    wait: bool,
    /// Wait until one that is running is done, and begin none
    #[arg(short = 'W', long, conflicts_with = "wait")]
    wait_norescan: bool,
}

const RESCAN: &str = "cannot rescan quotas of";
const ASK: &str = "cannot ask for the quotas of";

/// Counts anew, or tells of it.
pub fn run(args: &Rescan, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    if args.status {
        return status(args, globals, out);
    }
    if args.wait_norescan {
        return with_vfs(&args.target, Access::ReadOnly, globals, |vfs| {
            let live = vfs.live_quotas().map_err(|why| refused(ASK, vfs, why))?;
            let runs = live.is_some_and(|quotas| quotas.count.running);
            if runs { wait(vfs, globals) } else { Ok(()) }
        });
    }
    with_vfs(&args.target, Access::ReadWrite, globals, |vfs| {
        match counted(globals, |told| vfs.rescan_quotas(told)) {
            Ok(()) => {
                if globals.talks() {
                    writeln!(out, "quota rescan started")?;
                    out.flush()?;
                }
            }
            Err(why) if why.is(Errno::INPROGRESS) && args.wait => {}
            Err(why) if why.is(Errno::INPROGRESS) => {
                let failure = refused(RESCAN, vfs, why);
                return Err(failure.hint("One is running already; -W waits for it."));
            }
            Err(why) if why.is(Errno::INVAL) => {
                let why = "simple quotas cannot be counted anew";
                let hint = "What was there before they were switched on counts for nobody.";
                return Err(Failure::new(RESCAN, vfs.name(), why).hint(hint));
            }
            Err(why) => return Err(refused(RESCAN, vfs, why)),
        }
        if args.wait { wait(vfs, globals) } else { Ok(()) }
    })
}

/// Waits for what is running, if there is something.
fn wait(vfs: &Vfs, globals: &Globals) -> Result<(), Failure> {
    let done = counted(globals, |told| vfs.wait_for_quotas(told));
    done.map_err(|why| refused("cannot count quotas of", vfs, why))
}

fn status(args: &Rescan, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let (running, key) = with_vfs(&args.target, Access::ReadOnly, globals, |vfs| {
        let refuse = |why| refused(ASK, vfs, why);
        let quotas = vfs.quotas().map_err(refuse)?.unwrap_or_default();
        // What is wrong is counted sooner or later where somebody writes.
        let live = vfs.live_quotas().map_err(refuse)?;
        let counts = live.is_some_and(|quotas| quotas.wrong || quotas.count.running);
        Ok((counts || quotas.are_scanned(), quotas.rescan))
    })?;
    match globals.format {
        Format::Json => output::write_json(out, "quota-rescan", json!({ "running": running }))?,
        Format::Text if running => {
            writeln!(out, "rescan operation running (current key {key})")?;
        }
        Format::Text => writeln!(out, "no rescan operation in progress")?,
    }
    Ok(())
}
