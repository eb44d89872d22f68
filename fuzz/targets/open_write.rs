//! A changed image opened for writing, and changed by operations. Either there is an error, or a commit that can be opened
//! again.
#![no_main]

use buttress::Options;
use buttress_fuzz::explore::{change, explore, open};
use buttress_fuzz::image::images;
use buttress_fuzz::input::Input;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let images = images();
    let image = &images[usize::from(input.byte()) % images.len()];
    let device = image.changed(&mut input);
    let Ok(fs) = open(device.clone(), Options::read_write()) else { return };
    let found = explore(&fs);
    change(&fs, &found, &mut input);
    let committed = fs.commit();
    let closed = fs.close();
    if committed.is_ok() && closed.is_ok() {
        let again = open(device, Options::read_only()).expect("what was committed can be opened");
        explore(&again);
    }
});
