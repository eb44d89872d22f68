//! FIFOs, sockets and devices.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::fs::{major, minor};
use rustix::io::Errno;

use super::{Refusal, refusals};
use crate::call;
use crate::case::{Registry, eq, eq_mode};

const REFUSALS: &[Refusal] = &[
    ("on-a-file", "create f 644", "mknod f fifo 644", Errno::EXIST),
    ("on-a-directory", "mkdir f 755", "mknod f fifo 644", Errno::EXIST),
    ("on-a-link", "symlink none f", "mknod f fifo 644", Errno::EXIST),
    ("directory", "list .", "mknod d dir 755", Errno::PERM),
    ("open-a-socket", "mknod f socket 644", "open f r", Errno::NXIO),
];

/// Registers the cases.
pub fn register(r: &mut Registry) {
    refusals(r, "mknod", REFUSALS);
    for (kind, bits) in [("fifo", 0o010_000), ("socket", 0o140_000), ("file", 0o100_000)] {
        r.case(format!("mknod/{kind}"), move |t| {
            t.umask(0o022, || t.ok(&format!("mknod x {kind} 666")))?;
            let stat = t.stat("x")?;
            eq_mode(stat.st_mode, bits | 0o644, "mode")?;
            eq((stat.st_size, stat.st_nlink, stat.st_rdev), (0, 1, 0), "size, links, device")
        });
    }
    for (kind, bits) in [("char", 0o020_000), ("block", 0o060_000)] {
        r.root(format!("mknod/{kind}"), move |t| {
            for (a, b) in [(1, 3), (0, 0), (255, 255), (4095, 1_048_575), (8, 256)] {
                t.ok(&format!("mknod x {kind} 600 {a} {b}"))?;
                let stat = t.stat("x")?;
                eq_mode(stat.st_mode, bits | 0o600, "mode")?;
                eq((major(stat.st_rdev), minor(stat.st_rdev)), (a, b), "device number")?;
                t.ok("chmod x 644; rename x y; unlink y")?;
            }
            Ok(())
        });
    }
    pipes(r);
    sockets(r);
}

/// Named pipes.
fn pipes(r: &mut Registry) {
    r.case("mknod/fifo-carries-bytes", |t| {
        t.ok("mknod p fifo 644")?;
        let mut reader = t.open("p", "r,nonblock")?;
        let mut writer = t.open("p", "w")?;
        writer.write_all(b"through the pipe")?;
        let mut bytes = [0; 16];
        reader.read_exact(&mut bytes)?;
        eq(&bytes, b"through the pipe", "bytes")?;
        eq(t.stat("p")?.st_size, 0, "size")
    });
    r.case("mknod/fifo-in-two-places", |t| {
        t.ok("mknod p fifo 644; link p q")?;
        let mut reader = t.open("p", "r,nonblock")?;
        let mut writer = t.open("q", "w")?;
        writer.write_all(b"x")?;
        eq(reader.read(&mut [0; 4])?, 1, "bytes through the other name")
    });
}

/// Sockets.
fn sockets(r: &mut Registry) {
    r.case("mknod/socket-connects", |t| {
        let listener = UnixListener::bind("s")?;
        eq_mode(t.stat("s")?.st_mode & 0o170_000, 0o140_000, "kind")?;
        let mut one = UnixStream::connect("s")?;
        let (mut two, _) = listener.accept()?;
        one.write_all(b"abc")?;
        let mut bytes = [0; 3];
        two.read_exact(&mut bytes)?;
        eq(&bytes, b"abc", "bytes")?;
        t.ok("unlink s")?;
        eq(UnixStream::connect("s").is_err(), true, "no connection without a name")
    });
    r.case("mknod/socket-name-is-taken", |t| {
        t.file("s")?;
        let bound = UnixListener::bind("s").map(drop).map_err(|e| e.raw_os_error());
        eq(bound, Err(Some(Errno::ADDRINUSE.raw_os_error())), "bind")
    });
    r.case("mknod/dead-socket", |_| {
        drop(UnixListener::bind("s")?);
        let have = UnixStream::connect("s").map(drop).map_err(|e| e.raw_os_error());
        eq(have, Err(Some(Errno::CONNREFUSED.raw_os_error())), "connect")
    });
    r.root("mknod/device-works", |t| {
        t.ok("mknod zero char 666 1 5")?;
        let Ok(zero) = call::open("zero", "r", 0) else {
            return Err(crate::case::Stop::Skipped("mounted with nodev".to_owned()));
        };
        let mut bytes = [1; 64];
        eq(rustix::io::read(&zero, &mut bytes)?, 64, "bytes read")?;
        eq(bytes, [0; 64], "bytes")
    });
}
