//! The same few workloads on every kind of filesystem.

use super::BASE;
use crate::logs::{SIZE, Shape, Workload};

/// A kind of filesystem.
const fn shape(name: &'static str, mkfs: &'static [&'static str], mount: &'static str) -> Shape {
    Shape { name, mkfs: Some(mkfs), mount, size: SIZE }
}

/// Kinds of filesystems and mounts.
const SHAPES: [Shape; 22] = [
    shape("node-4k", &["-n", "4096"], ""),
    shape("node-64k", &["-n", "65536"], ""),
    shape("holes", &["-O", "^no-holes"], ""),
    shape("holes-4k", &["-O", "^no-holes", "-n", "4096"], ""),
    shape("fat-metadata", &["-O", "^skinny-metadata"], ""),
    shape("mixed", &["-M"], ""),
    shape("mixed-holes", &["-M", "-O", "^no-holes"], ""),
    shape("single", &["-m", "single"], ""),
    Shape { size: 320 << 20, ..shape("dup", &["-m", "dup", "-d", "dup"], "") },
    shape("xxhash", &["--csum", "xxhash"], ""),
    shape("sha256", &["--csum", "sha256"], ""),
    shape("blake2", &["--csum", "blake2"], ""),
    Shape { mkfs: None, ..shape("block-group-tree", &[], "") },
    shape("no-free-space-tree", &["-R", "^free-space-tree"], "nospace_cache"),
    shape("old-extrefs", &["-O", "^extref"], ""),
    shape("zstd", &[], "compress-force=zstd"),
    shape("zlib", &[], "compress-force=zlib"),
    shape("lzo", &[], "compress-force=lzo"),
    shape("nodatacow", &[], "nodatacow"),
    shape("nodatasum", &[], "nodatasum"),
    shape("inline-none", &[], "max_inline=0"),
    shape("discard", &[], "discard=async"),
];

/// Workloads that touch much at once.
const MIXES: [(&str, &str); 8] = [
    (
        "data",
        "words d/f 0 60000; words d/n 0 300k; write d/g 0 50; fsync d/f; fsync d/n; fsync d/g",
    ),
    ("again", "words d/n 0 200k; fsync d/n; words d/n 50000 9000; append d/n 5000; fsync d/n"),
    ("holes", "punch d/big 32k 64k; truncate d/f 500k; write d/f 400k 4k; fsync d/big; fsync d/f"),
    ("shorter", "truncate d/big 70000; append d/big 100; truncate d/g 7; fsync d/big; fsync d/g"),
    (
        "prealloc",
        "keep d/f 64k 256k; prealloc d/n 0 128k; write d/n 32k 8k; fsync d/f; fdatasync d/n",
    ),
    ("clones", "clone d/big 0 64k d/n 64k; clone d/big 64k 64k d/big 512k; fsync d/n; fsync d/big"),
    (
        "names",
        "link d/f d/m; unlink d/l; rename d/g d/h; rmdir d/empty; file d/empty; mkdir d/k; file d/k/in; \
         setxattr d/f user.z 400; fsync d/f; fsync d",
    ),
    (
        "many",
        "files d 150; remove d 20 60; scatter d/big 200; fsync d; fsync d/big; fsync d/entry-3",
    ),
];

/// Each mix on each kind.
pub(super) fn workloads() -> Vec<Workload> {
    let mut all = Vec::new();
    for shape in SHAPES {
        for (name, mix) in MIXES {
            let name = format!("on-{}+{name}", shape.name);
            let before = format!("{BASE}; file d/n");
            all.push(Workload { name, shape, before, anew: true, after: mix.to_owned() });
        }
    }
    all
}
