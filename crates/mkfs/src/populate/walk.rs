//! The first stage: one thread lists directories, sorted, and cuts the lists into batches.
//!
//! A directory's own entries come first, all of them, then those of its subdirectories in the same order. So a
//! directory is complete (and its times can be set) when its last batch is done, and inode numbers do not depend on the
//! order in which the source happens to list names.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::MkfsError;

/// Most entries in a batch.
const BATCH_LEN: usize = 64;

/// A directory of the source, by number in the order of their discovery; 0 is the top.
pub(crate) type DirId = u32;

/// A name in a source directory.
#[derive(Debug)]
pub(crate) struct Name {
    pub name: OsString,
    /// The number that a directory got.
    pub directory: Option<DirId>,
    /// The directory says that it is a regular file.
    pub regular: bool,
}

/// Part of the list of a directory.
#[derive(Debug)]
pub(crate) struct Listing {
    /// The directory.
    pub directory: DirId,
    /// Its path on the source.
    pub path: Arc<Path>,
    /// Some of its entries, in the order of their names.
    pub names: Vec<Name>,
    /// Whether there are no more.
    pub last: bool,
}

/// Lists a directory and all below it; stops early when `emit` says `false`.
pub(crate) fn walk(top: &Path, emit: &mut dyn FnMut(Result<Listing, MkfsError>) -> bool) {
    let mut next: DirId = 1;
    // Directories still to be listed, the next one last.
    let mut waiting: Vec<(DirId, PathBuf)> = vec![(0, top.to_path_buf())];
    while let Some((directory, path)) = waiting.pop() {
        let names = match list(&path, &mut next) {
            Ok(names) => names,
            Err(error) => {
                emit(Err(error));
                return;
            }
        };
        let below =
            names.iter().filter_map(|entry| Some((entry.directory?, path.join(&entry.name))));
        waiting.extend(below.rev());
        if !cut(directory, path.into(), names, emit) {
            return;
        }
    }
}

/// Emits a directory's list in batches; an empty one is one empty batch.
fn cut(
    directory: DirId,
    path: Arc<Path>,
    names: Vec<Name>,
    emit: &mut dyn FnMut(Result<Listing, MkfsError>) -> bool,
) -> bool {
    let mut names = names.into_iter().peekable();
    loop {
        let some: Vec<Name> = names.by_ref().take(BATCH_LEN).collect();
        let last = names.peek().is_none();
        if !emit(Ok(Listing { directory, path: path.clone(), names: some, last })) {
            return false;
        }
        if last {
            return true;
        }
    }
}

/// The entries of one directory, in the order of their names.
fn list(path: &Path, next: &mut DirId) -> Result<Vec<Name>, MkfsError> {
    let failed = |error| MkfsError::source("list", path, error);
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        entries.push((entry.file_name(), kind.is_dir(), kind.is_file()));
    }
    entries.sort_unstable();
    let mut number = |is_dir: bool| {
        is_dir.then(|| {
            let id = *next;
            *next += 1;
            id
        })
    };
    let named = |(name, is_dir, regular)| Name { name, directory: number(is_dir), regular };
    Ok(entries.into_iter().map(named).collect())
}
