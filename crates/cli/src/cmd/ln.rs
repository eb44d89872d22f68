//! `ln`: gives a file another name, or makes a symbolic link.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use buttress_device::Access;
use clap::Args;
use rustix::io::Errno;

use super::copy::{base_name, destination};
use super::files::session;
use crate::args::Globals;
use crate::error::Failure;
use crate::vnode::{Kind, New, Session, Target, Vnode, may_be_overwritten};

/// Arguments of `ln`.
#[derive(Debug, Args)]
pub struct Ln {
    /// The file; with -s the text of the link, as it is
    file: OsString,
    /// The new name, or the directory for it: DEVICE:PATH or a path on a live mount
    link: OsString,
    /// Make a symbolic link
    #[arg(short, long)]
    symbolic: bool,
    /// Replace what is there
    #[arg(short, long)]
    force: bool,
}

/// Bytes of a path with the one that ends it.
const LINK_BYTES_MAX: usize = 4096;

/// What `ln` makes is never a directory.
const NEW: (&str, Kind) = ("cannot make", Kind::Symlink);

/// Makes the link.
pub fn run(args: &Ln, globals: &Globals, _out: &mut dyn Write) -> Result<(), Failure> {
    session(globals, Access::ReadWrite, |session| {
        let link = Target::destination(&args.link, globals);
        match args.symbolic {
            true => symbolic(args, &link, session),
            false => hard(args, &link, session),
        }
    })
}

fn symbolic(args: &Ln, link: &Target, session: &mut Session<'_>) -> Result<(), Failure> {
    let text = args.file.as_bytes();
    let name = text.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty());
    let (directory, new_name) = destination(session, link, name.map(<[u8]>::to_vec), false, NEW)?;
    let name = new_name.unwrap_or_default();
    replace(args, &directory, &name)?;
    let made = directory.make(&name, &New::symlink(text.to_vec()));
    made.map(|_| ()).map_err(|why| {
        // The system says of both the same.
        let why = match text.len() >= LINK_BYTES_MAX && why.is(Errno::NAMETOOLONG) {
            true => format!("a link leads to a path of less than {LINK_BYTES_MAX} bytes"),
            false => why.to_string(),
        };
        Failure::new("cannot make", directory.entry_name(&name), why)
    })
}

fn hard(args: &Ln, link: &Target, session: &mut Session<'_>) -> Result<(), Failure> {
    let source = Target::path(&args.file);
    let file = session.find(&source, false)?;
    let (directory, new_name) = destination(session, link, base_name(&source), false, NEW)?;
    let name = new_name.unwrap_or_default();
    replace(args, &directory, &name)?;
    directory.link(&name, &file).map_err(|why| {
        Failure::new(format!("cannot link {file} as"), directory.entry_name(&name), why)
    })
}

fn replace(args: &Ln, directory: &Vnode, name: &[u8]) -> Result<(), Failure> {
    let refuse = |why| Failure::new("cannot replace", directory.entry_name(name), why);
    if args.force
        && let Some(existing) = directory.child(name).map_err(refuse)?
    {
        may_be_overwritten(&existing)?;
        directory.unlink(name).map_err(refuse)?;
    }
    Ok(())
}
