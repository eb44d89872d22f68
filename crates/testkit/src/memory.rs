//! How much memory this process has taken.
//!
//! What is mapped of the program does not count: that is as much as happens to be in the page cache around what has run, so a
//! program that others have pushed out of it gets megabytes later than one that was just built.

use std::{fs, io};

/// Bytes that this process had in memory at its peak, without what was mapped from files.
pub fn peak_memory() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.map(|kib| kib << 10).ok_or_else(|| io::Error::other(format!("no {name}")))
    };
    Ok(bytes("VmHWM:")?.saturating_sub(bytes("RssFile:")?))
}
