//! The end of a mount, as whoever ends it sees it.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::daemon::MountError;
use crate::holder::{Outcome, Server, are_of, is_dead, is_seen, wait_for_last_commit};
use crate::last_word::Heard;
use crate::protocol::connect::{ConnectError, disconnect};
use crate::protocol::mounts::{self, MountEntry};

/// Takes a mount off. With `wait`, returns only when its last commit is on the device and its process has closed that; that
/// it failed, or that its process had gone before, is an error, though the mount is gone.
pub fn unmount(mountpoint: &Path, lazy: bool, wait: bool) -> Result<(), MountError> {
    // A path whose server died cannot be resolved, but is a mount point all the same.
    let path = mountpoint.canonicalize().or_else(|_| std::path::absolute(mountpoint))?;
    let entry = mounts::at(&path)?.filter(mounts::MountEntry::is_ours);
    let entry = entry.ok_or_else(|| MountError::NotMounted(mountpoint.to_owned()))?;
    match !wait || lazy {
        true => detach(&entry, lazy),
        false => take_off(&entry, true),
    }
}

/// Takes it off without a look at what its process does then.
fn detach(entry: &MountEntry, lazy: bool) -> Result<(), MountError> {
    let dead = is_dead(entry);
    disconnect(&entry.mountpoint, lazy)?;
    if dead { gone_before(entry) } else { Ok(()) }
}

/// What a process wrote that did not come to its last commit is lost, and nobody else is left to say so.
fn gone_before(entry: &MountEntry) -> Result<(), MountError> {
    match entry.never_writes {
        true => Ok(()),
        false => Err(MountError::Died { image: entry.source.clone() }),
    }
}

/// Takes off all mounts of an image or disk, given by its whole path, the newest first. Each one's directory, and how it went: what is busy stays, and
/// the others go. With the last one it is waited for as by [`unmount`].
pub fn unmount_all(source: &Path, lazy: bool) -> Result<Vec<Unmounted>, MountError> {
    let mut all = mounts::all()?;
    all.retain(MountEntry::is_ours);
    let all = are_of(source, all);
    let mut ended = Vec::new();
    for entry in all.into_iter().rev() {
        // It may have gone with another one, of which it was a copy.
        if mounts::all()?.iter().any(|other| other.is(&entry)) {
            let done = take_off_this(&entry, lazy);
            ended.push((entry.mountpoint, done));
        }
    }
    Ok(ended)
}

/// A directory that was a mount point, and whether it still is.
pub type Unmounted = (PathBuf, Result<(), MountError>);

/// Takes off this mount and no other that covers it.
fn take_off_this(entry: &MountEntry, lazy: bool) -> Result<(), MountError> {
    let path = entry.mountpoint.clone();
    if !mounts::at(&path)?.is_some_and(|top| top.is(entry)) {
        return Err(ConnectError::Unmount { path, reason: Errno::BUSY }.into());
    }
    match lazy {
        true => detach(entry, true),
        false => take_off(entry, false),
    }
}

/// Takes it off and waits. `tells`: also says where the same stays mounted.
fn take_off(entry: &MountEntry, tells: bool) -> Result<(), MountError> {
    if is_dead(entry) {
        return detach(entry, false);
    }
    let server = Server::of(entry);
    disconnect(&entry.mountpoint, false)?;
    wait_for_end(entry, server.as_ref(), tells)
}

/// Waits until the process of a mount that has gone has let go of the device.
fn wait_for_end(
    entry: &MountEntry,
    server: Option<&Server>,
    tells: bool,
) -> Result<(), MountError> {
    let say = |text: &str| eprintln!("buttress: {}: {text}", entry.mountpoint.display());
    if let Some(at) = elsewhere(entry) {
        // Another subvolume goes on by itself.
        if tells && at.root == entry.root {
            say(&format!("it stays mounted on {}", at.mountpoint.display()));
        }
        return Ok(());
    }
    let Some(server) = server else {
        // Another user's, perhaps; its lock on the image tells.
        wait_for_last_commit(&entry.source, 0, say);
        if !entry.never_writes {
            say("whether its last changes are written cannot be seen from here");
        }
        return Ok(());
    };
    match server.wait(say) {
        Outcome::Closed => return last_word(entry, server),
        Outcome::Serves if is_seen(entry) => say("it stays mounted in another mount namespace"),
        Outcome::Serves => return Err(MountError::StillWrites { pid: server.pid() }),
        Outcome::StillWrites(pid) => return Err(MountError::StillWrites { pid }),
    }
    Ok(())
}

/// What has become of the last commit.
fn last_word(entry: &MountEntry, server: &Server) -> Result<(), MountError> {
    match server.heard() {
        Some(Heard::Written) | None => Ok(()),
        Some(Heard::Failed(said)) => Err(MountError::LastCommit { said }),
        Some(Heard::Nothing) => gone_before(entry),
    }
}

/// Another place where the same filesystem is mounted by the same process; one that shows the same, if there is one.
fn elsewhere(entry: &MountEntry) -> Option<MountEntry> {
    let mut all = mounts::all().ok()?;
    all.retain(|other| {
        other.is_ours() && other.device == entry.device && other.source == entry.source
    });
    let same = all.iter().position(|other| other.root == entry.root);
    (!all.is_empty()).then(|| all.swap_remove(same.unwrap_or_default()))
}
