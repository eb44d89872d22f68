//! `balance start` and `balance resume`, with the text of btrfs-progs.

use std::ffi::OsString;
use std::io::Write;
use std::time::Duration;

use buttress::{Balance, BalanceFilter, BalanceStop, Balanced, Balancing};
use buttress_device::Access;
use buttress_ondisk::item::chunk_type;
use clap::Args;
use rustix::io::Errno;
use serde_json::json;

use super::{NONE_RUNS, filter};
use crate::args::Globals;
use crate::cmd::copy::Progress;
use crate::cmd::files::with_vfs;
use crate::error::Failure;
use crate::interrupted;
use crate::output::{self, Format};
use crate::vfs::Vfs;
use crate::vfs::relocation::Wanted;
use crate::vnode::FileError;

/// Arguments of `balance start`.
#[derive(Debug, Args)]
pub struct Start {
    /// A path on a live mount, or DEVICE: an unmounted image or disk
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// Groups of data, those that fit the filters
    #[arg(short, long, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    data: Vec<String>,
    /// Groups of metadata; without -s those of the chunk tree, too
    #[arg(short, long, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    metadata: Vec<String>,
    /// Groups of the chunk tree (needs -f)
    #[arg(short, long, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    system: Vec<String>,
    /// Also groups of the chunk tree alone, and profiles with fewer copies
    #[arg(short, long)]
    force: bool,
    /// Do not wait before all there is, is written anew
    #[arg(long)]
    full_balance: bool,
    /// Do not wait until it is done: `balance status` tells how far it is (live mounts only)
    #[arg(long, visible_alias = "bg")]
    background: bool,
    /// Wait until others have done with the image, which is always done
    #[arg(long = "enqueue", hide = true)]
    _enqueue: bool,
}

impl Start {
    /// Whether nothing says what is to be balanced, which means all there is.
    fn is_full(&self) -> bool {
        [&self.data, &self.metadata, &self.system].iter().all(|given| given.is_empty())
    }
}

const CANNOT: &str = "cannot balance";
/// How long whoever has said nothing of filters may think again, as with btrfs-progs.
const SECONDS: u64 = 10;

/// Arguments of `balance resume`.
#[derive(Debug, Args)]
pub struct Resume {
    /// A path on a live mount, or DEVICE: an unmounted image or disk
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// Do not wait until it is done: `balance status` tells how far it is (live mounts only)
    #[arg(long, visible_alias = "bg")]
    background: bool,
}

/// Balances.
pub fn run(args: &Start, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let balance = wished(args)?;
    let done = with_vfs(&args.target, Access::ReadWrite, globals, |vfs| {
        if !args.force && has_fewer_copies(vfs, &balance)? {
            let failure = Failure::new(CANNOT, vfs.name(), "metadata would have fewer copies");
            return Err(
                failure.hint("-f does it all the same: one bad sector may then cost files.")
            );
        }
        if args.is_full() && !args.full_balance {
            warn_of_all(globals);
        }
        balanced(vfs, Wanted::Start(&balance), args.background, globals)
    })?;
    say(&done, globals, out)
}

/// Goes on with one that was paused or interrupted.
pub fn resume(args: &Resume, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let done = with_vfs(&args.target, Access::ReadWrite, globals, |vfs| {
        balanced(vfs, Wanted::Resume, args.background, globals)
    })?;
    say(&done, globals, out)
}

/// What became of a balance.
enum Outcome {
    /// It is done.
    Done(Balanced),
    /// It goes on by itself.
    Background,
    /// Another command has stopped it, which is in order.
    Stopped(BalanceStop),
}

/// Balances. The first signal cancels it in order.
fn balanced(
    vfs: &Vfs,
    wanted: Wanted<'_>,
    in_background: bool,
    globals: &Globals,
) -> Result<Outcome, Failure> {
    if in_background {
        return match vfs {
            Vfs::Live(_) => {
                vfs.begin_balance(wanted).map_err(|why| refused(vfs, why))?;
                Ok(Outcome::Background)
            }
            Vfs::Image(_) => Err(Failure::usage(
                CANNOT,
                "an image is balanced by this command itself, and not in the background",
            )),
        };
    }
    interrupted::hold();
    let progress = Progress::of_parts(globals);
    let mut stop = None;
    let done = vfs.run_balance(wanted, &mut |at| {
        show(&progress, at);
        stop = interrupted::signal().map(|_| BalanceStop::Cancel);
        stop
    });
    progress.finish();
    interrupted::let_go();
    match done {
        Ok(done) => Ok(Outcome::Done(done)),
        Err(why) if why.is(Errno::INTR) => ended(vfs, stop),
        Err(why) => Err(refused(vfs, why)),
    }
}

/// What is to be balanced, as btrfs-progs understands it: the chunk tree goes with metadata.
fn wished(args: &Start) -> Result<Balance, Failure> {
    if !args.system.is_empty() && !args.force {
        let failure = Failure::usage(CANNOT, "-s alone is refused");
        return Err(failure
            .hint("-f does it; -m has what it says of metadata hold for the chunk tree, too."));
    }
    // Of an option that is given several times all filters hold, and of one filter the last.
    let of = |given: &[String]| match given {
        [] if args.is_full() => Ok(Some(BalanceFilter::default())),
        [] => Ok(None),
        given => {
            let filter = filter::parse(&given.join(","));
            filter.map(Some).map_err(|why| Failure::usage(CANNOT, why))
        }
    };
    let (data, metadata) = (of(&args.data)?, of(&args.metadata)?);
    let system = of(&args.system)?.or_else(|| metadata.clone());
    Ok(Balance { data, metadata, system, force: args.force })
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
fn has_fewer_copies(vfs: &Vfs, balance: &Balance) -> Result<bool, Failure> {
    let single = |filter: &Option<BalanceFilter>| {
        filter.as_ref().is_some_and(|filter| filter.convert == Some(BalanceFilter::SINGLE))
    };
    let is_mixed = |flags: u64| flags & chunk_type::DATA != 0;
    let is_meant = |flags: u64| {
        let metadata = if is_mixed(flags) { &balance.data } else { &balance.metadata };
        flags & chunk_type::METADATA != 0 && single(metadata)
            || flags & chunk_type::SYSTEM != 0 && single(&balance.system)
    };
    let is_twice = |flags: u64| flags & chunk_type::DUP != 0;
    let spaces = vfs.info()?.spaces;
    Ok(spaces.iter().any(|space| is_meant(space.flags) && is_twice(space.flags)))
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

fn refused(vfs: &Vfs, why: FileError) -> Failure {
    let errno = Errno::from_raw_os_error(why.errno);
    // The disk that holds the image says so in other words than the filesystem.
    let is_ours = why.to_string() == FileError::from(Errno::NOSPC).to_string();
    match errno {
        Errno::NOSPC if is_ours || matches!(vfs, Vfs::Live(_)) => {
            Failure::new(CANNOT, vfs.name(), why).hint(
                "There is no room to write a block group anew: delete something, or make the filesystem larger (`buttress filesystem resize`), and try groups that are nearly empty first (-dusage=5). Or the disk that holds the image is full. What was moved stays so.",
            )
        }
        Errno::INVAL => Failure::new(CANNOT, vfs.name(), why).hint(
            "One device can have the profiles single and dup; where data and metadata share groups, -d and -m have to say the same.",
        ),
        Errno::INPROGRESS => Failure::new(CANNOT, vfs.name(), "one has begun and not ended, or the device is being resized")
            .hint("`buttress balance status` tells; one that is paused ends with `balance resume` or `balance cancel`."),
        Errno::NOTCONN if is_gone(vfs) => Failure::new(CANNOT, vfs.name(), "the mount has ended")
            .hint("The balance goes on with the next mount, unless that says -o skip_balance."),
        Errno::NOTCONN => {
            Failure::new(CANNOT, vfs.name(), "none was paused or interrupted").or_of_progs(NONE_RUNS)
        }
        _ => Failure::new(CANNOT, vfs.name(), why),
    }
}

/// Whether nobody answers at a mount any more.
fn is_gone(vfs: &Vfs) -> bool {
    matches!(vfs, Vfs::Live(path) if !buttress_fuse::client::is_live(path))
}

/// It did not come to its end; of a live mount somebody else may have seen to that.
fn ended(vfs: &Vfs, stop: Option<BalanceStop>) -> Result<Outcome, Failure> {
    match (stop, vfs.balance().map(|facts| facts.unfinished.is_some())) {
        (None, Ok(true)) => Ok(Outcome::Stopped(BalanceStop::Pause)),
        (None, Ok(false)) => Ok(Outcome::Stopped(BalanceStop::Cancel)),
        _ => Err(Failure::new("the balance has ended early of", vfs.name(), "it was cancelled")
            .hint("What was moved stays so.")),
    }
}

fn say(done: &Outcome, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let (member, words) = match done {
        Outcome::Done(done) => return say_done(done, globals, out),
        Outcome::Background => ("background", None),
        Outcome::Stopped(BalanceStop::Pause) => ("paused", Some("balance paused by user")),
        Outcome::Stopped(BalanceStop::Cancel) => ("cancelled", Some("balance canceled by user")),
    };
    match (globals.format, words) {
        (Format::Json, _) => output::write_json(out, "balance", json!({ member: true }))?,
        // On standard error, as with btrfs-progs.
        (Format::Text, Some(words)) if !globals.quiet => complain!("{words}"),
        (Format::Text, _) => {}
    }
    Ok(())
}

fn say_done(done: &Balanced, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
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
                "no-room": done.no_room,
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
    for (bytenr, why) in &failed {
        complain!("buttress: what is at {bytenr} could not be moved: {why}");
    }
    if done.no_room > 0 {
        let groups = if done.no_room == 1 { "block group" } else { "block groups" };
        let why = format!(
            "{}: {} {groups} could not be moved",
            FileError::from(Errno::NOSPC),
            done.no_room
        );
        return Err(Failure::new(CANNOT, "all of it", why).hint(
            "The others were. Delete something, or make the filesystem larger (`buttress filesystem resize`), and start the balance again; groups that are nearly empty need least (-dusage=5).",
        ));
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::new(CANNOT, "all of it", "some extents cannot be moved").hint(
        "They are where they were. `buttress check --check-data-csum` tells which files have them.",
    ))
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches};

    use super::*;

    fn of(line: &str) -> Balance {
        let command = Start::augment_args(Command::new("start").args_override_self(true));
        let found = command.try_get_matches_from(["start", "x"].into_iter().chain(line.split(' ')));
        wished(&Start::from_arg_matches(&found.unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn filters_of_options_that_are_given_twice() {
        let some = |words: &str| Some(filter::parse(words).unwrap());
        let only = |data| Balance { data, metadata: None, system: None, force: false };
        assert_eq!(of("-d=usage=10 -d=usage=20"), only(some("usage=20")));
        assert_eq!(of("-d=usage=10 --data=limit=1"), only(some("usage=10,limit=1")));
        assert_eq!(of("-d=soft -d=convert=dup -d"), only(some("convert=dup,soft")));
        assert_eq!(of("-d=,usage=50"), only(some("usage=50")));
        let all = of("--data=usage=1 --metadata --system=usage=2 --force");
        assert_eq!((all.data, all.metadata), (some("usage=1"), some("")));
        assert_eq!((all.system, all.force), (some("usage=2"), true));
        let full = of("--full-balance");
        assert_eq!((&full.data, &full.metadata, &full.system), (&some(""), &some(""), &some("")));
    }
}
