//! Several sequences at the same time on one filesystem, each with a directory or a subvolume and a model of its own, while
//! another thread commits, makes snapshots of what the others are at, reads them and deletes them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress::{FileKind, Filesystem, New, Node, Owner};

use super::generate::{Generator, Profile};
use super::kernel;
use super::rng::Rng;
use super::run::{Config, Counts, Failure, Result, Runner, engine, fail};
use super::shrink::message;

/// Runs `count` operations in each of `threads` threads, and compares everything at the end.
pub fn run(config: &Config, seed: u64, threads: u64, count: u64) -> Result<Counts> {
    let config = Config { background: true, ..*config };
    let main = Runner::new(&config)?;
    let fs = main.fs().clone();
    let device = main.device().cloned();
    let done = Arc::new(AtomicBool::new(false));
    let mut runners = Vec::new();
    for number in 0..threads {
        let root = root_of(&fs, number)?;
        runners.push(Runner::on(fs.clone(), root, &config, main.clock())?);
    }
    let ids: Vec<u64> = runners.iter().map(|runner| runner.model().root.subvolume).collect();
    let roots: Vec<Node> = runners.iter().map(|runner| runner.model().root).collect();
    let snapper = {
        let (fs, done) = (fs.clone(), done.clone());
        std::thread::spawn(move || guarded(|| snap(&fs, &ids, seed, &done)))
    };
    let handles: Vec<_> = runners
        .into_iter()
        .enumerate()
        .map(|(number, runner)| {
            let seed = seed.wrapping_mul(1000) + number as u64;
            std::thread::spawn(move || guarded(|| work(runner, seed, count)))
        })
        .collect();
    let finished: Vec<Result<Runner>> = handles.into_iter().map(joined).collect();
    done.store(true, Ordering::SeqCst);
    joined(snapper)?;
    let mut runners = finished.into_iter().collect::<Result<Vec<_>>>()?;
    let mut counts = Counts::default();
    for runner in &mut runners {
        runner.compare()?;
        counts = counts.and(runner.counts);
    }
    let models: Vec<_> = runners.iter().map(|runner| runner.model().clone()).collect();
    drop(runners);
    drop(main);
    engine("close", fs.close())?;
    let Some(device) = device else { return Ok(counts) };
    kernel::check(&device)?;
    counts.checked += 1;
    again(&device, &models, &roots)?;
    Ok(counts)
}

/// Opens the image again, and compares all models.
pub(super) fn again(
    device: &Arc<buttress_device::MemoryDevice>,
    models: &[crate::model::Model],
    roots: &[Node],
) -> Result<()> {
    let fs = Filesystem::open_device(device.clone(), buttress::Options::read_only());
    let fs = engine("open", fs)?;
    for (model, root) in models.iter().zip(roots) {
        let mut model = model.clone();
        model.close();
        model.root = *root;
        super::compare::all(&fs, &model)?;
    }
    Ok(())
}

fn root_of(fs: &Filesystem, number: u64) -> Result<Node> {
    let name = format!("thread{number}");
    if number.is_multiple_of(2) {
        let made = fs.create(Node::ROOT, name.as_bytes(), &New::directory(0o755));
        return engine("mkdir", made).map(|made| made.node);
    }
    let id = fs.create_subvolume(Node::ROOT, name.as_bytes(), Owner::default());
    engine("subvolume", id).map(Node::top)
}

pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let outcome = catch_unwind(AssertUnwindSafe(work));
    outcome.unwrap_or_else(|panic| fail(format!("panic: {}", message(&*panic))))
}

pub(super) fn joined<T>(handle: std::thread::JoinHandle<Result<T>>) -> Result<T> {
    handle.join().unwrap_or_else(|panic| Err(Failure(format!("panic: {}", message(&*panic)))))
}

fn work(mut runner: Runner, seed: u64, count: u64) -> Result<Runner> {
    let profile = Profile {
        closes: false,
        files_max: 150,
        bytes_max: 6 << 20,
        volumes_max: 4,
        empty_every: 400,
        trim_every: 70,
        ..Profile::default()
    };
    let mut generator = Generator::new(seed, profile);
    for _ in 0..count {
        let op = generator.next(runner.model());
        let done = runner.step(&op);
        done.map_err(|Failure(why)| Failure(format!("thread with seed {seed}: {why}")))?;
    }
    Ok(runner)
}

/// Commits, makes snapshots of what others change, reads and deletes them, until `done`.
fn snap(fs: &Filesystem, ids: &[u64], seed: u64, done: &AtomicBool) -> Result<()> {
    let mut rng = Rng::new(seed);
    let dir = engine("mkdir", fs.create(Node::ROOT, b"snapshots", &New::directory(0o755)))?.node;
    let mut names: Vec<String> = Vec::new();
    let mut made = 0;
    while !done.load(Ordering::SeqCst) {
        engine("commit", fs.commit())?;
        if names.len() < 4 {
            made += 1;
            let name = format!("s{made}");
            let id = fs.snapshot(*rng.pick(ids), dir, name.as_bytes(), rng.one_in(2));
            read_all(fs, Node::top(engine("snapshot", id)?))?;
            names.push(name);
        } else {
            let name = names.swap_remove(rng.below(names.len() as u64) as usize);
            engine("delete", fs.delete_subvolume(dir, name.as_bytes()))?;
        }
        if rng.one_in(6) {
            engine("clean", fs.clean())?;
        }
    }
    Ok(())
}

/// Reads whatever there is.
fn read_all(fs: &Filesystem, top: Node) -> Result<()> {
    let mut rest = vec![top];
    let mut buffer = vec![0; 64 << 10];
    while let Some(dir) = rest.pop() {
        let mut entries = Vec::new();
        let listed = fs.read_dir(dir, 0, &mut |entry| {
            entries.push(entry);
            true
        });
        engine("list", listed)?;
        for entry in entries.into_iter().filter(|entry| entry.node.subvolume == top.subvolume) {
            engine("attributes", fs.attributes(entry.node))?;
            match entry.kind {
                FileKind::Directory => rest.push(entry.node),
                FileKind::Regular => {
                    engine("read", fs.read(entry.node, 0, &mut buffer)).map(drop)?
                }
                _ => {}
            }
        }
    }
    Ok(())
}
