//! `ls`: the names in directories.

use std::ffi::OsString;
use std::io::Write;

use buttress_device::Access;
use buttress_ondisk::item::mode;
use clap::Args;
use serde_json::{Value, json};

use super::files::{Entered, Failures, session};
use super::stat;
use crate::args::Globals;
use crate::clock::Zone;
use crate::error::Failure;
use crate::output::{Format, JsonList};
use crate::quote::write_name;
use crate::vnode::{Facts, Kind, Session, Target, Vnode};

/// Arguments of `ls`.
#[derive(Debug, Args)]
pub struct Ls {
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<OsString>,
    /// Mode, links, owner, size and time too
    #[arg(short, long)]
    long: bool,
    /// Names that begin with a dot too
    #[arg(short, long)]
    all: bool,
    /// Directories below too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// A directory itself, not what is in it
    #[arg(short, long)]
    directory: bool,
    /// Inode numbers too
    #[arg(short, long)]
    inode: bool,
}

/// Something listed.
struct Row {
    name: Vec<u8>,
    vnode: Vnode,
    facts: Facts,
}

struct Listing<'a> {
    args: &'a Ls,
    globals: &'a Globals,
    zone: Zone,
    failures: Failures<'a>,
    /// With JSON, what is written.
    found: JsonList,
    /// Whether a directory must say its name above its content.
    headings: bool,
    blank: bool,
    entered: Entered,
}

/// Lists.
pub fn run(args: &Ls, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let mut listing = Listing {
        args,
        globals,
        zone: Zone::local(),
        failures: Failures::new(globals),
        found: JsonList::new("ls"),
        headings: args.recursive || args.targets.len() > 1,
        blank: false,
        entered: Entered::default(),
    };
    let mut nothing = true;
    let done = session(globals, Access::ReadOnly, |session| {
        for target in &args.targets {
            let listed = listing.target(session, &Target::any(target, globals), out);
            nothing &= listed.is_err();
            listing.failures.note(listed, out)?;
        }
        Ok(())
    });
    if globals.format == Format::Json {
        listing.found.end(out, nothing || done.is_err())?;
    }
    done?;
    listing.failures.end()
}

impl Listing<'_> {
    fn target(
        &mut self,
        session: &mut Session<'_>,
        target: &Target,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        let vnode = session.find(target, !self.args.long && !self.args.directory)?;
        let facts = vnode.facts().map_err(|why| vnode.failure("cannot read", why))?;
        if facts.kind == Kind::Directory && !self.args.directory {
            self.entered = Entered::default();
            return self.tree(&vnode, &facts, out);
        }
        let name = vnode.name();
        self.rows(vec![Row { name, vnode, facts }], out)
    }

    /// A directory, and those below it as far as they are wanted.
    fn tree(&mut self, vnode: &Vnode, facts: &Facts, out: &mut dyn Write) -> Result<(), Failure> {
        // What is still to come, of each directory on the way here.
        let mut levels = vec![self.directory(vnode, facts, 0, out)?.into_iter()];
        while let Some(level) = levels.last_mut() {
            let Some((vnode, facts)) = level.next() else {
                levels.pop();
                continue;
            };
            match self.directory(&vnode, &facts, levels.len(), out) {
                Ok(below) => levels.push(below.into_iter()),
                Err(failure) => self.failures.note(Err(failure), out)?,
            }
        }
        Ok(())
    }

    /// A directory; those in it that are to follow.
    fn directory(
        &mut self,
        vnode: &Vnode,
        facts: &Facts,
        depth: usize,
        out: &mut dyn Write,
    ) -> Result<Vec<(Vnode, Facts)>, Failure> {
        self.entered.enter(vnode, facts, depth, "cannot list")?;
        let refuse = |why: &dyn std::fmt::Display| vnode.failure("cannot list", why);
        let listed = vnode.list().map_err(|why| refuse(&why))?;
        if self.headings && self.globals.format == Format::Text {
            let blank = if self.blank { "\n" } else { "" };
            write!(out, "{blank}")?;
            write_name(out, &vnode.name())?;
            writeln!(out, ":")?;
        }
        self.blank = true;
        let mut rows = Vec::new();
        for (name, vnode) in listed.entries {
            if self.args.all || !name.starts_with(b".") {
                match self.row(name, vnode) {
                    Ok(row) => rows.push(row),
                    Err(failure) => self.failures.note(Err(failure), out)?,
                }
            }
        }
        self.failures.note_passed(vnode, listed.passed, out)?;
        let goes_on = |row: &&Row| self.args.recursive && row.facts.kind == Kind::Directory;
        let below: Vec<(Vnode, Facts)> =
            rows.iter().filter(goes_on).map(|row| (row.vnode.clone(), row.facts)).collect();
        self.rows(rows, out)?;
        Ok(below)
    }

    fn row(&self, name: Vec<u8>, vnode: Vnode) -> Result<Row, Failure> {
        let facts = vnode.facts().map_err(|why| vnode.failure("cannot read", why))?;
        Ok(Row { name, vnode, facts })
    }

    fn rows(&mut self, rows: Vec<Row>, out: &mut dyn Write) -> Result<(), Failure> {
        if self.globals.format == Format::Json {
            for row in &rows {
                let row = stat::json(&row.name, &row.vnode, &row.facts)?;
                self.found.push(out, row)?;
            }
            return Ok(());
        }
        let widths = Widths::of(&rows);
        for row in &rows {
            if self.args.inode {
                write!(out, "{:>1$} ", row.facts.ino, widths.ino)?;
            }
            if self.args.long {
                self.long(row, &widths, out)?;
            }
            write_name(out, &row.name)?;
            if self.args.long && row.facts.kind == Kind::Symlink {
                let target = row.vnode.read_link();
                out.write_all(b" -> ")?;
                let target = target.map_err(|why| row.vnode.failure("cannot read", why))?;
                write_name(out, &target)?;
            }
            writeln!(out)?;
        }
        Ok(())
    }

    fn long(&self, row: &Row, widths: &Widths, out: &mut dyn Write) -> Result<(), Failure> {
        let Facts { kind, mode, nlink, uid, gid, mtime, .. } = row.facts;
        let time = self.zone.at(mtime.sec).short();
        let size = size(&row.facts);
        let mode = mode_text(kind, mode);
        let Widths { nlink: a, uid: b, gid: c, size: d, .. } = *widths;
        Ok(write!(out, "{mode} {nlink:>a$} {uid:>b$} {gid:>c$} {size:>d$} {time} ")?)
    }
}

/// The size, or for a device what it stands for.
fn size(facts: &Facts) -> String {
    match facts.kind {
        Kind::Character | Kind::Block => format!("{}, {}", facts.device.0, facts.device.1),
        _ => facts.size.to_string(),
    }
}

/// How wide each column is.
struct Widths {
    ino: usize,
    nlink: usize,
    uid: usize,
    gid: usize,
    size: usize,
}

impl Widths {
    fn of(rows: &[Row]) -> Widths {
        let widest = |text: &dyn Fn(&Facts) -> String| {
            rows.iter().map(|row| text(&row.facts).len()).max().unwrap_or(0)
        };
        Widths {
            ino: widest(&|it| it.ino.to_string()),
            nlink: widest(&|it| it.nlink.to_string()),
            uid: widest(&|it| it.uid.to_string()),
            gid: widest(&|it| it.gid.to_string()),
            size: widest(&size),
        }
    }
}

/// The mode as `ls -l` prints it: `drwxr-xr-x`.
pub fn mode_text(kind: Kind, bits: u32) -> String {
    let mut text = String::from(kind.letter());
    for (shift, special, letter) in
        [(6, mode::SET_UID, 's'), (3, mode::SET_GID, 's'), (0, mode::STICKY, 't')]
    {
        let class = bits >> shift;
        let execute = class & 1 != 0;
        text.push(if class & 4 != 0 { 'r' } else { '-' });
        text.push(if class & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & special != 0, execute) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, false) => letter.to_ascii_uppercase(),
            (true, true) => letter,
        });
    }
    text
}

/// A JSON value for a file's kind-specific size.
pub fn device_json(facts: &Facts) -> Value {
    match facts.kind {
        Kind::Character | Kind::Block => json!([facts.device.0, facts.device.1]),
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_as_ls_prints_them() {
        assert_eq!(mode_text(Kind::Directory, 0o755), "drwxr-xr-x");
        assert_eq!(mode_text(Kind::Regular, 0o4754), "-rwsr-xr--");
        assert_eq!(mode_text(Kind::Regular, 0o6644), "-rwSr-Sr--");
        assert_eq!(mode_text(Kind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_text(Kind::Directory, 0o1770), "drwxrwx--T");
    }
}
