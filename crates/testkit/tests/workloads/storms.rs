//! Random operations of every sort on filesystems of random shape, some of them small enough to be full now and then.
//! `BUTTRESS_SEED=n` runs one storm, `BUTTRESS_SEEDS=a-b` a range of them.

use std::time::Duration;

use buttress::{Allocate, Change, Errno, FileKind, Filesystem, New, Node, Options, Owner, Rename};
use buttress::{Error, Result, SetXattr};
use buttress_testkit::facts::{Facts, diff};

use crate::image::{Image, features};
use crate::judge::{glance, judge};
use crate::ours;
use crate::tools::{Numbers, bytes, content, put_at, touch};

/// Operations between two openings.
const STEPS: usize = 700;
/// Files whose bytes are known.
const TWINS: usize = 5;
/// Bytes that such a file has at most.
const TWIN_LEN: u64 = 1 << 20;

#[test]
fn storms() {
    let seeds = std::env::var("BUTTRESS_SEEDS").ok().or(std::env::var("BUTTRESS_SEED").ok());
    let seeds = seeds.unwrap_or("1-3".into());
    let (from, to) = seeds.split_once('-').unwrap_or((&seeds, &seeds));
    for seed in from.parse().unwrap()..=to.parse::<u64>().unwrap() {
        println!("storm {seed}");
        storm(seed);
    }
}

/// A filesystem of some shape.
fn image(numbers: &mut Numbers) -> Image {
    let nodesize = 4096 << numbers.below(5);
    let mib = [130, 200, 300, 2000][numbers.below(4) as usize];
    let checksums = ["crc32c", "xxhash", "sha256", "blake2"];
    let checksum = checksums[numbers.below(4) as usize];
    let (mixed, holes) = (numbers.below(6) == 0, numbers.below(4) == 0);
    let (metadata, data) = (numbers.below(2), numbers.below(4));
    let profile = |number| if number == 0 { "dup" } else { "single" };
    let tree = numbers.below(6) != 0;
    let mib = if data == 0 { 200.max(mib) } else { mib };
    println!(
        "{mib} MiB, nodes of {nodesize}, {checksum}, mixed {mixed}, no-holes off {holes}, {tree}"
    );
    if mixed || numbers.below(2) == 0 {
        let nodes = if mixed { 4096 } else { nodesize }.to_string();
        let mut args = vec!["-n", &nodes, "--csum", checksum];
        match mixed {
            true => args.push("-M"),
            false => args.extend(["-m", profile(metadata), "-d", profile(data)]),
        }
        args.extend(if holes { vec!["-O", "^no-holes"] } else { vec![] });
        args.extend(if tree { vec![] } else { vec!["-R", "^free-space-tree"] });
        return Image::by_progs(mib << 20, &args);
    }
    Image::by_us(mib << 20, |options| {
        options.nodesize = Some(nodesize as u32);
        options.checksum = buttress_mkfs::parse_checksum(checksum).unwrap();
        options.metadata_profile = Some(buttress_mkfs::parse_profile(profile(metadata)).unwrap());
        if holes {
            features(options, "^no-holes");
        }
    })
}

/// Fills most of a small filesystem with data, or with metadata.
fn ballast(fs: &Filesystem, numbers: &mut Numbers) {
    let len = match numbers.below(3) {
        0 => 1500,
        1 => 3 << 20,
        _ => return,
    };
    let most = if len < 4096 { 210 << 20 } else { 400 << 20 };
    if fs.usage().device_total > most {
        return;
    }
    let dir = fs.create(Node::ROOT, b"twins-ballast", &New::directory(0o700)).unwrap().node;
    let name = |number| format!("{number:0200}").into_bytes();
    let mut made = 0_u32;
    while put_at(fs, dir, &name(made), &bytes(len, made)) == Some(len) {
        made += 1;
    }
    let spare = [made / 100, made / 10, made / 3][numbers.below(3) as usize];
    for number in 0..spare {
        fs.unlink(dir, &name(number)).unwrap();
    }
    println!("ballast of {len} bytes each: {made} files, {spare} deleted");
}

/// What is known while the operations go on.
struct World {
    fs: Filesystem,
    numbers: Numbers,
    /// Writable subvolumes.
    subvolumes: Vec<u64>,
    /// Read-only snapshots and what they must show for ever.
    frozen: Vec<(u64, Facts)>,
    twins: Vec<(Node, Vec<u8>)>,
    /// Some directories, of which a few may be gone.
    dirs: Vec<Node>,
    names: u64,
}

fn storm(seed: u64) {
    let mut numbers = Numbers::new(seed);
    let image = image(&mut numbers);
    let fs = image.open();
    let top = fs.create(Node::ROOT, b"twins", &New::directory(0o755)).unwrap().node;
    let twins = (0..TWINS).map(|it| (touch(&fs, top, &format!("{it}")), Vec::new())).collect();
    ballast(&fs, &mut numbers);
    let dirs = vec![Node::ROOT];
    let mut world =
        World { fs, numbers, subvolumes: vec![5], frozen: vec![], twins, dirs, names: 0 };
    for sitting in 0..3 {
        for _ in 0..STEPS {
            world.step();
        }
        world.check();
        if sitting < 2 {
            let fs = std::mem::replace(&mut world.fs, image.open_read_only());
            glance(&image, fs);
            world.fs = image.open_with(world.options());
            world.check();
        }
    }
    judge(&image, world.fs);
}

/// What may be refused: full, gone, taken, of another kind, or read-only.
fn tolerated<T>(result: Result<T>) -> Option<T> {
    let usual = [
        Errno::NOSPC,
        Errno::NOENT,
        Errno::EXIST,
        Errno::NOTEMPTY,
        Errno::ISDIR,
        Errno::NOTDIR,
        Errno::INVAL,
        Errno::XDEV,
        Errno::OPNOTSUPP,
        Errno::PERM,
    ];
    let stub = |error: &Error| matches!(error, Error::User(Errno::ROFS));
    let right = |error: &Error| usual.contains(&error.errno()) || stub(error);
    result.inspect_err(|error| assert!(right(error), "{error}")).ok()
}

/// The same, when the answer does not matter.
fn may<T>(result: Result<T>) {
    let _ = tolerated(result);
}

impl World {
    fn options(&mut self) -> Options {
        let options = Options::read_write()
            .background(self.numbers.below(3) > 0)
            .commit_interval(Duration::from_millis(100 + self.numbers.below(900)));
        let bytes = [300 << 10, 4 << 20, 128 << 20][self.numbers.below(3) as usize];
        options.dirty_bytes_max(bytes)
    }

    fn any<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.numbers.below(of.len() as u64) as usize]
    }

    fn dir(&mut self) -> Node {
        let dirs = std::mem::take(&mut self.dirs);
        let dir = self.any(&dirs);
        self.dirs = dirs;
        dir
    }

    /// A name that is there, perhaps.
    fn entry(&mut self, dir: Node) -> Option<buttress::Entry> {
        let skip = self.numbers.below(12);
        let (mut seen, mut found) = (0, None);
        let from = self.numbers.below(60);
        tolerated(self.fs.read_dir(dir, from, &mut |entry| {
            seen += 1;
            found = Some(entry);
            seen <= skip
        }));
        found.filter(|found| !found.name.starts_with(b"twins"))
    }

    fn name(&mut self) -> Vec<u8> {
        self.names += 1;
        match self.numbers.below(4) {
            0 => format!("n{}", self.numbers.below(50)).into_bytes(),
            1 => vec![b'a' + (self.names % 26) as u8; 1 + self.numbers.below(250) as usize],
            _ => format!("name-{}", self.names).into_bytes(),
        }
    }

    fn data(&mut self) -> Vec<u8> {
        let most = self.any(&[100, 3000, 30_000, 30_000, 1_000_000]);
        bytes(self.numbers.below(most) as usize, self.numbers.next() as u32)
    }

    fn step(&mut self) {
        match self.numbers.below(100) {
            0..20 => self.make(),
            20..45 => self.change_file(),
            45..60 => self.move_name(),
            60..72 => self.remove(),
            72..90 => self.scribble(),
            90..93 => self.subvolume(),
            93..96 => self.snapshot(),
            96..98 => self.delete_subvolume(),
            98 => may(self.fs.commit()),
            _ => may(self.fs.clean()),
        }
    }

    fn make(&mut self) {
        let (dir, name, data) = (self.dir(), self.name(), self.data());
        let new = match self.numbers.below(12) {
            0..3 => New::directory(0o755),
            3 => New::symlink(vec![b't'; 1 + self.numbers.below(900) as usize]),
            4 => New::of(FileKind::Fifo, 0o600),
            _ => New::file(0o644),
        };
        let Some(made) = tolerated(self.fs.create(dir, &name, &new)) else { return };
        match made.kind {
            FileKind::Directory => self.dirs.push(made.node),
            FileKind::Regular => may(self.fs.write(made.node, 0, &data)),
            _ => {}
        }
    }

    fn change_file(&mut self) {
        let dir = self.dir();
        let Some(entry) = self.entry(dir) else { return };
        let (fs, node, numbers) = (self.fs.clone(), entry.node, &mut self.numbers);
        if entry.kind == FileKind::Directory {
            let change = Change { mode: Some(0o711), uid: Some(7), ..Change::default() };
            may(fs.set_attributes(node, &change));
            return;
        }
        if entry.kind != FileKind::Regular {
            return;
        }
        let (at, len) = (numbers.below(200_000), 1 + numbers.below(100_000));
        match numbers.below(9) {
            0 => {
                let change = Change { size: Some(at), ..Change::default() };
                may(fs.set_attributes(node, &change));
            }
            1 => may(fs.fallocate(node, Allocate::PunchHole, at, len)),
            2 => {
                let mode = Allocate::Reserve { keep_size: at % 2 == 0 };
                may(fs.fallocate(node, mode, at, len * 10));
            }
            3 => {
                let mode = Allocate::ZeroRange { keep_size: at % 2 == 0 };
                may(fs.fallocate(node, mode, at, len));
            }
            4 => {
                let name = format!("user.{}", numbers.below(20));
                let value = bytes(numbers.below(2000) as usize, 1);
                may(fs.set_xattr(node, name.as_bytes(), &value, SetXattr::Any));
            }
            5 => {
                let other = self.dir();
                if let Some(from) = self.entry(other).filter(|it| it.kind == FileKind::Regular) {
                    let at = at / 4096 * 4096;
                    may(fs.clone_range(from.node, 0, len / 4096 * 4096, node, at));
                }
            }
            _ => {
                let data = self.data();
                may(fs.write(node, at, &data));
            }
        }
    }

    fn move_name(&mut self) {
        let (from, to, new) = (self.dir(), self.dir(), self.name());
        let Some(entry) = self.entry(from) else { return };
        let fs = self.fs.clone();
        match self.numbers.below(6) {
            0 | 1 => may(fs.link(entry.node, to, &new)),
            2 => {
                if let Some(other) = self.entry(to) {
                    let how = Rename::Exchange;
                    may(fs.rename(from, &entry.name, to, &other.name, how));
                }
            }
            3 => {
                if let Some(other) = self.entry(to) {
                    let how = Rename::Replace;
                    may(fs.rename(from, &entry.name, to, &other.name, how));
                }
            }
            _ => may(fs.rename(from, &entry.name, to, &new, Rename::NoReplace)),
        }
    }

    fn remove(&mut self) {
        let dir = self.dir();
        for _ in 0..3 {
            let Some(entry) = self.entry(dir) else { return };
            match entry.kind {
                FileKind::Directory if entry.node.is_top() => {}
                FileKind::Directory => may(self.fs.rmdir(dir, &entry.name)),
                _ => may(self.fs.unlink(dir, &entry.name)),
            }
        }
    }

    /// Changes a file whose bytes are known.
    fn scribble(&mut self) {
        let which = self.numbers.below(TWINS as u64) as usize;
        let (at, data) = (self.numbers.below(TWIN_LEN), self.data());
        let data = &data[..data.len().min((TWIN_LEN - at) as usize)];
        let how = self.numbers.below(8);
        let other = self.twins[self.numbers.below(TWINS as u64) as usize].clone();
        let (fs, (node, known)) = (&self.fs, &mut self.twins[which]);
        let (start, end) = (at as usize, at as usize + data.len());
        match how {
            0 => {
                let change = Change { size: Some(at), ..Change::default() };
                if tolerated(fs.set_attributes(*node, &change)).is_some() {
                    known.resize(at as usize, 0);
                }
            }
            1 if !data.is_empty() => {
                let mode = Allocate::PunchHole;
                if tolerated(fs.fallocate(*node, mode, at, data.len() as u64)).is_some() {
                    let end = end.min(known.len());
                    known.get_mut(start..end).unwrap_or_default().fill(0);
                }
            }
            2 if other.0 != *node => {
                let to = at / 4096 * 4096;
                let done = tolerated(fs.clone_range(other.0, 0, u64::MAX, *node, to));
                let start = to as usize;
                // For want of room only the first part may be there.
                let cloned = match done {
                    Some(_) => other.1.len(),
                    None => {
                        let have = content(fs, *node);
                        let both = have.get(start..).unwrap_or_default().iter().zip(&other.1);
                        both.take_while(|(have, from)| have == from).count()
                    }
                };
                // Nothing to clone changes nothing.
                if cloned > 0 {
                    known.resize(known.len().max(start + cloned), 0);
                    known[start..start + cloned].copy_from_slice(&other.1[..cloned]);
                    self.cut(which);
                }
            }
            _ => {
                let done = tolerated(fs.write(*node, at, data)).unwrap_or(0);
                if done > 0 {
                    known.resize(known.len().max(start + done), 0);
                    known[start..start + done].copy_from_slice(&data[..done]);
                }
            }
        }
    }

    /// Keeps a file from growing without end.
    fn cut(&mut self, which: usize) {
        let (node, known) = &mut self.twins[which];
        if known.len() as u64 > TWIN_LEN {
            let change = Change { size: Some(TWIN_LEN), ..Change::default() };
            if tolerated(self.fs.set_attributes(*node, &change)).is_some() {
                known.truncate(TWIN_LEN as usize);
            }
        }
    }

    fn subvolume(&mut self) {
        let (dir, name) = (self.dir(), self.name());
        if let Some(id) = tolerated(self.fs.create_subvolume(dir, &name, Owner::default())) {
            self.subvolumes.push(id);
            self.dirs.push(Node::top(id));
        }
    }

    fn snapshot(&mut self) {
        let (dir, name) = (self.dir(), self.name());
        let subvolumes = self.subvolumes.clone();
        let (source, read_only) = (self.any(&subvolumes), self.numbers.below(2) == 0);
        let Some(id) = tolerated(self.fs.snapshot(source, dir, &name, read_only)) else { return };
        if read_only {
            self.frozen.push((id, ours::facts_below(&self.fs, Node::top(id))));
        } else {
            self.subvolumes.push(id);
            self.dirs.push(Node::top(id));
        }
    }

    fn delete_subvolume(&mut self) {
        let all = self.fs.subvolumes().unwrap();
        if all.is_empty() {
            return;
        }
        let info = &all[self.numbers.below(all.len() as u64) as usize];
        let dir = Node { subvolume: info.parent, ino: info.dir };
        if tolerated(self.fs.delete_subvolume(dir, &info.name)).is_some() {
            self.subvolumes.retain(|id| *id != info.id);
            self.frozen.retain(|(id, _)| *id != info.id);
            self.dirs.retain(|dir| dir.subvolume != info.id);
        }
    }

    fn check(&self) {
        for (number, (node, known)) in self.twins.iter().enumerate() {
            assert!(content(&self.fs, *node) == *known, "file {number}");
        }
        for (id, expect) in &self.frozen {
            let lines = diff(&ours::facts_below(&self.fs, Node::top(*id)), expect);
            assert!(lines.is_empty(), "snapshot {id}: {lines:#?}");
        }
    }
}
