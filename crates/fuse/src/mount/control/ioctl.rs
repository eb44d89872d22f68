//! IOCTL: which number means what.

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::abi::{self, FsXattr, xflag};
use super::{Control, Mount};
use crate::mount::protect::PROTECTING;
use crate::mount::store::Answer;
use crate::protocol::abi::{IOCTL_32BIT, IoctlIn, IoctlOut};
use crate::protocol::channel::{Reply, Request};

impl<S: Control> Mount<S> {
    pub(in crate::mount) fn ioctl(&self, request: &Request<'_>, reply: Reply<'_>) {
        let mut body = request.body();
        let Ok(wish) = body.read::<IoctlIn>() else { return reply.refuse(Errno::INVAL) };
        // Nor does Linux hear any at what stands for a subvolume in a snapshot.
        let stub = self.nodes.identity(request.nodeid()).is_some_and(|it| it.is_stub());
        if wish.flags & IOCTL_32BIT != 0 || stub {
            return reply.refuse(Errno::NOTTY);
        }
        let input = body.rest();
        let result = self.dispatch(request, wish.cmd, input);
        self.send_notices(reply.channel());
        match result {
            Ok(Output { bytes, value, refused }) => {
                let bytes = bytes.get(..wish.out_size as usize).unwrap_or(&bytes);
                let result = refused.map_or(value, |errno| errno.raw_os_error().saturating_neg());
                reply.parts(&[IoctlOut { result, ..IoctlOut::default() }.as_bytes(), bytes]);
            }
            Err(errno) => reply.refuse(errno),
        }
    }

    fn dispatch(&self, request: &Request<'_>, number: u32, input: &[u8]) -> Answer<Output> {
        match number {
            abi::SUBVOL_CREATE => done(self.subvol_create(request, input)),
            abi::SUBVOL_CREATE_V2 => done(self.subvol_create_v2(request, input)),
            abi::SNAP_CREATE => done(self.snap_create(request, input)),
            abi::SNAP_CREATE_V2 => done(self.snap_create_v2(request, input)),
            abi::SNAP_DESTROY => done(self.snap_destroy(request, input)),
            abi::SNAP_DESTROY_V2 => done(self.snap_destroy_v2(request, input)),
            abi::SUBVOL_GETFLAGS => self.subvol_getflags(request),
            abi::SUBVOL_SETFLAGS => done(self.subvol_setflags(request, input)),
            abi::DEFAULT_SUBVOL => done(self.default_subvol(request, input)),
            abi::GET_SUBVOL_INFO => self.get_subvol_info(request),
            abi::GET_SUBVOL_ROOTREF => self.get_subvol_rootref(request, input),
            abi::INO_LOOKUP => self.ino_lookup(request, input),
            abi::INO_LOOKUP_USER => self.ino_lookup_user(request, input),
            abi::TREE_SEARCH => self.tree_search(request, input),
            _ => self.dispatch_long(request, number, input),
        }
    }

    fn dispatch_long(&self, request: &Request<'_>, number: u32, input: &[u8]) -> Answer<Output> {
        match number {
            abi::QUOTA_CTL => done(self.quota_ctl(request, input)),
            abi::QGROUP_ASSIGN => self.qgroup_assign(request, input),
            abi::QGROUP_CREATE => done(self.qgroup_create(request, input)),
            abi::QUOTA_RESCAN => done(self.quota_rescan(request, input)),
            abi::QUOTA_RESCAN_STATUS => self.quota_rescan_status(request),
            abi::QUOTA_RESCAN_WAIT => done(self.quota_rescan_wait(request)),
            abi::BALANCE_V2 => self.balance_v2(request, input),
            abi::BALANCE_PROGRESS => self.balance_progress(request),
            abi::RESIZE => self.resize_ioctl(request, input),
            _ => self.dispatch_facts(request, number, input),
        }
    }

    fn dispatch_facts(&self, request: &Request<'_>, number: u32, input: &[u8]) -> Answer<Output> {
        match number {
            abi::FS_INFO => self.fs_info(),
            abi::DEV_INFO => self.dev_info(input),
            abi::GET_FEATURES => self.get_features(),
            abi::GET_SUPPORTED_FEATURES => super::facts::supported_features(),
            abi::GET_FSLABEL => self.get_label(),
            abi::SET_FSLABEL => done(self.set_label(request, input)),
            abi::SYNC | abi::WAIT_SYNC => done(self.store.commit()),
            abi::START_SYNC => self.start_sync(),
            abi::FITRIM => self.trim_ioctl(request, input),
            abi::FS_GETFLAGS => self.get_flags(request),
            abi::FS_SETFLAGS => done(self.set_flags(request, input)),
            abi::FS_GETVERSION => self.get_version(request),
            abi::FS_GETXATTR => self.get_fsxattr(request),
            abi::FS_SETXATTR => done(self.set_fsxattr(request, input)),
            _ => Err(Errno::NOTTY),
        }
    }
}

/// The same as [`PROTECTING`].
const XPROTECTING: u32 = xflag::IMMUTABLE | xflag::APPEND;

/// What the caller gets.
#[derive(Default)]
pub(super) struct Output {
    pub(super) bytes: Vec<u8>,
    /// What ioctl(2) returns.
    pub(super) value: i32,
    /// The ioctl fails, but the caller gets the bytes all the same.
    pub(super) refused: Option<Errno>,
}

/// Whether an ioctl is about everything that was written before.
pub(in crate::mount) fn is_about_all(request: &Request<'_>) -> bool {
    let mut body = request.body();
    let Ok(wish) = body.read::<IoctlIn>() else { return false };
    match wish.cmd {
        abi::SNAP_CREATE
        | abi::SNAP_CREATE_V2
        | abi::SUBVOL_SETFLAGS
        | abi::SYNC
        | abi::START_SYNC
        | abi::WAIT_SYNC => true,
        // A file that becomes immutable takes no more pages.
        abi::FS_SETFLAGS => input(body.rest()).is_ok_and(|flags: u32| flags & PROTECTING != 0),
        abi::FS_SETXATTR => {
            input(body.rest()).is_ok_and(|wish: FsXattr| wish.xflags & XPROTECTING != 0)
        }
        _ => false,
    }
}

/// Success without output.
fn done(result: Answer<()>) -> Answer<Output> {
    result.map(|()| Output::default())
}

/// The struct an ioctl was called with.
pub(super) fn input<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> Answer<T> {
    T::read_from_prefix(bytes).map(|(value, _)| value).map_err(|_| Errno::INVAL)
}

/// The struct an ioctl returns.
pub(super) fn output<T: IntoBytes + Immutable>(value: &T) -> Answer<Output> {
    Ok(Output { bytes: value.as_bytes().to_vec(), ..Output::default() })
}
