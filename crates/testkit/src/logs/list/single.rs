//! One change, then an fsync of what was changed, of its directory, of another file there, or of the top.

use super::{BASE, plain};
use crate::logs::Workload;

/// A change: its name, its operations, and what an fsync of "itself" is of.
type Change = (&'static str, &'static str, &'static str);

/// Changes of bytes and of where they are.
const DATA: [Change; 24] = [
    ("write", "write d/f 4096 4096", "d/f"),
    ("write-new", "file d/n; write d/n 0 30000", "d/n"),
    ("write-inline", "file d/n; write d/n 0 500", "d/n"),
    ("write-inside", "write d/f 5000 10", "d/f"),
    ("write-beyond", "write d/f 100k 5000", "d/f"),
    ("overwrite-inline", "write d/g 10 50", "d/g"),
    ("inline-grows", "write d/g 0 9000", "d/g"),
    ("append", "append d/f 10000", "d/f"),
    ("append-inline", "append d/g 50", "d/g"),
    ("truncate-up", "truncate d/f 1m", "d/f"),
    ("truncate-down", "truncate d/f 5000", "d/f"),
    ("truncate-zero", "truncate d/f 0", "d/f"),
    ("truncate-sector", "truncate d/big 128k", "d/big"),
    ("truncate-inline", "truncate d/g 20", "d/g"),
    ("prealloc", "prealloc d/f 64k 128k", "d/f"),
    ("prealloc-keep", "keep d/f 64k 128k", "d/f"),
    ("punch", "punch d/big 64k 64k", "d/big"),
    ("punch-odd", "punch d/big 1000 100000", "d/big"),
    ("punch-end", "punch d/big 200k 100k", "d/big"),
    ("zero", "zero d/big 10000 100000", "d/big"),
    ("zero-keep", "zerokeep d/big 200k 200k", "d/big"),
    ("clone-within", "clone d/big 0 64k d/big 512k", "d/big"),
    ("clone-between", "clone d/big 64k 64k d/f 32k", "d/f"),
    ("scatter", "scatter d/big 300", "d/big"),
];

/// Changes of names.
const NAMES: [Change; 23] = [
    ("create", "file d/n", "d/n"),
    ("mkdir", "mkdir d/n", "d/n"),
    ("mkdir-full", "mkdir d/n; file d/n/in; write d/n/in 0 100", "d/n"),
    ("symlink", "symlink d/n target", "d"),
    ("fifo", "fifo d/n", "d"),
    ("node", "node d/n", "d"),
    ("link", "link d/f d/n", "d/f"),
    ("link-across", "link d/f e/n", "d/f"),
    ("link-to-fifo", "link d/p d/n", "d"),
    ("unlink", "unlink d/f", "d"),
    ("unlink-one", "unlink d/two", "e/two"),
    ("unlink-other", "unlink e/two", "d/two"),
    ("unlink-symlink", "unlink d/l", "d"),
    ("rmdir", "rmdir d/empty", "d"),
    ("rename", "rename d/f d/n", "d/n"),
    ("rename-across", "rename d/f e/n", "e/n"),
    ("rename-over", "rename d/f d/big", "d/big"),
    ("rename-over-across", "rename d/f e/x", "e/x"),
    ("rename-dir", "rename d/sub d/n", "d/n"),
    ("rename-dir-across", "rename d/sub e/n", "e/n"),
    ("exchange", "exchange d/f e/x", "d/f"),
    ("whiteout", "whiteout d/f e/n", "e/n"),
    ("tmpfile-link", "tmpfile t d; write @t 0 7000; link @t d/n", "@t"),
];

/// Changes of attributes.
const ATTRIBUTES: [Change; 16] = [
    ("xattr-set", "setxattr d/f user.b 100", "d/f"),
    ("xattr-change", "setxattr d/f user.a 300", "d/f"),
    ("xattr-remove", "rmxattr d/f user.a", "d/f"),
    ("xattr-long", "setxattr d/f user.long 3000", "d/f"),
    ("xattr-dir", "setxattr d user.d 10", "d"),
    ("acl", "acl d/f u:1234:rw", "d/f"),
    ("acl-default", "acl d d:u:1234:rwx; file d/n; mkdir d/m", "d/n"),
    ("chmod", "chmod d/f 4711", "d/f"),
    ("chmod-dir", "chmod d 700", "d"),
    ("chown", "chown d/f 1000 1001", "d/f"),
    ("utimes", "utimes d/f 1000000000", "d/f"),
    ("utimes-dir", "utimes d 1000000000", "d"),
    ("chattr-nocow", "file d/n; chattr d/n +C; write d/n 0 20000", "d/n"),
    ("chattr-compress", "chattr d/f +c; words d/f 0 128k", "d/f"),
    ("chattr-immutable", "chattr d/f +i", "d"),
    ("property", "property d/f zstd; words d/f 0 100000", "d/f"),
];

/// Each change with each fsync. A directory that has not changed has nothing to log: so it gets one more name.
pub(super) fn workloads() -> Vec<Workload> {
    let mut all = Vec::new();
    for (number, (name, change, own)) in DATA.into_iter().chain(NAMES).chain(ATTRIBUTES).enumerate()
    {
        let is_name = (DATA.len()..DATA.len() + NAMES.len()).contains(&number);
        let mut add = |what: &str, sync: &str, anew: bool| {
            let name = format!("{name}+{what}");
            all.push(Workload { anew, ..plain(name, BASE, format!("{change}; {sync}")) });
        };
        let itself = format!("fsync {own}");
        add("self", &itself, true);
        add("warm", &itself, false);
        if own != "d" {
            add("dir", "file d/extra; fsync d", true);
        }
        let other = if own == "d/g" { "d/big" } else { "d/g" };
        add("other", &format!("chmod {other} 600; fsync {other}"), true);
        if is_name {
            add("top", "file extra; fsync .", true);
            add("both", "fsync d; fsync e", true);
        }
        if number < DATA.len() {
            add("fdatasync", &format!("fdatasync {own}"), true);
            add("twice", &format!("{itself}; append {own} 3000; {itself}"), true);
        }
    }
    all
}
