//! `filesystem du`: what files and directories take, and what of it only they have, in the text of btrfs-progs, as JSON or as a page.
//!
//! [`measure`] goes through a target and says what it meets; what is said becomes rows, written as they come, or the tree map of a
//! [`page`], of which [`fold`] keeps no more than its largest entries. Of a live mount what is written and not on the disk yet is made
//! durable first.

mod fold;
mod measure;
mod page;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use buttress_device::Access;
use clap::Args;
use serde_json::json;

use self::measure::Found;
use self::page::Page;
use crate::args::Globals;
use crate::cmd::copy::Progress;
use crate::cmd::files::{Failures, session};
use crate::error::Failure;
use crate::output::{self, Format, JsonList};
use crate::quote::{self, write_name};
use crate::units::{UnitArgs, Units};
use crate::vfs::Vfs;
use crate::vnode::{Session, Target};

/// Arguments of `filesystem du`.
#[derive(Debug, Args)]
pub struct Du {
    /// Files and directories with all below them: DEVICE[:PATH] or paths on a live mount
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<OsString>,
    /// Only what each target takes in all
    #[arg(short, long)]
    summarize: bool,
    /// Write a page with a tree map of all below the targets into this file, to be opened with a browser; of the targets only what each takes
    /// in all is printed
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    units: UnitArgs,
}

/// Prints what targets take.
pub fn run(args: &Du, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let mut failures = Failures::new(globals);
    let mut report = Report::new(args, globals);
    session(globals, Access::ReadOnly, |session| {
        if let Some(file) = &args.html {
            report.page = Some(Page::new(file, session, globals)?);
        }
        report.begin(out)?;
        for target in &args.targets {
            let done = report.target(target, session, &mut failures, out);
            report.some |= done.is_ok();
            failures.note(done, out)?;
        }
        Ok(())
    })?;
    report.end(out)?;
    failures.end()
}

/// What becomes of what is measured.
struct Report<'a> {
    globals: &'a Globals,
    units: Units,
    /// Only targets have rows.
    summarize: bool,
    /// Whether one of the targets was measured.
    some: bool,
    /// With JSON, what is written.
    list: JsonList,
    page: Option<Page>,
}

impl<'a> Report<'a> {
    fn new(args: &Du, globals: &'a Globals) -> Report<'a> {
        Report {
            globals,
            units: args.units.units(),
            summarize: args.summarize || args.html.is_some(),
            some: false,
            list: JsonList::new("filesystem-du"),
            page: None,
        }
    }

    /// The head of the table stands there whatever comes of the targets.
    fn begin(&self, out: &mut dyn Write) -> Result<(), Failure> {
        match self.globals.format {
            Format::Text => Ok(writeln!(out, "     Total   Exclusive  Set shared  Filename")?),
            Format::Json => Ok(()),
        }
    }

    fn target(
        &mut self,
        target: &OsString,
        session: &mut Session<'_>,
        failures: &mut Failures<'_>,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        let vnode = session.find(&Target::any(target, self.globals), true)?;
        if let live @ Vfs::Live(_) = Vfs::of(&vnode)? {
            live.sync()?;
        }
        // Where rows are seen as they come, they show how far it is.
        let progress = (self.summarize || !quote::for_terminal())
            .then(|| Progress::counted(self.globals, "files and directories measured"));
        let done = measure::target(vnode, failures, out, &mut |found, out| {
            progress.iter().for_each(Progress::one);
            self.hear(found, out)
        });
        progress.iter().for_each(Progress::finish);
        done
    }

    fn hear(&mut self, found: &Found<'_>, out: &mut dyn Write) -> Result<(), Failure> {
        if let Some(page) = &mut self.page {
            page.add(found);
        }
        if self.summarize && found.depth > 0 {
            return Ok(());
        }
        match self.globals.format {
            Format::Text => self.row(found, out),
            Format::Json => self.object(found, out),
        }
    }

    fn row(&self, found: &Found<'_>, out: &mut dyn Write) -> Result<(), Failure> {
        let [total, exclusive] =
            [found.sums.total, found.sums.exclusive()].map(|bytes| self.units.show(bytes));
        let set = found.set_shared.map_or("-".into(), |bytes| self.units.show(bytes));
        write!(out, "{total:>10}  {exclusive:>10}  {set:>10}  ")?;
        write_name(out, &found.vnode.name())?;
        Ok(writeln!(out)?)
    }

    fn object(&mut self, found: &Found<'_>, out: &mut dyn Write) -> Result<(), Failure> {
        let object = json!({
            "path": output::text_json(&found.vnode.name()),
            "type": found.what.word(),
            "total": found.sums.total,
            "exclusive": found.sums.exclusive(),
            "set_shared": found.set_shared,
        });
        Ok(self.list.push(out, object)?)
    }

    fn end(self, out: &mut dyn Write) -> Result<(), Failure> {
        if self.globals.format == Format::Json {
            self.list.end(out, !self.some)?;
        }
        match self.page {
            Some(page) if self.some => page.write(),
            _ => Ok(()),
        }
    }
}
