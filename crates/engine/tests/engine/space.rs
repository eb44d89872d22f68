//! A full filesystem says so, and can be emptied again.

use buttress::space::Need;
use buttress::{Allocate, Change, Error, Filesystem, New, Node, Owner};

use crate::judge::{Image, bytes};

/// Writes files of `len` bytes until there is no room; how many there are.
fn fill(fs: &Filesystem, len: usize) -> usize {
    let data = bytes(len, 3);
    for number in 0.. {
        let name = format!("{number}");
        let node = match fs.create(Node::ROOT, name.as_bytes(), &New::file(0o644)) {
            Ok(made) => made.node,
            Err(Error::NoSpace) => return number,
            Err(error) => panic!("{error}"),
        };
        match fs.write(node, 0, &data) {
            Ok(written) if written == data.len() => {}
            Ok(_) | Err(Error::NoSpace) => return number + 1,
            Err(error) => panic!("{error}"),
        }
    }
    0
}

#[test]
fn full_and_empty_again() {
    for (size, len) in [(128 << 20, 3 << 20), (256 << 20, 6000)] {
        let image = Image::by_progs(size, &[]);
        let fs = image.open();
        let first = fill(&fs, len);
        fs.commit().unwrap();
        image.check();
        for number in 0..first {
            fs.unlink(Node::ROOT, format!("{number}").as_bytes()).unwrap();
        }
        fs.commit().unwrap();
        fs.commit().unwrap();
        let second = fill(&fs, len);
        assert!(second * 10 > first * 8, "{first} files fitted first, {second} later");
        fs.close().unwrap();
        image.check();
    }
}

#[test]
fn files_can_be_emptied_when_all_space_is_promised() {
    let image = Image::by_us(256 << 20);
    let fs = image.open();
    let make = |name: &[u8]| fs.create(Node::ROOT, name, &New::file(0o644)).unwrap().node;
    let (cut, punched) = (make(b"cut"), make(b"punched"));
    for node in [cut, punched] {
        fs.write(node, 0, &bytes(100_000, 1)).unwrap();
    }
    let generation = fs.commit().unwrap();
    let mut data = 1 << 30;
    while data >= 4096 {
        let need = Need { data, ..Need::default() };
        if fs.core().space.reserve(need).is_err() {
            data = data / 8192 * 4096;
        }
    }
    let nothing = Change { size: Some(0), ..Change::default() };
    fs.set_attributes(cut, &nothing).unwrap();
    fs.fallocate(punched, Allocate::PunchHole, 4096, 8192).unwrap();
    assert_eq!(fs.info().generation, generation, "neither had to wait for a commit");
    fs.close().unwrap();
    image.check();
}

/// Files of small extents that lie between each other on the disk, so that whatever touches one touches everything.
fn scatter(fs: &Filesystem, places: [(Node, &[u8]); 2], extents: u64) {
    let nodes = places.map(|(dir, name)| fs.create(dir, name, &New::file(0o644)).unwrap().node);
    let sector = bytes(4096, 5);
    for turn in 0..extents / 100 {
        for node in nodes {
            for at in turn * 100..(turn + 1) * 100 {
                fs.write(node, at * 8192, &sector).unwrap();
            }
        }
        fs.commit().unwrap();
    }
}

/// Fills what is left with files that are kept in their items, so that metadata has no room either.
pub fn fill_metadata(fs: &Filesystem) {
    for len in [2000, 1] {
        let mut free = 0..;
        let full = |number: u32| {
            let name = format!("{len}-{number}");
            let made = fs.create(Node::ROOT, name.as_bytes(), &New::file(0o644));
            made.and_then(|made| fs.write(made.node, 0, &vec![7; len]))
        };
        let error = free.find_map(|number| full(number).err()).unwrap();
        assert!(matches!(error, Error::NoSpace), "{error}");
    }
}

fn full_with_scattered_files(extents: u64) -> (Image, Filesystem) {
    let image = Image::by_us(2 * extents * 4096 * 5 / 4 + (96 << 20));
    let fs = image.open();
    scatter(&fs, [(Node::ROOT, b"one"), (Node::ROOT, b"other")], extents);
    fill_metadata(&fs);
    fs.commit().unwrap();
    (image, fs)
}

#[test]
fn scattered_files_go_when_everything_is_full() {
    let extents = 50_000;
    let (image, fs) = full_with_scattered_files(extents);
    let file = |name| fs.lookup(Node::ROOT, name).unwrap().unwrap().node;
    let (one, other) = (file(&b"one"[..]), file(&b"other"[..]));
    let punch = extents * 8192 / 4 * 3;
    fs.fallocate(one, Allocate::PunchHole, punch, 1 << 40).unwrap();
    let half = Change { size: Some(extents * 8192 / 2), ..Change::default() };
    fs.set_attributes(one, &half).unwrap();
    fs.commit().unwrap();
    assert_eq!(fs.attributes(one).unwrap().blocks_bytes, extents / 2 * 4096);
    fs.unlink(Node::ROOT, b"one").unwrap();
    fs.hold(other).unwrap();
    fs.unlink(Node::ROOT, b"other").unwrap();
    fs.release(other).unwrap();
    fs.commit().unwrap();
    fs.commit().unwrap();
    let node = fs.create(Node::ROOT, b"new", &New::file(0o644)).unwrap().node;
    let data = bytes(4 << 20, 9);
    for at in 0..extents * 4096 / data.len() as u64 {
        assert_eq!(fs.write(node, at * data.len() as u64, &data).unwrap(), data.len());
    }
    fs.close().unwrap();
    image.check();
}

#[test]
fn a_subvolume_of_scattered_files_goes_when_everything_is_full() {
    let extents = 20_000;
    let image = Image::by_us(2 * extents * 4096 * 5 / 4 + (96 << 20));
    let fs = image.open();
    let sub = fs.create_subvolume(Node::ROOT, b"sub", Owner::default()).unwrap();
    scatter(&fs, [(Node::top(sub), b"one"), (Node::ROOT, b"other")], extents);
    fill_metadata(&fs);
    fs.commit().unwrap();
    fs.delete_subvolume(Node::ROOT, b"sub").unwrap();
    fs.clean().unwrap();
    fs.close().unwrap();
    image.check();
}

/// Takes all space for data.
fn fill_data(fs: &Filesystem) {
    fill_file(fs, b"filler");
    fs.commit().unwrap();
}

/// Writes a file until there is no room for a sector; how many bytes it got.
pub fn fill_file(fs: &Filesystem, name: &[u8]) -> u64 {
    let node = fs.create(Node::ROOT, name, &New::file(0o644)).unwrap().node;
    let (mut at, mut data) = (0, bytes(1 << 20, 3));
    while data.len() >= 4096 {
        match fs.write(node, at, &data) {
            Ok(written) => at += written as u64,
            Err(Error::NoSpace) => data.truncate(data.len() / 2),
            Err(error) => panic!("{error}"),
        }
    }
    at
}

/// What a commit has let go of is there for whoever has waited for it, without another commit.
#[test]
fn one_commit_makes_what_was_deleted_free() {
    let image = Image::by_us(256 << 20);
    let fs = image.open();
    fill_file(&fs, b"one");
    fill_file(&fs, b"rest");
    let node = fs.create(Node::ROOT, b"new", &New::file(0o644)).unwrap().node;
    let generation = fs.commit().unwrap();
    fs.unlink(Node::ROOT, b"one").unwrap();
    assert_eq!(fs.write(node, 0, &bytes(4 << 20, 9)).unwrap(), 4 << 20);
    assert_eq!(fs.info().generation, generation + 1);
    fs.close().unwrap();
    image.check();
}

/// That leaves may be shared is known before anything is promised.
#[test]
fn snapshots_are_known_when_it_is_opened() {
    let image = Image::by_us(256 << 20);
    let fs = image.open();
    let sub = fs.create_subvolume(Node::ROOT, b"sub", Owner::default()).unwrap();
    fs.close().unwrap();
    let fs = image.open();
    assert!(!fs.core().space.is_shared());
    fs.snapshot(sub, Node::ROOT, b"snapshot", false).unwrap();
    assert!(fs.core().space.is_shared());
    fs.close().unwrap();
    assert!(image.open().core().space.is_shared());
}

/// What is kept back for deletions and commits is little: data get nearly as much of a filesystem as Linux gives them, which
/// stored 183.5, 544.2 and 1915.0 MB.
#[test]
fn data_get_nearly_what_linux_gives_them() {
    let mega = 1_000_000;
    for (size, least) in [(256 << 20, 182), (600 << 20, 543), (2 << 30, 1914)] {
        let image = Image::by_us(size);
        let fs = image.open();
        let node = fs.create(Node::ROOT, b"file", &New::file(0o644)).unwrap().node;
        let (mut at, mut len) = (0, size);
        while len >= 4096 {
            match fs.fallocate(node, Allocate::Reserve { keep_size: false }, at, len) {
                Ok(()) => at += len,
                Err(Error::NoSpace) => len /= 2,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(at >= least * mega, "{at} bytes of {size}");
        fs.close().unwrap();
        image.check();
    }
}

/// A range that there is no room for is refused before anything changes, however many steps it would take.
#[test]
fn what_cannot_be_allocated_changes_nothing() {
    let image = Image::by_us(1 << 30);
    let fs = image.open();
    let node = fs.create(Node::ROOT, b"file", &New::file(0o644)).unwrap().node;
    fs.write(node, 0, b"ten bytes.").unwrap();
    let before = fs.usage().data.used;
    for reserve in [
        Allocate::Reserve { keep_size: false },
        Allocate::Reserve { keep_size: true },
        Allocate::ZeroRange { keep_size: false },
    ] {
        let refused = fs.fallocate(node, reserve, 0, 1 << 40).unwrap_err();
        assert!(matches!(refused, Error::NoSpace), "{refused}");
        fs.commit().unwrap();
        assert_eq!(fs.attributes(node).unwrap().size, 10);
        assert!(fs.usage().data.used <= before + (64 << 10), "{reserve:?}");
    }
    // Several steps, and what is there already takes none.
    let reserve = Allocate::Reserve { keep_size: false };
    fs.fallocate(node, reserve, 0, 600 << 20).unwrap();
    assert_eq!(fs.attributes(node).unwrap().size, 600 << 20);
    let more = Allocate::Reserve { keep_size: true };
    fs.fallocate(node, more, 0, 620 << 20).unwrap();
    assert_eq!(fs.attributes(node).unwrap().size, 600 << 20);
    fs.close().unwrap();
    image.check();
}

/// What `fallocate` promised is kept: writes to reserved space find room whatever else the filesystem is full of.
#[test]
fn reserved_space_can_be_written_to_when_all_is_full() {
    const LEN: u64 = 16 << 20;
    let image = Image::by_us(256 << 20);
    let fs = image.open();
    let reserve = Allocate::Reserve { keep_size: false };
    let make = |name: &[u8]| {
        let node = fs.create(Node::ROOT, name, &New::file(0o644)).unwrap().node;
        fs.fallocate(node, reserve, 0, LEN).unwrap();
        node
    };
    let committed = make(b"committed");
    let shared = make(b"shared");
    fs.clone_range(shared, 0, LEN, committed, LEN).unwrap();
    fs.commit().unwrap();
    let fresh = make(b"fresh");
    fill_data(&fs);
    let content = bytes(LEN as usize, 8);
    for (number, node) in [committed, fresh].into_iter().enumerate() {
        // Each sector once: what was written is data, and is written anew elsewhere. Some in pieces, then half at once, then
        // the rest, every other sector first.
        let write = |at: usize, len: usize| {
            assert_eq!(fs.write(node, at as u64, &content[at..at + len]).unwrap(), len);
        };
        let early = [9, 3, 400, 2000, 77];
        for sector in early {
            (0..12).for_each(|piece| write(sector * 4096 + piece * 1024, 1024));
        }
        if number == 0 {
            fs.commit().unwrap();
        }
        let half = content.len() / 2;
        write(half, half);
        let written = |at: &usize| early.iter().any(|from| (*from..from + 3).contains(at));
        for start in [1, 0] {
            let sectors = (start..half / 4096).step_by(2).filter(|at| !written(at));
            sectors.for_each(|at| write(at * 4096, 4096));
        }
    }
    let whole = |fs: &Filesystem, name: &[u8]| {
        let node = fs.lookup(Node::ROOT, name).unwrap().unwrap().node;
        let mut found = vec![1; LEN as usize];
        let mut done = 0;
        while done < found.len() {
            done += fs.read(node, done as u64, &mut found[done..]).unwrap();
        }
        found
    };
    for name in [&b"committed"[..], b"fresh"] {
        assert!(whole(&fs, name) == content);
    }
    fs.close().unwrap();
    image.check();
    let fs = image.open_read_only();
    for name in [&b"committed"[..], b"fresh"] {
        assert!(whole(&fs, name) == content);
    }
    assert!(whole(&fs, b"shared").iter().all(|byte| *byte == 0));
    drop(fs);
    image.mounted(|top| {
        assert!(std::fs::read(top.join("fresh")).unwrap() == content);
        assert!(std::fs::read(top.join("committed")).unwrap()[..LEN as usize] == content);
    });
}

/// Reserved space that a snapshot knows, too, is written to by nobody: each would see what the other writes.
#[test]
fn reserved_space_is_not_written_to_behind_a_snapshot() {
    let image = Image::by_us(256 << 20);
    let fs = image.open();
    let sub = fs.create_subvolume(Node::ROOT, b"sub", Owner::default()).unwrap();
    let node = fs.create(Node::top(sub), b"file", &New::file(0o644)).unwrap().node;
    let reserve = Allocate::Reserve { keep_size: false };
    fs.fallocate(node, reserve, 0, 1 << 20).unwrap();
    fs.write(node, 0, &bytes(200_000, 1)).unwrap();
    let snapshot = fs.snapshot(sub, Node::ROOT, b"snapshot", false).unwrap();
    let copy = Node { subvolume: snapshot, ..node };
    for (seed, node) in [(2, node), (3, copy)] {
        fs.write(node, 100_000, &bytes(300_000, seed)).unwrap();
        fs.write(node, 900_001, &bytes(10, seed)).unwrap();
    }
    fs.commit().unwrap();
    // After the snapshot, space that was reserved later is the file's own again.
    fs.fallocate(node, reserve, 1 << 20, 1 << 20).unwrap();
    fs.commit().unwrap();
    let place = |fs: &Filesystem| fs.extents(node, (1 << 20) + 8192..(1 << 20) + 12288).unwrap();
    let before = place(&fs);
    fs.write(node, (1 << 20) + 8192, &bytes(4096, 4)).unwrap();
    fs.commit().unwrap();
    let bytenr = |found: &[buttress::Mapping]| match found {
        [buttress::Mapping { place: buttress::Place::Extent { bytenr, .. }, .. }] => *bytenr,
        other => panic!("{other:?}"),
    };
    assert_eq!(bytenr(&before), bytenr(&place(&fs)));
    fs.close().unwrap();
    image.check();
    let fs = image.open_read_only();
    for (seed, node) in [(2, node), (3, copy)] {
        let mut found = vec![9; 1 << 20];
        fs.read(node, 0, &mut found).unwrap();
        let mut expect = vec![0; 1 << 20];
        expect[..200_000].copy_from_slice(&bytes(200_000, 1));
        expect[100_000..400_000].copy_from_slice(&bytes(300_000, seed));
        expect[900_001..900_011].copy_from_slice(&bytes(10, seed));
        assert!(found == expect, "{seed}");
    }
}

/// Data in reserved space are not there before the commit that says so.
#[test]
fn a_crash_leaves_reserved_space_as_zeros() {
    use buttress::device::MemoryDevice;
    let device = std::sync::Arc::new(MemoryDevice::new(256 << 20));
    let mut seed = buttress_mkfs::Environment::seeded(1);
    buttress_mkfs::make(&*device, &buttress_mkfs::Options::default(), &mut seed).unwrap();
    let options = || buttress::Options::read_write().background(false);
    let fs = Filesystem::open_device(device.clone(), options()).unwrap();
    let node = fs.create(Node::ROOT, b"file", &New::file(0o644)).unwrap().node;
    fs.fallocate(node, Allocate::Reserve { keep_size: false }, 0, 1 << 20).unwrap();
    fs.commit().unwrap();
    fs.write(node, 0, &bytes(1 << 20, 1)).unwrap();
    let crashed = std::sync::Arc::new(device.snapshot());
    fs.commit().unwrap();
    let copy = fs.create(Node::ROOT, b"copy", &New::file(0o644)).unwrap().node;
    fs.fallocate(copy, Allocate::Reserve { keep_size: false }, 0, 1 << 20).unwrap();
    fs.commit().unwrap();
    fs.write(copy, 0, &bytes(1 << 20, 2)).unwrap();
    // Cloned before the commit that brings it.
    fs.clone_range(copy, 0, 1 << 19, node, 0).unwrap();
    let mut found = vec![0; 1 << 20];
    fs.read(node, 0, &mut found).unwrap();
    let expect = [&bytes(1 << 20, 2)[..1 << 19], &bytes(1 << 20, 1)[1 << 19..]].concat();
    assert!(found == expect);
    fs.close().unwrap();
    let fs = Filesystem::open_device(device, options()).unwrap();
    fs.read(node, 0, &mut found).unwrap();
    assert!(found == expect);
    let fs = Filesystem::open_device(crashed, options()).unwrap();
    fs.read(node, 0, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 0));
}
