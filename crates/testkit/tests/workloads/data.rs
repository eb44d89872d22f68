//! Content of files: random writes, holes, preallocation, clones, giants.

use buttress::{Allocate, Node, Rename};
use buttress_codec::ChecksumKind;

use crate::image::{Image, shape};
use crate::judge::{judge, long};
use crate::tools::{Numbers, bytes, content, mkdir, touch, truncate, write};

/// A file beside the bytes it must have.
struct Twin {
    node: Node,
    bytes: Vec<u8>,
}

impl Twin {
    fn write(&mut self, fs: &buttress::Filesystem, offset: u64, data: &[u8]) {
        write(fs, self.node, offset, data);
        let (from, to) = (offset as usize, offset as usize + data.len());
        self.bytes.resize(self.bytes.len().max(to), 0);
        self.bytes[from..to].copy_from_slice(data);
    }

    fn truncate(&mut self, fs: &buttress::Filesystem, size: u64) {
        truncate(fs, self.node, size);
        self.bytes.resize(size as usize, 0);
    }

    fn zero(&mut self, from: u64, len: u64) {
        let end = self.bytes.len().min((from + len) as usize);
        if let Some(range) = self.bytes.get_mut(from as usize..end) {
            range.fill(0);
        }
    }

    fn check(&self, fs: &buttress::Filesystem) {
        assert!(content(fs, self.node) == self.bytes, "{:?}", self.node);
    }
}

fn twins(fs: &buttress::Filesystem, dir: Node, count: usize) -> Vec<Twin> {
    let twin = |number| Twin { node: touch(fs, dir, &format!("file{number}")), bytes: Vec::new() };
    (0..count).map(twin).collect()
}

/// One random change of a file of at most `max` bytes.
fn scribble(fs: &buttress::Filesystem, twin: &mut Twin, numbers: &mut Numbers, max: u64) {
    let size = twin.bytes.len() as u64;
    let offset = numbers.below(max);
    let most = [10, 3000, 20_000, 200_000][numbers.below(4) as usize];
    let len = 1 + numbers.below(most);
    let len = len.min(max - offset);
    match numbers.below(12) {
        0 => twin.truncate(fs, numbers.below(size + 5000).min(max)),
        1 => {
            fs.fallocate(twin.node, Allocate::PunchHole, offset, len).unwrap();
            twin.zero(offset, len);
        }
        2 => {
            let mode = Allocate::ZeroRange { keep_size: true };
            fs.fallocate(twin.node, mode, offset, len).unwrap();
            twin.zero(offset, len);
        }
        3 => {
            fs.fallocate(twin.node, Allocate::Reserve { keep_size: false }, offset, len).unwrap();
            twin.bytes.resize(twin.bytes.len().max((offset + len) as usize), 0);
        }
        4 => {
            let offset = offset / 4096 * 4096;
            twin.write(
                fs,
                offset,
                &bytes(len.div_ceil(4096) as usize * 4096, numbers.next() as u32),
            );
        }
        _ => twin.write(fs, offset, &bytes(len as usize, numbers.next() as u32)),
    }
}

#[test]
fn random_writes_over_sixteen_snapshots() {
    let image = Image::by_progs(4 << 30, &["-m", "dup"]);
    let fs = image.open();
    let work = fs.create_subvolume(Node::ROOT, b"work", Default::default()).unwrap();
    let mut numbers = Numbers::new(16);
    let mut files = twins(&fs, Node::top(work), 12);
    let mut past = Vec::new();
    for level in 0..16 {
        for _ in 0..150 {
            let which = numbers.below(12) as usize;
            scribble(&fs, &mut files[which], &mut numbers, 2 << 20);
        }
        let name = format!("level{level}");
        let id = fs.snapshot(work, Node::ROOT, name.as_bytes(), level % 2 == 0).unwrap();
        past.push((id, files[level % 12].bytes.clone(), level % 12));
    }
    files.iter().for_each(|file| file.check(&fs));
    for (id, expect, which) in &past {
        let node = Node { subvolume: *id, ino: files[*which].node.ino };
        assert!(content(&fs, node) == *expect);
    }
    judge(&image, fs);
}

#[test]
fn random_writes_without_no_holes() {
    let image = Image::by_progs(2 << 30, &["-O", "^no-holes", "-n", "4096"]);
    let fs = image.open();
    let mut numbers = Numbers::new(17);
    let mut files = twins(&fs, Node::ROOT, 10);
    for step in 0..1500 {
        let which = numbers.below(10) as usize;
        scribble(&fs, &mut files[which], &mut numbers, 1 << 20);
        if step % 200 == 0 {
            fs.commit().unwrap();
        }
    }
    files.iter().for_each(|file| file.check(&fs));
    judge(&image, fs);
}

#[test]
fn overwritten_in_place_a_hundred_times() {
    let image = Image::by_us(1 << 30, shape(16_384, ChecksumKind::XxHash64));
    let fs = image.open();
    let mut files = twins(&fs, Node::ROOT, 3);
    for round in 0..100_u32 {
        files[0].write(&fs, 0, &bytes(300_000, round));
        files[1].write(&fs, u64::from(round % 10) * 4096, &bytes(8192, round));
        files[2].write(&fs, 100, &bytes(50, round));
        if round % 3 == 0 {
            fs.commit().unwrap();
        }
    }
    files.iter().for_each(|file| file.check(&fs));
    fs.commit().unwrap();
    assert!(fs.usage().data.used < 1 << 20, "{:?}", fs.usage());
    judge(&image, fs);
}

#[test]
fn appended_to_in_turns() {
    let image = Image::by_progs(1 << 30, &[]);
    let fs = image.open();
    let mut numbers = Numbers::new(3);
    let mut files = twins(&fs, Node::ROOT, 8);
    for step in 0..4000_u32 {
        let file = &mut files[(step % 8) as usize];
        let len = [37, 700, 4096, 9000][numbers.below(4) as usize];
        file.write(&fs, file.bytes.len() as u64, &bytes(len, step));
        if step % 500 == 0 {
            fs.commit().unwrap();
        }
    }
    files.iter().for_each(|file| file.check(&fs));
    judge(&image, fs);
}

#[test]
fn chains_of_clones() {
    let image = Image::by_progs(2 << 30, &["-n", "4096", "-m", "single"]);
    let fs = image.open();
    let mut numbers = Numbers::new(8);
    let mut files = twins(&fs, Node::ROOT, 40);
    files[0].write(&fs, 0, &bytes(1 << 20, 1));
    for number in 1..40 {
        let (from, to) = (files[number - 1].bytes.clone(), files[number].node);
        fs.clone_range(files[number - 1].node, 0, u64::MAX, to, 0).unwrap();
        files[number].bytes = from;
        for _ in 0..6 {
            let at = numbers.below(250) * 4096 + 77;
            files[number].write(&fs, at, &bytes(3000, number as u32));
        }
        // Within a file, too.
        let (from, to) = (numbers.below(100) * 4096, 120 * 4096 + numbers.below(100) * 4096);
        let node = files[number].node;
        fs.clone_range(node, from, 5 * 4096, node, to).unwrap();
        let part = files[number].bytes[from as usize..from as usize + 5 * 4096].to_vec();
        files[number].bytes[to as usize..to as usize + part.len()].copy_from_slice(&part);
        if number % 10 == 0 {
            fs.commit().unwrap();
        }
    }
    files.iter().for_each(|file| file.check(&fs));
    for number in (0..40).step_by(3) {
        fs.unlink(Node::ROOT, format!("file{number}").as_bytes()).unwrap();
    }
    judge(&image, fs);
}

#[test]
fn one_extent_cloned_thousands_of_times() {
    let image = Image::by_us(1 << 30, |_| {});
    let fs = image.open();
    let source = touch(&fs, Node::ROOT, "source");
    write(&fs, source, 0, &bytes(4096, 5));
    fs.commit().unwrap();
    let one = touch(&fs, Node::ROOT, "one");
    for number in 0..1500 {
        fs.clone_range(source, 0, 4096, one, number * 8192).unwrap();
        if number < 700 {
            let other = touch(&fs, Node::ROOT, &format!("other{number}"));
            fs.clone_range(source, 0, 4096, other, 0).unwrap();
        }
    }
    fs.commit().unwrap();
    assert_eq!(fs.usage().data.used, 4096);
    for number in (0..700).step_by(2) {
        fs.unlink(Node::ROOT, format!("other{number}").as_bytes()).unwrap();
    }
    truncate(&fs, one, 800 * 8192);
    fs.unlink(Node::ROOT, b"source").unwrap();
    judge(&image, fs);
}

#[test]
fn clones_across_subvolumes() {
    let image = Image::by_progs(1 << 30, &["--csum", "sha256"]);
    let fs = image.open();
    let ids: Vec<_> = (0..6)
        .map(|id| fs.create_subvolume(Node::ROOT, format!("s{id}").as_bytes(), Default::default()))
        .collect::<Result<_, _>>()
        .unwrap();
    let first = touch(&fs, Node::top(ids[0]), "file");
    write(&fs, first, 0, &bytes(700_001, 1));
    let mut last = first;
    for id in &ids[1..] {
        let next = touch(&fs, Node::top(*id), "file");
        assert_eq!(fs.clone_range(last, 0, u64::MAX, next, 0).unwrap(), 700_001);
        write(&fs, last, 50_000, &bytes(20_000, *id as u32));
        last = next;
    }
    assert!(content(&fs, last) == bytes(700_001, 1));
    fs.delete_subvolume(Node::ROOT, b"s0").unwrap();
    fs.delete_subvolume(Node::ROOT, b"s3").unwrap();
    fs.clean().unwrap();
    assert!(content(&fs, last) == bytes(700_001, 1));
    judge(&image, fs);
}

#[test]
fn holes_punched_everywhere() {
    let image = Image::by_us(1 << 30, |options| crate::image::features(options, "^no-holes"));
    let fs = image.open();
    let mut files = twins(&fs, Node::ROOT, 4);
    for (number, file) in files.iter_mut().enumerate() {
        file.write(&fs, 0, &bytes(4 << 20, number as u32));
        if number % 2 == 0 {
            fs.commit().unwrap();
        }
        let (step, len) =
            [(8192, 4096), (12_288, 5000), (100_000, 77_777), (65_536, 65_535)][number];
        for at in (0..4 << 20).step_by(step) {
            fs.fallocate(file.node, Allocate::PunchHole, at, len).unwrap();
            file.zero(at, len);
        }
        file.check(&fs);
    }
    judge(&image, fs);
}

#[test]
fn preallocated_and_filled() {
    let image = Image::by_progs(2 << 30, &["-d", "dup"]);
    let fs = image.open();
    let mut numbers = Numbers::new(12);
    let mut files = twins(&fs, Node::ROOT, 5);
    for (number, file) in files.iter_mut().enumerate() {
        let keep_size = number % 2 == 0;
        fs.fallocate(file.node, Allocate::Reserve { keep_size }, 3 * 4096, 20 << 20).unwrap();
        if !keep_size {
            file.bytes.resize((20 << 20) + 3 * 4096, 0);
        }
        fs.commit().unwrap();
        for step in 0..100 {
            let at = numbers.below(20 << 20);
            file.write(&fs, at, &bytes(1 + numbers.below(30_000) as usize, step));
        }
        file.check(&fs);
        if number == 4 {
            file.truncate(&fs, 5 << 20);
        }
    }
    judge(&image, fs);
}

#[test]
fn sparse_giants() {
    let image = Image::by_us(1 << 30, shape(16_384, ChecksumKind::Crc32c));
    let fs = image.open();
    for (number, power) in [32, 40, 50, 60, 62].into_iter().enumerate() {
        let node = touch(&fs, Node::ROOT, &format!("giant{number}"));
        write(&fs, node, (1 << power) + 5, &bytes(10_000, number as u32));
        write(&fs, node, (1 << power) - 3, b"before");
        write(&fs, node, 0, &bytes(3000, 1));
    }
    let most = touch(&fs, Node::ROOT, "most");
    truncate(&fs, most, i64::MAX as u64 - 4095);
    write(&fs, most, i64::MAX as u64 - 20_000, b"near the end");
    let beyond = fs.write(most, i64::MAX as u64 - 3, b"beyond").unwrap_err();
    assert_eq!(beyond.errno(), buttress::Errno::FBIG);
    let cut = fs.resolve("/giant3").unwrap();
    truncate(&fs, cut, 1 << 60);
    assert_eq!(fs.seek(cut, 10_000, buttress::Seek::Data).unwrap(), (1 << 60) - 4096);
    judge(&image, fs);
}

#[test]
fn one_large_file_rewritten_in_pieces() {
    let image = Image::by_progs(4 << 30, &[]);
    let fs = image.open();
    let size: u64 = if long() { 1 << 30 } else { 128 << 20 };
    let file = touch(&fs, Node::ROOT, "large");
    for at in (0..size).step_by(4 << 20) {
        write(&fs, file, at, &bytes(4 << 20, at as u32));
    }
    fs.commit().unwrap();
    let mut numbers = Numbers::new(21);
    for step in 0..size / 40_960 {
        write(&fs, file, numbers.below(size / 4096) * 4096, &bytes(4096, step as u32));
    }
    let copy = touch(&fs, Node::ROOT, "copy");
    fs.clone_range(file, 0, size, copy, 0).unwrap();
    truncate(&fs, file, size / 2 + 1000);
    let dir = mkdir(&fs, Node::ROOT, "dir");
    fs.rename(Node::ROOT, b"copy", dir, b"copy", Rename::NoReplace).unwrap();
    judge(&image, fs);
}

#[test]
fn small_files_at_the_border_of_inline() {
    let image = Image::by_progs(1 << 30, &["-n", "65536"]);
    let fs = image.open();
    let mut files = twins(&fs, Node::ROOT, 60);
    let sizes = [0, 1, 2047, 2048, 2049, 3900, 4095, 4096, 4097, 8191];
    for (number, file) in files.iter_mut().enumerate() {
        file.write(&fs, 0, &bytes(sizes[number % 10], 1));
        if number % 4 == 1 {
            fs.commit().unwrap();
        }
        match number / 10 {
            1 => file.truncate(&fs, file.bytes.len() as u64 / 2),
            2 => file.truncate(&fs, file.bytes.len() as u64 + 1),
            3 => file.write(&fs, file.bytes.len() as u64, b"a little more"),
            4 => file.write(&fs, 9000, b"behind a hole"),
            5 => {
                fs.fallocate(file.node, Allocate::Reserve { keep_size: true }, 0, 5000).unwrap();
            }
            _ => {}
        }
        file.check(&fs);
    }
    judge(&image, fs);
}
