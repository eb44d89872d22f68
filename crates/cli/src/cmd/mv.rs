//! `mv`: moves and renames; between filesystems and subvolumes it copies and then removes.
//!
//! Nothing is removed before its copy is durable: whatever ends the command, each file is in at least one of the two places. Copies of
//! everything that was named are made durable together.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt::{self, Display};
use std::io::Write;

use buttress_device::Access;
use clap::Args;
use rustix::io::Errno;

use super::copy::{Copying, How, Progress, base_name, destination};
use super::files::session;
use super::rm::remove_tree;
use crate::args::Globals;
use crate::error::Failure;
use crate::vnode::{
    FileError, Kind, Session, Target, Vnode, may_be_overwritten, refuse_mounts_below, refuse_used,
};

/// Arguments of `mv`.
#[derive(Debug, Args)]
pub struct Mv {
    /// What to move, and where to as the last: DEVICE:PATH or ordinary paths
    #[arg(required = true, num_args = 2.., value_name = "PATH")]
    paths: Vec<OsString>,
    /// Keep what is there
    #[arg(short, long)]
    no_clobber: bool,
}

/// Moves.
pub fn run(args: &Mv, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let Some((last, sources)) = args.paths.split_last() else {
        return Err(Failure::usage("cannot move", "source and destination are needed"));
    };
    let progress = Progress::new(globals);
    let mut copying = Copying::new(How::everything(), globals, &progress);
    session(globals, Access::ReadWrite, |session| {
        let last = Target::destination(last, globals);
        let sources: Vec<Target> = sources.iter().map(|source| Target::path(source)).collect();
        session.open_in_order(sources.iter().chain([&last]));
        let mut moving = Moving { args, globals, copying: &mut copying, copied: Vec::new() };
        for source in &sources {
            if moving.copying.stops() {
                break;
            }
            let done = moving.one(source, &last, sources.len(), session, out);
            moving.copying.failures.note(done, out)?;
        }
        moving.finish(out)
    })?;
    progress.finish();
    let stay = "What was not removed yet is where it was, too.";
    copying.end().map_err(|failure| match failure.is_said() {
        true => failure,
        false => failure.hint(stay),
    })
}

/// Something in a directory.
struct Entry {
    directory: Vnode,
    name: Vec<u8>,
}

impl Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.directory.entry_name(&self.name))
    }
}

impl Entry {
    fn found(&self) -> Result<Option<Vnode>, Failure> {
        let refuse = |why| Failure::new("cannot move", self, why);
        self.directory.child(&self.name).map_err(refuse)
    }

    fn is(&self, other: &Entry) -> Result<bool, FileError> {
        Ok(self.name == other.name && self.directory.is_same(&other.directory)?)
    }
}

/// What was copied, and is to be removed where it was.
struct Copied {
    from: Entry,
    vnode: Vnode,
    to: Entry,
}

/// Moves under way.
struct Moving<'a, 'b> {
    args: &'a Mv,
    globals: &'a Globals,
    copying: &'a mut Copying<'b>,
    copied: Vec<Copied>,
}

impl Moving<'_, '_> {
    fn one(
        &mut self,
        source: &Target,
        last: &Target,
        sources: usize,
        session: &mut Session<'_>,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        let (directory, name) = session.find_parent(source)?;
        let from = Entry { directory, name };
        let vnode = from.found()?;
        let vnode =
            vnode.ok_or_else(|| Failure::new("cannot move", &from, "No such file or directory"))?;
        let kind = vnode.facts().map_err(|why| vnode.failure("cannot move", why))?.kind;
        if kind == Kind::Regular {
            refuse_used(&vnode, "cannot move")?;
        }
        let what = format!("cannot move {vnode} to");
        let (directory, name) =
            destination(session, last, base_name(source), sources > 1, (&what, kind))?;
        let to = Entry { directory, name: name.unwrap_or_else(|| from.name.clone()) };
        let refuse = |why: &dyn Display| Failure::new(&what, &to, why);
        if let Some(existing) = to.found()? {
            if self.args.no_clobber {
                return Ok(());
            }
            if existing.is_same(&vnode).map_err(|why| refuse(&why))? {
                if kind == Kind::Directory || from.is(&to).map_err(|why| refuse(&why))? {
                    return Err(refuse(&"they are the same file"));
                }
                // Two names of one file: renaming one to the other would leave both.
                return from.directory.unlink(&from.name).map_err(|why| refuse(&why));
            }
            may_be_overwritten(&existing)?;
        }
        if self.globals.talks_much() {
            writeln!(out, "{vnode} -> {to}")?;
        }
        match from.directory.rename(&from.name, &to.directory, &to.name) {
            Err(error) if error.is(Errno::XDEV) => {
                refuse_mounts_below(&vnode, "cannot move")?;
                self.copy(&vnode, &to, out)?;
                self.copied.push(Copied { from, vnode, to });
                Ok(())
            }
            Err(error) if error.is(Errno::INVAL) && kind == Kind::Directory => {
                Err(refuse(&"a directory does not go into itself"))
            }
            done => done.map_err(|why| refuse(&why)),
        }
    }

    /// Copies with everything a file has; fails unless it is all there.
    fn copy(&mut self, vnode: &Vnode, to: &Entry, out: &mut dyn Write) -> Result<(), Failure> {
        let (before, _) = self.copying.not_copied();
        let done = self.copying.copy(vnode, &to.directory, &to.name, out);
        self.copying.note(done, out)?;
        self.copying.settle(out)?;
        match self.copying.not_copied() == (before, false) {
            true => Ok(()),
            false => Err(Failure::said()),
        }
    }

    /// Removes the originals of what was copied, when all of it is durable.
    fn finish(self, out: &mut dyn Write) -> Result<(), Failure> {
        // All went to one directory, and into what is mounted below it where a directory was there already.
        let mut done = HashSet::new();
        for Copied { to, .. } in &self.copied {
            for vnode in [Some(to.directory.clone()), to.found()?].into_iter().flatten() {
                let facts = vnode.facts().map_err(|why| vnode.failure("cannot read", why))?;
                if facts.kind == Kind::Directory && done.insert(facts.volume) {
                    vnode.make_durable().map_err(|why| vnode.failure("cannot write", why))?;
                }
            }
        }
        for Copied { from, vnode, .. } in self.copied {
            if self.copying.stops() {
                break;
            }
            let done = remove_tree(&from.directory, &from.name, &vnode, self.globals, out);
            if done.is_err() {
                // Perhaps for a signal.
                self.copying.stops();
            }
            self.copying.failures.note(done, out)?;
        }
        Ok(())
    }
}
