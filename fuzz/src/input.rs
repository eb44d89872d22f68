//! The fuzzer's bytes as numbers, one after the other; zeros when there are no more.

/// Reads numbers from bytes.
#[derive(Clone, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input(bytes)
    }

    /// Whether all is read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What has not been read.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    /// The next two bytes.
    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// The next eight bytes.
    pub fn long(&mut self) -> u64 {
        let mut bytes = [0; 8];
        bytes.fill_with(|| self.byte());
        u64::from_le_bytes(bytes)
    }
}
