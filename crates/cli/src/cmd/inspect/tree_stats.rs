//! `inspect-internal tree-stats`: how large trees are and how they lie on the disk, with the text of btrfs-progs.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use buttress_ondisk::item::RootItem;
use buttress_ondisk::view::FileExtentItem;
use buttress_ondisk::{Expect, Key, TreeBlock, kind, objectid, print};
use buttress_volume::{TreeRoot, Volume, VolumeError, search_from};
use clap::Args;
use serde_json::{Value, json};

use super::layout::Layout;
use crate::args::Globals;
use crate::device;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::units::Units;

/// Arguments of `tree-stats`.
#[derive(Debug, Args)]
pub struct TreeStats {
    /// The image file or disk
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// Sizes as numbers of bytes
    #[arg(short = 'b', long)]
    raw: bool,
    /// Only this tree, by number or name
    #[arg(short, long, value_name = "TREE", value_parser = tree_id)]
    tree: Option<u64>,
}

fn tree_id(text: &str) -> Result<u64, &'static str> {
    print::tree_by_name(text)
        .ok_or("no tree has that name; there are root, extent, csum, fs and others, and numbers")
}

/// The trees of which there is something to say always.
const TREES: [(u64, &str); 4] = [
    (objectid::ROOT_TREE, "root"),
    (objectid::EXTENT_TREE, "extent"),
    (objectid::CSUM_TREE, "csum"),
    (objectid::FS_TREE, "fs"),
];

/// Prints the figures of each tree.
pub fn run(args: &TreeStats, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let volume = device::open_volume(&args.device, globals)?;
    if let Some(at) = device::mounted_here(&args.device, globals) {
        let note = format!("it is mounted on {}: results may be inaccurate", at.display());
        device::warn(globals, &args.device, &note);
    }
    let units = if args.raw { Units::Raw } else { Units::default() };
    let (mut all, mut lost) = (Vec::new(), 0);
    for (tree, name) in wanted(args) {
        let root = root_of(&volume, tree)
            .map_err(|error| device::volume_failure(&args.device, &error))?
            .ok_or_else(|| {
                Failure::new(
                    format!("cannot find the {name} tree of"),
                    args.device.display(),
                    "there is none",
                )
            })?;
        let figures = Figures::of(&volume, root, &mut |error| {
            device::warn(globals, &args.device, error);
            lost += 1;
        });
        match globals.format {
            Format::Text => figures.write(&name, units, out)?,
            Format::Json => all.push(figures.json(tree)),
        }
    }
    if globals.format == Format::Json {
        output::write_json(out, "tree-stats", all.into())?;
    }
    said_of(lost, &args.device, out)
}

fn wanted(args: &TreeStats) -> Vec<(u64, String)> {
    let known = TREES.iter().map(|(tree, name)| (*tree, (*name).to_owned()));
    match args.tree {
        None => known.collect(),
        Some(wanted) => {
            let name = known.into_iter().find(|(tree, _)| *tree == wanted).map(|(_, name)| name);
            vec![(wanted, name.unwrap_or_else(|| wanted.to_string()))]
        }
    }
}

fn said_of(lost: u64, device: &Path, out: &mut dyn Write) -> Result<(), Failure> {
    match lost {
        0 => Ok(()),
        count => {
            out.flush()?;
            let why = format!("{count} tree blocks cannot be read");
            Err(Failure::new("cannot count all of", device.display(), why))
        }
    }
}

/// The root of a tree; `None` when there is no such tree.
fn root_of(volume: &Volume, tree: u64) -> Result<Option<TreeRoot>, VolumeError> {
    let sb = volume.superblock();
    match tree {
        objectid::ROOT_TREE => return Ok(Some(TreeRoot::root_tree(&sb))),
        objectid::CHUNK_TREE => return Ok(Some(TreeRoot::chunk_tree(&sb))),
        _ => {}
    }
    let key = Key::new(tree, kind::ROOT_ITEM, 0);
    let found = search_from(volume, &TreeRoot::root_tree(&sb), &key)?;
    let item = found.filter(|(key, _)| (key.objectid, key.kind) == (tree, kind::ROOT_ITEM));
    Ok(item.and_then(|(_, data)| RootItem::read(&data)).map(|item| TreeRoot {
        bytenr: item.bytenr.get(),
        level: item.level,
        generation: Some(item.generation.get()),
        owner: Some(tree),
    }))
}

/// The figures of a tree.
struct Figures {
    nodesize: u64,
    /// Blocks of each level, the leaves first.
    blocks: Vec<u64>,
    inline_bytes: u64,
    layout: Layout,
    read_time: Duration,
}

/// Goes through a tree.
struct Walk<'a> {
    volume: &'a Volume,
    /// Whether the leaves are looked at, too.
    reads_leaves: bool,
    owner: Option<u64>,
    figures: Figures,
    lost: &'a mut dyn FnMut(&VolumeError),
}

impl Figures {
    /// Of the tree below a root; `lost` hears of blocks that cannot be read, which count as blocks without children.
    fn of(volume: &Volume, root: TreeRoot, lost: &mut dyn FnMut(&VolumeError)) -> Figures {
        let nodesize = u64::from(volume.nodesize());
        let is_of_files = root.owner.is_some_and(|tree| {
            tree == objectid::FS_TREE
                || (objectid::FIRST_FREE..=objectid::LAST_FREE).contains(&tree)
        });
        let figures = Figures {
            nodesize,
            blocks: vec![0; usize::from(root.level) + 1],
            inline_bytes: 0,
            layout: Layout::new(root.bytenr, nodesize),
            read_time: Duration::ZERO,
        };
        let owner = root.owner;
        let mut walk = Walk { volume, reads_leaves: is_of_files, owner, figures, lost };
        walk.below(&root.expect());
        walk.figures
    }

    fn total(&self) -> u64 {
        self.blocks.iter().sum()
    }

    fn write(&self, name: &str, units: Units, out: &mut dyn Write) -> Result<(), Failure> {
        writeln!(out, "Calculating size of {name} tree")?;
        writeln!(out, "\tTotal size: {}", units.show(self.total().saturating_mul(self.nodesize)))?;
        writeln!(out, "\t\tInline data: {}", units.show(self.inline_bytes))?;
        self.layout.write(units, out)?;
        let (secs, micros) = (self.read_time.as_secs(), self.read_time.subsec_micros());
        writeln!(out, "\tTotal read time: {secs} s {micros} us")?;
        writeln!(out, "\tLevels: {}", self.blocks.len())?;
        writeln!(out, "\tTotal nodes: {}", self.total())?;
        let mut below = None;
        for (level, &count) in self.blocks.iter().enumerate() {
            write!(out, "\t\tOn level {level}: {count:>8}")?;
            if let Some(fanout) = below.replace(count).and_then(|below| below.checked_div(count)) {
                write!(out, "  (avg fanout {fanout})")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }

    fn json(&self, tree: u64) -> Value {
        let mut value = json!({
            "tree": tree,
            "size": self.total().saturating_mul(self.nodesize),
            "inline_data": self.inline_bytes,
            "levels": self.blocks.len(),
            "nodes": self.total(),
            "nodes_by_level": self.blocks,
            "read_time_us": u64::try_from(self.read_time.as_micros()).unwrap_or(u64::MAX),
        });
        if let (Some(object), Value::Object(layout)) = (value.as_object_mut(), self.layout.json()) {
            object.extend(layout);
        }
        value
    }
}

impl Walk<'_> {
    /// Counts a block and all below it. As deep as the tree has levels, which fall by one with each step.
    fn below(&mut self, expect: &Expect) {
        let level = usize::from(expect.level.unwrap_or(0));
        if let Some(count) = self.figures.blocks.get_mut(level) {
            *count += 1;
        }
        if level == 0 && !self.reads_leaves {
            return;
        }
        let begun = Instant::now();
        let block = self.volume.read_block(expect.bytenr, expect);
        self.figures.read_time += begun.elapsed();
        match block {
            Err(error) => (self.lost)(&error),
            Ok(block) if block.is_leaf() => self.figures.inline_bytes += inline_bytes(&block),
            Ok(block) => self.children(&block),
        }
    }

    fn children(&mut self, block: &TreeBlock) {
        self.figures.layout.enter(block.bytenr());
        for slot in 0..block.len() {
            let child = block.child(slot);
            self.figures.layout.child(child.bytenr);
            self.below(&Expect {
                bytenr: child.bytenr,
                level: Some(block.level().saturating_sub(1)),
                generation: Some(child.generation),
                owner: self.owner,
                first_key: Some(child.key),
            });
        }
        self.figures.layout.leave();
    }
}

/// Bytes of file content in a leaf, as they are stored.
fn inline_bytes(leaf: &TreeBlock) -> u64 {
    let items = (0..leaf.len()).map(|slot| leaf.item(slot));
    let of_files = items.filter(|(key, _)| key.kind == kind::EXTENT_DATA);
    of_files
        .map(|(_, data)| match FileExtentItem::read(data) {
            Some(FileExtentItem::Inline { data, .. }) => data.len() as u64,
            _ => 0,
        })
        .sum()
}
