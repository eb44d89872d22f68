//! The last transaction is durable, and its committer drops the layers that the trees have now: who waited for it goes on, and logs of
//! the next transaction are written.

use super::*;
use crate::fs::Filesystem;

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
