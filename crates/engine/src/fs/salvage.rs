//! What is left of a directory some blocks of which cannot be read. Each name is in the tree twice, by its index and by its hash, and a subvolume's in the
//! root tree besides: what one has lost the others may have. For reading only.

use std::collections::HashSet;
use std::ops::ControlFlow;

use super::Inner;
use super::types::{Entry, FileKind, Node};
use crate::error::{Error, Result};
use crate::inode::Location;
use crate::subvol::Subvolume;
use crate::txn::Op;

impl Inner {
    /// Lists what listing by index has not come to. `told` hears of what cannot be found.
    pub(super) fn list_lost(
        &self,
        dir: Node,
        told: &mut dyn FnMut(Error),
        each: &mut dyn FnMut(Entry) -> bool,
    ) -> Result<()> {
        let mut seen = HashSet::new();
        self.list_all(dir, 0, &mut |_| Ok(()), &mut |entry| {
            seen.insert(entry.name);
            true
        })?;
        let mut found = self.read(|op| {
            let (subvolume, inode) = self.find(op, dir)?;
            let mut names = Vec::new();
            subvolume.tree.names_by_hash(op, &inode, &mut |name| {
                if seen.insert(name.to_vec()) {
                    names.push(name.to_vec());
                }
            })?;
            let mut found = Vec::new();
            for name in names {
                match self.lookup_by_hash(op, &subvolume, dir, &name) {
                    Ok(Some((node, kind))) => found.push(Entry { name, index: 0, node, kind }),
                    Ok(None) => {}
                    Err(why) => told(why),
                }
            }
            Ok(found)
        })?;
        let subvolumes = self.each_subvolume_in(dir, &mut |name, node| {
            if seen.insert(name.to_vec()) {
                let name = name.to_vec();
                found.push(Entry { name, index: 0, node, kind: FileKind::Directory });
            }
        });
        if let Err(why) = subvolumes {
            told(why);
        }
        found.into_iter().all(each);
        Ok(())
    }

    /// What a name leads to that cannot be looked up by its hash.
    pub(super) fn lookup_lost(
        &self,
        op: &Op<'_>,
        subvolume: &Subvolume,
        dir: Node,
        name: &[u8],
    ) -> Result<Option<(Node, FileKind)>> {
        let mut found = None;
        // Where the root tree cannot be read either, the index may have it all the same.
        let _as_far_as_it_goes = self.each_subvolume_in(dir, &mut |other, node| {
            if other == name {
                found = Some((node, FileKind::Directory));
            }
        });
        if found.is_some() {
            return Ok(found);
        }
        let inode = subvolume.tree.get(op, dir.ino)?;
        let mut location: Option<(Location, u8)> = None;
        subvolume.tree.read_directory_past(op, &inode, 0, &mut |_| Ok(()), |entry| {
            if entry.name != name {
                return ControlFlow::Continue(());
            }
            location = Some((entry.location, entry.file_type));
            ControlFlow::Break(())
        })?;
        let Some((location, file_type)) = location else { return Ok(None) };
        let node = self.node_of(dir, name, location)?;
        Ok(Some((node, FileKind::of_entry(file_type))))
    }

    /// The subvolumes that a directory has, by what the root tree says of them, where that is wanted. Nothing changes meanwhile.
    fn each_subvolume_in(&self, dir: Node, each: &mut dyn FnMut(&[u8], Node)) -> Result<()> {
        let mut next = self.core.salvages.then_some(0);
        while let Some(from) = next {
            let (some, others) = self.forest.list(&self.core, from, &mut |_| Ok(()))?;
            let here = some.iter().filter(|it| {
                (it.parent, it.dir) == (dir.subvolume, dir.ino) && !it.name.is_empty()
            });
            here.for_each(|it| each(&it.name, Node::top(it.id)));
            next = others;
        }
        Ok(())
    }
}
