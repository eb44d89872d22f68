//! Which files have the data that a check has found bad: as the last commit has it, and as far as damage lets it be told.

use std::sync::Arc;

use buttress::{Filesystem, Node, Options, Referrer, WantedReferrers};
use buttress_check::{Issue, Kind};
use buttress_ondisk::SECTOR;
use buttress_volume::Volume;
use serde_json::{Value, json};

use crate::output;
use crate::quote::harmless;

/// Files that are named of one issue.
const FILES_MAX: usize = 8;
/// Sectors that are looked up, of all issues: what a check has found is not to wait for this.
const SECTORS_MAX: u64 = 4096;

/// A file.
struct BadFile {
    it: Referrer,
    /// Its first path from the top level; `None` where it has none, or it cannot be told.
    path: Option<Vec<u8>>,
}

/// The files of issues.
pub struct BadFiles {
    /// By the issue's place in the report.
    found: Vec<Vec<BadFile>>,
}

/// Whether the issue is about the data of files.
fn is_data(issue: &Issue) -> bool {
    matches!(issue.kind, Kind::DataCsum | Kind::DataCopy)
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
        let mut left = SECTORS_MAX;
        let of = |issue: &Issue| match is_data(issue) {
            true => files_of(&fs, issue, &mut left),
            false => Vec::new(),
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
        self.found.get(at).into_iter().flatten().map(line).collect()
    }

    /// The same for programs.
    pub fn json(&self, at: usize) -> Option<Value> {
        let files = self.found.get(at).filter(|files| !files.is_empty())?;
        let json = |file: &BadFile| {
            let path = file.path.as_ref().map(|path| output::text_json(path));
            json!({ "root": file.it.tree, "inode": file.it.ino, "path": path })
        };
        Some(files.iter().map(json).collect())
    }
}

fn files_of(fs: &Filesystem, issue: &Issue, left: &mut u64) -> Vec<BadFile> {
    let (Some(logical), Some(len)) = (issue.place.logical, issue.place.len) else {
        return Vec::new();
    };
    let mut files: Vec<BadFile> = Vec::new();
    for sector in 0..(len / SECTOR).min(*left) {
        *left -= 1;
        if files.len() == FILES_MAX {
            break;
        }
        let wanted =
            WantedReferrers { logical: logical + sector * SECTOR, whole: false, most: FILES_MAX };
        let Ok(answer) = fs.referrers(wanted) else { continue };
        for it in answer.found {
            let is_known =
                files.iter().any(|file| (file.it.tree, file.it.ino) == (it.tree, it.ino));
            if !is_known && files.len() < FILES_MAX {
                files.push(BadFile { it, path: path_of(fs, it) });
            }
        }
    }
    files.sort_unstable_by_key(|file| (file.it.tree, file.it.ino));
    files
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
