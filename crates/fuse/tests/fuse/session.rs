//! The session with the null filesystem: mounts as root and as an ordinary user, requests, and each
//! way to end.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use buttress_fuse::protocol::connect::disconnect;
use buttress_fuse::protocol::mounts;
use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::filesystem::HELD;
use crate::server::{BACKGROUND, Kind, Mount, SOURCE, SPAWNING, can_mount, spawn, users};

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
    let mount = Mount::foreground(Kind::Null, None, "");
    use_it(&mount.path());
    let entry = mounts::at(&mount.path()).unwrap().unwrap();
    assert!(entry.is_ours());
    assert_eq!(entry.source, Path::new(SOURCE));
    mount.end();
}

#[test]
fn a_signal_unmounts() {
    if !can_mount() {
        return;
    }
    for user in users() {
        let mount = Mount::foreground(Kind::Null, user, "");
        let entry = mounts::at(&mount.path()).unwrap().unwrap();
        assert!(entry.is_ours());
        assert_eq!(entry.source, Path::new(SOURCE));
        let server = rustix::process::Pid::from_child(mount.server.as_ref().unwrap());
        rustix::process::kill_process(server, Signal::TERM).unwrap();
        mount.finish();
    }
}

#[test]
fn a_signal_ends_a_busy_mount() {
    if !can_mount() {
        return;
    }
    let mount = Mount::foreground(Kind::Null, None, "");
    let mut file = File::create(mount.path().join("open")).unwrap();
    file.write_all(b"kept open").unwrap();
    assert!(disconnect(&mount.path(), false).unwrap_err().is_busy());
    let server = rustix::process::Pid::from_child(mount.server.as_ref().unwrap());
    rustix::process::kill_process(server, Signal::INT).unwrap();
    mount.finish();
    assert!(file.write_all(b"gone").is_err());
}

#[test]
fn waiting_requests_do_not_keep_others_out() {
    if !can_mount() {
        return;
    }
    let mount = Mount::foreground(Kind::Null, None, "");
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
    mount.end();
}

/// Requests that come while all threads of a processor wait, and one more is being started, are answered before those are done.
#[test]
fn who_comes_while_a_thread_is_started_is_not_kept_waiting() {
    if !can_mount() {
        return;
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    let stay_on = |processor: usize| {
        let mut one = CpuSet::new();
        one.set(processor);
        let _it_is_only_less_likely_then = sched_setaffinity(None, &one);
    };
    for _ in 0..10 {
        // Threads stay once they are there.
        let mount = Mount::foreground(Kind::Null, None, "");
        let top = mount.path();
        File::create(top.join(HELD)).unwrap();
        let asked: Vec<AtomicUsize> = (0..processors * 2).map(|_| AtomicUsize::new(0)).collect();
        let (over, waiting) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for (number, asked) in asked.iter().enumerate() {
                let (over, top) = (&over, &top);
                scope.spawn(move || {
                    stay_on(number % processors);
                    while !over.load(Ordering::SeqCst) {
                        assert!(!top.join(format!("absent{number}")).exists());
                        asked.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            // Until all have asked some more, or those that wait have given up.
            let more = |count: usize| {
                let before: Vec<_> = asked.iter().map(|one| one.load(Ordering::SeqCst)).collect();
                let all = || {
                    asked
                        .iter()
                        .zip(&before)
                        .all(|(one, before)| one.load(Ordering::SeqCst) > before + count)
                };
                while !all() && (count == 0 || waiting.load(Ordering::SeqCst) > 0) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            };
            let files: Vec<_> = (0..processors * 5)
                .map(|number| File::create(top.join(format!("file{number}"))).unwrap())
                .collect();
            let syncs: Vec<_> = files
                .into_iter()
                .enumerate()
                .map(|(number, file)| {
                    waiting.fetch_add(1, Ordering::SeqCst);
                    let waiting = &waiting;
                    scope.spawn(move || {
                        stay_on(number % processors);
                        let done = file.sync_all();
                        waiting.fetch_sub(1, Ordering::SeqCst);
                        done
                    })
                })
                .collect();
            more(20);
            over.store(true, Ordering::SeqCst);
            fs::remove_file(top.join(HELD)).unwrap();
            for sync in syncs {
                sync.join().unwrap().expect("somebody was kept waiting by those that wait");
            }
        });
        mount.end();
    }
}

#[test]
fn the_background_process_is_ready_when_the_command_returns() {
    if !can_mount() {
        return;
    }
    for user in users() {
        let mount = Mount::prepare(Kind::Null, user, "");
        let status = spawn(mount.command(user).env(BACKGROUND, "1")).wait().unwrap();
        assert!(status.success());
        assert!(mounts::at(&mount.path()).unwrap().is_some());
        if user.is_none() {
            use_it(&mount.path());
        }
        mount.end();
    }
}

#[test]
fn the_command_says_why_the_background_process_could_not_mount() {
    if !can_mount() {
        return;
    }
    let mount = Mount::prepare(Kind::Null, None, "");
    fs::remove_dir(mount.path()).unwrap();
    let mut command = mount.command(None);
    command.env(BACKGROUND, "1").stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = spawn(&mut command).wait_with_output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("No such file or directory"), "{said}");
}

/// Nobody hears that the mount is ready: the command has been killed. Then there is none.
#[test]
fn a_mount_that_nobody_waits_for_is_taken_off() {
    if !can_mount() {
        return;
    }
    for _ in 0..50 {
        let mut mount = Mount::prepare(Kind::Model, None, "");
        let mut command = mount.command(None);
        command.env(BACKGROUND, "1").env("BUTTRESS_MOUNT_DAEMON", "1").stdout(Stdio::piped());
        let mut child = spawn(&mut command);
        let pid = rustix::process::Pid::from_child(&child);
        let mut command = child.stdout.take().unwrap();
        // What the harness says before it runs the server, which then stands still.
        command.read_exact(&mut [0; 16]).unwrap();
        rustix::process::kill_process(pid, Signal::STOP).unwrap();
        let stat = format!("/proc/{}/stat", child.id());
        while !fs::read_to_string(&stat).unwrap().contains(") T ") {
            std::thread::sleep(Duration::from_millis(1));
        }
        let said = rustix::io::ioctl_fionread(&command).unwrap();
        // Nor has a child that another test has just forked.
        let nobody_starts = SPAWNING.write();
        drop(command);
        drop(nobody_starts);
        rustix::process::kill_process(pid, Signal::CONT).unwrap();
        if said == 0 {
            assert!(!child.wait().unwrap().success());
            assert_eq!(mounts::at(&mount.path()).unwrap(), None);
            return;
        }
        // It was ready before.
        mount.server = Some(child);
        mount.end();
    }
    println!("skipped: it was always faster");
}
