//! The kernel at work on what we wrote: compression, relocation, scrub, defragmentation, sending; and we on what it made
//! of it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use buttress::{Allocate, Change, FileKind, Filesystem, Node, Owner};
use buttress_codec::ChecksumKind;
use buttress_testkit::facts::{diff, facts_of_dir};
use buttress_testkit::oracle::{self, KernelMount, run};

use crate::image::{Image, shape};
use crate::judge::{check, glance, judge};
use crate::ours;
use crate::tools::{Numbers, bytes, content, put_at, touch, write};

const MOUNT: &str = "noatime,subvolid=5";

fn btrfs(words: &[&str], path: &Path) {
    run(Command::new("btrfs").args(words).arg(path)).unwrap();
}

/// Files of many sizes in a subvolume with a snapshot, fragmented.
fn furnish(fs: &Filesystem, seed: u64) -> u64 {
    let id = fs.create_subvolume(Node::ROOT, b"work", Owner::default()).unwrap();
    let mut numbers = Numbers::new(seed);
    for number in 0..300_u32 {
        let len = numbers.below([300, 5000, 80_000, 900_000][number as usize % 4]) as usize;
        put_at(fs, Node::top(id), number.to_string().as_bytes(), &bytes(len, number)).unwrap();
    }
    fs.snapshot(id, Node::ROOT, b"first", true).unwrap();
    for _ in 0..400 {
        let name = numbers.below(300).to_string();
        let node = fs.lookup(Node::top(id), name.as_bytes()).unwrap().unwrap().node;
        let at = numbers.below(200_000);
        write(fs, node, at, &bytes(1 + numbers.below(9000) as usize, numbers.next() as u32));
    }
    id
}

#[test]
fn relocated_scrubbed_and_defragmented() {
    if !oracle::root_or_skip() {
        return;
    }
    let image = Image::by_us(3 << 30, shape(16_384, ChecksumKind::Crc32c));
    let fs = image.open();
    let id = furnish(&fs, 71);
    let expect = ours::facts(&fs);
    fs.close().unwrap();
    for words in [
        &["scrub", "start", "-B"][..],
        &["balance", "start", "--full-balance"],
        &["filesystem", "resize", "2G"],
        &["filesystem", "defragment", "-r"],
        &["balance", "start", "--force", "-mconvert=dup"],
    ] {
        let mount = KernelMount::new(&image.path(), MOUNT).unwrap();
        btrfs(words, mount.path());
        mount.finish().unwrap();
        check(&image);
        let fs = image.open();
        let lines = diff(&ours::facts(&fs), &expect);
        let times = |line: &String| line.contains("mtime");
        assert!(lines.iter().all(times), "{words:?}: {lines:#?}");
        let name = format!("after-{}", words[0]);
        let made = touch(&fs, Node::top(id), &name);
        write(&fs, made, 0, &bytes(300_000, 1));
        glance(&image, fs);
        let fs = image.open();
        fs.unlink(Node::top(id), name.as_bytes()).unwrap();
        fs.close().unwrap();
    }
    judge(&image, image.open());
}

/// Text that compresses well, of which no two sectors are alike.
fn text(len: usize, seed: usize) -> Vec<u8> {
    let line = |number| format!("line {number} of the text with the number {seed}\n").into_bytes();
    (0..).flat_map(line).take(len).collect()
}

#[test]
fn compressed_by_the_kernel_and_changed_by_us() {
    if !oracle::root_or_skip() {
        return;
    }
    let image = Image::by_progs(2 << 30, &["-n", "4096"]);
    let mut expect: Vec<(String, Vec<u8>)> = Vec::new();
    let mut numbers = Numbers::new(72);
    for (round, how) in ["zstd", "lzo", "zlib", "zstd:15", "no"].iter().enumerate() {
        let options = format!("{MOUNT},compress-force={how}");
        let options = if *how == "no" { format!("{MOUNT},nodatasum") } else { options };
        let mount = KernelMount::new(&image.path(), &options).unwrap();
        for number in 0..40 {
            let name = format!("{round}-{number}");
            let data = text(numbers.below(600_000) as usize, number);
            std::fs::write(mount.path().join(&name), &data).unwrap();
            expect.push((name, data));
        }
        // Parts of what we have changed.
        for (name, data) in expect.iter_mut().step_by(5).filter(|(_, data)| data.len() > 100_000) {
            let file = File::options().write(true).open(mount.path().join(name)).unwrap();
            file.write_all_at(&data[..30_000], 50_001).unwrap();
            data.copy_within(..30_000, 50_001);
        }
        let top = mount.path().to_str().unwrap();
        btrfs(&["subvolume", "snapshot", top], &mount.path().join(format!("s{round}")));
        mount.finish().unwrap();
        check(&image);
        let fs = image.open();
        for (name, data) in &mut expect {
            change(&fs, name, data, &mut numbers);
        }
        fs.commit().unwrap();
        for (name, data) in &expect {
            let node = fs.lookup(Node::ROOT, name.as_bytes()).unwrap().unwrap().node;
            assert!(content(&fs, node) == *data, "{name}");
        }
        glance(&image, fs);
    }
    judge(&image, image.open());
}

/// Changes a file of compressed extents in one of many ways, and the bytes it must have.
fn change(fs: &Filesystem, name: &str, data: &mut Vec<u8>, numbers: &mut Numbers) {
    let node = fs.lookup(Node::ROOT, name.as_bytes()).unwrap().unwrap().node;
    assert_eq!(fs.attributes(node).unwrap().kind, FileKind::Regular);
    let (size, len) = (data.len() as u64, 1 + numbers.below(40_000));
    let at = numbers.below(size + 1);
    let end = size.min(at + len) as usize;
    match numbers.below(7) {
        0 => {
            let change = Change { size: Some(at), ..Change::default() };
            fs.set_attributes(node, &change).unwrap();
            data.truncate(at as usize);
        }
        1 => {
            fs.fallocate(node, Allocate::PunchHole, at, len).unwrap();
            data[at as usize..end].fill(0);
        }
        2 => {
            fs.fallocate(node, Allocate::ZeroRange { keep_size: true }, at, len).unwrap();
            data[at as usize..end].fill(0);
        }
        3 => {
            let from = at / 4096 * 4096;
            let end = from + (size - from).min(len.div_ceil(4096) * 4096);
            let to = size.div_ceil(4096) * 4096;
            if fs.clone_range(node, from, end - from, node, to).unwrap() > 0 {
                data.resize(to as usize, 0);
                data.extend_from_within(from as usize..end as usize);
            }
        }
        4 => {}
        _ => {
            let new = bytes(len as usize, 1);
            write(fs, node, at, &new);
            data.resize(data.len().max(at as usize + new.len()), 0);
            data[at as usize..at as usize + new.len()].copy_from_slice(&new);
        }
    }
}

#[test]
fn sent_by_the_kernel() {
    if !oracle::root_or_skip() {
        return;
    }
    let image = Image::by_progs(1 << 30, &[]);
    let fs = image.open();
    let id = furnish(&fs, 73);
    for number in (0..300).step_by(3) {
        fs.unlink(Node::top(id), number.to_string().as_bytes()).unwrap();
    }
    let moved = touch(&fs, Node::top(id), "moved");
    fs.link(moved, Node::top(id), b"link").unwrap();
    fs.snapshot(id, Node::ROOT, b"second", true).unwrap();
    fs.close().unwrap();
    let target = Image::by_progs(1 << 30, &[]);
    let (from, to) = (
        KernelMount::new(&image.path(), MOUNT).unwrap(),
        KernelMount::new(&target.path(), MOUNT).unwrap(),
    );
    let script = r#"set -e -o pipefail
        btrfs send -q "$1/first" | btrfs receive -q "$2"
        btrfs send -q -p "$1/first" "$1/second" | btrfs receive -q "$2""#;
    run(Command::new("bash").args(["-c", script, "-"]).args([from.path(), to.path()])).unwrap();
    for name in ["first", "second"] {
        let sent = facts_of_dir(&from.path().join(name)).unwrap();
        let lines = diff(&facts_of_dir(&to.path().join(name)).unwrap(), &sent);
        assert!(lines.is_empty(), "{lines:#?}");
    }
    from.finish().unwrap();
    to.finish().unwrap();
    judge(&target, target.open());
    judge(&image, image.open());
}

#[test]
fn filled_by_the_kernel_and_emptied_by_us() {
    if !oracle::root_or_skip() {
        return;
    }
    let image = Image::by_progs(160 << 20, &["-m", "single", "-n", "4096"]);
    for round in 0..2_usize {
        let mount = KernelMount::new(&image.path(), MOUNT).unwrap();
        let dir = mount.path().join("dir");
        std::fs::create_dir_all(&dir).unwrap();
        let mut made = 0;
        while std::fs::write(dir.join(made.to_string()), text(made * 37 % 60_000, round)).is_ok() {
            made += 1;
        }
        assert!(made > 1000);
        mount.finish().unwrap();
        check(&image);
        let fs = image.open();
        let dir = fs.resolve("/dir").unwrap();
        for number in (0..made).filter(|number| number % 4 != round) {
            fs.unlink(dir, number.to_string().as_bytes()).unwrap();
        }
        fs.commit().unwrap();
        let large = touch(&fs, Node::ROOT, &format!("large{round}"));
        write(&fs, large, 0, &bytes(20 << 20, 1));
        glance(&image, fs);
    }
    judge(&image, image.open());
}
