//! The whole trees of both mounts beside each other: names in their order, attributes, xattrs, links, bytes, where data is.

use std::collections::BTreeSet;
use std::fs::{File, FileType};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, SeekFrom, StatxFlags, seek, statx};

use super::asked;
use crate::facts::{Facts, diff, facts_of_dir};
use crate::ops::run::{Result, fail};

/// Bytes of a sector.
const SECTOR: u64 = 4096;
/// Differences shown.
const SHOWN: usize = 12;
/// Seconds since 1970 between which the clock of whoever runs this is: 2024 to 2033.
const RECENT: std::ops::Range<i64> = 1_704_067_200..1_988_000_000;

/// Whether a time may be of the run: the two runs are not at the same moment, so it is not compared.
pub fn is_recent(seconds: i64) -> bool {
    RECENT.contains(&seconds)
}

/// One letter for a kind of file.
pub fn letter(kind: FileType) -> char {
    match kind {
        it if it.is_dir() => 'd',
        it if it.is_symlink() => 'l',
        it if it.is_char_device() => 'c',
        it if it.is_block_device() => 'b',
        it if it.is_fifo() => 'p',
        it if it.is_socket() => 's',
        _ => 'f',
    }
}

/// Both trees must be the same.
pub fn same(kernel: &Path, ours: &Path) -> Result<()> {
    let theirs = asked("the kernel's facts", facts_of_dir(kernel))?;
    let own = asked("our facts", facts_of_dir(ours))?;
    let mut lines = diff(&timeless(own), &timeless(theirs));
    if lines.is_empty() {
        lines = places(&layout(kernel)?, &layout(ours)?);
    }
    if lines.is_empty() {
        return Ok(());
    }
    let shown: Vec<_> = lines.iter().take(SHOWN).cloned().collect();
    fail(format!(
        "the trees differ in {} points (ours, expect the kernel's)\n    {}",
        lines.len(),
        shown.join("\n    ")
    ))
}

fn timeless(mut facts: Facts) -> Facts {
    for fact in facts.paths.values_mut() {
        if is_recent(fact.mtime.0) {
            fact.mtime = (0, 0);
        }
    }
    facts
}

/// How something lies in its filesystem.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// The names of a directory in their order.
    Names(String),
    /// A file.
    File(Blocks),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Blocks {
    /// Where it has data that is not all zeros.
    data: Vec<(u64, u64)>,
    /// Sectors of data that are all zeros.
    zeros: BTreeSet<u64>,
    /// Blocks of 512 bytes. Shown and not compared: sectors of zeros count, see the table of excuses.
    blocks: u64,
}

impl Place {
    /// Whether two places are the same but for sectors of zeros, see the table of excuses.
    fn is_like(&self, other: &Place) -> bool {
        match (self, other) {
            (Place::File(one), Place::File(two)) => one.data == two.data,
            _ => self == other,
        }
    }
}

/// Each path with how it lies there.
fn layout(top: &Path) -> Result<Vec<(PathBuf, Place)>> {
    let mut lines = Vec::new();
    let mut waiting = vec![(PathBuf::new(), top.to_owned())];
    while let Some((name, path)) = waiting.pop() {
        let stat = asked("stat", path.symlink_metadata())?;
        if stat.is_dir() {
            let mut order = String::new();
            for entry in asked("list", path.read_dir())? {
                let entry = asked("list", entry)?;
                order += &format!("{} ", entry.file_name().to_string_lossy());
                waiting.push((name.join(entry.file_name()), entry.path()));
            }
            lines.push((name, Place::Names(order)));
        } else if stat.is_file() {
            lines.push((name, Place::File(place(&path, stat.len())?)));
        }
    }
    lines.sort();
    Ok(lines)
}

/// Where a file has data. Its blocks are asked of the filesystem, not of what FUSE remembers: a commit lets go of what was
/// replaced, and nobody tells the kernel.
fn place(path: &Path, size: u64) -> Result<Blocks> {
    let file = asked("open", File::open(path))?;
    let (mut data, mut zeros) = (Vec::<(u64, u64)>::new(), BTreeSet::new());
    let mut at = 0;
    let mut sector = [0; SECTOR as usize];
    while at < size {
        let Ok(start) = seek(&file, SeekFrom::Data(at)) else { break };
        let end = asked("seek", seek(&file, SeekFrom::Hole(start)))?.min(size);
        at = end;
        for from in (start..end).step_by(SECTOR as usize) {
            let len = (end - from).min(SECTOR) as usize;
            asked("read", file.read_exact_at(&mut sector[..len], from))?;
            if sector[..len].iter().all(|byte| *byte == 0) {
                zeros.insert(from);
                continue;
            }
            match data.last_mut().filter(|last| last.1 == from) {
                Some(last) => last.1 = from + len as u64,
                None => data.push((from, from + len as u64)),
            }
        }
    }
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    let stat = asked("stat", statx(&file, "", flags, StatxFlags::BLOCKS))?;
    Ok(Blocks { data, zeros, blocks: stat.stx_blocks })
}

fn places(kernel: &[(PathBuf, Place)], ours: &[(PathBuf, Place)]) -> Vec<String> {
    let differ = kernel.iter().zip(ours).filter(|(theirs, own)| !theirs.1.is_like(&own.1));
    differ
        .map(|(theirs, own)| {
            let path = theirs.0.display();
            format!("/{path}: have {:?}, expect {:?}", own.1, theirs.1)
        })
        .collect()
}
