//! The FUSE front end: inode numbers, requests, ioctls; no filesystem logic.
//!
//! Downward: [`options`] (the `-o` words), [`launch`] (the background process) and [`heap`] (its memory) stand beside
//! [`session`] (threads and the end of a mount), which stands on [`protocol`] (the kernel's
//! messages). [`mod@mount`] turns requests into operations of a filesystem, [`nodes`] counts what the
//! kernel holds, and [`daemon`] puts it all together, within the memory of its [`budget`]. `join` mounts once more what is
//! mounted already. [`unmount()`] and [`holder`] are for those who wait for the end of a mount, [`client`] is for commands on a live one.

/// Says something on standard error. Where that cannot be written nobody listens, which is no reason to stop.
macro_rules! complain {
    ($($arg:tt)*) => {{
        let _nobody_listens = std::io::Write::write_fmt(
            &mut std::io::stderr(),
            format_args!("{}\n", format_args!($($arg)*)),
        );
    }};
}
pub(crate) use complain;

pub mod budget;
mod cause;
pub mod client;
pub mod daemon;
pub mod heap;
pub mod holder;
mod join;
mod last_word;
pub mod launch;
pub mod mount;
pub mod nodes;
mod opening;
pub mod options;
pub mod protocol;
pub mod session;
pub mod signals;
mod unmount;
mod warnings;

pub use cause::Cause;
pub use daemon::{Ground, MountError, mount};
pub use options::MountOptions;
pub use unmount::{Unmounted, unmount, unmount_all};
