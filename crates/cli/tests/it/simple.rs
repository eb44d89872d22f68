//! Simple quotas: the command counts what subvolumes allocate, the kernel goes on after it, and it after the kernel. btrfs-progs 6.2 knows
//! nothing of them, so our checker judges, which adds up by itself.

use std::process::Command;

use serde_json::{Value, json};

use crate::live::Live;
use crate::run::{KernelMount, Place};

/// Has the kernel switch simple quotas on, which btrfs-progs 6.2 does not know; whether it does.
pub fn has_simple_quotas(mount: &KernelMount) -> bool {
    const SCRIPT: &str = "import fcntl, os, struct, sys
fcntl.ioctl(os.open(sys.argv[1], 0), 0xc0109428, struct.pack('QQ', 4, 0))";
    let output = Command::new("python3").args(["-c", SCRIPT]).arg(mount.path()).output();
    let done = output.is_ok_and(|output| output.status.success());
    if !done {
        println!("skipped: needs python3 and simple quotas of the kernel");
    }
    done
}

/// Whether the kernel knows them; says so when not.
fn does_the_kernel_know() -> bool {
    let knows = std::path::Path::new("/sys/fs/btrfs/features/simple_quota").exists();
    if !knows {
        println!("skipped: the kernel knows no simple quotas");
    }
    knows
}

/// An image with some data from before.
fn image() -> Place {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    place.ok("subvolume create -q disk.img:/sub");
    std::fs::write(place.join("data"), vec![7; 300_000]).unwrap();
    place.ok("cp data disk.img:/sub/before");
    place
}

/// What a group refers to; `None` when it is not there.
fn bytes(place: &Place, id: &str) -> Option<u64> {
    let all = place.json("qgroup show disk.img");
    let group = all.as_array().unwrap().iter().find(|it| it["qgroupid"] == id)?.clone();
    assert_eq!(group["referenced"], group["exclusive"], "{id}");
    group["referenced"].as_u64()
}

/// Bytes that the data take.
const DATA: u64 = 303_104;
/// More than the tree blocks of any of these subvolumes.
const BLOCKS: u64 = 200_000;

fn is_about(have: Option<u64>, data: u64) -> bool {
    have.is_some_and(|have| (data..data + BLOCKS).contains(&have))
}

#[test]
fn both_count_what_is_allocated() {
    let place = image();
    place.ok("quota enable --simple disk.img");
    let status = place.json("quota status disk.img");
    assert_eq!((&status["mode"], &status["inconsistent"]), (&"squota".into(), &false.into()));
    assert_eq!(bytes(&place, "0/256"), Some(0));
    place.ok("cp data disk.img:/sub/file");
    assert!(is_about(bytes(&place, "0/256"), DATA));
    place.ok("check disk.img");
    place.ok("qgroup create 1/1 disk.img");
    place.ok("qgroup assign disk.img:/sub 1/1 disk.img");
    place.ok("subvolume snapshot -q -i 1/1 disk.img:/sub disk.img:/snap");
    // It shares all but its root, and that counts for who has allocated it.
    assert!(is_about(bytes(&place, "0/257"), 0));
    place.ok("cp data disk.img:/snap/file");
    place.ok("check disk.img");
    assert!(is_about(bytes(&place, "1/1"), 2 * DATA));
    if does_the_kernel_know()
        && let Some(mount) = KernelMount::of(&place, "disk.img")
    {
        let top = mount.path().display().to_string();
        std::fs::write(mount.path().join("sub/theirs"), vec![9; 300_000]).unwrap();
        place.progs("btrfs", &format!("subvolume snapshot {top}/snap {top}/snap/nested"));
        std::fs::remove_file(mount.path().join("snap/file")).unwrap();
        drop(mount);
        place.ok("check disk.img");
        assert!(is_about(bytes(&place, "0/256"), 2 * DATA));
        place.ok("rm disk.img:/sub/theirs");
        place.ok("check disk.img");
        KernelMount::of(&place, "disk.img").unwrap();
        place.ok("subvolume delete -q disk.img:/snap/nested");
    }
    place.ok("subvolume delete -q disk.img:/snap");
    place.ok("subvolume sync disk.img");
    place.ok("check disk.img");
    place.ok("quota disable disk.img");
    assert_eq!(place.run("quota status --is-enabled disk.img").code, 1);
    place.ok("cp data disk.img:/sub/after");
    place.ok("check disk.img");
    if does_the_kernel_know() {
        drop(KernelMount::of(&place, "disk.img"));
        place.ok("check disk.img");
    }
}

/// What is there when they are switched on once more counts for nobody, whatever it says of its owner.
#[test]
fn they_are_switched_on_again() {
    let place = image();
    place.ok("quota enable --simple disk.img");
    place.ok("cp data disk.img:/sub/file");
    place.ok("quota disable disk.img");
    place.ok("cp data disk.img:/sub/without");
    place.ok("quota enable -s disk.img");
    assert_eq!(bytes(&place, "0/256"), Some(0));
    place.ok("rm disk.img:/sub/file");
    place.ok("rm disk.img:/sub/without");
    assert!(is_about(bytes(&place, "0/256"), 0));
    place.ok("check disk.img");
    // Full quotas count all, and simple ones can come after them, too.
    place.ok("quota disable disk.img");
    place.ok("quota enable disk.img");
    place.ok("check disk.img");
    place.ok("quota disable disk.img");
    place.ok("quota enable --simple disk.img");
    place.ok("cp data disk.img:/sub/file");
    assert!(is_about(bytes(&place, "0/256"), DATA));
    place.ok("check disk.img");
}

#[test]
fn the_other_kind_is_refused() {
    let place = image();
    let refused = |prefix: &str| {
        let name = prefix.trim_end_matches([':', '/']);
        let hint = format!("\n  `buttress quota disable {name}` switches these off first");
        place.ok(&format!("quota enable --simple {name}"));
        place.ok(&format!("quota enable --simple {name}"));
        let said = place.fails(&format!("quota enable {name}"));
        assert!(said.contains(&format!(": simple quotas are on{hint}")), "{said}");
        for wait in ["", "-w "] {
            let said = place.fails(&format!("quota rescan {wait}{name}"));
            assert!(said.contains(": simple quotas cannot be counted anew\n  "), "{said}");
        }
        let said = place.ok(&format!("quota rescan -s {name}"));
        assert_eq!(said, "no rescan operation in progress\n");
        place.ok(&format!("quota disable {name}"));
        place.ok(&format!("quota enable {name}"));
        let said = place.fails(&format!("quota enable -s {name}"));
        assert!(said.contains(&format!(": full quotas are on{hint}")), "{said}");
        place.ok(&format!("quota disable {name}"));
    };
    refused("disk.img:/");
    let Some(live) = Live::of(&place, "") else { return };
    refused("mnt/");
    live.end();
    place.ok("check disk.img");
}

#[test]
fn a_live_mount_has_them_too() {
    let place = image();
    let Some(live) = Live::of(&place, "") else { return };
    place.ok("quota enable --simple mnt");
    std::fs::write(place.join("mnt/sub/file"), vec![8; 300_000]).unwrap();
    place.ok("filesystem sync mnt");
    assert!(place.ok("quota status mnt").contains("squota (simple accounting)"));
    let shown = place.ok("qgroup show --raw mnt");
    live.end();
    assert!(is_about(bytes(&place, "0/256"), DATA));
    assert_eq!(place.ok("qgroup show --raw disk.img"), shown);
    place.ok("check disk.img");
}

/// What the kernel has counted is counted on: by the command, and by a mount.
#[test]
fn those_of_the_kernel_are_counted_on() {
    let place = image();
    let Some(mount) = KernelMount::of(&place, "disk.img") else { return };
    if !has_simple_quotas(&mount) {
        return;
    }
    let top = mount.path().display().to_string();
    std::fs::write(mount.path().join("sub/theirs"), vec![9; 300_000]).unwrap();
    place.progs("btrfs", &format!("subvolume create {top}/gone"));
    std::fs::write(mount.path().join("gone/shared"), vec![9; 300_000]).unwrap();
    place.progs("btrfs", &format!("filesystem sync {top}"));
    let copied = Command::new("cp")
        .arg("--reflink=always")
        .args(["gone/shared", "shared"].map(|name| mount.path().join(name)))
        .status();
    assert!(copied.unwrap().success());
    place.progs("btrfs", &format!("subvolume delete -c {top}/gone"));
    place.progs("btrfs", &format!("subvolume sync {top}"));
    drop(mount);
    assert_eq!(bytes(&place, "0/257"), Some(DATA));
    place.ok("check disk.img");
    place.ok("mkdir disk.img:/sub/made");
    place.ok("cp data disk.img:/sub/ours");
    assert!(is_about(bytes(&place, "0/256"), 2 * DATA));
    place.ok("check disk.img");
    // Who is gone stays until nothing is left of what it has allocated.
    assert_eq!(place.ok("qgroup clear-stale disk.img"), "");
    let said = place.fails("qgroup destroy 0/257 disk.img");
    assert!(said.contains("what that has allocated (simple quotas)"), "{said}");
    place.ok("rm disk.img:/shared");
    place.ok("qgroup clear-stale disk.img");
    assert_eq!(bytes(&place, "0/257"), None);
    place.ok("check disk.img");
    if let Some(live) = Live::of(&place, "") {
        std::fs::write(place.join("mnt/sub/live"), vec![9; 300_000]).unwrap();
        live.end();
        place.ok("check disk.img");
    }
    drop(KernelMount::of(&place, "disk.img"));
    place.ok("check disk.img");
}

#[test]
fn mkfs_makes_them() {
    let place = Place::new();
    place.ok("mkfs -q --size 300M -O squota disk.img");
    place.ok("check disk.img");
    assert_eq!(place.json("quota status disk.img")["mode"], Value::from("squota"));
    assert_eq!(bytes(&place, "0/5"), Some(16384));
    let said = place.fails("mkfs -q -f --size 300M -O quota,squota disk.img");
    assert!(said.contains("'quota' and 'squota' cannot be together"), "{said}");
    std::fs::create_dir_all(place.join("source/sub")).unwrap();
    for name in ["file", "sub/file"] {
        std::fs::write(place.join("source").join(name), vec![7; 300_000]).unwrap();
    }
    place.ok("mkfs -q -f --size 300M -O squota --rootdir source --subvol sub disk.img");
    place.ok("check disk.img");
    assert!(is_about(bytes(&place, "0/5"), DATA) && is_about(bytes(&place, "0/256"), DATA));
    let all = place.json("qgroup show disk.img");
    let ids: Vec<&Value> = all.as_array().unwrap().iter().map(|it| &it["qgroupid"]).collect();
    assert_eq!(json!(ids), json!(["0/5", "0/256"]));
}
