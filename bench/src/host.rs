//! Memory that the machine really has.
//!
//! The host of a virtual machine may take back what is free there (free page reporting), and then needs 5 to 10 µs for each page that is used again, where
//! clearing it takes half a microsecond: whoever takes new memory is measured with that, and by chance, as it depends on what ran in the seconds before. A machine
//! of its own has its memory. So before each measurement some is used and let go of, for both sides alike.

use std::sync::OnceLock;

/// MiB at once: so much the allocator asks of the system, and gives back, each time; what is measured in this process finds it in the system, too.
const PIECE: usize = 64;

/// Whether it is done, for all sides alike: not where the machine has less than twice as much.
static IS_DONE: OnceLock<bool> = OnceLock::new();

/// Uses `mib` MiB on two threads, and lets go of it: who takes memory next gets this.
pub fn warm(mib: usize) {
    let has = || std::env::var_os("BENCH_COLD_MEMORY").is_none() && available() >= 2 * mib;
    if !*IS_DONE.get_or_init(has) {
        return;
    }
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let pieces = (0..mib.div_ceil(2 * PIECE)).map(|_| vec![1_u8; PIECE << 20]);
                let pieces: Vec<_> = pieces.collect();
                std::hint::black_box(&pieces);
            });
        }
    });
}

/// MiB that could be used.
fn available() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse().ok());
    kib.unwrap_or(0_usize) / 1024
}
