//! What the kernel logged about one btrfs device from a moment on.
//!
//! `/dev/kmsg` gives one record per read: `priority,sequence,time,flags;text`. Records of other
//! devices are passed over, since other tests mount at the same time.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{OracleError, Result, at};

/// Where the kernel's log is read.
const KMSG: &str = "/dev/kmsg";
/// Longest record that one read can return, in bytes (the kernel's own limit is below).
const RECORD_BYTES: usize = 16 << 10;
/// Highest syslog level that counts as a complaint: 4 is "warning", 3 "error".
const WORST_QUIET_LEVEL: u32 = 4;
/// Complaints of the right level that say nothing about the image.
const TOLERATED: [&str; 1] = ["space cache v1 is being deprecated"];

/// Reads the kernel's log from the moment it was made.
#[derive(Debug)]
pub struct KernelLog {
    file: File,
    device: String,
}

impl KernelLog {
    /// Begins to listen for records on `device`, named as in `loop3`.
    pub fn start(device: &str) -> Result<Self> {
        let path = Path::new(KMSG);
        let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let opened = File::options().read(true).custom_flags(nonblock).open(path);
        let mut file = at("open", path, opened)?;
        at("seek", path, file.seek(SeekFrom::End(0)))?;
        Ok(Self { file, device: device.to_owned() })
    }

    /// All records about the device since the last call, each with its level.
    pub fn records(&mut self) -> Result<Vec<(u32, String)>> {
        let mut found = Vec::new();
        let mut buffer = vec![0; RECORD_BYTES];
        loop {
            let count = match self.file.read(&mut buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(found),
                // The ring went round; the next read gives the oldest record still there.
                Err(error) if error.raw_os_error() == Some(32) => continue,
                Err(source) => {
                    let path = KMSG.into();
                    return Err(OracleError::Io { what: "read", path, source });
                }
            };
            let text = String::from_utf8_lossy(buffer.get(..count).unwrap_or_default());
            if let Some(record) = parse(&text)
                && is_about(&record.1, &self.device)
            {
                found.push(record);
            }
        }
    }

    /// Warnings and errors about the device since the last call.
    pub fn complaints(&mut self) -> Result<Vec<String>> {
        let records = self.records()?;
        Ok(records
            .into_iter()
            .filter(|(level, text)| {
                *level <= WORST_QUIET_LEVEL && !TOLERATED.iter().any(|known| text.contains(known))
            })
            .map(|(_, text)| text)
            .collect())
    }

    /// Ok when there were no complaints since the last call.
    pub fn assert_quiet(&mut self) -> Result<()> {
        let lines = self.complaints()?;
        if lines.is_empty() {
            return Ok(());
        }
        Err(OracleError::Complaints { device: self.device.clone(), lines })
    }
}

/// Level and text of one record.
fn parse(record: &str) -> Option<(u32, String)> {
    let (head, text) = record.split_once(';')?;
    let priority: u32 = head.split(',').next()?.parse().ok()?;
    Some((priority & 7, text.lines().next()?.to_owned()))
}

/// True for a btrfs line that names exactly this device.
fn is_about(text: &str, device: &str) -> bool {
    text.contains("BTRFS") && text.split(|c: char| !c.is_ascii_alphanumeric()).any(|w| w == device)
}

#[cfg(test)]
mod tests {
    use super::{is_about, parse};

    #[test]
    fn records_are_told_apart_by_whole_device_names() {
        let text = "4,812,5100,-;BTRFS warning (device loop11): csum failed\n SUBSYSTEM=block";
        let (level, line) = parse(text).unwrap();
        assert_eq!(level, 4);
        assert!(is_about(&line, "loop11"));
        assert!(!is_about(&line, "loop1"));
        assert!(is_about("BTRFS error (device loop1 state EA): x", "loop1"));
        assert!(!is_about("loop1: detected capacity change", "loop1"));
    }
}
