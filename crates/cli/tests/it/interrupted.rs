//! What a signal leaves of a copy: all that is whole, and a word about it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::run::{Place, Said, have_progs};

/// More of them than a pipe that nobody reads takes the names of.
const FILES: usize = 2000;
/// What a pipe takes without being read.
const PIPE_BYTES: u64 = 65536;
const PAUSE: Duration = Duration::from_millis(20);

fn image_and_tree() -> Place {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    fs::create_dir(place.join("tree")).unwrap();
    for number in 0..FILES {
        let name = format!("{number:0>100}");
        fs::write(place.join("tree").join(&name), &name).unwrap();
    }
    place
}

fn start(place: &Place, line: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_buttress"));
    command.args(line.split_whitespace()).current_dir(place.path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Who runs this in the background of a script ignores Ctrl-C, and so do the commands that it starts.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    u64::from_str_radix(set, 16).unwrap() & 1 << (signal.as_raw() - 1) != 0
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Begins to copy or move, and goes no further than its reader: that is, not to the end.
fn begun(place: &Place, line: &str) -> Child {
    let mut child = start(place, line);
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    child
}

/// How many of the files an image has, each of which must be whole.
fn whole(place: &Place) -> usize {
    place.ok("cp -r disk.img:/tree back");
    let files: Vec<_> = fs::read_dir(place.join("back")).unwrap().map(Result::unwrap).collect();
    for file in &files {
        assert_eq!(fs::read(file.path()).unwrap(), file.file_name().as_encoded_bytes());
    }
    if have_progs() {
        place.check("disk.img");
    }
    files.len()
}

#[test]
fn what_was_copied_whole_stays() {
    let place = image_and_tree();
    let both = [(Signal::TERM, 143), (Signal::INT, 130)];
    for (number, code) in both.into_iter().filter(|(number, _)| !is_ignored(*number)) {
        let child = begun(&place, "cp -rv tree disk.img:/");
        signal(&child, number);
        let said = Said::of(child.wait_with_output().unwrap());
        let count = whole(&place);
        assert!(count > 0 && count < FILES, "{count}");
        let expected = format!("buttress: interrupted: {count} files were copied\n");
        assert_eq!((said.code, said.err), (code, expected));
        place.ok("rm -r disk.img:/tree");
        fs::remove_dir_all(place.join("back")).unwrap();
    }
}

#[test]
fn nothing_is_removed_where_not_all_was_moved() {
    let place = image_and_tree();
    fs::write(place.join("one"), "one").unwrap();
    let child = begun(&place, "mv -v one tree disk.img:/");
    signal(&child, Signal::TERM);
    let said = Said::of(child.wait_with_output().unwrap());
    let count = whole(&place) + 1;
    let expected = format!(
        "buttress: interrupted: {count} files were copied\n  What was not removed yet is where it was, too.\n"
    );
    assert_eq!((said.code, said.err), (143, expected));
    assert!(place.join("one").exists());
    assert_eq!(fs::read_dir(place.join("tree")).unwrap().count(), FILES);
}

/// A file whose content does not come to its end.
#[test]
fn a_part_of_a_file_goes() {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    fs::write(place.join("one"), "one").unwrap();
    assert!(Command::new("mkfifo").arg(place.join("pipe")).status().unwrap().success());
    let interrupted = |words: &str| {
        let child = start(&place, &format!("{words} cp one pipe disk.img:/"));
        let mut pipe = fs::OpenOptions::new().write(true).open(place.join("pipe")).unwrap();
        pipe.write_all(&[7; 5000]).unwrap();
        signal(&child, Signal::TERM);
        let said = Said::of(child.wait_with_output().unwrap());
        assert_eq!(said.code, 143, "{}", said.err);
        said.err
    };
    assert_eq!(interrupted(""), "buttress: interrupted: 1 file was copied\n");
    assert_eq!(place.ok("ls disk.img"), "one\n");
    place.ok("cp one disk.img:/pipe");
    let said = interrupted("");
    assert!(said.contains("What was there is written over"), "{said}");
    assert!(said.ends_with("interrupted: 1 file was copied, 1 could not be\n"), "{said}");
    assert_eq!(place.ok("ls disk.img"), "one\npipe\n");
    place.ok("rm disk.img:/pipe");
    let said: Value = serde_json::from_str(&interrupted("--format json")).unwrap();
    assert_eq!((&said["error"]["copied"], &said["error"]["not_copied"]), (&1.into(), &0.into()));
    assert_eq!(said["error"]["code"], 143);
}

#[test]
fn the_second_signal_ends_it_at_once() {
    let place = image_and_tree();
    // It notices the first one alone where it has not come to wait for its reader yet.
    let ended = (0..100).any(|_| {
        let mut child = begun(&place, "cp -rv tree disk.img:/");
        let full = |child: &Child| {
            let unread = rustix::io::ioctl_fionread(child.stdout.as_ref().unwrap()).unwrap();
            unread >= PIPE_BYTES - 8192
        };
        while child.try_wait().unwrap().is_none() && !full(&child) {
            std::thread::sleep(PAUSE);
        }
        loop {
            signal(&child, Signal::TERM);
            std::thread::sleep(PAUSE);
            if let Some(status) = child.try_wait().unwrap() {
                break status.signal() == Some(Signal::TERM.as_raw());
            }
        }
    });
    assert!(ended);
}
