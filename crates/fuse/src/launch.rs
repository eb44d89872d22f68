//! The background process of a mount, without fork.
//!
//! A process with threads cannot fork safely, so the command starts its own program again with the
//! same arguments and a mark in the environment, and waits at the other end of a pipe, which is
//! the child's standard output. The child goes the same way through the program, mounts, says
//! `ready` and goes on alone; or it says why not and ends. Thus `mount` returns when the
//! mount answers, and shell and fstab see the true exit code.
//!
//! In the same way the process that serves a mount which is nowhere yet starts another one, which puts it where it belongs: that
//! takes answers of the server, and a process that waits for its own could not be killed. The mount is its standard input.

mod inherited;

use std::env;
use std::fs::OpenOptions;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::cause::Cause;
use crate::daemon::MountError;

/// Marks the child.
const MARK: &str = "BUTTRESS_MOUNT_DAEMON";
/// Marks the child that puts a mount where it belongs.
const PUT_MARK: &str = "BUTTRESS_MOUNT_PUT";
/// The child's word when all is well.
const READY: u8 = b'\x06';
/// Stands before the cause ([`Cause::letter`]) and the words of the child's error.
const FAILED: u8 = b'\x15';

/// Which of the two processes this is.
pub enum Role {
    /// The command: the mount is up, or the error says why not.
    Command(Result<(), LaunchError>),
    /// The child, which serves.
    Daemon(Readiness),
}

/// Why there is no background process.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The program could not be started again.
    #[error("starting the background process: {0}")]
    Start(#[from] io::Error),
    /// The child said why it could not mount.
    #[error("{said}")]
    Child {
        /// Its cause.
        cause: Cause,
        /// Its words.
        said: String,
    },
    /// The child ended without a word.
    #[error("the background process ended before the mount was up: {0}")]
    Died(ExitStatus),
}

/// The child's line to the waiting command.
pub struct Readiness {
    pipe: std::fs::File,
}

/// Whether this is a process that the command has started: what the command has said need not be said again.
pub fn is_background() -> bool {
    env::var_os(MARK).is_some() || is_to_put()
}

/// Whether this process is to put a mount where it belongs.
pub(crate) fn is_to_put() -> bool {
    env::var_os(PUT_MARK).is_some()
}

/// Has another process put a mount where it belongs; that lets go of it in any case.
pub(crate) fn have_put(top: OwnedFd) -> Result<(), LaunchError> {
    let mut command = again();
    command.env(PUT_MARK, "1").stdin(top).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    // Only the child has the mount now, which goes with it unless it is put somewhere.
    drop(command);
    let done = listen(&mut child);
    let _it_has_said_all = child.wait();
    done
}

/// Puts the mount that is this process's standard input where it belongs, says how that went, and ends: with the process that
/// serves the mount, if that ends first.
pub(crate) fn put_and_exit(put: impl FnOnce(OwnedFd) -> Result<(), MountError>) -> ! {
    let _as_far_as_the_system_has_it =
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let done = take_stdin().and_then(|top| Ok((Readiness::take()?, top)));
    let code = match done.map(|(mut readiness, top)| match put(top) {
        Ok(()) => readiness.pipe.write_all(&[READY]).is_ok(),
        Err(error) => {
            readiness.failed(&error);
            false
        }
    }) {
        Ok(true) => 0,
        _ => 1,
    };
    std::process::exit(code)
}

fn take_stdin() -> io::Result<OwnedFd> {
    let stdin = io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(OpenOptions::new().read(true).open("/dev/null")?)?;
    Ok(stdin)
}

/// Splits the way: in the command it starts the child and waits for its word, in the child it
/// returns the line to the command.
pub fn split() -> Role {
    if is_background() {
        match Readiness::take() {
            Ok(readiness) => Role::Daemon(readiness),
            Err(error) => Role::Command(Err(error.into())),
        }
    } else {
        Role::Command(start_child())
    }
}

/// This program with the same arguments.
fn again() -> Command {
    let mut arguments = env::args_os();
    let zeroth = arguments.next().unwrap_or_default();
    // By its own name, as that is what process lists show; a deleted program is still there by the
    // other.
    let program = env::current_exe().ok().filter(|path| path.exists());
    let mut command = Command::new(program.unwrap_or_else(|| "/proc/self/exe".into()));
    command.arg0(zeroth).args(arguments);
    command
}

fn start_child() -> Result<(), LaunchError> {
    let mut command = again();
    command.env(MARK, "1").stdin(Stdio::null()).stdout(Stdio::piped());
    inherited::keep_from_children();
    listen(&mut command.spawn()?)
}

/// What a child says.
fn listen(child: &mut Child) -> Result<(), LaunchError> {
    let mut word = Vec::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_end(&mut word)?;
    }
    heard(&word).unwrap_or_else(|| Err(LaunchError::Died(child.wait()?)))
}

/// What a child's line means. Its first mark counts: what comes behind `FAILED` has names in it that the user chose. `None`: it
/// has none.
fn heard(line: &[u8]) -> Option<Result<(), LaunchError>> {
    let mark = line.iter().position(|byte| [READY, FAILED].contains(byte))?;
    let (mark, told) = line.get(mark..)?.split_first()?;
    if *mark == READY {
        return Some(Ok(()));
    }
    let (letter, words) = told.split_first().unwrap_or((&0, &[]));
    let said = String::from_utf8_lossy(words).trim().to_owned();
    Some(Err(LaunchError::Child { cause: Cause::of_letter(*letter), said }))
}

impl Readiness {
    fn take() -> io::Result<Self> {
        let pipe = io::stdout().as_fd().try_clone_to_owned()?;
        let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdout(&null)?;
        Ok(Self { pipe: pipe.into() })
    }

    /// The mount answers: lets the command return and leaves its terminal.
    pub fn ready(mut self) -> io::Result<()> {
        // Fails only where this process leads a session already, which is as good.
        let _new_session = rustix::process::setsid();
        env::set_current_dir("/")?;
        let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        // A pipe would be waited for by whoever reads it; on a terminal, failures are still seen.
        if !io::stderr().is_terminal() {
            rustix::stdio::dup2_stderr(&null)?;
        }
        self.pipe.write_all(&[READY])
    }

    /// There will be no mount, because of `error`.
    pub fn failed(mut self, error: &MountError) {
        let (mark, cause) = (char::from(FAILED), char::from(error.cause().letter()));
        // Without a listener nobody is left to tell.
        let _nobody_waits = write!(self.pipe, "{mark}{cause}{error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(line: &[u8]) -> Option<(Cause, String)> {
        match heard(line) {
            Some(Err(LaunchError::Child { cause, said })) => Some((cause, said)),
            _ => None,
        }
    }

    #[test]
    fn marks_in_the_words_are_words() {
        let busy = |said: &str| Some((Cause::Busy, said.to_owned()));
        assert_eq!(failure(b"\x15bthe words"), busy("the words"));
        assert_eq!(failure(b"\x15ba\x15n and b\x06"), busy("a\x15n and b\x06"));
        assert_eq!(failure(b"\x15"), Some((Cause::Other, String::new())));
        assert!(matches!(heard(b"\x06"), Some(Ok(()))));
        assert!(heard(b"").is_none() && heard(b"neither").is_none());
    }
}
