//! Mounts a filesystem that lives in memory and does next to nothing, to measure what the kernel,
//! the protocol and the session cost by themselves:
//!
//! ```text
//! cargo run --release -p buttress-fuse --example null -- MOUNTPOINT
//! ```
//!
//! It serves in the foreground until it is unmounted or gets TERM or INT.

mod filesystem;

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use buttress_fuse::MountOptions;
use buttress_fuse::mount::init_flags;
use buttress_fuse::protocol::connect::{ConnectOptions, connect};
use buttress_fuse::session::{Session, SessionOptions};
use buttress_fuse::signals::HeldSignals;
use filesystem::Null;

fn main() -> Result<(), Box<dyn Error>> {
    let mountpoint = std::env::args_os().nth(1).ok_or("usage: null MOUNTPOINT")?;
    let mountpoint = Path::new(&mountpoint).canonicalize()?;
    let options = ConnectOptions {
        source: "/null.img".into(),
        default_permissions: true,
        ..ConnectOptions::default()
    };
    let signals = HeldSignals::hold()?;
    let channel = connect(&mountpoint, &options)?;
    let handler = Arc::new(Null::new(Duration::ZERO));
    let init_flags = init_flags(&MountOptions::default());
    let options = SessionOptions { init_flags, ..SessionOptions::default() };
    let session = Session::start(channel, &mountpoint, handler, &options)?;
    let watch = signals.stop(session.stopper())?;
    session.wait();
    drop(watch);
    Ok(())
}
