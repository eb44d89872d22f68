//! Logs that wait: shown, replayed, left alone, given up; and what `btrfs rescue zero-log` says to the same. What is read without the trees that no
//! file is read by, and without checksums.

use std::path::Path;

use buttress_testkit::corpus::edit_super;
use buttress_testkit::oracle::{self, KernelMount, copy_sparse, root_or_skip};

use crate::run::{Place, have_progs, run_as};

/// An image with a log: /a is committed, the file "logged" is in the log only.
fn with_log(place: &Place) {
    let image = place.join("live.img");
    oracle::mkfs(&image, 256 << 20, &[]).unwrap();
    let mount = KernelMount::new(&image, "commit=3600").unwrap();
    let put = |name: &str| {
        let file = std::fs::File::create(mount.path().join(name)).unwrap();
        file.sync_all().unwrap();
    };
    put("a");
    mount.sync().unwrap();
    put("logged");
    put("logged");
    for name in ["disk.img", "other.img"] {
        copy_sparse(&image, &place.join(name)).unwrap();
    }
    mount.finish().unwrap();
}

/// An image that was copied while Linux had it, after these scripts, which commit only by `sync -f`.
fn logged(place: &Place, scripts: &[&str]) {
    let image = place.join("live.img");
    oracle::mkfs(&image, 256 << 20, &[]).unwrap();
    let mount = KernelMount::new(&image, "commit=3600").unwrap();
    for script in scripts {
        let mut command = std::process::Command::new("sh");
        oracle::run(command.args(["-e", "-c", script]).current_dir(mount.path())).unwrap();
    }
    copy_sparse(&image, &place.join("disk.img")).unwrap();
    mount.finish().unwrap();
}

fn bytes(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

#[test]
fn a_log_is_shown_left_alone_given_up_or_replayed() {
    if !root_or_skip() || !have_progs() {
        return;
    }
    let place = Place::new();
    with_log(&place);
    let before = bytes(&place.join("disk.img"));
    assert_eq!(place.ok("ls -q disk.img"), "a\nlogged\n");
    assert_eq!(place.ok("ls -q --rescue nologreplay disk.img"), "a\n");
    let said = place.fails("mkdir --rescue nologreplay disk.img:/d");
    assert!(said.contains("nologreplay") && said.contains("read-only"), "{said}");
    assert!(bytes(&place.join("disk.img")) == before, "reading has written");

    let said = place.ok("rescue zero-log disk.img");
    let theirs = place.progs("btrfs", "rescue zero-log other.img");
    let theirs = String::from_utf8_lossy(&theirs).replace("other.img", "disk.img");
    assert_eq!(said, theirs);
    place.check("disk.img");
    assert_eq!(place.ok("ls disk.img"), "a\n");
    let said = place.json("rescue zero-log disk.img");
    assert_eq!(said["log_root"], 0);

    std::fs::write(place.join("disk.img"), &before).unwrap();
    place.ok("mkdir disk.img:/d");
    assert_eq!(place.ok("ls disk.img"), "a\nd\nlogged\n");
    place.check("disk.img");
    let said = run_as("buttress", place.path(), &["rescue", "zero-log", "nothing.img"]);
    assert_eq!(said.code, 1);
}

/// Who asks for rescue and forgets -o ro hears of that, whichever words he has given.
#[test]
fn rescue_options_want_a_mount_to_be_read_only() {
    let place = Place::new();
    place.ok("mkfs -q --size 200M disk.img");
    std::fs::create_dir(place.join("mnt")).unwrap();
    let before = bytes(&place.join("disk.img"));
    let all = "options nologreplay, ignorebadroots, ignoredatacsums, ignoremetacsums, ignoresuperflags, usebackuproot are for reading;";
    for (words, says) in [
        ("all", all),
        ("ibadroots:usebackuproot", "options ignorebadroots, usebackuproot are for reading;"),
        ("nologreplay", "option nologreplay is for reading, as writing"),
        ("ignorebadroots", "option ignorebadroots is for reading, as"),
        ("idatacsums", "option ignoredatacsums is for reading, as"),
        ("imetacsums", "option ignoremetacsums is for reading, as"),
        ("isuperflags", "option ignoresuperflags is for reading, as"),
        ("usebackuproot", "option usebackuproot is for reading, as"),
    ] {
        for line in [
            format!("mkdir --rescue {words} disk.img:/d"),
            format!("mount -o rescue={words} disk.img mnt"),
            format!("mount --rescue {words} disk.img mnt"),
        ] {
            let said = place.fails(&line);
            assert!(said.contains("can only be opened read-only: the rescue "), "{line}: {said}");
            assert!(
                said.contains(says) && said.contains("; read only (for a mount: -o ro), or leave"),
                "{line}: {said}"
            );
        }
    }
    assert!(bytes(&place.join("disk.img")) == before);
}

/// What files share and take is told of an image with a log as btrfs-progs tells it when Linux has replayed it.
#[test]
fn who_shares_what_is_told_as_after_the_replay() {
    if !root_or_skip() || !have_progs() {
        return;
    }
    let place = Place::new();
    logged(
        &place,
        &[
            "head -c 300000 /dev/urandom > a; head -c 200000 /dev/urandom > c; sync -f .",
            "btrfs -q subvolume snapshot . s; sync -f .; cp --reflink=always a b; sync b",
            "head -c 8192 /dev/urandom | dd of=c conv=notrunc status=none; sync c",
        ],
    );
    let before = bytes(&place.join("disk.img"));
    let ours = |line: &str| place.ok(&line.replace("HERE", "disk.img:/"));
    let lines = [
        "filesystem du --raw HERE",
        "inspect-internal fiemap -v HEREb",
        "subvolume find-new HERE 1",
    ];
    let told = lines.map(|line| ours(&format!("-q {line}")));
    assert!(bytes(&place.join("disk.img")) == before, "reading has written");

    let mount = KernelMount::new(&place.join("disk.img"), "").unwrap();
    let theirs = |line: &str| {
        let at = format!("{}/", mount.path().display());
        let said = place.progs("btrfs", &line.replace("HERE", &at));
        String::from_utf8(said).unwrap().replace(&at, "disk.img:/")
    };
    let [du, new] = [0, 2].map(|at| theirs(lines[at]));
    mount.finish().unwrap();
    assert_eq!(told[0], du);
    // A mount for writing makes commits of its own.
    let extents = |said: &str| said.rsplit_once("transid marker").map(|it| it.0.to_owned());
    assert!(extents(&new).is_some());
    assert_eq!(extents(&told[2]), extents(&new));
    assert!(told[1].contains("shared"), "{}", told[1]);
    assert_eq!(told[1], ours(&format!("-q {}", lines[1])));
}

/// Where nothing could be committed, not even in memory, what is shared is of the last commit, and that is said once.
#[test]
fn what_cannot_be_replayed_is_told_of_the_last_commit() {
    if !root_or_skip() || !have_progs() {
        return;
    }
    let place = Place::new();
    logged(
        &place,
        &["head -c 300000 /dev/urandom > a; sync -f .; cp --reflink=always a b; sync b"],
    );
    // A feature that nobody knows and that allows reading only.
    const COMPAT_RO: usize = 0xb4;
    edit_super(&place.join("disk.img"), |bytes| bytes[COMPAT_RO + 7] |= 0x80).unwrap();
    let said = place.run("filesystem du --raw disk.img:/a disk.img:/b");
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(said.err.matches("told of the last commit").count(), 1, "{}", said.err);
    assert_eq!(place.ok("-q ls disk.img"), "a\nb\n");
}

/// Where in an image all copies of all blocks of some trees are, those of older commits, too.
fn tree_blocks(image: &[u8], wanted: impl Fn(u64) -> bool) -> Vec<usize> {
    let fsid = &image[0x10020..0x10030];
    let is_of_tree = |at: &usize| {
        let owner = |head: &[u8]| u64::from_le_bytes(head[88..96].try_into().unwrap());
        let head = image.get(*at..*at + NODE);
        head.is_some_and(|head| head[32..48] == *fsid && wanted(owner(head)))
    };
    (1 << 20..image.len()).step_by(4096).filter(is_of_tree).collect()
}

const NODE: usize = 16384;

/// Zeroes them of a tree; how many.
fn zero_tree(place: &Place, image: &str, tree: u64) -> usize {
    let mut bytes = bytes(&place.join(image));
    let found = tree_blocks(&bytes, |owner| owner == tree);
    found.iter().for_each(|at| bytes[*at..at + NODE].fill(0));
    std::fs::write(place.join(image), &bytes).unwrap();
    found.len()
}

const BLOCK_GROUPS: u64 = 11;
const EXTENTS: u64 = 2;
const CHECKSUMS: u64 = 7;
const FILES: u64 = 5;
const ROOTS: u64 = 1;
const CHUNKS: u64 = 3;

fn with_file() -> (Place, Vec<u8>) {
    let place = Place::new();
    place.ok("mkfs -q --size 200M disk.img");
    let content: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(place.join("file"), &content).unwrap();
    place.ok("cp file disk.img:/file");
    (place, content)
}

#[test]
fn files_are_read_without_the_trees_for_space() {
    let (place, content) = with_file();
    for tree in [EXTENTS, BLOCK_GROUPS] {
        assert!(zero_tree(&place, "disk.img", tree) >= 2, "{tree}");
    }
    let before = bytes(&place.join("disk.img"));
    let said = place.run("ls disk.img");
    assert_eq!((said.code, said.text().as_str()), (0, "file\n"), "{}", said.err);
    assert!(said.err.contains("block groups are cannot be read"), "{}", said.err);
    let said = place.run("-q cat disk.img:/file");
    assert!(said.code == 0 && said.out == content, "{}", said.err);
    let said = place.fails("mkdir disk.img:/d");
    assert!(said.contains("--rescue usebackuproot") && said.contains("-o ro"), "{said}");
    // Several times it collects, also in front of the command and behind it.
    for line in [
        "--rescue ibadroots --rescue nologreplay cat disk.img:/file",
        "--rescue ibadroots cat --rescue nologreplay disk.img:/file",
        "cat --rescue=ibadroots disk.img:/file --rescue nologreplay",
    ] {
        let said = place.run(line);
        assert!(said.code == 0 && said.out == content, "{line}: {}", said.err);
        assert!(said.err.contains("the extent tree (2) cannot be read"), "{line}: {}", said.err);
    }
    for words in ["ignorebadroots", "nologreplay:ibadroots", "all"] {
        let said = place.run(&format!("--rescue {words} cat disk.img:/file"));
        assert!(said.code == 0 && said.out == content, "{}", said.err);
        assert!(said.err.contains("the extent tree (2) cannot be read"), "{}", said.err);
        let said = place.fails(&format!("--rescue {words} mkdir disk.img:/d"));
        assert!(said.contains("only be opened read-only"), "{said}");
    }
    assert!(bytes(&place.join("disk.img")) == before, "reading has written");
}

#[test]
fn data_without_checksums_are_read_on_request() {
    let (place, content) = with_file();
    assert!(zero_tree(&place, "disk.img", CHECKSUMS) >= 2);
    let said = place.fails("cat disk.img:/file");
    assert!(said.contains("--rescue ignoredatacsums"), "{said}");
    for words in ["ignoredatacsums", "idatacsums", "ignorebadroots", "all"] {
        let said = place.run(&format!("--rescue {words} cat disk.img:/file"));
        assert!(said.code == 0 && said.out == content, "{words}: {}", said.err);
    }
    let said = place.fails("--rescue ignoredatacsums mkdir disk.img:/d");
    assert!(said.contains("ignoredatacsums") && said.contains("read only"), "{said}");
}

#[test]
fn blocks_with_wrong_checksums_and_unfinished_changes_are_read_on_request() {
    let (place, content) = with_file();
    let mut spoilt = bytes(&place.join("disk.img"));
    let blocks = tree_blocks(&spoilt, |owner| [FILES, CHECKSUMS, ROOTS, CHUNKS].contains(&owner));
    assert!(blocks.len() >= 8);
    blocks.into_iter().for_each(|at| spoilt[at] ^= 1);
    std::fs::write(place.join("disk.img"), &spoilt).unwrap();
    let said = place.fails("cat disk.img:/file");
    assert!(said.contains("checksum mismatch") && said.contains("--rescue all"), "{said}");
    for words in ["ignoremetacsums", "imetacsums", "all"] {
        let said = place.run(&format!("--rescue {words} cat disk.img:/file"));
        assert!(said.code == 0 && said.out == content, "{words}: {}", said.err);
    }
    // The flag of checksums that are being changed (BTRFS_SUPER_FLAG_CHANGING_META_CSUM).
    const FLAGS: usize = 0x38;
    edit_super(&place.join("disk.img"), |bytes| bytes[FLAGS + 5] |= 1).unwrap();
    let said = place.fails("--rescue ignoremetacsums cat disk.img:/file");
    assert!(said.contains("--rescue ignoresuperflags"), "{said}");
    for words in ["imetacsums:ignoresuperflags", "imetacsums:isuperflags", "all"] {
        let said = place.run(&format!("--rescue {words} cat disk.img:/file"));
        assert!(said.code == 0 && said.out == content, "{words}: {}", said.err);
    }
    assert!(place.fails("--rescue all mkdir disk.img:/d").contains("only be opened read-only"));
}

#[test]
fn what_files_are_read_by_is_missed_and_what_to_try_is_said() {
    let (place, _) = with_file();
    let whole = bytes(&place.join("disk.img"));
    for tree in [ROOTS, CHUNKS, FILES] {
        std::fs::write(place.join("disk.img"), &whole).unwrap();
        assert!(zero_tree(&place, "disk.img", tree) >= 2);
        let said = place.fails("ls disk.img");
        assert!(said.contains("--rescue usebackuproot"), "{tree}: {said}");
        assert!(said.contains("-o ro,rescue=usebackuproot"), "{tree}: {said}");
    }
    let said = place.run("--rescue nonsense ls disk.img");
    assert_eq!(said.code, 2);
    assert!(said.err.contains("ignoredatacsums (idatacsums)"), "{}", said.err);
}

#[test]
fn a_mount_reads_without_what_no_file_is_read_by() {
    if !Path::new("/dev/fuse").exists() {
        println!("skipped: there is no /dev/fuse");
        return;
    }
    let (place, content) = with_file();
    std::fs::create_dir(place.join("mnt")).unwrap();
    for tree in [EXTENTS, BLOCK_GROUPS] {
        zero_tree(&place, "disk.img", tree);
    }
    let said = place.fails("mount disk.img mnt");
    assert!(said.contains("-o ro,rescue=usebackuproot"), "{said}");
    let reads = |options: &str| {
        let said = place.run(&format!("mount -o {options} disk.img mnt"));
        assert_eq!(said.code, 0, "{options}: {}", said.err);
        assert!(std::fs::read(place.join("mnt/file")).unwrap() == content, "{options}");
        let stat = rustix::fs::statvfs(place.join("mnt")).unwrap();
        assert!(stat.f_bfree > 0 && stat.f_bfree < stat.f_blocks, "{options}");
        assert_eq!(place.umount("mnt").code, 0);
    };
    reads("ro");
    reads("ro,rescue=ignorebadroots:nologreplay");
    zero_tree(&place, "disk.img", CHECKSUMS);
    reads("ro,rescue=idatacsums");
    reads("ro,rescue=imetacsums:isuperflags:idatacsums");
    reads("ro,rescue=all");
    for words in ["all", "ignorebadroots", "ignoredatacsums"] {
        let said = place.fails(&format!("mount -o rescue={words} disk.img mnt"));
        assert!(said.contains("-o ro"), "{said}");
    }
}
