//! Development only: model filesystem, workloads, image corpus, kernel and btrfs-progs oracles.
