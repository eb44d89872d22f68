//! Where the data of a file are: lseek(2) with `SEEK_DATA` and `SEEK_HOLE`.
//!
//! What a program has stored to mapped pages the kernel keeps, and it asks for data without sending that first: `cp` and `tar -S` would pass over all that
//! was stored in a hole. So an answer that has a hole in it waits until the kernel has sent what it keeps ([`crate::session`], which sets such
//! requests aside). That takes a millisecond or two, and who copies a file asks for all of its holes in a row: he waits once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;

use super::Mount;
use super::control::Control;
use super::store::{Answer, Seek};
use crate::protocol::abi;
use crate::protocol::channel::Request;

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// So long after the last answer the question that begins where that has ended belongs to the same look at the file.
const IN_A_ROW: Duration = Duration::from_millis(50);
/// So long after its beginning a look has to wait again.
const ONE_LOOK: Duration = Duration::from_secs(1);
/// Files that are looked at in a row at the same time.
const AT_ONCE: usize = 16;

/// Who looks for data now.
#[derive(Default)]
pub(super) struct Scans(Mutex<Vec<Scan>>);

struct Scan {
    id: u64,
    /// The last answer, with which who copies a file asks next.
    next: Option<u64>,
    begun: Instant,
    at: Instant,
}

impl Scans {
    /// Whether a question goes on with a look that waited at its beginning; if not, another one begins.
    fn goes_on(&self, id: u64, offset: u64) -> bool {
        let now = Instant::now();
        let mut scans = self.0.lock();
        scans.retain(|scan| now - scan.at < IN_A_ROW && now - scan.begun < ONE_LOOK);
        if let Some(scan) = scans.iter_mut().find(|scan| scan.id == id) {
            if scan.next == Some(offset) {
                return true;
            }
            (scan.next, scan.begun, scan.at) = (None, now, now);
        } else if scans.len() < AT_ONCE {
            scans.push(Scan { id, next: None, begun: now, at: now });
        }
        false
    }

    /// A question is answered. One that did not have to wait, and does not go on with a look, begins none.
    fn answered(&self, id: u64, asked: u64, answer: u64) {
        let mut scans = self.0.lock();
        let is_it = |scan: &&mut Scan| scan.id == id && scan.next.is_none_or(|next| next == asked);
        if let Some(scan) = scans.iter_mut().find(is_it) {
            (scan.next, scan.at) = (Some(answer), Instant::now());
        }
    }
}

/// What is asked for: data or a hole, and from where.
fn wish(request: &Request<'_>) -> Answer<(Seek, u64)> {
    let wish: abi::LseekIn = request.body().read()?;
    let what = match wish.whence {
        SEEK_DATA => Seek::Data,
        SEEK_HOLE => Seek::Hole,
        _ => return Err(Errno::INVAL),
    };
    // Linux's btrfs looks from the beginning where it is told to look before it.
    Ok((what, if i64::try_from(wish.offset).is_ok() { wish.offset } else { 0 }))
}

impl<S: Control> Mount<S> {
    pub(super) fn lseek(&self, request: &Request<'_>) -> Answer<abi::LseekOut> {
        let (what, from) = wish(request)?;
        let offset = self.store.seek(&self.node(request.nodeid())?, from, what)?;
        self.scans.answered(request.nodeid(), from, offset);
        Ok(abi::LseekOut { offset })
    }

    /// The answer of one who knows of no holes, which is right whatever is stored in them.
    pub(super) fn lseek_without_holes(&self, request: &Request<'_>) -> Answer<abi::LseekOut> {
        // How long the file is the kernel knows alone then: it answers so by itself, from now on.
        if self.policy.writeback_cache {
            return Err(Errno::NOSYS);
        }
        let (what, from) = wish(request)?;
        let size = self.store.attributes(&self.node(request.nodeid())?)?.size;
        match what {
            _ if from >= size => Err(Errno::NXIO),
            Seek::Data => Ok(abi::LseekOut { offset: from }),
            Seek::Hole => Ok(abi::LseekOut { offset: size }),
        }
    }

    /// Whether the answer would say that there is a hole, where there may be something that the kernel has not sent. What goes wrong here goes wrong
    /// again where it is answered.
    pub(super) fn seeks_past_a_hole(&self, request: &Request<'_>) -> bool {
        let look = || self.looks_past_a_hole(request).unwrap_or(false);
        !self.policy.read_only && catch_unwind(AssertUnwindSafe(look)).unwrap_or(false)
    }

    fn looks_past_a_hole(&self, request: &Request<'_>) -> Answer<bool> {
        let (what, from) = wish(request)?;
        let node = self.node(request.nodeid())?;
        let size = self.store.attributes(&node)?.size;
        // The file may be longer than was sent.
        let longer = self.policy.writeback_cache;
        let found = self.store.seek(&node, from, what);
        let past = match what {
            Seek::Data => found != Ok(from),
            Seek::Hole => longer || found != Ok(size),
        };
        if !past || from >= size && !longer {
            return Ok(false);
        }
        // All that came before it was made read-only was sent then.
        let subvolume = self.store.identity(&node).within();
        let fixed = self.store.subvolume(subvolume).is_ok_and(|it| it.read_only);
        Ok(!fixed && !self.scans.goes_on(request.nodeid(), from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_in_a_row_waits_once() {
        let scans = Scans::default();
        let asks = |id, offset, answer| {
            let goes_on = scans.goes_on(id, offset);
            scans.answered(id, offset, answer);
            goes_on
        };
        assert!(!asks(1, 0, 4096));
        assert!(asks(1, 4096, 8192));
        assert!(asks(1, 8192, 65536));
        assert!(!asks(2, 8192, 8192));
        // Who begins anew, or elsewhere, waits, also behind data, for which nobody has to.
        scans.answered(1, 0, 0);
        assert!(!asks(1, 0, 4096));
        scans.answered(1, 0, 8192);
        assert!(!asks(1, 8192, 8192));
        assert!(!asks(1, 65536, 65536));
        assert!(!asks(1, 0, 0));
        for id in 10..100 {
            assert!(!asks(id, 4096, 4096));
        }
        assert_eq!(scans.0.lock().len(), AT_ONCE);
        std::thread::sleep(IN_A_ROW);
        assert!(!asks(1, 0, 0));
        assert_eq!(scans.0.lock().len(), 1);
    }

    #[test]
    fn a_look_ends() {
        let scans = Scans::default();
        let until = Instant::now() + ONE_LOOK + IN_A_ROW;
        let mut waited = 0;
        while Instant::now() < until {
            waited += u32::from(!scans.goes_on(1, 0));
            scans.answered(1, 0, 0);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(waited >= 2);
    }
}
