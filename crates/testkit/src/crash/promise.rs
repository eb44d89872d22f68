//! What an fsync promises, and what a crash may leave of all else.
//!
//! A disk holds a commit, and perhaps a log of fsyncs that came after it, which the next mount replays. What is found then is
//! no moment of the past: one file is as of its last fsync, another as of the commit. These are the rules, as fsync(2) and the
//! documentation of btrfs give them, and as Linux keeps them:
//!
//! * **Nothing that never was.** Each name leads where it led at some moment between the commit and the cut, or to nothing if it
//!   did that then. Attributes, xattrs and content of a file are, each of the three as a whole, those of such a moment. Moments
//!   are those between operations: what one operation does is found whole or not at all. (Only a file that was made after the
//!   commit and was never made durable may be found empty, whatever it was made from.)
//! * **Nothing is lost.** What had a name all the time has one, whatever its names were moved over, and its link count is that
//!   of its names. What has no name is gone. A directory has one name.
//! * **An fsync of a file** that returned at a moment makes it so that of this file nothing older is found: no older content,
//!   attributes, xattrs or modification time, and every name as at that moment or later. Names that it lost before are
//!   gone, names that it got are there, and with them all directories on the way, however new. A later fsync takes back nothing of
//!   that. What another file has got of its lost names may lead to nothing, unless that would lose the other file.
//! * **An fsync of a directory** does the same with its entries: each as at that moment or later, those that are gone included,
//!   and what they lead to exists, with the right type, not necessarily with its content. (A symbolic link has no
//!   existence without its target.)
//! * An fsync of the top directory of a subvolume says nothing of the name that the subvolume has.
//! * An fsync of a file that has no name, and of what is gone, promises nothing, as no name leads to it after a crash. Its later
//!   name promises no content without another fsync.
//! * Times other than a file's own modification time are not promised: replaying changes those of directories.
//! * Where no log waits, all is as at one moment, that of the commit; [`super::judge`] sees to that, and the above holds
//!   besides: an fsync that wrote nothing had nothing to write.
//!
//! With [`Rules::whole_renames`] more is demanded than Linux keeps, who after the fsync of a directory may show what was moved there
//! under its old name, too, and after the fsync of a file that was replaced may show neither of the two under that name: then nothing
//! has more names than it had at any moment, and a name that always led somewhere does so. Our engine should be held against that
//! as soon as it can be.
//!
//! Linux 6.18 breaks these rules now and then itself ([`super::enumerate::linux`] shows where): a name that a file has lost because
//! another one was renamed over it stays, and what was replaced by a durable rename comes back when the new file moves on.
//!
//! An order among files that were not made durable, or of what was done to different files, is not promised beyond that: no
//! "strictly ordered metadata". Nor does a snapshot, a rename of a subvolume or a read-only flag need to be in any log: they are
//! commits or wait for one.

use std::collections::{BTreeMap, BTreeSet};

use buttress::Node;
use xxhash_rust::xxh64::xxh64;

use crate::model::{Body, Content, Inode, Model, PAGE};
use crate::ops::run::{Result, fail};

/// What was made durable, and when.
#[derive(Clone, Copy, Debug)]
pub struct Synced {
    /// The moment: how many operations had been done, counted from the first one of the span.
    pub moment: usize,
    /// The file or directory.
    pub node: Node,
}

/// The moments that a disk may be of.
#[derive(Clone, Debug)]
pub struct Span<'r> {
    /// The models from the commit on, up to the last operation that had begun.
    pub moments: &'r [Model],
    /// The fsyncs that had returned.
    pub synced: Vec<Synced>,
    /// How much of it is demanded.
    pub rules: Rules,
}

/// What is demanded besides what is always.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Times are as the models have them.
    pub times: bool,
    /// A commit has all data that were written before it. (Those of Linux have not, without `flushoncommit`.)
    pub flushed: bool,
    /// A rename is found whole or not at all, whatever was made durable.
    pub whole_renames: bool,
}

impl Rules {
    /// Those for our own disks; `strict`: with whole renames.
    pub fn ours(strict: bool) -> Rules {
        Rules { times: true, flushed: true, whole_renames: strict }
    }

    /// Those for disks of Linux.
    pub const LINUX: Rules = Rules { times: false, flushed: false, whole_renames: false };
}

/// A name of a directory.
type Name<'r> = (Node, &'r [u8]);

/// Where the names led at each moment, and what the files were.
struct Past<'r> {
    rules: Rules,
    inodes: BTreeMap<Node, Vec<Option<&'r Inode>>>,
    names: BTreeMap<Name<'r>, Vec<Option<Node>>>,
    /// What was made durable and was there, and when.
    synced: Vec<(Node, usize)>,
    /// The last moment of these for each file.
    since: BTreeMap<Node, usize>,
}

fn all(model: &Model) -> impl Iterator<Item = (Node, &Inode)> {
    model.volumes.iter().flat_map(|(id, volume)| {
        volume.inodes.iter().map(|(ino, inode)| (Node { subvolume: *id, ino: *ino }, &**inode))
    })
}

fn entries(node: Node, inode: &Inode) -> impl Iterator<Item = (Name<'_>, Node)> {
    let entries = inode.directory().into_iter().flat_map(|dir| &dir.entries);
    entries.map(move |(name, (to, _))| ((node, &name[..]), Model::node_of(node.subvolume, *to)))
}

impl<'r> Past<'r> {
    fn new(span: &Span<'r>) -> Past<'r> {
        let count = span.moments.len();
        let (mut inodes, mut names) = (BTreeMap::new(), BTreeMap::new());
        for (moment, model) in span.moments.iter().enumerate() {
            for (node, inode) in all(model) {
                inodes.entry(node).or_insert_with(|| vec![None; count])[moment] = Some(inode);
                for (name, to) in entries(node, inode) {
                    names.entry(name).or_insert_with(|| vec![None; count])[moment] = Some(to);
                }
            }
        }
        let there = |it: &&Synced| {
            span.moments.get(it.moment).is_some_and(|model| model.inode(it.node).is_some())
        };
        let mut synced: Vec<_> =
            span.synced.iter().filter(there).map(|it| (it.node, it.moment)).collect();
        synced.sort_unstable_by_key(|(_, moment)| *moment);
        let since = synced.iter().copied().collect();
        Past { rules: span.rules, inodes, names, synced, since }
    }

    fn since(&self, node: Node) -> usize {
        self.since.get(&node).copied().unwrap_or(0)
    }

    /// Whether a name is one that a durable file has lost, and nobody durable has got.
    fn is_left(&self, name: Name<'_>, led: &[Option<Node>]) -> bool {
        let is_at = |(node, moment): &(Node, usize)| led.get(*moment) == Some(&Some(*node));
        self.synced.iter().any(|(node, synced)| {
            let had = led.iter().take(*synced).rposition(|to| *to == Some(*node));
            let is_lost = !is_at(&(*node, *synced));
            is_lost
                && had.is_some_and(|had| {
                    let later = |it: &&(Node, usize)| it.1 > had;
                    self.since(name.0) <= had && !self.synced.iter().filter(later).any(is_at)
                })
        })
    }

    /// Whether a name may lead where it led at a moment.
    fn may(&self, name: Name<'_>, led: &[Option<Node>], moment: usize) -> bool {
        let to = led.get(moment).copied().flatten();
        moment >= self.since(name.0)
            && self.synced.iter().all(|(node, synced)| {
                // The name of a subvolume is its parent's.
                if node.subvolume != name.0.subvolume {
                    return true;
                }
                let then = led.get(*synced).copied().flatten();
                // What has the name when it is made durable has it from then on; what had it before has lost it.
                moment >= *synced || then != Some(*node) && to != Some(*node)
            })
    }
}

/// Whether what was found is what may be found.
pub fn check(span: &Span<'_>, found: &Model) -> Result<()> {
    let past = Past::new(span);
    let mut links: BTreeMap<Node, Vec<Name<'_>>> = BTreeMap::new();
    let mut places = BTreeMap::new();
    for (node, inode) in all(found) {
        for (name, to) in entries(node, inode) {
            links.entry(to).or_default().push(name);
            places.insert(name, to);
        }
    }
    let never = places.iter().find(|(name, _)| !past.names.contains_key(*name));
    if let Some(((dir, name), to)) = never {
        return fail(format!("{} in {dir:?} leads to {to:?} and never was", name.escape_ascii()));
    }
    for (name, led) in &past.names {
        place(&past, *name, led, places.get(name).copied())?;
    }
    for (node, states) in &past.inodes {
        let names = links.get(node).map_or(&[][..], Vec::as_slice);
        existence(&past, *node, states, found.inode(*node), names)?;
    }
    for (node, inode) in all(found) {
        match past.inodes.get(&node) {
            Some(states) => file(&past, node, states, inode)?,
            None => return fail(format!("{node:?} never was")),
        }
    }
    volumes(span, found)?;
    quotas(span, found)
}

/// A name leads where it may lead.
fn place(past: &Past<'_>, name: Name<'_>, led: &[Option<Node>], found: Option<Node>) -> Result<()> {
    let good = |moment: &usize| led[*moment] == found && past.may(name, led, *moment);
    if (0..led.len()).any(|moment| good(&moment)) {
        return Ok(());
    }
    if found.is_none() && !past.rules.whole_renames && past.is_left(name, led) {
        return Ok(());
    }
    let may: BTreeSet<_> =
        (0..led.len()).filter(|at| past.may(name, led, *at)).map(|at| led[at]).collect();
    let word = name.1.escape_ascii();
    fail(format!("{word} in {:?} leads to {found:?}, and may lead to {may:?}", name.0))
}

/// What had a name all the time has one, and not too many.
fn existence(
    past: &Past<'_>,
    node: Node,
    states: &[Option<&Inode>],
    found: Option<&Inode>,
    names: &[Name<'_>],
) -> Result<()> {
    let Some(found) = found else {
        let since = past.since(node);
        let stayed = states.iter().skip(since).all(Option::is_some);
        return if stayed { fail(format!("{node:?} is lost")) } else { Ok(()) };
    };
    let shown = || names.iter().map(|(dir, name)| format!("{dir:?} {}", name.escape_ascii()));
    let most = states.iter().flatten().map(|inode| inode.nlink as usize).max().unwrap_or(0);
    let doubled = !past.rules.whole_renames && found.directory().is_none();
    let most = if doubled { usize::MAX } else { most };
    if names.len() > most {
        let names = shown().collect::<Vec<_>>();
        return fail(format!("{node:?} has the names {names:?}, and never had more than {most}"));
    }
    match found.directory().is_some() || names.len() == found.nlink as usize {
        true => Ok(()),
        false => {
            let names = shown().collect::<Vec<_>>();
            fail(format!("{node:?} has {} links, and the names {names:?}", found.nlink))
        }
    }
}

/// Everything about a file is of some moment.
fn file(past: &Past<'_>, node: Node, states: &[Option<&Inode>], found: &Inode) -> Result<()> {
    let since = past.since(node);
    let fresh = || states.iter().skip(since).flatten();
    let durable = past.since.contains_key(&node);
    // Made after the commit, and durable by a name only.
    let bare = !durable && states.first().is_none_or(Option::is_none);
    let what = |what: &str| {
        let may: Vec<_> = fresh().map(|it| told(it)).collect();
        fail(format!("{what} of {node:?}: {}, and may be {}", told(found), may.join(" or ")))
    };
    let made = |it: &Inode| past.rules.times.then_some(it.times.otime);
    let attributes = |it: &Inode| (it.kind(), it.mode, it.uid, it.gid, it.rdev(), made(it));
    if !fresh().any(|it| attributes(it) == attributes(found)) {
        return what("attributes");
    }
    if !fresh().any(|it| it.xattrs == found.xattrs) {
        return what("xattrs");
    }
    let good = match &found.body {
        Body::File(_) if !durable && !past.rules.flushed => true,
        Body::File(content) => {
            bare && content.size() == 0 || fresh().any(|it| it.content() == Some(content))
        }
        Body::Link(target) => {
            fresh().any(|it| matches!(&it.body, Body::Link(was) if was == target))
        }
        _ => true,
    };
    if !good {
        return what("content");
    }
    let is_timed = past.rules.times && durable && found.content().is_some();
    if is_timed && !fresh().any(|it| it.times.mtime == found.times.mtime) {
        return what("modification time");
    }
    Ok(())
}

/// A file in a few words.
fn told(inode: &Inode) -> String {
    let Inode { mode, uid, gid, times, .. } = inode;
    let digest = inode.content().map_or(0, digest);
    let xattrs: Vec<_> = inode
        .xattrs
        .iter()
        .map(|(name, value)| (name.escape_ascii().to_string(), value.len()))
        .collect();
    let (kind, size, mtime, otime) = (inode.kind(), inode.size(), times.mtime, times.otime);
    format!(
        "{kind:?} {mode:o} {uid}:{gid} {size} bytes {digest:016x} {xattrs:?} changed {}.{} made {}.{}",
        mtime.sec, mtime.nsec, otime.sec, otime.nsec
    )
}

fn digest(content: &Content) -> u64 {
    content.pages().fold(0, |sum, page| {
        let mut bytes = [0; PAGE as usize];
        content.read(page * PAGE, &mut bytes);
        sum.rotate_left(7) ^ xxh64(&bytes, page)
    })
}

/// Subvolumes exist by their names, which are judged; their read-only flag is of some moment.
fn volumes(span: &Span<'_>, found: &Model) -> Result<()> {
    for (id, volume) in &found.volumes {
        let mut was = span.moments.iter().filter_map(|model| model.volumes.get(id));
        if !was.any(|was| was.read_only == volume.read_only) {
            return fail(format!("subvolume {id}: read-only is {}", volume.read_only));
        }
    }
    Ok(())
}

/// Quotas are those of some moment.
fn quotas(span: &Span<'_>, found: &Model) -> Result<()> {
    match span.moments.iter().any(|was| was.quotas == found.quotas) {
        true => Ok(()),
        false => fail(format!("quotas are {:?}", found.quotas)),
    }
}

/// Files that once had a name and have none.
pub fn nameless(span: &Span<'_>, found: &Model) -> BTreeSet<Node> {
    let past = span.moments.iter().flat_map(|model| all(model).map(|(node, _)| node));
    past.filter(|node| found.inode(*node).is_none() && found.volumes.contains_key(&node.subvolume))
        .collect()
}

#[cfg(test)]
mod tests;
