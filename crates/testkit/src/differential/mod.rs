//! The same operations on a kernel mount and on ours, in system calls, and the comparison of all answers.
//!
//! A [`Pair`] has two images that `mkfs.btrfs` made alike, one mounted by the kernel, one by our FUSE mount in a process of
//! its own. Each operation of the generator runs on both (`calls`): results, errnos, and then the attributes of all that
//! the operation named, must be equal. `Compare` compares the whole trees (`tree`), `Reopen` unmounts and swaps the
//! images, so that each side goes on with what the other has written, `Check` asks `btrfs check` about both. The model only
//! follows what has happened (`follow`): the generator looks at it to choose what comes next.
//!
//! Some reads and writes go through mapped pages (`pages`).
//!
//! Where the two differ and that is right, `Excuse` has the reason: it is the complete list.

mod calls;
mod excuse;
mod follow;
mod mounted;
mod pages;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::model::{Body, Directory, Inode, Model};
use crate::ops::Op;
use crate::ops::rng::Rng;
use crate::ops::run::{Failure, Result, fail};
use crate::oracle;
use buttress::{Allocate, Node, Times};
use rustix::io::Errno;

pub use excuse::{Excuse, TABLE};
pub use mounted::serve;

use calls::{Answer, Caller};
use mounted::{Mounted, Who};

/// Does operations on an image that Linux has mounted, and something before it is unmounted.
pub fn on_linux(image: &Path, ops: &[Op], then: impl FnOnce() -> Result<()>) -> Result<()> {
    let mounted = Mounted::new(Who::Kernel, image, image, None)?;
    let mut caller = Caller::new(mounted);
    let done = ops.iter().try_for_each(|op| match op {
        Op::Commit => caller.sync(),
        op => asked(&op.to_string(), caller.call(op).result).map(drop),
    });
    let done = done.and_then(|()| then());
    caller.end()?;
    done
}

/// A filesystem to be made twice.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of the image; sparse.
    pub size: u64,
    /// Bytes of a tree block.
    pub nodesize: u32,
    /// Holes of files need no items.
    pub no_holes: bool,
    /// Block groups of our mount are emptied beside all operations, with rests of so many milliseconds.
    pub rest: Option<u64>,
}

impl Shape {
    /// A shape chosen by a seed.
    pub fn of_seed(seed: u64) -> Shape {
        let mut rng = Rng::new(seed ^ 0xd1ff);
        let nodesize = *rng.pick(&[4096, 16384, 65536]);
        Shape { size: 3 << 30, nodesize, no_holes: !rng.one_in(3), rest: None }
    }
}

/// What has happened.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Operations that both did.
    pub done: u64,
    /// Operations that both refused with the same errno.
    pub refused: u64,
    /// Operations that had nothing to work on: a handle that holds nothing.
    pub skipped: u64,
    /// Operations that are not run, by the reason.
    pub left_out: BTreeMap<&'static str, u64>,
    /// Answers that differ, by the reason.
    pub excused: BTreeMap<&'static str, u64>,
    /// Comparisons of everything.
    pub compared: u64,
    /// Times that the images were swapped.
    pub swapped: u64,
    /// Runs of `btrfs check`, for both.
    pub checked: u64,
}

impl Counts {
    /// Adds what has happened elsewhere.
    pub fn add(&mut self, other: &Counts) {
        self.done += other.done;
        self.refused += other.refused;
        self.skipped += other.skipped;
        self.compared += other.compared;
        self.swapped += other.swapped;
        self.checked += other.checked;
        let reasons = [(&mut self.left_out, &other.left_out), (&mut self.excused, &other.excused)];
        for (all, more) in reasons {
            for (word, count) in more {
                *all.entry(word).or_default() += count;
            }
        }
    }
}

/// The two filesystems.
pub struct Pair {
    /// Goes before the directory that it is mounted in.
    sides: Option<[Caller; 2]>,
    dir: TempDir,
    /// The images of the kernel's and of our mount.
    images: [PathBuf; 2],
    model: Model,
    /// Holes of files need no items.
    no_holes: bool,
    /// See [`Shape::rest`].
    rest: Option<u64>,
    /// Numbers for the model's files and subvolumes.
    next: u64,
    /// What has happened so far.
    pub counts: Counts,
    /// Whether to go on where answers differ in attributes alone: the first of each sort is printed.
    pub goes_on: bool,
    shown: BTreeSet<String>,
}

/// An error of an oracle as a failure.
fn asked<T, E: std::fmt::Display>(what: &str, result: std::result::Result<T, E>) -> Result<T> {
    result.map_err(|error| Failure(format!("{what}: {error}")))
}

impl Pair {
    /// Two new filesystems, mounted.
    pub fn new(shape: &Shape) -> Result<Pair> {
        let dir = asked("directory", quick_dir())?;
        let images = ["first", "second"].map(|name| dir.path().join(name));
        let nodesize = shape.nodesize.to_string();
        let mut arguments = vec!["-n", &nodesize];
        if !shape.no_holes {
            arguments.extend(["-O", "^no-holes"]);
        }
        for image in &images {
            asked("mkfs", oracle::mkfs(image, shape.size, &arguments))?;
        }
        let model = Model::new(Node::ROOT, directory(0o755), shape.nodesize);
        let (next, counts) = (1 << 20, Counts::default());
        let (goes_on, shown) = (false, BTreeSet::new());
        let Shape { no_holes, rest, .. } = *shape;
        let mut pair =
            Pair { dir, images, sides: None, model, no_holes, rest, next, counts, goes_on, shown };
        pair.mount()?;
        Ok(pair)
    }

    /// The model of what both hold.
    pub fn model(&self) -> &Model {
        &self.model
    }

    fn mount(&mut self) -> Result<()> {
        let mountpoint = self.dir.path().join("mounted");
        let kernel = Mounted::new(Who::Kernel, &self.images[0], &mountpoint, None)?;
        let ours = Mounted::new(Who::Ours, &self.images[1], &mountpoint, self.rest)?;
        self.sides = Some([Caller::new(kernel), Caller::new(ours)]);
        Ok(())
    }

    fn unmount(&mut self) -> Result<()> {
        for side in self.sides.take().into_iter().flatten() {
            side.end()?;
        }
        Ok(())
    }

    fn sides(&mut self) -> Result<&mut [Caller; 2]> {
        self.sides.as_mut().ok_or_else(|| Failure("not mounted".into()))
    }

    /// Does an operation on both sides.
    pub fn step(&mut self, op: &Op) -> Result<()> {
        let done = match op {
            Op::Compare => self.compare(),
            Op::Reopen => self.swap(),
            Op::Check => self.check(),
            Op::Commit | Op::Beside | Op::Clean => self.sync(),
            Op::Flush | Op::Await | Op::Drain | Op::Empty { .. } | Op::Trim => Ok(()),
            // No call on a file shows them, and what Linux counts of a subvolume that is dropped half way `btrfs check` calls wrong.
            Op::Quotas { .. } => Ok(()),
            op => self.both(op),
        };
        done.map_err(|Failure(why)| Failure(format!("{op}: {why}")))
    }

    fn both(&mut self, op: &Op) -> Result<()> {
        if follow::has_nothing(&self.model, op) {
            self.counts.skipped += 1;
            return Ok(());
        }
        if let Some(reason) = excuse::left_out(&self.model, self.no_holes, op) {
            *self.counts.left_out.entry(reason.word).or_default() += 1;
            return Ok(());
        }
        let [kernel, ours] = self.sides()?;
        let (mut theirs, mut ours) = (kernel.call(op), ours.call(op));
        for answer in [&mut theirs, &mut ours] {
            answer.seen.retain(|it| !excuse::is_stub(&self.model, &it.at));
        }
        if theirs != ours {
            match excuse::excuse(&self.model, op, &theirs, &ours) {
                Some(reason) => {
                    *self.counts.excused.entry(reason.word).or_default() += 1;
                    self.excused(op, &theirs, &ours)?;
                }
                None => self.differs(op, &theirs, &ours)?,
            }
        }
        if theirs.result.is_err() {
            self.counts.refused += 1;
            if let Op::Write { at, .. } = op
                && theirs.result == Err(Errno::ROFS)
            {
                let [_, ours] = self.sides()?;
                ours.forget_refused_pages(at)?;
            }
            return Ok(());
        }
        self.counts.done += 1;
        self.next += 1;
        follow::follow(&mut self.model, op, self.next, &theirs);
        for handle in self.model.lost_handles() {
            self.model.handles.remove(&handle);
            self.sides()?.iter_mut().for_each(|side| side.release(handle));
        }
        Ok(())
    }

    /// Where one side did what the other refused, that is taken back.
    fn excused(&mut self, op: &Op, theirs: &Answer, ours: &Answer) -> Result<()> {
        if let Some(at) = excuse::changed_stub(&self.model, op) {
            let [kernel, _] = self.sides()?;
            return asked("the mode of before", kernel.mend_stub(at));
        }
        if let Op::Allocate { at, mode: Allocate::PunchHole, .. } = op
            && theirs.result.is_ok()
        {
            let [kernel, ours] = self.sides()?;
            return asked("the times of before", ours.mend_times(kernel, at));
        }
        if theirs.result.is_ok() || ours.result.is_err() {
            return Ok(());
        }
        let lost = matches!(op, Op::Hold { handle, .. } if self.model.handles.contains_key(handle));
        let [kernel, ours] = self.sides()?;
        match op {
            // What was held before is not there any more for us: so it goes for the kernel, too.
            Op::Hold { handle, .. } => {
                ours.release(*handle);
                if lost {
                    kernel.release(*handle);
                    self.model.release(*handle);
                }
                Ok(())
            }
            Op::SetXattr { at, name, .. } => {
                asked("the xattr of before", ours.mend_xattr(kernel, at, name))
            }
            _ => Ok(()),
        }
    }

    /// Two answers differ without a reason.
    fn differs(&mut self, op: &Op, theirs: &Answer, ours: &Answer) -> Result<()> {
        let said = format!("the kernel: {theirs}\n  we: {ours}");
        if !self.goes_on || theirs.result.is_ok() != ours.result.is_ok() {
            return fail(said);
        }
        if self.shown.insert(excuse::sort(op, theirs, ours)) {
            println!("{op}: {said}");
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.sides()?.iter().try_for_each(Caller::sync)
    }

    /// Compares everything.
    pub fn compare(&mut self) -> Result<()> {
        self.sync()?;
        self.counts.compared += 1;
        self.alike()
    }

    fn alike(&mut self) -> Result<()> {
        let goes_on = self.goes_on;
        let [kernel, ours] = self.sides()?;
        match tree::same(kernel.top(), ours.top()) {
            Err(Failure(why)) if goes_on => {
                println!("{why}");
                Ok(())
            }
            compared => compared,
        }
    }

    /// Unmounts, and lets each go on with the other's image.
    fn swap(&mut self) -> Result<()> {
        self.counts.swapped += 1;
        self.unmount()?;
        self.model.close();
        self.images.swap(0, 1);
        self.mount()?;
        self.alike()
    }

    /// Lets `btrfs check` judge both images.
    pub fn check(&mut self) -> Result<()> {
        self.unmount()?;
        self.model.close();
        self.counts.checked += 1;
        for (image, who) in self.images.iter().zip(["the kernel", "ours"]) {
            asked(who, oracle::check(image, true))?;
        }
        self.mount()
    }

    /// Compares everything, swaps, compares again, and checks both images.
    pub fn finish(mut self) -> Result<Counts> {
        self.compare()?;
        self.swap()?;
        self.check()?;
        self.unmount()?;
        Ok(self.counts)
    }

    /// Keeps the images, as they are, in this directory.
    pub fn keep(mut self, dir: &std::path::Path) -> Result<()> {
        self.unmount()?;
        for (image, name) in self.images.iter().zip(["kernel.img", "ours.img"]) {
            asked("copy", oracle::copy_sparse(image, &dir.join(name)))?;
        }
        Ok(())
    }
}

/// A directory in memory if there is one: all these commits would wait for a disk.
fn quick_dir() -> std::io::Result<TempDir> {
    let builder = || {
        let mut builder = tempfile::Builder::new();
        builder.prefix("buttress-differential-");
        builder
    };
    builder().tempdir_in("/dev/shm").or_else(|_| builder().tempdir())
}

/// An empty directory in the model.
fn directory(mode: u32) -> Inode {
    Inode {
        mode,
        uid: 0,
        gid: 0,
        nlink: 1,
        times: Times::default(),
        xattrs: Default::default(),
        body: Body::Directory(Directory { parent: 256, ..Directory::default() }),
    }
}
