//! The built command, run as a user runs it, against what btrfs-progs and the kernel say.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod balance;
mod balancing;
mod below;
mod check;
mod clock;
mod costs;
mod counted;
mod device;
mod devices;
mod du;
mod fiemap;
mod files;
mod full;
mod hostile;
mod inspect;
mod interrupted;
mod live;
mod logical;
mod mkfs;
mod modes;
mod moving;
mod operands;
mod quotas;
mod readme;
mod refused;
mod rescue;
mod run;
mod simple;
mod stats;
mod targets;
mod tree;
mod trim;
mod turns;
mod unopened;
mod usage;
mod vfs;
