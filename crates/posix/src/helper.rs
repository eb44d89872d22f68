//! A process that makes calls as another user.
//!
//! `setpriv` switches user, group and further groups and then runs this program again in its
//! helper mode, in the directory of the case: it inherits the working directory, so that it does
//! not matter whether the other user may reach it by path. The program itself is run through an
//! open file for the same reason. Lines go in, answers come out: `ok TEXT` or `err NUMBER`, where
//! line feeds in a text are dropped.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::call;

/// The argument that starts the helper mode.
pub const HELPER: &str = "--helper";

/// Who a helper is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Identity {
    /// Real and effective user.
    pub uid: u32,
    /// Real and effective group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}

/// A running helper; it ends when this is dropped.
pub struct Helper {
    child: Child,
    lines: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// A command that runs this program again as `identity`, and the open file it is run through.
pub fn again_as(identity: &Identity) -> io::Result<(Command, OwnedFd)> {
    // Not closed on exec: the path below is resolved by the process that `setpriv` has become.
    let program = rustix::fs::open("/proc/self/exe", OFlags::RDONLY, Mode::empty())?;
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={}", identity.uid)).arg(format!("--regid={}", identity.gid));
    if identity.groups.is_empty() {
        command.arg("--clear-groups");
    } else {
        let groups: Vec<_> = identity.groups.iter().map(u32::to_string).collect();
        command.arg(format!("--groups={}", groups.join(",")));
    }
    command.arg("--").arg(format!("/proc/self/fd/{}", program.as_raw_fd()));
    Ok((command, program))
}

impl Helper {
    /// Starts a helper in the present working directory.
    pub fn start(identity: &Identity) -> io::Result<Self> {
        let (mut command, program) = again_as(identity)?;
        command.arg(HELPER).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        drop(program);
        let missing = || io::Error::other("a helper without pipes");
        let lines = child.stdin.take().ok_or_else(missing)?;
        let answers = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        Ok(Self { child, lines: Some(lines), answers })
    }

    /// Makes one call as the helper's user.
    pub fn ask(&mut self, line: &str) -> io::Result<call::Answer> {
        let lines = self.lines.as_mut().ok_or_else(|| io::Error::other("the helper is gone"))?;
        writeln!(lines, "{line}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        let answer = answer.trim_end_matches('\n');
        match answer.split_once(' ') {
            Some(("ok", text)) => Ok(Ok(text.to_owned())),
            Some(("err", number)) => {
                let number = number.parse().map_err(io::Error::other)?;
                Ok(Err(Errno::from_raw_os_error(number)))
            }
            _ => Err(io::Error::other(format!("the helper answered {answer:?}"))),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // The end of its input is the end of the helper.
        drop(self.lines.take());
        let _ = self.child.wait();
    }
}

/// The helper mode: answers lines until there are no more.
pub fn serve() -> io::Result<()> {
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        match call::run(&line?) {
            Ok(text) => writeln!(out, "ok {}", text.replace('\n', ""))?,
            Err(errno) => writeln!(out, "err {}", errno.raw_os_error())?,
        }
        out.flush()?;
    }
    Ok(())
}
