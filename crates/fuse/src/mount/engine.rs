//! The engine's filesystem as a [`Store`]: the two vocabularies side by side, and no more.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Once;

use buttress::costs::{Bytes, Progress, Share};
use buttress::ondisk::item::mode::PERMISSIONS;
use buttress::ondisk::item::{RootItem, inode_flags, root_flags};
use buttress::ondisk::{Key, SECTOR, kind, objectid};
use buttress::{
    Balance, BalanceStop, Balanced, Change, Env, Error, FileKind, Filesystem, New, Owner,
    Referrers, Rename, SubvolumeInfo, WantedReferrers,
};
use rustix::fs::IFlags;
use rustix::io::Errno;

use super::control::{
    AskTrim, BalanceFacts, Control, DeviceFacts, ExtentFacts, Facts, FoundItem, QgroupChange,
    QuotaFacts, ResizeFacts, SpaceFacts, StoredFacts, StoredPart, SubvolumeFacts, TreeKey,
    TrimFacts,
};
use super::countings::Countings;
use super::store::{
    Allocate, Answer, Attributes, ListEntry, NewInode, RenameFlags, Seek, SetAttributes, SetTime,
    SpaceNumbers, Store, Time,
};
use super::task::Tasks;
use crate::nodes::Identity;

/// Most bytes that one request copies where extents cannot be shared.
const COPY_BYTES: u64 = 8 << 20;
/// Bytes read and written at a time then.
const COPY_STEP: usize = 1 << 20;
/// `BTRFS_SPACE_INFO_GLOBAL_RSV`: the part of metadata that only deletions may use.
const GLOBAL_RESERVE: u64 = 1 << 49;

/// Inode flags on disk and the FS_*_FL bits that say the same.
const FLAGS: [(u64, IFlags); 8] = [
    (inode_flags::SYNC, IFlags::SYNC),
    (inode_flags::IMMUTABLE, IFlags::IMMUTABLE),
    (inode_flags::APPEND, IFlags::APPEND),
    (inode_flags::NODUMP, IFlags::NODUMP),
    (inode_flags::NOATIME, IFlags::NOATIME),
    (inode_flags::DIRSYNC, IFlags::DIRSYNC),
    (inode_flags::NODATACOW, IFlags::NOCOW),
    (inode_flags::COMPRESS, IFlags::COMPRESSED),
];
/// Those that can be changed. The others (compression, no copy-on-write) would need the engine to act on them.
const SETTABLE: IFlags = IFlags::SYNC
    .union(IFlags::IMMUTABLE)
    .union(IFlags::APPEND)
    .union(IFlags::NODUMP)
    .union(IFlags::NOATIME)
    .union(IFlags::DIRSYNC);

/// The engine behind a mount.
pub struct Engine {
    fs: Filesystem,
    clock: Env,
    sector: u32,
    countings: Countings,
    tasks: Tasks,
}

impl Engine {
    /// Serves `fs`; other clones of it go on to work.
    pub fn new(fs: Filesystem) -> Self {
        let sector = fs.info().sectorsize;
        let (countings, tasks) = (Countings::default(), Tasks::default());
        Self { fs, clock: Env::system(), sector, countings, tasks }
    }

    /// What it has under way, for whoever waits for the end of that.
    pub fn tasks(&self) -> Tasks {
        self.tasks.clone()
    }

    /// How much of a copy can share extents: from sector to sector, and up to the end of the source
    /// only where the target does not go on.
    fn shareable(
        &self,
        from: (buttress::Node, u64),
        to: (buttress::Node, u64),
        length: u64,
    ) -> Answer<u64> {
        let sector = u64::from(self.sector);
        if !from.1.is_multiple_of(sector) || !to.1.is_multiple_of(sector) {
            return Ok(0);
        }
        let size = |node| self.fs.attributes(node).map(|found| found.size).map_err(errno);
        let reaches_end = from.1.saturating_add(length) >= size(from.0)?;
        if reaches_end && to.1.saturating_add(length) >= size(to.0)? {
            return Ok(length);
        }
        Ok(length - length % sector)
    }

    fn copy_bytes(
        &self,
        from: (buttress::Node, u64),
        to: (buttress::Node, u64),
        length: u64,
    ) -> Answer<u64> {
        let mut buffer = vec![0; COPY_STEP];
        let mut done = 0;
        while done < length {
            let part = usize::try_from(length - done).unwrap_or(COPY_STEP).min(COPY_STEP);
            let target = buffer.get_mut(..part).ok_or(Errno::INVAL)?;
            let read = self.fs.read(from.0, from.1 + done, target).map_err(errno)?;
            let found = target.get(..read).ok_or(Errno::IO)?;
            let written = self.fs.write(to.0, to.1 + done, found).map_err(errno);
            match written {
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
                Ok(written) => done += written as u64,
            }
            if read < part {
                break;
            }
        }
        Ok(done)
    }
}

/// The number for the caller; what is more than the caller's mistake is also said in full, for the
/// terminal of a mount in the foreground. That the filesystem has turned read-only is said once: from then on each read that
/// would note its time meets that.
pub(super) fn errno(error: Error) -> Errno {
    static ABORTED: Once = Once::new();
    let errno = error.errno();
    if matches!(error, Error::Aborted(_)) {
        ABORTED.call_once(|| crate::complain!("buttress: {error}"));
    } else if matches!(errno, Errno::IO | Errno::UCLEAN) {
        crate::complain!("buttress: {error}");
    }
    errno
}

fn identity(node: buttress::Node) -> Identity {
    node.into()
}

fn time(time: buttress::Time) -> Time {
    Time { sec: time.sec, nsec: time.nsec }
}

/// Major and minor of the 12 and 20 bits of a device number on disk.
fn device(rdev: u64) -> (u32, u32) {
    ((rdev >> 20 & 0xfff) as u32, (rdev & 0xf_ffff) as u32)
}

fn rdev((major, minor): (u32, u32)) -> u64 {
    u64::from(major) << 20 | u64::from(minor & 0xf_ffff)
}

fn attributes(found: &buttress::Attributes) -> Attributes {
    let flags = FLAGS.iter().filter(|(disk, _)| found.flags & disk != 0);
    Attributes {
        generation: found.generation,
        mode: found.kind.mode_bits() | found.mode,
        nlink: found.nlink,
        uid: found.uid,
        gid: found.gid,
        device: device(found.rdev),
        size: found.size,
        blocks: blocks(found),
        blocks_settled: found.blocks_settled,
        atime: time(found.atime),
        mtime: time(found.mtime),
        ctime: time(found.ctime),
        btime: time(found.otime),
        flags: flags.fold(0, |all, (_, flag)| all | flag.bits()),
    }
}

/// Space in units of 512 bytes. Where much was replaced that is counted until somebody has asked often enough, so
/// the size is the limit, but where space was reserved behind the end. Content that is kept in items counts as the whole
/// sectors that it fills in a file, as the kernel counts it.
fn blocks(found: &buttress::Attributes) -> u64 {
    let reserved = found.flags & inode_flags::PREALLOC != 0;
    let limit = match found.kind {
        FileKind::Regular if !reserved => found.size.checked_next_multiple_of(SECTOR),
        _ => None,
    };
    let bytes = found.blocks_bytes.div_ceil(SECTOR).saturating_mul(SECTOR);
    bytes.min(limit.unwrap_or(u64::MAX)) / 512
}

fn new_file(new: &NewInode) -> New {
    New {
        umask: new.umask,
        inherit: new.inherit,
        rdev: rdev(new.device),
        ..New::of(FileKind::of_mode(new.mode), new.mode & PERMISSIONS).owned(new.uid, new.gid)
    }
}

fn made(result: buttress::Result<buttress::Attributes>) -> Answer<(buttress::Node, Attributes)> {
    let found = result.map_err(errno)?;
    Ok((found.node, attributes(&found)))
}

impl Store for Engine {
    type Node = buttress::Node;

    fn load(&self, wanted: Identity) -> Answer<Self::Node> {
        let node = self.held(wanted)?;
        self.fs.attributes(node).map_err(errno)?;
        Ok(node)
    }

    fn held(&self, held: Identity) -> Answer<Self::Node> {
        Ok(held.node())
    }

    fn identity(&self, node: &Self::Node) -> Identity {
        identity(*node)
    }

    fn hold(&self, node: &Self::Node) -> Answer<()> {
        self.fs.hold(*node).map_err(errno)
    }

    fn release(&self, node: Self::Node) {
        // What a failed deletion leaves is an orphan, which the next open deletes.
        let _later = self.fs.release(node);
    }

    fn uses_elsewhere(&self, bytes: u64) {
        self.fs.use_elsewhere(bytes);
    }

    fn attributes(&self, node: &Self::Node) -> Answer<Attributes> {
        self.fs.attributes(*node).map(|found| attributes(&found)).map_err(errno)
    }

    fn set_attributes(&self, node: &Self::Node, change: &SetAttributes) -> Answer<Attributes> {
        // `touch` sets both times, and what is found newer than it was read was written since.
        let is_now = [change.atime, change.mtime].contains(&Some(SetTime::Now));
        let now = is_now.then(|| self.clock.now());
        let time = |time| match time {
            SetTime::Now => now,
            SetTime::To(Time { sec, nsec }) => Some(buttress::Time { sec, nsec }),
        };
        let change = Change {
            mode: change.mode,
            uid: change.uid,
            gid: change.gid,
            size: change.size,
            atime: change.atime.and_then(time),
            mtime: change.mtime.and_then(time),
            ctime: change.ctime.map(SetTime::To).and_then(time).or(now),
            ..Change::default()
        };
        let after = self.fs.set_attributes(*node, &change).map_err(errno)?;
        Ok(attributes(&after))
    }

    fn lookup(&self, directory: &Self::Node, name: &OsStr) -> Answer<Option<Self::Node>> {
        let found = self.fs.lookup(*directory, name.as_bytes()).map_err(errno)?;
        Ok(found.map(|entry| entry.node))
    }

    fn parent(&self, directory: &Self::Node) -> Answer<Self::Node> {
        self.fs.parent(*directory).map_err(errno)
    }

    fn create(
        &self,
        directory: &Self::Node,
        name: &OsStr,
        new: &NewInode,
    ) -> Answer<(Self::Node, Attributes)> {
        made(self.fs.create(*directory, name.as_bytes(), &new_file(new)))
    }

    fn symlink(
        &self,
        directory: &Self::Node,
        name: &OsStr,
        target: &OsStr,
        new: &NewInode,
    ) -> Answer<(Self::Node, Attributes)> {
        let link = New::symlink(target.as_bytes()).owned(new.uid, new.gid);
        made(self.fs.create(*directory, name.as_bytes(), &link))
    }

    fn temporary(
        &self,
        directory: &Self::Node,
        new: &NewInode,
    ) -> Answer<(Self::Node, Attributes)> {
        made(self.fs.create_unnamed(*directory, &new_file(new)))
    }

    fn link(&self, node: &Self::Node, directory: &Self::Node, name: &OsStr) -> Answer<Attributes> {
        let after = self.fs.link(*node, *directory, name.as_bytes()).map_err(errno)?;
        Ok(attributes(&after))
    }

    fn unlink(&self, directory: &Self::Node, name: &OsStr) -> Answer<()> {
        self.fs.unlink(*directory, name.as_bytes()).map(drop).map_err(errno)
    }

    fn rmdir(&self, directory: &Self::Node, name: &OsStr) -> Answer<()> {
        self.fs.rmdir(*directory, name.as_bytes()).map(drop).map_err(errno)
    }

    fn rename(
        &self,
        from: (&Self::Node, &OsStr),
        to: (&Self::Node, &OsStr),
        flags: RenameFlags,
    ) -> Answer<()> {
        // The kernel itself refuses to replace where a whiteout is to be left.
        let how = match flags {
            RenameFlags { exchange: true, .. } => Rename::Exchange,
            RenameFlags { whiteout: Some((uid, gid)), .. } => Rename::Whiteout { uid, gid },
            RenameFlags { no_replace: true, .. } => Rename::NoReplace,
            _ => Rename::Replace,
        };
        let (old, new) = (from.1.as_bytes(), to.1.as_bytes());
        self.fs.rename(*from.0, old, *to.0, new, how).map_err(errno)
    }

    fn read_link(&self, node: &Self::Node) -> Answer<Vec<u8>> {
        self.fs.read_link(*node).map_err(errno)
    }

    fn list(
        &self,
        directory: &Self::Node,
        from: u64,
        each: &mut dyn FnMut(ListEntry<'_>) -> bool,
    ) -> Answer<()> {
        let mut each = |entry: buttress::Entry| {
            each(ListEntry {
                index: entry.index,
                name: OsStr::from_bytes(&entry.name),
                identity: identity(entry.node),
                kind: entry.kind.mode_bits() >> 12,
            })
        };
        self.fs.read_dir(*directory, from, &mut each).map_err(errno)
    }

    fn read(
        &self,
        node: &Self::Node,
        offset: u64,
        buffer: &mut [u8],
    ) -> Answer<(usize, Attributes)> {
        let read = self.fs.read_and_look(*node, offset, buffer);
        read.map(|(length, found)| (length, attributes(&found))).map_err(errno)
    }

    fn accessed(&self, node: &Self::Node) -> Answer<()> {
        self.fs.accessed(*node).map_err(errno)
    }

    fn write(&self, node: &Self::Node, offset: u64, data: &[u8]) -> Answer<usize> {
        self.fs.write(*node, offset, data).map_err(errno)
    }

    fn write_back(&self, node: &Self::Node, offset: u64, data: &[u8]) -> Answer<usize> {
        self.fs.write_back(*node, offset, data).map_err(errno)
    }

    fn allocate(&self, node: &Self::Node, offset: u64, length: u64, how: Allocate) -> Answer<()> {
        let how = match how {
            Allocate::Reserve { keep_size } => buttress::Allocate::Reserve { keep_size },
            Allocate::Punch => buttress::Allocate::PunchHole,
            Allocate::Zero { keep_size } => buttress::Allocate::ZeroRange { keep_size },
        };
        self.fs.fallocate(*node, how, offset, length).map_err(errno)
    }

    fn copy(&self, from: (&Self::Node, u64), to: (&Self::Node, u64), length: u64) -> Answer<u64> {
        let (from, to) = ((*from.0, from.1), (*to.0, to.1));
        let size = self.fs.attributes(from.0).map_err(errno)?.size;
        let length = length.min(size.saturating_sub(from.1));
        let shared = self.shareable(from, to, length)?;
        if shared > 0 {
            match self.fs.clone_range(from.0, from.1, shared, to.0, to.1) {
                Ok(shared) => return Ok(shared),
                // Checksums on one side only, say.
                Err(Error::User(Errno::INVAL | Errno::OPNOTSUPP)) => {}
                Err(error) => return Err(errno(error)),
            }
        }
        self.copy_bytes(from, to, length.min(COPY_BYTES))
    }

    fn seek(&self, node: &Self::Node, offset: u64, what: Seek) -> Answer<u64> {
        let what = match what {
            Seek::Data => buttress::Seek::Data,
            Seek::Hole => buttress::Seek::Hole,
        };
        self.fs.seek(*node, offset, what).map_err(errno)
    }

    fn xattr(&self, node: &Self::Node, name: &OsStr) -> Answer<Option<Vec<u8>>> {
        self.fs.get_xattr(*node, name.as_bytes()).map_err(errno)
    }

    fn is_plain(&self, node: &Self::Node) -> bool {
        self.fs.is_without_xattrs(*node)
    }

    fn xattrs(&self, node: &Self::Node) -> Answer<Vec<Vec<u8>>> {
        self.fs.list_xattrs(*node).map_err(errno)
    }

    fn set_xattr(
        &self,
        node: &Self::Node,
        name: &OsStr,
        value: &[u8],
        how: buttress::SetXattr,
    ) -> Answer<()> {
        self.fs.set_xattr(*node, name.as_bytes(), value, how).map_err(errno)
    }

    fn remove_xattr(&self, node: &Self::Node, name: &OsStr) -> Answer<()> {
        self.fs.remove_xattr(*node, name.as_bytes()).map_err(errno)
    }

    fn space(&self) -> Answer<SpaceNumbers> {
        let bytes = self.fs.usage().stat();
        Ok(SpaceNumbers {
            total: bytes.total,
            free: bytes.free,
            available: bytes.available,
            sector: self.sector,
        })
    }

    fn sync(&self, node: &Self::Node) -> Answer<()> {
        self.fs.sync(*node).map_err(errno)
    }

    fn commit(&self) -> Answer<()> {
        self.fs.commit().map(drop).map_err(errno)
    }
}

fn subvolume_facts(info: SubvolumeInfo) -> SubvolumeFacts {
    SubvolumeFacts {
        id: info.id,
        read_only: info.is_read_only(),
        name: OsString::from_vec(info.name),
        parent: info.parent,
        directory: info.dir,
        generation: info.generation,
        uuid: info.uuid,
        parent_uuid: info.parent_uuid,
        received_uuid: info.received_uuid,
        transids: [info.ctransid, info.otransid, info.stransid, info.rtransid],
        times: info.times.map(time),
    }
}

fn device_facts(device: buttress::DeviceInfo) -> DeviceFacts {
    DeviceFacts {
        id: device.id,
        uuid: device.uuid,
        total: device.total,
        used: device.used,
        path: device.path.into(),
    }
}

impl Control for Engine {
    fn create_subvolume(
        &self,
        directory: &Self::Node,
        name: &OsStr,
        new: &NewInode,
        groups: &[u64],
    ) -> Answer<()> {
        let owner = Owner { uid: new.uid, gid: new.gid, umask: !new.mode & 0o777 };
        let made = self.fs.create_subvolume_in(*directory, name.as_bytes(), owner, groups);
        made.map(drop).map_err(errno)
    }

    fn snapshot(
        &self,
        source: u64,
        directory: &Self::Node,
        name: &OsStr,
        read_only: bool,
        groups: &[u64],
    ) -> Answer<()> {
        let name = name.as_bytes();
        let made = self.fs.snapshot_in(source, *directory, name, read_only, groups);
        made.map(drop).map_err(errno)
    }

    fn delete_subvolume(
        &self,
        directory: &Self::Node,
        name: &OsStr,
        victim: &Self::Node,
    ) -> Answer<()> {
        let name = name.as_bytes();
        self.fs.delete_subvolume_of(*directory, name, victim.stands_for()).map_err(errno)
    }

    fn subvolume(&self, id: u64) -> Answer<SubvolumeFacts> {
        self.fs.subvolume_info(id).map(subvolume_facts).map_err(errno)
    }

    fn subvolumes(&self, from: u64) -> Answer<Vec<u64>> {
        let top = buttress::Node::ROOT.subvolume;
        let others = self.fs.subvolumes().map_err(errno)?;
        let all = std::iter::once(top).chain(others.into_iter().map(|info| info.id));
        Ok(all.filter(|id| *id >= from).collect())
    }

    fn lingering_subvolumes(&self) -> Vec<u64> {
        self.fs.lingering_subvolumes()
    }

    fn deleted_subvolumes(&self, from: u64) -> Answer<Vec<SubvolumeFacts>> {
        let key = |objectid| TreeKey { objectid, kind: kind::ROOT_ITEM, offset: 0 };
        let (from, to) = (key(from.max(objectid::FIRST_FREE)), key(objectid::LAST_FREE));
        let mut all = Vec::new();
        self.search(objectid::ROOT_TREE, from, to, 0, &mut |found| {
            let item = RootItem::read(found.data).filter(|_| found.key.kind == kind::ROOT_ITEM);
            all.extend(item.filter(|item| item.refs.get() == 0).map(|item| {
                SubvolumeFacts {
                    id: found.key.objectid,
                    read_only: item.flags.get() & root_flags::READ_ONLY != 0,
                    generation: item.generation.get(),
                    uuid: item.uuid,
                    parent_uuid: item.parent_uuid,
                    received_uuid: item.received_uuid,
                    transids: [&item.ctransid, &item.otransid, &item.stransid, &item.rtransid]
                        .map(|id| id.get()),
                    times: [&item.ctime, &item.otime, &item.stime, &item.rtime]
                        .map(|at| time(buttress::Time::from_disk(at))),
                    ..SubvolumeFacts::default()
                }
            }));
            true
        })?;
        Ok(all)
    }

    fn set_read_only(&self, id: u64, read_only: bool) -> Answer<()> {
        self.fs.set_subvolume_read_only(id, read_only).map_err(errno)?;
        // Durable when it returns, as on Linux; so is a label.
        self.commit()
    }

    fn default_subvolume(&self) -> Answer<u64> {
        self.fs.default_subvolume().map_err(errno)
    }

    fn set_default(&self, id: u64) -> Answer<()> {
        self.fs.set_default_subvolume(id).map_err(errno)
    }

    fn path_in_subvolume(&self, wanted: Identity) -> Answer<Vec<u8>> {
        let node = buttress::Node { subvolume: wanted.subvolume, ino: wanted.ino };
        self.fs.path_in_subvolume(node).map_err(errno)
    }

    fn facts(&self) -> Answer<Facts> {
        let info = self.fs.info();
        Ok(Facts {
            fsid: info.fsid,
            metadata_uuid: info.metadata_uuid,
            nodesize: info.nodesize,
            sectorsize: info.sectorsize,
            csum_type: info.checksum.to_u16(),
            csum_size: u16::try_from(info.checksum.size()).unwrap_or(0),
            generation: info.generation,
            features: [info.compat, info.compat_ro, info.incompat],
            label: info.label,
            devices: info.devices.into_iter().map(device_facts).collect(),
        })
    }

    fn fiemap(&self, node: &Self::Node, from: u64, most: usize) -> Answer<Vec<ExtentFacts>> {
        // Who goes on needs no commit of his own.
        let extents = match from {
            0 => self.fs.fiemap(*node, from..u64::MAX),
            _ => self.fs.fiemap_committed(*node, from..u64::MAX),
        };
        let extents = extents.map_err(errno)?;
        let facts = |one: buttress::FileExtent| ExtentFacts {
            logical: one.logical,
            physical: one.physical,
            length: one.length,
            flags: one.flags,
        };
        extents.take(most).map(|one| one.map(facts).map_err(errno)).collect()
    }

    fn stats(&self) -> Answer<Vec<(String, u64)>> {
        Ok(self.fs.stats().figures())
    }

    fn count_subvolumes(&self) -> Answer<u64> {
        self.countings.begin(&self.fs).map_err(errno)
    }

    fn count_on(&self, counting: u64) -> Answer<Option<Progress>> {
        self.countings.go_on(&self.fs, counting).map_err(errno)
    }

    fn costs(&self, counting: u64, from: u64, count: usize) -> Answer<Vec<(u64, Share)>> {
        self.countings.costs(counting, from, count).map_err(errno)
    }

    fn ask_about(&self, counting: u64, id: u64) -> Answer<()> {
        self.countings.ask(counting, id).map_err(errno)
    }

    fn cost_sums(&self, counting: u64) -> Answer<[Bytes; 3]> {
        self.countings.sums(counting).map_err(errno)
    }

    fn end_counting(&self, counting: u64) {
        self.countings.end(counting);
    }

    fn quotas(&self) -> Answer<QuotaFacts> {
        Ok(QuotaFacts {
            on: self.fs.has_quotas(),
            simple: self.fs.has_simple_quotas(),
            wrong: self.fs.has_wrong_quotas(),
            count: self.tasks.quota_count(),
        })
    }

    fn count_quotas(&self) -> Answer<()> {
        self.tasks.count_quotas(&self.fs)
    }

    fn enable_simple_quotas(&self) -> Answer<()> {
        self.fs.enable_simple_quotas().map_err(errno)
    }

    fn wait_for_quotas(&self) -> Answer<()> {
        self.tasks.rescan.wait().unwrap_or(Ok(()))
    }

    fn give_up_tasks(&self) {
        self.tasks.give_up();
    }

    fn balance_facts(&self) -> Answer<BalanceFacts> {
        let unfinished = self.fs.unfinished_balance().map_err(errno)?;
        Ok(BalanceFacts { task: self.tasks.balance.state(), unfinished })
    }

    fn start_balance(&self, balance: Balance) -> Answer<()> {
        self.tasks.start_balance(&self.fs, balance)
    }

    fn resume_balance(&self) -> Answer<()> {
        self.tasks.resume_balance(&self.fs)
    }

    fn stop_balance(&self, why: BalanceStop) -> Answer<()> {
        match self.tasks.balance.stop(why) {
            Err(Errno::NOTCONN) if why == BalanceStop::Cancel => {
                self.fs.cancel_balance().map_err(errno)
            }
            stopped => stopped,
        }
    }

    fn wait_for_balance(&self) -> Option<Answer<Balanced>> {
        self.tasks.balance.wait()
    }

    fn wait_for_resize(&self) -> Answer<()> {
        self.tasks.resize.wait().unwrap_or(Ok(()))
    }

    fn resize_facts(&self) -> Answer<ResizeFacts> {
        Ok(self.tasks.resize_facts(&self.fs))
    }

    fn resize(&self, size: u64) -> Answer<()> {
        self.tasks.resize(&self.fs, size)
    }

    fn trim(&self, asked: AskTrim) -> Answer<TrimFacts> {
        self.tasks.trim(&self.fs, asked)
    }

    fn cancel_resize(&self) -> Answer<()> {
        self.tasks.resize.stop(BalanceStop::Cancel)
    }

    fn disable_quotas(&self) -> Answer<()> {
        self.fs.disable_quotas().map_err(errno)
    }

    fn change_qgroup(&self, change: QgroupChange) -> Answer<bool> {
        change.apply(&self.fs).map_err(errno)
    }

    fn why_no_commit(&self) -> Option<String> {
        Some(self.fs.commit().err()?.to_string())
    }

    fn spaces(&self) -> Answer<Vec<SpaceFacts>> {
        let of = |class: buttress::ClassUsage| SpaceFacts {
            flags: class.flags,
            total: class.total,
            used: class.used,
        };
        let mut spaces: Vec<_> = self.fs.spaces().into_iter().map(of).collect();
        let total = self.fs.usage().global_reserve;
        spaces.push(SpaceFacts { flags: GLOBAL_RESERVE, total, used: 0 });
        Ok(spaces)
    }

    fn set_label(&self, label: &[u8]) -> Answer<()> {
        self.fs.set_label(label).map_err(errno)?;
        self.commit()
    }

    fn set_flags(&self, node: &Self::Node, flags: u32) -> Answer<()> {
        let now = self.fs.attributes(*node).map_err(errno)?;
        if (attributes(&now).flags ^ flags) & !SETTABLE.bits() != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let mut disk = now.flags;
        for (bit, flag) in FLAGS.iter().filter(|(_, flag)| SETTABLE.contains(*flag)) {
            disk = if flags & flag.bits() != 0 { disk | bit } else { disk & !bit };
        }
        let change = Change { flags: Some(disk), ..Change::default() };
        self.fs.set_attributes(*node, &change).map(drop).map_err(errno)
    }

    fn stored(&self, node: &Self::Node, from: u64, most: usize) -> Answer<StoredPart> {
        let (parts, next) = self.fs.stored_from(*node, from, most).map_err(errno)?;
        let facts = |it: &buttress::Stored| {
            let (bytenr, prealloc) = match it.place {
                buttress::StoredIn::Item => (0, false),
                buttress::StoredIn::Extent { bytenr, prealloc } => (bytenr, prealloc),
            };
            let buttress::Stored { start, len, compression, disk_len, ram_len, .. } = *it;
            StoredFacts { start, len, compression, disk_len, ram_len, bytenr, prealloc }
        };
        Ok((parts.iter().map(facts).collect(), next))
    }

    fn referrers(&self, wanted: WantedReferrers, fresh: bool) -> Answer<(Referrers, u64)> {
        if fresh {
            self.fs.commit().map_err(errno)?;
        }
        self.fs.referrers_committed(wanted).map_err(errno)
    }

    fn paths(&self, wanted: Identity) -> Answer<Vec<Vec<u8>>> {
        let node = buttress::Node { subvolume: wanted.subvolume, ino: wanted.ino };
        self.fs.paths_in_subvolume(node).map_err(errno)
    }

    fn search(
        &self,
        tree: u64,
        from: TreeKey,
        to: TreeKey,
        since: u64,
        each: &mut dyn FnMut(FoundItem<'_>) -> bool,
    ) -> Answer<()> {
        let key = |key: TreeKey| Key::new(key.objectid, key.kind, key.offset);
        // A search sees committed trees; one of Linux sees the running transaction, too. Where commits fail, what the last
        // one has left is all there is.
        let _last_committed = self.fs.commit();
        let found = |key: Key, transid: u64, data: &[u8]| {
            let key = TreeKey { objectid: key.objectid, kind: key.kind, offset: key.offset };
            each(FoundItem { key, transid, data })
        };
        self.fs.search_since(tree, key(from)..=key(to), since, found).map_err(errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_on_disk() {
        for numbers in [(0, 0), (8, 1), (259, 70_000), (0xfff, 0xf_ffff)] {
            assert_eq!(device(rdev(numbers)), numbers);
        }
        assert_eq!(rdev((8, 1)), 0x80_0001);
    }
}
