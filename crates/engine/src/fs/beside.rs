//! What goes on while others wait for the device, or look at a whole tree.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use buttress_device::MemoryDevice;
use buttress_device::testing::HoldingDevice;
use buttress_mkfs::Environment;
use buttress_ondisk::{Key, objectid};

use super::{Filesystem, New, Node, Options, Owner};
use crate::env::Env;
use crate::tree::View;

/// Longer than anything takes that need not wait.
const LONG: Duration = Duration::from_secs(20);

fn make() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    let options = buttress_mkfs::Options { nodesize: Some(4096), ..Default::default() };
    buttress_mkfs::make(&*device, &options, &mut Environment::seeded(1)).unwrap();
    device
}

fn open(device: Arc<dyn buttress_device::BlockDevice>) -> Filesystem {
    Filesystem::open_device(device, Options::read_write().background(false)).unwrap()
}

fn file(fs: &Filesystem, dir: Node, name: &[u8]) -> Node {
    fs.create(dir, name, &New::file(0o644)).unwrap().node
}

fn files(fs: &Filesystem, dir: Node, count: u32) {
    (0..count).for_each(|at| assert!(file(fs, dir, format!("file{at}").as_bytes()).ino > 256));
}

/// Two subvolumes of some leaves, the first with a file that a crash left without a name.
fn two_subvolumes() -> (Arc<MemoryDevice>, [Node; 2]) {
    let device = make();
    let fs = open(device.clone());
    let tops = [b"one", b"two"].map(|name| {
        let id = fs.create_subvolume(Node::ROOT, name, Owner::default()).unwrap();
        files(&fs, Node::top(id), 200);
        Node::top(id)
    });
    let left = file(&fs, tops[0], b"left");
    fs.hold(left).unwrap();
    fs.unlink(tops[0], b"left").unwrap();
    fs.commit().unwrap();
    let crashed = Arc::new(device.snapshot());
    fs.release(left).unwrap();
    fs.close().unwrap();
    (crashed, tops)
}

/// From now on reads of this block wait.
fn hold(fs: &Filesystem, device: &HoldingDevice, block: u64) {
    let chunk = fs.volume().chunk_at(block).unwrap();
    for stripe in &chunk.stripes {
        let at = stripe.offset + (block - chunk.logical);
        device.hold(at..at + 4096);
    }
}

/// Does `work` while `other` waits for the device, and says whether it was done before that went on.
fn goes_on(
    device: &HoldingDevice,
    other: impl FnOnce() + Send,
    work: impl FnOnce() + Send,
) -> bool {
    std::thread::scope(|scope| {
        let other = scope.spawn(other);
        device.until_one_waits();
        let (done, is_done) = mpsc::channel();
        scope.spawn(move || {
            work();
            let _unless_too_late = done.send(());
        });
        let in_time = is_done.recv_timeout(LONG).is_ok();
        assert!(!other.is_finished());
        device.let_go();
        in_time
    })
}

#[test]
fn who_opens_a_subvolume_keeps_nobody_from_others() {
    let (disk, [one, two]) = two_subvolumes();
    let device = Arc::new(HoldingDevice::new(disk));
    let fs = open(device.clone());
    hold(&fs, &device, fs.tree(one.subvolume).unwrap().unwrap().bytenr);
    let look = |top: Node| drop(fs.lookup(top, b"file1").unwrap().unwrap());
    assert!(goes_on(&device, || look(one), || look(two)));
    // Two who open the same one get the same.
    let made = file(&fs, one, b"new");
    assert!(fs.lookup(one, b"new").unwrap().unwrap().node == made);
    fs.close().unwrap();
}

#[test]
fn who_cleans_a_subvolume_keeps_nobody_from_others() {
    let (disk, [one, two]) = two_subvolumes();
    let device = Arc::new(HoldingDevice::new(disk));
    let fs = open(device.clone());
    let look = |top: Node| drop(fs.lookup(top, b"file1").unwrap().unwrap());
    look(one);
    look(two);
    let root = fs.tree(one.subvolume).unwrap().unwrap();
    let view = View::new(&fs.core().blocks, one.subvolume, root);
    let block = view.root_block().unwrap();
    let last = block.child(block.len() - 1);
    assert!(block.level() == 1 && last.key.objectid < objectid::ORPHAN);
    fs.core().blocks.clear();
    hold(&fs, &device, last.bytenr);
    let make = |top: Node| assert!(file(&fs, top, b"new").subvolume == top.subvolume);
    assert!(goes_on(&device, || make(one), || make(two)));
    fs.close().unwrap();
}

#[test]
fn a_list_of_all_subvolumes_lets_others_commit() {
    let device = make();
    let (fs, steps) = (Arc::new(OnceLock::<Filesystem>::new()), Arc::new(AtomicUsize::new(0)));
    let (watched, counted) = (fs.clone(), steps.clone());
    let env = Env::system().watched(move |what| {
        let Some(fs) = watched.get().filter(|_| what == "some subvolumes are listed") else {
            return;
        };
        let number = counted.fetch_add(1, Ordering::Relaxed);
        file(fs, Node::ROOT, format!("beside{number}").as_bytes());
        fs.commit().unwrap();
    });
    let options = Options::read_write().background(false).env(env);
    let fs = fs.get_or_init(|| Filesystem::open_device(device, options).unwrap());
    for number in 0..2000 {
        let name = format!("subvolume{number}");
        fs.create_subvolume(Node::ROOT, name.as_bytes(), Owner::default()).unwrap();
    }
    fs.commit().unwrap();
    let found = fs.subvolumes().unwrap();
    assert!(found.len() == 2000 && found.is_sorted_by_key(|one| one.id));
    assert!(steps.load(Ordering::Relaxed) >= 2, "{steps:?}");
    let id = found[1999].id;
    assert_eq!(fs.subvolumes().unwrap().pop().unwrap().id, id);
}

#[test]
fn a_search_lets_others_commit() {
    let fs = open(make());
    files(&fs, Node::ROOT, 1000);
    fs.commit().unwrap();
    let (mut keys, mut done) = (Vec::new(), 0);
    std::thread::scope(|scope| {
        fs.search(objectid::FS_TREE, Key::MIN, Key::MAX, |key, _, _| {
            keys.push(key);
            if keys.len() % 1000 == 1 {
                let (fs, (told, is_done)) = (&fs, mpsc::channel());
                let name = format!("beside{}", keys.len());
                scope.spawn(move || {
                    file(fs, Node::ROOT, name.as_bytes());
                    fs.commit().unwrap();
                    let _unless_too_late = told.send(());
                });
                done += usize::from(is_done.recv_timeout(LONG).is_ok());
                return done > 0;
            }
            true
        })
        .unwrap();
    });
    assert!(done >= 4, "{done} commits beside");
    assert!(keys.len() >= 4000 && keys.is_sorted());
    fs.close().unwrap();
}
