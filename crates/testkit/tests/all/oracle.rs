//! The kernel and btrfs-progs answer, and what they complain about reaches the test.

use std::fs;

use buttress_testkit::oracle::{
    KernelMount, LoopDevice, OracleError, check, mkfs, root_or_skip, temp_dir,
};

const SIZE: u64 = 128 << 20;

#[test]
fn a_fresh_filesystem_is_clean_and_mounts_quietly() {
    let dir = temp_dir().unwrap();
    let image = dir.path().join("image");
    mkfs(&image, SIZE, &[]).unwrap();
    check(&image, true).unwrap();
    if !root_or_skip() {
        return;
    }
    let mount = KernelMount::new(&image, "").unwrap();
    fs::write(mount.path().join("file"), "text").unwrap();
    mount.finish().unwrap();
    check(&image, true).unwrap();
    let again = KernelMount::read_only(&image, "").unwrap();
    assert_eq!(fs::read(again.path().join("file")).unwrap(), b"text");
    assert!(fs::write(again.path().join("other"), "").is_err());
}

#[test]
fn damage_is_reported_by_the_checker_and_by_the_kernel_log() {
    let dir = temp_dir().unwrap();
    let image = dir.path().join("image");
    mkfs(&image, SIZE, &["-m", "single"]).unwrap();
    assert!(matches!(check(&dir.path().join("none"), false), Err(OracleError::Io { .. })));
    if !root_or_skip() {
        return;
    }
    let mount = KernelMount::new(&image, "").unwrap();
    let file = mount.path().join("file");
    let content = b"a line to find again\n".repeat(10_000);
    fs::write(&file, &content).unwrap();
    mount.finish().unwrap();
    let mut bytes = fs::read(&image).unwrap();
    let place = bytes.windows(21).position(|w| w == b"a line to find again\n").unwrap();
    bytes[place] ^= 1;
    fs::write(&image, &bytes).unwrap();
    assert!(matches!(check(&image, true), Err(OracleError::Unclean { .. })));
    check(&image, false).unwrap();
    let mount = KernelMount::new(&image, "ro").unwrap();
    assert!(fs::read(mount.path().join("file")).is_err());
    assert!(matches!(mount.finish(), Err(OracleError::Complaints { .. })));
}

#[test]
fn what_is_not_btrfs_is_not_mounted() {
    if !root_or_skip() {
        return;
    }
    let dir = temp_dir().unwrap();
    let image = dir.path().join("image");
    fs::write(&image, vec![0; 1 << 20]).unwrap();
    assert!(matches!(KernelMount::new(&image, ""), Err(OracleError::Failed { .. })));
    let device = LoopDevice::attach(&image).unwrap();
    assert!(device.name().starts_with("loop"));
}
