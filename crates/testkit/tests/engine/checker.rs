//! Our checker against `btrfs check`, on every image of the corpus: both call it clean, or both do not.

use buttress_testkit::corpus::{Expectation, Image};
use buttress_testkit::oracle::{check_verdict, our_report};

use crate::each::each;

/// What `btrfs check` prints about what this version of it does not know.
const UNKNOWN: &str = "unsupported option features";

fn judged_alike(image: &Image) -> Vec<String> {
    let report = match our_report(&image.path, image.offset, true) {
        Ok(report) => report,
        Err(error) if matches!(image.expectation, Expectation::Refused(_)) => {
            println!("{}: {error}", image.name);
            return Vec::new();
        }
        Err(error) => return vec![error.to_string()],
    };
    let issues: Vec<_> = report.issues.iter().map(ToString::to_string).take(20).collect();
    // Only ours finds a filesystem inside a disk.
    let theirs = match image.offset {
        0 => check_verdict(&image.path, true).unwrap(),
        _ => (true, String::new()),
    };
    let theirs_clean = theirs.0 || theirs.1.contains(UNKNOWN);
    match report.is_clean() == theirs_clean {
        true => Vec::new(),
        false => vec![format!("btrfs check says {}, ours {issues:#?}", theirs.1)],
    }
}

#[test]
fn every_image_is_judged_as_btrfs_check_does() {
    let judged = each(|_| true, judged_alike);
    println!("{judged} images judged");
}
