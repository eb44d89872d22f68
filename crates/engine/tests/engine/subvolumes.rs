//! Subvolumes and snapshots.

use buttress::ondisk::Key;
use buttress::{Errno, New, Node, Owner, Rename};

use crate::judge::{Image, bytes, content, names, put};

#[test]
fn snapshots_keep_what_was() {
    let image = Image::by_progs(1 << 30, &[]);
    let fs = image.open();
    let home = fs.create_subvolume(Node::ROOT, b"home", Owner::default()).unwrap();
    for number in 0..300 {
        put(&fs, &format!("/home/{number}"), &bytes(number * 50, number as u32));
    }
    let monday = fs.snapshot(home, Node::ROOT, b"monday", true).unwrap();
    for number in 0..300 {
        let path = format!("/home/{number}");
        match number % 3 {
            0 => put(&fs, &path, b"new"),
            1 => fs.unlink(Node::top(home), &path.as_bytes()[6..]).map(|_| ()).unwrap(),
            _ => {}
        }
    }
    let tuesday = fs.snapshot(home, Node::top(home), b"tuesday", false).unwrap();
    put(&fs, "/home/tuesday/0", b"changed in the snapshot");
    let refused = fs.create(Node::top(monday), b"x", &New::file(0o644));
    assert_eq!(refused.unwrap_err().errno(), Errno::ROFS);
    let list: Vec<_> = fs.subvolumes().unwrap().into_iter().map(|it| (it.id, it.parent)).collect();
    assert_eq!(list, [(home, 5), (monday, 5), (tuesday, home)]);
    assert_eq!(fs.subvolume_path(tuesday).unwrap(), b"home/tuesday");
    fs.close().unwrap();
    image.check();
    let fs = image.open_read_only();
    for number in 0..300 {
        assert!(content(&fs, &format!("/monday/{number}")) == bytes(number * 50, number as u32));
    }
    assert_eq!(content(&fs, "/home/0"), b"new");
    assert_eq!(content(&fs, "/home/tuesday/0"), b"changed in the snapshot");
    assert!(fs.subvolume_info(monday).unwrap().is_read_only());
    image.mounted(|top| {
        assert_eq!(std::fs::read_dir(top.join("monday")).unwrap().count(), 300);
        assert_eq!(std::fs::read_dir(top.join("home/tuesday")).unwrap().count(), 200);
        assert!(std::fs::write(top.join("monday/x"), b"").is_err());
    });
}

/// The root item of the top-level subvolume is the one that mkfs has made, ours or that of btrfs-progs.
#[test]
fn a_read_only_snapshot_of_the_top_level_is_one_for_the_kernel() {
    for image in [Image::by_progs(1 << 30, &[]), Image::by_us(1 << 30)] {
        let fs = image.open();
        put(&fs, "/file", b"content");
        fs.snapshot(5, Node::ROOT, b"stays", true).unwrap();
        let writable = fs.snapshot(5, Node::ROOT, b"later", false).unwrap();
        fs.set_subvolume_read_only(writable, true).unwrap();
        fs.close().unwrap();
        image.check();
        image.mounted(|top| {
            for name in ["stays", "later"] {
                let refused = std::fs::write(top.join(name).join("file"), b"changed").unwrap_err();
                assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{name}");
                assert_eq!(std::fs::read(top.join(name).join("file")).unwrap(), b"content");
            }
        });
    }
}

#[test]
fn deleted_subvolumes_give_their_space_back() {
    let image = Image::by_us(1 << 30);
    let fs = image.open();
    let one = fs.create_subvolume(Node::ROOT, b"one", Owner::default()).unwrap();
    for number in 0..400 {
        put(&fs, &format!("/one/{number}"), &bytes(20_000, number));
    }
    fs.commit().unwrap();
    let used = fs.usage().used();
    fs.snapshot(one, Node::ROOT, b"two", false).unwrap();
    put(&fs, "/two/0", &bytes(30_000, 9));
    fs.set_default_subvolume(one).unwrap();
    assert_eq!(fs.delete_subvolume(Node::ROOT, b"one").unwrap_err().errno(), Errno::PERM);
    fs.set_default_subvolume(5).unwrap();
    fs.delete_subvolume(Node::ROOT, b"one").unwrap();
    assert_eq!(names(&fs, "/"), ["two"]);
    fs.clean().unwrap();
    image.check();
    assert!(content(&fs, "/two/7") == bytes(20_000, 7));
    fs.delete_subvolume(Node::ROOT, b"two").unwrap();
    fs.clean().unwrap();
    assert!(fs.usage().used() < used / 4, "{:?}", fs.usage());
    fs.close().unwrap();
    image.check();
    image.mounted(|top| assert_eq!(std::fs::read_dir(top).unwrap().count(), 0));
}

/// A subvolume `one` of so many small files, and `two`, a snapshot of it.
fn snapshotted(files: u32) -> (Image, buttress::Filesystem) {
    let image = Image::by_us(1 << 30);
    let fs = image.open();
    let one = fs.create_subvolume(Node::ROOT, b"one", Owner::default()).unwrap();
    for number in 0..files {
        put(&fs, &format!("/one/{number}"), b"content");
    }
    fs.snapshot(one, Node::ROOT, b"two", false).unwrap();
    (image, fs)
}

#[test]
fn what_others_reach_is_not_read_to_delete_a_snapshot() {
    let (image, fs) = snapshotted(4000);
    put(&fs, "/one/0", b"changed");
    put(&fs, "/two/3999", b"changed in the snapshot");
    fs.close().unwrap();
    let fs = image.open();
    for number in 0..4000 {
        assert!(!content(&fs, &format!("/one/{number}")).is_empty());
    }
    let leaves = fs.stats().cache_misses;
    fs.close().unwrap();
    let fs = image.open();
    let before = fs.stats().cache_misses;
    fs.delete_subvolume(Node::ROOT, b"two").unwrap();
    fs.clean().unwrap();
    let read = fs.stats().cache_misses - before;
    assert!(leaves > 80 && read < leaves / 4, "{read} blocks are read, of more than {leaves}");
    assert_eq!(content(&fs, "/one/3999"), b"content");
    fs.close().unwrap();
    image.check();
}

#[test]
fn leaves_that_go_unread_are_many_in_one_commit() {
    let (image, fs) = snapshotted(8000);
    fs.close().unwrap();
    let options = buttress::Options::read_write().background(false).drop_blocks_max(16);
    let fs = buttress::Filesystem::open(image.path(), options).unwrap();
    fs.delete_subvolume(Node::ROOT, b"two").unwrap();
    fs.commit().unwrap();
    let mut commits = 0;
    while fs.is_dropping() {
        fs.commit().unwrap();
        commits += 1;
    }
    // More than 160 leaves, of which 16 would be 10 commits.
    assert!((1..=4).contains(&commits), "{commits} commits");
    assert_eq!(content(&fs, "/one/7999"), b"content");
    fs.close().unwrap();
    image.check();
}

/// Blocks that are looked at to delete some of so many subvolumes of one directory, and before that what a snapshot has in their places.
fn blocks_to_delete_some_of(count: u32) -> [u64; 2] {
    let image = Image::by_us(1 << 30);
    let fs = image.open();
    let home = fs.create_subvolume(Node::ROOT, b"home", Owner::default()).unwrap();
    let dir = fs.create(Node::top(home), b"snapshots", &New::directory(0o755)).unwrap().node;
    let name = |number: u32| format!("snapshot {number}").into_bytes();
    for number in 0..count {
        fs.create_subvolume(dir, &name(number), Owner::default()).unwrap();
    }
    let copy = fs.snapshot(home, Node::ROOT, b"copy", false).unwrap();
    fs.close().unwrap();
    let fs = image.open();
    let looked_at = || fs.stats().cache_hits + fs.stats().cache_misses;
    let stubs = Node { subvolume: copy, ..dir };
    let before = looked_at();
    for number in count - 50..count {
        fs.rmdir(stubs, &name(number)).unwrap();
    }
    let between = looked_at();
    for number in count - 50..count {
        fs.delete_subvolume(dir, &name(number)).unwrap();
    }
    let blocks = [between - before, looked_at() - between];
    fs.close().unwrap();
    image.check();
    blocks
}

#[test]
fn deleting_a_subvolume_costs_as_much_whatever_is_beside_it() {
    let [few, many] = [100, 6000].map(blocks_to_delete_some_of);
    println!("{few:?} blocks beside few, {many:?} beside many");
    assert!(many[0] < few[0] * 2 && many[1] < few[1] * 2, "{few:?}, {many:?}");
}

#[test]
fn subvolumes_move_and_leave_stubs_in_snapshots() {
    let image = Image::by_progs(1 << 30, &[]);
    let fs = image.open();
    let outer = fs.create_subvolume(Node::ROOT, b"outer", Owner::default()).unwrap();
    let inner = fs
        .create_subvolume(Node::top(outer), b"inner", Owner { uid: 1, gid: 2, umask: 0o022 })
        .unwrap();
    put(&fs, "/outer/inner/file", b"content");
    let refused = fs.delete_subvolume(Node::ROOT, b"outer").unwrap_err();
    assert_eq!(refused.errno(), Errno::NOTEMPTY);
    let copy = fs.snapshot(outer, Node::ROOT, b"copy", false).unwrap();
    let stub = fs.resolve("/copy/inner").unwrap();
    assert!(stub.is_stub() && names(&fs, "/copy/inner").is_empty());
    fs.rmdir(Node::top(copy), b"inner").unwrap();
    let into_itself =
        fs.rename(Node::ROOT, b"outer", Node::top(inner), b"x", Rename::Replace).unwrap_err();
    assert_eq!(into_itself.errno(), Errno::INVAL);
    fs.rename(Node::top(outer), b"inner", Node::ROOT, b"moved", Rename::NoReplace).unwrap();
    assert_eq!(content(&fs, "/moved/file"), b"content");
    assert_eq!(fs.parent(Node::top(inner)).unwrap(), Node::ROOT);
    let file = fs.resolve("/moved/file").unwrap();
    assert_eq!(fs.path_of(file).unwrap(), b"/moved/file");
    fs.close().unwrap();
    image.check();
    image.mounted(|top| {
        assert_eq!(std::fs::read(top.join("moved/file")).unwrap(), b"content");
        assert_eq!(std::fs::read_dir(top.join("outer")).unwrap().count(), 0);
        assert_eq!(std::fs::read_dir(top.join("copy")).unwrap().count(), 0);
    });
}

#[test]
fn subvolumes_change_places_with_each_other_and_with_files() {
    let image = Image::by_progs(1 << 30, &[]);
    let fs = image.open();
    let one = fs.create_subvolume(Node::ROOT, b"one", Owner::default()).unwrap();
    let two = fs.create_subvolume(Node::ROOT, b"two", Owner::default()).unwrap();
    let inner = fs.create_subvolume(Node::top(two), b"inner", Owner::default()).unwrap();
    let dir = fs.create(Node::ROOT, b"dir", &New::directory(0o755)).unwrap().node;
    put(&fs, "/one/file", b"one");
    put(&fs, "/two/inner/file", b"inner");
    put(&fs, "/dir/file", b"plain");
    let exchange = |from, name: &str, to, new: &str| {
        let done = fs.rename(from, name.as_bytes(), to, new.as_bytes(), Rename::Exchange);
        done.map_err(|error| error.errno())
    };
    let top = Node::top;
    assert_eq!(exchange(top(one), "file", Node::ROOT, "two"), Err(Errno::XDEV));
    assert_eq!(exchange(top(two), "inner", Node::ROOT, "two"), Err(Errno::INVAL));
    assert_eq!(exchange(Node::ROOT, "two", top(two), "inner"), Err(Errno::INVAL));
    assert_eq!(exchange(Node::ROOT, "one", Node::ROOT, "none"), Err(Errno::NOENT));
    assert_eq!(exchange(Node::ROOT, "one", Node::ROOT, "one"), Ok(()));
    exchange(Node::ROOT, "one", top(two), "inner").unwrap();
    assert_eq!(fs.parent(top(one)).unwrap(), top(two));
    assert_eq!(content(&fs, "/two/inner/file"), b"one");
    fs.commit().unwrap();
    exchange(Node::ROOT, "one", Node::ROOT, "two").unwrap();
    exchange(dir, "file", Node::ROOT, "one").unwrap();
    assert_eq!(content(&fs, "/one"), b"plain");
    assert_eq!(exchange(Node::ROOT, "dir", dir, "file"), Err(Errno::INVAL));
    exchange(Node::ROOT, "two", Node::ROOT, "one").unwrap();
    assert_eq!(content(&fs, "/one/file"), b"inner");
    fs.set_subvolume_read_only(inner, true).unwrap();
    assert_eq!(exchange(Node::ROOT, "one", dir, "file"), Err(Errno::ROFS));
    exchange(Node::ROOT, "one", Node::ROOT, "two").unwrap();
    fs.close().unwrap();
    image.check();
    image.mounted(|top| {
        let read = |path: &str| std::fs::read(top.join(path)).unwrap();
        assert_eq!(read("one"), b"plain");
        assert_eq!(read("two/file"), b"inner");
        assert_eq!(read("dir/file/inner/file"), b"one");
    });
}

#[test]
fn a_directory_takes_the_place_of_a_stub() {
    let image = Image::by_progs(1 << 30, &[]);
    let fs = image.open();
    let moved = fs.create_subvolume(Node::ROOT, b"inner", Owner::default()).unwrap();
    fs.create_subvolume(Node::ROOT, b"other", Owner::default()).unwrap();
    let copy = Node::top(fs.snapshot(5, Node::ROOT, b"copy", false).unwrap());
    fs.create(copy, b"dir", &New::directory(0o755)).unwrap();
    put(&fs, "/copy/dir/file", b"content");
    put(&fs, "/copy/file", b"content");
    let rename = |from, name: &str, new: &str, how| {
        let done = fs.rename(from, name.as_bytes(), copy, new.as_bytes(), how);
        done.map_err(|error| error.errno())
    };
    assert_eq!(rename(copy, "file", "inner", Rename::Replace), Err(Errno::ISDIR));
    assert_eq!(rename(copy, "dir", "inner", Rename::NoReplace), Err(Errno::EXIST));
    assert_eq!(rename(copy, "dir", "inner", Rename::Exchange), Err(Errno::XDEV));
    rename(copy, "dir", "inner", Rename::Replace).unwrap();
    rename(Node::ROOT, "inner", "other", Rename::Replace).unwrap();
    assert_eq!(fs.parent(Node::top(moved)).unwrap(), copy);
    assert_eq!(names(&fs, "/"), ["other", "copy"]);
    assert_eq!(names(&fs, "/copy"), ["file", "inner", "other"]);
    fs.close().unwrap();
    image.check();
    image.mounted(|top| {
        assert_eq!(std::fs::read(top.join("copy/inner/file")).unwrap(), b"content");
        assert_eq!(std::fs::read_dir(top.join("copy")).unwrap().count(), 3);
    });
}

#[test]
fn a_subvolume_that_lived_for_one_transaction_leaves_no_uuid() {
    let image = Image::by_progs(1 << 30, &[]);
    let fs = image.open();
    let count = || {
        let mut count = 0;
        let all = (Key::MIN, Key::MAX);
        fs.search(buttress::ondisk::objectid::UUID_TREE, all.0, all.1, |_, _, _| {
            count += 1;
            true
        })
        .unwrap();
        count
    };
    let before = count();
    fs.create_subvolume(Node::ROOT, b"short", Owner::default()).unwrap();
    fs.delete_subvolume(Node::ROOT, b"short").unwrap();
    fs.clean().unwrap();
    assert_eq!(count(), before);
    fs.close().unwrap();
    image.check();
}

#[test]
fn nothing_is_cleaned_where_nothing_may_be_written() {
    let image = Image::by_us(1 << 30);
    let fs = image.open();
    fs.create_subvolume(Node::ROOT, b"gone", Owner::default()).unwrap();
    fs.commit().unwrap();
    fs.delete_subvolume(Node::ROOT, b"gone").unwrap();
    fs.close().unwrap();
    let fs = image.open_read_only();
    assert_eq!(fs.clean().unwrap_err().errno(), Errno::ROFS);
}

/// As with Linux: what is read-only keeps its directory, and nothing takes the place of a subvolume.
#[test]
fn a_read_only_subvolume_stays_where_it_is() {
    let image = Image::by_progs(1 << 30, &[]);
    let fs = image.open();
    let id = fs.create_subvolume(Node::ROOT, b"sub", Owner::default()).unwrap();
    fs.snapshot(id, Node::ROOT, b"kept", true).unwrap();
    let dir = fs.create(Node::ROOT, b"dir", &New::directory(0o755)).unwrap().node;
    let errno = |moved: buttress::Result<()>| moved.unwrap_err().errno();
    let elsewhere = fs.rename(Node::ROOT, b"kept", dir, b"kept", Rename::Replace);
    assert_eq!(errno(elsewhere), Errno::ROFS);
    fs.rename(Node::ROOT, b"kept", Node::ROOT, b"called", Rename::NoReplace).unwrap();
    fs.rename(Node::ROOT, b"sub", dir, b"sub", Rename::NoReplace).unwrap();
    let replaced = fs.rename(Node::ROOT, b"dir", Node::ROOT, b"called", Rename::Replace);
    assert_eq!(errno(replaced), Errno::NOTEMPTY);
    fs.close().unwrap();
    image.check();
}

fn refused<T: std::fmt::Debug>(done: buttress::Result<T>) -> Errno {
    done.unwrap_err().errno()
}

/// As in Linux, what somebody has open of a deleted subvolume stays until it is closed.
#[test]
fn held_files_of_a_deleted_subvolume_go_on() {
    let image = Image::by_us(1 << 30);
    let fs = image.open();
    fs.commit().unwrap();
    let used = fs.usage().used();
    let one = fs.create_subvolume(Node::ROOT, b"one", Owner::default()).unwrap();
    for number in 0..300 {
        put(&fs, &format!("/one/{number}"), &bytes(20_000, number));
    }
    let file = fs.resolve("/one/7").unwrap();
    fs.hold(file).unwrap();
    fs.hold(Node::top(one)).unwrap();
    fs.delete_subvolume(Node::ROOT, b"one").unwrap();
    assert_eq!(fs.lookup(Node::ROOT, b"one").unwrap(), None);
    assert_eq!(refused(fs.subvolume_info(one)), Errno::NOENT);
    assert_eq!(refused(fs.snapshot(one, Node::ROOT, b"two", false)), Errno::NOENT);
    assert_eq!(refused(fs.create_subvolume(Node::top(one), b"in", Owner::default())), Errno::NOENT);
    // Nor does its top directory gain names, which would be lost. Another one below it may, and nothing is said of what is there.
    let top = Node::top(one);
    assert_eq!(refused(fs.create(top, b"new", &New::file(0o644))), Errno::NOENT);
    assert_eq!(refused(fs.link(file, top, b"new")), Errno::NOENT);
    assert_eq!(refused(fs.rename(top, b"8", top, b"new", Rename::Replace)), Errno::NOENT);
    let unnamed = fs.create_unnamed(top, &New::file(0o644)).unwrap();
    fs.release(unnamed.node).unwrap();
    // Nothing waits for those who hold it.
    fs.clean().unwrap();
    for round in 0..3 {
        let data = bytes(30_000, round);
        fs.write(file, 1000 * u64::from(round), &data).unwrap();
        fs.commit().unwrap();
        let mut back = vec![0; data.len()];
        assert_eq!(fs.read(file, 1000 * u64::from(round), &mut back).unwrap(), data.len());
        assert!(back == data);
    }
    let other = fs.lookup(Node::top(one), b"8").unwrap().unwrap().node;
    assert_eq!(fs.attributes(other).unwrap().size, 20_000);
    fs.release(file).unwrap();
    assert_eq!(fs.attributes(file).unwrap().size, 32_000);
    fs.release(Node::top(one)).unwrap();
    assert_eq!(refused(fs.attributes(file)), Errno::NOENT);
    assert_eq!(refused(fs.hold(file)), Errno::NOENT);
    fs.clean().unwrap();
    fs.commit().unwrap();
    assert_eq!(fs.usage().used(), used);
    fs.close().unwrap();
    image.check();
}

/// What is deleted and held stands in nobody's way.
#[test]
fn a_full_filesystem_keeps_no_deleted_subvolumes() {
    let image = Image::by_us(256 << 20);
    let fs = image.open();
    let one = fs.create_subvolume(Node::ROOT, b"one", Owner::default()).unwrap();
    put(&fs, "/one/file", &bytes(120 << 20, 1));
    let file = fs.resolve("/one/file").unwrap();
    fs.hold(file).unwrap();
    fs.delete_subvolume(Node::ROOT, b"one").unwrap();
    fs.commit().unwrap();
    assert_eq!(fs.attributes(file).unwrap().size, 120 << 20);
    for number in 0..4 {
        put(&fs, &format!("/{number}"), &bytes(40 << 20, number));
    }
    assert_eq!(refused(fs.attributes(file)), Errno::NOENT);
    fs.release(file).unwrap();
    fs.clean().unwrap();
    assert_eq!(refused(fs.subvolume_info(one)), Errno::NOENT);
    fs.close().unwrap();
    image.check();
}

/// One that is held to the end is dropped by the next open.
#[test]
fn a_deleted_subvolume_may_be_held_to_the_end() {
    let image = Image::by_us(1 << 30);
    let fs = image.open();
    let one = fs.create_subvolume(Node::ROOT, b"one", Owner::default()).unwrap();
    put(&fs, "/one/file", &bytes(200_000, 1));
    fs.hold(fs.resolve("/one/file").unwrap()).unwrap();
    fs.delete_subvolume(Node::ROOT, b"one").unwrap();
    fs.write(Node { ino: 257, ..Node::top(one) }, 0, b"changed").unwrap();
    fs.close().unwrap();
    image.check();
    let fs = image.open();
    fs.clean().unwrap();
    assert_eq!(refused(fs.attributes(Node::top(one))), Errno::NOENT);
    fs.close().unwrap();
    image.check();
}

/// Writers, commits and the last release race: nothing that was dropped is written to.
#[test]
fn the_last_release_races_with_writers_and_commits() {
    let image = Image::by_us(1 << 30);
    let fs = image.open();
    for round in 0..40u32 {
        let one = fs.create_subvolume(Node::ROOT, b"one", Owner::default()).unwrap();
        put(&fs, "/one/file", &bytes(100_000, round));
        let file = fs.resolve("/one/file").unwrap();
        fs.hold(file).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for step in 0..200u64 {
                    match fs.write(file, step * 300, &bytes(5000, 3)) {
                        Ok(_) => {}
                        Err(error) => return assert_eq!(error.errno(), Errno::NOENT),
                    }
                }
            });
            scope.spawn(|| (0..4).for_each(|_| fs.commit().map(drop).unwrap()));
            scope.spawn(|| {
                fs.delete_subvolume(Node::ROOT, b"one").unwrap();
                if round % 2 == 0 {
                    fs.commit().unwrap();
                }
                fs.release(file).unwrap();
            });
        });
        assert_eq!(refused(fs.attributes(Node::top(one))), Errno::NOENT);
    }
    fs.clean().unwrap();
    fs.close().unwrap();
    image.check();
}

/// Whoever has judged what a name stands for deletes that, or nothing.
#[test]
fn another_subvolume_by_the_same_name_is_not_deleted() {
    let image = Image::by_us(1 << 30);
    let fs = image.open();
    let one = fs.create_subvolume(Node::ROOT, b"one", Owner::default()).unwrap();
    let two = fs.create_subvolume(Node::ROOT, b"two", Owner::default()).unwrap();
    fs.rename(Node::ROOT, b"one", Node::ROOT, b"two", Rename::Exchange).unwrap();
    let refused = fs.delete_subvolume_of(Node::ROOT, b"one", one).unwrap_err();
    assert_eq!(refused.errno(), Errno::NOENT);
    fs.delete_subvolume_of(Node::ROOT, b"one", two).unwrap();
    let left: Vec<_> = fs.subvolumes().unwrap().into_iter().map(|it| it.id).collect();
    assert_eq!(left, [one]);
    fs.close().unwrap();
    image.check();
}
