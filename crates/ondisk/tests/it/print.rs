//! Our text is that of btrfs-progs.

use std::process::Command;

use buttress_ondisk::print::{self, DumpTree, Style};
use buttress_ondisk::{Expect, objectid};

use crate::image::Image;

fn progs(args: &[&str], image: &Image) -> Vec<u8> {
    let path = image.path.to_str().unwrap();
    let mut all = vec!["inspect-internal"];
    all.extend(args);
    all.push(path);
    let done = Command::new("btrfs").args(&all).env("TZ", "UTC").output().unwrap();
    assert!(done.status.success(), "btrfs {all:?}: {}", String::from_utf8_lossy(&done.stderr));
    done.stdout
}

/// Fails with the first line that differs.
pub fn same(what: &str, ours: &[u8], theirs: &[u8]) {
    if ours == theirs {
        return;
    }
    let (ours, theirs) = (String::from_utf8_lossy(ours), String::from_utf8_lossy(theirs));
    let mut theirs_lines = theirs.lines();
    for (number, line) in ours.lines().enumerate() {
        let other = theirs_lines.next().unwrap_or("<end>");
        assert_eq!(line, other, "{what}: line {} (ours, then theirs)", number + 1);
    }
    panic!("{what}: ours ends, theirs goes on with {:?}", theirs_lines.next());
}

fn ours(image: &Image, options: &DumpTree) -> Vec<u8> {
    let mut out = Vec::new();
    let mut source = |expect: &Expect| image.block(expect).ok();
    let lost = print::dump_tree(&mut out, &image.sb, &mut source, options).unwrap();
    assert!(lost.is_empty(), "{lost:?}");
    out
}

/// Options as progs take them and as we do.
fn options(image: &Image) -> Vec<(Vec<String>, DumpTree)> {
    let none = DumpTree::default();
    let style = |style| DumpTree { style, ..DumpTree::default() };
    let all = Style { hide_names: false, csum_headers: true, csum_items: true, ..Style::default() };
    let tree = |id| DumpTree { tree: Some(id), ..DumpTree::default() };
    let root = image.sb.root.get();
    let chunk = image.sb.chunk_root.get();
    let block = DumpTree { blocks: vec![root, chunk], ..DumpTree::default() };
    let mut list: Vec<(&str, DumpTree)> = vec![
        ("", none.clone()),
        ("-e", DumpTree { extents: true, ..none.clone() }),
        ("-d", DumpTree { device: true, ..none.clone() }),
        ("-r", DumpTree { roots: true, ..none.clone() }),
        ("-R", DumpTree { backups: true, ..none.clone() }),
        ("-u", DumpTree { uuid: true, ..none.clone() }),
        ("--dfs", DumpTree { dfs: true, ..none.clone() }),
        ("--csum-headers --csum-items", style(all)),
        ("--hide-names", style(Style { hide_names: true, ..Style::default() })),
        ("-t fs", tree(objectid::FS_TREE)),
        ("-t 256", tree(256)),
        ("-t chunk", tree(objectid::CHUNK_TREE)),
        ("-t root", tree(objectid::ROOT_TREE)),
        ("-t 300", tree(300)),
    ];
    let (b, follow) = (format!("-b {root} -b {chunk}"), format!("-b {root} -b {chunk} --follow"));
    list.push((&b, block.clone()));
    list.push((&follow, DumpTree { follow: true, ..block }));
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
    list.into_iter().map(|(text, options)| (words(text), options)).collect()
}

pub fn dump_tree_is_that_of_progs(images: &[(String, Image)]) {
    for (name, image) in images {
        // What the live image adds is in the whole dump and in the short one.
        let take = if name.ends_with(".live") { 5 } else { usize::MAX };
        for (words, options) in options(image).into_iter().take(take) {
            let mut args = vec!["dump-tree"];
            args.extend(words.iter().map(String::as_str));
            same(&format!("{name} {words:?}"), &ours(image, &options), &progs(&args, image));
        }
    }
}

pub fn dump_super_is_that_of_progs(images: &[(String, Image)]) {
    for (name, image) in images {
        let path = image.path.to_str().unwrap();
        for full in [false, true] {
            let mut out = Vec::new();
            for offset in [64 << 10, 64 << 20] {
                let bytes = image.raw(offset);
                print::dump_super(&mut out, &bytes, offset, path, full).unwrap();
            }
            // For the third copy, beyond the end of these images, `-a` prints an empty line.
            out.push(b'\n');
            let flag = if full { "-fa" } else { "-a" };
            same(&format!("{name} {flag}"), &out, &progs(&["dump-super", flag], image));
        }
    }
}
