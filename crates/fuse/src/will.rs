//! The last word of a process in the background whose last commit failed.
//!
//! Nobody listens to such a process any more, but whoever unmounts waits for it to end. So it writes
//! the reason into a file of the directory that the system gives each user for running programs,
//! before it lets go of the device; and `unmount` reads it and removes it. The file is named by the
//! number of the mount and of the image, for the number of the mount is free again before the last
//! commit, and the next mount may get it. Only a file of the mount's owner or of root is believed.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::protocol::mounts::MountEntry;

/// Longest word that is read, in bytes.
const BYTES_MAX: u64 = 4096;

/// Where the last word about a mount lies, if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Will {
    path: PathBuf,
    owner: u32,
}

impl Will {
    /// That of a mount; `None` where its owner has no place for such a file. To be asked for while the image has its name.
    pub(crate) fn of(mount: &MountEntry) -> Option<Self> {
        let owner = mount.owner?;
        let directory = match owner {
            0 => PathBuf::from("/run"),
            user => PathBuf::from(format!("/run/user/{user}")),
        };
        let (major, minor) = mount.device;
        let image = fs::metadata(&mount.source).map_or(0, |image| image.ino());
        let name = format!("buttress-{major}-{minor}-{image}.failed");
        directory.is_dir().then(|| Self { path: directory.join(name), owner })
    }

    /// Leaves the last word.
    pub(crate) fn leave(&self, said: &str) {
        let left = fs::OpenOptions::new().write(true).create_new(true).open(&self.path);
        let left = left.and_then(|mut file| io::Write::write_all(&mut file, said.as_bytes()));
        if let Err(error) = left {
            eprintln!("buttress: {}: {error}", self.path.display());
        }
    }

    /// Reads and removes it.
    pub(crate) fn take(&self) -> Option<String> {
        let found = fs::symlink_metadata(&self.path).ok()?;
        if !found.is_file() || found.uid() != self.owner || found.len() > BYTES_MAX {
            return None;
        }
        let said = fs::read_to_string(&self.path).ok()?;
        let _stays_until_the_next = fs::remove_file(&self.path);
        Some(said)
    }
}
