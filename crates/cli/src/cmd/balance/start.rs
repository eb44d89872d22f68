//! `balance start`, with the text of btrfs-progs.

use std::ffi::OsString;
use std::io::Write;
use std::time::Duration;

use buttress::{Balance, BalanceFilter, Balanced, Balancing, profile_of};
use buttress_device::Access;
use buttress_ondisk::item::chunk_type;
use clap::Args;
use rustix::io::Errno;
use serde_json::json;

use super::filter;
use crate::args::Globals;
use crate::cmd::copy::Progress;
use crate::cmd::files::session;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::vfs::Vfs;
use crate::vnode::Target;

/// Arguments of `balance start`.
#[derive(Debug, Args)]
pub struct Start {
    /// DEVICE: an unmounted image or disk
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// Groups of data, those that fit the filters
    #[arg(short, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = filter::parse)]
    data: Option<BalanceFilter>,
    /// Groups of metadata; without -s those of the chunk tree, too
    #[arg(short, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = filter::parse)]
    metadata: Option<BalanceFilter>,
    /// Groups of the chunk tree (needs -f)
    #[arg(short, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = filter::parse)]
    system: Option<BalanceFilter>,
    /// Also groups of the chunk tree alone, and profiles with fewer copies
    #[arg(short, long)]
    force: bool,
    /// Do not wait before all there is, is written anew
    #[arg(long)]
    full_balance: bool,
    /// Wait until others have done with the image, which is always done
    #[arg(long = "enqueue", hide = true)]
    _enqueue: bool,
}

const CANNOT: &str = "cannot balance";
/// How long whoever has said nothing of filters may think again, as with btrfs-progs.
const SECONDS: u64 = 10;

/// Balances.
pub fn run(args: &Start, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let balance = wished(args)?;
    let is_full = [&args.data, &args.metadata, &args.system].iter().all(|one| one.is_none());
    let target = Target::any(&args.target, globals);
    let done = session(globals, Access::ReadWrite, |session| {
        let vfs = Vfs::of(&session.find(&target, true)?)?;
        let Vfs::Image(image) = &vfs else {
            let failure = Failure::new(CANNOT, vfs.name(), "it is mounted");
            return Err(
                failure.hint("Unmount it first: `buttress umount` waits for the last commit.")
            );
        };
        if !args.force && has_fewer_copies(image.fs(), &balance) {
            let failure = Failure::new(CANNOT, vfs.name(), "metadata would have fewer copies");
            return Err(
                failure.hint("-f does it all the same: one bad sector may then cost files.")
            );
        }
        if is_full && !args.full_balance {
            warn_of_all(globals);
        }
        let progress = Progress::of_parts(globals);
        let done = image.fs().balance(&balance, |at| {
            show(&progress, at);
            true
        });
        progress.finish();
        done.map_err(|error| refused(&vfs, &error))
    })?;
    say(&done, globals, out)
}

/// What is to be balanced, as btrfs-progs understands it: the chunk tree goes with metadata.
fn wished(args: &Start) -> Result<Balance, Failure> {
    if args.system.is_some() && !args.force {
        let failure = Failure::usage(CANNOT, "-s alone is refused");
        return Err(failure
            .hint("-f does it; -m has what it says of metadata hold for the chunk tree, too."));
    }
    let is_full = [&args.data, &args.metadata, &args.system].iter().all(|one| one.is_none());
    let of = |given: &Option<BalanceFilter>| match is_full {
        true => Some(BalanceFilter::default()),
        false => given.clone(),
    };
    let (data, metadata) = (of(&args.data), of(&args.metadata));
    let system = of(&args.system).or_else(|| metadata.clone());
    Ok(Balance { data, metadata, system })
}

fn warn_of_all(globals: &Globals) {
    if globals.quiet {
        return;
    }
    complain!(
        "buttress: all there is will be written anew, as no filters say what; that can take long. `--full-balance` says that it is meant. It begins \
         in {SECONDS} seconds; Ctrl-C stops it."
    );
    std::thread::sleep(Duration::from_secs(SECONDS));
}

/// Whether metadata, or the chunk tree, would be there once where it is there twice.
fn has_fewer_copies(fs: &buttress::Filesystem, balance: &Balance) -> bool {
    let single = |filter: &Option<BalanceFilter>| {
        filter.as_ref().is_some_and(|filter| filter.convert == Some(BalanceFilter::SINGLE))
    };
    let is_meant = |flags: u64| {
        flags & chunk_type::METADATA != 0 && single(&balance.metadata)
            || flags & chunk_type::SYSTEM != 0 && single(&balance.system)
    };
    let is_twice = |flags: u64| profile_of(flags) == chunk_type::DUP;
    fs.block_groups().iter().any(|group| is_meant(group.flags) && is_twice(group.flags))
}

fn show(progress: &Progress, at: Balancing) {
    // A group counts by how much of it is elsewhere.
    const PARTS: u64 = 1000;
    let had = at.group.had.max(1);
    let done = u64::try_from(
        u128::from(had.saturating_sub(at.group.has)) * u128::from(PARTS) / u128::from(had),
    );
    let done = at.completed * PARTS + done.unwrap_or(0);
    progress.at("balancing", done, at.expected.max(1) * PARTS);
}

fn refused(vfs: &Vfs, error: &buttress::Error) -> Failure {
    let errno = error.errno();
    let failure = Failure::new(CANNOT, vfs.name(), crate::vnode::FileError::from(errno));
    match errno {
        // The disk that holds the image, and not the filesystem.
        Errno::NOSPC if !matches!(error, buttress::Error::NoSpace) => {
            Failure::new(CANNOT, vfs.name(), error)
        }
        Errno::NOSPC => failure.hint(
            "There is no room to write a block group anew. Groups that are nearly empty need little: try -dusage=5, then more. What was moved stays so.",
        ),
        Errno::INVAL => failure.hint("One device can have the profiles single and dup."),
        _ => failure,
    }
}

fn say(done: &Balanced, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let failed: Vec<_> = done.emptied.failed.iter().collect();
    match globals.format {
        Format::Json => {
            let failed: Vec<_> =
                failed.iter().map(|(at, why)| json!({ "bytenr": at, "why": why })).collect();
            let value = json!({
                "considered": done.considered,
                "relocated": done.completed,
                "extents": done.emptied.moved,
                "data-bytes": done.emptied.data,
                "tree-blocks": done.emptied.blocks,
                "failed": failed,
            });
            output::write_json(out, "balance", value)?;
        }
        Format::Text if globals.quiet => {}
        Format::Text => writeln!(
            out,
            "Done, had to relocate {} out of {} chunks",
            done.completed, done.considered
        )?,
    }
    if failed.is_empty() {
        return Ok(());
    }
    for (bytenr, why) in failed {
        complain!("buttress: what is at {bytenr} could not be moved: {why}");
    }
    Err(Failure::new(CANNOT, "all of it", "some extents cannot be moved").hint(
        "They are where they were. `buttress check --check-data-csum` tells which files have them.",
    ))
}
