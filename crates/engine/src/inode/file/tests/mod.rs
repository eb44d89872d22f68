//! Files on a real filesystem in memory, made by `mkfs.btrfs`, against byte vectors; `btrfs check` has the last word.

mod cases;
mod kernel;
mod random;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use buttress_codec::crc32c::name_hash;
use buttress_device::{Access, BlockDevice, MemoryDevice};
use buttress_ondisk::item::{DirItem, InodeItem, InodeRef, RootItem, inode_flags};
use buttress_ondisk::superblock::Superblock;
use buttress_ondisk::{Key, SECTOR, kind, objectid};
use buttress_testkit::oracle;
use buttress_volume::Volume;
use parking_lot::Mutex;
use tempfile::TempDir;
use zerocopy::{FromBytes, IntoBytes};

use super::layers::Layers;
use super::{FILE_END, FileChanges, prepare};
use crate::env::Env;
use crate::error::Result;
use crate::refs::RefLog;
use crate::space::{Space, SpaceRoots};
use crate::tree::{Blocks, Root, View};
use crate::txn::{
    Commit, Core, CsumLog, Emit, Features, Op, Participant, Roots, TreeCommit, Upkeep, commit,
};

const ROOT_DIR: u64 = 256;
const TREE: u64 = objectid::FS_TREE;

/// A filesystem in memory.
pub struct Fixture {
    dir: TempDir,
    device: Arc<MemoryDevice>,
    pub core: Core,
    root: Mutex<Root>,
    /// Between operations of a test, so that the commit may take them.
    pub files: Mutex<Vec<File>>,
    /// What to do while a commit runs.
    #[allow(clippy::type_complexity)]
    during: Mutex<Option<Box<dyn FnMut(&Fixture) + Send>>>,
    merged: Mutex<Option<Root>>,
}

/// A file and its model.
#[derive(Default)]
pub struct File {
    pub ino: u64,
    pub model: Vec<u8>,
    pub flags: u64,
    pub live: FileChanges,
    frozen: Option<(FileChanges, u64)>,
    nbytes: u64,
    on_disk: bool,
}

impl File {
    pub fn size(&self) -> u64 {
        self.model.len() as u64
    }

    /// Calls `change` with the live layer and what is below.
    pub fn with<T>(
        &mut self,
        core: &Core,
        root: Root,
        change: impl FnOnce(&mut FileChanges, Layers<'_>) -> T,
    ) -> T {
        let layers = Layers {
            ino: self.ino,
            size: self.size(),
            in_tree: self.on_disk,
            frozen: self.frozen.as_ref().map(|(frozen, _)| frozen),
            view: View::new(&core.blocks, TREE, root),
            flags: self.flags,
            last_snapshot: Some(0),
        };
        self.live.lies_over(layers.any());
        change(&mut self.live, layers)
    }
}

/// Whether the tools that the tests need are there.
pub fn tools() -> bool {
    let found = Command::new("mkfs.btrfs").arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: mkfs.btrfs is not installed");
    }
    found
}

fn open(device: &Arc<MemoryDevice>) -> (Core, Root) {
    let device: Arc<dyn BlockDevice> = device.clone();
    let volume = Arc::new(Volume::open(vec![device], Access::ReadWrite).expect("opens").volume);
    let superblock = volume.superblock();
    let features = Features::of(&superblock, volume.checksum_kind());
    let blocks = Blocks::new(volume, 16 << 20);
    let roots = Roots::load(&blocks, &superblock).expect("roots");
    let space_roots = SpaceRoots {
        extent: roots.extent,
        free_space: roots.free_space,
        block_group: roots.block_group,
        device: roots.dev,
        chunk: roots.chunk,
    };
    let space = Space::load(&blocks, &space_roots, true).expect("space");
    let core = Core::new(blocks, space, features, Env::system(), roots, false);
    let item =
        core.root_view().get(&Key::new(TREE, kind::ROOT_ITEM, 0)).expect("reads").expect("fs tree");
    let item = RootItem::read(item.data()).expect("root item");
    let root =
        Root { bytenr: item.bytenr.get(), generation: item.generation.get(), level: item.level };
    (core, root)
}

fn run(program: &str, args: &[&str]) -> String {
    let output = oracle::start(Command::new(program).args(args)).expect("runs");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{program} {args:?}: {text}");
    text
}

impl Fixture {
    /// A new filesystem with `count` empty files.
    pub fn new(mkfs: &[&str], size: u64, count: u64, flags: u64) -> Fixture {
        let dir = tempfile::tempdir().expect("temp dir");
        let image = dir.path().join("image");
        std::fs::File::create(&image).and_then(|file| file.set_len(size)).expect("image");
        let path = image.to_string_lossy();
        run("mkfs.btrfs", &[&["-q", "-f"], mkfs, &[&*path]].concat());
        let new = |ino| File { ino, flags, ..File::default() };
        Fixture::load(&image, (0..count).map(|at| new(ROOT_DIR + 1 + at)).collect())
    }

    /// The filesystem in an image, of which `files` are some.
    pub fn load(image: &Path, files: Vec<File>) -> Fixture {
        let device = Arc::new(MemoryDevice::load(image).expect("loads"));
        let (core, root) = open(&device);
        Fixture {
            dir: tempfile::tempdir().expect("temp dir"),
            device,
            core,
            root: Mutex::new(root),
            files: Mutex::new(files),
            during: Mutex::default(),
            merged: Mutex::default(),
        }
    }

    /// Stores the last commit as an image.
    pub fn store(&self, image: &Path) {
        self.device.store(image).expect("stores");
    }

    /// Runs one operation on file `at`.
    pub fn op<T>(&self, at: usize, run: impl FnOnce(&mut File, &Op<'_>, Root) -> T) -> T {
        let op = self.core.txn.join(&self.core).expect("joins");
        let root = *self.root.lock();
        let done = run(&mut self.files.lock()[at], &op, root);
        self.check_layers();
        done
    }

    pub fn commit(&self) {
        commit(&self.core, self, true, Upkeep::Much).expect("commits");
    }

    /// Commits, and calls `during` at several points while the commit runs.
    pub fn commit_with(&self, during: impl FnMut(&Fixture) + Send + 'static) {
        *self.during.lock() = Some(Box::new(during));
        self.commit();
        *self.during.lock() = None;
    }

    fn interrupt(&self) {
        let mut during = self.during.lock().take();
        if let Some(during) = &mut during {
            during(self);
        }
        *self.during.lock() = during;
    }

    pub fn write(&self, at: usize, offset: u64, data: &[u8]) {
        self.op(at, |file, op, root| {
            file.with(op.core, root, |live, layers| live.write(op, layers, offset, data))
                .expect("writes");
            let end = offset as usize + data.len();
            if file.model.len() < end {
                file.model.resize(end, 0);
            }
            file.model[offset as usize..end].copy_from_slice(data);
        });
    }

    pub fn truncate(&self, at: usize, new: u64) {
        self.op(at, |file, op, root| {
            file.with(op.core, root, |live, layers| live.truncate(op, layers, new))
                .expect("truncates");
            file.model.resize(new as usize, 0);
        });
    }

    /// Holds the layers of every file against what always holds of them.
    pub fn check_layers(&self) {
        let size = self.core.features.csum.size();
        for file in self.files.lock().iter() {
            let digest = (file.flags & NODATASUM == 0).then_some(size);
            assert_eq!(file.live.check(digest), Ok(()), "live, file {}", file.ino);
            let Some((frozen, _)) = &file.frozen else { continue };
            let prepared = frozen.check_prepared(digest);
            assert_eq!(frozen.check(digest).or(prepared), Ok(()), "frozen, file {}", file.ino);
        }
        self.check_blocks();
    }

    /// What every file takes, as it is counted before the commit, is what it has.
    fn check_blocks(&self) {
        let root = *self.root.lock();
        let whole = |bytes: u64| bytes.div_ceil(SECTOR) * SECTOR;
        for file in self.files.lock().iter_mut() {
            let (nbytes, ino) = (file.nbytes, file.ino);
            let (have, counted, replaced) = file.with(&self.core, root, |live, layers| {
                let lower = Layers { frozen: None, ..layers };
                let nothing = FileChanges::default();
                let frozen = layers.frozen.unwrap_or(&nothing);
                let counted = nbytes + live.unsettled_bytes() + frozen.unsettled_bytes();
                // Of so many parts some are looked at each time.
                let each = |_| [live.replaced(layers), frozen.replaced(lower)];
                let all = |found: &[(u64, bool); 2]| found.iter().all(|(_, all)| *all);
                let replaced = (0..20).map(each).find(all).expect("all is known at last");
                let extents = live.extents(layers, 0, FILE_END).expect("listed");
                let have: u64 = extents.iter().map(|it| whole(it.len)).sum();
                (have, counted, replaced[0].0 + replaced[1].0)
            });
            assert_eq!(whole(counted.saturating_sub(replaced)), have, "file {ino}");
        }
    }

    /// Compares a range of a file with its model.
    pub fn compare(&self, at: usize, offset: u64, len: usize) {
        self.op(at, |file, op, root| {
            let mut have = vec![0xee; len];
            let read = file
                .with(op.core, root, |live, layers| live.read(op.core, layers, offset, &mut have))
                .expect("reads");
            let start = (offset as usize).min(file.model.len());
            let expect = &file.model[start..(start + len).min(file.model.len())];
            assert_eq!(read, expect.len(), "bytes read of file {at} at {offset}");
            if have[..read] != *expect {
                let bad = have.iter().zip(expect).position(|(a, b)| a != b).unwrap_or(0);
                panic!("file {at} differs at {}, read from {offset}+{len}", offset + bad as u64);
            }
        });
    }

    pub fn compare_all(&self) {
        let count = self.files.lock().len();
        for at in 0..count {
            let size = self.files.lock()[at].size();
            self.compare(at, 0, size as usize + 10);
        }
    }

    /// Commits, lets `btrfs check` look, opens the filesystem again and compares everything.
    pub fn check(self) -> Fixture {
        self.commit();
        let image = self.dir.path().join("image");
        self.store(&image);
        let path = image.to_string_lossy();
        run("btrfs", &["check", "--check-data-csum", &path]);
        let Fixture { dir, device, files, .. } = self;
        let device = Arc::new(device.snapshot());
        let (core, root) = open(&device);
        let fixture = Fixture {
            dir,
            device,
            core,
            root: Mutex::new(root),
            files,
            during: Mutex::default(),
            merged: Mutex::default(),
        };
        fixture.compare_all();
        fixture
    }
}

impl Fixture {
    fn emit_names(&self, emit: &mut Emit<'_, '_>) {
        let files = self.files.lock();
        let new: Vec<(u64, String)> = files
            .iter()
            .filter(|file| !file.on_disk)
            .map(|file| (file.ino, format!("file{}", file.ino)))
            .collect();
        if new.is_empty() {
            return;
        }
        let key = Key::new(ROOT_DIR, kind::INODE_ITEM, 0);
        let data = emit.merge.find(&key).expect("finds").expect("a root directory").to_vec();
        let mut item = InodeItem::read_from_bytes(&data).expect("inode item");
        let names: usize = new.iter().map(|(_, name)| name.len()).sum();
        item.size = (item.size.get() + 2 * names as u64).into();
        emit.merge.put(key, item.as_bytes()).expect("puts");
        let entry = |ino: u64, name: &str| {
            let head = DirItem {
                location: Key::new(ino, kind::INODE_ITEM, 0).into(),
                transid: emit.transid.into(),
                name_len: (name.len() as u16).into(),
                file_type: 1,
                ..DirItem::default()
            };
            [head.as_bytes(), name.as_bytes()].concat()
        };
        let mut hashed: Vec<_> =
            new.iter().map(|(ino, name)| (name_hash(name.as_bytes()), entry(*ino, name))).collect();
        let indexed: Vec<_> =
            new.iter().map(|(ino, name)| (ino - ROOT_DIR + 1, entry(*ino, name))).collect();
        hashed.sort();
        for (hash, data) in hashed {
            emit.merge.put(Key::new(ROOT_DIR, kind::DIR_ITEM, hash), &data).expect("puts");
        }
        for (index, data) in indexed {
            emit.merge.put(Key::new(ROOT_DIR, kind::DIR_INDEX, index), &data).expect("puts");
        }
    }

    fn emit_files(&self, emit: &mut Emit<'_, '_>) -> Result<()> {
        self.emit_names(emit);
        for file in self.files.lock().iter() {
            let Some((frozen, size)) = &file.frozen else { continue };
            let item = InodeItem {
                generation: 7.into(),
                transid: emit.transid.into(),
                size: (*size).into(),
                nbytes: file.nbytes.into(),
                nlink: 1.into(),
                mode: 0o100644.into(),
                flags: file.flags.into(),
                ..InodeItem::default()
            };
            emit.merge.put(Key::new(file.ino, kind::INODE_ITEM, 0), item.as_bytes())?;
            if !file.on_disk {
                let name = format!("file{}", file.ino);
                let head = InodeRef {
                    index: (file.ino - ROOT_DIR + 1).into(),
                    name_len: (name.len() as u16).into(),
                };
                let data = [head.as_bytes(), name.as_bytes()].concat();
                emit.merge.put(Key::new(file.ino, kind::INODE_REF, ROOT_DIR), &data)?;
            }
            frozen.emit(emit, file.ino, *size)?;
        }
        Ok(())
    }
}

impl Participant for Fixture {
    fn is_dirty(&self, _upkeep: Upkeep) -> bool {
        true
    }

    fn freeze(&self, _transid: u64) {
        for file in self.files.lock().iter_mut() {
            assert!(file.frozen.is_none());
            file.frozen = Some((std::mem::take(&mut file.live), file.size()));
        }
    }

    fn prepare(&self, core: &Core, _transid: u64) -> Result<()> {
        self.interrupt();
        let root = *self.root.lock();
        for file in self.files.lock().iter_mut() {
            let (ino, in_tree, flags) = (file.ino, file.on_disk, file.flags);
            let Some((frozen, size)) = &mut file.frozen else { continue };
            let view = View::new(&core.blocks, TREE, root);
            let size = *size;
            let layers =
                Layers { ino, size, in_tree, frozen: None, view, flags, last_snapshot: None };
            let prepared = prepare(core, &mut [(frozen, layers)])?;
            file.nbytes = prepared[0].nbytes(file.nbytes);
        }
        self.interrupt();
        Ok(())
    }

    fn merge(&self, commit: &Commit<'_>) -> Result<()> {
        let mut tree = TreeCommit::new(commit, TREE);
        let (mut refs, mut csums) = (RefLog::default(), CsumLog::default());
        let old = *self.root.lock();
        let root = {
            let mut merge = tree.merge(Some(old))?;
            let core = commit.core();
            let (refs, csums) = (&mut refs, &mut csums);
            let mut emit = Emit {
                merge: &mut merge,
                refs,
                csums,
                core,
                transid: commit.transid(),
                tree: TREE,
                meanwhile: &|| commit.write_some(),
            };
            self.emit_files(&mut emit)?;
            merge.finish()?
        };
        refs.append(&mut tree.refs);
        commit.gather(&mut refs, &mut csums);
        self.interrupt();
        let key = Key::new(TREE, kind::ROOT_ITEM, 0);
        let item = commit.core().root_view().get(&key)?.expect("fs tree");
        let mut item = RootItem::read(item.data()).expect("root item");
        item.bytenr = root.bytenr.into();
        item.generation = root.generation.into();
        item.generation_v2 = root.generation.into();
        item.level = root.level;
        commit.root_item(key, Some(item.as_bytes().to_vec()));
        *self.merged.lock() = Some(root);
        Ok(())
    }

    fn superblock(&self, _superblock: &mut Superblock) {}

    fn published(&self) {
        *self.root.lock() = self.merged.lock().take().expect("merged");
        self.interrupt();
    }

    fn settled(&self, _core: &Core) {
        for file in self.files.lock().iter_mut() {
            file.frozen = None;
            file.on_disk = true;
        }
    }
}

/// Random numbers that a seed repeats.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound.max(1)
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len.div_ceil(8))
            .flat_map(|_| {
                self.below(u64::MAX);
                self.0.to_le_bytes()
            })
            .take(len)
            .collect()
    }
}

pub const NODATASUM: u64 = inode_flags::NODATASUM;
