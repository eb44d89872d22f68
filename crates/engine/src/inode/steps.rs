//! Letting go of data in steps of bounded work.
//!
//! Each extent that goes changes the trees of extents, of checksums and of free space somewhere. A commit that lets go of a
//! hundred thousand of them may need more room than there is, and most of all on a full filesystem, where somebody deletes
//! for that very reason. So an operation lets go of a few; where there are more, they go from the end of the file on, in
//! steps that are operations of their own, with commits between them where room is short.
//!
//! Crash argument: a file that was being cut has a size between the two, as on Linux; of a range that was being cleared, the
//! end is clear. A file without a name has an orphan item before the first step, and the next open goes on with it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use buttress_ondisk::{Key, SECTOR, kind};

use super::Inode;
use super::file::FILE_END;
use super::state::State;
use super::tree::FileTree;
use crate::error::{Error, Result};
use crate::space::Need;
use crate::txn::Op;

/// Extents that operations let go of without steps.
pub const FEW: usize = 2;
/// As many extents are in one leaf of a file at least, as a rule.
const EXTENTS_PER_LEAF: usize = 16;
/// Bytes of items that clearing a range may add: an extent may be cut in two.
const BYTES: u32 = 120;

/// What letting go of `extents` data extents may take until it is committed.
pub fn letting_go(extents: usize) -> Need {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Need {
        leaves: number(extents / EXTENTS_PER_LEAF).saturating_add(2),
        bytes: BYTES,
        refs: number(extents),
        deleting: true,
        ..Need::default()
    }
}

/// An operation lets go of so many extents, and leaves that to be committed.
fn note(op: &Op<'_>, extents: usize) {
    if extents > FEW {
        op.leave_extents(extents);
    }
}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is more to be done.
    Again,
    /// It was the last one.
    Done,
}

/// A file that nobody can reach any more and that goes in steps.
#[derive(Clone, Debug)]
pub struct Leaving {
    inode: Arc<Inode>,
    /// What is behind this offset is gone.
    end: u64,
}

impl Leaving {
    /// Its number.
    pub fn ino(&self) -> u64 {
        self.inode.ino
    }
}

impl FileTree {
    /// Where extents start that the tree, or the committing transaction, has in `span` of a file: at least the last `count`
    /// of them, if there are so many.
    fn last_starts(
        &self,
        op: &Op<'_>,
        ino: u64,
        state: &State,
        span: &Range<u64>,
        count: usize,
    ) -> Result<BTreeSet<u64>> {
        let mut starts = BTreeSet::new();
        let view = self.view(op.core);
        let mut at = span.end;
        while state.on_disk && at > span.start && starts.len() < count {
            let last = Key::new(ino, kind::EXTENT_DATA, at - 1);
            let found = view.last_at_or_before(&last)?.map(|item| item.key());
            let found = found.filter(|key| (key.objectid, key.kind) == (ino, kind::EXTENT_DATA));
            let Some(found) = found.filter(|key| key.offset >= span.start) else { break };
            at = found.offset;
            starts.insert(at);
        }
        if let Some(frozen) = state.frozen.as_ref().and_then(|frozen| frozen.file.as_deref()) {
            starts.extend(frozen.last_starts(span, count));
        }
        Ok(starts)
    }

    /// Where the last `count` extents in `span` begin, when there are more than that.
    fn tail(
        &self,
        op: &Op<'_>,
        ino: u64,
        state: &State,
        span: &Range<u64>,
        count: usize,
    ) -> Result<Option<u64>> {
        let starts = self.last_starts(op, ino, state, span, count.saturating_add(1))?;
        note(op, starts.len().min(count));
        if starts.len() <= count {
            return Ok(None);
        }
        Ok(starts.iter().nth_back(count.saturating_sub(1)).copied())
    }

    /// Has room promised for the extents that something new in `span` replaces, when they are many. The caller has been
    /// promised enough for a few.
    pub(super) fn reserve_to_replace(
        &self,
        op: &Op<'_>,
        ino: u64,
        state: &State,
        span: &Range<u64>,
    ) -> Result<()> {
        let most = (span.end.saturating_sub(span.start) / SECTOR) as usize + 1;
        if most <= FEW {
            return Ok(());
        }
        let count = self.last_starts(op, ino, state, span, most)?.len();
        if count <= FEW {
            return Ok(());
        }
        note(op, count);
        let need = Need { deleting: false, ..letting_go(count) };
        op.core.space.reserve(need).map_err(|_| Error::NoSpace)
    }

    /// A step of cutting a file to `size`. While there are more than `extents` of it between there and `end`, that many are
    /// cut off, and `end` moves there; then it is done, and [`FileTree::set_attributes`] may cut the rest.
    pub fn shorten(
        &self,
        op: &Op<'_>,
        inode: &Arc<Inode>,
        size: u64,
        end: &mut u64,
        extents: usize,
    ) -> Result<Step> {
        self.writable()?;
        let mut state = inode.write();
        let old = state.attributes.size;
        if size > old || !state.attributes.is_regular() {
            return Ok(Step::Done);
        }
        let span = size.div_ceil(SECTOR).saturating_mul(SECTOR)..*end;
        let Some(from) = self.tail(op, inode.ino, &state, &span, extents)? else {
            return Ok(Step::Done);
        };
        state.touch(inode, self, op)?;
        if from < old {
            self.resize(op, inode, &mut state, from)?;
        } else {
            self.erase(op, inode, &mut state, from);
        }
        op.step("the end of a file is gone");
        *end = from;
        Ok(Step::Again)
    }

    /// A step of making `offset..end` a hole. While there are more than `extents` extents in it, the last ones go, and `end`
    /// moves to where they began; the last step makes the rest a hole.
    pub fn punch_step(
        &self,
        op: &Op<'_>,
        inode: &Arc<Inode>,
        offset: u64,
        end: &mut u64,
        extents: usize,
    ) -> Result<Step> {
        let span = offset.div_ceil(SECTOR).saturating_mul(SECTOR)..*end;
        let tail = self.tail(op, inode.ino, &inode.read(), &span, extents)?;
        let from = tail.unwrap_or(offset);
        self.punch(op, inode, from, end.saturating_sub(from))?;
        *end = from;
        Ok(if tail.is_some() { Step::Again } else { Step::Done })
    }

    /// A step before something new replaces what a file has in `offset..end`: where that is many extents, they go as in
    /// [`FileTree::punch_step`]; a few stay, to be replaced at once.
    pub fn thin_step(
        &self,
        op: &Op<'_>,
        inode: &Arc<Inode>,
        offset: u64,
        end: &mut u64,
        extents: usize,
    ) -> Result<Step> {
        let few = self.tail(op, inode.ino, &inode.read(), &(offset..*end), FEW)?.is_none();
        if few { Ok(Step::Done) } else { self.punch_step(op, inode, offset, end, extents) }
    }

    /// Lets go of all data from `from` on, which nobody can read any more.
    pub(super) fn erase(&self, op: &Op<'_>, inode: &Inode, state: &mut State, from: u64) {
        let (file, layers) = state.file_layers(inode.ino, self.view(op.core));
        file.erase(op.core, layers, from..FILE_END);
    }

    /// Deletes an inode that has no name and no holder; one with much data goes in steps, see [`FileTree::take_leaving`]. So does
    /// one of which it cannot be read how much it has: a step that fails has changed nothing, and can be tried again.
    pub(super) fn leave(&self, op: &Op<'_>, inode: &Arc<Inode>, state: &mut State) {
        let all = 0..FILE_END;
        let is_small = || matches!(self.tail(op, inode.ino, state, &all, FEW), Ok(None));
        if !state.attributes.is_regular() || is_small() {
            return self.delete(op, inode, state);
        }
        state.live.orphan = Some(true);
        state.dead = true;
        inode.gone.store(true, Ordering::Release);
        self.leaving.lock().push(Leaving { inode: inode.clone(), end: FILE_END });
    }

    /// One of the files that go in steps. The caller evicts it with [`FileTree::let_go`], or puts it back.
    pub fn take_leaving(&self) -> Option<Leaving> {
        self.leaving.lock().pop()
    }

    /// Puts a file back that could not be evicted now.
    pub fn still_leaving(&self, leaving: Leaving) {
        self.leaving.lock().push(leaving);
    }

    /// Lets go of up to `extents` extents of a file that goes in steps; of the file, in the last step.
    pub fn let_go(&self, op: &Op<'_>, leaving: &mut Leaving, extents: usize) -> Result<Step> {
        let inode = &leaving.inode;
        let mut state = inode.write();
        let left = 0..leaving.end;
        let tail = self.tail(op, inode.ino, &state, &left, extents)?;
        state.note_change(inode, self, op);
        let Some(from) = tail else {
            self.delete(op, inode, &mut state);
            return Ok(Step::Done);
        };
        self.erase(op, inode, &mut state, from);
        op.step("content without its size");
        state.attributes.size = state.attributes.size.min(from);
        leaving.end = from;
        Ok(Step::Again)
    }
}
