//! What leaves the logs.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open, syncfs};

/// One log.
pub struct Case<'a> {
    pub name: &'a str,
    /// A shell script; its last fsync is what is replayed.
    pub script: &'a str,
    pub mkfs: &'static [&'static str],
    pub mount: &'static str,
    /// What no shell does, after the script; the file stays open until the image is copied.
    pub then: Option<fn(&Path) -> io::Result<File>>,
}

/// A file without a name gets one, and is made durable.
fn linked_later(top: &Path, committed: bool) -> io::Result<File> {
    let (access, mode) = (OFlags::RDWR | OFlags::TMPFILE, Mode::from_raw_mode(0o640));
    let file = File::from(open(top, access, mode)?);
    file.write_all_at(&[7; 9000], 0)?;
    if committed {
        syncfs(&file)?;
        file.write_all_at(&[8; 9000], 5000)?;
    }
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, own, CWD, top.join("linked"), AtFlags::SYMLINK_FOLLOW)?;
    file.sync_all()?;
    Ok(file)
}

/// Space that a file has gets its data, and the file grows into it.
fn written_direct(top: &Path) -> io::Result<File> {
    let file = File::options().write(true).open(top.join("a"))?;
    file.write_all_at(&[9; 8192], 12288)?;
    file.sync_data()?;
    file.write_all_at(&[3; 4096], 40960)?;
    file.sync_data()?;
    Ok(file)
}

/// Functions of all scripts: `put FILE OFFSET LEN` writes noise there, `commit` commits.
pub const HELPERS: &str = r#"
put() { head -c $3 /dev/urandom | dd of=$1 bs=64k seek=$2 oflag=seek_bytes conv=notrunc iflag=fullblock status=none; }
commit() { sync -f .; }
"#;

pub const fn case<'a>(name: &'a str, script: &'a str) -> Case<'a> {
    Case { name, script, mkfs: &[], mount: "", then: None }
}

const fn made<'a>(name: &'a str, mkfs: &'static [&'static str], script: &'a str) -> Case<'a> {
    Case { name, script, mkfs, mount: "", then: None }
}

pub const CASES: &[Case<'static>] = &[
    case("a new file", "commit; put a 0 50000; sync a"),
    case("a new small file", "commit; put a 0 100; sync a"),
    case("an empty file", "commit; touch a; sync a"),
    case("overwritten", "put a 0 200000; commit; put a 8192 12288; put a 100000 5; sync a"),
    case(
        "overwritten twice",
        "put a 0 200000; commit; put a 8192 12288; sync a; put a 4096 8192; put a 100000 5; sync a",
    ),
    case(
        "cut and grown twice",
        "put a 0 300000; commit; truncate -s 100001 a; truncate -s 250000 a; sync a; truncate -s 90001 a; \
        truncate -s 260000 a; put a 255000 3; sync a",
    ),
    case(
        "punched twice",
        "put a 0 400000; commit; fallocate -p -o 50000 -l 200000 a; sync a; fallocate -p -o 300000 -l 12345 a; sync a",
    ),
    case(
        "zeroed twice",
        "put a 0 400000; commit; put a 0 1; sync a; fallocate -z -o 50000 -l 200000 a; sync a",
    ),
    case(
        "cloned over",
        "put a 0 300000; put b 0 300000; commit; put b 0 1; sync b; cp --reflink=always a b; sync b",
    ),
    case("grown", "put a 0 5000; commit; put a 5000 100000; sync a"),
    case("cut", "put a 0 300000; commit; truncate -s 100001 a; sync a"),
    case(
        "cut and grown",
        "put a 0 300000; commit; truncate -s 100001 a; truncate -s 250000 a; sync a",
    ),
    case("emptied", "put a 0 300000; commit; : > a; sync a"),
    case("small and emptied", "put a 0 300; commit; : > a; sync a"),
    case("small and large", "put a 0 300; commit; put a 300 9000; sync a"),
    case("large and small", "put a 0 30000; commit; : > a; put a 0 99; sync a"),
    case(
        "twice",
        "put a 0 5000; commit; put a 0 5000; sync a; put a 9000 9000; sync a; put b 0 7; sync b",
    ),
    case("sparse", "commit; truncate -s 1000000 a; put a 500000 9; sync a"),
    case("punched", "put a 0 400000; commit; fallocate -p -o 50000 -l 200000 a; sync a"),
    case("punched behind", "put a 0 400000; commit; fallocate -p -o 390000 -l 20000 a; sync a"),
    case("reserved", "commit; fallocate -l 300000 a; sync a"),
    case("reserved behind", "put a 0 10000; commit; fallocate -n -l 300000 a; sync a"),
    case(
        "reserved behind before",
        "put a 0 10000; fallocate -n -l 300000 a; commit; put a 10000 5000; sync a",
    ),
    case("reserved and written", "fallocate -l 300000 a; commit; put a 40960 40960; sync a"),
    case("reserved, written at once", "commit; fallocate -l 300000 a; put a 40960 40960; sync a"),
    case("zeroed", "put a 0 300000; commit; fallocate -z -o 40960 -l 100000 a; sync a"),
    case(
        "collapsed",
        "put a 0 400000; commit; fallocate -p -o 4096 -l 4096 a; put b 0 1; sync a; fallocate -p -o 12288 -l 4096 a; sync a",
    ),
    case("cloned", "put a 0 300000; commit; cp --reflink=always a b; sync b"),
    case(
        "new and cloned",
        "commit; put a 0 300000; sync a; cp --reflink=always a b; sync b; put b 8192 4096; sync b",
    ),
    case("cloned, its source not", "commit; put a 0 300000; cp --reflink=always a b; sync b"),
    case("data only", "put a 0 9000; commit; put a 4096 9000; sync -d a"),
    case("renamed", "put a 0 9000; commit; mv a b; sync b"),
    case("renamed to a directory", "mkdir d e; put d/a 0 9; commit; mv d/a e/b; sync e/b"),
    case("renamed over", "put a 0 9000; put b 0 100; commit; mv a b; sync b"),
    case("renamed over, of the transaction", "put b 0 100; commit; put a 0 9000; mv a b; sync b"),
    case("exchanged", "put a 0 10; put b 0 20; commit; mv a c; mv b a; mv c b; sync a; sync b"),
    case("exchanged, one", "put a 0 10; put b 0 20; commit; mv a c; mv b a; mv c b; sync a"),
    case(
        "chain of names",
        "put a 0 10; put b 0 20; put c 0 30; commit; mv c d; mv b c; mv a b; put a 0 40; sync a",
    ),
    case("linked", "put a 0 10; commit; ln a b; sync a"),
    case("linked elsewhere", "mkdir d e; put d/a 0 10; commit; ln d/a e/b; ln d/a d/c; sync e/b"),
    case(
        "linked and unlinked",
        "mkdir d; put d/a 0 10; ln d/a d/b; commit; rm d/a; ln d/b d/c; sync d/b",
    ),
    case("unlinked and made anew", "put a 0 10; commit; rm a; put a 0 2000; sync a"),
    case("one of two names gone", "put a 0 10; ln a b; commit; rm a; sync b"),
    case(
        "many links",
        "put a 0 10; i=0; while [ $i -lt 300 ]; do ln a long-name-of-a-link-$i; i=$((i+1)); done; commit; \
        rm long-name-of-a-link-7 long-name-of-a-link-299; ln a new; sync a",
    ),
    made(
        "links beyond an item",
        &["-n", "4096", "-M"],
        "put a 0 10; i=0; while [ $i -lt 200 ]; do ln a long-name-of-a-link-$i; \
        i=$((i+1)); done; commit; rm long-name-of-a-link-7 long-name-of-a-link-199; ln a another-long-name-of-a-link; sync a",
    ),
    case(
        "a directory",
        "mkdir d; commit; put d/a 0 10; mkdir d/e; put d/e/b 0 5000; ln -s x d/l; mkfifo d/p; sync d",
    ),
    case("a new directory", "commit; mkdir d; put d/a 0 10; mkdir d/e; put d/e/b 0 5000; sync d"),
    case("a file in new directories", "commit; mkdir d; mkdir d/e; put d/e/b 0 5000; sync d/e/b"),
    case(
        "deleted from a directory",
        "mkdir d; for i in a b c d e f; do put d/$i 0 10; done; commit; rm d/b d/e; sync d",
    ),
    case(
        "deleted and new",
        "mkdir d; for i in a b c d e f; do put d/$i 0 10; done; commit; rm d/b d/e; put d/g 0 4; put d/b 0 9; sync d",
    ),
    case("deleted directories", "mkdir d d/e d/e/f; put d/e/f/a 0 9; commit; rm -r d/e; sync d"),
    case(
        "all deleted",
        "mkdir d; for i in a b c d e f; do put d/$i 0 10; done; commit; rm d/*; sync d",
    ),
    case(
        "many deleted",
        "mkdir d; i=0; while [ $i -lt 600 ]; do : > d/file-$i; i=$((i+1)); done; commit; rm d/file-1*; put d/new 0 3; sync d",
    ),
    case(
        "many new",
        "mkdir d; commit; i=0; while [ $i -lt 600 ]; do : > d/file-$i; i=$((i+1)); done; sync d",
    ),
    case(
        "moved from a directory",
        "mkdir d e; put d/a 0 10; put d/b 0 10; commit; mv d/a e; sync d",
    ),
    case("moved to a directory", "mkdir d e; put d/a 0 10; put d/b 0 10; commit; mv d/a e; sync e"),
    case("a directory moved", "mkdir d e d/x; put d/x/a 0 10; commit; mv d/x e/y; sync e"),
    case(
        "a directory moved, itself",
        "mkdir d e d/x; put d/x/a 0 10; commit; mv d/x e/y; put e/y/b 0 5; sync e/y",
    ),
    case(
        "names exchanged in a directory",
        "mkdir d; put d/a 0 10; put d/b 0 20; commit; mv d/a d/c; mv d/b d/a; mv d/c d/b; sync d",
    ),
    case("the top directory", "put a 0 10; put b 0 9; commit; rm a; put c 0 10; sync ."),
    case(
        "xattrs",
        "put a 0 10; setfattr -n user.a -v 1 a; setfattr -n user.b -v 2 a; commit; setfattr -x user.a a; \
        setfattr -n user.b -v 33 a; setfattr -n user.c -v 4 a; sync a",
    ),
    case(
        "xattrs of a directory",
        "mkdir d; setfattr -n user.a -v 1 d; commit; setfattr -x user.a d; setfattr -n user.c -v 4 d; sync d",
    ),
    case(
        "attributes",
        "put a 0 10; commit; chmod 4711 a; chown 17:18 a; touch -d '2001-02-03 04:05:06' a; sync a",
    ),
    case(
        "attributes of a directory",
        "mkdir d; put d/a 0 1; commit; chmod 711 d; chown 17:18 d; touch -d '2001-02-03 04:05:06' d; sync d",
    ),
    case("flags", "put a 0 10; commit; chattr +Aa a; sync a"),
    case(
        "no checksums",
        "touch a; chattr +C a; put a 0 100000; commit; put a 4096 50000; put a 100000 9; sync a",
    ),
    case("symbolic links", "mkdir d; commit; ln -s ../somewhere d/l; ln -s . d/m; sync d"),
    case("nodes", "mkdir d; commit; mknod d/c c 7 9; mknod d/b b 3 4; mkfifo d/p; sync d"),
    case(
        "open and unlinked",
        "put a 0 10; put b 0 9000; commit; exec 3<>a; rm a; put b 0 5; sync b",
    ),
    case(
        "parents of a renamed one",
        "mkdir -p d/e/f x; put d/e/f/a 0 9; commit; mv d/e x/e; put x/e/f/a 0 99; sync x/e/f/a",
    ),
    case(
        "replaced by a directory",
        "put d 0 9; mkdir e; commit; rm d; mkdir d; put d/a 0 5; sync d/a; sync d",
    ),
    case(
        "many extents",
        "put a 0 4000000; commit; i=0; while [ $i -lt 300 ]; do put a $((i*12288)) 4096; i=$((i+1)); done; sync a",
    ),
    case(
        "many files",
        "mkdir d; commit; i=0; while [ $i -lt 60 ]; do put d/f$i 0 $((i*700)); sync d/f$i; i=$((i+1)); done",
    ),
    Case {
        mount: "compress-force=zstd",
        ..case(
            "compressed",
            "commit; yes abc | head -c 500000 > a; sync a; yes xy | head -c 3000 > b; sync b",
        )
    },
    Case {
        mount: "compress-force=lzo",
        ..case(
            "compressed and overwritten",
            "yes abc | head -c 500000 > a; commit; put a 5000 9000; yes z | head -c 100000 | dd of=a bs=4096 seek=50 conv=notrunc status=none; sync a",
        )
    },
    Case {
        mount: "compress=zlib",
        ..case(
            "compressed, cloned",
            "commit; yes abc | head -c 500000 > a; cp --reflink=always a b; sync b; sync a",
        )
    },
    Case {
        mount: "compress=zlib",
        ..case("compressed, in its item", "put x 0 8; commit; yes abc | head -c 1500 > a; sync a")
    },
    made(
        "two subvolumes",
        &[],
        "btrfs -q subvolume create s; put s/a 0 9000; put a 0 9; commit; put s/a 4096 9; put s/b 0 50000; \
        sync s/b; sync s/a; mv a c; put d 0 9000; sync d; sync c",
    ),
    made(
        "cloned between subvolumes",
        &[],
        "btrfs -q subvolume create s; put x 0 8; commit; put a 0 90000; sync a; cp --reflink=always a s/b; sync s/b",
    ),
    made(
        "below a snapshot",
        &[],
        "put a 0 90000; mkdir d; put d/b 0 7; commit; btrfs -q subvolume snapshot . s; commit; put a 4096 4096; rm d/b; put d/c 0 9; sync a; sync d",
    ),
    made(
        "small nodes",
        &["-n", "4096", "-M"],
        "mkdir d; i=0; while [ $i -lt 200 ]; do put d/f$i 0 30; i=$((i+1)); done; commit; \
        rm d/f1?; put d/x 0 9000; put a 0 300000; sync d; sync a",
    ),
    made(
        "large nodes",
        &["-n", "65536"],
        "mkdir d; put d/a 0 9; commit; put d/b 0 90000; rm d/a; sync d; sync d/b",
    ),
    made(
        "holes have items",
        &["-O", "^no-holes"],
        "put a 0 9000; commit; truncate -s 400000 a; put a 200000 9; sync a; truncate -s 900000 b; put b 500000 5; sync b",
    ),
    made(
        "holes have items, punched",
        &["-O", "^no-holes"],
        "put a 0 400000; commit; fallocate -p -o 50000 -l 200000 a; sync a",
    ),
    made(
        "other checksums",
        &["--csum", "blake2"],
        "put a 0 9000; commit; put a 4096 100000; sync a",
    ),
    made(
        "without free space tree",
        &["-R", "^free-space-tree"],
        "put a 0 9000; commit; put a 4096 100000; put b 0 9000; sync a; sync b",
    ),
    case(
        "a subvolume that is gone",
        "btrfs -q subvolume create s; put s/a 0 9000; put a 0 9; commit; put s/a 4096 9; sync s/a; put a 0 99; sync a; \
        btrfs -q subvolume delete s; put a 0 999; sync a",
    ),
    case("a linked special file", "mkfifo p; ln -s x l; commit; ln p q; ln l m; sync ."),
    case("renamed in place", "put a 0 9; commit; mv a b; mv b a; put a 0 99; sync a"),
    case(
        "renamed and back, another in between",
        "put a 0 9; commit; mv a b; put a 0 99; sync a; mv a c; mv b a; sync a; sync c",
    ),
    case(
        "a directory replaced",
        "mkdir d e; put d/a 0 1; put e/a 0 2; commit; rm -r e; mv d e; put e/b 0 3; sync e/b; sync e",
    ),
    case(
        "a new directory with a new one's name",
        "mkdir d; put d/a 0 1; commit; mv d x; mkdir d; put d/a 0 2; sync d/a; sync x",
    ),
    case(
        "renamed after its fsync",
        "put a 0 9; commit; put a 0 99; sync a; mv a b; put c 0 1; sync c",
    ),
    case(
        "unlinked after its fsync",
        "put a 0 9; mkdir d; commit; put a 0 99; put d/x 0 5; sync a; sync d; rm a d/x; put c 0 1; sync c",
    ),
    case(
        "linked after its fsync",
        "put a 0 9; mkdir d; commit; put a 0 99; sync a; ln a d/b; put c 0 1; sync c",
    ),
    case(
        "cut after its fsync",
        "put a 0 90000; commit; put a 0 99; sync a; truncate -s 5000 a; ln a b; sync b",
    ),
    case(
        "a directory, then its file",
        "mkdir d; put d/a 0 90000; commit; chmod 700 d/a; put d/b 0 1; sync d; put d/a 50000 9; sync d/a; sync d",
    ),
    case(
        "a long name",
        "n=$(printf %0255d 0); mkdir $n; commit; n=$(printf %0255d 0); put $n/$n 0 9; sync $n/$n; setfattr -n user.$(printf %0200d 1) -v 1 $n; sync $n",
    ),
    case(
        "large xattrs",
        "put a 0 9; commit; setfattr -n user.a -v $(printf %03000d 7) a; setfattr -n user.b -v $(printf %05000d 8) a; sync a",
    ),
    case(
        "old times and times before 1970",
        "put a 0 9; mkdir d; commit; touch -d '1950-01-01' a; touch -d '2200-01-01' d; sync a; sync d",
    ),
    Case {
        then: Some(|top| linked_later(top, false)),
        ..case("a file without a name that gets one", "put a 0 9; commit; put b 0 9; sync b")
    },
    Case {
        then: Some(|top| linked_later(top, true)),
        ..case(
            "a committed file without a name that gets one",
            "put a 0 9; commit; put b 0 9; sync b",
        )
    },
    Case {
        then: Some(written_direct),
        ..case(
            "reserved and written to twice",
            "touch a; fallocate -n -l 400000 a; commit; put b 0 9; sync b",
        )
    },
];
