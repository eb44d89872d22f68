//! Commands on a live mount reach the daemon that serves it.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::fs::FallocateFlags;

use crate::device::for_everybody;
use crate::run::{Place, Said, have_progs, run_as};
use crate::tree;

/// Where the primary superblock is.
const PRIMARY: u64 = 64 << 10;

/// A mount that is taken off whatever happens.
pub struct Live<'a>(&'a Place);

impl<'a> Live<'a> {
    pub fn of(place: &'a Place, options: &str) -> Option<Live<'a>> {
        Live::at(place, &format!("{options} disk.img mnt"))
    }

    pub fn at(place: &'a Place, words: &str) -> Option<Live<'a>> {
        if !Path::new("/dev/fuse").exists() {
            println!("skipped: there is no /dev/fuse");
            return None;
        }
        std::fs::create_dir_all(place.join("mnt")).unwrap();
        let said = place.run(&format!("mount {words}"));
        // For others than root a program of the system mounts, which may be missing, or refuse whom it does not know.
        let refused = !rustix::process::geteuid().is_root() && said.err.contains("fusermount");
        if refused {
            println!("skipped: {}", said.err);
            return None;
        }
        assert_eq!((said.code, said.err.as_str()), (0, ""), "buttress mount {words}");
        Some(Live(place))
    }

    pub fn end(self) {
        let said = self.0.umount("mnt");
        is_off(&said);
    }
}

/// It was unmounted, and nothing is told of it.
fn is_off(said: &Said) {
    assert_eq!((said.code, said.text()), (0, String::new()), "{}", said.err);
    // On a busy machine it may take long enough to be told.
    let waits = "which writes the last changes of a mount";
    assert!(said.err.lines().all(|line| line.ends_with(waits)), "{}", said.err);
}

impl Drop for Live<'_> {
    fn drop(&mut self) {
        self.0.run("umount -l mnt");
    }
}

fn image() -> Place {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    place
}

#[test]
fn mounted_written_unmounted() {
    let place = image();
    let Some(live) = Live::of(&place, "") else { return };
    tree::make(&place.join("tree"));
    let want = tree::facts(&place.join("tree"));
    place.ok("cp -a tree mnt");
    tree::same("the mount", &tree::facts(&place.join("mnt/tree")), &want);
    assert!(place.ok("mount").contains(&format!("disk.img on {}", place.join("mnt").display())));
    let said = place.fails("rm disk.img:/tree/small");
    assert!(
        said.contains("cannot open disk.img: busy") && said.contains("It is mounted on"),
        "{said}"
    );
    place.ok("rm mnt/tree/nothing");
    live.end();
    assert_eq!(place.run("ls disk.img:/tree/nothing").code, 1);
    place.ok("cp -a disk.img:/tree back");
    assert_eq!(tree::facts(&place.join("back")).len(), want.len() - 1);
    if have_progs() {
        place.check("disk.img");
    }
}

/// Two filesystems in one image are used side by side, each as if it were alone; whoever wants what somebody has is refused.
#[test]
fn partitions_of_an_image_at_once() {
    let place = Place::new();
    std::fs::File::create(place.join("disk.img")).unwrap().set_len(701 << 20).unwrap();
    place.ok("mkfs -q --offset 1M -b 300M disk.img");
    let Some(first) = Live::at(&place, "--offset 1M disk.img mnt") else { return };
    for offset in ["", "--offset 200M", "--offset 1M"] {
        let said = place.fails(&format!("mkfs -q -f {offset} disk.img"));
        assert!(said.contains("busy") && said.contains("is mounted on"), "{offset}: {said}");
    }
    place.ok("mkfs -q --offset 301M -b 300M disk.img");
    std::fs::create_dir(place.join("two")).unwrap();
    place.ok("mount --offset 301M disk.img two");
    for directory in ["mnt", "two"] {
        std::fs::write(place.join(directory).join("file"), directory).unwrap();
        place.ok(&format!("filesystem sync {directory}"));
    }
    for (offset, directory, other) in [("1M", "mnt", "two"), ("301M", "two", "mnt")] {
        let said = place.run(&format!("cat --offset {offset} disk.img:/file"));
        assert_eq!((said.code, said.text().as_str()), (0, directory), "{}", said.err);
        let at = |name: &str| place.join(name).display().to_string();
        assert!(
            said.err.contains(&at(directory)) && !said.err.contains(&at(other)),
            "{}",
            said.err
        );
        let said = place.fails(&format!("mkdir --offset {offset} disk.img:/new"));
        assert!(said.contains("busy"), "{said}");
        let said = place.fails(&format!("check --offset {offset} disk.img"));
        assert!(said.contains("busy"), "{said}");
    }
    // Whoever comes behind the mount of one waits for its last commit, though the other goes on.
    std::fs::write(place.join("two/last"), "last").unwrap();
    place.ok("umount -l two");
    let said = place.run("cat --offset 301M disk.img:/last");
    assert_eq!((said.code, said.text().as_str()), (0, "last"), "{}", said.err);
    assert!(!said.err.contains("warning"), "{}", said.err);
    let said = place.run("mkdir --offset 301M disk.img:/new");
    assert_eq!(said.code, 0, "{}", said.err);
    place.ok("check --check-data-csum --offset 301M disk.img");
    place.ok("mount -o ro --offset 301M disk.img two");
    assert!(place.fails("mkdir --offset 301M disk.img:/x").contains("busy"));
    assert_eq!(place.umount("two").code, 0);
    std::fs::write(place.join("mnt/more"), "more").unwrap();
    first.end();
    place.ok("check --check-data-csum --offset 1M disk.img");
    assert_eq!(place.ok("ls --offset 1M disk.img"), "file\nmore\n");
    place.ok("mkfs -q -f --size 701M disk.img");
}

#[test]
fn subvolumes_and_space_of_a_live_mount() {
    let place = image();
    let Some(live) = Live::of(&place, "") else { return };
    place.ok("subvolume create mnt/one");
    place.ok("mkdir -p mnt/one/dir");
    place.ok("subvolume create mnt/one/dir/two");
    place.ok("subvolume snapshot -r mnt/one mnt/snap");
    let list = place.ok("subvolume list mnt");
    let paths: Vec<_> = list.lines().filter_map(|line| line.split(" path ").nth(1)).collect();
    assert_eq!(paths, ["one", "one/dir/two", "snap"]);
    assert_eq!(place.ok("property get mnt/snap"), "ro=true\n");
    place.ok("property set mnt/snap ro false");
    place.ok("subvolume set-default mnt/snap");
    assert!(place.ok("subvolume get-default mnt").ends_with(" path snap\n"));
    assert!(place.fails("subvolume delete mnt/snap").contains("it is the default subvolume"));
    place.ok("subvolume set-default 5 mnt");
    place.ok("subvolume delete -R mnt/one");
    assert!(place.ok("subvolume show mnt/snap").starts_with("snap\n\tName: \t\t\tsnap\n"));
    place.ok("filesystem label mnt name");
    assert_eq!(place.ok("filesystem label mnt"), "name\n");
    place.ok("filesystem sync mnt");
    let live_df = place.json("filesystem df mnt");
    live.end();
    assert_eq!(place.ok("filesystem label disk.img"), "name\n");
    assert_eq!(place.json("filesystem df disk.img")[0]["total"], live_df[0]["total"]);
    assert_eq!(place.ok("subvolume list -o disk.img").lines().count(), 1);
    if have_progs() {
        place.check("disk.img");
    }
}

#[test]
fn options_of_mount() {
    let place = image();
    place.ok("subvolume create -q disk.img:/sub");
    place.ok("mkdir disk.img:/sub/inside");
    let Some(live) = Live::of(&place, "-o ro,subvol=/sub") else { return };
    assert_eq!(place.ok("ls mnt"), "inside\n");
    assert!(place.fails("mkdir mnt/x").contains("Read-only file system"));
    live.end();
    // What has no effect is said once, by whichever process.
    let said = place.run("mount -o noatime,ssd,compress=zstd:1 -o autodefrag disk.img mnt");
    is_off(&place.umount("mnt"));
    let warning = "disk.img: mount options without effect: ssd,compress=zstd:1,autodefrag";
    assert_eq!((said.code, said.err), (0, format!("buttress: warning: {warning}\n")));
    let said = place.run("mount -o rp disk.img mnt");
    assert_eq!(said.code, 2);
    assert!(
        said.err.starts_with("buttress: cannot mount: unknown mount option `rp`"),
        "{}",
        said.err
    );
    let said = place.fails("mount disk.img nowhere");
    assert!(
        said.starts_with("buttress: cannot find nowhere: No such file or directory\n"),
        "{said}"
    );
    for foreground in ["", "-f "] {
        let said = place.fails(&format!("mount {foreground}-o subvol=/sub/inside disk.img mnt"));
        assert!(said.contains("/sub/inside is not a subvolume"), "{said}");
        for (option, name) in [("subvol=NONE", "NONE"), ("subvolid=999", "999")] {
            let said = place.fails(&format!("mount {foreground}-o {option} disk.img mnt"));
            assert_eq!(
                said,
                format!(
                    "buttress: cannot mount disk.img on mnt: subvolume {name} does not exist; \
                     `buttress subvolume list disk.img` lists them\n"
                )
            );
        }
        for both in ["subvolid=5,subvol=/sub", "subvol=sub,subvolid=0", "subvolid=256,subvol=/"] {
            let said = place.fails(&format!("mount {foreground}-o {both} disk.img mnt"));
            assert!(said.contains("is not the one with id"), "{said}");
        }
    }
    let Some(live) = Live::of(&place, "-o subvolid=256,subvol=/sub") else { return };
    live.end();
    let said = place.fails("umount mnt");
    assert!(
        said.contains("it is not mounted by buttress\n  `buttress mount` lists what is.\n"),
        "{said}"
    );
    let helper = run_as("/sbin/mount.fuse.buttress", place.path(), &["disk.img"]);
    assert_eq!(
        (helper.code, helper.err.as_str()),
        (2, "buttress: a device and a directory are needed\n")
    );
}

/// Whoever did mount it is named.
#[test]
fn what_others_have_mounted_is_not_taken_off() {
    let place = image();
    assert!(place.fails("umount nothing").contains("nothing: No such file or directory"));
    if !rustix::process::geteuid().is_root() {
        println!("skipped: becoming another user needs root");
        return;
    }
    let said = place.fails("umount /proc");
    assert!(said.contains("/proc: buttress has not mounted it: it is proc, of "), "{said}");
    let program = for_everybody(&place);
    let Some(live) = Live::of(&place, "") else { return };
    for target in ["mnt", "disk.img"] {
        let mut command = Command::new(&program);
        command.args(["umount", target]).current_dir(place.path()).uid(1001).gid(1002);
        let said = Said::of(command.output().unwrap());
        let expected = "mnt: it is the mount of another user, whose number is 0\n";
        assert!(said.code == 1 && said.err.contains(expected), "{}", said.err);
    }
    live.end();
}

/// The words that mount(8) and umount(8) add to those of a line of fstab.
#[test]
fn as_the_helpers_of_mount_and_umount() {
    let place = image();
    place.ok("subvolume create -q disk.img:/@home");
    place.ok("mkdir disk.img:/@home/inside");
    let Some(live) = Live::of(&place, "") else { return };
    live.end();
    let line = "rw,noatime,nofail,_netdev,user,subvol=/@home,space_cache=v2";
    let words = ["disk.img", "mnt", "-n", "-o", line, "-t", "fuse.buttress"];
    let said = run_as("/sbin/mount.fuse.buttress", place.path(), &words);
    if said.err.contains("allow_other") {
        println!("skipped: {}", said.err);
        return;
    }
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    assert_eq!(place.ok("ls mnt"), "inside\n");
    if rustix::process::geteuid().is_root() {
        // As `mount -o remount,ro mnt` has it, which leaves that to the helper.
        let remount = |line| {
            let words = ["disk.img", "mnt", "-o", line];
            run_as("/sbin/mount.fuse.buttress", place.path(), &words)
        };
        let said = remount("rw,allow_other,remount,ro");
        assert_eq!((said.code, said.err.as_str()), (0, ""));
        assert!(place.fails("mkdir mnt/refused").contains("Read-only file system"));
        let said = remount("remount,rw,memory=1G");
        assert!(
            said.code == 0 && said.err.contains("does not change by memory=1G"),
            "{}",
            said.err
        );
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let at = place.join("mnt").display().to_string();
    let mount = mounts.lines().find(|line| line.split(' ').nth(1) == Some(&at)).unwrap();
    assert!(mount.contains(" fuse.buttress rw,") && mount.contains(",allow_other"), "{mount}");
    // By another process: a child that another test forks could hold a file of this one there.
    place.ok("mkdir mnt/made");
    let words = ["mnt", "-n", "-t", "fuse.buttress"];
    let said = run_as("/sbin/umount.fuse.buttress", place.path(), &words);
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(place.ok("ls disk.img:/@home"), "inside\nmade\n");
    let words = ["disk.img", "mnt", "-o", "frobnicate"];
    let said = run_as("mount.fuse.buttress", place.path(), &words);
    assert_eq!(said.code, 2);
    assert!(said.err.contains("unknown mount option `frobnicate`"), "{}", said.err);
}

/// The process in the background has the words of a failure, and the command what to do about it.
#[test]
fn what_to_do_is_said_from_the_background_too() {
    let place = image();
    place.ok("mkdir disk.img:/first");
    place.ok("cp disk.img torn.img");
    let torn = std::fs::File::options().write(true).open(place.join("torn.img")).unwrap();
    torn.write_all_at(&[0; 512], PRIMARY).unwrap();
    std::fs::File::create(place.join("empty.img")).unwrap().set_len(1 << 20).unwrap();
    std::fs::create_dir(place.join("mnt")).unwrap();
    let locked = std::fs::File::open(place.join("disk.img")).unwrap();
    locked.lock().unwrap();
    for foreground in ["", "-f "] {
        for (image, hint) in [
            ("empty.img", "\n  There is no superblock at 64 KiB"),
            ("disk.img", "\n  If it is mounted, use paths on the mount instead"),
            ("torn.img", "-o rescue=usebackupsuper"),
        ] {
            let said = place.fails(&format!("mount {foreground}{image} mnt"));
            assert!(said.contains(hint), "{foreground}{image}: {said}");
        }
    }
}

/// The bytes that mark the line from the process in the background are words like others in a name.
#[test]
fn marks_in_names_of_what_is_not_mounted() {
    let place = image();
    std::fs::create_dir(place.join("mnt")).unwrap();
    let empty = "a\x15b\x06.img";
    std::fs::File::create(place.join(empty)).unwrap().set_len(1 << 20).unwrap();
    let said = place.run_words(&["mount", empty, "mnt"]);
    let hint = "\n  There is no superblock at 64 KiB";
    assert!(said.code == 1 && said.err.contains(hint), "{}", said.err);
    for name in ["a\x15b", "a\x06", "\x15q"] {
        let option = format!("subvol={name}");
        let [back, fore] = [&["mount"][..], &["mount", "-f"]].map(|words| {
            let rest = ["-o", &option, "disk.img", "mnt"];
            let said = place.run_words(&[words, &rest].concat());
            (said.code, said.err)
        });
        assert!(back.0 == 1 && back.1.contains("does not exist"), "{}", back.1);
        assert_eq!(back, fore);
    }
}

/// A filesystem in memory, of 16 MiB, taken off whatever happens.
struct Small<'a>(&'a Place);

impl<'a> Small<'a> {
    fn of(place: &'a Place) -> Option<Small<'a>> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can mount a tmpfs");
            return None;
        }
        std::fs::create_dir(place.join("small")).unwrap();
        place.progs("mount", "-t tmpfs -o size=16m none small");
        Some(Small(place))
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        self.0.progs("umount", "-l small");
    }
}

#[test]
fn a_last_commit_that_fails_is_told() {
    let place = Place::new();
    let Some(_small) = Small::of(&place) else { return };
    place.ok("mkfs -q --size 300M small/disk.img");
    let Some(live) = Live::at(&place, "small/disk.img mnt") else { return };
    std::fs::write(place.join("mnt/kept"), "kept").unwrap();
    place.ok("filesystem sync mnt");
    // The disk under the image is full from here on.
    let filled = std::fs::write(place.join("small/other"), vec![1; 16 << 20]);
    assert!(filled.is_err());
    std::fs::write(place.join("mnt/lost"), "lost").unwrap();
    // Whatever its name is by then.
    std::fs::rename(place.join("small/disk.img"), place.join("small/moved.img")).unwrap();
    let said = place.umount("mnt");
    std::fs::rename(place.join("small/moved.img"), place.join("small/disk.img")).unwrap();
    assert_eq!(said.code, 1, "{}", said.err);
    // It has waited for room before.
    let lost = "buttress: unmounted, but the last changes are lost on mnt: ";
    assert!(said.err.lines().any(|line| line.starts_with(lost)), "{}", said.err);
    assert!(said.err.contains("No space left on device"), "{}", said.err);
    std::fs::remove_file(place.join("small/other")).unwrap();
    assert_eq!(place.ok("ls small/disk.img:/"), "kept\n");
    // It is said once.
    let live = {
        drop(live);
        Live::at(&place, "small/disk.img mnt").unwrap()
    };
    live.end();
    if have_progs() {
        place.check("small/disk.img");
    }
}

/// What is replaced is found by the commit, of which the kernel is not told.
#[test]
fn space_that_was_given_back_is_seen_after_a_commit() {
    let place = image();
    let Some(live) = Live::of(&place, "-o commit=300") else { return };
    let path = place.join("mnt/large");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    place.ok("filesystem sync mnt");
    let blocks = || {
        // So long it may be remembered.
        std::thread::sleep(Duration::from_millis(150));
        std::fs::metadata(&path).unwrap().blocks()
    };
    assert_eq!(blocks(), 2048);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 0, 512 << 10).unwrap();
    let _before = blocks();
    place.ok("filesystem sync mnt");
    assert_eq!(blocks(), 1024);
    file.write_all_at(&[8; 512 << 10], 512 << 10).unwrap();
    let _before = blocks();
    place.ok("filesystem sync mnt");
    assert_eq!(blocks(), 1024);
    drop(file);
    live.end();
}

#[test]
fn copies_on_a_live_mount_share_their_data() {
    let place = image();
    let Some(live) = Live::of(&place, "") else { return };
    std::fs::write(place.join("mnt/large"), vec![7; 8 << 20]).unwrap();
    place.ok("filesystem sync mnt");
    let used = || place.json("filesystem df mnt")[0]["used"].as_u64().unwrap();
    let before = used();
    place.ok("cp mnt/large mnt/copy");
    place.ok("filesystem sync mnt");
    assert_eq!(used(), before);
    assert!(std::fs::read(place.join("mnt/copy")).unwrap() == vec![7; 8 << 20]);
    live.end();
    if have_progs() {
        place.check("disk.img");
    }
}

#[test]
fn subvolumes_by_number_wherever_they_are() {
    let place = image();
    for name in ["one", "one/in", "one/in/deep", "two", "three", "shown"] {
        place.ok(&format!("subvolume create -q disk.img:/{name}"));
    }
    let ids: Vec<u64> = place
        .json("subvolume list disk.img")
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["ID"].as_u64().unwrap())
        .collect();
    let Some(live) = Live::of(&place, "-o subvol=/shown") else { return };
    place.ok("subvolume create -q mnt/here");
    // Waiting for a subvolume that is gone.
    assert_eq!(place.ok("subvolume delete -c mnt/here"), {
        "Delete subvolume (commit): 'mnt/here'\n"
    });
    place.ok("subvolume create -q mnt/here");
    place.ok("subvolume create -q mnt/there");
    place.ok("subvolume delete -C mnt/here mnt/there");
    // What the mount does not show.
    assert_eq!(place.ok(&format!("subvolume delete -i {} mnt", ids[3])), {
        "Delete subvolume (no-commit): 'two'\n"
    });
    let said = place.fails(&format!("subvolume delete -i {} mnt", ids[0]));
    assert!(said.contains("cannot delete one: ") && said.contains("add -R"), "{said}");
    place.ok(&format!("subvolume set-default {} mnt", ids[4]));
    assert!(place.ok("subvolume get-default mnt").ends_with(" path three\n"));
    let said = place.fails(&format!("subvolume delete --subvolid {} mnt", ids[4]));
    assert!(said.contains("it is the default subvolume"), "{said}");
    place.ok("subvolume set-default 0 mnt");
    assert_eq!(place.ok("subvolume get-default mnt"), "ID 5 (FS_TREE)\n");
    assert!(place.fails("subvolume set-default 999 mnt").contains("there is none"));
    assert!(place.fails("subvolume delete -i 999 mnt").contains("there is none"));
    assert_eq!(place.ok(&format!("subvolume delete -c -R -i {} mnt", ids[0])).lines().count(), 3);
    live.end();
    assert_eq!(place.ok("ls disk.img"), "shown\nthree\n");
    place.ok(&format!("subvolume set-default {} disk.img", ids[4]));
    place.ok("subvolume set-default 0 disk.img");
    place.ok(&format!("subvolume delete -c -i {} disk.img", ids[4]));
    assert_eq!(place.ok("ls disk.img"), "shown\n");
    if have_progs() {
        place.check("disk.img");
    }
}

#[test]
fn deleted_subvolumes_of_a_live_mount_are_listed() {
    let place = image();
    place.ok("subvolume create -q disk.img:/held");
    std::fs::write(place.join("file"), "x").unwrap();
    place.ok("cp file disk.img:/held");
    let Some(live) = Live::of(&place, "") else { return };
    assert_eq!(place.ok("subvolume list -d mnt"), "");
    // Its space stays taken while somebody has a file of it open.
    let held = std::fs::File::open(place.join("mnt/held/file")).unwrap();
    place.ok("subvolume delete -c mnt/held");
    let listed = place.ok("subvolume list -d mnt");
    assert!(listed.is_empty() || listed.ends_with(" path DELETED\n"), "{listed}");
    drop(held);
    live.end();
}

/// Scripts hold locks while they mount, and read what commands print until its end.
#[test]
fn a_mount_keeps_nothing_that_the_command_was_given() {
    let place = image();
    let Some(live) = Live::of(&place, "") else { return };
    live.end();
    let script = "exec 9>held; flock 9; \"$0\" mount disk.img mnt";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script]).arg(env!("CARGO_BIN_EXE_buttress")).current_dir(place.path());
    assert!(command.status().unwrap().success());
    let free = std::fs::File::open(place.join("held")).unwrap().try_lock();
    is_off(&place.umount("mnt"));
    free.unwrap();
    // But for what it was given to mount.
    let script = "exec 9<disk.img; \"$0\" mount /dev/fd/9 mnt && \"$0\" umount mnt";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script]).arg(env!("CARGO_BIN_EXE_buttress")).current_dir(place.path());
    assert!(command.status().unwrap().success());
}

/// The image as it is on the disk now.
pub fn copy_of_image(place: &Place) {
    let args = ["--sparse=always", "disk.img", "copy.img"];
    let copied = std::process::Command::new("cp").args(args).current_dir(place.path()).status();
    assert!(copied.unwrap().success());
}

#[test]
fn a_label_and_a_flag_are_on_the_device_at_once() {
    let place = image();
    let Some(live) = Live::of(&place, "-o commit=300") else { return };
    place.ok("subvolume create mnt/one");
    place.ok("filesystem label mnt new");
    copy_of_image(&place);
    assert_eq!(place.ok("filesystem label copy.img"), "new\n");
    place.ok("property set mnt/one ro true");
    copy_of_image(&place);
    assert_eq!(place.ok("property get copy.img:/one ro"), "ro=true\n");
    live.end();
}

#[test]
fn a_mount_point_is_not_removed() {
    let place = image();
    let Some(live) = Live::of(&place, "") else { return };
    std::fs::create_dir_all(place.join("mnt/sub/dir")).unwrap();
    let said = place.fails("rm -r mnt");
    assert!(
        said.starts_with("buttress: cannot remove ./mnt: something is mounted on it\n"),
        "{said}"
    );
    assert!(place.join("mnt/sub/dir").exists());
    // Nor on the way: what is beside it goes.
    std::fs::create_dir_all(place.join("top/beside")).unwrap();
    live.end();
    std::fs::rename(place.join("mnt"), place.join("top/mnt")).unwrap();
    assert_eq!(place.run("mount disk.img top/mnt").code, 0);
    let said = place.fails("rm -r top");
    assert!(said.contains("cannot remove ./top/mnt: something is mounted on it"), "{said}");
    assert!(place.join("top/mnt/sub/dir").exists() && !place.join("top/beside").exists());
    assert_eq!(place.umount("top/mnt").code, 0);
    place.ok("rm -r top");
}

/// It could not be removed behind its copy, so there is none.
#[test]
fn what_has_a_mount_point_inside_is_not_moved() {
    let place = image();
    place.ok("mkfs -q --size 300M other.img");
    std::fs::create_dir_all(place.join("top/deep")).unwrap();
    std::fs::write(place.join("top/beside"), "beside").unwrap();
    let Some(live) = Live::of(&place, "") else { return };
    std::fs::write(place.join("mnt/inner"), "inner").unwrap();
    let said = place.fails("mv mnt other.img:/");
    let expected = "buttress: cannot move ./mnt: something is mounted on it\n";
    assert!(said.starts_with(expected), "{said}");
    live.end();
    std::fs::rename(place.join("mnt"), place.join("top/deep/a mount")).unwrap();
    let words = ["mount", "disk.img", "top/deep/a mount"];
    assert_eq!(place.run_words(&words).code, 0);
    let said = place.fails("mv top other.img:/");
    let expected = "buttress: cannot move ./top/deep/a mount: something is mounted on it\n";
    assert!(said.starts_with(expected), "{said}");
    assert_eq!(place.ok("ls other.img"), "");
    assert!(place.join("top/beside").exists() && place.join("top/deep/a mount/inner").exists());
    assert_eq!(place.umount("top/deep/a mount").code, 0);
    place.ok("mv top other.img:/");
    assert_eq!(place.ok("ls other.img:/top"), "beside\ndeep\n");
}

#[test]
fn an_image_that_was_moved_is_known() {
    let place = image();
    let Some(live) = Live::of(&place, "") else { return };
    std::fs::rename(place.join("disk.img"), place.join("moved.img")).unwrap();
    let moved = place.join("moved.img");
    let line = format!("{} (it is {} now)\n", place.join("mnt").display(), moved.display());
    // A mount that another test has just taken off may have had the same number.
    let told = (0..1000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        place.ok("mount").contains(&line)
    });
    assert!(told, "{}", place.ok("mount"));
    let said = place.fails("mkdir moved.img:/x");
    assert!(said.contains(&format!("It is mounted on {}", place.join("mnt").display())), "{said}");
    is_off(&place.umount("moved.img"));
    assert!(!place.ok("mount").contains("moved.img"));
    drop(live);
}

/// The kernel would say yes, and each write no.
#[test]
fn what_was_mounted_read_only_does_not_become_writable() {
    let place = Place::new();
    place.ok("mkfs -q -f --size 200M disk.img");
    let Some(live) = Live::of(&place, "-o ro") else { return };
    let words = ["disk.img", "mnt", "-o", "remount,rw"];
    let said = run_as("/sbin/mount.fuse.buttress", place.path(), &words);
    assert!(said.code != 0 && said.err.contains("mounted read-only"), "{}", said.err);
    assert!(said.err.contains("mount it anew"), "{}", said.err);
    live.end();
}
