//! Devices joined into one logical address space: superblocks, chunk map, stripes, checksummed reads.
