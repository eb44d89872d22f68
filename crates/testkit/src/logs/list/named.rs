//! What replay has gone wrong with before, or can: each with a name that says what it is about.

use super::{BASE, plain};
use crate::logs::{PLAIN, Shape, Workload};

/// The name, what is committed beside the base, and what follows.
type Named = (&'static str, &'static str, &'static str);

/// Directories: new ancestors, entries that are gone, ranges, moves.
const DIRECTORIES: [Named; 24] = [
    (
        "ancestors",
        "",
        "mkdir d/1; mkdir d/1/2; mkdir d/1/2/3; file d/1/2/3/in; write d/1/2/3/in 0 5000; fsync d/1/2/3/in",
    ),
    ("ancestors-of-dir", "", "mkdir d/1; mkdir d/1/2; mkdir d/1/2/3; fsync d/1/2/3"),
    (
        "ancestors-twice",
        "",
        "mkdir d/1; file d/1/a; fsync d/1/a; mkdir d/1/2; file d/1/2/b; fsync d/1/2/b",
    ),
    (
        "ancestor-renamed",
        "",
        "mkdir d/1; file d/1/a; fsync d/1/a; rename d/1 d/2; file d/2/b; fsync d/2/b",
    ),
    (
        "ancestor-renamed-old",
        "mkdir d/1; file d/1/a",
        "rename d/1 d/2; append d/2/a 500; fsync d/2/a",
    ),
    ("subdirectories-new", "", "mkdir d/1; mkdir d/1/2; file d/1/2/in; file d/1/b; fsync d/1"),
    (
        "parent-of-new-tree",
        "",
        "mkdir d/1; mkdir d/1/2; file d/1/2/in; write d/1/2/in 0 9000; symlink d/1/2/l x; fsync d",
    ),
    ("delete-all", "mkdir v; files v 200", "remove v 0 200; fsync v"),
    ("delete-all-rmdir", "mkdir d/v; files d/v 50", "remove d/v 0 50; rmdir d/v; fsync d"),
    ("delete-range", "mkdir v; files v 300", "remove v 100 200; fsync v"),
    (
        "delete-two-ranges",
        "mkdir v; files v 300",
        "remove v 0 50; fsync v; remove v 250 300; fsync v",
    ),
    (
        "delete-and-add",
        "mkdir v; files v 300",
        "remove v 0 150; rename v/entry-200 v/a; file v/entry-5; fsync v",
    ),
    (
        "delete-last-add",
        "mkdir v; files v 10",
        "unlink v/entry-9; file v/new; fsync v; unlink v/new; file v/newer; fsync v",
    ),
    (
        "delete-dir-with-files",
        "mkdir d/v; files d/v 5; mkdir d/v/w; file d/v/w/x",
        "remove d/v 0 5; unlink d/v/w/x; rmdir d/v/w; rmdir d/v; fsync d",
    ),
    (
        "delete-tree-make-file",
        "mkdir d/v; files d/v 5",
        "remove d/v 0 5; rmdir d/v; file d/v; write d/v 0 6000; fsync d/v",
    ),
    (
        "delete-tree-make-tree",
        "mkdir d/v; files d/v 5",
        "remove d/v 0 5; rmdir d/v; mkdir d/v; file d/v/entry-1; write d/v/entry-1 0 700; fsync d/v/entry-1",
    ),
    ("big-directory", "mkdir v", "files v 3000; fsync v"),
    (
        "big-directory-again",
        "mkdir v; files v 2000",
        "remove v 500 1500; fsync v; file v/more; fsync v",
    ),
    ("move-dir-into", "mkdir d/v; file d/v/x", "rename d/sub d/v/sub; fsync d/v"),
    (
        "move-dir-into-file",
        "mkdir d/v; file d/v/x",
        "rename d/sub d/v/sub; append d/v/sub/s 99; fsync d/v/sub/s",
    ),
    (
        "move-dir-out",
        "mkdir d/v; mkdir d/v/w; file d/v/w/x",
        "rename d/v/w d/w; append d/w/x 99; fsync d/w/x",
    ),
    (
        "move-dir-other",
        "mkdir d/v; mkdir d/v/w; file d/v/w/x",
        "rename d/v/w d/w; append d/g 9; fsync d/g",
    ),
    (
        "dirs-swap",
        "mkdir d/a; mkdir d/b; file d/a/1; file d/b/2",
        "rename d/a d/c; rename d/b d/a; rename d/c d/b; fsync d/a; fsync d/b",
    ),
    (
        "dir-fsync-new-file-after",
        "",
        "mkdir d/1; fsync d/1; file d/1/a; fsync d/1; unlink d/1/a; fsync d/1",
    ),
];

/// Names, links and their conflicts.
const NAMES: [Named; 26] = [
    (
        "conflict-two",
        "file d/a; file d/b",
        "rename d/a d/c; rename d/b d/a; append d/a 10; fsync d/a",
    ),
    (
        "conflict-cycle",
        "file d/a; file d/b; file d/c",
        "rename d/a d/t; rename d/b d/a; rename d/c d/b; rename d/t d/c; append d/a 9; fsync d/a",
    ),
    ("conflict-new-inode", "file d/a", "unlink d/a; file d/a; append d/a 10; fsync d/a"),
    ("conflict-link", "file d/a; file d/b", "unlink d/a; link d/b d/a; fsync d/b"),
    ("conflict-link-renamed", "file d/a; file d/b", "rename d/a d/c; link d/b d/a; fsync d/b"),
    (
        "conflict-dir",
        "mkdir d/a; file d/a/in",
        "rename d/a d/b; mkdir d/a; file d/a/new; fsync d/a/new",
    ),
    (
        "conflict-dir-file",
        "mkdir d/a; file d/a/in",
        "rename d/a d/b; file d/a; append d/a 10; fsync d/a",
    ),
    (
        "conflict-across",
        "file d/a; file e/a",
        "rename d/a d/b; rename e/a d/a; append d/a 10; fsync d/a",
    ),
    (
        "conflict-xattr-same-hash",
        "",
        "setxattr d/f user.one 10; setxattr d/f user.two 20; rmxattr d/f user.a; fsync d/f",
    ),
    ("links-many", "file d/m; mkdir v; names d/m v 50 20", "names d/m d 30 20; fsync d/m"),
    ("links-extref", "file d/m; mkdir v", "names d/m v 400 200; fsync d/m"),
    ("links-extref-old", "file d/m; mkdir v; names d/m v 400 200", "append d/m 100; fsync d/m"),
    (
        "links-extref-fewer",
        "file d/m; mkdir v; names d/m v 400 200; link d/m v/last",
        "rename v/last d/x; fsync d/m",
    ),
    (
        "links-dirs",
        "file d/m; link d/m e/m; link d/m d/sub/m",
        "unlink d/m; link e/m e/m2; fsync d/sub/m",
    ),
    (
        "links-dirs-fsync-dir",
        "file d/m; link d/m e/m; link d/m d/sub/m",
        "unlink d/m; fsync d; unlink e/m; fsync e",
    ),
    ("links-last-two", "file d/m; link d/m e/m", "unlink d/m; unlink e/m; fsync d"),
    ("links-new-dir", "", "mkdir d/1; link d/f d/1/f; fsync d/f"),
    ("links-new-dirs", "", "mkdir d/1; mkdir e/1; link d/f d/1/f; link d/f e/1/f; fsync d/f"),
    ("link-then-rename-dir", "mkdir d/1; file d/1/f", "link d/1/f e/f; rename d/1 d/2; fsync e/f"),
    (
        "link-fsync-link-fsync",
        "",
        "link d/f d/a; fsync d/f; link d/f d/b; fsync d/f; unlink d/a; fsync d/f",
    ),
    ("link-of-new", "", "file d/a; fsync d/a; link d/a d/b; link d/a e/c; fsync d/a"),
    (
        "rename-new-fsynced",
        "",
        "file d/a; write d/a 0 5000; fsync d/a; rename d/a d/b; append d/g 9; fsync d/g",
    ),
    (
        "rename-new-fsynced-self",
        "",
        "file d/a; write d/a 0 5000; fsync d/a; rename d/a d/b; fsync d/b",
    ),
    (
        "replace-by-rename",
        "",
        "file d/f.tmp; write d/f.tmp 0 30000; fsync d/f.tmp; rename d/f.tmp d/f; fsync d",
    ),
    (
        "replace-by-rename-twice",
        "",
        "file d/t; write d/t 0 500; fsync d/t; rename d/t d/f; file d/t; write d/t 0 700; fsync d/t; rename d/t d/f; fsync d",
    ),
    (
        "dpkg",
        "",
        "file d/a.new; write d/a.new 0 9000; range d/a.new; file d/b.new; write d/b.new 0 300; fsync d/a.new; fsync d/b.new; rename d/a.new d/a; rename d/b.new d/b; fsync d",
    ),
];

/// Orphans, files without names, special files.
const ORPHANS: [Named; 14] = [
    ("orphan-fsync", "", "hold h d/f; unlink d/f; write @h 0 5000; fsync @h"),
    ("orphan-new", "", "file d/n; hold h d/n; write @h 0 5000; unlink d/n; fsync @h"),
    (
        "orphan-new-fsynced",
        "",
        "file d/n; hold h d/n; write @h 0 5000; fsync @h; unlink d/n; write @h 0 70; fsync @h",
    ),
    ("orphan-other", "", "hold h d/f; unlink d/f; append d/g 10; fsync d/g"),
    ("orphan-dir-fsync", "", "hold h d/f; unlink d/f; fsync d"),
    ("orphan-dir", "", "hold h d/empty; rmdir d/empty; fsync d"),
    ("orphan-replaced", "", "hold h d/f; rename d/g d/f; write @h 0 50; fsync @h; fsync d"),
    ("orphan-committed", "tmpfile h d; write @h 0 20000", "write d/f 0 50; fsync d/f"),
    ("orphan-one-link", "", "hold h d/two; unlink d/two; unlink e/two; fsync @h"),
    ("tmpfile", "", "tmpfile h d; write @h 0 20000; fsync @h"),
    (
        "tmpfile-linked-after-fsync",
        "",
        "tmpfile h d; write @h 0 20000; fsync @h; link @h d/n; fsync d",
    ),
    (
        "tmpfile-linked-fsync",
        "",
        "tmpfile h d; write @h 0 20000; link @h d/n; link @h e/n; fsync d/n",
    ),
    (
        "symlinks-in-new-dir",
        "",
        "mkdir d/1; symlink d/1/a x; symlink d/1/b y; fifo d/1/p; node d/1/n; fsync d/1",
    ),
    ("xattr-on-symlink", "", "symlink d/1 x; setxattr d/1 trusted.t 30; fsync d"),
];

/// Bytes: the end of a file, holes, extents that are shared or many.
const DATA: [Named; 32] = [
    ("size-keep-beyond", "keep d/f 0 1m", "append d/f 100; fsync d/f"),
    ("size-keep-beyond-shrunk", "keep d/f 0 1m", "truncate d/f 9000; fsync d/f"),
    ("size-keep-beyond-again", "", "keep d/f 0 1m; fsync d/f; keep d/f 1m 1m; fsync d/f"),
    ("size-keep-beyond-write", "keep d/f 0 1m", "write d/f 512k 4k; fdatasync d/f"),
    ("size-grow-fdatasync", "", "truncate d/f 3m; fdatasync d/f"),
    (
        "size-write-past-fsync",
        "",
        "file d/n; write d/n 100k 10; fsync d/n; write d/n 0 10; fsync d/n",
    ),
    ("size-dir-logged-then-write", "", "file d/n; fsync d; write d/n 0 50000; fsync d/n"),
    (
        "size-link-after-write",
        "",
        "write d/f 0 64k; link d/f d/n; fsync d; append d/g 5; fsync d/g",
    ),
    ("hole-at-start", "", "file d/n; write d/n 1m 4k; fsync d/n"),
    ("hole-at-end", "", "write d/f 0 4k; truncate d/f 1m; fsync d/f; punch d/f 0 4k; fsync d/f"),
    ("hole-whole", "", "punch d/big 0 256k; fsync d/big"),
    ("hole-between-fsyncs", "", "punch d/big 64k 4k; fsync d/big; punch d/big 72k 4k; fsync d/big"),
    ("hole-then-rename", "", "punch d/big 64k 4k; rename d/big d/n; fsync d/n"),
    ("hole-after-truncate", "", "truncate d/big 64k; truncate d/big 256k; fsync d/big"),
    ("many-extents", "file d/m", "scatter d/m 3000; fsync d/m"),
    ("many-extents-punched", "file d/m; scatter d/m 3000", "punch d/m 100000 9m; fsync d/m"),
    (
        "many-extents-some",
        "file d/m; scatter d/m 3000",
        "write d/m 4k 4k; write d/m 9m 8k; fsync d/m",
    ),
    (
        "many-extents-shared",
        "file d/m; scatter d/m 500; file d/c",
        "clone d/m 0 3996k d/c 0; fsync d/c",
    ),
    (
        "clone-same-extent-often",
        "file d/c",
        "clone d/big 0 64k d/c 0; clone d/big 0 64k d/c 64k; clone d/big 32k 64k d/c 200k; fsync d/c",
    ),
    ("clone-then-source-gone", "file d/c", "clone d/big 0 256k d/c 0; unlink d/big; fsync d/c"),
    (
        "clone-of-new",
        "file d/c",
        "file d/n; write d/n 0 128k; fsync d/n; clone d/n 0 128k d/c 0; fsync d/c",
    ),
    ("clone-inline", "file d/c", "clone d/g 0 100 d/c 0; fsync d/c"),
    (
        "checksums-in-pieces",
        "",
        "write d/big 0 256k; fsync d/big; write d/big 100k 20k; fsync d/big; clone d/big 64k 64k d/big 1m; fsync d/big",
    ),
    ("osync", "", "osync d/f 0 9000; odsync d/big 64k 4k; osync d/g 0 90"),
    ("direct", "", "direct d/big 64k 32k; fsync d/big"),
    ("direct-beyond", "", "direct d/big 1024k 32k; fdatasync d/big"),
    ("range-then-fsync", "", "write d/f 0 50000; range d/f; append d/f 10; fsync d/f"),
    ("flushed-before", "", "write d/big 0 100k; flush d/big; write d/big 200k 9k; fsync d/big"),
    ("compressed-inline", "property d/g zlib", "words d/g 0 3000; fsync d/g"),
    (
        "compressed-mixed",
        "property d/f zlib; property d/big lzo",
        "words d/f 0 300k; words d/big 64k 128k; fsync d/f; fsync d/big; write d/f 5000 100; fsync d/f",
    ),
    (
        "compressed-clone",
        "file d/c; property d/c zstd; words d/c 0 300k",
        "clone d/c 128k 128k d/f 256k; punch d/c 4k 8k; fsync d/c; fsync d/f",
    ),
    (
        "nocow-overwrite",
        "file d/n; chattr d/n +C; write d/n 0 128k",
        "write d/n 32k 64k; prealloc d/n 256k 64k; write d/n 260k 4k; fsync d/n",
    ),
];

/// Several subvolumes, snapshots.
const VOLUMES: [Named; 11] = [
    (
        "volumes-three-logs",
        "subvolume a; subvolume b; file a/f; file b/f",
        "append a/f 9000; append b/f 200; append d/f 70; fsync a/f; fsync b/f; fsync d/f",
    ),
    (
        "volumes-new-files",
        "subvolume a; subvolume b",
        "file a/n; write a/n 0 9000; mkdir b/d; file b/d/n; fsync a/n; fsync b/d/n",
    ),
    ("volumes-top-only", "subvolume a; file a/f", "append a/f 9; append d/f 9; fsync d/f"),
    (
        "snapshot-before",
        "subvolume a; file a/f; write a/f 0 100k; snapshot a s",
        "write a/f 4k 8k; write s/f 60k 8k; fsync a/f; fsync s/f",
    ),
    (
        "snapshot-before-names",
        "subvolume a; mkdir a/d; files a/d 100; snapshot a s",
        "remove a/d 10 40; file a/d/n; fsync a/d; remove s/d 50 90; fsync s/d",
    ),
    (
        "snapshot-after-change",
        "subvolume a; file a/f; write a/f 0 100k",
        "write a/f 0 8k; snapshot a s; write a/f 0 4k; fsync a/f",
    ),
    ("subvolume-made", "", "subvolume a; file a/f; fsync a/f"),
    ("subvolume-made-other", "", "subvolume a; append d/f 9; fsync d/f"),
    ("subvolume-deleted", "subvolume a; file a/f", "delete a; append d/f 9; fsync d/f"),
    (
        "subvolume-renamed",
        "subvolume d/a; file d/a/f",
        "rename d/a d/b; append d/b/f 9; fsync d/b/f",
    ),
    (
        "subvolume-in-dir",
        "subvolume d/a; file d/a/f",
        "file d/n; fsync d; append d/a/f 9; fsync d/a/f",
    ),
];

/// A filesystem that has just enough room for its log.
const SMALL: Shape = Shape { name: "small", size: 120 << 20, ..PLAIN };

/// Nearly full.
const FULL: [Named; 4] = [
    ("full-overwrite", "file d/n; file fill; fill fill 2m", "write d/big 0 200k; fsync d/big"),
    (
        "full-names",
        "file d/n; file fill; fill fill 1m",
        "files d 100; fsync d; unlink d/f; fsync d",
    ),
    (
        "full-punch",
        "file d/n; file fill; fill fill 1m",
        "punch fill 1m 1m; write d/n 0 500k; fsync fill; fsync d/n",
    ),
    (
        "full-truncate",
        "file d/n; file fill; fill fill 1m",
        "truncate fill 20m; fsync fill; write d/n 0 3m; fsync d/n",
    ),
];

/// All of them, on a new mount and on the one that has made what is there.
pub(super) fn workloads() -> Vec<Workload> {
    let mut all = Vec::new();
    for (name, before, after) in
        [&DIRECTORIES[..], &NAMES, &ORPHANS, &DATA, &VOLUMES].into_iter().flatten().chain(&FULL)
    {
        let before = format!("{BASE}; {before}");
        let of = plain((*name).to_owned(), &before, (*after).to_owned());
        let shape = if name.starts_with("full-") { SMALL } else { PLAIN };
        let of = Workload { shape, ..of };
        all.push(Workload { name: format!("{name}+warm"), anew: false, ..of.clone() });
        // What is held open before does not outlive a mount.
        if !before.contains("tmpfile") {
            all.push(of);
        }
    }
    all
}
