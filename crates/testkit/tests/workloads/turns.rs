//! The work that the kernel does on a filesystem that we have left, and we on one that the kernel has left.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use buttress::{Allocate, Change, FileKind, Filesystem, New, Node, Rename, SetXattr};

use crate::tools::{bytes, put};

/// Files of the workload that are changed.
const VICTIMS: usize = 40;
/// Files that are made.
const MADE: usize = 120;
/// Directory entries looked at in search of victims.
const LOOKS: usize = 3000;

/// What a full or read-only place refuses is no failure here.
fn excused<T>(result: io::Result<T>) -> Option<T> {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem, StorageFull, TooManyLinks};
    match result {
        Ok(done) => Some(done),
        Err(error) => match error.kind() {
            StorageFull | ReadOnlyFilesystem | PermissionDenied | TooManyLinks => None,
            _ => panic!("{error}"),
        },
    }
}

/// Writes, renames, links, truncates, deletes; makes and deletes snapshots and subvolumes.
pub fn kernel(top: &Path) {
    let (files, subvolumes) = survey(top);
    let step = (files.len() / VICTIMS).max(1);
    for (number, path) in files.iter().step_by(step).enumerate() {
        excused(change(path, number));
    }
    if let Some(path) = subvolumes.first() {
        // Refused for one that holds others: that is all right.
        let _ = btrfs(&["subvolume", "delete"], &[path]);
    }
    let dir = top.join("kernel-turn");
    if excused(fs::create_dir(&dir)).is_none() {
        return;
    }
    for number in 0..MADE {
        excused(make(&dir, number));
    }
    if !btrfs(&["subvolume", "snapshot"], &[top, &top.join("kernel-snapshot")]) {
        return;
    }
    excused(fs::write(top.join("kernel-snapshot/new"), bytes(50_000, 3)));
    excused(fs::remove_dir_all(top.join("kernel-snapshot/kernel-turn")));
    for number in (0..MADE).step_by(3) {
        let path = dir.join(number.to_string());
        if path.symlink_metadata().is_ok() {
            excused(fs::remove_file(path));
        }
    }
    if btrfs(&["subvolume", "snapshot", "-r"], &[top, &top.join("kernel-read-only")]) {
        excused(fs::write(top.join("kernel-after"), bytes(9_000, 4)));
        btrfs(&["subvolume", "delete"], &[&top.join("kernel-read-only")]);
    }
}

fn btrfs(words: &[&str], paths: &[&Path]) -> bool {
    let mut command = Command::new("btrfs");
    command.args(words).args(paths).env("LC_ALL", "C");
    command.output().unwrap().status.success()
}

/// Some files that belong to no snapshot that is read-only, and the subvolumes on top.
fn survey(top: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let (mut files, mut subvolumes) = (Vec::new(), Vec::new());
    let mut waiting = vec![top.to_path_buf()];
    let mut looks = 0;
    while let Some(dir) = waiting.pop() {
        let mut entries: Vec<_> =
            dir.read_dir().unwrap().map(|entry| entry.unwrap()).take(LOOKS).collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let (kind, path) = (entry.file_type().unwrap(), entry.path());
            if kind.is_dir() {
                use std::os::unix::fs::MetadataExt;
                let ino = path.symlink_metadata().unwrap().ino();
                if ino == 256 && dir == top {
                    subvolumes.push(path.clone());
                }
                if looks < LOOKS {
                    waiting.push(path);
                }
            } else if kind.is_file() {
                files.push(path);
            }
            looks += 1;
        }
    }
    files.sort();
    (files, subvolumes)
}

/// One change of a file that is there.
fn change(path: &Path, number: usize) -> io::Result<()> {
    let open = || fs::OpenOptions::new().write(true).open(path);
    match number % 8 {
        0 => open()?.write_all_at(&bytes(5000, number as u32), 1000),
        1 => {
            let file = open()?;
            let size = file.metadata()?.len();
            if size > i64::MAX as u64 / 2 { Ok(()) } else { file.write_all_at(b"more", size) }
        }
        2 => {
            let file = open()?;
            let size = file.metadata()?.len();
            file.set_len(size / 2)
        }
        3 => {
            let name = [path.file_name().unwrap().as_bytes().get(..200), Some(b"moved")];
            let name = name.into_iter().flatten().collect::<Vec<_>>().concat();
            fs::rename(path, path.with_file_name(std::ffi::OsStr::from_bytes(&name)))
        }
        4 => fs::remove_file(path),
        5 => {
            Ok(rustix::fs::setxattr(path, "user.kernel", b"here", rustix::fs::XattrFlags::empty())?)
        }
        6 => {
            let name = format!("link-{number}");
            fs::hard_link(path, path.with_file_name(name))
        }
        _ => {
            use rustix::fs::FallocateFlags as Flags;
            let how = Flags::PUNCH_HOLE | Flags::KEEP_SIZE;
            Ok(rustix::fs::fallocate(open()?, how, 4096, 9000)?)
        }
    }
}

/// One new file.
fn make(dir: &Path, number: usize) -> io::Result<()> {
    let path = dir.join(number.to_string());
    match number % 6 {
        0 => symlink("target", path),
        1 => fs::write(path, bytes(700, number as u32)),
        2 => fs::hard_link(dir.join((number - 1).to_string()), path),
        3 => {
            let file = fs::File::create(path)?;
            Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, 65_536)?)
        }
        4 => fs::write(path, bytes(40_000, number as u32)),
        _ => fs::File::create(path)?.write_all_at(b"far", 10_000_000),
    }
}

/// What a full place refuses.
fn allowed<T>(result: buttress::Result<T>) -> Option<T> {
    match result {
        Ok(done) => Some(done),
        Err(buttress::Error::NoSpace) => None,
        Err(error) => panic!("{error}"),
    }
}

fn entries(fs: &Filesystem, dir: Node) -> Vec<buttress::Entry> {
    let mut entries = Vec::new();
    fs.read_dir(dir, 0, &mut |entry| {
        entries.push(entry);
        true
    })
    .unwrap();
    entries
}

/// Goes on where the kernel stopped.
pub fn ours(fs: &Filesystem) {
    if let Ok(dir) = fs.resolve("/kernel-turn") {
        for (number, entry) in entries(fs, dir).iter().enumerate() {
            allowed(ours_changes(fs, dir, entry, number));
        }
    }
    let Some(dir) = allowed(fs.create(Node::ROOT, b"our-turn", &New::directory(0o755))) else {
        return;
    };
    for number in 0..MADE {
        let path = format!("/our-turn/{number}");
        put(fs, &path, &bytes(number * 97, number as u32));
    }
    allowed(fs.snapshot(5, dir.node, b"snapshot", false));
    if let Some(found) = fs.lookup(Node::ROOT, b"kernel-snapshot").unwrap() {
        let top = found.node;
        allowed(fs.create(top, b"ours", &New::file(0o600)));
        if let Some(new) = fs.lookup(top, b"new").unwrap() {
            allowed(fs.write(new.node, 20_000, &bytes(8000, 5)));
        }
        allowed(fs.commit());
        allowed(fs.delete_subvolume(Node::ROOT, b"kernel-snapshot"));
    }
    fs.clean().unwrap();
    for number in (0..MADE).step_by(2) {
        let name = number.to_string();
        if fs.lookup(dir.node, name.as_bytes()).unwrap().is_some() {
            fs.unlink(dir.node, name.as_bytes()).unwrap();
        }
    }
}

fn ours_changes(
    fs: &Filesystem,
    dir: Node,
    entry: &buttress::Entry,
    number: usize,
) -> buttress::Result<()> {
    if entry.kind != FileKind::Regular {
        return fs.unlink(dir, &entry.name).map(|_| ());
    }
    match number % 6 {
        0 => fs.write(entry.node, 100, &bytes(6000, 1)).map(|_| ()),
        1 => fs.unlink(dir, &entry.name).map(|_| ()),
        2 => {
            let name = [b"from-the-kernel-", &entry.name[..]].concat();
            fs.rename(dir, &entry.name, Node::ROOT, &name, Rename::Replace)
        }
        3 => fs.set_xattr(entry.node, b"user.ours", &bytes(300, 2), SetXattr::Any),
        4 => fs.fallocate(entry.node, Allocate::PunchHole, 0, 8192),
        _ => {
            let size = Some(fs.attributes(entry.node)?.size / 3);
            fs.set_attributes(entry.node, &Change { size, ..Change::default() }).map(|_| ())
        }
    }
}
