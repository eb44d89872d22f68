//! Which files have the data that a check has found bad: as the last commit has it, and as far as damage lets it be told.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress::{Filesystem, Node, Options, Referrer, WantedReferrers};
use buttress_check::{Issue, Kind};
use buttress_ondisk::SECTOR;
use buttress_volume::Volume;
use serde_json::{Value, json};

use crate::output;
use crate::quote::harmless;

/// Files that are named of one issue: those of the oldest subvolumes, as snapshots are younger than what they are of.
const FILES_MAX: usize = 8;
/// Files of one issue that are told apart.
const KNOWN_MAX: usize = 4096;
/// References that are looked at in all, so that a check does not take much longer where many snapshots share what is bad.
const REFERENCES_MAX: u64 = 1 << 20;

/// A file.
struct BadFile {
    it: Referrer,
    /// Its first path from the top level; `None` where it has none, or it cannot be told.
    path: Option<Vec<u8>>,
}

/// The files of one issue.
#[derive(Default)]
struct Found {
    named: Vec<BadFile>,
    /// How many more there are.
    more: usize,
    /// Whether there may be others that were not looked for.
    cut: bool,
}

/// The files of issues.
pub struct BadFiles {
    /// By the issue's place in the report.
    found: Vec<Found>,
}

/// Whether the issue is about the data of files.
fn is_data(issue: &Issue) -> bool {
    issue.kind == Kind::DataCsum
}

impl BadFiles {
    /// Of no issue.
    pub fn none() -> BadFiles {
        BadFiles { found: Vec::new() }
    }

    /// Of these, on a volume that was checked.
    pub fn of(volume: &Volume, issues: &[Issue]) -> BadFiles {
        if !issues.iter().any(is_data) {
            return BadFiles::none();
        }
        let options =
            Options::read_only().background(false).no_log_replay(true).ignore_bad_roots(true);
        let device = volume.devices().first().map(|member| Arc::clone(&member.device));
        let opened = device.and_then(|device| Filesystem::open_device(device, options).ok());
        let Some(fs) = opened else { return BadFiles::none() };
        let mut left = REFERENCES_MAX;
        let of = |issue: &Issue| match is_data(issue) {
            true => files_of(&fs, issue, &mut left),
            false => Found::default(),
        };
        BadFiles { found: issues.iter().map(of).collect() }
    }

    /// Lines about an issue.
    pub fn lines(&self, at: usize) -> Vec<String> {
        let line = |file: &BadFile| {
            let Referrer { tree, ino, .. } = file.it;
            match &file.path {
                Some(path) => {
                    let path = String::from_utf8_lossy(path);
                    format!("  in {} (inode {ino} of subvolume {tree})", harmless(&path))
                }
                None => format!("  in inode {ino} of subvolume {tree}"),
            }
        };
        let Some(found) = self.found.get(at) else { return Vec::new() };
        let more = (found.more > 0).then(|| format!("  in {} more", found.more));
        let cut =
            found.cut.then(|| "  perhaps in others: there are too many references".to_owned());
        found.named.iter().map(line).chain(more).chain(cut).collect()
    }

    /// The same for programs, how many more there are, and whether there may be others.
    pub fn json(&self, at: usize) -> Option<(Value, usize, bool)> {
        let found = self.found.get(at).filter(|found| !found.named.is_empty())?;
        let json = |file: &BadFile| {
            let path = file.path.as_ref().map(|path| output::text_json(path));
            json!({ "root": file.it.tree, "inode": file.it.ino, "path": path })
        };
        Some((found.named.iter().map(json).collect(), found.more, found.cut))
    }
}

/// The files of an issue: of its first sector, and of others as long as `left` references may be looked at.
fn files_of(fs: &Filesystem, issue: &Issue, left: &mut u64) -> Found {
    let (Some(logical), Some(len)) = (issue.place.logical, issue.place.len) else {
        return Found::default();
    };
    let mut known = BTreeMap::new();
    let mut cut = false;
    for sector in 0..len / SECTOR {
        if sector > 0 && (*left == 0 || known.len() >= KNOWN_MAX) {
            cut = true;
            break;
        }
        let logical = logical + sector * SECTOR;
        let wanted = WantedReferrers { logical, whole: false, most: KNOWN_MAX };
        *left = left.saturating_sub(1);
        let Ok(answer) = fs.referrers(wanted) else { continue };
        *left = left.saturating_sub(answer.found.len() as u64 + answer.left_out);
        cut |= answer.left_out > 0;
        known.extend(answer.found.into_iter().map(|it| ((it.tree, it.ino), it)));
    }
    let more = known.len().saturating_sub(FILES_MAX);
    let named = known.into_values().take(FILES_MAX);
    Found { named: named.map(|it| BadFile { it, path: path_of(fs, it) }).collect(), more, cut }
}

fn path_of(fs: &Filesystem, it: Referrer) -> Option<Vec<u8>> {
    let node = Node { subvolume: it.tree, ino: it.ino };
    let path = fs.first_path_in_subvolume(node).ok().flatten()?;
    let subvolume = fs.subvolume_path(it.tree).ok()?;
    let parts = [&subvolume[..], &path[..]];
    let parts = parts.map(|part| part.strip_prefix(b"/").unwrap_or(part));
    let parts: Vec<&[u8]> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    Some([b"/", &parts.join(&b'/')[..]].concat())
}
