//! `--subvol TYPE:DIR`: directories of the source that become subvolumes.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use crate::MkfsError;

/// What kind of subvolume a directory becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubvolumeKind {
    /// It is read-only once it is filled.
    pub read_only: bool,
    /// It is what a mount without `subvol=` shows.
    pub default: bool,
}

/// A directory of the source that becomes a subvolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subvolume {
    /// The directory, relative to the top of the source, without `.` and `..`.
    pub path: PathBuf,
    /// What it becomes.
    pub kind: SubvolumeKind,
}

/// Reads `[TYPE:]DIR`, where the type is `rw` (which is what none means), `ro`, `default` or `default-ro`.
pub fn parse_subvolume(text: &std::ffi::OsStr) -> Result<Subvolume, MkfsError> {
    let kind = |read_only, default| SubvolumeKind { read_only, default };
    let bytes = text.as_bytes();
    let (kind, path) = match bytes.iter().position(|byte| *byte == b':') {
        None => (kind(false, false), bytes),
        Some(at) => match bytes.split_at(at) {
            (b"rw", path) => (kind(false, false), path),
            (b"ro", path) => (kind(true, false), path),
            (b"default", path) => (kind(false, true), path),
            (b"default-ro", path) => (kind(true, true), path),
            _ => return Err(refuse(text, "unknown subvolume type")),
        },
    };
    let path = OsString::from_vec(path.strip_prefix(b":").unwrap_or(path).to_vec());
    Ok(Subvolume { path: relative(Path::new(&path)).ok_or(refuse(text, BAD_PATH))?, kind })
}

const BAD_PATH: &str = "it does not name a directory below the top of the source";

pub(crate) fn refuse(text: impl AsRef<std::ffi::OsStr>, why: &'static str) -> MkfsError {
    MkfsError::Subvolume { text: text.as_ref().to_string_lossy().into_owned(), why }
}

/// A path below the top without `.`, `/` in front, or `..`; `None` for the top itself and what leads out of it.
fn relative(path: &Path) -> Option<PathBuf> {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    (!clean.as_os_str().is_empty()).then_some(clean)
}

/// Refuses two subvolumes at one place, more than one default, and directories that are not there.
pub(crate) fn check(top: &Path, subvolumes: &[Subvolume]) -> Result<(), MkfsError> {
    for (index, subvolume) in subvolumes.iter().enumerate() {
        let earlier = || subvolumes.iter().take(index);
        if earlier().any(|other| other.path == subvolume.path) {
            return Err(refuse(&subvolume.path, "it is named twice"));
        }
        if subvolume.kind.default && earlier().any(|other| other.kind.default) {
            return Err(refuse(&subvolume.path, "there can be only one default subvolume"));
        }
        let path = top.join(&subvolume.path);
        let found = path.symlink_metadata().map_err(|e| MkfsError::source("find", &path, e))?;
        if !found.is_dir() {
            return Err(refuse(&subvolume.path, "it is not a directory"));
        }
    }
    Ok(())
}
