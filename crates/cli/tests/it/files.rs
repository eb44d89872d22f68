//! `ls`, `cat`, `cp`, `mkdir`, `rm`, `mv`, `ln` and `stat` on unmounted images.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use crate::run::{KernelMount, Place, have_progs};
use crate::tree;

fn image() -> Place {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    place
}

fn check(place: &Place) {
    if have_progs() {
        place.check("disk.img");
    }
}

#[test]
fn a_tree_goes_in_and_comes_out_the_same() {
    let place = image();
    tree::make(&place.join("tree"));
    place.ok("cp -a tree disk.img:/");
    check(&place);
    let want = tree::facts(&place.join("tree"));
    if let Some(mount) = KernelMount::of(&place, "disk.img") {
        tree::same("the kernel's view", &tree::facts(&mount.path().join("tree")), &want);
    }
    place.ok("cp -a disk.img:/tree back");
    tree::same("what came back", &tree::facts(&place.join("back")), &want);
    let blocks =
        |path: &str| std::os::unix::fs::MetadataExt::blocks(&place.join(path).metadata().unwrap());
    assert!(blocks("back/dir/sparse") < 1 << 10, "holes stay holes");
}

#[test]
fn a_kernel_made_tree_comes_out_the_same() {
    let place = image();
    let Some(mount) = KernelMount::of(&place, "disk.img") else { return };
    tree::make(&mount.path().join("tree"));
    let want = tree::facts(&mount.path().join("tree"));
    drop(mount);
    place.ok("cp -a disk.img:/ out");
    tree::same("what came out", &tree::facts(&place.join("out/tree")), &want);
}

#[test]
fn copies_within_an_image_share_their_data() {
    let place = image();
    std::fs::write(place.join("large"), vec![7; 8 << 20]).unwrap();
    place.ok("cp large disk.img:/");
    let used = || place.json("filesystem df disk.img")[0]["used"].as_u64().unwrap();
    let before = used();
    assert!(before >= 8 << 20);
    place.ok("mkdir disk.img:/copies");
    place.ok("cp disk.img:/large disk.img:/copies");
    place.ok("cp -T disk.img:/large disk.img:/copies/second");
    assert_eq!(used(), before);
    let said = place.run("cat disk.img:/copies/second");
    assert!(said.out == vec![7; 8 << 20]);
    check(&place);
}

#[test]
fn copies_overwrite_and_replace() {
    let place = image();
    std::fs::write(place.join("one"), "long content").unwrap();
    std::fs::write(place.join("two"), "short").unwrap();
    place.ok("cp one disk.img:/file");
    place.ok("cp two disk.img:/file");
    assert_eq!(place.ok("cat disk.img:/file"), "short");
    place.ok("cp -n one disk.img:/file");
    assert_eq!(place.ok("cat disk.img:/file"), "short");
    // A link in the destination is replaced, not written through, unless it is the one that was named.
    place.ok("ln -s file disk.img:/link");
    std::fs::copy(place.join("one"), place.join("link")).unwrap();
    place.ok("cp link disk.img:/");
    std::fs::remove_file(place.join("link")).unwrap();
    assert_eq!(place.ok("cat disk.img:/file disk.img:/link"), "shortlong content");
    place.ok("cp disk.img:/file disk.img:/link .");
    assert_eq!(std::fs::read_to_string(place.join("link")).unwrap(), "long content");
    check(&place);
}

#[test]
fn listings() {
    let place = image();
    place.ok("mkdir -m 750 disk.img:/dir");
    std::fs::write(place.join("file"), "12345").unwrap();
    place.ok("cp file disk.img:/dir");
    place.ok("cp file disk.img:/dir/.hidden");
    place.ok("ln -s dir/file disk.img:/link");
    assert_eq!(place.ok("ls disk.img"), "dir\nlink\n");
    assert_eq!(
        place.ok("ls disk.img:/dir disk.img:"),
        "disk.img:/dir:\nfile\n\ndisk.img:/:\ndir\nlink\n"
    );
    assert_eq!(place.ok("ls -a disk.img:dir"), ".hidden\nfile\n");
    assert_eq!(place.ok("ls -R disk.img"), "disk.img:/:\ndir\nlink\n\ndisk.img:/dir:\nfile\n");
    let long = place.ok("ls -l disk.img:/");
    let lines: Vec<Vec<&str>> =
        long.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((lines[0][0], lines[0][7]), ("drwxr-x---", "dir"));
    assert_eq!(lines[1][7..], ["link", "->", "dir/file"]);
    let found = place.json("ls disk.img:/dir/file");
    assert_eq!((&found[0]["size"], &found[0]["type"]), (&5.into(), &"file".into()));
    let stat = place.ok("stat disk.img:/link");
    assert!(stat.starts_with("  File: disk.img:/link -> dir/file\n"), "{stat}");
    assert_eq!(place.json("stat -L disk.img:/link")[0]["size"], 5);
    assert_eq!(place.json("stat disk.img:/dir")[0]["mode"], "0750");
}

/// Options of `cp`, `mv`, `ls`, `rm` and `ln` that no other test is about.
#[test]
fn options_of_files() {
    let place = image();
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    std::fs::write(place.join("file"), "content").unwrap();
    let file = std::fs::File::options().write(true).open(place.join("file")).unwrap();
    file.set_modified(old).unwrap();
    file.set_permissions(std::fs::Permissions::from_mode(0o604)).unwrap();
    std::os::unix::fs::symlink("file", place.join("link")).unwrap();

    for (option, kept) in [("-p", true), ("-a", true), ("", false)] {
        place.ok(&format!("cp {option} file disk.img:/file"));
        place.ok(&format!("cp {option} disk.img:/file back"));
        let back = place.join("back").metadata().unwrap();
        assert_eq!(back.modified().unwrap() == old, kept, "{option}");
        std::fs::remove_file(place.join("back")).unwrap();
    }
    place.ok("cp -p file disk.img:/kept");
    assert_eq!(place.json("stat disk.img:/kept")[0]["mode"], "0604");

    place.ok("cp -a link disk.img:/as-link");
    place.ok("cp -aL link disk.img:/as-file");
    let kinds = place.json("ls -d disk.img:/as-link disk.img:/as-file");
    assert_eq!((&kinds[0]["type"], &kinds[1]["type"]), (&"symlink".into(), &"file".into()));

    std::fs::write(place.join("other"), "other").unwrap();
    place.ok("mv -n other disk.img:/kept");
    assert!(place.join("other").exists());
    assert_eq!(place.ok("cat disk.img:/kept"), "content");

    place.ok("mkdir -p disk.img:/full/empty");
    assert_eq!(place.ok("ls -d disk.img:/full"), "disk.img:/full\n");
    assert!(place.fails("rm disk.img:/full/empty").contains("Is a directory"));
    assert!(place.fails("rm -d disk.img:/full").contains("Directory not empty"));
    place.ok("rm -d disk.img:/full/empty");
    place.ok("rm -d disk.img:/full");

    assert!(place.fails("ln -s elsewhere disk.img:/kept").contains("File exists"));
    place.ok("ln -sf elsewhere disk.img:/kept");
    assert!(place.ok("stat disk.img:/kept").contains("kept -> elsewhere"));
    check(&place);
}

#[test]
fn making_moving_removing() {
    let place = image();
    place.ok("mkdir -p disk.img:/a/b/c disk.img:/a/d");
    place.ok("mkdir -p disk.img:/a/b");
    std::fs::write(place.join("file"), "x").unwrap();
    place.ok("cp file disk.img:/a/b/f");
    place.ok("ln disk.img:/a/b/f disk.img:/a/g");
    assert_eq!(place.json("stat disk.img:/a/g")[0]["links"], 2);
    place.ok("mv disk.img:/a/b/f disk.img:/a/d");
    place.ok("mv disk.img:/a/d/f disk.img:/a/h");
    assert_eq!(place.ok("ls disk.img:/a"), "b\nd\ng\nh\n");
    place.ok("mv disk.img:/a/h out");
    assert_eq!(std::fs::read_to_string(place.join("out")).unwrap(), "x");
    place.ok("mv out disk.img:/a/in");
    assert!(!place.join("out").exists());
    place.ok("rm -r disk.img:/a/b disk.img:/a/in");
    place.ok("rm -f disk.img:/a/nothing");
    assert_eq!(place.ok("ls disk.img:/a"), "d\ng\n");
    check(&place);
}

#[test]
fn moving_between_subvolumes_copies() {
    let place = image();
    tree::make(&place.join("tree"));
    let want = tree::facts(&place.join("tree"));
    place.ok("subvolume create -q disk.img:/one");
    place.ok("subvolume create -q disk.img:/two");
    place.ok("cp -a tree disk.img:/one");
    place.ok("mv disk.img:/one/tree disk.img:/two/moved");
    assert_eq!(place.ok("ls disk.img:/one"), "");
    place.ok("cp -a disk.img:/two/moved back");
    tree::same("what came back", &tree::facts(&place.join("back")), &want);
    check(&place);
}

#[test]
fn names_are_bytes_and_may_hold_colons() {
    let place = image();
    let name = std::ffi::OsStr::from_bytes(b"a:b \xff");
    std::fs::write(place.join("x"), "1").unwrap();
    std::fs::rename(place.join("x"), place.path().join(name)).unwrap();
    let mut target = b"disk.img:/".to_vec();
    target.extend_from_slice(name.as_bytes());
    let said = place.run_words(&[std::ffi::OsStr::new("cp"), name, "disk.img:/".as_ref()]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    let said = place.run_words(&["cat".as_ref(), std::ffi::OsStr::from_bytes(&target)]);
    assert_eq!(said.text(), "1");
    let said = place.run("ls disk.img");
    assert_eq!(said.out, b"a:b \xff\n");
}

#[test]
fn failures_say_what_where_and_why() {
    let place = image();
    place.ok("mkdir disk.img:/dir");
    place.ok("subvolume create -q disk.img:/sub");
    std::fs::write(place.join("file"), "x").unwrap();
    let text = |line: &str| place.fails(line);
    assert_eq!(
        text("cat disk.img:/no"),
        "buttress: cannot find disk.img:/no: No such file or directory\n"
    );
    assert_eq!(
        text("ls nodisk.img:/etc"),
        "buttress: cannot find nodisk.img:/etc: No such file or directory\n  \
         There is no image or disk nodisk.img either.\n"
    );
    assert_eq!(
        text("cat disk.img"),
        "buttress: cannot read disk.img:/: Is a directory\n  \
         Name a file in it: buttress cat disk.img:/PATH\n"
    );
    assert_eq!(
        text("rm disk.img:/dir"),
        "buttress: cannot remove disk.img:/dir: Is a directory\n  \
         To remove it with all that is in it, add -r.\n"
    );
    assert_eq!(
        text("rm -r disk.img:/sub"),
        "buttress: cannot remove disk.img:/sub: it is a subvolume\n  \
         To delete it: buttress subvolume delete disk.img:/sub\n"
    );
    assert_eq!(
        text("rm -rf disk.img"),
        "buttress: cannot remove disk.img:/: this is the top directory of the filesystem\n  \
         To empty it, name what is in it, as `buttress ls disk.img` lists it: buttress rm -r disk.img:/NAME...\n"
    );
    assert_eq!(
        text("mv disk.img:/ file"),
        "buttress: cannot use disk.img:/: this is the top directory of the filesystem\n"
    );
    assert_eq!(text("mkdir disk.img:/dir"), "buttress: cannot make disk.img:/dir: File exists\n");
    assert!(text("cp -r disk.img:/ disk.img:/dir").contains("a directory does not go into itself"));
    assert_eq!(
        text("cp disk.img:/dir out"),
        "buttress: cannot copy disk.img:/dir: Is a directory\n  \
         To copy it with all that is in it, add -r.\n"
    );
    assert!(text("cp file file").contains("they are the same file"));
    assert!(place.join("disk.img").exists());
    // Where nothing is found there is no list of it.
    for line in ["ls disk.img:/no no", "stat disk.img:/no", "subvolume delete disk.img:/no"] {
        let said = place.run(&format!("--format json {line}"));
        assert_eq!((said.code, said.text().as_str()), (1, ""), "{line}");
        assert!(said.err.contains(r#""what":"cannot find""#), "{}", said.err);
    }
    let said = place.run("--format json ls disk.img:/dir/sub disk.img:/no");
    let found: serde_json::Value = serde_json::from_str(&said.text()).unwrap();
    assert_eq!((said.code, &found["ls"]), (1, &serde_json::json!([])));
    // What can be done is done all the same.
    let said = place.run("cat disk.img:/no file");
    assert_eq!((said.code, said.text().as_str()), (1, "x"));
    check(&place);
}

#[test]
fn reading_changes_nothing() {
    let place = image();
    tree::make(&place.join("tree"));
    place.ok("cp -a tree disk.img:/");
    let before = std::fs::read(place.join("disk.img")).unwrap();
    for line in [
        "ls -lR disk.img",
        "cat disk.img:/tree/small",
        "stat disk.img:/tree",
        "cp -a disk.img:/tree out",
        "subvolume list disk.img",
        "filesystem usage disk.img",
        "filesystem sync disk.img",
    ] {
        place.ok(line);
    }
    assert!(before == std::fs::read(place.join("disk.img")).unwrap(), "the image changed");
}

/// Under the name it is given, a directory is copied as a whole: it keeps what it has, as with GNU cp.
#[test]
fn a_directory_under_a_new_name_keeps_its_attributes() {
    let place = image();
    let sh = |script: &str| {
        let status = Command::new("sh").args(["-c", script]).current_dir(place.path()).status();
        assert!(status.unwrap().success(), "{script}");
    };
    sh("mkdir dir there; echo x > dir/file; chmod 0750 dir; touch -d @1000000000 dir
        cp -aT dir gnu; cp -a dir/. gnu-content; cp -rT dir gnu-plain");
    place.ok("cp -aT dir ours");
    place.ok("cp -a dir/. ours-content");
    place.ok("cp -rT dir ours-plain");
    place.ok("cp -aT dir there");
    place.ok("cp -aT dir disk.img:/new");
    place.ok("cp -aT disk.img:/new back");
    let of = |name: &str| {
        let found = std::fs::metadata(place.join(name)).unwrap();
        (found.mode(), found.mtime(), found.uid(), found.gid())
    };
    assert_eq!((of("gnu").0 & 0o777, of("gnu").1), (0o750, 1_000_000_000));
    for name in ["ours", "there", "back"] {
        assert_eq!(of(name), of("gnu"), "{name}");
    }
    assert_eq!(of("ours-content"), of("gnu-content"));
    assert_eq!(of("ours-plain").0, of("gnu-plain").0);
    let stat = place.json("stat disk.img:/new")[0].clone();
    assert_eq!(stat["mode"], "0750");
}

#[test]
fn what_is_immutable_or_append_only_stays() {
    let place = image();
    std::fs::write(place.join("file"), "x").unwrap();
    let Some(mount) = KernelMount::of(&place, "disk.img") else { return };
    let chattr = |flag: &str, name: &str| {
        let mut command = std::process::Command::new("chattr");
        let done = command.args([flag, name]).current_dir(mount.path()).status();
        done.is_ok_and(|status| status.success())
    };
    for (flag, file, directory) in [("+i", "i", "idir"), ("+a", "a", "adir")] {
        std::fs::write(mount.path().join(file), "kept").unwrap();
        std::fs::create_dir(mount.path().join(directory)).unwrap();
        std::fs::write(mount.path().join(directory).join("in"), "kept").unwrap();
        if !chattr(flag, file) || !chattr(flag, directory) {
            println!("skipped: chattr does not set flags");
            return;
        }
    }
    drop(mount);
    for (file, directory, why) in [("i", "idir", "immutable"), ("a", "adir", "append-only")] {
        for line in [
            "rm DISKFILE",
            "rm -r DISKDIR",
            "rm DISKDIR/in",
            "mv DISKFILE DISKnew",
            "mv DISKFILE out",
            "mv DISKDIR/in DISKnew",
            "mv file DISKFILE",
            "cp file DISKFILE",
            "chmod 600 DISKFILE",
            "chown 1:1 DISKFILE",
            "ln DISKFILE DISKnew",
        ] {
            let line = line.replace("DISK", "disk.img:/").replace("FILE", file);
            let line = line.replace("DIR", directory);
            let said = place.fails(&line);
            assert!(
                said.contains("Operation not permitted") && said.contains(why),
                "{line}: {said}"
            );
        }
    }
    assert!(place.fails("cp file disk.img:/idir").contains("its directory is immutable"));
    place.ok("cp file disk.img:/adir/new");
    place.ok("cp disk.img:/i disk.img:/idir/in disk.img:/a disk.img:/adir/in .");
    assert_eq!(place.ok("cat disk.img:/i disk.img:/a disk.img:/idir/in"), "keptkeptkept");
    check(&place);
}

#[test]
fn trees_may_be_deep() {
    const DEPTH: usize = 30_000;
    let place = image();
    place.ok("mkdir disk.img:/top");
    let path = format!("disk.img:/top{}", "/d".repeat(DEPTH));
    assert_eq!(place.run_words(&["mkdir", "-p", &path]).err, "");
    place.ok("chmod -R 700 disk.img:/top");
    assert_eq!(place.json(&format!("stat {path}"))[0]["mode"], "0700");
    place.ok("chown -R 7:8 disk.img:/top");
    assert_eq!(place.json(&format!("stat {path}"))[0]["gid"], 8);
    let halfway = format!("disk.img:/top{}", "/d".repeat(DEPTH - 2000));
    assert_eq!(place.ok(&format!("ls -R {halfway}")).matches(":\n").count(), 2001);
    place.ok("rm -r disk.img:/top");
    assert_eq!(place.ok("ls disk.img"), "");
    check(&place);
}

#[test]
fn deep_trees_are_copied() {
    // Deeper than a path may be long, and than a process may have directories open.
    const DEPTH: usize = 5000;
    let place = image();
    let path = format!("disk.img:/top{}", "/d".repeat(DEPTH));
    assert_eq!(place.run_words(&["mkdir", "-p", &path]).err, "");
    place.run_words(&["mkdir", "-m", "711", &format!("{path}/bottom")]);
    place.ok("cp -a disk.img:/top here");
    place.ok("cp -a here disk.img:/back");
    place.ok("cp -r disk.img:/back disk.img:/again");
    place.ok("cp -r here there");
    for copy in ["back", "again"] {
        let bottom = format!("{}/bottom", path.replacen("top", copy, 1));
        let facts = &place.json(&format!("stat {bottom}"))[0];
        assert_eq!(facts["mode"], "0711", "{copy}");
        place.ok(&format!("rm -r disk.img:/{copy}"));
    }
    place.ok("chmod -R 755 here");
    assert_eq!(place.ok("ls -R there").matches(":\n").count(), DEPTH + 2);
    place.ok("rm -r here there");
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    check(&place);
}

#[test]
fn a_directory_of_this_machine_that_contains_itself() {
    let place = image();
    std::fs::create_dir_all(place.join("dir/below")).unwrap();
    std::fs::create_dir_all(place.join("dir/beside")).unwrap();
    if rustix::mount::mount_bind(place.join("dir"), place.join("dir/below")).is_err() {
        println!("skipped: it takes root to mount");
        return;
    }
    let said = place.run("cp -r dir disk.img:/copy");
    rustix::mount::unmount(place.join("dir/below"), rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(said.code, 1);
    assert_eq!(said.err, "buttress: cannot copy dir/below: this directory contains itself\n");
    assert_eq!(place.ok("ls disk.img:/copy"), "beside\n");
}

/// `mkfs.btrfs --rootdir` and `btrfs-convert` store a zero behind where a symbolic link leads, which its size does not count.
#[test]
fn links_that_btrfs_progs_have_made_lead_where_they_should() {
    if !have_progs() {
        return;
    }
    let place = Place::new();
    std::fs::create_dir_all(place.join("tree/dir")).unwrap();
    std::fs::write(place.join("tree/dir/file"), "hello").unwrap();
    std::os::unix::fs::symlink("dir", place.join("tree/to-dir")).unwrap();
    std::os::unix::fs::symlink("dir/file", place.join("tree/to-file")).unwrap();
    place.progs("truncate", "-s 200M disk.img");
    place.progs("mkfs.btrfs", "-q --rootdir tree disk.img");
    assert_eq!(place.ok("cat disk.img:/to-dir/file"), "hello");
    assert_eq!(place.ok("cat disk.img:/to-file"), "hello");
    assert_eq!(place.ok("ls disk.img:/to-dir/"), "file\n");
    place.ok("cp -a disk.img:/ out");
    let target = |name: &str| std::fs::read_link(place.join(name)).unwrap();
    assert_eq!(target("out/to-dir"), target("tree/to-dir"));
    assert_eq!(target("out/to-file"), target("tree/to-file"));
    place.ok("cp -a disk.img:/to-dir disk.img:/copied");
    assert_eq!(place.ok("cat disk.img:/copied/file"), "hello");
    let said = place.run("check disk.img");
    assert_eq!(said.code, 0, "{}{}", said.text(), said.err);
    place.check("disk.img");
}
