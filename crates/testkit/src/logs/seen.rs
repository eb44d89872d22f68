//! What a kernel mount shows of a tree beyond [`facts`](crate::facts): inode numbers, all times, blocks, flags, and the order of names.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, StatxTimestamp, ioctl_getflags, statx};

use super::make::text;
use super::moment::{Moment, OF_REPLAY};
use crate::facts::{Facts, diff, facts_of_dir};

/// All that a mount shows.
#[derive(Debug)]
pub struct Seen {
    /// What can be compared with the library, too.
    pub facts: Facts,
    /// The rest, by path.
    rest: BTreeMap<PathBuf, String>,
}

impl Seen {
    /// Of the tree at `top`.
    pub fn of(top: &Path, then: Moment) -> Result<Seen, String> {
        let facts = then.of_facts(text(facts_of_dir(top))?);
        let mut rest = BTreeMap::new();
        let mut waiting = vec![(PathBuf::from("/"), top.to_owned())];
        while let Some((name, path)) = waiting.pop() {
            let (line, names) = text(look(&path, then))?;
            waiting.extend(names.into_iter().map(|it| (name.join(&it), path.join(&it))));
            rest.insert(name, line);
        }
        Ok(Seen { facts, rest })
    }

    /// What differs from what is expected, a line for each.
    pub fn differs(&self, expect: &Seen) -> Vec<String> {
        let mut lines = diff(&self.facts, &expect.facts);
        for (path, wanted) in &expect.rest {
            match self.rest.get(path) {
                Some(found) if found != wanted => {
                    lines.push(format!("{}: have {found}, expect {wanted}", path.display()));
                }
                _ => {}
            }
        }
        lines
    }
}

/// The line about a path, and the names in it.
fn look(path: &Path, then: Moment) -> std::io::Result<(String, Vec<std::ffi::OsString>)> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let stat = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, wanted)?;
    let time = |of: StatxTimestamp| match then.of((of.tv_sec, of.tv_nsec)) {
        OF_REPLAY => "of the replay".to_owned(),
        (sec, nsec) => format!("{sec}.{nsec:09}"),
    };
    let made_up = stat.stx_ino == crate::facts::EMPTY_SUBVOLUME_INODE;
    let mut line = format!("inode {} blocks {}", stat.stx_ino, stat.stx_blocks);
    if !made_up {
        let times = [stat.stx_atime, stat.stx_mtime, stat.stx_ctime, stat.stx_btime].map(time);
        line += &format!(" times {}", times.join(", "));
    }
    let kind = u32::from(stat.stx_mode) & 0o170_000;
    let mut names = Vec::new();
    if kind == 0o100_000 || kind == 0o040_000 {
        line += &format!(" flags {:x}", ioctl_getflags(File::open(path)?)?.bits());
    }
    if kind == 0o040_000 {
        for entry in std::fs::read_dir(path)? {
            names.push(entry?.file_name());
        }
        let order: Vec<_> = names.iter().map(|it| it.to_string_lossy()).collect();
        let digest = xxhash_rust::xxh64::xxh64(
            &names
                .iter()
                .flat_map(|it| it.as_bytes().iter().chain(b"/"))
                .copied()
                .collect::<Vec<_>>(),
            0,
        );
        line += &match order.len() {
            0..=20 => format!(" order [{}]", order.join(" ")),
            many => format!(" order of {many} names {digest:016x}"),
        };
    }
    Ok((line, names))
}
