//! From the filesystem's attributes to what the kernel wants to hear, and back.
//!
//! We are the only writer, so what the kernel caches stays true until the kernel itself changes
//! it: entries and attributes are given without end; the few exceptions are made here and in [`super::Mount`].
//! `uid=` and `gid=` change what is shown and nothing that is stored.

use buttress::ondisk::item::mode::{REGULAR, SET_IDS, TYPE_MASK as TYPE};
use rustix::fs::IFlags;

use crate::nodes::Numbers;
use crate::protocol::abi::{Attr, AttrOut, EntryOut, Kstatfs, StatfsOut, Statx, StatxOut, SxTime};

use super::store::{Attributes, SpaceNumbers, Time};

/// Seconds an entry or attribute stays valid: longer than the kernel can count.
const FOREVER: u64 = i64::MAX as u64;
/// Nanoseconds for which those stay valid that may soon be others.
const MOMENT: u32 = 100_000_000;
/// Longest name in bytes.
const NAME_BYTES_MAX: u32 = 255;
/// `stx_mask`: the basic members and the creation time.
const STATX_BASIC_BTIME: u32 = 0xfff;

/// How owners are shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    pub(super) numbers: Numbers,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
}

impl Shown {
    #[expect(clippy::cast_sign_loss, reason = "the kernel reads the 64 bits as signed again")]
    pub(super) fn attr(self, id: u64, a: &Attributes) -> Attr {
        Attr {
            ino: self.numbers.shown(id),
            size: a.size,
            blocks: a.blocks,
            atime: a.atime.sec as u64,
            mtime: a.mtime.sec as u64,
            ctime: a.ctime.sec as u64,
            atimensec: a.atime.nsec,
            mtimensec: a.mtime.nsec,
            ctimensec: a.ctime.nsec,
            mode: a.mode,
            nlink: a.nlink,
            uid: self.uid.unwrap_or(a.uid),
            gid: self.gid.unwrap_or(a.gid),
            rdev: encode_device(a.device),
            blksize: 4096,
            flags: 0,
        }
    }

    pub(super) fn attr_out(self, id: u64, attributes: &Attributes) -> AttrOut {
        let (attr_valid, attr_valid_nsec) = lasting(attributes);
        AttrOut {
            attr_valid,
            attr_valid_nsec,
            attr: self.attr(id, attributes),
            ..AttrOut::default()
        }
    }

    pub(super) fn entry(self, id: u64, attributes: &Attributes) -> EntryOut {
        let (attr_valid, attr_valid_nsec) = lasting(attributes);
        EntryOut {
            nodeid: id,
            generation: attributes.generation,
            entry_valid: FOREVER,
            attr_valid,
            attr_valid_nsec,
            attr: self.attr(id, attributes),
            ..EntryOut::default()
        }
    }

    pub(super) fn statx(self, id: u64, a: &Attributes) -> StatxOut {
        let stat = Statx {
            mask: STATX_BASIC_BTIME,
            blksize: 4096,
            attributes: statx_attributes(a.flags),
            attributes_mask: statx_attributes(u32::MAX),
            nlink: a.nlink,
            uid: self.uid.unwrap_or(a.uid),
            gid: self.gid.unwrap_or(a.gid),
            mode: (a.mode & 0xffff) as u16,
            ino: self.numbers.shown(id),
            size: a.size,
            blocks: a.blocks,
            atime: sx_time(a.atime),
            btime: sx_time(a.btime),
            ctime: sx_time(a.ctime),
            mtime: sx_time(a.mtime),
            rdev_major: a.device.0,
            rdev_minor: a.device.1,
            ..Statx::default()
        };
        let (attr_valid, attr_valid_nsec) = lasting(a);
        StatxOut { attr_valid, attr_valid_nsec, stat, ..StatxOut::default() }
    }
}

/// How long the attributes of an inode stay valid: seconds, and nanoseconds.
///
/// Those of a file with set-ID bits are asked for each time: when somebody else writes to it, the bits end here, and the
/// kernel, which is not told by the answer to a write, would go on to run the file as its owner. And those of a file whose space a
/// commit may count anew last for a moment: the kernel is not told of commits.
const fn lasting(attributes: &Attributes) -> (u64, u32) {
    let mode = attributes.mode;
    match mode & TYPE == REGULAR && mode & SET_IDS != 0 {
        true => (0, 0),
        false if !attributes.blocks_settled => (0, MOMENT),
        false => (FOREVER, 0),
    }
}

/// Immutable, append-only, no-dump and compressed have the same bits in inode flags and statx.
fn statx_attributes(flags: u32) -> u64 {
    const SAME: IFlags =
        IFlags::IMMUTABLE.union(IFlags::APPEND).union(IFlags::NODUMP).union(IFlags::COMPRESSED);
    u64::from(flags & SAME.bits())
}

fn sx_time(time: Time) -> SxTime {
    SxTime { tv_sec: time.sec, tv_nsec: time.nsec, reserved: 0 }
}

/// The kernel's 32-bit form of a device number: 12 bits of major between 8 and 12 bits of minor.
pub(super) fn encode_device((major, minor): (u32, u32)) -> u32 {
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

/// Major and minor of the kernel's 32-bit form.
pub(super) fn decode_device(device: u32) -> (u32, u32) {
    (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xf_ff00)
}

pub(super) fn statfs(space: &SpaceNumbers) -> StatfsOut {
    let unit = u64::from(space.sector.max(1));
    StatfsOut {
        st: Kstatfs {
            blocks: space.total / unit,
            bfree: space.free / unit,
            bavail: space.available / unit,
            bsize: space.sector,
            frsize: space.sector,
            namelen: NAME_BYTES_MAX,
            ..Kstatfs::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_runs_as_is_asked_for_each_time() {
        let of = |mode| Attributes { mode, blocks_settled: true, ..Attributes::default() };
        for mode in [0o104_755, 0o102_755, 0o102_644] {
            assert_eq!(lasting(&of(mode)), (0, 0));
        }
        for mode in [0o100_755, 0o042_755, 0o101_777] {
            assert_eq!(lasting(&of(mode)), (FOREVER, 0));
            let unsettled = Attributes { blocks_settled: false, ..of(mode) };
            assert_eq!(lasting(&unsettled), (0, MOMENT));
        }
    }

    #[test]
    fn device_numbers_survive() {
        for device in [(0, 0), (8, 1), (259, 0), (0xfff, 0xf_ffff), (1, 256), (10, 229)] {
            assert_eq!(decode_device(encode_device(device)), device);
        }
        // What mknod(2) of 8:257 puts into struct stat's low 32 bits.
        assert_eq!(encode_device((8, 257)), 0x0010_0801);
    }
}
