//! Ways through a filesystem: everything read, and changes that the fuzzer chooses. Errors are answers, too.

use std::collections::HashSet;
use std::sync::Arc;

use buttress::ondisk::Key;
use buttress::{
    Allocate, Change, Entry, FileKind, Filesystem, New, Node, Options, Owner, Rename, Result, Seek,
    SetXattr, WantedReferrers,
};
use buttress_device::BlockDevice;

use crate::input::Input;

/// Names that are looked at.
const NAMES_MAX: usize = 600;
/// Items of a tree that are looked at.
const ITEMS_MAX: usize = 20_000;
/// Extents of one file.
const EXTENTS_MAX: usize = 10_000;
/// Extents of one file that are asked who refers to them.
const REFERRERS_MAX: usize = 20;
/// Reads of one file.
const PARTS_MAX: usize = 12;
/// Changes of one run.
const CHANGES_MAX: usize = 24;
/// Bytes of tree blocks and of data in memory: what a run may need stays far below the fuzzer's limit.
const MEMORY: u64 = 8 << 20;

/// Opens a device without threads and with little memory.
pub fn open(device: Arc<dyn BlockDevice>, options: Options) -> Result<Filesystem> {
    let options = options.background(false).cache_bytes(MEMORY).dirty_bytes_max(MEMORY);
    Filesystem::open_device(device, options)
}

/// Looks at everything; gives the files and directories that it found.
pub fn explore(fs: &Filesystem) -> Vec<(Node, Entry)> {
    let _ = (fs.usage(), fs.info(), fs.default_subvolume());
    let _ = fs.subvolume_costs(|_| true).map(|costs| costs.freed_by(&[256, 257]));
    for volume in fs.subvolumes().unwrap_or_default().iter().take(NAMES_MAX) {
        let _ = (fs.subvolume_info(volume.id), fs.subvolume_path(volume.id));
    }
    for tree in [1, 2, 3, 4, 5, 7, 9, 10, 11, 256] {
        let mut items = 0;
        let _ = fs.search(tree, Key::MIN, Key::MAX, |_, _, _| {
            items += 1;
            items < ITEMS_MAX
        });
        let _ = fs.search_since(tree, Key::MIN..=Key::MAX, 8, |_, _, _| {
            items += 1;
            items < 2 * ITEMS_MAX
        });
    }
    let (mut waiting, mut seen, mut found) = (vec![Node::ROOT], HashSet::new(), Vec::new());
    while let Some(dir) = waiting.pop() {
        if !seen.insert(dir) || found.len() > NAMES_MAX {
            continue;
        }
        let mut entries: Vec<Entry> = Vec::new();
        let _ = fs.read_dir(dir, 0, &mut |entry| {
            entries.push(entry);
            entries.len() < NAMES_MAX
        });
        for entry in entries {
            let _ = (fs.lookup(dir, &entry.name), fs.path_of(entry.node));
            look_at(fs, entry.node);
            if entry.kind == FileKind::Directory {
                waiting.push(entry.node);
            }
            found.push((dir, entry));
        }
    }
    found
}

fn look_at(fs: &Filesystem, node: Node) {
    let (_, attributes) = (fs.parent(node), fs.attributes(node));
    let mut parts = 0;
    let _ = fs.stored(node, |_| {
        parts += 1;
        parts < ITEMS_MAX
    });
    let _ = (fs.paths_in_subvolume(node), fs.first_path_in_subvolume(node));
    for name in fs.list_xattrs(node).unwrap_or_default() {
        let _ = fs.get_xattr(node, &name);
    }
    let _ = (fs.read_link(node), fs.extents(node, 0..u64::MAX));
    let extents = fs.fiemap(node, 0..u64::MAX).into_iter().flat_map(|all| all.take(EXTENTS_MAX));
    let extents: Vec<u64> = extents.flatten().map(|one| one.physical).collect();
    for logical in extents.into_iter().take(REFERRERS_MAX) {
        for whole in [false, true] {
            let _ = fs.referrers(WantedReferrers { logical, whole, most: ITEMS_MAX });
        }
    }
    let Ok(attributes) = attributes else { return };
    let mut buffer = vec![0; 32 << 10];
    let mut at = 0;
    for _ in 0..PARTS_MAX {
        let Ok(data) = fs.seek(node, at, Seek::Data) else { break };
        match fs.read(node, data, &mut buffer) {
            Ok(0) => break,
            Ok(count) => at = data + count as u64,
            Err(_) => at = data.saturating_add(4096),
        }
        if at >= attributes.size {
            break;
        }
    }
}

/// Changes that `input` chooses, on what was found before.
pub fn change(fs: &Filesystem, found: &[(Node, Entry)], input: &mut Input<'_>) {
    for number in 0..CHANGES_MAX {
        if input.is_empty() {
            break;
        }
        let _refused = one_change(fs, found, number, input);
    }
}

fn one_change(
    fs: &Filesystem,
    found: &[(Node, Entry)],
    number: usize,
    input: &mut Input<'_>,
) -> Result<()> {
    let name = format!("made{number}").into_bytes();
    let what = input.byte();
    let pick = |number: u16| found.get(usize::from(number) % found.len().max(1));
    let Some((dir, entry)) = pick(input.short()) else {
        return fs.create(Node::ROOT, &name, &New::file(0o600)).map(drop);
    };
    let node = entry.node;
    let offset = u64::from(input.short()) * 97;
    let len = u64::from(input.short());
    match what % 20 {
        0 => fs.create(*dir, &name, &New::directory(0o755)).map(drop),
        1 => {
            let made = fs.create(*dir, &name, &New::file(0o644))?;
            fs.write(made.node, offset, &vec![what; len as usize]).map(drop)
        }
        2 => fs.create(*dir, &name, &New::symlink(b"target".to_vec())).map(drop),
        3 => fs.unlink(*dir, &entry.name).map(drop),
        4 => fs.rmdir(*dir, &entry.name).map(drop),
        5 => fs.link(node, *dir, &name).map(drop),
        6 | 7 => {
            let Some((to, other)) = pick(input.short()) else { return Ok(()) };
            let how = [Rename::Replace, Rename::NoReplace, Rename::Exchange][usize::from(what) % 3];
            let new = if what & 64 == 0 { &other.name } else { &name };
            fs.rename(*dir, &entry.name, *to, new, how)
        }
        8 | 9 => fs.write(node, offset, &vec![what; len as usize]).map(drop),
        10 => {
            let size = Change { size: Some(offset), ..Change::default() };
            fs.set_attributes(node, &size).map(drop)
        }
        11 => fs.fallocate(node, Allocate::PunchHole, offset, len + 1),
        12 => fs.fallocate(node, Allocate::Reserve { keep_size: what & 64 == 0 }, offset, len + 1),
        13 => {
            let Some((_, to)) = pick(input.short()) else { return Ok(()) };
            let (from, len) = (offset / 4096 * 4096, len.next_multiple_of(4096));
            fs.clone_range(node, from, len, to.node, u64::from(input.byte()) * 4096).map(drop)
        }
        14 => fs.set_xattr(node, b"user.fuzz", &vec![what; len as usize % 3000], SetXattr::Any),
        15 => {
            let names = fs.list_xattrs(node)?;
            names.first().map_or(Ok(()), |name| fs.remove_xattr(node, name))
        }
        16 => fs.create_subvolume(*dir, &name, Owner::default()).map(drop),
        17 => fs.snapshot(node.subvolume, *dir, &name, what & 64 == 0).map(drop),
        18 => fs.delete_subvolume(*dir, &entry.name).map(drop),
        _ => match what / 20 % 3 {
            0 => fs.commit().map(drop),
            1 => fs.clean(),
            _ => fs.set_attributes(node, &Change { mode: Some(0o600), ..Change::default() }).map(drop),
        },
    }
}
