//! So many changes in one commit that its trees are merged by several threads.

use buttress::{Change, Filesystem, New, Node, Owner};

use crate::judge::{Image, names};

const FILES: u32 = 60_000;

fn name(number: u32) -> String {
    format!("a file with number {number}")
}

fn create(fs: &Filesystem, dir: Node, number: u32) {
    let made = fs.create(dir, name(number).as_bytes(), &New::file(0o644)).unwrap().node;
    if number.is_multiple_of(100) {
        fs.write(made, 0, &number.to_le_bytes().repeat(40)).unwrap();
    }
}

/// Of files below a snapshot, in one commit, a third goes, a third is changed, and as many as went come; then nearly all go.
#[test]
fn many_changes_below_old_leaves() {
    let image = Image::by_us(4 << 30);
    let fs = image.open();
    let home = fs.create_subvolume(Node::ROOT, b"home", Owner::default()).unwrap();
    let dir = Node::top(home);
    (0..FILES).for_each(|number| create(&fs, dir, number));
    fs.commit().unwrap();
    fs.snapshot(home, Node::ROOT, b"before", true).unwrap();
    let apart = fs.stats().leaves_made_apart;
    for number in 0..FILES {
        match number % 3 {
            0 => drop(fs.unlink(dir, name(number).as_bytes()).unwrap()),
            1 => {
                let file = fs.lookup(dir, name(number).as_bytes()).unwrap().unwrap().node;
                let change = Change { mode: Some(0o600), ..Default::default() };
                fs.set_attributes(file, &change).unwrap();
            }
            _ => create(&fs, dir, FILES + number),
        }
    }
    fs.commit().unwrap();
    assert!(fs.stats().leaves_made_apart > apart + 500, "stretches of old leaves are made apart");
    let there = |number: &u32| match number.checked_sub(FILES) {
        Some(number) => number % 3 == 2,
        None => !number.is_multiple_of(3),
    };
    let all = |fs: &Filesystem, path: &str, there: &dyn Fn(&u32) -> bool| {
        let mut found = names(fs, path);
        found.sort_unstable();
        let mut expect: Vec<String> = (0..2 * FILES).filter(there).map(name).collect();
        expect.sort_unstable();
        assert!(found == expect, "{path}: {} and {}", found.len(), expect.len());
        for number in (0..2 * FILES).step_by(97) {
            let dir = fs.resolve(path).unwrap();
            let found = fs.lookup(dir, name(number).as_bytes()).unwrap();
            assert_eq!(found.is_some(), there(&number), "{path} {number}");
        }
    };
    all(&fs, "/home", &there);
    fs.close().unwrap();
    image.check();
    let fs = image.open();
    all(&fs, "/home", &there);
    all(&fs, "/before", &|number| *number < FILES);
    let stays = |number: &u32| there(number) && number.is_multiple_of(1000);
    for number in (0..2 * FILES).filter(|number| there(number) && !stays(number)) {
        fs.unlink(Node::top(home), name(number).as_bytes()).unwrap();
    }
    all(&fs, "/home", &stays);
    fs.close().unwrap();
    image.check();
    let fs = image.open();
    all(&fs, "/home", &stays);
    fs.delete_subvolume(Node::ROOT, b"before").unwrap();
    fs.close().unwrap();
    image.check();
    image.mounted(|top| {
        let found = std::fs::read_dir(top.join("home")).unwrap().count();
        assert_eq!(found, (0..2 * FILES).filter(stays).count());
    });
}
