//! Who reaches what, as whoever reads a filesystem with a log that waits is told: what he would be told after the replay.

use std::collections::BTreeSet;

use buttress::{FileExtent, FileKind, Filesystem, Node, WantedReferrers};

use super::Failed;

/// Everything that the library tells about extents and subvolumes, a line each.
pub fn reach(fs: &Filesystem) -> Result<Vec<String>, Failed> {
    let (mut lines, mut addresses) = (Vec::new(), BTreeSet::new());
    for node in files(fs)? {
        let extents: Vec<FileExtent> =
            fs.fiemap(node, 0..u64::MAX)?.collect::<Result<_, buttress::Error>>()?;
        addresses.extend(extents.iter().map(|it| it.physical).filter(|at| *at != 0));
        lines.push(format!("{node:?}: {extents:?}"));
    }
    for logical in addresses {
        let found = fs.referrers(WantedReferrers { logical, whole: true, most: 1000 })?;
        lines.push(format!("{logical}: {found:?}"));
    }
    let costs = fs.subvolume_costs(|_| true)?;
    lines.extend(costs.subvolumes().map(|(id, share)| format!("subvolume {id}: {share:?}")));
    Ok(lines)
}

/// All regular files, each once.
pub fn files(fs: &Filesystem) -> Result<Vec<Node>, Failed> {
    let (mut found, mut directories) = (BTreeSet::new(), vec![Node::ROOT]);
    let mut read = BTreeSet::new();
    while let Some(directory) = directories.pop() {
        if !read.insert((directory.subvolume, directory.ino)) {
            return Err(format!("{directory:?} is in two places, or below itself").into());
        }
        let mut nodes = Vec::new();
        fs.read_dir(directory, 0, &mut |entry| {
            nodes.push(entry.node);
            true
        })?;
        for node in nodes {
            match fs.attributes(node)?.kind {
                FileKind::Directory => directories.push(node),
                FileKind::Regular => {
                    found.insert((node.subvolume, node.ino));
                }
                _ => {}
            }
        }
    }
    Ok(found.into_iter().map(|(subvolume, ino)| Node { subvolume, ino }).collect())
}
