//! The least a mount command is: `mount DEVICE DIRECTORY [OPTIONS [foreground]]`.

use std::error::Error;
use std::path::Path;

use buttress_fuse::{Ground, MountOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, directory, rest @ ..] = arguments.as_slice() else {
        return Err("usage: mount DEVICE DIRECTORY [OPTIONS [foreground]]".into());
    };
    let mut options = MountOptions::default();
    options.apply(rest.first().map_or("", String::as_str))?;
    let ground = if rest.len() > 1 { Ground::Foreground } else { Ground::Background };
    Ok(buttress_fuse::mount(Path::new(device), Path::new(directory), &options, ground)?)
}
