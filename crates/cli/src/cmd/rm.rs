//! `rm`: removes files, and with `-r` directories with all that is in them.
//!
//! Subvolumes are not removed on the way: deleting one is `subvolume delete`, and whoever means it says it.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use buttress_device::{Access, UsedFiles};
use clap::Args;
use rustix::io::Errno;

use super::files::{Entered, Entries, Failures, session};
use crate::args::Globals;
use crate::error::Failure;
use crate::interrupted;
use crate::quote;
use crate::vnode::{Facts, Kind, Session, Target, Vnode, named_may_be_removed, refuse_used};

/// How long a look at what is used tells what is.
const USED_FOR: Duration = Duration::from_secs(1);

/// Arguments of `rm`.
#[derive(Debug, Args)]
pub struct Rm {
    /// DEVICE:PATH or a path on a live mount
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<OsString>,
    /// Directories with all that is in them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// What is not there is fine
    #[arg(short, long)]
    force: bool,
    /// Empty directories too
    #[arg(short, long)]
    dir: bool,
}

/// Removes.
pub fn run(args: &Rm, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let mut failures = Failures::new(globals);
    session(globals, Access::ReadWrite, |session| {
        for target in &args.targets {
            let target = Target::any(target, globals);
            let done = one(&target, args, globals, session, &mut failures, out);
            failures.note(done, out)?;
        }
        Ok(())
    })?;
    failures.end()
}

fn one(
    target: &Target,
    args: &Rm,
    globals: &Globals,
    session: &mut Session<'_>,
    failures: &mut Failures<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    refuse_dots(target)?;
    refuse_top(target)?;
    let found = session.find_parent(target).and_then(|(parent, name)| {
        let refuse = |why| Failure::new("cannot remove", parent.entry_name(&name), why);
        let vnode = parent.child(&name).map_err(refuse)?;
        let vnode = vnode.ok_or_else(|| refuse(Errno::NOENT.into()))?;
        Ok((parent, name, vnode))
    });
    let (parent, name, vnode) = match found {
        Err(failure) if args.force && failure.is_about(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    named_may_be_removed(&vnode, target)?;
    let (entered, used) = (Entered::default(), Used::default());
    let mut removal = Removal { args, globals, failures, out, entered, used };
    match args.recursive || args.dir {
        false if vnode.is_directory().map_err(|why| vnode.failure("cannot remove", why))? => {
            Err(vnode
                .failure("cannot remove", "Is a directory")
                .hint("To remove it with all that is in it, add -r."))
        }
        _ => removal.remove(&parent, &name, &vnode),
    }
}

/// Nor is the image meant that an image alone names: it would not be asked for by the name of a directory in it.
fn refuse_top(target: &Target) -> Result<(), Failure> {
    let Target::Image { device, path } = target else { return Ok(()) };
    if !path.is_empty() {
        return Ok(());
    }
    let name = quote::shell(device.as_os_str().as_bytes());
    let why = "this is the top directory of the filesystem";
    Err(Failure::new("cannot remove", target.shown(), why).hint(format!(
        "To empty it, name what is in it, as `buttress ls {name}` lists it: buttress rm -r {name}:/NAME..."
    )))
}

/// What a name of dots stands for has another name, and may be where one is, or above it.
fn refuse_dots(target: &Target) -> Result<(), Failure> {
    match target.ends_with_dots() {
        false => Ok(()),
        true => Err(Failure::new("cannot remove", target.shown(), "it ends with `.` or `..`")
            .hint("Name the directory by its own name.")),
    }
}

/// Removes what an earlier step has found, with everything below it.
pub fn remove_tree(
    parent: &Vnode,
    name: &[u8],
    vnode: &Vnode,
    globals: &Globals,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let args = Rm { targets: Vec::new(), recursive: true, force: false, dir: false };
    let mut failures = Failures::new(globals);
    let (entered, used) = (Entered::default(), Used::default());
    Removal { args: &args, globals, failures: &mut failures, out, entered, used }
        .remove(parent, name, vnode)?;
    failures.end()
}

/// What is mounted would be emptied, and then the directory could not be removed.
fn refuse_mount_point(vnode: &Vnode) -> Failure {
    let hint = format!("To remove what is in it, name that; to take the mount off: umount {vnode}");
    vnode.failure("cannot remove", "something is mounted on it").hint(hint)
}

struct Removal<'a, 'b> {
    args: &'a Rm,
    globals: &'a Globals,
    failures: &'a mut Failures<'b>,
    out: &'a mut dyn Write,
    entered: Entered,
    used: Used,
}

/// The files that somebody uses as images, as of a moment ago: to look at every file would take longer than to remove it.
#[derive(Default)]
struct Used(Option<(Instant, UsedFiles)>);

impl Used {
    /// Whether a file of this machine may be one of them.
    fn may_be(&mut self, facts: &Facts) -> bool {
        let known = self.0.take().filter(|(taken, _)| taken.elapsed() < USED_FOR);
        let known = known.unwrap_or_else(|| (Instant::now(), UsedFiles::now()));
        self.0.insert(known).1.may_have(facts.ino)
    }
}

/// A directory that is being emptied.
struct Level {
    parent: Vnode,
    name: Vec<u8>,
    vnode: Vnode,
    entries: Entries,
    /// Whether something in it could not be removed.
    kept: bool,
}

impl Removal<'_, '_> {
    /// Removes something with all that is in it; what cannot be removed does not keep the rest.
    fn remove(&mut self, parent: &Vnode, name: &[u8], vnode: &Vnode) -> Result<(), Failure> {
        let Some(first) = self.begin(parent, name, vnode, 0)? else { return Ok(()) };
        let mut levels = vec![first];
        loop {
            let depth = levels.len();
            let Some(level) = levels.last_mut() else { return Ok(()) };
            if interrupted::signal().is_some() {
                return Err(Failure::said());
            }
            let failed = match level.entries.next() {
                Some((name, child)) => match self.begin(&level.vnode, &name, &child, depth) {
                    Ok(below) => {
                        levels.extend(below);
                        continue;
                    }
                    Err(failure) => failure,
                },
                None => match levels.pop().map_or(Ok(()), |level| self.end(&level)) {
                    Ok(()) => continue,
                    Err(failure) => failure,
                },
            };
            let Some(level) = levels.last_mut() else { return Err(failed) };
            level.kept = true;
            self.failures.note(Err(failed), self.out)?;
        }
    }

    /// Removes what has nothing in it; begins with a directory that may.
    fn begin(
        &mut self,
        parent: &Vnode,
        name: &[u8],
        vnode: &Vnode,
        depth: usize,
    ) -> Result<Option<Level>, Failure> {
        let refuse = |why| vnode.failure("cannot remove", why);
        let facts = vnode.facts().map_err(refuse)?;
        if facts.is_subvolume() && vnode.image_node().is_some() {
            return Err(vnode
                .failure("cannot remove", "it is a subvolume")
                .hint(format!("To delete it: buttress subvolume delete {vnode}")));
        }
        if vnode.is_mount_point(&facts) {
            return Err(refuse_mount_point(vnode));
        }
        match facts.kind {
            Kind::Directory if self.args.recursive => {
                self.entered.enter(vnode, &facts, depth, "cannot remove")?;
                let (parent, name, vnode) = (parent.clone(), name.to_vec(), vnode.clone());
                let listed = vnode.list().map_err(|why| vnode.failure("cannot list", why))?;
                let kept = !listed.passed.is_empty();
                self.failures.note_passed(&vnode, listed.passed, self.out)?;
                let entries = listed.entries.into_iter();
                return Ok(Some(Level { parent, name, vnode, entries, kept }));
            }
            Kind::Directory => parent.remove_directory(name).map_err(refuse)?,
            kind => {
                let on_host = kind == Kind::Regular && vnode.image_node().is_none();
                if on_host && self.used.may_be(&facts) {
                    refuse_used(vnode, "cannot remove")?;
                }
                parent.unlink(name).map_err(refuse)?;
            }
        }
        self.say(vnode).map(|()| None)
    }

    /// Removes a directory that is empty now.
    fn end(&mut self, level: &Level) -> Result<(), Failure> {
        if level.kept {
            return Err(Failure::said());
        }
        let removed = level.parent.remove_directory(&level.name);
        removed.map_err(|why| level.vnode.failure("cannot remove", why))?;
        self.say(&level.vnode)
    }

    fn say(&mut self, vnode: &Vnode) -> Result<(), Failure> {
        if self.globals.talks_much() {
            writeln!(self.out, "removed {vnode}")?;
        }
        Ok(())
    }
}
