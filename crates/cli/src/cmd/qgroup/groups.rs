//! `qgroup create` and `qgroup destroy`. Where a group goes that is in others, these may have to be counted anew.

use std::ffi::OsString;

use buttress_fuse::mount::control::QgroupChange;
use clap::Args;

use super::relations::rescan;
use super::{change, changing, parse_id};
use crate::args::Globals;
use crate::error::Failure;

/// Arguments of `qgroup create` and `qgroup destroy`.
#[derive(Debug, Args)]
pub struct Group {
    /// The group: LEVEL/NUMBER
    #[arg(value_name = "QGROUPID", value_parser = parse_id)]
    id: u64,
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
}

/// Makes a group.
pub fn create(args: &Group, globals: &Globals) -> Result<(), Failure> {
    changed(args, QgroupChange::Create(args.id), globals)
}

/// Takes a group away.
pub fn destroy(args: &Group, globals: &Globals) -> Result<(), Failure> {
    changed(args, QgroupChange::Destroy(args.id), globals)
}

fn changed(args: &Group, wanted: QgroupChange, globals: &Globals) -> Result<(), Failure> {
    changing(&args.target, globals, |_, _, vfs| {
        let right = change(vfs, wanted)?;
        if right { Ok(()) } else { rescan(vfs, globals) }
    })
}
