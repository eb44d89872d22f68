//! Files by path: bytes, names separated by slashes, across subvolumes, through symbolic links.

use std::borrow::Cow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::Filesystem;
use super::types::{FileKind, Node};
use crate::error::{Errno, Error, Result};

/// Symbolic links that one path may go through.
const LINKS_MAX: u32 = 40;

impl Filesystem {
    /// What `path` leads to, from the top directory of the filesystem; a symbolic link at its end is followed.
    pub fn resolve(&self, path: impl AsRef<Path>) -> Result<Node> {
        self.resolve_at(Node::ROOT, path.as_ref().as_os_str().as_bytes(), true)
    }

    /// The directory that holds what `path` leads to, or would, and the last name. EBUSY for the top directory, and names
    /// that are `.` or `..`.
    pub fn resolve_parent(&self, path: impl AsRef<Path>) -> Result<(Node, Vec<u8>)> {
        self.resolve_parent_at(Node::ROOT, path.as_ref().as_os_str().as_bytes())
    }

    /// [`Filesystem::resolve_parent`] from a directory on.
    pub fn resolve_parent_at(&self, start: Node, path: &[u8]) -> Result<(Node, Vec<u8>)> {
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let path = &path[..end];
        let (dir, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash + 1], &path[slash + 1..]),
            None => (&[][..], path),
        };
        if matches!(name, b"" | b"." | b"..") {
            return Err(Error::User(Errno::BUSY));
        }
        let (dir, kind) = self.walk(start, dir, true)?;
        self.must_be_directory(dir, kind)?;
        Ok((dir, name.to_vec()))
    }

    /// What `path` leads to from the directory `start` on; a path that starts with a slash starts at the top directory of
    /// the filesystem. `follow`: a symbolic link at its end, too.
    pub fn resolve_at(&self, start: Node, path: &[u8], follow: bool) -> Result<Node> {
        self.walk(start, path, follow).map(|(node, _)| node)
    }

    /// The same, and of what kind that is, where a name or the path says so.
    fn walk(&self, start: Node, path: &[u8], follow: bool) -> Result<(Node, Option<FileKind>)> {
        let (mut at, mut kind) = (start, None);
        if path.starts_with(b"/") {
            (at, kind) = (Node::ROOT, Some(FileKind::Directory));
        }
        // Names still to be gone through, the next one last.
        let mut names: Vec<Cow<'_, [u8]>> = split(path).map(Cow::Borrowed).collect();
        let mut must_be_directory = names_a_directory(path);
        let mut links = 0;
        while let Some(name) = names.last() {
            if **name == *b".." {
                names.pop();
                at = self.parent(at)?;
                kind = Some(FileKind::Directory);
                continue;
            }
            let (dir, node, found) =
                self.inner().read(|op| self.inner().descend(op, at, &mut names))?;
            let last = names.is_empty();
            if found != FileKind::Symlink || (last && !follow && !must_be_directory) {
                if !last && found != FileKind::Directory {
                    return Err(Error::User(Errno::NOTDIR));
                }
                (at, kind) = (node, Some(found));
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(Error::User(Errno::LOOP));
            }
            let target = self.read_link(node)?;
            at = if target.starts_with(b"/") { Node::ROOT } else { dir };
            kind = None;
            must_be_directory |= last && names_a_directory(&target);
            names.extend(split(&target).map(|name| Cow::Owned(name.to_vec())));
        }
        if must_be_directory {
            self.must_be_directory(at, kind)?;
            kind = Some(FileKind::Directory);
        }
        Ok((at, kind))
    }

    /// By the kind that the entry says, where one was gone by: who uses the node looks for himself.
    fn must_be_directory(&self, node: Node, kind: Option<FileKind>) -> Result<()> {
        let is_directory = match kind {
            Some(kind) => kind == FileKind::Directory,
            None => self.attributes(node)?.kind == FileKind::Directory,
        };
        if is_directory { Ok(()) } else { Err(Error::User(Errno::NOTDIR)) }
    }
}

/// Whether what a path leads to can only be a directory: it ends with a slash, or a name that stands for its directory.
pub(super) fn names_a_directory(path: &[u8]) -> bool {
    path.ends_with(b"/") || path.ends_with(b"/.")
}

/// The names in a path, the last one first.
fn split(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.rsplit(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."))
}
