//! How the threads of a mount are scheduled: those that answer give way to who asks while that is quick, and to nobody else.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::server::{Kind, Mount, PATIENCE, can_mount};

/// Where proc(5) has the policy of a thread in `stat`, counted behind its name.
const POLICY: usize = 38;
/// `SCHED_IDLE`.
const IDLE: &str = "5";
/// `CAP_SYS_NICE`.
const NICE: u64 = 1 << 23;

/// Names of the threads of a process that have this policy.
fn threads(process: u32, policy: impl Fn(&str) -> bool) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    // A thread may end meanwhile.
    let stats =
        tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    let found = stats.filter_map(|stat| {
        let (before, after) = stat.rsplit_once(") ")?;
        let name = before.split_once('(')?.1.to_owned();
        after.split(' ').nth(POLICY).is_some_and(&policy).then_some(name)
    });
    found.collect()
}

fn idle(process: u32) -> Vec<String> {
    threads(process, |policy| policy == IDLE)
}

/// Whether it can be: what is missing is said.
fn is_possible(process: u32) -> bool {
    let rights = fs::read_to_string("/proc/self/status").unwrap();
    let rights = rights.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let own = threads(std::process::id(), |policy| policy == "0");
    let missing = if own.is_empty() {
        "usual policy of this test"
    } else if !threads(process, |_| true).iter().any(|name| name == "buttress-ring") {
        "io_uring"
    } else if !Path::new("/proc/self/schedstat").exists() {
        "schedstat"
    } else if u64::from_str_radix(rights.trim(), 16).unwrap() & NICE == 0 {
        "CAP_SYS_NICE"
    } else {
        return true;
    };
    println!("skipped: no {missing}");
    false
}

/// Asks for what is not there until `done`.
fn ask_until(top: &Path, what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        for number in 0..200 {
            assert!(top.join(format!("none{number}")).symlink_metadata().is_err());
        }
        assert!(Instant::now() < deadline, "{what}");
    }
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Keeps all processors busy until it is dropped.
struct Busy(std::sync::Arc<AtomicBool>);

impl Busy {
    fn begin() -> Busy {
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let count = std::thread::available_parallelism().unwrap().get() * 3;
        for _ in 0..count {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Busy(stop)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does something with a mount, its top and the process that serves it, after which all threads are as usual.
fn on_a_mount(options: &'static str, work: impl FnOnce(&Path, u32)) {
    if !can_mount() {
        return;
    }
    let mount = Mount::foreground(Kind::Engine, None, options);
    let process = mount.server.as_ref().unwrap().id();
    if is_possible(process) {
        work(&mount.path(), process);
        wait_until("when it is quiet, all are as usual", || idle(process).is_empty());
    }
    mount.end();
}

#[test]
fn who_answers_gives_way_to_who_asks_and_not_to_others() {
    on_a_mount("", |top, process| {
        // Other tests may be busy here, too: for some time.
        ask_until(top, "nobody gives way", || !idle(process).is_empty());
        assert!(idle(process).iter().all(|name| name == "buttress-ring"));
        let busy = Busy::begin();
        ask_until(top, "others are in the way", || idle(process).is_empty());
        drop(busy);
        ask_until(top, "nobody gives way again", || !idle(process).is_empty());
    });
}

/// What such a thread starts, as for a commit, is not left to wait for everybody.
#[test]
fn what_it_starts_is_as_usual() {
    on_a_mount("memory=32M", |top, process| {
        for round in 0..10 {
            for number in 0..1000 {
                File::create(top.join(format!("{round} {number}"))).unwrap();
            }
            let mut file = File::create(top.join(format!("{round}"))).unwrap();
            file.write_all(&vec![round; 1 << 20]).unwrap();
            file.sync_all().unwrap();
            ask_until(top, "nobody gives way", || !idle(process).is_empty());
            wait_until("others stay behind", || {
                idle(process).iter().all(|name| name == "buttress-ring")
            });
        }
    });
}
