//! Trees of files to copy, and comparing them.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

/// Makes a tree with every kind of file that an ordinary user can make.
pub fn make(at: &Path) {
    fs::create_dir_all(at.join("dir/below/empty")).unwrap();
    fs::write(at.join("small"), "inline").unwrap();
    fs::write(at.join("nothing"), "").unwrap();
    let noise: Vec<u8> =
        (0..700_001u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    fs::write(at.join("dir/large"), &noise).unwrap();
    let sparse = File::create(at.join("dir/sparse")).unwrap();
    sparse.set_len(50 << 20).unwrap();
    sparse.write_all_at(b"an island", 20 << 20).unwrap();
    fs::hard_link(at.join("small"), at.join("dir/same")).unwrap();
    fs::hard_link(at.join("small"), at.join("dir/below/same too")).unwrap();
    symlink("../small", at.join("dir/link")).unwrap();
    symlink("/nowhere", at.join("dangling")).unwrap();
    let fifo = Command::new("mkfifo").arg(at.join("pipe")).status().unwrap();
    assert!(fifo.success());
    let name = std::ffi::OsStr::from_bytes(b"not utf-8 \xff\xfe");
    fs::write(at.join(name), "x").unwrap();
    fs::set_permissions(at.join("dir/large"), Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(at.join("dir/below"), Permissions::from_mode(0o1700)).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    match rustix::fs::setxattr(at.join("small"), "user.one", b"value", flags) {
        // Not every filesystem has them; then the copies have none either.
        Ok(()) | Err(rustix::io::Errno::NOTSUP) => {}
        Err(errno) => panic!("{errno}"),
    }
    let old = UNIX_EPOCH + Duration::new(1_000_000_007, 123_456_789);
    let times = FileTimes::new().set_modified(old).set_accessed(old);
    OpenOptions::new().write(true).open(at.join("small")).unwrap().set_times(times).unwrap();
    File::open(at.join("dir/below")).unwrap().set_times(times).unwrap();
}

/// Everything that a copy keeps, by path.
pub fn facts(top: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut found = BTreeMap::new();
    let mut inodes = BTreeMap::new();
    walk(top, top, &mut inodes, &mut found);
    found
}

fn walk(
    top: &Path,
    at: &Path,
    inodes: &mut BTreeMap<u64, usize>,
    found: &mut BTreeMap<Vec<u8>, String>,
) {
    let mut names: Vec<_> = fs::read_dir(at).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    for path in names {
        let it = path.symlink_metadata().unwrap();
        let count = inodes.len();
        let inode = *inodes.entry(it.ino()).or_insert(count);
        let links = if it.is_dir() { 0 } else { it.nlink() };
        let size = if it.is_dir() { 0 } else { it.size() };
        let (mode, mtime, nanos) = (it.mode(), it.mtime(), it.mtime_nsec());
        let content = match () {
            _ if it.is_symlink() => fs::read_link(&path).unwrap().display().to_string(),
            _ if it.is_file() => hash(&fs::read(&path).unwrap()),
            _ => String::new(),
        };
        let (uid, gid, xattr) = (it.uid(), it.gid(), xattr(&path));
        let line = format!(
            "{mode:o} {uid}:{gid} links {links} inode {inode} size {size} {mtime}.{nanos} {content} {xattr}"
        );
        found.insert(path.strip_prefix(top).unwrap().as_os_str().as_bytes().to_vec(), line);
        if it.is_dir() {
            walk(top, &path, inodes, found);
        }
    }
}

fn xattr(path: &Path) -> String {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut value = [0u8; 100];
    match rustix::fs::lgetxattr(&*path, "user.one", &mut value) {
        Ok(len) => String::from_utf8_lossy(&value[..len]).into_owned(),
        Err(_) => "-".into(),
    }
}

fn hash(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// Fails with the first difference.
pub fn same(what: &str, ours: &BTreeMap<Vec<u8>, String>, theirs: &BTreeMap<Vec<u8>, String>) {
    for (path, line) in theirs {
        let name = String::from_utf8_lossy(path);
        assert_eq!(ours.get(path), Some(line), "{what}: {name}");
    }
    assert_eq!(ours.len(), theirs.len(), "{what}: there are other files");
}
