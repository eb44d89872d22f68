//! Fsyncs of names: links, renames, directories, subvolumes.

use super::fsyncs::rounds;
use crate::corpus::colliding_names;

pub fn links() -> String {
    rounds("file /f 644 0; write /f 0 5000 1; mkdir /d 755 0", 12, |n| {
        format!(
            "link /f /l{n}; fsync /f; link /f /d/m{n}; fsync /d; file /g{n} 644 0; link /g{n} /d/g{n}; fsync /g{n}; \
             link /g{n} /h{n}; write /g{n} 0 100 {}; fsync /d/g{n}; unlink /h{n}",
            2 * n + 1
        )
    })
}

pub fn links_across() -> String {
    rounds("mkdir /a 755 0; mkdir /b 755 0; file /a/f 644 0; write /a/f 0 9000 1", 12, |n| {
        format!(
            "mkdir /b/d{n} 755 0; link /a/f /b/d{n}/f; fsync /a/f; link /a/f /b/g{n}; unlink /b/d{n}/f; fsync /b/d{n}; \
             file /a/x{n} 644 0; link /a/x{n} /b/x{n}; unlink /a/x{n}; fsync /b/x{n}; link /b/x{n} /a/y{n}; fsync /a"
        )
    })
}

/// Names so long that most of them are in items of their own.
pub fn long_links() -> String {
    let long = "long".repeat(50);
    rounds("mkdir /l 755 0; file /l/f 644 0", 8, |n| {
        let links = (0..7).map(|k| format!("link /l/f /l/{long}-{n}-{k}; ")).collect::<String>();
        let gone = match n {
            0 => String::new(),
            _ => (0..6).map(|k| format!("unlink /l/{long}-{}-{k}; ", n - 1)).collect(),
        };
        format!(
            "{links} fsync /l/f; {gone} fsync /l/f; link /l/f /l/{long}-{n}-8; fsync /l; unlink /l/{long}-{n}-8; fsync /l"
        )
    })
}

pub fn a_name_less() -> String {
    rounds("file /f 644 0; link /f /a; link /f /b; mkdir /d 755 0", 12, |n| {
        format!(
            "unlink /a; fsync /f; link /f /a; fsync /a; unlink /b; link /f /d/b; fsync /f; link /d/b /b; unlink /d/b; fsync /d; \
             write /f 0 10 {}; fsync /b",
            2 * n + 1
        )
    })
}

pub fn removal() -> String {
    rounds("mkdir /d 755 0; file /d/keep 644 0", 12, |n| {
        let s = 2 * n + 1;
        format!(
            "file /d/a{n} 644 0; write /d/a{n} 0 5000 {s}; file /d/b{n} 644 0; fsync /d; unlink /d/a{n}; fsync /d; \
             unlink /d/b{n}; fsync /d/keep; file /d/c{n} 644 0; write /d/c{n} 0 100 {s}; fsync /d/c{n}; unlink /d/c{n}; \
             fsync /d; file /e{n} 644 0; fsync /e{n}; unlink /e{n}"
        )
    })
}

pub fn directories() -> String {
    rounds("mkdir /d 755 0", 12, |n| {
        format!(
            "mkdir /d/a{n} 755 {n}; fsync /d/a{n}; file /d/a{n}/f 644 0; mkdir /d/a{n}/s 755 0; fsync /d/a{n}; \
             file /d/a{n}/s/g 644 0; fsync /d; unlink /d/a{n}/f; fsync /d/a{n}; mkdir /t{n} 700 0; file /t{n}/f 644 0; fsync /"
        )
    })
}

pub fn made_again() -> String {
    rounds("mkdir /d 755 0; mkdir /d/x 755 0; file /d/x/f 644 0", 12, |n| {
        format!(
            "unlink /d/x/f; rmdir /d/x; fsync /d; mkdir /d/x 700 {n}; fsync /d/x; file /d/x/f 644 0; write /d/x/f 0 300 {}; \
             fsync /d/x/f; mkdir /d/y 755 0; fsync /d; rmdir /d/y; file /d/y 644 0; fsync /d/y; unlink /d/y; fsync /d",
            2 * n + 1
        )
    })
}

pub fn symlinks() -> String {
    rounds("mkdir /d 755 0", 12, |n| {
        format!(
            "symlink /d/s{n} 0 target{n}; fsync /d; symlink /d/t{n} 5 {}; file /d/f{n} 644 0; fsync /d/f{n}; \
             rename /d/t{n} /d/u{n} replace; fsync /d; unlink /d/s{n}; symlink /d/s{n} 0 other; fsync /d; link /d/u{n} /v{n}; \
             fsync /",
            "t/".repeat(1 + n as usize * 40)
        )
    })
}

pub fn special_files() -> String {
    rounds("mkdir /d 755 0", 10, |n| {
        format!(
            "mknod /d/c{n} 600 0 char {}; mknod /d/p{n} 644 5 fifo 0; fsync /d; mknod /d/b{n} 660 0 block {}; \
             mknod /d/s{n} 777 6 socket 0; rename /d/c{n} /d/x{n} replace; fsync /d; unlink /d/p{n}; link /d/b{n} /b{n}; \
             fsync /; fsync /d",
            1 << 20 | n,
            8 << 20 | n
        )
    })
}

pub fn taken_again() -> String {
    rounds("file /a 644 0; write /a 0 4000 1; mkdir /d 755 0", 12, |n| {
        let s = 2 * n + 3;
        format!(
            "unlink /a; file /a 600 {n}; write /a 0 100 {s}; fsync /a; rename /a /b replace; file /a 644 0; \
             write /a 0 9000 {s}; fsync /a; unlink /a; rename /b /a replace; fsync /a; link /a /d/a; unlink /a; \
             file /a 644 0; fsync /d/a; unlink /d/a; fsync /"
        )
    })
}

pub fn one_hash() -> String {
    let names = colliding_names(4000).into_iter();
    let plain = names.filter(|name| name.iter().all(u8::is_ascii_graphic) && !name.contains(&b';'));
    let names: Vec<_> = plain.take(6).filter_map(|name| String::from_utf8(name).ok()).collect();
    let [a, b, c, d, e, f] = &names[..] else { return String::new() };
    rounds(&format!("file /{a} 644 0; file /{b} 644 0"), 10, |n| {
        format!(
            "file /{c} 644 0; write /{c} 0 500 {}; fsync /{c}; link /{a} /{d}; fsync /{a}; rename /{b} /{e} replace; fsync /{e}; \
             unlink /{c}; fsync /; rename /{e} /{b} replace; unlink /{d}; file /{f} 644 0; fsync /{f}; unlink /{f}; fsync /",
            2 * n + 1
        )
    })
}

pub fn large_directory() -> String {
    rounds("mkdir /d 755 0", 6, |n| {
        let name = |k: u64| format!("/d/entry-{}-{n}-{k}", "x".repeat((n * k % 90) as usize));
        let new = (0..40).map(|k| format!("file {} 644 0; ", name(k))).collect::<String>();
        let gone = (0..40).step_by(3).map(|k| format!("unlink {}; ", name(k))).collect::<String>();
        format!(
            "{new} fsync /d; {gone} fsync {}; fsync /d; rename {} /d/r{n} replace; fsync /d/r{n}",
            name(1),
            name(2)
        )
    })
}

pub fn without_names() -> String {
    rounds("mkdir /d 755 0", 12, |n| {
        let s = 2 * n + 1;
        format!(
            "tmpfile 1 /d 600; write @1 0 {} {s}; link @1 /d/t{n}; fsync /d/t{n}; tmpfile 2 / 644; write @2 0 5000 {s}; \
             fsync @2; link @2 /d/u{n}; fsync /d; write @2 5000 300 {s}; fsync @2; tmpfile 3 /d 600; write @3 0 9000 {s}; \
             fsync @3; release 3; link @1 /v{n}; unlink /d/t{n}; fsync @1",
            100 + n * 2500
        )
    })
}

pub fn held() -> String {
    rounds("mkdir /d 755 0", 12, |n| {
        let s = 2 * n + 1;
        format!(
            "file /d/h{n} 644 0; write /d/h{n} 0 5000 {s}; fsync /d/h{n}; hold 1 /d/h{n}; unlink /d/h{n}; write @1 0 100 {s}; \
             fsync @1; file /d/k{n} 644 0; hold 2 /d/k{n}; fsync /d; file /d/m{n} 644 0; rename /d/m{n} /d/k{n} replace; \
             fsync @2; fsync /d/k{n}; release 1; fsync /d; release 2"
        )
    })
}

pub fn subvolumes() -> String {
    rounds("subvolume /s 0; subvolume /t 0; file /s/a 644 0; file /t/a 644 0", 10, |n| {
        let s = 2 * n + 1;
        format!(
            "write /s/a {} 1000 {s}; write /t/a {} 1000 {s}; fsync /s/a; file /t/b{n} 644 0; fsync /t/b{n}; file /c{n} 644 0; \
             fsync /; subvolume /s/v{n} 0; file /s/v{n}/f 644 0; write /s/v{n}/f 0 5000 {s}; fsync /s/v{n}/f; fsync /t/a; \
             rename /s/v{n} /v{n} noreplace; fsync /v{n}/f",
            n * 1000,
            n * 700
        )
    })
}

pub fn snapshots() -> String {
    rounds("subvolume /s 0; file /s/f 644 0; write /s/f 0 30000 1; mkdir /s/d 755 0", 8, |n| {
        let s = 2 * n + 3;
        format!(
            "write /s/f {} 5000 {s}; fsync /s/f; snapshot /s /snap{n} false; write /s/f {} 3000 {s}; fsync /s/f; \
             write /snap{n}/f 0 4096 {s}; file /snap{n}/d/x 644 0; fsync /snap{n}/f; file /s/d/y{n} 644 0; fsync /s/d; \
             snapshot /s /ro{n} true; unlink /s/d/y{n}; fsync /s/d; fsync /snap{n}/d",
            n * 3000 % 25_000,
            n * 4096 % 25_000
        )
    })
}

pub fn deleted_subvolumes() -> String {
    rounds("file /beside 644 0", 10, |n| {
        let s = 2 * n + 1;
        format!(
            "subvolume /s 0; file /s/f 644 0; write /s/f 0 9000 {s}; fsync /s/f; snapshot /s /c false; write /c/f 0 100 {s}; \
             fsync /c/f; delete /s; write /beside 0 {} {s}; fsync /beside; delete /c; fsync /",
            100 + n * 50
        )
    })
}

// ---- moves ----

const TWO: &str = "mkdir /a 755 0; mkdir /b 755 0; file /a/f 644 0; write /a/f 0 5000 1; file /b/g 644 0; write /b/g 0 300 3";

pub fn renames() -> String {
    rounds(TWO, 12, |n| {
        format!(
            "rename /a/f /a/h{n} replace; fsync /a/h{n}; file /a/f 644 0; fsync /a/f; rename /a/h{n} /a/f replace; fsync /a; \
             file /a/x{n} 644 0; rename /a/x{n} /a/y{n} replace; fsync /a/y{n}; rename /a/y{n} /a/x{n} replace; write /a/f 0 9 {}",
            2 * n + 1
        )
    })
}

pub fn renamed_file() -> String {
    rounds(TWO, 12, |n| {
        format!(
            "rename /a/f /b/f replace; fsync /b/f; write /b/f 0 700 {}; rename /b/f /a/f{n} replace; fsync /a/f{n}; \
             mkdir /b/d{n} 755 0; rename /a/f{n} /b/d{n}/f replace; fsync /b/d{n}/f; rename /b/d{n}/f /a/f replace",
            2 * n + 1
        )
    })
}

pub fn renamed_from() -> String {
    rounds(TWO, 12, |n| {
        format!(
            "rename /a/f /b/f replace; fsync /a; file /a/new{n} 644 0; write /a/new{n} 0 90 {}; rename /a/new{n} /b/new{n} replace; \
             fsync /a; rename /b/f /a/f replace; fsync /b; rename /b/g /g replace; fsync /b; rename /g /b/g replace; fsync /",
            2 * n + 1
        )
    })
}

pub fn renamed_to() -> String {
    rounds(TWO, 12, |n| {
        format!(
            "rename /a/f /b/f replace; fsync /b; file /a/new{n} 644 0; write /a/new{n} 0 90 {}; rename /a/new{n} /b/new{n} replace; \
             fsync /b; rename /b/f /a/f replace; fsync /a; rename /b/g /g replace; fsync /; rename /g /b/g replace; fsync /b",
            2 * n + 1
        )
    })
}

/// What is made durable is another file beside the one that was moved.
pub fn renamed_other() -> String {
    rounds(TWO, 12, |n| {
        let s = 2 * n + 1;
        format!(
            "rename /a/f /b/f replace; write /b/g 0 {} {s}; fsync /b/g; file /a/k{n} 644 0; fsync /a/k{n}; \
             rename /b/f /a/f replace; fsync /b/g; rename /a/k{n} /b/k{n} replace; file /a/k{n} 600 1; fsync /a/k{n}; \
             rename /b/k{n} /b/l{n} replace; write /b/g 50 50 {s}; fsync /b/g",
            100 + n
        )
    })
}

pub fn rename_over() -> String {
    rounds(TWO, 12, |n| {
        let s = 2 * n + 1;
        format!(
            "file /a/new 644 0; write /a/new 0 {} {s}; rename /a/new /a/f replace; fsync /a/f; file /a/new 644 0; \
             write /a/new 0 50 {s}; fsync /a/new; rename /a/new /b/g replace; fsync /b; file /a/h{n} 644 0; \
             link /a/f /b/l; rename /a/h{n} /a/f replace; fsync /b/l; unlink /b/l; mkdir /a/d 755 0; mkdir /a/e 700 {n}; \
             rename /a/d /a/e replace; fsync /a/e; rmdir /a/e; fsync /a",
            1000 + n * 500
        )
    })
}

pub fn exchanges() -> String {
    rounds(TWO, 12, |n| {
        format!(
            "rename /a/f /b/g exchange; fsync /a/f; rename /a/f /b/g exchange; fsync /b; file /a/n{n} 644 0; \
             write /a/n{n} 0 500 {}; rename /a/n{n} /a/f exchange; fsync /a/f; rename /a/n{n} /b/g exchange; fsync /b/g; \
             rename /a/f /b/g exchange; fsync /a",
            2 * n + 1
        )
    })
}

pub fn exchanged_directories() -> String {
    rounds(
        "mkdir /a 755 0; mkdir /b 755 0; mkdir /a/x 755 0; mkdir /b/y 755 0; file /a/x/f 644 0; file /b/y/f 644 0",
        10,
        |n| {
            let s = 2 * n + 1;
            format!(
                "rename /a/x /b/y exchange; fsync /a/x; write /b/y/f 0 100 {s}; fsync /b/y/f; rename /a/x /b/y exchange; fsync /b; \
             mkdir /a/n{n} 755 0; file /a/n{n}/f 644 0; rename /a/n{n} /a/x exchange; fsync /a/x/f; write /a/x/f 0 9 {s}; \
             rename /a/n{n} /a/x exchange; file /z{n} 644 0; rename /z{n} /b/y exchange; fsync /z{n}; rename /z{n} /b/y exchange; \
             fsync /b"
            )
        },
    )
}

pub fn moved_directories() -> String {
    rounds("mkdir /a 755 0; mkdir /b 755 0; mkdir /a/d 755 0; file /a/d/f 644 0", 10, |n| {
        let s = 2 * n + 1;
        format!(
            "rename /a/d /b/d replace; write /b/d/f 0 600 {s}; fsync /b/d/f; rename /b/d /a/d replace; fsync /a/d; \
             mkdir /a/n{n} 755 0; file /a/n{n}/f 644 0; rename /a/n{n} /b/n{n} replace; fsync /b/n{n}/f; \
             rename /b/n{n} /a/d/n{n} replace; fsync /b; mkdir /b/p{n} 755 0; rename /a/d/n{n} /b/p{n}/q replace; fsync /b/p{n}; \
             rename /b/p{n} /b/r{n} replace; fsync /b/r{n}/q/f"
        )
    })
}

/// Each file takes the name that another one has just lost.
pub fn chain() -> String {
    rounds(
        "mkdir /d 755 0; file /d/1 644 0; file /d/2 644 0; file /d/3 644 0; write /d/1 0 90 1; write /d/2 0 90 3",
        10,
        |n| {
            let which = 1 + n % 3;
            format!(
                "rename /d/3 /d/t replace; rename /d/2 /d/3 replace; rename /d/1 /d/2 replace; rename /d/t /d/1 replace; \
             fsync /d/{which}; write /d/{which} 0 50 {}; rename /d/1 /4 replace; rename /d/2 /d/1 replace; fsync /d/1; \
             rename /4 /d/2 replace; fsync /; file /d/5 644 0; rename /d/3 /d/6 replace; rename /d/5 /d/3 replace; fsync /d/3; \
             rename /d/6 /d/3 replace; fsync /d/{which}",
                2 * n + 1
            )
        },
    )
}
