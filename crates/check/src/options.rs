//! What a check is to do, and with how much.

/// Options of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Read all data that has checksums, and compare.
    pub check_data_csum: bool,
    /// Threads that work at once.
    pub threads: usize,
    /// Bytes of memory that looking closer at damage may take; the rest of a check takes a few MiB.
    pub memory_bytes: usize,
    /// Issues kept in full; all are counted.
    pub issues_max: usize,
    /// Where the numbers come from that sums of references start with; `None` for new ones in each run, which nobody can have
    /// prepared an image for. A test may choose them.
    pub seed: Option<u64>,
}

impl Default for Options {
    fn default() -> Options {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Options {
            check_data_csum: false,
            threads,
            memory_bytes: 256 << 20,
            issues_max: 1000,
            seed: None,
        }
    }
}
