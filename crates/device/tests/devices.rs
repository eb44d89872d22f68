//! The devices against plain byte arrays, the system's own locks and loop devices, and the crash
//! states of the recorder against what they promise.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::{fs::OpenOptions, process::Command, sync::Arc};

use buttress_device::{
    Access, BlockDevice, DeviceError, FileDevice, MemoryDevice, OffsetDevice, Op, OverlayDevice,
    testing::{Effect, Event, FaultyDevice, OperationFault, RecordingDevice},
};

fn read(device: &dyn BlockDevice, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0xee; len];
    device.read_at(offset, &mut buf).unwrap();
    buf
}

/// Writes and reads at awkward places and compares with an array.
fn behaves_like_an_array(device: &dyn BlockDevice, mut model: Vec<u8>) {
    assert_eq!(device.size(), model.len() as u64);
    let mut state = 1u64;
    let mut next = |bound: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % bound
    };
    for round in 0..60u8 {
        let offset = next(model.len());
        let len = next(200_000.min(model.len() - offset) + 1);
        if round % 3 == 2 {
            assert_eq!(read(device, offset as u64, len), model[offset..offset + len]);
        } else {
            let data: Vec<u8> = (0..len).map(|i| (i as u8) ^ round).collect();
            if round % 3 == 1 {
                // More than a system call takes, and empty ones among them.
                let parts = data.chunks(1 + next(150)).flat_map(|part| [part, &[]]);
                let parts: Vec<&[u8]> = parts.collect();
                device.write_parts_at(offset as u64, &parts).unwrap();
            } else {
                device.write_at(offset as u64, &data).unwrap();
            }
            model[offset..offset + len].copy_from_slice(&data);
        }
    }
    device.barrier().unwrap();
    assert_eq!(read(device, 0, model.len()), model);
    let end = device.size();
    for (offset, len) in [(end, 1), (end - 1, 2), (u64::MAX, 2)] {
        let refused = device.read_at(offset, &mut vec![0; len]).unwrap_err();
        assert!(matches!(refused, DeviceError::OutOfRange { op: Op::Read, .. }), "{refused}");
        let refused = device.write_at(offset, &vec![0; len]).unwrap_err();
        assert!(matches!(refused, DeviceError::OutOfRange { op: Op::Write, .. }), "{refused}");
        let parts: Vec<&[u8]> = vec![&[0]; len];
        let refused = device.write_parts_at(offset, &parts).unwrap_err();
        assert!(matches!(refused, DeviceError::OutOfRange { op: Op::Write, .. }), "{refused}");
    }
    device.read_at(end, &mut []).unwrap();
}

#[test]
fn every_device_is_an_array_of_bytes() {
    const SIZE: usize = 1_000_000;
    let dir = tempfile::tempdir().unwrap();
    let memory = Arc::new(MemoryDevice::new(SIZE as u64));
    behaves_like_an_array(&*memory, vec![0; SIZE]);
    let file = FileDevice::create(dir.path().join("file"), SIZE as u64).unwrap();
    behaves_like_an_array(&file, vec![0; SIZE]);

    let lower = read(&*memory, 0, SIZE);
    let overlay = OverlayDevice::new(memory.clone());
    behaves_like_an_array(&overlay, lower.clone());
    assert_eq!(read(&*memory, 0, SIZE), lower, "an overlay leaves its lower device alone");
    let narrow = OverlayDevice::within(memory.clone(), 2 * 65536);
    narrow.write_at(70_000, &[1; 100_000]).unwrap();
    let refused = narrow.write_at(200_000, &[1]).unwrap_err();
    assert!(refused.to_string().contains("changes in memory"), "{refused}");
    narrow.write_at(70_000, &[2; 100_000]).unwrap();
    assert_eq!(read(&narrow, 0, 200_000)[69_999..70_001], [lower[69_999], 2]);

    let window = OffsetDevice::new(memory.clone(), 70_001, Some(500_003)).unwrap();
    behaves_like_an_array(&window, lower[70_001..570_004].to_vec());
    let after = read(&*memory, 0, SIZE);
    assert_eq!(after[..70_001], lower[..70_001]);
    assert_eq!(after[570_004..], lower[570_004..]);
    assert_eq!(OffsetDevice::new(memory.clone(), 5, None).unwrap().size(), SIZE as u64 - 5);
    assert!(OffsetDevice::new(memory.clone(), SIZE as u64 + 1, None).is_err());
    assert!(OffsetDevice::new(memory, 1, Some(u64::MAX)).is_err());
}

#[test]
fn a_snapshot_is_a_moment_and_survives_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let device = MemoryDevice::new(300_000);
    device.write_at(65_000, &[1; 2000]).unwrap();
    let moment = device.snapshot();
    device.write_at(66_000, &[2; 2000]).unwrap();
    assert_eq!(read(&moment, 66_000, 1000), [1; 1000]);
    assert_eq!(read(&device, 66_000, 1000), [2; 1000]);

    let path = dir.path().join("image");
    moment.store(&path).unwrap();
    let again = MemoryDevice::load(&path).unwrap();
    assert_eq!(again.size(), 300_000);
    assert_eq!(read(&again, 0, 300_000), read(&moment, 0, 300_000));
    assert_eq!(std::fs::read(&path).unwrap(), read(&moment, 0, 300_000));
    assert_eq!(again.allocated(), 2 * 65536);

    device.discard(10, 299_000).unwrap();
    assert_eq!(read(&device, 0, 300_000), [0; 300_000]);

    let short = moment.resized(65_500);
    assert_eq!(read(&short, 65_000, 500), [1; 500]);
    assert!(short.read_at(65_500, &mut [0]).is_err());
    assert_eq!(read(&short.resized(300_000), 65_500, 1500), [0; 1500]);
}

#[test]
fn writable_files_are_exclusive_and_readers_take_no_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let first = FileDevice::create(&path, 8192).unwrap();
    assert!(FileDevice::create(&path, 8192).is_err(), "an existing file is not replaced");
    let busy = FileDevice::open(&path, Access::ReadWrite).unwrap_err();
    assert!(matches!(busy, DeviceError::Busy { .. }), "{busy}");
    let reader = FileDevice::open(&path, Access::ReadOnly).unwrap();
    assert!(reader.is_read_only());
    let refused = reader.write_at(0, &[1]).unwrap_err();
    assert!(matches!(refused, DeviceError::ReadOnly { op: Op::Write, .. }), "{refused}");
    assert!(reader.discard(0, 1).is_err() && reader.grow(100_000).is_err());
    reader.barrier().unwrap();

    first.grow(16384).unwrap();
    first.grow(100).unwrap();
    assert_eq!((first.size(), std::fs::metadata(&path).unwrap().len()), (16384, 16384));
    first.write_at(0, &[7; 16384]).unwrap();
    first.discard(4096, 8192).unwrap();
    assert_eq!(read(&first, 12288, 4096), [7; 4096]);
    drop(first);
    FileDevice::open(&path, Access::ReadWrite).unwrap();
}

#[test]
fn what_is_no_device_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path().to_path_buf(), "/dev/null".into()] {
        let refused = FileDevice::open(&path, Access::ReadOnly).unwrap_err();
        assert!(matches!(refused, DeviceError::NotADevice { .. }), "{refused}");
    }
    let refused = FileDevice::open(dir.path().join("none"), Access::ReadOnly).unwrap_err();
    assert!(matches!(refused, DeviceError::Open { .. }), "{refused}");
}

#[test]
fn a_file_that_shrinks_under_us_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = FileDevice::create(&path, 8192).unwrap();
    let device = Arc::new(device);
    let window = OffsetDevice::new(device.clone(), 60, Some(4096)).unwrap();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
    assert_eq!((device.size(), window.size()), (100, 40));
    let past_end = |failed: DeviceError, want| {
        let DeviceError::OutOfRange { op, offset, len, size, .. } = failed else {
            panic!("{failed}");
        };
        assert_eq!((op, offset, len, size), want);
    };
    past_end(device.read_at(0, &mut [0; 4096]).unwrap_err(), (Op::Read, 0, 4096, 100));
    past_end(window.read_at(0, &mut [0; 4000]).unwrap_err(), (Op::Read, 60, 4000, 100));
    // Nor does a write make it long again, with a hole where data were.
    past_end(device.write_at(4096, &[1; 512]).unwrap_err(), (Op::Write, 4096, 512, 100));
    past_end(device.write_at(50, &[1; 512]).unwrap_err(), (Op::Write, 50, 512, 100));
    past_end(device.discard(4096, 512).unwrap_err(), (Op::Discard, 4096, 512, 100));
    assert_eq!(std::fs::read(&path).unwrap(), [0; 100]);
    device.write_at(0, &[1; 100]).unwrap();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(20_000).unwrap();
    assert_eq!((device.size(), window.size()), (20_000, 4096));
}

/// Attaches a loop device, detached when dropped. `None` where that is not possible.
struct Loop(String);

impl Loop {
    fn attach(path: &std::path::Path) -> Option<Self> {
        for _ in 0..20 {
            let out = Command::new("losetup").args(["-f", "--show"]).arg(path).output().ok()?;
            if out.status.success() {
                return Some(Self(String::from_utf8(out.stdout).ok()?.trim().into()));
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        None
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn loop_devices_and_their_files() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: loop devices need root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, vec![3; 1 << 20]).unwrap();
    let Some(loop_device) = Loop::attach(&path) else {
        println!("skipped: no loop device to be had");
        return;
    };
    let busy = FileDevice::open(&path, Access::ReadWrite).unwrap_err();
    assert!(busy.to_string().contains(&loop_device.0), "{busy}");
    FileDevice::open(&path, Access::ReadOnly).unwrap();

    let block = FileDevice::open(&loop_device.0, Access::ReadWrite).unwrap();
    assert!(block.is_block_device());
    assert_eq!((block.size(), read(&block, 4096, 3)), (1 << 20, vec![3; 3]));
    assert!(block.grow(2 << 20).is_err());
    let busy = FileDevice::open(&loop_device.0, Access::ReadWrite).unwrap_err();
    assert!(matches!(busy, DeviceError::Busy { .. }), "{busy}");
    block.write_at(512, &[9; 512]).unwrap();
    block.barrier().unwrap();
    drop(block);
    drop(loop_device);
    assert_eq!(std::fs::read(&path).unwrap()[512..1024], [9; 512]);
}

#[test]
fn a_cut_keeps_what_a_barrier_covers() {
    let base = MemoryDevice::new(1 << 20);
    base.write_at(0, &[9; 64]).unwrap();
    let device = RecordingDevice::new(&base);
    device.write_at(4096, &[1; 4096]).unwrap();
    device.barrier().unwrap();
    device.mark(1);
    device.write_at(4096, &[2; 4096]).unwrap();
    device.write_at(16384, &[3; 4096]).unwrap();
    device.discard(4096, 512).unwrap();
    device.barrier().unwrap();
    device.mark(2);
    base.write_at(0, &[0; 64]).unwrap();

    let history = device.history();
    assert_eq!(history.events().len(), device.event_count());
    assert_eq!(history.events()[1], Event::Barrier);
    assert_eq!(read(&history.base(), 0, 64), [9; 64]);
    assert_eq!(
        [1, 2, 3, 7, 8].map(|n| history.last_mark(n)),
        [None, None, Some(1), Some(1), Some(2)]
    );
    for (n, state) in history.prefixes() {
        assert_eq!(read(&state, 0, 1 << 20), read(&history.prefix(n), 0, 1 << 20));
    }
    assert_eq!(read(&history.prefix(8), 0, 1 << 20), read(&device.current(), 0, 1 << 20));

    let (mut old, mut new, mut torn, mut second_only) = (0, 0, 0, 0);
    for seed in 0..400 {
        let state = history.scrambled(5, seed);
        assert_eq!(read(&state, 0, 64), [9; 64]);
        let first = read(&state, 4096, 4096);
        assert!(first.chunks(512).all(|sector| sector == [1; 512] || sector == [2; 512]));
        match first.iter().filter(|byte| **byte == 2).count() {
            0 => old += 1,
            4096 => new += 1,
            _ => torn += 1,
        }
        second_only += u32::from(first == [1; 4096] && read(&state, 16384, 4096) == [3; 4096]);
        let covered = history.scrambled(8, seed);
        assert_eq!(read(&covered, 0, 1 << 20), read(&history.prefix(8), 0, 1 << 20));
        assert_eq!(read(&history.scrambled(5, seed), 4096, 4096), first, "a seed is a state");
    }
    assert!(old > 0 && new > 0 && torn > 0 && second_only > 0, "{old} {new} {torn} {second_only}");
}

#[test]
fn faults_happen_when_planned() {
    let inner = Arc::new(MemoryDevice::new(1 << 20));
    let device = FaultyDevice::new(inner.clone());
    device.fail_write(1);
    device.write_at(0, &[1]).unwrap();
    assert!(matches!(device.write_at(0, &[2]), Err(DeviceError::Io { op: Op::Write, .. })));
    device.write_at(1, &[3]).unwrap();
    assert_eq!(read(&device, 0, 2), [1, 3]);
    assert_eq!((device.count(Op::Write), device.count(Op::Read)), (3, 1));

    let effect = Effect::Whole;
    device.fail_operation(OperationFault { sticky: true, effect, ..OperationFault::default() });
    assert!(device.write_at(0, &[4]).is_err() && device.barrier().is_err());
    assert_eq!(read(&*inner, 0, 1), [4]);
    device.heal();
    let (effect, errno) = (Effect::Half, rustix::io::Errno::NOSPC);
    device.fail_operation(OperationFault { effect, errno, ..OperationFault::default() });
    let full = device.write_at(4096, &[5; 2048]).unwrap_err();
    assert!(full.to_string().contains("No space left"), "{full}");
    assert_eq!(read(&*inner, 5119, 2), [5, 0]);
    assert_eq!(device.failed(), 4);
    device.fail_barrier(0);
    assert!(device.barrier().is_err() && device.barrier().is_ok());

    device.fail_range(Op::Read, 4096..8192);
    assert!(device.read_at(8191, &mut [0; 2]).is_err());
    assert!(device.read_at(8192, &mut [0; 2]).is_ok());
    device.rot(0..1).unwrap();
    assert_eq!(read(&device, 0, 1), [!4]);
    device.set_read_only(true);
    assert!(matches!(device.write_at(0, &[0]), Err(DeviceError::ReadOnly { .. })));
    device.heal();
    device.shorten(5000);
    assert!(matches!(device.read_at(4999, &mut [0; 2]), Err(DeviceError::OutOfRange { .. })));
    device.vanish();
    assert!(device.read_at(0, &mut [0]).is_err());
}
