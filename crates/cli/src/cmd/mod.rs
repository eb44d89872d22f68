//! The subcommands, one file each.

mod bad_data;
pub mod balance;
pub mod cat;
pub mod check;
pub mod chmod;
pub mod chown;
pub mod completions;
mod copy;
pub mod cp;
pub mod device;
mod files;
pub mod filesystem;
pub mod inspect;
pub mod ln;
pub mod ls;
pub mod man;
pub mod mkdir;
pub mod mkfs;
pub mod mount;
pub mod mv;
pub mod property;
pub mod qgroup;
pub mod quota;
pub mod rescue;
pub mod rm;
pub mod stat;
pub mod subvolume;

use std::io::Write;

use serde_json::json;

use crate::args::{self, Command, Globals};
use crate::error::Failure;
use crate::output::{self, Format};

/// Does what was asked, results to `out`.
pub fn run(command: &Command, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    match command {
        Command::Mkfs(args) => mkfs::run(args, globals, out),
        Command::Mount(args) => mount::run(args, globals, out),
        Command::Umount(args) => mount::umount(args, globals, out),
        Command::Ls(args) => ls::run(args, globals, out),
        Command::Cat(args) => cat::run(args, globals, out),
        Command::Cp(args) => cp::run(args, globals, out),
        Command::Mkdir(args) => mkdir::run(args, globals, out),
        Command::Rm(args) => rm::run(args, globals, out),
        Command::Mv(args) => mv::run(args, globals, out),
        Command::Ln(args) => ln::run(args, globals, out),
        Command::Chmod(args) => chmod::run(args, globals, out),
        Command::Chown(args) => chown::run(args, globals, out),
        Command::Stat(args) => stat::run(args, globals, out),
        Command::Subvolume(args) => subvolume::run(args, globals, out),
        Command::Quota(args) => quota::run(args, globals, out),
        Command::Qgroup(args) => qgroup::run(args, globals, out),
        Command::Device(args) => device::run(args, globals, out),
        Command::Balance(args) => balance::run(args, globals, out),
        Command::Check(args) => check::run(args, globals, out),
        Command::Property(args) => property::run(args, globals, out),
        Command::Filesystem(args) => filesystem::run(args, globals, out),
        Command::Rescue(args) => rescue::run(args, globals, out),
        Command::InspectInternal(args) => inspect::run(args, globals, out),
        Command::Version => version(globals, out),
        Command::Completions(args) => completions::run(args, out),
        Command::Man(args) => man::run(args, out),
    }
}

fn version(globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    match globals.format {
        Format::Text => writeln!(out, "{}", args::version())?,
        Format::Json => {
            let version = json!({ "name": "buttress", "version": env!("CARGO_PKG_VERSION") });
            output::write_json(out, "version", version)?;
        }
    }
    Ok(())
}
