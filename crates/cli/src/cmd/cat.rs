//! `cat`: the content of files.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};

use buttress_device::Access;
use clap::Args;

use super::files::{Failures, session};
use crate::args::Globals;
use crate::error::Failure;
use crate::vnode::{Session, Target};

/// Arguments of `cat`.
#[derive(Debug, Args)]
pub struct Cat {
    /// DEVICE:PATH or a path on a live mount
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<OsString>,
}

/// Bytes read at a time.
const PIECE: usize = 1 << 20;

/// Prints the content.
pub fn run(args: &Cat, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let mut failures = Failures::new(globals);
    session(globals, Access::ReadOnly, |session| {
        for target in &args.targets {
            let done = one(&Target::any(target, globals), session, out);
            failures.note(done, out)?;
        }
        Ok(())
    })?;
    failures.end()
}

fn one(target: &Target, session: &mut Session<'_>, out: &mut dyn Write) -> Result<(), Failure> {
    let vnode = session.find(target, true)?;
    let refuse = |why| vnode.failure("cannot read", why);
    if vnode.is_directory().map_err(refuse)? {
        let failure = vnode.failure("cannot read", "Is a directory");
        return Err(match target {
            Target::Image { device, path } if path.is_empty() => {
                failure.hint(format!("Name a file in it: buttress cat {}:/PATH", device.display()))
            }
            _ => failure,
        });
    }
    let mut content = vnode.content().map_err(refuse)?;
    let mut buffer = vec![0; PIECE];
    loop {
        let len = match content.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read.map_err(|error| refuse(error.into()))?,
        };
        if len == 0 {
            return Ok(());
        }
        out.write_all(buffer.get(..len).unwrap_or_default())?;
    }
}
