//! Warnings of a filesystem that come while it is mounted: on standard error, and where the mount is served from the background,
//! whose standard error leads nowhere unless that is a terminal, in the system's log.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use buttress::Filesystem;

/// Where the system's log is read.
const LOG: &str = "/dev/log";
/// A warning of a daemon, as syslog(3) counts.
const PRIORITY: u32 = 3 << 3 | 4;

/// Tells of each warning when it comes.
pub(crate) fn tell_when_they_come(fs: &Filesystem, source: &Path, background: bool) {
    let source = source.to_owned();
    fs.on_warning(move |warning| {
        let text = format!("{}: {warning}", source.display());
        crate::complain!("buttress: {text}");
        if background {
            // A system without a log has nobody who reads it.
            let _unread = log(LOG, &text);
        }
    });
}

/// Sends a line to the log, if that takes it at once: who tells of a failing disk may be about to commit.
fn log(place: impl AsRef<Path>, text: &str) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    let line = format!("<{PRIORITY}>buttress[{}]: {text}", std::process::id());
    socket.send_to(line.as_bytes(), place).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_a_line_of_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("log");
        let reader = UnixDatagram::bind(&place).unwrap();
        log(&place, "a disk: something is wrong").unwrap();
        let mut line = [0; 200];
        let len = reader.recv(&mut line).unwrap();
        let line = String::from_utf8_lossy(&line[..len]);
        assert!(
            line.starts_with("<28>buttress[") && line.ends_with("]: a disk: something is wrong")
        );
        assert!(log(dir.path().join("nobody"), "unread").is_err());
    }
}
