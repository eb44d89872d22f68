//! A POSIX behaviour suite for a mounted directory.

fn main() {}
