//! Operations from a seed, chosen with an eye on the model so that most of them have something to do.

use std::collections::VecDeque;

use buttress::{Allocate, FileKind, Node, Rename, SetXattr};

use super::rng::Rng;
use super::{Make, Op};
use crate::model::{Inode, Model, PAGE, QuotaMode, Target, XATTR_ROOM};

/// Names that share one place in a directory's tree, and ordinary ones.
const NAMES: [&str; 18] =
    ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k.txt", "l", "m", "n", "o", "p", "q", "r"];
const XATTRS: [&str; 7] = [
    "user.a",
    "user.b",
    "user.c",
    "user.long.name.of.an.attribute",
    "trusted.t",
    "security.s",
    "user.d",
];
const HANDLES: u64 = 8;

/// What sequences are made of.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Files, counted once in each subvolume, above which more is removed than made.
    pub files_max: usize,
    /// Bytes in files above which more is removed than written.
    pub bytes_max: u64,
    /// Subvolumes.
    pub volumes_max: usize,
    /// Bytes of a large write, at most.
    pub large: u64,
    /// One in so many writes is a large one.
    pub large_in: u64,
    /// Names, besides the ordinary ones, of the form `n123`.
    pub numbered: u64,
    /// Whether the sequence commits, reopens and compares by itself.
    pub closes: bool,
    /// Whether everything is deleted now and then.
    pub drains: bool,
    /// Operations between calls of `btrfs check`; 0 for none.
    pub check_every: u64,
    /// Operations between those that empty a block group; 0 for none.
    pub empty_every: u64,
    /// Operations between those that tell the device what is free; 0 for none.
    pub trim_every: u64,
    /// Operations between those that switch quotas; 0 for none.
    pub quotas_every: u64,
}

impl Profile {
    /// What fills a device: large writes, and no end to them.
    pub fn filling() -> Profile {
        let (large, large_in) = (4 << 20, 3);
        Profile { bytes_max: u64::MAX, large, large_in, drains: true, ..Profile::default() }
    }
}

impl Default for Profile {
    fn default() -> Profile {
        Profile {
            files_max: 600,
            bytes_max: 48 << 20,
            volumes_max: 10,
            large: 512 << 10,
            large_in: 40,
            numbered: 0,
            closes: true,
            drains: false,
            check_every: 0,
            empty_every: 0,
            trim_every: 0,
            quotas_every: 0,
        }
    }
}

/// A source of operations.
#[derive(Clone, Debug)]
pub struct Generator {
    rng: Rng,
    profile: Profile,
    made: u64,
    crowded: bool,
    full: bool,
    colliding: Vec<String>,
    /// What comes next, in a row.
    next: VecDeque<Op>,
}

impl Generator {
    /// The operations of a seed.
    pub fn new(seed: u64, profile: Profile) -> Generator {
        Generator::of(Rng::new(seed), profile)
    }

    /// The operations that a fuzzer's bytes say.
    pub fn of_tape(bytes: &[u8], profile: Profile) -> Generator {
        Generator::of(Rng::of_tape(bytes), profile)
    }

    /// Whether a fuzzer's bytes are at their end.
    pub fn is_at_end(&self) -> bool {
        self.rng.is_at_end()
    }

    fn of(rng: Rng, profile: Profile) -> Generator {
        let colliding = crate::corpus::colliding_names(4000).into_iter();
        let colliding = colliding.filter(|name| name.iter().all(u8::is_ascii_graphic));
        let colliding = colliding.take(5).filter_map(|name| String::from_utf8(name).ok()).collect();
        let next = VecDeque::new();
        Generator { rng, profile, made: 0, crowded: false, full: false, colliding, next }
    }

    /// The next operation.
    pub fn next(&mut self, model: &Model) -> Op {
        self.made += 1;
        if let Some(next) = self.next.pop_front() {
            return next;
        }
        if self.made % 64 == 1 {
            self.crowded = model.count() > self.profile.files_max;
            self.full = model.held_bytes() > self.profile.bytes_max;
        }
        let check = self.profile.check_every;
        if check > 0 && self.made.is_multiple_of(check) {
            return Op::Check;
        }
        let empty = self.profile.empty_every;
        if empty > 0 && self.made.is_multiple_of(empty) {
            return Op::Empty { number: self.made / empty };
        }
        let trim = self.profile.trim_every;
        if trim > 0 && self.made.is_multiple_of(trim) {
            return Op::Trim;
        }
        let quotas = self.profile.quotas_every;
        if quotas > 0 && self.made.is_multiple_of(quotas) {
            return self.quota_op(model);
        }
        match self.rng.below(1000) {
            0..270 => self.name_op(model),
            270..700 => self.data_op(model),
            700..860 => self.attribute_op(model),
            860..945 => self.look_op(model),
            945..960 => Op::Flush,
            960..984 => self.volume_op(model),
            _ => self.whole_op(),
        }
    }

    /// Switches quotas, mostly to what they can be switched to.
    fn quota_op(&mut self, model: &Model) -> Op {
        let mode = match model.quotas {
            QuotaMode::Off => *self.rng.pick(&[QuotaMode::Full, QuotaMode::Simple]),
            _ if self.rng.one_in(4) => *self.rng.pick(&[QuotaMode::Full, QuotaMode::Simple]),
            _ => QuotaMode::Off,
        };
        Op::Quotas { mode }
    }

    fn whole_op(&mut self) -> Op {
        if !self.profile.closes {
            return if self.rng.one_in(3) { Op::Commit } else { Op::List { at: "/".into() } };
        }
        if self.profile.drains && self.rng.one_in(40) {
            return Op::Drain;
        }
        match self.rng.below(100) {
            0..55 => Op::Commit,
            55..70 => Op::Compare,
            70..80 => Op::Clean,
            _ => Op::Reopen,
        }
    }

    // ---- where ----

    fn name(&mut self) -> String {
        let number = self.profile.numbered;
        if number > 0 && !self.rng.one_in(8) {
            return format!("n{}", self.rng.below(number));
        }
        match self.rng.below(100) {
            0..12 if !self.colliding.is_empty() => self.rng.pick(&self.colliding).clone(),
            12 => "L".repeat(200 + self.rng.below(57) as usize),
            13..16 => format!("middle-sized-name-{}", self.rng.below(4)),
            _ => (*self.rng.pick(&NAMES)).to_owned(),
        }
    }

    /// A directory, its path without a slash at the end.
    fn directory(&mut self, model: &Model) -> (String, Node) {
        let mut at = (String::new(), model.root);
        for _ in 0..6 {
            if self.rng.one_in(3) {
                break;
            }
            let Some(dir) = model.inode(at.1).and_then(Inode::directory) else { break };
            let start = self.rng.below(dir.entries.len() as u64) as usize;
            let mut rest = dir.entries.iter().skip(start);
            let found = rest.find(|(_, (target, _))| {
                let node = Model::node_of(at.1.subvolume, *target);
                matches!(target, Target::Stub(_)) && start.is_multiple_of(5)
                    || model.inode(node).is_some_and(|inode| inode.directory().is_some())
            });
            let Some((name, (target, _))) = found else { break };
            let node = Model::node_of(at.1.subvolume, *target);
            at = (format!("{}/{}", at.0, String::from_utf8_lossy(name)), node);
        }
        at
    }

    /// A path, most likely of nothing.
    fn fresh(&mut self, model: &Model) -> String {
        format!("{}/{}", self.directory(model).0, self.name())
    }

    /// A path, most likely of something that `wanted` accepts.
    fn existing(&mut self, model: &Model, wanted: impl Fn(Option<&Inode>) -> bool) -> String {
        for _ in 0..4 {
            let (path, node) = self.directory(model);
            let Some(dir) = model.inode(node).and_then(Inode::directory) else { continue };
            let start = self.rng.below(dir.entries.len() as u64) as usize;
            let found = dir.entries.iter().skip(start).find(|(_, (target, _))| {
                wanted(model.inode(Model::node_of(node.subvolume, *target)))
            });
            if let Some((name, _)) = found {
                return format!("{path}/{}", String::from_utf8_lossy(name));
            }
        }
        self.fresh(model)
    }

    fn anything(&mut self, model: &Model) -> String {
        match self.rng.below(20) {
            0 => format!("@{}", self.rng.below(HANDLES)),
            1 => self.directory(model).0 + "/",
            _ => self.existing(model, |_| true),
        }
    }

    fn file(&mut self, model: &Model) -> String {
        match self.rng.below(40) {
            0..4 => format!("@{}", self.rng.below(HANDLES)),
            4 => self.anything(model),
            _ => self.existing(model, |it| it.is_some_and(|inode| inode.content().is_some())),
        }
    }

    fn volume(&mut self, model: &Model) -> String {
        let ids: Vec<u64> = model.volumes.keys().copied().collect();
        let id = *self.rng.pick(&ids);
        path_of_volume(model, id).filter(|path| !path.is_empty()).unwrap_or_else(|| "/".into())
    }

    // ---- names ----

    fn name_op(&mut self, model: &Model) -> Op {
        let choice = if self.crowded { 40 + self.rng.below(60) } else { self.rng.below(100) };
        match choice {
            0..45 => self.make_op(model),
            45 if self.rng.one_in(10) => {
                self.plan_links(model);
                Op::List { at: "/".into() }
            }
            45..52 => {
                let from = match self.rng.one_in(6) {
                    true => format!("@{}", self.rng.below(HANDLES)),
                    false => self.existing(model, |it| it.is_some_and(|it| it.nlink > 0)),
                };
                Op::Link { from, to: self.fresh(model) }
            }
            52..70 => self.rename_op(model),
            70..86 => Op::Unlink {
                at: self.existing(model, |it| it.is_some_and(|it| it.directory().is_none())),
            },
            86..96 => {
                let is_empty = |it: Option<&Inode>| it.is_none_or(|it| it.directory().is_some());
                Op::Rmdir { at: self.existing(model, is_empty) }
            }
            96..98 => Op::Hold { handle: self.rng.below(HANDLES) as u8, at: self.anything(model) },
            _ => Op::Release { handle: self.rng.below(HANDLES) as u8 },
        }
    }

    fn make_op(&mut self, model: &Model) -> Op {
        let at = self.fresh(model);
        let owner = self.rng.below(3) as u32 * 1000;
        let mode = *self.rng.pick(&[0o644, 0o755, 0o600, 0o4755, 0o2755, 0o1777, 0o777]);
        let what = match self.rng.below(20) {
            0..12 => Make::File,
            12..16 => Make::Directory,
            16..18 => {
                let len =
                    if self.rng.one_in(20) { self.rng.below(4200) } else { self.rng.below(60) };
                Make::Link("t/".repeat(len as usize / 2))
            }
            18 => {
                let handle = self.rng.below(HANDLES) as u8;
                return Op::Temporary { handle, dir: self.directory(model).0 + "/", mode };
            }
            _ => match self.rng.below(4) {
                0 => Make::Special(FileKind::Character, 1 << 20 | 3),
                1 => Make::Special(FileKind::Block, 259 << 20 | self.rng.below(1 << 20)),
                2 => Make::Special(FileKind::Fifo, 0),
                _ => Make::Special(FileKind::Socket, 0),
            },
        };
        let mode = if matches!(what, Make::Link(_)) { 0o777 } else { mode };
        Op::Make { at, what, mode, owner }
    }

    /// One file gains and loses names by the dozen, more than are looked at one by one, mostly within a transaction.
    fn plan_links(&mut self, model: &Model) {
        let from = self.existing(model, |it| it.is_some_and(|it| it.content().is_some()));
        let dirs = [self.directory(model).0, self.directory(model).0];
        for _ in 0..20 + self.rng.below(60) {
            let mut name = || format!("{}/ln{}", self.rng.pick(&dirs), self.rng.below(60));
            let (at, to, from) = (name(), name(), from.clone());
            self.next.push_back(match self.rng.below(12) {
                0..7 => Op::Link { from, to },
                7..10 => Op::Unlink { at },
                10 => Op::Rename { from: at, to, how: Rename::Replace },
                _ => Op::Rename { from: at, to, how: Rename::Exchange },
            });
        }
    }

    fn rename_op(&mut self, model: &Model) -> Op {
        let from = self.existing(model, |_| true);
        let to =
            if self.rng.one_in(2) { self.fresh(model) } else { self.existing(model, |_| true) };
        let how = match self.rng.below(10) {
            0..6 => Rename::Replace,
            6..8 => Rename::NoReplace,
            _ => Rename::Exchange,
        };
        Op::Rename { from, to, how }
    }

    // ---- data ----

    fn data_op(&mut self, model: &Model) -> Op {
        let at = self.file(model);
        let size = model.resolve(&at).ok().and_then(|node| model.content(node));
        let size = size.map_or(0, |content| content.size());
        let choice = if self.full { 45 + self.rng.below(55) } else { self.rng.below(100) };
        match choice {
            0..50 => {
                let (offset, len) = self.range(size, self.profile.large);
                let seed = if self.rng.one_in(9) { 0 } else { self.rng.below(1 << 20) as u32 };
                Op::Write { at, offset, len: len as usize, seed }
            }
            50..65 => {
                let (offset, len) = self.range(size, 128 << 10);
                Op::Read { at, offset, len: len as usize }
            }
            65..77 => Op::Truncate { at, size: self.new_size(size) },
            77..88 => {
                let (offset, len) = self.range(size, self.profile.large / 2);
                let mode = self.allocate_mode();
                Op::Allocate { at, mode, offset, len: len.max(1) }
            }
            _ => self.clone_op(model, at, size),
        }
    }

    fn allocate_mode(&mut self) -> Allocate {
        let punch = if self.full { 10 } else { 4 };
        match self.rng.below(10) {
            choice if choice < punch => Allocate::PunchHole,
            4..6 => Allocate::Reserve { keep_size: false },
            6 => Allocate::Reserve { keep_size: true },
            7 | 8 => Allocate::ZeroRange { keep_size: false },
            _ => Allocate::ZeroRange { keep_size: true },
        }
    }

    /// Where something is done in a file of `size` bytes, and how many bytes: up to `large`, rarely.
    fn range(&mut self, size: u64, large: u64) -> (u64, u64) {
        let offset = match self.rng.below(40) {
            0..8 => 0,
            8..16 => size,
            16..24 => self.rng.below(size.min(1 << 22) + 1),
            24..30 => self.rng.below(size.min(1 << 22) + 1) / PAGE * PAGE,
            30..36 => self.rng.below(1 << 17),
            36..39 => self.rng.below(1 << 21),
            _ => self.rng.below(1 << 36),
        };
        let len = match self.rng.below(40) {
            _ if self.rng.one_in(self.profile.large_in) => 1 + self.rng.below(large),
            0..16 => 1 + self.rng.below(300),
            16..30 => 1 + self.rng.below(10_000),
            30..36 => PAGE * (1 + self.rng.below(12)),
            _ => 1 + self.rng.below(100_000),
        };
        // Files that are short enough to be kept in their item.
        if size == 0 && self.rng.one_in(2) { (0, len % 3000) } else { (offset, len) }
    }

    fn new_size(&mut self, size: u64) -> u64 {
        match self.rng.below(20) {
            0..3 => 0,
            3..9 => self.rng.below(size + 1),
            9..13 => self.rng.below(size + 1) / PAGE * PAGE,
            13..15 => size + self.rng.below(10_000),
            15..19 => self.rng.below(1 << 18),
            _ => self.rng.below(1 << 36),
        }
    }

    fn clone_op(&mut self, model: &Model, from: String, size: u64) -> Op {
        let to = if self.rng.one_in(4) { from.clone() } else { self.file(model) };
        let (mut offset, mut len) = self.range(size, 1 << 20);
        let mut to_offset = self.rng.below(1 << 18);
        if !self.rng.one_in(12) {
            offset = offset / PAGE * PAGE;
            to_offset = to_offset / PAGE * PAGE;
            len = len.next_multiple_of(PAGE);
        }
        match self.rng.below(6) {
            0 => (offset, len, to_offset) = (0, size.max(1), 0),
            1 => to_offset = 0,
            _ => {}
        }
        Op::Clone { from, offset, len: len.min(1 << 30), to, to_offset }
    }

    // ---- the rest ----

    fn attribute_op(&mut self, model: &Model) -> Op {
        let at = self.anything(model);
        match self.rng.below(16) {
            0..8 => {
                let name = (*self.rng.pick(&XATTRS)).to_owned();
                let len = match self.rng.below(30) {
                    0 => {
                        (model.nodesize as usize - XATTR_ROOM - name.len() - 2)
                            + self.rng.below(5) as usize
                    }
                    1..4 => self.rng.below(3000) as usize,
                    _ => self.rng.below(120) as usize,
                };
                let seed = self.rng.below(1 << 20) as u32;
                let how = match self.rng.below(8) {
                    0 => SetXattr::Create,
                    1 => SetXattr::Replace,
                    _ => SetXattr::Any,
                };
                Op::SetXattr { at, name, len, seed, how }
            }
            8..11 => Op::RemoveXattr { at, name: (*self.rng.pick(&XATTRS)).to_owned() },
            11..13 => Op::Chmod { at, mode: self.rng.below(0o10000) as u32 },
            13 => {
                let (uid, gid) = (self.rng.below(1 << 32) as u32, self.rng.below(5000) as u32);
                Op::Chown { at, uid, gid }
            }
            _ => {
                let time = |rng: &mut Rng| rng.below(1 << 34) as i64 - (1 << 33);
                Op::Utimes { at, atime: time(&mut self.rng), mtime: time(&mut self.rng) }
            }
        }
    }

    fn look_op(&mut self, model: &Model) -> Op {
        if self.rng.one_in(3) {
            Op::List { at: self.directory(model).0 + "/" }
        } else {
            Op::Look { at: self.anything(model) }
        }
    }

    fn volume_op(&mut self, model: &Model) -> Op {
        let many = model.volumes.len() >= self.profile.volumes_max || self.crowded;
        let choice = if many { 60 + self.rng.below(40) } else { self.rng.below(100) };
        match choice {
            0..20 => Op::Subvolume { at: self.fresh(model), owner: self.rng.below(2) as u32 },
            20..60 => {
                let read_only = self.rng.one_in(2);
                Op::Snapshot { from: self.volume(model), to: self.fresh(model), read_only }
            }
            60..88 => Op::DeleteSubvolume { at: self.volume(model) },
            _ => Op::ReadOnly { at: self.volume(model), on: self.rng.one_in(3) },
        }
    }
}

/// The path of a subvolume's top in the model.
pub(super) fn path_of_volume(model: &Model, id: u64) -> Option<String> {
    let (mut node, mut path) = (Node::top(id), String::new());
    while node != model.root {
        let (dir, name) = if node.is_top() {
            model.volumes.get(&node.subvolume)?.place.clone()?
        } else {
            let parent = model.inode(node)?.directory()?.parent;
            let dir = Node { ino: parent, ..node };
            let entries = &model.inode(dir)?.directory()?.entries;
            let named = entries.iter().find(|(_, (t, _))| *t == Target::Inode(node.ino));
            (dir, named?.0.clone())
        };
        path = format!("/{}{path}", String::from_utf8_lossy(&name));
        node = dir;
    }
    Some(path)
}
