//! A changed image opened read-only, and all of it read.
#![no_main]

use buttress::Options;
use buttress_fuzz::explore::{explore, open};
use buttress_fuzz::image::images;
use buttress_fuzz::input::Input;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let images = images();
    let image = &images[usize::from(input.byte()) % images.len()];
    if let Ok(fs) = open(image.changed(&mut input), Options::read_only()) {
        explore(&fs);
    }
});
