//! What others do while a log is written, and devices that fail meanwhile.

mod moved;
mod raced;
mod raced_data;
mod settling;

use std::sync::{Arc, OnceLock};

use buttress_device::testing::{FaultyDevice, OperationFault};
use buttress_device::{BlockDevice, DeviceError, MemoryDevice, Op};
use buttress_mkfs::Environment;
use parking_lot::Mutex;

use super::{Allocate, Filesystem, New, Node, Options};
use crate::env::Env;
use crate::error::Errno;
use crate::inode::Rename;
use crate::stats::Stats;

fn formatted() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(128 << 20));
    buttress_mkfs::make(&*device, &Default::default(), &mut Environment::seeded(1)).unwrap();
    device
}

fn options() -> Options {
    Options::read_write().background(false).tree_log(true)
}

fn open(device: Arc<dyn BlockDevice>) -> Filesystem {
    Filesystem::open_device(device, options()).unwrap()
}

type Action = Box<dyn FnOnce(&Filesystem) + Send>;

/// A filesystem in which something is done once when a step is taken.
struct Disturbed {
    device: Arc<MemoryDevice>,
    fs: Arc<OnceLock<Filesystem>>,
    next: Arc<Mutex<Vec<(&'static str, Action)>>>,
}

impl Disturbed {
    fn new() -> Disturbed {
        Disturbed::on(formatted())
    }

    fn on(device: Arc<MemoryDevice>) -> Disturbed {
        let (next, fs) = (
            Arc::<Mutex<Vec<(&'static str, Action)>>>::default(),
            Arc::new(OnceLock::<Filesystem>::new()),
        );
        let (of, todo) = (Arc::downgrade(&fs), next.clone());
        let env = Env::system().watched(move |step| {
            let action = todo.lock().pop_if(|(when, _)| *when == step);
            let fs = of.upgrade();
            if let Some(((_, action), fs)) = action.zip(fs.as_ref().and_then(|fs| fs.get())) {
                action(fs);
            }
        });
        fs.set(Filesystem::open_device(device.clone(), options().env(env)).unwrap()).unwrap();
        Disturbed { device, fs, next }
    }

    fn fs(&self) -> &Filesystem {
        self.fs.get().unwrap()
    }

    fn at(&self, step: &'static str, action: impl FnOnce(&Filesystem) + Send + 'static) {
        self.next.lock().push((step, Box::new(action)));
    }

    /// As a power cut leaves it, with the log replayed.
    fn replayed(&self) -> Filesystem {
        assert!(self.next.lock().is_empty(), "not all was done");
        let fs = open(Arc::new(self.device.snapshot()));
        assert!(fs.warnings().is_empty(), "{:?}", fs.warnings());
        fs
    }
}

fn mkdir(fs: &Filesystem, dir: Node, name: &str) -> Node {
    fs.create(dir, name.as_bytes(), &New::directory(0o755)).unwrap().node
}

fn touch(fs: &Filesystem, dir: Node, name: &str) -> Node {
    fs.create(dir, name.as_bytes(), &New::file(0o644)).unwrap().node
}

fn names(fs: &Filesystem, dir: Node) -> Vec<String> {
    let mut names = Vec::new();
    fs.read_dir(dir, 0, &mut |entry| {
        names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        true
    })
    .unwrap();
    names.sort();
    names
}

/// A committed directory and file, and a new file in the directory that the log has as a whole.
fn logged_file(fs: &Filesystem) -> (Node, Node, Node) {
    let dir = mkdir(fs, Node::ROOT, "dir");
    let other = touch(fs, Node::ROOT, "other");
    fs.commit().unwrap();
    let file = touch(fs, dir, "file");
    fs.write(file, 0, &[7; 9000]).unwrap();
    fs.sync(file).unwrap();
    (dir, other, file)
}

/// A directory is taken, and loses an entry before the log is written.
#[test]
fn an_entry_goes_while_its_directory_is_logged() {
    let all = Disturbed::new();
    let fs = all.fs();
    let dir = mkdir(fs, Node::ROOT, "dir");
    fs.commit().unwrap();
    (0..9).for_each(|number| _ = touch(fs, dir, &format!("file{number}")));
    all.at("a log has its inodes", move |fs| _ = fs.unlink(dir, b"file3").unwrap());
    fs.sync(dir).unwrap();
    assert_eq!(fs.stats().log_writes, 1, "{:?}", fs.stats().log_refused);
    let replayed = all.replayed();
    let found = names(&replayed, dir);
    assert!(found.len() == 8 && !found.contains(&"file3".into()), "{found:?}");
}

/// A directory that is in the log loses an entry, which the next version says; and moves while that is made.
#[test]
fn what_has_changed_moves_while_the_log_is_made() {
    let all = Disturbed::new();
    let fs = all.fs();
    let (from, to) = (mkdir(fs, Node::ROOT, "from"), mkdir(fs, Node::ROOT, "to"));
    let other = touch(fs, Node::ROOT, "other");
    fs.commit().unwrap();
    let moved = mkdir(fs, from, "moved");
    touch(fs, moved, "file");
    fs.sync(moved).unwrap();
    fs.unlink(moved, b"file").unwrap();
    fs.write(other, 0, b"something").unwrap();
    all.at("a log has what changed", move |fs| {
        fs.rename(from, b"moved", to, b"moved", Rename::Replace).unwrap();
    });
    fs.sync(other).unwrap();
    assert_eq!(fs.stats().log_writes, 2, "{:?}", fs.stats().log_refused);
    let replayed = all.replayed();
    assert_eq!((names(&replayed, from).len(), names(&replayed, to).len()), (0, 1));
}

/// The same of a file that has got another name, and goes altogether.
#[test]
fn what_has_changed_goes_while_the_log_is_made() {
    let all = Disturbed::new();
    let fs = all.fs();
    let (dir, other, file) = logged_file(fs);
    fs.link(file, dir, b"again").unwrap();
    fs.write(other, 0, b"something").unwrap();
    all.at("a log has what changed", move |fs| {
        fs.unlink(dir, b"file").unwrap();
        fs.unlink(dir, b"again").unwrap();
    });
    fs.sync(other).unwrap();
    assert_eq!(fs.stats().log_writes, 2, "{:?}", fs.stats().log_refused);
    let replayed = all.replayed();
    assert_eq!(names(&replayed, dir).len(), 0);
    assert_eq!(replayed.attributes(file).map_err(|error| error.errno()).err(), Some(Errno::NOENT));
}

/// Linux (6.18) makes an xattr longer in its leaf when it replays a log, and dies where that is full. What becomes shorter, or is new, is logged.
#[test]
fn an_xattr_that_has_become_longer_is_committed() {
    for (value, is_logged) in [(&b"longer value"[..], false), (b"val", true)] {
        let all = Disturbed::new();
        let fs = all.fs();
        let file = touch(fs, Node::ROOT, "file");
        fs.set_xattr(file, b"user.x", b"value", Default::default()).unwrap();
        fs.commit().unwrap();
        fs.set_xattr(file, b"user.x", value, Default::default()).unwrap();
        fs.set_xattr(file, b"user.new", &[7; 300], Default::default()).unwrap();
        fs.sync(file).unwrap();
        let reason = Stats::REFUSALS.iter().position(|name| *name == "xattrs").unwrap();
        assert_eq!(fs.stats().log_refused[reason], u64::from(!is_logged));
        assert_eq!(fs.stats().log_writes, u64::from(is_logged));
        let replayed = all.replayed();
        assert_eq!(replayed.get_xattr(file, b"user.x").unwrap().as_deref(), Some(value));
    }
}

/// What was made durable while it had no name is there when it has one: written, synced, linked, and the directory synced, as programs do
/// with O_TMPFILE. The same of a file that was in the log, lost its name and gets one again.
#[test]
fn what_was_synced_without_a_name_has_its_content_under_one() {
    for (len, was_named) in [(5, false), (5000, false), (50_000, false), (5, true), (50_000, true)]
    {
        let all = Disturbed::new();
        let fs = all.fs();
        let dir = mkdir(fs, Node::ROOT, "dir");
        fs.commit().unwrap();
        let file = match was_named {
            true => touch(fs, dir, "before"),
            false => fs.create_unnamed(dir, &New::file(0o644)).unwrap().node,
        };
        fs.hold(file).unwrap();
        fs.write(file, 0, &vec![b'A'; len]).unwrap();
        fs.set_xattr(file, b"user.x", b"value", Default::default()).unwrap();
        fs.sync(file).unwrap();
        if was_named {
            fs.unlink(dir, b"before").unwrap();
            fs.sync(dir).unwrap();
            assert_eq!(names(&all.replayed(), dir).len(), 0);
        }
        fs.link(file, dir, b"name").unwrap();
        fs.write(file, len as u64 - 1, b"B").unwrap();
        fs.sync(dir).unwrap();
        assert_eq!(fs.stats().log_refused.iter().sum::<u64>(), 0);
        let replayed = all.replayed();
        let mut content = vec![0; len + 1];
        assert_eq!(replayed.read(file, 0, &mut content).unwrap(), len);
        assert!(content[..len - 1].iter().all(|byte| *byte == b'A'));
        assert_eq!(names(&replayed, dir), ["name"]);
        assert_eq!(replayed.get_xattr(file, b"user.x").unwrap().as_deref(), Some(&b"value"[..]));
    }
}

/// Two wait with the same file, and it changes while the log takes what they wait for: the second time it is said what has changed since.
#[test]
fn two_wait_with_one_file() {
    let all = Disturbed::new();
    let fs = all.fs();
    let (file, other) = (touch(fs, Node::ROOT, "file"), touch(fs, Node::ROOT, "other"));
    fs.commit().unwrap();
    for round in 1..3u8 {
        fs.write(file, 0, &[round; 50_000]).unwrap();
        fs.write(file, 1 << 20, &[round; 50_000]).unwrap();
        fs.write(other, 0, &[round; 9]).unwrap();
        std::thread::scope(|scope| {
            let (told, both) = std::sync::mpsc::channel();
            all.at("a log takes one that waits", move |fs| {
                fs.write(file, 1 << 20, b"more").unwrap();
            });
            all.at("a log takes one that waits", |_| ());
            // Both wait once the log of the other file is being written.
            let cell = all.fs.clone();
            all.at("a log can be written", move |_| {
                for _ in 0..2 {
                    let (cell, told) = (cell.clone(), told.clone());
                    std::thread::spawn(move || told.send(cell.get().unwrap().sync(file)));
                }
                let log = &cell.get().unwrap().handle.inner.log;
                while log.waiting() < 2 {
                    std::thread::yield_now();
                }
            });
            all.at("a log takes one that waits", |_| ());
            scope.spawn(|| fs.sync(other).unwrap());
            assert!(both.iter().take(2).all(|synced| synced.is_ok()));
        });
        let replayed = all.replayed();
        for (at, from) in [(0, 0), (1 << 20, 4)] {
            let mut have = vec![0; 50_000];
            replayed.read(file, at, &mut have).unwrap();
            assert!(have[from..].iter().all(|byte| *byte == round), "{round} at {at}");
        }
    }
}

/// What the log says of a file is that it exists, and the last commit has space reserved behind its end, which replay would cut off.
#[test]
fn space_behind_the_end_stays() {
    let all = Disturbed::new();
    let (fs, top) = (all.fs(), Node::ROOT);
    let file = touch(fs, top, "reserved");
    fs.write(file, 0, &[1; 9000]).unwrap();
    fs.fallocate(file, Allocate::Reserve { keep_size: true }, 0, 1 << 20).unwrap();
    fs.commit().unwrap();
    let end = |fs: &Filesystem| {
        let extents = fs.fiemap_committed(file, 0..u64::MAX).unwrap();
        extents.map(|extent| extent.unwrap()).map(|it| it.logical + it.length).max()
    };
    assert_eq!(end(fs), Some(1 << 20));
    fs.rename(top, b"reserved", top, b"moved", Rename::Replace).unwrap();
    let new = touch(fs, top, "reserved");
    fs.sync(new).unwrap();
    let replayed = all.replayed();
    assert_eq!(names(&replayed, top), ["moved", "reserved"]);
    assert_eq!(end(&replayed), Some(1 << 20));
}

/// What was reserved in the last commit is written to, and with data and metadata in the same block groups Linux does not take that from a log.
#[test]
fn what_the_last_commit_has_is_not_in_the_log_of_mixed_groups() {
    for mixed in [false, true] {
        let device = Arc::new(MemoryDevice::new(256 << 20));
        let options = buttress_mkfs::Options { mixed, ..Default::default() };
        buttress_mkfs::make(&*device, &options, &mut Environment::seeded(1)).unwrap();
        let all = Disturbed::on(device);
        let fs = all.fs();
        let (file, new) = (touch(fs, Node::ROOT, "file"), touch(fs, Node::ROOT, "new"));
        fs.fallocate(file, Allocate::Reserve { keep_size: false }, 0, 1 << 20).unwrap();
        fs.commit().unwrap();
        fs.write(new, 0, &[2; 9000]).unwrap();
        fs.sync(new).unwrap();
        assert_eq!(fs.stats().log_writes, 1);
        fs.write(file, 8192, &[1; 8192]).unwrap();
        fs.sync(file).unwrap();
        assert_eq!(fs.stats().log_writes, if mixed { 1 } else { 2 });
        let replayed = all.replayed();
        let mut found = [0; 8192];
        replayed.read(file, 8192, &mut found).unwrap();
        assert_eq!(found, [1; 8192]);
    }
}

/// An operation ends in a panic with half of a rename done. No log says so.
#[test]
fn nothing_is_logged_after_a_panic() {
    let all = Disturbed::new();
    let fs = all.fs();
    let (from, to) = (mkdir(fs, Node::ROOT, "from"), mkdir(fs, Node::ROOT, "to"));
    touch(fs, from, "file");
    fs.commit().unwrap();
    let new = touch(fs, to, "new");
    all.at("nothing at the source", |_| panic!("planned"));
    all.at("a log has its inodes", move |fs| {
        let half = || fs.rename(from, b"file", to, b"file", Rename::Replace);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(half)).is_err());
    });
    let synced = fs.sync(new);
    assert!(synced.is_err());
    assert_eq!(fs.stats().log_writes, 0);
    assert_eq!(names(&all.replayed(), to).len(), 0);
}

/// Data and metadata share chunks, and somebody's data take a new one while the blocks of the log are placed.
#[test]
fn no_log_lies_in_a_chunk_that_is_new() {
    let device = Arc::new(MemoryDevice::new(512 << 20));
    let mixed = buttress_mkfs::Options { mixed: true, ..Default::default() };
    buttress_mkfs::make(&*device, &mixed, &mut Environment::seeded(1)).unwrap();
    let all = Disturbed::on(device);
    let fs = all.fs();
    let (file, other) = (touch(fs, Node::ROOT, "file"), touch(fs, Node::ROOT, "other"));
    fs.commit().unwrap();
    fs.write(file, 0, b"something").unwrap();
    all.at("a log can be written", move |fs| {
        (0..200).for_each(|at| _ = fs.write(other, at << 20, &[7; 1 << 20]).unwrap());
    });
    fs.sync(file).unwrap();
    assert_eq!((fs.stats().log_writes, fs.stats().commits), (0, 2), "{:?}", fs.stats().log_refused);
    all.replayed();
}

/// A device that forgets what it has not made durable when a barrier fails, and shows it all the same: what a file does on Linux.
#[derive(Debug)]
struct Forgetful {
    shown: MemoryDevice,
    durable: MemoryDevice,
    pending: Mutex<Vec<(u64, Vec<u8>)>>,
    /// Barriers before the one that fails.
    barriers: Mutex<Option<u64>>,
}

impl BlockDevice for Forgetful {
    fn name(&self) -> &str {
        self.shown.name()
    }

    fn size(&self) -> u64 {
        self.shown.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.shown.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.pending.lock().push((offset, data.to_vec()));
        self.shown.write_at(offset, data)
    }

    fn barrier(&self) -> Result<(), DeviceError> {
        let pending = std::mem::take(&mut *self.pending.lock());
        let mut barriers = self.barriers.lock();
        let left = barriers.take();
        *barriers = left.and_then(|left| left.checked_sub(1));
        if left == Some(0) {
            let error = std::io::Error::other("planned");
            return Err(DeviceError::io(self.name(), Op::Barrier, 0, 0, error));
        }
        pending.iter().try_for_each(|(at, data)| self.durable.write_at(*at, data))
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// What a failed barrier has lost, the next one does not bring back: nobody may be told that it is durable.
#[test]
fn what_a_failed_barrier_has_lost_is_not_called_durable() {
    for after in 0..2 {
        let device = formatted();
        let device = Arc::new(Forgetful {
            shown: device.snapshot(),
            durable: device.snapshot(),
            pending: Mutex::default(),
            barriers: Mutex::default(),
        });
        let fs = open(device.clone());
        let file = touch(&fs, Node::ROOT, "file");
        fs.commit().unwrap();
        fs.write(file, 0, &[7; 50_000]).unwrap();
        *device.barriers.lock() = Some(after);
        let (first, second, last) = (fs.sync(file), fs.sync(file), fs.commit());
        let done = [first.err(), second.err(), last.err()];
        let told = done.iter().any(Option::is_none);
        assert!(
            done.iter().flatten().all(|error| error.to_string().contains("planned")),
            "{done:?}"
        );
        let fs = open(Arc::new(device.durable.snapshot()));
        let mut have = vec![0; 50_000];
        let len = fs.read(file, 0, &mut have);
        let whole = len.is_ok() && have.iter().all(|byte| *byte == 7);
        assert!(whole || !told, "lost after barrier {after}: {done:?}, {len:?}");
    }
}

/// Each write and each barrier of an fsync fails once, in part or only as it says. Whoever is told that his fsync is done has his data.
#[test]
fn each_write_of_an_fsync_may_fail() {
    use buttress_device::testing::Effect;
    for (op, effect) in [
        (Op::Write, Effect::Nothing),
        (Op::Write, Effect::Half),
        (Op::Write, Effect::Whole),
        (Op::Read, Effect::Nothing),
        (Op::Barrier, Effect::Nothing),
    ] {
        for after in 0..40 {
            let memory = formatted();
            let device = Arc::new(FaultyDevice::new(memory.clone()));
            let fs = open(device.clone());
            let file = touch(&fs, Node::ROOT, "file");
            fs.commit().unwrap();
            for round in 1..4u8 {
                if round == 2 {
                    let fault =
                        OperationFault { op: Some(op), after, effect, ..Default::default() };
                    device.fail_operation(fault);
                }
                let content = vec![round; 30_000];
                let new = touch(&fs, Node::ROOT, &format!("new{round}"));
                let written = fs.write(file, 0, &content).and_then(|_| fs.write(new, 0, &content));
                let synced = [fs.sync(file), fs.sync(new)];
                if written.is_err() || synced.iter().any(Result::is_err) {
                    break;
                }
                let fs = open(Arc::new(memory.snapshot()));
                for node in [file, new] {
                    let mut have = vec![0; 30_000];
                    fs.read(node, 0, &mut have).unwrap();
                    assert!(have == content, "{op:?} {effect:?} {after} {round}");
                }
            }
            let failed = device.failed();
            drop(fs);
            drop(open(Arc::new(memory.snapshot())));
            if failed == 0 {
                break;
            }
        }
    }
}

/// A file that is in the log loses its last name, which the next version says, and gets one again: all of it is logged anew.
#[test]
fn a_file_without_names_gets_one_again() {
    for other_first in [false, true] {
        let all = Disturbed::new();
        let fs = all.fs();
        let (dir, other, file) = logged_file(fs);
        fs.hold(file).unwrap();
        fs.unlink(dir, b"file").unwrap();
        fs.write(other, 0, b"something").unwrap();
        fs.sync(other).unwrap();
        fs.link(file, dir, b"again").unwrap();
        if other_first {
            fs.write(other, 0, b"else").unwrap();
            fs.sync(other).unwrap();
            drop(all.replayed());
        }
        fs.sync(file).unwrap();
        let replayed = all.replayed();
        let mut have = vec![0; 9000];
        assert_eq!(replayed.read(file, 0, &mut have).unwrap(), 9000);
        assert!(have.iter().all(|byte| *byte == 7), "{other_first}: {:?}", fs.stats().log_refused);
    }
}

/// A file without names that is in the log is synced, which takes it out, and gets a name again while the log is made.
#[test]
fn what_leaves_the_log_and_is_named_again_meanwhile() {
    let all = Disturbed::new();
    let fs = all.fs();
    let (dir, other, file) = logged_file(fs);
    fs.hold(file).unwrap();
    fs.unlink(dir, b"file").unwrap();
    all.at("a log has its inodes", move |fs| {
        fs.link(file, dir, b"again").unwrap();
    });
    fs.sync(file).unwrap();
    let replayed = all.replayed();
    assert!(names(&replayed, dir).len() <= 1);
    fs.write(other, 0, b"something").unwrap();
    fs.sync(file).unwrap();
    let replayed = all.replayed();
    let mut have = vec![0; 9000];
    assert_eq!(replayed.read(file, 0, &mut have).unwrap(), 9000);
    assert!(have.iter().all(|byte| *byte == 7));
}
