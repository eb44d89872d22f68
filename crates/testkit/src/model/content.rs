//! The bytes of a file: pages that are not all zero, by number.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a page.
pub const PAGE: u64 = 4096;

type Page = [u8; PAGE as usize];

/// Sparse bytes. What was never written is zero; clones share pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    size: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

impl Content {
    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes held by pages.
    pub fn held(&self) -> u64 {
        self.pages.len() as u64 * PAGE
    }

    /// Numbers of the pages that hold something, in order.
    pub fn pages(&self) -> impl Iterator<Item = u64> {
        self.pages.keys().copied()
    }

    /// Numbers of those that reach into a range, in order.
    pub fn pages_in(&self, start: u64, end: u64) -> impl Iterator<Item = u64> {
        let range = start / PAGE..end.div_ceil(PAGE).max(start / PAGE);
        self.pages.range(range).map(|(number, _)| *number)
    }

    /// Fills `out` with the bytes from `offset` on, zeros after the end.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        let mut done = 0;
        while done < out.len() {
            let at = offset + done as u64;
            let start = (at % PAGE) as usize;
            let len = (PAGE as usize - start).min(out.len() - done);
            match self.pages.get(&(at / PAGE)) {
                Some(page) => out[done..done + len].copy_from_slice(&page[start..start + len]),
                None => out[done..done + len].fill(0),
            }
            done += len;
        }
    }

    /// Writes `data` at `offset`; the file grows when that is behind its end.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let start = (at % PAGE) as usize;
            let len = (PAGE as usize - start).min(data.len() - done);
            self.put(at / PAGE, start, &data[done..done + len]);
            done += len;
        }
        if !data.is_empty() {
            self.size = self.size.max(offset + data.len() as u64);
        }
    }

    fn put(&mut self, number: u64, start: usize, data: &[u8]) {
        if data.iter().all(|byte| *byte == 0) && !self.pages.contains_key(&number) {
            return;
        }
        let page = self.pages.entry(number).or_insert_with(|| Arc::new([0; PAGE as usize]));
        let page = Arc::make_mut(page);
        page[start..start + data.len()].copy_from_slice(data);
        if page.iter().all(|byte| *byte == 0) {
            self.pages.remove(&number);
        }
    }

    /// Makes a range zero. The size stays.
    pub fn clear(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let zeros = [0; PAGE as usize];
        let numbers: Vec<u64> =
            self.pages.range(start / PAGE..end.div_ceil(PAGE)).map(|(number, _)| *number).collect();
        for number in numbers {
            let from = start.max(number * PAGE);
            let to = end.min((number + 1) * PAGE);
            if from < to {
                self.put(number, (from % PAGE) as usize, &zeros[..(to - from) as usize]);
            }
        }
    }

    /// Cuts the file or makes it longer by zeros.
    pub fn resize(&mut self, size: u64) {
        if size < self.size {
            self.clear(size, self.size);
        }
        self.size = size;
    }

    /// Makes the file at least so long.
    pub fn grow(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// Copies `len` bytes at `from` of `source` to `to`.
    pub fn copy(&mut self, source: &Content, from: u64, len: u64, to: u64) {
        self.clear(to, to + len);
        let mut page = [0; PAGE as usize];
        for number in source.pages.range(from / PAGE..(from + len).div_ceil(PAGE)) {
            let start = from.max(number.0 * PAGE);
            let end = (from + len).min((number.0 + 1) * PAGE);
            if start < end {
                let part = &mut page[..(end - start) as usize];
                source.read(start, part);
                self.write(to + (start - from), part);
            }
        }
        if len > 0 {
            self.grow(to + len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Content;

    #[test]
    fn bytes_are_kept_cut_and_copied() {
        let mut content = Content::default();
        content.write(4090, b"0123456789abcdef");
        content.write(1 << 40, b"far");
        assert_eq!(content.size(), (1 << 40) + 3);
        content.clear(4095, 4097);
        let mut out = [1; 18];
        content.read(4089, &mut out);
        assert_eq!(&out, b"\x0001234\0\x00789abcdef\0");
        content.resize(4093);
        content.resize(5000);
        content.read(4089, &mut out);
        assert_eq!(&out, b"\x00012\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        let source = content.clone();
        content.copy(&source, 4090, 3, 10);
        content.read(4089, &mut out);
        let mut head = [9; 14];
        content.read(0, &mut head);
        assert_eq!(&head, b"\0\0\0\0\0\0\0\0\0\x00012\0");
    }
}
