//! `btrfs check` and Linux as judges of an image.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use buttress::{FileKind, Node};
use buttress_check::Severity;
use buttress_device::{Access, MemoryDevice};
use buttress_volume::Volume;

use super::run::{Clock, Config, Failure, Result, engine, fail, open};
use crate::model::{Body, Content, Inode, Model};
use crate::oracle::{KernelMount, root_or_skip, temp_dir};

fn oracle<T, E: std::fmt::Display>(result: std::result::Result<T, E>) -> Result<T> {
    result.map_err(|error| Failure(error.to_string()))
}

/// Runs `btrfs check` with data on a copy of the device.
pub fn check(device: &MemoryDevice) -> Result<()> {
    let dir = oracle(temp_dir())?;
    let image = dir.path().join("image");
    oracle(device.store(&image))?;
    match oracle(crate::oracle::check(&image, true)) {
        // btrfs-progs 6.2 reads no quota tree whose relations begin in another leaf than its groups, be it Linux's own. So ours judges.
        Err(Failure(why)) if why.contains("ERROR: loading qgroups from disk: -2") => {
            ours(device, true)
        }
        checked => checked.map(drop),
    }
}

/// The same. Of a subvolume that is dropped half way `btrfs check` expects that quota groups have all that it had, where Linux has what
/// is left; where it finds nothing else, it looks again when all is dropped. So it does where they are marked as wrong, and have been counted anew.
pub fn check_with_quotas(device: &MemoryDevice, config: &Config) -> Result<()> {
    match check(device) {
        Err(Failure(why))
            if ["Counts for qgroup id", "Rescan hasn't been"].iter().any(|it| why.contains(it)) =>
        {
            let rest = Arc::new(device.snapshot());
            let fs = engine("open", open(&(rest.clone() as _), config, &Clock::default()))?;
            engine("clean", fs.clean())?;
            if fs.has_wrong_quotas() {
                engine("quotas", fs.count_quotas(|_| true))?;
            }
            engine("close", fs.close())?;
            check(&rest)
        }
        checked => checked,
    }
}

/// Our own checker finds no error; with `data`, all data is read, too.
pub fn ours(device: &MemoryDevice, data: bool) -> Result<()> {
    let volume = oracle(Volume::open(vec![Arc::new(device.snapshot())], Access::ReadOnly))?.volume;
    let options = buttress_check::Options { check_data_csum: data, ..Default::default() };
    let report = buttress_check::check(&volume, &options, &buttress_check::Progress::default());
    match report.issues.iter().find(|issue| issue.kind.severity() == Severity::Error) {
        Some(issue) => fail(format!("checker: {issue}")),
        None => Ok(()),
    }
}

/// Lets Linux mount a copy of the device and compares all that it shows with the model. Nothing is done without root.
pub fn mounted(device: &MemoryDevice, model: &Model) -> Result<()> {
    if !root_or_skip() {
        return Ok(());
    }
    let dir = oracle(temp_dir())?;
    let image = dir.path().join("image");
    oracle(device.store(&image))?;
    let mount = oracle(KernelMount::read_only(&image, "subvolid=5"))?;
    let compared = tree(model, Node::ROOT, mount.path());
    oracle(mount.finish())?;
    compared
}

/// Compares what Linux shows at `top` with what the model has below `node`.
pub fn tree(model: &Model, node: Node, top: &Path) -> Result<()> {
    compared(model, node, top, true)
}

/// The same without times.
pub fn tree_but_times(model: &Model, node: Node, top: &Path) -> Result<()> {
    compared(model, node, top, false)
}

fn compared(model: &Model, node: Node, top: &Path, times: bool) -> Result<()> {
    let mut seen = BTreeSet::new();
    let mut rest = vec![(node, top.to_owned())];
    while let Some((node, path)) = rest.pop() {
        let Some(inode) = model.inode(node) else { continue };
        if seen.insert(node) {
            let compared = file(inode, &path, times);
            compared.map_err(|Failure(why)| Failure(format!("{}: {why}", path.display())))?;
        }
        let Some(dir) = inode.directory() else { continue };
        let mut names = BTreeSet::new();
        for entry in oracle(fs::read_dir(&path))? {
            names.insert(oracle(entry)?.file_name().into_vec());
        }
        if !names.iter().eq(dir.entries.keys()) {
            return fail(format!("{} holds {names:?}", path.display()));
        }
        for (name, (target, _)) in &dir.entries {
            let path = path.join(std::ffi::OsStr::from_bytes(name));
            rest.push((Model::node_of(node.subvolume, *target), path));
        }
    }
    Ok(())
}

fn file(inode: &Inode, path: &Path, compare_times: bool) -> Result<()> {
    let found = oracle(fs::symlink_metadata(path))?;
    let kind = match found.file_type() {
        it if it.is_dir() => FileKind::Directory,
        it if it.is_symlink() => FileKind::Symlink,
        it if it.is_char_device() => FileKind::Character,
        it if it.is_block_device() => FileKind::Block,
        it if it.is_fifo() => FileKind::Fifo,
        it if it.is_socket() => FileKind::Socket,
        _ => FileKind::Regular,
    };
    let device = rustix::fs::makedev((inode.rdev() >> 20) as u32, (inode.rdev() & 0xfffff) as u32);
    let expected = (inode.kind(), inode.mode, inode.uid, inode.gid, inode.size(), device);
    let shown = (kind, found.mode() & 0o7777, found.uid(), found.gid(), found.size(), found.rdev());
    if shown != expected {
        return fail(format!("{shown:?} instead of {expected:?}"));
    }
    if found.nlink() != u64::from(inode.nlink) {
        return fail(format!("{} links instead of {}", found.nlink(), inode.nlink));
    }
    let times = [(found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec())];
    let wanted =
        [inode.times.mtime, inode.times.ctime].map(|time| (time.sec, i64::from(time.nsec)));
    if compare_times && times != wanted {
        return fail(format!("times {times:?} instead of {wanted:?}"));
    }
    xattrs(inode, path)?;
    match &inode.body {
        Body::File(expected) => content(expected, path),
        Body::Link(target) => {
            let found = oracle(fs::read_link(path))?;
            if found.as_os_str().as_bytes() == target {
                Ok(())
            } else {
                fail(format!("leads to {found:?}"))
            }
        }
        _ => Ok(()),
    }
}

fn xattrs(inode: &Inode, path: &Path) -> Result<()> {
    let mut list = vec![0; 1 << 16];
    let len = oracle(rustix::fs::llistxattr(path, &mut list[..]))?;
    let names = list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let names: BTreeSet<&[u8]> = names.collect();
    if !names.iter().copied().eq(inode.xattrs.keys().map(Vec::as_slice)) {
        return fail(format!("xattrs {names:?} instead of {:?}", inode.xattrs.keys()));
    }
    let mut value = vec![0; 1 << 16];
    let has_user = matches!(inode.body, Body::File(_) | Body::Directory(_));
    for (name, expected) in &inode.xattrs {
        // Linux lists them everywhere, and shows the values of files and directories only.
        if name.starts_with(b"user.") && !has_user {
            continue;
        }
        let name = std::ffi::OsStr::from_bytes(name);
        let len = oracle(rustix::fs::lgetxattr(path, name, &mut value[..]))?;
        if value[..len] != **expected {
            return fail(format!("xattr {name:?} differs"));
        }
    }
    Ok(())
}

/// Compares bytes where either side has data.
fn content(expected: &Content, path: &Path) -> Result<()> {
    let file = oracle(fs::File::open(path))?;
    let mut at = 0;
    let mut pages = BTreeSet::from_iter(expected.pages());
    while let Ok(start) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
        let end = oracle(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(start)))?;
        let mut offset = start;
        while offset < end {
            let len = (end - offset).min(1 << 18) as usize;
            same(expected, &file, offset, len)?;
            pages.retain(|page| !(offset..offset + len as u64).contains(&(page << 12)));
            offset += len as u64;
        }
        at = end;
    }
    for page in pages {
        let len = (expected.size() - (page << 12)).min(1 << 12) as usize;
        same(expected, &file, page << 12, len)?;
    }
    Ok(())
}

fn same(expected: &Content, file: &fs::File, offset: u64, len: usize) -> Result<()> {
    let (mut found, mut wanted) = (vec![0; len], vec![0; len]);
    oracle(file.read_exact_at(&mut found, offset))?;
    expected.read(offset, &mut wanted);
    match found == wanted {
        true => Ok(()),
        false => fail(format!("content differs in {len} bytes at {offset}")),
    }
}
