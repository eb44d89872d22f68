//! What README shows is what one can do: its commands are run as they stand there, by root and by an ordinary user, and its
//! lines of Rust are those of a test.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use buttress::{Filesystem, Options};

use crate::device::for_everybody;
use crate::run::{KernelMount, Place};

const README: &str = include_str!("../../../../README.md");

/// A user whom the system has a name for, as the program that mounts for others than root demands.
const NOBODY: u32 = 65534;

/// The lines of the only block of code in a language.
fn block(language: &str) -> Vec<&'static str> {
    let begin = format!("```{language}");
    let mut lines = README.lines().skip_while(|line| *line != begin);
    assert!(lines.next().is_some(), "no block of {language}");
    let inside: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
    assert!(!lines.any(|line| line == begin), "a second block of {language}");
    inside
}

/// Runs the commands one by one; those on `mnt/` find the image mounted there, the others find it free. Whether
/// they could be run.
fn run_all(place: &Place, user: Option<u32>) -> bool {
    for_everybody(place);
    let sh = |line: &str| {
        let mut command = Command::new("sh");
        command.args(["-ec", line]).current_dir(place.path());
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", place.path().display()));
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), String::from_utf8(output.stdout).unwrap(), said)
    };
    let ok = |line: &str| {
        let (done, text, said) = sh(line);
        assert!(done, "{line}: {said}");
        text
    };
    ok(
        "mkdir -p mnt site tree/etc tree/srv tree/snapshots; echo table > tree/etc/fstab; echo page > site/index",
    );
    let mut texts = Vec::new();
    for line in block("sh") {
        let line = line.split(" #").next().unwrap().trim_end();
        if line.contains("mnt/") {
            let said = sh("buttress mount disk.img mnt/").2;
            if user.is_some() && said.contains("fusermount") {
                println!("skipped: {said}");
                return false;
            }
            assert_eq!(said, "");
        }
        if line.starts_with("buttress mount ") {
            ok("buttress umount mnt/");
        }
        texts.push(ok(line));
        if line.contains("mnt/") {
            ok("echo note > mnt/note && buttress umount mnt/");
        }
        if line.starts_with("buttress mkfs ") {
            ok(
                "buttress subvolume create -q disk.img:/home && echo mine > mine && buttress cp mine disk.img:/home",
            );
        }
    }
    assert!(texts.len() >= 7, "{texts:?}");
    let text = texts.concat();
    for expected in
        ["fstab", "path home\n", "path snapshots/monday\n", "\"__header\"", "fs tree key"]
    {
        assert!(text.contains(expected), "{expected:?}: {text}");
    }
    assert_eq!(
        ok("cat fstab; buttress cat disk.img:/srv/site/index disk.img:/note"),
        "table\npage\nnote\n"
    );
    assert_eq!(ok("buttress cat disk.img:/snapshots/monday/mine"), "mine\n");
    assert!(ok("buttress ls -l disk.img:/srv").contains(" 33 33 "), "{text}");
    true
}

fn judged(place: &Place) {
    if crate::run::have_progs() {
        place.check("disk.img");
    }
    let Some(mount) = KernelMount::read_only(place, "disk.img") else { return };
    assert_eq!(std::fs::read(mount.path().join("snapshots/monday/mine")).unwrap(), b"mine\n");
}

#[test]
fn its_commands_do_what_they_say() {
    let place = Place::new();
    assert!(run_all(&place, None));
    judged(&place);
}

#[test]
fn its_commands_do_what_they_say_for_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: becoming another user needs root");
        return;
    }
    let place = Place::new();
    if run_all(&place, Some(NOBODY)) {
        judged(&place);
    }
}

/// The lines between these two comments are README's, but for the path.
fn notes(image: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let in_readme = "disk.img";
    assert_eq!(image.file_name().unwrap(), in_readme);
    // README from here
    let fs = Filesystem::open(image, Options::read_write())?;
    let mut file = fs.create_file("/notes.txt", 0o644)?;
    file.write_all(b"hello")?;
    fs.commit()?;
    // README to here
    Ok(())
}

#[test]
fn its_rust_is_that_of_a_program_that_runs() {
    let mut code =
        include_str!("readme.rs").lines().skip_while(|line| !line.ends_with("README from here"));
    code.next();
    let code = code.take_while(|line| !line.ends_with("README to here"));
    let code: Vec<_> = code.map(|line| line.trim().replace("(image,", "(\"disk.img\",")).collect();
    let shown: Vec<_> = block("rust").into_iter().filter(|line| !line.is_empty()).collect();
    let (uses, rest): (Vec<&str>, Vec<&str>) =
        shown.into_iter().partition(|line| line.starts_with("use "));
    assert_eq!(rest, code);
    assert_eq!(uses, ["use buttress::{Filesystem, Options};", "use std::io::Write;"]);

    let place = Place::new();
    place.ok("mkfs -q --size 200M disk.img");
    notes(&place.join("disk.img")).unwrap();
    assert_eq!(place.ok("cat disk.img:/notes.txt"), "hello");
    let Some(mount) = KernelMount::read_only(&place, "disk.img") else { return };
    assert_eq!(std::fs::read(mount.path().join("notes.txt")).unwrap(), b"hello");
}
