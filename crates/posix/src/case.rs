//! Cases, what they may do, and how they end.
//!
//! A case gets a fresh empty directory that is also the working directory of the process, so it
//! says `t.ok("mkdir d 755")` and nothing of where that is. Cases run one after the other: working
//! directory and umask belong to the whole process.

use std::cell::RefCell;
use std::fmt::Debug;
use std::panic::Location;
use std::time::Duration;

use rustix::fs::{Mode, Stat};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::call;
use crate::helper::{Helper, Identity};

/// Why a case did not pass.
#[derive(Debug)]
pub enum Stop {
    /// Something was not as it must be.
    Failed(String),
    /// The case cannot be run here, and why.
    Skipped(String),
}

impl Stop {
    /// A failure noticed at `place`.
    fn failed(place: &Location<'_>, text: String) -> Self {
        Self::Failed(format!("{}:{}: {text}", place.file(), place.line()))
    }
}

impl From<Errno> for Stop {
    #[track_caller]
    fn from(errno: Errno) -> Self {
        Self::failed(Location::caller(), format!("unexpected error {errno:?}"))
    }
}

impl From<std::io::Error> for Stop {
    #[track_caller]
    fn from(error: std::io::Error) -> Self {
        Self::failed(Location::caller(), format!("unexpected error: {error}"))
    }
}

/// How a step of a case ends.
pub type Outcome<V = ()> = Result<V, Stop>;

/// A named case.
pub struct Case {
    /// `area/what-is-shown`, unique.
    pub name: String,
    /// True if it can only be run as root.
    pub root: bool,
    /// The case itself.
    pub body: Box<dyn Fn(&T) -> Outcome>,
}

/// All cases.
#[derive(Default)]
pub struct Registry {
    /// In the order they were registered.
    pub cases: Vec<Case>,
}

impl Registry {
    /// A case for everybody.
    pub fn case(&mut self, name: impl Into<String>, body: impl Fn(&T) -> Outcome + 'static) {
        self.cases.push(Case { name: name.into(), root: false, body: Box::new(body) });
    }

    /// A case that needs root: other users, devices, trusted attributes.
    pub fn root(&mut self, name: impl Into<String>, body: impl Fn(&T) -> Outcome + 'static) {
        self.cases.push(Case { name: name.into(), root: true, body: Box::new(body) });
    }
}

/// What a case works with.
pub struct T {
    /// The other user and that user's group.
    pub other: u32,
    helpers: RefCell<Vec<(Identity, Helper)>>,
}

/// Another user, ready to make calls in the directory of the case.
pub struct User<'a> {
    t: &'a T,
    identity: Identity,
}

impl T {
    /// A case's tools; `other` is the number of the other user and group.
    pub fn new(other: u32) -> Self {
        Self { other, helpers: RefCell::default() }
    }

    /// Calls that must succeed; gives the answer of the last.
    #[track_caller]
    pub fn ok(&self, lines: &str) -> Outcome<String> {
        let mut last = String::new();
        for line in lines.split("; ") {
            last = succeeded(line, call::run(line))?;
        }
        Ok(last)
    }

    /// A call that must fail with `errno`.
    #[track_caller]
    pub fn err(&self, line: &str, errno: Errno) -> Outcome {
        failed_with(line, call::run(line), &[errno])
    }

    /// A call that must fail with one of several errors that the standard leaves open.
    #[track_caller]
    pub fn err_of(&self, line: &str, errnos: &[Errno]) -> Outcome {
        failed_with(line, call::run(line), errnos)
    }

    /// A call that a filesystem may lack: EOPNOTSUPP and ENOSYS skip the case.
    #[track_caller]
    pub fn supported(&self, line: &str) -> Outcome<String> {
        match call::run(line) {
            Err(errno @ (Errno::OPNOTSUPP | Errno::NOSYS)) => {
                Err(Stop::Skipped(format!("not supported here: {line}: {errno:?}")))
            }
            answer => succeeded(line, answer),
        }
    }

    /// What `lstat` says about a path that must exist.
    #[track_caller]
    pub fn stat(&self, path: &str) -> Outcome<Stat> {
        Ok(rustix::fs::lstat(path)?)
    }

    /// Permission bits (12 of them) of a path.
    #[track_caller]
    pub fn mode(&self, path: &str) -> Outcome<u32> {
        Ok(self.stat(path)?.st_mode & 0o7777)
    }

    /// Makes an empty file with mode 644.
    #[track_caller]
    pub fn file(&self, path: &str) -> Outcome {
        self.ok(&format!("create {path} 644")).map(drop)
    }

    /// Makes a file with these bytes.
    #[track_caller]
    pub fn file_of(&self, path: &str, bytes: &[u8]) -> Outcome {
        Ok(call::write_all(&call::open(path, "w,creat,trunc", 0o644)?, bytes)?)
    }

    /// Opens a file; see [`call::open`].
    #[track_caller]
    pub fn open(&self, path: &str, flags: &str) -> Outcome<std::fs::File> {
        Ok(std::fs::File::from(call::open(path, flags, 0o644)?))
    }

    /// Runs `body` under another umask.
    pub fn umask<V>(&self, mask: u32, body: impl FnOnce() -> V) -> V {
        let before = rustix::process::umask(Mode::from_raw_mode(mask));
        let value = body();
        rustix::process::umask(before);
        value
    }

    /// Lets the clock that stamps files move on: longer than any kernel's tick, and as long as a busy machine makes it wait.
    pub fn tick(&self) {
        let now = || clock_gettime(ClockId::RealtimeCoarse);
        let before = now();
        std::thread::sleep(Duration::from_millis(12));
        while now() == before {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The other user, with a group of the same number and no further groups. Only for root.
    pub fn user(&self) -> User<'_> {
        self.user_in(&[])
    }

    /// The other user as a member of further groups.
    pub fn user_in(&self, groups: &[u32]) -> User<'_> {
        let identity = Identity { uid: self.other, gid: self.other, groups: groups.to_vec() };
        User { t: self, identity }
    }

    /// A third user, a stranger to the other one.
    pub fn third(&self) -> User<'_> {
        let id = self.other.wrapping_sub(1);
        User { t: self, identity: Identity { uid: id, gid: id, groups: Vec::new() } }
    }
}

impl User<'_> {
    /// Hands a line to the process that runs as this user.
    fn run(&self, line: &str) -> Outcome<call::Answer> {
        let mut helpers = self.t.helpers.borrow_mut();
        if !helpers.iter().any(|(identity, _)| *identity == self.identity) {
            helpers.push((self.identity.clone(), Helper::start(&self.identity)?));
        }
        let found = helpers.iter_mut().find(|(identity, _)| *identity == self.identity);
        let Some((_, helper)) = found else {
            return Err(Stop::Failed("no helper process".to_owned()));
        };
        Ok(helper.ask(line)?)
    }

    /// Calls that must succeed.
    #[track_caller]
    pub fn ok(&self, lines: &str) -> Outcome<String> {
        let place = Location::caller();
        let mut last = String::new();
        for line in lines.split("; ") {
            last = self.run(line)?.map_err(|errno| {
                let user = self.identity.uid;
                Stop::failed(place, format!("user {user}: {line}: {errno:?}, must succeed"))
            })?;
        }
        Ok(last)
    }

    /// A call that must fail with `errno`.
    #[track_caller]
    pub fn err(&self, line: &str, errno: Errno) -> Outcome {
        let place = Location::caller();
        match self.run(line)? {
            Err(have) if have == errno => Ok(()),
            have => {
                let user = self.identity.uid;
                let text = format!("user {user}: {line}: {have:?}, must fail with {errno:?}");
                Err(Stop::failed(place, text))
            }
        }
    }
}

/// Judges a call that must succeed.
#[track_caller]
fn succeeded(line: &str, answer: call::Answer) -> Outcome<String> {
    let place = Location::caller();
    answer.map_err(|errno| Stop::failed(place, format!("{line}: {errno:?}, must succeed")))
}

/// Judges a call that must fail.
#[track_caller]
fn failed_with(line: &str, answer: call::Answer, errnos: &[Errno]) -> Outcome {
    match answer {
        Err(errno) if errnos.contains(&errno) => Ok(()),
        have => {
            let text = format!("{line}: {have:?}, must fail with {errnos:?}");
            Err(Stop::failed(Location::caller(), text))
        }
    }
}

/// Two values that must be equal.
#[track_caller]
pub fn eq<V: PartialEq + Debug>(have: V, want: V, what: &str) -> Outcome {
    if have == want {
        return Ok(());
    }
    let text = format!("{what}: have {have:?}, want {want:?}");
    Err(Stop::failed(Location::caller(), text))
}

/// Two modes that must be equal, shown in octal.
#[track_caller]
pub fn eq_mode(have: u32, want: u32, what: &str) -> Outcome {
    eq(format!("{have:04o}"), format!("{want:04o}"), what)
}

/// A condition that must hold.
#[track_caller]
pub fn holds(condition: bool, what: &str) -> Outcome {
    if condition { Ok(()) } else { Err(Stop::failed(Location::caller(), what.to_owned())) }
}

/// A result that must be this error.
#[track_caller]
pub fn fails<V: Debug>(have: Result<V, Errno>, want: Errno, what: &str) -> Outcome {
    match have {
        Err(errno) if errno == want => Ok(()),
        have => {
            let text = format!("{what}: {have:?}, must fail with {want:?}");
            Err(Stop::failed(Location::caller(), text))
        }
    }
}
