//! `mv` between filesystems loses nothing, whatever happens on the way.

use std::fs;
use std::process::Command;

use crate::live::{Live, copy_of_image};
use crate::run::Place;

/// Runs the command where no file may grow, or be written to, behind so many KiB. Trying so fails.
fn run_limited(place: &Place, kib: u32, line: &str) -> (bool, String) {
    let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" {line}", kib * 2);
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(env!("CARGO_BIN_EXE_buttress")).current_dir(place.path());
    let output = command.output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn host_files(place: &Place) {
    fs::create_dir(place.join("tree")).unwrap();
    fs::write(place.join("tree/inner"), "inner").unwrap();
    fs::write(place.join("file"), "content").unwrap();
}

#[test]
fn what_did_not_get_into_an_image_is_still_outside() {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    host_files(&place);
    let (done, said) = run_limited(&place, 64, "mv file tree disk.img:/");
    assert!(!done, "{said}");
    assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "content");
    assert_eq!(fs::read_to_string(place.join("tree/inner")).unwrap(), "inner");
    place.ok("mv file tree disk.img:/");
    assert!(!place.join("file").exists() && !place.join("tree").exists());
    assert_eq!(place.ok("cat disk.img:/file disk.img:/tree/inner"), "contentinner");
}

#[test]
fn what_did_not_get_into_another_image_is_still_in_its_own() {
    let place = Place::new();
    host_files(&place);
    place.ok("mkfs -q --size 120M small.img");
    // Its metadata's second copies lie behind all that the small one has.
    place.ok("mkfs -q --size 8G large.img");
    place.ok("mv file tree small.img:/");
    let (done, said) =
        run_limited(&place, 200 << 10, "mv small.img:/file small.img:/tree large.img:/");
    assert!(!done, "{said}");
    assert_eq!(place.ok("cat small.img:/file small.img:/tree/inner"), "contentinner");
    place.ok("mv small.img:/file small.img:/tree large.img:/");
    assert_eq!(place.ok("ls small.img"), "");
    assert_eq!(place.ok("cat large.img:/file large.img:/tree/inner"), "contentinner");
}

#[test]
fn what_went_to_a_live_mount_is_durable_there() {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    host_files(&place);
    let Some(live) = Live::of(&place, "") else { return };
    place.ok("mv file tree mnt");
    assert!(!place.join("file").exists() && !place.join("tree").exists());
    copy_of_image(&place);
    assert_eq!(place.ok("cat copy.img:/file copy.img:/tree/inner"), "contentinner");
    live.end();
}

#[test]
fn the_same_file_and_another_name_of_it() {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    host_files(&place);
    fs::hard_link(place.join("file"), place.join("second")).unwrap();
    place.ok("cp file disk.img:/");
    place.ok("ln disk.img:/file disk.img:/second");
    place.ok("mkdir disk.img:/tree");
    for root in ["", "disk.img:/"] {
        for name in ["file", "tree"] {
            let said = place.fails(&format!("mv -- {root}{name} {root}{name}"));
            assert!(
                said.contains("same file") || said.contains("does not go into itself"),
                "{said}"
            );
        }
        place.ok(&format!("mv {root}file {root}second"));
        assert!(place.fails(&format!("stat {root}file")).contains("No such file"));
        place.ok(&format!("stat {root}second"));
    }
}

/// The directory that it goes into changes at the beginning only, and commits come in between as memory runs short.
#[test]
fn a_large_tree_that_was_moved_onto_a_mount_is_durable() {
    const FILES: usize = 12_000;
    let place = Place::new();
    place.ok("mkfs -q --size 1G disk.img");
    let Some(live) = Live::of(&place, "-o commit=300,memory=32M") else { return };
    fs::create_dir(place.join("tree")).unwrap();
    for number in 0..FILES {
        let name = format!("tree/a file with a name that takes its room, as names do: {number:06}");
        fs::write(place.join(&name), "some content").unwrap();
    }
    place.ok("mv tree mnt/");
    assert!(!place.join("tree").exists());
    copy_of_image(&place);
    let listed = place.ok("ls copy.img:/tree");
    assert_eq!(listed.lines().count(), FILES);
    let last = "a file with a name that takes its room, as names do: 000000";
    assert_eq!(place.run_words(&["cat", &format!("copy.img:/tree/{last}")]).text(), "some content");
    live.end();
}
