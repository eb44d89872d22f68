//! `filesystem label`.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use buttress_device::Access;
use clap::Args;

use crate::args::Globals;
use crate::cmd::files::session;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::vfs::Vfs;
use crate::vnode::Target;

/// Arguments of `filesystem label`.
#[derive(Debug, Args)]
pub struct Label {
    /// DEVICE or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// The new label, at most 255 bytes; empty for none
    label: Option<OsString>,
}

/// Prints or sets the label.
pub fn run(args: &Label, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let target = Target::any(&args.target, globals);
    if let Some(label) = &args.label {
        check(label)?;
        return session(globals, Access::ReadWrite, |session| {
            Vfs::of(&session.find(&target, true)?)?.set_label(label.as_bytes())
        });
    }
    let label = super::info(&args.target, globals)?.label;
    match globals.format {
        Format::Json => output::write_json(out, "label", output::text_json(&label))?,
        Format::Text => {
            out.write_all(&label)?;
            writeln!(out)?;
        }
    }
    Ok(())
}

fn check(label: &std::ffi::OsStr) -> Result<(), Failure> {
    let refuse = |why: &str| Err(Failure::usage("cannot set the label", why));
    match label.as_bytes() {
        bytes if bytes.len() > 255 => refuse("it is too long (max 255 bytes)"),
        bytes if bytes.contains(&b'\n') => refuse("it contains a newline"),
        _ => Ok(()),
    }
}
