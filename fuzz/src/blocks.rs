//! Tree blocks of the fuzzer's bytes. Their head and checksum are put right, so that what is tried is what comes after.

use std::io::sink;

use buttress_codec::ChecksumKind;
use buttress_ondisk::print::{Style, print_block, print_item};
use buttress_ondisk::{Expect, Gate, HEADER_LEN, Key, TreeBlock, view};

use crate::input::Input;

/// Trees that have rules of their own.
pub const OWNERS: [u64; 12] = [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 256, u64::MAX - 8];
/// Where the block says that it is.
const BYTENR: u64 = 1 << 24;
/// Where the members of a head are that are put right: identity, address, flags, level.
const FSID: usize = 32;
const ADDRESS: usize = 48;
const FLAGS: usize = 56;
const LEVEL: usize = 100;

/// A gate that knows all features, for blocks of `nodesize` bytes.
pub fn gate(nodesize: u32, csum: ChecksumKind) -> Gate {
    let (metadata_fsid, sectorsize, generation_max) = ([7; 16], 4096, 1 << 20);
    Gate { csum, metadata_fsid, nodesize, sectorsize, incompat: u64::MAX, metadump: false, generation_max }
}

/// Lets a block of the fuzzer's bytes through the gate and reads all that is in it. The first byte chooses the size, the
/// second the level of a node and what is left as it is.
pub fn try_block(data: &[u8], is_node: bool) {
    let mut input = Input::new(data);
    let (choice, level) = (input.byte(), input.byte());
    let nodesize = [4096, 4096, 16384, 65536][usize::from(choice % 4)];
    let kinds = [ChecksumKind::Crc32c, ChecksumKind::XxHash64];
    let gate = gate(nodesize, kinds[usize::from(choice >> 7)]);
    let mut bytes = vec![0; nodesize as usize].into_boxed_slice();
    let len = input.rest().len().min(bytes.len());
    bytes[..len].copy_from_slice(&input.rest()[..len]);
    bytes[FSID..FSID + 16].copy_from_slice(&gate.metadata_fsid);
    bytes[ADDRESS..ADDRESS + 8].copy_from_slice(&BYTENR.to_le_bytes());
    if choice & 4 == 0 {
        bytes[FLAGS..FLAGS + 8].copy_from_slice(&(1_u64 | 1 << 56).to_le_bytes());
    }
    bytes[LEVEL] = if is_node { 1 + level % 7 } else { 0 };
    seal(&gate, &mut bytes);
    if let Ok(block) = gate.salvage(bytes.clone()) {
        read(&block, &gate);
    }
    if let Ok(block) = gate.block(bytes, &Expect::at(BYTENR)) {
        gate.verify(&block, &Expect::at(BYTENR)).expect("what the gate let through it lets through again");
        read(&block, &gate);
    }
}

/// Puts the checksum of a block right.
pub fn seal(gate: &Gate, bytes: &mut [u8]) {
    if let Some((sum, rest)) = bytes.split_at_mut_checked(32) {
        gate.csum.digest_into(rest, sum);
    }
}

/// Reads all of a block.
pub fn read(block: &TreeBlock, gate: &Gate) {
    let style = Style { csum_headers: true, csum_items: true, ..Style::default() };
    print_block(&mut sink(), block, gate, &style).expect("a sink takes everything");
    for slot in 0..block.len() {
        let key = block.key(slot);
        let _found = block.search(&key);
        if block.is_leaf() {
            views(&key, block.data(slot), gate);
        } else {
            let _child = (block.child(slot), block.child_for(&key));
        }
    }
    assert!(block.as_bytes().len() >= HEADER_LEN);
}

/// Reads an item in all ways there are, whatever its kind says.
pub fn views(key: &Key, data: &[u8], gate: &Gate) {
    print_item(&mut sink(), key, data, gate, &Style::default()).expect("a sink takes everything");
    let names = view::dir_entries(data).map(|it| it.name.len() + it.data.len()).sum::<usize>();
    assert!(names <= data.len());
    let names = view::inode_refs(data).map(|it| it.name.len()).sum::<usize>();
    assert!(names <= data.len());
    let names = view::inode_extrefs(data).map(|it| it.name.len()).sum::<usize>();
    assert!(names <= data.len());
    if let Some(extent) = view::FileExtentItem::read(data) {
        let _len = extent.len_bytes();
    }
    let _refs = (view::root_ref(data), view::chunk(data), view::keyed_ref(key, data));
}
