//! The session against the kernel, with the null filesystem: mounts as root and as an ordinary
//! user, requests, and each way to end.
//!
//! The server runs in a process of its own, so that a mistake cannot make the test wait for
//! itself: this program starts itself again with [`SERVE`] set, as the user in question.

#[path = "../examples/null/filesystem.rs"]
mod filesystem;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use buttress_fuse::launch::{self, Role};
use buttress_fuse::protocol::connect::{ConnectOptions, connect, disconnect};
use buttress_fuse::protocol::mounts;
use buttress_fuse::session::{Session, SessionOptions};
use buttress_fuse::signals::stop_on_signals;

const SERVE: &str = "BUTTRESS_TEST_SERVE";
const BACKGROUND: &str = "BUTTRESS_TEST_BACKGROUND";
const SOURCE: &str = "/some where,odd.img";
const USER: u32 = 1000;

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
    let options =
        ConnectOptions { source: SOURCE.into(), default_permissions: true, ..Default::default() };
    let channel = match connect(&mountpoint, &options) {
        Ok(channel) => channel,
        Err(error) => {
            if let Some(readiness) = readiness {
                readiness.failed(&error);
            }
            eprintln!("{error}");
            std::process::exit(1);
        }
    };
    let handler = Arc::new(filesystem::Null::new());
    let session =
        Session::start(channel, &mountpoint, handler, &SessionOptions::default()).unwrap();
    let _watch = stop_on_signals(session.stopper()).unwrap();
    match readiness {
        Some(readiness) => readiness.ready().unwrap(),
        None => println!("ready"),
    }
    session.wait();
    fs::write(mountpoint.with_extension("ended"), "").unwrap();
    std::process::exit(0);
}

struct Mount {
    directory: tempfile::TempDir,
    server: Option<Child>,
}

impl Mount {
    fn path(&self) -> PathBuf {
        self.directory.path().canonicalize().unwrap().join("mnt")
    }

    fn ended(&self) -> PathBuf {
        self.path().with_extension("ended")
    }

    fn command(&self, user: Option<u32>) -> Command {
        let program = self.directory.path().join("server");
        let mut command = match user {
            None => Command::new(&program),
            Some(uid) => {
                let mut command = Command::new("setpriv");
                command.args([format!("--reuid={uid}"), format!("--regid={uid}")]);
                command.arg("--clear-groups").arg(&program);
                command
            }
        };
        command.args(["--exact", "serve", "--nocapture"]).env(SERVE, self.path());
        command
    }

    /// A directory to mount on, owned by `user`, beside a copy of this program it may run.
    fn prepare(user: Option<u32>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        fs::copy(std::env::current_exe().unwrap(), directory.path().join("server")).unwrap();
        let mount = Self { directory, server: None };
        fs::create_dir(mount.path()).unwrap();
        std::os::unix::fs::chown(mount.path(), user, user).unwrap();
        mount
    }

    fn foreground(user: Option<u32>) -> Self {
        let mut mount = Self::prepare(user);
        let mut child = mount.command(user).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        let mut stdout = child.stdout.take().unwrap();
        let mut buffer = [0u8; 256];
        while !said.contains("ready") {
            let length = stdout.read(&mut buffer).unwrap();
            assert_ne!(length, 0, "the server ended: {said}");
            said.push_str(&String::from_utf8_lossy(&buffer[..length]));
        }
        mount.server = Some(child);
        mount
    }

    /// The server must end by itself, with exit code 0.
    fn finish(mut self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !self.ended().exists() {
            assert!(Instant::now() < deadline, "the server does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        if let Some(mut server) = self.server.take() {
            assert!(server.wait().unwrap().success());
        }
        assert_eq!(mounts::at(&self.path()).unwrap(), None);
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
fn can_mount() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root || !Path::new("/dev/fuse").exists() {
        println!("skipped: needs root and /dev/fuse");
        return false;
    }
    true
}

/// The users a test mounts as: where udev has not opened /dev/fuse, root alone.
fn users() -> Vec<Option<u32>> {
    if fs::metadata("/dev/fuse").unwrap().mode() & 0o006 == 0o006 {
        return vec![None, Some(USER)];
    }
    println!("skipped for ordinary users: /dev/fuse is closed to them (chmod 0666 /dev/fuse)");
    vec![None]
}

fn use_it(top: &Path) {
    fs::create_dir(top.join("dir")).unwrap();
    fs::write(top.join("dir/file"), b"hello").unwrap();
    let big: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    fs::write(top.join("big"), &big).unwrap();
    assert_eq!(fs::read(top.join("dir/file")).unwrap(), b"hello");
    assert_eq!(fs::read(top.join("big")).unwrap(), big);
    for i in 0..1000 {
        File::create(top.join(format!("dir/{i}"))).unwrap();
    }
    assert_eq!(fs::read_dir(top.join("dir")).unwrap().count(), 1001);
    assert!(fs::remove_dir(top.join("dir")).is_err());
    fs::remove_file(top.join("dir/file")).unwrap();
    assert!(!top.join("dir/file").exists());
}

#[test]
fn root_mounts_and_unmounts() {
    if !can_mount() {
        return;
    }
    let mount = Mount::foreground(None);
    use_it(&mount.path());
    let entry = mounts::at(&mount.path()).unwrap().unwrap();
    assert!(entry.is_ours());
    assert_eq!(entry.source, Path::new(SOURCE));
    disconnect(&mount.path(), false).unwrap();
    mount.finish();
}

#[test]
fn a_signal_unmounts() {
    if !can_mount() {
        return;
    }
    for user in users() {
        let mount = Mount::foreground(user);
        let entry = mounts::at(&mount.path()).unwrap().unwrap();
        assert!(entry.is_ours());
        assert_eq!(entry.source, Path::new(SOURCE));
        let server = rustix::process::Pid::from_child(mount.server.as_ref().unwrap());
        rustix::process::kill_process(server, rustix::process::Signal::TERM).unwrap();
        mount.finish();
    }
}

#[test]
fn a_signal_ends_a_busy_mount() {
    if !can_mount() {
        return;
    }
    let mount = Mount::foreground(None);
    let mut file = File::create(mount.path().join("open")).unwrap();
    file.write_all(b"kept open").unwrap();
    assert!(disconnect(&mount.path(), false).unwrap_err().is_busy());
    let server = rustix::process::Pid::from_child(mount.server.as_ref().unwrap());
    rustix::process::kill_process(server, rustix::process::Signal::INT).unwrap();
    mount.finish();
    assert!(file.write_all(b"gone").is_err());
}

#[test]
fn waiting_requests_do_not_keep_others_out() {
    if !can_mount() {
        return;
    }
    let mount = Mount::foreground(None);
    let waiting: Vec<_> = (0..16)
        .map(|i| {
            let file = File::create(mount.path().join(format!("f{i}"))).unwrap();
            std::thread::spawn(move || file.sync_all().unwrap())
        })
        .collect();
    // More syncs wait than there are readers; this must be answered meanwhile.
    assert_eq!(fs::metadata(mount.path().join("f0")).unwrap().size(), 0);
    for thread in waiting {
        thread.join().unwrap();
    }
    use_it(&mount.path());
    disconnect(&mount.path(), false).unwrap();
    mount.finish();
}

#[test]
fn the_background_process_is_ready_when_the_command_returns() {
    if !can_mount() {
        return;
    }
    for user in users() {
        let mount = Mount::prepare(user);
        let status = mount.command(user).env(BACKGROUND, "1").status().unwrap();
        assert!(status.success());
        assert!(mounts::at(&mount.path()).unwrap().is_some());
        if user.is_none() {
            use_it(&mount.path());
        }
        disconnect(&mount.path(), false).unwrap();
        mount.finish();
    }
}

#[test]
fn the_command_says_why_the_background_process_could_not_mount() {
    if !can_mount() {
        return;
    }
    let mount = Mount::prepare(None);
    fs::remove_dir(mount.path()).unwrap();
    let output = mount.command(None).env(BACKGROUND, "1").output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("No such file or directory"), "{said}");
}
