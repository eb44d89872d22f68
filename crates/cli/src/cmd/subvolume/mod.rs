//! `subvolume`: subvolumes and snapshots.

pub mod create;
pub mod defaults;
pub mod delete;
pub mod find_new;
pub mod list;
pub mod show;
pub mod snapshot;
pub mod sync;
pub mod usage;

use std::io::Write;

use clap::Subcommand;

use crate::args::Globals;
use crate::error::Failure;

/// The commands of this group.
#[derive(Debug, Subcommand)]
pub enum Subvolume {
    /// Make an empty subvolume
    Create(create::Create),
    /// Delete subvolumes with all that is in them
    Delete(delete::Delete),
    /// List subvolumes and snapshots
    List(list::List),
    /// Print all there is to know about a subvolume
    Show(show::Show),
    /// Make a snapshot
    Snapshot(snapshot::Snapshot),
    /// Print the extents of a subvolume that are new since a transaction
    FindNew(find_new::FindNew),
    /// Wait until deleted subvolumes are gone
    Sync(sync::Sync),
    /// Print what each subvolume refers to, what only it has, and what deleting some would free
    Usage(usage::UsageArgs),
    /// Print the subvolume that a mount shows without subvol=
    GetDefault(defaults::GetDefault),
    /// Choose the subvolume that a mount shows without subvol=
    SetDefault(defaults::SetDefault),
}

/// Does what was asked.
pub fn run(command: &Subvolume, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    match command {
        Subvolume::Create(args) => create::run(args, globals, out),
        Subvolume::Delete(args) => delete::run(args, globals, out),
        Subvolume::List(args) => list::run(args, globals, out),
        Subvolume::Show(args) => show::run(args, globals, out),
        Subvolume::Snapshot(args) => snapshot::run(args, globals, out),
        Subvolume::FindNew(args) => find_new::run(args, globals, out),
        Subvolume::Sync(args) => sync::run(args, globals, out),
        Subvolume::Usage(args) => usage::run(args, globals, out),
        Subvolume::GetDefault(args) => defaults::get(args, globals, out),
        Subvolume::SetDefault(args) => defaults::set(args, globals, out),
    }
}
