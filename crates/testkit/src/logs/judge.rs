//! Judges what is made of a log: by Linux, by us for writing, by us for reading, and by our checker, each on a copy of its own.
//!
//! Linux is right. What it shows after its replay has to be what its kernel mount shows of the image that we have replayed, and the
//! items of the trees of files have to be the same. Reading must show the same and write nothing.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use buttress::{Filesystem, Options};
use buttress_check::{Kind, Severity};
use rustix::fs::{SeekFrom, seek};

use super::Workload;
use super::items::{self, Trees};
use super::make::{Crash, Left, has_log, make, place, text};
use super::moment::Moment;
use super::seen::Seen;
use crate::facts::{Digest, diff, facts_of_library};
use crate::oracle::{KernelMount, check, copy_sparse, our_report};

/// Options of the mounts that show what was replayed.
const OPTIONS: &str = "noatime,subvolid=5";
/// Bytes read at once.
const READ_BYTES: usize = 256 << 10;

/// What was found out about a workload.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// The workload's name.
    pub name: String,
    /// What Linux left; None if the workload itself failed.
    pub left: Option<Left>,
    /// What is wrong, each with the part that found it: the first difference, and how many there are.
    pub failures: Vec<(&'static str, String)>,
}

impl Verdict {
    fn fail(&mut self, part: &'static str, result: Result<(), String>) -> bool {
        match result {
            Ok(()) => true,
            Err(why) => {
                self.failures.push((part, why));
                false
            }
        }
    }
}

/// Runs and judges a workload; failures leave their images in `keep`.
pub fn judge(workload: &Workload, keep: Option<&Path>) -> Verdict {
    let mut verdict = Verdict { name: workload.name.clone(), ..Verdict::default() };
    let dir = match place() {
        Ok(dir) => dir,
        Err(why) => {
            verdict.fail("directory", Err(why));
            return verdict;
        }
    };
    match make(workload, dir.path()) {
        Ok(crash) => examine(&crash, dir.path(), &mut verdict),
        Err(why) => {
            verdict.fail("workload", Err(why));
        }
    }
    if let Some(keep) = keep.filter(|_| !verdict.failures.is_empty()) {
        let kept = text(keep_images(dir.path(), &keep.join(&workload.name)));
        verdict.fail("keep", kept);
    }
    verdict
}

fn keep_images(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in from.read_dir()? {
        let entry = entry?;
        copy_sparse(&entry.path(), &to.join(entry.file_name())).map_err(std::io::Error::other)?;
    }
    Ok(())
}

fn examine(crash: &Crash, dir: &Path, verdict: &mut Verdict) {
    verdict.left = Some(crash.left);
    verdict.fail("checker", checker(crash));
    let Some(linux) = linux(crash, dir.join("linux"), verdict) else { return };
    verdict.fail("read-only", reading(crash, &dir.join("reading"), &linux.seen));
    let image = dir.join("ours");
    if verdict.fail("read-write", writing(&crash.image, &image)) {
        verdict.fail("check", text(check(&image, true)).map(drop));
        compare(&image, crash.then, &linux, verdict);
    }
}

/// Our checker on the log that waits: it sees it, and no damage. (What mkfs leaves odd is none.)
fn checker(crash: &Crash) -> Result<(), String> {
    let report = text(our_report(&crash.image, 0, true))?;
    let errors = report.issues.iter().filter(|it| it.kind.severity() == Severity::Error);
    first(errors.map(ToString::to_string).collect())?;
    let waits = report.issues.iter().any(|it| it.kind == Kind::LogWaits);
    match waits == (crash.left == Left::Log) {
        true => Ok(()),
        false => Err(format!("Linux left a {:?}, and the report says the opposite", crash.left)),
    }
}

/// What Linux made of a log.
struct Replayed {
    seen: Seen,
    trees: Trees,
}

fn linux(crash: &Crash, image: PathBuf, verdict: &mut Verdict) -> Option<Replayed> {
    let replayed = text(copy_sparse(&crash.image, &image)).and_then(|()| shown(&image, crash.then));
    match replayed {
        Ok(replayed) => Some(replayed),
        Err(why) => {
            verdict.fail("linux", Err(why));
            None
        }
    }
}

/// What Linux shows of an image that it may write to.
fn shown(image: &Path, then: Moment) -> Result<Replayed, String> {
    let mount = text(KernelMount::new(image, OPTIONS))?;
    let seen = Seen::of(mount.path(), then);
    text(mount.finish())?;
    let trees = items::trees(image, then)?;
    Ok(Replayed { seen: seen?, trees })
}

/// Opens a copy for writing and closes it.
fn writing(crash: &Path, image: &Path) -> Result<(), String> {
    text(copy_sparse(crash, image))?;
    guarded(|| {
        let fs = text(Filesystem::open(image, Options::read_write()))?;
        text(fs.close())
    })?;
    if has_log(image)? { Err("the log is still there".to_owned()) } else { Ok(()) }
}

/// Opens a copy for reading: it shows what Linux made of the log, and stays as it is.
fn reading(crash: &Crash, image: &Path, linux: &Seen) -> Result<(), String> {
    text(copy_sparse(&crash.image, image))?;
    let before = text(digest(image))?;
    let shown = guarded(|| {
        let fs = text(Filesystem::open(image, Options::read_only()))?;
        let facts = text(facts_of_library(&fs))?;
        text(fs.close())?;
        Ok(facts)
    })?;
    if text(digest(image))? != before {
        return Err("the image was written to".to_owned());
    }
    text(std::fs::remove_file(image))?;
    first(diff(&crash.then.of_facts(shown), &linux.facts))
}

fn compare(image: &Path, then: Moment, linux: &Replayed, verdict: &mut Verdict) {
    match shown(image, then) {
        Ok(ours) => {
            verdict.fail("tree", first(ours.seen.differs(&linux.seen)));
            verdict.fail("items", first(items::differs(&ours.trees, &linux.trees)));
        }
        Err(why) => {
            verdict.fail("mount", Err(why));
        }
    }
}

/// The first difference, and how many there are.
fn first(lines: Vec<String>) -> Result<(), String> {
    match &lines[..] {
        [] => Ok(()),
        [line] => Err(line.clone()),
        [line, more @ ..] => Err(format!("{line} (and {} more)", more.len())),
    }
}

/// A panic is a failure of the workload.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).to_owned()));
        Err(format!("panic: {}", said.unwrap_or_default()))
    })
}

/// Of the bytes of an image.
fn digest(image: &Path) -> std::io::Result<u64> {
    let file = File::open(image)?;
    let (mut digest, mut buffer, mut at) = (Digest::new(), vec![0; READ_BYTES], 0);
    while let Ok(start) = seek(&file, SeekFrom::Data(at)) {
        let end = seek(&file, SeekFrom::Hole(start))?;
        at = start;
        while at < end {
            let len = (end - at).min(READ_BYTES as u64) as usize;
            let room = buffer.get_mut(..len).unwrap_or_default();
            file.read_exact_at(room, at)?;
            digest.add(at, room);
            at += len as u64;
        }
    }
    Ok(digest.finish())
}
