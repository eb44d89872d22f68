//! Reading operations back.

use std::str::{FromStr, SplitWhitespace};

use buttress::{Allocate, FileKind, Rename, SetXattr};

use super::{Make, Op};
use crate::model::QuotaMode;

/// A line that is no operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an operation: {line}")]
pub struct ParseError {
    /// The line.
    pub line: String,
}

/// Reads one operation as [`Op`] is printed.
pub fn parse(line: &str) -> Result<Op, ParseError> {
    let mut words = Words(line.split_whitespace());
    let op = words.op().filter(|_| words.0.next().is_none());
    op.ok_or_else(|| ParseError { line: line.to_owned() })
}

/// Reads one operation a line; empty lines and those that start with `#` are left out.
pub fn parse_all(text: &str) -> Result<Vec<Op>, ParseError> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(parse).collect()
}

struct Words<'a>(SplitWhitespace<'a>);

impl Words<'_> {
    fn text(&mut self) -> Option<String> {
        self.0.next().map(str::to_owned)
    }

    fn number<T: FromStr>(&mut self) -> Option<T> {
        self.0.next()?.parse().ok()
    }

    fn octal(&mut self) -> Option<u32> {
        u32::from_str_radix(self.0.next()?, 8).ok()
    }

    fn op(&mut self) -> Option<Op> {
        let word = self.0.next()?;
        Some(match word {
            "file" | "mkdir" | "symlink" | "mknod" => self.make(word)?,
            "write" | "read" | "truncate" | "allocate" | "clone" => self.data(word)?,
            "fsync" => Op::Fsync { at: self.text()? },
            "commit" => Op::Commit,
            "flush" => Op::Flush,
            "beside" => Op::Beside,
            "await" => Op::Await,
            "clean" => Op::Clean,
            "empty" => Op::Empty { number: self.number()? },
            "trim" => Op::Trim,
            "quotas" => Op::Quotas { mode: self.quota_mode()? },
            "reopen" => Op::Reopen,
            "compare" => Op::Compare,
            "check" => Op::Check,
            "drain" => Op::Drain,
            "subvolume" => Op::Subvolume { at: self.text()?, owner: self.number()? },
            "snapshot" => {
                Op::Snapshot { from: self.text()?, to: self.text()?, read_only: self.number()? }
            }
            "delete" => Op::DeleteSubvolume { at: self.text()? },
            "readonly" => Op::ReadOnly { at: self.text()?, on: self.number()? },
            "hold" => Op::Hold { handle: self.number()?, at: self.text()? },
            "release" => Op::Release { handle: self.number()? },
            "list" => Op::List { at: self.text()? },
            "look" => Op::Look { at: self.text()? },
            _ => self.names_and_attributes(word)?,
        })
    }

    fn names_and_attributes(&mut self, word: &str) -> Option<Op> {
        Some(match word {
            "tmpfile" => {
                Op::Temporary { handle: self.number()?, dir: self.text()?, mode: self.octal()? }
            }
            "link" => Op::Link { from: self.text()?, to: self.text()? },
            "unlink" => Op::Unlink { at: self.text()? },
            "rmdir" => Op::Rmdir { at: self.text()? },
            "rename" => Op::Rename { from: self.text()?, to: self.text()?, how: self.rename()? },
            "setxattr" => Op::SetXattr {
                at: self.text()?,
                name: self.text()?,
                len: self.number()?,
                seed: self.number()?,
                how: self.xattr()?,
            },
            "rmxattr" => Op::RemoveXattr { at: self.text()?, name: self.text()? },
            "chmod" => Op::Chmod { at: self.text()?, mode: self.octal()? },
            "chown" => Op::Chown { at: self.text()?, uid: self.number()?, gid: self.number()? },
            "utimes" => {
                Op::Utimes { at: self.text()?, atime: self.number()?, mtime: self.number()? }
            }
            _ => return None,
        })
    }

    fn make(&mut self, word: &str) -> Option<Op> {
        let at = self.text()?;
        if word == "symlink" {
            let owner = self.number()?;
            let target = self.text().unwrap_or_default();
            return Some(Op::Make { at, what: Make::Link(target), mode: 0o777, owner });
        }
        let (mode, owner) = (self.octal()?, self.number()?);
        let what = match word {
            "file" => Make::File,
            "mkdir" => Make::Directory,
            _ => Make::Special(self.kind()?, self.number()?),
        };
        Some(Op::Make { at, what, mode, owner })
    }

    fn data(&mut self, word: &str) -> Option<Op> {
        let at = self.text()?;
        Some(match word {
            "truncate" => Op::Truncate { at, size: self.number()? },
            "write" => {
                let (offset, len) = (self.number()?, self.number()?);
                Op::Write { at, offset, len, seed: self.number()? }
            }
            "read" => Op::Read { at, offset: self.number()?, len: self.number()? },
            "allocate" => {
                let mode = self.allocate()?;
                Op::Allocate { at, mode, offset: self.number()?, len: self.number()? }
            }
            _ => {
                let (offset, len) = (self.number()?, self.number()?);
                Op::Clone { from: at, offset, len, to: self.text()?, to_offset: self.number()? }
            }
        })
    }

    fn allocate(&mut self) -> Option<Allocate> {
        Some(match self.0.next()? {
            "reserve" => Allocate::Reserve { keep_size: false },
            "reserve-keep" => Allocate::Reserve { keep_size: true },
            "punch" => Allocate::PunchHole,
            "zero" => Allocate::ZeroRange { keep_size: false },
            "zero-keep" => Allocate::ZeroRange { keep_size: true },
            _ => return None,
        })
    }

    fn rename(&mut self) -> Option<Rename> {
        Some(match self.0.next()? {
            "replace" => Rename::Replace,
            "noreplace" => Rename::NoReplace,
            "exchange" => Rename::Exchange,
            _ => return None,
        })
    }

    fn xattr(&mut self) -> Option<SetXattr> {
        Some(match self.0.next()? {
            "any" => SetXattr::Any,
            "create" => SetXattr::Create,
            "replace" => SetXattr::Replace,
            _ => return None,
        })
    }

    fn quota_mode(&mut self) -> Option<QuotaMode> {
        Some(match self.0.next()? {
            "off" => QuotaMode::Off,
            "full" => QuotaMode::Full,
            "simple" => QuotaMode::Simple,
            _ => return None,
        })
    }

    fn kind(&mut self) -> Option<FileKind> {
        Some(match self.0.next()? {
            "char" => FileKind::Character,
            "block" => FileKind::Block,
            "fifo" => FileKind::Fifo,
            "socket" => FileKind::Socket,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::generate::{Generator, Profile};
    use super::super::run::{Config, Runner};
    use super::parse;

    #[test]
    fn what_is_printed_is_read_back() {
        let config = Config { size: 256 << 20, ..Config::default() };
        let mut runner = Runner::new(&config).expect("an empty filesystem");
        let (quotas_every, empty_every, trim_every) = (90, 150, 70);
        let profile = Profile { quotas_every, empty_every, trim_every, ..Profile::default() };
        let mut generator = Generator::new(7, profile);
        for _ in 0..2000 {
            let op = generator.next(runner.model());
            assert_eq!(parse(&op.to_string()).as_ref(), Ok(&op), "{op}");
            let _ = runner.step(&op);
        }
    }
}
