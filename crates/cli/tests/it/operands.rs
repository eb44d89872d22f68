//! Destinations that are links or devices, names with a slash or dots at their end, and operands that cannot be.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::live::Live;
use crate::run::Place;

fn image() -> Place {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    for name in ["one", "two"] {
        fs::write(place.join(name), name).unwrap();
    }
    place
}

#[test]
fn a_link_named_as_the_destination_is_written_through() {
    let place = image();
    fs::create_dir(place.join("dir")).unwrap();
    place.ok("mkdir disk.img:/dir");
    place.ok("cp one disk.img:/file");
    place.ok("cp one file");
    for root in ["", "disk.img:/"] {
        place.ok(&format!("ln -s ../file {root}dir/near"));
        place.ok(&format!("ln -s dir/near {root}far"));
        place.ok(&format!("ln -s nowhere {root}dangling"));
        for (source, options, target) in
            [("two", "", "far"), ("one", "-a", "far"), ("two", "-T", "dir/near")]
        {
            place.ok(&format!("cp {options} {source} {root}{target}"));
            assert_eq!(place.ok(&format!("cat {root}file")), source);
            assert!(place.ok(&format!("ls -l {root}far")).contains("far -> dir/near"));
        }
        let said = place.fails(&format!("cp one {root}dangling"));
        assert!(said.contains("cannot write through") && said.contains("leads nowhere"), "{said}");
        // One that is met in a directory, or is to be moved onto, gives way.
        place.ok(&format!("cp -T one {root}near"));
        place.ok(&format!("mv {root}near {root}far"));
        assert!(!place.ok(&format!("ls -l {root}far")).contains("->"));
        assert_eq!(place.ok(&format!("cat {root}file {root}far")), "twoone");
    }
}

#[test]
fn links_that_go_round_are_no_destination() {
    let place = image();
    place.ok("ln -s b disk.img:/a");
    place.ok("ln -s a disk.img:/b");
    let said = place.fails("cp one disk.img:/a");
    assert!(said.contains("Too many levels of symbolic links"), "{said}");
}

#[test]
fn streams_named_by_links_stay_what_they_are() {
    let place = image();
    place.ok("cp one disk.img:/");
    symlink("/dev/stdout", place.join("out")).unwrap();
    symlink("/dev/null", place.join("null")).unwrap();
    for target in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "out"] {
        assert_eq!(place.ok(&format!("cp disk.img:/one {target}")), "one");
        let file = fs::File::create(place.join("redirected")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_buttress"));
        command.args(["cp", "disk.img:/one", target]).current_dir(place.path()).stdout(file);
        assert!(command.status().unwrap().success());
        assert_eq!(fs::read_to_string(place.join("redirected")).unwrap(), "one");
    }
    for options in ["", "-a", "-T", "-p"] {
        place.ok(&format!("cp {options} disk.img:/one null"));
    }
    assert!(place.join("null").is_symlink() && place.join("out").is_symlink());
}

#[test]
fn a_slash_at_the_end_means_a_directory() {
    let place = image();
    place.ok("mkdir disk.img:/d");
    fs::create_dir(place.join("d")).unwrap();
    for root in ["", "disk.img:/"] {
        place.ok(&format!("cp one {root}f"));
        place.ok(&format!("ln -s d {root}link"));
        slashes(&place, root);
    }
    if let Some(live) = Live::of(&place, "") {
        slashes(&place, "mnt/");
        live.end();
    }
}

fn slashes(place: &Place, root: &str) {
    for line in [
        "rm ROOTf/",
        "rm -r ROOTlink/",
        "ls ROOTf/",
        "cat ROOTf/",
        "cp ROOTf/ out",
        "mv ROOTf/ ROOTg",
        "mv ROOTlink/ ROOTg",
        "mv ROOTf ROOTd/no/",
        "cp one ROOTno/",
        "cp -T one ROOTno/",
        "cp one ROOTf/",
        "cp ROOTf ROOTd/no/",
    ] {
        let line = line.replace("ROOT", root);
        let said = place.fails(&line);
        assert!(said.contains("Not a directory"), "{line}: {said}");
    }
    assert_eq!(place.ok(&format!("ls {root}d")), "");
    assert_eq!(place.ok(&format!("cat {root}f")), "one");
    // Directories are fine.
    for line in [
        "mkdir ROOTe/",
        "mv ROOTe/ ROOTd/",
        "mv ROOTd/e/ ROOTe/",
        "ls ROOTlink/",
        "cp one ROOTlink/",
        "rm ROOTd/one",
        "rm -r ROOTe/",
    ] {
        place.ok(&line.replace("ROOT", root));
    }
}

#[test]
fn names_of_dots_are_not_removed() {
    let place = Place::new();
    place.ok("mkfs -q --size 200M disk.img");
    place.ok("mkdir -p disk.img:/t/u");
    std::fs::create_dir_all(place.join("here/below")).unwrap();
    for target in ["disk.img:/t/..", "disk.img:/t/.", "disk.img:..", "here/..", "here/.", "here/./"]
    {
        let said = place.fails(&format!("rm -rf {target}"));
        assert!(
            said.contains("it ends with `.` or `..`\n  Name the directory"),
            "{target}: {said}"
        );
    }
    assert_eq!(place.ok("ls disk.img:/t"), "u\n");
    assert!(place.join("here/below").exists());
}

#[test]
fn a_partition_that_is_not_there() {
    let place = Place::new();
    std::fs::create_dir(place.join("mnt")).unwrap();
    for line in [
        "ls /dev/loop999p1:/",
        "ls /dev/loop999p1",
        "mount /dev/loop999p1 mnt",
        "check /dev/loop999p1",
    ] {
        let said = place.fails(line);
        assert!(said.contains("`partx -a /dev/loop999`"), "{line}: {said}");
    }
}

#[test]
fn the_target_of_a_link_is_too_long_and_not_its_name() {
    let place = Place::new();
    place.ok("mkfs -q --size 200M disk.img");
    let (fits, long) = ("x".repeat(4095), "x".repeat(4096));
    place.ok(&format!("ln -s {fits} disk.img:/link"));
    let said = place.fails(&format!("ln -s {long} disk.img:/other"));
    assert!(said.contains("a link leads to a path of less than 4096 bytes"), "{said}");
}

#[test]
fn an_offset_behind_the_end() {
    let place = Place::new();
    place.ok("mkfs -q --size 200M disk.img");
    let said = place.fails("ls disk.img --offset 1T");
    assert!(said.contains("it ends at 200.00MiB, before --offset 1.00TiB"), "{said}");
}
