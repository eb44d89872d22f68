//! The bytes that the kernel and btrfs-progs write, through the gate and the printer.

#![allow(clippy::unwrap_used, reason = "tests")]

mod craft;
mod gate;
mod image;
mod print;

#[test]
fn images_of_the_kernel() {
    if !image::can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = image::make(dir.path());
    gate::blocks_pass(&images);
    gate::mutated_blocks_never_panic(&images[2].1);
    print::dump_super_is_that_of_progs(&images);
    print::dump_tree_is_that_of_progs(&images);
    craft::crafted_leaves_print_alike(&images[0].1);
}
