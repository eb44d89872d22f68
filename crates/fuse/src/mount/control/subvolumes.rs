//! Subvolumes: making, snapshotting, deleting, describing.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use buttress::ondisk::item::mode::{DIRECTORY, TYPE_MASK as TYPE};
use rustix::io::Errno;

use super::abi::{
    InoLookup, InoLookupUser, RootRefs, SUBVOL_RDONLY, SUBVOL_SPEC_BY_ID, SubvolInfo, TimeSpec,
    VolArgs, VolArgsV2,
};
use super::facts::copy_text;
use super::ioctl::{Output, input, output};
use super::{Control, Mount, SubvolumeFacts, check_name};
use crate::mount::caller::{self, Caller};
use crate::mount::permission::{SEARCH, WRITE};
use crate::mount::store::{Answer, Time};
use crate::nodes::{Identity, SUBVOLUME_TOP};
use crate::protocol::abi::opcode;
use crate::protocol::channel::Request;

/// Id of the subvolume that holds all others.
const TOP_LEVEL: u64 = 5;
/// Entries of one GET_SUBVOL_ROOTREF.
const ROOT_REFS: usize = 255;

impl<S: Control> Mount<S> {
    pub(super) fn subvol_create(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<()> {
        let arguments: VolArgs = input(bytes)?;
        self.make_subvolume(request, text(&arguments.name)?, &[])
    }

    /// Groups of quotas would be behind a pointer.
    pub(super) fn subvol_create_v2(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<()> {
        let arguments: VolArgsV2 = input(bytes)?;
        if arguments.flags & !SUBVOL_RDONLY != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        // Linux takes the flag here, and makes a subvolume that can be written to all the same.
        self.make_subvolume(request, text(&arguments.name)?, &[])
    }

    /// A new subvolume in the directory the request is about, and in groups of quotas.
    pub(super) fn make_subvolume(
        &self,
        request: &Request<'_>,
        name: &OsStr,
        groups: &[u64],
    ) -> Answer<()> {
        self.require_writable_mount(request)?;
        let directory = self.free_place(&Caller::of(request), request, name)?;
        let new = self.new_inode(request, DIRECTORY | 0o777 & !caller::umask_of(request.pid()));
        self.store.create_subvolume(&directory, name, &new, groups)?;
        self.names_changed(request.nodeid());
        Ok(())
    }

    /// The directory that the request is about, in which the caller may make something by a name that is not taken.
    fn free_place(&self, caller: &Caller, request: &Request<'_>, name: &OsStr) -> Answer<S::Node> {
        check_name(name)?;
        let directory = self.node(request.nodeid())?;
        self.may(caller, &directory, SEARCH)?;
        if self.store.lookup(&directory, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        self.may(caller, &directory, WRITE | SEARCH)?;
        Ok(directory)
    }

    pub(super) fn snap_create(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<()> {
        let arguments: VolArgs = input(bytes)?;
        self.snapshot_of(request, arguments.fd, text(&arguments.name)?, false)
    }

    pub(super) fn snap_create_v2(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<()> {
        let arguments: VolArgsV2 = input(bytes)?;
        if arguments.flags & !SUBVOL_RDONLY != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let read_only = arguments.flags & SUBVOL_RDONLY != 0;
        self.snapshot_of(request, arguments.fd, text(&arguments.name)?, read_only)
    }

    /// A snapshot of the subvolume whose top the caller has open.
    fn snapshot_of(
        &self,
        request: &Request<'_>,
        source: i64,
        name: &OsStr,
        read_only: bool,
    ) -> Answer<()> {
        self.require_writable_mount(request)?;
        let device = *self.device.get().ok_or(Errno::XDEV)?;
        let source = caller::file_of(request.pid(), source, device)?;
        let source = self.node(self.id_of_shown(source))?;
        self.make_snapshot(request, &source, (name, &[]), read_only)
    }

    /// A snapshot of the subvolume whose top is `source`, in the directory the request is about, and in groups of quotas.
    pub(super) fn make_snapshot(
        &self,
        request: &Request<'_>,
        source: &S::Node,
        (name, groups): (&OsStr, &[u64]),
        read_only: bool,
    ) -> Answer<()> {
        let caller = Caller::of(request);
        self.require_owner(&caller, source)?;
        let id = self.subvolume_top(source)?;
        let directory = self.free_place(&caller, request, name)?;
        self.store.snapshot(id, &directory, name, read_only, groups)?;
        self.names_changed(request.nodeid());
        Ok(())
    }

    pub(super) fn snap_destroy(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<()> {
        let arguments: VolArgs = input(bytes)?;
        self.require_writable_mount(request)?;
        self.delete_named(request, request.nodeid(), text(&arguments.name)?, None)
    }

    pub(super) fn snap_destroy_v2(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<()> {
        let arguments: VolArgsV2 = input(bytes)?;
        match arguments.flags {
            0 => {
                self.require_writable_mount(request)?;
                self.delete_named(request, request.nodeid(), text(&arguments.name)?, None)
            }
            SUBVOL_SPEC_BY_ID => self.delete_by_id(request, input(&arguments.name)?),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// Deletes the subvolume with this id, wherever it lies.
    pub(super) fn delete_by_id(&self, request: &Request<'_>, id: u64) -> Answer<()> {
        if id < SUBVOLUME_TOP {
            return Err(Errno::INVAL);
        }
        self.require_writable_mount(request)?;
        let facts = self.store.subvolume(id)?;
        let directory = Identity { subvolume: facts.parent, ino: facts.directory };
        self.delete_named(request, self.nodes.id(directory), &facts.name, Some(id))
    }

    /// Deletes the subvolume `name` in the directory with node id `directory`; if it is `wanted`, where that is said. Whoever
    /// renames others to that name meanwhile does not have them deleted: it is the one that was judged, or none.
    pub(super) fn delete_named(
        &self,
        request: &Request<'_>,
        directory: u64,
        name: &OsStr,
        wanted: Option<u64>,
    ) -> Answer<()> {
        match name.as_bytes() {
            b"" | b"." => return Err(Errno::ACCESS),
            b".." => return Err(Errno::INVAL),
            bytes if bytes.contains(&b'/') => return Err(Errno::INVAL),
            _ => {}
        }
        let (caller, node) = (Caller::of(request), self.node(directory)?);
        self.may(&caller, &node, SEARCH)?;
        let victim = self.store.lookup(&node, name)?.ok_or(Errno::NOENT)?;
        if wanted.is_some_and(|id| id != self.store.identity(&victim).node().stands_for()) {
            return Err(Errno::NOENT);
        }
        let from = self.store.identity(&self.node(request.nodeid())?);
        self.require_deleter(&caller, from, &node, &victim)?;
        self.may_remove(&node, name)?;
        if self.store.attributes(&victim)?.mode & TYPE != DIRECTORY {
            return Err(Errno::NOTDIR);
        }
        self.store.delete_subvolume(&node, name, &victim)?;
        self.names_changed(directory);
        // Who deletes by name in the directory itself looks for the name then.
        let looks = request.opcode() != opcode::IOCTL && directory == request.nodeid();
        if !looks && self.nodes.is_held(self.nodes.id(self.store.identity(&victim))) {
            self.have_looked_for(self.store.identity(&node), name);
        }
        Ok(())
    }

    pub(super) fn subvol_getflags(&self, request: &Request<'_>) -> Answer<Output> {
        let id = self.subvolume_top(&self.node(request.nodeid())?)?;
        let read_only = self.store.subvolume(id)?.read_only;
        output(&if read_only { SUBVOL_RDONLY } else { 0 })
    }

    pub(super) fn subvol_setflags(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<()> {
        let flags: u64 = input(bytes)?;
        let top = self.own_subvolume(request)?;
        if flags & !SUBVOL_RDONLY != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        self.store.set_read_only(top, flags != 0)
    }

    /// Makes the subvolume whose top the request is about read-only or writable.
    pub(super) fn make_read_only(&self, request: &Request<'_>, read_only: bool) -> Answer<()> {
        self.store.set_read_only(self.own_subvolume(request)?, read_only)
    }

    /// The subvolume whose top the request is about, which must be the caller's.
    fn own_subvolume(&self, request: &Request<'_>) -> Answer<u64> {
        let node = self.node(request.nodeid())?;
        self.require_owner(&Caller::of(request), &node)?;
        self.require_writable_mount(request)?;
        self.subvolume_top(&node)
    }

    pub(super) fn default_subvol(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<()> {
        self.choose_default(request, input(bytes)?)
    }

    /// Makes subvolume `id` the default; 0 is the top level, as in Linux.
    pub(super) fn choose_default(&self, request: &Request<'_>, id: u64) -> Answer<()> {
        self.require_master(request)?;
        self.require_writable_mount(request)?;
        self.store.set_default(if id == 0 { TOP_LEVEL } else { id })
    }

    pub(super) fn get_subvol_info(&self, request: &Request<'_>) -> Answer<Output> {
        let id = self.store.identity(&self.node(request.nodeid())?).within();
        output(&info(&self.store.subvolume(id)?))
    }

    pub(super) fn get_subvol_rootref(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<Output> {
        let mut answer: RootRefs = input(bytes)?;
        let above = self.store.identity(&self.node(request.nodeid())?).within();
        let (mut found, mut more) = (Vec::new(), false);
        for id in self.store.subvolumes(answer.min_treeid)? {
            let facts = self.store.subvolume(id)?;
            if facts.parent == above {
                more = found.len() == ROOT_REFS;
                if more {
                    break;
                }
                found.push([id, facts.directory]);
            }
        }
        answer.refs = [[0; 2]; ROOT_REFS];
        for (slot, reference) in answer.refs.iter_mut().zip(&found) {
            *slot = *reference;
        }
        answer.num_items = u8::try_from(found.len()).unwrap_or(u8::MAX);
        answer.min_treeid = found.last().map_or(answer.min_treeid, |[id, _]| id.saturating_add(1));
        // Who asks again from there gets the others.
        Ok(Output { refused: more.then_some(Errno::OVERFLOW), ..output(&answer)? })
    }

    pub(super) fn ino_lookup(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<Output> {
        let mut answer: InoLookup = input(bytes)?;
        let own = self.store.identity(&self.node(request.nodeid())?).within();
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

    pub(super) fn ino_lookup_user(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<Output> {
        let mut answer: InoLookupUser = input(bytes)?;
        let here = self.store.identity(&self.node(request.nodeid())?);
        let directory = Identity { ino: answer.dirid, ..here };
        if directory.ino == SUBVOLUME_TOP && here != directory {
            return Err(Errno::ACCESS);
        }
        self.may_reach(&Caller::of(request), &[here], &self.store.load(directory)?)?;
        let facts = self.store.subvolume(answer.treeid)?;
        match facts.parent == here.subvolume {
            true if facts.directory == answer.dirid => {}
            true => return Err(Errno::INVAL),
            false => return Err(Errno::NOENT),
        }
        answer.name = [0; 256];
        copy_text(&mut answer.name, facts.name.as_bytes());
        answer.path = [0; 3824];
        if directory != here {
            let path = self.store.path_in_subvolume(directory)?;
            let above = self.store.path_in_subvolume(here)?;
            let below = path.strip_prefix(above.as_slice()).ok_or(Errno::ACCESS)?;
            copy_path(&mut answer.path, below.strip_prefix(b"/").unwrap_or(below))?;
        }
        output(&answer)
    }
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
