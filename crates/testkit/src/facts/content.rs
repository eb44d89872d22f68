//! Digest of a file's bytes that does not depend on where its holes are.
//!
//! Bytes are gathered into aligned blocks; a block that is not all zeros adds its offset and its
//! own digest. A block that is zeros, or missing, adds nothing. A file's size is a fact of its own.

use xxhash_rust::xxh64::{Xxh64, xxh64};

/// Size of the aligned pieces, in bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// Takes bytes in ascending order and gives a 64 bit digest.
pub struct Digest {
    state: Xxh64,
    block: Vec<u8>,
    /// File offset of the gathered block, a multiple of [`BLOCK_BYTES`].
    start: u64,
}

impl Default for Digest {
    fn default() -> Self {
        Self::new()
    }
}

impl Digest {
    /// Of no bytes yet.
    pub fn new() -> Self {
        Self { state: Xxh64::new(0), block: vec![0; BLOCK_BYTES as usize], start: 0 }
    }

    /// Adds the bytes at `offset`, at or after the end of what came before.
    pub fn add(&mut self, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let start = offset - offset % BLOCK_BYTES;
            if start != self.start {
                self.flush();
                self.start = start;
            }
            let within = (offset - start) as usize;
            let count = bytes.len().min(self.block.len() - within);
            let (now, later) = bytes.split_at(count);
            if let Some(room) = self.block.get_mut(within..within + count) {
                room.copy_from_slice(now);
            }
            bytes = later;
            offset += count as u64;
        }
    }

    /// The digest of everything added.
    pub fn finish(mut self) -> u64 {
        self.flush();
        self.state.digest()
    }

    /// Ends the gathered block.
    fn flush(&mut self) {
        if self.block.iter().any(|byte| *byte != 0) {
            self.state.update(&self.start.to_le_bytes());
            self.state.update(&xxh64(&self.block, 0).to_le_bytes());
            self.block.fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Digest;

    fn digest(pieces: &[(u64, &[u8])]) -> u64 {
        let mut digest = Digest::new();
        for (offset, bytes) in pieces {
            digest.add(*offset, bytes);
        }
        digest.finish()
    }

    #[test]
    fn holes_and_pieces_do_not_matter_but_places_do() {
        let zeros = vec![0; 10_000];
        let mut whole = zeros.clone();
        whole.extend_from_slice(b"word");
        let at_once = digest(&[(0, &whole)]);
        assert_eq!(at_once, digest(&[(10_000, b"word")]));
        assert_eq!(at_once, digest(&[(0, &zeros[..7]), (10_000, b"wo"), (10_002, b"rd")]));
        assert_ne!(at_once, digest(&[(10_001, b"word")]));
        assert_ne!(at_once, digest(&[(10_000 + 4096, b"word")]));
        assert_eq!(digest(&[]), digest(&[(0, &zeros)]));
    }
}
