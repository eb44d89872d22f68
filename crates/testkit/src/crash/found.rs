//! What a filesystem holds, read into a model: where a crash leaves a choice, nothing that is known beforehand can be compared
//! with it as a whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress::{Attributes, Entry, Errno, FileKind, Filesystem, Node, Seek, Times};

use crate::model::{Body, Content, Directory, Inode, Model, Target, Volume};
use crate::ops::compare::mode_of_quotas;
use crate::ops::run::{Result, engine, fail};

/// Bytes that are read at a time.
const READ_LEN: u64 = 256 << 10;

/// Everything that can be reached by names.
pub fn model(fs: &Filesystem, nodesize: u32) -> Result<Model> {
    let root = Node::ROOT;
    let mut model = Model::new(root, inode(fs, root)?, nodesize);
    model.quotas = mode_of_quotas(fs)?;
    for info in engine("list of subvolumes", fs.subvolumes())? {
        let place = (Node { subvolume: info.parent, ino: info.dir }, info.name.clone());
        let (read_only, place) = (info.is_read_only(), Some(place));
        model.volumes.insert(info.id, Volume { inodes: BTreeMap::new(), read_only, place });
    }
    let mut rest = vec![(root, root)];
    while let Some((node, parent)) = rest.pop() {
        if node.is_stub() || node != root && model.inode(node).is_some() {
            continue;
        }
        let mut found = inode(fs, node)?;
        if let Body::Directory(dir) = &mut found.body {
            dir.parent = if node.is_top() { node.ino } else { parent.ino };
            let targets = dir.entries.values().map(|(target, _)| *target);
            rest.extend(targets.map(|target| (Model::node_of(node.subvolume, target), node)));
        }
        let Some(volume) = model.volumes.get_mut(&node.subvolume) else {
            return fail(format!("{node:?} is in no subvolume"));
        };
        volume.inodes.insert(node.ino, Arc::new(found));
    }
    Ok(model)
}

fn inode(fs: &Filesystem, node: Node) -> Result<Inode> {
    let found = engine("attributes", fs.attributes(node))?;
    let Attributes { mode, uid, gid, nlink, atime, mtime, ctime, otime, .. } = found;
    let body = match found.kind {
        FileKind::Regular => Body::File(content(fs, node, found.size)?),
        FileKind::Directory => Body::Directory(directory(fs, node)?),
        FileKind::Symlink => Body::Link(engine("read link", fs.read_link(node))?),
        kind => Body::Special(kind, found.rdev),
    };
    let times = Times { atime, mtime, ctime, otime };
    let inode = Inode { mode, uid, gid, nlink, times, xattrs: xattrs(fs, node)?, body };
    match inode.size() == found.size {
        true => Ok(inode),
        false => fail(format!("{node:?} has size {} and {} bytes", found.size, inode.size())),
    }
}

fn xattrs(fs: &Filesystem, node: Node) -> Result<BTreeMap<Vec<u8>, Arc<[u8]>>> {
    let mut found = BTreeMap::new();
    for name in engine("list of xattrs", fs.list_xattrs(node))? {
        let Some(value) = engine("xattr", fs.get_xattr(node, &name))? else {
            return fail(format!("xattr {} of {node:?} is only listed", name.escape_ascii()));
        };
        found.insert(name, value.into());
    }
    Ok(found)
}

fn directory(fs: &Filesystem, node: Node) -> Result<Directory> {
    let mut found = Directory::default();
    let mut listed: Vec<Entry> = Vec::new();
    engine(
        "list",
        fs.read_dir(node, 0, &mut |entry| {
            listed.push(entry);
            true
        }),
    )?;
    for entry in listed {
        let looked = engine("lookup", fs.lookup(node, &entry.name))?;
        if looked.is_none_or(|it| (it.node, it.kind) != (entry.node, entry.kind)) {
            return fail(format!("{node:?} lists {entry:?}, and nothing has that name"));
        }
        let target = match entry.node {
            to if to.is_stub() => Target::Stub(to.stands_for()),
            to if to.subvolume == node.subvolume => Target::Inode(to.ino),
            to => Target::Subvolume(to.subvolume),
        };
        found.add(&entry.name, target);
    }
    Ok(found)
}

fn content(fs: &Filesystem, node: Node, size: u64) -> Result<Content> {
    let (mut found, mut at) = (Content::default(), 0);
    let seek = |at, what| match fs.seek(node, at, what) {
        Err(error) if error.errno() == Errno::NXIO => Ok(None),
        found => engine("seek", found).map(Some),
    };
    while let Some(start) = seek(at, Seek::Data)? {
        let end = seek(start, Seek::Hole)?.unwrap_or(size);
        if end <= start {
            return fail(format!("data of {node:?} from {start} to {end}"));
        }
        at = start;
        while at < end {
            let mut bytes = vec![0x5a; (end - at).min(READ_LEN) as usize];
            let read = engine("read", fs.read(node, at, &mut bytes))?;
            if read != bytes.len() {
                return fail(format!("read {read} bytes of {} at {at} of {node:?}", bytes.len()));
            }
            found.write(at, &bytes);
            at += read as u64;
        }
    }
    found.resize(size);
    Ok(found)
}
