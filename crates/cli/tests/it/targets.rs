//! What the words of a command name: images as destinations, devices that are not overwritten, streams.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use buttress_testkit::oracle::LoopDevice;

use crate::live::Live;
use crate::run::{KernelMount, Place, have_progs};

fn image() -> Place {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    for name in ["one", "two"] {
        fs::write(place.join(name), name).unwrap();
    }
    fs::create_dir(place.join("dir")).unwrap();
    fs::write(place.join("dir/inner"), "inner").unwrap();
    place
}

#[test]
fn an_image_as_the_destination_is_its_top_directory() {
    let place = image();
    symlink("disk.img", place.join("link.img")).unwrap();
    place.ok("cp one disk.img");
    place.ok("cp one two link.img");
    place.ok("cp -r dir disk.img");
    place.ok("cp -rT dir disk.img");
    assert_eq!(place.ok("ls -R disk.img:/"), {
        "disk.img:/:\ndir\ninner\none\ntwo\n\ndisk.img:/dir:\ninner\n"
    });
    place.ok("mv two disk.img");
    assert!(!place.join("two").exists());
    place.ok("mv disk.img:/dir/inner ./link.img");
    place.ok("ln -s one disk.img:/sym");
    place.ok("ln -s nowhere/else disk.img");
    place.ok("ln disk.img:/one disk.img:/dir");
    assert_eq!(place.ok("cat disk.img:/inner disk.img:/two disk.img:/sym disk.img:/dir/one"), {
        "innertwooneone"
    });
    assert_eq!(place.ok("stat disk.img:/else").lines().next().unwrap(), {
        "  File: disk.img:/else -> nowhere/else"
    });
    for line in ["mkdir disk.img", "mkdir disk.img:/"] {
        let said = place.fails(line);
        assert_eq!(said, "buttress: cannot make disk.img:/: File exists\n", "{line}");
    }
    place.ok("mkdir -p disk.img link.img:/");
    let said = place.fails("subvolume create disk.img");
    assert_eq!(said, "buttress: cannot create disk.img:/: target path already exists\n");
    place.ok("subvolume create -q disk.img:/sub");
    place.ok("subvolume create -q disk.img:/dir/sub2");
    place.ok("subvolume snapshot -q disk.img:/dir/sub2 disk.img");
    assert_eq!(place.ok("ls disk.img"), "dir\nelse\ninner\none\nsub\nsub2\nsym\ntwo\n");
    // A name of its own cannot be that of the top directory.
    assert!(place.fails("cp -T one disk.img").contains("this is the top directory"));
    if have_progs() {
        place.check("disk.img");
    }
}

#[test]
fn an_image_as_the_source_is_a_file() {
    let place = image();
    place.ok("cp one disk.img");
    place.ok("cp disk.img backup.img");
    assert_eq!(place.ok("ls backup.img"), "one\n");
    // Into an image that is there, it goes as a file too.
    place.ok("mkfs -q --size 1G large.img");
    place.ok("cp disk.img large.img");
    assert_eq!(place.ok("ls large.img"), "disk.img\n");
    place.ok("mv backup.img moved.img");
    assert_eq!(place.ok("ls moved.img"), "one\n");
    // Its content is what it is with a colon.
    place.ok("cp -a disk.img:/ out");
    assert!(place.join("out/one").exists());
}

#[test]
fn the_offset_tells_what_an_image_is() {
    let place = Place::new();
    fs::write(place.join("one"), "one").unwrap();
    fs::File::create(place.join("disk.img")).unwrap().set_len(600 << 20).unwrap();
    place.ok("mkfs -q --offset 1M -b 300M disk.img");
    place.ok("cp --offset 1M one disk.img");
    assert_eq!(place.ok("ls --offset 1M disk.img"), "one\n");
    // At another offset there is nothing, which is no reason to overwrite it.
    let said = place.fails("cp --offset 2M one disk.img");
    assert!(said.contains("no btrfs filesystem there"), "{said}");
    let said = place.fails("mv --offset 2M one disk.img");
    assert!(said.contains("no btrfs filesystem there"), "{said}");
    assert_eq!(place.ok("cat --offset 1M disk.img:/one"), "one");
    place.ok("cp --offset 1M disk.img:/one two");
    place.ok("cp --offset 1M disk.img:/one two");
    assert_eq!(fs::read_to_string(place.join("two")).unwrap(), "one");
}

#[test]
fn a_disk_image_with_partitions_is_not_overwritten() {
    let place = Place::new();
    fs::write(place.join("one"), "one").unwrap();
    let mut gpt = vec![0; 1 << 20];
    gpt[512..520].copy_from_slice(b"EFI PART");
    let mut mbr = vec![0; 1 << 20];
    mbr[510..512].copy_from_slice(&[0x55, 0xaa]);
    mbr[450] = 0x83;
    mbr[454] = 8;
    for (name, bytes) in [("gpt.img", gpt), ("mbr.img", mbr)] {
        fs::write(place.join(name), &bytes).unwrap();
        for command in ["cp", "mv"] {
            let said = place.fails(&format!("{command} one {name}"));
            assert!(said.contains("partitions") && said.contains("--offset"), "{said}");
        }
        assert!(fs::read(place.join(name)).unwrap() == bytes);
    }
}

#[test]
fn a_mounted_image_is_not_overwritten() {
    let place = image();
    fs::create_dir(place.join("images")).unwrap();
    fs::rename(place.join("disk.img"), place.join("images/disk.img")).unwrap();
    symlink("images/disk.img", place.join("disk.img")).unwrap();
    fs::write(place.join("new"), vec![0; 1 << 20]).unwrap();
    fs::create_dir(place.join("other")).unwrap();
    fs::write(place.join("other/disk.img"), vec![0; 1 << 20]).unwrap();
    let Some(live) = Live::of(&place, "") else { return };
    fs::write(place.join("mnt/kept"), "kept").unwrap();
    for line in [
        "cp new disk.img",
        "mv new disk.img",
        "cp new images/disk.img",
        "cp other/disk.img images",
        "cp -r other/. images",
        "mv other/disk.img images",
        "mv other/disk.img images/disk.img",
    ] {
        let said = place.run(line);
        assert_ne!(said.code, 0, "{line}");
        assert!(place.join("new").exists() && place.join("other/disk.img").exists(), "{line}");
        assert_eq!(fs::metadata(place.join("disk.img")).unwrap().len(), 300 << 20, "{line}");
    }
    live.end();
    assert_eq!(place.ok("cat disk.img:/kept"), "kept");
    place.ok("cp other/disk.img images");
    assert_eq!(fs::metadata(place.join("disk.img")).unwrap().len(), 1 << 20);
}

#[test]
fn a_device_is_not_overwritten() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root makes loop devices");
        return;
    }
    let place = image();
    fs::File::create(place.join("blank")).unwrap().set_len(200 << 20).unwrap();
    let device = LoopDevice::attach(&place.join("blank")).unwrap();
    symlink(device.path(), place.join("device")).unwrap();
    let path = device.path().display();
    for target in ["device".to_owned(), path.to_string()] {
        for command in ["cp one", "mv one", "cp -T one", "cp one two", "cp -r dir"] {
            let said = place.run(&format!("{command} {target}"));
            assert_eq!(said.code, 1, "{command} {target}: {}", said.err);
        }
    }
    assert!(fs::metadata(device.path()).unwrap().file_type().is_block_device());
    assert!(place.join("device").is_symlink());
    let blank = fs::read(place.join("blank")).unwrap();
    assert!(blank.iter().all(|byte| *byte == 0), "it was written to");
    drop(device);
    // One with a filesystem is that.
    let device = LoopDevice::attach(&place.join("disk.img")).unwrap();
    place.ok(&format!("cp one {}", device.path().display()));
    fs::remove_file(place.join("device")).unwrap();
    symlink(device.path(), place.join("device")).unwrap();
    place.ok("cp two device");
    assert_eq!(place.ok("ls device"), "one\ntwo\n");
    drop(device);
    assert_eq!(place.ok("ls disk.img"), "one\ntwo\n");
}

#[test]
fn the_kernels_image_is_not_overwritten() {
    let place = image();
    let Some(mount) = KernelMount::of(&place, "disk.img") else { return };
    fs::write(mount.path().join("kept"), "kept").unwrap();
    drop(mount);
    assert!(Path::new(&place.join("disk.img")).exists());
    place.ok("cp one disk.img");
    assert_eq!(place.ok("cat disk.img:/kept disk.img:/one"), "keptone");
}

/// Whatever filesystem is in it: what is mounted is not written over.
#[test]
fn an_image_of_another_filesystem_is_not_overwritten_while_it_is_mounted() {
    let place = image();
    if !buttress_testkit::oracle::root_or_skip() {
        return;
    }
    let run = |words: &[&str]| {
        let done = Command::new(words[0]).args(&words[1..]).current_dir(place.path()).output();
        assert!(done.unwrap().status.success(), "{words:?}");
    };
    fs::File::create(place.join("other.img")).unwrap().set_len(16 << 20).unwrap();
    fs::create_dir(place.join("mnt")).unwrap();
    run(&["mkfs.ext4", "-q", "-F", "other.img"]);
    let device = LoopDevice::attach(&place.join("other.img")).unwrap();
    run(&["mount", device.path().to_str().unwrap(), "mnt"]);
    let (code, _, err) = shell(&place, "$B cp one other.img; $B mv two other.img");
    run(&["umount", "mnt"]);
    assert_ne!(code, 0, "{err}");
    assert_eq!(fs::metadata(place.join("other.img")).unwrap().len(), 16 << 20, "{err}");
    drop(device);
    place.ok("cp one other.img");
    assert_eq!(fs::read(place.join("other.img")).unwrap(), b"one");
}

#[test]
fn a_default_subvolume_inside_keeps_all_of_them() {
    let place = image();
    place.ok("subvolume create disk.img:/a disk.img:/a/b disk.img:/a/c");
    let list = place.ok("subvolume list disk.img");
    let id = list.lines().find(|line| line.ends_with("a/b")).unwrap().split(' ').nth(1).unwrap();
    place.ok(&format!("subvolume set-default {id} disk.img"));
    let (code, _, err) = shell(&place, "$B subvolume delete -R disk.img:/a");
    assert!(code == 1 && err.contains("default"), "{code} {err}");
    assert_eq!(place.ok("subvolume list disk.img").lines().count(), 3);
}

/// Runs a script of the shell in which `$B` is the command.
fn shell(place: &Place, script: &str) -> (i32, String, String) {
    let said = Command::new("bash")
        .args(["-c", script])
        .env("B", env!("CARGO_BIN_EXE_buttress"))
        .current_dir(place.path())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (said.status.code().unwrap_or(-1), text(&said.stdout), text(&said.stderr))
}

#[test]
fn what_streams_is_copied_until_it_ends() {
    let place = image();
    let script = "set -e
        seq 100000 | $B cp /dev/stdin disk.img:/stdin
        $B cp <(seq 5) disk.img:/substituted
        seq 7 | $B cp /dev/fd/0 disk.img
        $B cp /dev/stdin disk.img:/from-file < one
        mkfifo pipe; (seq 9 > pipe &); $B cp -p pipe disk.img:/fifo
        $B cp /proc/self/status disk.img:/status
        seq 3 | $B cp /dev/stdin out
        $B cp disk.img:/one /dev/null
        $B cp one /dev/stdout
        $B cp disk.img:/substituted /dev/stdout | cat
        $B cp disk.img:/substituted >(cat > caught)
        seq 2 | $B cat /dev/stdin
        cat out; until [ \"$(wc -l < caught)\" = 5 ]; do sleep 0.05; done";
    place.ok("cp one disk.img");
    let (code, out, err) = shell(&place, script);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert_eq!(out, "one1\n2\n3\n4\n5\n1\n2\n1\n2\n3\n");
    let numbers = |last: u32| (1..=last).map(|it| format!("{it}\n")).collect::<String>();
    for (name, last) in [("stdin", 100_000), ("substituted", 5), ("0", 7), ("fifo", 9)] {
        assert_eq!(place.ok(&format!("cat disk.img:/{name}")), numbers(last), "{name}");
        assert_eq!(place.json(&format!("stat disk.img:/{name}"))[0]["type"], "file", "{name}");
    }
    assert_eq!(place.ok("cat disk.img:/from-file"), "one");
    assert!(place.ok("cat disk.img:/status").contains("VmRSS"));
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    // With everything in it, a pipe is a pipe.
    place.ok("cp -r pipe disk.img:/kept");
    assert_eq!(place.json("stat disk.img:/kept")[0]["type"], "fifo");
    if have_progs() {
        place.check("disk.img");
    }
}

/// Nodes of this machine that stand for something else than their content stay what they are, whatever an image calls its files.
#[test]
fn devices_pipes_and_sockets_are_not_replaced() {
    let place = image();
    place.ok("cp one dir disk.img -r");
    let special = place.join("special");
    fs::create_dir(&special).unwrap();
    let mut nodes = vec![("pipe", "a pipe"), ("socket", "a socket")];
    let made = Command::new("mkfifo").arg(special.join("pipe")).status().unwrap();
    assert!(made.success());
    let _listener = std::os::unix::net::UnixListener::bind(special.join("socket")).unwrap();
    if rustix::process::geteuid().is_root() {
        nodes.push(("device", "a device"));
        let mut mknod = Command::new("mknod");
        assert!(
            mknod.arg(special.join("device")).args(["c", "1", "3"]).status().unwrap().success()
        );
    }
    let kinds = || nodes.iter().map(|(name, _)| special.join(name).metadata().unwrap().file_type());
    let before: Vec<_> = kinds().collect();
    for (name, what) in &nodes {
        place.ok(&format!("cp one disk.img:/{name}"));
        fs::create_dir(place.join(&format!("from-{name}"))).unwrap();
        fs::write(place.join(&format!("from-{name}/{name}")), "one").unwrap();
        for line in [
            format!("cp disk.img:/{name} special"),
            format!("cp -a disk.img:/{name} disk.img:/one special"),
            format!("cp -r from-{name}/. special"),
            format!("mv disk.img:/{name} special"),
            format!("mv from-{name}/{name} special"),
        ] {
            let said = place.fails(&line);
            assert!(said.contains(what), "{line}: {said}");
        }
    }
    assert_eq!(kinds().collect::<Vec<_>>(), before);
    // What is the same already is no obstacle, and gets its attributes.
    place.ok("cp -a special disk.img:/");
    place.ok("chmod 0640 disk.img:/special/pipe");
    place.ok("cp -a disk.img:/special .");
    assert_eq!(fs::metadata(special.join("pipe")).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(kinds().collect::<Vec<_>>(), before);
}

/// An image that is only read from is opened for reading only, also where another one is written.
#[test]
fn the_source_of_a_copy_is_not_written() {
    let place = image();
    place.ok("cp one disk.img");
    place.ok("mkfs -q --size 300M other.img");
    // Readers are let in beside this, writers are not.
    let Some(live) = Live::of(&place, "-o ro") else { return };
    let said = place.run("cp disk.img:/one other.img:/copy");
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(place.ok("cat other.img:/copy"), "one");
    // Within one image it is the destination, and is written.
    assert!(place.fails("cp disk.img:/one other.img:/copy disk.img:/").contains("busy"));
    live.end();
    place.ok("cp other.img:/copy disk.img:/");
    assert_eq!(place.ok("cat disk.img:/copy"), "one");
}
