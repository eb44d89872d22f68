//! Filled by Linux until nothing more finds room, below snapshots: it can be emptied here.

use std::error::Error;
use std::fs::{File, create_dir, write};
use std::io::{ErrorKind, Write};
use std::path::Path;

use buttress::{Change, Filesystem};
use buttress_testkit::oracle::{self, KernelMount};

use crate::image::Image;
use crate::judge::check;

/// How Linux has filled it.
#[derive(Clone, Copy, Debug)]
struct Filling {
    nodesize: &'static str,
    metadata: &'static str,
    snapshots: usize,
    /// Data are full, too.
    data: bool,
    /// Snapshots are in what they are of, and not beside it.
    within: bool,
}

/// Directories of shared files, and files in each.
const DIRS: usize = 8;
const FILES: usize = 1000;

fn name(number: usize) -> String {
    format!("a-file-with-a-name-{number}")
}

/// What Linux did, or what it said when it could not.
type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Whether there was room.
fn fits<T>(done: std::io::Result<T>) -> Result<bool> {
    match done {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::StorageFull => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn make_files(sub: &Path) {
    for dir in 0..DIRS {
        let dir = sub.join(format!("dir{dir}"));
        create_dir(&dir).unwrap();
        for number in 0..FILES {
            let len = [0, 500, 1000, 5000, 9000][number % 5];
            write(dir.join(name(number)), vec![7; len]).unwrap();
        }
    }
}

/// Between two snapshots some files go.
fn make_snapshots(top: &Path, filling: Filling) {
    let sub = top.join("sub");
    for number in 0..filling.snapshots {
        let place = if filling.within { &sub } else { top };
        let to = place.join(format!("snapshot{number}"));
        oracle::btrfs(&["subvolume", "snapshot", text(&sub), text(&to)]).unwrap();
        if number + 1 < filling.snapshots {
            let dir = sub.join(format!("dir{}", number % DIRS));
            for file in (100 + number..FILES).step_by(97) {
                let _gone_already = std::fs::remove_file(dir.join(name(file)));
            }
        }
    }
}

fn fill_data(top: &Path) -> Result<()> {
    let mut file = File::create(top.join("big"))?;
    let mut data = vec![1; 1 << 20];
    while data.len() >= 4096 {
        if !fits(file.write_all(&data))? {
            data.truncate(data.len() / 2);
        }
    }
    Ok(())
}

fn fill_metadata(top: &Path) -> Result<()> {
    let dir = top.join("fill");
    create_dir(&dir)?;
    for len in [1500, 0] {
        let (mut refused, mut number) = (0, 0);
        while refused < 20 {
            let done = write(dir.join(format!("{len}-{number}")), vec![2; len]);
            refused += u32::from(!fits(done)?);
            number += 1;
            if number % 2000 == 0 {
                let _full = File::open(&dir)?.sync_all();
            }
        }
        rustix::fs::syncfs(File::open(top)?)?;
    }
    Ok(())
}

fn fill(image: &Image, filling: Filling) -> Result<()> {
    let mount = KernelMount::new(&image.path(), "noatime")?;
    let top = mount.path();
    let sub = top.join("sub");
    oracle::btrfs(&["subvolume", "create", text(&sub)])?;
    make_files(&sub);
    mount.sync()?;
    make_snapshots(top, filling);
    mount.sync()?;
    if filling.data {
        fill_data(top)?;
    }
    fill_metadata(top)?;
    Ok(mount.finish()?)
}

/// So often Linux may fail itself before it is full: it gets there by a race with its own commits.
const ATTEMPTS: u32 = 3;

fn filled(filling: Filling) -> Image {
    for _ in 0..ATTEMPTS {
        let image = Image::by_progs(256 << 20, &["-m", filling.metadata, "-n", filling.nodesize]);
        match fill(&image, filling) {
            Ok(()) => return image,
            Err(why) => println!("{filling:?}: Linux: {why}"),
        }
    }
    panic!("{filling:?}: Linux fills none");
}

fn delete_file(fs: &Filesystem, path: &str) {
    let (dir, name) = fs.resolve_parent(path).unwrap();
    fs.unlink(dir, &name).unwrap_or_else(|error| panic!("{path}: {error}"));
}

fn delete_snapshot(fs: &Filesystem, path: &str) {
    let (dir, name) = fs.resolve_parent(path).unwrap();
    fs.delete_subvolume(dir, &name).unwrap_or_else(|error| panic!("{path}: {error}"));
    fs.clean().unwrap_or_else(|error| panic!("{path} cannot be dropped: {error}"));
}

/// Each of them works on a copy of its own, and what it leaves is clean, and Linux's.
fn each_works(filling: Filling) {
    if !oracle::root_or_skip() {
        return;
    }
    let image = filled(filling);
    let snapshot = if filling.within { "/sub/snapshot0" } else { "/snapshot0" };
    let shared = format!("/sub/dir3/{}", name(503));
    let works: [&dyn Fn(&Filesystem); 3] =
        [&|fs| delete_file(fs, &shared), &|fs| delete_snapshot(fs, snapshot), &|fs| {
            let node = fs.resolve(&shared).unwrap();
            let nothing = Change { size: Some(0), ..Change::default() };
            fs.set_attributes(node, &nothing).unwrap();
        }];
    for (number, work) in works.into_iter().enumerate() {
        println!("{filling:?}: {number}");
        let copy = image.copy();
        let fs = copy.open();
        work(&fs);
        assert_eq!(fs.stats().beyond_promise, 0);
        fs.close().unwrap();
        check(&copy);
        let mount = KernelMount::new(&copy.path(), "noatime").unwrap();
        mount.finish().unwrap();
    }
}

const USUAL: Filling =
    Filling { nodesize: "4096", metadata: "dup", snapshots: 1, data: true, within: true };

#[test]
fn small_nodes() {
    each_works(USUAL);
    each_works(Filling { data: false, ..USUAL });
}

#[test]
fn small_nodes_in_one_copy() {
    each_works(Filling { metadata: "single", within: false, ..USUAL });
}

#[test]
fn usual_nodes() {
    each_works(Filling { nodesize: "16384", ..USUAL });
    each_works(Filling { nodesize: "16384", metadata: "single", within: false, ..USUAL });
}

#[test]
fn twenty_snapshots() {
    each_works(Filling { snapshots: 20, ..USUAL });
    each_works(Filling { snapshots: 20, nodesize: "16384", within: false, ..USUAL });
}
