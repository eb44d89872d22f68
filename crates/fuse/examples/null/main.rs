//! Mounts a filesystem that lives in memory and does next to nothing, to measure what the kernel,
//! the protocol and the session cost by themselves:
//!
//! ```text
//! cargo run --release -p buttress-fuse --example null -- MOUNTPOINT [again]
//! ```
//!
//! It serves in the foreground until it is unmounted or gets TERM or INT. With `again` it mounts the same anew whenever it was unmounted, until it is
//! killed: then the kernel has forgotten what it had cached.

mod filesystem;

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use buttress_fuse::MountOptions;
use buttress_fuse::mount::init_flags;
use buttress_fuse::protocol::connect::{ConnectOptions, connect};
use buttress_fuse::session::{Handler, Session, SessionOptions};
use buttress_fuse::signals::HeldSignals;
use filesystem::Null;

fn main() -> Result<(), Box<dyn Error>> {
    let mountpoint = std::env::args_os().nth(1).ok_or("usage: null MOUNTPOINT [again]")?;
    let again = std::env::args().nth(2).is_some_and(|word| word == "again");
    let mountpoint = Path::new(&mountpoint).canonicalize()?;
    let options = ConnectOptions {
        source: "/null.img".into(),
        default_permissions: true,
        ..ConnectOptions::default()
    };
    let handler: Arc<dyn Handler> = Arc::new(Null::new(Duration::ZERO));
    let init_flags = init_flags(&MountOptions::default());
    let session_options = SessionOptions { init_flags, ..SessionOptions::default() };
    loop {
        let signals = HeldSignals::hold()?;
        let channel = connect(&mountpoint, &options)?;
        let session = Session::start(channel, &mountpoint, Arc::clone(&handler), &session_options)?;
        let watch = signals.stop(session.stopper())?;
        session.wait();
        drop(watch);
        if !again {
            return Ok(());
        }
    }
}
