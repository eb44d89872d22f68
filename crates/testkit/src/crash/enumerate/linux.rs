//! A sequence done by Linux, whose disk is copied right after the last fsync has returned: what it makes of its own log is held
//! against the same promises. They may not be more than what Linux keeps.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use buttress::{FileKind, Node, Time, Times};
use buttress_device::{BlockDevice, MemoryDevice};

use super::super::promise::{self, Rules, Span};
use super::super::record::Recording;
use super::super::{found, judge};
use crate::differential::on_linux;
use crate::model::{Body, Content, Directory, Inode, Model, PAGE, Target};
use crate::ops::Op;
use crate::ops::run::{Clock, Config, Failure, Result, open};
use crate::oracle::{KernelMount, temp_dir};

fn asked<T, E: std::fmt::Display>(what: &str, result: std::result::Result<T, E>) -> Result<T> {
    result.map_err(|error| Failure(format!("Linux, {what}: {error}")))
}

/// What Linux has left.
#[derive(Debug, Default)]
pub struct Left {
    /// A log.
    pub logged: bool,
    /// What it has not kept of what is promised.
    pub broken: Option<String>,
    /// We replay it into the same as Linux.
    pub replayed: bool,
}

/// Crashes Linux.
pub fn check(
    base: &MemoryDevice,
    config: &Config,
    ops: &[Op],
    recording: &Recording,
) -> Result<Left> {
    let dir = asked("directory", temp_dir())?;
    let (image, copy) = (dir.path().join("image"), dir.path().join("copy"));
    asked("image", base.store(&image))?;
    on_linux(&image, ops, || asked("copy", fs::copy(&image, &copy)).map(drop))?;
    let crashed = asked("copy", MemoryDevice::load(&copy))?;
    let (_, logged) = judge::committed(&crashed)?;
    let mount = asked("mount", KernelMount::new(&copy, "subvolid=5,noatime"))?;
    let found = model(mount.path(), config);
    asked("unmount", mount.finish())?;
    let mut span = recording.whole_span();
    span.rules = Rules::LINUX;
    let found = found?;
    let broken = promise::check(&span, &found).err().map(|Failure(why)| why);
    let replayed = logged && replay(&crashed, config, &found)?;
    Ok(Left { logged, broken, replayed })
}

/// Opens a disk with a log of Linux, and compares what it holds with what Linux has made of it. Answers whether it can be opened.
fn replay(crashed: &MemoryDevice, config: &Config, theirs: &Model) -> Result<bool> {
    let disk: Arc<dyn BlockDevice> = Arc::new(crashed.snapshot());
    let Ok(fs) = open(&disk, config, &Clock::default()) else { return Ok(false) };
    let ours = found::model(&fs, config.nodesize)?;
    let rules = Rules { times: false, flushed: true, whole_renames: true };
    let span = Span { moments: std::slice::from_ref(theirs), synced: Vec::new(), rules };
    let same = promise::check(&span, &ours);
    same.map_err(|Failure(why)| Failure(format!("not replayed as by Linux: {why}")))?;
    Ok(true)
}

/// What Linux shows of one subvolume.
fn model(top: &Path, config: &Config) -> Result<Model> {
    let mut model = Model::new(Node::ROOT, inode(top)?, config.nodesize);
    model.quotas = config.quotas;
    let mut found = BTreeMap::new();
    let mut rest = vec![top.to_owned()];
    while let Some(path) = rest.pop() {
        let number = asked("stat", fs::symlink_metadata(&path))?.ino();
        if found.contains_key(&number) {
            continue;
        }
        let inode = inode(&path)?;
        if let Some(dir) = inode.directory() {
            let names = dir.entries.keys();
            rest.extend(names.map(|name| path.join(std::ffi::OsStr::from_bytes(name))));
        }
        found.insert(number, Arc::new(inode));
    }
    if let Some(volume) = model.volumes.get_mut(&Node::ROOT.subvolume) {
        volume.inodes = found;
    }
    Ok(model)
}

fn inode(path: &Path) -> Result<Inode> {
    let found = asked("stat", fs::symlink_metadata(path))?;
    let kind = found.file_type();
    let body = match kind {
        it if it.is_file() => Body::File(content(path)?),
        it if it.is_dir() => Body::Directory(directory(path)?),
        it if it.is_symlink() => {
            Body::Link(asked("readlink", fs::read_link(path))?.into_os_string().into_vec())
        }
        it if it.is_fifo() => Body::Special(FileKind::Fifo, found.rdev()),
        _ => Body::Special(FileKind::Socket, found.rdev()),
    };
    let time = |sec, nsec: i64| Time { sec, nsec: nsec as u32 };
    let times = Times { mtime: time(found.mtime(), found.mtime_nsec()), ..Times::default() };
    Ok(Inode {
        mode: found.mode() & 0o7777,
        uid: found.uid(),
        gid: found.gid(),
        nlink: found.nlink() as u32,
        times,
        xattrs: xattrs(path)?,
        body,
    })
}

fn directory(path: &Path) -> Result<Directory> {
    let mut found = Directory::default();
    for entry in asked("list", fs::read_dir(path))? {
        let entry = asked("list", entry)?;
        let number = asked("stat", entry.metadata())?.ino();
        found.add(entry.file_name().as_bytes(), Target::Inode(number));
    }
    Ok(found)
}

fn content(path: &Path) -> Result<Content> {
    let file = asked("open", fs::File::open(path))?;
    let size = asked("stat", file.metadata())?.len();
    let mut found = Content::default();
    for at in (0..size).step_by(PAGE as usize) {
        let mut bytes = vec![0; (size - at).min(PAGE) as usize];
        asked("read", file.read_exact_at(&mut bytes, at))?;
        found.write(at, &bytes);
    }
    found.resize(size);
    Ok(found)
}

fn xattrs(path: &Path) -> Result<BTreeMap<Vec<u8>, Arc<[u8]>>> {
    let (mut list, mut found) = (vec![0; 1 << 16], BTreeMap::new());
    let len = asked("xattrs", rustix::fs::llistxattr(path, &mut list[..]))?;
    for name in list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 1 << 16];
        let text = std::ffi::OsStr::from_bytes(name);
        let len = asked("xattr", rustix::fs::lgetxattr(path, text, &mut value[..]))?;
        found.insert(name.to_vec(), value[..len].into());
    }
    Ok(found)
}
