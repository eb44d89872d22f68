//! Fsyncs as programs do them, and those that come while a commit is under way.

use super::fsyncs::rounds;

/// Each file of a package is written, made durable, and takes its place; then the directory is made durable.
pub fn packages() -> String {
    rounds(
        "mkdir /usr 755 0; mkdir /usr/lib 755 0; mkdir /var 755 0; file /usr/lib/a 644 0; write /usr/lib/a 0 9000 1; \
         file /usr/lib/b 755 0; write /usr/lib/b 0 40000 3; file /var/status 644 0; write /var/status 0 6000 5",
        8,
        |n| {
            let s = 2 * n + 7;
            format!(
                "file /usr/lib/a.new 644 0; write /usr/lib/a.new 0 {} {s}; file /usr/lib/b.new 755 0; \
                 write /usr/lib/b.new 0 70000 {s}; mkdir /usr/lib/p{n} 755 0; file /usr/lib/p{n}/data.new 644 0; \
                 write /usr/lib/p{n}/data.new 0 300 {s}; fsync /usr/lib/a.new; fsync /usr/lib/b.new; \
                 rename /usr/lib/a.new /usr/lib/a replace; link /usr/lib/b /usr/lib/b.old; \
                 rename /usr/lib/b.new /usr/lib/b replace; fsync /usr/lib/p{n}/data.new; \
                 rename /usr/lib/p{n}/data.new /usr/lib/p{n}/data replace; fsync /usr/lib; unlink /usr/lib/b.old; \
                 file /var/status-new 644 0; write /var/status-new 0 {} {s}; fsync /var/status-new; \
                 rename /var/status-new /var/status replace; fsync /var",
                9000 + n * 777,
                6000 + n * 300
            )
        },
    )
}

/// The old pages go to a journal, and when that is durable, the new ones to the file.
pub fn rollback_journal() -> String {
    rounds("mkdir /db 755 0; file /db/data 644 0; write /db/data 0 32768 1", 10, |n| {
        let (page, s) = (n % 8 * 4096, 2 * n + 3);
        format!(
            "file /db/data-journal 644 0; write /db/data-journal 0 512 {s}; write /db/data-journal 512 4104 {s}; \
             fsync /db/data-journal; fsync /db; write /db/data-journal 0 12 {s}; fsync /db/data-journal; \
             write /db/data {page} 4096 {s}; write /db/data {} 4096 {s}; fsync /db/data; unlink /db/data-journal; {}",
            32_768 + n * 4096,
            if n % 2 == 0 { "fsync /db" } else { "fsync /db/data" }
        )
    })
}

pub fn write_ahead() -> String {
    rounds(
        "mkdir /db 755 0; file /db/data 644 0; write /db/data 0 65536 1; file /db/wal 644 0",
        10,
        |n| {
            let s = 2 * n + 3;
            let at = n % 4 * 8240;
            let checkpoint = match n % 4 {
                3 => format!(
                    "write /db/data 4096 8192 {s}; write /db/data 40960 4096 {s}; fsync /db/data; truncate /db/wal 0; fsync /db/wal"
                ),
                _ => "fsync /db/wal".into(),
            };
            format!(
                "write /db/wal {at} 4120 {s}; fsync /db/wal; write /db/wal {} 4120 {}; {checkpoint}",
                at + 4120,
                s + 2
            )
        },
    )
}

/// A message is written under another name, made durable, and gets its own by a link.
pub fn mail() -> String {
    rounds("mkdir /tmp 755 0; mkdir /new 755 0; mkdir /cur 755 0", 12, |n| {
        let done = match n {
            0 => "fsync /cur".to_owned(),
            _ => format!("rename /new/m{} /cur/m{}:S noreplace; fsync /cur", n - 1, n - 1),
        };
        format!(
            "file /tmp/m{n} 600 8; write /tmp/m{n} 0 {} {}; fsync /tmp/m{n}; link /tmp/m{n} /new/m{n}; fsync /new; \
             unlink /tmp/m{n}; {done}",
            700 + n * 900,
            2 * n + 1
        )
    })
}

pub fn editor() -> String {
    rounds("mkdir /home 755 0; file /home/text 640 1000; write /home/text 0 12000 1", 10, |n| {
        let s = 2 * n + 3;
        // The old file becomes the backup, a new one is made under its name.
        format!(
            "rename /home/text /home/text~ replace; file /home/text 640 1000; setxattr /home/text user.from 9 {s} any; \
             write /home/text 0 {} {s}; fsync /home/text; file /home/.swp{n} 600 1000; write /home/.swp{n} 0 4096 {s}; \
             fsync /home/.swp{n}; unlink /home/.swp{n}; fsync /home",
            12_000 + n * 100
        )
    })
}

/// Objects are linked into new directories, then a reference is replaced.
pub fn version_control() -> String {
    rounds(
        "mkdir /objects 755 0; mkdir /refs 755 0; file /refs/main 644 0; write /refs/main 0 41 1",
        10,
        |n| {
            let s = 2 * n + 3;
            format!(
                "file /objects/tmp 444 0; write /objects/tmp 0 {} {s}; fsync /objects/tmp; mkdir /objects/o{n} 755 0; \
             link /objects/tmp /objects/o{n}/x; unlink /objects/tmp; fsync /objects/o{n}; file /refs/main.lock 644 0; \
             write /refs/main.lock 0 41 {s}; fsync /refs/main.lock; rename /refs/main.lock /refs/main replace; fsync /refs",
                200 + n * 400
            )
        },
    )
}

pub fn download() -> String {
    rounds("mkdir /incoming 755 0; mkdir /done 755 0", 8, |n| {
        let s = 2 * n + 1;
        format!(
            "file /incoming/f{n}.part 644 0; allocate /incoming/f{n}.part reserve 0 200000; fsync /incoming/f{n}.part; \
             write /incoming/f{n}.part 65536 40000 {s}; fsync /incoming/f{n}.part; write /incoming/f{n}.part 0 65536 {s}; \
             truncate /incoming/f{n}.part 110000; rename /incoming/f{n}.part /done/f{n} replace; fsync /done/f{n}; \
             utimes /done/f{n} {n} {n}; fsync /done"
        )
    })
}

pub fn beside() -> String {
    rounds("file /a 644 0; file /b 644 0; write /b 0 20000 1", 10, |n| {
        let s = 2 * n + 3;
        format!(
            "write /a {} 3000 {s}; write /b {} 4096 {s}; beside; write /a {} 2000 {}; fsync /a; write /b 0 100 {s}; fsync /b; \
             await; fsync /b; file /c{n} 644 0; beside; write /c{n} 0 9000 {s}; fsync /c{n}; await; write /c{n} 50 50 {s}",
            n * 3000,
            n * 1000,
            n * 3000 + 2000,
            s + 2
        )
    })
}

pub fn names_beside() -> String {
    rounds("mkdir /d 755 0; mkdir /e 755 0; file /d/first 644 0", 10, |n| {
        let s = 2 * n + 3;
        format!(
            "file /d/a{n} 644 0; write /d/a{n} 0 2000 {s}; beside; rename /d/a{n} /e/a{n} replace; fsync /e/a{n}; \
             link /d/first /e/l{n}; fsync /d/first; await; mkdir /d/s{n} 755 0; beside; file /d/s{n}/f 644 0; fsync /d/s{n}; \
             unlink /e/l{n}; fsync /e; unlink /d/s{n}/f; rmdir /d/s{n}; await; rename /e/a{n} /d/first replace; fsync /d/first"
        )
    })
}

/// Every other fsync of a log comes while a commit is under way.
pub fn log_beside() -> String {
    rounds("file /log 644 0", 16, |n| {
        let (at, s) = (n * 6000, 2 * n + 1);
        format!(
            "write /log {at} 1500 {s}; fsync /log; write /log {} 1500 {s}; beside; write /log {} 1500 {s}; fsync /log; \
             write /log {} 1500 {}; fsync /log; await",
            at + 1500,
            at + 3000,
            at + 4500,
            s + 2
        )
    })
}

pub fn reopening() -> String {
    rounds("file /r 644 0", 8, |n| {
        let s = 2 * n + 1;
        format!(
            "write /r {} 900 {s}; fsync /r; file /s{n} 644 0; write /s{n} 0 5000 {s}; fsync /s{n}; reopen; fsync /s{n}; \
             write /s{n} 100 100 {}; fsync /s{n}; unlink /s{n}; fsync /; reopen",
            n * 900,
            s + 2
        )
    })
}

/// Quotas are switched between fsyncs: what is replayed counts where there are some.
pub fn quotas() -> String {
    rounds("subvolume /v 0; file /v/a 644 0; write /v/a 0 60000 1; file /b 644 0", 16, |n| {
        let (s, mode) = (2 * n + 3, ["full", "off", "simple", "off"][n as usize % 4]);
        format!(
            "write /v/a {} 9000 {s}; fsync /v/a; file /v/n{n} 644 0; write /v/n{n} 0 20000 {s}; fsync /v/n{n}; write /b 0 5000 {s}; \
             quotas {mode}; write /v/n{n} 4096 6000 {}; fsync /v/n{n}; clone /v/a 0 8192 /b 8192; fsync /b; unlink /v/n{n}; \
             file /v/m{n} 644 0; fsync /v/m{n}; fsync /v",
            n * 3000,
            s + 2
        )
    })
}
