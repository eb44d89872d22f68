//! Subcommands and options of btrfs-progs that are not here, and what does their work: who looks for one should not be sent to another that has a
//! similar name. Subcommands may be abbreviated, as those that are here may.

use std::ffi::OsString;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::args::Cli;

const BY_LINUX: &str = "mount the filesystem with Linux and use `btrfs` there";
const ONE_DEVICE: &str = "one device is supported; Linux adds, removes and replaces more";
const BY_PROGS: &str =
    "`btrfs` of btrfs-progs does it with the unmounted image; keep a copy of the image";
const ONLY_READS: &str = "a check only reads; `buttress cp -a --rescue all IMAGE:/ DIRECTORY` gets out what can be read, and `btrfs check` of \
                          btrfs-progs changes an image, of which a copy should be kept";

/// A word that is not here: the command it belongs to, itself, and what to do instead.
type Absent = (&'static str, &'static str, &'static str);

const COMMANDS: [Absent; 19] = [
    ("", "send", BY_LINUX),
    ("", "receive", BY_LINUX),
    (
        "",
        "scrub",
        "`buttress check --check-data-csum` reads everything and says what is damaged; of two copies the good one \
         replaces the bad one where a file is read on a mount that writes, and in a `buttress balance start`",
    ),
    (
        "",
        "restore",
        "`buttress cp -a IMAGE:/ DIRECTORY` copies files out without a mount, with `--rescue` where roots or logs are damaged",
    ),
    ("", "replace", ONE_DEVICE),
    ("device", "add", ONE_DEVICE),
    ("device", "delete", ONE_DEVICE),
    ("device", "remove", ONE_DEVICE),
    ("device", "replace", ONE_DEVICE),
    ("device", "scan", "one device is supported, and that is found by its path"),
    ("device", "ready", "one device is supported, and that is always ready"),
    (
        "filesystem",
        "defragment",
        "mount the filesystem with Linux and use `btrfs filesystem defragment` there",
    ),
    (
        "filesystem",
        "mkswapfile",
        "swap files work where Linux has mounted the filesystem: use `btrfs filesystem mkswapfile` there",
    ),
    (
        "inspect-internal",
        "map-swapfile",
        "swap files work where Linux has mounted the filesystem: use `btrfs inspect-internal map-swapfile` there",
    ),
    (
        "rescue",
        "super-recover",
        "with `--rescue usebackupsuper` a command that writes goes on from a copy of the superblock, and writes all of them",
    ),
    ("rescue", "chunk-recover", BY_PROGS),
    ("rescue", "fix-device-size", BY_PROGS),
    ("rescue", "clear-uuid-tree", BY_PROGS),
    ("rescue", "create-control-device", "it is Linux that needs one: use `btrfs` there"),
];

const OPTIONS: [Absent; 7] = [
    ("check", "--repair", ONLY_READS),
    ("check", "--init-csum-tree", ONLY_READS),
    ("check", "--init-extent-tree", ONLY_READS),
    ("check", "--clear-space-cache", BY_PROGS),
    ("check", "--clear-ino-cache", BY_PROGS),
    ("device stats", "-z", BY_LINUX),
    ("device stats", "--reset", BY_LINUX),
];

/// The shortest abbreviation of a command that is not here, and the shortest part of an option's name: shorter ones stand for too much.
const SHORTEST: usize = 2;

/// The words of `all` that begin like this, in a command.
fn find(all: &[Absent], command: &str, begin: &str) -> Option<Absent> {
    let is_it = |(of, word, _): &&Absent| {
        let name = begin.trim_start_matches('-');
        *of == command && (*word == begin || name.len() >= SHORTEST && word.starts_with(begin))
    };
    all.iter().find(is_it).copied()
}

/// The command that clap says the usage of, without the name of the program.
fn command_of(error: &clap::Error) -> String {
    let usage = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage.to_string(),
        _ => return String::new(),
    };
    let words = usage.split_whitespace().skip_while(|word| *word == "Usage:").skip(1);
    let is_name = |word: &&str| word.starts_with(|first: char| first.is_ascii_lowercase());
    words.take_while(is_name).collect::<Vec<_>>().join(" ")
}

fn word_of(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind)? {
        ContextValue::String(word) => Some(word),
        _ => None,
    }
}

/// Whether an option that a command has begins like this.
fn is_own(command: &str, begin: &str) -> bool {
    let mut cli = Cli::command();
    // Only then subcommands have the options that all have.
    cli.build();
    let at = command.split_whitespace().try_fold(&cli, |at, name| at.find_subcommand(name));
    let begin = begin.trim_start_matches('-');
    let own = at.into_iter().flat_map(clap::Command::get_arguments);
    let mut names = own.flat_map(|arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long().into_iter().chain(aliases)
    });
    names.any(|name| name.starts_with(begin))
}

/// Whether an option is among the words: what stands behind `--` is none, whatever it looks like.
fn is_option(given: &str, words: &[OsString]) -> bool {
    let letter = given.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
    let is_it = |word: &OsString| {
        let word = word.to_string_lossy();
        match letter {
            Some(letter) => {
                word.starts_with('-') && !word.starts_with("--") && word.contains(letter)
            }
            None => word.split('=').next() == Some(given),
        }
    };
    words.iter().take_while(|word| *word != "--").any(is_it)
}

/// The option of btrfs-progs that is not here and that a word stands for, if none that is here could be meant.
fn option(command: &str, given: &str, words: &[OsString]) -> Option<Absent> {
    let (of, word, instead) = find(&OPTIONS, command, given)?;
    let is_meant = word == given || !is_own(command, given);
    (is_meant && is_option(given, words)).then_some((of, word, instead))
}

/// The error with what to do instead, if a subcommand or an option that is not here was called.
pub fn explained(error: clap::Error, words: &[OsString]) -> clap::Error {
    let command = command_of(&error);
    let called = word_of(&error, ContextKind::InvalidSubcommand);
    if let Some((_, word, instead)) = called.and_then(|word| find(&COMMANDS, &command, word)) {
        let text = format!("`{word}` is not there yet: {instead}\n");
        return clap::Error::raw(ErrorKind::InvalidSubcommand, text);
    }
    let given = word_of(&error, ContextKind::InvalidArg);
    let is_unknown = error.kind() == ErrorKind::UnknownArgument;
    match given.filter(|_| is_unknown).and_then(|word| option(&command, word, words)) {
        Some((_, word, instead)) => {
            let text = format!("'{word}' is not there yet: {instead}\n");
            clap::Error::raw(ErrorKind::UnknownArgument, text)
        }
        None => error,
    }
}
