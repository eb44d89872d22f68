//! Fsyncs of what files hold: data, sizes, attributes, xattrs.

use super::fsyncs::rounds;

pub fn new_files() -> String {
    rounds("mkdir /d 755 0", 12, |n| {
        let (len, s) = (1 + n * 1777, 2 * n + 1);
        format!(
            "file /a{n} 644 0; write /a{n} 0 {len} {s}; fsync /a{n}; file /b{n} 600 7; file /d/c{n} 644 0; \
             write /d/c{n} 0 9000 {s}; fsync /d/c{n}; write /b{n} 100 3000 {s}; write /a{n} 500 100 {s}"
        )
    })
}

pub fn new_directories() -> String {
    rounds("mkdir /old 755 0", 10, |n| {
        format!(
            "mkdir /old/d{n} 700 {n}; mkdir /old/d{n}/e 755 0; file /old/d{n}/beside 644 0; mkdir /old/d{n}/e/f 755 0; \
             file /old/d{n}/e/f/deep 644 0; write /old/d{n}/e/f/deep 0 5000 {}; fsync /old/d{n}/e/f/deep; \
             mkdir /old/d{n}/e/g 755 0; file /old/d{n}/e/g/h 644 0; fsync /old/d{n}/e/g",
            2 * n + 1
        )
    })
}

pub fn appends() -> String {
    rounds("file /log 644 0", 24, |n| {
        // Lines of a few bytes, then whole pages: inline at first, and extents later.
        let (at, len) = if n < 8 { (n * 150, 150) } else { (1200 + (n - 8) * 5000, 5000) };
        format!("write /log {at} {len} {}; fsync /log", 2 * n + 1)
    })
}

pub fn two_logs() -> String {
    rounds("file /one 644 0; mkdir /d 755 0", 12, |n| {
        let first = if n == 0 { "file /d/two 644 0;" } else { "" };
        let (at, s) = (n * 3000, 2 * n + 1);
        format!(
            "{first} write /one {at} 3000 {s}; write /d/two {at} 3000 {}; fsync /one; write /one {} 3000 {s}; \
             write /d/two {} 1000 {s}; fsync /d/two",
            s + 2,
            at + 3000,
            at + 3000
        )
    })
}

pub fn overwrites() -> String {
    rounds("file /a 644 0; write /a 0 60000 1; file /b 644 0; write /b 0 30000 3", 12, |n| {
        let s = 2 * n + 5;
        format!(
            "write /a {} 4096 {s}; write /b {} 700 {s}; fsync /a; write /a {} 9000 {s}; write /b {} 8192 {s}; fsync /b; \
             write /b 0 100 {s}",
            n * 4096 % 60_000,
            n * 1531 % 30_000,
            n * 7777 % 50_000,
            n * 4096 % 28_000
        )
    })
}

pub fn large_overwrites() -> String {
    rounds("file /a 644 0; write /a 0 400000 1", 8, |n| {
        let s = 2 * n + 5;
        format!(
            "write /a {} 70000 {s}; fsync /a; write /a {} 131072 {s}; file /b{n} 644 0; write /b{n} 0 100000 {s}; \
             fsync /b{n}; write /a 8192 66000 {}; truncate /b{n} 70000; fsync /b{n}",
            n * 40_960 % 330_000,
            n * 30_000 % 260_000,
            s + 2
        )
    })
}

pub fn truncation() -> String {
    rounds("file /t 644 0; write /t 0 50000 1; file /u 644 0; write /u 0 9000 3", 12, |n| {
        let s = 2 * n + 5;
        format!(
            "truncate /t {}; fsync /t; write /u {} 3000 {s}; truncate /u {}; fsync /u; truncate /t {}; fsync /t; \
             write /t {} 5000 {s}; truncate /u 0; write /u 0 9000 {s}",
            n * 4999 % 60_000,
            n * 500,
            n * 611 % 4000,
            40_000 + n * 1000,
            n * 2000
        )
    })
}

pub fn holes() -> String {
    rounds("file /h 644 0; write /h 0 120000 1", 12, |n| {
        let s = 2 * n + 3;
        format!(
            "allocate /h punch {} 16384; fsync /h; write /h {} 5000 {s}; allocate /h punch {} 9000; fsync /h; \
             file /s{n} 644 0; write /s{n} {} 100 {s}; fsync /s{n}; write /s{n} 0 4096 {s}; truncate /s{n} 900000; fsync /s{n}",
            n * 12_288 % 100_000,
            n * 7777 % 110_000,
            n * 10_007 % 110_000,
            200_000 + n * 4096
        )
    })
}

pub fn reserved() -> String {
    rounds("file /p 644 0; allocate /p reserve 0 100000", 12, |n| {
        let s = 2 * n + 3;
        // Data go to reserved space before and after the fsync that says that it is reserved.
        format!(
            "write /p {} 8192 {s}; fsync /p; file /q{n} 644 0; allocate /q{n} reserve-keep 0 60000; fsync /q{n}; \
             write /q{n} 0 {} {s}; fsync /q{n}; write /q{n} 20000 20000 {s}; allocate /p reserve {} 30000; write /p {} 70000 {s}",
            n * 8192 % 90_000,
            1000 + n * 900,
            100_000 + n * 30_000,
            100_000 + n * 30_000
        )
    })
}

pub fn zeros() -> String {
    rounds("file /z 644 0; write /z 0 80000 1", 12, |n| {
        let s = 2 * n + 3;
        format!(
            "allocate /z zero {} 12000; fsync /z; write /z {} 2000 {s}; fsync /z; allocate /z zero-keep {} 30000; \
             write /z {} 4096 {s}; fsync /z; write /z 0 9000 {s}",
            n * 9001 % 70_000,
            n * 9001 % 70_000 + 3000,
            70_000 + n * 1000,
            n * 12_288 % 70_000
        )
    })
}

pub fn clones() -> String {
    rounds("file /from 644 0; write /from 0 90000 1; file /to 644 0", 10, |n| {
        let (at, to, s) = (n * 3 % 16 * 4096, n * 5 % 20 * 4096, 2 * n + 3);
        format!(
            "clone /from {at} 16384 /to {to}; fsync /to; write /from {} 6000 {s}; fsync /from; file /new{n} 644 0; \
             clone /to {to} 8192 /new{n} 0; write /to {to} 4096 {s}; fsync /new{n}; unlink /new{n}; \
             clone /from {at} 4096 /to {to}; fsync /to",
            at + 100
        )
    })
}

pub fn clones_of_itself() -> String {
    rounds("file /c 644 0; write /c 0 40960 1", 12, |n| {
        let (at, to, s) = (n % 5 * 4096, (6 + n % 4) * 4096, 2 * n + 3);
        format!(
            "clone /c {at} 4096 /c {to}; fsync /c; write /c {at} 4096 {s}; fsync /c; clone /c {to} 4096 /c {at}; \
             write /c {to} 9000 {s}; fsync /c; allocate /c punch {at} 4096"
        )
    })
}

pub fn inline() -> String {
    rounds("file /i 644 0; write /i 0 500 1", 12, |n| {
        let s = 2 * n + 3;
        format!(
            "write /i 0 {} {s}; fsync /i; file /j{n} 644 0; write /j{n} 0 {} {s}; fsync /j{n}; write /j{n} 0 30 {}; \
             truncate /i {}; fsync /i; write /j{n} 3000 3000 {s}; fsync /j{n}; truncate /j{n} 40; fsync /j{n}",
            50 + n * 100,
            1 + n * 170,
            s + 2,
            20 + n * 30
        )
    })
}

pub fn xattrs() -> String {
    rounds(
        "file /x 644 0; mkdir /y 755 0; setxattr /x user.a 10 1 any; setxattr /y user.a 10 1 any",
        12,
        |n| {
            format!(
                "setxattr /x user.n{n} {} {n} any; fsync /x; setxattr /y user.n{n} 30 {n} any; fsync /y; rmxattr /x user.n{n}; \
             setxattr /x user.a {} {n} replace; fsync /x; file /w{n} 644 0; setxattr /w{n} trusted.t 40 {n} create; \
             fsync /w{n}; rmxattr /w{n} trusted.t; rmxattr /y user.n{n}; fsync /y; fsync /w{n}",
                5 + n * 83,
                20 + n
            )
        },
    )
}

pub fn large_xattrs() -> String {
    rounds("file /x 644 0; write /x 0 20000 1", 10, |n| {
        format!(
            "setxattr /x user.large {} {n} any; fsync /x; write /x {} 4096 {}; setxattr /x user.l{n} 3000 {n} any; \
             fsync /x; chmod /x {:o}; rmxattr /x user.large; fsync /x",
            3000 + n * 900,
            n * 4096 % 20_000,
            2 * n + 3,
            0o600 + n
        )
    })
}

pub fn attributes() -> String {
    rounds("file /a 644 0; mkdir /b 755 0; write /a 0 5000 1", 12, |n| {
        format!(
            "chmod /a {:o}; fsync /a; chown /b {} 5; fsync /b; utimes /a {} {}; chown /a {n} {n}; fsync /a; chmod /b {:o}; \
             utimes /a {} {}; write /a 0 10 {}; fsync /a; chmod /a 600",
            0o600 + n,
            n * 5,
            n * 1_000_003,
            n * 7,
            0o700 + n,
            n + 9,
            n * 99 + 1,
            2 * n + 1
        )
    })
}

pub fn nothing_new() -> String {
    rounds("file /n 644 0; write /n 0 5000 1; mkdir /d 755 0; file /m 644 0", 10, |n| {
        format!(
            "fsync /n; fsync /d; fsync /; write /m 0 {} {}; fsync /n; fsync /m; fsync /m; chmod /m {:o}; fsync /d; fsync /m; \
             fsync /n",
            100 + n * 600,
            2 * n + 1,
            0o600 + n
        )
    })
}
