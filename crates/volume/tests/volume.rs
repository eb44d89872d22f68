//! Volumes on images that mkfs.btrfs made: what we find is what btrfs-progs finds, damage to one copy
//! does not show and is repaired, and what is not supported is refused by name.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::{
    collections::BTreeMap,
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use buttress_codec::ChecksumKind;
use buttress_device::{
    BlockDevice, DeviceError, FileDevice, MemoryDevice, Op,
    testing::{Event, FaultyDevice, RecordingDevice},
};
use buttress_ondisk::{Key, Superblock, item::RootItem, kind, objectid, superblock};
use buttress_volume::{
    Access, Expect, Opened, Rescue, Sums, TreeRoot, Volume, VolumeError, Warning, search,
    search_back, search_from, walk, walk_blocks,
};
use zerocopy::{FromBytes, IntoBytes};

const PRIMARY: u64 = 64 << 10;

/// An image made by mkfs.btrfs, with some files in it.
struct Image {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Image {
    /// `None` where there is no mkfs.btrfs.
    fn make(options: &[&str]) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        for number in 0..300u32 {
            let name = format!("{number}-{}", "a long name to fill leaves ".repeat(3));
            fs::write(tree.join(name), number.to_le_bytes().repeat(600)).unwrap();
        }
        fs::write(tree.join("big"), (0..1 << 18).flat_map(u32::to_le_bytes).collect::<Vec<_>>())
            .unwrap();
        let path = dir.path().join("image");
        fs::File::create(&path).unwrap().set_len(256 << 20).unwrap();
        let made = Command::new("mkfs.btrfs")
            .args(["-q", "-f", "--rootdir"])
            .arg(&tree)
            .args(options)
            .arg(&path)
            .output();
        let Ok(made) = made else {
            println!("skipped: no mkfs.btrfs");
            return None;
        };
        assert!(made.status.success(), "{options:?}: {}", String::from_utf8_lossy(&made.stderr));
        Some(Self { _dir: dir, path })
    }

    fn load(&self) -> Arc<MemoryDevice> {
        Arc::new(MemoryDevice::load(&self.path).unwrap())
    }

    /// Runs a command of btrfs-progs on what is on the device now.
    fn progs(&self, device: &MemoryDevice, arguments: &[&str]) -> (bool, String) {
        let path = self.path.with_extension("copy");
        device.store(&path).unwrap();
        progs(&path, arguments)
    }
}

fn progs(path: &Path, arguments: &[&str]) -> (bool, String) {
    let out = Command::new("btrfs").args(arguments).arg(path).output().unwrap();
    let text = [out.stdout, out.stderr].concat();
    (out.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn open(device: Arc<dyn BlockDevice>, access: Access) -> Result<Opened, VolumeError> {
    Volume::open(vec![device], access)
}

fn opened(device: &Arc<MemoryDevice>, access: Access) -> Volume {
    let opened = open(device.clone(), access).unwrap();
    assert_eq!(opened.warnings, []);
    opened.volume
}

fn read(device: &dyn BlockDevice, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    device.read_at(offset, &mut buf).unwrap();
    buf
}

/// All trees: the chunk tree, the root tree, and each that it names.
fn trees(volume: &Volume) -> Vec<TreeRoot> {
    let sb = volume.superblock();
    let root = TreeRoot::root_tree(&sb);
    let mut trees = vec![TreeRoot::chunk_tree(&sb), root];
    let walked = walk(volume, &root, Key::MIN..=Key::MAX, |key, data| {
        if key.kind == kind::ROOT_ITEM {
            let item = RootItem::read(data).unwrap();
            trees.push(TreeRoot {
                bytenr: item.bytenr.get(),
                level: item.level,
                generation: Some(item.generation.get()),
                owner: Some(key.objectid),
            });
        }
        ControlFlow::<()>::Continue(())
    });
    assert!(walked.unwrap().is_continue());
    trees
}

/// Address, and number of items or children, of each block.
fn blocks(volume: &Volume) -> BTreeMap<u64, usize> {
    let mut blocks = BTreeMap::new();
    for tree in trees(volume) {
        let walked = walk_blocks(volume, &tree, Key::MIN..=Key::MAX, |block| {
            blocks.insert(block.bytenr(), block.len());
            ControlFlow::<()>::Continue(())
        });
        assert!(walked.unwrap().is_continue());
    }
    blocks
}

/// The same from the text of dump-tree.
fn dumped_blocks(text: &str) -> BTreeMap<u64, usize> {
    let lines = text.lines().filter(|line| line.starts_with("leaf ") || line.starts_with("node "));
    let mut blocks = BTreeMap::new();
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        if let Some(at) = words.iter().position(|word| *word == "items") {
            blocks.insert(words[1].parse().unwrap(), words[at + 1].parse().unwrap());
        }
    }
    blocks
}

fn csum_tree(volume: &Volume) -> TreeRoot {
    let owner = Some(objectid::CSUM_TREE);
    trees(volume).into_iter().find(|tree| tree.owner == owner).unwrap()
}

/// Every run of data that has checksums, with these.
fn summed(volume: &Volume) -> Vec<(u64, Vec<u8>)> {
    let mut runs = Vec::new();
    let walked = walk(volume, &csum_tree(volume), Key::MIN..=Key::MAX, |key, data| {
        runs.push((key.offset, data.to_vec()));
        ControlFlow::<()>::Continue(())
    });
    assert!(walked.unwrap().is_continue());
    runs
}

fn sectors(volume: &Volume, sums: &[u8]) -> usize {
    sums.len() / volume.checksum_kind().size()
}

#[test]
fn every_tree_is_read_as_btrfs_progs_reads_it() {
    let mut cases: Vec<Vec<&str>> = Vec::new();
    for csum in ["crc32c", "xxhash", "sha256", "blake2"] {
        cases.push(vec!["--csum", csum, "-n", "4096", "-m", "single", "-d", "single"]);
        cases.push(vec!["--csum", csum, "-m", "dup", "-d", "dup"]);
    }
    cases.extend(["8192", "32768", "65536"].map(|size| vec!["-n", size]));
    cases.push(vec!["-M", "-n", "4096"]);
    cases.push(vec!["-O", "^skinny-metadata,^no-holes,^extref", "-n", "4096"]);
    cases.push(vec!["-R", "^free-space-tree"]);
    for options in cases {
        let Some(image) = Image::make(&options) else { return };
        let volume = opened(&image.load(), Access::ReadOnly);
        let (_, text) = progs(&image.path, &["inspect-internal", "dump-tree"]);
        let (ours, theirs) = (blocks(&volume), dumped_blocks(&text));
        assert!(ours.len() >= 9, "{options:?}: {ours:?}");
        assert_eq!(ours, theirs, "{options:?}");

        let mut total = 0;
        for (logical, sums) in summed(&volume) {
            let mut data = vec![0; sectors(&volume, &sums) * 4096];
            volume.read_data(logical, &mut data, Sums::Verify(&sums)).unwrap();
            total += data.len();
        }
        assert!(total >= 1 << 20, "{options:?}: {total} bytes of data");
        assert_eq!(volume.stats(), Default::default());
    }
}

#[test]
fn searches_agree_with_the_walk() {
    let Some(image) = Image::make(&["-n", "4096"]) else { return };
    let volume = opened(&image.load(), Access::ReadOnly);
    let tree = trees(&volume).into_iter().find(|it| it.owner == Some(objectid::FS_TREE)).unwrap();
    assert!(tree.level >= 2, "level {}", tree.level);
    let collect = |range| {
        let mut items = Vec::new();
        let walked = walk(&volume, &tree, range, |key, data| {
            items.push((*key, data.to_vec()));
            ControlFlow::<()>::Continue(())
        });
        assert!(walked.unwrap().is_continue());
        items
    };
    let all = collect(Key::MIN..=Key::MAX);
    assert!(all.is_sorted_by(|a, b| a.0 < b.0) && all.len() > 1000);
    for (index, (key, data)) in all.iter().enumerate().step_by(37) {
        assert_eq!(search(&volume, &tree, key).unwrap().as_ref(), Some(data));
        let gap = Key::new(key.objectid, key.kind + 1, 0);
        let after = all.iter().find(|(key, _)| *key >= gap).cloned();
        assert_eq!(search_from(&volume, &tree, &gap).unwrap(), after);
        let before = all.iter().rfind(|(key, _)| *key <= gap).cloned();
        assert_eq!(search_back(&volume, &tree, &gap).unwrap(), before);
        let end = (index + 50).min(all.len() - 1);
        assert_eq!(collect(*key..=all[end].0), all[index..=end]);
    }
    assert_eq!(search(&volume, &tree, &Key::MAX).unwrap(), None);
    assert_eq!(search_back(&volume, &tree, &Key::MIN).unwrap(), None);
    let first = walk(&volume, &tree, Key::MIN..=Key::MAX, |key, _| ControlFlow::Break(*key));
    assert_eq!(first.unwrap(), ControlFlow::Break(all[0].0));
}

/// Where the copies of a logical address are.
fn places(volume: &Volume, logical: u64) -> Vec<u64> {
    let chunk = volume.chunk_at(logical).unwrap();
    let piece = buttress_volume::pieces(&chunk, logical, 4096).next().unwrap();
    piece.copies().iter().map(|at| at.offset).collect()
}

#[test]
fn a_bad_copy_of_a_block_is_repaired_from_the_other() {
    let Some(image) = Image::make(&["-m", "dup"]) else { return };
    let device = image.load();
    let volume = opened(&device, Access::ReadOnly);
    let bytenrs: Vec<u64> = blocks(&volume).into_keys().collect();
    let spoil = |bytenr: &u64, copy: usize| {
        let at = places(&volume, *bytenr)[copy];
        device.write_at(at + 200, &[0xa5; 3000]).unwrap();
    };
    // The first copy of each third block, the second copy of others: never both of one.
    for (index, bytenr) in bytenrs.iter().enumerate() {
        match index % 3 {
            0 => spoil(bytenr, 0),
            1 => spoil(bytenr, 1),
            _ => {}
        }
    }
    let spoilt = device.snapshot();
    let volume = opened(&device, Access::ReadOnly);
    let whole = blocks(&volume);
    assert!(volume.stats().bad_blocks > 0 && volume.stats().repaired == 0);
    assert_eq!(read(&*device, 0, 1 << 28), read(&spoilt, 0, 1 << 28), "read-only writes nothing");

    let volume = opened(&device, Access::ReadWrite);
    assert_eq!(blocks(&volume), whole);
    assert_eq!(volume.stats().repaired, bytenrs.len().div_ceil(3) as u64);
    assert_eq!(volume.stats().repair_failures, 0);
    for bytenr in bytenrs.iter().step_by(3) {
        let [a, b] = places(&volume, *bytenr)[..] else { panic!("two copies") };
        let size = volume.nodesize() as usize;
        assert_eq!(read(&*device, a, size), read(&*device, b, size));
        volume.read_block_from(*bytenr, &Expect::at(*bytenr), 0).unwrap();
    }
    assert!(volume.read_block_from(bytenrs[1], &Expect::at(bytenrs[1]), 1).is_err());
    let (clean, text) = image.progs(&device, &["check", "--readonly"]);
    assert!(clean, "{text}");

    // Both copies bad: the error tells where and why, for each.
    spoil(&bytenrs[0], 0);
    spoil(&bytenrs[0], 1);
    let error = volume.read_block(bytenrs[0], &Expect::at(bytenrs[0])).unwrap_err();
    assert!(error.is_corruption());
    let text = error.to_string();
    for part in places(&volume, bytenrs[0]).iter().map(|at| format!("at {at} on")) {
        assert!(text.contains(&part) && text.contains("checksum mismatch"), "{text}");
    }
}

#[test]
fn a_bad_copy_of_data_is_repaired_from_the_other() {
    for csum in ["crc32c", "xxhash", "sha256"] {
        let Some(image) = Image::make(&["-d", "dup", "--csum", csum]) else { return };
        let device = image.load();
        let good = device.snapshot();
        let volume = opened(&device, Access::ReadWrite);
        let (logical, sums) = summed(&volume).into_iter().max_by_key(|(_, s)| s.len()).unwrap();
        let count = sectors(&volume, &sums);
        assert!(count >= 256);
        let mut whole = vec![0; count * 4096];
        volume.read_data(logical, &mut whole, Sums::Verify(&sums)).unwrap();
        let [first, second] = places(&volume, logical)[..] else { panic!("two copies") };
        for sector in [0, 7, 8, 100, count as u64 - 1] {
            device.write_at(first + sector * 4096 + 9, &[0x5a; 100]).unwrap();
        }
        device.write_at(second + 50 * 4096, &[0x5a; 4096]).unwrap();

        let mut again = vec![0; count * 4096];
        volume.read_data(logical, &mut again, Sums::Verify(&sums)).unwrap();
        assert!(again == whole);
        assert_eq!((volume.stats().bad_sectors, volume.stats().repaired), (5, 5));
        assert_eq!(read(&*device, first, whole.len()), read(&good, first, whole.len()));
        let mut raw = vec![0; 4096];
        volume.read_raw(logical + 50 * 4096, &mut raw, 1).unwrap();
        assert_eq!(raw, [0x5a; 4096]);
        assert!(volume.read_raw(logical, &mut raw, 2).is_err());

        device.write_at(first + 50 * 4096, &[0x5a; 1]).unwrap();
        let error = volume.read_data(logical, &mut again, Sums::Verify(&sums)).unwrap_err();
        let bad_at = logical + 50 * 4096;
        let VolumeError::Data { logical, ref faults } = error else { panic!("{error}") };
        assert_eq!((logical, faults.0.len()), (bad_at, 2));
        assert!(error.to_string().contains(&format!("{}", second + 50 * 4096)), "{error}");
    }
}

#[test]
fn a_device_that_fails_to_read_one_copy_serves_the_other() {
    let Some(image) = Image::make(&["-d", "dup", "-m", "dup"]) else { return };
    let device = Arc::new(FaultyDevice::new(image.load()));
    let volume = open(device.clone(), Access::ReadWrite).unwrap().volume;
    let (logical, sums) = summed(&volume).into_iter().max_by_key(|(_, s)| s.len()).unwrap();
    let mut whole = vec![0; sectors(&volume, &sums) * 4096];
    volume.read_data(logical, &mut whole, Sums::Verify(&sums)).unwrap();
    let at = places(&volume, logical)[0] + 12288;
    let root = volume.superblock().root.get();
    let at_root = places(&volume, root)[0];
    device.fail_range(Op::Read, at..at + 1);
    device.fail_range(Op::Read, at_root..at_root + 1);

    let mut again = vec![0; whole.len()];
    volume.read_data(logical, &mut again, Sums::Verify(&sums)).unwrap();
    assert!(again == whole);
    assert_eq!(volume.stats().bad_sectors, 1, "only the sector that fails is bad");
    again.fill(0);
    volume.read_data(logical, &mut again, Sums::None).unwrap();
    assert!(again == whole);
    volume.read_block(root, &Expect::at(root)).unwrap();

    device.vanish();
    let error = volume.read_block(root, &Expect::at(root)).unwrap_err();
    assert!(!error.is_corruption(), "{error}");
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let Some(image) = Image::make(&[]) else { return };
    let volume = opened(&image.load(), Access::ReadOnly);
    let mut buf = vec![0; 8192];
    let request = |logical, sums: &[u8], buf: &mut [u8]| {
        volume.read_data(logical, buf, Sums::Verify(sums)).unwrap_err()
    };
    let (logical, _) = summed(&volume).swap_remove(0);
    for error in [
        request(logical + 1, &[0; 8], &mut buf),
        request(logical, &[0; 7], &mut buf),
        request(logical, &[0; 8], &mut buf[..5000]),
    ] {
        assert!(matches!(error, VolumeError::Request { .. }), "{error}");
    }
    for logical in [0, u64::MAX - 4095, 1 << 60] {
        let error = volume.read_data(logical, &mut buf, Sums::None).unwrap_err();
        assert!(matches!(error, VolumeError::Unmapped { .. }), "{error}");
        let error = volume.read_block(logical, &Expect::at(logical)).unwrap_err();
        assert!(matches!(error, VolumeError::Unmapped { .. }), "{error}");
    }
    let end = volume.chunks().last().unwrap().end();
    assert!(volume.read_data(end - 4096, &mut buf, Sums::None).is_err());
    assert!(volume.read_block(end - 4096, &Expect::at(end - 4096)).is_err());
    for refused in [
        volume.write(logical, &buf).unwrap_err(),
        volume.discard(logical, 4096).unwrap_err(),
        volume.write_superblocks(&volume.superblock()).unwrap_err(),
    ] {
        assert!(matches!(refused, VolumeError::ReadOnly { .. }), "{refused}");
    }
}

fn edit(device: &MemoryDevice, offset: u64, change: impl FnOnce(&mut Superblock)) {
    let mut sb = Superblock::read_from_bytes(&read(device, offset, 4096)).unwrap();
    change(&mut sb);
    let kind = ChecksumKind::from_u16(sb.csum_type.get()).unwrap_or(ChecksumKind::Crc32c);
    sb.csum = *kind.digest(&sb.as_bytes()[32..]).as_field();
    device.write_at(offset, sb.as_bytes()).unwrap();
}

#[test]
fn a_mirror_stands_in_for_the_primary_superblock() {
    let Some(image) = Image::make(&[]) else { return };
    let device = image.load();
    let damages: [fn(&MemoryDevice); 3] = [
        |device| device.write_at(PRIMARY, &[0; 4096]).unwrap(),
        |device| device.write_at(PRIMARY + 0x48, &[0xff]).unwrap(),
        |device| edit(device, PRIMARY, |sb| sb.nodesize = 5000.into()),
    ];
    for damage in damages {
        let device = Arc::new(device.snapshot());
        let before = blocks(&opened(&device, Access::ReadOnly));
        damage(&device);
        let error = open(device.clone(), Access::ReadWrite).unwrap_err();
        assert!(matches!(error, VolumeError::OldMirror { offset: 67_108_864, .. }), "{error}");
        let Opened { volume, warnings } = open(device.clone(), Access::ReadOnly).unwrap();
        let [Warning::MirrorUsed { offset, .. }] = warnings[..] else { panic!("{warnings:?}") };
        assert_eq!((offset, blocks(&volume)), (64 << 20, before.clone()));
        let rescue = Rescue { backup_super: true, ..Rescue::default() };
        let opened_all_the_same =
            Volume::open_rescue(vec![device.clone()], Access::ReadWrite, rescue);
        let Opened { volume, warnings } = opened_all_the_same.unwrap();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert_eq!(blocks(&volume), before);
        volume.write_superblocks(&volume.superblock()).unwrap();
        opened(&device, Access::ReadWrite);
        let (clean, text) = image.progs(&device, &["check", "--readonly"]);
        assert!(clean, "{text}");
    }

    // Of two mirrors the newer one: the second place is past the end here, so only one is left.
    device.write_at(PRIMARY, &[0; 4096]).unwrap();
    device.write_at(0x438, &[0x53, 0xef]).unwrap();
    let error = open(device.clone(), Access::ReadWrite).unwrap_err();
    assert!(matches!(error, VolumeError::Replaced { .. }), "{error}");
    assert_eq!(open(device.clone(), Access::ReadOnly).unwrap().warnings.len(), 2);
    device.write_at(64 << 20, &[0; 64]).unwrap();
    let error = open(device.clone(), Access::ReadOnly).unwrap_err();
    assert!(matches!(error, VolumeError::Superblock { .. }), "{error}");
    device.write_at(64 << 20, &[0; 4096]).unwrap();
    let error = open(device.clone(), Access::ReadOnly).unwrap_err();
    assert!(matches!(error, VolumeError::NotBtrfs { .. }), "{error}");
    let empty = Arc::new(MemoryDevice::new(1000));
    let error = open(empty, Access::ReadOnly).unwrap_err();
    assert!(matches!(error, VolumeError::NotBtrfs { .. }), "{error}");
}

#[test]
fn a_superblock_is_written_between_barriers_and_btrfs_accepts_it() {
    let Some(image) = Image::make(&["--csum", "xxhash"]) else { return };
    let device = Arc::new(RecordingDevice::new(&image.load()));
    let volume = open(device.clone(), Access::ReadWrite).unwrap().volume;
    let mut sb = volume.superblock();
    sb.label[..3].copy_from_slice(b"new");
    volume.write_superblocks(&sb).unwrap();
    let history = device.history();
    let steps: Vec<Option<u64>> = history
        .events()
        .iter()
        .map(|event| match event {
            Event::Write { offset, data } if data.len() == 4096 => Some(*offset),
            Event::Barrier => None,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(steps, [None, Some(PRIMARY), None, Some(64 << 20)]);
    assert_eq!(volume.superblock().label(), b"new");
    let (clean, text) = image.progs(&device.current(), &["check", "--readonly"]);
    assert!(clean, "{text}");
    let (_, text) = image.progs(&device.current(), &["inspect-internal", "dump-super", "-a"]);
    assert_eq!(text.matches("[match]").count() - text.matches("fsid\t").count(), 2, "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("label\t\t\tnew")).count(), 2, "{text}");
    // Wherever the power goes, one of the two is whole.
    for seed in 0..50 {
        for n in 0..=history.events().len() {
            open(Arc::new(history.scrambled(n, seed)), Access::ReadWrite).unwrap();
        }
    }
}

#[test]
fn writes_reach_every_copy() {
    let Some(image) = Image::make(&["-d", "dup"]) else { return };
    let device = image.load();
    let volume = opened(&device, Access::ReadWrite);
    let (logical, _) = summed(&volume).swap_remove(0);
    let data: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
    volume.write(logical, &data).unwrap();
    volume.barrier().unwrap();
    for at in places(&volume, logical) {
        assert!(read(&*device, at, data.len()) == data);
    }
    let mut again = vec![0; data.len()];
    volume.read_data(logical, &mut again, Sums::None).unwrap();
    assert!(again == data);
    volume.discard(logical, 65536).unwrap();
    for at in places(&volume, logical) {
        assert_eq!(read(&*device, at, 65536), [0; 65536]);
    }

    let last = volume.chunks().pop().unwrap();
    let mut added = last.clone();
    added.logical = last.end();
    volume.add_chunk(added.clone()).unwrap();
    assert_eq!(volume.chunk_at(added.logical).as_deref(), Some(&added));
    // In parts, over the end of a chunk.
    let parts: Vec<&[u8]> = data[..8192].chunks(1000).collect();
    volume.write_parts(added.logical - 4096, &parts).unwrap();
    let mut again = vec![0; 8192];
    volume.read_data(added.logical - 4096, &mut again, Sums::None).unwrap();
    assert!(again == data[..8192]);
    let mut clash = added.clone();
    clash.logical += 4096;
    assert!(volume.add_chunk(clash).is_err());
    let mut outside = added.clone();
    outside.logical = added.end();
    outside.stripes[0].offset = 1 << 40;
    assert!(volume.add_chunk(outside).is_err());
    assert!(volume.remove_chunk(added.logical) && !volume.remove_chunk(added.logical));
    assert_eq!(volume.chunks().pop(), Some(last));
}

type Change = fn(&mut Superblock);

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let Some(image) = Image::make(&[]) else { return };
    let device = image.load();
    let attempt = |access, change: Change| {
        let device = Arc::new(device.snapshot());
        edit(&device, PRIMARY, change);
        device.write_at(64 << 20, &[0; 4096]).unwrap();
        open(device, access).map(|opened| opened.warnings).map_err(|error| error.to_string())
    };
    let both: [(&str, Change); 7] = [
        ("2 devices", |sb| sb.num_devices = 2.into()),
        ("zoned", |sb| sb.incompat_flags = (sb.incompat_flags.get() | 1 << 12).into()),
        ("0x10000000000", |sb| sb.incompat_flags = (sb.incompat_flags.get() | 1 << 40).into()),
        ("metadata dump", |sb| sb.flags = (sb.flags.get() | 1 << 33).into()),
        ("block group tree", |sb| sb.flags = (sb.flags.get() | 1 << 38).into()),
        ("flags 0x8000000000000010", |sb| sb.flags = (sb.flags.get() | 1 << 63 | 1 << 4).into()),
        ("mixed groups", |sb| sb.incompat_flags = (sb.incompat_flags.get() | 1 << 2).into()),
    ];
    for (name, change) in both {
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let text = attempt(access, change).unwrap_err();
            assert!(text.contains(name), "{text}");
        }
    }
    let writing: [(&str, Change); 4] = [
        ("0x10000000000", |sb| sb.compat_ro_flags = (sb.compat_ro_flags.get() | 1 << 40).into()),
        ("log tree", |sb| sb.log_root = (64 << 20).into()),
        ("error", |sb| sb.flags = (sb.flags.get() | superblock::super_flags::ERROR).into()),
        ("bytes", |sb| sb.dev_item.total_bytes = (1u64 << 40).into()),
    ];
    for (name, change) in writing {
        let text = attempt(Access::ReadWrite, change).unwrap_err();
        assert!(text.contains(name) && text.contains("read-only"), "{text}");
        let [warning] = &attempt(Access::ReadOnly, change).unwrap()[..] else { panic!("{name}") };
        assert!(warning.to_string().contains(name), "{warning}");
    }
    let Some(large) = Image::make(&["-s", "16384", "-n", "16384"]) else { return };
    let text = open(large.load(), Access::ReadOnly).unwrap_err().to_string();
    assert!(text.contains("sector size of 16384"), "{text}");
    let two: Vec<Arc<dyn BlockDevice>> = vec![device.clone(), device.clone()];
    let error = Volume::open(two, Access::ReadOnly).unwrap_err();
    assert!(matches!(error, VolumeError::Unsupported { .. }), "{error}");
    assert!(Volume::open(vec![], Access::ReadOnly).is_err());
    let reader = FileDevice::open(&image.path, Access::ReadOnly).unwrap();
    let error = open(Arc::new(reader), Access::ReadWrite).unwrap_err();
    assert!(matches!(error, VolumeError::ReadOnly { .. }), "{error}");
}

/// A superblock is attacked where its checksum does not help: each byte is flipped and the checksum
/// made good again. Whatever happens is an error or a volume, and nothing is written.
#[test]
fn a_hostile_superblock_is_an_error_or_a_volume() {
    let Some(image) = Image::make(&[]) else { return };
    let device = image.load();
    // Beyond the system chunk array nothing is read at opening.
    let end = 0x32b + 200;
    let (mut opens, mut errors) = (0, 0);
    for at in (32..0x12b).chain(0x22b..end) {
        for flip in [0x01, 0x80, 0xff] {
            let device = Arc::new(device.snapshot());
            device.write_at(64 << 20, &[0; 4096]).unwrap();
            edit(&device, PRIMARY, |sb| sb.as_mut_bytes()[at] ^= flip);
            match open(device, Access::ReadOnly) {
                Ok(_) => opens += 1,
                Err(_) => errors += 1,
            }
        }
    }
    assert!(opens > 100 && errors > 100, "{opens} opened, {errors} refused");
}

#[test]
fn a_truncated_image_is_read_as_far_as_it_goes() {
    let Some(image) = Image::make(&["-m", "single", "-d", "single"]) else { return };
    let whole = image.load();
    let chunks = opened(&whole, Access::ReadOnly).chunks();
    let chunk = chunks.into_iter().max_by_key(|chunk| chunk.stripes[0].offset).unwrap();
    let keep = chunk.stripes[0].offset + chunk.length / 2;
    let device: Arc<dyn BlockDevice> = Arc::new(whole.resized(keep));
    let Opened { volume, warnings } = open(device.clone(), Access::ReadOnly).unwrap();
    assert!(matches!(warnings[..], [Warning::DeviceShort { .. }]), "{warnings:?}");
    assert!(!blocks(&volume).is_empty());
    let error = volume.read_data(chunk.end() - 4096, &mut [0; 4096], Sums::None).unwrap_err();
    let past_end = |fault: &_| {
        matches!(fault, buttress_volume::CopyFault::Device(DeviceError::OutOfRange { .. }))
    };
    let VolumeError::Data { ref faults, .. } = error else { panic!("{error}") };
    assert!(faults.0.iter().all(past_end), "{error}");
    assert!(open(device, Access::ReadWrite).is_err());
}

/// A reader of old content meets a writer half way, one copy new and one old: it must not take the
/// new copy for damage and put the old one over it.
#[test]
fn a_repair_never_puts_old_over_new() {
    let Some(image) = Image::make(&["-d", "dup"]) else { return };
    let device = image.load();
    let volume = opened(&device, Access::ReadWrite);
    let (logical, _) = summed(&volume).swap_remove(0);
    let versions = [[1u8; 4096], [2; 4096]];
    let sums = versions.map(|data| volume.checksum_kind().digest(&data).as_bytes().to_vec());
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for sum in &sums {
            scope.spawn(|| {
                let mut buf = vec![0; 4096];
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let _either = volume.read_data(logical, &mut buf, Sums::Verify(sum));
                }
            });
        }
        let kept = |round: usize| {
            volume.write(logical, &versions[round % 2]).unwrap();
            let mut copies = places(&volume, logical).into_iter();
            copies.all(|at| read(&*device, at, 4096) == versions[round % 2])
        };
        let overwritten = (0..3000).find(|round| !kept(*round));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(overwritten, None, "the round whose data an old copy replaced");
    });
}
