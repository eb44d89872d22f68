//! `subvolume find-new`: the extents of a subvolume that a transaction or a later one made, with the text of btrfs-progs.
//!
//! Where a log waits that is only read, what it has is of the transaction that a replay makes next, and so is the marker: whoever replays it
//! gives it the same number.

use std::ffi::OsString;
use std::io::Write;

use buttress_device::Access;
use buttress_ondisk::item::RootItem;
use buttress_ondisk::view::FileExtentItem;
use buttress_ondisk::{Key, kind, objectid};
use clap::Args;
use serde_json::{Value, json};

use crate::args::Globals;
use crate::cmd::files::session;
use crate::error::Failure;
use crate::output::{self, Format, JsonList};
use crate::vfs::Vfs;
use crate::vnode::{FileError, Target};

/// Arguments of `subvolume find-new`.
#[derive(Debug, Args)]
pub struct FindNew {
    /// The subvolume: DEVICE:PATH or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// The transaction, as the last line of an earlier answer names it
    #[arg(value_name = "LASTGEN")]
    since: u64,
}

/// An extent of a file.
struct Found {
    ino: u64,
    offset: u64,
    len: u64,
    disk_start: u64,
    disk_offset: u64,
    generation: u64,
    flags: Vec<&'static str>,
}

impl Found {
    fn of(key: Key, data: &[u8]) -> Option<Found> {
        let flag = |on: bool, name: &'static str| on.then_some(name);
        let base = |generation, len, compression| Found {
            ino: key.objectid,
            offset: key.offset,
            len,
            disk_start: 0,
            disk_offset: 0,
            generation,
            flags: flag(compression != 0, "COMPRESS").into_iter().collect(),
        };
        match FileExtentItem::read(data).filter(|_| key.kind == kind::EXTENT_DATA)? {
            FileExtentItem::Inline { generation, ram_bytes, compression, .. } => {
                let mut found = base(generation, ram_bytes, compression);
                found.flags.push("INLINE");
                Some(found)
            }
            FileExtentItem::Regular {
                generation,
                compression,
                prealloc,
                disk_bytenr,
                offset,
                num_bytes,
                ..
            } => {
                let mut found = base(generation, num_bytes, compression);
                found.flags.extend(flag(prealloc, "PREALLOC"));
                Some(Found { disk_start: disk_bytenr, disk_offset: offset, ..found })
            }
        }
    }

    fn write(&self, path: &[u8], out: &mut dyn Write) -> Result<(), Failure> {
        let Found { ino, offset, len, disk_start, disk_offset, generation, flags } = self;
        let flags = if flags.is_empty() { "NONE".to_owned() } else { flags.join("|") };
        write!(
            out,
            "inode {ino} file offset {offset} len {len} disk start {disk_start} offset {disk_offset} \
             gen {generation} flags {flags} "
        )?;
        out.write_all(path)?;
        Ok(writeln!(out)?)
    }

    fn json(&self, path: &[u8]) -> Value {
        json!({
            "inode": self.ino,
            "file offset": self.offset,
            "len": self.len,
            "disk start": self.disk_start,
            "offset": self.disk_offset,
            "gen": self.generation,
            "flags": self.flags,
            "path": output::text_json(path),
        })
    }
}

/// Prints what is new, and the transaction to begin with the next time.
pub fn run(args: &FindNew, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    session(globals, Access::ReadOnly, |session| {
        let vnode = session.find(&Target::any(&args.target, globals), true)?;
        let vfs = Vfs::of(&vnode)?;
        let subvolume = vfs.subvolume_at(&vnode)?;
        let refuse = |why: FileError| vnode.failure("cannot find what is new in", why);
        let marker = last_change(&vfs, subvolume).map_err(refuse)?;
        let object = json!({ "transid": marker });
        let mut list = JsonList::within("subvolume-find-new", object, "extents");
        let mut names = Names { vfs: &vfs, subvolume, last: None };
        let done = each_new(&vfs, subvolume, args.since, refuse, &mut |found| {
            let Some(path) = names.of(found.ino).map_err(refuse)? else { return Ok(()) };
            match globals.format {
                Format::Text => found.write(path, out)?,
                Format::Json => list.push(out, found.json(path))?,
            }
            Ok(())
        });
        if globals.format == Format::Json {
            list.end(out, done.is_err())?;
        }
        done?;
        if globals.format == Format::Text {
            writeln!(out, "transid marker was {marker}")?;
        }
        Ok(())
    })
}

/// Gives each extent that is new enough.
fn each_new(
    vfs: &Vfs,
    subvolume: u64,
    since: u64,
    refuse: impl Fn(FileError) -> Failure,
    each: &mut dyn FnMut(&Found) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut done = Ok(());
    let keys = Key::new(objectid::FIRST_FREE, 0, 0)..=Key::MAX;
    let searched = vfs.search(subvolume, keys, since, &mut |key, _, data| {
        let found = Found::of(key, data).filter(|found| found.generation >= since);
        if let Some(found) = found {
            done = each(&found);
        }
        done.is_ok()
    });
    done?;
    searched.map_err(refuse)
}

/// The transaction that last changed a subvolume.
fn last_change(vfs: &Vfs, subvolume: u64) -> Result<u64, FileError> {
    let key = |offset| Key::new(subvolume, kind::ROOT_ITEM, offset);
    let mut last = 0;
    vfs.search(objectid::ROOT_TREE, key(0)..=key(u64::MAX), 0, &mut |_, _, data| {
        last = last.max(RootItem::read(data).map_or(0, |item| item.generation.get()));
        true
    })?;
    Ok(last)
}

/// Paths of inodes, one after the other.
struct Names<'a> {
    vfs: &'a Vfs,
    subvolume: u64,
    last: Option<(u64, Option<Vec<u8>>)>,
}

impl Names<'_> {
    /// The path of an inode; `None` for one without a name.
    fn of(&mut self, ino: u64) -> Result<Option<&[u8]>, FileError> {
        if self.last.as_ref().is_none_or(|(known, _)| *known != ino) {
            self.last = Some((ino, self.vfs.first_path_of_inode(self.subvolume, ino)?));
        }
        Ok(self.last.as_ref().and_then(|(_, path)| path.as_deref()))
    }
}
