//! Images are what they say, and building them twice is not needed.

use std::time::Instant;

use buttress_testkit::corpus::{CorpusError, Expectation, build, specs};
use buttress_testkit::facts::{diff, facts_of_dir};
use buttress_testkit::oracle::{KernelMount, check, root_or_skip, skip, temp_dir};

#[test]
fn every_image_is_made_and_shows_its_feature() {
    if !root_or_skip() {
        return;
    }
    let mut faults = Vec::new();
    for spec in specs() {
        let begin = Instant::now();
        match build(spec.name) {
            Ok(image) => {
                let paths = image.facts.as_ref().map_or(0, |facts| facts.paths.len());
                println!("{}: {paths} paths, {:?}", spec.name, begin.elapsed());
                let refused = matches!(spec.expectation, Expectation::Refused(_));
                assert_eq!(image.facts.is_none(), refused, "{}", spec.name);
            }
            Err(error @ CorpusError::Missed(_)) => skip(&error.to_string()),
            Err(error) => faults.push(format!("{}: {error}", spec.name)),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn names_are_different() {
    let mut names: Vec<_> = specs().iter().map(|spec| spec.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), specs().len());
    assert!(names.len() >= 60);
}

#[test]
fn a_copy_is_the_image() {
    if !root_or_skip() {
        return;
    }
    let dir = temp_dir().unwrap();
    let image = build("plain").unwrap();
    let copy = image.copy_to(dir.path()).unwrap();
    check(&copy, true).unwrap();
    let mount = KernelMount::read_only(&copy, "").unwrap();
    let facts = facts_of_dir(mount.path()).unwrap();
    assert_eq!(diff(&facts, image.facts.as_ref().unwrap()), Vec::<String>::new());
    mount.finish().unwrap();
}
