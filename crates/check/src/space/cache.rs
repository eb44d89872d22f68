//! The v1 free space cache: files of the root tree with the free space of each block group. Judged only when it is valid,
//! as the kernel would take it; otherwise the kernel makes it anew.

use super::{Range, free::Run};
use crate::context::Context;

/// The caches of all block groups.
pub(super) struct Caches {}

/// The comparison of one group.
pub(super) struct CacheCheck {}

impl Caches {
    pub fn of(_context: &Context<'_>) -> Caches {
        Caches {}
    }

    pub fn check(&self, _context: &Context<'_>, _range: &Range) -> Option<CacheCheck> {
        None
    }
}

impl CacheCheck {
    pub fn gap(&mut self, start: u64, end: u64) {
        let _run: Run = (start, end);
    }

    pub fn finish(self, _context: &Context<'_>) {}
}
