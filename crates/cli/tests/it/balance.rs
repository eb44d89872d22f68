//! `balance start`, `filesystem resize` and `inspect-internal min-dev-size`: of images of the kernel, which it goes on with.

use serde_json::json;

use crate::run::{KernelMount, Place, have_progs, run_as};

/// An image to which the kernel has written: subvolumes that share, large files of which most are gone again, compressed ones.
fn of_the_kernel() -> Option<Place> {
    let place = Place::new();
    place.ok("mkfs -q --size 1200M disk.img");
    let mount = KernelMount::of(&place, "disk.img")?;
    let top = mount.path().to_owned();
    let btrfs = |line: &str| place.progs("btrfs", &line.replace('@', &top.display().to_string()));
    btrfs("subvolume create @/work");
    for number in 0..60_u8 {
        let len = if number % 10 == 0 { 6_000_000 } else { 50_000 };
        std::fs::write(top.join(format!("work/file{number}")), vec![number; len]).unwrap();
    }
    btrfs("filesystem sync @");
    btrfs("subvolume snapshot @/work @/snap");
    for number in 0..200_u8 {
        std::fs::write(top.join(format!("large{number}")), vec![number; 1_500_000]).unwrap();
    }
    btrfs("filesystem sync @");
    for number in (0..200).filter(|number| number % 5 != 0) {
        std::fs::remove_file(top.join(format!("large{number}"))).unwrap();
    }
    std::fs::write(top.join("work/file10"), "anew").unwrap();
    drop(mount);
    Some(place)
}

/// What all files hold, as the kernel reads them.
fn sums(place: &Place) -> String {
    let mount = KernelMount::of(place, "disk.img").unwrap();
    let top = mount.path().display();
    let script = format!("cd {top} && find . -type f -print0 | sort -z | xargs -0 md5sum");
    let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn what_was_balanced_is_the_same_to_the_kernel() {
    let Some(place) = of_the_kernel() else { return };
    let before = sums(&place);
    assert!(place.ok("balance start -dusage=0 disk.img").contains("had to relocate 0 out of "));
    let done = place.json("balance start -dusage=60 -musage=50 disk.img");
    assert!(done["relocated"].as_u64().unwrap() >= 1, "{done}");
    assert_eq!(done["failed"], json!([]));
    place.check("disk.img");
    assert_eq!(sums(&place), before);
    place.ok("balance start --full-balance -q disk.img");
    place.check("disk.img");
    assert_eq!(sums(&place), before);
    // The kernel balances what we have.
    let mount = KernelMount::of(&place, "disk.img").unwrap();
    place.progs("btrfs", &format!("balance start --full-balance {}", mount.path().display()));
    drop(mount);
    place.ok("balance start -d -m disk.img");
    place.check("disk.img");
    assert_eq!(sums(&place), before);
}

#[test]
fn profiles_are_converted() {
    let place = Place::new();
    place.ok("mkfs -q --size 600M disk.img");
    std::fs::write(place.join("file"), vec![7; 5_000_000]).unwrap();
    place.ok("cp file disk.img:/file");
    let said = place.fails("balance start -mconvert=single disk.img");
    assert!(said.contains("fewer copies"), "{said}");
    place.ok("balance start -f -dconvert=dup,soft -mconvert=single disk.img");
    let df = place.ok("filesystem df disk.img");
    assert!(df.contains("Data, DUP") && df.contains("Metadata, single"), "{df}");
    assert!(place.ok("balance start -dconvert=dup,soft disk.img").contains("relocate 0 out of"));
    for (words, why) in [
        ("-dconvert=raid1", "Invalid argument"),
        ("-dwhat=1", "there is no such filter"),
        ("-dsoft", "needs convert="),
        ("-s", "is refused"),
    ] {
        let said = place.run(&format!("balance start {words} disk.img"));
        assert!(said.code > 0 && said.err.contains(why), "{}", said.err);
    }
    place.check("disk.img");
}

#[test]
fn an_image_becomes_smaller_and_larger() {
    let Some(place) = of_the_kernel() else { return };
    let before = sums(&place);
    let said = place.fails(&format!("filesystem resize {} disk.img", 270 << 20));
    assert!(said.contains("No space left") && said.contains(" bytes have."), "{said}");
    // What was moved stays so, and others may be moved yet.
    let least = place.json("inspect-internal min-dev-size disk.img")["size"].as_u64().unwrap();
    place.ok("filesystem resize --file min disk.img");
    let len = || std::fs::metadata(place.join("disk.img")).unwrap().len();
    assert!(len() <= least, "{} {least}", len());
    place.check("disk.img");
    assert_eq!(sums(&place), before);
    assert!(place.fails("filesystem resize +1G disk.img").contains("--file"));
    assert!(place.fails("filesystem resize --file +15e disk.img").contains("File too large"));
    let now = len();
    place.ok("filesystem resize --file 1:+1G disk.img");
    assert_eq!(len(), now + (1 << 30));
    place.ok("filesystem resize -- -200M disk.img");
    assert_eq!(len(), now + (1 << 30));
    let resized = place.json("filesystem resize max disk.img");
    assert_eq!(resized, json!({ "before": now + (824 << 20), "size": now + (1 << 30) }));
    place.check("disk.img");
    assert_eq!(sums(&place), before);
    let mount = KernelMount::of(&place, "disk.img").unwrap();
    std::fs::write(mount.path().join("more"), vec![1; 300_000_000]).unwrap();
}

#[test]
fn filters_stand_behind_long_options_and_behind_other_letters() {
    let place = Place::new();
    place.ok("mkfs -q --size 600M disk.img");
    std::fs::write(place.join("file"), vec![7; 5_000_000]).unwrap();
    place.ok("cp file disk.img:/file");
    for (words, count) in [
        ("-d,usage=100", "1 out of 3"),
        ("--data=usage=100", "1 out of 3"),
        ("--data --metadata=usage=0", "1 out of 3"),
        ("--metadata", "2 out of 3"),
        ("-fvsusage=100", "1 out of 3"),
        ("--force --system=usage=100", "1 out of 3"),
        ("-vfdusage=100", "1 out of 3"),
        ("-dusage=0 -dusage=100", "1 out of 3"),
        ("-dusage=100 -dusage=0", "0 out of 3"),
        ("-dusage=100 -dlimit=0..1", "1 out of 3"),
    ] {
        let text = place.ok(&format!("balance start {words} disk.img"));
        assert_eq!(text, format!("Done, had to relocate {count} chunks\n"), "{words}");
    }
    for words in ["-dvf", "-d,what=1", "--data=usage=1 --data=usage=200"] {
        let said = place.run(&format!("balance start {words} disk.img"));
        assert_eq!(said.code, 2, "{words}: {}", said.err);
    }
    place.check("disk.img");
}

#[test]
fn where_no_balance_runs_it_ends_as_btrfs_progs_does() {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    let commands = ["pause", "cancel", "resume", "status"];
    let codes = |name: &str| {
        let code =
            |command: &&str| run_as(name, place.path(), &["balance", command, "disk.img"]).code;
        commands.iter().map(code).collect::<Vec<_>>()
    };
    assert_eq!(codes("buttress"), [1, 1, 1, 0]);
    assert_eq!(codes("btrfs"), [2, 2, 2, 0]);
    let Some(mount) = KernelMount::of(&place, "disk.img").filter(|_| have_progs()) else { return };
    let theirs = |command: &&str| {
        let mut btrfs = std::process::Command::new("btrfs");
        btrfs.args(["balance", command]).arg(mount.path()).output().unwrap().status.code()
    };
    let theirs: Vec<_> = commands.iter().map(theirs).collect();
    assert_eq!(theirs, [Some(2), Some(2), Some(2), Some(0)]);
}

/// Whoever has something behind the filesystem in its file keeps it.
#[test]
fn what_lies_behind_in_the_file_is_left_alone() {
    let place = Place::new();
    place.ok("mkfs -q --size 2G -b 600M disk.img");
    place.ok("mkfs -q --offset 1G -b 500M disk.img");
    std::fs::write(place.join("file"), vec![7; 100_000]).unwrap();
    place.ok("cp --offset 1G file disk.img:/file");
    for line in [
        "resize --file 400M",
        "resize --file min",
        "resize max",
        "resize 1200M",
        "resize --file 3G",
    ] {
        let said = place.fails(&format!("filesystem {line} disk.img"));
        assert!(said.contains("something lies behind it in the file"), "{line}: {said}");
    }
    place.ok("filesystem resize 500M disk.img");
    place.ok("filesystem resize 900M disk.img");
    assert!(place.fails("filesystem resize --offset 1G 600M disk.img").contains("--offset"));
    assert_eq!(place.run("cat --offset 1G disk.img:/file").out, vec![7; 100_000]);
    place.ok("check --offset 1G disk.img");
    place.check("disk.img");
    place.ok("filesystem resize -f --file 500M disk.img");
    assert_eq!(std::fs::metadata(place.join("disk.img")).unwrap().len(), 500 << 20);
    let file = std::fs::File::options().write(true).open(place.join("disk.img")).unwrap();
    file.set_len(400 << 20).unwrap();
    assert!(place.fails("filesystem resize --file 600M disk.img").contains("its file has"));
}

/// What is converted in steps goes to groups of the new profile, and both are told of.
#[test]
fn conversion_in_steps() {
    let place = Place::new();
    place.ok("mkfs -q --size 1G disk.img");
    std::fs::write(place.join("file"), vec![7; 30_000_000]).unwrap();
    for name in ["a", "b", "c", "d", "e", "f"] {
        place.ok(&format!("cp file disk.img:/{name}"));
    }
    place.ok("balance start -dconvert=dup,limit=1 disk.img");
    let df = place.ok("filesystem df disk.img");
    assert!(df.contains("Data, DUP") && df.contains("Data, single"), "{df}");
    let usage = place.ok("filesystem usage disk.img");
    assert!(usage.contains("yes\t(data)"), "{usage}");
    place.check("disk.img");
}

/// Groups that there is no room for are passed over, tried again when others have made room, and counted where nothing helps.
#[test]
fn groups_without_room_are_passed_over_and_counted() {
    let place = Place::new();
    place.ok("mkfs -q --size 300M -d dup disk.img");
    std::fs::write(place.join("file"), vec![7; 4 << 20]).unwrap();
    let names = (0..).map(|number| format!("file{number}"));
    let put = |name: &String| place.run(&format!("cp file disk.img:/{name}")).code == 0;
    let names: Vec<_> = names.take_while(put).collect();
    let said = place.fails("balance start -dconvert=single disk.img");
    assert!(said.contains("No space left on device: ") && said.contains(" block groups could not"));
    assert!(said.contains("Delete something"), "{said}");
    let json = place.run("--format json balance start -dconvert=single disk.img");
    assert!(json.code == 1 && json.text().contains("\"no-room\""), "{}", json.text());
    assert!(place.ok("balance status disk.img").contains("No balance"));
    place.check("disk.img");
    for name in names.iter().step_by(3) {
        place.ok(&format!("rm disk.img:/{name}"));
    }
    place.ok("balance start -dconvert=single disk.img");
    let df = place.ok("filesystem df disk.img");
    assert!(df.contains("Data, single") && !df.contains("Data, DUP"), "{df}");
    place.check("disk.img");
}
