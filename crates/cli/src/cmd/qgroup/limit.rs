//! `qgroup limit`.

use std::ffi::OsString;

use buttress::NewLimits;
use buttress_fuse::mount::control::QgroupChange;
use clap::Args;

use super::{change, changing, id_of};
use crate::args::Globals;
use crate::error::Failure;

/// Arguments of `qgroup limit`.
#[derive(Debug, Args)]
pub struct Limit {
    /// Bytes (suffixes k, m, g, t, p, e), or `none`
    #[arg(value_name = "SIZE", value_parser = parse_size)]
    size: Size,
    /// The group (LEVEL/NUMBER, or the path of a subvolume) and the filesystem it is of: DEVICE[:PATH] or a path on a live mount. The
    /// path of a subvolume alone limits that
    #[arg(value_name = "TARGET", num_args = 1..=2, required = true)]
    targets: Vec<OsString>,
    /// Accepted: data count as they are stored, compressed or not
    #[arg(short = 'c')]
    compressed: bool,
    /// Limit what only the group refers to
    #[arg(short = 'e')]
    exclusive: bool,
}

/// What a group may have.
#[derive(Clone, Copy, Debug)]
struct Size(Option<u64>);

fn parse_size(text: &str) -> Result<Size, buttress_mkfs::MkfsError> {
    match text.eq_ignore_ascii_case("none") {
        true => Ok(Size(None)),
        // As on Linux, the most that fits is no limit.
        false => buttress_mkfs::parse_size(text)
            .map(|bytes| Size(Some(bytes).filter(|bytes| *bytes != u64::MAX))),
    }
}

/// Sets a limit, or takes it away.
pub fn run(args: &Limit, globals: &Globals) -> Result<(), Failure> {
    let (name, target) = match &args.targets[..] {
        [target] => (None, target),
        [name, target] => (Some(name), target),
        _ => return Err(Failure::usage("cannot limit a group", "no filesystem was named")),
    };
    let limit = Some(args.size.0);
    let limits = match args.exclusive {
        true => NewLimits { excl: limit, ..NewLimits::default() },
        false => NewLimits { rfer: limit, ..NewLimits::default() },
    };
    changing(target, globals, |session, vnode, vfs| {
        let id = match name {
            Some(name) => id_of(name, session, vfs, globals)?,
            None => vfs.subvolume_at(vnode)?,
        };
        change(vfs, QgroupChange::Limit(id, limits)).map(drop)
    })
}
