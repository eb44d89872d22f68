//! Operations that a crash, or a device, has ended half way.
//!
//! What lets go of much goes in steps, as on Linux. Between two of them a file has some size between the old and the new one,
//! each of its sectors is the old or the new one, and its times are of some moment of the operation. All else must be as
//! before or as after it.

use std::collections::BTreeSet;

use buttress::{Filesystem, Node, Time, Times};

use crate::model::{Body, Content, Model, PAGE};
use crate::ops::Op;
use crate::ops::run::{Failure, Result, engine, fail};

/// The file that an operation changes in steps, if it does.
pub fn stepped(model: &Model, op: &Op) -> Option<Node> {
    let path = match op {
        Op::Truncate { at, .. } | Op::Allocate { at, .. } | Op::Write { at, .. } => at,
        Op::Clone { to, .. } => to,
        _ => return None,
    };
    model.resolve(path).ok()
}

/// The model of what the filesystem holds of an operation on `node` that is half done.
pub fn half(fs: &Filesystem, before: &Model, after: &Model, node: Node) -> Result<Model> {
    let found = engine("attributes", fs.attributes(node))?;
    let (Some(old), Some(new)) = (before.inode(node), after.inode(node)) else {
        return fail(format!("{node:?} is not in both models"));
    };
    let (Body::File(old_content), Body::File(new_content)) = (&old.body, &new.body) else {
        return fail(format!("{node:?} is no file"));
    };
    let times =
        Times { atime: found.atime, mtime: found.mtime, ctime: found.ctime, otime: found.otime };
    let within = |old: Time, new: Time, found: Time| (old..=new).contains(&found);
    if !within(old.times.mtime, new.times.mtime, times.mtime)
        || !within(old.times.ctime, new.times.ctime, times.ctime)
    {
        return fail(format!("times of {node:?} are not between the old and the new ones"));
    }
    let content = sectors(fs, node, found.size, old_content, new_content)?;
    let mut model = before.clone();
    if let Some(inode) = model.inode_mut(node) {
        (inode.times, inode.body) = (times, Body::File(content));
    }
    Ok(model)
}

/// What the file holds where the old or the new one held something: sectors of the one or the other.
fn sectors(
    fs: &Filesystem,
    node: Node,
    size: u64,
    old: &Content,
    new: &Content,
) -> Result<Content> {
    if size < old.size().min(new.size()) || size > old.size().max(new.size()) {
        return fail(format!(
            "{node:?} has {size} bytes, had {} and gets {}",
            old.size(),
            new.size()
        ));
    }
    let mut content = Content::default();
    let pages: BTreeSet<u64> = old.pages().chain(new.pages()).collect();
    for start in pages.into_iter().map(|page| page * PAGE).filter(|start| *start < size) {
        let len = (size - start).min(PAGE) as usize;
        let (mut found, mut was, mut is) = (vec![0; len], vec![0; len], vec![0; len]);
        let read = engine("read", fs.read(node, start, &mut found))?;
        old.read(start, &mut was);
        new.read(start, &mut is);
        if read != len || found != was && found != is {
            return Err(Failure(format!("{node:?} at {start} is neither as before nor as after")));
        }
        content.write(start, &found);
    }
    content.resize(size);
    Ok(content)
}
