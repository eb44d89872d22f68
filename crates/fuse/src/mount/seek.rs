//! Where the data of a file are: lseek(2) with `SEEK_DATA` and `SEEK_HOLE`.
//!
//! What a program has stored to mapped pages the kernel keeps, and it asks for data without sending that first: `cp` and `tar -S` would pass over all that
//! was stored in a hole. So an answer that has a hole in it waits until the kernel has sent what it keeps ([`crate::session`], which sets such
//! requests aside). That takes a millisecond or two, and who copies a file asks for all of its holes in a row: he waits once.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;

use super::Mount;
use super::store::{Answer, Seek, Store};
use crate::protocol::abi;
use crate::protocol::channel::Request;

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// So long after the last question the next one, for what comes behind, belongs to the same look at the file.
const IN_A_ROW: Duration = Duration::from_millis(50);
/// Files that are looked at in a row at the same time.
const AT_ONCE: usize = 16;

/// Who looks for data now.
#[derive(Default)]
pub(super) struct Scans(Mutex<Vec<Scan>>);

struct Scan {
    id: u64,
    /// The last place that was asked for.
    offset: u64,
    at: Instant,
}

impl Scans {
    /// Whether a question goes on with a look that waited at its beginning; if not, another one begins.
    fn goes_on(&self, id: u64, offset: u64) -> bool {
        let now = Instant::now();
        let mut scans = self.0.lock();
        scans.retain(|scan| now.duration_since(scan.at) < IN_A_ROW);
        if let Some(scan) = scans.iter_mut().find(|scan| scan.id == id) {
            let goes_on = offset > 0 && offset >= scan.offset;
            (scan.offset, scan.at) = (offset, now);
            return goes_on;
        }
        if scans.len() < AT_ONCE {
            scans.push(Scan { id, offset, at: now });
        }
        false
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

impl<S: Store> Mount<S> {
    pub(super) fn lseek(&self, request: &Request<'_>) -> Answer<abi::LseekOut> {
        let (what, from) = wish(request)?;
        let offset = self.store.seek(&self.node(request.nodeid())?, from, what)?;
        Ok(abi::LseekOut { offset })
    }

    /// Whether the answer would say that there is a hole, where there may be something that the kernel has not sent.
    pub(super) fn seeks_past_a_hole(&self, request: &Request<'_>) -> bool {
        if self.policy.read_only {
            return false;
        }
        let past = || -> Answer<bool> {
            let (what, from) = wish(request)?;
            let node = self.node(request.nodeid())?;
            let size = self.store.attributes(&node)?.size;
            let found = self.store.seek(&node, from, what);
            Ok(from < size
                && match what {
                    Seek::Data => found != Ok(from),
                    Seek::Hole => found != Ok(size),
                }
                && !self.scans.goes_on(request.nodeid(), from))
        };
        past().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_in_a_row_waits_once() {
        let scans = Scans::default();
        assert!(!scans.goes_on(1, 0));
        assert!(scans.goes_on(1, 4096));
        assert!(scans.goes_on(1, 4096));
        assert!(!scans.goes_on(2, 8192));
        // From the beginning, or back, another one looks.
        assert!(!scans.goes_on(1, 1024));
        assert!(!scans.goes_on(1, 0));
        for id in 10..100 {
            assert!(!scans.goes_on(id, 4096));
        }
        assert_eq!(scans.0.lock().len(), AT_ONCE);
        std::thread::sleep(IN_A_ROW);
        assert!(!scans.goes_on(1, 8192));
        assert_eq!(scans.0.lock().len(), 1);
    }
}
