//! A check from its first block to its last: the order of its phases, and the work of each spread over threads.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use buttress_device::BlockDevice;
use buttress_ondisk::{Key, item::RootItem, kind, objectid, superblock::compat_ro};
use buttress_volume::{Access, TreeRoot, Volume, VolumeError};
use parking_lot::Mutex;

use crate::{
    charged::Charged,
    context::{Context, Sizes},
    data, devices, fs,
    issue::Place,
    kinds::Kind,
    logs,
    options::Options,
    progress::{Phase, Progress},
    refs::{self, Reference, Referrer, Shape},
    roots::{Roots, Tree},
    sink::{Report, Totals},
    space,
    walk::{Leaf, Nobody, Subtree, Visitor, read, root, walk},
};

/// Opens the filesystem on these devices and checks it. A filesystem that cannot be opened because of what is on the medium gets a
/// report that says why; the error is for what is no filesystem, not supported, or not readable.
pub fn check_devices(
    devices: Vec<Arc<dyn BlockDevice>>,
    options: &Options,
    progress: &Progress,
) -> Result<Report, VolumeError> {
    match Volume::open(devices, Access::ReadOnly) {
        Ok(opened) => Ok(check(&opened.volume, options, progress)),
        Err(error) => Report::of_refusal(&error).ok_or(error),
    }
}

/// Checks an open filesystem. Only reads.
pub fn check(volume: &Volume, options: &Options, progress: &Progress) -> Report {
    let mut context = Context::new(volume, options, progress);
    progress.begin(Phase::Devices, 0);
    context.roots = Arc::new(read_roots(&context));
    context.charged = Charged::of(&context);
    devices::check(&context);
    progress.begin(Phase::Extents, 0);
    space::check(&context);
    progress.begin(Phase::Trees, 0);
    count_roots(&context);
    check_trees(&context);
    fs::check_roots(&context);
    fs::check_root_tree(&context);
    // Without an extent tree every extent would be missing; that it is missing was said.
    if context.roots.find(objectid::EXTENT_TREE).is_some() {
        refs::explain(&context);
    }
    // A dump of metadata has no data.
    if options.check_data_csum && !volume.gate().metadump {
        data::check(&context, context.sizes.csums.load(Relaxed));
    }
    logs::check(&context);
    let totals = totals(&context.sizes);
    let counts = context.sink.counts();
    Report { counts, issues: context.sink.take(), totals }
}

fn totals(sizes: &Sizes) -> Totals {
    let get = |size: &AtomicU64| size.load(Relaxed);
    Totals {
        used: get(&sizes.used),
        csums: get(&sizes.csums),
        tree_blocks: get(&sizes.tree_blocks),
        fs_tree_blocks: get(&sizes.fs_tree_blocks),
        extent_tree_blocks: get(&sizes.extent_tree_blocks),
        waste: get(&sizes.waste),
        data_allocated: get(&sizes.data_allocated),
        data_referenced: get(&sizes.data_referenced),
    }
}

/// Reads every tree block once more for the sake of its references.
pub(crate) fn meet_all(context: &Context<'_>) {
    count_roots(context);
    let own = [context.chunk_tree(), context.root_tree()];
    let trees: Vec<Tree> = own.into_iter().chain(context.roots.all().copied()).collect();
    in_parallel(context.options.threads, &trees, |tree| {
        walk(context, tree, Key::MIN..=Key::MAX, &mut Unmet { context });
    });
}

/// Wants what was not met.
struct Unmet<'a, 'b> {
    context: &'a Context<'b>,
}

impl Visitor for Unmet<'_, '_> {
    fn want(&mut self, subtree: &Subtree) -> bool {
        !self.context.visited.has(subtree.ptr.bytenr)
    }

    fn leaf(&mut self, _leaf: &Leaf<'_>) {}
}

/// Each tree refers to its root block.
fn count_roots(context: &Context<'_>) {
    let own = [context.chunk_tree(), context.root_tree()];
    for tree in own.iter().chain(context.roots.all()) {
        let TreeRoot { bytenr, level, generation, .. } = tree.root;
        let shape = Shape::Block { level, generation: generation.unwrap_or_default() };
        // The root of a relocation tree is shared from its beginning, and is its own parent.
        let by = match tree.id() {
            objectid::TREE_RELOC => Referrer::Block { parent: bytenr },
            root => Referrer::Tree { root },
        };
        context.refs.found(bytenr, &Reference { by, shape }, 1);
    }
}

/// Collects root items.
struct Collect<'a, 'b> {
    context: &'a Context<'b>,
    roots: Roots,
}

impl Visitor for Collect<'_, '_> {
    fn leaf(&mut self, leaf: &Leaf<'_>) {
        for (key, data) in leaf.items().filter(|(key, _)| key.kind == kind::ROOT_ITEM) {
            let global = (objectid::EXTENT_TREE..objectid::FIRST_FREE).contains(&key.objectid);
            // `btrfs-convert` makes it as it makes subvolumes, and Linux looks for it as for one.
            let is_relocation = key.objectid == objectid::DATA_RELOC_TREE;
            let newest = self.context.sb.generation.get().saturating_add(1);
            if (is_relocation || objectid::is_subvolume(key.objectid)) && key.offset > newest {
                let place = Place::item(objectid::ROOT_TREE, key);
                let expect = format_args!("a generation up to {newest}");
                self.context.report(Kind::RootItemBad, place, key.offset, expect);
            }
            if global && key.offset != 0 {
                let place = Place::item(objectid::ROOT_TREE, key);
                self.context.report(Kind::RootItemBad, place, key.offset, "an offset of 0");
            }
            match RootItem::read(data) {
                Some(item) => self.roots.add(Tree::new(key, item)),
                None => {
                    let place = Place::item(objectid::ROOT_TREE, key);
                    let have = format_args!("{} bytes", data.len());
                    self.context.report(Kind::RootItemBad, place, have, RootItem::LEGACY_LEN);
                }
            }
        }
    }
}

/// Root items of a tree.
pub(crate) fn collect(context: &Context<'_>, tree: &Tree) -> Roots {
    let mut collect = Collect { context, roots: Roots::default() };
    walk(context, tree, Key::MIN..=Key::MAX, &mut collect);
    collect.roots
}

fn read_roots(context: &Context<'_>) -> Roots {
    let roots = collect(context, &context.root_tree());
    for id in [objectid::EXTENT_TREE, objectid::DEV_TREE, objectid::FS_TREE, objectid::CSUM_TREE] {
        if roots.find(id).is_none() {
            context.report(Kind::RootMissing, Place::tree(id), "no root item", "one");
        }
    }
    let claimed = [
        (compat_ro::FREE_SPACE_TREE, objectid::FREE_SPACE_TREE),
        (compat_ro::BLOCK_GROUP_TREE, objectid::BLOCK_GROUP_TREE),
    ];
    for (bit, id) in claimed {
        if context.sb.compat_ro_flags.get() & bit != 0 && roots.find(id).is_none() {
            let expect = "one, as the superblock's features say";
            context.report(Kind::RootMissing, Place::tree(id), "no root item", expect);
        }
    }
    roots
}

/// A range of a tree's keys for one thread, which begins and ends between objects.
struct Part<'a> {
    tree: &'a Tree,
    range: RangeInclusive<Key>,
    /// Which tree, and which part of it.
    at: (usize, usize),
}

fn check_trees(context: &Context<'_>) {
    let trees: Vec<&Tree> = context.roots.all().filter(|tree| tree.holds_files()).collect();
    let mut parts = Vec::new();
    for (number, tree) in trees.iter().enumerate() {
        let ranges = split(context, tree).into_iter().enumerate();
        parts.extend(ranges.map(|(at, range)| Part { tree, range, at: (number, at) }));
    }
    let results = Mutex::new(Vec::new());
    in_parallel(context.options.threads, &parts, |part| {
        let done = fs::check_part(context, part.tree, part.range.clone());
        results.lock().push((part.at, done));
    });
    let mut results = results.into_inner();
    results.sort_by_key(|(at, _)| *at);
    for (number, tree) in trees.iter().enumerate() {
        let own = results.iter().filter(|((tree, _), _)| *tree == number);
        let parts: Vec<_> = own.map(|(_, part)| *part).collect();
        fs::finish_tree(context, tree, &parts);
    }
    for tree in context.roots.all().filter(|tree| !tree.holds_files()) {
        match tree.id() {
            objectid::UUID_TREE => fs::check_uuid_tree(context, tree),
            objectid::QUOTA_TREE => {}
            _ => walk(context, tree, Key::MIN..=Key::MAX, &mut Nobody),
        }
    }
    if let Some(tree) = context.roots.find(objectid::QUOTA_TREE) {
        fs::check_quota_tree(context, tree);
    }
}

/// Cuts a tree into ranges of objects, by the keys of its root block.
fn split(context: &Context<'_>, tree: &Tree) -> Vec<RangeInclusive<Key>> {
    let mut starts = vec![0];
    if tree.root.level > 0
        && let Some(block) = read(context, tree.id(), &root(tree).1)
    {
        starts.extend((1..block.len()).map(|slot| block.key(slot).objectid));
        starts.sort_unstable();
        starts.dedup();
    }
    let ends = starts.iter().skip(1).map(|next| next - 1).chain([u64::MAX]);
    let key = |objectid, kind, offset| Key { objectid, kind, offset };
    starts
        .iter()
        .zip(ends)
        .map(|(&first, last)| key(first, 0, 0)..=key(last, u8::MAX, u64::MAX))
        .collect()
}

/// Does all the work with so many threads.
pub(crate) fn in_parallel<T: Sync>(threads: usize, work: &[T], one: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let run = || {
        while let Some(item) = work.get(next.fetch_add(1, Relaxed)) {
            one(item);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(work.len()) {
            // A system that has no thread to give makes it slower, and that is all.
            if std::thread::Builder::new().spawn_scoped(scope, run).is_err() {
                break;
            }
        }
        run();
    });
}
