//! Goes through a file or directory and says what each of it takes.
//!
//! What is said is what `btrfs filesystem du` says on the kernel's mount, found by trying: entries come in the order of their directory, a
//! directory after what is in it; a file with several names counts with the first one that is met below a target, and the others are not
//! there; of what is neither a file nor a directory nothing is said. A file takes the space of its extents: of a compressed one as much as
//! it reads as, reserved space as much as is reserved, and what is in its item nothing. What is shared of it is what fiemap calls so.
//!
//! The set of a target is what is shared of all that it has, each address once: an extent that two files below it share counts once, if
//! others share it or not. Of a file that is a target itself it is all that is shared, as often as the file has it. Of a compressed extent that is its address on the disk and the length that it reads as, as there.
//!
//! Memory is for the directories on the way, for files with several names, and for the gaps in the set ([`Ranges`]).

use std::collections::HashSet;
use std::io::Write;

use buttress::fiemap_flags;

use crate::cmd::files::{Entered, Entries, Failures};
use crate::error::Failure;
use crate::ranges::Ranges;
use crate::vfs::{Vfs, trees};
use crate::vnode::{Facts, FileError, Kind, Vnode};

/// What is tried with files.
const WHAT: &str = "cannot measure";

/// Extents that take no space of their own, or have none yet.
const WITHOUT_PLACE: u32 = fiemap_flags::UNKNOWN | fiemap_flags::DELALLOC | fiemap_flags::INLINE;

/// What something takes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// All of it.
    pub total: u64,
    /// What others refer to as well.
    pub shared: u64,
}

impl Sums {
    /// Adds what something else takes.
    pub fn add(&mut self, other: Sums) {
        self.total = self.total.saturating_add(other.total);
        self.shared = self.shared.saturating_add(other.shared);
    }

    /// What would be free without it.
    pub fn exclusive(&self) -> u64 {
        self.total.saturating_sub(self.shared)
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A regular file.
    File,
    /// A directory that is no top of a subvolume.
    Directory,
    /// The top directory of a subvolume.
    Subvolume,
}

impl What {
    fn of(vnode: &Vnode, facts: &Facts) -> What {
        match facts.kind {
            Kind::Directory if trees::is_top(vnode, facts) => What::Subvolume,
            Kind::Directory => What::Directory,
            _ => What::File,
        }
    }

    /// The name for JSON.
    pub fn word(self) -> &'static str {
        match self {
            What::File => "file",
            What::Directory => "directory",
            What::Subvolume => "subvolume",
        }
    }
}

/// Something measured.
#[derive(Debug)]
pub struct Found<'a> {
    /// It.
    pub vnode: &'a Vnode,
    /// Its name in its directory; of a target all that the user wrote.
    pub name: &'a [u8],
    /// What it is.
    pub what: What,
    /// How many directories below the target it is; 0 for the target.
    pub depth: usize,
    /// What it takes, with all below it.
    pub sums: Sums,
    /// Of a target: what is shared of all that it has, each address once.
    pub set_shared: Option<u64>,
}

/// Hears what was measured.
pub type Hear<'a> = dyn FnMut(&Found<'_>, &mut dyn Write) -> Result<(), Failure> + 'a;

/// Measures a target and all below it.
pub fn target(
    vnode: Vnode,
    failures: &mut Failures<'_>,
    out: &mut dyn Write,
    hear: &mut Hear<'_>,
) -> Result<(), Failure> {
    Walk::default().all(vnode, failures, out, hear)
}

/// On the way through a target.
#[derive(Default)]
struct Walk {
    /// The filesystem of the last directory, by its number.
    volume: Option<u64>,
    /// Files with several names, which count once.
    linked: HashSet<(u64, u64)>,
    set: Ranges,
    entered: Entered,
}

/// A directory on the way.
struct Level {
    vnode: Vnode,
    name: Vec<u8>,
    what: What,
    below: Entries,
    sums: Sums,
}

/// What came of looking at something.
enum Seen {
    File(Sums),
    /// It is gone into.
    Directory(Level),
    /// Nothing is said of it.
    Nothing,
}

impl Walk {
    fn all(
        &mut self,
        vnode: Vnode,
        failures: &mut Failures<'_>,
        out: &mut dyn Write,
        hear: &mut Hear<'_>,
    ) -> Result<(), Failure> {
        let name = vnode.name();
        let mut levels = match self.visit(&vnode, &name, 0, failures, out)? {
            Seen::Nothing => return Ok(()),
            Seen::Directory(level) => vec![level],
            Seen::File(sums) => {
                let (what, set_shared) = (What::File, Some(sums.shared));
                let found = Found { vnode: &vnode, name: &name, what, depth: 0, sums, set_shared };
                return hear(&found, out);
            }
        };
        while let Some(level) = levels.last_mut() {
            let Some((name, child)) = level.below.next() else {
                self.leave(&mut levels, out, hear)?;
                continue;
            };
            let depth = levels.len();
            match self.visit(&child, &name, depth, failures, out) {
                Ok(Seen::Nothing) => {}
                Ok(Seen::Directory(level)) => levels.push(level),
                Ok(Seen::File(sums)) => {
                    let (what, vnode) = (What::File, &child);
                    let found = Found { vnode, name: &name, what, depth, sums, set_shared: None };
                    hear(&found, out)?;
                    add(&mut levels, sums);
                }
                Err(failure) => failures.note(Err(failure), out)?,
            }
        }
        Ok(())
    }

    /// All of the last directory was seen.
    fn leave(
        &self,
        levels: &mut Vec<Level>,
        out: &mut dyn Write,
        hear: &mut Hear<'_>,
    ) -> Result<(), Failure> {
        let Some(Level { vnode, name, what, sums, .. }) = levels.pop() else { return Ok(()) };
        let depth = levels.len();
        let set_shared = (depth == 0).then(|| self.set.bytes());
        add(levels, sums);
        hear(&Found { vnode: &vnode, name: &name, what, depth, sums, set_shared }, out)
    }

    fn visit(
        &mut self,
        vnode: &Vnode,
        name: &[u8],
        depth: usize,
        failures: &mut Failures<'_>,
        out: &mut dyn Write,
    ) -> Result<Seen, Failure> {
        let facts = vnode.facts().map_err(|why| vnode.failure(WHAT, why))?;
        match facts.kind {
            Kind::Regular if facts.nlink > 1 && !self.linked.insert((facts.volume, facts.ino)) => {
                Ok(Seen::Nothing)
            }
            Kind::Regular => {
                let sums = self.file(vnode).map_err(|why| vnode.failure(WHAT, why))?;
                Ok(Seen::File(sums))
            }
            Kind::Directory => {
                self.entered.enter(vnode, &facts, depth, WHAT)?;
                self.stay(vnode, &facts)?;
                let listed = vnode.list_in_order();
                let listed = listed.map_err(|why| vnode.failure("cannot list", why))?;
                failures.note_passed(vnode, listed.passed, out)?;
                Ok(Seen::Directory(Level {
                    vnode: vnode.clone(),
                    name: name.to_vec(),
                    what: What::of(vnode, &facts),
                    below: listed.entries.into_iter(),
                    sums: Sums::default(),
                }))
            }
            _ => Ok(Seen::Nothing),
        }
    }

    /// Refuses what is mounted below a live mount and tells nothing of its extents.
    fn stay(&mut self, vnode: &Vnode, facts: &Facts) -> Result<(), Failure> {
        if self.volume.is_some_and(|volume| volume != facts.volume) {
            Vfs::of(vnode)?;
        }
        self.volume = Some(facts.volume);
        Ok(())
    }

    fn file(&mut self, vnode: &Vnode) -> Result<Sums, FileError> {
        let mut sums = Sums::default();
        for one in vnode.fiemap()? {
            let one = one?;
            if one.flags & WITHOUT_PLACE != 0 {
                continue;
            }
            let is_shared = one.flags & fiemap_flags::SHARED != 0;
            let shared = if is_shared { one.length } else { 0 };
            sums.add(Sums { total: one.length, shared });
            self.set.insert(one.physical..one.physical.saturating_add(shared));
        }
        Ok(sums)
    }
}

/// Adds to the last directory on the way.
fn add(levels: &mut [Level], sums: Sums) {
    if let Some(level) = levels.last_mut() {
        level.sums.add(sums);
    }
}
