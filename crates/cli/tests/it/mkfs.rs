//! `mkfs`.

use std::fs::File;

use crate::run::{Place, have_progs, run_as};

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
    assert!(place.fails("mkfs --size 1M disk.img").contains("1048576 bytes are too few"));
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
