//! Several wait for the same and for other files, whose content changes between the steps of the log that is made for them: after a crash each
//! part of a file is as it was when the fsync began, or as it became later.

use std::sync::Barrier;

use super::raced::{Dice, each_seed};
use super::*;
use crate::fs::{Allocate, Change};

/// Files are looked at in units of so many bytes.
const UNIT: u64 = 512;
const UNITS: u64 = 600;
const FILES: usize = 4;
const STEPS: [&str; 5] = [
    "a log takes one that waits",
    "a log takes one more",
    "a log has its inodes",
    "a log has what changed",
    "a log can be written",
];

/// What a file has: a byte for each unit.
type Content = Vec<u8>;

struct Raced {
    dice: Dice,
    files: Vec<Node>,
    /// What each of them had, from the last commit on.
    moments: Vec<Vec<Content>>,
    /// What was made durable by others while a commit dropped its layers, and at which moment they began.
    beside: Vec<(usize, usize, std::thread::JoinHandle<()>)>,
    byte: u8,
    told: Vec<String>,
}

impl Raced {
    /// Something is done to one of the files.
    fn act(&mut self, fs: &Filesystem) {
        let file = self.dice.below(FILES);
        let node = self.files[file];
        let mut content = self.moments[file].last().unwrap().clone();
        let end = content.len() as u64;
        let at = self.dice.below(UNITS as usize) as u64;
        // Small files and small changes, too.
        let most = [3, 3, 20, 300][self.dice.below(4)];
        let len = 1 + self.dice.below(most) as u64;
        let at = if self.dice.below(4) == 0 { 0 } else { at };
        let range = at as usize..(at + len) as usize;
        self.byte = self.byte % 250 + 1;
        let byte = self.byte;
        let what = self.dice.below(12);
        let done = match what {
            0..7 => {
                content.resize(content.len().max(range.end), 0);
                content[range].fill(byte);
                fs.write(node, at * UNIT, &vec![byte; (len * UNIT) as usize]).map(drop)
            }
            7 => {
                content.resize(at as usize, 0);
                let size = Change { size: Some(at * UNIT), ..Change::default() };
                fs.set_attributes(node, &size).map(drop)
            }
            8 => {
                let keep_size = self.dice.below(2) == 0;
                if !keep_size {
                    content.resize(content.len().max(range.end), 0);
                }
                fs.fallocate(node, Allocate::Reserve { keep_size }, at * UNIT, len * UNIT)
            }
            9..11 => {
                let range = range.start.min(end as usize)..range.end.min(end as usize);
                content[range].fill(0);
                let mode = match what {
                    9 => Allocate::PunchHole,
                    _ => Allocate::ZeroRange { keep_size: true },
                };
                fs.fallocate(node, mode, at * UNIT, len * UNIT)
            }
            _ => {
                let value = [byte; 40];
                fs.set_xattr(node, b"user.x", &value, Default::default())
            }
        };
        done.unwrap();
        self.told.push(format!("{what} of {}: {at} {len} {byte}", node.ino));
        self.moments[file].push(content);
    }

    fn check(&self, found: &Filesystem, since: [Option<usize>; FILES]) -> Result<(), String> {
        for ((node, moments), since) in self.files.iter().zip(&self.moments).zip(since) {
            let size = match (found.attributes(*node), since) {
                (Ok(attributes), _) => attributes.size,
                // Nobody has asked for it.
                (Err(_), None) => continue,
                (Err(error), _) => return Err(format!("{node:?} {error}")),
            };
            let mut have = vec![0; size as usize];
            let len = found.read(*node, 0, &mut have).map_err(|error| error.to_string())?;
            let may = &moments[since.unwrap_or(0)..];
            if len as u64 != size || !may.iter().any(|it| it.len() as u64 * UNIT == size) {
                return Err(format!("{} has {size} bytes, {len} of them", node.ino));
            }
            for (unit, bytes) in have.chunks(UNIT as usize).enumerate() {
                // Where a file was shorter meanwhile, it had nothing.
                let byte = bytes[0];
                let was = may.iter().any(|it| it.get(unit).is_some_and(|it| *it == byte));
                if !was || bytes.iter().any(|it| *it != byte) {
                    return Err(format!("{} has {byte} in unit {unit}", node.ino));
                }
            }
        }
        Ok(())
    }
}

/// A commit, while which files change and are made durable; since which moment what they have may be found.
fn commit(all: &Disturbed, raced: &Arc<Mutex<Raced>>) -> [Option<usize>; FILES] {
    let frozen = Arc::new(Mutex::new([0; FILES]));
    let (of_step, at_freeze) = (raced.clone(), frozen.clone());
    all.at(settling::STEP, move |fs| {
        let mut raced = of_step.lock();
        (0..raced.dice.below(4)).for_each(|_| raced.act(fs));
        let file = raced.dice.below(FILES);
        let (node, moment) = (raced.files[file], raced.moments[file].len() - 1);
        raced.told.push(format!("  sync {} beside", node.ino));
        drop(raced);
        let thread = settling::sync_beside(fs, node);
        let mut raced = of_step.lock();
        raced.beside.push((file, moment, thread));
        (0..raced.dice.below(4)).for_each(|_| raced.act(fs));
    });
    let of_step = raced.clone();
    all.at("prepare", move |fs| {
        let mut raced = of_step.lock();
        *at_freeze.lock() = std::array::from_fn(|file| raced.moments[file].len() - 1);
        (0..raced.dice.below(4)).for_each(|_| raced.act(fs));
    });
    all.fs().commit().unwrap();
    let beside = std::mem::take(&mut raced.lock().beside);
    let mut since = *frozen.lock();
    for (file, moment, thread) in beside {
        thread.join().unwrap();
        since[file] = since[file].max(moment);
    }
    all.next.lock().clear();
    let mut raced = raced.lock();
    raced.told.push("commit".into());
    since.map(Some)
}

fn run(seed: u64) -> Result<[u64; 3], String> {
    let all = Disturbed::new();
    let fs = all.fs();
    let mut dice = Dice::new(seed);
    let files: Vec<Node> =
        (0..FILES).map(|number| touch(fs, Node::ROOT, &format!("file{number}"))).collect();
    let moments = vec![vec![Content::new()]; FILES];
    let barrier = Barrier::new(3);
    let mut since = [None; FILES];
    if dice.below(3) > 0 {
        fs.commit().unwrap();
        since = [Some(0); FILES];
    }
    let raced =
        Raced { dice, files: files.clone(), moments, beside: vec![], byte: 0, told: vec![] };
    let raced = Arc::new(Mutex::new(raced));
    for _ in 0..12 {
        let count = raced.lock().dice.below(6);
        (0..count).for_each(|_| raced.lock().act(fs));
        if raced.lock().dice.below(4) == 0 {
            since = commit(&all, &raced);
        }
        let many = raced.lock().dice.below(8);
        for _ in 0..many {
            let step = STEPS[raced.lock().dice.below(STEPS.len())];
            let raced = raced.clone();
            all.at(step, move |fs| {
                let mut raced = raced.lock();
                raced.told.push(format!("  at: {step}"));
                for _ in 0..=raced.dice.below(3) {
                    raced.act(fs);
                }
            });
        }
        let wanted: Vec<usize> = (0..3).map(|_| raced.lock().dice.below(FILES)).collect();
        let before = fs.info().generation;
        let began: Vec<(usize, usize)> = std::thread::scope(|scope| {
            let sync = |file: usize| {
                let moment = {
                    let mut raced = raced.lock();
                    raced.told.push(format!("sync {}", files[file].ino));
                    raced.moments[file].len() - 1
                };
                barrier.wait();
                fs.sync(files[file]).unwrap();
                (file, moment)
            };
            let threads: Vec<_> =
                wanted.iter().map(|file| scope.spawn(move || sync(*file))).collect();
            threads.into_iter().map(|it| it.join().unwrap()).collect()
        });
        all.next.lock().clear();
        for (file, moment) in began {
            since[file] = since[file].max(Some(moment));
        }
        let raced = raced.lock();
        let found = all.replayed();
        raced.check(&found, since).map_err(|error| {
            let now = fs.info().generation;
            format!("{error} ({before} to {now}, since {since:?})\n{}", raced.told.join("\n"))
        })?;
    }
    let stats = fs.stats();
    Ok([stats.fsyncs, stats.log_writes, stats.log_syncs])
}

#[test]
fn content_changes_while_several_wait() {
    each_seed(run);
}
