//! An hour, or as long as one likes, of mixed load from sixteen processes on a mount with little memory.
//!
//! `load --buttress PROGRAM [--seconds N] [--memory SIZE] [--size SIZE] [--seed N] [--image FILE]`. Afterwards `btrfs check`, our checker
//! and the kernel judge the image, and the mount must never have had more in memory than it may. Needs root, dbench and tar.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use buttress_fuse::MountOptions;
use buttress_testkit::load::{Kind, MIX, Worker};
use buttress_testkit::oracle::{KernelMount, check};

struct Arguments {
    command: PathBuf,
    seconds: u64,
    memory: String,
    size: String,
    seed: u64,
    image: PathBuf,
    worker: Option<(Kind, u32, PathBuf)>,
}

fn arguments() -> Option<Arguments> {
    let mut found = Arguments {
        command: PathBuf::from("buttress"),
        seconds: 60,
        memory: "128M".into(),
        size: "8G".into(),
        seed: 1,
        image: std::env::temp_dir().join("load.img"),
        worker: None,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next()?;
        match word.as_str() {
            "--buttress" => found.command = std::fs::canonicalize(value).ok()?,
            "--seconds" => found.seconds = value.parse().ok()?,
            "--memory" => found.memory = value,
            "--size" => found.size = value,
            "--seed" => found.seed = value.parse().ok()?,
            "--image" => found.image = value.into(),
            "--worker" => {
                let mut parts = value.splitn(3, ':');
                let kind = Kind::of(parts.next()?)?;
                let number = parts.next()?.parse().ok()?;
                found.worker = Some((kind, number, parts.next()?.into()));
            }
            _ => return None,
        }
    }
    Some(found)
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!(
            "load --buttress PROGRAM [--seconds N] [--memory SIZE] [--size SIZE] [--seed N] [--image FILE]"
        );
        return ExitCode::from(2);
    };
    if let Some((kind, number, mount)) = &arguments.worker {
        return work(&arguments, *kind, *number, mount);
    }
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            println!("FAILED: {text}");
            ExitCode::FAILURE
        }
    }
}

fn work(arguments: &Arguments, kind: Kind, number: u32, mount: &Path) -> ExitCode {
    let time = Duration::from_secs(arguments.seconds);
    let mut worker = Worker::new(mount, number, &arguments.command, time, arguments.seed);
    let result = worker.run(kind);
    println!("{} {number}: {} done", kind.name(), worker.done);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            println!("{} {number}: FAULT: {fault}", kind.name());
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let Arguments { command, image, seconds, seed, memory, .. } = arguments;
    println!("seed {seed}, {seconds} s, memory={memory}");
    let mkfs = ["mkfs", "-q", "-f", "-O", "^block-group-tree", "--size", &arguments.size];
    done(Command::new(command).args(mkfs).arg(image))?;
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut mount = Command::new(command);
    mount.args(["mount", "-f", "-o", &format!("memory={memory},commit=5")]);
    let mut daemon = mount.arg(image).arg(dir.path()).spawn().map_err(|error| error.to_string())?;
    let outcome = under_load(arguments, &mut daemon, dir.path());
    let unmounted = done(Command::new(command).arg("umount").arg(dir.path()));
    let ended = daemon.wait().map_err(|error| error.to_string())?;
    let peak = outcome?;
    unmounted?;
    if !ended.success() {
        return Err(format!("the mount ended with {ended}"));
    }
    println!("peak memory of the mount: {:.1} MiB", peak as f64 / f64::from(1 << 20));
    judge(image)?;
    let mut options = MountOptions::default();
    options.apply(&format!("memory={memory}")).map_err(|error| error.to_string())?;
    match options.memory {
        Some(limit) if peak <= limit => Ok(()),
        _ => Err(format!("more memory than {memory}")),
    }
}

/// Starts the processes and watches the mount's memory until they end; gives its peak in bytes.
fn under_load(arguments: &Arguments, daemon: &mut Child, mount: &Path) -> Result<u64, String> {
    wait_for_mount(daemon, mount)?;
    let mut workers = Vec::new();
    for (kind, count) in MIX {
        for _ in 0..count {
            workers.push(start(arguments, kind, workers.len(), mount)?);
        }
    }
    let begin = Instant::now();
    let (mut failed, mut next) = (0, begin);
    while !workers.is_empty() {
        sleep(Duration::from_secs(1));
        workers.retain_mut(|worker| match worker.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) if status.success() => false,
            _ => {
                failed += 1;
                false
            }
        });
        if Instant::now() >= next {
            next += Duration::from_secs(60);
            let memory = status(daemon.id(), "VmRSS:").unwrap_or(0) >> 20;
            println!("{:5} s: {memory} MiB, {} at work", begin.elapsed().as_secs(), workers.len());
        }
    }
    let peak = status(daemon.id(), "VmHWM:").ok_or("the mount is gone")?;
    if failed > 0 { Err(format!("{failed} processes met a fault")) } else { Ok(peak) }
}

fn start(arguments: &Arguments, kind: Kind, number: usize, mount: &Path) -> Result<Child, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    let worker = format!("{}:{number}:{}", kind.name(), mount.display());
    command.args(["--seconds", &arguments.seconds.to_string(), "--worker", &worker]);
    command.args(["--seed", &arguments.seed.to_string(), "--buttress"]).arg(&arguments.command);
    command.stdin(Stdio::null()).spawn().map_err(|error| error.to_string())
}

fn wait_for_mount(daemon: &mut Child, mount: &Path) -> Result<(), String> {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
    let outside = mount.parent().and_then(device);
    for _ in 0..600 {
        if device(mount).is_some_and(|found| Some(found) != outside) {
            return Ok(());
        }
        if let Ok(Some(status)) = daemon.try_wait() {
            return Err(format!("no mount: {status}"));
        }
        sleep(Duration::from_millis(100));
    }
    Err("no mount after a minute".into())
}

/// A line of `/proc/PID/status`, in bytes.
fn status(pid: u32, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

fn done(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

fn judge(image: &Path) -> Result<(), String> {
    check(image, true).map_err(|error| error.to_string())?;
    println!("btrfs check --check-data-csum and our checker: clean");
    let mount = KernelMount::new(image, "").map_err(|error| error.to_string())?;
    // Not straight to /dev/null: tar would not read the files.
    let read = "tar -C \"$1\" -cf - . | cat > /dev/null";
    done(Command::new("sh").args(["-ec", read, "tar"]).arg(mount.path()))?;
    mount.finish().map_err(|error| error.to_string())?;
    check(image, false).map_err(|error| error.to_string())?;
    println!("the kernel mounts it, reads all of it, and has nothing to say");
    Ok(())
}
