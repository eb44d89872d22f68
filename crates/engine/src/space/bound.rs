//! What a commit may write at most.
//!
//! A promise is good when the commit that has to keep it finds the tree blocks that it writes. How many that are follows from
//! what operations announced ([`Need`]) and from how large the trees are that describe space; here is the derivation.
//! `N` is the size of a tree block, `E`, `F` and `C` are the blocks of the extent, free space and checksum trees.
//!
//! 1. **Subvolumes.** Each announced leaf is written anew, and so are the nodes above it: at most three times as many, and
//!    no more than trees of that size can have: each that is open has a path of its own, and the root tree an item for it. A leaf
//!    that grows may split; beyond that, new items fill new leaves at least to two fifths. Where leaves may be shared with
//!    snapshots, what is rewritten stays where it was, too, but for those of which somebody has seen that they are not ([`Need::own`]). A
//!    leaf that has become small takes in the one behind it: that is no block more, but one more that is let go of.
//! 2. **References.** A data extent that is gained or lost is one item and its references: perhaps two leaves of the extent tree.
//!    Copying a shared leaf, and one that it takes in, adds a reference for every extent that they name: as many as fit into
//!    them. A tree block that is written or let go of is an item, too; the items of tree blocks are all together (metadata has
//!    groups of its own), in leaves whose number follows from that of the tree blocks. **All of these leaves may be rewritten by
//!    any commit**, however little it changes: each of them that is rewritten changes the references of two addresses, which are
//!    in two others. What goes and what comes are not in the same leaves, so that they may split: those between others that
//!    stay, half of them; what is rewritten in a row is filled whole.
//!    The whole is never more than `E`: **rewriting the extent tree whole is the worst that can happen**, however many
//!    operations there were.
//! 3. **Free space and checksums** are the same in `F` and `C`. The items of a block group may change their form, all at once;
//!    the checksums of an extent may begin in one leaf and end in another.
//! 4. What these trees rewrite of themselves are tree blocks again, which 2. has counted: all the leaves for tree blocks.
//! 5. Trees whose changes are few (root tree, block groups, uuids, devices) have a fixed part.
//! 6. **Packing.** Operations that touch many leaves a little split them: after one that copies a shared leaf, `E` may be twice what
//!    its items need, and then the next bound is twice as large, too. Who deletes on a full filesystem can do that until not even
//!    deleting fits any more. So before a deletion is refused, the trees for extents and free space are written whole once, with small
//!    gaps (`txn/settle.rs`), and whoever is let in leaves the room for that. It writes hardly more blocks than these trees had before
//!    they were split, and what 2. says of any commit; and all that splitting took comes back. Hardly more is a fifteenth: no item is
//!    larger than a gap (extent items with many references end there, too, in every kernel), so that a leaf is left only when it is
//!    fuller than 15 of 16 parts, however large its items are. Others may have made larger items. So the leaves are counted first
//!    ([`most_packed`]), and where they would be more, nothing is packed.
//!
//! So the bound of one operation may be large, but that of many is not much larger: it ends with the size of three trees.
//! The transaction that commits and the one that runs are bounded as one: what the first writes anew it also lets go of, and
//! that is free for the second.
//!
//! `E`, `F` and `C` are what the root items say, and those are only somebody's word. No tree has more blocks than there are, and
//! before space gets tight the trees are counted (`txn/settle.rs`).
//!
//! Each commit is held against its bound ([`super::Space::committed`]); what goes beyond it is counted, and tests fail.

use buttress_ondisk::item::{
    BlockGroupItem, ExtentDataRef, ExtentInlineRef, ExtentItem, FileExtent, RootItem, RootRef,
    TreeBlockInfo,
};
use buttress_ondisk::{CHILD_LEN, HEADER_LEN, ITEM_LEN, NAME_LEN_MAX};

use super::free_space_tree::{BITMAP_COVERS, BITMAP_LEN};
use super::reserve::{Need, Outlook};
use super::set::Sums;
use crate::tree::PACKED_GAP;

/// Tree blocks that every commit may write beyond what operations announce, of the trees whose changes are few: in the
/// root, uuid, device, chunk and block group trees a path of three blocks and as many where its leaf splits; and 2 to spare.
const SLACK: u64 = 5 * 2 * 3 + 2;
/// The same of the quota tree where it grows, and two leaves of groups that are new.
pub(super) const QUOTA_SLACK: u64 = 2 * 3 + 2;
/// Bytes of a tree block's header.
const HEADER: u64 = HEADER_LEN as u64;
/// Bytes of an item's header.
pub(super) const ITEM: u64 = ITEM_LEN as u64;
/// Bytes of the smallest file extent that refers to data.
const FILE_EXTENT: u64 = bytes_of::<FileExtent>() + ITEM;
/// Bytes of a pointer of a node.
const POINTER: u64 = CHILD_LEN as u64;
/// Bytes of a tree block's item in the extent tree, in its longest form: without skinny metadata, with one reference.
const BLOCK_ITEM: u64 =
    bytes_of::<ExtentItem>() + bytes_of::<TreeBlockInfo>() + bytes_of::<ExtentInlineRef>() + ITEM;
/// Bytes that a reference adds to the extent tree at most: an item of its own, where the extent's has no room for it.
pub(super) const REFERENCE: u64 = bytes_of::<ExtentDataRef>() + ITEM;
/// Bytes that a reference to a tree block adds to the item that this has, where that has room for it.
pub(super) const INLINE: u64 = bytes_of::<ExtentInlineRef>();
/// Bytes that a new extent adds: its item with one reference, and the byte that says of which kind that is.
const EXTENT: u64 = bytes_of::<ExtentItem>() + 1 + bytes_of::<ExtentDataRef>() + ITEM;
/// Bytes of a root item, and of the reference to the subvolume and back with the longest name.
const ROOT: u64 =
    bytes_of::<RootItem>() + ITEM + 2 * (bytes_of::<RootRef>() + NAME_LEN_MAX as u64 + ITEM);
/// Bytes of a block group's item.
const GROUP: u64 = bytes_of::<BlockGroupItem>() + ITEM;
/// Bytes of a bitmap's item.
const BITMAP: u64 = BITMAP_LEN + ITEM;
/// Bytes that a range adds to the free space tree, whose items of ranges have no body, or to the checksum tree where it cuts an
/// item in two; and a checksum of the usual length.
pub(super) const RANGE: u64 = ITEM + 4;
/// Children of a node on average, at least. The smallest node has room for 121. A merge fills nodes whole but for the last one of
/// a level, which has a quarter, or shares evenly with the one before it (`Merge::flush_nodes`).
const CHILDREN: u64 = 32;
/// Nodes on the way to a leaf that changes. With three a tree has `CHILDREN`³ leaves, 32768; where there are more above a leaf,
/// many leaves have them in common.
pub(crate) const NODES_ABOVE: u64 = 3;
/// What is added to files fills at least this part of new leaves, 2 of 5: the largest item that is not a leaf's only one as a
/// rule, an inline file, takes 2094 of the 3995 bytes of the smallest leaf, and leaves 1901.
const FILES_FILL: (u64, u64) = (2, 5);
/// What is added to the trees that describe space, in small items, fills 2 of 3: a row of new leaves is full but for the last two,
/// which may be little more than half full (`Merge::flush_leaf`); [`Bound::grown`] has two more for these.
const SPACE_FILL: (u64, u64) = (2, 3);
/// The leaves for the items of tree blocks are 1 of 3 full: of halves that a split leaves, a part may have gone.
const BLOCKS_FILL: (u64, u64) = (1, 3);

const fn bytes_of<T>() -> u64 {
    size_of::<T>() as u64
}

/// Leaves of `node` bytes that `bytes` bytes of items fill in part: `part` of `of` parts.
fn leaves_of(bytes: u64, (part, of): (u64, u64), node: u64) -> u64 {
    bytes.saturating_mul(of).div_ceil(part * node)
}

/// Leaves that a tree of `blocks` blocks comes to at most when it is packed; the last one may be nearly empty.
pub(crate) fn most_packed(blocks: u64) -> u64 {
    blocks.saturating_add(blocks / (PACKED_GAP as u64 - 1)).saturating_add(1)
}

/// Sums of needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Total {
    leaves: u64,
    /// Those of them that no snapshot shares, nor a block above them.
    own: u64,
    private: u64,
    /// Those of operations that add something.
    growing: u64,
    bytes: u64,
    /// Bytes of data that are to be allocated.
    pub data: u64,
    refs: u64,
    /// Those that may be new.
    gains: u64,
    nodes: u64,
    /// Operations that give space back.
    pub deletions: u64,
    /// How often the trees for extents and free space are written whole.
    whole: u64,
    /// Operations that make something shared.
    sharing: u64,
}

impl Total {
    pub fn plus(self, need: Need) -> Total {
        self.and(Total::of(need))
    }

    /// What one operation needs.
    pub fn of(need: Need) -> Total {
        let (leaves, private) = (u64::from(need.leaves), u64::from(need.private));
        let refs = u64::from(need.refs);
        Total {
            leaves,
            own: u64::from(need.own).min(leaves),
            private,
            growing: if need.bytes > 0 { leaves.div_ceil(2) + private } else { 0 },
            bytes: need.bytes.into(),
            data: need.data,
            refs,
            gains: if need.deleting { 0 } else { refs },
            nodes: need.nodes.into(),
            deletions: need.deleting.into(),
            whole: 0,
            sharing: need.sharing.into(),
        }
    }

    /// Leaves that may be shared with snapshots.
    fn shared_leaves(self) -> u64 {
        self.leaves.saturating_sub(self.own)
    }

    /// The same where what was nobody else's is not any more.
    pub fn without_own(self) -> Total {
        Total { own: 0, ..self }
    }

    /// Whether something becomes shared.
    pub fn shares(self) -> bool {
        self.sharing > 0
    }

    /// The same with so many bytes of data.
    pub fn of_data(self, data: u64) -> Total {
        Total { data, ..self }
    }

    /// What dropping parts of subvolumes comes to: references that go, or are given from the tree to a block, and `roots` leaves
    /// of the root tree, which says of each subvolume how far that came.
    pub fn dropping(refs: u64, nodes: u64, roots: u64) -> Total {
        Total { private: roots, refs, gains: refs, nodes, deletions: 1, ..Total::default() }
    }

    /// What packing comes to.
    pub fn packing() -> Total {
        Total { whole: 1, ..Total::default() }
    }

    /// Each part of both, put together.
    fn with(self, other: Total, mut part: impl FnMut(u64, u64) -> u64) -> Total {
        Total {
            leaves: part(self.leaves, other.leaves),
            own: part(self.own, other.own),
            private: part(self.private, other.private),
            growing: part(self.growing, other.growing),
            bytes: part(self.bytes, other.bytes),
            data: part(self.data, other.data),
            refs: part(self.refs, other.refs),
            gains: part(self.gains, other.gains),
            nodes: part(self.nodes, other.nodes),
            deletions: part(self.deletions, other.deletions),
            whole: part(self.whole, other.whole),
            sharing: part(self.sharing, other.sharing),
        }
    }

    /// Both.
    pub fn and(self, other: Total) -> Total {
        self.with(other, u64::saturating_add)
    }

    /// Without what is part of it.
    pub fn less(self, other: Total) -> Total {
        self.with(other, u64::saturating_sub)
    }

    /// The same, if it is.
    pub fn less_if_part(self, other: Total) -> Option<Total> {
        let mut is_part = true;
        let left = self.with(other, |all, part| {
            is_part &= part <= all;
            all.saturating_sub(part)
        });
        is_part.then_some(left)
    }

    /// Each part at least as much as that of `other`.
    pub fn at_least(self, other: Total) -> Total {
        Total { own: self.own.min(other.own), ..self.with(other, u64::max) }
    }

    /// Whether no part is more than that of `most`, so that [`Outlook::bound`] is no more than the other's, but for some blocks
    /// where what is filled takes the place of what splits. Whether operations delete changes nothing about it.
    pub fn is_within(self, most: Total) -> bool {
        self.leaves <= most.leaves
            && self.shared_leaves() <= most.shared_leaves()
            && self.private <= most.private
            && self.growing <= most.growing
            && self.bytes <= most.bytes
            && self.data <= most.data
            && self.refs <= most.refs
            && self.gains <= most.gains
            && self.nodes <= most.nodes
            && self.whole <= most.whole
    }

    /// So many times the same.
    pub fn times(self, count: u64) -> Total {
        self.with(self, |part, _| part.saturating_mul(count))
    }

    /// With so many bytes of items more.
    pub fn plus_bytes(self, bytes: u64) -> Total {
        Total { bytes: self.bytes.saturating_add(bytes), ..self }
    }

    /// Without an operation that changed nothing.
    pub fn minus(self, need: Need) -> Total {
        self.less(Total::of(need))
    }
}

/// Blocks of the trees that describe space, as the last commit left them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trees {
    /// The extent tree.
    pub extent: u64,
    /// The free space tree.
    pub free_space: u64,
    /// The checksum tree.
    pub csum: u64,
    /// The quota tree; 0 where nobody counts.
    pub quota: u64,
}

impl Trees {
    /// Blocks of those that can be packed.
    pub(super) fn packable(self) -> u64 {
        self.extent.saturating_add(self.free_space)
    }

    /// As far as it can be: no tree has more than all blocks.
    fn at_most(self, blocks: u64) -> Trees {
        let most = |size: u64| size.min(blocks);
        Trees {
            extent: most(self.extent),
            free_space: most(self.free_space),
            csum: most(self.csum),
            quota: most(self.quota),
        }
    }
}

/// Tree blocks that a commit writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bound {
    /// All that it writes.
    pub blocks: u64,
    /// By how many the metadata has grown when what it let go of is free again.
    pub growth: u64,
    /// What of this growth is gaps, which packing takes out.
    pub gaps: u64,
}

impl Bound {
    /// The same, where the growth is gaps.
    fn as_gaps(self) -> Bound {
        Bound { gaps: self.growth, ..self }
    }

    /// New leaves, the nodes for them, and two: the last ones of a row of leaves or nodes are not full.
    fn grown(leaves: u64) -> Bound {
        let growth =
            if leaves > 0 { leaves.saturating_mul(CHILDREN + 1) / CHILDREN + 2 } else { 0 };
        Bound { blocks: growth, growth, ..Bound::default() }
    }

    /// Both.
    pub fn and(self, other: Bound) -> Bound {
        let blocks = self.blocks.saturating_add(other.blocks);
        let growth = self.growth.saturating_add(other.growth);
        Bound { blocks, growth, gaps: self.gaps.saturating_add(other.gaps) }
    }
}

/// Nodes above so many leaves of `trees` trees with `blocks` blocks: no more than each leaf has above it, nor than there are.
fn nodes_above(leaves: u64, blocks: u64, trees: u64) -> u64 {
    leaves.min(trees.saturating_add(blocks / (NODES_ABOVE * CHILDREN))).saturating_mul(NODES_ABOVE)
}

/// A tree of `blocks` blocks of which `leaves` leaves are rewritten, with `adds` additions of `bytes` bytes each among them.
pub(super) fn rewritten(blocks: u64, node: u64, leaves: u64, adds: u64, bytes: u64) -> Bound {
    let leaves = leaves.min(blocks);
    let splits = adds.min(leaves);
    let filled = leaves_of(adds.saturating_mul(bytes), SPACE_FILL, node);
    let blocks = leaves + nodes_above(leaves, blocks, 1);
    let stays = Bound { blocks, ..Bound::default() };
    let (filled, split) = (Bound::grown(filled), Bound::grown(splits.saturating_sub(filled)));
    stays.and(filled).and(split.as_gaps())
}

impl Outlook {
    /// Tree blocks that packing the trees that describe space writes when they have grown by `bound`: no gaps.
    pub fn packing_after(&self, bound: Bound) -> u64 {
        let real = bound.growth.saturating_sub(bound.gaps);
        let trees = Trees { extent: self.trees.extent.saturating_add(real), ..self.trees };
        let more = bound.growth.saturating_mul(self.node);
        let metadata = Sums { used: self.metadata.used.saturating_add(more), ..self.metadata };
        Outlook { trees, metadata, ..*self }.bound(Total::packing()).blocks
    }

    /// Tree blocks of metadata that are in use.
    fn used(&self) -> u64 {
        self.metadata.used / self.node
    }

    /// Extents that a leaf of a file may name.
    pub fn extents_of_leaf(&self) -> u64 {
        (self.node - HEADER) / FILE_EXTENT
    }

    /// Leaves of the root tree that the items of so many subvolumes are in at most.
    pub fn leaves_of_roots(&self, trees: u64) -> u64 {
        let all = (self.metadata.used / self.node).saturating_mul(2 * ROOT) / self.node + 2;
        trees.min(all)
    }

    /// Children that a node may have.
    pub fn children_of_node(&self) -> u64 {
        (self.node - HEADER) / POINTER
    }

    /// Leaves of a tree of `blocks` blocks that hold the items of tree blocks, of `bytes` bytes each. The items of each metadata
    /// group may begin in the last leaf of other items and end in the first one; and four to spare.
    fn of_blocks(&self, blocks: u64, bytes: u64) -> u64 {
        if self.mixed {
            return blocks;
        }
        let groups = self.metadata.groups.saturating_mul(2);
        let leaves = leaves_of(self.used().saturating_mul(bytes), BLOCKS_FILL, self.node);
        (leaves + groups + 4).min(blocks)
    }

    /// Leaves that the items of one of these block groups may be in, in the free space tree, when they are many: bitmaps, in leaves
    /// that are half full. Ranges that would take more become bitmaps.
    fn of_group(&self, sums: &Sums) -> u64 {
        let len = sums.total / sums.groups.max(1);
        (len / BITMAP_COVERS + 1).saturating_mul(2 * BITMAP) / self.node + 2
    }

    /// Pieces that promised data may fall into, when there is no long run of free space: the longest are taken first, so they
    /// hold more than the average.
    fn pieces(&self, data: u64) -> u64 {
        let data = data.min(self.data.free);
        let product = u128::from(self.data.runs) * u128::from(data);
        (product / u128::from(self.data.free.max(1))) as u64
    }

    /// What the commits of these needs may write, together.
    pub fn bound(&self, total: Total) -> Bound {
        let (node, used) = (self.node, self.used());
        let trees = self.trees.at_most(used);
        let pieces = self.pieces(total.data);
        let leaves = total.leaves.min(used);
        let above = nodes_above(leaves, used, self.volumes);
        let roots = leaves.min(self.volumes).min(self.volumes.saturating_mul(2 * ROOT) / node + 2);
        let private = total.private.saturating_add(roots).min(used);
        let touched = (leaves + above + 2 * private).min(used);
        let bytes = total.bytes.saturating_add(pieces.saturating_mul(FILE_EXTENT));
        let added = total.growing.min(used) + leaves_of(bytes, FILES_FILL, node);
        let shared_leaves = if self.shared { total.shared_leaves().min(used) } else { 0 };
        let shared_above = nodes_above(shared_leaves, used, self.volumes);
        let kept = (shared_leaves + shared_above).min(used);
        let files = Bound { blocks: touched + added, growth: added + kept, ..Bound::default() };

        // Copies of shared leaves and nodes refer to what the old ones refer to: to each thing once for a tree.
        let (mut copied, mut children) = (0, 0);
        if self.shared {
            let items = trees.extent.saturating_mul(node / EXTENT).saturating_mul(2);
            copied = shared_leaves.saturating_mul(2 * self.extents_of_leaf()).min(items);
            children = shared_above
                .saturating_mul(2 * self.children_of_node())
                .min(used.saturating_mul(2));
        }
        let data = total.refs.saturating_add(pieces);
        let new = total.gains.saturating_add(pieces);
        let groups = self.data.groups.min(data.saturating_add(4));

        // What comes to the items of tree blocks: each block that is written, those of these trees, too.
        let metadata = self.of_blocks(trees.extent, BLOCK_ITEM);
        let spans = self.of_blocks(trees.free_space, RANGE);
        let spans = spans
            .saturating_add(self.metadata.groups.saturating_mul(self.of_group(&self.metadata)));
        let spans = spans.min(trees.free_space);
        let written = (touched + added).saturating_add(SLACK + 4 * data + 2 * (metadata + spans));
        let leaves =
            metadata.saturating_add(2 * data).saturating_add(copied).saturating_add(groups);
        let leaves = leaves.saturating_add(total.whole.saturating_mul(trees.extent));
        let gained =
            copied.saturating_add(children).saturating_add(total.nodes).saturating_add(new);
        let extent = rewritten(trees.extent, node, leaves, gained, REFERENCE);
        let split = Bound::grown(written.min(metadata / 2));
        let fresh = rewritten(0, node, 0, new.saturating_add(added), EXTENT);
        let forms = groups.saturating_mul(self.of_group(&self.data));
        let leaves = spans.saturating_add(data).saturating_add(forms);
        let leaves = leaves.saturating_add(total.whole.saturating_mul(trees.free_space));
        let free_space =
            rewritten(trees.free_space, node, leaves, data + written.min(spans / 2), RANGE);
        let leaves = (2 * data).saturating_add(total.growing);
        let csum = rewritten(trees.csum, node, leaves, data.saturating_add(total.growing), RANGE);
        let groups = self.data.groups.saturating_add(self.metadata.groups);
        let blocks = SLACK + groups.saturating_mul(3 * GROUP) / node;
        // All groups may change with one commit, and each subvolume that it makes brings one more.
        let quota = if trees.quota > 0 { trees.quota + QUOTA_SLACK } else { 0 };
        let blocks = blocks.saturating_add(quota);
        let fixed = Bound { blocks, growth: 2, ..Bound::default() };
        // The checksum tree is not packed.
        let csum = Bound { gaps: 0, ..csum };
        let packed = total.whole.saturating_mul(trees.packable()) / (PACKED_GAP as u64 - 1);
        let packed = Bound::grown(packed).as_gaps();
        let parts = [extent, split.as_gaps(), fresh, free_space, csum, packed, fixed];
        parts.into_iter().fold(files, Bound::and)
    }
}
