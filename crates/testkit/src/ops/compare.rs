//! Everything the engine holds against everything the model holds.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use buttress::ondisk::item::{QgroupInfo, QgroupLimit, QgroupStatus, qgroup_status_flags};
use buttress::ondisk::{Key, kind, objectid};
use buttress::{Entry, Errno, FileKind, Filesystem, Node, Seek, Times};
use buttress_device::MemoryDevice;

use super::kernel;
use super::run::{Result, engine, fail};
use crate::model::{Body, Content, Inode, Model, PAGE, QuotaMode};

/// Bytes that are read at a time.
const READ_LEN: u64 = 256 << 10;

/// Compares all names, files and subvolumes.
pub fn all(fs: &Filesystem, model: &Model) -> Result<()> {
    subvolumes(fs, model)?;
    quota_mode(fs, model)?;
    let mut seen = BTreeSet::new();
    let mut directories = vec![model.root];
    while let Some(dir) = directories.pop() {
        listing(fs, model, dir)?;
        if dir.is_stub() {
            continue;
        }
        seen.insert(dir);
        file(fs, model, dir)?;
        let Some(entries) = model.inode(dir).and_then(Inode::directory) else { continue };
        for (target, _) in entries.entries.values() {
            let node = Model::node_of(dir.subvolume, *target);
            let is_directory = model.inode(node).is_none_or(|inode| inode.directory().is_some());
            if is_directory {
                directories.push(node);
            } else if seen.insert(node) {
                file(fs, model, node)?;
            }
        }
    }
    let held: BTreeSet<Node> = model.handles.values().copied().collect();
    for node in held.difference(&seen).filter(|node| model.inode(**node).is_some()) {
        file(fs, model, *node)?;
    }
    let expected = model.count();
    let all = seen.union(&held).filter(|node| model.inode(**node).is_some()).count();
    if all == expected { Ok(()) } else { fail(format!("{all} files found of {expected}")) }
}

/// The quotas that the last commit has.
pub fn mode_of_quotas(fs: &Filesystem) -> Result<QuotaMode> {
    let flags = flags_of_quotas(fs)?;
    Ok(match flags & qgroup_status_flags::SIMPLE_MODE {
        _ if flags & qgroup_status_flags::ON == 0 => QuotaMode::Off,
        0 => QuotaMode::Full,
        _ => QuotaMode::Simple,
    })
}

/// What the last commit says of quotas; nothing where there is no tree for them.
fn flags_of_quotas(fs: &Filesystem) -> Result<u64> {
    let (mut flags, key) = (0, Key::new(0, kind::QGROUP_STATUS, 0));
    let searched = fs.search(objectid::QUOTA_TREE, key, key, |_, _, data| {
        flags = QgroupStatus::of(data).map_or(0, |status| status.flags.get());
        true
    });
    match searched {
        Err(error) if error.errno() == Errno::NOENT => Ok(0),
        searched => engine("quota tree", searched).map(|()| flags),
    }
}

fn quota_mode(fs: &Filesystem, model: &Model) -> Result<()> {
    match mode_of_quotas(fs)? {
        found if found == model.quotas => Ok(()),
        found => fail(format!("quotas are {found:?}, should be {:?}", model.quotas)),
    }
}

/// Whether the last commit says that quota groups are wrong.
pub fn quotas_are_wrong(fs: &Filesystem) -> Result<bool> {
    Ok(flags_of_quotas(fs)? & qgroup_status_flags::INCONSISTENT != 0)
}

/// Compares the quota groups that the last commit has with what a pass over it counts.
pub fn quotas(fs: &Filesystem) -> Result<()> {
    let costs = engine("costs", fs.subvolume_costs(|_| true))?;
    let quotas = Quotas::of(fs)?;
    if quotas.flags != Some(qgroup_status_flags::ON) {
        return fail("quotas are not on, or not right");
    }
    let mut found = quotas.usage.clone();
    for (id, share) in costs.subvolumes().filter(|(_, share)| !share.deleted) {
        let expected = (share.referenced.sum(), share.exclusive.sum());
        let have = found.remove(&id);
        if have != Some(expected) {
            return fail(format!("quota group of {id} has {have:?}, should have {expected:?}"));
        }
    }
    // One that went while they were wrong has a group that nobody takes away, as with Linux.
    let left = costs.subvolumes().map(|(id, _)| id).collect::<BTreeSet<_>>();
    for (id, have) in found {
        if id >> 48 > 0 {
            let [rfer, excl] = costs.of_group(&quotas.below(id)).map(|bytes| bytes.sum());
            if have != (rfer, excl) {
                let (level, number) = (id >> 48, id & ((1 << 48) - 1));
                return fail(format!(
                    "quota group {level}/{number} has {have:?}, should have {:?}",
                    (rfer, excl)
                ));
            }
        } else if !left.contains(&id) && have != (0, 0) {
            return fail(format!("quota group of {id}, which is gone, has {have:?}"));
        }
    }
    Ok(())
}

/// Simple quotas are on, and our checker finds nothing: it adds up by itself what each subvolume has allocated.
pub fn simple_quotas(fs: &Filesystem, device: &MemoryDevice) -> Result<()> {
    let quotas = Quotas::of(fs)?;
    if quotas.flags != Some(qgroup_status_flags::ON | qgroup_status_flags::SIMPLE_MODE) {
        return fail("simple quotas are not on");
    }
    kernel::ours(device, false)
}

/// What the quota tree of the last commit says.
#[derive(Debug, Default)]
pub struct Quotas {
    flags: Option<u64>,
    /// Bytes referenced and exclusive of each group.
    pub usage: BTreeMap<u64, (u64, u64)>,
    /// The groups that a group is in.
    pub above: BTreeMap<u64, BTreeSet<u64>>,
    /// Most bytes that a group may refer to.
    pub limits: BTreeMap<u64, u64>,
}

impl Quotas {
    /// Reads it.
    pub fn of(fs: &Filesystem) -> Result<Quotas> {
        let mut quotas = Quotas::default();
        let searched = fs.search(objectid::QUOTA_TREE, Key::MIN, Key::MAX, |key, _, data| {
            match key.kind {
                kind::QGROUP_INFO => {
                    if let Some(info) = QgroupInfo::of(data) {
                        quotas.usage.insert(key.offset, (info.rfer.get(), info.excl.get()));
                    }
                }
                kind::QGROUP_LIMIT => {
                    let limit = QgroupLimit::of(data).filter(|limit| limit.flags.get() & 1 != 0);
                    quotas.limits.extend(limit.map(|limit| (key.offset, limit.max_rfer.get())));
                }
                kind::QGROUP_STATUS => {
                    quotas.flags = QgroupStatus::of(data).map(|it| it.flags.get())
                }
                kind::QGROUP_RELATION if key.objectid >> 48 < key.offset >> 48 => {
                    quotas.above.entry(key.objectid).or_default().insert(key.offset);
                }
                _ => {}
            }
            true
        });
        engine("quota tree", searched)?;
        Ok(quotas)
    }

    /// The subvolumes that are in a group, directly or not.
    fn below(&self, group: u64) -> BTreeSet<u64> {
        let (mut waiting, mut below) = (vec![group], BTreeSet::new());
        while let Some(one) = waiting.pop() {
            let members = self.above.iter().filter(|(_, above)| above.contains(&one));
            for (member, _) in members {
                waiting.push(*member);
                below.insert(*member);
            }
        }
        below.retain(|id| id >> 48 == 0);
        below
    }
}

/// Compares what is known of subvolumes.
fn subvolumes(fs: &Filesystem, model: &Model) -> Result<()> {
    let whole = model.root == Node::ROOT;
    let listed = engine("list of subvolumes", fs.subvolumes())?;
    let ids: BTreeSet<u64> = listed.iter().map(|info| info.id).collect();
    let expected: BTreeSet<u64> =
        model.volumes.keys().copied().filter(|id| *id != Node::ROOT.subvolume).collect();
    if whole && ids != expected || !ids.is_superset(&expected) {
        return fail(format!("subvolumes are {ids:?}, should be {expected:?}"));
    }
    for info in listed {
        let Some(volume) = model.volumes.get(&info.id) else { continue };
        if info.is_read_only() != volume.read_only {
            return fail(format!("subvolume {}: read-only is {}", info.id, info.is_read_only()));
        }
        let Some((dir, name)) = &volume.place else { continue };
        let found = (Node { subvolume: info.parent, ino: info.dir }, &info.name);
        if found != (*dir, name) {
            return fail(format!("subvolume {} has the name {found:?}, not {name:?}", info.id));
        }
    }
    Ok(())
}

/// Compares the entries of a directory and their order.
pub fn listing(fs: &Filesystem, model: &Model, dir: Node) -> Result<()> {
    let found = match (list(fs, dir, 0), model.inode(dir)) {
        (Err(error), Some(inode)) if inode.directory().is_none() => {
            return match error.errno() {
                Errno::NOTDIR => Ok(()),
                _ => fail(format!("list of {dir:?}: {error}")),
            };
        }
        (found, _) => engine("list", found)?,
    };
    let listed = model.inode(dir).and_then(Inode::directory);
    let listed = listed.map(|directory| directory.listed()).unwrap_or_default();
    let names = |found: &[Entry]| -> Vec<String> {
        found.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect()
    };
    if found.len() != listed.len() {
        let expected: Vec<_> =
            listed.iter().map(|(name, _)| String::from_utf8_lossy(name)).collect();
        return fail(format!("{dir:?} holds {:?}, should be {expected:?}", names(&found)));
    }
    for (entry, (name, target)) in found.iter().zip(&listed) {
        let node = Model::node_of(dir.subvolume, *target);
        let kind = model.inode(node).map_or(FileKind::Directory, Inode::kind);
        if entry.name != *name || entry.node != node || entry.kind != kind {
            let name = String::from_utf8_lossy(name);
            return fail(format!(
                "entry of {dir:?} is {entry:?}, should be {name} {node:?} {kind:?}"
            ));
        }
    }
    if found.windows(2).any(|pair| pair[0].index >= pair[1].index) {
        return fail(format!("{dir:?} is not listed by index"));
    }
    // Listing can go on anywhere.
    let middle = found.len() / 2;
    if let Some(entry) = found.get(middle) {
        let rest = engine("list", list(fs, dir, entry.index))?;
        if rest != found[middle..] {
            return fail(format!("{dir:?} from {} on: {:?}", entry.index, names(&rest)));
        }
    }
    Ok(())
}

fn list(fs: &Filesystem, dir: Node, from: u64) -> buttress::Result<Vec<Entry>> {
    let mut found = Vec::new();
    fs.read_dir(dir, from, &mut |entry| {
        found.push(entry);
        true
    })?;
    Ok(found)
}

/// Compares what `stat` tells.
pub fn attributes(fs: &Filesystem, model: &Model, node: Node) -> Result<()> {
    let found = engine("attributes", fs.attributes(node))?;
    let Some(inode) = model.inode(node) else {
        let stub = node.is_stub() && found.kind == FileKind::Directory && found.size == 0;
        return if stub { Ok(()) } else { fail(format!("no stub: {found:?}")) };
    };
    let same = found.node == node
        && found.kind == inode.kind()
        && found.mode == inode.mode
        && (found.uid, found.gid) == (inode.uid, inode.gid)
        && found.nlink == inode.nlink
        && found.size == inode.size()
        && found.rdev == inode.rdev();
    let times =
        Times { atime: found.atime, mtime: found.mtime, ctime: found.ctime, otime: found.otime };
    if same && times == inode.times {
        return Ok(());
    }
    let Inode { mode, uid, gid, nlink, times, .. } = inode;
    let (kind, size, rdev) = (inode.kind(), inode.size(), inode.rdev());
    fail(format!(
        "{found:?}, should be {kind:?} mode {mode:o} uid {uid} gid {gid} nlink {nlink} size {size} rdev {rdev} {times:?}"
    ))
}

/// Compares a file: attributes, xattrs, what it holds.
pub fn file(fs: &Filesystem, model: &Model, node: Node) -> Result<()> {
    attributes(fs, model, node)?;
    let Some(inode) = model.inode(node) else { return Ok(()) };
    xattrs(fs, inode, node)?;
    match &inode.body {
        Body::File(expected) => content(fs, expected, node),
        Body::Link(target) => {
            let found = engine("read link", fs.read_link(node))?;
            if found == *target { Ok(()) } else { fail(format!("{node:?} leads to {found:?}")) }
        }
        Body::Directory(dir) if inode.nlink > 0 => parent(fs, model, node, dir.parent),
        _ => Ok(()),
    }
}

fn parent(fs: &Filesystem, model: &Model, node: Node, parent: u64) -> Result<()> {
    let expected = match node.is_top() {
        false => Node { ino: parent, ..node },
        true => match model.volumes.get(&node.subvolume).and_then(|it| it.place.as_ref()) {
            Some((dir, _)) => *dir,
            None => return Ok(()),
        },
    };
    if node == model.root {
        return Ok(());
    }
    let found = engine("parent", fs.parent(node))?;
    if found == expected {
        Ok(())
    } else {
        fail(format!("{node:?} is in {found:?}, not {expected:?}"))
    }
}

fn xattrs(fs: &Filesystem, inode: &Inode, node: Node) -> Result<()> {
    let found = engine("list of xattrs", fs.list_xattrs(node))?;
    let expected: Vec<&Vec<u8>> = inode.xattrs.keys().collect();
    if found.iter().collect::<Vec<_>>() != expected {
        return fail(format!("xattrs of {node:?} are {found:?}, should be {expected:?}"));
    }
    for (name, value) in &inode.xattrs {
        let found = engine("xattr", fs.get_xattr(node, name))?;
        if found.as_deref() != Some(&**value) {
            let name = String::from_utf8_lossy(name);
            return fail(format!("xattr {name} of {node:?} is {found:?}, should be {value:?}"));
        }
    }
    Ok(())
}

/// Compares bytes at `offset` of a file.
pub fn bytes(node: Node, offset: u64, found: &[u8], expected: &[u8]) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let at = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
    let differing = found.iter().zip(expected).filter(|(a, b)| a != b).count();
    let offset = offset + at as u64;
    fail(format!(
        "{node:?} has {:#x} at {offset} instead of {:#x}; {differing} bytes differ",
        found[at], expected[at]
    ))
}

/// Compares attributes, and what is a little before and behind a range.
pub fn near(fs: &Filesystem, model: &Model, node: Node, range: Range<u64>) -> Result<()> {
    attributes(fs, model, node)?;
    let Some(expected) = model.content(node) else { return Ok(()) };
    let start = range.start.saturating_sub(READ_LEN);
    let end = range.end.saturating_add(READ_LEN).min(expected.size());
    data(fs, expected, node, start..end.min(range.start).max(start))?;
    data(fs, expected, node, range.end.min(end)..end)
}

/// Compares bytes, and that all that is not zero is where the engine says that data is.
fn content(fs: &Filesystem, expected: &Content, node: Node) -> Result<()> {
    let mut at = 0;
    while let Some(start) = seek(fs, node, at, Seek::Data)? {
        let Some(end) = seek(fs, node, start, Seek::Hole)? else {
            return fail(format!("data of {node:?} at {start} has no end"));
        };
        if start < at || end <= start || end > expected.size() {
            return fail(format!("data of {node:?} from {start} to {end}, looked for at {at}"));
        }
        no_data(expected, node, at, start)?;
        data(fs, expected, node, start..end)?;
        at = end;
    }
    no_data(expected, node, at, expected.size())
}

fn seek(fs: &Filesystem, node: Node, at: u64, what: Seek) -> Result<Option<u64>> {
    match fs.seek(node, at, what) {
        Err(error) if error.errno() == Errno::NXIO => Ok(None),
        found => engine("seek", found).map(Some),
    }
}

fn no_data(expected: &Content, node: Node, from: u64, to: u64) -> Result<()> {
    let page = expected.pages_in(from, to).find(|page| {
        let (start, end) = (page * PAGE, (page + 1) * PAGE);
        let (start, end) = (start.max(from), end.min(to));
        let mut bytes = vec![0; end.saturating_sub(start) as usize];
        expected.read(start, &mut bytes);
        bytes.iter().any(|byte| *byte != 0)
    });
    match page {
        Some(page) => {
            fail(format!("{node:?} has a hole from {from} to {to}, but data in page {page}"))
        }
        None => Ok(()),
    }
}

fn data(fs: &Filesystem, expected: &Content, node: Node, range: Range<u64>) -> Result<()> {
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(READ_LEN) as usize;
        let (mut found, mut wanted) = (vec![0x5a; len], vec![0; len]);
        let read = engine("read", fs.read(node, at, &mut found))?;
        if read != len {
            return fail(format!("read {read} bytes of {len} at {at} of {node:?}"));
        }
        expected.read(at, &mut wanted);
        bytes(node, at, &found, &wanted)?;
        at += len as u64;
    }
    Ok(())
}
