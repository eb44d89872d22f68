//! Names change at random, also between the steps of a log that is being made: what is found after a crash was there at some moment.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

pub(super) struct Dice(u64);

/// A number that the environment gives.
fn of_environment(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|it| it.parse().ok()).unwrap_or(or)
}

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        let mut dice = Dice((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..9).for_each(|_| _ = dice.below(2));
        dice
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % limit
    }
}

/// Where the names lead: by directory and name.
type Places = BTreeMap<(u64, String), Node>;

fn places(fs: &Filesystem, dirs: &[Node]) -> Places {
    let mut all = Places::new();
    for dir in dirs {
        for name in names(fs, *dir) {
            let to = fs.lookup(*dir, name.as_bytes()).unwrap().unwrap().node;
            all.insert((dir.ino, name), to);
        }
    }
    all
}

struct Raced {
    dice: Dice,
    dirs: Vec<Node>,
    held: Vec<Node>,
    moments: Vec<Places>,
    /// Bytes of the files that have been made, and those of which they are durable, under whichever name.
    sizes: BTreeMap<u64, u64>,
    durable: BTreeSet<u64>,
    /// What was made durable by others while a commit dropped its layers, and at which moment they began.
    beside: Vec<(Node, usize, std::thread::JoinHandle<()>)>,
    told: Vec<String>,
}

impl Raced {
    /// Some files, two of them with several names.
    fn new(fs: &Filesystem, seed: u64) -> Raced {
        let dirs = vec![Node::ROOT, mkdir(fs, Node::ROOT, "one"), mkdir(fs, Node::ROOT, "two")];
        for dir in &dirs {
            for name in NAMES.iter().take(4) {
                touch(fs, *dir, name);
            }
        }
        fs.link(fs.lookup(dirs[0], b"a").unwrap().unwrap().node, dirs[0], b"e").unwrap();
        fs.link(fs.lookup(dirs[0], b"b").unwrap().unwrap().node, dirs[1], b"e").unwrap();
        Raced {
            dice: Dice::new(seed),
            dirs,
            held: vec![],
            moments: vec![],
            sizes: BTreeMap::new(),
            durable: BTreeSet::new(),
            beside: vec![],
            told: vec![],
        }
    }

    fn name(&mut self) -> (Node, &'static str) {
        let dir = self.dirs[[0, 0, 0, 1, 2][self.dice.below(5)]];
        (dir, NAMES[self.dice.below(NAMES.len())])
    }

    /// A directory, or what one of the names leads to.
    fn node(&mut self, fs: &Filesystem) -> Node {
        let (dir, name) = self.name();
        match self.dice.below(6) {
            0 => dir,
            1 => self.held.last().copied().unwrap_or(dir),
            _ => fs.lookup(dir, name.as_bytes()).unwrap().map_or(dir, |it| it.node),
        }
    }

    /// Gives a new file its content.
    fn fill(&mut self, fs: &Filesystem, node: Node) {
        let size = [5, 5000, 70_000][self.dice.below(3)];
        fs.write(node, 0, &vec![node.ino as u8; size]).unwrap();
        self.sizes.insert(node.ino, size as u64);
    }

    /// Something is done; what is refused was nothing.
    fn act(&mut self, fs: &Filesystem) {
        let ((dir, name), (to, other)) = (self.name(), self.name());
        let to = if self.dice.below(4) > 0 { dir } else { to };
        let was = fs.lookup(dir, name.as_bytes()).unwrap().map(|it| it.node);
        let mode = match self.dice.below(24) {
            0 => Some(Rename::Exchange),
            1 => Some(Rename::Whiteout { uid: 0, gid: 0 }),
            2..10 => Some(Rename::Replace),
            10 => Some(Rename::NoReplace),
            _ => None,
        };
        let (word, done) = match (mode, self.dice.below(14)) {
            (Some(mode), _) => {
                let done = fs.rename(dir, name.as_bytes(), to, other.as_bytes(), mode);
                (format!("rename {mode:?}"), done)
            }
            (None, 0..6) => self.make(fs, dir, name),
            (None, 6..9) => {
                let held = was.filter(|_| self.dice.below(3) == 0);
                held.iter().for_each(|node| self.hold(fs, *node));
                let word = if held.is_some() { "unlink held" } else { "unlink" };
                (word.into(), fs.unlink(dir, name.as_bytes()).map(drop))
            }
            (None, it @ 9..12) => {
                let (word, node) =
                    if it < 11 { ("link", was) } else { ("link held", self.held.last().copied()) };
                let link = |node| fs.link(node, to, other.as_bytes()).map(drop);
                (word.into(), node.map_or(Ok(()), link))
            }
            (None, 12) => {
                let made = fs.create(dir, name.as_bytes(), &New::directory(0o755));
                ("mkdir".into(), made.map(drop))
            }
            (None, _) => ("rmdir".into(), fs.rmdir(dir, name.as_bytes()).map(drop)),
        };
        let (from, to, done) = (dir.ino, to.ino, done.is_ok());
        self.told.push(format!("{word} {from}/{name} ({to}/{other}) {done}"));
        self.moments.push(places(fs, &self.dirs));
    }

    /// A file, a symbolic link, or a file without a name that somebody holds.
    fn make(&mut self, fs: &Filesystem, dir: Node, name: &str) -> (String, crate::Result<()>) {
        match self.dice.below(4) {
            0 => (
                "symlink".into(),
                fs.create(dir, name.as_bytes(), &New::symlink("target")).map(drop),
            ),
            1 => {
                let node = fs.create_unnamed(dir, &New::file(0o644)).unwrap().node;
                self.fill(fs, node);
                self.hold(fs, node);
                (format!("create unnamed {}, beside", node.ino), Ok(()))
            }
            _ => {
                let made = fs.create(dir, name.as_bytes(), &New::file(0o644));
                ("create".into(), made.map(|made| self.fill(fs, made.node)))
            }
        }
    }

    fn hold(&mut self, fs: &Filesystem, node: Node) {
        fs.hold(node).unwrap();
        self.held.push(node);
    }

    /// What was done since the last commit, and what it came to.
    fn story(&self, error: &str, found: &Filesystem) -> String {
        let last = |told: &[String], what: &dyn Fn(&str) -> bool| {
            told.iter().rposition(|it| what(it) || it == "commit").unwrap_or(0)
        };
        let from = last(&self.told, &|it| it.starts_with("a commit"));
        let from = last(&self.told[..from], &|it| it.starts_with("sync"));
        let list = |it: &Places| -> Vec<_> {
            it.iter().map(|((dir, name), node)| (*dir, name.clone(), node.ino)).collect()
        };
        let (before, now) = (list(&self.moments[0]), list(&places(found, &self.dirs)));
        format!("{error}\n{}\n{before:?} to {now:?}", self.told[from..].join("\n"))
    }

    /// What is found after a crash, of a filesystem in which `synced` was made durable at a moment.
    fn check(&self, found: &Filesystem, synced: &[(Node, usize)]) -> Result<(), String> {
        let now = places(found, &self.dirs);
        let nodes: std::collections::BTreeSet<u64> =
            self.moments.iter().flat_map(|it| it.values().map(|node| node.ino)).collect();
        let since =
            |ino: u64| synced.iter().filter(|it| it.0.ino == ino).map(|it| it.1).max().unwrap_or(0);
        for dir in &self.dirs {
            for name in NAMES {
                let key = (dir.ino, name.to_owned());
                let led: Vec<Option<u64>> =
                    self.moments.iter().map(|it| it.get(&key).map(|it| it.ino)).collect();
                let is = now.get(&key).map(|it| it.ino);
                let may = |at: usize| {
                    at >= since(dir.ino)
                        && synced.iter().all(|(node, moment)| {
                            at >= *moment
                                || led[*moment] != Some(node.ino) && led[at] != Some(node.ino)
                        })
                };
                let left = || {
                    synced.iter().any(|(node, moment)| {
                        led[*moment] != Some(node.ino)
                            && led[..*moment]
                                .iter()
                                .rposition(|it| *it == Some(node.ino))
                                .is_some_and(|had| since(dir.ino) <= had)
                    })
                };
                let was = (0..led.len()).any(|at| led[at] == is && may(at));
                if !was && (is.is_some() || !left()) {
                    return Err(format!("{}/{name} leads to {is:?}", dir.ino));
                }
            }
        }
        for ino in nodes {
            let has = |it: &Places| it.values().filter(|node| node.ino == ino).count();
            let stayed = self.moments[since(ino)..].iter().all(|it| has(it) > 0);
            if stayed && has(&now) == 0 {
                return Err(format!("{ino} is lost"));
            }
        }
        for node in now.values().filter(|node| self.durable.contains(&node.ino)) {
            let size = self.sizes[&node.ino];
            let mut have = vec![0; size as usize + 1];
            let len = found.read(*node, 0, &mut have).map_err(|error| error.to_string())? as u64;
            if len != size || have[..len as usize].iter().any(|byte| *byte != node.ino as u8) {
                return Err(format!("{} has lost its content: {len} of {size}", node.ino));
            }
        }
        for node in now.values() {
            let nlink =
                found.attributes(*node).map_err(|error| format!("{node:?} {error:?}"))?.nlink
                    as usize;
            let names = now.values().filter(|it| it.ino == node.ino).count();
            let is_directory = found.attributes(*node).unwrap().mode & 0o170_000 == 0o040_000;
            if names != nlink && !is_directory {
                return Err(format!("{node:?} has {nlink} links and {names} names"));
            }
        }
        Ok(())
    }
}

/// The first two are of commits, and in the second one others write a log.
const STEPS: [&str; 7] = [
    "prepare",
    settling::STEP,
    "a log has its inodes",
    "a log can be written",
    "a log has what changed",
    "a log is written",
    "a log takes one more",
];

/// At the steps that were chosen things are done, and where a commit lets others go on, something is made durable.
fn disturb(all: &Disturbed, raced: &Arc<Mutex<Raced>>) {
    for (step, action) in all.next.lock().iter_mut() {
        let (raced, step) = (raced.clone(), *step);
        *action = Box::new(move |fs| {
            let (node, moment) = {
                let mut raced = raced.lock();
                raced.told.push(format!("  at: {step}"));
                for _ in 0..=raced.dice.below(3) {
                    raced.act(fs);
                }
                if step != settling::STEP {
                    return;
                }
                let (node, moment) = (raced.node(fs), raced.moments.len() - 1);
                raced.told.push(format!("  sync {} beside", node.ino));
                (node, moment)
            };
            let thread = settling::sync_beside(fs, node);
            raced.lock().beside.push((node, moment, thread));
        });
    }
}

fn next_beside(raced: &Mutex<Raced>) -> Option<(Node, usize, std::thread::JoinHandle<()>)> {
    raced.lock().beside.pop()
}

fn run(seed: u64) -> Result<[u64; 2], String> {
    let all = Disturbed::new();
    let fs = all.fs();
    let raced = Arc::new(Mutex::new(Raced::new(fs, seed)));
    let (mut synced, mut commits) = (Vec::new(), 0);
    let start = |raced: &mut Raced| {
        raced.moments = vec![places(fs, &raced.dirs)];
        raced.told.push("commit".into());
    };
    let mut before = fs.commit().unwrap();
    start(&mut raced.lock());
    for _ in 0..40 {
        let count = raced.lock().dice.below(4);
        (0..count).for_each(|_| raced.lock().act(fs));
        let node = {
            let mut raced = raced.lock();
            let node = raced.node(fs);
            let many = raced.dice.below(5);
            raced.told.push(format!("sync {}", node.ino));
            for _ in 0..many {
                let step = STEPS[raced.dice.below(STEPS.len())];
                all.at(step, |_| ());
            }
            node
        };
        disturb(&all, &raced);
        let moment = raced.lock().moments.len() - 1;
        let made = raced.lock().sizes.clone();
        fs.sync(node).unwrap();
        let mut beside: Vec<(Node, usize)> = Vec::new();
        // One that makes a commit may meet another one.
        while let Some((node, at, thread)) = next_beside(&raced) {
            thread.join().unwrap();
            beside.push((node, at));
        }
        all.next.lock().clear();
        let now = fs.info().generation;
        let mut raced = raced.lock();
        let all_synced = beside.iter().map(|it| it.0).chain([node]).map(|node| node.ino);
        let all_synced: Vec<u64> = all_synced.filter(|ino| raced.sizes.contains_key(ino)).collect();
        raced.durable.extend(all_synced);
        if now != before {
            raced.durable.extend(made.keys());
            (before, commits) = (now, commits + 1);
            raced.moments.drain(..moment);
            raced.told.push(format!("a commit {:?}", fs.stats().log_refused));
            synced = vec![(node, 0)];
            synced.extend(beside.into_iter().map(|(node, at)| (node, at - moment)));
        } else {
            synced.push((node, moment));
        }
        let there = |it: &(Node, usize)| {
            raced.dirs.contains(&it.0)
                || raced.moments[it.1].values().any(|node| node.ino == it.0.ino)
        };
        synced.retain(there);
        let found = all.replayed();
        raced.check(&found, &synced).map_err(|error| raced.story(&error, &found))?;
    }
    Ok([fs.stats().log_writes, commits])
}

/// Runs some seeds, as the environment says; what each run counts is added up and told.
pub(super) fn each_seed<const N: usize>(run: impl Fn(u64) -> Result<[u64; N], String>) {
    let (from, count) = (of_environment("SEED", 0), of_environment("COUNT", 20));
    let (mut failed, mut sum) = (0, [0; N]);
    for seed in from..from + count {
        match run(seed) {
            Ok(of) => sum.iter_mut().zip(of).for_each(|(sum, of)| *sum += of),
            Err(error) => {
                println!("FAILED seed {seed}: {error}\n");
                failed += 1;
            }
        }
    }
    println!("{sum:?}");
    assert_eq!(failed, 0);
}

#[test]
fn names_change_while_logs_are_made() {
    each_seed(run);
}
