//! Operations on what files hold.

use std::process::Command;

use rustix::fd::BorrowedFd;
use rustix::fs::{self, FallocateFlags, OFlags};
use rustix::io::{Errno, pwrite};

use super::{Result, Stage, StepError, number};
use crate::ops::rng::bytes;
use crate::oracle::run;

/// Bytes of a sector.
const SECTOR: u64 = 4096;
/// Bytes written at once where a filesystem is filled.
const PIECE: usize = 64 << 10;

impl Stage {
    pub(super) fn data(&self, words: &[&str]) -> Result<()> {
        match *words {
            ["write", path, at, len] => {
                let data = self.noise(number(len)?);
                self.with(path, |file| whole(file, &data, number(at)?))
            }
            ["words", path, at, len] => {
                let data = self.compressible(number(len)? as usize);
                self.with(path, |file| whole(file, &data, number(at)?))
            }
            ["append", path, len] => {
                let data = self.noise(number(len)?);
                self.with(path, |file| whole(file, &data, fs::fstat(file)?.st_size as u64))
            }
            ["osync", path, at, len] => self.synced(path, OFlags::SYNC, at, len),
            ["odsync", path, at, len] => self.synced(path, OFlags::DSYNC, at, len),
            ["direct", path, at, len] => self.direct(path, number(at)?, number(len)?),
            ["scatter", path, count] => self.scatter(path, number(count)?),
            ["flush", path] => {
                // Writes data without a log or a commit: reading where extents are waits for them.
                run(Command::new("filefrag").arg("-s").arg(self.path(path)))?;
                Ok(())
            }
            ["truncate", path, size] => {
                let size = number(size)?;
                self.with(path, |file| Ok(fs::ftruncate(file, size)?))
            }
            ["clone", from, at, len, to, to_at] => {
                self.clone_range(from, number(at)?, number(len)?, to, number(to_at)?)
            }
            ["fill", path, leave] => self.fill(path, number(leave)?),
            [word, path, at, len] => {
                let how = allocation(word).ok_or(StepError::Words)?;
                let (at, len) = (number(at)?, number(len)?);
                self.with(path, |file| Ok(fs::fallocate(file, how, at, len)?))
            }
            _ => Err(StepError::Words),
        }
    }

    fn noise(&self, len: u64) -> Vec<u8> {
        bytes(self.count as u32 * 2 + 1, 0, len as usize)
    }

    fn compressible(&self, len: usize) -> Vec<u8> {
        let word = format!("operation {} wrote this, and this again. ", self.count);
        word.bytes().cycle().take(len).collect()
    }

    fn synced(&self, path: &str, how: OFlags, at: &str, len: &str) -> Result<()> {
        let file = self.opened(path, OFlags::WRONLY | how)?;
        let file = rustix::fd::AsFd::as_fd(&file);
        whole(file, &self.noise(number(len)?), number(at)?)
    }

    fn direct(&self, path: &str, at: u64, len: u64) -> Result<()> {
        let mut to = std::ffi::OsString::from("of=");
        to.push(self.path(path));
        let places = [format!("seek={}", at / SECTOR), format!("count={}", len / SECTOR)];
        let fixed = ["if=/dev/urandom", "bs=4096", "conv=notrunc", "oflag=direct", "status=none"];
        run(Command::new("dd").args(fixed).args(places).arg(to))?;
        Ok(())
    }

    /// Every second sector of a file, last ones first: each becomes an extent.
    fn scatter(&self, path: &str, count: u64) -> Result<()> {
        let data = self.noise(SECTOR);
        self.with(path, |file| {
            (0..count).rev().try_for_each(|it| whole(file, &data, it * 2 * SECTOR))
        })
    }

    fn clone_range(&self, from: &str, at: u64, len: u64, to: &str, to_at: u64) -> Result<()> {
        self.with(from, |source| {
            self.with(to, |target| {
                let (mut at, mut to_at) = (at, to_at);
                let len = len as usize;
                let (from, to) = (Some(&mut at), Some(&mut to_at));
                let copied = fs::copy_file_range(source, from, target, to, len)?;
                if copied == len { Ok(()) } else { Err(Errno::IO.into()) }
            })
        })
    }

    /// Writes until nothing fits, and then gives `leave` bytes back.
    fn fill(&self, path: &str, leave: u64) -> Result<()> {
        let data = self.noise(PIECE as u64);
        self.with(path, |file| {
            let mut at = 0;
            loop {
                match pwrite(file, &data, at) {
                    Ok(count) => at += count as u64,
                    Err(Errno::NOSPC) => break,
                    Err(errno) => return Err(errno.into()),
                }
            }
            Ok(fs::ftruncate(file, at.saturating_sub(leave))?)
        })
    }
}

fn whole(file: BorrowedFd<'_>, mut data: &[u8], mut at: u64) -> Result<()> {
    while !data.is_empty() {
        let count = pwrite(file, data, at)?;
        data = data.get(count..).unwrap_or_default();
        at += count as u64;
    }
    Ok(())
}

fn allocation(word: &str) -> Option<FallocateFlags> {
    Some(match word {
        "prealloc" => FallocateFlags::empty(),
        "keep" => FallocateFlags::KEEP_SIZE,
        "punch" => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        "zero" => FallocateFlags::ZERO_RANGE,
        "zerokeep" => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        _ => return None,
    })
}
