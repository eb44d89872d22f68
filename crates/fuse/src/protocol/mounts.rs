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
}

impl MountEntry {
    /// Whether a buttress process serves it.
    pub fn is_ours(&self) -> bool {
        self.fs_type == FS_TYPE || self.fs_type == FS_TYPE_BLOCK
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let device = std::str::from_utf8(fields.nth(1)?).ok()?;
        let (major, minor) = device.split_once(':')?;
        let root = unescape(fields.next()?);
        let mountpoint = unescape(fields.next()?);
        let own = fields.next()?;
        let mut tail = fields.skip_while(|field| *field != b"-").skip(1);
        let (fs_type, source) = (unescape(tail.next()?), unescape(tail.next()?));
        let shared = tail.next().unwrap_or_default();
        Some(Self {
            id,
            device: (major.parse().ok()?, minor.parse().ok()?),
            root: root.into(),
            mountpoint: mountpoint.into(),
            fs_type,
            source: source.into(),
            owner: owner(shared),
            read_only: [own, shared].into_iter().any(is_read_only),
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
    fn the_root_is_mounted() {
        assert!(at(Path::new("/")).unwrap().is_some());
    }

    #[test]
    fn commas_do_not_end_an_option() {
        assert_eq!(escape_option(Path::new("a,b\\c")), "a\\,b\\\\c");
    }
}
