//! What goes beyond files: subvolumes, labels, facts about the filesystem, by two ways.
//!
//! Programs written for btrfs use its ioctls (`ioctl`). FUSE carries only those whose struct says
//! by its size all there is to copy, so the ones with pointers or trailing buffers answer ENOTTY; so does QGROUP_LIMIT, whose number
//! says that there is nothing to copy from the caller.
//!
//! Our own command uses extended attributes with the prefix `buttress.` (`words`, and
//! [`crate::client`] is the other end): getting and setting them needs no ioctl numbers, no unsafe
//! code, and works through every language's standard library. They are never listed.
//!
//! Permissions here are the server's business, as the kernel cannot know what an ioctl does. They are those of Linux:
//! subvolumes are made and deleted by who may change the directory, snapshots are made of one's own, the whole filesystem is
//! for CAP_SYS_ADMIN, and nothing changes through a read-only mount. The user who mounted counts as the administrator of
//! what he has mounted. Names and paths of subvolumes are told to those who could find them: the connection may have more than
//! anybody has mounted of it, so it is asked which of its directories the caller sees mounted, and what lies below those.

mod abi;
mod counting;
mod facts;
mod ioctl;
pub(crate) mod quotas;
pub(crate) mod relocation;
mod search;
mod subvolumes;
pub(crate) mod trees;
pub(crate) mod trim;
pub(crate) mod words;

pub(in crate::mount) use ioctl::is_about_all as ioctl_is_about_all;
pub use quotas::{QgroupChange, QuotaCount, QuotaFacts};
pub use relocation::{BalanceFacts, ResizeFacts};
pub use trees::{ReferrerFacts, ReferrersPart, StoredFacts, StoredPart};
pub use trim::{AskTrim, TrimFacts};

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use buttress::costs::{Bytes, Progress, Share};
use buttress::{Balance, BalanceStop, Balanced, Referrers, WantedReferrers};
use rustix::io::Errno;

use super::caller::{self, Caller, Capability};
use super::permission::{READ, SEARCH, WRITE};
use super::store::{Answer, NewInode, Store, Time};
use super::{Mount, Notice};
use crate::nodes::{Identity, SUBVOLUME_TOP};
use crate::protocol::abi::opcode;
use crate::protocol::channel::{Channel, Request};
use crate::protocol::mounts;

/// Subvolumes in each other: more than any path has.
const SUBVOLUME_DEPTH_MAX: usize = 4096;
/// The user with all capabilities.
const ROOT: u32 = 0;

/// A subvolume, as its root item and root reference describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubvolumeFacts {
    /// Id of its tree.
    pub id: u64,
    /// Its name; empty for the top level.
    pub name: OsString,
    /// Id of the subvolume it lies in; 0 for the top level.
    pub parent: u64,
    /// Inode number of the directory it lies in; 0 for the top level.
    pub directory: u64,
    /// Transaction of its last change.
    pub generation: u64,
    /// Whether it is read-only.
    pub read_only: bool,
    /// Its own UUID.
    pub uuid: [u8; 16],
    /// UUID of the subvolume it is a snapshot of, or zeroes.
    pub parent_uuid: [u8; 16],
    /// UUID of the subvolume it was received from, or zeroes.
    pub received_uuid: [u8; 16],
    /// Transactions of its last change, creation, sending and receiving.
    pub transids: [u64; 4],
    /// Times of its last change, creation, sending and receiving.
    pub times: [Time; 4],
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Its id.
    pub id: u64,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Size in bytes.
    pub total: u64,
    /// Bytes in chunks.
    pub used: u64,
    /// Where it was found.
    pub path: OsString,
}

/// The filesystem as a whole, mostly from the superblock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Its UUID.
    pub fsid: [u8; 16],
    /// UUID written into its metadata.
    pub metadata_uuid: [u8; 16],
    /// Bytes in a tree block.
    pub nodesize: u32,
    /// Bytes in a sector.
    pub sectorsize: u32,
    /// Kind of checksum, as on disk.
    pub csum_type: u16,
    /// Bytes in a checksum.
    pub csum_size: u16,
    /// Last transaction.
    pub generation: u64,
    /// The compat, compat_ro and incompat bits.
    pub features: [u64; 3],
    /// Its label.
    pub label: Vec<u8>,
    /// Its devices.
    pub devices: Vec<DeviceFacts>,
}

/// Space of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceFacts {
    /// Block group type and profile bits, as on disk.
    pub flags: u64,
    /// Bytes in block groups.
    pub total: u64,
    /// Bytes in use.
    pub used: u64,
}

/// A part of a file that is in one piece in the file and on the disk; see FIEMAP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtentFacts {
    /// Offset in the file, in bytes.
    pub logical: u64,
    /// Address on the filesystem's devices, in bytes; 0 where there is none.
    pub physical: u64,
    /// Bytes of the file.
    pub length: u64,
    /// The flags of Linux's `fiemap_extent`.
    pub flags: u32,
}

/// A key of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TreeKey {
    /// First part.
    pub objectid: u64,
    /// Second part.
    pub kind: u8,
    /// Third part.
    pub offset: u64,
}

impl TreeKey {
    /// The key that follows; `None` behind the last one.
    pub fn next(self) -> Option<TreeKey> {
        let TreeKey { objectid, kind, offset } = self;
        if let Some(offset) = offset.checked_add(1) {
            return Some(TreeKey { offset, ..self });
        }
        match kind.checked_add(1) {
            Some(kind) => Some(TreeKey { objectid, kind, offset: 0 }),
            None => Some(TreeKey { objectid: objectid.checked_add(1)?, kind: 0, offset: 0 }),
        }
    }
}

/// An item found by a search.
#[derive(Clone, Copy, Debug)]
pub struct FoundItem<'a> {
    /// Its key.
    pub key: TreeKey,
    /// Transaction that wrote its leaf.
    pub transid: u64,
    /// Its bytes.
    pub data: &'a [u8],
}

/// What a filesystem offers beyond files. What is not implemented answers ENOTTY.
#[allow(unused_variables, reason = "the names document the parameters")]
pub trait Control: Store {
    /// Makes an empty subvolume, in these groups of quotas from the beginning.
    fn create_subvolume(
        &self,
        directory: &Self::Node,
        name: &OsStr,
        new: &NewInode,
        groups: &[u64],
    ) -> Answer<()> {
        Err(Errno::NOTTY)
    }
    /// Makes a snapshot of subvolume `source`, in these groups of quotas from the beginning.
    fn snapshot(
        &self,
        source: u64,
        directory: &Self::Node,
        name: &OsStr,
        read_only: bool,
        groups: &[u64],
    ) -> Answer<()> {
        Err(Errno::NOTTY)
    }
    /// Deletes the subvolume `victim` by its name; ENOENT when that stands for another one by now.
    fn delete_subvolume(
        &self,
        directory: &Self::Node,
        name: &OsStr,
        victim: &Self::Node,
    ) -> Answer<()> {
        Err(Errno::NOTTY)
    }
    /// Describes a subvolume.
    fn subvolume(&self, id: u64) -> Answer<SubvolumeFacts> {
        Err(Errno::NOTTY)
    }
    /// Ids of all subvolumes from `from` on, ascending, the top level among them.
    fn subvolumes(&self, from: u64) -> Answer<Vec<u64>> {
        Err(Errno::NOTTY)
    }
    /// Subvolumes from `from` on that are deleted and whose space is not free yet, by ascending ids. They have neither name
    /// nor place.
    fn deleted_subvolumes(&self, from: u64) -> Answer<Vec<SubvolumeFacts>> {
        Err(Errno::NOTTY)
    }
    /// Those of which the kernel holds files: they stay until it forgets them.
    fn lingering_subvolumes(&self) -> Vec<u64> {
        Vec::new()
    }
    /// Makes a subvolume read-only or writable.
    fn set_read_only(&self, id: u64, read_only: bool) -> Answer<()> {
        Err(Errno::NOTTY)
    }
    /// The subvolume mounted by default.
    fn default_subvolume(&self) -> Answer<u64> {
        Err(Errno::NOTTY)
    }
    /// Chooses the subvolume mounted by default.
    fn set_default(&self, id: u64) -> Answer<()> {
        Err(Errno::NOTTY)
    }
    /// One path of an inode inside its subvolume, without leading slash; empty for the top.
    fn path_in_subvolume(&self, identity: Identity) -> Answer<Vec<u8>> {
        Err(Errno::NOTTY)
    }
    /// The extents of a regular file from an offset on, `most` at most.
    fn fiemap(&self, node: &Self::Node, from: u64, most: usize) -> Answer<Vec<ExtentFacts>> {
        Err(Errno::NOTTY)
    }
    /// Facts about the filesystem.
    fn facts(&self) -> Answer<Facts> {
        Err(Errno::NOTTY)
    }
    /// Why what was done cannot be made durable, in words: errno alone would not tell. Tries once more.
    fn why_no_commit(&self) -> Option<String> {
        None
    }
    /// Total and used space by kind.
    fn spaces(&self) -> Answer<Vec<SpaceFacts>> {
        Err(Errno::NOTTY)
    }
    /// What was done so far, by name.
    fn stats(&self) -> Answer<Vec<(String, u64)>> {
        Err(Errno::NOTTY)
    }
    /// Begins to count what subvolumes take; the number of the counting. It may take the place of an older one.
    fn count_subvolumes(&self) -> Answer<u64> {
        Err(Errno::NOTTY)
    }
    /// Goes on with a counting for a moment; how far it is, `None` at its end. ECANCELED where another has taken its place,
    /// EBUSY where commits come faster than it can count.
    fn count_on(&self, counting: u64) -> Answer<Option<Progress>> {
        Err(Errno::NOTTY)
    }
    /// What subvolumes from `from` on take, `count` of them at most, by ascending ids.
    fn costs(&self, counting: u64, from: u64, count: usize) -> Answer<Vec<(u64, Share)>> {
        Err(Errno::NOTTY)
    }
    /// Asks what would be free without subvolume `id`, and the others that were asked about.
    fn ask_about(&self, counting: u64, id: u64) -> Answer<()> {
        Err(Errno::NOTTY)
    }
    /// What all subvolumes take together, what several share, and what would be free without those asked about.
    fn cost_sums(&self, counting: u64) -> Answer<[Bytes; 3]> {
        Err(Errno::NOTTY)
    }
    /// A counting is of no use any more.
    fn end_counting(&self, counting: u64) {}
    /// How it is with quotas.
    fn quotas(&self) -> Answer<QuotaFacts> {
        Err(Errno::NOTTY)
    }
    /// Begins to count them anew, and switches them on; EINPROGRESS where that has begun already. It goes on by itself.
    fn count_quotas(&self) -> Answer<()> {
        Err(Errno::NOTTY)
    }
    /// Switches simple quotas on.
    fn enable_simple_quotas(&self) -> Answer<()> {
        Err(Errno::NOTTY)
    }
    /// Waits while they are counted; fails as the last counting has.
    fn wait_for_quotas(&self) -> Answer<()> {
        Err(Errno::NOTTY)
    }
    /// The mount ends: what takes long does so, too, soon.
    fn give_up_tasks(&self) {}
    /// How it is with balances.
    fn balance_facts(&self) -> Answer<BalanceFacts> {
        Err(Errno::NOTTY)
    }
    /// Begins one; EINPROGRESS where one has begun and not ended. It goes on by itself.
    fn start_balance(&self, balance: Balance) -> Answer<()> {
        Err(Errno::NOTTY)
    }
    /// Goes on with the one that was paused or interrupted; ENOTCONN where there is none.
    fn resume_balance(&self) -> Answer<()> {
        Err(Errno::NOTTY)
    }
    /// Has the one that runs end, soon; one that is paused can be cancelled. ENOTCONN where there is none.
    fn stop_balance(&self, why: BalanceStop) -> Answer<()> {
        Err(Errno::NOTTY)
    }
    /// Waits while a balance runs; what came of it, if there was one.
    fn wait_for_balance(&self) -> Option<Answer<Balanced>> {
        None
    }
    /// Waits while the size changes; fails as that has.
    fn wait_for_resize(&self) -> Answer<()> {
        Err(Errno::NOTTY)
    }
    /// How it is with the size of the device.
    fn resize_facts(&self) -> Answer<ResizeFacts> {
        Err(Errno::NOTTY)
    }
    /// Begins to change it; EINPROGRESS where that, or a balance, is under way. It goes on by itself.
    fn resize(&self, size: u64) -> Answer<()> {
        Err(Errno::NOTTY)
    }
    /// Has that end, soon. ENOTCONN where nobody changes it.
    fn cancel_resize(&self) -> Answer<()> {
        Err(Errno::NOTTY)
    }
    /// How it is with telling the device what is free; begins or ends it, or waits for it, before that.
    fn trim(&self, asked: AskTrim) -> Answer<TrimFacts> {
        Err(Errno::NOTTY)
    }
    /// Switches quotas off.
    fn disable_quotas(&self) -> Answer<()> {
        Err(Errno::NOTTY)
    }
    /// Changes a group of quotas; whether all numbers are right after that.
    fn change_qgroup(&self, change: QgroupChange) -> Answer<bool> {
        Err(Errno::NOTTY)
    }
    /// Renames the filesystem.
    fn set_label(&self, label: &[u8]) -> Answer<()> {
        Err(Errno::NOTTY)
    }
    /// Sets inode flags (FS_IOC_SETFLAGS bits).
    fn set_flags(&self, node: &Self::Node, flags: u32) -> Answer<()> {
        Err(Errno::NOTTY)
    }
    /// How a file is stored from an offset on, so many parts at most: 0 or where another answer ended.
    fn stored(&self, node: &Self::Node, from: u64, most: usize) -> Answer<StoredPart> {
        Err(Errno::NOTTY)
    }
    /// The files that refer to the data at an address; of which commit, and how many there is no room for. Commits first where `fresh`.
    fn referrers(&self, wanted: WantedReferrers, fresh: bool) -> Answer<(Referrers, u64)> {
        Err(Errno::NOTTY)
    }
    /// All paths of an inode inside its subvolume, without leading slash.
    fn paths(&self, identity: Identity) -> Answer<Vec<Vec<u8>>> {
        Err(Errno::NOTTY)
    }
    /// Items of a tree between two keys, both inclusive, of leaves that transaction `since` or a later one wrote, until `each`
    /// returns false.
    fn search(
        &self,
        tree: u64,
        from: TreeKey,
        to: TreeKey,
        since: u64,
        each: &mut dyn FnMut(FoundItem<'_>) -> bool,
    ) -> Answer<()> {
        Err(Errno::NOTTY)
    }
}

/// A caller, and what he sees of the filesystem.
struct View {
    caller: Caller,
    /// Whether he may do what concerns the whole filesystem. Then nothing is hidden from him.
    master: bool,
    /// Directories that are mounted where he sees it.
    tops: Vec<Identity>,
}

impl<S: Control> Mount<S> {
    /// Whether the caller may do what concerns the whole filesystem: with CAP_SYS_ADMIN, as in Linux, or as the ordinary
    /// user whose mount it is, who can write to the device.
    fn is_master(&self, caller: &Caller) -> bool {
        self.has_mounted(caller) || caller.has(Capability::SysAdmin)
    }

    /// Whether this is the ordinary user whose mount it is. Root has capabilities, or no more rights than others.
    fn has_mounted(&self, caller: &Caller) -> bool {
        let owner = self.policy.owner;
        owner != ROOT && caller.uid == owner && caller.among_us
    }

    /// For what concerns the whole filesystem.
    fn require_master(&self, request: &Request<'_>) -> Answer<()> {
        if self.is_master(&Caller::of(request)) { Ok(()) } else { Err(Errno::PERM) }
    }

    /// For what changes a subvolume through its top, or makes a snapshot of it.
    fn require_owner(&self, caller: &Caller, top: &S::Node) -> Answer<()> {
        let may = self.owns(caller, top)? || self.has_mounted(caller);
        if may { Ok(()) } else { Err(Errno::PERM) }
    }

    /// For deleting `victim` from `directory`: what rmdir(2) would ask for, and of those who do not administer the
    /// filesystem `user_subvol_rm_allowed` and write access to the subvolume besides. They must ask from outside of it.
    fn require_deleter(
        &self,
        caller: &Caller,
        from: Identity,
        directory: &S::Node,
        victim: &S::Node,
    ) -> Answer<()> {
        if !self.is_master(caller) {
            if !self.policy.user_subvol_rm_allowed {
                return Err(Errno::PERM);
            }
            if self.store.identity(victim).subvolume == from.subvolume {
                return Err(Errno::INVAL);
            }
            self.may(caller, victim, WRITE | SEARCH)?;
        }
        self.may_unlink(caller, directory, victim)
    }

    /// Refuses a change by ioctl whose file was opened through a mount that may not be written to. The kernel sees to that
    /// itself where a control word is set, which is setxattr(2) to it.
    fn require_writable_mount(&self, request: &Request<'_>) -> Answer<()> {
        if request.opcode() != opcode::IOCTL {
            return Ok(());
        }
        let device = *self.device.get().ok_or(Errno::ROFS)?;
        // Of the top the kernel keeps the first number that it knew.
        let inos = [request.nodeid(), self.shown_ino(request.nodeid())];
        match caller::opened_writable(request.pid(), device, inos) {
            true => Ok(()),
            false => Err(Errno::ROFS),
        }
    }

    /// Who asks, and from where on he could look around. A mount whose mount point he may not get to counts as well: only he
    /// himself could try.
    fn view_of(&self, request: &Request<'_>) -> View {
        let caller = Caller::of(request);
        let master = self.is_master(&caller);
        let paths = match self.device.get() {
            Some(device) if !master => caller.tops(*device),
            _ => Vec::new(),
        };
        let tops = paths.iter().filter_map(|path| self.directory_at(path)).collect();
        View { caller, master, tops }
    }

    /// The directory that has a path from the top of the connection on, as the kernel tells of mounts.
    fn directory_at(&self, path: &Path) -> Option<Identity> {
        let top = Identity { subvolume: self.nodes.mounted(), ino: SUBVOLUME_TOP };
        let mut at = self.store.load(top).ok()?;
        for name in path.strip_prefix("/").ok()? {
            at = self.store.lookup(&at, name).ok()??;
        }
        Some(self.store.identity(&at))
    }

    /// Refuses to tell of a subvolume to those who could not find it. That without a name is no secret.
    fn may_see(&self, view: &View, facts: &SubvolumeFacts) -> Answer<()> {
        if facts.parent == 0 { Ok(()) } else { self.may_find(view, facts) }
    }

    /// Refuses a caller who could not find a subvolume by a path on a mount that he sees.
    fn may_find(&self, view: &View, facts: &SubvolumeFacts) -> Answer<()> {
        let top = Identity { subvolume: facts.id, ino: SUBVOLUME_TOP };
        if view.master || view.tops.contains(&top) {
            return Ok(());
        }
        if facts.parent == 0 || view.tops.is_empty() {
            return Err(Errno::ACCESS);
        }
        let directory = Identity { subvolume: facts.parent, ino: facts.directory };
        let above = self.may_reach(&view.caller, &view.tops, &self.store.load(directory)?)?;
        self.may(&view.caller, &above, READ | SEARCH)
    }

    /// The subvolume whose top `node` is.
    fn subvolume_top(&self, node: &S::Node) -> Answer<u64> {
        let node = self.store.identity(node).node();
        if node.is_top() { Ok(node.subvolume) } else { Err(Errno::INVAL) }
    }

    /// The path of a directory from the top of the connection.
    fn path_on_mount(&self, directory: Identity) -> Option<PathBuf> {
        let (mut at, mut names) = (directory, Vec::new());
        // Each step leads to another subvolume.
        for _ in 0..SUBVOLUME_DEPTH_MAX {
            names.push(OsString::from_vec(self.store.path_in_subvolume(at).ok()?));
            if at.subvolume == self.nodes.mounted() {
                return Some(names.iter().rev().collect());
            }
            let facts = self.store.subvolume(at.subvolume).ok()?;
            at = Identity { subvolume: facts.parent, ino: facts.directory };
            names.push(facts.name);
        }
        None
    }

    /// Has the kernel look for a subvolume that was deleted, so that it forgets what it has seen below: until then that
    /// counts as in use, and its space stays. By another process, since one that waits for its own answers could not be
    /// killed.
    fn have_looked_for(&self, directory: Identity, name: &OsStr) {
        let Some(path) = self.path_on_mount(directory) else { return };
        let path = Path::new("/").join(path);
        // Of a mount of a subvolume the top may be above it.
        let found = mounts::all().ok().and_then(|all| {
            let device = self.device.get()?;
            let mut ours = all.into_iter().filter(|entry| entry.device == *device);
            ours.find_map(|it| Some(it.mountpoint.join(path.strip_prefix(&it.root).ok()?)))
        });
        let Some(path) = found.map(|directory| directory.join(name)) else { return };
        let look = move || {
            let mut command = Command::new("stat");
            command.arg("--").arg(path).stdin(Stdio::null());
            // That there is nothing is what is expected.
            let _nothing = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        };
        // Without a thread it is forgotten when memory is short, or at the end of the mount.
        let _later = std::thread::Builder::new().spawn(look);
    }

    /// Notes that the kernel must be told of a change of `directory` that it did not ask for as such.
    fn names_changed(&self, directory: u64) {
        self.notices.lock().push(Notice::Listing(directory));
    }

    /// The same for the attributes of a node.
    fn attributes_changed(&self, id: u64) {
        self.notices.lock().push(Notice::Attributes(id));
    }

    /// Tells the kernel to forget what was noted before. The names of directories it asks for each time where they can
    /// change like this: [`Mount::entry_with`] says why.
    pub(in crate::mount) fn send_notices(&self, channel: &Channel) {
        // Who comes after and finds nothing to tell may say that all was told.
        let mut waiting = self.notices.lock();
        for notice in waiting.drain(..) {
            let (id, offset) = match notice {
                Notice::Attributes(id) => (id, -1),
                Notice::Listing(id) => (id, 0),
            };
            // Fails only where the mount is going away, and its caches with it.
            let _gone = channel.inval_inode(id, offset, 0);
        }
    }
}

/// Whether a name may stand for one new entry of a directory.
fn check_name(name: &OsStr) -> Answer<()> {
    match name.as_encoded_bytes() {
        b"." | b".." => Err(Errno::EXIST),
        b"" => Err(Errno::ACCESS),
        bytes if bytes.contains(&b'/') => Err(Errno::INVAL),
        bytes if bytes.len() > 255 => Err(Errno::NAMETOOLONG),
        _ => Ok(()),
    }
}
