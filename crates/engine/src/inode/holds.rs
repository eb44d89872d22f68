//! How often inodes are held that have left memory: a mount holds whatever the kernel remembers, which can be millions.
//!
//! The kernel mostly remembers inodes whose numbers are near each other, so counts stand in pages of neighbours: with one entry of the
//! table for each inode, the table's own costs were most of what an inode took.

use super::tree::SHARDS;
use crate::hash::Spread;

/// Neighbours of a page.
const PAGE: u64 = 8;

/// The counts of one shard's inodes. A page has at least one that is not 0.
#[derive(Debug, Default)]
pub(super) struct Holds {
    pages: Spread<u64, [u32; PAGE as usize]>,
}

/// The page of an inode, and its place there. Inodes of a shard are as many numbers apart as there are shards.
fn place(ino: u64) -> (u64, usize) {
    let number = ino / SHARDS as u64;
    (number / PAGE, (number % PAGE) as usize)
}

impl Holds {
    /// An inode is held so often.
    pub fn put(&mut self, ino: u64, count: u32) {
        if count > 0 {
            let (page, at) = place(ino);
            self.pages.entry(page).or_default()[at] = count;
        }
    }

    /// Takes out how often an inode is held, if it is.
    pub fn take(&mut self, ino: u64) -> Option<u32> {
        let (page, at) = place(ino);
        let counts = self.pages.get_mut(&page)?;
        let count = std::mem::take(&mut counts[at]);
        if *counts == [0; PAGE as usize] {
            self.pages.remove(&page);
        }
        (count > 0).then_some(count)
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_inode_has_a_count_of_its_own() {
        let mut holds = Holds::default();
        let inodes = || (0..2000).map(|number| 3 + number * SHARDS as u64);
        inodes().zip(1..).for_each(|(ino, count)| holds.put(ino, count));
        holds.put(inodes().next().unwrap(), 0);
        for (ino, count) in inodes().zip(1..) {
            assert_eq!(holds.take(ino), Some(count));
            assert_eq!(holds.take(ino), None);
        }
        assert!(holds.is_empty());
    }
}
