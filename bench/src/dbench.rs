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
    let load: Vec<Vec<&str>> = load.lines().map(words).collect();
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
                    let mut client = Client { fs, number, open: HashMap::new(), bytes: 0 };
                    let mut ops = load.iter().cycle();
                    while !over.load(Ordering::Relaxed) {
                        ops.by_ref().take(64).for_each(|words| drop(client.run(words)));
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

struct Client<'a> {
    fs: &'a Filesystem,
    number: u64,
    open: HashMap<String, Node>,
    bytes: u64,
}

impl Client<'_> {
    fn path(&self, name: &str) -> String {
        // The load spells names in either case, as its system does not care.
        let path = name.to_uppercase().replace('\\', "/");
        path.replacen("CLIENT1", &format!("CLIENT{}", self.number), 1)
    }

    fn run(&mut self, words: &[&str]) -> Done<()> {
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
        let missing = || Error::User(Errno::NOENT);
        let path = self.path(words.get(1).unwrap_or(&""));
        let open = words.get(1).and_then(|handle| self.open.get(*handle)).copied();
        match words[0] {
            "NTCreateX" => {
                let node = self.create(&path, words)?;
                self.open.insert(words.get(4).unwrap_or(&"").to_string(), node);
            }
            "Close" => drop(words.get(1).and_then(|handle| self.open.remove(*handle))),
            "WriteX" => {
                let (node, len) = (open.ok_or_else(missing)?, number(3).unwrap_or(0) as usize);
                let len = self.fs.write(node, number(2).unwrap_or(0), &DATA[..len.min(MOST)])?;
                self.bytes += len as u64;
            }
            "ReadX" => {
                let (node, len) = (open.ok_or_else(missing)?, number(3).unwrap_or(0) as usize);
                let mut buffer = [0; MOST];
                let buffer = &mut buffer[..len.min(MOST)];
                self.bytes += self.fs.read(node, number(2).unwrap_or(0), buffer)? as u64;
            }
            "Flush" => self.fs.sync(open.ok_or_else(missing)?)?,
            "QUERY_FILE_INFORMATION" => drop(self.fs.attributes(open.ok_or_else(missing)?)?),
            "SET_FILE_INFORMATION" => {
                self.fs.set_attributes(open.ok_or_else(missing)?, &Change::default())?;
            }
            "QUERY_PATH_INFORMATION" => drop(self.fs.attributes(self.fs.resolve(&path)?)?),
            "QUERY_FS_INFORMATION" => drop(self.fs.usage()),
            "FIND_FIRST" => {
                let (dir, _) = self.fs.resolve_parent(&path)?;
                self.fs.read_dir(dir, 0, &mut |_| true)?;
            }
            "Unlink" => {
                let (dir, name) = self.fs.resolve_parent(&path)?;
                self.fs.unlink(dir, &name)?;
            }
            "Rename" => {
                let to = self.path(words.get(2).unwrap_or(&""));
                let ((from, old), (to, new)) =
                    (self.fs.resolve_parent(&path)?, self.fs.resolve_parent(&to)?);
                self.fs.rename(from, &old, to, &new, Rename::Replace)?;
            }
            "Deltree" => self.delete_all(&path)?,
            _ => {}
        }
        Ok(())
    }

    fn create(&self, path: &str, words: &[&str]) -> Done<Node> {
        const DIRECTORY: &str = "0x1";
        const CREATE: [&str; 3] = ["0x2", "0x3", "0x5"];
        let (dir, name) = self.fs.resolve_parent(path)?;
        let disposition = words.get(3).copied().unwrap_or("");
        if let Some(found) = self.fs.lookup(dir, &name)? {
            if matches!(disposition, "0x4" | "0x5") {
                let empty = Change { size: Some(0), ..Change::default() };
                self.fs.set_attributes(found.node, &empty)?;
            }
            return Ok(found.node);
        }
        if !CREATE.contains(&disposition) {
            return Err(Error::User(Errno::NOENT));
        }
        let directory = words.get(2) == Some(&DIRECTORY);
        let new = if directory { New::directory(0o755) } else { New::file(0o644) };
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
