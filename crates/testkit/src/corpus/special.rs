//! What images are filled with: one feature at a time, and states that only last a moment.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{XattrFlags, setxattr, syncfs};

use super::colliding_names;
use super::patch::{COMPAT_RO, INCOMPAT, scribble, set_bits};
use super::populate::{create, directory, everything, noise, snapshot, subvolume, words};
use super::{CorpusError, Result, Site};
use crate::oracle::{btrfs, copy_sparse, run, tool};

/// A path as `btrfs` takes it.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Commits.
fn commit(top: &Path) -> Result<()> {
    Ok(syncfs(File::open(top)?)?)
}

/// A subvolume that a mount shows instead of the top level.
pub fn default_subvolume(site: &mut Site<'_>) -> Result<()> {
    let volume = site.dir.join("chosen");
    subvolume(&volume)?;
    fs::write(site.dir.join("outside"), "not seen")?;
    fs::write(volume.join("inside"), "seen")?;
    subvolume(&volume.join("nested"))?;
    fs::write(volume.join("nested/deeper"), "seen too")?;
    btrfs(&["subvolume", "set-default", &text(&volume)])?;
    Ok(())
}

/// Quotas on, with a hierarchy and limits.
pub fn full_quotas(site: &mut Site<'_>) -> Result<()> {
    let top = text(site.dir);
    btrfs(&["quota", "enable", &top])?;
    everything(site)?;
    btrfs(&["qgroup", "create", "1/100", &top])?;
    let id = fs::metadata(site.dir.join("volume"))?.ino();
    debug_assert_eq!(id, 256);
    btrfs(&["qgroup", "limit", "500M", &text(&site.dir.join("volume"))])?;
    btrfs(&["qgroup", "limit", "-e", "100M", "1/100", &top])?;
    // Fails where the last count has not ended.
    btrfs(&["quota", "rescan", "-W", &top])?;
    btrfs(&["qgroup", "assign", "0/256", "1/100", &top])?;
    btrfs(&["quota", "rescan", "-w", &top])?;
    Ok(())
}

/// Simple quotas on. The tools here do not know them, so the control call is made by hand:
/// `BTRFS_IOC_QUOTA_CTL` with command 4, `BTRFS_QUOTA_CTL_ENABLE_SIMPLE_QUOTA`.
pub fn simple_quotas(site: &mut Site<'_>) -> Result<()> {
    let script = "opendir(D, $ARGV[0]) or die $!; open(F, '<', $ARGV[0]) or die $!; \
                  my $b = pack('QQ', 4, 0); ioctl(F, 0xc0109428, $b) or die $!;";
    run(Command::new("perl").args(["-e", script]).arg(site.dir))?;
    everything(site)
}

/// Each compression by a property of the file, and what does not compress.
pub fn compressed_by_property(site: &mut Site<'_>) -> Result<()> {
    for kind in ["zlib", "lzo", "zstd"] {
        let dir = site.dir.join(kind);
        fs::create_dir(&dir)?;
        btrfs(&["property", "set", &text(&dir), "compression", kind])?;
        fs::write(dir.join("inline"), words(1, 3_000))?;
        fs::write(dir.join("one-extent"), words(2, 128 << 10))?;
        fs::write(dir.join("many-extents"), words(3, 1_000_001))?;
        fs::write(dir.join("noise"), noise(4, 300_000))?;
        fs::write(dir.join("zeros"), vec![0; 500_000])?;
        let file = create(&dir.join("rewritten"))?;
        file.write_all_at(&words(5, 600_000), 0)?;
        file.sync_all()?;
        file.write_all_at(&noise(6, 20_000), 70_000)?;
        file.write_all_at(&words(7, 10), 400_001)?;
        file.sync_all()?;
        file.set_len(333_333)?;
    }
    Ok(())
}

/// Directory entries, links and attributes whose hashes are equal.
pub fn collisions(site: &mut Site<'_>) -> Result<()> {
    let names = colliding_names(60);
    let (files, links) = (site.dir.join("files"), site.dir.join("links"));
    fs::create_dir(&files)?;
    fs::create_dir(&links)?;
    let linked = site.dir.join("linked");
    fs::write(&linked, "many names")?;
    for (number, name) in names.iter().enumerate() {
        let name = OsStr::from_bytes(name);
        fs::write(files.join(name), number.to_string())?;
        fs::hard_link(&linked, links.join(name))?;
        // The prefix is the same for all, so the hashes stay equal.
        let attribute = [b"user.", name.as_bytes()].concat();
        let value = number.to_string();
        let attribute = OsStr::from_bytes(&attribute);
        setxattr(&linked, attribute, value.as_bytes(), XattrFlags::empty())?;
    }
    for name in names.iter().skip(20).take(10) {
        fs::remove_file(files.join(OsStr::from_bytes(name)))?;
    }
    Ok(())
}

/// Files of the largest sizes.
pub fn enormous(site: &mut Site<'_>) -> Result<()> {
    let largest = i64::MAX as u64;
    create(&site.dir.join("largest-hole"))?.set_len(largest)?;
    let file = create(&site.dir.join("largest"))?;
    file.write_all_at(b"begin", 0)?;
    file.write_all_at(&noise(1, 5_000), 1 << 40)?;
    file.write_all_at(&noise(2, 4_096), 7 << 60)?;
    file.write_all_at(b"end", largest - 4096)?;
    create(&site.dir.join("seven"))?.set_len(7 << 60)?;
    Ok(())
}

/// Thousands of attributes on one file, and ones as long as fits.
pub fn many_attributes(site: &mut Site<'_>) -> Result<()> {
    let many = site.dir.join("many");
    fs::write(&many, "")?;
    for number in 0..1_500 {
        let value = noise(number, (number % 90) as usize);
        setxattr(&many, format!("user.attribute-{number}"), &value, XattrFlags::empty())?;
    }
    let long = site.dir.join("long");
    fs::write(&long, "")?;
    for number in 0..10 {
        let name = format!("user.{}{number}", "n".repeat(249));
        setxattr(&long, name, &noise(number, 3_000), XattrFlags::empty())?;
    }
    Ok(())
}

/// A directory of many entries, and one that was many.
pub fn big_directories(site: &mut Site<'_>) -> Result<()> {
    let big = site.dir.join("big");
    fs::create_dir(&big)?;
    for number in 0..12_000 {
        File::create(big.join(format!("a-name-of-some-length-{number}")))?;
    }
    let was = site.dir.join("was-big");
    fs::create_dir(&was)?;
    for number in 0..4_000 {
        File::create(was.join(format!("{number}")))?;
    }
    commit(site.dir)?;
    for number in (0..4_000).filter(|number| number % 100 != 0) {
        fs::remove_file(was.join(format!("{number}")))?;
    }
    Ok(())
}

/// Directories in directories, and long paths.
pub fn deep_directories(site: &mut Site<'_>) -> Result<()> {
    let mut path = site.dir.to_owned();
    for level in 0..300 {
        path = path.join(format!("level-{level}"));
        fs::create_dir(&path)?;
        if level % 10 == 0 {
            fs::write(path.join("file"), level.to_string())?;
        }
    }
    Ok(())
}

/// More links than one reference item holds.
pub fn thousand_links(site: &mut Site<'_>) -> Result<()> {
    let first = site.dir.join("first");
    fs::write(&first, "linked")?;
    for dir in ["one", "two"] {
        let dir = site.dir.join(dir);
        fs::create_dir(&dir)?;
        for number in 0..500 {
            fs::hard_link(&first, dir.join(format!("{number}-{}", "long".repeat(40))))?;
        }
    }
    Ok(())
}

/// A file in thousands of extents, with snapshots in between.
pub fn fragmented(site: &mut Site<'_>) -> Result<()> {
    let volume = site.dir.join("volume");
    subvolume(&volume)?;
    let file = create(&volume.join("file"))?;
    file.write_all_at(&noise(1, 8 << 20), 0)?;
    for round in 0_u64..3 {
        file.sync_all()?;
        snapshot(&volume, &site.dir.join(format!("snapshot-{round}")), true)?;
        for place in 0_u64..300 {
            let offset = (place * 7919 + round * 104_729) % 2048 * 4096;
            file.write_all_at(&noise(offset + round, 1_000), offset + round * 100)?;
            if place % 50 == 0 {
                file.sync_data()?;
            }
        }
    }
    Ok(())
}

/// Snapshots of snapshots, each changed a little.
pub fn snapshot_chain(site: &mut Site<'_>) -> Result<()> {
    let mut last = site.dir.join("snapshot-0");
    subvolume(&last)?;
    directory(&last.join("directory"), 400)?;
    fs::write(last.join("data"), noise(1, 1 << 20))?;
    for number in 1..20_u64 {
        let next = site.dir.join(format!("snapshot-{number}"));
        snapshot(&last, &next, false)?;
        fs::write(next.join(format!("directory/new-{number}")), words(number, 500))?;
        File::options()
            .write(true)
            .open(next.join("data"))?
            .write_all_at(&noise(number, 4096), number * 40_960)?;
        fs::rename(next.join("directory/entry-2"), next.join("directory/moved"))?;
        fs::rename(next.join("directory/moved"), next.join("directory/entry-2"))?;
        last = next;
    }
    btrfs(&["property", "set", &text(&last), "ro", "true"])?;
    Ok(())
}

/// Subvolumes in subvolumes, and a snapshot that has holes where they were.
pub fn nested_subvolumes(site: &mut Site<'_>) -> Result<()> {
    let mut path = site.dir.to_owned();
    for level in 0..12 {
        path = path.join(format!("volume-{level}"));
        subvolume(&path)?;
        fs::create_dir(path.join("directory"))?;
        subvolume(&path.join("directory/beside"))?;
        fs::write(path.join("directory/beside/file"), level.to_string())?;
        fs::write(path.join("file"), level.to_string())?;
    }
    snapshot(&site.dir.join("volume-0"), &site.dir.join("copy"), false)?;
    snapshot(&site.dir.join("volume-0/volume-1"), &site.dir.join("copy/deep-copy"), true)?;
    fs::rename(site.dir.join("volume-0/volume-1"), site.dir.join("moved"))?;
    Ok(())
}

/// Snapshots that outlive what they were taken of.
pub fn deleted_subvolumes(site: &mut Site<'_>) -> Result<()> {
    snapshot_chain(site)?;
    for number in (0..19).step_by(2) {
        let path = site.dir.join(format!("snapshot-{number}"));
        btrfs(&["subvolume", "delete", &text(&path)])?;
    }
    wait_for_cleaner(site.dir)
}

/// Waits, for a while, until deleted subvolumes are gone. The cleaner wakes once in a commit
/// interval, so the mount should have a short one.
fn wait_for_cleaner(top: &Path) -> Result<()> {
    for _ in 0..100 {
        if btrfs(&["subvolume", "list", "-d", &text(top)])?.is_empty() {
            break;
        }
        sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// A subvolume whose deletion has been promised and not begun.
pub fn deleting_subvolume(site: &mut Site<'_>) -> Result<()> {
    let doomed = site.dir.join("doomed");
    subvolume(&doomed)?;
    directory(&doomed.join("directory"), 3_000)?;
    snapshot(&doomed, &site.dir.join("kept"), true)?;
    fs::remove_dir_all(doomed.join("directory"))?;
    directory(&doomed.join("other"), 3_000)?;
    commit(site.dir)?;
    btrfs(&["subvolume", "delete", "--commit-after", &text(&doomed)])?;
    Ok(())
}

/// A subvolume whose deletion a commit interrupted: its root item remembers how far it got.
pub fn half_deleted_subvolume(site: &mut Site<'_>) -> Result<()> {
    let doomed = site.dir.join("doomed");
    subvolume(&doomed)?;
    for number in 0..40_000 {
        File::create(doomed.join(format!("a-name-of-some-length-{number}")))?;
    }
    fs::write(site.dir.join("beside"), words(1, 10_000))?;
    commit(site.dir)?;
    btrfs(&["subvolume", "delete", "--commit-after", &text(&doomed)])?;
    commit(site.dir)
}

/// Files written and synced after the last commit: the log holds them.
pub fn waiting_log(site: &mut Site<'_>) -> Result<()> {
    everything(site)?;
    let old = create(&site.dir.join("old"))?;
    old.write_all_at(&noise(1, 100_000), 0)?;
    commit(site.dir)?;
    old.write_all_at(&noise(2, 8_192), 4_096)?;
    old.sync_all()?;
    let new = create(&site.dir.join("new"))?;
    new.write_all_at(&noise(3, 50_000), 0)?;
    new.sync_all()?;
    site.open.extend([old, new]);
    Ok(())
}

/// Files without a name that are still open.
pub fn orphans(site: &mut Site<'_>) -> Result<()> {
    everything(site)?;
    for (number, size) in [10, 5_000, 400_000].into_iter().enumerate() {
        let path = site.dir.join(format!("open-{number}"));
        let file = create(&path)?;
        file.write_all_at(&noise(number as u64, size), 0)?;
        fs::remove_file(&path)?;
        site.open.push(file);
    }
    commit(site.dir)
}

/// A balance that was paused before its end.
pub fn paused_balance(site: &mut Site<'_>) -> Result<()> {
    everything(site)?;
    for number in 0..6 {
        fs::write(site.dir.join(format!("bulk-{number}")), noise(number, 6 << 20))?;
        commit(site.dir)?;
    }
    let balance = Command::new("btrfs")
        .args(["balance", "start", "--full-balance"])
        .arg(site.dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    site.running.push(balance);
    for _ in 0..200 {
        // Fails until the balance runs, and waits until it has stopped between two chunks.
        if btrfs(&["balance", "pause", &text(site.dir)]).is_ok() {
            return commit(site.dir);
        }
        sleep(Duration::from_millis(2));
    }
    // It would go on while the image is copied.
    Err(CorpusError::Missing { image: "paused-balance", want: "a pause" })
}

/// Every block group has been moved.
pub fn balanced(site: &mut Site<'_>) -> Result<()> {
    everything(site)?;
    commit(site.dir)?;
    btrfs(&["balance", "start", "--full-balance", &text(site.dir)])?;
    Ok(())
}

/// Data that was single is dup now, except for what was written since.
pub fn converted_data(site: &mut Site<'_>) -> Result<()> {
    everything(site)?;
    fs::write(site.dir.join("bulk"), noise(1, 40 << 20))?;
    commit(site.dir)?;
    let dir = text(site.dir);
    btrfs(&["balance", "start", "-f", "-dconvert=dup,limit=1", "-mconvert=single", &dir])?;
    fs::write(site.dir.join("later"), noise(2, 1 << 20))?;
    Ok(())
}

/// Larger than it was made.
pub fn resized(site: &mut Site<'_>) -> Result<()> {
    everything(site)?;
    btrfs(&["filesystem", "resize", "300M", &text(site.dir)])?;
    fs::write(site.dir.join("after"), noise(1, 1 << 20))?;
    btrfs(&["filesystem", "resize", "max", &text(site.dir)])?;
    btrfs(&["filesystem", "label", &text(site.dir), "a label with \u{fc}"])?;
    Ok(())
}

/// Files without checksums by an attribute of theirs.
pub fn nodatacow_attribute(site: &mut Site<'_>) -> Result<()> {
    let dir = site.dir.join("nocow");
    fs::create_dir(&dir)?;
    tool("chattr", &["+C", &text(&dir)])?;
    fs::write(dir.join("inline"), words(1, 500))?;
    let file = create(&dir.join("in-place"))?;
    file.write_all_at(&noise(1, 500_000), 0)?;
    file.sync_all()?;
    file.write_all_at(&noise(2, 5_000), 123_456)?;
    for (flag, name) in [("+i", "immutable"), ("+a", "append"), ("+S", "sync"), ("+d", "nodump")] {
        let path = site.dir.join(name);
        fs::write(&path, name)?;
        tool("chattr", &[flag, &text(&path)])?;
    }
    everything(site)
}

/// A snapshot that came through send and receive.
pub fn received(site: &mut Site<'_>) -> Result<()> {
    subvolumes_and_send(site.dir)?;
    symlink("received/source", site.dir.join("link"))?;
    Ok(())
}

/// Sends a snapshot of a subvolume back into the same filesystem.
fn subvolumes_and_send(top: &Path) -> Result<()> {
    let (origin, source, target) = (top.join("origin"), top.join("source"), top.join("received"));
    subvolume(&origin)?;
    fs::create_dir(&target)?;
    directory(&origin.join("directory"), 100)?;
    fs::write(origin.join("file"), noise(1, 200_000))?;
    snapshot(&origin, &source, true)?;
    let stream = top.join("stream");
    btrfs(&["send", "-q", "-f", &text(&stream), &text(&source)])?;
    btrfs(&["receive", "-q", "-f", &text(&stream), &text(&target)])?;
    Ok(fs::remove_file(stream)?)
}

/// Defragmented with compression, sharing broken up.
pub fn defragmented(site: &mut Site<'_>) -> Result<()> {
    fragmented(site)?;
    let path = site.dir.join("volume/story");
    let file = create(&path)?;
    for number in 0..200 {
        file.write_all_at(&words(number, 8_192), number * 8_192)?;
        file.sync_data()?;
    }
    btrfs(&["filesystem", "defragment", "-czstd", &text(&path)])?;
    commit(site.dir)
}

/// Everything, and more than the first data chunk holds.
pub fn everything_and_bulk(site: &mut Site<'_>) -> Result<()> {
    everything(site)?;
    for number in 0..4 {
        fs::write(site.dir.join(format!("bulk-{number}")), noise(number, 4 << 20))?;
        commit(site.dir)?;
    }
    Ok(fs::remove_file(site.dir.join("bulk-2"))?)
}

/// Almost everything that was written is gone again.
pub fn emptied(site: &mut Site<'_>) -> Result<()> {
    directory(&site.dir.join("first"), 5_000)?;
    fs::write(site.dir.join("bulk"), noise(1, 20 << 20))?;
    commit(site.dir)?;
    fs::remove_dir_all(site.dir.join("first"))?;
    fs::remove_file(site.dir.join("bulk"))?;
    fs::write(site.dir.join("left"), "the only one")?;
    Ok(())
}

/// Runs `btrfstune` on an image.
fn tune(image: &Path, args: &[&str]) -> Result<()> {
    run(Command::new("btrfstune").args(args).arg(image))?;
    Ok(())
}

/// A new filesystem id that leaves the blocks with the old one.
pub fn change_metadata_uuid(image: &Path) -> Result<()> {
    tune(image, &["-f", "-m"])
}

/// A new filesystem id written into every block.
pub fn rewrite_fsid(image: &Path) -> Result<()> {
    tune(image, &["-f", "-u"])
}

/// Old features switched on after content was written without them.
pub fn modernise(image: &Path) -> Result<()> {
    tune(image, &["-r", "-x", "-n"])
}

/// A device that others are to grow from.
pub fn make_seed(image: &Path) -> Result<()> {
    tune(image, &["-f", "-S", "1"])
}

/// Sets a bit that no kernel knows.
pub fn unknown_incompat(image: &Path) -> Result<()> {
    set_bits(image, INCOMPAT, 1 << 45)
}

/// Sets a bit that no kernel knows.
pub fn unknown_compat_ro(image: &Path) -> Result<()> {
    set_bits(image, COMPAT_RO, 1 << 45)
}

/// Claims zones.
pub fn claim_zoned(image: &Path) -> Result<()> {
    set_bits(image, INCOMPAT, 1 << 12)
}

/// Claims the second extent tree format.
pub fn claim_extent_tree_v2(image: &Path) -> Result<()> {
    set_bits(image, INCOMPAT, 1 << 13)
}

/// Claims a tree of stripes.
pub fn claim_stripe_tree(image: &Path) -> Result<()> {
    set_bits(image, INCOMPAT, 1 << 14)
}

/// Spoils the first superblock.
pub fn spoil_primary_super(image: &Path) -> Result<()> {
    scribble(image, (64 << 10) + 200, 64)
}

/// Removes all superblocks.
pub fn remove_supers(image: &Path) -> Result<()> {
    scribble(image, 64 << 10, 4096)?;
    scribble(image, 64 << 20, 4096)
}

/// Cuts the image in its middle.
pub fn cut_in_half(image: &Path) -> Result<()> {
    let file = File::options().write(true).open(image)?;
    let size = file.metadata()?.len();
    Ok(file.set_len(size / 2)?)
}

/// Spoils the first copy of every chunk that has two, metadata and data alike.
pub fn spoil_first_copies(image: &Path) -> Result<()> {
    let dump = btrfs(&["inspect-internal", "dump-tree", "-t", "chunk", &text(image)])?;
    let spoiled = image.with_extension("spoiled");
    copy_sparse(image, &spoiled)?;
    let file = File::options().read(true).write(true).open(&spoiled)?;
    let mut length = 0;
    let mut dup = false;
    for line in dump.lines().map(str::trim) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields.as_slice() {
            ["length", count, .., "type", kind] => {
                length = count.parse().unwrap_or(0);
                dup = kind.contains("DUP");
            }
            ["stripe", "0", "devid", _, "offset", place] if dup => {
                invert(&file, place.parse().unwrap_or(0), length)?;
            }
            _ => {}
        }
    }
    if fs::read(&spoiled)? == fs::read(image)? {
        return Err(CorpusError::Missing { image: "dup-copy-bad", want: "a DUP chunk" });
    }
    Ok(fs::rename(&spoiled, image)?)
}

/// Turns over a byte in each used sector of a range, leaving superblocks alone.
fn invert(file: &File, start: u64, length: u64) -> Result<()> {
    let mut block = [0; 4096];
    for offset in (start..start + length).step_by(4096) {
        file.read_exact_at(&mut block, offset)?;
        if offset != 64 << 20 && block.iter().any(|byte| *byte != 0) {
            file.write_all_at(&[!block[77]], offset + 77)?;
        }
    }
    Ok(())
}
