//! `inspect-internal dump-tree`: tree blocks with all their items, read-only.
//!
//! Every block comes through the gate: one that is damaged in all its copies is named on standard error. If it has its checksum and
//! only an item of it is bad, it is printed all the same; otherwise it is left out, and the command goes on and fails at its end.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use buttress_ondisk::item::RootItem;
use buttress_ondisk::print::{self, KeyText, Style};
use buttress_ondisk::{Expect, Gate, Key, Superblock, TreeBlock, kind, objectid};
use buttress_volume::{TreeRoot, Volume};
use clap::Args;
use serde_json::{Value, json};

use crate::args::Globals;
use crate::clock::Zone;
use crate::device;
use crate::error::Failure;
use crate::output::{Format, JsonList};

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
    let mut list = JsonList::new("blocks");
    let mut lost = Vec::new();
    let mut all = || {
        for path in &args.devices {
            let volume = device::open_volume(path, globals)?;
            check_blocks(args, &volume, path)?;
            let mut source = |expect: &Expect| match volume.read_block(expect.bytenr, expect) {
                Ok(block) => Some(block),
                Err(error) => {
                    device::warn(globals, path, &error);
                    volume.salvage(&error).map(|(_, block)| block)
                }
            };
            let (sb, options) = (volume.superblock(), options(args));
            lost.extend(match globals.format {
                Format::Text => print::dump_tree(out, &sb, &mut source, &options)?,
                Format::Json => {
                    let gate = Gate::of(&sb);
                    let mut each = |block: &TreeBlock| {
                        list.push(out, block_json(block, &gate, &options.style))
                    };
                    let mut walk = Walk { source: &mut source, each: &mut each, lost: Vec::new() };
                    walk.all(&sb, &options)?;
                    walk.lost
                }
            });
        }
        Ok(())
    };
    let done: Result<(), Failure> = all();
    if globals.format == Format::Json {
        list.end(out, done.is_err())?;
    }
    done?;
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

/// Blocks for JSON: the named ones, one tree, or all trees, as far as they can be read.
struct Walk<'a> {
    source: print::Source<'a>,
    each: &'a mut dyn FnMut(&TreeBlock) -> io::Result<()>,
    /// The addresses of blocks that cannot be read.
    lost: Vec<u64>,
}

impl Walk<'_> {
    fn all(&mut self, sb: &Superblock, options: &print::DumpTree) -> io::Result<()> {
        for bytenr in &options.blocks {
            self.blocks(Expect::at(*bytenr), options.follow)?;
        }
        if !options.blocks.is_empty() {
            return Ok(());
        }
        for root in self.roots(sb)? {
            if options.tree.is_none() || root.owner == options.tree {
                self.blocks(root, true)?;
            }
        }
        Ok(())
    }

    /// A block and, with `follow`, what is below it, a child before its next sibling.
    fn blocks(&mut self, top: Expect, follow: bool) -> io::Result<()> {
        let mut waiting = vec![top];
        while let Some(expect) = waiting.pop() {
            let Some(block) = (self.source)(&expect) else {
                self.lost.push(expect.bytenr);
                continue;
            };
            (self.each)(&block)?;
            if follow && !block.is_leaf() {
                let below = (0..block.len()).rev().map(|slot| child(&block, slot));
                waiting.extend(below.map(|it| Expect { owner: top.owner, ..it }));
            }
        }
        Ok(())
    }

    /// The root tree, the chunk tree, and every tree that the root tree knows.
    fn roots(&mut self, sb: &Superblock) -> io::Result<Vec<Expect>> {
        let top = TreeRoot::root_tree(sb).expect();
        let mut roots = vec![top, TreeRoot::chunk_tree(sb).expect()];
        let mut each = |block: &TreeBlock| {
            let items =
                (0..if block.is_leaf() { block.len() } else { 0 }).map(|slot| block.item(slot));
            roots.extend(items.filter_map(|(key, data)| root_of(&key, data)));
            Ok(())
        };
        // What is lost here is lost, and said, when the root tree itself is printed.
        let source = &mut *self.source;
        Walk { source, each: &mut each, lost: Vec::new() }.blocks(top, true)?;
        Ok(roots)
    }
}

/// What a node says of a child. Each begins with another key: so none is met twice.
fn child(node: &TreeBlock, slot: usize) -> Expect {
    let child = node.child(slot);
    Expect {
        bytenr: child.bytenr,
        level: Some(node.level().saturating_sub(1)),
        generation: Some(child.generation),
        owner: None,
        first_key: Some(child.key),
    }
}

fn root_of(key: &Key, data: &[u8]) -> Option<Expect> {
    let item = RootItem::read(data).filter(|_| key.kind == kind::ROOT_ITEM)?;
    Some(Expect {
        bytenr: item.bytenr.get(),
        level: Some(item.level),
        generation: Some(item.generation.get()),
        // Blocks of relocation trees belong to the trees they stand for.
        owner: Some(key.objectid).filter(|id| *id != objectid::TREE_RELOC),
        first_key: None,
    })
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
