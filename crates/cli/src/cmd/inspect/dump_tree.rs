//! `inspect-internal dump-tree`: tree blocks with all their items, read-only.
//!
//! Every block comes through the gate: one that is damaged in all its copies is named on standard error. If it has its checksum and
//! only an item of it is bad, it is printed all the same; otherwise it is left out, and the command goes on and fails at its end.

use std::convert::Infallible;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use buttress_ondisk::item::RootItem;
use buttress_ondisk::print::{self, KeyText, Style};
use buttress_ondisk::{Expect, Gate, Key, TreeBlock, kind, objectid};
use buttress_volume::{TreeRoot, Volume, VolumeError, walk, walk_blocks};
use clap::Args;
use serde_json::{Value, json};

use crate::args::Globals;
use crate::clock::Zone;
use crate::device;
use crate::error::Failure;
use crate::output::{self, Format};

/// Arguments of `dump-tree`.
#[derive(Debug, Args)]
pub struct DumpTree {
    /// The image files or disks
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    /// Only extent and device trees
    #[arg(short, long)]
    extents: bool,
    /// Only root tree, chunk tree and device tree
    #[arg(short, long)]
    device: bool,
    /// Only where each tree is
    #[arg(short, long)]
    roots: bool,
    /// Where each tree is, and the backup roots
    #[arg(short = 'R', long)]
    backups: bool,
    /// Only the uuid tree
    #[arg(short, long)]
    uuid: bool,
    /// Only this block, by its logical address; may be repeated
    #[arg(short, long, value_name = "BLOCK")]
    block: Vec<u64>,
    /// Only this tree, by number or name (root, extent, chunk, fs, csum ...)
    #[arg(short, long, value_name = "TREE", value_parser = tree_id)]
    tree: Option<u64>,
    /// With -b, everything below the block too
    #[arg(long, requires = "block")]
    follow: bool,
    /// Accepted: only the devices named are looked at anyway
    #[arg(long)]
    noscan: bool,
    /// Level by level (the default)
    #[arg(long)]
    bfs: bool,
    /// A child before its next sibling
    #[arg(long, conflicts_with = "bfs")]
    dfs: bool,
    /// Hide names and values
    #[arg(long)]
    hide_names: bool,
    /// Print the checksums of blocks
    #[arg(long)]
    csum_headers: bool,
    /// Print the checksums of data
    #[arg(long)]
    csum_items: bool,
}

fn tree_id(text: &str) -> Result<u64, String> {
    print::tree_by_name(text).ok_or_else(|| {
        "no tree has that name; there are root, extent, chunk, device, fs, csum, quota, uuid, free_space, \
         block_group, data_reloc, tree_log, and numbers"
            .into()
    })
}

/// Prints the trees.
pub fn run(args: &DumpTree, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let mut list = Vec::new();
    let mut lost = Vec::new();
    for path in &args.devices {
        let volume = device::open_volume(path, globals)?;
        check_blocks(args, &volume, path)?;
        let options = options(args);
        let mut source = |expect: &Expect| match volume.read_block(expect.bytenr, expect) {
            Ok(block) => Some(block),
            Err(error) => {
                device::warn(globals, path, &error);
                volume.salvage(&error).map(|(_, block)| block)
            }
        };
        match globals.format {
            Format::Text => {
                let sb = volume.superblock();
                lost.extend(print::dump_tree(out, &sb, &mut source, &options)?);
            }
            Format::Json => {
                list.extend(json(&volume, args, &options.style).map_err(|e| failure(path, &e))?)
            }
        }
    }
    if globals.format == Format::Json {
        output::write_json(out, "blocks", list.into())?;
    }
    match lost.len() {
        0 => Ok(()),
        count => {
            out.flush()?;
            let place = args.devices.first().map(|path| path.display().to_string());
            let why = format!("{count} tree blocks cannot be read");
            Err(Failure::new("cannot print all of", place.unwrap_or_default(), why))
        }
    }
}

fn failure(path: &Path, error: &VolumeError) -> Failure {
    device::volume_failure(path, error)
}

fn options(args: &DumpTree) -> print::DumpTree {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let utc_offset_secs = Zone::local().offset(i64::try_from(now).unwrap_or(0));
    print::DumpTree {
        extents: args.extents,
        device: args.device,
        roots: args.roots,
        backups: args.backups,
        uuid: args.uuid,
        tree: args.tree,
        blocks: args.block.clone(),
        follow: args.follow,
        dfs: args.dfs,
        style: Style {
            hide_names: args.hide_names,
            csum_headers: args.csum_headers,
            csum_items: args.csum_items,
            utc_offset_secs,
        },
    }
}

fn check_blocks(args: &DumpTree, volume: &Volume, path: &Path) -> Result<(), Failure> {
    let sector = u64::from(volume.sectorsize());
    match args.block.iter().find(|block| !block.is_multiple_of(sector)) {
        None => Ok(()),
        Some(block) => {
            let why = format!("a block's address is a multiple of {sector}");
            Err(Failure::new(format!("cannot print block {block} of"), path.display(), why))
        }
    }
}

/// A walk that nothing ends early.
type Whole = ControlFlow<Infallible>;

/// The blocks asked for: the named ones, one tree, or all trees.
fn json(volume: &Volume, args: &DumpTree, style: &Style) -> Result<Vec<Value>, VolumeError> {
    let gate = Gate::of(&volume.superblock());
    let mut list = Vec::new();
    for bytenr in &args.block {
        let block = volume.read_block(*bytenr, &Expect::at(*bytenr))?;
        list.push(block_json(&block, &gate, style));
    }
    if !args.block.is_empty() {
        return Ok(list);
    }
    for root in roots(volume)? {
        if args.tree.is_none() || root.owner == args.tree {
            let _whole: Whole = walk_blocks(volume, &root, Key::MIN..=Key::MAX, |block| {
                list.push(block_json(block, &gate, style));
                ControlFlow::Continue(())
            })?;
        }
    }
    Ok(list)
}

/// The root tree, the chunk tree, and every tree that the root tree knows.
fn roots(volume: &Volume) -> Result<Vec<TreeRoot>, VolumeError> {
    let sb = volume.superblock();
    let top = TreeRoot::root_tree(&sb);
    let mut roots = vec![top, TreeRoot::chunk_tree(&sb)];
    let _whole: Whole = walk(volume, &top, Key::MIN..=Key::MAX, |key, data| {
        if let (kind::ROOT_ITEM, Some(item)) = (key.kind, RootItem::read(data)) {
            // Blocks of relocation trees belong to the trees they stand for.
            let owner = Some(key.objectid).filter(|id| *id != objectid::TREE_RELOC);
            roots.push(TreeRoot {
                bytenr: item.bytenr.get(),
                level: item.level,
                generation: Some(item.generation.get()),
                owner,
            });
        }
        ControlFlow::Continue(())
    })?;
    Ok(roots)
}

fn block_json(block: &TreeBlock, gate: &Gate, style: &Style) -> Value {
    let key = |key: Key| json!([key.objectid, key.kind, key.offset]);
    let items = |slot: usize| {
        let (of, data) = block.item(slot);
        let mut text = Vec::new();
        // Writing into memory does not fail.
        let _always_ok: io::Result<()> = print::print_item(&mut text, &of, data, gate, style);
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        json!({ "key": key(of), "name": KeyText(of).to_string(), "size": data.len(), "text": lines })
    };
    let children = |slot: usize| {
        let child = block.child(slot);
        json!({ "key": key(child.key), "bytenr": child.bytenr, "generation": child.generation })
    };
    let mut value = json!({
        "bytenr": block.bytenr(),
        "level": block.level(),
        "generation": block.generation(),
        "owner": block.owner(),
    });
    let (name, list): (_, Vec<_>) = match block.is_leaf() {
        true => ("items", (0..block.len()).map(items).collect()),
        false => ("children", (0..block.len()).map(children).collect()),
    };
    if let Some(object) = value.as_object_mut() {
        object.insert(name.into(), list.into());
    }
    value
}
