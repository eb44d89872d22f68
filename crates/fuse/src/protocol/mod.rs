//! The conversation with the kernel over /dev/fuse, and nothing about filesystems.
//!
//! Terms: a *channel* is the open device of one mount; a *request* is one message read from it; a
//! *reply* is the one answer each request (but FORGET) must get, under the request's `unique`
//! number; a *notification* is a message without a request, which tells the kernel to drop caches.
//!
//! The protocol is spoken directly, without libfuse: per created file that costs two requests
//! instead of five, and the server can use all that the kernel offers (STATX, TMPFILE, the
//! kill-suidgid bits).

pub mod abi;
pub mod channel;
pub mod connect;
pub mod mounts;
pub mod ring;
