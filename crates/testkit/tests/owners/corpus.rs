//! Every image of the corpus: fiemap of each of its files is what the kernel says, and the resolver's answers are those of enumeration.

use buttress::{Filesystem, Options};
use buttress_testkit::corpus::{Capture, CorpusError, Expectation, build, specs};
use buttress_testkit::oracle::{KernelMount, root_or_skip, skip, temp_dir};

use crate::judge::{compare_kernel, compare_plain};

#[test]
fn files_of_the_corpus_have_the_records_that_the_kernel_tells() {
    if !root_or_skip() {
        return;
    }
    let part = std::env::var("BUTTRESS_IMAGE").unwrap_or_default();
    let (mut images, mut records) = (0, 0);
    for spec in specs().into_iter().filter(|spec| spec.name.contains(&part)) {
        if matches!(spec.expectation, Expectation::Refused(_)) || spec.offset > 0 {
            continue;
        }
        let image = match build(spec.name) {
            Err(error @ CorpusError::Missed(_)) => {
                skip(&error.to_string());
                continue;
            }
            other => other.unwrap(),
        };
        // The kernel shows the last commit of an image with a log, where it may not write.
        let options = Options::read_only().no_log_replay(true);
        let fs = Filesystem::open(&image.path, options).unwrap();
        println!("{}", spec.name);
        compare_plain(&fs);
        // What was damaged afterwards the kernel does not show any more.
        if spec.damage.is_none() {
            let flags = compare_kernel(&fs, &image.path, spec.facts_mount);
            images += 1;
            records += flags.get(&0).copied().unwrap_or(0);
        }
    }
    println!("{images} images, {records} records");
    assert!(
        images >= 50 && records > 1000 || !part.is_empty(),
        "{images} images, {records} records"
    );
}

/// A log that waits: what it brings is in memory only, and its data are where the kernel finds them, too, when it has replayed the log.
#[test]
fn files_of_a_log_are_told_as_after_its_replay() {
    if !root_or_skip() {
        return;
    }
    let (mut images, mut records) = (0, 0);
    for spec in specs() {
        if spec.capture != Capture::Live || spec.expectation != Expectation::Readable {
            continue;
        }
        let Ok(image) = build(spec.name) else { continue };
        let fs = Filesystem::open(&image.path, Options::read_only()).unwrap();
        if fs.volume().superblock().log_root.get() == 0 {
            continue;
        }
        println!("{}", spec.name);
        let dir = temp_dir().unwrap();
        let copy = image.copy_to(dir.path()).unwrap();
        KernelMount::new(&copy, "").unwrap().finish().unwrap();
        let flags = compare_kernel(&fs, &copy, "");
        images += 1;
        records += flags.get(&0).copied().unwrap_or(0);
    }
    println!("{images} images, {records} records");
    assert!(images > 0 && records > 0);
}
