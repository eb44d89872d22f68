//! A node: through the gate, and all of it read and printed.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| buttress_fuzz::blocks::try_block(data, true));
