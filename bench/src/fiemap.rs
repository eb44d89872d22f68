//! Row 4: where a file's extents are and which of them are shared, on Linux and here, on the same images.
//!
//! The file is Linux's: extents of 128 KiB, compressed with LZO. Then come snapshots, other files that share the extents, and what Linux
//! is known to be slow at: an extent with very many references. Cold is right after the mount, cached the second time.

use std::path::Path;

use buttress::{Filesystem, New, Node, Options, Owner};

use crate::create::fresh;
use crate::{Row, Scale, Side, linux, median};

/// Bytes of the images; they are sparse.
const IMAGE: u64 = 64 << 30;
/// Extents of the file at full size.
const EXTENTS: u64 = 327_680;
/// Bytes of each.
const EXTENT: u64 = 128 << 10;
/// How many snapshots there are in turn.
const SNAPSHOTS: [u64; 5] = [0, 1, 16, 64, 1000];
/// How many other files share the extents of one that has a fortieth of them.
const CLONES: [u64; 3] = [1, 10, 1000];
const FEWER: u64 = 40;
/// References to one extent at full size.
const REFERENCES: u64 = 100_000;
/// Bytes of that one.
const ONE: u64 = 4096;
/// The subvolume and the file.
const PATH: &str = "work/file";
/// `SHARED` among the flags of a record.
const SHARED: u32 = 0x2000;

/// `FS_IOC_FIEMAP` for all of a file, twice: the milliseconds, the number of records, and how many of them are shared.
const SCRIPT: &str = r#"
    use Time::HiRes 'time';
    open(my $file, '<', $ARGV[0]) or die "$ARGV[0]: $!";
    my $most = 1000;
    for (1 .. 2) {
        my ($start, $records, $shared, $began) = (0, 0, 0, time);
        while (1) {
            my $room = pack('QQLLLL', $start, ~0 - $start, 0, 0, $most, 0) . ("\0" x (56 * $most));
            ioctl($file, 0xc020660b, $room) or die "FIEMAP: $!";
            my $count = (unpack('QQLLLL', $room))[3] or last;
            my @flags = unpack('x32' . 'x40Lx12' x $count, $room);
            $shared += grep { $_ & 0x2000 } @flags;
            $records += $count;
            my ($logical, $physical, $length) = unpack('QQQ', substr($room, 32 + 56 * ($count - 1)));
            $start = $logical + $length;
            last if $flags[-1] & 1;
        }
        printf "%.4f %d %d\n", 1000 * (time - $began), $records, $shared;
    }
"#;

/// Milliseconds, records, and those that are shared.
type Walk = (f64, u64, u64);

/// The kernel's two walks, right after a mount.
fn kernel(image: &Path, at: &Path) -> Result<[Walk; 2], String> {
    let (image, dir) = (image.to_string_lossy(), at.to_string_lossy());
    linux::run("mount", &["-o", "loop,ro", &image, &dir])?;
    let said = linux::run("perl", &["-e", SCRIPT, &at.join(PATH).to_string_lossy()]);
    linux::run("umount", &[&dir])?;
    let said = said?;
    let walk = |line: &str| {
        let mut words = line.split_whitespace();
        Some((
            words.next()?.parse().ok()?,
            words.next()?.parse().ok()?,
            words.next()?.parse().ok()?,
        ))
    };
    let walks: Vec<Walk> = said.lines().filter_map(walk).collect();
    walks.try_into().map_err(|_| format!("perl says no times: {said}"))
}

/// Ours, right after an open.
fn here(image: &Path) -> buttress::Result<[Walk; 2]> {
    let fs = Filesystem::open(image, Options::read_only())?;
    let node = fs.resolve(PATH)?;
    let walk = || -> buttress::Result<Walk> {
        let (mut records, mut shared) = (0, 0);
        let began = std::time::Instant::now();
        for extent in fs.fiemap(node, 0..u64::MAX)? {
            records += 1;
            shared += u64::from(extent?.flags & SHARED != 0);
        }
        Ok((1000.0 * began.elapsed().as_secs_f64(), records, shared))
    };
    Ok([walk()?, walk()?])
}

/// The file, written by the kernel.
fn fill(image: &Path, at: &Path, extents: u64) -> Result<(), String> {
    fresh(image, IMAGE);
    let (name, dir) = (image.to_string_lossy(), at.to_string_lossy());
    linux::run("mount", &["-o", "loop,compress-force=lzo", &name, &dir])?;
    let subvolume = at.join("work").to_string_lossy().into_owned();
    let to = format!("of={}", at.join(PATH).to_string_lossy());
    let (size, count) = (format!("bs={EXTENT}"), format!("count={extents}"));
    let made = linux::run("btrfs", &["-q", "subvolume", "create", &subvolume])
        .and_then(|_| linux::run("dd", &["if=/dev/zero", &to, &size, &count, "status=none"]));
    linux::run("umount", &[&dir])?;
    made.map(drop)
}

/// Snapshots of the subvolume until there are `count`, something changed in it before each.
fn snapshots(image: &Path, have: u64, count: u64) -> buttress::Result<()> {
    let fs = Filesystem::open(image, Options::read_write())?;
    let work = fs.resolve("work")?;
    for number in have..count {
        let name = format!("{number:04}");
        fs.create(work, name.as_bytes(), &New::file(0o644))?;
        fs.snapshot(work.subvolume, Node::ROOT, name.as_bytes(), true)?;
    }
    fs.close()
}

/// Other files that share all extents until there are `count`.
fn clones(image: &Path, have: u64, count: u64) -> buttress::Result<()> {
    let fs = Filesystem::open(image, Options::read_write())?;
    let (work, file) = (fs.resolve("work")?, fs.resolve(PATH)?);
    for number in have..count {
        let name = format!("clone{number:04}");
        let clone = fs.create(work, name.as_bytes(), &New::file(0o644))?.node;
        fs.clone_range(file, 0, u64::MAX, clone, 0)?;
    }
    fs.close()
}

/// A file that has the same extent again and again.
fn one_extent(image: &Path, references: u64) -> buttress::Result<()> {
    fresh(image, IMAGE);
    let fs = Filesystem::open(image, Options::read_write())?;
    let id = fs.create_subvolume(Node::ROOT, b"work", Owner::default())?;
    let file = fs.create(Node::top(id), b"file", &New::file(0o644))?.node;
    fs.write(file, 0, &[1; ONE as usize])?;
    let mut have = 1;
    while have < references {
        let more = have.min(references - have);
        fs.clone_range(file, 0, more * ONE, file, have * ONE)?;
        have += more;
    }
    fs.close()
}

/// Both sides, by turns.
fn compare(row: &mut Row, scale: Scale, what: &str, image: &Path, at: &Path) {
    let mut figures: [[Vec<f64>; 2]; 2] = Default::default();
    for _ in 0..scale.rounds.min(3) {
        let (mut told, sides) = (Vec::new(), [Side::Linux, Side::Here]);
        for (side, figures) in sides.into_iter().zip(&mut figures) {
            if !scale.wants(side) {
                continue;
            }
            let walks = match side {
                Side::Linux => kernel(image, at),
                _ => here(image).map_err(|error| error.to_string()),
            };
            match walks {
                Ok(walks) => {
                    figures.iter_mut().zip(walks).for_each(|(all, walk)| all.push(walk.0));
                    told.push(walks.map(|(_, records, shared)| (records, shared)));
                }
                Err(why) => row.note(format!("{what}: {why}")),
            }
        }
        if told.windows(2).any(|two| two[0] != two[1]) {
            row.note(format!("{what}: the two sides do not tell the same: {told:?}"));
        }
    }
    let [there, here] = figures;
    for ((when, there), here) in ["cold", "cached"].into_iter().zip(there).zip(here) {
        let mut medians = Vec::new();
        for (name, figures) in [("Linux", there), ("here", here)] {
            if !figures.is_empty() {
                medians.push(median(figures));
                row.add(&format!("{what}, {when}: {name}"), medians[medians.len() - 1], "ms");
            }
        }
        row.ratio(&format!("{what}, {when}: ratio"), medians);
    }
}

/// All shapes.
pub fn row(scale: Scale) -> Row {
    let extents = scale.of(EXTENTS);
    let mut row = Row::new(4, format!("fiemap of {extents} extents of 128 KiB, LZO"));
    let dir = linux::ram();
    let (image, at) = (dir.path().join("image"), dir.path().join("mnt"));
    if let Err(why) = all(&mut row, scale, &image, &at) {
        row.note(why);
    }
    row
}

fn all(row: &mut Row, scale: Scale, image: &Path, at: &Path) -> Result<(), String> {
    let text = |error: buttress::Error| error.to_string();
    std::fs::create_dir(at).map_err(|error| error.to_string())?;
    let extents = scale.of(EXTENTS);
    fill(image, at, extents)?;
    let mut have = 0;
    for count in SNAPSHOTS {
        snapshots(image, have, count).map_err(text)?;
        have = count;
        compare(row, scale, &format!("{count} snapshots"), image, at);
    }
    std::fs::remove_file(image).map_err(|error| error.to_string())?;
    fill(image, at, extents / FEWER)?;
    have = 0;
    for count in CLONES {
        clones(image, have, count).map_err(text)?;
        have = count;
        let what = format!("{} extents, {count} clones", extents / FEWER);
        compare(row, scale, &what, image, at);
    }
    std::fs::remove_file(image).map_err(|error| error.to_string())?;
    let references = scale.of(REFERENCES);
    one_extent(image, references).map_err(text)?;
    compare(row, scale, &format!("one extent, {references} times"), image, at);
    Ok(())
}
