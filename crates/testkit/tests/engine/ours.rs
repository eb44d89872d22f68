//! Changes made with the library: to what is there, whoever made it, and new things of every kind.

use buttress::{
    Allocate, Change, Entry, Errno, Error, FileKind, Filesystem, New, Node, Owner, Rename, Result,
    SetXattr, Time,
};

use crate::bytes::{noise, words};

/// Names that are changed at most.
const CHANGES_MAX: usize = 150;

/// A change that the format or the rules of Linux do not allow where it was tried.
fn allowed(result: Result<()>) -> Result<()> {
    match result {
        Err(Error::User(
            // Links to one inode, sizes, room for xattrs in a leaf, clones between files with and without checksums.
            Errno::MLINK | Errno::FBIG | Errno::OVERFLOW | Errno::NOSPC | Errno::INVAL,
        )) => Ok(()),
        other => other,
    }
}

/// A spread of changes to the tree under `top`, another one for each `round`.
pub fn change(fs: &Filesystem, top: Node, round: u64) -> Result<()> {
    let mut names = Vec::new();
    gather(fs, top, &mut names)?;
    let step = names.len().div_ceil(CHANGES_MAX).max(1);
    let chosen = names.into_iter().skip(round as usize % step).step_by(step);
    for (number, (dir, entry)) in chosen.enumerate() {
        // Names are made of it: none is made twice.
        let seed = number as u64 * 7 + round * 1_000_003;
        let done = match entry.kind {
            FileKind::Regular => change_file(fs, dir, &entry, seed),
            FileKind::Directory => change_directory(fs, dir, &entry, seed),
            _ => change_other(fs, dir, &entry, seed),
        };
        allowed(done)?;
        if number % 100 == 50 {
            fs.commit()?;
        }
    }
    add(fs, top, round)
}

/// All names under a directory, not those in read-only subvolumes.
fn gather(fs: &Filesystem, dir: Node, names: &mut Vec<(Node, Entry)>) -> Result<()> {
    let mut waiting = vec![dir];
    while let Some(dir) = waiting.pop() {
        if dir.is_stub() || dir.is_top() && fs.subvolume_info(dir.subvolume)?.is_read_only() {
            continue;
        }
        fs.read_dir(dir, 0, &mut |entry| {
            if entry.kind == FileKind::Directory {
                waiting.push(entry.node);
            }
            names.push((dir, entry));
            true
        })?;
    }
    Ok(())
}

fn called(word: &str, seed: u64) -> Vec<u8> {
    format!("{word}-{seed}").into_bytes()
}

fn change_file(fs: &Filesystem, dir: Node, entry: &Entry, seed: u64) -> Result<()> {
    let node = entry.node;
    let size = fs.attributes(node)?.size;
    match seed % 13 {
        0 => fs.write(node, size / 2, &noise(seed, 5000)).map(|_| ()),
        1 => fs.write(node, size, &words(seed, 70_000)).map(|_| ()),
        2 => resize(fs, node, size / 2),
        3 => fs.fallocate(node, Allocate::PunchHole, size / 4, size / 2 + 1),
        4 => fs.unlink(dir, &entry.name).map(|_| ()),
        5 => fs.rename(dir, &entry.name, dir, &called("renamed", seed), Rename::Replace),
        6 => attributes(fs, node, seed),
        7 => fs.link(node, dir, &called("link", seed)).map(|_| ()),
        8 => clone(fs, dir, node, seed),
        9 => own(fs, node, seed),
        10 => fs.fallocate(node, Allocate::ZeroRange { keep_size: false }, size / 3, 50_000),
        11 => resize(fs, node, size.saturating_add(1_000_001)),
        _ => fs.fallocate(node, Allocate::Reserve { keep_size: true }, size, 300_000),
    }
}

fn change_directory(fs: &Filesystem, dir: Node, entry: &Entry, seed: u64) -> Result<()> {
    let node = entry.node;
    let holds_files =
        !(node.is_stub() || node.is_top() && fs.subvolume_info(node.subvolume)?.is_read_only());
    match seed % 4 {
        0 if holds_files => {
            let file = fs.create(node, &called("new", seed), &New::file(0o640))?.node;
            fs.write(file, 0, &words(seed, seed as usize * 100 % 9000))?;
            fs.create(node, &called("directory", seed), &New::directory(0o711)).map(|_| ())
        }
        1 if !node.is_stub() => {
            fs.rename(dir, &entry.name, dir, &called("moved", seed), Rename::NoReplace)
        }
        2 => match fs.rmdir(dir, &entry.name) {
            Err(Error::User(Errno::NOTEMPTY | Errno::PERM)) => Ok(()),
            other => other.map(|_| ()),
        },
        _ if holds_files => own(fs, node, seed),
        _ => Ok(()),
    }
}

fn change_other(fs: &Filesystem, dir: Node, entry: &Entry, seed: u64) -> Result<()> {
    match seed % 4 {
        0 => fs.unlink(dir, &entry.name).map(|_| ()),
        1 => fs.rename(dir, &entry.name, dir, &called("other", seed), Rename::Replace),
        2 => fs.link(entry.node, dir, &called("again", seed)).map(|_| ()),
        _ => own(fs, entry.node, seed),
    }
}

fn resize(fs: &Filesystem, node: Node, size: u64) -> Result<()> {
    let change = Change { size: Some(size), ..Change::default() };
    fs.set_attributes(node, &change).map(|_| ())
}

fn own(fs: &Filesystem, node: Node, seed: u64) -> Result<()> {
    let change = Change {
        mode: Some(0o400 + (seed as u32 * 13) % 0o400),
        uid: Some(1000 + seed as u32),
        gid: Some(seed as u32),
        mtime: Some(Time { sec: seed as i64 * 1_000_000, nsec: 999_999_999 }),
        ..Change::default()
    };
    fs.set_attributes(node, &change).map(|_| ())
}

fn attributes(fs: &Filesystem, node: Node, seed: u64) -> Result<()> {
    let old = fs.list_xattrs(node)?.into_iter().find(|name| name.starts_with(b"user."));
    if let Some(old) = old {
        fs.remove_xattr(node, &old)?;
    }
    fs.set_xattr(node, b"user.ours", &noise(seed, seed as usize % 400), SetXattr::Any)?;
    fs.set_xattr(node, b"trusted.ours", b"", SetXattr::Any)
}

fn clone(fs: &Filesystem, dir: Node, node: Node, seed: u64) -> Result<()> {
    let size = fs.attributes(node)?.size;
    let to = fs.create(dir, &called("clone", seed), &New::file(0o600))?.node;
    if size > 0 {
        fs.clone_range(node, 0, size, to, 0)?;
    }
    fs.write(to, 4096, b"of its own").map(|_| ())
}

/// New files, subvolumes and snapshots under `top`.
fn add(fs: &Filesystem, top: Node, round: u64) -> Result<()> {
    let dir = fs.create(top, &called("ours", round), &New::directory(0o755))?.node;
    files(fs, dir)?;
    let sub = fs.create_subvolume(dir, b"subvolume", Owner { uid: 5, gid: 6, umask: 0o022 })?;
    files(fs, Node::top(sub))?;
    let writable = fs.snapshot(sub, dir, b"writable", false)?;
    fs.snapshot(top.subvolume, dir, b"read-only", true)?;
    fs.snapshot(top.subvolume, dir, b"to-go", false)?;
    let file = fs.lookup(Node::top(writable), b"file-7")?.ok_or(Error::User(Errno::NOENT))?;
    fs.write(file.node, 0, &noise(round, 20_000))?;
    fs.unlink(Node::top(sub), b"file-8")?;
    fs.delete_subvolume(dir, b"to-go")?;
    fs.set_label(format!("ours {round}").as_bytes())?;
    fs.rename(dir, b"large", dir, b"text", Rename::Exchange)?;
    fs.clean()?;
    fs.unlink(dir, b"large").map(|_| ())
}

fn files(fs: &Filesystem, dir: Node) -> Result<()> {
    for number in 0..30 {
        let file = fs.create(dir, &called("file", number), &New::file(0o644))?.node;
        fs.write(file, 0, &words(number, number as usize * 150))?;
        if number % 3 == 0 {
            fs.set_xattr(file, b"user.number", &called("value", number), SetXattr::Create)?;
        }
    }
    for (name, content) in [("large", noise(1, 1_200_000)), ("text", words(2, 900_000))] {
        let file = fs.create(dir, name.as_bytes(), &New::file(0o600))?.node;
        fs.write(file, 0, &content)?;
    }
    fs.create(dir, b"link", &New::symlink("file-7"))?;
    fs.create(dir, b"fifo", &New::of(FileKind::Fifo, 0o622))?;
    let rdev = (8 << 20) | 1;
    fs.create(dir, b"device", &New { rdev, ..New::of(FileKind::Block, 0o660) })?;
    Ok(())
}
