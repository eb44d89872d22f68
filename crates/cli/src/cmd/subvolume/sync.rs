//! `subvolume sync`: waits until deleted subvolumes are gone and their space is free.
//!
//! On a live mount the daemon frees it in the background. In an image nobody would: there the command does it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;
use std::time::Duration;

use buttress_device::Access;
use buttress_ondisk::{Key, kind, objectid};
use clap::Args;
use rustix::io::Errno;

use crate::args::Globals;
use crate::cmd::copy::Progress;
use crate::cmd::files::session;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::vfs::Vfs;
use crate::vnode::{FileError, Target};

/// When nothing has gone for so long, what may be the reason is said.
const IDLE: Duration = Duration::from_secs(10);

/// Arguments of `subvolume sync`.
#[derive(Debug, Args)]
pub struct Sync {
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// The subvolumes; without any, all that are deleted now
    #[arg(value_name = "ID", value_parser = parse_id)]
    ids: Vec<u64>,
    /// Look every so many seconds (default: 1)
    #[arg(short = 's', value_name = "SECONDS", default_value = "1", hide_default_value = true, value_parser = clap::value_parser!(u64).range(1..))]
    interval: u64,
}

fn parse_id(text: &str) -> Result<u64, String> {
    let id =
        text.parse().ok().filter(|id| (objectid::FIRST_FREE..=objectid::LAST_FREE).contains(id));
    id.ok_or_else(|| format!("subvolume id {text} out of range"))
}

/// Waits.
pub fn run(args: &Sync, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let target = Target::any(&args.target, globals);
    let access = match &target {
        // Where nothing is deleted nobody is kept from the image.
        Target::Image { .. } if !is_all_gone(&target, args, globals)? => Access::ReadWrite,
        _ => Access::ReadOnly,
    };
    session(globals, access, |session| {
        let vnode = session.find(&target, true)?;
        let vfs = Vfs::of(&vnode)?;
        let mut wait = Wait::of(args, &vfs)?;
        wait.begin(globals, out)?;
        if access == Access::ReadWrite && !wait.is_over(&vfs)? {
            let progress = Progress::spinner(globals, "freeing their space");
            vfs.clean()?;
            progress.finish();
        }
        let mut idle = Duration::ZERO;
        loop {
            let before = wait.left.len();
            let over = wait.is_over(&vfs)?;
            wait.tell(globals, out)?;
            if over {
                break;
            }
            out.flush()?;
            let interval = Duration::from_secs(args.interval);
            idle = if wait.left.len() < before { Duration::ZERO } else { idle + interval };
            if (IDLE..IDLE + interval).contains(&idle) && globals.talks() {
                wait.say_why();
            }
            std::thread::sleep(interval);
        }
        if globals.format == Format::Json {
            let gone: Vec<u64> = wait.ids;
            output::write_json(out, "subvolume-sync", gone.into())?;
        }
        Ok(())
    })
}

/// Whether there is nothing to wait for in an image.
fn is_all_gone(target: &Target, args: &Sync, globals: &Globals) -> Result<bool, Failure> {
    session(globals, Access::ReadOnly, |session| {
        let vnode = session.find(target, true)?;
        let vfs = Vfs::of(&vnode)?;
        Wait::of(args, &vfs)?.is_over(&vfs)
    })
}

/// Whether a subvolume is there, be it deleted.
fn is_there(vfs: &Vfs, id: u64) -> Result<bool, FileError> {
    let key = |offset| Key::new(id, kind::ROOT_ITEM, offset);
    let mut there = false;
    vfs.search(objectid::ROOT_TREE, key(0)..=key(u64::MAX), 0, &mut |_, _, _| {
        there = true;
        false
    })?;
    Ok(there)
}

/// What is waited for.
struct Wait {
    /// In the order in which they were named.
    ids: Vec<u64>,
    /// Those of them that are still there.
    left: BTreeSet<u64>,
    /// How many of them have been told of.
    told: BTreeSet<u64>,
}

impl Wait {
    fn of(args: &Sync, vfs: &Vfs) -> Result<Wait, Failure> {
        let ids = match args.ids[..] {
            [] => vfs.deleted_subvolumes()?.iter().map(|it| it.id).collect(),
            _ => args.ids.clone(),
        };
        let left = ids.iter().copied().collect();
        let wait = Wait { ids, left, told: BTreeSet::new() };
        wait.refuse_living(vfs)?;
        Ok(wait)
    }

    /// One that nobody has deleted would be waited for without end.
    fn refuse_living(&self, vfs: &Vfs) -> Result<(), Failure> {
        for &id in &self.left {
            match vfs.path_of_subvolume(id) {
                Ok(_) => {
                    let what = format!("cannot wait for subvolume {id} of");
                    return Err(Failure::new(what, vfs.name(), "it is not deleted"));
                }
                Err(why) if why.is(Errno::NOENT) => {}
                // Its path cannot be told: whether it is deleted is seen in the list.
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn begin(&self, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
        let count = self.ids.len();
        if globals.talks() && count > 0 {
            writeln!(out, "Waiting for {count} subvolume{}", if count == 1 { "" } else { "s" })?;
            out.flush()?;
        }
        Ok(())
    }

    /// Whether all are gone.
    fn is_over(&mut self, vfs: &Vfs) -> Result<bool, Failure> {
        let mut gone = Vec::new();
        for &id in &self.left {
            let there =
                is_there(vfs, id).map_err(|why| Failure::new("cannot ask", vfs.name(), why))?;
            gone.extend((!there).then_some(id));
        }
        self.left.retain(|id| !gone.contains(id));
        Ok(self.left.is_empty())
    }

    /// Says why none may be gone for long: on a mount a subvolume stays as long as Linux remembers a file of it.
    fn say_why(&self) {
        let ids: Vec<String> = self.left.iter().map(u64::to_string).collect();
        complain!(
            "buttress: still waiting for {}: a deleted subvolume stays while files of it are open or watched or programs work in it, and as long after that \
             as Linux remembers names that were looked for or removed in it, or before 6.18 any; as root, `echo 2 > /proc/sys/vm/drop_caches` has it forget what nobody uses",
            ids.join(", ")
        );
    }

    /// Says which have gone since.
    fn tell(&mut self, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
        let count = self.ids.len();
        for id in &self.ids {
            if !self.left.contains(id) && self.told.insert(*id) && globals.talks() {
                writeln!(out, "Subvolume id {id} is gone ({}/{count})", self.told.len())?;
            }
        }
        Ok(())
    }
}
