//! `subvolume`, `property` and `filesystem`: text and effects are those of btrfs-progs.

use crate::live::Live;
use crate::run::{KernelMount, Place, have_progs};

fn image() -> Place {
    let place = Place::new();
    place.ok("mkfs -q --size 400M -L first disk.img");
    place.ok("mkdir disk.img:/dir");
    place.ok("subvolume create -q disk.img:/one");
    place.ok("subvolume create -q disk.img:/dir/two");
    std::fs::write(place.join("file"), vec![1; 100_000]).unwrap();
    place.ok("cp file disk.img:/one");
    place.ok("subvolume create -q disk.img:/one/nested");
    place.ok("subvolume snapshot -q -r disk.img:/one disk.img:/dir");
    place.ok("subvolume snapshot -q disk.img:/one disk.img:/dir/writable");
    place
}

/// The same command on the unmounted image, on our mount of it and, by btrfs-progs, on the kernel's mount of it; what differs for a good
/// reason is made equal by `even`.
pub fn same_text(place: &Place, lines: &[&str], even: impl Fn(String) -> String) {
    let ours: Vec<String> = lines.iter().map(|line| place.ok(&at(line, "disk.img:"))).collect();
    if let Some(live) = Live::of(place, "-o ro") {
        for (line, ours) in lines.iter().zip(&ours) {
            let on_a_mount = place.ok(&at(line, "mnt/"));
            assert_eq!(even(on_a_mount), even(ours.clone()), "on a mount: {line}");
        }
        live.end();
    }
    // Read-only: the kernel must not change what is compared.
    let Some(mount) = KernelMount::read_only(place, "disk.img") else { return };
    let top = mount.path().display().to_string();
    for (line, ours) in lines.iter().zip(ours) {
        let theirs = place.progs("btrfs", &at(line, &format!("{top}/")));
        let theirs = String::from_utf8_lossy(&theirs).into_owned();
        assert_eq!(even(ours), even(theirs), "{line}");
    }
}

fn at(line: &str, top: &str) -> String {
    line.replace('@', top)
}

#[test]
fn subvolumes_are_listed_as_btrfs_progs_does() {
    let place = image();
    same_text(
        &place,
        &[
            "subvolume list @",
            "subvolume list -pcguqR @",
            "subvolume list -t @",
            "subvolume list -tpcguqR @",
            "subvolume list -s @",
            "subvolume list -st @",
            "subvolume list -r @",
            "subvolume list -o @",
            "subvolume list -o @one",
            "subvolume list -a @",
            "subvolume list -a @one",
            "subvolume list @one",
            "subvolume list @dir",
            "subvolume list @dir/two",
            "subvolume list @one/nested",
            "subvolume list -t @dir/writable",
            "subvolume list -p @one",
            "subvolume list -ao @one",
            "subvolume list -pt @one",
            "subvolume list --sort=path @one",
            "subvolume list --sort=-path @one",
            "subvolume list -a --sort=path @one",
            "subvolume list -s --sort=path @one",
            "subvolume list --sort=-gen,path @",
            "subvolume list -G +8 @",
            "subvolume list -G 5 -G +8 @",
            "subvolume list -G +6 -G -8 @",
            "subvolume list -cc -u -u @",
            "subvolume list -C -6 @",
            "subvolume get-default @",
        ],
        |text| text,
    );
}

#[test]
fn subvolumes_are_shown_as_btrfs_progs_does() {
    let place = image();
    let even = |text: String| {
        let line = |line: &str| match line.split_once(":") {
            // btrfs-progs 6.2 prints the time of creation for what was never sent.
            Some(("\tSend time", _)) => "\tSend time".into(),
            _ => line.to_owned(),
        };
        text.lines().map(line).collect::<Vec<_>>().join("\n")
    };
    let lines = ["", "one", "dir/two", "dir/one", "one/nested"];
    let lines = lines.map(|path| format!("subvolume show @{path}"));
    same_text(&place, &lines.each_ref().map(String::as_str), even);
    same_text(&place, &["subvolume show -h @one", "subvolume show --raw @one"], even);
    let list = place.json("subvolume list -u disk.img");
    let one = list.as_array().unwrap().iter().find(|it| it["path"] == "one").unwrap();
    let (id, uuid) = (&one["ID"], one["uuid"].as_str().unwrap());
    let lines = [format!("subvolume show -r {id} @"), format!("subvolume show -u {uuid} @")];
    assert_eq!(place.ok(&at(&lines[0], "disk.img:")), place.ok("subvolume show disk.img:/one"));
    same_text(&place, &lines.each_ref().map(String::as_str), even);
}

#[test]
fn space_is_shown_as_btrfs_progs_does() {
    let place = image();
    let even = |text: String| {
        let line = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                // The reserve, and what it leaves, is each implementation's own decision.
                ["Global", "reserve:", ..] | ["Free", "(statfs,", ..] => String::new(),
                ["GlobalReserve,", ..] => String::new(),
                // The device is the image here and a loop device there.
                [.., path, size] if path.starts_with('/') => format!("PATH {size}"),
                [.., "path", _] => words[..words.len() - 1].join(" "),
                _ => line.to_owned(),
            }
        };
        text.lines().map(line).collect::<Vec<_>>().join("\n")
    };
    let lines = [
        "filesystem df @",
        "filesystem df -b @",
        "filesystem df --si @",
        "filesystem df -k @",
        "filesystem usage @",
        "filesystem usage -b @",
        "filesystem usage -m @",
        "filesystem usage -h @",
        "filesystem usage --iec @",
        "filesystem usage -H @",
        "filesystem usage -g @",
        "filesystem usage --si -k @",
        "filesystem usage --tbytes @",
        "filesystem df -h @",
        "filesystem df -k -m @",
        "filesystem df -m -k @",
        "filesystem df -b -k @",
        "filesystem df -k -b @",
        "filesystem df -k -h @",
        "filesystem df -h -k @",
        "filesystem df -k -H @",
        "filesystem df -H -k @",
        "filesystem df --si -b @",
        "filesystem df -b --si @",
        "filesystem df -k --si @",
        "filesystem df --si --iec @",
        "filesystem df -k -b --iec @",
        "filesystem df -k -k --si -m @",
        "filesystem usage -b -b @",
        "filesystem usage -m -H @",
        "filesystem show @",
        "filesystem show -m @",
        "filesystem show --raw @",
        "filesystem show --si @",
        "filesystem show --kbytes @",
        "filesystem label @",
        "property list @",
        "property list @dir",
        "property list -t s @dir",
        "property list -t filesystem @",
        "property list -t d @",
        "property list -t i @one",
    ];
    same_text(&place, &lines, even);
    // In the middle of a conversion.
    std::fs::write(place.join("file"), vec![7; 30_000_000]).unwrap();
    for name in ["a", "b", "c", "d", "e"] {
        place.ok(&format!("cp file disk.img:/{name}"));
    }
    let twice = place.ok("filesystem usage disk.img disk.img");
    let once = place.ok("filesystem usage disk.img");
    assert_eq!(twice, format!("{once}\n{once}"));
    same_text(&place, &["filesystem usage @ @"], even);
    assert_eq!(place.json("filesystem usage disk.img disk.img").as_array().unwrap().len(), 2);
    let said = place.run("filesystem usage disk.img nowhere disk.img");
    assert_eq!((said.code, said.text()), (1, twice), "{}", said.err);
    place.ok("balance start -dconvert=dup,limit=1 disk.img");
    let usage = place.ok("filesystem usage disk.img");
    assert!(usage.contains("yes\t(data)"), "{usage}");
    same_text(&place, &lines, even);
}

#[test]
fn space_is_shown_in_a_table_as_btrfs_progs_does() {
    let place = image();
    // The device is the image here and a loop device there: the column of paths goes.
    let even = |text: String| {
        let table: Vec<&str> = text.lines().skip_while(|line| !line.is_empty()).collect();
        let ruler = table.iter().find(|line| line.starts_with("-- ")).unwrap();
        let width = ruler.split(' ').nth(1).unwrap().len();
        let line = |line: &&str| match line.len() > 3 + width {
            true => format!("{}{}", &line[..3], &line[3 + width..]),
            false => line.to_string(),
        };
        table.iter().map(line).collect::<Vec<_>>().join("\n")
    };
    same_text(&place, &["filesystem usage -T @", "filesystem usage -T -b @"], even);
}

#[test]
fn what_is_made_and_deleted_is_so_for_the_kernel() {
    let place = image();
    assert!(place.fails("subvolume create disk.img:/no/such/dir").contains("No such file"));
    place.ok("subvolume create -q -p disk.img:/new/dir/sub");
    place.ok("subvolume delete -q disk.img:/new/dir/sub");
    let said = place.fails("subvolume delete disk.img:/one");
    assert!(
        said.contains("cannot delete disk.img:/one: Directory not empty\n  It holds other"),
        "{said}"
    );
    place.ok("subvolume set-default disk.img:/dir/writable");
    assert!(place.ok("subvolume get-default disk.img").ends_with(" path dir/writable\n"));
    let said = place.fails("subvolume delete disk.img:/dir/writable");
    assert!(said.contains("it is the default subvolume"), "{said}");
    place.ok("subvolume set-default 5 disk.img");
    assert_eq!(place.ok("subvolume get-default disk.img"), "ID 5 (FS_TREE)\n");
    let text = place.ok("subvolume delete -R disk.img:/one");
    assert_eq!(
        text,
        "Delete subvolume (no-commit): 'disk.img:/one/nested'\nDelete subvolume (commit): 'disk.img:/one'\n"
    );
    place.ok("subvolume delete -q -i 257 disk.img");
    if have_progs() {
        place.check("disk.img");
    }
    let list = place.json("subvolume list disk.img");
    let paths: Vec<_> =
        list.as_array().unwrap().iter().map(|it| it["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["dir/one", "dir/writable"]);
    let Some(mount) = KernelMount::of(&place, "disk.img") else { return };
    assert!(!mount.path().join("one").exists());
    assert_eq!(std::fs::read(mount.path().join("dir/one/file")).unwrap(), vec![1; 100_000]);
}

#[test]
fn properties() {
    let place = image();
    assert_eq!(place.ok("property get disk.img"), "ro=false\nlabel=first\n");
    assert_eq!(place.ok("property get disk.img:/dir/one ro"), "ro=true\n");
    assert!(place.fails("mkdir disk.img:/dir/one/x").contains("Read-only file system"));
    place.ok("property set disk.img:/dir/one ro false");
    place.ok("mkdir disk.img:/dir/one/x");
    assert_eq!(place.ok("property get -t subvol disk.img"), "ro=false\n");
    assert_eq!(place.ok("property get -t f disk.img"), "label=first\n");
    assert_eq!(place.ok("property get -t device disk.img label"), "label=first\n");
    place.ok("property set disk.img label second");
    // Nothing but the label changes here, which once made an image that could not be opened again.
    place.ok("filesystem label disk.img third");
    assert_eq!(place.ok("filesystem label disk.img"), "third\n");
    if have_progs() {
        place.check("disk.img");
        assert_eq!(place.progs("btrfs", "filesystem label disk.img"), b"third\n");
    }
    assert!(place.fails("property get disk.img:/dir ro").contains("it is not a subvolume"));
    assert_eq!(place.run("property get disk.img colour").code, 2);
    assert_eq!(place.run("property get -t x disk.img").code, 2);
    assert_eq!(place.run(&format!("filesystem label disk.img {}", "x".repeat(256))).code, 2);
}

#[test]
fn compression_is_a_property_of_what_has_data() {
    let place = image();
    std::fs::write(place.join("small"), "some bytes").unwrap();
    place.ok("cp small disk.img:/f");
    place.ok("mkdir disk.img:/d");
    place.ok("ln -s f disk.img:/l");
    assert_eq!(place.ok("property get disk.img:/f"), "");
    assert_eq!(place.ok("property get disk.img:/f compression"), "");
    for value in ["zstd", "zstd:5", "lzo", "zlib", "none", "no"] {
        place.ok(&format!("property set disk.img:/l compression {value}"));
        assert_eq!(place.ok("property get disk.img:/f"), format!("compression={value}\n"));
    }
    place.ok("property set disk.img:/d compression zlib");
    place.ok("cp small disk.img:/d/inherits");
    assert_eq!(place.ok("property get disk.img:/d/inherits compression"), "compression=zlib\n");
    assert_eq!(place.json("property get disk.img:/d")["compression"], "zlib");
    place.ok("property set -t inode disk.img compression lzo");
    assert_eq!(place.ok("property get disk.img"), "ro=false\nlabel=first\ncompression=lzo\n");
    assert_eq!(place.ok("property get -t i disk.img"), "compression=lzo\n");
    assert!(
        place.fails("property get -t s disk.img compression").contains("none of what -t names")
    );
    assert!(place.fails("property set disk.img:/f compression foo").contains("zstd"));
    assert!(place.ok("property list disk.img:/f").starts_with("compression "));
    for (kind, name) in [("s", "ro "), ("f", "label "), ("d", "label "), ("inode", "compression ")]
    {
        for target in ["disk.img", "disk.img:/d"] {
            let text = place.ok(&format!("property list -t {kind} {target}"));
            assert!(text.starts_with(name) && text.lines().count() == 1, "{kind}: {text}");
        }
    }
    assert_eq!(place.run("property list -t x disk.img").code, 2);
    if have_progs() {
        place.check("disk.img");
    }
    if let Some(mount) = KernelMount::of(&place, "disk.img") {
        let said =
            place.progs("btrfs", &format!("property get {}/d/inherits", mount.path().display()));
        assert_eq!(said, b"compression=zlib\n");
    }
    let said = place.run_words(&["property", "set", "disk.img:/f", "compression", ""]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    assert_eq!(place.ok("property get disk.img:/f"), "");
}

#[test]
fn failures_say_what_to_do() {
    let place = image();
    assert_eq!(
        place.fails("subvolume create disk.img:/one"),
        "buttress: cannot create disk.img:/one: target path already exists\n"
    );
    assert_eq!(
        place.fails("subvolume show disk.img:/dir"),
        "buttress: cannot use disk.img:/dir: it is not a subvolume\n"
    );
    assert!(
        place.fails("subvolume snapshot disk.img:/dir disk.img:/x").contains("not a subvolume")
    );
    let said = place.fails("subvolume list .");
    assert!(said.contains("neither a btrfs image nor on a live mount of buttress"), "{said}");
}

#[test]
fn everything_as_json() {
    let place = image();
    assert_eq!(place.json("subvolume show disk.img:/one")["snapshots"][0], "dir/one");
    assert_eq!(place.json("subvolume get-default disk.img")["ID"], 5);
    assert_eq!(place.json("property get disk.img")["ro"], false);
    assert_eq!(place.json("filesystem show disk.img")[0]["total_devices"], 1);
    assert_eq!(place.json("filesystem label disk.img"), "first");
    let usage = place.json("filesystem usage disk.img");
    assert_eq!(usage["overall"]["device-size"], 400 << 20);
    assert_eq!(place.json("filesystem df disk.img")[0]["bg-type"], "Data");
}

#[test]
fn changes_as_json() {
    let place = image();
    let made = place.json("subvolume create disk.img:/x disk.img:/y");
    assert_eq!(made, serde_json::json!(["disk.img:/x", "disk.img:/y"]));
    let made = place.json("subvolume snapshot -r disk.img:/x disk.img:/z");
    assert_eq!((&made["path"], &made["readonly"]), (&"disk.img:/z".into(), &true.into()));
    assert_eq!(place.json("subvolume delete disk.img:/x")[0], "disk.img:/x");
}

#[test]
fn quotas_and_limits_are_kept() {
    let place = image();
    let Some(mount) = KernelMount::of(&place, "disk.img") else { return };
    let quota = |mount: &KernelMount, words: &str| {
        place.progs("btrfs", &format!("{words} {}", mount.path().display()));
    };
    quota(&mount, "quota enable");
    quota(&mount, "quota rescan -w");
    drop(mount);
    place.ok("mkdir disk.img:/counted");
    place.ok("subvolume create -q disk.img:/sub");
    place.check("disk.img");
    let mount = KernelMount::of(&place, "disk.img").unwrap();
    quota(&mount, "qgroup limit 1M 0/5");
    drop(mount);
    place.ok("mkdir disk.img:/limited");
    std::fs::write(place.join("large"), vec![1; 3_000_000]).unwrap();
    assert!(place.fails("cp large disk.img:/large").contains("Disk quota exceeded"));
    place.check("disk.img");
}

#[test]
fn room_is_what_the_kernel_says() {
    let place = Place::new();
    for (size, options) in [("300M", ""), ("3G", ""), ("200M", "--mixed")] {
        place.ok(&format!("mkfs -q -f --size {size} {options} disk.img"));
        let Some(mount) = KernelMount::of(&place, "disk.img") else { return };
        std::fs::write(mount.path().join("file"), vec![7; 10 << 20]).unwrap();
        place.progs("btrfs", &format!("filesystem sync {}", mount.path().display()));
        let stat = rustix::fs::statvfs(mount.path()).unwrap();
        let said = place.progs("btrfs", &format!("filesystem usage -b {}", mount.path().display()));
        drop(mount);
        let said = String::from_utf8(said).unwrap();
        let number = |name: &str| -> u64 {
            let line = said.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
            line.split_whitespace().find_map(|word| word.parse().ok()).unwrap()
        };
        let ours = &place.json("filesystem usage disk.img")["overall"];
        assert_eq!(ours["device-allocated"], number("Device allocated:"), "{size} {options}");
        let near = |name: &str, theirs: u64| {
            let ours = ours[name].as_u64().unwrap();
            let message = format!("{size} {options} {name}: {ours}, theirs {theirs}");
            assert!(ours.abs_diff(theirs) < 16 << 20, "{message}");
        };
        near("free-statfs", stat.f_bavail * stat.f_frsize);
        near("free-estimated", number("Free (estimated):"));
        near("used", number("Used:"));
    }
}

#[test]
fn a_deleted_subvolume_is_listed_until_its_space_is_free() {
    let place = image();
    place.ok("subvolume create -q disk.img:/gone");
    // No thread that commits by itself: a second commit would drop it before the copy is made.
    let options = buttress::Options::read_write().background(false);
    let fs = buttress::Filesystem::open(place.join("disk.img"), options);
    let fs = fs.unwrap();
    let dir = fs.resolve("/gone").unwrap();
    // What was changed in it is written first, and it goes with the commit after that.
    let file = buttress::New::of(buttress::FileKind::Regular, 0o644);
    fs.create(dir, b"file", &file).unwrap();
    fs.delete_subvolume(buttress::Node::ROOT, b"gone").unwrap();
    fs.commit().unwrap();
    std::fs::copy(place.join("disk.img"), place.join("between.img")).unwrap();
    fs.clean().unwrap();
    fs.close().unwrap();
    assert_eq!(place.ok("subvolume list -d disk.img"), "");
    assert!(!place.ok("subvolume list between.img").contains("gone"));
    let listed = place.ok("subvolume list -d between.img");
    assert!(listed.ends_with(" top level 0 path DELETED\n"), "{listed}");
    let Some(mount) = KernelMount::read_only(&place, "between.img") else { return };
    let theirs = place.progs("btrfs", &format!("subvolume list -d {}", mount.path().display()));
    assert_eq!(listed, String::from_utf8(theirs).unwrap());
}

#[test]
fn what_is_mounted_is_shown() {
    let place = image();
    let uuid = place.json("filesystem show disk.img")[0]["uuid"].as_str().unwrap().to_owned();
    let label = format!("label {}", &uuid[..8]).replace(' ', "-");
    place.ok(&format!("filesystem label disk.img {label}"));
    for target in [&uuid, &label] {
        let said = place.fails(&format!("filesystem show {target}"));
        assert!(said.contains("No such file") && said.contains("label or uuid"), "{said}");
    }
    let Some(live) = Live::of(&place, "") else { return };
    let one = place.ok("filesystem show mnt");
    for line in ["", "-d", "--all-devices", "-m", "--mounted"] {
        let all = place.ok(&format!("filesystem show {line}"));
        assert_eq!(all.matches(&one).count(), 1, "{line}: {all}");
    }
    for target in [&uuid, &uuid.to_uppercase(), &label] {
        assert_eq!(place.ok(&format!("filesystem show {target}")), one, "{target}");
        assert_eq!(place.ok(&format!("filesystem show -m {target}")), one, "{target}");
    }
    let all = place.json("filesystem show");
    assert!(all.as_array().unwrap().iter().any(|it| it["uuid"] == *uuid), "{all}");
    assert_eq!(place.json(&format!("filesystem show {uuid}")).as_array().unwrap().len(), 1);
    for line in ["nowhere.img:/x", "disk.img:/nowhere"] {
        let said = place.fails(&format!("filesystem show {line}"));
        assert!(!said.contains("label or uuid"), "{said}");
    }
    let said = place.fails("filesystem show nowhere.img:/x");
    assert!(said.contains("There is no image or disk nowhere.img either"), "{said}");
    // What has no label is not called by no name.
    assert_eq!(place.run_words(&["filesystem", "label", "mnt", ""]).code, 0);
    let said = place.run_words(&["filesystem", "show", ""]);
    assert_eq!((said.code, said.text()), (1, String::new()), "{}", said.err);
    live.end();
    // Other tests have mounts, too, or have none.
    let said = place.run("filesystem show");
    let none = "nothing is mounted by buttress; name an image or disk\n";
    assert!(said.code == 0 && !said.text().contains(&uuid), "{}", said.text());
    assert!(said.err.is_empty() || said.err == none && said.text().is_empty(), "{}", said.err);
    assert_eq!(place.run("-q filesystem show").err, "");
}

/// Paths of subvolumes.
fn subvolumes(place: &Place, target: &str) -> Vec<String> {
    let list = place.ok(&format!("subvolume list {target}"));
    list.lines().filter_map(|line| line.split(' ').next_back().map(str::to_owned)).collect()
}

#[test]
fn nothing_nested_is_deleted_where_its_subvolume_is_not() {
    let place = image();
    place.ok("ln -s one disk.img:/link");
    place.ok("ln -s writable disk.img:/dir/link");
    place.ok("subvolume create -q disk.img:/dir/writable/below");
    let all = subvolumes(&place, "disk.img");
    let refused = |image: &str, target: &str| {
        place.fails(&format!("subvolume delete -R {target}"));
        assert_eq!(subvolumes(&place, image), all, "{target}");
    };
    for path in ["one/.", "one/.//", "one/nested/..", "link/.", "dir/..", "", "/", "file/"] {
        refused("disk.img", &format!("disk.img:/{path}"));
    }
    assert_eq!(
        place.ok("subvolume delete -R disk.img:/dir/link/"),
        "Delete subvolume (no-commit): 'disk.img:/dir/writable/below'\n\
         Delete subvolume (commit): 'disk.img:/dir/writable'\n"
    );
    let all = subvolumes(&place, "disk.img");
    assert!(!all.iter().any(|path| path.contains("writable")), "{all:?}");
    let Some(live) = Live::of(&place, "") else { return };
    for target in ["mnt/one/.", "mnt/one/./", "mnt/one/nested/..", "mnt/link/.", "mnt", "mnt/"] {
        place.fails(&format!("subvolume delete -R {target}"));
        assert_eq!(subvolumes(&place, "mnt"), all, "{target}");
    }
    assert_eq!(place.ok("subvolume delete -R mnt/link/").lines().count(), 2);
    assert!(place.join("mnt/link").is_symlink() && !place.join("mnt/one").exists());
    live.end();
    place.check("disk.img");
}

#[test]
fn links_to_subvolumes_are_followed_to_delete_them() {
    let place = image();
    place.ok("ln -s one/nested disk.img:/link");
    place.ok("ln -s ../dir disk.img:/dir/directory");
    place.ok("ln -s writable disk.img:/dir/link");
    assert!(place.fails("subvolume delete disk.img:/dir/directory").contains("not a subvolume"));
    assert_eq!(
        place.ok("subvolume delete disk.img:/link"),
        "Delete subvolume (commit): 'disk.img:/one/nested'\n"
    );
    assert_eq!(place.ok("ls disk.img:/"), "dir\nlink\none\n");
    assert!(place.fails("subvolume delete disk.img:/link").contains("No such file"));
    place.check("disk.img");
    let Some(live) = Live::of(&place, "") else { return };
    let link = |name: &str, to: &str| {
        std::os::unix::fs::symlink(to, place.join(name)).unwrap();
        place.ok(&format!("subvolume delete -c {name}"))
    };
    let writable = place.join("mnt/dir/writable").canonicalize().unwrap();
    let said = place.ok("subvolume delete -c mnt/dir/link");
    assert_eq!(said, format!("Delete subvolume (commit): '{}'\n", writable.display()));
    assert!(link("outside", "mnt/dir/two").contains("/mnt/dir/two'"));
    assert!(place.join("outside").is_symlink() && place.join("mnt/dir/link").is_symlink());
    let list = place.ok("subvolume list mnt");
    assert!(!list.contains("writable") && !list.contains("two"), "{list}");
    live.end();
    place.check("disk.img");
}
