//! `dump-tree` of a changed image, with options that the fuzzer chooses.
#![no_main]

use std::io::sink;

use buttress_fuzz::image::images;
use buttress_fuzz::input::Input;
use buttress_ondisk::Expect;
use buttress_ondisk::print::{DumpTree, Style, dump_tree};
use buttress_volume::{Access, Volume};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let images = images();
    let image = &images[usize::from(input.byte()) % images.len()];
    let how = input.byte();
    let tree = input.byte();
    let device = image.changed(&mut input);
    let Ok(opened) = Volume::open(vec![device], Access::ReadOnly) else { return };
    let volume = opened.volume;
    let sb = volume.superblock();
    let bit = |bit: u8| how & 1 << bit != 0;
    let options = DumpTree {
        extents: bit(0) && bit(1),
        device: bit(0) && bit(2),
        roots: bit(0) && bit(3),
        backups: bit(0) && bit(4),
        uuid: bit(0) && bit(5),
        tree: (!bit(0) && bit(1)).then_some(tree.into()),
        blocks: if !bit(0) && bit(2) { vec![sb.root.get(), sb.chunk_root.get()] } else { vec![] },
        follow: bit(3),
        dfs: bit(6),
        style: Style { csum_headers: bit(7), csum_items: bit(7), ..Style::default() },
    };
    let mut source = |expect: &Expect| volume.read_block(expect.bytenr, expect).ok();
    dump_tree(&mut sink(), &sb, &mut source, &options).expect("a sink takes everything");
});
