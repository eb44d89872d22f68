//! P and Q of a RAID6 filesystem that the kernel filled.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use buttress_codec::raid56::{recover_raid6, syndrome};

use crate::image::{self, number_after, patiently, run};

const DEVICES: usize = 5;
const DATA_STRIPES: usize = DEVICES - 2;
/// Length of one device's stripe (`BTRFS_STRIPE_LEN`), bytes.
const STRIPE_LEN: usize = 64 << 10;
const FULL_STRIPES: usize = 8;

/// Loop devices over image files, detached when dropped.
struct Loops(Vec<String>);

impl Loops {
    fn attach(paths: &[String]) -> Self {
        let mut loops = Self(Vec::new());
        for path in paths {
            let name = (0..20).find_map(|attempt| {
                let done = Command::new("losetup").args(["-f", "--show", path]).output().unwrap();
                if !done.status.success() {
                    std::thread::sleep(std::time::Duration::from_millis(50 * attempt));
                    return None;
                }
                Some(String::from_utf8(done.stdout).unwrap().trim().to_owned())
            });
            loops.0.push(name.expect("a free loop device"));
        }
        loops
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").args(&self.0).status();
    }
}

/// Makes, fills and unmounts the filesystem; returns the device images.
fn filled(folder: &std::path::Path) -> Vec<String> {
    let paths: Vec<String> = (1..=DEVICES)
        .map(|n| folder.join(format!("dev{n}")).to_str().unwrap().to_owned())
        .collect();
    for path in &paths {
        File::create(path).unwrap().set_len(256 << 20).unwrap();
    }
    let loops = Loops::attach(&paths);
    let devices: Vec<&str> = loops.0.iter().map(String::as_str).collect();
    run("mkfs.btrfs", &[&["-q", "-m", "raid1", "-d", "raid6"], &devices[..]].concat());
    run("btrfs", &[&["device", "scan"], &devices[..]].concat());
    let point = folder.join("mnt");
    fs::create_dir(&point).unwrap();
    patiently("mount", &[devices[0], point.to_str().unwrap()]).unwrap();
    let noise: Vec<u8> = (0..(FULL_STRIPES * DATA_STRIPES * STRIPE_LEN) as u32 / 4)
        .flat_map(|n| (n ^ 0x5bd1).wrapping_mul(0x9e37_79b1).to_le_bytes())
        .collect();
    let written = fs::write(point.join("noise"), noise);
    // A mount namespace that somebody makes meanwhile may keep it mounted for a while.
    run("sync", &["-f", point.to_str().unwrap()]);
    patiently("umount", &[point.to_str().unwrap()]).unwrap();
    run("btrfs", &[&["device", "scan", "--forget"], &devices[..]].concat());
    written.unwrap();
    paths
}

/// Where each device, in the order of the chunk's stripes, has the data chunk: image number and
/// offset in bytes.
fn data_chunk(loops: &Loops) -> Vec<(usize, u64)> {
    let dump = run("btrfs", &["inspect-internal", "dump-tree", "-t", "chunk", &loops.0[0]]);
    let (_, chunk) = dump.split_once("type DATA|RAID6").expect("the data chunk");
    chunk
        .lines()
        .filter_map(|line| {
            let device = number_after(line, " devid ").filter(|_| line.contains("stripe "))?;
            Some((device as usize - 1, number_after(line, " offset ")?))
        })
        .take(DEVICES)
        .collect()
}

/// One full stripe in the order of the arithmetic: data, P, Q. Each full stripe starts one device
/// further than the one before it.
fn full_stripe(images: &[File], chunk: &[(usize, u64)], number: usize) -> Vec<Vec<u8>> {
    let read = |place: usize| {
        let (device, offset) = chunk[(place + number) % DEVICES];
        let mut stripe = vec![0; STRIPE_LEN];
        let at = offset + (number * STRIPE_LEN) as u64;
        images[device].read_exact_at(&mut stripe, at).unwrap();
        stripe
    };
    (0..DEVICES).map(read).collect()
}

#[test]
fn parity_of_the_kernel_is_ours() {
    if let Some(reason) = image::obstacle() {
        eprintln!("skipped: {reason}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let paths = filled(folder.path());
    let chunk = data_chunk(&Loops::attach(&paths));
    let images: Vec<File> = paths.iter().map(|path| File::open(path).unwrap()).collect();
    let mut busy = 0;
    for number in 0..FULL_STRIPES {
        let mut full = full_stripe(&images, &chunk, number);
        busy += usize::from(full.iter().all(|stripe| stripe.iter().any(|byte| *byte != 0)));
        let data: Vec<&[u8]> = full[..DATA_STRIPES].iter().map(Vec::as_slice).collect();
        let (mut p, mut q) = (vec![0; STRIPE_LEN], vec![0; STRIPE_LEN]);
        syndrome(&data, &mut p, &mut q).unwrap();
        assert!(p == full[DATA_STRIPES], "P of full stripe {number}");
        assert!(q == full[DATA_STRIPES + 1], "Q of full stripe {number}");
        let expect = full.clone();
        let mut stripes: Vec<&mut [u8]> = full.iter_mut().map(Vec::as_mut_slice).collect();
        recover_raid6(&mut stripes, &[0, 2]).unwrap();
        assert!(full == expect, "recovery of full stripe {number}");
    }
    assert!(busy >= FULL_STRIPES / 2, "only {busy} full stripes hold data");
}
