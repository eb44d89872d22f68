//! The error of a process in the background whose last commit failed.
//!
//! Nobody listens to such a process any more, but whoever unmounts waits for it to end. So it writes
//! the reason into a file, before it lets go of the device; and `unmount` reads it and removes it. The file is in the directory that
//! the system gives each user for running programs, or where there is none (containers, `su`), in /tmp or in his home, whichever
//! takes it first. It is named by the
//! number of the mount and of the image, for the number of the mount is free again before the last
//! commit, and the next mount may get it. Only a file of the mount's owner or of root is believed.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::protocol::mounts::MountEntry;

/// Longest word that is read, in bytes.
const BYTES_MAX: u64 = 4096;

/// Where the last error of a mount lies, if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LastError {
    /// Where it may lie, the best place first.
    paths: Vec<PathBuf>,
    owner: u32,
}

/// Where the programs of a user may leave something for each other.
fn directories(owner: u32) -> Vec<PathBuf> {
    if owner == 0 {
        return vec!["/run".into()];
    }
    let own = rustix::process::geteuid().as_raw() == owner;
    let home = env::var_os("HOME").filter(|home| own && !home.is_empty()).map(PathBuf::from);
    let places = [format!("/run/user/{owner}").into(), "/tmp".into()];
    places.into_iter().chain(home).collect()
}

impl LastError {
    /// That of a mount; `None` where nobody owns it. To be asked for while the image has its name.
    pub(crate) fn of(mount: &MountEntry) -> Option<Self> {
        let owner = mount.owner?;
        let (major, minor) = mount.device;
        let image = fs::metadata(&mount.source).map_or(0, |image| image.ino());
        let name = format!(".buttress-{major}-{minor}-{image}.failed");
        let paths = directories(owner).iter().map(|directory| directory.join(&name)).collect();
        Some(Self { paths, owner })
    }

    /// Leaves the error.
    pub(crate) fn leave(&self, said: &str) {
        let write = |path: &PathBuf| {
            let file = fs::OpenOptions::new().write(true).create_new(true).open(path);
            file.and_then(|mut file| io::Write::write_all(&mut file, said.as_bytes()))
        };
        let left: Vec<_> = self.paths.iter().map_while(|path| write(path).err()).collect();
        if left.len() == self.paths.len() {
            let why = left.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            eprintln!("buttress: nothing can be left for who unmounts: {why}");
        }
    }

    /// Reads and removes it.
    pub(crate) fn take(&self) -> Option<String> {
        // Those of earlier mounts go, too.
        let said: Vec<String> = self.paths.iter().filter_map(|path| self.take_at(path)).collect();
        // One for which there was no room is no word.
        said.into_iter().find(|said| !said.is_empty())
    }

    fn take_at(&self, path: &Path) -> Option<String> {
        let found = fs::symlink_metadata(path).ok()?;
        if !found.is_file() || found.uid() != self.owner || found.len() > BYTES_MAX {
            return None;
        }
        let said = fs::read_to_string(path).ok()?;
        let _stays_until_the_next = fs::remove_file(path);
        Some(said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lies_where_there_is_a_place() {
        let place = tempfile::tempdir().unwrap();
        let owner = rustix::process::geteuid().as_raw();
        let at = |name: &str| place.path().join(name);
        fs::create_dir(at("taken")).unwrap();
        let error = LastError { paths: vec![at("not there/word"), at("taken"), at("word")], owner };
        assert_eq!(error.take(), None);
        error.leave("why");
        assert_eq!(fs::read_to_string(at("word")).unwrap(), "why");
        assert_eq!(error.take().as_deref(), Some("why"));
        assert!(!at("word").exists() && at("taken").is_dir());
        assert_eq!(error.take(), None);
        // What somebody else has left is not believed.
        let stranger = LastError { owner: owner + 1, ..error.clone() };
        error.leave("why");
        assert_eq!(stranger.take(), None);
    }
}
