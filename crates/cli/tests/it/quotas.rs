//! `quota` and `qgroup`: text is that of btrfs-progs of the same filesystem, what is changed is so for the kernel, and a live mount does the
//! same.

use std::process::Command;

use buttress_ondisk::{Key, kind, objectid};
use serde_json::{Value, json};

use crate::device::for_everybody;
use crate::hostile::change;
use crate::live::Live;
use crate::run::{KernelMount, Place, Said, have_progs};

/// Has btrfs-progs do something to what is mounted at `top`. When groups get into others or leave them they begin a count, and fail where the last one has not ended.
fn by_progs(place: &Place, line: &str, top: &str) {
    if line.starts_with("qgroup assign") || line.starts_with("qgroup remove") {
        place.progs("btrfs", &format!("quota rescan -W {top}"));
    }
    place.progs("btrfs", &line.replace('@', top));
}

/// An image to which the kernel has given quotas, groups of several levels, and limits where these are wanted.
fn of_the_kernel(limits: bool) -> Option<Place> {
    let place = Place::new();
    place.ok("mkfs -q --size 400M disk.img");
    let mount = KernelMount::of(&place, "disk.img")?;
    let top = mount.path().display().to_string();
    let btrfs = |line: &str| by_progs(&place, line, &top);
    btrfs("subvolume create @/early");
    btrfs("subvolume create @/gone");
    btrfs("quota enable @");
    for group in ["1/1", "1/2", "1/100", "2/1", "1/123456789"] {
        btrfs(&format!("qgroup create {group} @"));
    }
    btrfs("subvolume create -i 1/1 -i 2/1 @/a");
    std::fs::create_dir(mount.path().join("dir")).unwrap();
    btrfs("subvolume create @/dir/deep");
    std::fs::write(mount.path().join("a/file"), vec![1; 3_000_000]).unwrap();
    std::fs::write(mount.path().join("dir/deep/file"), vec![2; 200_000]).unwrap();
    btrfs("filesystem sync @");
    btrfs("qgroup assign 1/1 2/1 @");
    btrfs("qgroup assign 0/256 1/2 @");
    btrfs("subvolume snapshot -i 1/2 -i 1/100 @/a @/dir/snap");
    btrfs("subvolume snapshot -r @/a @/ro");
    std::fs::write(mount.path().join("a/small"), "x").unwrap();
    if limits {
        btrfs("qgroup limit 1G @/early");
        btrfs("qgroup limit -e 15E 1/1 @");
        btrfs("qgroup limit 5M 1/1 @");
        btrfs("qgroup limit 123456789 0/259 @");
        btrfs("qgroup limit -e 0 1/100 @");
    }
    // Of no subvolume, and so nobody's.
    btrfs("qgroup create 0/7 @");
    btrfs("subvolume delete -c @/gone");
    btrfs("subvolume sync @");
    btrfs("quota rescan -w @");
    drop(mount);
    Some(place)
}

/// btrfs-progs 6.2 has something else behind groups of higher levels: how many they are in, which it calls members, and their numbers.
fn even(text: &str) -> String {
    let at = text.lines().next().and_then(|line| line.find("Path")).unwrap_or(0);
    let line = |line: &str| match line.split_at_checked(at) {
        Some((before, behind)) if behind.contains(" member qgroup") => format!("{before}<members>"),
        _ => line.to_owned(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

const SHOWN: [&str; 24] = [
    "",
    "-p",
    "-c",
    "-r",
    "-e",
    "-pcre",
    "-pcre --raw",
    "-re --si",
    "-r --kbytes",
    "-e --gbytes --si",
    "--mbytes",
    "--tbytes",
    "--iec",
    "--human-readable",
    "--sync",
    "--sort=qgroupid",
    "--sort=-qgroupid",
    "--sort=rfer",
    "--sort=-rfer,excl",
    "--sort=+excl,-rfer",
    "--sort=max_rfer",
    "--sort=-max_rfer",
    "--sort=+max_excl,-rfer",
    "--sort=-max_excl",
];

#[test]
fn groups_are_listed_as_btrfs_progs_does() {
    let Some(place) = of_the_kernel(true) else { return };
    let mut lines = Vec::new();
    for options in SHOWN {
        for filter in ["", "-F", "-f"] {
            let paths: &[&str] =
                if filter.is_empty() { &[""] } else { &["", "a", "dir", "dir/snap"] };
            let line = |path: &&str| format!("qgroup show {options} {filter} @{path}");
            lines.extend(paths.iter().map(line));
        }
    }
    let mount = KernelMount::read_only(&place, "disk.img").unwrap();
    let theirs = |line: &str, top: &str| {
        let said = place.progs("btrfs", &line.replace('@', top));
        String::from_utf8_lossy(&said).into_owned()
    };
    let top = format!("{}/", mount.path().display());
    let theirs: Vec<String> = lines.iter().map(|line| even(&theirs(line, &top))).collect();
    let shows = ["a", "", "early", "dir/snap"].map(|path| format!("--raw {top}{path}"));
    let groups = shows.map(|show| {
        group_lines(&String::from_utf8_lossy(
            &place.progs("btrfs", &format!("subvolume show {show}")),
        ))
    });
    drop(mount);
    let same = |prefix: &str| {
        for (line, theirs) in lines.iter().zip(&theirs) {
            assert_eq!(even(&place.ok(&line.replace('@', prefix))), *theirs, "{line}");
        }
        for (path, theirs) in ["a", "", "early", "dir/snap"].iter().zip(&groups) {
            let ours = group_lines(&place.ok(&format!("subvolume show --raw {prefix}{path}")));
            assert_eq!(ours, *theirs, "{path}");
            assert_eq!(ours.len(), 5);
        }
    };
    same("disk.img:/");
    let Some(live) = Live::of(&place, "-o ro") else { return };
    same("mnt/");
    live.end();
}

/// What `subvolume show` says of the group.
fn group_lines(text: &str) -> Vec<String> {
    let lines = text.lines().skip_while(|line| !line.starts_with("\tQuota group:"));
    lines.map(str::to_owned).collect()
}

/// btrfs-progs 6.2 writes numbers as text; that it ends by a signal where there are limits is no matter of ours.
#[test]
fn groups_as_json_are_those_of_btrfs_progs() {
    let Some(place) = of_the_kernel(false) else { return };
    let mount = KernelMount::read_only(&place, "disk.img").unwrap();
    let line = format!("--format json qgroup show {}", mount.path().display());
    let theirs: Value = serde_json::from_slice(&place.progs("btrfs", &line)).unwrap();
    drop(mount);
    let ours = place.json("qgroup show disk.img");
    let ours: Vec<Value> = ours.as_array().unwrap().iter().map(as_text).collect();
    assert_eq!(ours, *theirs["qgroup-show"].as_array().unwrap());
}

fn as_text(group: &Value) -> Value {
    let mut group = group.clone();
    for name in ["referenced", "exclusive"] {
        group[name] = group[name].as_u64().unwrap().to_string().into();
    }
    group.as_object_mut().unwrap().remove("stale");
    group
}

#[test]
fn members_are_counted_and_paths_sorted() {
    let Some(place) = of_the_kernel(true) else { return };
    let shown = place.ok("qgroup show --sort=-path disk.img");
    let behind = |id: &str| {
        let line = shown.lines().find(|line| line.split_whitespace().next() == Some(id)).unwrap();
        line.rsplit("  ").next().unwrap().trim().to_owned()
    };
    let ids = ["0/5", "0/7", "0/258", "1/1", "1/2", "1/123456789", "2/1"];
    let expected = [
        "<toplevel>",
        "<stale>",
        "a",
        "<1 member qgroup>",
        "<2 member qgroups>",
        "<0 member qgroups>",
        "<2 member qgroups>",
    ];
    assert_eq!(ids.map(behind), expected);
    let paths: Vec<&str> =
        shown.lines().rev().filter_map(|line| line.rsplit("  ").next()).collect();
    assert_eq!(paths[..4], ["<toplevel>", "a", "dir/deep", "dir/snap"].map(|path| path));
    let limited = place.json("qgroup show -f disk.img:/early");
    assert_eq!(limited[0]["max_referenced"], 1_u64 << 30);
    assert_eq!(limited[0]["max_exclusive"], "none");
    let expected = "\
Quotas on disk.img:
  Enabled:                 yes
  Mode:                    qgroup (full accounting)
  Inconsistent:            no
  Override limits:         no
  Total count:             12
  Level 0:                 7
";
    assert_eq!(place.ok("quota status disk.img"), expected);
    assert_eq!(place.ok("quota rescan -s disk.img"), "no rescan operation in progress\n");
}

fn image() -> Place {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    place.ok("subvolume create -q disk.img:/sub");
    std::fs::write(place.join("data"), vec![7; 300_000]).unwrap();
    place.ok("cp data disk.img:/sub/data");
    place
}

#[test]
fn nothing_is_done_without_quotas() {
    let place = image();
    let off = |prefix: &str| {
        let name = prefix.trim_end_matches([':', '/']);
        for line in [
            "qgroup show @",
            "qgroup create 1/1 @",
            "qgroup destroy 1/1 @",
            "qgroup assign 0/256 1/1 @",
            "qgroup remove 0/256 1/1 @",
            "qgroup limit 1G @sub",
            "qgroup clear-stale @",
            "quota rescan @",
            "quota rescan -w @",
        ] {
            let said = place.fails(&line.replace('@', prefix));
            let why = ": quotas are not enabled\n  `buttress quota enable ";
            assert!(said.contains(why), "{line}: {said}");
        }
        // As on Linux: who always says so is not refused.
        place.ok(&format!("subvolume create -q -i 1/1 {prefix}other"));
        place.ok(&format!("subvolume snapshot -q -i 1/1 {prefix}sub {prefix}another"));
        for made in ["other", "another"] {
            place.ok(&format!("subvolume delete -q {prefix}{made}"));
        }
        let line = format!("quota status {name}");
        assert_eq!(place.ok(&line), format!("Quotas on {name}:\n  Enabled:                 no\n"));
        assert_eq!(place.json(&line), json!({ "enabled": false }));
        assert_eq!(place.run(&format!("quota status --is-enabled {name}")).code, 1);
        place.ok(&format!("quota disable {name}"));
        assert_eq!(place.ok(&format!("quota rescan -W {name}")), "");
    };
    off("disk.img:/");
    let Some(live) = Live::of(&place, "") else { return };
    off("mnt/");
    live.end();
}

#[test]
fn groups_that_cannot_be_are_refused() {
    let place = image();
    for line in [
        "qgroup create 5 disk.img",
        "qgroup create 1/x disk.img",
        "qgroup create 65536/1 disk.img",
        "qgroup create 1/281474976710656 disk.img",
        "qgroup limit 1x 0/5 disk.img",
        "qgroup limit 1G",
        "qgroup show --sort=size disk.img",
        "quota rescan -sw disk.img",
    ] {
        assert_eq!(place.run(line).code, 2, "{line}");
    }
    place.ok("quota enable disk.img");
    place.ok("qgroup create 1/1 disk.img");
    place.ok("qgroup create 2/1 disk.img");
    place.ok("qgroup assign disk.img:/sub 1/1 disk.img");
    let refused = |prefix: &str| {
        for (line, why) in [
            ("qgroup create 1/1 @", "there is one already"),
            ("qgroup create 0/300 @", "groups of level 0 come with their subvolumes"),
            ("qgroup destroy 3/3 @", "there is no such group"),
            ("qgroup destroy 1/1 @", "it has members"),
            ("qgroup destroy 0/5 @", "its subvolume is there"),
            ("qgroup assign 0/256 1/1 @", "it is in it already"),
            ("qgroup assign 0/256 1/9 @", "there is no such group"),
            ("qgroup assign 2/1 1/1 @", "the level of a group must be higher"),
            ("qgroup assign nowhere 1/1 @", "neither LEVEL/NUMBER nor the path of a subvolume"),
            ("qgroup assign data 1/1 @", "it is not in the filesystem of "),
            ("qgroup remove 0/5 1/1 @", "it is not in it"),
            ("qgroup limit 1G 7/7 @", "there is no such group"),
            ("qgroup limit 1G @sub/data", "it is not a subvolume"),
            ("subvolume create -i 9/9 @new", "there is no such group: 9/9"),
            ("subvolume snapshot -i 0/5 @sub @new", "only groups above level 0 hold subvolumes"),
        ] {
            let said = place.run(&line.replace('@', prefix));
            assert!(said.code == 1 && said.err.contains(why), "{line}: {}", said.err);
        }
    };
    refused("disk.img:/");
    let Some(live) = Live::of(&place, "") else { return };
    refused("mnt/");
    live.end();
    place.ok("check disk.img");
}

/// The same by the commands of both, each on its own image: what both list then is the same, and the kernel's image is listed so by both.
#[test]
fn what_is_changed_is_so_for_the_kernel() {
    let place = image();
    std::fs::copy(place.join("disk.img"), place.join("theirs.img")).unwrap();
    let lines = [
        "quota enable @",
        "qgroup create 1/1 @",
        "qgroup create 2/7 @",
        "subvolume create -i 1/1 @new",
        "subvolume snapshot -i 1/1 -i 2/7 @sub @snap",
        "subvolume snapshot @sub @plain",
        "qgroup assign 1/1 2/7 @",
        "qgroup assign 0/256 1/1 @",
        "qgroup limit 5G 1/1 @",
        "qgroup limit -e 1T @sub",
        "qgroup limit 7M @snap",
        "qgroup limit none @snap",
        "qgroup remove 0/258 2/7 @",
        "qgroup create 1/2 @",
        "qgroup destroy 1/2 @",
        "quota rescan -w @",
    ];
    lines.iter().for_each(|line| drop(place.ok(&line.replace('@', "disk.img:/"))));
    let Some(mount) = KernelMount::of(&place, "theirs.img") else { return };
    let top = format!("{}/", mount.path().display());
    lines.iter().for_each(|line| by_progs(&place, line, &top));
    drop(mount);
    place.check("disk.img");
    let show = "qgroup show -pcre --raw";
    let ours = place.ok(&format!("{show} disk.img"));
    assert_eq!(ours, place.ok(&format!("{show} theirs.img")));
    let mount = KernelMount::of(&place, "disk.img").unwrap();
    let by_progs = place.progs("btrfs", &format!("{show} {}", mount.path().display()));
    assert_eq!(even(&ours), even(&String::from_utf8_lossy(&by_progs)));
    // What the kernel counts goes on from there.
    place.progs("btrfs", &format!("quota rescan -w {}", mount.path().display()));
    drop(mount);
    assert_eq!(place.ok(&format!("{show} disk.img")), ours);
    place.ok("quota disable disk.img");
    assert!(place.fails("qgroup show disk.img").contains("not enabled"));
    place.check("disk.img");
}

#[test]
fn relations_that_make_numbers_wrong_have_them_counted() {
    let place = image();
    place.ok("quota enable disk.img");
    place.ok("qgroup create 1/1 disk.img");
    place.ok("subvolume snapshot -q disk.img:/sub disk.img:/snap");
    // In a group that has nothing else all is its own.
    assert_eq!(place.ok("qgroup assign 0/256 1/1 disk.img"), "");
    // What the library has counted by itself in the meantime need not be counted again.
    let is_said = |line: &str| {
        let text = place.ok(line);
        assert!(["", "Quota data changed, rescan scheduled\n"].contains(&&*text), "{line}: {text}");
    };
    is_said("qgroup assign 0/257 1/1 disk.img");
    assert_eq!(place.ok("-q qgroup remove 0/257 1/1 disk.img"), "");
    is_said("qgroup assign --rescan 0/257 1/1 disk.img");
    let group = |id: &str| {
        let all = place.json("qgroup show disk.img");
        all.as_array().unwrap().iter().find(|it| it["qgroupid"] == id).unwrap().clone()
    };
    let both = group("1/1");
    assert_eq!(both["children"], json!(["0/256", "0/257"]));
    assert!(both["exclusive"].as_u64().unwrap() > 300_000);
    place.ok("check disk.img");
    let said = place.run("qgroup remove --no-rescan 0/257 1/1 disk.img");
    let warned = said.err.is_empty() || said.err.ends_with("inconsistent, rescan needed\n");
    assert!(said.code == 0 && said.text().is_empty() && warned, "{}", said.err);
    assert_eq!(place.ok("quota rescan disk.img"), "quota rescan started\n");
    assert_eq!(group("1/1")["children"], json!(["0/256"]));
    place.ok("check disk.img");
}

#[test]
fn groups_of_what_is_gone_are_cleared() {
    let Some(place) = of_the_kernel(true) else { return };
    assert_eq!(place.ok("qgroup clear-stale disk.img"), "Delete stale qgroup 0/7\n");
    assert_eq!(place.ok("qgroup clear-stale disk.img"), "");
    assert_eq!(place.json("qgroup clear-stale disk.img"), json!([]));
    assert!(!place.ok("qgroup show disk.img").contains("<stale>"));
    place.check("disk.img");
}

/// As older kernels leave them behind.
#[test]
fn relations_of_groups_that_are_gone_are_cleared() {
    let place = image();
    place.ok("quota enable disk.img");
    for group in ["1/1", "1/2"] {
        place.ok(&format!("qgroup create {group} disk.img"));
        place.ok(&format!("qgroup assign disk.img:/sub {group} disk.img"));
    }
    for kind in [kind::QGROUP_INFO, kind::QGROUP_LIMIT] {
        let key = Key::new(0, kind, 1 << 48 | 2);
        change(&place, |patient| patient.remove(objectid::QUOTA_TREE, key).map(drop));
    }
    assert!(place.run("check disk.img").text().contains("qgroup-relation"));
    let shown = place.json("qgroup show disk.img");
    assert_eq!(shown.as_array().unwrap().len(), 3);
    let cleared = place.json("qgroup clear-stale disk.img");
    assert_eq!(cleared, json!(["0/256 in 1/2"]));
    place.check("disk.img");
    assert_eq!(place.ok("qgroup clear-stale disk.img"), "");
}

#[test]
fn the_largest_limit_is_none() {
    let place = image();
    place.ok("quota enable disk.img");
    let limits = || {
        let shown = place.json("qgroup show -f disk.img:/sub");
        (shown[0]["max_referenced"].clone(), shown[0]["max_exclusive"].clone())
    };
    place.ok("qgroup limit 18446744073709551614 disk.img:/sub");
    place.ok("qgroup limit -e 5G disk.img:/sub");
    assert_eq!(limits(), ((u64::MAX - 1).into(), (5_u64 << 30).into()));
    place.ok("qgroup limit 18446744073709551615 disk.img:/sub");
    place.ok("qgroup limit -e 18446744073709551615 disk.img:/sub");
    assert_eq!(limits(), ("none".into(), "none".into()));
    place.check("disk.img");
}

#[test]
fn a_live_mount_has_quotas_too() {
    let place = image();
    let Some(live) = Live::of(&place, "") else { return };
    place.ok("quota enable mnt");
    place.ok("quota status --is-enabled mnt");
    place.ok("qgroup create 1/1 mnt");
    place.ok("subvolume create -q -i 1/1 mnt/new");
    place.ok("subvolume snapshot -q -i 1/1 mnt/sub mnt/snap");
    place.ok("qgroup assign mnt/sub 1/1 mnt");
    // Where that has begun a rescan already, it is the one that is waited for.
    place.ok("quota rescan -w mnt");
    assert_eq!(place.ok("quota rescan -w mnt"), "quota rescan started\n");
    place.ok("quota rescan -W mnt");
    assert_eq!(place.ok("quota rescan -s mnt"), "no rescan operation in progress\n");
    place.ok("qgroup limit 1M mnt/new");
    std::fs::write(place.join("mnt/new/fits"), vec![1; 400_000]).unwrap();
    let refused = std::fs::write(place.join("mnt/new/more"), vec![1; 4_000_000]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::DQUOT.raw_os_error()));
    place.ok("qgroup limit none mnt/new");
    std::fs::write(place.join("mnt/new/more"), vec![1; 4_000_000]).unwrap();
    place.ok("filesystem sync mnt");
    let show = "qgroup show -pcre --raw";
    let live_text = place.ok(&format!("{show} mnt"));
    assert!(live_text.contains("0/256,0/257,0/258"), "{live_text}");
    live.end();
    assert_eq!(place.ok(&format!("{show} disk.img")), live_text);
    if have_progs() {
        place.check("disk.img");
    }
    let live = Live::of(&place, "").unwrap();
    place.ok("quota disable mnt");
    assert_eq!(place.run("quota status --is-enabled mnt").code, 1);
    live.end();
}

/// Whoever may not do what concerns the whole filesystem has no quotas to change, and no balance, and one who may write a directory makes subvolumes in it.
#[test]
fn quotas_are_the_masters() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: becoming another user needs root");
        return;
    }
    let place = image();
    place.ok("chmod 777 disk.img:/");
    place.ok("quota enable disk.img");
    place.ok("qgroup create 1/1 disk.img");
    let program = for_everybody(&place);
    let Some(live) = Live::of(&place, "-o allow_other") else { return };
    let run = |line: &str| {
        let mut command = Command::new(&program);
        std::os::unix::process::CommandExt::uid(&mut command, 1001);
        std::os::unix::process::CommandExt::gid(&mut command, 1001);
        command.args(line.split_whitespace()).current_dir(place.path());
        Said::of(command.output().unwrap())
    };
    for line in [
        "quota disable mnt",
        "quota enable mnt",
        "quota rescan mnt",
        "quota status mnt",
        "qgroup show mnt",
        "qgroup create 1/2 mnt",
        "qgroup limit 1G 1/1 mnt",
        "balance start -dusage=1 mnt",
        "balance status mnt",
        "balance pause mnt",
        "balance resume mnt",
        "balance cancel mnt",
        "filesystem resize max mnt",
        "inspect-internal min-dev-size mnt",
    ] {
        let said = run(line);
        let why = "Operation not permitted";
        assert!(said.code == 1 && said.err.contains(why), "{line}: {}", said.err);
    }
    let said = run("subvolume create -i 1/1 mnt/theirs");
    assert_eq!(said.code, 0, "{}", said.err);
    live.end();
    let shown = place.json("qgroup show disk.img");
    let group = shown.as_array().unwrap().iter().find(|it| it["qgroupid"] == "1/1").unwrap();
    assert_eq!(group["children"], json!(["0/257"]));
}

/// The end of a mount does not wait for a rescan.
#[test]
fn a_mount_ends_while_it_is_counted() {
    let place = image();
    for number in 0..3 {
        place.ok(&format!("subvolume snapshot -q disk.img:/sub disk.img:/snap{number}"));
    }
    let Some(live) = Live::of(&place, "") else { return };
    place.ok("quota enable mnt");
    place.ok("quota rescan mnt");
    live.end();
    place.ok("quota status --is-enabled disk.img");
    place.ok("check disk.img");
}
