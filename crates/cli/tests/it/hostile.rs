//! Images that somebody made to do harm: names that are paths, directories that contain themselves, names that are twice
//! there or that a terminal would obey.

use std::fs;
use std::path::Path;
use std::process::Command;

use buttress::{Filesystem, New, Node, Options, Rename};
use buttress_device::MemoryDevice;
use buttress_ondisk::item::{DirItem, InodeItem, InodeRef, RootRef, file_type};
use buttress_ondisk::objectid::ROOT_TREE;
use buttress_ondisk::{Key, kind};
use buttress_testkit::damage::{Patient, TOP};
use zerocopy::IntoBytes;

use crate::live::Live;
use crate::run::{KernelMount, Place};

/// The top directory of a subvolume.
const TOP_DIRECTORY: u64 = 256;

/// An image with a tree in it that is ready to be changed.
fn image(fill: impl FnOnce(&Path)) -> Place {
    let place = Place::new();
    fs::create_dir(place.join("tree")).unwrap();
    fill(&place.join("tree"));
    place.ok("mkfs -q -n 64k --size 200M --rootdir tree disk.img");
    place
}

/// Changes the image where it lies.
pub fn change(
    place: &Place,
    edit: impl FnOnce(&Patient) -> Result<(), buttress_testkit::damage::DamageError>,
) {
    let patient = Patient::of(&MemoryDevice::load(place.join("disk.img")).unwrap()).unwrap();
    edit(&patient).unwrap();
    patient.device().store(place.join("disk.img")).unwrap();
}

fn hash(name: &[u8]) -> u64 {
    buttress_codec::crc32c::name_hash(name)
}

/// The bytes of an entry.
fn entry(ino: u64, kind_of_file: u8, name: &[u8]) -> Vec<u8> {
    let head = DirItem {
        location: Key::new(ino, kind::INODE_ITEM, 0).into(),
        name_len: (name.len() as u16).into(),
        file_type: kind_of_file,
        ..DirItem::default()
    };
    [head.as_bytes(), name].concat()
}

/// Gives what is called `old` another name, everywhere it is written.
fn rename(p: &Patient, old: &str, new: &[u8]) -> Result<(), buttress_testkit::damage::DamageError> {
    let id = p.named(TOP, old)?;
    let put = |data: &mut Vec<u8>, head: usize| {
        data.truncate(head);
        data.extend_from_slice(new);
    };
    let len = (new.len() as u16).into();
    for by in [kind::DIR_ITEM, kind::DIR_INDEX] {
        let key = p.entry(TOP, by, old)?;
        p.rewrite(TOP, key, |data| put(data, size_of::<DirItem>()))?;
        p.edit(TOP, key, |it: &mut DirItem| it.name_len = len)?;
        if by == kind::DIR_ITEM {
            p.rekey(TOP, key, Key { offset: hash(new), ..key })?;
        }
    }
    let key = p.key(TOP, id, kind::INODE_REF)?;
    p.rewrite(TOP, key, |data| put(data, size_of::<InodeRef>()))?;
    p.edit(TOP, key, |it: &mut InodeRef| it.name_len = len)
}

/// Makes an entry more, by hash and by index.
fn add(
    p: &Patient,
    directory: u64,
    index: u64,
    data: &[u8],
) -> Result<(), buttress_testkit::damage::DamageError> {
    let name = &data[size_of::<DirItem>()..];
    let key = Key::new(directory, kind::DIR_ITEM, hash(name));
    match p.find(TOP, |other, _| *other == key) {
        Ok(_) => p.rewrite(TOP, key, |old| old.extend_from_slice(data))?,
        Err(_) => p.insert(TOP, key, data)?,
    }
    p.insert(TOP, Key::new(directory, kind::DIR_INDEX, index), data)?;
    p.edit(TOP, Key::new(directory, kind::INODE_ITEM, 0), |it: &mut InodeItem| {
        it.size = (it.size.get() + 2 * name.len() as u64).into();
    })
}

/// All names below a directory.
fn below(directory: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut waiting = vec![directory.to_path_buf()];
    while let Some(at) = waiting.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            all.push(path.strip_prefix(directory).unwrap().display().to_string());
            if path.is_dir() && !path.is_symlink() {
                waiting.push(path);
            }
        }
    }
    all.sort();
    all
}

#[test]
fn names_that_are_paths_are_no_names() {
    for name in [&b".."[..], b".", b"a/b", b"/", b"../../up", b"nu\0l", b""] {
        let place = image(|tree| {
            fs::create_dir(tree.join("victim")).unwrap();
            fs::write(tree.join("victim/dropped"), "x").unwrap();
            fs::write(tree.join("other"), "x").unwrap();
        });
        change(&place, |p| rename(p, "victim", name));
        fs::create_dir_all(place.join("a/b/c")).unwrap();
        for line in ["cp -a disk.img:/ a/b/c", "cp -r disk.img:/ a/b/c/new", "ls -alR disk.img"] {
            let said = place.run(line);
            assert_eq!(said.code, 1, "{line}, {name:?}: {}{}", said.text(), said.err);
        }
        let inside: Vec<_> = below(&place.join("a")).into_iter().filter(|it| it != "b").collect();
        assert!(inside.iter().all(|it| it.starts_with("b/c")), "{name:?}: {inside:?}");
        assert!(!inside.iter().any(|it| it.ends_with("dropped")), "{name:?}: {inside:?}");
        assert_eq!(place.run("check disk.img").code, 1, "{name:?}");
        // An inode whose name is empty is no inode's to Linux either.
        if name.is_empty() {
            continue;
        }
        // It costs that name alone, of the many in its leaf.
        for copied in ["b/c/other", "b/c/new/other"] {
            assert!(inside.iter().any(|it| it == copied), "{name:?}: {inside:?}");
        }
        let said = place.run("ls disk.img");
        assert_eq!((said.code, said.text().as_str()), (1, "other\n"), "{name:?}: {}", said.err);
        assert_eq!(said.err.matches("a name that no file can have").count(), 1, "{}", said.err);
        assert_eq!(place.ok("cat disk.img:/other"), "x");
        if let Some(mount) = KernelMount::read_only(&place, "disk.img") {
            assert_eq!(fs::read(mount.path().join("other")).unwrap(), b"x", "{name:?}");
        }
        let said = place.run("check disk.img");
        assert!(said.text().contains("name-bad"), "{name:?}: {}", said.text());
        assert!(!said.text().contains("tree-block"), "{name:?}: {}", said.text());
    }
}

#[test]
fn nobody_finds_or_changes_what_a_path_is_the_name_of() {
    for name in [&b".."[..], b".", b"a/b", b"nu\0l"] {
        let place = image(|tree| {
            fs::write(tree.join("victim"), "x").unwrap();
            fs::write(tree.join("other"), "x").unwrap();
        });
        change(&place, |p| rename(p, "victim", name));
        let fs = Filesystem::open(place.join("disk.img"), Options::read_write()).unwrap();
        assert_eq!(fs.lookup(Node::ROOT, name).unwrap().map(|it| it.node), None, "{name:?}");
        assert!(fs.unlink(Node::ROOT, name).is_err() && fs.rmdir(Node::ROOT, name).is_err());
        assert!(fs.rename(Node::ROOT, name, Node::ROOT, b"new", Rename::Replace).is_err());
        assert!(fs.rename(Node::ROOT, b"other", Node::ROOT, name, Rename::Replace).is_err());
        let mut names = Vec::new();
        let mut each = |entry: buttress::Entry| {
            names.push(entry.name);
            true
        };
        fs.read_dir(Node::ROOT, 0, &mut each).unwrap();
        assert_eq!(names, [b"other".to_vec()], "{name:?}");
        let warnings = fs.warnings();
        assert_eq!(warnings.len(), 1, "{name:?}: {warnings:?}");
        // What lies beside it in its leaf can be changed, and it stays as it is.
        fs.create(Node::ROOT, b"new", &New::file(0o644)).unwrap();
        fs.unlink(Node::ROOT, b"other").unwrap();
        fs.close().unwrap();
        assert_eq!(place.run("ls disk.img").text(), "new\n", "{name:?}");
        assert_eq!(place.run("check disk.img").text().matches("error: name-bad").count(), 2);
    }
}

#[test]
fn a_subvolume_whose_name_is_a_path_has_none() {
    for name in [&b"../../up"[..], b"..", b"a/b"] {
        let place = image(|tree| fs::write(tree.join("file"), "x").unwrap());
        for line in ["disk.img:/bad", "disk.img:/good", "disk.img:/bad/below"] {
            place.ok(&format!("subvolume create {line}"));
        }
        let ids = |name: &str| {
            let all = place.json("subvolume list disk.img");
            let found = all.as_array().unwrap().iter().find(|it| it["name"] == name);
            found.unwrap()["ID"].as_u64().unwrap()
        };
        let (bad, good) = (ids("bad"), ids("good"));
        change(&place, |p| {
            let new = |data: &mut Vec<u8>| {
                data.truncate(size_of::<RootRef>());
                data.extend_from_slice(name);
            };
            let len = (name.len() as u16).into();
            for key in [Key::new(TOP, kind::ROOT_REF, bad), Key::new(bad, kind::ROOT_BACKREF, TOP)]
            {
                p.rewrite(ROOT_TREE, key, new)?;
                p.edit(ROOT_TREE, key, |it: &mut RootRef| it.name_len = len)?;
            }
            for by in [kind::DIR_ITEM, kind::DIR_INDEX] {
                let key = p.entry(TOP, by, "bad")?;
                p.rewrite(TOP, key, |data| {
                    data.truncate(size_of::<DirItem>());
                    data.extend_from_slice(name);
                })?;
                p.edit(TOP, key, |it: &mut DirItem| it.name_len = len)?;
                if by == kind::DIR_ITEM {
                    p.rekey(TOP, key, Key { offset: hash(name), ..key })?;
                }
            }
            Ok(())
        });
        let said = place.run("subvolume list disk.img");
        assert_eq!(said.code, 1, "{}", said.err);
        assert!(said.text().ends_with("path good\n"), "{}", said.text());
        assert_eq!(said.text().lines().count(), 1, "{}", said.text());
        assert!(said.err.contains("a name that no file can have"), "{}", said.err);
        let said = place.run("ls disk.img");
        assert_eq!((said.code, said.text().as_str()), (1, "file\ngood\n"), "{}", said.err);
        assert!(place.ok(&format!("subvolume show -r {good} disk.img")).contains("good"));
        for line in [
            format!("subvolume show -r {bad} disk.img"),
            format!("subvolume delete -i {bad} disk.img"),
            "cp -a disk.img:/ out".into(),
            "subvolume delete -R disk.img:/good".into(),
        ] {
            assert_ne!(place.run(&line).code, 0, "{name:?}: {line}");
        }
        assert_eq!(below(&place.join("out")), ["file", "good"]);
        assert!(place.run("check disk.img").text().contains("name-bad"));
        if let Some(mount) = KernelMount::read_only(&place, "disk.img") {
            assert_eq!(fs::read(mount.path().join("file")).unwrap(), b"x", "{name:?}");
        }
        let Some(live) = Live::of(&place, "-o ro") else { continue };
        assert_eq!(below(&place.join("mnt")), ["file", "good"]);
        let said = place.run("subvolume list mnt");
        assert_eq!((said.code, said.text().lines().count()), (1, 1), "{}", said.err);
        live.end();
    }
}

#[test]
fn a_bad_item_costs_what_it_says_and_not_its_leaf() {
    let place = image(|tree| {
        fs::create_dir(tree.join("dir")).unwrap();
        for name in ["one", "two", "three"] {
            fs::write(tree.join("dir").join(name), vec![b'x'; 10_000]).unwrap();
        }
    });
    for name in ["bad", "good"] {
        place.ok(&format!("subvolume create disk.img:/{name}"));
    }
    let healthy = fs::read(place.join("disk.img")).unwrap();
    // What is listed lacks what cannot be found in any place, a copy what cannot be read; the rest is there, and the end is a failure that says where.
    let judge = |line: &str, there: &[&str], why: &str| {
        let said = place.run(line);
        assert_eq!(said.code, 1, "{line}: {}{}", said.text(), said.err);
        assert!(said.err.contains(why) && said.err.contains("slot="), "{line}: {}", said.err);
        match line.starts_with("cp") {
            true => {
                assert_eq!(below(&place.join("out")), there);
                fs::remove_dir_all(place.join("out")).unwrap();
            }
            false => {
                assert_eq!(said.text().split_whitespace().collect::<Vec<_>>(), there, "{line}")
            }
        }
    };
    change(&place, |p| {
        p.edit(TOP, p.entry(TOP, kind::DIR_INDEX, "two")?, |it: &mut DirItem| it.file_type = 9)
    });
    // By its hash it is there.
    judge("ls disk.img:/dir", &["one", "three", "two"], "invalid type of a dir entry");
    judge("cp -r disk.img:/dir out", &["one", "three", "two"], "invalid type of a dir entry");
    assert_eq!(place.ok("cat disk.img:/dir/two").len(), 10_000);
    assert!(place.fails("rm disk.img:/dir/one").contains("slot="));
    fs::write(place.join("disk.img"), &healthy).unwrap();
    change(&place, |p| p.inode("two", |it| it.mode = 0.into()));
    judge("ls disk.img:/dir", &["one", "three"], "invalid file type");
    judge("cp -r disk.img:/dir out", &["one", "three"], "invalid file type");
    judge("cat disk.img:/dir/two", &[], "invalid file type");
    assert_eq!(place.ok("cat disk.img:/dir/three").len(), 10_000);
    fs::write(place.join("disk.img"), &healthy).unwrap();
    change(&place, |p| {
        let bad = p.key(ROOT_TREE, p.named(TOP, "bad")?, kind::ROOT_ITEM)?;
        p.edit(ROOT_TREE, bad, |it: &mut buttress_ondisk::item::RootItem| it.level = 9)
    });
    let said = place.run("subvolume list disk.img");
    assert_eq!((said.code, said.text().lines().count()), (1, 1), "{}{}", said.text(), said.err);
    assert!(said.text().ends_with("path good\n") && said.err.contains("slot="), "{}", said.err);
    assert_eq!(place.ok("ls disk.img:/dir"), "one\nthree\ntwo\n");
}

#[test]
fn a_link_that_the_copy_made_is_not_followed() {
    let place = image(|tree| {
        fs::create_dir(tree.join("content")).unwrap();
        fs::write(tree.join("content/dropped"), "x").unwrap();
        fs::write(tree.join("file"), "x").unwrap();
        std::os::unix::fs::symlink("../outside", tree.join("way")).unwrap();
    });
    // The same name once more: for a directory, and for a file.
    change(&place, |p| {
        let (content, file) = (p.named(TOP, "content")?, p.named(TOP, "file")?);
        add(p, TOP_DIRECTORY, 900, &entry(content, file_type::DIRECTORY, b"way"))?;
        add(p, TOP_DIRECTORY, 901, &entry(file, file_type::REGULAR, b"way"))
    });
    fs::create_dir(place.join("outside")).unwrap();
    for line in ["cp -a disk.img:/ out", "cp -a disk.img:/ out", "cp -r disk.img:/ out2"] {
        let said = place.run(line);
        assert!(said.code == 0 || said.code == 1, "{line}: {}", said.err);
    }
    assert_eq!(below(&place.join("outside")), Vec::<String>::new());
}

#[test]
fn a_link_on_the_way_to_the_destination_is_followed() {
    let place = image(|tree| fs::write(tree.join("file"), "x").unwrap());
    fs::create_dir_all(place.join("real/below")).unwrap();
    std::os::unix::fs::symlink("real", place.join("link")).unwrap();
    place.ok("cp -a disk.img:/ link");
    place.ok("cp disk.img:/file link/below");
    place.ok("cp -a disk.img:/ link/new");
    assert_eq!(below(&place.join("real")), ["below", "below/file", "file", "new", "new/file"]);
}

/// Memory that the biggest process of ours so far has used, in KiB, is bounded by whoever runs it.
fn bounded(place: &Place, line: &str) -> std::process::Output {
    // Far more than any of these needs, and far less than an endless listing takes.
    let script = "ulimit -v 4000000; ulimit -t 60; exec \"$@\"";
    let program = env!("CARGO_BIN_EXE_buttress");
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", program]).args(line.split_whitespace());
    command.current_dir(place.path()).output().unwrap()
}

#[test]
fn a_directory_is_entered_once() {
    const LEVELS: usize = 40;
    let place = image(|tree| {
        let mut at = tree.to_path_buf();
        for level in 0..LEVELS {
            at = at.join(format!("level{level}"));
            fs::create_dir(&at).unwrap();
        }
        fs::create_dir(tree.join("self")).unwrap();
        fs::write(tree.join("self/file"), "x").unwrap();
    });
    change(&place, |p| {
        let own = p.named(TOP, "self")?;
        add(p, own, 900, &entry(own, file_type::DIRECTORY, b"again"))?;
        add(p, own, 901, &entry(TOP_DIRECTORY, file_type::DIRECTORY, b"top"))?;
        // Two ways to each level: 2^40 to the last one.
        for level in 1..LEVELS {
            let (above, at) = (format!("level{}", level - 1), format!("level{level}"));
            let (above, at) = (p.named(TOP, &above)?, p.named(TOP, &at)?);
            add(p, above, 900, &entry(at, file_type::DIRECTORY, b"too"))?;
        }
        Ok(())
    });
    for line in [
        "ls -R disk.img",
        "ls -R --format json disk.img",
        "cp -a disk.img:/ out",
        "cp -a disk.img:/self out2",
        "cp -a disk.img:/ disk.img:/level0/copy",
        "mv disk.img:/level0/level1 moved",
        "rm -r disk.img:/self",
    ] {
        let said = bounded(&place, line);
        let err = String::from_utf8_lossy(&said.stderr);
        assert_eq!(said.status.code(), Some(1), "{line}: {err}");
        assert!(err.contains("more than one way leads to this directory"), "{line}: {err}");
        assert!(said.stdout.len() < 1 << 20, "{line}");
    }
    assert!(place.join("out2/file").exists() && place.join("out/self/file").exists());
    assert!(!place.join("out2/again").exists() && !place.join("out/self/top").exists());
}

/// The names of a directory and the inodes that they lead to, as whoever looks them up finds.
fn looked_up(directory: &Path) -> Vec<(String, Option<u64>)> {
    use std::os::unix::fs::MetadataExt;
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let look = |name: std::ffi::OsString| {
        let found = directory.join(&name).symlink_metadata().ok().map(|it| it.ino());
        (name.to_string_lossy().into_owned(), found)
    };
    let mut all: Vec<_> = names.map(look).collect();
    all.sort();
    all
}

#[test]
fn names_that_are_there_twice_lead_where_linux_finds_them() {
    let place = image(|tree| {
        for name in ["one", "two", "three", "four"] {
            fs::write(tree.join(name), name).unwrap();
        }
    });
    change(&place, |p| {
        let id = |name| p.named(TOP, name);
        let (one, two, three) = (id("one")?, id("two")?, id("three")?);
        let file = |ino, name: &[u8]| entry(ino, file_type::REGULAR, name);
        // Twice in both, and what is found first by hash differs from what is first by index.
        add(p, TOP_DIRECTORY, 900, &file(one, b"twice"))?;
        add(p, TOP_DIRECTORY, 899, &file(two, b"twice"))?;
        // By hash and by index they lead elsewhere.
        p.insert(TOP, Key::new(TOP_DIRECTORY, kind::DIR_ITEM, hash(b"torn")), &file(one, b"torn"))?;
        p.insert(TOP, Key::new(TOP_DIRECTORY, kind::DIR_INDEX, 901), &file(three, b"torn"))?;
        // By index only.
        p.insert(TOP, Key::new(TOP_DIRECTORY, kind::DIR_INDEX, 902), &file(three, b"listed"))
    });
    let Some(mount) = KernelMount::read_only(&place, "disk.img") else { return };
    let want = looked_up(mount.path());
    let content = |name: &str| fs::read(mount.path().join(name)).unwrap();
    for name in ["twice", "torn"] {
        assert!(place.run(&format!("cat disk.img:/{name}")).out == content(name), "{name}");
    }
    drop(mount);
    let listed = place.run("ls -i disk.img:/");
    let text = listed.text();
    let ours: Vec<(String, Option<u64>)> = text
        .lines()
        .filter_map(|line| line.trim().split_once(' '))
        .map(|(ino, name)| (name.to_owned(), ino.parse().ok()))
        .collect();
    // What Linux lists and then does not find, we list as it is by index: so it can still be copied out.
    let index_only = |it: &(String, Option<u64>)| it.0 == "listed";
    assert_eq!(want.iter().filter(|it| index_only(it)).count(), 1);
    let ours: Vec<_> = ours.into_iter().filter(|it| !index_only(it)).collect();
    let found: Vec<_> = want.iter().filter(|it| !index_only(it)).cloned().collect();
    assert_eq!(ours, found, "{}", listed.err);
    let Some(live) = Live::of(&place, "-o ro") else { return };
    // A listing that tells inodes too comes first.
    let said = Command::new("ls").args(["-li"]).arg(place.join("mnt")).output().unwrap();
    assert!(!said.stdout.is_empty());
    let names: Vec<_> = looked_up(&place.join("mnt"));
    let contents = |name: &str| fs::read(place.join("mnt").join(name)).unwrap_or_default();
    assert_eq!(names.len(), want.len());
    assert_eq!((contents("twice"), contents("torn")), (b"one".to_vec(), b"one".to_vec()));
    live.end();
}

/// What the command writes to a terminal; `None`, said, where there is no `script`.
fn on_a_terminal(place: &Place, line: &str) -> Option<String> {
    let program = env!("CARGO_BIN_EXE_buttress");
    let said = Command::new("script")
        .args(["-qec", &format!("{program} {line}"), "/dev/null"])
        .current_dir(place.path())
        .env("TERM", "dumb")
        .output();
    match said {
        Ok(said) => Some(String::from_utf8_lossy(&said.stdout).into_owned()),
        Err(_) => {
            println!("skipped: there is no script(1)");
            None
        }
    }
}

#[test]
fn progress_shows_no_escape_sequences() {
    let place = Place::new();
    // So much that it is told of.
    fs::create_dir(place.join("\u{1b}[5mtree\u{7}")).unwrap();
    for number in 0..8 {
        let name = format!("\u{1b}[5mtree\u{7}/\u{1b}[7m{number}");
        fs::write(place.join(&name), vec![number; 8 << 20]).unwrap();
    }
    for line in [
        r#"mkfs --size 1G --rootdir "$(printf '\033[5mtree\007')" disk.img"#,
        r#"cp -rv "$(printf '\033[5mtree\007')" disk.img:/copy"#,
    ] {
        let Some(said) = on_a_terminal(&place, line) else { return };
        assert!(!said.contains("\u{1b}[5m") && !said.contains("\u{1b}[7m"), "{line}: {said:?}");
        assert!(!said.contains('\u{7}'), "{line}: {said:?}");
    }
}

#[test]
fn a_terminal_sees_no_escape_sequences() {
    use std::os::unix::ffi::OsStrExt;
    let place = image(|tree| {
        let evil = |bytes: &[u8]| tree.join(std::ffi::OsStr::from_bytes(bytes));
        fs::create_dir(evil(b"\x1b[31mdir\x07")).unwrap();
        fs::write(evil(b"\x1b[31mdir\x07/new\nline"), "x").unwrap();
        fs::write(evil(b"with space"), "x").unwrap();
        std::os::unix::fs::symlink("\u{1b}]0;target\u{7}", evil(b"link")).unwrap();
        fs::write(evil(b"c1 \xc2\x9b\xff"), "x").unwrap();
    });
    place.run_words(&["filesystem", "label", "disk.img", "\u{1b}[7mlabel"]);
    place.run_words(&["subvolume", "create", "disk.img:/\u{1b}[5msub"]);
    let lines = [
        "ls -lR disk.img",
        "stat disk.img:/link disk.img:/*",
        "filesystem label disk.img",
        "filesystem show disk.img",
        "subvolume list disk.img",
        "subvolume list --usage disk.img",
        "subvolume usage disk.img",
        "subvolume show disk.img",
        "inspect-internal dump-tree disk.img",
        "inspect-internal dump-super disk.img",
        "inspect-internal fiemap -v disk.img:/*",
        "inspect-internal inode-resolve 257 disk.img",
        "inspect-internal subvolid-resolve 256 disk.img",
        "subvolume find-new disk.img 0",
        "filesystem compsize disk.img",
        "filesystem du disk.img",
        "property get disk.img",
        "cp -rv disk.img:/ out",
        "rm -rv out",
        "check disk.img",
    ];
    for line in lines {
        let Some(seen) = on_a_terminal(&place, line) else { return };
        let bad = |c: &char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
        assert_eq!(seen.chars().find(bad), None, "{line}: {seen:?}");
    }
    let seen = on_a_terminal(&place, "ls disk.img").unwrap();
    let lines: Vec<_> = seen.lines().collect();
    assert_eq!(
        lines,
        [
            r"''$'\033''[31mdir'$'\a'".replace(r"\a", r"\007").as_str(),
            r"''$'\033''[5msub'",
            r"'c1 '$'\302\233\377'",
            "link",
            "'with space'",
        ]
    );
    // In a pipe names are what they are, and in messages never.
    let said = place.run("ls disk.img");
    assert!(said.out.starts_with(b"\x1b[31mdir\x07\n"));
    let said = place.run_words(&["cat", "disk.img:/\u{1b}[31mdir\u{7}"]);
    assert!(!said.err.contains('\u{1b}') && said.err.contains(r"$'\033'"), "{:?}", said.err);
    let said = place.run_words(&["ls", "\u{1b}[31m.img:/x"]);
    assert!(!said.err.contains('\u{1b}'), "{:?}", said.err);
}

#[test]
fn names_that_are_no_text_keep_their_bytes_in_json() {
    use std::os::unix::ffi::OsStrExt;
    let place = image(|tree| {
        let name = tree.join(std::ffi::OsStr::from_bytes(b"na\xffme"));
        fs::write(&name, "x").unwrap();
        std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(b"to\xfe"), tree.join("link"))
            .unwrap();
    });
    let found = place.json("ls disk.img");
    assert_eq!((&found[0]["name"], found[0].get("name_hex")), (&"link".into(), None));
    assert_eq!(found[0]["target_hex"], "746ffe");
    assert_eq!(found[1]["name"], "na\u{fffd}me");
    assert_eq!(found[1]["name_hex"], "6e61ff6d65");
    assert_eq!(found[1]["path_hex"], "6469736b2e696d673a2f6e61ff6d65");
    let sub = std::ffi::OsStr::from_bytes(b"disk.img:/s\xf0b");
    let made = ["--format", "json", "subvolume", "create"].map(std::ffi::OsStr::new);
    let said = place.run_words(&[&made[..], &[sub]].concat());
    assert!(said.text().contains("\"6469736b2e696d673a2f73f062\""), "{}", said.text());
    assert_eq!(place.json("subvolume list disk.img")[0]["path_hex"], "73f062");
    assert!(place.run("subvolume list disk.img").out.ends_with(b" path s\xf0b\n"));
}
