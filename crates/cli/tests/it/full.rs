//! What a copy leaves where there is no room for all of it: whole files, and how many.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::run::{Place, have_progs};

const MIB: usize = 1 << 20;

/// An image that has room for some of the files of a tree.
fn small_image_and_tree() -> Place {
    let place = Place::new();
    place.ok("mkfs -q --mixed -m single -d single --size 16M disk.img");
    fs::create_dir(place.join("tree")).unwrap();
    for number in 0..6 {
        fs::write(place.join(&format!("tree/{number}")), vec![number; 3 * MIB]).unwrap();
        fs::write(place.join(&format!("tree/{number}.small")), [number]).unwrap();
    }
    place
}

/// How many files of a copy there are, each of which must be like its original.
fn whole(copy: &Path, original: &Path) -> usize {
    let files = fs::read_dir(copy).unwrap().map(|file| file.unwrap().file_name());
    let like =
        |name| assert!(fs::read(copy.join(&name)).ok() == fs::read(original.join(name)).ok());
    files.map(like).count()
}

#[test]
fn files_that_do_not_fit_are_not_there_and_counted() {
    let place = small_image_and_tree();
    let said = place.fails("cp -r tree disk.img:/");
    place.ok("cp -r disk.img:/tree back");
    let count = whole(&place.join("back"), &place.join("tree"));
    let failed = 12 - count;
    assert!(count >= 6 && failed > 0, "{count}");
    let no_room = said.lines().filter(|line| line.ends_with("no space left on the filesystem"));
    assert_eq!(no_room.count(), failed, "{said}");
    let last =
        format!("buttress: not all was copied: {count} files were copied, {failed} could not be");
    assert_eq!(said.lines().next_back(), Some(&*last));

    place.ok("rm -r disk.img:/tree");
    let said = place.fails("--format json mv tree disk.img:/");
    let last: Value = serde_json::from_str(said.lines().next_back().unwrap()).unwrap();
    let (copied, failed) = (&last["error"]["copied"], &last["error"]["not_copied"]);
    assert_eq!(copied.as_u64().unwrap() + failed.as_u64().unwrap(), 12, "{said}");
    assert_eq!(fs::read_dir(place.join("tree")).unwrap().count(), 12);
    if have_progs() {
        place.check("disk.img");
    }
}

/// One failure of one file has said all there is to say.
#[test]
fn what_was_written_over_is_said_to_be() {
    let place = small_image_and_tree();
    place.ok("cp tree/0 disk.img:/file");
    fs::write(place.join("large"), vec![9; 32 * MIB]).unwrap();
    let said = place.fails("cp large disk.img:/file");
    assert_eq!(
        said,
        "buttress: cannot copy large to disk.img:/file: no space left on the filesystem\n  \
         What was there is written over, and what is there now is not whole.\n"
    );
    let said = place.fails("cp large disk.img:/new");
    assert_eq!(
        said,
        "buttress: cannot copy large to disk.img:/new: no space left on the filesystem\n"
    );
    assert_eq!(place.ok("ls disk.img"), "file\n");
}

#[test]
fn on_this_machine_as_well() {
    let place = small_image_and_tree();
    // No file may grow behind two MiB.
    let script = "trap '' XFSZ; ulimit -f 4096; exec \"$0\" cp -r tree copy";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(env!("CARGO_BIN_EXE_buttress")).current_dir(place.path());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.ends_with("all was copied: 6 files were copied, 6 could not be\n"), "{said}");
    assert_eq!(whole(&place.join("copy"), &place.join("tree")), 6);
}
