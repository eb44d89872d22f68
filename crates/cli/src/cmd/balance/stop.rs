//! `balance pause` and `balance cancel`.

use buttress::BalanceStop;
use buttress_device::Access;
use rustix::io::Errno;

use super::{NONE_RUNS, Place};
use crate::args::Globals;
use crate::cmd::files::with_vfs;
use crate::error::Failure;
use crate::vfs::Vfs;

/// Pauses.
pub fn pause(args: &Place, globals: &Globals) -> Result<(), Failure> {
    const CANNOT: &str = "cannot pause the balance of";
    // On an image there is nothing that could be written.
    with_vfs(&args.target, Access::ReadOnly, globals, |vfs| {
        vfs.stop_balance(BalanceStop::Pause).map_err(|why| {
            if !why.is(Errno::NOTCONN) {
                return Failure::new(CANNOT, vfs.name(), why);
            }
            let failure = Failure::new(CANNOT, vfs.name(), "none runs").or_of_progs(NONE_RUNS);
            match vfs {
                Vfs::Image(_) => failure.hint("Ctrl-C ends a balance of an image."),
                Vfs::Live(_) => failure,
            }
        })
    })
}

/// Cancels.
pub fn cancel(args: &Place, globals: &Globals) -> Result<(), Failure> {
    const CANNOT: &str = "cannot cancel the balance of";
    with_vfs(&args.target, Access::ReadWrite, globals, |vfs| {
        vfs.stop_balance(BalanceStop::Cancel).map_err(|why| {
            if why.is(Errno::NOTCONN) {
                Failure::new(CANNOT, vfs.name(), "there is none").or_of_progs(NONE_RUNS)
            } else if why.is(Errno::INPROGRESS) {
                let failure = Failure::new(CANNOT, vfs.name(), "the device is being resized");
                failure.hint("Try again when that is done.")
            } else {
                Failure::new(CANNOT, vfs.name(), why)
            }
        })
    })
}
