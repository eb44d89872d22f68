//! Orderly ends: signals and `umount`; and that nobody else has the image meanwhile.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use buttress_testkit::oracle;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::Signal;

use crate::daemon::{Place, buttress, plain_umount, try_buttress, umount, wait_until};

/// Enough for the last commit to take a while, in bytes.
const MANY_BYTES: usize = 24 << 20;

/// Bytes of a file on an image that is not mounted.
fn on_image(place: &Place, path: &str) -> Vec<u8> {
    let copy = place.image().with_extension("copy");
    let mut source = place.image().into_os_string();
    source.push(format!(":{path}"));
    buttress(&["cp"], &[source.as_ref(), &copy]);
    fs::read(copy).unwrap()
}

#[test]
fn signals_commit_and_end_well() {
    let Some(place) = Place::new() else { return };
    for (name, signal) in [("TERM", Signal::TERM), ("INT", Signal::INT)] {
        let daemon = place.mount("commit=300");
        fs::write(place.mountpoint().join(name), vec![7; MANY_BYTES]).unwrap();
        let status = daemon.signal(signal);
        assert_eq!(status.code(), Some(0), "{name}");
        assert!(place.is_free());
        assert!(on_image(&place, name) == vec![7; MANY_BYTES], "{name}");
        oracle::check(&place.image(), true).unwrap();
    }
}

#[test]
fn a_signal_keeps_what_was_written_through_open_files() {
    let Some(place) = Place::new() else { return };
    for options in ["commit=300", "commit=300,writeback_cache"] {
        let daemon = place.mount(options);
        let mut open = File::create(place.mountpoint().join(options)).unwrap();
        open.write_all(&[1; 100_000]).unwrap();
        open.write_all_at(b"2", 5).unwrap();
        assert_eq!(daemon.signal(Signal::TERM).code(), Some(0), "{options}");
        assert!(open.write_all(b"too late").and_then(|()| open.sync_all()).is_err(), "{options}");
        let found = on_image(&place, options);
        assert!(found.len() == 100_000 && found[5] == b'2' && found[99_999] == 1, "{options}");
        oracle::check(&place.image(), true).unwrap();
    }
}

#[test]
fn a_signal_unmounts_nothing_but_ours() {
    let Some(place) = Place::new() else { return };
    if !oracle::root_or_skip() {
        return;
    }
    let (top, elsewhere) = (place.mountpoint(), place.mountpoint().with_file_name("elsewhere"));
    fs::create_dir(&elsewhere).unwrap();
    let daemon = place.mount("commit=300");
    fs::write(top.join("below"), "kept").unwrap();
    rustix::mount::mount("over", &top, "tmpfs", MountFlags::empty(), None).unwrap();
    fs::write(top.join("above"), "theirs").unwrap();
    assert_eq!(daemon.signal(Signal::TERM).code(), Some(0));
    assert_eq!(fs::read(top.join("above")).unwrap(), b"theirs");
    plain_umount(&top);
    plain_umount(&top);
    assert_eq!(on_image(&place, "below"), b"kept");
    // In two places it is one mount, which ends in both.
    let daemon = place.mount("commit=300");
    rustix::mount::mount_bind(&top, &elsewhere).unwrap();
    fs::write(elsewhere.join("second"), "kept").unwrap();
    assert_eq!(daemon.signal(Signal::TERM).code(), Some(0));
    let devices = [&top, &elsewhere].map(|path| fs::metadata(path).unwrap().dev());
    assert_eq!(devices, [fs::metadata(place.image()).unwrap().dev(); 2]);
    assert_eq!(on_image(&place, "second"), b"kept");
    oracle::check(&place.image(), true).unwrap();
}

/// A mount that is gone leaves its number to the next one, which a signal for the first does not take off.
#[test]
fn a_signal_takes_off_no_mount_that_comes_meanwhile() {
    let Some(place) = Place::new() else { return };
    if !oracle::root_or_skip() {
        return;
    }
    let (image, top) = (place.image(), place.mountpoint());
    let next = image.with_extension("next");
    fs::copy(&image, &next).unwrap();
    for round in 0..20 {
        let daemon = place.mount("commit=300");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The signal may have come first.
                let _gone = rustix::mount::unmount(&top, UnmountFlags::NOFOLLOW);
                buttress(&["mount"], &[&next, &top]);
            });
            std::thread::sleep(Duration::from_millis(2 * round));
            // It may have ended by itself.
            let _code = daemon.signal(Signal::TERM);
        });
        // Would fail, were nothing mounted.
        umount(&top);
    }
}

#[test]
fn what_a_killed_daemon_left_is_taken_off_by_the_next_mount() {
    let Some(place) = Place::new() else { return };
    let (image, top) = (place.image(), place.mountpoint());
    let mut daemon = place.mount("commit=300");
    fs::write(top.join("file"), "kept").unwrap();
    File::open(top.join("file")).unwrap().sync_all().unwrap();
    daemon.kill();
    // The kernel still remembers how the top directory looks, and tells.
    buttress(&["mount"], &[&image, &top]);
    assert_eq!(fs::read(top.join("file")).unwrap(), b"kept");
    umount(&top);
    assert!(fs::read_dir(&top).unwrap().next().is_none(), "something is still mounted");
    daemon.clean_up();
}

#[test]
fn who_takes_off_what_a_killed_daemon_left_is_told_of_the_loss() {
    let Some(place) = Place::new() else { return };
    let (image, top) = (place.image(), place.mountpoint());
    let helper = image.with_file_name("umount.fuse.buttress");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_buttress"), &helper).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_buttress"));
    let umount = |program: &Path, words: &[&str], path: &Path| {
        let mut command = Command::new(program);
        let said = oracle::start_while("it is busy", command.args(words).arg(path)).unwrap();
        (said.status.code(), String::from_utf8(said.stderr).unwrap())
    };
    let ways: [(&Path, &[&str], &Path); 4] = [
        (program, &["umount"], &top),
        (program, &["umount", "-l"], &top),
        (program, &["umount"], &image),
        (&helper, &[], &top),
    ];
    for (program, words, path) in ways {
        let mut daemon = place.mount("commit=300");
        fs::write(top.join("lost"), "x").unwrap();
        daemon.kill();
        let said = umount(program, words, path);
        let want = format!(
            "buttress: unmounted, but the last changes may be lost on {}: the process that served it has died\n  \
             What was written after its last commit is lost, but for what was fsynced, which the next mount replays; to see whether it is whole: buttress check {}\n",
            top.display(),
            image.display()
        );
        assert_eq!(said, (Some(1), want), "{words:?} {path:?}");
        assert!(!top.join("lost").exists() && fs::read_dir(&top).unwrap().next().is_none());
        daemon.clean_up();
    }
    // Nothing can be lost of what was only read.
    let mut daemon = place.mount("ro");
    daemon.kill();
    assert_eq!(umount(program, &["umount"], &top), (Some(0), String::new()));
    daemon.clean_up();
}

/// Whether the kernel still remembers how the top directory looks or not, commands say what is the matter, and what to do.
#[test]
fn who_asks_a_mount_without_its_process_is_told_so() {
    let Some(place) = Place::new() else { return };
    let (image, top) = (place.image(), place.mountpoint());
    let mut daemon = place.mount("commit=300");
    fs::write(top.join("file"), "kept").unwrap();
    daemon.kill();
    for (words, path) in [
        ("balance status", top.clone()),
        ("balance resume", top.join("file")),
        ("filesystem usage", top.join("nothing/at/all")),
        ("filesystem resize 1G", top.clone()),
    ] {
        let words = words.split(' ');
        let said = Command::new(env!("CARGO_BIN_EXE_buttress")).args(words).arg(&path).output();
        let said = String::from_utf8(said.unwrap().stderr).unwrap();
        let wanted = format!("{}: the process that served this mount has died\n", path.display());
        assert!(said.contains(&wanted), "{said}");
        let hints = [format!("`buttress umount {}`", top.display()), image.display().to_string()];
        assert!(hints.iter().all(|hint| said.contains(hint)), "{said}");
    }
    let _lost = try_buttress(&["umount"], &[&top]);
    daemon.clean_up();
}

#[test]
fn a_mount_without_its_process_is_in_nobodys_way() {
    let Some(place) = Place::new() else { return };
    let image = place.image();
    let mut daemon = place.mount("commit=300");
    daemon.kill();
    let list = Command::new(env!("CARGO_BIN_EXE_buttress")).arg("mount").output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let line = list.lines().find(|line| line.starts_with(image.to_str().unwrap())).unwrap();
    assert!(line.ends_with("(dead: its process has ended; umount it)"), "{line}");
    let mut top = image.clone().into_os_string();
    top.push(":/");
    let mut ls = Command::new(env!("CARGO_BIN_EXE_buttress"));
    let said = ls.arg("ls").arg(top).output().unwrap();
    assert_eq!(String::from_utf8(said.stderr).unwrap(), "");
    let other = image.with_extension("other");
    let said = try_buttress(&["cp"], &[&image, &other]);
    assert_eq!(said, Ok(()));
    // Somebody else has it, and is not where it was mounted.
    let file = File::open(&image).unwrap();
    file.lock().unwrap();
    let inside = format!("{}:/x", image.display());
    let said = try_buttress(&["mkdir", &inside], &[]).unwrap_err();
    assert!(said.contains("busy") && !said.contains("It is mounted on"), "{said}");
    file.unlock().unwrap();
    daemon.clean_up();
}

#[test]
fn an_image_has_one_daemon() {
    let Some(place) = Place::new() else { return };
    let (image, mountpoint) = (place.image(), place.mountpoint());
    buttress(&["mount", "-o", "commit=300"], &[&image, &mountpoint]);
    assert!(!place.is_free());
    let other = mountpoint.with_file_name("other");
    fs::create_dir(&other).unwrap();
    let joins = rustix::process::geteuid().is_root();
    let inside = format!("{}:/x", image.display());
    for words in [&["mount"][..], &["mount", "-r"], &["mkdir", &inside]] {
        let mounts = words[0] == "mount";
        let paths: &[&Path] = if mounts { &[&image, &other] } else { &[] };
        // Another subvolume is there already.
        let hint = match mounts {
            true => format!("It is mounted on {}: its subvolumes are", mountpoint.display()),
            false => format!("It is mounted on {}", mountpoint.display()),
        };
        if joins && mounts {
            buttress(words, paths);
            let device = |path| fs::metadata(path).unwrap().dev();
            assert_eq!(device(&other), device(&mountpoint), "{words:?}");
            umount(&other);
            continue;
        }
        let said = try_buttress(words, paths).unwrap_err();
        assert!(said.contains("busy: another program has locked it"), "{words:?}: {said}");
        assert!(said.contains(&hint), "{said}");
    }
    fs::write(mountpoint.join("many"), vec![3; MANY_BYTES]).unwrap();
    umount(&mountpoint);
    assert!(place.is_free(), "umount returned while the image is held");
    assert!(on_image(&place, "many") == vec![3; MANY_BYTES]);
    oracle::check(&image, true).unwrap();
}

#[test]
fn readers_keep_the_writer_off() {
    let Some(place) = Place::new() else { return };
    let (image, mountpoint) = (place.image(), place.mountpoint());
    let other = mountpoint.with_file_name("other");
    fs::create_dir(&other).unwrap();
    buttress(&["mount", "-r"], &[&image, &mountpoint]);
    let said = try_buttress(&["mount"], &[&image, &other]).unwrap_err();
    assert!(said.contains("busy") && said.contains("It is mounted on"), "{said}");
    buttress(&["mount", "-r"], &[&image, &other]);
    umount(&other);
    umount(&mountpoint);
    // So at once somebody may write.
    let daemon = place.mount("commit=300");
    daemon.unmount();
}

/// Another file may even have its name by then.
#[test]
fn an_image_that_got_another_name_is_written_when_umount_returns() {
    let Some(place) = Place::new() else { return };
    let (image, mountpoint) = (place.image(), place.mountpoint());
    let moved = image.with_extension("moved");
    for others in [false, true] {
        let daemon = place.mount("commit=300");
        fs::write(mountpoint.join("many"), vec![5; MANY_BYTES]).unwrap();
        fs::rename(&image, &moved).unwrap();
        if others {
            fs::copy(&moved, &image).unwrap();
            let said = try_buttress(&["umount"], &[&image]).unwrap_err();
            assert!(said.contains("it is not mounted by buttress"), "{said}");
        }
        umount(&moved);
        fs::rename(&moved, &image).unwrap();
        assert!(place.is_free(), "umount returned while the image is held");
        daemon.ends_unmounted();
        assert!(on_image(&place, "many") == vec![5; MANY_BYTES]);
        buttress(&["rm", &format!("{}:/many", image.display())], &[]);
    }
    oracle::check(&image, true).unwrap();
}

/// A daemon that stands still does not write, and one that is killed then never will.
#[test]
fn who_waits_for_a_last_commit_is_told_when_there_is_none() {
    let Some(place) = Place::new() else { return };
    let mountpoint = place.mountpoint();
    let mut daemon = place.mount("commit=300");
    fs::write(mountpoint.join("lost"), "x").unwrap();
    daemon.stop();
    let mut command = Command::new(env!("CARGO_BIN_EXE_buttress"));
    command.arg("umount").arg(&mountpoint).stderr(Stdio::piped());
    let mut waits = command.spawn().unwrap();
    let mounts = || fs::read_to_string("/proc/self/mounts").unwrap();
    wait_until("the mount to go", || {
        let is_gone = !mounts().contains(mountpoint.to_str().unwrap());
        // A child that another test has forked has our files until it runs its program.
        if !is_gone && waits.try_wait().unwrap().is_some() {
            waits = command.spawn().unwrap();
        }
        is_gone
    });
    daemon.kill();
    let said = waits.wait_with_output().unwrap();
    let text = String::from_utf8(said.stderr).unwrap();
    assert_eq!(said.status.code(), Some(1), "{text}");
    assert!(text.contains("the last changes may be lost"), "{text}");
    daemon.clean_up();
}
