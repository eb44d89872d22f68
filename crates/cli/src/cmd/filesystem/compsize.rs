//! `filesystem compsize`: what compression and sharing save for files, with the table of compsize(8).
//!
//! Each extent counts once, whatever number of the files have parts of it; each part counts for what is referenced. Of what a file holds,
//! what is written and not on the disk yet is made durable first on a live mount.

use std::ffi::OsString;
use std::io::Write;

use buttress::{Stored, StoredIn};
use buttress_device::Access;
use clap::Args;
use serde_json::{Value, json};

use crate::args::Globals;
use crate::cmd::files::{Entered, Entries, Failures, session};
use crate::error::Failure;
use crate::output::{self, Format};
use crate::seen::Seen;
use crate::vfs::{Vfs, trees};
use crate::vnode::{Facts, Kind, Session, Target, Vnode};

/// Arguments of `filesystem compsize`.
#[derive(Debug, Args)]
pub struct CompSize {
    /// Files and directories with all below them: DEVICE[:PATH] or paths on a live mount
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<OsString>,
    /// Sizes as numbers of bytes
    #[arg(short, long)]
    bytes: bool,
    /// Leave out what is on another filesystem or in another subvolume than the target that it is below
    #[arg(short = 'x', long)]
    one_file_system: bool,
}

/// How content can be stored, in the order of the table: by the numbers on the disk, and reserved space.
const KINDS: [&str; 5] = ["none", "zlib", "lzo", "zstd", "prealloc"];
const PREALLOC: usize = 4;

/// Sums of sizes in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Sizes {
    disk: u64,
    uncompressed: u64,
    referenced: u64,
}

impl Sizes {
    fn add(&mut self, other: Sizes) {
        self.disk = self.disk.saturating_add(other.disk);
        self.uncompressed = self.uncompressed.saturating_add(other.uncompressed);
        self.referenced = self.referenced.saturating_add(other.referenced);
    }

    /// Per cent that are left by compression.
    fn percent(&self) -> u64 {
        let percent = u128::from(self.disk) * 100 / u128::from(self.uncompressed.max(1));
        u64::try_from(percent).unwrap_or(u64::MAX)
    }
}

/// What was counted so far.
#[derive(Debug, Default)]
struct Counted {
    files: u64,
    extents: u64,
    references: u64,
    inline: u64,
    kinds: [Sizes; KINDS.len()],
    /// Where the extents are that have been counted, of each image.
    seen: Vec<(Place, Seen)>,
}

/// Addresses are those of one filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Image(std::path::PathBuf),
    Mount(u64),
}

impl Counted {
    fn add(&mut self, part: &Stored, at: usize) {
        let (kind, first) = match part.place {
            StoredIn::Item => {
                self.inline += 1;
                (usize::from(part.compression), true)
            }
            StoredIn::Extent { bytenr, prealloc } => {
                self.references += 1;
                let first = self.seen.get_mut(at).is_none_or(|(_, seen)| seen.insert(bytenr));
                self.extents += u64::from(first);
                (if prealloc { PREALLOC } else { usize::from(part.compression) }, first)
            }
        };
        let once = |size| if first { size } else { 0 };
        if let Some(sizes) = self.kinds.get_mut(kind) {
            sizes.add(Sizes {
                disk: once(part.disk_len),
                uncompressed: once(part.ram_len),
                referenced: part.len,
            });
        }
    }

    /// Which of the sets of extents is that of a place.
    fn seen_at(&mut self, place: Place) -> usize {
        match self.seen.iter().position(|(known, _)| *known == place) {
            Some(at) => at,
            None => {
                self.seen.push((place, Seen::default()));
                self.seen.len() - 1
            }
        }
    }

    fn total(&self) -> Sizes {
        let mut total = Sizes::default();
        self.kinds.iter().for_each(|sizes| total.add(*sizes));
        total
    }

    /// The rows of the table: all, and each kind of which there is something.
    fn rows(&self) -> impl Iterator<Item = (&'static str, Sizes)> {
        let kinds = KINDS.into_iter().zip(self.kinds).filter(|(_, sizes)| sizes.uncompressed > 0);
        std::iter::once(("TOTAL", self.total())).chain(kinds)
    }
}

/// Prints the table.
pub fn run(args: &CompSize, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let (mut counted, mut failures) = (Counted::default(), Failures::new(globals));
    session(globals, Access::ReadOnly, |session| {
        for target in &args.targets {
            let done = one(target, args, globals, session, &mut counted, &mut failures, out);
            failures.note(done, out)?;
        }
        Ok(())
    })?;
    match globals.format {
        _ if counted.total().uncompressed == 0 => {
            failures.end()?;
            let place = args.targets.first().map(|it| it.to_string_lossy()).unwrap_or_default();
            let why =
                if counted.files == 0 { "no files" } else { "all empty or not on the disk yet" };
            return Err(Failure::new("cannot measure", place, why));
        }
        Format::Text => table(&counted, args.bytes, out)?,
        Format::Json => output::write_json(out, "compsize", json(&counted))?,
    }
    failures.end()
}

/// Counts a target.
fn one(
    target: &OsString,
    args: &CompSize,
    globals: &Globals,
    session: &mut Session<'_>,
    counted: &mut Counted,
    failures: &mut Failures<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let vnode = session.find(&Target::any(target, globals), false)?;
    let vfs = Vfs::of(&vnode)?;
    let facts = vnode.facts().map_err(|why| vnode.failure(WHAT, why))?;
    if let Vfs::Live(_) = vfs {
        vfs.sync()?;
    }
    let place = match &vfs {
        Vfs::Image(image) => Place::Image(image.device().into()),
        Vfs::Live(_) => Place::Mount(facts.volume),
    };
    let at = counted.seen_at(place);
    let bound = match args.one_file_system {
        true => Some((facts.volume, subvolume(&vnode, &facts)?)),
        false => None,
    };
    let mut walk = Walk { counted, at, bound, entered: Entered::default() };
    walk.all(vnode, failures, out)
}

/// What is tried with files.
const WHAT: &str = "cannot measure";

/// Goes through a file or directory.
struct Walk<'a> {
    counted: &'a mut Counted,
    /// The set of extents.
    at: usize,
    /// The filesystem and the subvolume to stay in.
    bound: Option<(u64, u64)>,
    entered: Entered,
}

impl Walk<'_> {
    fn all(
        &mut self,
        vnode: Vnode,
        failures: &mut Failures<'_>,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        // What is still to come, of each directory on the way here.
        let mut levels = vec![self.visit(&vnode, 0, failures, out)?];
        while let Some(level) = levels.last_mut() {
            let Some((_, child)) = level.next() else {
                levels.pop();
                continue;
            };
            match self.visit(&child, levels.len(), failures, out) {
                Ok(below) => levels.push(below),
                Err(failure) => failures.note(Err(failure), out)?,
            }
        }
        Ok(())
    }

    /// Counts a file, or answers what is in a directory.
    fn visit(
        &mut self,
        vnode: &Vnode,
        depth: usize,
        failures: &mut Failures<'_>,
        out: &mut dyn Write,
    ) -> Result<Entries, Failure> {
        let facts = vnode.facts().map_err(|why| vnode.failure(WHAT, why))?;
        match facts.kind {
            Kind::Regular => {
                self.counted.files += 1;
                let (counted, at) = (&mut *self.counted, self.at);
                let done = trees::stored(vnode, &mut |part| counted.add(&part, at));
                done.map_err(|why| vnode.failure(WHAT, why))?;
            }
            Kind::Directory if self.is_within(vnode, &facts)? => {
                self.entered.enter(vnode, &facts, depth, WHAT)?;
                let listed =
                    vnode.list_in_order().map_err(|why| vnode.failure("cannot list", why))?;
                failures.note_passed(vnode, listed.passed, out)?;
                return Ok(listed.entries.into_iter());
            }
            _ => {}
        }
        Ok(Vec::new().into_iter())
    }

    fn is_within(&self, vnode: &Vnode, facts: &Facts) -> Result<bool, Failure> {
        match self.bound {
            None => Ok(true),
            Some((volume, _)) if volume != facts.volume => Ok(false),
            Some((_, bound)) => Ok(subvolume(vnode, facts)? == bound),
        }
    }
}

/// The subvolume of a file or directory; that of an image tells it.
fn subvolume(vnode: &Vnode, facts: &Facts) -> Result<u64, Failure> {
    match vnode.image_node() {
        Some(_) => Ok(facts.volume),
        None => trees::subvolume_of(vnode).map_err(|why| vnode.failure(WHAT, why)),
    }
}

fn table(it: &Counted, raw: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let Counted { files, extents, references, inline, .. } = it;
    let s = if *files == 1 { "" } else { "s" };
    writeln!(
        out,
        "Processed {files} file{s}, {extents} regular extents ({references} refs), {inline} inline."
    )?;
    let row = |out: &mut dyn Write, [name, percent, disk, uncompressed, referenced]: [&str; 5]| {
        writeln!(out, "{name:<10} {percent:<8} {disk:<12} {uncompressed:<12} {referenced:<12}")
    };
    row(out, ["Type", "Perc", "Disk Usage", "Uncompressed", "Referenced"])?;
    for (name, sizes) in it.rows() {
        let percent = format!("{:>3}%", sizes.percent());
        let show = |bytes: u64| if raw { bytes.to_string() } else { short(bytes) };
        let sums = [sizes.disk, sizes.uncompressed, sizes.referenced].map(show);
        row(out, [name, &percent, &sums[0], &sums[1], &sums[2]])?;
    }
    Ok(())
}

/// A size in few letters: digits that are left out are cut off.
fn short(bytes: u64) -> String {
    let (mut whole, mut power) = (bytes, 0);
    let mut rest = 0;
    while whole >= 1024 {
        rest = whole % 1024;
        whole /= 1024;
        power += 1;
    }
    let unit = ["B", "K", "M", "G", "T", "P", "E"].get(power).copied().unwrap_or("");
    match power > 0 && whole < 10 {
        true => format!("{whole:>2}.{}{unit}", rest * 10 / 1024),
        false => format!("{whole:>4}{unit}"),
    }
}

fn json(it: &Counted) -> Value {
    let kinds: Vec<_> = it
        .rows()
        .map(|(name, sizes)| {
            json!({
                "type": name,
                "percent": sizes.percent(),
                "disk_usage": sizes.disk,
                "uncompressed": sizes.uncompressed,
                "referenced": sizes.referenced,
            })
        })
        .collect();
    json!({
        "files": it.files,
        "regular_extents": it.extents,
        "refs": it.references,
        "inline": it.inline,
        "types": kinds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_compsize_prints_them() {
        for (bytes, text) in [
            (1, "   1B"),
            (1023, "1023B"),
            (1024, " 1.0K"),
            (1127, " 1.1K"),
            (2047, " 1.9K"),
            (12 << 10, "  12K"),
            (1020 << 10, "1020K"),
            (10_236 << 10, " 9.9M"),
            (10_240 << 10, "  10M"),
            (u64::MAX, "  15E"),
        ] {
            assert_eq!(short(bytes), text);
        }
    }
}
