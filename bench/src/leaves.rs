//! Row 2: 100,000 files in one directory. How often leaves are written, and how full they are in the end.

use std::collections::HashMap;

use buttress::{Filesystem, New, Node, Options};

use crate::linux;
use crate::{Row, Scale};

/// Leaves of the subvolume's tree after the directory was filled.
pub fn row(scale: Scale) -> Row {
    let files = scale.of(100_000).max(100_000);
    let dir = linux::ram();
    let image = dir.path().join("image");
    crate::create::fresh(&image, 2 << 30);
    let fs = Filesystem::open(&image, Options::read_write()).expect("a fresh image opens");
    let top = Node { subvolume: 5, ino: 256 };
    for file in 0..files {
        fs.create(top, format!("file{file:08}").as_bytes(), &New::file(0o600)).expect("room");
    }
    fs.commit().expect("a commit");
    let (index, all) = fill(&fs);
    let mut row = Row::new(2, format!("{files} files in one directory, 16K nodes"));
    row.add("directory-index leaves", index.len() as f64, "leaves");
    let items = index.iter().map(|leaf| leaf.0).collect();
    row.add("items in each, median", crate::median(items), "items");
    row.add("full, mean of directory-index leaves", mean(&index), "%");
    row.add("full, mean of all leaves", mean(&all), "%");
    row.note("one commit merges the tree once: each leaf is written once".to_owned());
    fs.close().expect("a commit");
    row
}

fn mean(leaves: &[Leaf]) -> f64 {
    leaves.iter().map(|leaf| leaf.1).sum::<f64>() / leaves.len().max(1) as f64
}

/// A leaf's items, and how full it is in percent.
type Leaf = (f64, f64);

/// For leaves with directory index items alone, and for all: items, and percent full.
fn fill(fs: &Filesystem) -> (Vec<Leaf>, Vec<Leaf>) {
    use buttress::ondisk::{Key, LeafBuilder, kind};
    let core = fs.core();
    let root = fs.tree(5).expect("readable").expect("the top subvolume");
    let view = buttress::tree::View::new(&core.blocks, 5, root);
    let mut cursor = view.range(Key::MIN, Key::MAX);
    let mut leaves: HashMap<u64, (f64, f64, bool)> = HashMap::new();
    let room = LeafBuilder::room(core.features.nodesize) as f64;
    while let Some(item) = cursor.next().expect("readable") {
        let leaf = item.leaf();
        let entry = leaves
            .entry(leaf.bytenr())
            .or_insert_with(|| (leaf.len() as f64, leaf.leaf_used() as f64 / room * 100.0, true));
        entry.2 &= item.key().kind == kind::DIR_INDEX;
    }
    let all = leaves.values().map(|leaf| (leaf.0, leaf.1)).collect();
    (leaves.values().filter(|leaf| leaf.2).map(|leaf| (leaf.0, leaf.1)).collect(), all)
}
