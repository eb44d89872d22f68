//! Lookups in the checksum tree: which bytes of a data extent have checksums.

use buttress_ondisk::{Key, kind, objectid};

use crate::{
    context::Context,
    cursor::{Cursor, Event},
    roots::Tree,
    space::csum_run,
};

/// Looks checksums up. One for each thread; close lookups are cheap.
pub(crate) struct Lookup<'a, 'b> {
    context: &'a Context<'b>,
    cursor: Option<Cursor<'a, 'b>>,
}

impl<'a, 'b> Lookup<'a, 'b> {
    /// A lookup that knows nothing yet.
    pub fn new(context: &'a Context<'b>) -> Lookup<'a, 'b> {
        Lookup::of(context, context.roots.find(objectid::CSUM_TREE))
    }

    /// A lookup in another tree that has checksums: a log.
    pub fn of(context: &'a Context<'b>, tree: Option<&Tree>) -> Lookup<'a, 'b> {
        let cursor = tree.map(|tree| Cursor::near(context, tree, Key::MIN));
        Lookup { context, cursor }
    }

    /// How many bytes of a range of logical addresses have checksums. `None` when damage hides it.
    pub fn covered(&mut self, logical: u64, len: u64) -> Option<u64> {
        let cursor = self.cursor.as_mut()?;
        let last = logical.saturating_add(len);
        cursor.seek(Key::new(objectid::EXTENT_CSUM, kind::EXTENT_CSUM, logical));
        let mut covered = 0;
        while let Some(event) = cursor.get() {
            match event {
                Event::Lost(..) => return None,
                Event::Item(key, _) if key.offset >= last => break,
                Event::Item(..) => {
                    let (start, end) = csum_run(self.context, &event).unwrap_or((0, 0));
                    covered += end.min(last).saturating_sub(start.max(logical));
                }
            }
            cursor.next();
        }
        Some(covered)
    }
}
