//! What the workloads do, in words. Each commits after every few operations, so that there is much to cut.

use std::fmt::Write;

use crate::corpus::colliding_names;

/// Collects lines.
#[derive(Default)]
pub(super) struct Lines(String);

impl Lines {
    pub fn add(&mut self, line: std::fmt::Arguments<'_>) {
        let _ = self.0.write_fmt(line);
        self.0.push('\n');
    }
}

macro_rules! add {
    ($lines:ident, $($words:tt)*) => { $lines.add(format_args!($($words)*)) };
}

/// Lines made round by round, with a commit after each.
fn rounds(count: u64, mut round: impl FnMut(&mut Lines, u64)) -> String {
    let mut lines = Lines::default();
    for number in 0..count {
        round(&mut lines, number);
        add!(lines, "commit");
    }
    lines.0
}

pub fn create_and_remove() -> String {
    rounds(36, |lines, n| {
        for k in 0..6 {
            add!(lines, "file /f{n}-{k} 644 {k}");
        }
        add!(lines, "mkdir /d{n} 755 0");
        add!(lines, "file /d{n}/inner 600 1000");
        if n > 2 {
            add!(lines, "unlink /d{}/inner", n - 2);
            add!(lines, "rmdir /d{}", n - 2);
            for k in 0..5 {
                add!(lines, "unlink /f{}-{k}", n - 3);
            }
        }
    })
}

pub fn small_files() -> String {
    rounds(40, |lines, n| {
        for k in 0..4 {
            let seed = 2 * (n * 7 + k) + 1;
            add!(lines, "file /s{k}-{} 644 0", n % 9);
            add!(lines, "write /s{k}-{} 0 {} {seed}", n % 9, 1 + (n * 977 + k * 1400) % 9000);
        }
        add!(lines, "write /s0-{} 2000 300 {}", n % 5, 2 * n + 1);
        add!(lines, "truncate /s1-{} {}", n % 7, n * 60);
    })
}

pub fn overwrites() -> String {
    let first = "file /a 644 0\nwrite /a 0 180000 1\nfile /b 644 0\nwrite /b 0 60000 3\ncommit\n";
    let rest = rounds(40, |lines, n| {
        let seed = 2 * n + 5;
        add!(lines, "write /a {} 4096 {seed}", n * 4096 % 180_000);
        add!(lines, "write /a {} 70000 {seed}", n * 1777 % 100_000);
        add!(lines, "write /b {} 100 {seed}", n * 1531 % 60_000);
        add!(lines, "write /b {} 9000 {seed}", n * 3 * 4096 % 60_000);
    });
    first.to_owned() + &rest
}

pub fn large_writes() -> String {
    let first = "file /big 644 0\nfile /late 644 0\ncommit\n";
    let rest = rounds(26, |lines, n| {
        // Data of large writes are on the disk before the commit.
        add!(lines, "write /big {} {} {}", n * 90_000 % 500_000, 65_536 + n * 7000, 2 * n + 1);
        add!(lines, "write /late {} 131072 {}", n * 65_536 % 400_000, 2 * n + 3);
        add!(lines, "truncate /late {}", 300_000 - n * 5000);
        if n % 5 == 4 {
            add!(lines, "unlink /big");
            add!(lines, "file /big 644 0");
        }
    });
    first.to_owned() + &rest
}

pub fn truncation() -> String {
    let first = "file /t 644 0\nfile /u 644 0\ncommit\n";
    let rest = rounds(40, |lines, n| {
        add!(lines, "write /t 0 {} {}", 20_000 + n * 2000, 2 * n + 1);
        add!(lines, "truncate /t {}", (n * 4999) % 60_000);
        add!(lines, "write /u {} 3000 {}", n * 5000, 2 * n + 1);
        add!(lines, "truncate /u {}", if n % 4 == 3 { 0 } else { 4096 * (n % 40) + n % 3 });
        add!(lines, "truncate /t {}", 100_000 + n * 999);
    });
    first.to_owned() + &rest
}

pub fn allocation() -> String {
    let first = "file /p 644 0\nfile /q 644 0\nwrite /q 0 90000 5\ncommit\n";
    let rest = rounds(36, |lines, n| {
        let at = n * 10_007 % 150_000;
        match n % 5 {
            0 => add!(lines, "allocate /p reserve {at} 50000"),
            1 => add!(lines, "allocate /p reserve-keep {} 70000", at + 100_000),
            2 => add!(lines, "allocate /p punch {at} 30000"),
            3 => add!(lines, "allocate /p zero {at} 40000"),
            _ => add!(lines, "allocate /p zero-keep {at} 80000"),
        }
        add!(lines, "write /p {} 12000 {}", n * 4096 % 120_000, 2 * n + 1);
        add!(lines, "allocate /q punch {} 8192", n * 12_288 % 90_000);
        add!(lines, "write /q {} 5000 {}", n * 7777 % 90_000, 2 * n + 1);
        if n % 9 == 8 {
            add!(lines, "truncate /p 20000");
        }
    });
    first.to_owned() + &rest
}

pub fn clones() -> String {
    let first =
        "file /from 644 0\nwrite /from 0 150000 1\nfile /to 644 0\nfile /third 600 0\ncommit\n";
    let rest = rounds(36, |lines, n| {
        let (at, to) = (n * 3 % 30 * 4096, n * 5 % 40 * 4096);
        add!(lines, "clone /from {at} 24576 /to {to}");
        add!(lines, "clone /to {to} 16384 /third {at}");
        add!(lines, "write /from {} 6000 {}", at + 100, 2 * n + 1);
        add!(lines, "clone /third 0 8192 /third {}", 400_000 + to);
        match n % 7 {
            3 => add!(lines, "truncate /to {}", to + 5000),
            5 => add!(lines, "unlink /third\nfile /third 600 0"),
            _ => add!(lines, "write /third {to} 4096 {}", 2 * n + 9),
        }
    });
    first.to_owned() + &rest
}

pub fn xattrs() -> String {
    let first = "file /x 644 0\nmkdir /y 755 0\nsymlink /z 0 target\ncommit\n";
    let rest = rounds(40, |lines, n| {
        for at in ["/x", "/y", "/z"] {
            let name = format!("trusted.n{}", n % 11);
            add!(lines, "setxattr {at} {name} {} {} any", n * 83 % 1500, n);
        }
        add!(lines, "setxattr /x user.large {} {n} any", 3000 + n * 10);
        add!(lines, "rmxattr /x trusted.n{}", (n + 4) % 11);
        add!(lines, "setxattr /y user.once 10 {n} create");
        add!(lines, "rmxattr /y user.once");
    });
    first.to_owned() + &rest
}

pub fn attributes() -> String {
    let first = "file /a 644 0\nmkdir /b 755 0\nsymlink /c 0 target\ncommit\n";
    let rest = rounds(40, |lines, n| {
        add!(lines, "chmod /a {:o}", (n * 37) % 0o10000);
        add!(lines, "chown /b {} {}", n * 5, n * 11);
        add!(lines, "utimes /a {} {}", n * 1_000_003, n * 7);
        add!(lines, "utimes /c {} -{}", n, n * 99);
        add!(lines, "chown /c {n} {n}");
    });
    first.to_owned() + &rest
}

pub fn renames() -> String {
    let first = "mkdir /m 755 0\nmkdir /n 755 0\nmkdir /m/deep 755 0\ncommit\n";
    let rest = rounds(36, |lines, n| {
        add!(lines, "file /m/new{n} 644 0");
        add!(lines, "write /m/new{n} 0 {} {}", 100 + n * 200, 2 * n + 1);
        // A file is made new and takes the place of the old one: either is there, whole.
        add!(lines, "rename /m/new{n} /n/current replace");
        add!(lines, "mkdir /m/d{n} 755 0");
        add!(lines, "file /m/d{n}/x 644 0");
        add!(lines, "rename /m/d{n} /n/d{n} noreplace");
        if n > 0 {
            add!(lines, "rename /n/d{n} /n/d{} exchange", n - 1);
            add!(lines, "rename /n/d{} /m/deep/d{} replace", n - 1, n - 1);
        }
        if n % 3 == 2 {
            add!(lines, "rename /m/deep /deep exchange");
            add!(lines, "rename /m /n/moved replace");
            add!(lines, "rename /n/moved /m replace");
        }
    });
    first.to_owned() + &rest
}

pub fn links() -> String {
    let first = "mkdir /l 755 0\nfile /l/first 644 0\nwrite /l/first 0 5000 1\ncommit\n";
    let rest = rounds(36, |lines, n| {
        for k in 0..8 {
            // Long names: the item of the names is full soon, and the rest goes into items of its own.
            add!(lines, "link /l/first /l/{}-{n}-{k}", "long".repeat(40));
        }
        if n > 3 {
            for k in 0..7 {
                add!(lines, "unlink /l/{}-{}-{k}", "long".repeat(40), n - 3);
            }
        }
        if n % 12 == 11 {
            add!(lines, "unlink /l/first");
            add!(lines, "rename /l/{}-{n}-7 /l/first replace", "long".repeat(40));
        }
    });
    first.to_owned() + &rest
}

pub fn special_files() -> String {
    rounds(30, |lines, n| {
        add!(lines, "mknod /c{n} 600 0 char {}", 1 << 20 | n);
        add!(lines, "mknod /b{n} 660 0 block {}", 8 << 20 | n);
        add!(lines, "mknod /p{n} 644 5 fifo 0");
        add!(lines, "mknod /s{n} 777 6 socket 0");
        add!(lines, "symlink /l{n} 0 {}", "t/".repeat(1 + n as usize * 40));
        if n > 1 {
            add!(lines, "unlink /c{}", n - 2);
            add!(lines, "unlink /l{}", n - 2);
            add!(lines, "rename /p{n} /b{} replace", n - 1);
        }
    })
}

pub fn without_names() -> String {
    rounds(36, |lines, n| {
        add!(lines, "tmpfile {} / 600", n % 4);
        add!(lines, "write @{} 0 {} {}", n % 4, 3000 + n * 3000, 2 * n + 1);
        if n % 3 == 0 {
            add!(lines, "link @{} /named{n}", n % 4);
        }
        add!(lines, "file /held{n} 644 0");
        add!(lines, "write /held{n} 0 10000 {}", 2 * n + 1);
        add!(lines, "hold {} /held{n}", 4 + n % 3);
        add!(lines, "commit");
        add!(lines, "unlink /held{n}");
        add!(lines, "write @{} 4096 100 {}", 4 + n % 3, 2 * n + 3);
        if n % 5 == 4 {
            add!(lines, "commit\nrelease {}\nrelease {}", n % 4, 4 + n % 3);
        }
        if n % 11 == 10 {
            add!(lines, "reopen");
        }
    })
}

pub fn subvolumes() -> String {
    rounds(26, |lines, n| {
        add!(lines, "subvolume /v{n} {}", n % 2);
        add!(lines, "file /v{n}/a 644 0");
        add!(lines, "write /v{n}/a 0 {} {}", 1000 + n * 300, 2 * n + 1);
        add!(lines, "commit");
        add!(lines, "subvolume /v{n}/inner 0");
        add!(lines, "mkdir /v{n}/inner/d 755 0");
        add!(lines, "readonly /v{n} true");
        add!(lines, "commit");
        if n > 1 {
            add!(lines, "readonly /v{} false", n - 2);
            add!(lines, "rename /v{}/inner /i{n} replace", n - 2);
            add!(lines, "delete /i{n}");
            add!(lines, "commit");
            add!(lines, "delete /v{}", n - 2);
            add!(lines, "rename /v{} /w{} noreplace", n - 1, n - 1);
            add!(lines, "rename /w{} /v{} noreplace", n - 1, n - 1);
        }
    })
}

pub fn snapshots() -> String {
    let first = "subvolume /s 0\nfile /s/f 644 0\nwrite /s/f 0 80000 1\nmkdir /s/d 755 0\ncommit\n";
    let rest = rounds(22, |lines, n| {
        add!(lines, "snapshot /s /snap{n} {}", n % 2 == 0);
        add!(lines, "write /s/f {} 5000 {}", n * 7000 % 80_000, 2 * n + 1);
        add!(lines, "file /s/d/n{n} 644 0");
        add!(lines, "write /s/d/n{n} 0 3000 {}", 2 * n + 1);
        if n % 2 == 1 {
            add!(lines, "write /snap{n}/f 0 9000 {}", 2 * n + 5);
            add!(lines, "snapshot /snap{n} /s/of-snap{n} false");
            add!(lines, "delete /s/of-snap{n}");
        }
        if n > 2 {
            add!(lines, "delete /snap{}", n - 3);
        }
    });
    first.to_owned() + &rest
}

/// A subvolume of many blocks with a part of them changed after a snapshot.
fn many_blocks(lines: &mut Lines) {
    add!(lines, "subvolume /work 0");
    for k in 0..160 {
        add!(lines, "file /work/file-with-some-name-{k} 644 0");
        add!(lines, "write /work/file-with-some-name-{k} 0 {} {}", 600 + k * 20, 2 * k + 1);
    }
    add!(lines, "file /work/large 644 0\nwrite /work/large 0 120000 7");
    add!(lines, "file /keeps 644 0\nclone /work/large 0 40960 /keeps 0");
    add!(lines, "commit");
}

pub fn deletion() -> String {
    let mut lines = Lines::default();
    many_blocks(&mut lines);
    add!(lines, "delete /work");
    for n in 0..20 {
        add!(lines, "commit\nfile /beside{n} 644 0\nwrite /beside{n} 0 {} {}", n * 400, 2 * n + 1);
    }
    add!(lines, "clean");
    lines.0
}

pub fn shared_deletion() -> String {
    let mut lines = Lines::default();
    many_blocks(&mut lines);
    add!(lines, "snapshot /work /copy false");
    for k in (0..160).step_by(3) {
        add!(lines, "unlink /work/file-with-some-name-{k}");
        add!(lines, "write /copy/file-with-some-name-{} 100 50 3", k / 2);
    }
    add!(lines, "snapshot /copy /third true\ndelete /work");
    for n in 0..9 {
        add!(lines, "commit\nfile /beside{n} 644 0");
    }
    add!(lines, "delete /copy");
    for n in 9..20 {
        add!(lines, "commit\nfile /beside{n} 644 0");
    }
    add!(lines, "reopen\ndelete /third\ncommit\nfile /last 644 0\ncommit\nclean");
    lines.0
}

/// Block groups are emptied: of a subvolume with snapshots and clones, and of one that is being dropped.
pub fn emptied_groups() -> String {
    let mut lines = Lines::default();
    many_blocks(&mut lines);
    add!(lines, "snapshot /work /copy false\ncommit");
    for n in 0..14 {
        add!(lines, "write /copy/file-with-some-name-{} 100 3000 {}", n * 9, 2 * n + 1);
        add!(lines, "unlink /work/file-with-some-name-{}", n * 7);
        add!(lines, "clone /work/large 4096 40960 /copy/file-with-some-name-{n} 8192");
        match n {
            3 => add!(lines, "snapshot /copy /third true\ndelete /work\nsubvolume /work 0"),
            8 => {
                add!(lines, "file /work/held 644 0\nwrite /work/held 0 90000 9\nhold 1 /work/held")
            }
            9 => add!(lines, "commit\nunlink /work/held\ndelete /third"),
            _ => {}
        }
        add!(lines, "empty {n}");
    }
    add!(lines, "clean\nempty 0\nempty 1\ncommit");
    lines.0
}

/// Quotas are switched on, off and to the other kind, upon changes that wait for a commit and upon none, while subvolumes are dropped.
pub fn quotas() -> String {
    // Some come twice, and some are refused.
    const MODES: [&str; 16] = [
        "full",
        "full",
        "off",
        "simple",
        "simple",
        "full",
        "off",
        "off",
        "simple",
        "off",
        "full",
        "simple",
        "off\nwrite /work/large 0 50000 9\nwrite /copy/large 0 9000 9\nquotas simple",
        "off\nreopen\nquotas full",
        "off\nwrite /copy/large 9000 9000 9\nquotas full",
        "off",
    ];
    let mut lines = Lines::default();
    many_blocks(&mut lines);
    add!(lines, "snapshot /work /copy false\ncommit");
    for (n, mode) in MODES.iter().enumerate() {
        let seed = 2 * n + 1;
        add!(lines, "file /work/new{n} 644 0\nwrite /work/new{n} 0 {} {seed}", 3000 + n * 2500);
        add!(lines, "write /work/large {} 9000 {seed}", n * 4096);
        add!(lines, "clone /work/large 0 40960 /copy/file-with-some-name-{n} 8192");
        match n % 4 {
            0 => add!(lines, "snapshot /copy /snap{n} false\nwrite /snap{n}/large 0 5000 {seed}"),
            1 => add!(lines, "delete /snap{}\ncommit\nfile /beside{n} 644 0", n - 1),
            2 => {
                add!(lines, "subvolume /sub{n} 0\nfile /sub{n}/a 644 0\nwrite /sub{n}/a 0 30000 3")
            }
            _ => add!(lines, "commit"),
        }
        add!(lines, "quotas {mode}");
        for k in 0..3 {
            add!(lines, "unlink /work/file-with-some-name-{}", n * 3 + k);
            add!(lines, "write /copy/file-with-some-name-{} 100 3000 {seed}", n * 9 + k);
            add!(lines, "commit");
        }
        if n == 9 {
            add!(lines, "delete /work\ncommit\nsubvolume /work 0\nfile /work/large 644 0");
        }
    }
    add!(lines, "clean\ncommit");
    lines.0
}

pub fn large_directory() -> String {
    let grow = rounds(20, |lines, n| {
        for k in 0..40 {
            add!(lines, "file /entry-{}-{n}-{k} 644 0", "x".repeat((n * k % 90) as usize));
        }
    });
    let shrink = rounds(20, |lines, n| {
        for k in 0..40 {
            add!(lines, "unlink /entry-{}-{n}-{k}", "x".repeat((n * k % 90) as usize));
        }
    });
    grow + &shrink
}

fn plain_names(count: usize) -> Vec<String> {
    let names = colliding_names(4000).into_iter();
    let plain = names.filter(|name| name.iter().all(u8::is_ascii_graphic));
    plain.take(count).filter_map(|name| String::from_utf8(name).ok()).collect()
}

pub fn names_of_one_hash() -> String {
    let names = plain_names(8);
    let mut turn = names.iter().cycle();
    rounds(30, |lines, n| {
        let (Some(a), Some(b)) = (turn.next(), turn.next()) else { return };
        add!(lines, "file /{a} 644 0");
        add!(lines, "rename /{a} /{b} replace");
        add!(lines, "link /{b} /{a}");
        add!(lines, "file /plain{n} 644 0");
        if n % 4 == 3 {
            add!(lines, "unlink /{a}");
            add!(lines, "rename /{b} /plain{n} exchange");
        }
    })
}

pub fn reopening() -> String {
    rounds(16, |lines, n| {
        add!(lines, "file /r{n} 644 0");
        add!(lines, "write /r{n} 0 {} {}", 500 + n * 900, 2 * n + 1);
        add!(lines, "reopen");
        add!(lines, "write /r{n} 300 5000 {}", 2 * n + 3);
        add!(lines, "hold 1 /r{n}");
        if n % 3 == 2 {
            add!(lines, "unlink /r{n}");
        }
        add!(lines, "snapshot / /snap{n} true");
        add!(lines, "delete /snap{n}");
        add!(lines, "reopen");
    })
}

pub fn new_chunks() -> String {
    rounds(14, |lines, n| {
        add!(lines, "file /c{n} 644 0");
        // Space alone: nothing has to be read when a state is judged.
        add!(lines, "allocate /c{n} reserve 0 7000000");
        add!(lines, "write /c{n} {} 30000 {}", n * 100_000, 2 * n + 1);
    })
}

pub fn empty_chunks() -> String {
    rounds(24, |lines, n| {
        let k = n % 4;
        add!(lines, "file /e{k} 644 0");
        match n % 8 {
            0..4 => add!(
                lines,
                "allocate /e{k} reserve 0 6000000\nwrite /e{k} 9000 20000 {}",
                2 * n + 1
            ),
            _ => add!(lines, "unlink /e{k}"),
        }
        // Groups that are empty go two commits later.
        add!(lines, "commit\nfile /turn{n} 644 0\ncommit\nunlink /turn{n}");
    })
}

pub fn full_of_data() -> String {
    let first = "file /filler 644 0\nallocate /filler reserve 0 52000000\ncommit\n";
    let rest = rounds(26, |lines, n| {
        add!(lines, "file /g{n} 644 0");
        add!(lines, "allocate /g{n} reserve 0 {}", 3_000_000 + n * 400_000);
        add!(lines, "allocate /g{n} reserve 0 1000000");
        add!(lines, "write /g{n} 0 90000 {}", 2 * n + 1);
        add!(lines, "write /filler {} 20000 {}", n * 30_000, 2 * n + 1);
        if n % 6 == 5 {
            add!(lines, "truncate /g{} 5000", n - 4);
            add!(lines, "unlink /g{}", n - 3);
        }
    });
    first.to_owned() + &rest
}

pub fn full_of_metadata() -> String {
    let first = "file /filler 644 0\nallocate /filler reserve 0 120000000\n\
                 allocate /filler reserve 0 60000000\nallocate /filler reserve 0 30000000\ncommit\n";
    let rest = rounds(30, |lines, n| {
        for k in 0..20 {
            add!(lines, "file /n{n}-{k} 644 0");
            add!(lines, "setxattr /n{n}-{k} user.large 15000 {n} any");
        }
        if n % 5 == 4 {
            add!(lines, "unlink /n{}-3\nunlink /n{}-4", n - 3, n - 2);
        }
    });
    first.to_owned() + &rest
}

pub fn freed_again() -> String {
    rounds(26, |lines, n| {
        let k = n % 3;
        add!(lines, "file /h{k} 644 0");
        add!(lines, "allocate /h{k} reserve 0 {}", 20_000_000 + n * 1_000_000);
        add!(lines, "write /h{k} 50000 40000 {}", 2 * n + 1);
        add!(lines, "commit");
        add!(lines, "unlink /h{}", (n + 1) % 3);
        add!(lines, "file /note{n} 644 0\nwrite /note{n} 0 2500 {}", 2 * n + 1);
    })
}
