//! Balances, the size of the device, and what it need not keep.

use std::ops::ControlFlow;

use buttress::{Balance, BalanceStop, Balanced, Balancing, Emptying};
use buttress_fuse::client;
use buttress_fuse::mount::control::{BalanceFacts, ResizeFacts};
use buttress_fuse::mount::task::TaskState;
use rustix::io::Errno;

use super::Vfs;
use crate::vnode::FileError;

/// Hears how far a balance is, and may end it.
pub type Heard<'a> = &'a mut dyn FnMut(Balancing) -> Option<BalanceStop>;

/// A balance to be done.
#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    /// A new one.
    Start(&'a Balance),
    /// The one that was paused or interrupted.
    Resume,
}

fn idle<P, R>() -> TaskState<P, R> {
    TaskState { running: false, progress: None, stop: None, ended: None }
}

/// As a live mount says it: of a full filesystem with the system's words, and not with those of a full disk that holds an image.
fn plain(error: buttress::Error) -> FileError {
    match error {
        buttress::Error::NoSpace => Errno::NOSPC.into(),
        other => other.into(),
    }
}

impl Vfs {
    /// How it is with balances. Nobody balances an image but who has it open.
    pub fn balance(&self) -> Result<BalanceFacts, FileError> {
        match self {
            Vfs::Image(image) => {
                let unfinished = image.fs().unfinished_balance()?;
                Ok(BalanceFacts { task: idle(), unfinished })
            }
            Vfs::Live(path) => Ok(client::balance_facts(path)?),
        }
    }

    /// Balances, and waits until that is done. EINTR where it was paused or cancelled.
    pub fn run_balance(&self, wanted: Wanted<'_>, heard: Heard<'_>) -> Result<Balanced, FileError> {
        let path = match self {
            Vfs::Image(image) => {
                let flow = |at| heard(at).map_or(ControlFlow::Continue(()), ControlFlow::Break);
                let done = match wanted {
                    Wanted::Start(balance) => image.fs().balance(balance, flow),
                    Wanted::Resume => image.fs().resume_balance(flow),
                };
                return done.map_err(plain);
            }
            Vfs::Live(path) => path,
        };
        self.begin_balance(wanted)?;
        Ok(client::wait_for_balance(path, heard)?)
    }

    /// Has the process behind a live mount begin to balance. It is refused here what it would refuse later.
    pub fn begin_balance(&self, wanted: Wanted<'_>) -> Result<(), FileError> {
        let Vfs::Live(path) = self else { return Err(Errno::OPNOTSUPP.into()) };
        Ok(match wanted {
            Wanted::Start(balance) => client::start_balance(path, balance),
            Wanted::Resume => client::resume_balance(path),
        }?)
    }

    /// Has a balance end, and waits until it has. ENOTCONN where there is none.
    pub fn stop_balance(&self, why: BalanceStop) -> Result<(), FileError> {
        match self {
            Vfs::Image(_) if why == BalanceStop::Pause => Err(Errno::NOTCONN.into()),
            Vfs::Image(image) => Ok(image.fs().cancel_balance()?),
            Vfs::Live(path) => {
                client::stop_balance(path, why)?;
                // How it has ended is the matter of whoever has begun it.
                let _how = client::wait_for_balance(path, &mut |_| None);
                Ok(())
            }
        }
    }

    /// How it is with the size of the device.
    pub fn device_size(&self) -> Result<ResizeFacts, FileError> {
        match self {
            Vfs::Image(image) => {
                let (size, most) = (image.fs().device_size(), image.fs().device_size_max());
                Ok(ResizeFacts { task: idle(), size, most, least: image.fs().device_size_min() })
            }
            Vfs::Live(path) => Ok(client::resize_facts(path)?),
        }
    }

    /// Tells the device of all that is free, in pieces of `min` bytes or more; `told` hears of how many bytes so far, and may end it by `false` (EINTR). Answers
    /// the bytes.
    pub fn trim(&self, min: u64, told: &mut dyn FnMut(u64) -> bool) -> Result<u64, FileError> {
        match self {
            Vfs::Image(image) => image.fs().trim(0..u64::MAX, min, told).map_err(plain),
            Vfs::Live(path) => Ok(client::trim(path, min, told)?),
        }
    }

    /// Changes it; `told` hears how far that is, and may end it by `false` (EINTR).
    pub fn resize(
        &self,
        size: u64,
        told: &mut dyn FnMut(Emptying) -> bool,
    ) -> Result<(), FileError> {
        match self {
            Vfs::Image(image) => image.fs().resize(size, told).map_err(plain),
            Vfs::Live(path) => {
                client::resize(path, size)?;
                Ok(client::wait_for_resize(path, told)?)
            }
        }
    }
}
