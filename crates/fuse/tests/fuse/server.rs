//! Servers for the tests, in processes of their own, so that a mistake cannot make a test wait for
//! itself: this program starts itself again with [`SERVE`] set, as the user in question.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use buttress_fuse::daemon::{self, Ground, MountError, Place};
use buttress_fuse::launch::{self, Readiness, Role};
use buttress_fuse::options::MountOptions;
use buttress_fuse::protocol::connect::{ConnectOptions, connect, disconnect};
use buttress_fuse::protocol::mounts;
use buttress_fuse::session::{Session, SessionOptions};
use buttress_fuse::signals::HeldSignals;

use parking_lot::RwLock;

use crate::filesystem::Null;
use crate::model::{self, Model};

const SERVE: &str = "BUTTRESS_TEST_SERVE";
const KIND: &str = "BUTTRESS_TEST_KIND";
const OPTIONS: &str = "BUTTRESS_TEST_OPTIONS";
/// More mount options for all servers, of whoever starts the tests.
const MORE: &str = "BUTTRESS_TEST_MOUNT";
pub const BACKGROUND: &str = "BUTTRESS_TEST_BACKGROUND";
pub const SOURCE: &str = "/some where,odd.img";
pub const USER: u32 = 1000;
/// How long an fsync of the null filesystem takes: long enough to show that others are served meanwhile.
const FSYNC: Duration = Duration::from_millis(300);

/// Not a test by itself: the server's side of all the others.
#[test]
fn serve() {
    let Some(mountpoint) = std::env::var_os(SERVE) else { return };
    let readiness = match std::env::var_os(BACKGROUND).map(|_| launch::split()) {
        None => None,
        Some(Role::Daemon(readiness)) => Some(readiness),
        Some(Role::Command(result)) => return result.unwrap(),
    };
    let mountpoint = PathBuf::from(mountpoint);
    let mut words = MountOptions::default();
    words.apply(&std::env::var(OPTIONS).unwrap()).unwrap();
    words.apply(&std::env::var(MORE).unwrap_or_default()).unwrap();
    let place = Place { source: SOURCE.into(), mountpoint };
    let mut readiness = readiness;
    let served = match std::env::var(KIND).unwrap().as_str() {
        "Null" => serve_null(&place, words.io_uring, &mut readiness),
        "Engine" => {
            let image = place.mountpoint.with_extension("img");
            buttress_fuse::mount(&image, &place.mountpoint, &words, Ground::Foreground)
        }
        _ => daemon::serve(Model::new(), model::SUBVOLUME, &place, &words, &mut readiness),
    };
    if let Err(error) = served {
        if let Some(readiness) = readiness {
            readiness.failed(&error);
        }
        eprintln!("{error}");
        std::process::exit(1);
    }
    fs::write(place.mountpoint.with_extension("ended"), "").unwrap();
    std::process::exit(0);
}

/// The session alone.
fn serve_null(
    place: &Place,
    io_uring: bool,
    readiness: &mut Option<Readiness>,
) -> Result<(), MountError> {
    let options = ConnectOptions { source: SOURCE.into(), ..Default::default() };
    let signals = HeldSignals::hold()?;
    let channel = connect(&place.mountpoint, &options)?;
    let handler = Arc::new(Null::new(FSYNC));
    let options = SessionOptions { io_uring, ..SessionOptions::default() };
    let session = Session::start(channel, &place.mountpoint, handler, &options)?;
    let _watch = signals.stop(session.stopper())?;
    if let Some(readiness) = readiness.take() {
        readiness.ready()?;
    }
    session.wait();
    Ok(())
}

/// A child forked while a program is being copied would hold it open for writing, and running the
/// program would fail with ETXTBSY; so copying and starting exclude each other.
pub static SPAWNING: RwLock<()> = RwLock::new(());

/// How long an unmount and the end of a server may take on a machine that has much else to do.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Starts a process. What it says and the modes of what it makes are compared, and are the same whoever runs this: from here
/// on in this process, too.
pub fn spawn(command: &mut Command) -> Child {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let _starting = SPAWNING.read();
    command.env("LC_ALL", "C").spawn().unwrap()
}

/// Runs a program of btrfs-progs. It asks what is mounted, and gives up when another test takes that off in this moment: then it
/// is tried again.
pub fn progs(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let output = spawn(command).wait_with_output().unwrap();
        let met = String::from_utf8_lossy(&output.stderr).contains("mount status");
        if output.status.success() || !met || Instant::now() > deadline {
            return output;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether there is such a program.
pub fn exists(command: &mut Command) -> bool {
    let _starting = SPAWNING.read();
    command.output().is_ok()
}

/// What a server serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The filesystem of the benchmark.
    Null,
    /// The model behind the real translation of requests.
    Model,
    /// The engine, on an image that mkfs.btrfs has made.
    Engine,
}

pub struct Mount {
    directory: tempfile::TempDir,
    pub server: Option<Child>,
    pub kind: Kind,
    options: &'static str,
}

impl Mount {
    pub fn path(&self) -> PathBuf {
        self.directory.path().canonicalize().unwrap().join("mnt")
    }

    fn ended(&self) -> PathBuf {
        self.path().with_extension("ended")
    }

    pub fn command(&self, user: Option<u32>) -> Command {
        let mut command = command_of(user, &self.directory.path().join("server"));
        command.args(["--exact", "server::serve", "--nocapture"]).env(SERVE, self.path());
        command.env(KIND, format!("{:?}", self.kind)).env(OPTIONS, self.options);
        command
    }

    /// A directory to mount on, owned by `user`, beside a copy of this program it may run.
    pub fn prepare(kind: Kind, user: Option<u32>, options: &'static str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let copying = SPAWNING.write();
        fs::copy(std::env::current_exe().unwrap(), directory.path().join("server")).unwrap();
        drop(copying);
        let mount = Self { directory, server: None, kind, options };
        fs::create_dir(mount.path()).unwrap();
        std::os::unix::fs::chown(mount.path(), user, user).unwrap();
        if kind == Kind::Engine {
            mount.make_image(user);
        }
        mount
    }

    /// Where the filesystem of the engine lies.
    pub fn image(&self) -> PathBuf {
        self.path().with_extension("img")
    }

    fn make_image(&self, user: Option<u32>) {
        File::create(self.image()).unwrap().set_len(512 << 20).unwrap();
        std::os::unix::fs::chown(self.image(), user, user).unwrap();
        let mut mkfs = Command::new("mkfs.btrfs");
        let made = progs(mkfs.arg("-q").arg(self.image()));
        assert!(made.status.success(), "{made:?}");
    }

    /// Unmounts, waits for the end, and lets btrfs-progs check what is left.
    pub fn end(self) {
        let image = (self.kind == Kind::Engine).then(|| self.image());
        self.leave();
        // The directory stays until the image has been checked.
        let directory = self.finish();
        if let Some(image) = image {
            let mut check = Command::new("btrfs");
            let output = progs(check.args(["check", "--check-data-csum"]).arg(image));
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            // Debian's btrfs-progs know no simple quotas; what has had them is judged elsewhere.
            let is_unknown = said.contains("unsupported option features (10000)");
            let is_clean = output.status.success() || is_unknown;
            assert!(is_clean, "{}{said}", String::from_utf8_lossy(&output.stdout));
        }
        drop(directory);
    }

    pub fn foreground(kind: Kind, user: Option<u32>, options: &'static str) -> Self {
        let mut mount = Self::prepare(kind, user, options);
        mount.start(mount.command(user));
        mount
    }

    /// Of a server that looks for programs on its own mount, and finds none.
    pub fn without_programs(kind: Kind, options: &'static str) -> Self {
        let mut mount = Self::prepare(kind, None, options);
        let path = mount.path().into_os_string();
        mount.start_with_path(path);
        mount
    }

    /// Unmounts and mounts the same image again, by a server whose sync(1) is a file that cannot be run.
    pub fn again_with_broken_sync(self) -> Self {
        self.leave();
        let mut mount = self.finish();
        let programs = mount.path().with_extension("programs");
        fs::create_dir(&programs).unwrap();
        fs::write(programs.join("sync"), "no program").unwrap();
        fs::set_permissions(programs.join("sync"), fs::Permissions::from_mode(0o755)).unwrap();
        let usual = std::env::var_os("PATH").unwrap();
        let all = std::iter::once(programs).chain(std::env::split_paths(&usual));
        mount.start_with_path(std::env::join_paths(all).unwrap());
        mount
    }

    fn start_with_path(&mut self, path: OsString) {
        let mut command = self.command(None);
        command.env("PATH", path);
        self.start(command);
    }

    /// Unmounts and mounts the same image again.
    pub fn again(self, options: &'static str) -> Self {
        self.leave();
        let mut mount = self.finish();
        mount.options = options;
        mount.start(mount.command(None));
        mount
    }

    /// Mounts again what a killed server has left.
    pub fn after_kill(mut self) -> Self {
        self.server = None;
        disconnect(&self.path(), true).unwrap();
        self.options = "";
        self.start(self.command(None));
        self
    }

    fn start(&mut self, mut command: Command) {
        let mut child = spawn(&mut command);
        while mounts::at(&self.path()).unwrap().is_none() {
            assert!(child.try_wait().unwrap().is_none(), "the server ended");
            std::thread::sleep(Duration::from_millis(2));
        }
        self.server = Some(child);
        // Waits for INIT to be answered. The kernel keeps root out of a user's mount without waiting for that.
        let owner = mounts::at(&self.path()).unwrap().and_then(|mount| mount.owner);
        let own = rustix::process::geteuid().as_raw();
        let mut ask = command_of(owner.filter(|owner| *owner != own), Path::new("stat"));
        ask.arg("-f").arg(self.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let _whatever_the_answer_is = spawn(&mut ask).wait().unwrap();
    }

    /// Unmounts.
    fn leave(&self) {
        // A child another test has just forked holds our files until it runs its program.
        let wait = self.kind == Kind::Engine;
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = buttress_fuse::unmount(&self.path(), false, wait) {
            let busy = matches!(&error, MountError::Connect(error) if error.is_busy());
            assert!(busy && Instant::now() < deadline, "{error}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The server must end by itself, with exit code 0.
    pub fn finish(mut self) -> Self {
        let deadline = Instant::now() + PATIENCE;
        while !self.ended().exists() {
            assert!(Instant::now() < deadline, "the server does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        if let Some(mut server) = self.server.take() {
            assert!(server.wait().unwrap().success());
        }
        assert_eq!(mounts::at(&self.path()).unwrap(), None);
        fs::remove_file(self.ended()).unwrap();
        self
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _usually_gone = disconnect(&self.path(), true);
        if let Some(server) = &mut self.server {
            let _usually_ended = server.kill();
            let _reaped = server.wait();
        }
    }
}

/// Says why a test does nothing here.
pub fn can_mount() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root || !Path::new("/dev/fuse").exists() {
        println!("skipped: needs root and /dev/fuse");
        return false;
    }
    true
}

/// A program as a user; `None`: as whoever runs the tests.
fn command_of(user: Option<u32>, program: &Path) -> Command {
    let Some(uid) = user else { return Command::new(program) };
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={uid}"), format!("--regid={uid}")]);
    command.arg("--clear-groups").arg(program);
    command
}

/// The users a test mounts as: where udev has not opened /dev/fuse, root alone.
pub fn users() -> Vec<Option<u32>> {
    if fs::metadata("/dev/fuse").unwrap().mode() & 0o006 == 0o006 {
        return vec![None, Some(USER)];
    }
    println!("skipped for ordinary users: /dev/fuse is closed to them (chmod 0666 /dev/fuse)");
    vec![None]
}
