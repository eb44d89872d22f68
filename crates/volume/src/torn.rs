//! What is left of a bad primary superblock, and whether it shows that a copy is of the last commit.
//!
//! A copy may be old: a program may have failed to write it, and a commit that was cut off after the primary leaves it one
//! behind. Going on from an old one throws away every commit since, and may write over what they hold. So a copy is taken
//! for the last commit only when the bad primary itself says so. It can, because every commit writes all of it, and two of
//! its sectors of 512 bytes, the unit in which a medium loses or keeps, change in every commit:
//!
//! * The first has the generation and the checksum of all the rest. If it is byte for byte what the copy's commit wrote,
//!   then that was the last to write the primary to its end: a later one would have changed it. Whatever made the rest
//!   bad, a write that was cut off or a rotten byte, the copy is of the last commit.
//! * The one with the next backup of the roots gets the generation of the next commit. If it is what the copy's commit
//!   left, the next one never finished the primary. The first sector may then be new; it has to say that it is of the
//!   very next commit, and that no log waits, as Linux writes that into the primary's first sector only.
//!
//! In both cases what the cut-off commit wrote was never acknowledged. Where neither holds nothing is known: the new first
//! sector and the new backup may be from a commit that was finished, and damaged later.

use buttress_ondisk::{
    Superblock,
    superblock::{MAGIC, SUPERBLOCK_LEN, SUPERBLOCK_OFFSETS},
};
use zerocopy::{FromBytes, IntoBytes};

use crate::super_io::seal;

const SECTOR: usize = 512;

/// A superblock's bytes, good or bad.
pub(crate) type Bytes = [u8; SUPERBLOCK_LEN];

/// The bad primary as far as it still says that it is one.
fn remains(primary: &Bytes) -> Option<Superblock> {
    Superblock::read_from_bytes(primary).ok().filter(|sb| sb.magic == MAGIC)
}

/// Whether a copy may belong to the filesystem of the bad primary. One of an older, larger filesystem may lie beyond the
/// end of a newer one, or where that has none. One of the two uuids may be what is bad.
pub(crate) fn may_be_of(copy: &Superblock, primary: &Bytes) -> bool {
    remains(primary).is_none_or(|primary| {
        copy.fsid == primary.fsid || copy.dev_item.uuid == primary.dev_item.uuid
    })
}

/// The generation that the bad primary gives, where there is something to it.
pub(crate) fn generation(primary: &Bytes) -> Option<u64> {
    remains(primary).map(|sb| sb.generation.get())
}

/// Whether the bad primary shows that no commit after that of `copy` was finished.
pub(crate) fn is_current(copy: &Superblock, primary: &Bytes) -> bool {
    let written = seal(copy, SUPERBLOCK_OFFSETS[0]);
    let same = |at: usize| {
        let sector = at - at % SECTOR..at - at % SECTOR + SECTOR;
        written.as_bytes().get(sector.clone()) == primary.get(sector)
    };
    if same(0) {
        return true;
    }
    let Some(first) = remains(primary) else { return false };
    let next = copy.generation.get().checked_add(1) == Some(first.generation.get());
    let whose = first.fsid == copy.fsid && first.bytenr.get() == SUPERBLOCK_OFFSETS[0];
    next && whose && first.log_root.get() == 0 && next_backup(copy).is_some_and(same)
}

/// Where the generation in the next backup of the roots is, if whoever wrote this superblock makes them.
fn next_backup(sb: &Superblock) -> Option<usize> {
    let generations = sb.root_backups.iter().map(|backup| backup.tree_root_gen.get());
    let (newest, generation) = generations.enumerate().max_by_key(|(_, generation)| *generation)?;
    let next = (newest + 1) % sb.root_backups.len();
    let backup = size_of_val(&sb.root_backups) / sb.root_backups.len();
    let at = std::mem::offset_of!(Superblock, root_backups) + next * backup;
    let field = at + std::mem::offset_of!(buttress_ondisk::superblock::RootBackup, tree_root_gen);
    (generation == sb.generation.get()).then_some(field)
}
