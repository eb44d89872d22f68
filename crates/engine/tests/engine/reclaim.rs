//! Space that is free in chunks of the one class is there for the other.

use buttress::{Errno, Filesystem, New, Node, Options};

use crate::judge::Image;
use crate::relocate::{contents, judge};

const MIB: u64 = 1 << 20;

/// Writes until nothing more has room; how many there are.
fn until_full(fs: &Filesystem, name: &str, len: usize) -> u64 {
    for number in 0.. {
        let path = format!("{name}{number}");
        let written = fs.create(Node::ROOT, path.as_bytes(), &New::file(0o600)).and_then(|made| {
            let at = made.node;
            (0..len).step_by(MIB as usize).try_for_each(|from| {
                let piece = vec![number as u8; (len - from).min(MIB as usize)];
                fs.write(at, from as u64, &piece).map(drop)
            })
        });
        match written {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.errno(), Errno::NOSPC);
                return number;
            }
        }
    }
    0
}

fn remove_most(fs: &Filesystem, name: &str, count: u64) {
    for number in (0..count).filter(|number| number % 8 != 0) {
        fs.unlink(Node::ROOT, format!("{name}{number}").as_bytes()).unwrap();
    }
    // What was let go of is free after two more.
    (0..3).for_each(|_| _ = fs.commit().unwrap());
}

/// The filesystem is full of the one, most of that is deleted, and then it is full of the other: how much there was of that.
fn filled(threshold: u8, first: (&str, usize), then: (&str, usize)) -> u64 {
    let image = Image::by_us(400 << 20);
    let options = Options::read_write().background(false).reclaim_threshold(threshold);
    let fs = Filesystem::open(image.path(), options).unwrap();
    let count = until_full(&fs, first.0, first.1);
    remove_most(&fs, first.0, count);
    let count = until_full(&fs, then.0, then.1);
    assert_eq!(fs.stats().beyond_promise, 0);
    assert_eq!(fs.stats().groups_reclaimed > 0, threshold > 0);
    let expected = contents(&fs);
    fs.close().unwrap();
    judge(&image, &expected);
    count
}

#[test]
fn what_data_has_left_is_metadatas() {
    let [never, ever] = [0, 30].map(|it| filled(it, ("large", 4 << 20), ("small", 2000)));
    assert!(ever > 3 * never, "{never} {ever}");
}

#[test]
fn what_metadata_has_left_is_datas() {
    let [never, ever] = [0, 30].map(|it| filled(it, ("small", 2000), ("large", 4 << 20)));
    assert!(ever > never + never / 4, "{never} {ever}");
}
