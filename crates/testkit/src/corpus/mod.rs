//! Kernel-made images.
