//! Limits of quota groups are held: whatever was accepted is committed, and no group has more than it may.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;

use buttress::ondisk::item::QgroupInfo;
use buttress::ondisk::{Key, kind, objectid};
use buttress::{Allocate, Change, Errno, Error, Filesystem, New, NewLimits, Node, Options, Owner};
use buttress_testkit::ops::rng::Rng;
use buttress_testkit::oracle::{btrfs, root_or_skip};

use crate::judge::Image;

const MIB: u64 = 1 << 20;
/// Group 1/1.
const ABOVE: u64 = 1 << 48 | 1;

fn open(image: &Image) -> Filesystem {
    Filesystem::open(image.path(), Options::read_write().background(false)).unwrap()
}

fn most_referenced(bytes: u64) -> NewLimits {
    NewLimits { rfer: Some(Some(bytes)), excl: None }
}

/// Subvolume `work` in group 1/1, which may refer to so many bytes.
fn limited(image: &Image, bytes: u64) -> (Filesystem, Node) {
    let fs = open(image);
    fs.count_quotas(|_| true).unwrap();
    fs.create_qgroup(ABOVE).unwrap();
    let work = fs.create_subvolume_in(Node::ROOT, b"work", Owner::default(), &[ABOVE]).unwrap();
    fs.limit_qgroup(ABOVE, most_referenced(bytes)).unwrap();
    (fs, Node::top(work))
}

/// What each group refers to and has for itself, by the last commit.
fn usage(fs: &Filesystem) -> BTreeMap<u64, (u64, u64)> {
    let mut usage = BTreeMap::new();
    fs.commit().unwrap();
    fs.search(objectid::QUOTA_TREE, Key::MIN, Key::MAX, |key, _, data| {
        if key.kind == kind::QGROUP_INFO {
            let info = QgroupInfo::of(data).unwrap();
            usage.insert(key.offset, (info.rfer.get(), info.excl.get()));
        }
        true
    })
    .unwrap();
    usage
}

fn is_over<T>(answer: &buttress::Result<T>) -> bool {
    matches!(answer, Err(Error::User(Errno::DQUOT)))
}

/// Fills a file until the limit says no; how many bytes went in.
fn fill(fs: &Filesystem, file: Node, piece: usize) -> u64 {
    let mut at = 0;
    loop {
        match fs.write(file, at, &vec![at as u8; piece]) {
            Ok(len) => at += len as u64,
            answer => {
                assert!(is_over(&answer), "{answer:?}");
                return at;
            }
        }
    }
}

fn file(fs: &Filesystem, dir: Node, name: &[u8]) -> Node {
    fs.create(dir, name, &New::file(0o600)).unwrap().node
}

#[test]
fn a_limit_is_reached_and_not_gone_beyond() {
    for piece in [3000, 64 << 10, MIB as usize] {
        let image = Image::by_us(512 << 20);
        let (fs, work) = limited(&image, 8 * MIB);
        let one = file(&fs, work, b"one");
        let written = fill(&fs, one, piece);
        let has = usage(&fs)[&ABOVE].0;
        assert!(has <= 8 * MIB, "{has}");
        // A write charges a few blocks besides its data.
        assert!(has > 8 * MIB - piece as u64 - 5 * 16384, "{has}, {written}");
        // Other subvolumes have no limit, and what goes makes room.
        fill_some(&fs, file(&fs, Node::ROOT, b"two"), 12 * MIB);
        assert!(is_over(&fs.create_all(work)));
        fs.unlink(work, b"one").unwrap();
        fill_some(&fs, file(&fs, work, b"four"), 7 * MIB);
        assert!(usage(&fs)[&ABOVE].0 <= 8 * MIB);
        fs.close().unwrap();
        image.check();
    }
}

/// Writes so much, all of which has to go in.
#[track_caller]
fn fill_some(fs: &Filesystem, file: Node, bytes: u64) {
    for at in (0..bytes).step_by(MIB as usize) {
        assert_eq!(fs.write(file, at, &[3; MIB as usize]).unwrap(), MIB as usize);
    }
}

trait Short {
    /// Makes files until there is no room for one.
    fn create_all(&self, dir: Node) -> buttress::Result<()>;
}

impl Short for Filesystem {
    fn create_all(&self, dir: Node) -> buttress::Result<()> {
        (0..100_000).try_for_each(|number| {
            self.create(dir, format!("empty{number}").as_bytes(), &New::file(0o600)).map(drop)
        })
    }
}

/// Who cuts a file within a sector writes that anew, and is refused where there is no room for it, as on Linux; who cuts it off is let in.
#[test]
fn parts_of_sectors_are_held() {
    let image = Image::by_us(512 << 20);
    let (fs, work) = limited(&image, 8 * MIB);
    let files: Vec<Node> = (0..40).map(|at| file(&fs, work, format!("{at}").as_bytes())).collect();
    for file in &files {
        assert_eq!(fs.write(*file, 0, &[5; 128 << 10]).unwrap(), 128 << 10);
    }
    let limit = usage(&fs)[&ABOVE].0 + 40_000;
    fs.limit_qgroup(ABOVE, most_referenced(limit)).unwrap();
    let cut = |size| Change { size: Some(size), ..Change::default() };
    let answers: Vec<_> =
        files.iter().map(|file| fs.set_attributes(*file, &cut(100_000)).map(drop)).collect();
    assert!(answers.iter().all(|answer| answer.is_ok() || is_over(answer)), "{answers:?}");
    assert!(answers.iter().any(is_over) && answers.iter().any(|answer| answer.is_ok()));
    let has = usage(&fs)[&ABOVE].0;
    assert!(has <= limit, "{has} of {limit}");
    let punched = files.iter().map(|file| fs.fallocate(*file, Allocate::PunchHole, 100, 50_000));
    assert!(punched.collect::<Vec<_>>().iter().any(is_over));
    for file in files {
        fs.set_attributes(file, &cut(0)).unwrap();
    }
    fs.close().unwrap();
    image.check();
}

/// Each way to get more: space for later, content of other subvolumes, whole snapshots.
#[test]
fn every_way_to_more_is_held() {
    let image = Image::by_us(512 << 20);
    let (fs, work) = limited(&image, 8 * MIB);
    let other = fs.create_subvolume(Node::ROOT, b"other", Owner::default()).unwrap();
    let large = file(&fs, Node::top(other), b"large");
    fill_some(&fs, large, 12 * MIB);
    let one = file(&fs, work, b"one");
    let reserve = Allocate::Reserve { keep_size: false };
    assert!(is_over(&fs.fallocate(one, reserve, 0, 9 * MIB)));
    fs.fallocate(one, reserve, 0, 5 * MIB).unwrap();
    // What is there already is not charged again.
    fs.fallocate(one, reserve, 0, 5 * MIB).unwrap();
    assert!(is_over(&fs.clone_range(large, 0, 12 * MIB, file(&fs, work, b"two"), 0)));
    // One that is the subvolume's already costs nothing.
    fs.clone_range(one, 0, 5 * MIB, file(&fs, work, b"three"), 0).unwrap();
    assert!(is_over(&fs.snapshot_in(other, Node::ROOT, b"snapshot", false, &[ABOVE])));
    assert!(fs.lookup(Node::ROOT, b"snapshot").unwrap().is_none());
    fs.snapshot_in(work.subvolume, Node::ROOT, b"again", false, &[ABOVE]).unwrap();
    assert!(usage(&fs)[&ABOVE].0 <= 8 * MIB);
    fs.close().unwrap();
    image.check();
}

/// A snapshot has its source's limits, as on Linux; and a new subvolume's group is there as soon as the subvolume is.
#[test]
fn a_snapshot_is_limited_as_its_source() {
    let image = Image::by_us(512 << 20);
    let fs = open(&image);
    fs.count_quotas(|_| true).unwrap();
    let work = fs.create_subvolume(Node::ROOT, b"work", Owner::default()).unwrap();
    fs.limit_qgroup(work, most_referenced(8 * MIB)).unwrap();
    let snapshot = fs.snapshot(work, Node::ROOT, b"snapshot", false).unwrap();
    for id in [work, snapshot] {
        let written = fill(&fs, file(&fs, Node::top(id), b"file"), MIB as usize);
        assert_eq!(written, 7 * MIB);
    }
    fs.close().unwrap();
    image.check();
}

/// What is deleted and open counts until it is closed.
#[test]
fn a_deleted_file_that_is_open_counts() {
    let image = Image::by_us(512 << 20);
    let (fs, work) = limited(&image, 8 * MIB);
    let one = file(&fs, work, b"one");
    fill_some(&fs, one, 7 * MIB);
    fs.hold(one).unwrap();
    fs.unlink(work, b"one").unwrap();
    let two = file(&fs, work, b"two");
    assert!(is_over(&fs.write(two, 0, &[2; 2 * MIB as usize])));
    fs.release(one).unwrap();
    fs.write(two, 0, &[2; 2 * MIB as usize]).unwrap();
    fs.close().unwrap();
    image.check();
}

/// Exclusive bytes: a snapshot makes room, and overwriting takes it.
#[test]
fn what_is_exclusive_is_limited() {
    let image = Image::by_us(512 << 20);
    let fs = open(&image);
    fs.count_quotas(|_| true).unwrap();
    let work = fs.create_subvolume(Node::ROOT, b"work", Owner::default()).unwrap();
    fs.limit_qgroup(work, NewLimits { rfer: None, excl: Some(Some(8 * MIB)) }).unwrap();
    let one = file(&fs, Node::top(work), b"one");
    fill_some(&fs, one, 7 * MIB);
    fs.snapshot(work, Node::ROOT, b"snapshot", true).unwrap();
    fill_some(&fs, file(&fs, Node::top(work), b"two"), 6 * MIB);
    let answer = (0..7).try_for_each(|at| fs.write(one, at * MIB, &[9; MIB as usize]).map(drop));
    assert!(is_over(&answer));
    assert!(usage(&fs)[&work].1 <= 8 * MIB);
    fs.close().unwrap();
    image.check();
}

/// Four threads write what they can, beside snapshots and commits: the limit holds at each commit.
#[test]
fn a_limit_holds_against_many() {
    let image = Image::by_us(1 << 30);
    let (fs, work) = limited(&image, 24 * MIB);
    let (fs, done) = (&fs, std::sync::atomic::AtomicUsize::new(0));
    let done = &done;
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for number in 0..400 {
                    let name = format!("{thread}-{}", rng.below(30));
                    let made = fs.create(work, name.as_bytes(), &New::file(0o600));
                    match made {
                        Ok(made) => {
                            let bytes = vec![number as u8; rng.below(900_000) as usize];
                            let answer = fs.write(made.node, 0, &bytes);
                            assert!(answer.is_ok() || is_over(&answer), "{answer:?}");
                        }
                        Err(error) if error.errno() == Errno::EXIST => {
                            fs.unlink(work, name.as_bytes()).unwrap();
                        }
                        answer => assert!(is_over(&answer), "{answer:?}"),
                    }
                }
                done.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            });
        }
        while done.load(std::sync::atomic::Ordering::SeqCst) < 4 {
            let has = usage(fs)[&ABOVE].0;
            assert!(has <= 24 * MIB, "{has}");
        }
    });
    fs.clone().close().unwrap();
    image.check();
}

/// Linux goes on with what we have limited, and we with what it has: both say no at the same size, but for what each charges for metadata.
#[test]
fn linux_holds_the_same_limits() {
    if !root_or_skip() {
        return;
    }
    let image = Image::by_us(512 << 20);
    let (fs, work) = limited(&image, 8 * MIB);
    let ours = fill(&fs, file(&fs, work, b"ours"), MIB as usize);
    fs.close().unwrap();
    let mut theirs = 0;
    image.mounted(|top| {
        let shown = btrfs(&["qgroup", "show", "-r", "--raw", top.to_str().unwrap()]).unwrap();
        assert!(shown.contains(&(8 * MIB).to_string()), "{shown}");
        let more = std::fs::write(top.join("work/more"), vec![1; 2 * MIB as usize]);
        assert_eq!(more.unwrap_err().raw_os_error(), Some(Errno::DQUOT.raw_os_error()));
        std::fs::remove_file(top.join("work/more")).unwrap();
        std::fs::remove_file(top.join("work/ours")).unwrap();
        btrfs(&["filesystem", "sync", top.to_str().unwrap()]).unwrap();
        let file = std::fs::File::create(top.join("work/theirs")).unwrap();
        while file.write_all_at(&vec![7; MIB as usize], theirs).is_ok() {
            file.sync_all().unwrap();
            theirs += MIB;
        }
    });
    assert_eq!(ours, theirs);
    let fs = open(&image);
    let work = fs.lookup(Node::ROOT, b"work").unwrap().unwrap().node;
    let again = fs.create(work, b"again", &New::file(0o600));
    assert!(is_over(&again.and_then(|made| fs.write(made.node, 0, &[1; 2 * MIB as usize]))));
    fs.disable_quotas().unwrap();
    fill_some(&fs, file(&fs, work, b"free"), 12 * MIB);
    fs.close().unwrap();
    image.check();
    image.mounted(|top| {
        assert!(btrfs(&["qgroup", "show", top.to_str().unwrap()]).is_err());
    });
}

/// Groups that are wrong hold limits, too: who is refused has them counted.
#[test]
fn limits_hold_where_numbers_are_wrong() {
    let image = Image::by_us(512 << 20);
    let (fs, work) = limited(&image, 8 * MIB);
    let one = file(&fs, work, b"one");
    fill_some(&fs, one, 4 * MIB);
    fs.commit().unwrap();
    let shared = file(&fs, Node::ROOT, b"shared");
    fs.clone_range(one, 0, MIB, shared, 0).unwrap();
    fs.create_qgroup(2 << 48).unwrap();
    fs.create_qgroup(2 << 48 | 1).unwrap();
    fs.assign_qgroup(5, 2 << 48).unwrap();
    // What both have nobody knows.
    assert!(!fs.assign_qgroup(work.subvolume, 2 << 48).unwrap());
    assert!(fs.has_wrong_quotas());
    let written = fill(&fs, file(&fs, work, b"two"), MIB as usize);
    assert_eq!(written, 3 * MIB);
    assert!(!fs.has_wrong_quotas());
    let usage = usage(&fs);
    assert!(usage[&ABOVE].0 <= 8 * MIB);
    assert!(usage[&(2 << 48)].0 > 7 * MIB);
    fs.close().unwrap();
    image.check();
}
