//! Every crash point: recorded workloads, all the states that a power loss may leave of them, and the judge of each.
//!
//! A [`record::Recording`] is a sequence of operations run on a device that keeps every write and barrier, together with
//! the model as it was before and after each commit. [`states`] makes disks of it: a *cut* has everything up to some write
//! and nothing after it; a *torn* one has a part of the last write; a *shuffled* one has lost, reordered and torn any of the
//! writes that no barrier covers. [`judge`] opens such a disk as the next mount would, and demands:
//!
//! * it opens for writing, and says nothing unless the primary superblock was torn. When so much of that is left that it
//!   might as well have been finished and damaged later, it opens for reading, and for writing on request;
//! * its transaction is not older than the last one that was acknowledged, nor newer than what had begun;
//! * it holds exactly what the model held at that transaction: names, attributes, contents, subvolumes. Of an operation that
//!   goes in steps it may hold a part ([`half`]);
//! * every copy of every block of every tree passes the gate, and our checker finds nothing, data included;
//! * it can be written again: files are made, deleted subvolumes are dropped to the end, and all is there after opening.
//!
//! Some workloads make files durable by fsyncs, of which the engine may write a log. [`promise`] says what must be found then, and
//! what may be: a log is replayed when the disk is opened, and what comes of that is no moment of the past. [`enumerate`] does all
//! short sequences of operations with fsyncs, and lets Linux do some of them.
//!
//! Samples go through `btrfs check --check-data-csum` and a kernel mount, read-only and writable; a log is replayed by Linux,
//! too, into the same filesystem. [`faults`] is about devices
//! that fail while they are used, [`cold`] about reads that fail under an operation where nothing is cached.

pub mod cold;
pub mod enumerate;
pub mod faults;
pub mod found;
mod gate;
pub mod half;
pub mod judge;
pub mod promise;
pub mod record;
pub mod run;
pub mod states;
pub mod workloads;
