//! Snapshots made and deleted while files change.

use buttress::{Filesystem, Node, Owner};
use buttress_codec::ChecksumKind;

use crate::image::{Image, shape};
use crate::judge::judge;
use crate::tools::{Numbers, bytes, content, count, put_at, touch, write};

/// A subvolume with `files` files of about 3000 bytes.
fn filled(fs: &Filesystem, name: &str, files: usize) -> u64 {
    let id = fs.create_subvolume(Node::ROOT, name.as_bytes(), Owner::default()).unwrap();
    for number in 0..files {
        let data = bytes(number * 13 % 6000, number as u32);
        put_at(fs, Node::top(id), number.to_string().as_bytes(), &data).unwrap();
    }
    id
}

/// Writes to some files, deletes some, makes some.
fn churn(fs: &Filesystem, id: u64, numbers: &mut Numbers, files: u64, steps: usize) {
    let top = Node::top(id);
    for _ in 0..steps {
        let name = numbers.below(files).to_string();
        match fs.lookup(top, name.as_bytes()).unwrap() {
            None => drop(put_at(fs, top, name.as_bytes(), &bytes(2500, numbers.next() as u32))),
            Some(_) if numbers.below(3) == 0 => drop(fs.unlink(top, name.as_bytes()).unwrap()),
            Some(found) => {
                let at = numbers.below(30_000);
                write(fs, found.node, at, &bytes(4000, numbers.next() as u32));
            }
        }
    }
}

#[test]
fn made_and_deleted_between_writes() {
    let image = Image::by_progs(2 << 30, &["-n", "4096", "-m", "single"]);
    let fs = image.open();
    let work = filled(&fs, "work", 400);
    let mut numbers = Numbers::new(31);
    let mut alive = Vec::new();
    for round in 0..100 {
        churn(&fs, work, &mut numbers, 500, 30);
        let name = format!("snapshot{round}");
        fs.snapshot(work, Node::ROOT, name.as_bytes(), round % 3 == 0).unwrap();
        alive.push(name);
        if alive.len() > 12 {
            let gone = alive.remove(numbers.below(12) as usize);
            fs.delete_subvolume(Node::ROOT, gone.as_bytes()).unwrap();
        }
        if round % 10 == 9 {
            fs.clean().unwrap();
        }
    }
    judge(&image, fs);
}

#[test]
fn snapshots_of_snapshots() {
    let image = Image::by_us(2 << 30, shape(4096, ChecksumKind::Crc32c));
    let fs = image.open();
    let mut numbers = Numbers::new(32);
    let mut ids = vec![filled(&fs, "s0", 300)];
    for level in 1..30 {
        let source = ids[numbers.below(ids.len() as u64) as usize];
        let id = fs.snapshot(source, Node::ROOT, format!("s{level}").as_bytes(), false).unwrap();
        churn(&fs, id, &mut numbers, 350, 25);
        churn(&fs, source, &mut numbers, 350, 10);
        ids.push(id);
    }
    // In an order that has nothing to do with that of their making.
    for level in (0..30).map(|it| it * 7 % 30).take(20) {
        fs.delete_subvolume(Node::ROOT, format!("s{level}").as_bytes()).unwrap();
        if level % 3 == 0 {
            fs.clean().unwrap();
        }
    }
    judge(&image, fs);
}

#[test]
fn the_original_goes_and_its_snapshots_stay() {
    let image = Image::by_progs(2 << 30, &[]);
    let fs = image.open();
    let work = filled(&fs, "work", 3000);
    let ids: Vec<_> = (0..4)
        .map(|it| fs.snapshot(work, Node::ROOT, format!("copy{it}").as_bytes(), it == 0).unwrap())
        .collect();
    let mut numbers = Numbers::new(33);
    churn(&fs, ids[1], &mut numbers, 3500, 300);
    churn(&fs, ids[2], &mut numbers, 3500, 300);
    fs.delete_subvolume(Node::ROOT, b"work").unwrap();
    churn(&fs, ids[1], &mut numbers, 3500, 300);
    fs.clean().unwrap();
    fs.delete_subvolume(Node::ROOT, b"copy2").unwrap();
    fs.clean().unwrap();
    assert_eq!(count(&fs, Node::top(ids[0])), 3000);
    let node = fs.lookup(Node::top(ids[0]), b"2000").unwrap().unwrap().node;
    assert!(content(&fs, node) == bytes(26_000 % 6000, 2000));
    judge(&image, fs);
}

#[test]
fn without_a_free_space_tree() {
    let image = Image::by_progs(2 << 30, &["-R", "^free-space-tree"]);
    let fs = image.open();
    let work = filled(&fs, "work", 1000);
    let mut numbers = Numbers::new(34);
    for round in 0..8 {
        fs.snapshot(work, Node::ROOT, format!("s{round}").as_bytes(), round % 2 == 0).unwrap();
        churn(&fs, work, &mut numbers, 1200, 200);
    }
    for round in 0..4 {
        fs.delete_subvolume(Node::ROOT, format!("s{}", round * 2).as_bytes()).unwrap();
    }
    fs.clean().unwrap();
    judge(&image, fs);
}

#[test]
fn mixed_groups() {
    let image = Image::by_progs(600 << 20, &["-M"]);
    let fs = image.open();
    let work = filled(&fs, "work", 2000);
    let mut numbers = Numbers::new(35);
    for round in 0..6 {
        fs.snapshot(work, Node::ROOT, format!("s{round}").as_bytes(), round % 2 == 0).unwrap();
        churn(&fs, work, &mut numbers, 2500, 300);
    }
    fs.delete_subvolume(Node::ROOT, b"s1").unwrap();
    fs.delete_subvolume(Node::ROOT, b"s4").unwrap();
    fs.clean().unwrap();
    judge(&image, fs);
}

#[test]
fn an_inode_shared_by_forty_snapshots() {
    let image = Image::by_us(1 << 30, |_| {});
    let fs = image.open();
    let work = filled(&fs, "work", 3);
    let file = touch(&fs, Node::top(work), "file");
    let mut past = Vec::new();
    for round in 0..40_u32 {
        write(&fs, file, u64::from(round % 7) * 10_000, &bytes(30_000, round));
        let id = fs.snapshot(work, Node::ROOT, format!("{round}").as_bytes(), true).unwrap();
        past.push((id, content(&fs, file)));
    }
    for (id, _) in past.iter().step_by(2) {
        let name = fs.subvolume_info(*id).unwrap().name;
        fs.delete_subvolume(Node::ROOT, &name).unwrap();
    }
    fs.clean().unwrap();
    for (id, expect) in past.iter().skip(1).step_by(2) {
        assert!(content(&fs, Node { subvolume: *id, ..file }) == *expect);
    }
    judge(&image, fs);
}
