//! What util-linux knows of a device's content.
//!
//! libblkid has the table of signatures that distributions keep up to date: some ninety formats, with ZFS, bcachefs, md,
//! DRBD, LVM and partition tables with their backups, each looked at as closely as its format asks for. Its programs are
//! asked, not the library: they are on nearly every Linux machine, an ordinary user may run them on what he may read, and
//! a new format is known here on the day that it is known there. Where they are missing, the few formats in
//! [`signature`](crate::signature) are all that is known.

use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

use buttress_device::BlockDevice;

/// Where the programs are; an ordinary user's `PATH` often lacks the directories of system programs.
const DIRECTORIES: [&str; 5] = ["/usr/sbin/", "/usr/bin/", "/sbin/", "/bin/", ""];
/// The exit code of `blkid` that says that several signatures contradict each other.
const AMBIVALENT: i32 = 8;
/// The unit of partition tables, in bytes, whatever the device's sectors are.
const SECTOR: u64 = 512;

/// Names what is in the first `size` bytes of the device, if `blkid` is there and finds something.
pub(crate) fn probe(device: &dyn BlockDevice, size: u64) -> Option<String> {
    let (path, offset) = device.place()?;
    let (offset, size) = (offset.to_string(), size.to_string());
    let options = ["--probe", "--no-part-details", "--output", "export"];
    let range = ["--offset", &offset, "--size", &size];
    match ask("blkid", &[options, range].concat(), &path)? {
        (AMBIVALENT, _) => Some("several signatures at once".into()),
        (0, said) => content(&said),
        _ => None,
    }
}

/// The filesystem, or what is used like one, that a disk or file begins with; partition tables are none.
pub(crate) fn filesystem(path: &Path) -> Option<String> {
    let (code, said) = ask("blkid", &["--probe", "--no-part-details", "--output", "export"], path)?;
    said.lines()
        .find_map(|line| line.strip_prefix("TYPE="))
        .filter(|_| code == 0)
        .map(str::to_owned)
}

/// The partitions of a whole disk or its image, by number, with their bytes; none where `partx` is missing.
pub(crate) fn partitions(path: &Path) -> Vec<(u32, Range<u64>)> {
    let options = ["--raw", "--noheadings", "--output", "NR,START,SECTORS"];
    let said = ask("partx", &options, path).filter(|(code, _)| *code == 0);
    said.map_or_else(Vec::new, |(_, said)| said.lines().filter_map(partition).collect())
}

/// The exit code and the words of a program, when it is there.
fn ask(program: &str, options: &[&str], path: &Path) -> Option<(i32, String)> {
    DIRECTORIES.iter().find_map(|directory| {
        let mut command = Command::new(format!("{directory}{program}"));
        // A path is no option, whatever it begins with.
        command.args(options).arg("--").arg(path).env("LC_ALL", "C").stdin(Stdio::null());
        let output = command.output().ok()?;
        Some((output.status.code()?, String::from_utf8_lossy(&output.stdout).into_owned()))
    })
}

/// The filesystem or volume manager, or else the partition table, of lines like `TYPE=xfs`.
fn content(said: &str) -> Option<String> {
    let value = |tag: &str| said.lines().find_map(|line| line.strip_prefix(tag)?.strip_prefix('='));
    value("TYPE").or_else(|| value("PTTYPE")).map(str::to_owned)
}

/// A line like `2 43008 40960`.
fn partition(line: &str) -> Option<(u32, Range<u64>)> {
    let mut words = line.split_whitespace();
    let number = words.next()?.parse().ok()?;
    let mut bytes = || words.next()?.parse::<u64>().ok()?.checked_mul(SECTOR);
    let (start, len) = (bytes()?, bytes()?);
    Some((number, start..start.checked_add(len)?))
}

#[cfg(test)]
mod tests {
    use super::{content, partition};

    #[test]
    fn what_blkid_says() {
        let xfs = "DEVNAME=/dev/sda1\nUUID=1-2\nBLOCK_SIZE=512\nTYPE=xfs\nUSAGE=filesystem\n";
        assert_eq!(content(xfs).as_deref(), Some("xfs"));
        assert_eq!(content("DEVNAME=x\nPTUUID=1\nPTTYPE=gpt\n").as_deref(), Some("gpt"));
        assert_eq!(content("DEVNAME=x\n"), None);
    }

    #[test]
    fn what_partx_says() {
        assert_eq!(partition("2 43008 40960"), Some((2, 43008 * 512..83968 * 512)));
        assert_eq!(partition(" 5 2048 1 "), Some((5, 2048 * 512..2049 * 512)));
        for bad in ["", "1 2", "a 1 2", "1 2 x", "1 18446744073709551615 2"] {
            assert_eq!(partition(bad), None, "{bad}");
        }
    }
}
