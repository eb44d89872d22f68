//! Two changes in order, with an fsync at the end only, or with one between them, too.

use super::{BASE, plain};
use crate::logs::Workload;

/// The name, the first change, the second, and what is made durable.
type Pair = (&'static str, &'static str, &'static str, &'static str);

/// Names that are given up and taken again.
const NAMES: [Pair; 34] = [
    ("unlink-create", "unlink d/f", "file d/f; write d/f 0 3000", "d/f"),
    ("unlink-create-dir", "unlink d/f", "file d/f; write d/f 0 3000", "d"),
    ("unlink-mkdir", "unlink d/f", "mkdir d/f; file d/f/in", "d/f"),
    ("unlink-symlink", "unlink d/f", "symlink d/f g", "d"),
    ("rmdir-create", "rmdir d/empty", "file d/empty", "d/empty"),
    ("rmdir-mkdir", "rmdir d/empty", "mkdir d/empty; file d/empty/in", "d/empty"),
    ("rename-create", "rename d/f d/n", "file d/f", "d/f"),
    ("rename-create-old", "rename d/f d/n", "file d/f", "d/n"),
    ("rename-create-dir", "rename d/f d/n", "file d/f", "d"),
    ("rename-mkdir", "rename d/sub d/n", "mkdir d/sub; file d/sub/in", "d/sub"),
    ("rename-mkdir-inner", "rename d/sub d/n", "mkdir d/sub; file d/sub/in", "d/sub/in"),
    ("rename-link", "rename d/f d/n", "link d/g d/f", "d/g"),
    ("rename-rename", "rename d/f d/n", "rename d/g d/f", "d/f"),
    ("rename-rename-first", "rename d/f d/n", "rename d/g d/f", "d/n"),
    ("rename-back", "rename d/f d/n", "rename d/n d/f", "d/f"),
    ("rename-over-twice", "rename d/f d/big", "rename d/big d/g", "d/g"),
    ("rename-chain", "rename d/g d/n; rename d/f d/g", "rename d/n d/f", "d/g"),
    ("rename-swap-exchange", "exchange d/f d/g", "write d/f 0 5000", "d/f"),
    ("exchange-twice", "exchange d/f d/g", "exchange d/g d/big", "d/big"),
    ("exchange-dir-file", "exchange d/sub d/f", "file d/f/in", "d/f/in"),
    ("link-unlink", "link d/f d/n", "unlink d/f", "d/n"),
    ("link-unlink-dir", "link d/f d/n", "unlink d/f", "d"),
    ("link-unlink-new", "link d/f d/n", "unlink d/n", "d/f"),
    ("link-across-unlink", "link d/f e/n", "unlink d/f", "e/n"),
    ("unlink-link-same", "unlink d/two", "link e/two d/two", "d/two"),
    ("unlink-link-other", "unlink d/two", "link d/f d/two", "d/f"),
    ("link-rename", "link d/f d/n", "rename d/n d/m", "d/m"),
    ("link-rename-over", "link d/f d/n", "rename d/n d/g", "d/g"),
    ("create-rename", "file d/n; write d/n 0 8000", "rename d/n d/m", "d/m"),
    ("create-rename-over", "file d/n; write d/n 0 8000", "rename d/n d/f", "d/f"),
    ("create-unlink", "file d/n; write d/n 0 8000", "unlink d/n", "d"),
    ("create-link-across", "file d/n; write d/n 0 8000", "link d/n e/n", "d/n"),
    ("mkdir-create", "mkdir d/n", "file d/n/in; write d/n/in 0 9000", "d/n/in"),
    ("mkdir-rename-into", "mkdir d/n", "rename d/sub d/n/sub", "d/n"),
];

/// Bytes and extents.
const DATA: [Pair; 24] = [
    ("punch-write", "punch d/big 64k 64k", "write d/big 80k 8k", "d/big"),
    ("write-punch", "write d/big 64k 64k", "punch d/big 80k 8k", "d/big"),
    ("truncate-write", "truncate d/big 10000", "write d/big 100k 9000", "d/big"),
    ("truncate-truncate", "truncate d/big 10000", "truncate d/big 300k", "d/big"),
    ("truncate-append", "truncate d/big 128k", "append d/big 20000", "d/big"),
    ("extend-shrink", "truncate d/big 1m", "truncate d/big 100000", "d/big"),
    ("prealloc-write", "prealloc d/f 64k 256k", "write d/f 128k 16k", "d/f"),
    ("keep-truncate", "keep d/f 64k 256k", "truncate d/f 128k", "d/f"),
    ("keep-write", "keep d/f 20k 256k", "write d/f 64k 4k", "d/f"),
    ("keep-shrink", "keep d/f 20k 256k", "truncate d/f 4096", "d/f"),
    ("prealloc-punch", "prealloc d/f 64k 256k", "punch d/f 100k 64k", "d/f"),
    ("write-clone", "write d/f 0 64k", "clone d/f 0 64k d/big 64k", "d/big"),
    ("clone-write", "clone d/big 0 128k d/f 32k", "write d/f 64k 4k", "d/f"),
    ("clone-source", "clone d/big 0 128k d/f 32k", "write d/big 0 64k", "d/big"),
    ("clone-clone", "clone d/big 0 64k d/f 32k", "clone d/f 32k 64k e/x 8k", "e/x"),
    ("clone-punch", "clone d/big 0 64k d/big 512k", "punch d/big 0 64k", "d/big"),
    ("write-write", "write d/f 0 8k", "write d/f 4k 8k", "d/f"),
    ("write-other", "write d/f 0 8k", "write d/big 0 8k", "d/big"),
    ("inline-truncate", "write d/g 0 200", "truncate d/g 5000", "d/g"),
    ("inline-append", "append d/g 100", "append d/g 8000", "d/g"),
    ("xattr-xattr", "setxattr d/f user.b 50", "rmxattr d/f user.b", "d/f"),
    ("xattr-replace", "rmxattr d/f user.a", "setxattr d/f user.a 5", "d/f"),
    ("chmod-write", "chmod d/f 600", "write d/f 0 10", "d/f"),
    ("scatter-punch", "scatter d/big 64", "punch d/big 100k 200k", "d/big"),
];

/// Each pair with both.
pub(super) fn workloads() -> Vec<Workload> {
    let mut all = Vec::new();
    for (name, first, second, own) in NAMES.into_iter().chain(DATA) {
        let mut add = |what: &str, after: String, anew: bool| {
            all.push(Workload { anew, ..plain(format!("pair-{name}+{what}"), BASE, after) });
        };
        add("end", format!("{first}; {second}; fsync {own}"), true);
        add("warm", format!("{first}; {second}; fsync {own}"), false);
        // What is fsynced first is what both changes are near: a file that was there, or their directory.
        let between = if DATA.iter().any(|it| it.0 == name) { own } else { "d" };
        add("between", format!("{first}; fsync {between}; {second}; fsync {own}"), true);
        add(
            "other",
            format!("{first}; append d/p2 99; fsync d/p2; {second}; chmod d/p2 600; fsync d/p2"),
            true,
        );
    }
    all
}
