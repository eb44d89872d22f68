//! The last transaction is durable, and its committer drops the layers that the trees have now: who waited for it goes on, and logs of
//! the next transaction are written.

use std::time::Duration;

use buttress_device::Op;
use buttress_device::testing::{FaultyDevice, OperationFault};
use rustix::io::Errno as Os;

use super::*;
use crate::fs::Filesystem;
use crate::space::Need as SpaceNeed;
use crate::subvol::Place;
use crate::txn::Upkeep;

/// The step at which a commit lets others go on.
pub(super) const STEP: &str = "logs can be written";

/// Another thread makes `node` durable; answers when it is done, or needs a commit, which begins only after this one.
pub(super) fn sync_beside(fs: &Filesystem, node: Node) -> std::thread::JoinHandle<()> {
    let refused = |fs: &Filesystem| fs.stats().log_refused.iter().sum::<u64>();
    let (other, before) = (fs.clone(), refused(fs));
    let thread = std::thread::spawn(move || other.sync(node).unwrap());
    while !thread.is_finished() && refused(fs) == before {
        std::thread::yield_now();
    }
    thread
}

#[test]
fn a_log_is_written_while_layers_are_dropped() {
    let all = Disturbed::new();
    let fs = all.fs();
    let file = touch(fs, Node::ROOT, "file");
    let other = touch(fs, Node::ROOT, "other");
    fs.write(file, 0, &[1; 9000]).unwrap();
    fs.set_xattr(file, b"user.old", b"value", Default::default()).unwrap();
    let next = Arc::new(Mutex::new(None));
    let of_log = next.clone();
    all.at("layers are dropped", move |fs| assert_eq!(fs.stats().log_writes, 1));
    all.at(STEP, move |fs| {
        fs.sync(file).unwrap();
        *of_log.lock() = Some(fs.info().generation);
    });
    all.at("prepare", move |fs| {
        fs.write(file, 4096, &[2; 100]).unwrap();
        fs.rename(Node::ROOT, b"file", Node::ROOT, b"renamed", Rename::Replace).unwrap();
        fs.unlink(Node::ROOT, b"other").unwrap();
    });
    let transid = fs.commit().unwrap();
    assert_eq!(*next.lock(), Some(transid));
    let found = all.replayed();
    assert_eq!(names(&found, Node::ROOT), ["other", "renamed"]);
    assert_eq!(found.get_xattr(file, b"user.old").unwrap().as_deref(), Some(&b"value"[..]));
    let mut data = [0; 9000];
    assert_eq!(found.read(file, 0, &mut data).unwrap(), 9000);
    assert!((0..9000).all(|at| data[at] == if (4096..4196).contains(&at) { 2 } else { 1 }));
    assert!(found.attributes(other).is_ok());
    // The commit after has it, too, and what was deleted stays so.
    fs.commit().unwrap();
    let found = all.replayed();
    assert_eq!(names(&found, Node::ROOT), ["renamed"]);
    assert_eq!(fs.stats().log_refused.iter().sum::<u64>(), 0);
}

#[test]
fn who_waits_for_a_transaction_goes_on_when_it_is_durable() {
    let all = Disturbed::new();
    let fs = all.fs();
    let file = touch(fs, Node::ROOT, "file");
    let waiting = Arc::new(Mutex::new(None));
    let of_thread = waiting.clone();
    let durable = waiting.clone();
    all.at("layers are dropped", move |_| assert!(durable.lock().is_none()));
    all.at(STEP, move |_| {
        of_thread.lock().take().map(std::thread::JoinHandle::join).unwrap().unwrap()
    });
    all.at("write", move |fs| {
        let other = fs.clone();
        *waiting.lock() = Some(std::thread::spawn(move || other.sync(file).unwrap()));
        while fs.inner().log.waiting() == 0 {
            std::thread::yield_now();
        }
    });
    fs.commit().unwrap();
    assert_eq!(fs.stats().log_writes, 0);
    assert_eq!(names(&all.replayed(), Node::ROOT), ["file"]);
}

/// A commit for space keeps everybody out for a moment at its end, but not for as long as somebody's log takes to be written.
#[test]
fn operations_go_on_while_a_log_is_written_beside_a_commit_for_space() {
    let all = Disturbed::new();
    let fs = all.fs();
    let (file, other) = (touch(fs, Node::ROOT, "file"), touch(fs, Node::ROOT, "other"));
    fs.commit().unwrap();
    let (written, is_written) = std::sync::mpsc::channel();
    all.at("a log is written", move |fs| {
        written.send(()).unwrap();
        // The commit comes to where it keeps everybody out meanwhile, if it does not wait for this.
        std::thread::sleep(Duration::from_millis(100));
        let fs = fs.clone();
        std::thread::spawn(move || fs.attributes(file).unwrap()).join().unwrap();
    });
    let (logging, logs) = std::sync::mpsc::channel();
    let cell = all.fs.clone();
    all.at(STEP, move |_| {
        let sync = move || cell.get().unwrap().sync(other).unwrap();
        logging.send(std::thread::spawn(sync)).unwrap();
        is_written.recv().unwrap();
    });
    all.at("prepare", move |fs| _ = fs.write(other, 0, b"something").unwrap());
    fs.write(file, 0, b"more").unwrap();
    fs.inner().commit_for_space(Upkeep::Much).unwrap();
    logs.recv().unwrap().join().unwrap();
    assert_eq!(fs.stats().log_writes, 1, "{:?}", fs.stats().log_refused);
}

/// The disk that holds the image is full for a moment, and the filesystem has room for the file once more and no more than that: what
/// could not be written leaves its room.
#[test]
fn data_that_could_not_be_written_leave_their_room() {
    const LEN: u64 = 2 << 20;
    let memory = Arc::new(MemoryDevice::new(128 << 20));
    buttress_mkfs::make(&*memory, &Default::default(), &mut Environment::seeded(1)).unwrap();
    let device = Arc::new(FaultyDevice::new(memory));
    let options = options().full_disk_patience(Duration::from_secs(10));
    let fs = Filesystem::open_device(device.clone(), options).unwrap();
    let (filler, mut at) = (touch(&fs, Node::ROOT, "filler"), 0);
    while let Ok(len @ 1..) = fs.write(filler, at, &vec![1; 1 << 20]) {
        at += len as u64;
    }
    fs.commit().unwrap();
    let size = Some(at - 2 * LEN - (1 << 20));
    fs.set_attributes(filler, &crate::fs::Change { size, ..Default::default() }).unwrap();
    (0..3).for_each(|_| _ = fs.inner().commit_for_space(Upkeep::Much).unwrap());
    let file = touch(&fs, Node::ROOT, "file");
    fs.commit().unwrap();
    for part in 0..LEN / 4096 {
        fs.write(file, part * 4096, &[7; 4096]).unwrap();
    }
    for after in 0..2 {
        let (op, errno) = (Some(Op::Write), Os::NOSPC);
        device.fail_operation(OperationFault { op, after, errno, ..Default::default() });
    }
    fs.sync(file).unwrap();
    assert_eq!(device.failed(), 2);
    assert_eq!(fs.attributes(file).unwrap().size, LEN);
}

/// Somebody uses a snapshot between the commit that makes it and the one that knows its name: no log goes into a tree that the next open
/// would drop.
#[test]
fn what_is_durable_in_a_snapshot_that_just_got_its_name() {
    let all = Disturbed::new();
    let fs = all.fs();
    let id = fs.create_subvolume(Node::ROOT, b"source", Default::default()).unwrap();
    touch(fs, Node::top(id), "file");
    fs.commit().unwrap();
    let inner = fs.inner();
    let need = inner.core.space.snapshot_need();
    let new = inner.change(need, |op| inner.forest.request_snapshot(op, id, false)).unwrap();
    inner.commit().unwrap();
    inner.forest.unnamed_snapshot(&inner.core, new).unwrap();
    let need = SpaceNeed { private: 8, leaves: 4, bytes: 2000, ..Default::default() };
    inner
        .change_at(Node::ROOT, need, |op, subvolume, dir| {
            let place = Place { subvolume, dir, name: b"snapshot" };
            inner.forest.name_snapshot(op, new, place)
        })
        .unwrap();
    let file = fs.lookup(Node::top(new), b"file").unwrap().unwrap().node;
    fs.write(file, 0, b"kept").unwrap();
    fs.sync(file).unwrap();
    let found = all.replayed();
    assert_eq!(names(&found, Node::ROOT), ["snapshot", "source"]);
    assert_eq!(found.attributes(file).unwrap().size, 4);
}
