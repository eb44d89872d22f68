//! The superblock: through the gate, its array of chunks, its print.
#![no_main]

use std::io::sink;

use buttress_codec::ChecksumKind;
use buttress_fuzz::blocks::seal;
use buttress_ondisk::check::superblock;
use buttress_ondisk::print::dump_super;
use buttress_ondisk::{Gate, view};
use libfuzzer_sys::fuzz_target;

/// Where the kind of checksum is.
const CSUM_TYPE: usize = 196;

fuzz_target!(|data: &[u8]| {
    let Some((how, data)) = data.split_first() else { return };
    let mut bytes = [0; 4096];
    let len = data.len().min(bytes.len());
    bytes[..len].copy_from_slice(&data[..len]);
    if how % 8 != 0 {
        let number = u16::from_le_bytes([bytes[CSUM_TYPE], bytes[CSUM_TYPE + 1]]);
        let csum = ChecksumKind::from_u16(number).unwrap_or(ChecksumKind::Crc32c);
        let gate = Gate { csum, ..buttress_fuzz::blocks::gate(4096, csum) };
        seal(&gate, &mut bytes);
    }
    dump_super(&mut sink(), &bytes, 65536, "fuzzed", how & 64 == 0).expect("a sink");
    let Ok(sb) = superblock(&bytes) else { return };
    let _gate = (Gate::of(&sb), sb.label().len());
    assert!(view::sys_chunks(&sb).count() <= 2048);
});
