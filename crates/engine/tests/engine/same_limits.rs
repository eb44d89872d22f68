//! The same is done on Linux and here, on data of whole units with limits half way between: the same is refused, and groups have the same.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use buttress::ondisk::item::QgroupInfo;
use buttress::ondisk::{Key, kind, objectid};
use buttress::{Errno, Error, Filesystem, New, NewLimits, Node, Options, Owner};
use buttress_testkit::ops::rng::Rng;
use buttress_testkit::oracle::{KernelMount, btrfs, root_or_skip};

use crate::judge::Image;
use crate::simple_quotas::{can_compare, switch_on};

/// Bytes of a write.
const UNIT: u64 = 4 << 20;
/// Groups above subvolumes; the first is in the last.
const GROUPS: [u64; 3] = [1 << 48 | 1, 1 << 48 | 2, 2 << 48 | 1];

/// What groups refer to and have for themselves.
type Usage = BTreeMap<u64, (u64, u64)>;

/// One side of a comparison.
trait Side {
    /// Writes a unit; whether there was room.
    fn write(&self, path: &str, at: u64) -> bool;
    /// Clones a file into a new one; whether there was room.
    fn clone_file(&self, from: &str, to: &str) -> bool;
    /// Deletes a file, if it is there.
    fn unlink(&self, path: &str);
    /// Makes a subvolume, or a snapshot, in a group, or in those that it is in by itself; whether there was room.
    fn subvolume(&self, name: &str, group: Option<u64>) -> bool;
    fn snapshot(&self, source: &str, name: &str, group: Option<u64>) -> bool;
    fn delete(&self, name: &str);
    fn limit(&self, group: u64, bytes: Option<u64>);
    /// Puts a group into another one, or takes it out; whether that was so before.
    fn relate(&self, member: u64, group: u64, is_in: bool) -> bool;
    /// The number of a subvolume.
    fn id(&self, name: &str) -> u64;
    /// What all groups have.
    fn groups(&self) -> Usage;
}

fn shown(group: u64) -> String {
    format!("{}/{}", group >> 48, group & 0xffff)
}

struct Linux<'a> {
    top: &'a Path,
    is_simple: bool,
}

impl Linux<'_> {
    fn path(&self, name: &str) -> String {
        self.top.join(name).to_str().unwrap().to_owned()
    }

    fn make(&self, words: &[&str], group: Option<u64>, paths: &[&str]) -> bool {
        let mut all: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        all.extend(group.into_iter().flat_map(|group| ["-i".to_owned(), shown(group)]));
        all.extend(paths.iter().map(|path| self.path(path)));
        let done = btrfs(&all.iter().map(String::as_str).collect::<Vec<_>>());
        let said = format!("{done:?}");
        assert!(done.is_ok() || said.contains("quota exceeded"), "{said}");
        done.is_ok()
    }

    fn sync(&self) {
        btrfs(&["filesystem", "sync", &self.path("")]).unwrap();
    }
}

impl Side for Linux<'_> {
    fn write(&self, path: &str, at: u64) -> bool {
        let (to, seek) = (format!("of={}", self.path(path)), format!("seek={at}"));
        let words =
            ["if=/dev/zero", &to, "bs=4M", "count=1", "conv=notrunc", "oflag=direct", &seek];
        let done = std::process::Command::new("dd").args(words).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() || said.contains("quota exceeded"), "{said}");
        self.sync();
        // A part of it may have found room.
        said.contains("1+0 records out")
    }

    fn clone_file(&self, from: &str, to: &str) -> bool {
        let paths = [from, to].map(|path| self.path(path));
        let mut copy = std::process::Command::new("cp");
        let done = copy.arg("--reflink=always").args(paths).env("LC_ALL", "C").output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() || said.contains("quota exceeded"), "{said}");
        self.sync();
        done.status.success()
    }

    fn unlink(&self, path: &str) {
        let _absent = std::fs::remove_file(self.path(path));
        self.sync();
    }

    fn subvolume(&self, name: &str, group: Option<u64>) -> bool {
        self.make(&["subvolume", "create"], group, &[name])
    }

    fn snapshot(&self, source: &str, name: &str, group: Option<u64>) -> bool {
        self.make(&["subvolume", "snapshot"], group, &[source, name])
    }

    fn delete(&self, name: &str) {
        btrfs(&["subvolume", "delete", &self.path(name)]).unwrap();
        btrfs(&["subvolume", "sync", &self.path("")]).unwrap();
    }

    fn limit(&self, group: u64, bytes: Option<u64>) {
        let bytes = bytes.map_or("none".to_owned(), |bytes| bytes.to_string());
        btrfs(&["qgroup", "limit", &bytes, &shown(group), &self.path("")]).unwrap();
    }

    fn relate(&self, member: u64, group: u64, is_in: bool) -> bool {
        let word = if is_in { "assign" } else { "remove" };
        let (member, group, top) = (shown(member), shown(group), self.path(""));
        btrfs(&["qgroup", word, "--no-rescan", &member, &group, &top]).is_err()
    }

    fn id(&self, name: &str) -> u64 {
        let said = btrfs(&["inspect-internal", "rootid", &self.path(name)]).unwrap();
        said.trim().parse().unwrap()
    }

    fn groups(&self) -> Usage {
        if !self.is_simple {
            // Where Linux does not know what a snapshot does to a group it counts no more, and holds no limit right, until it is told to count anew.
            btrfs(&["quota", "rescan", "-w", &self.path("")]).unwrap();
        }
        let said = btrfs(&["qgroup", "show", "--raw", "--sync", &self.path("")]).unwrap();
        let group = |line: &str| {
            let mut words = line.split_whitespace();
            let (level, number) = words.next()?.split_once('/')?;
            let (level, number): (u64, u64) = (level.parse().ok()?, number.parse().ok()?);
            let mut bytes = || words.next()?.parse::<u64>().ok();
            Some((level << 48 | number, (bytes()?, bytes()?)))
        };
        said.lines().filter_map(group).collect()
    }
}

/// Whether something was done, and not refused because of a limit.
fn is_done<T: std::fmt::Debug>(answer: &buttress::Result<T>) -> bool {
    let is_over = matches!(answer, Err(Error::User(Errno::DQUOT)));
    assert!(answer.is_ok() || is_over, "{answer:?}");
    answer.is_ok()
}

/// A directory and a name in it.
fn place<'p>(fs: &Filesystem, path: &'p str) -> (Node, &'p [u8]) {
    match path.rsplit_once('/') {
        Some((dir, name)) => (fs.resolve(dir).unwrap(), name.as_bytes()),
        None => (Node::ROOT, path.as_bytes()),
    }
}

impl Side for Filesystem {
    fn write(&self, path: &str, at: u64) -> bool {
        let (dir, name) = place(self, path);
        let answer = match self.lookup(dir, name).unwrap() {
            Some(found) => Ok(found.node),
            None => self.create(dir, name, &New::file(0o600)).map(|made| made.node),
        };
        let answer = answer
            .and_then(|file| Filesystem::write(self, file, at * UNIT, &vec![0; UNIT as usize]));
        self.commit().unwrap();
        is_done(&answer)
    }

    fn clone_file(&self, from: &str, to: &str) -> bool {
        let from = self.resolve(from).unwrap();
        let (dir, name) = place(self, to);
        let len = self.attributes(from).unwrap().size;
        let made = self.create(dir, name, &New::file(0o600));
        let answer = made.and_then(|made| self.clone_range(from, 0, len, made.node, 0));
        self.commit().unwrap();
        is_done(&answer.inspect(|cloned| assert_eq!(*cloned, len)))
    }

    fn unlink(&self, path: &str) {
        let (dir, name) = place(self, path);
        let _absent = Filesystem::unlink(self, dir, name);
        self.commit().unwrap();
    }

    fn subvolume(&self, name: &str, group: Option<u64>) -> bool {
        let ((dir, name), owner) = (place(self, name), Owner::default());
        is_done(&self.create_subvolume_in(dir, name, owner, group.as_slice()))
    }

    fn snapshot(&self, source: &str, name: &str, group: Option<u64>) -> bool {
        let source = self.resolve(source).unwrap().subvolume;
        let (dir, name) = place(self, name);
        is_done(&self.snapshot_in(source, dir, name, false, group.as_slice()))
    }

    fn delete(&self, name: &str) {
        let (dir, name) = place(self, name);
        self.delete_subvolume(dir, name).unwrap();
        self.clean().unwrap();
    }

    fn limit(&self, group: u64, bytes: Option<u64>) {
        self.limit_qgroup(group, NewLimits { rfer: Some(bytes), excl: None }).unwrap();
    }

    fn relate(&self, member: u64, group: u64, is_in: bool) -> bool {
        match is_in {
            true => self.assign_qgroup(member, group).is_err(),
            false => self.remove_qgroup(member, group).is_err(),
        }
    }

    fn id(&self, name: &str) -> u64 {
        self.resolve(name).unwrap().subvolume
    }

    fn groups(&self) -> Usage {
        if self.has_wrong_quotas() {
            self.count_quotas(|_| true).unwrap();
        }
        self.commit().unwrap();
        let mut usage = Usage::new();
        self.search(objectid::QUOTA_TREE, Key::MIN, Key::MAX, |key, _, data| {
            if key.kind == kind::QGROUP_INFO {
                let info = QgroupInfo::of(data).unwrap();
                usage.insert(key.offset, (info.rfer.get(), info.excl.get()));
            }
            true
        })
        .unwrap();
        usage
    }
}

/// Both sides, and what was done so far.
struct Both<'a> {
    sides: [&'a dyn Side; 2],
    rng: Rng,
    is_simple: bool,
    /// The seed and the step.
    at: (u64, u64),
    volumes: Vec<String>,
    /// The groups that each of them is in.
    related: BTreeMap<String, BTreeSet<u64>>,
    files: Vec<String>,
    limits: BTreeMap<u64, u64>,
    refused: u64,
}

impl Both<'_> {
    fn each(&self, act: impl Fn(&dyn Side)) {
        self.sides.iter().for_each(|side| act(*side));
    }

    /// The same answer of both.
    fn ask<T: PartialEq + std::fmt::Debug>(&self, ask: impl Fn(&dyn Side) -> T) -> T {
        let [linux, ours] = self.sides.map(ask);
        assert_eq!(linux, ours, "{}", self.place());
        linux
    }

    fn place(&self) -> String {
        let (seed, step) = self.at;
        format!("seed {seed}, step {step}, limits {:?}", self.limits)
    }

    fn some_volume(&mut self) -> String {
        self.rng.pick(&self.volumes).clone()
    }

    fn step(&mut self) {
        let group = *self.rng.pick(&GROUPS);
        let has_volumes = !self.volumes.is_empty();
        match self.rng.below(if self.is_simple { 22 } else { 16 }) {
            0 | 1 => self.subvolume(Some(group)),
            2 if has_volumes => self.snapshot(group),
            3 if self.volumes.len() > 3 => self.delete(),
            4 | 5 => self.limit(group),
            6 if !self.files.is_empty() => {
                let file = self.files.remove(self.rng.below(self.files.len() as u64) as usize);
                self.each(|side| side.unlink(&file));
            }
            // What follows full quotas have otherwise: Linux lets clones in whatever they add.
            16 if !self.files.is_empty() => self.clone_file(),
            17 if has_volumes => self.relate(group),
            18 if has_volumes => {
                let volume = self.some_volume();
                let id = self.ask(|side| side.id(&volume));
                self.limit(id);
            }
            19 if has_volumes => self.subvolume(None),
            _ if has_volumes => self.write(),
            _ => {}
        }
        let have = self.sides.map(Side::groups);
        assert!(self.are_alike(&have), "{}, {have:x?}", self.place());
    }

    /// Whether both sides have the same data in each group: what they take for metadata is less than half of a unit, and not the same.
    fn are_alike(&self, [linux, ours]: &[Usage; 2]) -> bool {
        let is_meant = |id: u64| self.is_simple || id >> 48 > 0;
        let whole = |usage: &Usage| {
            let meant = usage.iter().filter(|(id, _)| is_meant(**id));
            meant.map(|(id, (rfer, excl))| (*id, rfer / UNIT, excl / UNIT)).collect::<Vec<_>>()
        };
        whole(linux) == whole(ours)
    }

    /// A new one; in no group that is named it is within another one, at times.
    fn subvolume(&mut self, group: Option<u64>) {
        let (mut name, mut groups) = (format!("volume{}", self.at.1), group.into_iter().collect());
        if group.is_none() && self.rng.one_in(2) {
            let within = self.some_volume();
            name = format!("{within}/{name}");
            groups = self.related[&within].clone();
        }
        let is_made = self.ask(|side| side.subvolume(&name, group));
        self.comes(name, groups, is_made);
    }

    /// A subvolume is made in some groups, or refused.
    fn comes(&mut self, name: String, groups: BTreeSet<u64>, is_made: bool) {
        if is_made {
            self.ask(|side| side.id(&name));
            self.related.insert(name.clone(), groups);
            self.volumes.push(name);
        } else {
            self.refused += 1;
            self.even_numbers();
        }
    }

    /// Has the next subvolume get the same number on both sides: Linux does not use that of a refused one again.
    fn even_numbers(&self) {
        let name = format!("even{}", self.at.1);
        let next = |side: &dyn Side| {
            assert!(side.subvolume(&name, None), "{}", self.place());
            let id = side.id(&name);
            side.delete(&name);
            id
        };
        let [linux, ours] = self.sides;
        let last = next(linux);
        while next(ours) < last {}
    }

    fn snapshot(&mut self, group: u64) {
        let (source, name) = (self.some_volume(), format!("snapshot{}", self.at.1));
        let group = (!self.is_simple || self.rng.one_in(2)).then_some(group);
        if let (Some(group), false) = (group, self.is_simple) {
            // Linux takes it in whatever the limits of the group and of those above are.
            let [within, _, above] = GROUPS;
            for group in [group].into_iter().chain((group == within).then_some(above)) {
                self.limits.remove(&group);
                self.each(|side| side.limit(group, None));
            }
        }
        let is_made = self.ask(|side| side.snapshot(&source, &name, group));
        self.comes(name, group.into_iter().collect(), is_made);
    }

    /// Deletes one that has no other within.
    fn delete(&mut self) {
        let name = self.some_volume();
        let within = format!("{name}/");
        if self.volumes.iter().all(|other| !other.starts_with(&within)) {
            self.volumes.retain(|other| *other != name);
            self.files.retain(|file| !file.starts_with(&within));
            self.each(|side| side.delete(&name));
        }
    }

    fn limit(&mut self, group: u64) {
        let bytes = self.rng.below(12) * UNIT + UNIT / 2;
        self.limits.insert(group, bytes);
        self.each(|side| side.limit(group, Some(bytes)));
    }

    fn clone_file(&mut self) {
        let (from, volume) = (self.rng.pick(&self.files).clone(), self.some_volume());
        let to = format!("{volume}/clone{}", self.at.1);
        match self.ask(|side| side.clone_file(&from, &to)) {
            true => self.files.push(to),
            false => {
                self.refused += 1;
                self.each(|side| side.unlink(&to));
            }
        }
    }

    /// Puts a subvolume into a group, or takes it out.
    fn relate(&mut self, group: u64) {
        let (volume, is_in) = (self.some_volume(), self.rng.one_in(2));
        let [within, _, above] = GROUPS;
        let other = [(within, above), (above, within)].into_iter().find(|(one, _)| *one == group);
        let groups = self.related.get_mut(&volume).unwrap();
        // What is in a group by two ways Linux has counted twice there when the second one comes, and not at all when it goes.
        if is_in && other.is_some_and(|(_, other)| groups.contains(&other)) {
            return;
        }
        match is_in {
            true => groups.insert(group),
            false => groups.remove(&group),
        };
        let id = self.ask(|side| side.id(&volume));
        self.ask(|side| side.relate(id, group, is_in));
    }

    fn write(&mut self) {
        // Clones are written to, too.
        let file = match self.is_simple && self.rng.one_in(4) && !self.files.is_empty() {
            true => self.rng.pick(&self.files).clone(),
            false => format!("{}/file{}", self.some_volume(), self.rng.below(4)),
        };
        let at = self.rng.below(3);
        let had = self.sides.map(Side::groups);
        let [linux, ours] = self.sides.map(|side| side.write(&file, at));
        assert_eq!(linux, ours, "{}, {file} at {at}, groups {had:x?}", self.place());
        // What Linux has written of one that was refused is part of a unit.
        self.files.retain(|other| *other != file);
        match linux {
            true => self.files.push(file),
            false => self.each(|side| side.unlink(&file)),
        }
        self.refused += u64::from(!linux);
    }
}

/// Seeds, and steps of each.
fn extent() -> (std::ops::Range<u64>, u64) {
    let is_long = std::env::var_os("BUTTRESS_LONG").is_some();
    if is_long { (0..20, 70) } else { (1..2, 45) }
}

/// A comparison of each seed, on new filesystems with the groups that both have.
fn compare_seeds(is_simple: bool, seeds: std::ops::Range<u64>, steps: u64) {
    for seed in seeds {
        let (image, other) = (Image::by_progs(1 << 30, &[]), Image::by_us(1 << 30));
        let options = Options::read_write().background(false);
        let fs = Filesystem::open(other.path(), options).unwrap();
        // It warns of what it does not know, which is no complaint here.
        let mount = KernelMount::new(&image.path(), "").unwrap();
        let linux = Linux { top: mount.path(), is_simple };
        if is_simple {
            fs.enable_simple_quotas().unwrap();
            assert!(switch_on(linux.top));
        } else {
            fs.count_quotas(|_| true).unwrap();
            btrfs(&["quota", "enable", &linux.path("")]).unwrap();
            btrfs(&["quota", "rescan", "-w", &linux.path("")]).unwrap();
        }
        for group in GROUPS {
            fs.create_qgroup(group).unwrap();
            btrfs(&["qgroup", "create", &shown(group), &linux.path("")]).unwrap();
        }
        let sides: [&dyn Side; 2] = [&linux, &fs];
        sides.iter().for_each(|side| assert!(!side.relate(GROUPS[0], GROUPS[2], true)));
        let mut both = Both {
            sides,
            rng: Rng::new(seed),
            is_simple,
            at: (seed, 0),
            volumes: Vec::new(),
            related: BTreeMap::new(),
            files: Vec::new(),
            limits: BTreeMap::new(),
            refused: 0,
        };
        for step in 0..steps {
            both.at.1 = step;
            both.step();
        }
        println!("seed {seed}: {} refused", both.refused);
        assert!(both.refused > 0, "seed {seed}: nothing was refused");
        let had = Side::groups(&fs);
        fs.close().unwrap();
        match is_simple {
            // `btrfs check` may be older than they are.
            true => other.mounted(|top| assert_eq!(Linux { top, is_simple }.groups(), had)),
            false => other.check(),
        }
    }
}

#[test]
fn the_same_is_refused_as_on_linux() {
    if root_or_skip() {
        let (seeds, steps) = extent();
        compare_seeds(false, seeds, steps);
    }
}

/// Simple quotas: what a subvolume has allocated stays its, in snapshots and clones too, and its groups come and go.
#[test]
fn simple_quotas_refuse_the_same_as_on_linux() {
    if can_compare() {
        let (seeds, steps) = extent();
        compare_seeds(true, seeds, steps);
    }
}
