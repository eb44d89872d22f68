//! What is common to all commands: abbreviations, names, help, errors.

use crate::run::{Place, run_as};

#[test]
fn abbreviations_as_long_as_they_are_unambiguous() {
    let place = Place::new();
    place.ok("mkf -q --si 200M disk.img");
    assert!(place.ok("i dump-s disk.img").starts_with("superblock: bytenr=65536"));
    let said = place.run("inspect dump disk.img");
    assert_eq!(said.code, 2);
    assert!(said.err.starts_with("buttress: "), "{}", said.err);
    let btrfs = run_as("btrfs", place.path(), &["in", "dump-super", "disk.img"]);
    assert_eq!(btrfs.text(), place.ok("inspect-internal dump-super disk.img"));
}

#[test]
fn what_is_not_understood_ends_with_2() {
    let place = Place::new();
    for line in [
        "",
        "frobnicate",
        "mkfs",
        "mkfs --frob x",
        "mkfs -n 5k x",
        "mkfs --csum md5 x",
        "mkfs -m raid1 x",
    ] {
        let said = place.run(line);
        assert_eq!(said.code, 2, "{line}: {}", said.err);
        assert_eq!(said.text(), "", "{line}");
    }
    assert!(place.run("mkfs -m raid1 x").err.contains("it needs several devices"));
    let said = place.run("mkfs -O frob x");
    assert_eq!(
        said.err,
        "buttress: cannot make a filesystem: unrecognized filesystem feature 'frob'\n  \
         `-O list-all` lists what there is.\n"
    );
}

#[test]
fn under_the_names_of_btrfs_progs_it_ends_as_they_do() {
    let place = Place::new();
    for (name, words) in [
        ("btrfs", &["frobnicate"][..]),
        ("btrfs", &[]),
        ("btrfs", &["subvolume", "list", "--frob", "x"]),
        ("btrfs", &["subvolume", "list"]),
        ("mkfs.btrfs", &["--frob", "x"]),
        ("mkfs.btrfs", &["-n", "5k", "x"]),
        ("mkfs.btrfs", &[]),
    ] {
        let ours = run_as(name, place.path(), words);
        assert_eq!(ours.code, 1, "{name} {words:?}: {}", ours.err);
        let program = if name == "btrfs" { "btrfs" } else { "mkfs.btrfs" };
        let theirs = std::process::Command::new(program).args(words).output();
        if let Ok(theirs) = theirs {
            assert_eq!(theirs.status.code(), Some(1), "{name} {words:?}");
        }
    }
}

/// What btrfs-progs 6.2 takes and we take, too; `=` is behind what has a value.
const OPTIONS: [(&str, &str); 47] = [
    ("subvolume list", "-o -a -p -c -g -u -q -R -s -r -d -t -G= -C= --sort="),
    (
        "subvolume delete",
        "-c --commit-after -C --commit-each -i= --subvolid= -v --verbose -q --quiet",
    ),
    ("subvolume snapshot", "-r -i= -q --quiet"),
    ("subvolume create", "-i= -q --quiet"),
    (
        "subvolume show",
        "-r= --rootid= -u= --uuid= -b --raw -h --human-readable -H --iec --si -k --kbytes -m --mbytes -g --gbytes -t --tbytes",
    ),
    ("subvolume get-default", ""),
    ("subvolume set-default", ""),
    (
        "filesystem usage",
        "-b --raw -h --human-readable -H --iec --si -k --kbytes -m --mbytes -g --gbytes -t --tbytes -T",
    ),
    (
        "filesystem df",
        "-b --raw -h --human-readable -H --iec --si -k --kbytes -m --mbytes -g --gbytes -t --tbytes",
    ),
    (
        "filesystem show",
        "-d --all-devices -m --mounted --raw --human-readable --iec --si --kbytes --mbytes --gbytes --tbytes",
    ),
    ("filesystem label", ""),
    ("filesystem sync", ""),
    ("device stats", "-c --check -T"),
    (
        "device usage",
        "-b --raw -h --human-readable -H --iec --si -k --kbytes -m --mbytes -g --gbytes -t --tbytes",
    ),
    ("property get", "-t="),
    ("property set", "-t= -f"),
    ("property list", "-t="),
    (
        "inspect-internal dump-tree",
        "-e --extents -d --device -r --roots -R --backups -u --uuid -b= --block= -t= --tree= --follow --noscan --bfs --dfs \
         --hide-names --csum-headers --csum-items",
    ),
    ("inspect-internal dump-super", "-f --full -a --all -s= --super= -F --force --bytenr="),
    ("inspect-internal inode-resolve", "-v --verbose"),
    ("inspect-internal logical-resolve", "-P -o -s= -v --verbose"),
    ("inspect-internal rootid", ""),
    ("inspect-internal subvolid-resolve", ""),
    ("inspect-internal tree-stats", "-b"),
    (
        "inspect-internal list-chunks",
        "--sort= --raw --human-readable --iec --si --kbytes --mbytes --gbytes --tbytes",
    ),
    ("quota enable", "-s --simple"),
    ("quota disable", ""),
    (
        "balance start",
        "-d -m -s -f --force --full-balance --background --bg --enqueue -v --verbose -q --quiet",
    ),
    ("balance status", "-v --verbose"),
    ("balance resume", "-q --quiet"),
    ("balance pause", ""),
    ("balance cancel", ""),
    ("filesystem resize", "--enqueue"),
    ("inspect-internal min-dev-size", "--id="),
    ("quota rescan", "-s --status -w --wait -W --wait-norescan -q --quiet"),
    ("qgroup assign", "--rescan --no-rescan"),
    ("qgroup remove", "--rescan --no-rescan"),
    ("qgroup create", ""),
    ("qgroup destroy", ""),
    ("qgroup clear-stale", "-q --quiet"),
    ("qgroup limit", "-c -e"),
    (
        "qgroup show",
        "-p -c -r -e -F -f --sort= --sync --raw --human-readable --iec --si --kbytes --mbytes --gbytes --tbytes",
    ),
    ("subvolume find-new", ""),
    ("subvolume sync", "-s="),
    ("check", "-s= --super= --readonly --force --mode= --check-data-csum -p --progress"),
    ("version", ""),
    (
        "",
        "-d= --data= -m= --metadata= -M --mixed --csum= --checksum= -n= --nodesize= -s= --sectorsize= -O= --features= -R= \
         --runtime-features= -L= --label= -U= --uuid= -b= --byte-count= -r= --rootdir= --shrink -K --nodiscard -f --force -q --quiet -v \
         --verbose",
    ),
];

/// What btrfs-progs takes and we do not: repair, several devices and older roots for a check, and what is obsolete.
const REFUSED: [(&str, &str); 4] = [
    (
        "check",
        "-b --backup -r --tree-root --chunk-root --repair --init-csum-tree --init-extent-tree --clear-space-cache \
         --clear-ino-cache -Q --qgroup-report -E --subvol-extents",
    ),
    ("inspect-internal dump-super", "-i"),
    ("device stats", "-z --reset"),
    ("", "-l --leafsize"),
];

/// The options that a tool's help tells of; none where there is no such tool.
fn told(name: &str, command: &str) -> Vec<String> {
    let mut words: Vec<_> = command.split_whitespace().collect();
    words.push("--help");
    let Ok(output) = std::process::Command::new(name).args(words).output() else {
        return Vec::new();
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let first =
        text.lines().filter_map(|line| line.strip_prefix("    ")?.split_whitespace().next());
    // Not the lines of a text about `+:` and `-:`.
    let is_option = |word: &&str| word.starts_with('-') && !word.starts_with("-:");
    let options = first.filter(is_option).flat_map(|word| word.split('|'));
    options.map(|word| word.split('=').next().unwrap().to_owned()).collect()
}

#[test]
fn options_of_btrfs_progs_are_taken() {
    let place = Place::new();
    // Of another version the help may tell of more.
    let theirs = std::process::Command::new("btrfs").arg("--version").output();
    let is_known =
        theirs.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("v6.2\n"));
    for (command, options) in OPTIONS {
        let name = if command.is_empty() { "mkfs.btrfs" } else { "btrfs" };
        for option in options.split_whitespace() {
            let mut words: Vec<_> = command.split_whitespace().collect();
            let bare = option.trim_end_matches('=');
            // Help ends a command whose words before it are understood.
            words.extend([bare, "--help"]);
            let said = run_as(name, place.path(), &words);
            let expected = if bare == option { 0 } else { 1 };
            assert_eq!(said.code, expected, "{name} {words:?}: {}", said.err);
            assert!(bare == option || said.err.contains("value"), "{}", said.err);
        }
        let refused = REFUSED.iter().find(|(of, _)| *of == command).map_or("", |(_, words)| *words);
        for option in refused.split_whitespace() {
            let mut words: Vec<_> = command.split_whitespace().collect();
            words.extend([option, "--help"]);
            let said = run_as(name, place.path(), &words);
            let named = said.err.contains(&format!("'{option}'"));
            assert!(said.code == 1 && named, "{name} {words:?}: {}", said.err);
        }
        let all: Vec<_> = options.split_whitespace().chain(refused.split_whitespace()).collect();
        let own = ["--help", "-V", "--version", "--format"];
        let missing = told(name, command).into_iter().filter(|told| {
            // What may follow an option at once is no part of its name.
            let told = told.split('[').next().unwrap_or(told);
            !own.contains(&told) && !all.iter().any(|it| it.trim_end_matches('=') == told)
        });
        let missing: Vec<_> = missing.collect();
        assert!(!is_known || missing.is_empty(), "{name} {command}: {missing:?}");
    }
}

#[test]
fn help_and_version_go_to_standard_output() {
    let place = Place::new();
    for line in ["--help", "--version", "mkfs --help", "inspect-internal --help"] {
        assert!(!place.ok(line).is_empty(), "{line}");
    }
}

#[test]
fn mkfs_is_a_program_of_its_own() {
    let place = Place::new();
    let said = run_as("mkfs.btrfs", place.path(), &["--frob"]);
    assert!(said.err.contains("Usage: mkfs.btrfs [OPTIONS] [DEVICE]"), "{}", said.err);
    let help = run_as("mkfs.btrfs", place.path(), &["--help"]).text();
    assert!(help.contains("Usage: mkfs.btrfs [OPTIONS] [DEVICE]"), "{help}");
    for words in [&["-f", "a", "b"][..], &["a", "b", "-q"]] {
        let said = run_as("mkfs.btrfs", place.path(), words);
        assert_eq!(said.code, 1);
        assert!(said.err.contains("several devices are not supported"), "{}", said.err);
    }
    assert_eq!(place.run("mkfs --size 300M a b").code, 2);
    let said = run_as("mkfs.btrfs", place.path(), &["-q", "--si", "300M", "--offset", "1M", "a"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    assert_eq!(place.ok("ls --offset 1M a"), "");
    assert!(!place.join("b").exists());
}

/// As under the names of btrfs-progs: a word for the tool, `v` and the number.
#[test]
fn versions_under_all_names() {
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    let place = Place::new();
    for (name, words, expected) in [
        ("buttress", &["--version"][..], "buttress "),
        ("buttress", &["-V"], "buttress "),
        ("buttress", &["version"], "buttress "),
        ("buttress", &["mkfs", "-V"], "buttress "),
        ("btrfs", &["version"], "buttress v"),
        ("btrfs", &["--version"], "buttress v"),
        ("mkfs.btrfs", &["-V"], "mkfs.btrfs, part of buttress v"),
        ("/sbin/mkfs.btrfs", &["--version"], "mkfs.btrfs, part of buttress v"),
        ("mkfs.btrfs", &["-qV", "disk.img"], "mkfs.btrfs, part of buttress v"),
    ] {
        let said = run_as(name, place.path(), words);
        let expected = format!("{expected}{VERSION}\n");
        assert_eq!(
            (said.code, said.text(), said.err.as_str()),
            (0, expected, ""),
            "{name} {words:?}"
        );
    }
    assert_eq!(place.json("version")["version"], VERSION);
    assert!(!place.join("disk.img").exists());
}

#[test]
fn who_asks_for_silence_has_it() {
    let place = Place::new();
    std::fs::write(place.join("one"), "one").unwrap();
    for line in [
        "mkfs -q -v --size 300M disk.img",
        "mkfs -v -q -f disk.img",
        "cp -q -v one disk.img:/",
        "-v mv -q disk.img:/one disk.img:/two",
        "chmod -qv 600 disk.img:/two",
        "rm -vq disk.img:/two",
    ] {
        assert_eq!(place.ok(line), "", "{line}");
    }
}

#[test]
fn failures_as_json() {
    let place = Place::new();
    let said = place.fails("--format json inspect-internal dump-super nowhere");
    let error: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(error["error"]["where"], "nowhere");
    assert_eq!(error["error"]["why"], "No such file or directory");
    assert_eq!(error["error"]["code"], 1);
}

#[test]
fn completions_and_manual() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(place.ok(&format!("completions {shell}")).contains("mkfs"), "{shell}");
    }
    assert!(place.ok("man").starts_with(".ie"));
    std::fs::create_dir(place.join("pages")).unwrap();
    place.ok("man pages");
    assert!(place.join("pages/buttress-mkfs.1").exists());
}

#[test]
fn who_looks_for_what_is_not_there_yet_is_told_what_does_its_work() {
    let place = Place::new();
    for (line, what) in [
        ("send x", "use `btrfs` there"),
        ("scrub start x", "`buttress check --check-data-csum`"),
        ("restore x y", "`buttress cp -a"),
        ("device add x y", "one device is supported"),
        ("dev rem x y", "`remove` is not there yet: one device is supported"),
        ("device scan", "`scan` is not there yet: "),
        ("device stats -z x", "'-z' is not there yet: "),
        ("filesystem defragment x", "use `btrfs filesystem defragment` there"),
        ("fi defrag x", "`defragment` is not there yet: mount"),
        ("scr status x", "`scrub` is not there yet: "),
        ("repl status x", "`replace` is not there yet: "),
        ("rec x", "`receive` is not there yet: "),
        ("rest x y", "`restore` is not there yet: "),
        ("filesystem mkswapfile x", "`mkswapfile` is not there yet: "),
        ("inspect-internal map-swapfile x", "`map-swapfile` is not there yet: "),
        ("in map x", "`map-swapfile` is not there yet: "),
        ("rescue super-recover x", "`super-recover` is not there yet: "),
        ("resc ch x", "`chunk-recover` is not there yet: "),
        ("rescue fix-device-size x", "`fix-device-size` is not there yet: "),
        ("rescue clear-uuid-tree x", "`clear-uuid-tree` is not there yet: "),
        ("rescue create-control-device", "`create-control-device` is not there yet: "),
        ("check --repair x", "'--repair' is not there yet: a check only reads"),
        ("check --rep x", "'--repair' is not there yet: a check only reads"),
        ("check --init-csum-tree x", "'--init-csum-tree' is not there yet: "),
        ("check --init-extent-tree x", "'--init-extent-tree' is not there yet: "),
        (
            "check --clear-space-cache v1 x",
            "'--clear-space-cache' is not there yet: `btrfs` of btrfs-progs does it",
        ),
        (
            "check --clear-ino-cache x",
            "'--clear-ino-cache' is not there yet: `btrfs` of btrfs-progs does it",
        ),
        ("check --repair=x -- x", "'--repair' is not there yet: "),
    ] {
        let said = place.run(line);
        assert_eq!(said.code, 2, "{line}: {}", said.err);
        assert!(said.err.contains(what) && !said.err.contains("similar"), "{line}: {}", said.err);
    }
    // Words that belong to another command, or to none, are what they are everywhere.
    for line in [
        "delete x",
        "scan",
        "filesystem scrub x",
        "subvolume list --repair x",
        "frob",
        // --readonly or --rescue, which are there, and what is no option.
        "check --re x",
        "check -- x --repair",
        "check x -- --repair",
    ] {
        let said = place.run(line);
        assert!(said.code == 2 && !said.err.contains("not there yet"), "{line}: {}", said.err);
    }
}

/// As with getopt(3).
#[test]
fn what_is_said_twice_counts_once_and_the_last_time() {
    let place = Place::new();
    place.ok("mkfs -q -q --size 200M --size 300M disk.img");
    assert_eq!(std::fs::metadata(place.join("disk.img")).unwrap().len(), 300 << 20);
    place.ok("subvolume create -q disk.img:/one");
    for (line, same) in [
        ("-vv subvolume list -v disk.img", "subvolume list disk.img"),
        ("-qq subvolume list disk.img", "subvolume list disk.img"),
        ("subvolume list -c -c -uu disk.img", "subvolume list -c -u disk.img"),
        ("subvolume list -rr -s -s disk.img", "subvolume list -r -s disk.img"),
        ("filesystem df -k -b -m disk.img", "filesystem df -b disk.img"),
        ("filesystem df -b -b disk.img", "filesystem df -b disk.img"),
        ("--format json --format text filesystem df disk.img", "filesystem df disk.img"),
        ("--format json ls --format text disk.img", "ls disk.img"),
    ] {
        assert_eq!(place.ok(line), place.ok(same), "{line}");
    }
    // What collects goes on to do so.
    assert_eq!(place.ok("subvolume list -G 99 -G +1 disk.img"), "");
    std::fs::write(place.join("one"), "one").unwrap();
    place.ok("cp one one disk.img:/one");
    let sorted = place.ok("subvolume list --sort=gen --sort=path disk.img");
    assert_eq!(sorted.lines().count(), 1);
    let said =
        run_as("mkfs.btrfs", place.path(), &["-q", "-f", "-f", "-L", "a", "-L", "b", "disk.img"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    assert_eq!(place.ok("filesystem label disk.img"), "b\n");
}

#[test]
fn usage_errors_are_json_where_results_are() {
    let place = Place::new();
    for (line, why) in [
        ("--format json ls", "the following required arguments were not provided: <TARGET>..."),
        ("ls --format=json", "the following required arguments were not provided: <TARGET>..."),
        ("--form json frobnicate", "unrecognized subcommand 'frobnicate'"),
        (
            "receive --format json x",
            "`receive` is not there yet: mount the filesystem with Linux and use `btrfs` there",
        ),
        (
            "--format json mkfs -n 5k x",
            "invalid value '5k' for '--nodesize <SIZE>': illegal nodesize 5120 (not a power of 2)",
        ),
        ("mkfs --frob x --format json", "unexpected argument '--frob' found"),
        ("--format json", "'buttress' requires a subcommand but one was not provided"),
        ("mkfs -O frob --format json x", "unrecognized filesystem feature 'frob'"),
    ] {
        let said = place.run(line);
        assert_eq!(said.code, 2, "{line}: {}", said.err);
        assert_eq!(
            (said.text().as_str(), said.err.lines().count()),
            ("", 1),
            "{line}: {}",
            said.err
        );
        let value: serde_json::Value = serde_json::from_str(&said.err).unwrap();
        let error = &value["error"];
        assert!(
            error["why"].as_str().unwrap().starts_with(why.split(':').next().unwrap()),
            "{line}: {error}"
        );
        assert_eq!(error["code"], 2, "{line}");
    }
    // What is a name, and no option, changes nothing.
    for line in ["ls -- --format json --frob", "--format text frobnicate", "--format frob ls"] {
        assert!(!place.run(line).err.starts_with('{'), "{line}");
    }
    let said = run_as("btrfs", place.path(), &["--format", "json", "frobnicate"]);
    assert_eq!(said.code, 1);
    assert!(said.err.starts_with('{') && said.err.contains("\"code\":1"), "{}", said.err);
}

#[test]
fn help_says_nothing_twice() {
    let help = Place::new().ok("check --help");
    let line = help.lines().find(|line| line.contains("--check-data-csum")).unwrap();
    assert_eq!(line.matches("compare").count(), 1, "{line}");
}
