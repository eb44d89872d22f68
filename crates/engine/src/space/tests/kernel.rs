//! Loading what the kernel wrote, and writing the same.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use buttress_device::{Access as DeviceAccess, FileDevice};
use buttress_ondisk::item::RootItem;
use buttress_ondisk::superblock::compat_ro;
use buttress_ondisk::{Key, kind, objectid};
use buttress_testkit::oracle::{KernelMount, mkfs, root_or_skip, temp_dir};
use buttress_volume::{TreeRoot, Volume};

use super::super::{Dirty, Range, Usage};
use super::{Disk, Tree, free_of};

fn read_tree(volume: &Volume, root: &TreeRoot) -> Tree {
    let mut tree = Tree::default();
    let all = buttress_volume::walk(volume, root, Key::MIN..=Key::MAX, |key, data| {
        tree.items.insert(*key, data.to_vec());
        ControlFlow::<()>::Continue(())
    });
    assert!(all.unwrap().is_continue());
    tree
}

fn read_disk(image: &Path) -> (Volume, Disk) {
    let device = FileDevice::open(image, DeviceAccess::ReadOnly).unwrap();
    let opened = Volume::open(vec![Arc::new(device)], buttress_volume::Access::ReadOnly).unwrap();
    let volume = opened.volume;
    let superblock = volume.superblock();
    let roots = read_tree(&volume, &TreeRoot::root_tree(&superblock));
    let tree = |id: u64| {
        let key = Key::new(id, kind::ROOT_ITEM, 0);
        let item = RootItem::read(&roots.items[&key]).unwrap();
        let root = TreeRoot {
            bytenr: item.bytenr.get(),
            level: item.level,
            generation: Some(item.generation.get()),
            owner: Some(id),
        };
        read_tree(&volume, &root)
    };
    let features = superblock.compat_ro_flags.get();
    let extent = tree(objectid::EXTENT_TREE);
    let groups = match features & compat_ro::BLOCK_GROUP_TREE != 0 {
        true => tree(objectid::BLOCK_GROUP_TREE),
        false => extent.clone(),
    };
    let free_space = match features & compat_ro::FREE_SPACE_TREE != 0 {
        true => tree(objectid::FREE_SPACE_TREE),
        false => Tree::default(),
    };
    let device = tree(objectid::DEV_TREE);
    let chunk = read_tree(&volume, &TreeRoot::chunk_tree(&superblock));
    (volume, Disk { extent, free_space, groups, device, chunk, ..Disk::default() })
}

/// Items of groups that are gone stay in the free space tree of old mkfs; we leave them alone.
fn compare(ours: &Tree, theirs: &Tree, what: &str) {
    for (key, data) in &theirs.items {
        assert_eq!(ours.items.get(key), Some(data), "{what}: item {key}");
    }
    assert_eq!(ours.items.len(), theirs.items.len(), "{what}");
}

/// Loads, and emits everything onto nothing and onto what is there. Answers whether there are bitmaps.
fn agree(image: &Path) -> bool {
    let (volume, disk) = read_disk(image);
    let node = u64::from(volume.nodesize());
    let has_tree = !disk.free_space.items.is_empty();
    let scanned = disk.load_chunks(volume.chunks(), node, false).unwrap();
    if has_tree {
        let loaded = disk.load_chunks(volume.chunks(), node, true).unwrap();
        assert!(loaded.take_dirty().groups.is_empty(), "the kernel's free space tree makes sense");
        assert_eq!(free_of(&loaded), free_of(&scanned));
    }
    assert_eq!(scanned.bytes_used(), volume.superblock().bytes_used.get());
    assert_eq!(scanned.device_bytes_used(), volume.superblock().dev_item.bytes_used.get());
    let mut again = disk.clone();
    let everything = Dirty {
        groups: volume.chunks().iter().map(|chunk| chunk.logical).collect(),
        removed: Vec::new(),
        chunks_added: volume.chunks(),
        chunks_removed: Vec::new(),
        device: Some(scanned.pool.lock().written().device),
    };
    scanned.emit_groups(again.groups.restart(), &everything).unwrap();
    compare(&again.groups, &disk.groups, "block groups");
    scanned.emit_chunks(again.chunk.restart(), &everything).unwrap();
    for (key, data) in again.chunk.items.iter_mut().filter(|(key, _)| key.kind == kind::CHUNK_ITEM)
    {
        // mkfs gives its first chunk another alignment and width, which nobody reads.
        data[32..40].copy_from_slice(&disk.chunk.items[key][32..40]);
    }
    compare(&again.chunk, &disk.chunk, "chunks");
    scanned.emit_device_extents(again.device.restart(), &everything).unwrap();
    assert_eq!(again.device.items.len(), disk.device.items.len(), "device extents");
    if has_tree {
        scanned.emit_free_space(again.free_space.restart(), &everything).unwrap();
        compare(&again.free_space, &disk.free_space, "free space");
    }
    let superblock = volume.superblock();
    let said = &superblock.sys_chunk_array[..superblock.sys_chunk_array_size.get() as usize];
    assert_eq!(scanned.sys_chunk_array(), said);
    disk.free_space.items.keys().any(|key| key.kind == kind::FREE_SPACE_BITMAP)
}

fn fill(dir: &Path, files: usize, bytes: usize) {
    for n in 0..files {
        std::fs::write(dir.join(format!("f{n}")), vec![n as u8; bytes]).unwrap();
    }
}

/// An image in which the kernel has written `files` files and deleted every other one.
fn used_image(
    dir: &Path,
    size: u64,
    options: &[&str],
    files: usize,
    bytes: usize,
) -> std::path::PathBuf {
    let image = dir.join("image");
    mkfs(&image, size, options).unwrap();
    let mount = KernelMount::new(&image, "max_inline=0").unwrap();
    fill(mount.path(), files, bytes);
    mount.sync().unwrap();
    for n in (0..files).step_by(2) {
        std::fs::remove_file(mount.path().join(format!("f{n}"))).unwrap();
    }
    mount.sync().unwrap();
    let stat = rustix::fs::statvfs(mount.path()).unwrap();
    mount.finish().unwrap();
    let ours = usage(&image, false).stat();
    assert_eq!(ours, usage(&image, true).stat(), "what may be written to has the same room");
    assert_eq!(ours.total, stat.f_blocks * stat.f_bsize);
    // The kernel keeps back another amount.
    let near = |a: u64, b: u64| a.abs_diff(b * stat.f_bsize) < size / 8;
    assert!(near(ours.free, stat.f_bfree), "{ours:?} {} {}", stat.f_bfree, stat.f_bavail);
    assert!(near(ours.available, stat.f_bavail), "{ours:?} {} {}", stat.f_bfree, stat.f_bavail);
    image
}

fn usage(image: &Path, writable: bool) -> Usage {
    let (volume, disk) = read_disk(image);
    let node = u64::from(volume.nodesize());
    disk.load_for(volume.chunks(), node, false, writable).unwrap().usage()
}

#[test]
fn free_space_is_what_the_kernel_says() {
    if !root_or_skip() {
        return;
    }
    let cases: [(&[&str], usize, usize); 6] = [
        (&[], 40, 3 << 20),
        (&["-d", "dup"], 20, 3 << 20),
        (&["-n", "4096", "-m", "single"], 300, 20_000),
        (&["-n", "65536"], 100, 100_000),
        (&["--mixed", "-n", "4096"], 200, 30_000),
        (&["-R", "^free-space-tree"], 100, 30_000),
    ];
    for (options, files, bytes) in cases {
        let dir = temp_dir().unwrap();
        let image = used_image(dir.path(), 400 << 20, options, files, bytes);
        agree(&image);
    }
}

#[test]
fn bitmaps_are_what_the_kernel_says() {
    if !root_or_skip() {
        return;
    }
    let dir = temp_dir().unwrap();
    let image = used_image(dir.path(), 256 << 20, &[], 1500, 4096);
    assert!(agree(&image), "this image has bitmaps");
}

#[test]
fn a_damaged_free_space_tree_is_made_anew() {
    if !root_or_skip() {
        return;
    }
    let dir = temp_dir().unwrap();
    let image = used_image(dir.path(), 256 << 20, &[], 100, 20_000);
    let (volume, mut disk) = read_disk(&image);
    let whole = disk.free_space.clone();
    let extents = whole.items.keys().filter(|key| key.kind == kind::FREE_SPACE_EXTENT);
    let last = *extents.max().unwrap();
    disk.free_space.items.remove(&last);
    let wrong = Key::new(last.objectid, last.kind, last.offset + 4096);
    disk.free_space.items.insert(wrong, Vec::new());
    let space = disk.load_chunks(volume.chunks(), u64::from(volume.nodesize()), true).unwrap();
    let free = free_of(&space);
    let group = free.range(..=last.objectid).next_back().unwrap();
    assert!(group.1.contains(&Range::new(last.objectid, last.offset)));
    disk.settle(&space);
    compare(&disk.free_space, &whole, "free space");
}
