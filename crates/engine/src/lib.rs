//! btrfs as a library: read and write real btrfs filesystems, as an ordinary user.
//!
//! Changes live with their owner in memory, trees are immutable values, and a commit is a few sorted merges.
//! The modules below are layers: each uses only those above it in this list.

pub mod env;
pub mod error;
pub mod fs;
mod hash;
pub mod inode;
mod log;
mod quota;
pub mod refs;
pub mod space;
pub mod stats;
mod stripes;
pub mod subvol;
mod sync;
mod threads;
pub mod tree;
pub mod txn;
pub use env::{Env, Time};
pub use error::{Errno, Error, Result, Unsupported};
pub use fs::{
    Allocate, Attributes, Balance, BalanceFilter, BalanceStop, Balanced, Balancing, Change,
    ClassUsage, Counting, DeviceInfo, Discard, Emptied, Emptying, Entry, Fiemap, File, FileExtent,
    FileKind, Filesystem, GroupInfo, Info, Mapping, New, NewLimits, Node, OpenMode, Options, Owner,
    Place, Referrer, Referrers, Rename, Seek, SetXattr, Stored, StoredIn, SubvolumeInfo, Times,
    Usage, WantedReferrers, acl, check_namespace, fiemap_flags, profile_of,
};
pub use refs::usage as costs;
pub use stats::Stats;

pub use buttress_device as device;
pub use buttress_ondisk as ondisk;
pub use buttress_volume as volume;
