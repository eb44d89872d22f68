//! What shows where limits are made small.

use std::sync::Arc;

use buttress_device::MemoryDevice;
use buttress_mkfs::{Environment, Profile};

use super::{Filesystem, New, Node, Options};
use crate::error::Error;
use crate::inode::SetXattr;

/// A filesystem with small tree blocks, each once.
fn make(size: u64) -> Filesystem {
    let device = Arc::new(MemoryDevice::new(size));
    let options = buttress_mkfs::Options {
        nodesize: Some(4096),
        metadata_profile: Some(Profile::Single),
        ..Default::default()
    };
    buttress_mkfs::make(&*device, &options, &mut Environment::seeded(1)).unwrap();
    let options = Options::read_write().background(false);
    Filesystem::open_device(device, options).unwrap()
}

/// A long value; there may be no room for it.
fn set(fs: &Filesystem, node: Node, number: u32, seed: u32) -> bool {
    let (name, value) = (format!("user.{number}"), seed.to_le_bytes().repeat(437));
    match fs.set_xattr(node, name.as_bytes(), &value, SetXattr::Any) {
        Ok(()) => true,
        Err(Error::NoSpace) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Fills metadata with files of a thousand long values each.
fn fill(fs: &Filesystem) -> Vec<Node> {
    let mut files = Vec::new();
    while let Ok(made) =
        fs.create(Node::ROOT, files.len().to_string().as_bytes(), &New::file(0o644))
    {
        files.push(made.node);
        if !(0..1000).all(|number| set(fs, made.node, number, 1)) {
            break;
        }
    }
    files
}

/// In full metadata what is free is single blocks here and there, so a change leads through many leaves of the extent tree: the
/// commit has as many rounds as that takes.
#[test]
fn a_commit_goes_through_the_extent_tree_and_comes_to_its_end() {
    let fs = make(128 << 20);
    let files = fill(&fs);
    for turn in 0..300u32 {
        let at = turn.wrapping_mul(2_654_435_761);
        let (node, number) = (files[at as usize % files.len()], at >> 22);
        set(&fs, node, number, turn);
        if turn > 50 {
            fs.commit().unwrap();
            let _ = fs.remove_xattr(node, format!("user.{number}").as_bytes());
        }
        fs.commit().unwrap();
    }
}
