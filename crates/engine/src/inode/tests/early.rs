//! Leaves that a commit writes while it still makes others: nothing is lost of those that take their places meanwhile.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use buttress_device::DeviceError;
use buttress_ondisk::build::LeafBuilder;
use buttress_ondisk::superblock::Superblock;
use buttress_ondisk::{Expect, Key, kind};
use parking_lot::Mutex;

use super::*;
use crate::txn::{Commit, Participant, TreeCommit, Upkeep, commit};

/// Changes a tree by `merge`, and nothing else.
struct Merging<F>(F);

impl<F: Fn(&Commit<'_>) -> Result<()> + Sync> Participant for Merging<F> {
    fn is_dirty(&self, _upkeep: Upkeep) -> bool {
        true
    }
    fn freeze(&self, _transid: u64) {}
    fn prepare(&self, _core: &Core, _transid: u64) -> Result<()> {
        Ok(())
    }
    fn merge(&self, commit: &Commit<'_>) -> Result<()> {
        (self.0)(commit)
    }
    fn superblock(&self, _superblock: &mut Superblock) {}
    fn published(&self) {}
    fn settled(&self, _core: &Core) {}
}

/// A leaf with one item that says `what`.
fn leaf(stamp: &Stamp, what: u64) -> TreeBlock {
    let mut leaf = LeafBuilder::new(4096);
    assert!(leaf.push(Key::new(300, kind::TEMPORARY_ITEM, what), &what.to_le_bytes()));
    leaf.finish(stamp)
}

/// Is there on the disk, whatever the cache has.
fn written(core: &Core, bytenr: u64) -> Option<u64> {
    let block = core.volume.read_block(bytenr, &Expect::at(bytenr)).ok()?;
    Some(block.key(0).offset)
}

/// Where a write stops: it says that it has begun, and waits to be told to go on.
type Stop = (Sender<()>, Receiver<()>);

/// A device whose next write can be made to stop.
#[derive(Debug)]
struct Stopping {
    device: MemoryDevice,
    next: Mutex<Option<Stop>>,
}

impl BlockDevice for Stopping {
    fn name(&self) -> &str {
        self.device.name()
    }
    fn size(&self) -> u64 {
        self.device.size()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::result::Result<(), DeviceError> {
        self.device.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> std::result::Result<(), DeviceError> {
        let stop = self.next.lock().take();
        if let Some((begun, go_on)) = stop {
            begun.send(()).unwrap();
            go_on.recv().unwrap();
        }
        self.device.write_at(offset, data)
    }
    fn barrier(&self) -> std::result::Result<(), DeviceError> {
        self.device.barrier()
    }
}

/// Places leaves that say `what`; where.
fn place(tree: &mut TreeCommit<'_, '_>, what: std::ops::Range<u64>) -> BTreeMap<u64, u64> {
    let mut places = BTreeMap::new();
    for what in what {
        let stamp = tree.place(0).unwrap();
        tree.placed(leaf(&stamp, what)).unwrap();
        places.insert(stamp.bytenr, what);
    }
    places
}

#[test]
fn what_takes_the_place_of_a_leaf_that_is_being_written_is_written_after_it() {
    let device = MemoryDevice::new(256 << 20);
    let device = Arc::new(Stopping { device, next: Mutex::default() });
    let core = core_on(device.clone(), 4096);
    let last = Mutex::new(BTreeMap::new());
    let merge = |commit: &Commit<'_>| {
        let mut tree = TreeCommit::new(commit, TREE).merged_once();
        let mut places = place(&mut tree, 0..600);
        let ((begun, has_begun), (go_on, may_go_on)) = (channel(), channel());
        *device.next.lock() = Some((begun, may_go_on));
        std::thread::scope(|scope| {
            scope.spawn(|| commit.write_some().unwrap());
            has_begun.recv_timeout(Duration::from_secs(60)).expect("nothing is written");
            // All of them go; the same addresses serve others.
            for bytenr in places.keys() {
                let (fsid, chunk_tree_uuid) = ([1; 16], [2; 16]);
                let (generation, owner) = (commit.transid(), TREE);
                let stamp =
                    Stamp { fsid, chunk_tree_uuid, bytenr: *bytenr, generation, owner, flags: 1 };
                tree.release(&Arc::new(leaf(&stamp, 0))).unwrap();
            }
            places.append(&mut place(&mut tree, 1000..1300));
            go_on.send(()).unwrap();
        });
        let there = |commit: &Commit<'_>| {
            let (places, core) = (places.iter(), commit.core());
            places.filter(|(at, what)| written(core, **at) == Some(**what)).count()
        };
        let before = there(commit);
        (0..600).for_each(|_| commit.write_some().unwrap());
        assert!(there(commit) > before, "no leaf is written before the end");
        places.append(&mut place(&mut tree, 1300..1600));
        commit.gather(&mut tree.refs, &mut CsumLog::default());
        *last.lock() = places;
        Ok(())
    };
    commit(&core, &Merging(merge), true, Upkeep::None).unwrap();
    for (at, what) in &*last.lock() {
        assert!(*what >= 1000, "the leaf at {at} has not gone");
        assert_eq!(written(&core, *at), Some(*what), "at {at}");
        let block = core.blocks.read(*at, 0, core.txn.committed(), TREE).unwrap();
        assert_eq!(block.key(0).offset, *what, "at {at}, in memory");
    }
}
