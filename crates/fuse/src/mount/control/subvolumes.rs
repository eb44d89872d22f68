//! Subvolumes: making, snapshotting, deleting, describing.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;

use super::abi::{
    InoLookup, InoLookupUser, RootRefs, SUBVOL_RDONLY, SUBVOL_SPEC_BY_ID, SubvolInfo, TimeSpec,
    VolArgs, VolArgsV2,
};
use super::facts::copy_text;
use super::ioctl::{input, output};
use super::{Control, Mount, SubvolumeFacts, check_name};
use crate::mount::store::{Answer, Time};
use crate::nodes::{Identity, SUBVOLUME_TOP, id_of_shown};
use crate::protocol::channel::Request;
use crate::protocol::mounts;

const DIRECTORY: u32 = 0o040_000;
/// What a process has whose umask cannot be learnt.
const USUAL_UMASK: u32 = 0o022;
/// Entries of one GET_SUBVOL_ROOTREF.
const ROOT_REFS: usize = 255;

impl<S: Control> Mount<S> {
    pub(super) fn subvol_create(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<()> {
        let arguments: VolArgs = input(bytes)?;
        self.make_subvolume(request, text(&arguments.name)?)
    }

    pub(super) fn subvol_create_v2(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<()> {
        let arguments: VolArgsV2 = input(bytes)?;
        if arguments.flags & !SUBVOL_RDONLY != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let name = text(&arguments.name)?;
        self.make_subvolume(request, name)?;
        if arguments.flags & SUBVOL_RDONLY == 0 {
            return Ok(());
        }
        let directory = self.node(request.nodeid())?;
        let made = self.store.lookup(&directory, name)?.ok_or(Errno::NOENT)?;
        self.store.set_read_only(self.subvolume_top(&made)?, true)
    }

    /// A new subvolume in the directory the request is about.
    pub(super) fn make_subvolume(&self, request: &Request<'_>, name: &OsStr) -> Answer<()> {
        check_name(name)?;
        let directory = self.node(request.nodeid())?;
        self.require_owner(request, &directory)?;
        let new = self.new_inode(request, DIRECTORY | 0o777 & !caller_umask(request.pid()));
        self.store.create_subvolume(&directory, name, &new)?;
        self.names_changed(request.nodeid());
        Ok(())
    }

    pub(super) fn snap_create_v2(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<()> {
        let arguments: VolArgsV2 = input(bytes)?;
        if arguments.flags & !SUBVOL_RDONLY != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let source = self.node(self.callers_file(request.pid(), arguments.fd)?)?;
        let read_only = arguments.flags & SUBVOL_RDONLY != 0;
        self.make_snapshot(request, &source, text(&arguments.name)?, read_only)
    }

    /// A snapshot of the subvolume whose top is `source`, in the directory the request is about.
    pub(super) fn make_snapshot(
        &self,
        request: &Request<'_>,
        source: &S::Node,
        name: &OsStr,
        read_only: bool,
    ) -> Answer<()> {
        check_name(name)?;
        let directory = self.node(request.nodeid())?;
        self.require_owner(request, &directory)?;
        self.require_owner(request, source)?;
        let id = self.subvolume_top(source)?;
        self.store.snapshot(id, &directory, name, read_only)?;
        self.names_changed(request.nodeid());
        Ok(())
    }

    pub(super) fn snap_destroy(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<()> {
        let arguments: VolArgs = input(bytes)?;
        self.delete_named(request, request.nodeid(), text(&arguments.name)?)
    }

    pub(super) fn snap_destroy_v2(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<()> {
        let arguments: VolArgsV2 = input(bytes)?;
        match arguments.flags {
            0 => self.delete_named(request, request.nodeid(), text(&arguments.name)?),
            SUBVOL_SPEC_BY_ID => {
                let id: u64 = input(&arguments.name)?;
                self.delete_by_id(request, id)
            }
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// Deletes the subvolume with this id, wherever it lies.
    pub(super) fn delete_by_id(&self, request: &Request<'_>, id: u64) -> Answer<()> {
        let facts = self.store.subvolume(id)?;
        if facts.parent == 0 {
            return Err(Errno::NOENT);
        }
        let directory = Identity { subvolume: facts.parent, ino: facts.directory };
        self.delete_named(request, self.nodes.id(directory), &facts.name)
    }

    /// Deletes the subvolume `name` in the directory with node id `directory`.
    pub(super) fn delete_named(
        &self,
        request: &Request<'_>,
        directory: u64,
        name: &OsStr,
    ) -> Answer<()> {
        check_name(name)?;
        let node = self.node(directory)?;
        self.require_deleter(request, &node)?;
        self.store.delete_subvolume(&node, name)?;
        self.names_changed(directory);
        Ok(())
    }

    pub(super) fn subvol_getflags(&self, request: &Request<'_>) -> Answer<Vec<u8>> {
        let id = self.subvolume_top(&self.node(request.nodeid())?)?;
        let read_only = self.store.subvolume(id)?.read_only;
        output(&if read_only { SUBVOL_RDONLY } else { 0 })
    }

    pub(super) fn subvol_setflags(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<()> {
        let flags: u64 = input(bytes)?;
        if flags & !SUBVOL_RDONLY != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        self.make_read_only(request, flags != 0)
    }

    /// Makes the subvolume whose top the request is about read-only or writable.
    pub(super) fn make_read_only(&self, request: &Request<'_>, read_only: bool) -> Answer<()> {
        let node = self.node(request.nodeid())?;
        self.require_owner(request, &node)?;
        self.store.set_read_only(self.subvolume_top(&node)?, read_only)
    }

    pub(super) fn default_subvol(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<()> {
        self.require_master(request)?;
        let id: u64 = input(bytes)?;
        let own = || self.node(request.nodeid()).map(|node| self.store.identity(&node).subvolume);
        self.store.set_default(if id == 0 { own()? } else { id })
    }

    pub(super) fn get_subvol_info(&self, request: &Request<'_>) -> Answer<Vec<u8>> {
        let id = self.store.identity(&self.node(request.nodeid())?).subvolume;
        output(&info(&self.store.subvolume(id)?))
    }

    pub(super) fn get_subvol_rootref(
        &self,
        request: &Request<'_>,
        bytes: &[u8],
    ) -> Answer<Vec<u8>> {
        let mut answer: RootRefs = input(bytes)?;
        let above = self.store.identity(&self.node(request.nodeid())?).subvolume;
        let mut found = Vec::new();
        for id in self.store.subvolumes(answer.min_treeid)? {
            let facts = self.store.subvolume(id)?;
            if facts.parent == above {
                found.push([id, facts.directory]);
            }
        }
        if found.len() > ROOT_REFS {
            return Err(Errno::OVERFLOW);
        }
        answer.refs = [[0; 2]; ROOT_REFS];
        for (slot, reference) in answer.refs.iter_mut().zip(&found) {
            *slot = *reference;
        }
        answer.num_items = u8::try_from(found.len()).unwrap_or(u8::MAX);
        answer.min_treeid = found.last().map_or(answer.min_treeid, |[id, _]| id.saturating_add(1));
        output(&answer)
    }

    pub(super) fn ino_lookup(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<Vec<u8>> {
        let mut answer: InoLookup = input(bytes)?;
        let own = self.store.identity(&self.node(request.nodeid())?).subvolume;
        if answer.treeid == 0 {
            answer.treeid = own;
        }
        answer.name = [0; 4080];
        if answer.objectid != SUBVOLUME_TOP {
            self.require_master(request)?;
            let identity = Identity { subvolume: answer.treeid, ino: answer.objectid };
            copy_path(&mut answer.name, &self.store.path_in_subvolume(identity)?)?;
        }
        output(&answer)
    }

    pub(super) fn ino_lookup_user(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<Vec<u8>> {
        let mut answer: InoLookupUser = input(bytes)?;
        let own = self.store.identity(&self.node(request.nodeid())?).subvolume;
        let facts = self.store.subvolume(answer.treeid)?;
        if facts.parent != own || facts.directory != answer.dirid {
            return Err(Errno::NOENT);
        }
        answer.name = [0; 256];
        copy_text(&mut answer.name, facts.name.as_bytes());
        answer.path = [0; 3824];
        if answer.dirid != SUBVOLUME_TOP {
            let identity = Identity { subvolume: own, ino: answer.dirid };
            copy_path(&mut answer.path, &self.store.path_in_subvolume(identity)?)?;
        }
        output(&answer)
    }

    /// The node behind file descriptor `fd` of thread `pid`, which must lie on this mount.
    fn callers_file(&self, pid: u32, fd: i64) -> Answer<u64> {
        let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}"));
        let info = info.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::BADF))?;
        let number = |name| {
            let line = info.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse::<u64>().ok()
        };
        let (mount, ino) = number("mnt_id:").zip(number("ino:")).ok_or(Errno::OPNOTSUPP)?;
        let all = mounts::all().map_err(|_| Errno::IO)?;
        let found = all.iter().find(|entry| entry.id == mount).ok_or(Errno::XDEV)?;
        if self.device.get().is_some_and(|device| *device != found.device) {
            return Err(Errno::XDEV);
        }
        Ok(id_of_shown(ino))
    }
}

/// The umask of thread `pid`.
fn caller_umask(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    umask.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(USUAL_UMASK)
}

fn info(facts: &SubvolumeFacts) -> SubvolInfo {
    let mut name = [0; 256];
    copy_text(&mut name, facts.name.as_bytes());
    SubvolInfo {
        treeid: facts.id,
        name,
        parent_id: facts.parent,
        dirid: facts.directory,
        generation: facts.generation,
        flags: u64::from(facts.read_only),
        uuid: facts.uuid,
        parent_uuid: facts.parent_uuid,
        received_uuid: facts.received_uuid,
        transids: facts.transids,
        times: facts.times.map(time),
        reserved: [0; 8],
    }
}

#[expect(clippy::cast_sign_loss, reason = "the struct's seconds are unsigned")]
fn time(time: Time) -> TimeSpec {
    TimeSpec { sec: time.sec as u64, nsec: time.nsec, padding: 0 }
}

/// The name in a fixed field, up to its nul byte.
fn text(field: &[u8]) -> Answer<&OsStr> {
    let end = field.iter().position(|&byte| byte == 0).ok_or(Errno::NAMETOOLONG)?;
    field.get(..end).map(OsStr::from_bytes).ok_or(Errno::INVAL)
}

/// Puts a path with a slash at its end into a field.
fn copy_path(field: &mut [u8], path: &[u8]) -> Answer<()> {
    if path.len() + 2 > field.len() {
        return Err(Errno::NAMETOOLONG);
    }
    copy_text(field, path);
    if let Some(slash) = field.get_mut(path.len()).filter(|_| !path.is_empty()) {
        *slash = b'/';
    }
    Ok(())
}
