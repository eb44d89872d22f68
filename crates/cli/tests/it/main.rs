//! The built command, run as a user runs it, against what btrfs-progs and the kernel say.

mod inspect;
mod mkfs;
mod run;
mod usage;
