//! A device becomes smaller and larger, and block groups are chosen to be balanced.

use std::ops::ControlFlow;

use buttress::ondisk::item::chunk_type;
use buttress::{
    Balance, BalanceFilter, BalanceStop, Errno, Filesystem, GroupInfo, New, Node, Options,
};

use buttress_testkit::ops::rng::Rng;

use crate::judge::Image;
use crate::relocate::{contents, fill, judge};

const MIB: u64 = 1 << 20;

/// The file is cut off where the filesystem ends by now.
fn cut(image: &Image) {
    let fs = image.open_read_only();
    let size = fs.device_size();
    drop(fs);
    let file = std::fs::File::options().write(true).open(image.path()).unwrap();
    file.set_len(size).unwrap();
}

#[test]
fn a_device_shrinks_and_grows() {
    let image = Image::by_us(2 << 30);
    let fs = image.open();
    fill(&fs, 3);
    // What lies behind the new end.
    let large = fs.create(Node::ROOT, b"large", &New::file(0o600)).unwrap().node;
    (0..300).for_each(|number| _ = fs.write(large, number * MIB, &[number as u8; MIB as usize]));
    fs.commit().unwrap();
    let expected = contents(&fs);
    for size in [1400 * MIB + 12_345, 1 << 30, fs.device_size_min()] {
        fs.resize(size, |_| true).unwrap();
        assert_eq!(fs.device_size(), size / 4096 * 4096);
        assert_eq!(fs.info().devices[0].total, size / 4096 * 4096);
        assert_eq!(contents(&fs), expected);
    }
    let least = fs.device_size_min();
    assert!(least < 1200 * MIB, "{least}");
    assert_eq!(fs.resize(100 * MIB, |_| true).unwrap_err().errno(), Errno::INVAL);
    assert_eq!(fs.resize(300 * MIB, |_| true).unwrap_err().errno(), Errno::NOSPC);
    assert_eq!(fs.resize(4 << 30, |_| true).unwrap_err().errno(), Errno::FBIG);
    fs.resize(least, |_| true).unwrap();
    fs.close().unwrap();
    cut(&image);
    judge(&image, &expected);
    let file = std::fs::File::options().write(true).open(image.path()).unwrap();
    file.set_len(3 << 30).unwrap();
    let fs = image.open();
    fs.resize(3 << 30, |_| true).unwrap();
    // It can be filled.
    let more = fs.create(Node::ROOT, b"more", &New::file(0o600)).unwrap().node;
    (0..1500).for_each(|number| _ = fs.write(more, number * MIB, &[3; MIB as usize]).unwrap());
    let expected = contents(&fs);
    fs.close().unwrap();
    judge(&image, &expected);
}

/// What is full to the brim where it lies loses what nobody has behind that.
#[test]
fn the_least_is_no_more_than_what_needs_nothing_moved() {
    let image = Image::by_us(1 << 30);
    let fs = image.open();
    let large = fs.create(Node::ROOT, b"large", &New::file(0o600)).unwrap().node;
    (0..700).for_each(|number| _ = fs.write(large, number * MIB, &[number as u8; MIB as usize]));
    fs.commit().unwrap();
    let expected = contents(&fs);
    let least = fs.device_size_min();
    assert!(least < 900 * MIB, "{least}");
    assert_eq!(fs.resize(least - 16 * MIB, |_| true).unwrap_err().errno(), Errno::NOSPC);
    fs.resize(least, |_| true).unwrap();
    assert!(fs.device_size() == least && fs.device_size_min() <= least);
    fs.create(Node::ROOT, b"another", &New::file(0o600)).unwrap();
    fs.unlink(Node::ROOT, b"another").unwrap();
    fs.close().unwrap();
    cut(&image);
    judge(&image, &expected);
}

/// All of what the device is to keep is in data chunks that are half free, and metadata has little: one of them is emptied first.
#[test]
fn metadata_has_room_before_the_new_end() {
    let image = Image::by_us(4 << 30);
    let fs = image.open();
    let name = |number: u64| format!("file{number}").into_bytes();
    for number in 0..2457 {
        let file = fs.create(Node::ROOT, &name(number), &New::file(0o600)).unwrap().node;
        fs.write(file, 0, &[number as u8; MIB as usize]).unwrap();
    }
    fs.commit().unwrap();
    (0..2457).step_by(2).for_each(|number| _ = fs.unlink(Node::ROOT, &name(number)).unwrap());
    fs.commit().unwrap();
    fs.resize(2 << 30, |_| true).unwrap();
    assert_eq!(fs.device_size(), 2 << 30);
    let expected = contents(&fs);
    fs.close().unwrap();
    cut(&image);
    judge(&image, &expected);
}

/// What is paused goes on, also after the next opening, and what is cancelled does not.
#[test]
fn a_balance_that_is_stopped() {
    let image = Image::by_us(1 << 30);
    let fs = image.open();
    fill(&fs, 5);
    let expected = contents(&fs);
    let balance = Balance { data: Some(BalanceFilter::default()), ..Default::default() };
    for stop in [BalanceStop::Cancel, BalanceStop::Pause] {
        let stopped = fs.balance(&balance, |_| ControlFlow::Break(stop));
        assert_eq!(stopped.unwrap_err().errno(), Errno::INTR);
        let left = fs.unfinished_balance().unwrap();
        assert_eq!(left.is_some(), stop == BalanceStop::Pause);
    }
    let refused = fs.balance(&balance, |_| ControlFlow::Continue(()));
    assert_eq!(refused.unwrap_err().errno(), Errno::INPROGRESS);
    fs.close().unwrap();
    let fs = image.open();
    assert_eq!(fs.unfinished_balance().unwrap(), Some(balance.clone()));
    // As on Linux, the device keeps its size until the balance has ended.
    for size in [fs.device_size() / 4 * 3, fs.device_size()] {
        assert_eq!(fs.resize(size, |_| true).unwrap_err().errno(), Errno::INPROGRESS);
    }
    fs.resume_balance(|_| ControlFlow::Continue(())).unwrap();
    assert_eq!(fs.unfinished_balance().unwrap(), None);
    let none = fs.resume_balance(|_| ControlFlow::Continue(()));
    assert_eq!(none.unwrap_err().errno(), Errno::NOTCONN);
    assert_eq!(fs.cancel_balance().unwrap_err().errno(), Errno::NOTCONN);
    fs.close().unwrap();
    judge(&image, &expected);
}

/// Who stops a resize has a filesystem of the old size.
#[test]
fn a_resize_that_is_stopped_leaves_the_size() {
    let image = Image::by_us(1 << 30);
    let fs = image.open();
    let behind = fs.create(Node::ROOT, b"behind", &New::file(0o600)).unwrap().node;
    (0..500).for_each(|at| _ = fs.write(behind, at * MIB, &[at as u8; MIB as usize]).unwrap());
    fill(&fs, 4);
    let expected = contents(&fs);
    let stopped = fs.resize(600 * MIB, |at| at.moved == 0);
    assert_eq!(stopped.unwrap_err().errno(), Errno::INTR);
    assert_eq!(fs.device_size(), 1 << 30);
    let file = fs.create(Node::ROOT, b"new", &New::file(0o600)).unwrap().node;
    fs.write(file, 0, &[1; 100_000]).unwrap();
    fs.unlink(Node::ROOT, b"new").unwrap();
    fs.close().unwrap();
    judge(&image, &expected);
}

fn balanced(fs: &Filesystem, balance: Balance) -> u64 {
    let done = fs.balance(&balance, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(done.emptied.failed, []);
    done.completed
}

fn profiles(fs: &Filesystem) -> Vec<(u64, u64)> {
    let of = |flags: u64| (flags & chunk_type::TYPE_MASK, flags & chunk_type::PROFILE_MASK);
    let mut all: Vec<(u64, u64)> = fs.block_groups().iter().map(|group| of(group.flags)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn groups_that_fit_are_balanced() {
    let image = Image::by_us(2 << 30);
    let fs = image.open();
    fill(&fs, 5);
    let expected = contents(&fs);
    // Large files that go again leave groups that are nearly empty.
    for name in [&b"a"[..], b"b", b"c"] {
        let file = fs.create(Node::ROOT, name, &New::file(0o600)).unwrap().node;
        (0..250).for_each(|at| _ = fs.write(file, at * MIB, &[7; MIB as usize]).unwrap());
        fs.create(Node::ROOT, &[name, b"-small"].concat(), &New::file(0o600)).unwrap();
    }
    fs.commit().unwrap();
    let all = fs.block_groups().len();
    for name in [&b"a"[..], b"b", b"c"] {
        fs.unlink(Node::ROOT, name).unwrap();
        fs.unlink(Node::ROOT, &[name, b"-small"].concat()).unwrap();
    }
    fs.commit().unwrap();
    let usage = |percent| BalanceFilter { usage: Some(0..percent), ..Default::default() };
    balanced(&fs, Balance { data: Some(usage(50)), ..Default::default() });
    assert!(fs.block_groups().len() <= all);
    let one = BalanceFilter { limit: Some((0, 1)), ..Default::default() };
    let one = Balance { data: Some(one.clone()), metadata: Some(one), ..Default::default() };
    assert_eq!(fs.balance_plan(&one).len(), 2);
    assert_eq!(balanced(&fs, one), 2);
    let none = BalanceFilter { limit: Some((99, 99)), ..Default::default() };
    assert_eq!(fs.balance_plan(&Balance { data: Some(none), ..Default::default() }), []);
    assert_eq!(contents(&fs), expected);
    // Both ways, and with `soft` nothing is left to do the second time.
    for profile in [BalanceFilter::SINGLE, chunk_type::DUP] {
        let to = BalanceFilter { convert: Some(profile), soft: true, ..Default::default() };
        let (data, metadata) = (Some(to.clone()), Some(to.clone()));
        let to = Balance { data, metadata, system: Some(to), force: true };
        assert!(balanced(&fs, to.clone()) > 0);
        assert!(profiles(&fs).iter().all(|(_, bits)| *bits == profile & chunk_type::DUP));
        assert_eq!(balanced(&fs, to), 0);
        assert_eq!(contents(&fs), expected);
    }
    let raid = BalanceFilter { convert: Some(chunk_type::RAID1), ..Default::default() };
    let refused = fs.balance(&Balance { data: Some(raid), ..Default::default() }, |_| {
        ControlFlow::Continue(())
    });
    assert_eq!(refused.unwrap_err().errno(), Errno::INVAL);
    fs.close().unwrap();
    judge(&image, &expected);
}

/// Where metadata is full, and data has room, a data group can be emptied: that gives room.
#[test]
fn data_are_balanced_where_metadata_is_full() {
    let image = Image::by_us(600 * MIB);
    let options = Options::read_write().background(false).reclaim_threshold(0);
    let fs = Filesystem::open(image.path(), options).unwrap();
    let name = |number: u32| number.to_string().into_bytes();
    let put = |number| {
        let file = fs.create(Node::ROOT, &name(number), &New::file(0o600))?.node;
        fs.write(file, 0, &vec![number as u8; 4 << 20])?;
        fs.commit()
    };
    let count = (0..).find(|number| put(*number).is_err()).unwrap();
    let gone = (0..=count).filter(|number| number % 10 > 0);
    gone.for_each(|number| _ = fs.unlink(Node::ROOT, &name(number)));
    fs.commit().unwrap();
    let empty =
        |number: u32| fs.create(Node::ROOT, format!("{number:0200}").as_bytes(), &New::file(0o600));
    let full = (0..).find_map(|number| empty(number).err()).unwrap();
    assert_eq!(full.errno(), Errno::NOSPC);
    let expected = contents(&fs);
    let usage = |percent| BalanceFilter { usage: Some(0..percent), ..Default::default() };
    assert!(balanced(&fs, Balance { data: Some(usage(50)), ..Default::default() }) > 2);
    empty(u32::MAX).expect("there is room for metadata now");
    fs.unlink(Node::ROOT, format!("{:0200}", u32::MAX).as_bytes()).unwrap();
    assert_eq!(contents(&fs), expected);
    fs.close().unwrap();
    judge(&image, &expected);
}

/// What it says is the least works, whatever the filesystem holds.
#[test]
fn the_least_size_is_enough() {
    for seed in 0..5_u64 {
        let image = Image::by_us(1 << 30);
        let fs = image.open();
        fill(&fs, seed);
        let mut rng = Rng::new(seed);
        for number in 0..60_u64 {
            let name = format!("large{number}");
            let file = fs.create(Node::ROOT, name.as_bytes(), &New::file(0o600)).unwrap().node;
            let len = 1 + rng.below(10_000_000) as usize;
            fs.write(file, 0, &vec![number as u8; len]).unwrap();
            if rng.below(3) == 0 {
                fs.commit().unwrap();
            }
        }
        for number in (0..60).filter(|number| (number + seed) % 4 > 0) {
            fs.unlink(Node::ROOT, format!("large{number}").as_bytes()).unwrap();
        }
        fs.commit().unwrap();
        let expected = contents(&fs);
        let mut before = u64::MAX;
        // The groups are smaller by then, and so is the least.
        while fs.device_size_min() < before {
            before = fs.device_size_min();
            fs.resize(before, |_| true).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        assert_eq!(contents(&fs), expected);
        fs.close().unwrap();
        cut(&image);
        image.check();
    }
}

/// Data in two copies, which a balance is to make one: so many files of 4 MiB as there is room for, of which those go that `gone` says.
fn twice_and_full(image: &Image, gone: impl Fn(u32) -> bool) -> Filesystem {
    let options = Options::read_write().background(false).reclaim_threshold(0);
    let fs = Filesystem::open(image.path(), options).unwrap();
    assert!(balanced(&fs, converted(chunk_type::DUP)) > 0);
    let name = |number: u32| number.to_string().into_bytes();
    let put = |number: u32| {
        let file = fs.create(Node::ROOT, &name(number), &New::file(0o600))?.node;
        fs.write(file, 0, &vec![number as u8; 4 << 20])?;
        fs.commit()
    };
    let count = (0..).find(|number| put(*number).is_err()).unwrap();
    (0..=count).filter(|number| gone(*number)).for_each(|number| {
        fs.unlink(Node::ROOT, &name(number)).unwrap();
    });
    fs.commit().unwrap();
    fs
}

fn converted(profile: u64) -> Balance {
    let to = BalanceFilter { convert: Some(profile), soft: true, ..Default::default() };
    Balance { data: Some(to), ..Default::default() }
}

/// No group of data is as small as what is not allocated: one gives its chunk back by what others have room for, and so all are converted.
#[test]
fn groups_that_there_is_no_room_for_wait_for_others() {
    for (size, kept) in [(300, 11), (500, 5)] {
        let image = Image::by_us(size * MIB);
        let fs = twice_and_full(&image, |number| number % 16 > kept);
        let expected = contents(&fs);
        let device = fs.info().devices[0].clone();
        let is_data = |group: &&GroupInfo| group.flags & chunk_type::DATA != 0;
        let groups = fs.block_groups();
        let least = groups.iter().filter(is_data).map(|group| group.used).min().unwrap();
        assert!(device.total - device.used < least, "{device:?}, {groups:?}");
        let balance = converted(BalanceFilter::SINGLE);
        let done = fs.balance(&balance, |_| ControlFlow::Continue(())).unwrap();
        let all = groups.iter().filter(is_data).count() as u64;
        assert_eq!((done.completed, done.no_room, done.emptied.failed), (all, 0, vec![]));
        assert_eq!(fs.unfinished_balance().unwrap(), None);
        assert!(profiles(&fs).contains(&(chunk_type::DATA, 0)));
        assert!(!profiles(&fs).contains(&(chunk_type::DATA, chunk_type::DUP)));
        assert_eq!(contents(&fs), expected);
        fs.close().unwrap();
        judge(&image, &expected);
    }
}

/// Where there is no room for any it ends and says for how many, whoever pauses it in between.
#[test]
fn groups_that_there_is_no_room_for_are_counted() {
    let image = Image::by_us(300 * MIB);
    let fs = twice_and_full(&image, |_| false);
    let expected = contents(&fs);
    let balance = converted(BalanceFilter::SINGLE);
    let all = fs.balance_plan(&balance).len() as u64;
    let mut asked = 0;
    let counted = |_| {
        asked += 1;
        ControlFlow::Continue(())
    };
    let done = fs.balance(&balance, counted).unwrap();
    assert_eq!((done.completed, done.no_room, done.emptied.failed), (0, all, vec![]));
    // Whoever wants it to stop is heard at each.
    assert!(asked >= all, "{asked} of {all}");
    assert_eq!(fs.unfinished_balance().unwrap(), None);
    fs.unlink(Node::ROOT, b"0").unwrap();
    fs.commit().unwrap();
    let expected_then = contents(&fs);
    assert!(expected_then.len() < expected.len());
    // Each time later, until none comes any more: every stop is heard, in later rounds, too, and the item says that it is not done.
    let mut stops = 0;
    loop {
        let mut heard = 0;
        let some = |_| {
            heard += 1;
            if heard > 3 * stops {
                ControlFlow::Break(BalanceStop::Pause)
            } else {
                ControlFlow::Continue(())
            }
        };
        let done = match stops {
            0 => fs.balance(&balance, some),
            _ => fs.resume_balance(some),
        };
        let Err(error) = done else { break };
        assert_eq!(error.errno(), Errno::INTR);
        assert!(fs.unfinished_balance().unwrap().is_some());
        assert_eq!(contents(&fs), expected_then);
        stops += 1;
    }
    assert!(stops > 3, "{stops}");
    assert_eq!(fs.unfinished_balance().unwrap(), None);
    fs.close().unwrap();
    judge(&image, &expected_then);
}
