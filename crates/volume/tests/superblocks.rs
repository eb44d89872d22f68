//! Superblocks that are torn, rotten, old or somebody else's: which one is read by, and which one is written on from.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_codec::ChecksumKind;
use buttress_device::{BlockDevice, DeviceError, MemoryDevice, Op, testing::FaultyDevice};
use buttress_ondisk::{Superblock, superblock::SUPERBLOCK_LEN};
use buttress_volume::{Access, Age, Opened, Rescue, Volume, VolumeError, Warning};
use zerocopy::{FromBytes, IntoBytes};

const PRIMARY: u64 = 64 << 10;
const MIRROR: u64 = 64 << 20;
const SECTOR: usize = 512;

/// What `mkfs.btrfs` makes on a file of `size` bytes, each line of arguments after the other; `None` where there is none.
fn made(size: u64, lines: &[&str]) -> Option<MemoryDevice> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    for line in lines {
        let mut command = Command::new("mkfs.btrfs");
        let Ok(out) = command.args(["-q", "-f"]).args(line.split(' ')).arg(&path).output() else {
            println!("skipped: no mkfs.btrfs");
            return None;
        };
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
    Some(MemoryDevice::load(&path).unwrap())
}

fn open(device: &MemoryDevice, access: Access) -> Result<Opened, VolumeError> {
    Volume::open(vec![Arc::new(device.snapshot())], access)
}

fn read(device: &MemoryDevice, offset: u64) -> [u8; SUPERBLOCK_LEN] {
    let mut bytes = [0; SUPERBLOCK_LEN];
    device.read_at(offset, &mut bytes).unwrap();
    bytes
}

fn sealed(mut sb: Superblock, offset: u64) -> [u8; SUPERBLOCK_LEN] {
    sb.bytenr = offset.into();
    sb.csum = [0; 32];
    let kind = ChecksumKind::from_u16(sb.csum_type.get()).unwrap();
    sb.csum = *kind.digest(&sb.as_bytes()[32..]).as_field();
    sb.as_bytes().try_into().unwrap()
}

/// The superblock of the next commit, as far as bytes go that a commit changes: the next backup, the generation, counters.
fn next(sb: &Superblock) -> Superblock {
    let mut next = *sb;
    next.generation += 1;
    next.bytes_used += 4096;
    next.root += 16384;
    next.uuid_tree_generation = next.generation;
    let generations = sb.root_backups.map(|backup| backup.tree_root_gen.get());
    let newest = (0..4).max_by_key(|slot| generations[*slot]).unwrap();
    let mut backup = next.root_backups[newest];
    backup.tree_root = next.root;
    backup.tree_root_gen = next.generation;
    backup.bytes_used = next.bytes_used;
    next.root_backups[(newest + 1) % 4] = backup;
    next
}

/// The primary, as the copy's commit and as the commit after it wrote it.
fn commits(count: u32) -> Option<(MemoryDevice, Vec<Superblock>)> {
    let device = made(256 << 20, &["-K"])?;
    let mut all = vec![Superblock::read_from_bytes(&read(&device, PRIMARY)).unwrap()];
    for _ in 1..count {
        all.push(next(&all[all.len() - 1]));
    }
    Some((device, all))
}

/// A write of the primary that a power loss has cut off: any of its sectors are there. Whatever is opened for writing is the
/// commit before, which the copy has, or the new one whole; and nearly everything can be.
#[test]
fn a_torn_primary_leaves_the_commit_before() {
    let Some((device, all)) = commits(5) else { return };
    let (mut opened, mut refused) = (0, 0);
    for pair in all.windows(2) {
        let (old, new) = (&pair[0], sealed(pair[1], PRIMARY));
        device.write_at(MIRROR, &sealed(*old, MIRROR)).unwrap();
        for there in 0..1u32 << (SUPERBLOCK_LEN / SECTOR) {
            let mut torn = sealed(*old, PRIMARY);
            for sector in (0..SUPERBLOCK_LEN / SECTOR).filter(|it| there >> it & 1 == 1) {
                let range = sector * SECTOR..(sector + 1) * SECTOR;
                torn[range.clone()].copy_from_slice(&new[range]);
            }
            if torn == new {
                continue;
            }
            device.write_at(PRIMARY, &torn).unwrap();
            let found = open(&device, Access::ReadWrite);
            match found.map(|it| it.volume.superblock().generation) {
                Ok(generation) => assert_eq!(generation, old.generation),
                Err(VolumeError::OldMirror { age, generation, .. }) => {
                    assert_eq!(
                        (age, generation),
                        (Age::Behind { commits: 1 }, old.generation.get())
                    );
                    refused += 1;
                    continue;
                }
                Err(error) => panic!("{there:#010b}: {error}"),
            }
            opened += 1;
        }
    }
    assert!(opened > 2 * refused, "{opened} opened, {refused} refused");
}

/// A commit that was finished, and whose primary is damaged afterwards: never is an older copy written on from.
#[test]
fn a_rotten_primary_never_leads_back() {
    let Some((device, all)) = commits(7) else { return };
    for behind in [1, 2, 6] {
        let (old, new) = (&all[0], sealed(all[behind], PRIMARY));
        device.write_at(MIRROR, &sealed(*old, MIRROR)).unwrap();
        for at in 0..SUPERBLOCK_LEN {
            let mut rotten = new;
            rotten[at] ^= 0x10;
            device.write_at(PRIMARY, &rotten).unwrap();
            match open(&device, Access::ReadWrite) {
                Err(VolumeError::OldMirror { .. }) => {}
                // Where the checksum has no bytes, the primary is as good as before.
                Ok(found) if found.warnings.is_empty() && (4..32).contains(&at) => {}
                other => panic!("{behind}, {at}: {:?}", other.map(|it| it.warnings)),
            }
        }
        for sector in 0..SUPERBLOCK_LEN / SECTOR {
            let mut rotten = new;
            rotten[sector * SECTOR..(sector + 1) * SECTOR].fill(0);
            device.write_at(PRIMARY, &rotten).unwrap();
            if rotten != new {
                let error = open(&device, Access::ReadWrite).unwrap_err();
                assert!(
                    matches!(error, VolumeError::OldMirror { .. }),
                    "{behind}, {sector}: {error}"
                );
            }
        }
        let mut rotten = new;
        rotten[100] ^= 0x10;
        device.write_at(PRIMARY, &rotten).unwrap();
        let Opened { volume, warnings } = open(&device, Access::ReadOnly).unwrap();
        assert_eq!(volume.superblock().generation, old.generation);
        let [warning @ Warning::MirrorUsed { .. }] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(warning.to_string().contains("may lack"), "{warning}");
    }
}

/// What is fsynced with Linux is in a log that only the primary's first sector knows.
#[test]
fn a_log_that_only_the_primary_knows_is_not_lost() {
    let Some((device, all)) = commits(1) else { return };
    device.write_at(MIRROR, &sealed(all[0], MIRROR)).unwrap();
    let mut logged = all[0];
    logged.log_root = all[0].root;
    let mut rotten = sealed(logged, PRIMARY);
    rotten[3000] ^= 1;
    device.write_at(PRIMARY, &rotten).unwrap();
    let error = open(&device, Access::ReadWrite).unwrap_err();
    assert!(matches!(error, VolumeError::OldMirror { .. }), "{error}");
    // The same without a log: what is left of the primary is the copy's commit.
    let mut rotten = sealed(all[0], PRIMARY);
    rotten[3000] ^= 1;
    device.write_at(PRIMARY, &rotten).unwrap();
    let Opened { volume, warnings } = open(&device, Access::ReadWrite).unwrap();
    let [Warning::MirrorUsed { age: Age::Current, .. }] = warnings[..] else {
        panic!("{warnings:?}")
    };
    volume.write_superblocks(&volume.superblock()).unwrap();
}

/// A larger filesystem was there before: its copy of the superblock lies beyond the end of the new one.
#[test]
fn a_copy_of_an_older_larger_filesystem_is_not_taken() {
    let Some(device) = made(256 << 20, &["-K", "-K -M -b 40M"]) else { return };
    assert!(open(&device, Access::ReadWrite).unwrap().warnings.is_empty());
    let stale = Superblock::read_from_bytes(&read(&device, MIRROR)).unwrap();
    assert_eq!(stale.bytenr, MIRROR, "the older one's copy is there");
    let good = read(&device, PRIMARY);
    for at in [0x48, 0x20, 0x10b, 3000] {
        let mut bad = good;
        bad[at] ^= 0x10;
        device.write_at(PRIMARY, &bad).unwrap();
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let error = open(&device, access).unwrap_err();
            assert!(matches!(error, VolumeError::Superblock { .. }), "{at}: {error}");
        }
    }
}

#[test]
fn older_roots_are_for_reading_and_on_request() {
    let Some((device, all)) = commits(1) else { return };
    let mut lost = all[0];
    lost.generation += 1;
    lost.root += 1 << 20;
    device.write_at(PRIMARY, &sealed(lost, PRIMARY)).unwrap();
    let rescue = Rescue { backup_root: true, ..Rescue::default() };
    let rescued = |access| Volume::open_rescue(vec![Arc::new(device.snapshot())], access, rescue);
    let Opened { volume, warnings } = rescued(Access::ReadOnly).unwrap();
    assert_eq!(volume.superblock().generation, all[0].generation);
    let newest = lost.generation.get();
    let [Warning::BackupRootUsed { generation, newest: said, .. }] = warnings[..] else {
        panic!("{warnings:?}")
    };
    assert_eq!((generation, said), (newest - 1, newest));
    let error = rescued(Access::ReadWrite).unwrap_err();
    assert!(matches!(error, VolumeError::ReadOnlyPossible { .. }), "{error}");
    // Where the last roots are good, they are used, and nothing is said.
    device.write_at(PRIMARY, &sealed(all[0], PRIMARY)).unwrap();
    assert_eq!(rescued(Access::ReadOnly).unwrap().warnings, []);
    // Where none is, the error is that of the last ones.
    lost.root_backups = FromBytes::read_from_bytes(&[0; 672]).unwrap();
    device.write_at(PRIMARY, &sealed(lost, PRIMARY)).unwrap();
    assert!(rescued(Access::ReadOnly).unwrap_err().is_corruption());
}

#[test]
fn who_finds_that_another_has_written_writes_no_more() {
    let Some((device, _)) = commits(1) else { return };
    let device = Arc::new(device);
    let volume = Volume::open(vec![device.clone()], Access::ReadWrite).unwrap().volume;
    let mut sb = volume.superblock();
    sb.label[..3].copy_from_slice(b"our");
    volume.write_superblocks(&sb).unwrap();
    let mut theirs = volume.superblock();
    theirs.label[..5].copy_from_slice(b"their");
    device.write_at(PRIMARY, &sealed(theirs, PRIMARY)).unwrap();
    let error = volume.write_superblocks(&sb).unwrap_err();
    assert!(matches!(error, VolumeError::Overwritten { .. }), "{error}");
    let left = Superblock::read_from_bytes(&read(&device, PRIMARY)).unwrap();
    assert_eq!(left.label(), b"their");
}

/// A primary that nobody has written goes bad while a volume is open: the next commit puts it right.
#[test]
fn a_primary_that_rots_is_no_strangers() {
    let Some((device, _)) = commits(1) else { return };
    let device = Arc::new(device);
    let volume = Volume::open(vec![device.clone()], Access::ReadWrite).unwrap().volume;
    let sb = volume.superblock();
    let good = read(&device, PRIMARY);
    assert_eq!(volume.check_alone().unwrap(), None);
    for at in (0..SUPERBLOCK_LEN).filter(|at| !(0x40..0x48).contains(at)) {
        let mut rotten = good;
        rotten[at] ^= 0x10;
        device.write_at(PRIMARY, &rotten).unwrap();
        let wrong = volume.check_alone().unwrap_or_else(|error| panic!("{at}: {error}"));
        // Where the checksum has no bytes, the primary is as good as before.
        assert!(wrong.is_some() || (4..32).contains(&at), "{at}");
    }
    for sector in 1..SUPERBLOCK_LEN / SECTOR {
        let mut rotten = good;
        rotten[sector * SECTOR..(sector + 1) * SECTOR].fill(0x5a);
        device.write_at(PRIMARY, &rotten).unwrap();
        assert!(volume.check_alone().unwrap().unwrap().contains("checksum"));
        volume.write_superblocks(&sb).unwrap();
        assert!(read(&device, PRIMARY) == good, "{sector}");
    }
    // Without the magic it is no superblock: somebody may have wiped it on purpose.
    for wiped in [0x40..0x48, 0..SECTOR, 0..SUPERBLOCK_LEN] {
        let mut other = good;
        other[wiped].fill(0);
        device.write_at(PRIMARY, &other).unwrap();
        let error = volume.check_alone().unwrap_err();
        assert!(matches!(error, VolumeError::Overwritten { .. }), "{error}");
    }
    // One that breaks rules, and has its checksum, was written.
    let odd = Superblock { nodesize: 12345.into(), ..sb };
    device.write_at(PRIMARY, &sealed(odd, PRIMARY)).unwrap();
    let error = volume.check_alone().unwrap_err();
    assert!(matches!(error, VolumeError::Overwritten { .. }), "{error}");
}

/// A device that has lost its end keeps no promise of a commit; one that has become longer does.
#[test]
fn who_finds_the_device_cut_short_writes_no_more() {
    let Some((device, _)) = commits(1) else { return };
    let faulty = Arc::new(FaultyDevice::new(Arc::new(device)));
    let volume = Volume::open(vec![faulty.clone()], Access::ReadWrite).unwrap().volume;
    let sb = volume.superblock();
    let total = sb.dev_item.total_bytes.get();
    for size in [total - 1, 100 << 20, 4096, 0] {
        faulty.shorten(size);
        for error in [volume.check_alone().unwrap_err(), volume.write_superblocks(&sb).unwrap_err()]
        {
            let VolumeError::CutShort { size: found, total_bytes, .. } = error else {
                panic!("{error}");
            };
            assert_eq!((found, total_bytes), (size, total));
        }
    }
    assert_eq!((faulty.count(Op::Write), faulty.count(Op::Barrier)), (0, 0));
    for size in [total, total + 4096] {
        faulty.shorten(size);
        assert_eq!(volume.check_alone().unwrap(), None);
        volume.write_superblocks(&sb).unwrap();
    }
}

/// A device whose primary superblock another program writes right after it was read for the first time.
#[derive(Debug)]
struct Contested {
    device: MemoryDevice,
    theirs: [u8; SUPERBLOCK_LEN],
    written: AtomicBool,
}

impl BlockDevice for Contested {
    fn name(&self) -> &str {
        "contested"
    }

    fn size(&self) -> u64 {
        self.device.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read_at(offset, buf)?;
        if offset == PRIMARY && !self.written.swap(true, Ordering::Relaxed) {
            self.device.write_at(PRIMARY, &self.theirs)?;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.device.write_at(offset, data)
    }

    fn barrier(&self) -> Result<(), DeviceError> {
        self.device.barrier()
    }
}

#[test]
fn who_writes_while_a_volume_is_opened_is_noticed() {
    let Some((device, all)) = commits(2) else { return };
    let theirs = sealed(all[1], PRIMARY);
    for rotten in [false, true] {
        if rotten {
            // Opened by the copy.
            let mut bad = read(&device, PRIMARY);
            bad[3000] ^= 1;
            device.write_at(PRIMARY, &bad).unwrap();
        }
        let contested = Contested { device: device.snapshot(), theirs, written: false.into() };
        let volume = Volume::open(vec![Arc::new(contested)], Access::ReadWrite).unwrap().volume;
        let ours = volume.superblock();
        assert_eq!(ours.generation, all[0].generation);
        let error = volume.write_superblocks(&ours).unwrap_err();
        assert!(matches!(error, VolumeError::Overwritten { .. }), "{error}");
    }
}

#[test]
fn who_looks_while_we_write_sees_no_stranger() {
    let Some((device, _)) = commits(1) else { return };
    let volume = Volume::open(vec![Arc::new(device)], Access::ReadWrite).unwrap().volume;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..300 {
                let mut sb = volume.superblock();
                sb.bytes_used += n * 4096;
                volume.write_superblocks(&sb).unwrap();
            }
            over.store(true, Ordering::Relaxed);
        });
        while !over.load(Ordering::Relaxed) {
            assert_eq!(volume.check_alone().unwrap(), None);
        }
    });
}
