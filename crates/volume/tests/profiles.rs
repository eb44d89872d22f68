//! The stripe arithmetic against multi-device filesystems that mkfs.btrfs made: each tree block says
//! in its head at which logical address it is, so the devices themselves tell where every copy went.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::{collections::BTreeMap, fs::File, path::PathBuf, process::Command};

use buttress_device::{BlockDevice, MemoryDevice};
use buttress_volume::{Chunk, ChunkMap, Location, Profile, Row, pieces};

const NODE: u64 = 65536;

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn half(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

/// A filesystem over several files, by device number.
struct Disks {
    _dir: tempfile::TempDir,
    devices: BTreeMap<u64, MemoryDevice>,
}

impl Disks {
    fn make(profile: &str, count: usize) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = (0..count).map(|i| dir.path().join(format!("{i}"))).collect();
        for path in &paths {
            File::create(path).unwrap().set_len(256 << 20).unwrap();
        }
        let made = Command::new("mkfs.btrfs")
            .args(["-q", "-f", "-n", "65536", "-m", profile, "-d", profile])
            .args(&paths)
            .output();
        let Ok(made) = made else {
            println!("skipped: no mkfs.btrfs");
            return None;
        };
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut devices = BTreeMap::new();
        for path in &paths {
            let device = MemoryDevice::load(path).unwrap();
            devices.insert(word(&read(&device, NODE, 4096), 0xc9), device);
        }
        Some(Self { _dir: dir, devices })
    }

    fn read(&self, at: Location, len: usize) -> Vec<u8> {
        read(&self.devices[&at.devid], at.offset, len)
    }

    /// The chunk map, from the superblock and the chunk tree's leaf.
    fn chunks(&self) -> ChunkMap {
        let sb = read(self.devices.values().next().unwrap(), NODE, 4096);
        let map = ChunkMap::default();
        let (mut at, end) = (0x32b, 0x32b + half(&sb, 0xa0));
        while at < end {
            let chunk = Chunk::decode(word(&sb, at + 9), &sb[at + 17..end]).unwrap();
            at += 17 + 48 + 32 * chunk.stripes.len();
            map.add(chunk).unwrap();
        }
        let root = word(&sb, 0x58);
        let chunk = map.find(root).unwrap();
        let mut leaf = Vec::new();
        for piece in pieces(&chunk, root, NODE) {
            leaf.extend(self.read(piece.copies()[0], piece.len as usize));
        }
        assert_eq!(word(&leaf, 48), root);
        for item in 0..half(&leaf, 96) {
            let head = &leaf[101 + 25 * item..];
            if head[8] == 228 {
                let data = 101 + half(head, 17);
                let bytes = &leaf[data..data + half(head, 21)];
                let chunk = Chunk::decode(word(head, 9), bytes).unwrap();
                let mut again = chunk.encode();
                again[32..44].copy_from_slice(&bytes[32..44]);
                assert_eq!(again, bytes, "a chunk item is written as it was read");
                map.add(chunk).unwrap();
            }
        }
        map
    }

    /// Where the heads of tree blocks are, by logical address.
    fn blocks(&self) -> BTreeMap<u64, Vec<Location>> {
        let mut found = BTreeMap::<u64, Vec<Location>>::new();
        let fsid = read(self.devices.values().next().unwrap(), NODE + 0x20, 16);
        for (&devid, device) in &self.devices {
            for offset in (1 << 20..device.size()).step_by(4096) {
                let head = read(device, offset, 101);
                if head[32..48] == fsid && word(&head, 48) != (64 << 20) {
                    found.entry(word(&head, 48)).or_default().push(Location { devid, offset });
                }
            }
        }
        found
    }
}

fn read(device: &MemoryDevice, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    device.read_at(offset, &mut buf).unwrap();
    buf
}

fn first_copies(map: &ChunkMap, logical: u64) -> Vec<Location> {
    let chunk = map.find(logical).unwrap();
    pieces(&chunk, logical, 4096).next().unwrap().copies().to_vec()
}

fn parity_places<'a>(map: &ChunkMap, blocks: impl Iterator<Item = &'a u64>) -> Vec<Location> {
    let mut places = Vec::new();
    for &logical in blocks {
        if let Some(chunk) = map.find(logical)
            && let Some(row) = Row::of(&chunk, logical)
        {
            places.extend([row.p(), row.q()].into_iter().flatten());
        }
    }
    places
}

#[test]
fn every_profile_puts_its_blocks_where_btrfs_does() {
    let cases = [
        ("single", 1, Profile::Single),
        ("dup", 1, Profile::Dup),
        ("raid0", 3, Profile::Raid0),
        ("raid1", 2, Profile::Raid1),
        ("raid1c3", 3, Profile::Raid1c3),
        ("raid1c4", 4, Profile::Raid1c4),
        ("raid10", 4, Profile::Raid10),
        ("raid10", 6, Profile::Raid10),
        ("raid5", 3, Profile::Raid5),
        ("raid5", 4, Profile::Raid5),
        ("raid6", 4, Profile::Raid6),
        ("raid6", 5, Profile::Raid6),
    ];
    for (name, count, profile) in cases {
        let Some(disks) = Disks::make(name, count) else { return };
        let map = disks.chunks();
        let found = disks.blocks();
        let parity = parity_places(&map, found.keys());
        let mut seen = 0;
        for (&logical, places) in &found {
            // Blocks of the temporary chunks that mkfs starts with are in no chunk any more.
            let Some(chunk) = map.find(logical) else { continue };
            if chunk.profile() != profile {
                continue;
            }
            let mut planned = first_copies(&map, logical);
            planned.sort_by_key(|at| (at.devid, at.offset));
            // The XOR of an odd number of heads looks like a head, so parity turns up as well.
            let mut rest = places.clone();
            rest.retain(|at| planned.contains(at) || !parity.contains(at));
            if rest.is_empty() && places.iter().all(|at| parity.contains(at)) {
                continue;
            }
            assert_eq!(rest, planned, "{name} on {count}: block {logical}");
            seen += 1;
        }
        assert!(seen >= 7, "{name} on {count}: only {seen} of {} blocks", found.len());
    }
}

#[test]
fn parity_is_where_the_plan_says() {
    for (name, count) in [("raid5", 4), ("raid6", 5)] {
        let Some(disks) = Disks::make(name, count) else { return };
        let map = disks.chunks();
        let mut rows = 0;
        for logical in disks.blocks().into_keys() {
            let Some(chunk) = map.find(logical) else { continue };
            let Some(row) = Row::of(&chunk, logical) else { continue };
            let mut xor = vec![0; NODE as usize];
            for index in 0..row.data_count() {
                let member = row.member(index).unwrap();
                let data = row.logical() + index * NODE;
                assert_eq!(first_copies(&map, data), [member], "{name}: row and pieces agree");
                xor.iter_mut().zip(disks.read(member, NODE as usize)).for_each(|(x, y)| *x ^= y);
            }
            assert_eq!(disks.read(row.p().unwrap(), NODE as usize), xor, "{name}: row {logical}");
            assert_eq!(row.q().is_some(), name == "raid6");
            rows += 1;
        }
        assert!(rows >= 7);
    }
}
