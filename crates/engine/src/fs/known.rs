//! What tools ask of single files: how their content is stored, and under which paths they are known.

use super::{Filesystem, Inner, Node};
use crate::error::{Errno, Error, Result};
use crate::inode::file::Stored;

/// Parts of a file that are looked up before others may end the transaction.
const PARTS: usize = 1024;
/// Bytes of the longest path that is told.
const PATH_LEN_MAX: usize = 16 << 20;

impl Filesystem {
    /// How the content of a regular file is stored, part by part in the order of their offsets, until `each` answers `false`;
    /// holes are no parts, and neither is what is in memory only. EISDIR for directories, EINVAL for what is no file. Other
    /// operations and commits go on meanwhile: what they change behind the last part given is given as it is then.
    pub fn stored(&self, node: Node, mut each: impl FnMut(Stored) -> bool) -> Result<()> {
        let mut from = Some(0);
        while let Some(start) = from {
            let (parts, next) = self.stored_from(node, start, PARTS)?;
            if !parts.into_iter().all(&mut each) {
                return Ok(());
            }
            from = next;
        }
        Ok(())
    }

    /// The same from an offset on, so many parts at most (one at least), and where to go on: `None` at the end. The offset is 0 or what
    /// an answer said.
    pub fn stored_from(
        &self,
        node: Node,
        from: u64,
        most: usize,
    ) -> Result<(Vec<Stored>, Option<u64>)> {
        let inner = self.inner();
        inner.read(|op| {
            let (subvolume, inode) = inner.find(op, node)?;
            subvolume.tree.stored(op, &inode, from, most.max(1))
        })
    }

    /// All paths of a file inside its subvolume, one for each of its names, without a slash in front; `..` for the
    /// subvolume's top directory. None for a file without names. ENOENT when there is no such file.
    pub fn paths_in_subvolume(&self, node: Node) -> Result<Vec<Vec<u8>>> {
        let (mut paths, mut last) = (Vec::new(), None);
        for (directory, name) in self.inner().names_of(node)? {
            let above = match last.take() {
                Some((known, path)) if known == directory => path,
                _ => self.inner().path_of_directory(Node { ino: directory, ..node })?,
            };
            paths.push(below(&above, &name));
            last = Some((directory, above));
        }
        Ok(paths)
    }

    /// The first of these paths.
    pub fn first_path_in_subvolume(&self, node: Node) -> Result<Option<Vec<u8>>> {
        let Some((directory, name)) = self.inner().names_of(node)?.into_iter().next() else {
            return Ok(None);
        };
        let above = self.inner().path_of_directory(Node { ino: directory, ..node })?;
        Ok(Some(below(&above, &name)))
    }
}

fn below(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory {
        b"" => name.to_vec(),
        _ => [directory, name].join(&b'/'),
    }
}

impl Inner {
    /// The directories that have a name of the file, and the names.
    fn names_of(&self, node: Node) -> Result<Vec<(u64, Vec<u8>)>> {
        self.read(|op| {
            let (subvolume, inode) = self.find(op, node)?;
            let all = subvolume.tree.names_of(op, &inode)?;
            Ok(all.into_iter().map(|(directory, _, name)| (directory, name)).collect())
        })
    }

    /// The path of a directory inside its subvolume, by the name that each directory knows of itself: none of those above is read. LOOP where
    /// they lead in a circle, which is known after twice its length, or up to a path longer than any.
    fn path_of_directory(&self, node: Node) -> Result<Vec<u8>> {
        let (mut names, mut at, mut len) = (Vec::new(), node, 0);
        // One that was met, and after how many steps the next one is taken for it.
        let (mut met, mut turn) = (node, 1);
        while !at.is_top() {
            let named = self.names_of(at)?.into_iter().next();
            let (above, name) = named.ok_or(Error::User(Errno::NOENT))?;
            len += name.len() + 1;
            names.push(name);
            at.ino = above;
            if len > PATH_LEN_MAX || at == met {
                return Err(Error::User(Errno::LOOP));
            }
            if names.len() == turn {
                (met, turn) = (at, turn * 2);
            }
        }
        names.reverse();
        Ok(names.join(&b'/'))
    }
}
