//! The buttress command.

fn main() {}
