//! What is mounted, by /proc/self/mountinfo: to find the mount a path lies on, and the device
//! behind it.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Type of our mounts as /proc/mounts shows it.
pub const FS_TYPE: &str = "fuse.buttress";
/// The same for a block device that the kernel has claimed for the mount.
pub const FS_TYPE_BLOCK: &str = "fuseblk.buttress";

/// One line of mountinfo, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Number of this mount, as /proc/PID/fdinfo shows it.
    pub id: u64,
    /// That of the mount it is mounted on.
    pub parent: u64,
    /// `st_dev` of the mount as major and minor number.
    pub device: (u32, u32),
    /// The directory of the filesystem that is the top of the mount, from the filesystem's own top on: `/` where they are one.
    pub root: PathBuf,
    /// Directory it is mounted on.
    pub mountpoint: PathBuf,
    /// File system type with its subtype.
    pub fs_type: OsString,
    /// What is mounted: for our mounts the image or block device.
    pub source: PathBuf,
    /// The user who mounted it, where the filesystem says so.
    pub owner: Option<u32>,
    /// Nothing may be written through it.
    pub read_only: bool,
    /// Nothing may be written through any mount of the filesystem.
    pub never_writes: bool,
}

impl MountEntry {
    /// Whether a buttress process serves it.
    pub fn is_ours(&self) -> bool {
        self.fs_type == FS_TYPE || self.fs_type == FS_TYPE_BLOCK
    }

    /// Whether it is the same mount, which may have moved meanwhile, or shows a directory that was renamed.
    pub fn is(&self, other: &MountEntry) -> bool {
        (self.id, self.device) == (other.id, other.device)
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
        let (id, parent) = (number()?, number()?);
        let device = std::str::from_utf8(fields.next()?).ok()?;
        let (major, minor) = device.split_once(':')?;
        let root = unescape(fields.next()?);
        let mountpoint = unescape(fields.next()?);
        let own = fields.next()?;
        let mut tail = fields.skip_while(|field| *field != b"-").skip(1);
        let (fs_type, source) = (unescape(tail.next()?), unescape(tail.next()?));
        let shared = tail.next().unwrap_or_default();
        Some(Self {
            id,
            parent,
            device: (major.parse().ok()?, minor.parse().ok()?),
            root: root.into(),
            mountpoint: mountpoint.into(),
            fs_type,
            source: source.into(),
            owner: owner(shared),
            read_only: [own, shared].into_iter().any(is_read_only),
            never_writes: is_read_only(shared),
        })
    }
}

/// Whether options of a mount, or of the filesystem that all its mounts share, say so.
fn is_read_only(options: &[u8]) -> bool {
    options.split(|&byte| byte == b',').any(|word| word == b"ro")
}

/// The user among the options of a FUSE filesystem.
fn owner(options: &[u8]) -> Option<u32> {
    let mut words = std::str::from_utf8(options).ok()?.split(',');
    words.find_map(|word| word.strip_prefix("user_id=")?.parse().ok())
}

/// All mounts this process sees, oldest first.
pub fn all() -> std::io::Result<Vec<MountEntry>> {
    seen_by("self")
}

/// All mounts that process or thread `pid` (a number or `self`) sees, oldest first.
pub fn seen_by(pid: &str) -> std::io::Result<Vec<MountEntry>> {
    let text = std::fs::read(format!("/proc/{pid}/mountinfo"))?;
    Ok(text.split(|&byte| byte == b'\n').filter_map(MountEntry::parse).collect())
}

/// The mounts of the filesystem with this `st_dev` that can be reached by their mount points, newest first; and whether there
/// are more, which others cover.
pub fn of_device(device: (u32, u32)) -> std::io::Result<(Vec<MountEntry>, bool)> {
    let all = all()?;
    let ours = all.iter().rev().filter(|entry| entry.device == device);
    let on_top = |entry: &&MountEntry| {
        let last = all.iter().rev().find(|other| other.mountpoint == entry.mountpoint);
        last.is_some_and(|last| last.id == entry.id)
    };
    let (reachable, covered): (Vec<_>, Vec<_>) = ours.partition(on_top);
    Ok((reachable.into_iter().cloned().collect(), !covered.is_empty()))
}

/// The newest mount of the filesystem with this `st_dev` to which its path leads, if there is one: none that another one covers, or a directory before it.
pub fn reachable(device: (u32, u32)) -> std::io::Result<Option<MountEntry>> {
    let all = all()?;
    let is_it = |entry: &&MountEntry| entry.device == device && !is_covered(&all, entry);
    Ok(all.iter().rev().find(is_it).cloned())
}

/// The directories of the filesystem with this `st_dev` that are the tops of mounts among `all`, from the filesystem's own top on.
/// Without those that are deleted, and those that no path leads to, as another mount covers them.
pub fn tops(all: &[MountEntry], device: (u32, u32)) -> Vec<&Path> {
    let ours = all.iter().filter(|entry| entry.device == device && !is_covered(all, entry));
    let mut tops: Vec<&Path> = ours.map(|entry| entry.root.as_path()).collect();
    // What is deleted is shown with `//deleted` at its end.
    tops.retain(|top| !top.as_os_str().as_bytes().windows(2).any(|two| two == b"//"));
    tops.sort_unstable();
    tops.dedup();
    tops
}

/// Whether a mount lies below another one: on its top, or on a directory that leads to it.
fn is_covered(all: &[MountEntry], entry: &MountEntry) -> bool {
    // The first mount of all is mounted on itself.
    let others = || all.iter().filter(|it| it.id != it.parent);
    let beside = |at: &MountEntry, other: &MountEntry| {
        other.parent == at.parent
            && other.mountpoint != at.mountpoint
            && at.mountpoint.starts_with(&other.mountpoint)
    };
    if others().any(|it| it.parent == entry.id && it.mountpoint == entry.mountpoint) {
        return true;
    }
    let mut at = Some(entry);
    // Each step leads to the mount that it is mounted on; the last one is on none that is shown.
    for _ in 0..all.len() {
        let Some(here) = at else { return false };
        if others().any(|other| beside(here, other)) {
            return true;
        }
        at = all.iter().find(|it| it.id == here.parent && it.id != here.id);
    }
    at.is_some()
}

/// A mount on a directory (an absolute path) or below it, if there is one that a path leads to.
pub fn below(directory: &Path) -> std::io::Result<Option<MountEntry>> {
    let all = all()?;
    let is_below =
        |entry: &&MountEntry| entry.mountpoint.starts_with(directory) && !is_covered(&all, entry);
    Ok(all.iter().find(is_below).cloned())
}

/// The topmost mount whose mount point is exactly `mountpoint` (an absolute path).
pub fn at(mountpoint: &Path) -> std::io::Result<Option<MountEntry>> {
    Ok(all()?.into_iter().rev().find(|entry| entry.mountpoint == mountpoint))
}

/// Undoes the `\ooo` escapes of blanks and backslashes.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let escaped = (byte == b'\\').then(|| tail.get(..3)).flatten().and_then(octal);
        out.push(escaped.unwrap_or(byte));
        rest = if escaped.is_some() { tail.get(3..).unwrap_or_default() } else { tail };
    }
    OsString::from_vec(out)
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

/// Writes `text` as a value in a comma separated option list of the mount helper.
pub(crate) fn escape_option(text: &Path) -> OsString {
    let mut out = Vec::new();
    for &byte in text.as_os_str().as_bytes() {
        if matches!(byte, b',' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_optional_fields_and_blanks() {
        let line =
            br"36 35 0:42 / /mnt/my\040disk rw,noatime shared:1 - fuse.buttress /a\134b.img rw,user_id=7";
        let entry = MountEntry::parse(line).unwrap();
        assert_eq!((entry.id, entry.device), (36, (0, 42)));
        assert_eq!(entry.mountpoint, Path::new("/mnt/my disk"));
        assert_eq!(entry.source, Path::new("/a\\b.img"));
        assert!(entry.is_ours());
        assert_eq!(entry.owner, Some(7));
        assert!(entry.root == Path::new("/") && !entry.read_only);
    }

    #[test]
    fn a_mount_is_read_only_by_itself_or_with_all_others() {
        for (own, shared, is) in
            [("rw", "rw", false), ("ro,noatime", "rw", true), ("rw", "ro,user_id=0", true)]
        {
            let line = format!("36 35 0:42 / /mnt {own} - fuse.buttress /a {shared}");
            assert_eq!(MountEntry::parse(line.as_bytes()).unwrap().read_only, is);
        }
    }

    #[test]
    fn tops_are_those_that_a_path_leads_to() {
        let shown = |lines: &[&str]| {
            let all: Vec<_> =
                lines.iter().map(|line| MountEntry::parse(line.as_bytes()).unwrap()).collect();
            tops(&all, (0, 42)).into_iter().map(Path::to_owned).collect::<Vec<_>>()
        };
        let on = |id: u32, parent: u32, device: u32, root: &str, at: &str| {
            format!("{id} {parent} 0:{device} {root} {at} rw - fuse.buttress /a rw")
        };
        let root = on(1, 1, 1, "/", "/");
        let home = on(2, 1, 42, "/@home", "/a/home");
        let below = on(3, 2, 42, "/@/x", "/a/home/x");
        let same = on(4, 1, 42, "/@home", "/b");
        let gone = on(5, 1, 42, "/@/y//deleted", "/c");
        let all = [root.as_str(), &home, &below, &same, &gone];
        assert_eq!(shown(&all), [Path::new("/@/x"), Path::new("/@home")]);
        assert_eq!(shown(&all[..2]), [Path::new("/@home")]);
        assert!(shown(&all[..1]).is_empty());
        // On its top; on a directory above it; neither.
        for (at, parent, covers) in [
            ("/a/home", 2, true),
            ("/a", 1, true),
            ("/", 1, true),
            ("/a/h", 1, false),
            ("/a/home/y", 2, false),
        ] {
            let other = on(9, parent, 7, "/", at);
            assert_eq!(shown(&[&root, &home, &other]).is_empty(), covers, "{at}");
        }
        // What covers the mount that it is mounted on covers it too.
        let other = on(9, 1, 7, "/", "/a");
        assert!(shown(&[&root, &home, &below, &other]).is_empty());
        // Numbers that lead in a circle lead nowhere.
        assert!(shown(&[&on(2, 3, 42, "/", "/a"), &on(3, 2, 1, "/", "/b")]).is_empty());
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(at(Path::new("/")).unwrap().is_some());
    }

    #[test]
    fn commas_do_not_end_an_option() {
        assert_eq!(escape_option(Path::new("a,b\\c")), "a\\,b\\\\c");
    }
}
