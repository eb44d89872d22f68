//! Words become a command: options common to all, subcommands, and the names we are called by.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use buttress_volume::Rescue;
use clap::error::ErrorKind;
use clap::{ArgAction, ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::absent;
use crate::cmd;
use crate::cmd::mount::Helper;
use crate::cmd::subvolume::Subvolume;
use crate::error::{Failure, USAGE, usage_code, usage_is_failure};
use crate::output::Format;

/// Reads and writes btrfs filesystems in image files and on disks, without mounting them and without being root.
#[derive(Debug, Parser)]
#[command(
    name = "buttress",
    version,
    infer_subcommands = true,
    infer_long_args = true,
    // As with getopt(3): what is said twice is no mistake, and the last one counts. It holds for all subcommands.
    args_override_self = true,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = TARGETS
)]
pub struct Cli {
    /// Options that every command takes.
    #[command(flatten)]
    pub globals: Globals,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const TARGETS: &str = "\
A target is DEVICE[:PATH], a path inside an unmounted image or disk, or a path on a live mount:
  buttress ls -l disk.img:/etc
  buttress cp disk.img:/etc/fstab .
  buttress subvolume list mnt/
Subcommands may be abbreviated: `buttress su li`, `buttress fi us`.";

const MKFS: &str = "\
Environment: SOURCE_DATE_EPOCH is the time of all that is made, in seconds since 1970 (set and empty, or no number, it is refused); with
DETERMINISTIC_SEED=1 all uuids come from the one that -U gives. With both, the same tree makes the same image.
Examples:
  buttress mkfs --size 8G disk.img
  buttress mkfs --rootdir tree/ --shrink disk.img
  buttress mkfs --size 8G --rootdir tree/ --subvol ro:usr disk.img";

const MOUNT: &str = "\
Examples:
  buttress mount disk.img mnt/
  buttress mount -o ro,subvol=/snapshots/monday disk.img mnt/
  buttress umount mnt/
In /etc/fstab the type is fuse.buttress, with this program as /sbin/mount.fuse.buttress; as /sbin/umount.fuse.buttress it
makes umount(8) wait for the last commit.
What a file holds is durable when fsync(2) of it has returned; everything is when `buttress umount`, `buttress filesystem sync` or, on a disk
that root has mounted, sync(1) or umount(8) has. Without any of them a change is durable about a second after the last one, or
after some five seconds (-o commit=SECONDS).";

const CHECK: &str = "\
The exit code is 0 when the filesystem is clean (warnings do not count) and 1 when it is not, or cannot be opened.
Examples:
  buttress check disk.img
  buttress check --check-data-csum --format json disk.img";

const CHMOD: &str = "\
Examples:
  buttress chmod 644 disk.img:/etc/fstab
  buttress chmod -R u+rwX,go-w disk.img:/srv";

const CHOWN: &str = "\
Names are those of this machine; numbers mean the same everywhere.
Examples:
  buttress chown -R 33:33 disk.img:/srv
  buttress chown root disk.img:/etc/fstab";

const CP: &str = "\
Examples:
  buttress cp disk.img:/etc/fstab .
  buttress cp -r site disk.img:/srv
  buttress cp -a disk.img:/home backup/
An image named alone is its top directory as DESTINATION, and a file as SOURCE: `buttress cp disk.img copy.img` copies the
image, `buttress cp -a disk.img:/ copy/` what is in it. Disks and images in use are never overwritten.";

/// Options that every command takes.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Globals {
    /// How results are printed: text or json
    #[arg(
        long,
        global = true,
        help_heading = "Global options",
        value_enum,
        hide_possible_values = true,
        hide_default_value = true,
        default_value = "text",
        value_name = "FORMAT"
    )]
    pub format: Format,
    /// Where the filesystem begins in the device, in bytes (suffixes k, m, g, t)
    #[arg(long, global = true, help_heading = "Global options", value_parser = buttress_mkfs::parse_size, default_value = "0", hide_default_value = true, value_name = "SIZE")]
    pub offset: u64,
    /// Change a filesystem whose quotas cannot be read all the same; they are marked as wrong
    #[arg(long, global = true, help_heading = "Global options")]
    pub mark_quota_inconsistent: bool,
    /// What `--rescue` allows.
    #[command(flatten)]
    pub rescue: Rescued,
    /// Say nothing but errors
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub quiet: bool,
    /// Say at the end what was done to trees and bytes
    #[arg(long, global = true, help_heading = "Global options")]
    pub stats: bool,
    /// Say more
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub verbose: bool,
}

/// What `--rescue` allows: what any of them says, where it is given several times, as with `mount -o`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rescued(Rescue);

#[derive(Args)]
#[group(skip)]
struct RescueArgs {
    /// What to do about a damaged filesystem: usebackupsuper (write on from a copy of the superblock that may be old),
    /// usebackuproot (read by the roots of an older commit), nologreplay (read the last commit, without what waits in a log),
    /// ignorebadroots or ibadroots (read without the trees that no file is read by, where their roots are bad, and directories without
    /// their inodes), ignoredatacsums or idatacsums (read data without looking at their checksums), ignoremetacsums or imetacsums (read
    /// tree blocks with wrong checksums, too), ignoresuperflags or isuperflags (read in the middle of a change of the format), all (all but
    /// the first); joined by colons, or given several times
    #[arg(long, global = true, help_heading = "Global options", action = ArgAction::Append, value_parser = parse_rescue, value_name = "WORDS")]
    rescue: Vec<Rescue>,
}

impl Rescued {
    /// What it allows.
    pub fn words(self) -> Rescue {
        self.0
    }

    fn and(self, other: Rescued) -> Rescued {
        Rescued(self.0.and(other.0))
    }
}

// By hand, as there is one result of several values, and `Globals` can be copied.
impl FromArgMatches for Rescued {
    fn from_arg_matches(found: &ArgMatches) -> Result<Rescued, clap::Error> {
        let given = RescueArgs::from_arg_matches(found)?.rescue;
        Ok(Rescued(given.into_iter().fold(Rescue::default(), Rescue::and)))
    }

    fn update_from_arg_matches(&mut self, found: &ArgMatches) -> Result<(), clap::Error> {
        *self = self.and(Rescued::from_arg_matches(found)?);
        Ok(())
    }
}

impl Args for Rescued {
    fn augment_args(command: clap::Command) -> clap::Command {
        RescueArgs::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        RescueArgs::augment_args_for_update(command)
    }
}

fn parse_rescue(words: &str) -> Result<Rescue, String> {
    Rescue::parse(words).ok_or_else(|| format!("expects {}", Rescue::WORDS))
}

impl Globals {
    /// Whether what was done is said in lines of text.
    pub fn talks(&self) -> bool {
        !self.quiet && self.format == Format::Text
    }

    /// Whether each step is said in lines of text.
    pub fn talks_much(&self) -> bool {
        self.verbose && self.talks()
    }
}

/// Every subcommand.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a filesystem
    #[command(after_help = MKFS, version)]
    Mkfs(cmd::mkfs::Mkfs),
    /// Mount a filesystem, or list what is mounted
    #[command(after_help = MOUNT)]
    Mount(cmd::mount::Mount),
    /// Unmount, and wait until everything is on the device
    #[command(visible_alias = "unmount")]
    Umount(cmd::mount::Umount),
    /// List directories
    Ls(cmd::ls::Ls),
    /// Print the content of files
    Cat(cmd::cat::Cat),
    /// Copy into, out of and within images
    #[command(override_usage = "buttress cp [OPTIONS] <SOURCE>... <DESTINATION>", after_help = CP)]
    Cp(cmd::cp::Cp),
    /// Make directories
    Mkdir(cmd::mkdir::Mkdir),
    /// Remove files and directories
    Rm(cmd::rm::Rm),
    /// Move and rename
    #[command(override_usage = "buttress mv [OPTIONS] <SOURCE>... <DESTINATION>")]
    Mv(cmd::mv::Mv),
    /// Make links
    Ln(cmd::ln::Ln),
    /// Change permission bits
    #[command(after_help = CHMOD)]
    Chmod(cmd::chmod::Chmod),
    /// Change owner and group
    #[command(after_help = CHOWN)]
    Chown(cmd::chown::Chown),
    /// Print all there is to know about files
    Stat(cmd::stat::Stat),
    /// Subvolumes and snapshots
    #[command(subcommand, infer_subcommands = true)]
    Subvolume(cmd::subvolume::Subvolume),
    /// Quotas as a whole
    #[command(subcommand, infer_subcommands = true)]
    Quota(cmd::quota::Quota),
    /// Groups of quotas
    #[command(subcommand, infer_subcommands = true)]
    Qgroup(cmd::qgroup::Qgroup),
    /// Write block groups anew
    #[command(subcommand, infer_subcommands = true)]
    Balance(cmd::balance::BalanceCommand),
    /// Check an unmounted filesystem; only reads
    #[command(after_help = CHECK)]
    Check(cmd::check::Check),
    /// What can be read and set by name
    #[command(subcommand, infer_subcommands = true)]
    Property(cmd::property::Property),
    /// The filesystem as a whole
    #[command(subcommand, infer_subcommands = true)]
    Filesystem(cmd::filesystem::Filesystem),
    /// Get at what is left of a filesystem
    #[command(subcommand, infer_subcommands = true)]
    Rescue(cmd::rescue::Rescue),
    /// The device of a filesystem
    #[command(subcommand, infer_subcommands = true)]
    Device(cmd::device::DeviceCommand),
    /// Look at the bytes of a filesystem
    #[command(subcommand, infer_subcommands = true)]
    InspectInternal(cmd::inspect::Inspect),
    /// Print the version
    Version,
    /// Print a completion script for a shell
    #[command(hide = true)]
    Completions(cmd::completions::Completions),
    /// Print the manual page, or write all of them
    #[command(hide = true)]
    Man(cmd::man::Man),
}

impl Command {
    /// Whether it writes text of its own; the others pass on what files hold.
    pub fn writes_text(&self) -> bool {
        !matches!(self, Command::Cat(_))
    }
}

/// What the words said.
pub enum Parsed {
    /// A command.
    Command(Box<Cli>),
    /// Nothing to do but say this and end.
    Message {
        /// Help, version or complaint.
        text: String,
        /// The exit code.
        code: u8,
    },
}

/// Understands the words of the command line, the first of which is the name we were called by.
pub fn parse(words: Vec<OsString>) -> Parsed {
    let called = called();
    if matches!(called.as_str(), "btrfs" | "mkfs.btrfs") {
        usage_is_failure();
    }
    let mut command = Cli::command();
    match called.as_str() {
        "btrfs" => command = command.name("btrfs").bin_name("btrfs"),
        "mount.fuse.buttress" | "mount.buttress" => return helper(&words),
        "umount.fuse.buttress" | "umount.buttress" => return umount_helper(&words),
        "mkfs.btrfs" | "mkfs.buttress" => {
            let format = format_of(&words);
            return parsed(mkfs(called, words), format);
        }
        _ => {}
    }
    let format = format_of(&words);
    let (words, is_quiet) = quiet_in_front(filters_apart(words));
    let found = command.try_get_matches_from(&words).and_then(|found| {
        let mut cli = Cli::from_arg_matches(&found)?;
        cli.globals.rescue = cli.globals.rescue.and(rescue_in_front(&words, &found));
        Ok(cli)
    });
    let lists = |cli: &Cli| matches!(cli.command, Command::Subvolume(Subvolume::List(_)));
    let found = found.map(|mut cli| {
        cli.globals.quiet = is_quiet || cli.globals.quiet && !lists(&cli);
        cli
    });
    parsed(found.map_err(|error| absent::explained(error, &words)), format)
}

/// Filters of `balance` stand right behind their option, as with btrfs-progs (`-dusage=50`, `-fvdusage=50`): they are set apart from it, as clap
/// wants that.
fn filters_apart(words: Vec<OsString>) -> Vec<OsString> {
    let found = options_in_front(&words);
    let command = found.as_ref().and_then(|found| found.subcommand_name());
    if !command.is_some_and(|name| !name.is_empty() && "balance".starts_with(name)) {
        return words;
    }
    let apart = |word: OsString| {
        let filters = word.to_str().and_then(|text| {
            let (letters, filters) = text.split_at_checked(filters_at(text)?)?;
            (!filters.is_empty() && !filters.starts_with('='))
                .then(|| format!("{letters}={filters}"))
        });
        filters.map_or(word, OsString::from)
    };
    let options = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let word = |(at, word)| if at < options { apart(word) } else { word };
    words.into_iter().enumerate().map(word).collect()
}

/// Where the filters begin in a word that is an option with filters, or such an option behind others.
fn filters_at(word: &str) -> Option<usize> {
    let letters = word.strip_prefix('-')?;
    let flags = letters.chars().take_while(|letter| "fqv".contains(*letter)).count();
    let is_option = letters.get(flags..)?.starts_with(['d', 'm', 's']);
    is_option.then_some(flags + "-d".len())
}

/// The options in front of the command, and that with all behind it, as far as they can be understood.
fn options_in_front(words: &[OsString]) -> Option<ArgMatches> {
    let command = Globals::augment_args(clap::Command::new("buttress").infer_long_args(true));
    let command = command.args_override_self(true).allow_external_subcommands(true);
    command.try_get_matches_from(words).ok()
}

/// What `--rescue` says in front of each command and subcommand: clap forgets that where it is given behind them, too.
fn rescue_in_front(words: &[OsString], found: &ArgMatches) -> Rescued {
    let levels = std::iter::successors(found.subcommand(), |(_, below)| below.subcommand());
    let (mut words, mut rescue) = (words.to_vec(), Rescued::default());
    for _ in levels {
        let Some(found) = options_in_front(&words) else { break };
        rescue = rescue.and(Rescued::from_arg_matches(&found).unwrap_or_default());
        let Some((name, behind)) = found.subcommand() else { break };
        let behind = behind.get_many::<OsString>("").into_iter().flatten().cloned();
        words = std::iter::once(name.into()).chain(behind).collect();
    }
    rescue
}

/// Takes `-q` away that is in front of the command, and says whether it was there: behind `subvolume list` it is a column.
fn quiet_in_front(words: Vec<OsString>) -> (Vec<OsString>, bool) {
    let Some(found) = options_in_front(&words) else { return (words, false) };
    let Some((_, behind)) = found.subcommand().filter(|_| found.get_flag("quiet")) else {
        return (words, false);
    };
    let behind = behind.get_many::<OsString>("").map_or(0, |words| words.len());
    let front = words.len().saturating_sub(behind + 1);
    let without = |(at, word): (usize, OsString)| match word.to_str() {
        Some(text) if at > 0 && at < front && text.starts_with("--q") => None,
        Some(text) if at > 0 && at < front && text.starts_with('-') && !text.starts_with("--") => {
            Some(text.replace('q', "").into()).filter(|left: &OsString| left != "-")
        }
        _ => Some(word),
    };
    (words.into_iter().enumerate().filter_map(without).collect(), true)
}

/// The format that is asked for, also where the rest of the words is not understood.
fn format_of(words: &[OsString]) -> Format {
    let mut words = words.iter().map(|word| word.to_string_lossy()).take_while(|it| it != "--");
    let mut format = Format::Text;
    while let Some(word) = words.next() {
        let Some(option) = word.strip_prefix("--") else { continue };
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (option, None),
        };
        // As short as it stays unambiguous for all commands.
        if name.len() < "form".len() || !"format".starts_with(name) {
            continue;
        }
        format = match value.or_else(|| words.next().map(Into::into)).as_deref() {
            Some("json") => Format::Json,
            _ => Format::Text,
        };
    }
    format
}

/// `mkfs` as a program of its own.
fn mkfs(called: String, words: Vec<OsString>) -> Result<Cli, clap::Error> {
    let about = "Make a filesystem";
    let command = clap::Command::new("mkfs").bin_name(called).about(about).version("");
    let command = command.infer_long_args(true).args_override_self(true);
    let command = cmd::mkfs::Mkfs::augment_args(Globals::augment_args(command));
    let found = command.try_get_matches_from(words)?;
    let command = Command::Mkfs(cmd::mkfs::Mkfs::from_arg_matches(&found)?);
    Ok(Cli { globals: Globals::from_arg_matches(&found)?, command })
}

fn parsed(cli: Result<Cli, clap::Error>, format: Format) -> Parsed {
    match cli {
        Ok(cli) => Parsed::Command(Box::new(cli)),
        Err(error) if error.kind() == ErrorKind::DisplayVersion => {
            Parsed::Message { text: format!("{}\n", version()), code: 0 }
        }
        Err(error) => message(&error, format),
    }
}

/// What we are, in the words of the tool that we were called as.
pub fn version() -> String {
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    match called().as_str() {
        "btrfs" => format!("buttress v{VERSION}"),
        name @ ("mkfs.btrfs" | "mkfs.buttress") => format!("{name}, part of buttress v{VERSION}"),
        _ => format!("buttress {VERSION}"),
    }
}

/// The name we were called by.
fn called() -> String {
    std::env::args_os().next().map(|word| base_name(&word)).unwrap_or_default()
}

/// What mount(8) wants of us.
fn helper(words: &[OsString]) -> Parsed {
    let globals = Globals::default();
    match cmd::mount::Helper::parse(words.get(1..).unwrap_or_default()) {
        Ok(Helper { mount: Some(mount) }) => {
            Parsed::Command(Box::new(Cli { globals, command: Command::Mount(mount) }))
        }
        Ok(Helper { mount: None }) => Parsed::Message { text: String::new(), code: 0 },
        Err(why) => Parsed::Message { text: format!("buttress: {why}\n"), code: USAGE },
    }
}

/// What umount(8) wants of us.
fn umount_helper(words: &[OsString]) -> Parsed {
    match cmd::mount::Umount::of_helper(words.get(1..).unwrap_or_default()) {
        Ok(umount) => Parsed::Command(Box::new(Cli {
            globals: Globals::default(),
            command: Command::Umount(umount),
        })),
        Err(why) => Parsed::Message { text: format!("buttress: {why}\n"), code: USAGE },
    }
}

fn base_name(word: &OsStr) -> String {
    Path::new(word).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Clap's words with our name before them.
fn message(error: &clap::Error, format: Format) -> Parsed {
    let text = error.render().to_string();
    if !error.use_stderr() {
        return Parsed::Message { text, code: 0 };
    }
    if format == Format::Json {
        let failure = misunderstood(error, &text);
        return Parsed::Message { text: failure.json(), code: failure.code() };
    }
    let text = match text.strip_prefix("error: ") {
        Some(rest) => format!("buttress: {rest}"),
        None => text,
    };
    Parsed::Message { text, code: usage_code() }
}

/// Clap's words as a failure: the first paragraph says what is wrong, the others what would be right.
fn misunderstood(error: &clap::Error, text: &str) -> Failure {
    let what = "cannot understand";
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Failure::usage(what, "a command is missing").hint("`--help` says what there is.");
    }
    let in_line = |part: &str| part.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let (why, rest) = text.split_once("\n\n").unwrap_or((text, ""));
    let hint: Vec<_> = rest.split("\n\n").map(in_line).filter(|part| !part.is_empty()).collect();
    Failure::usage(what, in_line(why)).hint(hint.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }

    #[test]
    fn filters_are_set_apart_from_their_option() {
        for (line, expected) in [
            ("balance start -dusage=5 -m x", "balance start -d=usage=5 -m x"),
            ("balance start -fvdusage=5 x", "balance start -fvd=usage=5 x"),
            ("-v --format json bal start -d,usage=5 x", "-v --format json bal start -d=,usage=5 x"),
            ("b start -d=usage=5 --data=usage=5 -fs x", "b start -d=usage=5 --data=usage=5 -fs x"),
            ("balance start -dusage=5 -- -dir", "balance start -d=usage=5 -- -dir"),
            ("ls -dl balance", "ls -dl balance"),
            ("rm -sx ba", "rm -sx ba"),
        ] {
            let words = |line: &str| -> Vec<OsString> {
                std::iter::once("buttress").chain(line.split(' ')).map(OsString::from).collect()
            };
            assert_eq!(filters_apart(words(line)), words(expected), "{line}");
        }
    }

    #[test]
    fn rescue_words_are_collected_wherever_they_stand() {
        let line = "b --rescue nologreplay fi --rescue ibadroots usage --rescue idatacsums x --rescue=imetacsums";
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let found = Cli::command().try_get_matches_from(&words).unwrap();
        let behind = Cli::from_arg_matches(&found).unwrap().globals.rescue;
        let all = behind.and(rescue_in_front(&words, &found)).words();
        assert_eq!(
            Some(all),
            Rescue::parse("nologreplay:ibadroots:idatacsums:imetacsums"),
            "{all:?}"
        );
        // What looks like it and is no option.
        let words = ["b", "cat", "--", "x", "--rescue", "all"].map(OsString::from);
        let found = Cli::command().try_get_matches_from(&words).unwrap();
        assert_eq!(rescue_in_front(&words, &found).words(), Rescue::default());
    }
}
