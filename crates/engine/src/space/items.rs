//! How this module sees trees: as ordered items. A view of a tree and a map in a test are both that.

use buttress_ondisk::Key;

use crate::error::Result;
use crate::tree::{Merge, View};

/// Items that can be read.
pub trait Items {
    /// Shows each item from `from` to `to`, both included, in key order.
    fn each(
        &self,
        from: Key,
        to: Key,
        show: &mut dyn FnMut(Key, &[u8]) -> Result<()>,
    ) -> Result<()>;
}

/// Items that can be changed, in ascending key order.
pub trait Edit {
    /// The old item at exactly the key.
    fn find(&mut self, key: &Key) -> Result<Option<&[u8]>>;
    /// The key of the first old item at or behind `from`.
    fn peek(&mut self, from: &Key) -> Result<Option<Key>>;
    /// Inserts or replaces.
    fn put(&mut self, key: Key, data: &[u8]) -> Result<()>;
    /// Deletes; whether it was there.
    fn delete(&mut self, key: &Key) -> Result<bool>;
}

impl Items for View<'_> {
    fn each(
        &self,
        from: Key,
        to: Key,
        show: &mut dyn FnMut(Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut cursor = self.range(from, to);
        while let Some(item) = cursor.next()? {
            show(item.key(), item.data())?;
        }
        Ok(())
    }
}

impl Edit for Merge<'_> {
    fn find(&mut self, key: &Key) -> Result<Option<&[u8]>> {
        Merge::find(self, key)
    }

    fn peek(&mut self, from: &Key) -> Result<Option<Key>> {
        Ok(Merge::peek(self, from)?.map(|(key, _)| key))
    }

    fn put(&mut self, key: Key, data: &[u8]) -> Result<()> {
        Merge::put(self, key, data)
    }

    fn delete(&mut self, key: &Key) -> Result<bool> {
        Merge::delete(self, key)
    }
}
