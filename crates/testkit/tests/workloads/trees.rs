//! Many files: made, copied, deleted; wide and deep directories; every kind of file.

use buttress::{Change, FileKind, New, Node, Owner, Rename, Time, Times};
use buttress_codec::ChecksumKind;
use buttress_testkit::corpus::colliding_names;

use crate::image::{Image, shape};
use crate::judge::{glance, judge, long};
use crate::tools::{Numbers, bytes, content, count, empty, mkdir, put_at, touch, write};

/// The number of files of a large workload: the full one only when asked for.
fn scaled(full: usize, part: usize) -> usize {
    if long() { full } else { full / part }
}

#[test]
fn creates_of_many_files() {
    let image = Image::by_progs(8 << 30, &[]);
    let fs = image.open();
    let files = scaled(200_000, 10);
    let began = std::time::Instant::now();
    let dirs: Vec<_> = (0..20).map(|dir| mkdir(&fs, Node::ROOT, &format!("dir{dir}"))).collect();
    for number in 0..files {
        let name = format!("{number:08}-a-name-of-some-length");
        let len = [0, 100, 4096, 1500][number % 4];
        put_at(&fs, dirs[number % 20], name.as_bytes(), &bytes(len, number as u32)).unwrap();
    }
    fs.commit().unwrap();
    if long() {
        eprintln!("creates_of_many_files: {:.2} s to create", began.elapsed().as_secs_f64());
    }
    assert_eq!(dirs.iter().map(|dir| count(&fs, *dir)).sum::<usize>(), files);
    judge(&image, fs);
}

/// Sizes as source trees have them.
fn source_size(numbers: &mut Numbers) -> usize {
    match numbers.below(20) {
        0 => 0,
        1..10 => numbers.below(4000) as usize,
        10..19 => 2000 + numbers.below(20_000) as usize,
        _ => 30_000 + numbers.below(170_000) as usize,
    }
}

#[test]
fn copy_of_a_tree() {
    let image = Image::by_us(8 << 30, |_| {});
    let fs = image.open();
    let mut numbers = Numbers::new(2);
    let mut dirs = vec![mkdir(&fs, Node::ROOT, "tree")];
    for number in 0..scaled(50_000, 10) {
        if number % 15 == 0 {
            let parent = dirs[numbers.below(dirs.len() as u64) as usize];
            dirs.push(mkdir(&fs, parent, &format!("dir{number}")));
        }
        let dir = dirs[numbers.below(dirs.len() as u64) as usize];
        let name = format!("file-{number}.c");
        if number % 40 == 3 {
            fs.create(dir, name.as_bytes(), &New::symlink(format!("../{number}"))).unwrap();
            continue;
        }
        let len = source_size(&mut numbers);
        put_at(&fs, dir, name.as_bytes(), &bytes(len, number as u32)).unwrap();
        let node = fs.lookup(dir, name.as_bytes()).unwrap().unwrap().node;
        let mtime = Some(Time { sec: 1_500_000_000 + number as i64, nsec: 999 });
        let change = Change { mode: Some(0o640), uid: Some(1000), mtime, ..Change::default() };
        fs.set_attributes(node, &change).unwrap();
    }
    judge(&image, fs);
}

#[test]
fn half_of_everything_goes() {
    let image = Image::by_progs(2 << 30, &["-n", "4096"]);
    let fs = image.open();
    let dirs: Vec<_> = (0..10).map(|dir| mkdir(&fs, Node::ROOT, &format!("{dir}"))).collect();
    for number in 0..6000_usize {
        let len = number % 7 * 900;
        let name = number.to_string();
        put_at(&fs, dirs[number % 10], name.as_bytes(), &bytes(len, number as u32)).unwrap();
    }
    fs.commit().unwrap();
    for number in (0..6000_usize).filter(|number| number / 10 % 2 == 0) {
        fs.unlink(dirs[number % 10], number.to_string().as_bytes()).unwrap();
    }
    empty(&fs, dirs[3]);
    fs.rmdir(Node::ROOT, b"3").unwrap();
    judge(&image, fs);
}

#[test]
fn a_wide_directory_with_equal_hashes() {
    let image = Image::by_us(2 << 30, shape(65_536, ChecksumKind::XxHash64));
    let fs = image.open();
    let dir = mkdir(&fs, Node::ROOT, "wide");
    for number in 0..50_000 {
        touch(&fs, dir, &format!("name-{number}"));
    }
    let alike = colliding_names(700);
    for (number, name) in alike.iter().enumerate() {
        put_at(&fs, dir, name, &bytes(number % 30, 1)).unwrap();
    }
    fs.commit().unwrap();
    for name in alike.iter().step_by(3) {
        fs.unlink(dir, name).unwrap();
    }
    for number in (0..50_000).filter(|number| number % 50 != 7) {
        fs.unlink(dir, format!("name-{number}").as_bytes()).unwrap();
    }
    for (number, name) in alike.iter().enumerate() {
        assert_eq!(fs.lookup(dir, name).unwrap().is_some(), number % 3 != 0);
    }
    assert_eq!(count(&fs, dir), 1000 + alike.len() - alike.len().div_ceil(3));
    judge(&image, fs);
}

#[test]
fn as_many_equal_hashes_as_a_leaf_takes() {
    let image = Image::by_progs(1 << 30, &["-n", "4096", "-m", "single"]);
    let fs = image.open();
    let dir = mkdir(&fs, Node::ROOT, "alike");
    let mut made = 0;
    for name in colliding_names(200) {
        match fs.create(dir, &name, &New::file(0o644)) {
            Ok(_) => made += 1,
            Err(error) => {
                assert_eq!(error.errno(), buttress::Errno::OVERFLOW);
                break;
            }
        }
    }
    assert!((70..100).contains(&made), "{made}");
    judge(&image, fs);
}

#[test]
fn deep_directories() {
    let image = Image::by_us(1 << 30, shape(4096, ChecksumKind::Crc32c));
    let fs = image.open();
    let (mut at, mut middle) = (Node::ROOT, Node::ROOT);
    // A path of the kernel has at most 4095 bytes.
    for depth in 0..600 {
        at = mkdir(&fs, at, &format!("d{}", depth % 10));
        touch(&fs, at, "f");
        if depth == 300 {
            middle = at;
        }
    }
    assert_eq!(fs.path_of(at).unwrap().len(), 1800);
    let above = fs.parent(middle).unwrap();
    fs.commit().unwrap();
    let into_itself = fs.rename(above, b"d0", at, b"x", Rename::Replace);
    assert_eq!(into_itself.unwrap_err().errno(), buttress::Errno::INVAL);
    fs.rename(above, b"d0", Node::ROOT, b"half", Rename::NoReplace).unwrap();
    assert_eq!(fs.parent(middle).unwrap(), Node::ROOT);
    assert!(fs.path_of(at).unwrap().starts_with(b"/half/d1/"));
    judge(&image, fs);
}

#[test]
fn every_kind_of_file() {
    let image = Image::by_progs(1 << 30, &["--csum", "sha256"]);
    let fs = image.open();
    let dir = mkdir(&fs, Node::ROOT, "kinds");
    let kinds = [FileKind::Fifo, FileKind::Socket, FileKind::Character, FileKind::Block];
    for (number, kind) in kinds.into_iter().enumerate() {
        let rdev = if number < 2 { 0 } else { 300 << 20 | 70_000 };
        let new = New { rdev, ..New::of(kind, 0o4711).owned(u32::MAX - 1, 1 << 31) };
        fs.create(dir, format!("{kind:?}").as_bytes(), &new).unwrap();
    }
    for len in [1, 59, 60, 2000, 3900] {
        let name = format!("link{len}");
        fs.create(dir, name.as_bytes(), &New::symlink(vec![b'x'; len])).unwrap();
    }
    let odd = [&b"\xff\xfe\x01"[..], b" ", b"...", &[b'n'; 255]];
    for name in odd {
        put_at(&fs, dir, name, name).unwrap();
    }
    let below = New { mode: 0o2775, ..New::directory(0).owned(5, 6) };
    let below = fs.create(dir, b"set-group-id", &below).unwrap().node;
    assert_eq!(fs.create(below, b"f", &New::file(0o600)).unwrap().gid, 6);
    assert_eq!(fs.create(below, b"d", &New::directory(0o700)).unwrap().mode, 0o2700);
    judge(&image, fs);
}

#[test]
fn times_of_all_sorts() {
    let image = Image::by_us(1 << 30, shape(16_384, ChecksumKind::Blake2b));
    let fs = image.open();
    for (number, sec) in
        [i64::from(i32::MIN), -1, 0, 1, 1 << 33, 253_402_300_799].iter().enumerate()
    {
        let time = |nsec| Time { sec: *sec, nsec };
        let (atime, mtime) = (time(0), time(999_999_999));
        let times = Times { atime, mtime, ctime: time(1), otime: time(2) };
        let new = New { times: Some(times), ..New::file(0o644) };
        fs.create(Node::ROOT, format!("file{number}").as_bytes(), &new).unwrap();
        let new = New { times: Some(times), ..New::directory(0o755) };
        fs.create(Node::ROOT, format!("dir{number}").as_bytes(), &new).unwrap();
    }
    fs.commit().unwrap();
    let dir = fs.resolve("/dir1").unwrap();
    let old = fs.attributes(dir).unwrap();
    touch(&fs, dir, "x");
    let new = fs.attributes(dir).unwrap();
    assert!(new.mtime > old.mtime && new.ctime > old.ctime && new.otime == old.otime);
    fs.create_subvolume(dir, b"subvolume", Owner { uid: 3, gid: 4, umask: 0o022 }).unwrap();
    judge(&image, fs);
}

#[test]
fn one_commit_for_each_operation() {
    let image = Image::by_progs(1 << 30, &["-n", "4096"]);
    let fs = image.open();
    let mut numbers = Numbers::new(9);
    let mut generation = 0;
    for number in 0..400_u64 {
        let name = format!("{}", numbers.below(60));
        let found = fs.lookup(Node::ROOT, name.as_bytes()).unwrap();
        match (found, number % 4) {
            (None, _) => drop(put_at(&fs, Node::ROOT, name.as_bytes(), &bytes(3000, 1))),
            (Some(found), 0) => {
                write(&fs, found.node, numbers.below(20_000), &bytes(5000, number as u32));
            }
            (Some(_), 1) => drop(fs.unlink(Node::ROOT, name.as_bytes()).unwrap()),
            (Some(found), 2) => {
                drop(fs.link(found.node, Node::ROOT, format!("l{number}").as_bytes()))
            }
            (Some(_), _) => {
                let to = format!("{}", numbers.below(60));
                let to = to.as_bytes();
                fs.rename(Node::ROOT, name.as_bytes(), Node::ROOT, to, Rename::Replace).unwrap();
            }
        }
        let now = fs.commit().unwrap();
        assert!(now >= generation);
        generation = now;
    }
    assert_eq!(fs.commit().unwrap(), generation);
    judge(&image, fs);
}

#[test]
fn changed_in_many_sittings() {
    let image = Image::by_us(1 << 30, shape(4096, ChecksumKind::Sha256));
    for sitting in 0..12_u32 {
        let fs = image.open();
        let dir = mkdir(&fs, Node::ROOT, &format!("sitting{sitting}"));
        for number in 0..150 {
            let data = bytes(number * 41, sitting);
            put_at(&fs, dir, number.to_string().as_bytes(), &data).unwrap();
        }
        if sitting >= 2 {
            let old = fs.resolve(format!("/sitting{}", sitting - 2)).unwrap();
            for number in (0..150).step_by(2) {
                fs.unlink(old, number.to_string().as_bytes()).unwrap();
            }
            let kept = fs.lookup(old, b"149").unwrap().unwrap().node;
            assert!(content(&fs, kept) == bytes(149 * 41, sitting - 2));
            write(&fs, kept, 3000, &bytes(20_000, sitting));
        }
        if sitting % 4 == 3 { glance(&image, fs) } else { fs.close().unwrap() }
    }
    judge(&image, image.open());
}
