//! The FUSE front end: inode numbers, requests, ioctls; no filesystem logic.
