//! Tree blocks: read from the first copy that passes the gate; bad copies are repaired from it.

use buttress_device::{Access, BlockDevice};
use buttress_ondisk::{
    TreeBlock,
    check::{Corruption, CorruptionKind, Expect, Gate},
};

use crate::{
    chunk_map::Chunk,
    error::{CopyFault, CopyFaults, VolumeError},
    plan::pieces,
    volume::{Volume, count},
};

impl Volume {
    /// Reads the tree block at a logical address through the gate, from the first good copy; where there is none and checksums are not
    /// to be minded ([`crate::Rescue::ignore_meta_sums`]), from the first that is good but for its checksum.
    pub fn read_block(&self, logical: u64, expect: &Expect) -> Result<TreeBlock, VolumeError> {
        let verified = self.read_block_by(&self.gate(), logical, expect);
        match &verified {
            Err(VolumeError::Block { .. }) if self.takes_unverified => {
                self.read_block_by(&self.last_gate(), logical, expect)
            }
            _ => verified,
        }
    }

    /// What a block has to pass at least that nobody writes on from.
    fn last_gate(&self) -> Gate {
        Gate { unverified: self.takes_unverified, ..self.gate() }
    }

    fn read_block_by(
        &self,
        gate: &Gate,
        logical: u64,
        expect: &Expect,
    ) -> Result<TreeBlock, VolumeError> {
        let chunk = self.chunk_of(logical, u64::from(self.nodesize()))?;
        let mut faults = Vec::new();
        for copy in 0..chunk.profile().copies() {
            match self.read_block_copy(gate, &chunk, logical, copy, expect) {
                Ok(block) if faults.is_empty() => return Ok(block),
                Ok(block) => {
                    self.repair_block(&chunk, &block, expect, copy);
                    return Ok(block);
                }
                Err(fault) => {
                    count(&self.counters.bad_blocks);
                    faults.push(fault);
                }
            }
        }
        Err(VolumeError::Block { logical, faults: CopyFaults(faults) })
    }

    /// Reads one copy (from 0) of the tree block at a logical address, without turning to another
    /// and without repairing: for scrubs and checkers. A copy that does not exist is not mapped.
    pub fn read_block_from(
        &self,
        logical: u64,
        expect: &Expect,
        copy: usize,
    ) -> Result<TreeBlock, VolumeError> {
        let len = u64::from(self.nodesize());
        let chunk = self.chunk_of(logical, len)?;
        if copy >= chunk.profile().copies() {
            return Err(VolumeError::Unmapped { logical, len });
        }
        self.read_block_copy(&self.gate(), &chunk, logical, copy, expect)
            .map_err(|fault| VolumeError::Block { logical, faults: CopyFaults(vec![fault]) })
    }

    /// The leaf at a logical address for who looks at its items of one kind only ([`buttress_ondisk::Gate::leaf_for`]), read into `bytes`;
    /// `None` if that fails. Who asks reads the leaf as everybody does then, which says why, or reads and repairs another copy.
    pub fn read_leaf_for(
        &self,
        kind: u8,
        logical: u64,
        expect: &Expect,
        mut bytes: Box<[u8]>,
    ) -> Option<TreeBlock> {
        let chunk = self.chunk_of(logical, u64::from(self.nodesize())).ok()?;
        self.read_copy(&chunk, logical, 0, &mut bytes).ok()?;
        self.gate().leaf_for(kind, bytes, expect).ok()
    }

    /// The same for who only reads, where no copy passes: a leaf without those of its items that are bad, see
    /// [`buttress_ondisk::Gate::block_beside`]. A volume that may be written to gives none.
    pub fn read_block_beside(
        &self,
        logical: u64,
        expect: &Expect,
    ) -> Result<TreeBlock, VolumeError> {
        let refused = match self.read_block(logical, expect) {
            Err(refused) if self.access == Access::ReadOnly => refused,
            other => return other,
        };
        let VolumeError::Block { faults, .. } = &refused else { return Err(refused) };
        for (copy, fault) in faults.0.iter().enumerate() {
            let one = matches!(fault, CopyFault::Block { source, .. } if source.kind == CorruptionKind::Item);
            let mut bytes = vec![0; self.nodesize() as usize].into_boxed_slice();
            if one
                && self.read_raw(logical, &mut bytes, copy).is_ok()
                && let Ok(block) = self.last_gate().block_beside(bytes, expect)
            {
                return Ok(block);
            }
        }
        Err(refused)
    }

    /// What can be used of a block that was refused: one whose head is good and whose content is not, with what is wrong with it.
    /// For tools that show what there is; its items are read with views, which do not fail.
    pub fn salvage<'e>(&self, refused: &'e VolumeError) -> Option<(&'e Corruption, TreeBlock)> {
        let VolumeError::Block { logical, faults } = refused else { return None };
        let content = |fault: &'e CopyFault| match fault {
            CopyFault::Block { source, .. } => {
                let kinds = [CorruptionKind::Leaf, CorruptionKind::Node, CorruptionKind::Item];
                kinds.contains(&source.kind).then_some(&**source)
            }
            _ => None,
        };
        let mut copies = faults.0.iter().enumerate();
        let (copy, fault) = copies.find_map(|(copy, it)| Some((copy, content(it)?)))?;
        let mut bytes = vec![0; self.nodesize() as usize].into_boxed_slice();
        self.read_raw(*logical, &mut bytes, copy).ok()?;
        let block = self.gate().salvage(bytes).ok()?;
        Some((fault, block))
    }

    fn read_block_copy(
        &self,
        gate: &Gate,
        chunk: &Chunk,
        logical: u64,
        copy: usize,
        expect: &Expect,
    ) -> Result<TreeBlock, CopyFault> {
        let mut bytes = vec![0; self.nodesize() as usize].into_boxed_slice();
        let place = self.read_copy(chunk, logical, copy, &mut bytes)?;
        gate.block(bytes, expect).map_err(|source| CopyFault::Block {
            device: place.map_or_else(String::new, |(device, _)| device.name().into()),
            offset: place.map_or(0, |(_, offset)| offset),
            source: Box::new(source),
        })
    }

    /// Reads the bytes of one copy of a block, and answers where it begins.
    fn read_copy(
        &self,
        chunk: &Chunk,
        logical: u64,
        copy: usize,
        bytes: &mut [u8],
    ) -> Result<Option<(&dyn BlockDevice, u64)>, CopyFault> {
        let (mut rest, mut place) = (bytes, None);
        for piece in pieces(chunk, logical, u64::from(self.nodesize())) {
            let Some(at) = piece.copies().get(copy) else { continue };
            let Some((part, after)) = rest.split_at_mut_checked(piece.len as usize) else { break };
            let device = self.member(at.devid)?;
            device.read_at(at.offset, part)?;
            place = place.or(Some((device, at.offset)));
            rest = after;
        }
        Ok(place)
    }

    /// Rewrites the copies before `good` from it, unless they have become good or it has changed.
    fn repair_block(&self, chunk: &Chunk, block: &TreeBlock, expect: &Expect, good: usize) {
        if self.access != Access::ReadWrite {
            return;
        }
        let _exclusive = self.repair.write();
        let (gate, logical) = (self.gate(), block.bytenr());
        let unchanged = self
            .read_block_copy(&gate, chunk, logical, good, expect)
            .is_ok_and(|again| again.as_bytes() == block.as_bytes());
        if !unchanged {
            return;
        }
        for copy in 0..good {
            if self.read_block_copy(&gate, chunk, logical, copy, expect).is_err() {
                let written = self.write_copy(chunk, logical, block.as_bytes(), copy);
                self.count_repair(written.is_ok());
            }
        }
    }

    pub(crate) fn count_repair(&self, done: bool) {
        match done {
            true => count(&self.counters.repaired),
            false => count(&self.counters.repair_failures),
        }
    }

    fn write_copy(
        &self,
        chunk: &Chunk,
        logical: u64,
        bytes: &[u8],
        copy: usize,
    ) -> Result<(), VolumeError> {
        let mut rest = bytes;
        for piece in pieces(chunk, logical, bytes.len() as u64) {
            let Some(at) = piece.copies().get(copy) else { continue };
            let Some((part, after)) = rest.split_at_checked(piece.len as usize) else { break };
            self.member(at.devid)?.write_at(at.offset, part)?;
            rest = after;
        }
        Ok(())
    }
}
