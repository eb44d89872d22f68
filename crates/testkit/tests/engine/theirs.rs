//! Changes made by the kernel, of the same kinds as ours.

use std::fs::{self, File, FileType, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use buttress_testkit::oracle::btrfs;
use rustix::fs::{FallocateFlags, XattrFlags, fallocate, ioctl_ficlone, lsetxattr};
use rustix::io::Errno;

use crate::bytes::{noise, words};

/// Names that are changed at most.
const CHANGES_MAX: usize = 150;

/// What the kernel does not allow where it was tried: read-only subvolumes, immutable files, limits.
fn allowed(result: io::Result<()>) -> io::Result<()> {
    let known = [
        Errno::ROFS,
        Errno::PERM,
        Errno::MLINK,
        Errno::FBIG,
        Errno::OVERFLOW,
        Errno::NOSPC,
        Errno::INVAL,
        Errno::NOTEMPTY,
        Errno::OPNOTSUPP,
        // The empty directory where a snapshot lacks a subvolume.
        Errno::ACCESS,
        // A directory on the way was renamed.
        Errno::NOENT,
    ];
    match result {
        Err(error) if known.iter().any(|it| error.raw_os_error() == Some(it.raw_os_error())) => {
            Ok(())
        }
        other => other,
    }
}

/// A spread of changes to a mounted tree, another one for each `round`.
pub fn change(top: &Path, round: u64) -> io::Result<()> {
    let mut names = Vec::new();
    gather(top, &mut names)?;
    names.sort_by(|a, b| a.0.cmp(&b.0));
    let step = names.len().div_ceil(CHANGES_MAX).max(1);
    let chosen = names.into_iter().skip(round as usize % step).step_by(step);
    for (number, (path, kind)) in chosen.enumerate() {
        // Names are made of it: none is made twice.
        let seed = number as u64 * 11 + round * 1_000_003;
        allowed(match kind {
            kind if kind.is_file() => change_file(&path, seed),
            kind if kind.is_dir() => change_directory(&path, seed),
            kind => change_other(&path, kind, seed),
        })
        .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
    }
    add(top, round)
}

fn gather(top: &Path, names: &mut Vec<(PathBuf, FileType)>) -> io::Result<()> {
    let mut waiting = vec![top.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                waiting.push(entry.path());
            }
            names.push((entry.path(), entry.file_type()?));
        }
    }
    Ok(())
}

fn beside(path: &Path, word: &str, seed: u64) -> PathBuf {
    path.with_file_name(format!("{word}-{seed}"))
}

fn change_file(path: &Path, seed: u64) -> io::Result<()> {
    let open = || OpenOptions::new().read(true).write(true).open(path);
    let size = fs::symlink_metadata(path)?.len();
    let shape =
        |mode, offset, len| -> io::Result<()> { Ok(fallocate(open()?, mode, offset, len)?) };
    match seed % 12 {
        0 => open()?.write_all_at(&noise(seed, 6000), size / 3),
        1 => open()?.write_all_at(&words(seed, 80_000), size),
        2 => open()?.set_len(size / 3),
        3 => {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            shape(mode, size / 5, size / 2 + 1)
        }
        4 => fs::remove_file(path),
        5 => fs::rename(path, beside(path, "RENAMED", seed)),
        6 => Ok(lsetxattr(path, "user.theirs", &noise(seed, 200), XattrFlags::empty())?),
        7 => fs::hard_link(path, beside(path, "LINK", seed)),
        8 => {
            let to = File::create(beside(path, "CLONE", seed))?;
            Ok(ioctl_ficlone(to, open()?)?)
        }
        9 => fs::set_permissions(path, Permissions::from_mode(0o604)),
        10 => shape(FallocateFlags::ZERO_RANGE, size / 3, 50_000),
        _ => {
            open()?.write_all_at(&noise(seed, 10), size / 2)?;
            open()?.sync_all()
        }
    }
}

fn change_directory(path: &Path, seed: u64) -> io::Result<()> {
    match seed % 4 {
        0 => fs::write(path.join(format!("NEW-{seed}")), words(seed, 4000)),
        1 => fs::rename(path, beside(path, "MOVED", seed)),
        2 => fs::remove_dir(path),
        _ => lchown(path, Some(seed as u32), None),
    }
}

fn change_other(path: &Path, kind: FileType, seed: u64) -> io::Result<()> {
    match seed % 3 {
        0 if kind.is_symlink() || kind.is_fifo() => fs::remove_file(path),
        1 => fs::hard_link(path, beside(path, "AGAIN", seed)),
        _ => fs::rename(path, beside(path, "OTHER", seed)),
    }
}

/// New files, subvolumes and snapshots.
fn add(top: &Path, round: u64) -> io::Result<()> {
    let dir = top.join(format!("theirs-{round}"));
    fs::create_dir(&dir)?;
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let volume = |args: &[&str]| {
        let args = [&["subvolume"], args].concat();
        btrfs(&args).map(|_| ()).map_err(io::Error::other)
    };
    let sub = dir.join("subvolume");
    volume(&["create", &text(&sub)])?;
    for number in 0..20 {
        fs::write(sub.join(format!("file-{number}")), words(number, number as usize * 170))?;
    }
    fs::write(sub.join("large"), noise(3, 700_000))?;
    symlink("large", sub.join("link"))?;
    volume(&["snapshot", &text(&sub), &text(&dir.join("writable"))])?;
    volume(&["snapshot", "-r", &text(top), &text(&dir.join("read-only"))])?;
    volume(&["snapshot", &text(top), &text(&dir.join("to-go"))])?;
    fs::write(dir.join("writable/file-7"), "changed")?;
    fs::remove_file(sub.join("file-8"))?;
    volume(&["delete", &text(&dir.join("to-go"))])?;
    let ours = top.join(format!("ours-{round}"));
    if ours.join("read-only").exists() && ours.join("writable").exists() {
        volume(&["delete", &text(&ours.join("read-only"))])?;
        volume(&["snapshot", &text(&ours.join("writable")), &text(&dir.join("of-ours"))])?;
    }
    Ok(())
}
