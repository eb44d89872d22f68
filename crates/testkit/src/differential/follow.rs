//! The model follows what both filesystems did, so that the generator has something to choose from.

use buttress::{Change, FileKind, Node, Time, Times};

use super::calls::Answer;
use super::directory;
use crate::model::{Body, Content, Inode, Model, Range, Target};
use crate::ops::rng::bytes;
use crate::ops::{Make, Op};

/// Whether an operation is about a handle that holds nothing.
pub fn has_nothing(model: &Model, op: &Op) -> bool {
    let empty = |at: &str| {
        let handle = at.strip_prefix('@').and_then(|number| number.parse().ok());
        handle.is_some_and(|handle: u8| !model.handles.contains_key(&handle))
    };
    match op {
        Op::Link { from, to } | Op::Clone { from, to, .. } => empty(from) || empty(to),
        Op::Write { at, .. }
        | Op::Read { at, .. }
        | Op::Truncate { at, .. }
        | Op::Allocate { at, .. }
        | Op::SetXattr { at, .. }
        | Op::RemoveXattr { at, .. }
        | Op::Chmod { at, .. }
        | Op::Chown { at, .. }
        | Op::Utimes { at, .. }
        | Op::Hold { at, .. }
        | Op::Look { at } => empty(at),
        // The top is no subvolume that could be made read-only or deleted here.
        Op::DeleteSubvolume { at } | Op::ReadOnly { at, .. } => at == "/",
        _ => false,
    }
}

/// Does in the model what was done; `number` is new.
pub fn follow(model: &mut Model, op: &Op, number: u64, answer: &Answer) {
    // What the model does not know, it cannot follow: the comparison of the filesystems goes on all the same.
    let _unknown = names(model, op, number)
        .or_else(|| volumes(model, op, number))
        .or_else(|| content(model, op, answer))
        .or_else(|| attributes(model, op));
}

fn names(model: &mut Model, op: &Op, number: u64) -> Option<()> {
    match op {
        Op::Make { at, what, mode, owner } => {
            let (dir, name) = model.resolve_parent(at).ok()?;
            model.create(dir, Some(name), number, made(what, *mode, *owner));
        }
        Op::Temporary { handle, dir, mode } => {
            let dir = model.resolve(dir).ok()?;
            model.release(*handle);
            model.create(dir, None, number, made(&Make::File, *mode, 0));
            model.hold(*handle, Node { ino: number, ..dir });
        }
        Op::Link { from, to } => {
            let node = model.resolve(from).ok()?;
            let (dir, name) = model.resolve_parent(to).ok()?;
            model.link(node, dir, name);
        }
        Op::Unlink { at } | Op::Rmdir { at } => {
            let (dir, name) = model.resolve_parent(at).ok()?;
            model.remove(dir, name);
        }
        Op::Rename { from, to, how } => {
            let from = model.resolve_parent(from).ok()?;
            let to = model.resolve_parent(to).ok()?;
            let same = model.lookup(from.0, from.1) == model.lookup(to.0, to.1);
            if !same || from.0.subvolume != to.0.subvolume {
                model.rename(from, to, *how);
            }
        }
        Op::Hold { handle, at } => {
            let node = model.resolve(at).ok()?;
            if model.handles.get(handle) != Some(&node) {
                model.release(*handle);
            }
            model.hold(*handle, node);
        }
        Op::Release { handle } => {
            model.release(*handle);
        }
        _ => return None,
    }
    Some(())
}

fn made(what: &Make, mode: u32, owner: u32) -> Inode {
    let body = match what {
        Make::File => Body::File(Content::default()),
        Make::Directory => return Inode { uid: owner, gid: owner, ..directory(mode) },
        Make::Link(target) => Body::Link(target.clone().into_bytes()),
        Make::Special(kind, device) => {
            let has_device = matches!(kind, FileKind::Character | FileKind::Block);
            Body::Special(*kind, if has_device { *device } else { 0 })
        }
    };
    let (times, xattrs) = (Times::default(), Default::default());
    Inode { mode, uid: owner, gid: owner, nlink: 1, times, xattrs, body }
}

fn volumes(model: &mut Model, op: &Op, number: u64) -> Option<()> {
    match op {
        Op::Subvolume { at, owner } => {
            let (dir, name) = model.resolve_parent(at).ok()?;
            let top = Inode { uid: *owner, gid: *owner, ..directory(0o755) };
            model.create_subvolume(dir, name, number, top);
        }
        Op::Snapshot { from, to, read_only } => {
            let source = model.resolve(from).ok()?;
            let (dir, name) = model.resolve_parent(to).ok()?;
            model.snapshot(source.subvolume, dir, name, number, *read_only);
        }
        Op::DeleteSubvolume { at } => {
            let (dir, name) = model.resolve_parent(at).ok()?;
            if let Some(Target::Subvolume(_)) = model.lookup(dir, name) {
                model.remove(dir, name);
            }
        }
        Op::ReadOnly { at, on } => {
            let node = model.resolve(at).ok()?;
            model.volumes.get_mut(&node.subvolume)?.read_only = *on;
        }
        _ => return None,
    }
    Some(())
}

fn content(model: &mut Model, op: &Op, answer: &Answer) -> Option<()> {
    let count = || answer.result.as_ref().ok()?.parse::<u64>().ok();
    match op {
        Op::Write { at, offset, len, seed } => {
            let node = model.resolve(at).ok()?;
            let data = bytes(*seed, *offset, *len);
            model.content_mut(node)?.write(*offset, data.get(..count()? as usize)?);
        }
        Op::Allocate { at, mode, offset, len } => {
            let node = model.resolve(at).ok()?;
            model.allocate(Range { node, offset: *offset, len: *len }, *mode);
        }
        Op::Clone { from, offset, to, to_offset, .. } => {
            let node = model.resolve(from).ok()?;
            let to = model.resolve(to).ok()?;
            model.clone_range(Range { node, offset: *offset, len: count()? }, to, *to_offset);
        }
        Op::Truncate { at, size } => {
            let node = model.resolve(at).ok()?;
            model.content_mut(node)?.resize(*size);
        }
        _ => return None,
    }
    Some(())
}

fn attributes(model: &mut Model, op: &Op) -> Option<()> {
    let change = match op {
        Op::Chmod { mode, .. } => Change { mode: Some(*mode), ..Change::default() },
        Op::Chown { uid, gid, .. } => {
            Change { uid: Some(*uid), gid: Some(*gid), ..Change::default() }
        }
        Op::Utimes { mtime, .. } => {
            Change { mtime: Some(Time { sec: *mtime, nsec: 0 }), ..Change::default() }
        }
        Op::SetXattr { at, name, len, seed, .. } => {
            let node = model.resolve(at).ok()?;
            model.set_xattr(node, name.as_bytes(), Some(&bytes(*seed, 0, *len)));
            return Some(());
        }
        Op::RemoveXattr { at, name } => {
            let node = model.resolve(at).ok()?;
            model.set_xattr(node, name.as_bytes(), None);
            return Some(());
        }
        _ => return None,
    };
    if let Op::Chmod { at, .. } | Op::Chown { at, .. } | Op::Utimes { at, .. } = op {
        let node = model.resolve(at).ok()?;
        model.set_attributes(node, &change);
    }
    Some(())
}
