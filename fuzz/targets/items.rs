//! Every kind of item: read in all ways, and through the gate as the items of a leaf.
#![no_main]

use buttress_codec::ChecksumKind;
use buttress_fuzz::blocks::{OWNERS, gate, read, seal, views};
use buttress_fuzz::input::Input;
use buttress_ondisk::build::Stamp;
use buttress_ondisk::{BlockHead, Expect, Key, LeafBuilder};
use libfuzzer_sys::fuzz_target;

/// Kinds of items, and one that there is not.
const KINDS: [u8; 38] = [
    0, 1, 12, 13, 24, 48, 54, 60, 72, 84, 96, 108, 128, 132, 144, 156, 168, 169, 172, 176, 178, 180, 182,
    184, 192, 198, 199, 200, 204, 216, 228, 230, 240, 242, 244, 246, 248, 253,
];
/// Items of a leaf.
const ITEMS_MAX: usize = 12;
const BYTENR: u64 = 1 << 24;

fn key(input: &mut Input<'_>) -> Key {
    let choice = input.byte();
    let kind = if choice < 200 { KINDS[usize::from(choice) % KINDS.len()] } else { input.byte() };
    let number = |input: &mut Input<'_>| match input.byte() {
        how @ 0..16 => 1_u64 << (how * 4),
        16..48 => u64::from(input.short()),
        48..80 => u64::from(input.short()) << 12,
        80..96 => u64::MAX - u64::from(input.byte()),
        _ => input.long(),
    };
    Key { objectid: number(input), kind, offset: number(input) }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let how = input.byte();
    let nodesize = if how & 1 == 0 { 4096 } else { 16384 };
    let gate = gate(nodesize, ChecksumKind::Crc32c);
    let mut items = Vec::new();
    while items.len() < ITEMS_MAX && !input.is_empty() {
        let key = key(&mut input);
        let len = usize::from(input.short() % 512).min(input.rest().len());
        let body = input.rest()[..len].to_vec();
        input = Input::new(&input.rest()[len..]);
        views(&key, &body, &gate);
        items.push((key, body));
    }
    items.sort();
    items.dedup_by_key(|(key, _)| *key);
    let mut leaf = LeafBuilder::new(nodesize as usize);
    for (key, body) in &items {
        leaf.push(*key, body);
    }
    let stamp = Stamp {
        fsid: gate.metadata_fsid,
        chunk_tree_uuid: [9; 16],
        bytenr: BYTENR,
        generation: 100,
        owner: OWNERS[usize::from(how / 2) % OWNERS.len()],
        flags: BlockHead::WRITTEN,
    };
    let block = leaf.finish(&stamp);
    let mut bytes: Box<[u8]> = block.as_bytes().into();
    seal(&gate, &mut bytes);
    if let Ok(block) = gate.block(bytes, &Expect::at(BYTENR)) {
        read(&block, &gate);
    }
});
