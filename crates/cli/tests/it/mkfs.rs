//! `mkfs`.

use std::fs::File;

use rustix::process::Signal;

use crate::run::{KernelMount, Place, Said, command_as, have_progs, run_as};
use crate::tree;

#[test]
fn a_file_is_created_and_btrfs_check_likes_it() {
    let place = Place::new();
    let text = place.ok("mkfs --size 256M -L hello disk.img");
    assert!(text.contains("Label:              hello\n"), "{text}");
    assert!(text.contains("Filesystem size:    256.00MiB\n"), "{text}");
    assert!(text.contains("    1   256.00MiB  disk.img\n"), "{text}");
    assert_eq!(place.join("disk.img").metadata().unwrap().len(), 256 << 20);
    if have_progs() {
        place.check("disk.img");
        let label = place.progs("btrfs", "filesystem label disk.img");
        assert_eq!(String::from_utf8_lossy(&label), "hello\n");
    }
}

#[test]
fn options_arrive() {
    let place = Place::new();
    let uuid = "01234567-89ab-cdef-0123-456789abcdef";
    let line = format!(
        "mkfs -q -U {uuid} -n 4k -m single -d dup --csum xxhash -O ^extref -R ^block-group-tree --size 300m a.img"
    );
    assert_eq!(place.ok(&line), "");
    let sb = &place.json("inspect-internal dump-super a.img")[0];
    assert_eq!(sb["fsid"], uuid);
    assert_eq!(sb["nodesize"], 4096);
    assert_eq!(sb["csum_type"], "xxhash64");
    assert_eq!(sb["incompat_flags"], 0x341 - 0x40);
    assert_eq!(sb["compat_ro_flags"], 3);
    assert_eq!(sb["total_bytes"], 300 << 20);
    if have_progs() {
        place.check("a.img");
    }
}

#[test]
fn json_says_what_was_made() {
    let place = Place::new();
    let made = place.json("mkfs --size 200M --mixed disk.img");
    assert_eq!(made["size"], 200 << 20);
    assert_eq!(made["profiles"]["metadata"]["profile"], "single");
    assert!(made["profiles"]["data"].is_null());
    assert_eq!(made["devices"][0]["path"], "disk.img");
}

#[test]
fn what_is_there_is_kept_without_force() {
    let place = Place::new();
    place.ok("mkfs -q --size 200M disk.img");
    let before = std::fs::read(place.join("disk.img")).unwrap();
    let said = place.fails("mkfs disk.img");
    assert_eq!(
        said,
        "buttress: cannot make a filesystem on disk.img: it appears to contain an existing filesystem (btrfs)\n  \
         To overwrite it, and lose what is there, add -f.\n"
    );
    assert!(before == std::fs::read(place.join("disk.img")).unwrap(), "the image changed");
    place.ok("mkfs -q -f disk.img");
    assert!(before != std::fs::read(place.join("disk.img")).unwrap(), "the image did not change");
}

#[test]
fn failures_leave_no_file_behind() {
    let place = Place::new();
    let said = place.fails("mkfs disk.img");
    assert_eq!(
        said,
        "buttress: cannot open disk.img: No such file or directory\n  \
         To create it: buttress mkfs --size 8G disk.img\n"
    );
    assert!(place.fails("mkfs --size 1M disk.img").contains("1.00MiB is too little"));
    let said = place.run_words(&["mkfs", "--size", "200M", "-L", "a\nb", "disk.img"]);
    assert!(said.err.contains("contains invalid characters"), "{}", said.err);
    assert!(!place.join("disk.img").exists());
    let existing = File::create(place.join("small.img")).unwrap();
    existing.set_len(1 << 20).unwrap();
    place.fails("mkfs small.img");
    assert!(place.join("small.img").exists());
    place.ok("mkfs -q --size 200M small.img");
}

#[test]
fn an_image_inside_an_image() {
    let place = Place::new();
    place.ok("mkfs -q --size 300M --offset 1M disk.img");
    assert_eq!(place.join("disk.img").metadata().unwrap().len(), 300 << 20);
    let sb = &place.json("inspect-internal dump-super --offset 1M disk.img")[0];
    assert_eq!(sb["total_bytes"], 299 << 20);
    assert_eq!(sb["csum_match"], true);
    assert!(place.fails("inspect-internal dump-super disk.img").contains("bad magic at 65536"));
}

#[test]
fn under_the_name_of_mkfs_btrfs() {
    let place = Place::new();
    let said = run_as("/usr/sbin/mkfs.btrfs", place.path(), &["-q", "-b", "200M", "disk.img"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    let list = run_as("mkfs.btrfs", place.path(), &["-O", "list-all"]);
    assert!(
        list.text().starts_with("Filesystem features available:\nmixed-bg "),
        "{}",
        list.text()
    );
}

#[test]
fn filled_from_a_directory() {
    let place = Place::new();
    tree::make(&place.join("tree"));
    let text =
        place.ok("mkfs --size 300M --rootdir tree -u ro:dir --subvol default:dir/below disk.img");
    assert!(text.contains("3 directories") || text.contains("4 directories"), "{text}");
    let want = tree::facts(&place.join("tree"));
    if have_progs() {
        place.check("disk.img");
    }
    let list = place.ok("subvolume list disk.img");
    let paths: Vec<_> = list.lines().filter_map(|line| line.split(" path ").nth(1)).collect();
    assert_eq!(paths, ["dir", "dir/below"]);
    assert_eq!(place.ok("property get disk.img:/dir ro"), "ro=true\n");
    assert!(place.ok("subvolume get-default disk.img").ends_with(" path dir/below\n"));
    place.ok("cp -a disk.img:/ out");
    let got = tree::facts(&place.join("out"));
    assert_eq!(got.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>());
    // Without subvolumes, which no hard link crosses, everything is the same.
    place.ok("mkfs -q --size 300M --rootdir tree plain.img");
    place.ok("cp -a plain.img:/ plain");
    tree::same("plain", &tree::facts(&place.join("plain")), &want);
    if let Some(mount) = KernelMount::of(&place, "plain.img") {
        tree::same("the kernel's view", &tree::facts(mount.path()), &want);
    }
}

#[test]
fn the_same_image_twice() {
    let place = Place::new();
    tree::make(&place.join("tree"));
    let make = |name: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_buttress"));
        command.args([
            "mkfs",
            "-q",
            "--size",
            "200M",
            "-U",
            "01234567-89ab-cdef-0123-456789abcdef",
        ]);
        command.args(["--rootdir", "tree", name]).current_dir(place.path());
        let command = command.env("SOURCE_DATE_EPOCH", "1700000000").env("DETERMINISTIC_SEED", "1");
        assert!(command.status().unwrap().success());
        std::fs::read(place.join(name)).unwrap()
    };
    assert!(make("one.img") == make("two.img"), "two runs made different images");
}

#[test]
fn what_does_not_fit_leaves_no_file_behind() {
    let place = Place::new();
    std::fs::create_dir(place.join("tree")).unwrap();
    std::fs::write(place.join("tree/large"), vec![3; 150 << 20]).unwrap();
    let said = place.fails("mkfs --size 120M --rootdir tree disk.img");
    assert!(said.contains("cannot fill disk.img from tree: "), "{said}");
    assert!(said.ends_with("\n  Give it more room with --size.\n"), "{said}");
    assert!(!place.join("disk.img").exists());
    assert_eq!(place.run("mkfs --size 200M --subvol x disk.img").code, 2);
}

/// With --rootdir a file that is not there becomes as large as what is to be in it takes, and with --shrink it ends behind the last block group.
#[test]
fn an_image_is_as_large_as_its_content_takes() {
    let place = Place::new();
    tree::make(&place.join("tree"));
    std::fs::create_dir(place.join("many")).unwrap();
    for number in 0..2000 {
        std::fs::write(place.join(&format!("many/{number:0100}")), vec![7; 5000]).unwrap();
        std::fs::write(place.join(&format!("many/small{number:0100}")), vec![7; 1500]).unwrap();
    }
    std::fs::create_dir(place.join("large")).unwrap();
    std::fs::write(place.join("large/file"), vec![7; 128 << 20]).unwrap();
    std::fs::hard_link(place.join("large/file"), place.join("large/link")).unwrap();
    std::fs::create_dir(place.join("holes")).unwrap();
    File::create(place.join("holes/hole")).unwrap().set_len(1 << 40).unwrap();
    let len = |name: &str| std::fs::metadata(place.join(name)).unwrap().len();
    for (from, options, most) in [
        ("tree", "", 300),
        ("many", "-M", 700),
        ("many", "-d dup -n 4k --csum sha256", 900),
        ("large", "", 400),
    ] {
        let made = place.json(&format!("mkfs {options} --rootdir {from} disk.img"));
        assert_eq!(made["size"], len("disk.img"));
        assert!(len("disk.img") < most << 20, "{from} {options}: {}", len("disk.img"));
        place.check("disk.img");
        let made = place.json(&format!("mkfs {options} --shrink --rootdir {from} shrunk.img"));
        assert_eq!(made["size"], len("shrunk.img"));
        assert!(len("shrunk.img") < len("disk.img"), "{from} {options}");
        let usage = place.json("filesystem usage shrunk.img");
        // What `mkfs.btrfs` leaves free at the start.
        assert!(usage["overall"]["device-unallocated"].as_u64().unwrap() <= 21 << 20, "{usage}");
        place.check("shrunk.img");
        place.ok("cp -a disk.img:/ one");
        place.ok("cp -a shrunk.img:/ two");
        tree::same("shrunk", &tree::facts(&place.join("two")), &tree::facts(&place.join("one")));
        if let Some(mount) = KernelMount::of(&place, "shrunk.img") {
            assert!(mount.path().read_dir().unwrap().count() > 0);
        }
        for made in ["one", "two"] {
            std::fs::remove_dir_all(place.join(made)).unwrap();
        }
        std::fs::remove_file(place.join("disk.img")).unwrap();
        std::fs::remove_file(place.join("shrunk.img")).unwrap();
    }
    place.ok("mkfs -q --rootdir holes disk.img");
    assert!(len("disk.img") < 200 << 20, "{}", len("disk.img"));
    std::fs::remove_file(place.join("disk.img")).unwrap();
    assert_eq!(place.run("mkfs --shrink --size 200M disk.img").code, 2);
    // What lies behind it in its file stays.
    place.ok("mkfs -q --size 1G -b 300M --rootdir tree --shrink disk.img");
    assert_eq!(len("disk.img"), 1 << 30);
    place.ok("mkfs -q --size 2G --offset 1G --rootdir tree --shrink disk.img");
    assert_eq!(len("disk.img"), 2 << 30);
    place.ok("check --offset 1G disk.img");
    // Made again in its place it grows where it has to, and only then.
    place.ok("mkfs -q --rootdir tree --shrink again.img");
    let before = len("again.img");
    place.ok("mkfs -q -f --rootdir tree --shrink again.img");
    assert_eq!(len("again.img"), before);
    let said = place.fails("mkfs -q --rootdir large again.img");
    assert!(said.contains("-f") && len("again.img") == before, "{said}");
    place.ok("mkfs -q -f --rootdir large again.img");
    assert!(len("again.img") > before);
    place.check("again.img");
    let before = len("again.img");
    place.ok("mkfs -q -f --rootdir tree again.img");
    assert_eq!(len("again.img"), before);
    let said = place.fails("mkfs --rootdir absent new.img");
    assert!(said.contains("absent") && !place.join("new.img").exists(), "{said}");
}

/// As its specification has it, a time that is none is refused.
#[test]
fn a_time_that_is_none_is_refused() {
    let place = Place::new();
    for (time, why) in [
        ("", "it is set and empty"),
        ("soon", "it is no number of seconds"),
        ("+5", "it is no number of seconds"),
        ("-5", "it is no number of seconds"),
        ("1.5", "it is no number of seconds"),
        ("18446744073709551615", "it is no number of seconds"),
    ] {
        let args = ["mkfs", "--size", "200M", "disk.img"];
        let mut command = command_as("buttress", place.path(), &args);
        let said = Said::of(command.env("SOURCE_DATE_EPOCH", time).output().unwrap());
        assert_eq!(said.code, 2, "{time}: {}", said.err);
        assert!(said.err.contains("cannot use SOURCE_DATE_EPOCH: "), "{}", said.err);
        assert!(said.err.contains(why) && said.err.contains("or unset it"), "{}", said.err);
        assert!(!place.join("disk.img").exists());
    }
    let help = place.ok("mkfs --help");
    assert!(help.contains("SOURCE_DATE_EPOCH") && help.contains("DETERMINISTIC_SEED"), "{help}");
}

#[test]
fn no_file_is_longer_than_files_can_be() {
    let place = Place::new();
    for size in ["8E", "15E"] {
        let said = place.fails(&format!("mkfs --size {size} disk.img"));
        assert!(said.contains("File too large"), "{said}");
        assert!(!place.join("disk.img").exists());
    }
}

#[test]
fn an_interrupted_filesystem_is_none_or_has_everything() {
    let place = Place::new();
    std::fs::create_dir(place.join("tree")).unwrap();
    for name in 0..400 {
        std::fs::write(place.join(&format!("tree/{name}")), vec![7; 100_000]).unwrap();
    }
    let signals = [Signal::TERM, Signal::INT, Signal::HUP, Signal::KILL];
    for (round, signal) in signals.iter().cycle().take(32).enumerate() {
        let _ = std::fs::remove_file(place.join("disk.img"));
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_buttress"));
        command.args(["mkfs", "-q", "--size", "300M", "--rootdir", "tree", "disk.img"]);
        let mut child = command.current_dir(place.path()).spawn().unwrap();
        // Later from round to round, so that something of everything is met.
        std::thread::sleep(std::time::Duration::from_millis(round as u64 * 4));
        let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&child), *signal);
        let done = child.wait().unwrap().success();
        if !done && *signal != Signal::KILL {
            assert!(!place.join("disk.img").exists(), "{signal:?} leaves a file");
            continue;
        }
        let said = place.run("ls disk.img:/");
        match said.code {
            0 => assert_eq!(said.text().lines().count(), 400),
            _ => assert!(!done, "{}", said.err),
        }
    }
}
