//! Lookups in the checksum tree: which bytes of a data extent have checksums.

use crate::context::Context;

/// Looks checksums up. One for each thread; close lookups are cheap.
pub(crate) struct Lookup<'a, 'b> {
    context: &'a Context<'b>,
}

impl<'a, 'b> Lookup<'a, 'b> {
    /// A lookup that knows nothing yet.
    pub fn new(context: &'a Context<'b>) -> Lookup<'a, 'b> {
        Lookup { context }
    }

    /// How many bytes of a range of logical addresses have checksums. `None` when damage hides it.
    pub fn covered(&mut self, _logical: u64, _len: u64) -> Option<u64> {
        let _later = self.context;
        None
    }
}
