//! Every image of the corpus: what the library reads is what the kernel shows, or the refusal has the right reason.

use std::process::Command;

use buttress::{Filesystem, Options};
use buttress_testkit::corpus::{Expectation, Image};
use buttress_testkit::facts::{diff, facts_of_library};
use buttress_testkit::oracle::{root_or_skip, run, temp_dir};

use crate::each::each;

/// What a refusal says, by the corpus' word for the reason.
const REASONS: [(&str, &str); 10] = [
    ("several devices", "a filesystem on"),
    ("a sector size other than 4096", "sector size"),
    ("an unknown incompat bit", "incompat"),
    ("zones", "zoned"),
    ("extent tree v2", "extent-tree-v2"),
    ("a stripe tree", "raid-stripe-tree"),
    ("no superblock", "holds no btrfs filesystem"),
    ("shorter than its device item says", "the filesystem takes"),
    ("a seeding device", "seed filesystem"),
    ("an unknown compat_ro bit", "features that must be known to write"),
];

fn says(have: &str, why: &str) -> Option<String> {
    let expect = REASONS.iter().find(|(reason, _)| *reason == why).map(|(_, text)| *text);
    match expect.is_some_and(|expect| have.contains(expect)) {
        true => None,
        false => Some(format!("refused with {have:?}, expect {why:?} ({expect:?})")),
    }
}

fn open(image: &Image, options: Options) -> buttress::Result<Filesystem> {
    Filesystem::open(&image.path, options.offset(image.offset).background(false))
}

/// Reading may go further than the kernel where the library says what is wrong.
fn refused(image: &Image, why: &str) -> Vec<String> {
    let mut found: Vec<_> = match open(image, Options::read_only()) {
        Ok(fs) => says(&fs.warnings().join("; "), why).into_iter().collect(),
        Err(error) => says(&error.to_string(), why).into_iter().collect(),
    };
    match open(image, Options::read_write()) {
        Ok(_) => found.push(format!("opened for writing in spite of {why}")),
        Err(error) => found.extend(says(&error.to_string(), why)),
    }
    found
}

fn read(image: &Image) -> Vec<String> {
    let facts = match image.expectation {
        Expectation::Refused(why) => return refused(image, why),
        // The kernel's facts of an image with a log are those of the last commit.
        _ => open(image, Options::read_only().no_log_replay(true))
            .and_then(|fs| facts_of_library(&fs)),
    };
    match (&facts, &image.facts) {
        (Ok(have), Some(expect)) => diff(have, expect),
        (Err(error), _) => vec![error.to_string()],
        (_, None) => vec!["the kernel's facts are missing".into()],
    }
}

#[test]
fn what_is_read_is_what_the_kernel_shows() {
    if !root_or_skip() {
        return;
    }
    let seen = each(|_| true, read);
    assert!(seen >= 60 || std::env::var_os("BUTTRESS_IMAGE").is_some(), "{seen} images");
}

/// Writing is refused where it must be, and the image stays as it is.
#[test]
fn what_must_not_be_written_is_only_read() {
    if !root_or_skip() {
        return;
    }
    let look = |image: &Image| {
        let Expectation::ReadOnly(why) = image.expectation else { return Vec::new() };
        let dir = temp_dir().unwrap();
        let copy = image.copy_to(dir.path()).unwrap();
        let opened = Filesystem::open(&copy, Options::read_write().background(false));
        let mut found: Vec<String> = match opened {
            Ok(_) => vec![format!("opened for writing in spite of {why}")],
            Err(error) => says(&error.to_string(), why).into_iter().collect(),
        };
        if run(Command::new("cmp").arg(&copy).arg(&image.path)).is_err() {
            found.push("a refused open writes".into());
        }
        found
    };
    each(|image| matches!(image.expectation, Expectation::ReadOnly(_)), look);
}
