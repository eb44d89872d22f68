//! Random operations on the engine and on the model.
//!
//! An [`Op`] is one operation in words that can be saved, read and run again: paths, handles, numbers. [`generate`] makes
//! them from a seed, [`run`] does each on both sides and compares the answers, [`compare`] compares all that both hold,
//! [`kernel`] lets Linux and `btrfs check` judge the image, [`shrink`] makes a failing sequence short, and [`threads`] runs
//! several sequences at the same time on one filesystem. [`brim`] makes operations for a filesystem that is full.

pub mod brim;
pub mod compare;
pub mod generate;
pub mod kernel;
mod parse;
pub mod rng;
pub mod run;
pub mod shrink;
pub mod threads;

use std::fmt;

use buttress::{Allocate, FileKind, Rename, SetXattr};

use crate::model::QuotaMode;

pub use parse::{ParseError, parse, parse_all};

/// What is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Make {
    /// An empty file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link to this.
    Link(String),
    /// A device node, a pipe or a socket, with the device's number.
    Special(FileKind, u64),
}

/// An operation. Paths start with a slash; `@7` is the file that handle 7 holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the members are the arguments of the operations, named as such")]
pub enum Op {
    Make {
        at: String,
        what: Make,
        mode: u32,
        owner: u32,
    },
    Temporary {
        handle: u8,
        dir: String,
        mode: u32,
    },
    Link {
        from: String,
        to: String,
    },
    Unlink {
        at: String,
    },
    Rmdir {
        at: String,
    },
    Rename {
        from: String,
        to: String,
        how: Rename,
    },
    Write {
        at: String,
        offset: u64,
        len: usize,
        seed: u32,
    },
    Read {
        at: String,
        offset: u64,
        len: usize,
    },
    Truncate {
        at: String,
        size: u64,
    },
    Allocate {
        at: String,
        mode: Allocate,
        offset: u64,
        len: u64,
    },
    Clone {
        from: String,
        offset: u64,
        len: u64,
        to: String,
        to_offset: u64,
    },
    SetXattr {
        at: String,
        name: String,
        len: usize,
        seed: u32,
        how: SetXattr,
    },
    RemoveXattr {
        at: String,
        name: String,
    },
    Chmod {
        at: String,
        mode: u32,
    },
    Chown {
        at: String,
        uid: u32,
        gid: u32,
    },
    Utimes {
        at: String,
        atime: i64,
        mtime: i64,
    },
    Subvolume {
        at: String,
        owner: u32,
    },
    Snapshot {
        from: String,
        to: String,
        read_only: bool,
    },
    DeleteSubvolume {
        at: String,
    },
    ReadOnly {
        at: String,
        on: bool,
    },
    Hold {
        handle: u8,
        at: String,
    },
    Release {
        handle: u8,
    },
    List {
        at: String,
    },
    Look {
        at: String,
    },
    Fsync {
        at: String,
    },
    Commit,
    /// What files buffer goes to the disk.
    Flush,
    /// A commit that goes on beside the operations that follow, up to `await`.
    Beside,
    Await,
    Clean,
    /// A block group is emptied: one that is chosen by the number.
    Empty {
        number: u64,
    },
    /// The device is told of all that is free.
    Trim,
    /// Quotas are switched on or off.
    Quotas {
        mode: QuotaMode,
    },
    Reopen,
    Compare,
    Check,
    Drain,
}

fn allocate_word(mode: Allocate) -> &'static str {
    match mode {
        Allocate::Reserve { keep_size: false } => "reserve",
        Allocate::Reserve { keep_size: true } => "reserve-keep",
        Allocate::PunchHole => "punch",
        Allocate::ZeroRange { keep_size: false } => "zero",
        Allocate::ZeroRange { keep_size: true } => "zero-keep",
    }
}

fn rename_word(how: Rename) -> &'static str {
    match how {
        Rename::Replace => "replace",
        Rename::NoReplace => "noreplace",
        Rename::Exchange => "exchange",
        Rename::Whiteout { .. } => "whiteout",
    }
}

fn xattr_word(how: SetXattr) -> &'static str {
    match how {
        SetXattr::Any => "any",
        SetXattr::Create => "create",
        SetXattr::Replace => "replace",
    }
}

fn kind_word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "regular",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Character => "char",
        FileKind::Block => "block",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

fn quota_word(mode: QuotaMode) -> &'static str {
    match mode {
        QuotaMode::Off => "off",
        QuotaMode::Full => "full",
        QuotaMode::Simple => "simple",
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Make { at, what, mode, owner } => match what {
                Make::File => write!(f, "file {at} {mode:o} {owner}"),
                Make::Directory => write!(f, "mkdir {at} {mode:o} {owner}"),
                Make::Link(target) => write!(f, "symlink {at} {owner} {target}"),
                Make::Special(kind, rdev) => {
                    write!(f, "mknod {at} {mode:o} {owner} {} {rdev}", kind_word(*kind))
                }
            },
            Op::Temporary { handle, dir, mode } => write!(f, "tmpfile {handle} {dir} {mode:o}"),
            Op::Link { from, to } => write!(f, "link {from} {to}"),
            Op::Unlink { at } => write!(f, "unlink {at}"),
            Op::Rmdir { at } => write!(f, "rmdir {at}"),
            Op::Rename { from, to, how } => write!(f, "rename {from} {to} {}", rename_word(*how)),
            Op::SetXattr { at, name, len, seed, how } => {
                write!(f, "setxattr {at} {name} {len} {seed} {}", xattr_word(*how))
            }
            Op::RemoveXattr { at, name } => write!(f, "rmxattr {at} {name}"),
            Op::Chmod { at, mode } => write!(f, "chmod {at} {mode:o}"),
            Op::Chown { at, uid, gid } => write!(f, "chown {at} {uid} {gid}"),
            Op::Utimes { at, atime, mtime } => write!(f, "utimes {at} {atime} {mtime}"),
            Op::Subvolume { at, owner } => write!(f, "subvolume {at} {owner}"),
            Op::Snapshot { from, to, read_only } => write!(f, "snapshot {from} {to} {read_only}"),
            Op::DeleteSubvolume { at } => write!(f, "delete {at}"),
            Op::ReadOnly { at, on } => write!(f, "readonly {at} {on}"),
            Op::Hold { handle, at } => write!(f, "hold {handle} {at}"),
            Op::Release { handle } => write!(f, "release {handle}"),
            Op::List { at } => write!(f, "list {at}"),
            Op::Look { at } => write!(f, "look {at}"),
            Op::Fsync { at } => write!(f, "fsync {at}"),
            Op::Commit => f.write_str("commit"),
            Op::Flush => f.write_str("flush"),
            Op::Beside => f.write_str("beside"),
            Op::Await => f.write_str("await"),
            Op::Clean => f.write_str("clean"),
            Op::Empty { number } => write!(f, "empty {number}"),
            Op::Trim => f.write_str("trim"),
            Op::Quotas { mode } => write!(f, "quotas {}", quota_word(*mode)),
            Op::Reopen => f.write_str("reopen"),
            Op::Compare => f.write_str("compare"),
            Op::Check => f.write_str("check"),
            Op::Drain => f.write_str("drain"),
            data => data.fmt_data(f),
        }
    }
}

impl Op {
    fn fmt_data(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Write { at, offset, len, seed } => write!(f, "write {at} {offset} {len} {seed}"),
            Op::Read { at, offset, len } => write!(f, "read {at} {offset} {len}"),
            Op::Truncate { at, size } => write!(f, "truncate {at} {size}"),
            Op::Allocate { at, mode, offset, len } => {
                write!(f, "allocate {at} {} {offset} {len}", allocate_word(*mode))
            }
            Op::Clone { from, offset, len, to, to_offset } => {
                write!(f, "clone {from} {offset} {len} {to} {to_offset}")
            }
            _ => Ok(()),
        }
    }
}
