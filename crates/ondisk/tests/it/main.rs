//! The bytes that the kernel and btrfs-progs write, through the gate and the printer.

mod gate;
mod image;

#[test]
fn images_of_the_kernel() {
    if !image::can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = image::make(dir.path());
    gate::blocks_pass(&images);
}
