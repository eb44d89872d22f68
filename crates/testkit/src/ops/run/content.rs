//! Contents, attributes, xattrs.

use buttress::{Allocate, Attributes, Change, Error, Node, SetXattr, Time};

use super::super::rng::bytes;
use super::super::{Op, compare};
use super::{Result, Runner, engine, fail};
use crate::model::{Content, PAGE, Range};

impl Runner {
    pub(super) fn content_op(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Write { at, offset, len, seed } => self.write(at, *offset, *len, *seed),
            Op::Read { at, offset, len } => self.read(at, *offset, *len),
            Op::Truncate { at, size } => {
                self.change(at, &Change { size: Some(*size), ..Change::default() })
            }
            Op::Allocate { at, mode, offset, len } => self.allocate(at, *mode, *offset, *len),
            Op::Clone { from, offset, len, to, to_offset } => {
                self.clone_range(from, *offset, *len, to, *to_offset)
            }
            Op::SetXattr { at, name, len, seed, how } => {
                self.set_xattr(at, name, &bytes(*seed, 0, *len), *how)
            }
            Op::RemoveXattr { at, name } => self.remove_xattr(at, name),
            Op::Chmod { at, mode } => {
                self.change(at, &Change { mode: Some(*mode), ..Change::default() })
            }
            Op::Chown { at, uid, gid } => {
                self.change(at, &Change { uid: Some(*uid), gid: Some(*gid), ..Change::default() })
            }
            Op::Utimes { at, atime, mtime } => {
                let time = |sec: i64| Some(Time { sec, nsec: sec.unsigned_abs() as u32 % 1000 });
                let (atime, mtime) = (time(*atime), time(*mtime));
                self.change(at, &Change { atime, mtime, ..Change::default() })
            }
            _ => Ok(()),
        }
    }

    fn write(&mut self, at: &str, offset: u64, len: usize, seed: u32) -> Result<()> {
        let Some(node) = self.find(at) else { return Ok(()) };
        // Writing nothing is no operation, whatever it is done to.
        if len == 0 {
            return Ok(());
        }
        let refusal = self.model.refuse_write(node);
        let data = bytes(seed, offset, len);
        let answer = self.fs().write(node, offset, &data);
        let range = Range { node, offset, len: len as u64 };
        let Some(done) = self.judge(&refusal, true, answer)? else {
            return if refusal.is_empty() { self.resync(range) } else { Ok(()) };
        };
        if let Some(content) = self.model.content_mut(node) {
            content.write(offset, &data[..done.min(len)]);
        }
        if done != len {
            self.counts.no_space += 1;
            self.resync(range)?;
        }
        self.refresh(&[node])
    }

    /// After an operation on a range that found no space on its way: what is outside of the range is as before.
    fn resync(&mut self, range: Range) -> Result<()> {
        let node = range.node;
        let found = engine("attributes after", self.fs().attributes(node))?;
        let old = self.model.content(node).map_or(0, Content::size);
        let end = range.offset + range.len;
        if found.size < old && found.size < range.offset || found.size > old.max(end) {
            return fail(format!("size {old} became {} where nothing was done", found.size));
        }
        let mut offset = range.offset;
        let mut buffer = vec![0; 1 << 16];
        let end = end.min(found.size);
        if let Some(content) = self.model.content_mut(node) {
            content.resize(found.size);
        }
        while offset < end {
            let len = (end - offset).min(1 << 16) as usize;
            let read = engine("read after", self.fs().read(node, offset, &mut buffer[..len]))?;
            if read != len {
                return fail(format!("read {read} bytes of {len} at {offset}"));
            }
            if let Some(content) = self.model.content_mut(node) {
                content.write(offset, &buffer[..len]);
            }
            offset += len as u64;
        }
        self.refresh(&[node])?;
        // Where nearly everything is refused, all of a file is looked at now and then.
        self.resyncs += 1;
        match self.config.tight && !self.resyncs.is_multiple_of(16) {
            true => compare::near(self.fs(), &self.model, node, range.offset..end),
            false => compare::file(self.fs(), &self.model, node),
        }
    }

    fn read(&mut self, at: &str, offset: u64, len: usize) -> Result<()> {
        let Some(node) = self.find(at) else { return Ok(()) };
        let refusal = self.model.refuse_read(node);
        let mut found = vec![0xa5; len];
        let answer = self.fs().read(node, offset, &mut found);
        let Some(read) = self.judge(&refusal, false, answer)? else { return Ok(()) };
        let Some(content) = self.model.content(node) else { return Ok(()) };
        let there = content.size().saturating_sub(offset).min(len as u64) as usize;
        if read != there {
            return fail(format!("read {read} bytes, there are {there}"));
        }
        let mut expected = vec![0; there];
        content.read(offset, &mut expected);
        compare::bytes(node, offset, &found[..there], &expected)
    }

    fn allocate(&mut self, at: &str, mode: Allocate, offset: u64, len: u64) -> Result<()> {
        let Some(node) = self.find(at) else { return Ok(()) };
        let refusal = self.model.refuse_write(node);
        let range = Range { node, offset, len };
        let answer = self.fs().fallocate(node, mode, offset, len);
        if self.judge(&refusal, true, answer)?.is_some() {
            self.model.allocate(range, mode);
        } else if refusal.is_empty() {
            return self.resync(range);
        }
        self.refresh(&[node])
    }

    fn clone_range(
        &mut self,
        from: &str,
        offset: u64,
        len: u64,
        to: &str,
        to_offset: u64,
    ) -> Result<()> {
        let Some(source) = self.find(from) else { return Ok(()) };
        let Some(node) = self.find(to) else { return Ok(()) };
        let range = Range { node: source, offset, len };
        let range = Range { len: self.model.clone_len(range), ..range };
        let answer = self.fs().clone_range(source, offset, len, node, to_offset);
        let Some(refusal) = self.model.refuse_clone(range, node, to_offset) else {
            return self.nothing_cloned(answer);
        };
        match self.judge(&refusal, true, answer)? {
            Some(done) if done != range.len => {
                return fail(format!("cloned {done} bytes of {}", range.len));
            }
            Some(_) => self.model.clone_range(range, node, to_offset),
            None if refusal.is_empty() => {
                return self.resync(Range { node, offset: to_offset, len: range.len });
            }
            None => {}
        }
        self.refresh(&[source, node])
    }

    fn nothing_cloned(&mut self, answer: buttress::Result<u64>) -> Result<()> {
        match answer {
            Ok(0) | Err(Error::User(_) | Error::NoSpace) => Ok(()),
            answer => fail(format!("there was nothing to clone: {answer:?}")),
        }
    }

    fn change(&mut self, at: &str, change: &Change) -> Result<()> {
        let Some(node) = self.find(at) else { return Ok(()) };
        let refusal = self.model.refuse_attributes(node, change);
        let answer = self.fs().set_attributes(node, change);
        let Some(found) = self.judge(&refusal, true, answer)? else {
            return self.not_changed(node, &refusal, change);
        };
        self.model.set_attributes(node, change);
        let stat = engine("attributes", self.fs().attributes(node))?;
        // A commit may have come between: it places what was buffered.
        let Attributes { blocks_bytes, blocks_settled, transid, .. } = found;
        let placed = Attributes { blocks_bytes, blocks_settled, transid, ..stat };
        if placed != found {
            return fail(format!("answered {found:?}, and stat {stat:?}"));
        }
        self.refresh(&[node])?;
        compare::attributes(self.fs(), &self.model, node)
    }

    /// A truncation that found no space may have zeroed the rest of a sector: nothing else.
    fn not_changed(
        &mut self,
        node: Node,
        refusal: &crate::model::Refusal,
        change: &Change,
    ) -> Result<()> {
        match change.size {
            Some(size) if refusal.is_empty() => {
                let len = size.next_multiple_of(PAGE) - size;
                self.resync(Range { node, offset: size, len })
            }
            _ => Ok(()),
        }
    }

    fn set_xattr(&mut self, at: &str, name: &str, value: &[u8], how: SetXattr) -> Result<()> {
        let Some(node) = self.find(at) else { return Ok(()) };
        let name = name.as_bytes();
        let refusal = self.model.refuse_xattr(node, name, value.len(), how);
        let answer = self.fs().set_xattr(node, name, value, how);
        if self.judge(&refusal, true, answer)?.is_some() {
            self.model.set_xattr(node, name, Some(value));
        }
        self.refresh(&[node])
    }

    fn remove_xattr(&mut self, at: &str, name: &str) -> Result<()> {
        let Some(node) = self.find(at) else { return Ok(()) };
        let name = name.as_bytes();
        let refusal = self.model.refuse_remove_xattr(node, name);
        let answer = self.fs().remove_xattr(node, name);
        if self.judge(&refusal, false, answer)?.is_some() {
            self.model.set_xattr(node, name, None);
        }
        self.refresh(&[node])
    }
}
