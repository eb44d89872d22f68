//! What `make` refuses, what it leaves behind, and the same trees as `mkfs.btrfs`.

use buttress_device::{BlockDevice, MemoryDevice};
use buttress_mkfs::{
    Environment, Feature, FeatureSet, MkfsError, Options, Profile, existing_signature, make,
    minimum_size,
};

use crate::host::{Image, has_progs, stdout};

fn memory(size: u64, options: &Options, seed: u64) -> Result<MemoryDevice, MkfsError> {
    let device = MemoryDevice::new(size);
    make(&device, options, &mut Environment::seeded(seed)).map(|_| device)
}

#[test]
fn the_same_seed_makes_the_same_bytes() {
    let bytes = |seed| {
        let device = memory(128 << 20, &Options::default(), seed).unwrap();
        let mut bytes = vec![0; 128 << 20];
        device.read_at(0, &mut bytes).unwrap();
        bytes
    };
    assert!(bytes(1) == bytes(1));
    assert!(bytes(1) != bytes(2));
}

#[test]
fn the_smallest_devices_are_those_of_mkfs() {
    if !has_progs() {
        return;
    }
    for (metadata, data) in
        [("single", "single"), ("single", "dup"), ("dup", "single"), ("dup", "dup")]
    {
        let image = Image::new(1 << 20);
        let args = ["-f", "-m", metadata, "-d", data, &image.name()];
        let refused = crate::host::run("mkfs.btrfs", &args).unwrap();
        let profile = |name| buttress_mkfs::parse_profile(name).unwrap();
        let minimum = minimum_size(false, profile(metadata), profile(data));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains(&format!("size for each btrfs device is {minimum}")), "{said}");
    }
    assert_eq!(minimum_size(true, Profile::Single, Profile::Single), 16 << 20);
}

#[test]
fn a_device_too_small_is_refused_untouched() {
    let options = Options::default();
    let minimum = options.minimum_size().unwrap();
    let device = MemoryDevice::new(minimum - 1);
    let refused = make(&device, &options, &mut Environment::seeded(1)).unwrap_err();
    assert!(matches!(refused, MkfsError::TooSmall { .. }), "{refused}");
    assert_eq!(device.allocated(), 0);
    assert!(memory(minimum, &options, 1).is_ok());

    let options = Options { byte_count: Some(minimum + 4096), ..options };
    let refused = memory(minimum, &options, 1).unwrap_err();
    assert!(matches!(refused, MkfsError::SmallerThanRequested { .. }), "{refused}");
}

#[test]
fn contradictions_are_refused() {
    let set = |feature, on| {
        let mut features = FeatureSet::default();
        features.set(feature, on);
        Options { features, ..Options::default() }
    };
    let wishes = [
        Options { nodesize: Some(3000), ..Options::default() },
        Options { nodesize: Some(12288), ..Options::default() },
        Options { nodesize: Some(131_072), ..Options::default() },
        Options { nodesize: Some(16384), ..set(Feature::MixedBg, true) },
        Options { sectorsize: 8192, ..Options::default() },
        Options { label: vec![b'x'; 256], ..Options::default() },
        Options { label: "two\nlines".into(), ..Options::default() },
        Options {
            metadata_profile: Some(Profile::Dup),
            data_profile: Some(Profile::Single),
            mixed: true,
            ..Options::default()
        },
    ];
    for options in wishes {
        assert!(memory(1 << 30, &options, 1).is_err(), "{options:?}");
    }
}

#[test]
fn a_filesystem_is_not_overwritten_by_accident() {
    let device = memory(128 << 20, &Options::default(), 1).unwrap();
    assert_eq!(existing_signature(&device).unwrap().as_deref(), Some("btrfs"));
    let again = |options| make(&device, &options, &mut Environment::seeded(2));
    let refused = again(Options::default()).unwrap_err();
    assert!(matches!(refused, MkfsError::Exists { ref what, .. } if what == "btrfs"), "{refused}");
    again(Options { overwrite: true, ..Options::default() }).unwrap();
}

#[test]
fn signatures_of_other_filesystems_are_known() {
    let makers: [(&str, &[&str], &str); 6] = [
        ("mkfs.ext4", &["-q", "-F"], "ext4"),
        ("mkfs.ext3", &["-q", "-F"], "ext3"),
        ("mkfs.ext2", &["-q", "-F"], "ext2"),
        ("mkswap", &[], "swap"),
        ("mkfs.vfat", &[], "vfat"),
        ("mkfs.xfs", &["-q", "-f"], "xfs"),
    ];
    for (program, args, expect) in makers {
        let image = Image::new(512 << 20);
        let name = image.name();
        let args: Vec<&str> = args.iter().copied().chain([name.as_str()]).collect();
        match crate::host::run(program, &args) {
            Some(output) => assert!(output.status.success(), "{program}"),
            None => {
                println!("skipped: no {program}");
                continue;
            }
        }
        let refused = image.make(&Options::default()).unwrap_err();
        assert!(
            matches!(refused, MkfsError::Exists { ref what, .. } if what == expect),
            "{refused}"
        );
        image.make(&Options { overwrite: true, ..Options::default() }).unwrap();
        if let Some(left) = crate::host::run("blkid", &["-p", "-o", "value", "-s", "TYPE", &name]) {
            assert_eq!(String::from_utf8_lossy(&left.stdout).trim(), "btrfs", "{program}");
        }
    }
}

/// What `dump-tree` says of an image, without what two filesystems never share: uuids, times, checksums, generations,
/// addresses of blocks, and the free space items of chunks that no longer exist.
fn facts(image: &Image, tree: &str) -> Vec<String> {
    let text = stdout("btrfs", &["inspect-internal", "dump-tree", "-t", tree, &image.name()]);
    let keep = |line: &&str| {
        let gone = ["uuid", "fsid", "time ", "leaf", "btrfs-progs", "tree", "bytes used"];
        !gone.iter().any(|word| line.trim_start().contains(word))
    };
    let stable = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut kept = Vec::new();
        let mut skip = 0;
        for word in words {
            match word {
                _ if skip > 0 => skip -= 1,
                "generation" | "gen" | "bytenr" | "generation_v2" => skip = 1,
                _ => kept.push(word),
            }
        }
        kept.join(" ")
    };
    text.lines().filter(keep).map(stable).collect()
}

#[test]
fn the_trees_are_those_of_mkfs() {
    if !has_progs() {
        return;
    }
    let mut features = FeatureSet::default();
    features.set(Feature::BlockGroupTree, false);
    let single = Some(Profile::Single);
    let dup = Some(Profile::Dup);
    let plain = Options { features, overwrite: true, ..Options::default() };
    let cases: [(u64, &[&str], Options); 5] = [
        (109 << 20, &[], plain.clone()),
        (300 << 30, &["-n", "64k"], Options { nodesize: Some(65536), ..plain.clone() }),
        (1_234_567_890, &["-d", "dup"], Options { data_profile: dup, ..plain.clone() }),
        (64 << 20, &["-m", "single"], Options { metadata_profile: single, ..plain.clone() }),
        (
            3 << 30,
            &["-M", "-m", "dup", "-d", "dup"],
            Options { mixed: true, metadata_profile: dup, ..plain },
        ),
    ];
    for (size, args, options) in cases {
        let (theirs, ours) = (Image::new(size), Image::new(size));
        let name = theirs.name();
        stdout("mkfs.btrfs", &[&["-q"], args, &[&name]].concat());
        ours.make(&options).unwrap();
        for tree in ["chunk", "device", "fs", "csum", "root"] {
            assert_eq!(facts(&ours, tree), facts(&theirs, tree), "{tree} tree, {size}, {args:?}");
        }
    }
}

#[test]
fn the_summary_reads_like_that_of_mkfs() {
    let options = Options { label: "hello".into(), ..Options::default() };
    let device = MemoryDevice::new(1 << 30).named("disk.img");
    let text = make(&device, &options, &mut Environment::seeded(1)).unwrap().to_string();
    let text: Vec<&str> = text.lines().filter(|line| !line.starts_with("UUID:")).collect();
    let expect = "\
Label:              hello
Node size:          16384
Sector size:        4096
Filesystem size:    1.00GiB
Block group profiles:
  Data:             single            8.00MiB
  Metadata:         DUP              51.19MiB
  System:           DUP               8.00MiB
SSD detected:       no
Zoned device:       no
Features:           extref, skinny-metadata, no-holes, free-space-tree, block-group-tree
Checksum:           crc32c
Number of devices:  1
Devices:
   ID        SIZE  PATH
    1     1.00GiB  disk.img";
    assert_eq!(text.join("\n"), expect);
}
