//! Row 7: dbench, 40 clients with its own load: on Linux's btrfs, through the mount, and its load file replayed in process.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use buttress::{Change, Errno, Error, Filesystem, New, Node, Options, Rename, Result as Done};

use crate::linux::{self, Mount};
use crate::mounts::{self, Served};
use crate::{Row, Scale, Side, create, median, seconds};

const IMAGE: u64 = 16 << 30;
const CLIENTS: &str = "40";
/// Seconds of a round.
const SECONDS: &str = "15";
/// What the package of dbench brings along.
const LOAD: &str = "/usr/share/dbench/client.txt";
/// The largest read and write of the load.
const MOST: usize = 1 << 16;
static DATA: [u8; MOST] = [5; MOST];

type Measure<'a> = dyn Fn() -> Result<f64, String> + 'a;

/// Megabytes per second, as dbench tells them.
pub fn row(scale: Scale) -> Row {
    let mut row = Row::new(7, format!("dbench, {CLIENTS} clients"));
    let mut rates = [const { Vec::new() }; 4];
    for _ in 0..scale.rounds.min(3) {
        let linux = || Mount::fresh(IMAGE).and_then(|mount| run(&mount.path()));
        let served = |what| {
            let mount = mounts::serve(what, IMAGE)?;
            run(mount.path())
        };
        let sides: [(Side, &Measure<'_>); 4] = [
            (Side::Linux, &linux),
            (Side::Here, &here),
            (Side::Mounts, &|| served(Served::Ours)),
            (Side::Mounts, &|| served(Served::Null)),
        ];
        for ((side, measure), rates) in sides.into_iter().zip(&mut rates) {
            if scale.wants(side) {
                match measure() {
                    Ok(rate) => rates.push(rate),
                    Err(why) => row.note(why),
                }
            }
        }
    }
    for (name, rates) in
        ["Linux", "here", "through the mount", "null filesystem"].into_iter().zip(rates)
    {
        if !rates.is_empty() {
            row.add(name, median(rates), "MB/s");
        }
    }
    row
}

fn run(path: &Path) -> Result<f64, String> {
    let dir = path.join("dbench");
    std::fs::create_dir(&dir).map_err(|error| error.to_string())?;
    let said = linux::run("dbench", &["-D", &dir.to_string_lossy(), "-t", SECONDS, CLIENTS])?;
    let line = said.lines().rev().find(|line| line.starts_with("Throughput"));
    let rate = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    rate.ok_or_else(|| format!("dbench says no throughput: {said}"))
}

/// The load file replayed by as many threads, each in a directory of its own; what fails is expected to, or is gone because another
/// operation of the load was left out.
fn here() -> Result<f64, String> {
    let load = std::fs::read_to_string(LOAD).map_err(|error| format!("{LOAD}: {error}"))?;
    let load = Load::parse(&load);
    let dir = linux::ram();
    let image = dir.path().join("image");
    create::fresh(&image, IMAGE);
    let fs = Filesystem::open(&image, Options::read_write()).map_err(|error| error.to_string())?;
    let clients: u64 = CLIENTS.parse().unwrap_or(1);
    fs.create(Node::ROOT, b"CLIENTS", &New::directory(0o755)).map_err(|error| error.to_string())?;
    let (over, moved) = (AtomicBool::new(false), AtomicU64::new(0));
    let took = seconds(|| {
        std::thread::scope(|scope| {
            for number in 0..clients {
                let (fs, load, over, moved) = (&fs, &load, &over, &moved);
                scope.spawn(move || {
                    let mut client = Client::new(fs, number, load);
                    let mut ops = load.ops.iter().cycle();
                    while !over.load(Ordering::Relaxed) {
                        ops.by_ref().take(64).for_each(|op| drop(client.run(op)));
                    }
                    moved.fetch_add(client.bytes, Ordering::Relaxed);
                });
            }
            std::thread::sleep(Duration::from_secs(SECONDS.parse().unwrap_or(1)));
            over.store(true, Ordering::Relaxed);
        });
    });
    if std::env::var_os("BENCH_STATS").is_some() {
        eprintln!("dbench: {:#?}", fs.stats());
    }
    fs.close().map_err(|error| error.to_string())?;
    Ok(moved.load(Ordering::Relaxed) as f64 / 1048576.0 / took)
}

/// The words of a line; a name is in quotes.
fn words(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for (at, part) in line.split('"').enumerate() {
        match at % 2 {
            0 => words.extend(part.split_whitespace()),
            _ => words.push(part),
        }
    }
    words
}

/// The load, parsed once: what is measured is the filesystem, not the client. Paths and handles are numbers.
#[derive(Default)]
struct Load {
    ops: Vec<Op>,
    paths: Vec<String>,
    handles: usize,
}

#[derive(Clone, Copy)]
enum Op {
    Open { path: usize, handle: usize, how: Open },
    Close(usize),
    Write { handle: usize, offset: u64, len: usize },
    Read { handle: usize, offset: u64, len: usize },
    Sync(usize),
    Look(usize),
    Change(usize),
    LookAt(usize),
    Usage,
    List(usize),
    Unlink(usize),
    Rename(usize, usize),
    DeleteAll(usize),
}

#[derive(Clone, Copy)]
struct Open {
    directory: bool,
    create: bool,
    empty: bool,
}

impl Load {
    fn parse(text: &str) -> Load {
        let (mut load, mut paths, mut handles) = (Load::default(), HashMap::new(), HashMap::new());
        for line in text.lines() {
            let words = words(line);
            let mut path = |at: usize| {
                // The load spells names in either case, as its system does not care.
                let path = words.get(at).unwrap_or(&"").to_uppercase().replace('\\', "/");
                let new = paths.len();
                *paths.entry(path).or_insert(new)
            };
            let mut handle = |at: usize| {
                let new = handles.len();
                *handles.entry(words.get(at).copied().unwrap_or("")).or_insert(new)
            };
            let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(0);
            let (offset, len) = (number(2), (number(3) as usize).min(MOST));
            load.ops.push(match words[0] {
                "NTCreateX" => {
                    let how = Open::new(words.get(2).unwrap_or(&""), words.get(3).unwrap_or(&""));
                    Op::Open { path: path(1), handle: handle(4), how }
                }
                "Close" => Op::Close(handle(1)),
                "WriteX" => Op::Write { handle: handle(1), offset, len },
                "ReadX" => Op::Read { handle: handle(1), offset, len },
                "Flush" => Op::Sync(handle(1)),
                "QUERY_FILE_INFORMATION" => Op::Look(handle(1)),
                "SET_FILE_INFORMATION" => Op::Change(handle(1)),
                "QUERY_PATH_INFORMATION" => Op::LookAt(path(1)),
                "QUERY_FS_INFORMATION" => Op::Usage,
                "FIND_FIRST" => Op::List(path(1)),
                "Unlink" => Op::Unlink(path(1)),
                "Rename" => Op::Rename(path(1), path(2)),
                "Deltree" => Op::DeleteAll(path(1)),
                _ => continue,
            });
        }
        load.handles = handles.len();
        load.paths = vec![String::new(); paths.len()];
        for (path, at) in paths {
            load.paths[at] = path;
        }
        load
    }
}

impl Open {
    fn new(options: &str, disposition: &str) -> Open {
        Open {
            directory: options == "0x1",
            create: matches!(disposition, "0x2" | "0x3" | "0x5"),
            empty: matches!(disposition, "0x4" | "0x5"),
        }
    }
}

struct Client<'a> {
    fs: &'a Filesystem,
    paths: Vec<String>,
    open: Vec<Option<Node>>,
    buffer: Box<[u8]>,
    bytes: u64,
}

impl Client<'_> {
    fn new<'a>(fs: &'a Filesystem, number: u64, load: &Load) -> Client<'a> {
        let own = |path: &String| path.replacen("CLIENT1", &format!("CLIENT{number}"), 1);
        Client {
            fs,
            paths: load.paths.iter().map(own).collect(),
            open: vec![None; load.handles],
            buffer: vec![0; MOST].into(),
            bytes: 0,
        }
    }

    fn run(&mut self, op: &Op) -> Done<()> {
        let fs = self.fs;
        let open = |handle: usize| self.open[handle].ok_or(Error::User(Errno::NOENT));
        match *op {
            Op::Open { path, handle, how } => {
                self.open[handle] = Some(self.create(&self.paths[path], how)?);
            }
            Op::Close(handle) => self.open[handle] = None,
            Op::Write { handle, offset, len } => {
                self.bytes += fs.write(open(handle)?, offset, &DATA[..len])? as u64;
            }
            Op::Read { handle, offset, len } => {
                self.bytes += fs.read(open(handle)?, offset, &mut self.buffer[..len])? as u64;
            }
            Op::Sync(handle) => fs.sync(open(handle)?)?,
            Op::Look(handle) => drop(fs.attributes(open(handle)?)?),
            Op::Change(handle) => drop(fs.set_attributes(open(handle)?, &Change::default())?),
            Op::LookAt(path) => drop(fs.attributes(fs.resolve(&self.paths[path])?)?),
            Op::Usage => drop(fs.usage()),
            Op::List(path) => {
                let (dir, _) = fs.resolve_parent(&self.paths[path])?;
                fs.read_dir(dir, 0, &mut |_| true)?;
            }
            Op::Unlink(path) => {
                let (dir, name) = fs.resolve_parent(&self.paths[path])?;
                fs.unlink(dir, &name)?;
            }
            Op::Rename(from, to) => {
                let (from, old) = fs.resolve_parent(&self.paths[from])?;
                let (to, new) = fs.resolve_parent(&self.paths[to])?;
                fs.rename(from, &old, to, &new, Rename::Replace)?;
            }
            Op::DeleteAll(path) => self.delete_all(&self.paths[path])?,
        }
        Ok(())
    }

    fn create(&self, path: &str, how: Open) -> Done<Node> {
        let (dir, name) = self.fs.resolve_parent(path)?;
        if let Some(found) = self.fs.lookup(dir, &name)? {
            if how.empty {
                let empty = Change { size: Some(0), ..Change::default() };
                self.fs.set_attributes(found.node, &empty)?;
            }
            return Ok(found.node);
        }
        if !how.create {
            return Err(Error::User(Errno::NOENT));
        }
        let new = if how.directory { New::directory(0o755) } else { New::file(0o644) };
        Ok(self.fs.create(dir, &name, &new)?.node)
    }

    fn delete_all(&self, path: &str) -> Done<()> {
        let (dir, name) = self.fs.resolve_parent(path)?;
        let Some(found) = self.fs.lookup(dir, &name)? else { return Ok(()) };
        let mut names = Vec::new();
        if self.fs.attributes(found.node)?.kind != buttress::FileKind::Directory {
            return self.fs.unlink(dir, &name).map(drop);
        }
        self.fs.read_dir(found.node, 0, &mut |entry| {
            names.push(String::from_utf8_lossy(&entry.name).into_owned());
            true
        })?;
        names.iter().try_for_each(|name| self.delete_all(&format!("{path}/{name}")))?;
        self.fs.rmdir(dir, &name).map(drop)
    }
}
