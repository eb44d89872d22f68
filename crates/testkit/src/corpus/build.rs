//! Making one image and keeping it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FlockOperation, flock};

use super::{Capture, CorpusError, Image, ImageSpec, Populate, Result, Site, specs};
use crate::facts::{Facts, facts_of_dir, from_text, to_text};
use crate::oracle::{
    KernelMount, LoopDevice, btrfs, copy_sparse, is_root, mkfs, mkfs_devices, run, sparse_file,
};

/// The descriptions; a change makes every image anew.
const SOURCES: [&str; 6] = [
    include_str!("build.rs"),
    include_str!("collide.rs"),
    include_str!("list.rs"),
    include_str!("patch.rs"),
    include_str!("populate.rs"),
    include_str!("special.rs"),
];

/// Where images are kept between runs.
pub fn cache_dir() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from);
    let key = xxhash_rust::xxh64::xxh64(SOURCES.concat().as_bytes(), 0);
    target.join("corpus").join(format!("{key:016x}"))
}

/// The image of this name, made now or earlier. Needs root unless it was made earlier.
pub fn build(name: &str) -> Result<Image> {
    let spec = specs().into_iter().find(|spec| spec.name == name);
    let spec = spec.ok_or_else(|| CorpusError::Unknown(name.to_owned()))?;
    let cache = cache_dir();
    forget_older(&cache)?;
    let dir = cache.join(name);
    let lock = File::create(cache.join(format!("{name}.lock")))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    if !dir.exists() {
        if !is_root() {
            return Err(CorpusError::NeedsRoot(spec.name));
        }
        let half = cache.join(format!("{name}.half"));
        make_patiently(&spec, &half)?;
        fs::rename(&half, &dir)?;
    }
    let facts = fs::read_to_string(dir.join("facts")).ok();
    Ok(Image {
        name: spec.name,
        path: dir.join("image"),
        offset: spec.offset,
        facts: facts.and_then(|text| from_text(&text)),
        expectation: spec.expectation,
    })
}

/// Makes the cache and removes what other descriptions made.
fn forget_older(cache: &Path) -> Result<()> {
    let Some(all) = cache.parent() else { return Ok(()) };
    fs::create_dir_all(all)?;
    let lock = File::create(all.with_extension("lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    if cache.exists() {
        return Ok(());
    }
    fs::remove_dir_all(all)?;
    Ok(fs::create_dir_all(cache)?)
}

/// How often a state that lasts a moment is tried to be caught.
const ATTEMPTS: u32 = 4;

/// Makes the image in an empty `dir`, again if its moment was missed.
fn make_patiently(spec: &ImageSpec, dir: &Path) -> Result<()> {
    for _ in 0..ATTEMPTS {
        let _ = fs::remove_dir_all(dir);
        fs::create_dir_all(dir)?;
        match make(spec, dir) {
            Err(CorpusError::Missing { .. }) if spec.momentary => {}
            other => return other,
        }
    }
    Err(CorpusError::Missed(spec.name))
}

/// Makes `image` and `facts` in `dir`.
fn make(spec: &ImageSpec, dir: &Path) -> Result<()> {
    let image = dir.join("image");
    make_filesystem(spec, &image)?;
    if let Some(populate) = spec.populate {
        fill(spec, &image, populate)?;
    }
    if let Some(edit) = spec.edit {
        edit(&image)?;
    }
    verify(spec, &image)?;
    if !matches!(spec.expectation, super::Expectation::Refused(_)) {
        let facts = kernel_facts(&image, spec.facts_mount)?;
        fs::write(dir.join("facts"), to_text(&facts))?;
    }
    if let Some(damage) = spec.damage {
        damage(&image)?;
    }
    if spec.offset > 0 {
        embed(&image, spec.offset)?;
    }
    Ok(())
}

/// Calls mkfs; of several devices only the first is kept.
fn make_filesystem(spec: &ImageSpec, image: &Path) -> Result<()> {
    if spec.devices == 1 {
        return Ok(mkfs(image, spec.size, spec.mkfs)?);
    }
    let mut paths = vec![image.to_owned()];
    paths.extend((1..spec.devices).map(|number| image.with_extension(number.to_string())));
    for path in &paths {
        sparse_file(path, spec.size)?;
    }
    let devices: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    mkfs_devices(&devices, spec.mkfs)?;
    for other in paths.iter().skip(1) {
        fs::remove_file(other)?;
    }
    Ok(())
}

/// Mounts, fills, and takes the image.
fn fill(spec: &ImageSpec, image: &Path, populate: Populate) -> Result<()> {
    let mount = KernelMount::new(image, spec.mount)?;
    let mut site = Site { dir: mount.path(), open: Vec::new(), running: Vec::new() };
    let copy = image.with_extension("copy");
    let taken = populate(&mut site).and_then(|()| match spec.capture {
        Capture::Unmounted => Ok(()),
        Capture::Live => Ok(copy_sparse(image, &copy)?),
    });
    // What still runs keeps the mount busy, also after a failure.
    for mut child in site.running {
        child.wait()?;
    }
    drop(site.open);
    taken?;
    mount.finish()?;
    if spec.capture != Capture::Unmounted {
        fs::rename(&copy, image)?;
    }
    Ok(())
}

/// Asks btrfs-progs whether the feature is really there.
fn verify(spec: &ImageSpec, image: &Path) -> Result<()> {
    if spec.shows.is_empty() {
        return Ok(());
    }
    let path = image.to_string_lossy();
    let mut text = btrfs(&["inspect-internal", "dump-super", "-f", &path])?;
    text.push_str(&btrfs(&["inspect-internal", "dump-tree", &path]).unwrap_or_default());
    match spec.shows.iter().find(|want| !text.contains(**want)) {
        Some(want) => Err(CorpusError::Missing { image: spec.name, want }),
        None => Ok(()),
    }
}

/// What the kernel shows of an image that it cannot change.
fn kernel_facts(image: &Path, options: &str) -> Result<Facts> {
    let device = LoopDevice::attach_read_only(image)?;
    let options = if options.is_empty() { "ro".to_owned() } else { format!("ro,{options}") };
    let mount = KernelMount::on(device, &options)?;
    let facts = facts_of_dir(mount.path())?;
    mount.finish()?;
    Ok(facts)
}

/// Moves the filesystem into the middle of a larger file.
fn embed(image: &Path, offset: u64) -> Result<()> {
    let disk = image.with_extension("disk");
    let size = fs::metadata(image)?.len();
    sparse_file(&disk, offset + size + offset)?;
    let place = format!("seek={}", offset >> 12);
    let (from, to) = (format!("if={}", image.display()), format!("of={}", disk.display()));
    let fixed = ["bs=4096", "conv=notrunc,sparse", "status=none"];
    run(Command::new("dd").args([from, to, place]).args(fixed))?;
    Ok(fs::rename(&disk, image)?)
}
