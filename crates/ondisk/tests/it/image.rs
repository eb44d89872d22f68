//! Images made by mkfs.btrfs and filled by the kernel, and the little of a volume that reading them takes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use buttress_ondisk::check::{self, Expect, Gate};
use buttress_ondisk::item::StripeItem;
use buttress_ondisk::{Corruption, Superblock, TreeBlock, kind, view};

/// A filesystem in a file.
pub struct Image {
    pub path: PathBuf,
    pub sb: Superblock,
    pub gate: Gate,
    file: File,
    /// (logical, length, physical starts of the copies) of each chunk.
    chunks: Vec<(u64, u64, Vec<u64>)>,
}

impl Image {
    pub fn open(path: &Path) -> Image {
        let file = File::open(path).unwrap();
        let mut bytes = [0; 4096];
        file.read_exact_at(&mut bytes, 65536).unwrap();
        let sb = check::superblock(&bytes).unwrap();
        let gate = Gate::of(&sb);
        let mut image = Image { path: path.into(), sb, gate, file, chunks: Vec::new() };
        for (key, head, stripes) in view::sys_chunks(&sb) {
            image.chunks.push((key.offset, head.length.get(), starts(stripes)));
        }
        let mut found = Vec::new();
        image.walk(sb.chunk_root.get(), &mut |block| {
            for slot in 0..if block.is_leaf() { block.len() } else { 0 } {
                let (key, data) = block.item(slot);
                if key.kind == kind::CHUNK_ITEM {
                    let (head, stripes) = view::chunk(data).unwrap();
                    found.push((key.offset, head.length.get(), starts(stripes)));
                }
            }
        });
        image.chunks = found;
        image
    }

    pub fn read(&self, logical: u64, len: usize) -> Option<Box<[u8]>> {
        let (start, _, physical) = self.chunk_of(logical)?;
        let mut bytes = vec![0; len].into_boxed_slice();
        self.file.read_exact_at(&mut bytes, physical[0] + (logical - start)).ok()?;
        Some(bytes)
    }

    /// A superblock's bytes at an offset of the file.
    pub fn raw(&self, offset: u64) -> [u8; 4096] {
        let mut bytes = [0; 4096];
        self.file.read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }

    pub fn block(&self, expect: &Expect) -> Result<TreeBlock, Corruption> {
        let bytes = self.read(expect.bytenr, self.gate.nodesize as usize).expect("mapped");
        self.gate.block(bytes, expect)
    }

    /// Where the copies of what is at `logical` are in the file.
    pub fn copies(&self, logical: u64) -> Vec<u64> {
        let (start, _, physical) = self.chunk_of(logical).unwrap();
        physical.iter().map(|at| at + (logical - start)).collect()
    }

    fn chunk_of(&self, logical: u64) -> Option<&(u64, u64, Vec<u64>)> {
        self.chunks.iter().find(|(start, len, _)| (*start..start + len).contains(&logical))
    }

    /// The root block of a tree.
    pub fn tree_root(&self, id: u64) -> TreeBlock {
        let mut found = None;
        self.walk(self.sb.root.get(), &mut |block| {
            for slot in 0..if block.is_leaf() { block.len() } else { 0 } {
                let (key, data) = block.item(slot);
                if key.kind == kind::ROOT_ITEM && key.objectid == id {
                    let root = buttress_ondisk::item::RootItem::read(data).unwrap();
                    found = Some(root.bytenr.get());
                }
            }
        });
        self.block(&Expect::at(found.unwrap())).unwrap()
    }

    /// Visits each block of a tree.
    pub fn walk(&self, root: u64, visit: &mut dyn FnMut(&TreeBlock)) {
        let block = self.block(&Expect::at(root)).unwrap();
        self.walk_below(&block, visit);
    }

    fn walk_below(&self, block: &TreeBlock, visit: &mut dyn FnMut(&TreeBlock)) {
        visit(block);
        for slot in 0..if block.is_leaf() { 0 } else { block.len() } {
            let child = block.child(slot);
            let expect = Expect {
                bytenr: child.bytenr,
                level: Some(block.level() - 1),
                generation: Some(child.generation),
                owner: Some(block.owner()),
                first_key: Some(child.key),
            };
            self.walk_below(&self.block(&expect).unwrap(), visit);
        }
    }

    /// Every block that the superblock reaches.
    pub fn every_block(&self) -> Vec<TreeBlock> {
        let mut all = Vec::new();
        let mut roots = Vec::new();
        self.walk(self.sb.chunk_root.get(), &mut |block| all.push(block.clone()));
        for top in [self.sb.root.get(), self.sb.log_root.get()].into_iter().filter(|&top| top > 0) {
            self.walk(top, &mut |block| {
                all.push(block.clone());
                for slot in 0..if block.is_leaf() { block.len() } else { 0 } {
                    let (key, data) = block.item(slot);
                    if key.kind == kind::ROOT_ITEM {
                        let root = buttress_ondisk::item::RootItem::read(data).unwrap();
                        roots.push(root.bytenr.get());
                    }
                }
            });
        }
        for root in roots {
            self.walk(root, &mut |block| all.push(block.clone()));
        }
        all
    }
}

fn starts(stripes: &[StripeItem]) -> Vec<u64> {
    stripes.iter().map(|stripe| stripe.offset.get()).collect()
}

/// Runs a shell script with `$IMG` and `$MNT`; panics when it fails.
pub fn script(text: &str, dir: &Path, image: &Path) {
    let mount = dir.join("mnt");
    std::fs::create_dir_all(&mount).unwrap();
    let done = Command::new("bash")
        .args(["-euc", text])
        .env("IMG", image)
        .env("MNT", &mount)
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Whether images can be made here; says why when not.
pub fn can_mount() -> bool {
    let id = Command::new("id").arg("-u").output().map(|out| out.stdout).unwrap_or_default();
    if id != b"0\n" {
        eprintln!("skipped: mounting needs root");
        return false;
    }
    true
}

const FILL: &str = r#"
mount -o loop "$IMG" "$MNT"
trap 'exec 9>&-; cd /; umount "$MNT"' EXIT
cd "$MNT"
mkdir -p dir/sub
for i in $(seq 1 300); do echo "content $i" > dir/file-with-a-rather-long-name-$i; done
head -c 3000000 /dev/urandom > random
sync -f .
head -c 100000 /dev/zero | tr '\0' a > compressible
setfattr -n user.one -v value random
setfattr -n user.empty random
setfattr -n user.long -v "$(head -c 900 /dev/zero | tr '\0' x)" random
setfacl -m u:1:rw random
ln -s a/symlink/target link
mkfifo fifo
mknod null c 1 3
mknod block b 8 1
ln random hard
for i in $(seq 1 200); do ln random dir/sub/hardlink-name-quite-long-$i 2>/dev/null || true; done
truncate -s 1G sparse
fallocate -l 5M prealloc
dd if=/dev/urandom of=prealloc bs=4096 count=3 seek=7 conv=notrunc status=none
cp --reflink=always random dir/clone
btrfs subvolume create subvol >/dev/null
cp --reflink=always random subvol/clone
sync -f .
btrfs subvolume snapshot subvol snap >/dev/null
btrfs subvolume snapshot -r subvol snap-ro >/dev/null
echo changed > snap/changed
dd if=/dev/urandom of=snap/clone bs=4096 count=2 seek=3 conv=notrunc status=none
btrfs quota enable . 2>/dev/null || true
btrfs qgroup create 1/1 . 2>/dev/null || true
btrfs qgroup limit 100M 1/1 . 2>/dev/null || true
btrfs subvolume create gone >/dev/null
echo data > gone/file
btrfs subvolume delete -c gone >/dev/null
mkdir reflinks
for i in $(seq 1 200); do cp --reflink=always compressible reflinks/$i; done
btrfs subvolume create owner >/dev/null
for i in $(seq 1 300); do cp --reflink=always compressible owner/reflink-$i; done
sync -f .
btrfs subvolume snapshot owner heir >/dev/null
echo x > heir/new
sync -f .
btrfs subvolume delete -c owner >/dev/null
btrfs subvolume sync . >/dev/null
btrfs property set dir/sub compression zstd
head -c 200000 /dev/zero | tr '\0' b > dir/sub/zstd
chattr +C dir
exec 9> dir/orphan; rm dir/orphan; echo x >&9
sync -f .
echo logged > logged
mv dir/file-with-a-rather-long-name-7 renamed
dd if=/dev/urandom of=logged bs=4096 count=4 conv=fsync status=none
cp --sparse=always "$IMG" "$IMG.live"
"#;

/// One mkfs option list per image.
const KINDS: [(&str, &str); 4] = [
    ("default", ""),
    ("old", "-n 4096 -m single -O ^no-holes,^skinny-metadata,^extref -R ^free-space-tree"),
    ("mixed", "-M --csum sha256"),
    ("new", "--csum xxhash -n 65536 -U 11111111-2222-3333-4444-555555555555"),
];

/// Images of several kinds, each as unmounted and as it was while mounted (with an orphan and a tree log).
pub fn make(dir: &Path) -> Vec<(String, Image)> {
    let mut images = Vec::new();
    for (name, options) in KINDS {
        let path = dir.join(name);
        let text = format!(
            "truncate -s 256M \"$IMG\"; mkfs.btrfs -q {options} \"$IMG\" >/dev/null\n({FILL})"
        );
        script(&text, dir, &path);
        images.push((name.to_owned(), Image::open(&path)));
        let live = dir.join(format!("{name}.live"));
        images.push((format!("{name}.live"), Image::open(&live)));
    }
    images
}
