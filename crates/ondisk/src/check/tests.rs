//! Each rule by a leaf that breaks it, and garbage that must not break us.

use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;
use crate::build::{LeafBuilder, Stamp};
use crate::item::*;
use crate::key::kind::*;
use crate::print::{self, Style};

fn gate() -> Gate {
    Gate {
        csum: ChecksumKind::Crc32c,
        metadata_fsid: [7; 16],
        nodesize: 4096,
        sectorsize: 4096,
        incompat: crate::superblock::incompat::SKINNY_METADATA,
        metadump: false,
        unverified: false,
        generation_max: 100,
    }
}

fn stamp(owner: u64) -> Stamp {
    Stamp {
        fsid: [7; 16],
        chunk_tree_uuid: [8; 16],
        bytenr: 1 << 20,
        generation: 50,
        owner,
        flags: BlockHead::WRITTEN,
    }
}

fn seal(block: TreeBlock) -> Box<[u8]> {
    let digest = ChecksumKind::Crc32c.digest(&block.as_bytes()[32..]);
    block.sealed(digest.as_bytes()).as_bytes().into()
}

fn leaf(owner: u64, items: &[(Key, Vec<u8>)]) -> Box<[u8]> {
    let mut leaf = LeafBuilder::new(4096);
    for (key, data) in items {
        assert!(leaf.push(*key, data));
    }
    seal(leaf.finish(&stamp(owner)))
}

/// The rule that a leaf with these items breaks; `""` for none.
fn broken(owner: u64, items: &[(Key, Vec<u8>)]) -> &'static str {
    match gate().block(leaf(owner, items), &Expect::at(1 << 20)) {
        Ok(_) => "",
        Err(corruption) => corruption.what,
    }
}

fn one(objectid: u64, kind: u8, offset: u64, data: &[u8]) -> &'static str {
    let owner = match kind {
        QGROUP_STATUS..=QGROUP_RELATION => objectid::QUOTA_TREE,
        _ => 300,
    };
    broken(owner, &[(Key::new(objectid, kind, offset), data.to_vec())])
}

fn inode(change: impl FnOnce(&mut InodeItem)) -> Vec<u8> {
    let mut inode = InodeItem { mode: 0o100644.into(), nlink: 1.into(), ..InodeItem::default() };
    change(&mut inode);
    inode.as_bytes().to_vec()
}

fn entry(kind: u8, file_type: u8, name: &[u8], data: &[u8]) -> Vec<u8> {
    let head = DirItem {
        location: Key::new(if kind == 0 { 0 } else { 257 }, kind, 0).into(),
        transid: 1.into(),
        data_len: (data.len() as u16).into(),
        name_len: (name.len() as u16).into(),
        file_type,
    };
    [head.as_bytes(), name, data].concat()
}

fn extent(change: impl FnOnce(&mut FileExtent)) -> Vec<u8> {
    let mut extent = FileExtent {
        head: FileExtentHead { kind: 1, ram_bytes: 8192.into(), ..FileExtentHead::default() },
        tail: FileExtentTail {
            disk_bytenr: 0x10000.into(),
            disk_num_bytes: 8192.into(),
            offset: 0.into(),
            num_bytes: 8192.into(),
        },
    };
    change(&mut extent);
    extent.as_bytes().to_vec()
}

#[test]
fn inode_items() {
    assert_eq!(one(257, INODE_ITEM, 0, &inode(|_| ())), "");
    assert_eq!(one(5, INODE_ITEM, 0, &inode(|_| ())), "invalid inode number");
    assert_eq!(one(257, INODE_ITEM, 1, &inode(|_| ())), "invalid key offset of an inode item");
    assert_eq!(one(257, INODE_ITEM, 0, &inode(|_| ())[1..]), "wrong item size");
    let check = |change: fn(&mut InodeItem)| one(257, INODE_ITEM, 0, &inode(change));
    assert_eq!(check(|it| it.generation = 101.into()), "");
    assert_eq!(check(|it| it.generation = 102.into()), "inode generation from the future");
    assert_eq!(check(|it| it.transid = 102.into()), "inode transid from the future");
    assert_eq!(check(|it| it.mode = 0o644.into()), "invalid file type in an inode's mode");
    assert_eq!(check(|it| it.mode = 0o110644.into()), "invalid file type in an inode's mode");
    assert_eq!(check(|it| it.mode = 0o1040755.into()), "unknown bits in an inode's mode");
    assert_eq!(check(|it| it.flags = (1 << 13).into()), "unknown inode flags");
    let directory = |it: &mut InodeItem| {
        it.mode = 0o40755.into();
        it.nlink = 2.into();
    };
    assert_eq!(check(directory), "directory with several links");
}

#[test]
fn directory_entries() {
    let hash = buttress_codec::crc32c::name_hash(b"name");
    let file = entry(INODE_ITEM, 1, b"name", b"");
    assert_eq!(one(256, DIR_ITEM, hash, &file), "");
    assert_eq!(one(256, DIR_INDEX, 2, &file), "");
    assert_eq!(one(256, DIR_ITEM, hash + 1, &file), "name does not match its hash");
    assert_eq!(one(256, DIR_ITEM, hash, &[&file[..], &file].concat()), "");
    assert_eq!(one(256, DIR_ITEM, hash, &file[..33]), "dir entry cut off");
    assert_eq!(
        one(256, DIR_ITEM, hash, &entry(INODE_ITEM, 1, b"name", b"x")),
        "dir entry with data"
    );
    let wrong = "invalid type of a dir entry";
    assert_eq!(one(256, DIR_ITEM, hash, &entry(INODE_ITEM, 8, b"name", b"")), wrong);
    // Linux loses such an entry, and not the leaf that it is in.
    assert_eq!(one(256, DIR_ITEM, hash, &entry(INODE_ITEM, 0, b"name", b"")), "");
    assert_eq!(one(256, DIR_INDEX, 2, &entry(INODE_ITEM, 9, b"name", b"")), wrong);
    assert_eq!(
        one(256, DIR_INDEX, 2, &entry(INODE_REF, 1, b"name", b"")),
        "invalid location of a dir entry"
    );
    assert_eq!(one(256, DIR_INDEX, 2, &entry(INODE_ITEM, 1, &[b'x'; 256], b"")), "name too long");
    assert_eq!(one(256, XATTR_ITEM, hash, &entry(0, 8, b"name", b"value")), "");
    assert_eq!(one(256, XATTR_ITEM, hash, &entry(0, 1, b"name", b"value")), wrong);
    let before = [
        (Key::new(255, INODE_REF, 0), b"\0\0\0\0\0\0\0\0\x01\0x".to_vec()),
        (Key::new(256, DIR_INDEX, 2), file),
    ];
    assert_eq!(broken(300, &before), "no inode item before it");
    assert_eq!(broken(objectid::ROOT_TREE, &before), "");
}

/// Linux does not lose a leaf for a name that leads elsewhere.
#[test]
fn names_that_are_paths() {
    use buttress_codec::crc32c::name_hash;
    let reference = |name: &[u8]| [&[0; 8], &(name.len() as u16).to_le_bytes()[..], name].concat();
    let extended = |name: &[u8]| [&[0; 16], &(name.len() as u16).to_le_bytes()[..], name].concat();
    for name in [&b""[..], b".", b"..", b"/", b"a/b", b"../x", b"a\0"] {
        assert!(!crate::view::is_name(name), "{name:?}");
        let entry = entry(INODE_ITEM, 1, name, b"");
        assert_eq!(one(256, DIR_ITEM, name_hash(name), &entry), "", "{name:?}");
        assert_eq!(one(256, DIR_INDEX, 2, &entry), "", "{name:?}");
        let empty = if name.is_empty() { "inode ref without a name" } else { "" };
        assert_eq!(one(257, INODE_REF, 256, &reference(name)), empty, "{name:?}");
        assert_eq!(one(257, INODE_EXTREF, 256, &extended(name)), "", "{name:?}");
        if !name.is_empty() {
            let item = [&[0; 16], &(name.len() as u16).to_le_bytes()[..], name].concat();
            assert_eq!(one(5, crate::kind::ROOT_REF, 257, &item), "", "{name:?}");
        }
    }
    for name in [&b"..."[..], b"..x", b"\\", b"\xff", b"\x1b[31m"] {
        assert!(crate::view::is_name(name), "{name:?}");
    }
}

#[test]
fn file_extents() {
    let check = |change: fn(&mut FileExtent)| one(257, EXTENT_DATA, 4096, &extent(change));
    assert_eq!(check(|_| ()), "");
    assert_eq!(one(257, EXTENT_DATA, 1, &extent(|_| ())), "unaligned file offset");
    assert_eq!(one(257, EXTENT_DATA, 0, &extent(|_| ())[..20]), "file extent too short");
    assert_eq!(one(257, EXTENT_DATA, 0, &extent(|_| ())[..52]), "wrong item size");
    assert_eq!(check(|it| it.head.kind = 3), "invalid file extent type");
    assert_eq!(check(|it| it.head.compression = 4), "unknown compression");
    assert_eq!(check(|it| it.head.encryption = 1), "encrypted file extent");
    assert_eq!(check(|it| it.head.kind = 0), "inline extent not at the start");
    assert_eq!(check(|it| it.head.ram_bytes = 1.into()), "unaligned ram_bytes of a file extent");
    assert_eq!(check(|it| it.tail.offset = 1.into()), "unaligned offset of a file extent");
    assert_eq!(check(|it| it.tail.num_bytes = 1.into()), "unaligned num_bytes of a file extent");
    let huge = |it: &mut FileExtent| it.tail.num_bytes = 0u64.wrapping_sub(4096).into();
    assert_eq!(check(huge), "file extent overflows");
    let past = |it: &mut FileExtent| {
        it.head.compression = 1;
        it.tail.offset = 4096.into();
    };
    assert_eq!(check(past), "file extent reaches past its compressed data");
    let inline = |len: usize, ram: u64| {
        let head = FileExtentHead { ram_bytes: ram.into(), ..FileExtentHead::default() };
        one(257, EXTENT_DATA, 0, &[head.as_bytes(), &vec![1; len]].concat())
    };
    assert_eq!(inline(100, 100), "");
    assert_eq!(inline(100, 99), "wrong length of an inline extent");
    let two = |at: u64| {
        let extent = extent(|_| ());
        let first = (Key::new(257, EXTENT_DATA, 0), extent.clone());
        broken(300, &[first, (Key::new(257, EXTENT_DATA, at), extent)])
    };
    assert_eq!(two(8192), "");
    assert_eq!(two(4096), "file extent overlaps the one before");
}

/// The keys that readers are given, and those that are lost, of a leaf with these items.
fn beside(items: &[(Key, Vec<u8>)]) -> (Vec<Key>, Vec<Key>) {
    let bytes = leaf(300, items);
    let block = gate().block_beside(bytes, &Expect::at(1 << 20)).expect("most of it is good");
    let good: Vec<Key> = (0..block.len()).map(|slot| block.key(slot)).collect();
    for (slot, key) in good.iter().enumerate() {
        let given = items.iter().find(|(it, _)| it == key);
        assert_eq!(given.map(|(_, data)| &data[..]), Some(block.data(slot)), "{key}");
        assert!(block.search(key) == Ok(slot) && block.lost_at(key).is_none(), "{key}");
    }
    let lost: Vec<Key> = block.lost().iter().map(|lost| lost.key).collect();
    for lost in block.lost() {
        assert!(block.search(&lost.key).is_err() && block.lost_at(&lost.key).is_some());
        let slot = items.iter().position(|(key, _)| *key == lost.key);
        assert_eq!((lost.why.slot, lost.why.block), (slot, 1 << 20), "{}", lost.why);
    }
    let all = items.first().zip(items.last()).map(|(a, b)| (a.0, b.0));
    assert_eq!(block.span(), all);
    (good, lost)
}

#[test]
fn a_reader_has_what_lies_beside_a_bad_item() {
    let key = Key::new;
    let (ino, data) = (key(257, INODE_ITEM, 0), |at| key(257, EXTENT_DATA, at));
    let good = (ino, inode(|_| ()));
    let bad = (ino, inode(|it| it.mode = 0.into()));
    let one = |at| (data(at), extent(|_| ()));
    let wrong = |at| (data(at), extent(|it| it.head.compression = 9));
    let check = |items: &[(Key, Vec<u8>)], lost: &[usize]| {
        let keys = |bad: bool| {
            let all = items.iter().enumerate();
            let picked = all.filter(|(slot, _)| lost.contains(slot) == bad);
            picked.map(|(_, (key, _))| *key).collect::<Vec<_>>()
        };
        assert_eq!(beside(items), (keys(false), keys(true)), "{lost:?}");
    };
    check(&[good.clone(), one(0), one(8192)], &[]);
    check(&[bad.clone(), one(0), one(8192)], &[0]);
    check(&[good.clone(), wrong(0), one(8192)], &[1]);
    check(&[good.clone(), one(0), wrong(8192)], &[2]);
    check(&[good.clone(), wrong(0), wrong(8192), one(16384)], &[1, 2]);
    check(std::slice::from_ref(&bad), &[0]);
    // Either can be wrong.
    check(&[good.clone(), one(0), one(4096), one(16384)], &[1, 2]);
    // What is bad anyway says nothing about its neighbour.
    check(&[good.clone(), wrong(0), one(4096), one(16384)], &[1]);

    let refused = |bytes, expect| gate().block_beside(bytes, &expect).is_err();
    let mut expect = Expect::at(1 << 20);
    let mut bytes = leaf(300, &[bad.clone(), one(0)]);
    assert!(gate().block(bytes.clone(), &expect).is_err());
    expect.first_key = Some(ino);
    assert!(!refused(bytes.clone(), expect));
    expect.first_key = Some(data(0));
    assert!(refused(bytes.clone(), expect));
    expect = Expect { level: Some(1), ..Expect::at(1 << 20) };
    assert!(refused(bytes.clone(), expect));
    bytes[200] ^= 1;
    assert!(refused(bytes, Expect::at(1 << 20)), "the checksum does not fit");
    let many: Vec<_> = (0..17).map(|at| wrong(at * 8192)).collect();
    assert!(refused(leaf(300, &many), Expect::at(1 << 20)), "that is no leaf with a bad item");
    let mut overlapping = leaf(300, &[good, one(0)]).into_vec();
    overlapping[101 + 25 + 17] += 1;
    let digest = ChecksumKind::Crc32c.digest(&overlapping[32..]);
    overlapping[..4].copy_from_slice(digest.as_bytes());
    assert!(refused(overlapping.into(), Expect::at(1 << 20)), "its layout is wrong");
}

/// What a leaf lets through for who looks at data only is not looked at otherwise.
#[test]
fn who_looks_at_one_kind_needs_the_others_not() {
    let inode = (Key::new(257, INODE_ITEM, 0), vec![0xff; 160]);
    let data = (Key::new(257, EXTENT_DATA, 0), extent(|_| ()));
    let asked = |items: &[(Key, Vec<u8>)], expect: &Expect| {
        gate().leaf_for(EXTENT_DATA, leaf(300, items), expect).map_err(|why| why.what)
    };
    let expect = Expect::at(1 << 20);
    let both = [inode.clone(), data.clone()];
    assert_ne!(broken(300, &both), "");
    let let_through = asked(&both, &expect).unwrap();
    assert_eq!(let_through.key(1), data.0);
    // What is looked at keeps all rules, and so does the leaf.
    let bad = (data.0, extent(|it| it.head.kind = 9));
    assert_eq!(asked(&[inode.clone(), bad.clone()], &expect).unwrap_err(), broken(300, &[bad]));
    let other = Expect { generation: Some(49), ..expect };
    assert_eq!(asked(&both, &other).unwrap_err(), "wrong generation");
    let mut bytes = leaf(300, &both);
    bytes[4000] ^= 1;
    let refused = gate().leaf_for(EXTENT_DATA, bytes, &expect).unwrap_err();
    assert_eq!(refused.what, "checksum mismatch");
    let mut node = NodeBuilder::new(4096);
    node.push(&crate::block::ChildPtr { key: data.0, bytenr: 1 << 21, generation: 50 });
    let node = seal(node.finish(1, &stamp(300)));
    let refused = gate().leaf_for(EXTENT_DATA, node, &expect).unwrap_err();
    assert_eq!(refused.what, "wrong level");
}

fn extent_item(refs: u64, flags: u64, inline: &[&[u8]]) -> Vec<u8> {
    let head = ExtentItem { refs: refs.into(), generation: 5.into(), flags: flags.into() };
    [head.as_bytes(), &inline.concat()].concat()
}

fn inline(kind: u8, word: u64, rest: &[u8]) -> Vec<u8> {
    [&[kind][..], &word.to_le_bytes(), rest].concat()
}

#[test]
fn extent_items() {
    let shared = inline(SHARED_DATA_REF, 8192, &1u32.to_le_bytes());
    let tree = inline(TREE_BLOCK_REF, 5, b"");
    let data = |refs, parts: &[&[u8]]| one(4096, EXTENT_ITEM, 4096, &extent_item(refs, 1, parts));
    assert_eq!(data(1, &[&shared]), "");
    assert_eq!(data(1, &[]), "");
    assert_eq!(data(1, &[&shared, &shared]), "more inline references than references");
    assert_eq!(data(1, &[&shared[..12]]), "invalid inline reference");
    assert_eq!(data(1, &[&tree]), "inline reference does not fit the kind of extent");
    assert_eq!(
        data(1, &[&inline(SHARED_DATA_REF, 8192, &[0; 4])]),
        "reference with a count of zero"
    );
    assert_eq!(data(1, &[&inline(SHARED_DATA_REF, 1, &[1; 4])]), "unaligned parent");
    let two = |first, second| {
        let one = |parent| inline(SHARED_DATA_REF, parent, &1u32.to_le_bytes());
        data(2, &[&one(first), &one(second)])
    };
    assert_eq!(two(8192, 4096), "");
    assert_eq!(two(4096, 8192), "inline references out of order");
    // The same behind some that are right, and before others.
    let four = |third: Vec<u8>| {
        let one = |parent| inline(SHARED_DATA_REF, parent, &2u32.to_le_bytes());
        data(8, &[&one(65536), &one(32768), &third, &one(4096)])
    };
    assert_eq!(four(inline(SHARED_DATA_REF, 8192, &2u32.to_le_bytes())), "");
    assert_eq!(
        four(inline(SHARED_DATA_REF, 8192, &3u32.to_le_bytes())),
        "more inline references than references"
    );
    assert_eq!(four(inline(SHARED_DATA_REF, 8192, &[0; 4])), "reference with a count of zero");
    assert_eq!(four(inline(SHARED_DATA_REF, 8193, &[1; 4])), "unaligned parent");
    assert_eq!(
        four(inline(SHARED_DATA_REF, 1 << 20, &1u32.to_le_bytes())),
        "inline references out of order"
    );
    assert_eq!(four(inline(199, 8192, &1u32.to_le_bytes())), "invalid inline reference");
    assert_eq!(four(tree.clone()), "inline reference does not fit the kind of extent");
    let owner = inline(EXTENT_OWNER_REF, 5, b"");
    assert_eq!(data(1, &[&owner]), "owner reference without the simple-quota feature");
    let block = |level, flags, parts: &[&[u8]]| {
        one(4096, METADATA_ITEM, level, &extent_item(1, flags, parts))
    };
    assert_eq!(block(0, 2, &[&tree]), "");
    assert_eq!(block(7, 0x102, &[&inline(SHARED_BLOCK_REF, 8192, b"")]), "");
    assert_eq!(block(8, 2, &[&tree]), "invalid level of a tree block");
    assert_eq!(block(0, 3, &[&tree]), "invalid extent flags");
    assert_eq!(block(0, 1, &[]), "metadata item that holds data");
    let first = (Key::new(4096, EXTENT_ITEM, 8192), extent_item(1, 1, &[]));
    let second = |at| (Key::new(at, EXTENT_ITEM, 4096), extent_item(1, 1, &[]));
    assert_eq!(broken(2, &[first.clone(), second(12288)]), "");
    assert_eq!(broken(2, &[first, second(8192)]), "extent overlaps the one before");
}

fn chunk(change: impl FnOnce(&mut ChunkItem)) -> Vec<u8> {
    let mut head = ChunkItem {
        length: (1 << 20).into(),
        owner: 2.into(),
        stripe_len: 65536.into(),
        chunk_type: chunk_type::DATA.into(),
        io_align: 65536.into(),
        io_width: 65536.into(),
        sector_size: 4096.into(),
        num_stripes: 1.into(),
        sub_stripes: 1.into(),
    };
    change(&mut head);
    let stripes = vec![StripeItem::default(); head.num_stripes.get().into()];
    [head.as_bytes(), stripes.as_bytes()].concat()
}

#[test]
fn chunks() {
    let check = |change: fn(&mut ChunkItem)| one(256, CHUNK_ITEM, 1 << 20, &chunk(change));
    assert_eq!(check(|_| ()), "");
    assert_eq!(check(|it| it.num_stripes = 0.into()), "wrong number of stripes for the profile");
    assert_eq!(check(|it| it.num_stripes = 2.into()), "wrong number of stripes for the profile");
    assert_eq!(check(|it| it.chunk_type = 0.into()), "invalid chunk type");
    assert_eq!(check(|it| it.chunk_type = 0x19.into()), "several profiles");
    assert_eq!(
        check(|it| it.chunk_type = 5.into()),
        "mixed chunk without the mixed-groups feature"
    );
    assert_eq!(check(|it| it.length = 0.into()), "invalid length of a chunk");
    assert_eq!(check(|it| it.stripe_len = 1.into()), "invalid stripe length");
    assert_eq!(check(|it| it.sector_size = 512.into()), "wrong sector size of a chunk");
    assert_eq!(one(256, CHUNK_ITEM, 1 << 20, &chunk(|_| ())[..79]), "chunk item too short");
    assert_eq!(
        one(256, CHUNK_ITEM, 1 << 20, &[chunk(|_| ()), vec![0]].concat()),
        "wrong item size"
    );
    assert_eq!(one(257, CHUNK_ITEM, 1 << 20, &chunk(|_| ())), "invalid object of a chunk");
    let group = |used: u64, flags: u64| {
        let item =
            BlockGroupItem { used: used.into(), chunk_objectid: 256.into(), flags: flags.into() };
        one(1 << 20, BLOCK_GROUP_ITEM, 8192, item.as_bytes())
    };
    assert_eq!(group(8192, 1), "");
    assert_eq!(group(8193, 1), "more used than a block group has");
    assert_eq!(group(0, 3), "invalid chunk type");
}

#[test]
fn small_kinds() {
    assert_eq!(one(objectid::EXTENT_CSUM, EXTENT_CSUM, 4096, &[0; 8]), "");
    assert_eq!(one(objectid::EXTENT_CSUM, EXTENT_CSUM, 4096, &[0; 7]), "wrong item size");
    assert_eq!(one(5, EXTENT_CSUM, 4096, &[0; 8]), "invalid object of checksums");
    let csum = |at| (Key::new(objectid::EXTENT_CSUM, EXTENT_CSUM, at), vec![0; 8]);
    assert_eq!(broken(7, &[csum(0), csum(4096)]), "checksums overlap those before");
    assert_eq!(one(4096, FREE_SPACE_EXTENT, 4096, &[]), "");
    assert_eq!(one(4096, FREE_SPACE_EXTENT, 1, &[]), "invalid length of free space");
    assert_eq!(one(4096, FREE_SPACE_BITMAP, 4096 * 9, &[0; 2]), "");
    assert_eq!(
        one(4096, FREE_SPACE_BITMAP, 4096 * 9, &[0; 3]),
        "wrong size of a free space bitmap"
    );
    assert_eq!(one(0, QGROUP_STATUS, 0, &[0; 40]), "");
    assert_eq!(one(0, QGROUP_INFO, 5, &[0; 39]), "wrong item size");
    let root = RootItem { bytenr: 4096.into(), ..RootItem::default() };
    assert_eq!(one(5, ROOT_ITEM, 0, root.as_bytes()), "");
    assert_eq!(one(5, ROOT_ITEM, 0, &root.as_bytes()[..239]), "");
    assert_eq!(one(5, ROOT_ITEM, 0, &root.as_bytes()[..240]), "wrong item size");
    let high = RootItem { level: 8, ..root };
    assert_eq!(one(5, ROOT_ITEM, 0, high.as_bytes()), "invalid level of a root");
}

/// A leaf with one item, after `change`, with a fresh checksum.
fn changed(change: impl FnOnce(&mut [u8])) -> Corruption {
    let mut bytes = leaf(300, &[(Key::new(257, INODE_ITEM, 0), inode(|_| ()))]);
    change(&mut bytes);
    let digest = ChecksumKind::Crc32c.digest(&bytes[32..]);
    bytes[..4].copy_from_slice(digest.as_bytes());
    let expect = Expect { owner: Some(300), level: Some(0), ..Expect::at(1 << 20) };
    gate().block(bytes, &expect).unwrap_err()
}

#[test]
fn heads_and_layout() {
    let cases: [(usize, u8, &str); 10] = [
        (32, 1, "wrong fsid"),
        (48, 1, "wrong address"),
        (56, 0, "block not marked as written"),
        (80, 102, "generation from the future"),
        (88, 2, "wrong owner"),
        (96, 163, "too many items"),
        (96, 159, "item data overlaps the item heads"),
        (100, 1, "wrong level"),
        (101 + 17, 0, "item data not back to back"),
        (101 + 21, 0, "item data not back to back"),
    ];
    for (at, value, what) in cases {
        let corruption = changed(|bytes| {
            bytes[at] = value;
            if at == 88 {
                bytes[89] = 0;
            }
        });
        assert_eq!(corruption.what, what, "byte {at}");
    }
    let mut bytes = leaf(300, &[]);
    bytes[200] ^= 1;
    let corruption = gate().block(bytes, &Expect::at(1 << 20)).unwrap_err();
    assert_eq!(corruption.kind, CorruptionKind::Checksum);
}

#[test]
fn message_says_where() {
    let corruption = changed(|bytes| bytes[4096 - 160 + 53] = 0xff);
    let message = corruption.to_string();
    assert!(message.starts_with("corrupt leaf: root=300 block=1048576 slot=0, "), "{message}");
    assert!(message.contains(", have 0o") && message.contains(" expect "), "{message}");
}

#[test]
fn nodes() {
    let node = |children: &[(u64, u64, u64)]| {
        let mut node = NodeBuilder::new(4096);
        for &(id, bytenr, generation) in children {
            let key = Key::new(id, 1, 0);
            assert!(node.push(&crate::ChildPtr { key, bytenr, generation }));
        }
        let bytes = seal(node.finish(1, &stamp(300)));
        gate().block(bytes, &Expect::at(1 << 20)).map_or_else(|fault| fault.what, |_| "")
    };
    assert_eq!(node(&[(1, 4096, 1), (2, 8192, 101)]), "");
    assert_eq!(node(&[]), "node without children");
    assert_eq!(node(&[(1, 0, 1)]), "null child address");
    assert_eq!(node(&[(1, 1, 1)]), "child address not aligned");
    assert_eq!(node(&[(2, 4096, 1), (2, 8192, 1)]), "keys out of order");
    assert_eq!(node(&[(1, 4096, 102)]), "child from the future");
}

fn any_item() -> impl Strategy<Value = (Key, Vec<u8>)> {
    let kinds = prop_oneof![
        proptest::sample::select(
            (0..=255u8).filter(|&kind| print::kind_name(kind).is_some()).collect::<Vec<_>>()
        ),
        any::<u8>(),
    ];
    let id = prop_oneof![
        0..14u64,
        Just(256),
        (0u64..20).prop_map(|down| 0u64.wrapping_sub(down)),
        any::<u64>()
    ];
    let offset = prop_oneof![Just(0u64), any::<u32>().prop_map(u64::from), any::<u64>()];
    let data = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..200),
        proptest::collection::vec(0..4u8, 0..500),
    ];
    (id, kinds, offset, data)
        .prop_map(|(id, kind, offset, data)| (Key::new(id, kind, offset), data))
}

proptest! {
    #[test]
    fn garbage_items_never_panic(item in any_item(), owner in 0..13u64) {
        let bytes = leaf(owner, &[item]);
        let _ = gate().block(bytes.clone(), &Expect::at(1 << 20));
        let block = gate().salvage(bytes).expect("the layout is good");
        let mut out = Vec::new();
        let style = Style { csum_items: true, ..Style::default() };
        print::print_block(&mut out, &block, &gate(), &style).expect("memory does not fail");
    }

    #[test]
    fn garbage_blocks_never_panic(
        places in proptest::collection::vec((0usize..300, any::<u8>()), 0..12),
        tail in proptest::collection::vec((3000usize..4096, any::<u8>()), 0..12),
        sealed: bool,
    ) {
        let mut bytes = leaf(300, &[
            (Key::new(256, INODE_ITEM, 0), inode(|_| ())),
            (Key::new(256, DIR_INDEX, 2), entry(INODE_ITEM, 1, b"name", b"")),
            (Key::new(256, EXTENT_DATA, 0), extent(|_| ())),
            (Key::new(256, CHUNK_ITEM, 0), chunk(|_| ())),
            (Key::new(4096, EXTENT_ITEM, 4096), extent_item(1, 1, &[&inline(SHARED_DATA_REF, 8192, &[1; 4])])),
        ]);
        places.iter().chain(&tail).for_each(|&(at, value)| bytes[at] = value);
        if sealed {
            let digest = ChecksumKind::Crc32c.digest(&bytes[32..]);
            bytes[..4].copy_from_slice(digest.as_bytes());
        }
        let _ = gate().block(bytes.clone(), &Expect::at(1 << 20));
        if let Ok(block) = gate().block_beside(bytes.clone(), &Expect::at(1 << 20)) {
            let given: Vec<_> = (0..block.len()).map(|slot| block.item(slot)).collect();
            assert!(given.is_sorted_by_key(|(key, _)| *key) && block.leaf_used() <= 4096);
            assert_eq!(gate().verify(&block, &Expect::at(1 << 20)).is_ok(), block.lost().is_empty());
        }
        if let Ok(block) = gate().salvage(bytes) {
            let mut out = Vec::new();
            print::print_block(&mut out, &block, &gate(), &Style::default()).expect("memory does not fail");
        }
    }

    #[test]
    fn garbage_superblocks_never_panic(
        places in proptest::collection::vec((0usize..4096, any::<u8>()), 0..40),
    ) {
        let mut bytes = [0u8; 4096];
        bytes[64..72].copy_from_slice(&crate::superblock::MAGIC);
        places.iter().for_each(|&(at, value)| bytes[at] = value);
        let digest = ChecksumKind::Crc32c.digest(&bytes[32..]);
        bytes[..4].copy_from_slice(digest.as_bytes());
        let _ = superblock(&bytes);
        let mut out = Vec::new();
        print::dump_super(&mut out, &bytes, 65536, "garbage", true).expect("memory does not fail");
    }
}
