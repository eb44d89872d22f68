//! The filesystem as a whole: sizes, UUIDs, features, label, devices, and inode flags.

use std::os::unix::ffi::OsStrExt;

use buttress::ondisk::item::mode::{DIRECTORY, TYPE_MASK as TYPE};
use rustix::fs::IFlags;
use rustix::io::Errno;

use super::abi::{self, DevInfo, FsInfo, FsXattr, info_flag, xflag};
use super::ioctl::{Output, input, output};
use super::{Control, Mount};
use crate::mount::store::Answer;
use crate::protocol::channel::Request;

/// What is filled in besides.
const INFO_FLAGS: u64 = info_flag::CSUM_INFO | info_flag::GENERATION | info_flag::METADATA_UUID;
/// Longest label with its nul byte.
const LABEL_BYTES: usize = 256;
/// Inode flags and the FS_XFLAG_* bits that say the same.
const XFLAGS: [(IFlags, u32); 5] = [
    (IFlags::SYNC, xflag::SYNC),
    (IFlags::IMMUTABLE, xflag::IMMUTABLE),
    (IFlags::APPEND, xflag::APPEND),
    (IFlags::NODUMP, xflag::NODUMP),
    (IFlags::NOATIME, xflag::NOATIME),
];

impl<S: Control> Mount<S> {
    pub(super) fn fs_info(&self) -> Answer<Output> {
        let facts = self.store.facts()?;
        output(&FsInfo {
            max_id: facts.devices.iter().map(|device| device.id).max().unwrap_or(0),
            num_devices: facts.devices.len() as u64,
            fsid: facts.fsid,
            nodesize: facts.nodesize,
            sectorsize: facts.sectorsize,
            clone_alignment: facts.sectorsize,
            csum_type: facts.csum_type,
            csum_size: facts.csum_size,
            flags: INFO_FLAGS,
            generation: facts.generation,
            metadata_uuid: facts.metadata_uuid,
            reserved: [0; 944],
        })
    }

    pub(super) fn dev_info(&self, bytes: &[u8]) -> Answer<Output> {
        let wish: DevInfo = input(bytes)?;
        let by_uuid = wish.devid == 0;
        let facts = self.store.facts()?;
        let wanted = |device: &&super::DeviceFacts| {
            if by_uuid { device.uuid == wish.uuid } else { device.id == wish.devid }
        };
        let device = facts.devices.iter().find(wanted).ok_or(Errno::NODEV)?;
        let mut path = [0; 1024];
        copy_text(&mut path, device.path.as_bytes());
        output(&DevInfo {
            devid: device.id,
            uuid: device.uuid,
            bytes_used: device.used,
            total_bytes: device.total,
            unused: [0; 379],
            path,
        })
    }

    pub(super) fn get_features(&self) -> Answer<Output> {
        output(&self.store.facts()?.features)
    }

    pub(super) fn get_label(&self) -> Answer<Output> {
        let mut label = [0; LABEL_BYTES];
        copy_text(&mut label, &self.store.facts()?.label);
        output(&label)
    }

    pub(super) fn set_label(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<()> {
        self.require_master(request)?;
        let label: [u8; LABEL_BYTES] = input(bytes)?;
        let end = label.iter().position(|&byte| byte == 0).ok_or(Errno::INVAL)?;
        self.relabel(request, label.get(..end).unwrap_or_default())
    }

    pub(super) fn relabel(&self, request: &Request<'_>, label: &[u8]) -> Answer<()> {
        self.require_master(request)?;
        self.require_writable_mount(request)?;
        if label.len() >= LABEL_BYTES || label.iter().any(|byte| matches!(byte, 0 | b'\n')) {
            return Err(Errno::INVAL);
        }
        self.store.set_label(label)
    }

    /// START_SYNC and WAIT_SYNC are one here: the commit is over when the first returns.
    pub(super) fn start_sync(&self) -> Answer<Output> {
        self.store.commit()?;
        output(&self.store.facts()?.generation)
    }

    /// As for [`Self::get_version`], it is an `int`.
    pub(super) fn get_flags(&self, request: &Request<'_>) -> Answer<Output> {
        let flags = self.store.attributes(&self.node(request.nodeid())?)?.flags;
        output(&flags)
    }

    pub(super) fn set_flags(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<()> {
        let flags: u32 = input(bytes)?;
        self.change_flags(request, flags)
    }

    /// The kernel has checked that the caller owns the inode, has CAP_LINUX_IMMUTABLE where that is needed, and came by a
    /// mount that may be written to.
    fn change_flags(&self, request: &Request<'_>, flags: u32) -> Answer<()> {
        let node = self.node(request.nodeid())?;
        let is_directory = self.store.attributes(&node)?.mode & TYPE == DIRECTORY;
        // About directories only: of others Linux leaves it out.
        let left_out = if is_directory { 0 } else { IFlags::DIRSYNC.bits() };
        self.store.set_flags(&node, flags & !left_out)?;
        self.attributes_changed(request.nodeid());
        Ok(())
    }

    /// FS_IOC_FSSETXATTR: the flags that both ways have; there are no extent sizes and no projects.
    pub(super) fn set_fsxattr(&self, request: &Request<'_>, bytes: &[u8]) -> Answer<()> {
        let wish: FsXattr = input(bytes)?;
        if (wish.extsize, wish.projid, wish.cowextsize) != (0, 0, 0) {
            return Err(Errno::OPNOTSUPP);
        }
        let now = self.store.attributes(&self.node(request.nodeid())?)?.flags;
        let (mut flags, mut known) = (now, 0);
        for (flag, xflag) in XFLAGS {
            known |= xflag;
            let flag = flag.bits();
            flags = if wish.xflags & xflag != 0 { flags | flag } else { flags & !flag };
        }
        if wish.xflags & !known != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        self.change_flags(request, flags)
    }

    /// The number of this ioctl says `long`, but callers have room for an `int`, and that is what filesystems write.
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is what there is room for")]
    pub(super) fn get_version(&self, request: &Request<'_>) -> Answer<Output> {
        output(&(self.store.attributes(&self.node(request.nodeid())?)?.generation as u32))
    }

    pub(super) fn get_fsxattr(&self, request: &Request<'_>) -> Answer<Output> {
        let flags = self.store.attributes(&self.node(request.nodeid())?)?.flags;
        let same = XFLAGS.iter().filter(|(flag, _)| flags & flag.bits() != 0);
        let xflags = same.fold(0, |all, (_, xflag)| all | xflag);
        output(&FsXattr { xflags, ..FsXattr::default() })
    }
}

/// The features that could be switched on and off while mounted: none.
pub(super) fn supported_features() -> Answer<Output> {
    output(&[[0u64; 3]; 3])
}

/// Copies as much of `text` as leaves room for a nul byte.
pub(super) fn copy_text(target: &mut [u8], text: &[u8]) {
    let room = target.len().saturating_sub(1);
    for (to, from) in target.iter_mut().take(room).zip(text) {
        *to = *from;
    }
}

const _: () = assert!(abi::GET_FSLABEL >> 16 & 0x3fff == 256);
