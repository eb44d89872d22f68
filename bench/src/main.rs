//! Prints the figures to beat, both sides in one run.

fn main() {}
