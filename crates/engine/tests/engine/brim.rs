//! On the brim: what was accepted is committed, however little space is left and whoever shares it.

use std::collections::BTreeSet;

use buttress::{Allocate, Change, Entry, Error, Filesystem, New, Node, SetXattr};

use crate::judge::{Image, bytes};
use crate::space::{fill_file, fill_metadata};

/// Data that leaves room for this many scattered extents and not much else.
fn image(extents: u64) -> Image {
    Image::once(2 * extents * 4096 * 5 / 4 + (64 << 20))
}

/// A file of small extents: those that are near each other in the file are far apart on the disk.
fn strew(fs: &Filesystem, name: &[u8], extents: u64) {
    let node = fs.create(Node::ROOT, name, &New::file(0o644)).unwrap().node;
    let sector = bytes(4096, 5);
    for turn in 0..extents {
        fs.write(node, turn * 1_000_003 % extents * 8192, &sector).unwrap();
        if turn % 200 == 199 {
            fs.commit().unwrap();
        }
    }
}

fn file(fs: &Filesystem, name: &[u8]) -> Node {
    fs.lookup(Node::ROOT, name).unwrap().unwrap().node
}

/// Takes what is left of metadata until not even an empty name has room.
fn brim(fs: &Filesystem) {
    fill_metadata(fs);
    let dir = fs.create(Node::ROOT, b"values", &New::directory(0o755));
    let Ok(dir) = dir else { return };
    for number in 0.. {
        let name = format!("user.{number}");
        match fs.set_xattr(dir.node, name.as_bytes(), &[1; 3000], SetXattr::Any) {
            Ok(()) => {}
            Err(Error::NoSpace) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A leaf that a snapshot shares is copied by whoever changes something in it, and the copy adds a reference to each extent
/// that it names: one leaf, hundreds of leaves of the extent tree.
#[test]
fn holes_in_a_scattered_file_below_a_snapshot() {
    let extents = 20_000;
    let image = image(extents);
    let fs = image.open();
    strew(&fs, b"one", extents);
    strew(&fs, b"other", extents);
    fs.snapshot(5, Node::ROOT, b"snapshot", true).unwrap();
    brim(&fs);
    fs.commit().unwrap();
    let one = file(&fs, b"one");
    let mut punched = Vec::new();
    for turn in 0..300 {
        let at = (turn * 7919 % extents) * 8192;
        match fs.fallocate(one, Allocate::PunchHole, at, 4096) {
            Ok(()) => punched.push(at),
            Err(Error::NoSpace) => {}
            Err(error) => panic!("{error}"),
        }
    }
    fs.commit().expect("what was accepted has room");
    fs.close().unwrap();
    image.check();
    let fs = image.open_read_only();
    for at in punched {
        let mut found = [1; 4096];
        fs.read(one, at, &mut found).unwrap();
        assert_eq!(found, [0; 4096], "{at}");
    }
}

/// The oldest, the newest and one between: each owns what the others share.
#[test]
fn snapshots_go_when_everything_is_full() {
    let extents = if std::env::var_os("BUTTRESS_LONG").is_some() { 200_000 } else { 8_000 };
    for victim in 0..3 {
        let image = image(extents);
        let fs = image.open();
        strew(&fs, b"one", extents);
        strew(&fs, b"other", extents);
        let sector = bytes(4096, 7);
        for number in 0..3u64 {
            let name = format!("snapshot{number}");
            fs.snapshot(5, Node::ROOT, name.as_bytes(), false).unwrap();
            // Each leaf of the file's extents becomes the top subvolume's own.
            let one = file(&fs, b"one");
            for at in (0..extents).step_by(150) {
                match fs.write(one, at * 8192 + number % 2 * 4096, &sector) {
                    Ok(_) | Err(Error::NoSpace) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
        brim(&fs);
        fs.commit().unwrap();
        let name = format!("snapshot{victim}");
        fs.delete_subvolume(Node::ROOT, name.as_bytes()).unwrap();
        fs.clean().expect("deleting gives space back");
        fs.close().unwrap();
        image.check();
        let fs = image.open();
        fs.create(Node::ROOT, b"new", &New::file(0o644)).unwrap();
        fs.close().unwrap();
    }
}

/// What was deleted is room for whoever comes next, without waiting for the next commit.
#[test]
fn a_full_filesystem_is_not_full_after_a_deletion() {
    for size in [130 << 20, 256 << 20, 700 << 20] {
        let image = Image::by_us(size);
        let fs = image.open();
        let first = fill_file(&fs, b"first");
        let generation = fs.info().generation;
        fs.unlink(Node::ROOT, b"first").unwrap();
        let second = fill_file(&fs, b"second");
        assert!(fs.info().generation > generation, "nobody else has committed");
        assert!(second + (4 << 20) >= first, "{second} after {first}");
        let nothing = Change { size: Some(0), ..Change::default() };
        fs.set_attributes(file(&fs, b"second"), &nothing).unwrap();
        let third = fill_file(&fs, b"third");
        assert!(third + (4 << 20) >= first, "{third} after {first}");
        fs.close().unwrap();
        image.check();
    }
}

/// As much data fits as Linux would put there, or nearly.
#[test]
fn data_goes_as_far_as_on_linux() {
    if !buttress_testkit::oracle::root_or_skip() {
        return;
    }
    for size in [256 << 20, 600 << 20] {
        let (ours, theirs) = (Image::by_progs(size, &[]), Image::by_progs(size, &[]));
        let fs = ours.open();
        let found = fill_file(&fs, b"file");
        fs.close().unwrap();
        ours.check();
        let mut expected = 0;
        theirs.mounted(|top| {
            use std::io::Write;
            let mut file = std::fs::File::create(top.join("file")).unwrap();
            let mut data = bytes(1 << 20, 3);
            while data.len() >= 4096 {
                match file.write(&data) {
                    Ok(written) => expected += written as u64,
                    Err(_) => data.truncate(data.len() / 2),
                }
            }
            expected = expected.min(file.metadata().unwrap().len());
        });
        println!("{size}: {found} here, {expected} on Linux");
        assert!(found + (size / 200) >= expected, "{found} of {expected}");
    }
}

/// Files of each directory.
const FILES: usize = 1000;

/// Twenty directories of files, below a snapshot, and files that no snapshot has, until nothing more finds room.
fn full_below_a_snapshot(nodesize: u32) -> (Image, Filesystem) {
    let image = Image::of_nodes(256 << 20, nodesize);
    let fs = image.open();
    // Some 50 MiB are left for metadata.
    let data = fs.create(Node::ROOT, b"data", &New::file(0o644)).unwrap().node;
    fs.fallocate(data, Allocate::Reserve { keep_size: false }, 0, 192 << 20).unwrap();
    for number in 0..20 {
        let dir = fs.create(Node::ROOT, tree(number).as_bytes(), &New::directory(0o755)).unwrap();
        for number in 0..FILES {
            let file = fs.create(dir.node, name(number).as_bytes(), &New::file(0o644)).unwrap();
            fs.write(file.node, 0, &[1; 1000][..number % 3 * 500]).unwrap();
        }
    }
    fs.snapshot(5, Node::ROOT, b"snapshot", false).unwrap();
    fill_metadata(&fs);
    fs.commit().unwrap();
    (image, fs)
}

fn tree(number: usize) -> String {
    format!("tree{number}")
}

fn name(number: usize) -> String {
    format!("a-file-with-a-name-{number}")
}

/// Deletes one file here and one there, so that each has leaves to itself that the snapshot has, too, until that finds no room;
/// what it has deleted.
fn delete_here_and_there(fs: &Filesystem) -> BTreeSet<(usize, usize)> {
    let (mut gone, mut refused) = (BTreeSet::new(), 0);
    for number in (0..FILES).step_by(7) {
        for at in 0..20 {
            let dir = file(fs, tree(at).as_bytes());
            match fs.unlink(dir, name(number).as_bytes()) {
                Ok(_) => drop(gone.insert((at, number))),
                Err(Error::NoSpace) if refused < 20 => refused += 1,
                Err(Error::NoSpace) => return gone,
                Err(error) => panic!("{error}"),
            }
        }
    }
    gone
}

/// Deleting here and there below a snapshot takes all the room that deletions may take. What the snapshot has nothing of can be
/// deleted all the same, which makes room, and then all of the rest.
#[test]
fn what_no_snapshot_has_goes_when_nothing_else_does() {
    for nodesize in [16384, 4096] {
        let (image, fs) = full_below_a_snapshot(nodesize);
        let gone = delete_here_and_there(&fs);
        println!("{nodesize}: {} here and there", gone.len());
        let mut own = Vec::new();
        let each = &mut |entry: Entry| {
            own.extend(entry.name.contains(&b'-').then_some(entry.name));
            true
        };
        fs.read_dir(Node::ROOT, 0, each).unwrap();
        assert!(own.len() > 100, "{}", own.len());
        for name in own {
            fs.unlink(Node::ROOT, &name).expect("it is nobody else's");
        }
        for at in 0..20 {
            let dir = file(&fs, tree(at).as_bytes());
            for number in (0..FILES).filter(|number| !gone.contains(&(at, *number))) {
                fs.unlink(dir, name(number).as_bytes()).expect("there is room again");
            }
            fs.rmdir(Node::ROOT, tree(at).as_bytes()).unwrap();
        }
        fs.close().unwrap();
        image.check();
    }
}
