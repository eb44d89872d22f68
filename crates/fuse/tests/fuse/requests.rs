//! What the kernel asks a mount for, counted by its tracepoints: requests that say nothing new do not come.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::server::{Kind, Mount, can_mount, spawn};

const EVENT: &str = "events/fuse/fuse_request_send";

/// A trace buffer of its own in a tracefs of its own, for the requests to one mount.
struct Tracer {
    directory: tempfile::TempDir,
    instance: PathBuf,
}

impl Tracer {
    fn of(mount: &Path) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let mut attach = Command::new("mount");
        attach.args(["-t", "tracefs", "tracefs"]).arg(directory.path());
        if !spawn(&mut attach).wait().unwrap().success() {
            println!("skipped: needs tracefs");
            return None;
        }
        let name = format!("instances/buttress-test-{}", std::process::id());
        let instance = directory.path().join(name);
        let tracer = Self { directory, instance };
        if fs::create_dir(&tracer.instance).is_err() || !tracer.instance.join(EVENT).exists() {
            println!("skipped: needs the tracepoints of fuse");
            return None;
        }
        let device = fs::metadata(mount).unwrap().dev();
        let number =
            u64::from(rustix::fs::major(device)) << 20 | u64::from(rustix::fs::minor(device));
        tracer.set(&format!("{EVENT}/filter"), &format!("connection == {number}"));
        Some(tracer)
    }

    fn set(&self, file: &str, text: &str) {
        fs::write(self.instance.join(file), text).unwrap();
    }

    /// How often each kind of request comes during `work`.
    fn during(&self, work: impl FnOnce()) -> BTreeMap<String, usize> {
        self.set("trace", "");
        self.set(&format!("{EVENT}/enable"), "1");
        work();
        self.set(&format!("{EVENT}/enable"), "0");
        let text = fs::read_to_string(self.instance.join("trace")).unwrap();
        let mut counts = BTreeMap::new();
        for line in text.lines() {
            let name = line.split_once("(FUSE_").and_then(|(_, rest)| rest.split_once(')'));
            if let Some((name, _)) = name {
                *counts.entry(name.to_owned()).or_default() += 1;
            }
        }
        counts
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _made = fs::remove_dir(&self.instance);
        let mut detach = Command::new("umount");
        let _attached = spawn(detach.arg(self.directory.path())).wait();
    }
}

/// Nothing was opened on this mount before, so the kernel does not know yet that it need not ask for opens.
#[test]
fn what_is_made_is_neither_opened_nor_released() {
    if !can_mount() {
        return;
    }
    let mount = Mount::foreground(Kind::Model, None, "");
    let Some(tracer) = Tracer::of(&mount.path()) else { return mount.end() };
    let make = |number: u32| {
        let mut file = File::create(mount.path().join(format!("file{number}"))).unwrap();
        file.write_all(b"content").unwrap();
    };
    let first = tracer.during(|| make(0));
    assert_eq!(first.get("RELEASE"), None, "{first:?}");
    let others = tracer.during(|| (1..=10).for_each(make));
    for never in ["CREATE", "OPEN", "FLUSH", "RELEASE"] {
        assert_eq!(others.get(never), None, "{others:?}");
    }
    for each in ["LOOKUP", "MKNOD", "WRITE"] {
        assert_eq!(others.get(each), Some(&10), "{others:?}");
    }
    drop(tracer);
    mount.end();
}
