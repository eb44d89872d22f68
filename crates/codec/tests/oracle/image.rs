//! A small image of one device that the kernel fills, and where its file extents lie.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::Duration;

use buttress_codec::CompressionKind;

/// Sector size that the images are made with.
pub const SECTOR: usize = 4096;
/// From the start of a leaf to what item offsets count from; inline data follows 21 bytes later.
const LEAF_HEADER_LEN: u64 = 101;
const INLINE_HEADER_LEN: u64 = 21;

/// Where the bytes of one compressed extent are.
#[derive(Clone, Debug, Default)]
pub struct Extent {
    pub ino: u64,
    pub file_offset: u64,
    /// Offset in the image, bytes.
    pub physical: u64,
    /// Length on disk, bytes.
    pub disk_len: usize,
    pub ram_len: usize,
    pub inline: bool,
    pub kind: Option<CompressionKind>,
}

/// An image file and the folder to mount it on.
pub struct Image {
    folder: tempfile::TempDir,
}

/// How often something is tried that another test is in the way of, [`PAUSE`] apart.
const ATTEMPTS: u32 = 200;
const PAUSE: Duration = Duration::from_millis(50);

/// Runs a command whatever its exit status. btrfs-progs give up when another test detaches a loop device while they look at
/// all of them: then it is tried again.
pub fn start(program: &str, args: &[&str]) -> std::io::Result<Output> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let done = Command::new(program).args(args).env("LC_ALL", "C").output()?;
        let met = String::from_utf8_lossy(&done.stderr).contains("mount status");
        if done.status.success() || !met || attempt >= ATTEMPTS {
            return Ok(done);
        }
        sleep(PAUSE);
    }
}

/// What a command prints that must succeed.
pub fn run(program: &str, args: &[&str]) -> String {
    let done = start(program, args).expect("the tools were looked for");
    assert!(done.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// Mounts or unmounts, again while other tests take loop devices or, between fork and exec, hold the mount's files; the error
/// is what was said at last.
pub fn patiently(program: &str, args: &[&str]) -> Result<(), String> {
    let mut said = String::new();
    for _ in 0..ATTEMPTS {
        let done = start(program, args).expect("the tools were looked for");
        if done.status.success() {
            return Ok(());
        }
        said = format!("{program} {args:?}: {}", String::from_utf8_lossy(&done.stderr));
        sleep(PAUSE);
    }
    Err(said)
}

/// The number that follows `label` in `line`.
pub fn number_after(line: &str, label: &str) -> Option<u64> {
    let (_, rest) = line.split_once(label)?;
    rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Why this machine cannot mount btrfs images, if so.
pub fn obstacle() -> Option<&'static str> {
    let filesystems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    // Files belong to whoever made them: the cheap way to learn the effective user.
    let owner = tempfile::tempfile().and_then(|file| file.metadata()).map(|meta| meta.uid());
    match owner {
        Ok(0) => {}
        _ => return Some("not root"),
    }
    if Command::new("btrfs").arg("--version").output().is_err() {
        return Some("no btrfs-progs");
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("no loop devices");
    }
    (!filesystems.contains("btrfs")).then_some("the kernel has no btrfs")
}

impl Image {
    /// An empty filesystem, or `None` (with the reason printed) where it could not be mounted.
    pub fn make() -> Option<Self> {
        if let Some(reason) = obstacle() {
            eprintln!("skipped: {reason}");
            return None;
        }
        let image = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(image.mount_point()).unwrap();
        File::create(image.path()).unwrap().set_len(256 << 20).unwrap();
        run("mkfs.btrfs", &["-q", "-m", "single", "-d", "single", image.path().to_str().unwrap()]);
        Some(image)
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn mount_point(&self) -> PathBuf {
        self.folder.path().join("mnt")
    }

    /// Runs `work` on the mounted filesystem.
    pub fn mounted<T>(&self, options: &str, work: impl FnOnce(&Path) -> T) -> T {
        let point = self.mount_point();
        let options = format!("loop,{options}");
        let image = self.path();
        let args = ["-o", &options, image.to_str().unwrap(), point.to_str().unwrap()];
        patiently("mount", &args).unwrap();
        let guard = Mounted(&point);
        let result = work(&point);
        drop(guard);
        result
    }

    fn dump_tree(&self, tree: &str) -> String {
        let path = self.path();
        run("btrfs", &["inspect-internal", "dump-tree", "-t", tree, path.to_str().unwrap()])
    }

    /// Logical start, length and place in the image of every chunk.
    fn chunks(&self) -> Vec<(u64, u64, u64)> {
        let mut chunks = Vec::new();
        for line in self.dump_tree("chunk").lines() {
            if let Some(logical) = number_after(line, "FIRST_CHUNK_TREE CHUNK_ITEM ") {
                chunks.push((logical, 0, 0));
            }
            let Some(chunk) = chunks.last_mut() else { continue };
            if chunk.1 == 0 && line.trim_start().starts_with("length ") {
                chunk.1 = number_after(line, "length ").unwrap();
            } else if line.contains("stripe 0 devid 1 offset ") {
                chunk.2 = number_after(line, "offset ").unwrap();
            }
        }
        chunks
    }

    /// Every compressed extent of the top-level subvolume.
    pub fn compressed_extents(&self) -> Vec<Extent> {
        let chunks = self.chunks();
        let physical = |logical: u64| {
            let (start, _, place) = *chunks
                .iter()
                .find(|(start, len, _)| (*start..start + len).contains(&logical))
                .expect("every extent is in a chunk");
            logical - start + place
        };
        let (mut found, mut leaf, mut item) = (Vec::new(), 0, Extent::default());
        for line in self.dump_tree("5").lines() {
            if line.starts_with("leaf ") && line.contains(" items ") {
                leaf = number_after(line, "leaf ").unwrap();
            } else if let Some((ino, rest)) = line.split_once(" EXTENT_DATA ") {
                let place = leaf + LEAF_HEADER_LEN + number_after(rest, "itemoff ").unwrap();
                item = Extent {
                    ino: number_after(ino, "key (").unwrap(),
                    file_offset: number_after(rest, "").unwrap(),
                    physical: place + INLINE_HEADER_LEN,
                    ..Extent::default()
                };
            } else if let Some(logical) = number_after(line, "extent data disk byte ") {
                item.physical = physical(logical);
                item.disk_len = number_after(line, " nr ").unwrap() as usize;
            } else if let Some(len) = number_after(line, "inline extent data size ") {
                item.inline = true;
                item.physical = physical(item.physical);
                item.disk_len = len as usize;
                item.ram_len = number_after(line, "ram_bytes ").unwrap() as usize;
            } else if let Some(ram) = number_after(line, " ram ") {
                item.ram_len = ram as usize;
            }
            if let Some(number) = number_after(line, "compression ") {
                item.kind = CompressionKind::from_u8(number as u8);
                found.extend(item.kind.is_some().then(|| item.clone()));
            }
        }
        found
    }

    /// The bytes of `extent` as they are on disk.
    pub fn read(&self, extent: &Extent) -> Vec<u8> {
        let mut bytes = vec![0; extent.disk_len];
        File::open(self.path()).unwrap().read_exact_at(&mut bytes, extent.physical).unwrap();
        bytes
    }

    /// Puts `bytes`, padded with zeros, where `extent` is on disk.
    pub fn overwrite(&self, extent: &Extent, bytes: &[u8]) {
        let mut padded = bytes.to_vec();
        assert!(padded.len() <= extent.disk_len);
        padded.resize(extent.disk_len, 0);
        let file = File::options().write(true).open(self.path()).unwrap();
        file.write_all_at(&padded, extent.physical).unwrap();
        file.sync_all().unwrap();
    }
}

struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let point = self.0.to_str().unwrap();
        if let Err(said) = patiently("umount", &[point]) {
            // Never let the removal of the directory reach into the filesystem.
            let _ = start("umount", &["--lazy", point]);
            assert!(std::thread::panicking(), "{said}");
        }
    }
}
