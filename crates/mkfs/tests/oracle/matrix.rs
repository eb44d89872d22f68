//! Every choice there is, on devices from the smallest to hundreds of gigabytes: `btrfs check` finds nothing, the
//! kernel mounts it, writes to it, and `btrfs check` finds nothing again.

use buttress_codec::ChecksumKind;
use buttress_mkfs::Feature::{self, *};
use buttress_mkfs::{FeatureSet, Options, Profile, parse_size};
use buttress_testkit::oracle::check_ours;

use crate::host::{Image, has_progs, may_mount};

/// Makes, checks, mounts, writes and checks again.
fn try_out(size: u64, options: &Options) {
    let what = format!("{size} bytes, {options:?}");
    let image = Image::new(size);
    let summary = image.make(options).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(summary.size, size - size % 4096);
    // btrfs-progs before 6.3 does not read block group trees.
    let readable = !summary.features.contains(Feature::BlockGroupTree);
    if readable {
        image.check(&what);
    }
    if !may_mount() {
        return;
    }
    image.mounted(&what, |root| {
        std::fs::create_dir(root.join("dir")).unwrap();
        std::fs::write(root.join("dir/small"), b"hello").unwrap();
        std::fs::write(root.join("dir/large"), vec![7; 300_000]).unwrap();
    });
    if readable {
        image.check(&what);
    }
    image.mounted(&what, |root| {
        assert_eq!(std::fs::read(root.join("dir/large")).unwrap(), vec![7; 300_000]);
    });
}

fn without(names: &[Feature]) -> FeatureSet {
    let mut set = FeatureSet::default();
    names.iter().for_each(|name| set.set(*name, false));
    set
}

fn plain() -> Options {
    Options { features: without(&[Feature::BlockGroupTree]), ..Options::default() }
}

#[test]
fn checksums_and_node_sizes() {
    if !has_progs() {
        return;
    }
    for (checksum, nodesize) in
        ChecksumKind::ALL.into_iter().zip([4096, 8192, 32768, 65536]).chain([
            (ChecksumKind::Crc32c, 16384),
            (ChecksumKind::Crc32c, 65536),
            (ChecksumKind::Sha256, 4096),
        ])
    {
        let nodesize = Some(nodesize);
        try_out(1 << 30, &Options { checksum, nodesize, ..plain() });
        try_out(1 << 30, &Options { checksum, nodesize, ..Options::default() });
    }
}

#[test]
fn profiles_and_sizes() {
    if !has_progs() {
        return;
    }
    let single = Some(Profile::Single);
    let dup = Some(Profile::Dup);
    for (metadata_profile, data_profile, mixed, sizes) in [
        (None, None, false, "109m 128m 1025m 12345678901 300g"),
        (single, None, false, "45m 64m 70g"),
        (single, dup, false, "165m 9g"),
        (dup, dup, false, "229m 2g 60g"),
        (None, None, true, "16m 17m 100m 300g"),
        (dup, None, true, "157m 1g 11g"),
    ] {
        for size in sizes.split(' ') {
            let size = parse_size(size).unwrap();
            try_out(size, &Options { metadata_profile, data_profile, mixed, ..plain() });
        }
        let size = parse_size(sizes.split(' ').next().unwrap()).unwrap();
        try_out(size, &Options { metadata_profile, data_profile, mixed, ..Options::default() });
    }
    // With 64 KiB nodes the kernel has no room on 45 MiB, whoever made the filesystem.
    let nodesize = Some(65536);
    try_out(64 << 20, &Options { metadata_profile: single, nodesize, ..Options::default() });
    try_out(109 << 20, &Options { nodesize, ..plain() });
}

#[test]
fn features() {
    if !has_progs() {
        return;
    }
    for off in [
        vec![BlockGroupTree],
        vec![FreeSpaceTree],
        vec![NoHoles],
        vec![Extref],
        vec![BlockGroupTree, SkinnyMetadata],
        vec![Extref, SkinnyMetadata, NoHoles, FreeSpaceTree],
    ] {
        for nodesize in [4096, 16384] {
            let features = without(&off);
            let nodesize = Some(nodesize);
            try_out(1 << 30, &Options { features, nodesize, ..Options::default() });
            let mut features = features;
            features.set(Quota, true);
            try_out(1 << 30, &Options { features, nodesize, ..Options::default() });
        }
    }
    let features = without(&[SkinnyMetadata, BlockGroupTree]);
    try_out(1 << 30, &Options { features, mixed: true, ..Options::default() });
}

/// btrfs-progs before 6.7 reads no simple quotas; the kernel counts on from the numbers that are there.
#[test]
fn simple_quotas() {
    let knows = std::path::Path::new("/sys/fs/btrfs/features/simple_quota").exists();
    for (nodesize, off) in [
        (4096, vec![]),
        (16384, vec![BlockGroupTree]),
        (65536, vec![Extref, SkinnyMetadata, NoHoles, FreeSpaceTree]),
    ] {
        let mut features = without(&off);
        features.set(Squota, true);
        let image = Image::new(1 << 30);
        image.make(&Options { features, nodesize: Some(nodesize), ..Options::default() }).unwrap();
        check_ours(&image.path(), true).unwrap();
        if !knows || !may_mount() {
            println!("skipped: needs simple quotas of the kernel");
            continue;
        }
        for round in 0..3 {
            image.mounted("simple quotas", |root| {
                for number in 0..300 {
                    std::fs::write(root.join(format!("{round}-{number}")), b"hello").unwrap();
                }
                std::fs::write(root.join("large"), vec![round; 300_000]).unwrap();
            });
            check_ours(&image.path(), true).unwrap();
        }
    }
}

#[test]
fn part_of_a_device() {
    if !has_progs() || !may_mount() {
        return;
    }
    let image = Image::new(1 << 30);
    let options = Options { byte_count: Some((200 << 20) + 100), ..plain() };
    assert_eq!(image.make(&options).unwrap().size, 200 << 20);
    image.check("200 MiB of 1 GiB");
    image.mounted("200 MiB of 1 GiB", |root| {
        let free = rustix::fs::statvfs(root).unwrap();
        assert_eq!(free.f_blocks * free.f_frsize, 200 << 20);
    });
}
