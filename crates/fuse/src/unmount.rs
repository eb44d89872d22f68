//! The end of a mount, as whoever ends it sees it.

use std::path::Path;

use crate::daemon::MountError;
use crate::holder::{Outcome, Server, wait_for_last_commit};
use crate::protocol::connect::disconnect;
use crate::protocol::mounts::{self, MountEntry};
use crate::will::Will;

/// Takes a mount off. With `wait`, returns only when its last commit is on the device and its process has closed that; that
/// it failed is an error, though the mount is gone.
pub fn unmount(mountpoint: &Path, lazy: bool, wait: bool) -> Result<(), MountError> {
    // A path whose server died cannot be resolved, but is a mount point all the same.
    let path = mountpoint.canonicalize().or_else(|_| std::path::absolute(mountpoint))?;
    let entry = mounts::at(&path)?.filter(mounts::MountEntry::is_ours);
    let entry = entry.ok_or_else(|| MountError::NotMounted(mountpoint.to_owned()))?;
    if !wait || lazy {
        return Ok(disconnect(&path, lazy)?);
    }
    let server = Server::of(&entry);
    disconnect(&path, false)?;
    wait_for_end(&entry, server.as_ref())?;
    match Will::of(&entry).as_ref().and_then(Will::take) {
        Some(said) => Err(MountError::LastCommit { said }),
        None => Ok(()),
    }
}

/// Waits until the process of a mount that has gone has let go of the device.
fn wait_for_end(entry: &MountEntry, server: Option<&Server>) -> Result<(), MountError> {
    let say = |text: &str| eprintln!("buttress: {}: {text}", entry.mountpoint.display());
    if let Some(at) = elsewhere(entry) {
        // Another subvolume goes on by itself.
        if at.root != entry.root {
            return Ok(());
        }
        say(&format!("it stays mounted on {}", at.mountpoint.display()));
        return Ok(());
    }
    let Some(server) = server else {
        // Another user's, perhaps; its lock on the image tells.
        wait_for_last_commit(&entry.source, say);
        return Ok(());
    };
    match server.wait(say) {
        Outcome::Closed => {}
        Outcome::Serves => say("it stays mounted in another mount namespace"),
        Outcome::StillWrites(pid) => return Err(MountError::StillWrites { pid }),
    }
    Ok(())
}

/// Another place where the same filesystem is mounted by the same process; one that shows the same, if there is one.
fn elsewhere(entry: &MountEntry) -> Option<MountEntry> {
    let mut all = mounts::all().ok()?;
    all.retain(|other| other.is_ours() && other.device == entry.device);
    let same = all.iter().position(|other| other.root == entry.root);
    (!all.is_empty()).then(|| all.swap_remove(same.unwrap_or_default()))
}
