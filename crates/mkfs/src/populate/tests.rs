//! The reading side against the filesystem the tests run on.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};

use super::pipeline::stream;
use super::read::{Segments, What, open, read_full, read_pieces, read_top, stat_of};
use super::{SubvolumeKind, parse_subvolume, room_for};
use crate::MkfsError;

/// Everything below `top` as lines, in the order in which it is handed over.
fn lines(top: &std::path::Path, threads: usize) -> Result<Vec<String>, MkfsError> {
    let mut lines = Vec::new();
    stream(top, threads, |batch| {
        for entry in std::mem::take(&mut batch.entries) {
            let what = match entry.what {
                What::Directory(id) => format!("directory {id}"),
                What::Small(pieces) => {
                    let all: usize = pieces.iter().map(|piece| piece.len).sum();
                    format!("small {} bytes in {}", all, pieces.len())
                }
                What::Large => format!("large {}", entry.stat.size),
                What::Symlink(target) => format!("link {}", String::from_utf8_lossy(&target)),
                What::Special => "special".into(),
            };
            lines.push(format!("{} {} {what}", batch.directory, entry.name.display()));
        }
        if batch.last {
            lines.push(format!("{} end", batch.directory));
        }
        Ok(())
    })?;
    Ok(lines)
}

#[test]
fn directories_come_whole_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path();
    fs::create_dir_all(top.join("b/inner")).unwrap();
    fs::create_dir(top.join("c")).unwrap();
    fs::write(top.join("a"), b"").unwrap();
    fs::write(top.join("b/file"), vec![1; 5000]).unwrap();
    fs::write(top.join("b/inner/big"), vec![1; 300 << 10]).unwrap();
    symlink("nowhere", top.join("d")).unwrap();
    let expect = [
        "0 a small 0 bytes in 0",
        "0 b directory 1",
        "0 c directory 2",
        "0 d link nowhere",
        "0 end",
        "1 file small 5000 bytes in 1",
        "1 inner directory 3",
        "1 end",
        "3 big large 307200",
        "3 end",
        "2 end",
    ];
    assert_eq!(lines(top, 0).unwrap(), expect);
    assert_eq!(lines(top, 1).unwrap(), expect);
    assert_eq!(lines(top, 4).unwrap(), expect);
}

#[test]
fn many_batches_stay_in_order() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..7000 {
        File::create(dir.path().join(format!("{number:04}"))).unwrap();
    }
    let lines = lines(dir.path(), 4).unwrap();
    assert_eq!(lines.len(), 7001);
    assert!(lines.is_sorted_by_key(|line| line.split(' ').nth(1).map(str::to_owned)));
}

#[test]
fn holes_are_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sparse");
    let file = File::create_new(&path).unwrap();
    file.set_len(1 << 20).unwrap();
    file.write_all_at(&[1; 4096], 512 << 10).unwrap();
    drop(file);
    let mut found = Vec::new();
    stream(dir.path(), 2, |batch| {
        for entry in std::mem::take(&mut batch.entries) {
            let What::Large = &entry.what else { panic!("{entry:?}") };
            let file = &open(&path).unwrap();
            let mut segments = Segments::new(file, &entry.stat);
            while let Some((start, end)) = segments.next().unwrap() {
                let mut data = vec![0; (end - start) as usize];
                assert_eq!(read_full(file, start, &mut data).unwrap(), data.len());
                let ones = data.iter().filter(|byte| **byte == 1).count();
                found.push((start, end, ones));
            }
        }
        Ok(())
    })
    .unwrap();
    if found == [(0, 1 << 20, 4096)] {
        println!("skipped: no SEEK_HOLE here");
    } else {
        assert_eq!(found, [(512 << 10, (512 << 10) + 4096, 4096)]);
    }
}

#[test]
fn files_that_wait_for_their_turn_are_not_open() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().canonicalize().unwrap();
    for number in 0..200 {
        let file = File::create(top.join(format!("{number:03}"))).unwrap();
        file.set_len(300 << 10).unwrap();
    }
    let mut waiting = Vec::new();
    stream(&top, 2, |batch| {
        waiting.push(std::mem::take(&mut batch.entries));
        Ok(())
    })
    .unwrap();
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    assert_eq!(open.filter(|path| path.starts_with(&top)).count(), 0);
    assert_eq!(waiting.iter().map(Vec::len).sum::<usize>(), 200);
}

#[test]
fn an_error_on_either_side_ends_both() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..5000 {
        File::create(dir.path().join(format!("{number:04}"))).unwrap();
    }
    let mut seen = 0;
    let refuse = MkfsError::MixedProfiles;
    let result = stream(dir.path(), 2, |_| {
        seen += 1;
        if seen == 3 { Err(refuse.clone()) } else { Ok(()) }
    });
    assert!(matches!(result, Err(MkfsError::MixedProfiles)));
    assert_eq!(seen, 3);
    let missing = dir.path().join("missing");
    assert!(matches!(lines(&missing, 2), Err(MkfsError::Source { .. })));
    assert!(read_top(&missing).is_err());
    assert!(read_top(&dir.path().join("0000")).is_err());
    assert!(read_top(dir.path()).is_ok());
}

#[test]
fn subvolume_arguments() {
    let parse = |text: &str| parse_subvolume(OsStr::new(text));
    let kind = |read_only, default| SubvolumeKind { read_only, default };
    for (text, path, expect) in [
        ("home", "home", kind(false, false)),
        ("rw:./home/", "home", kind(false, false)),
        ("ro:a/b", "a/b", kind(true, false)),
        ("default:root", "root", kind(false, true)),
        ("default-ro:x:y", "x:y", kind(true, true)),
    ] {
        let parsed = parse(text).unwrap();
        assert_eq!((parsed.path.to_str().unwrap(), parsed.kind), (path, expect), "{text}");
    }
    for text in ["", "ro:", "rw:.", "xx:home", "ro:../up"] {
        assert!(parse(text).is_err(), "{text}");
    }
}

/// What was longer when it was looked at is nobody's file.
#[test]
fn a_file_that_loses_its_end_meanwhile_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (name, sparse) in [("plain", false), ("sparse", true)] {
        let path = dir.path().join(name);
        let file = File::create(&path).unwrap();
        if sparse {
            file.set_len(200_000).unwrap();
        }
        file.write_all_at(&[7; 5000], 0).unwrap();
        let stat = stat_of(&file.metadata().unwrap());
        let mut content = Vec::new();
        let whole = read_pieces(&open(&path).unwrap(), &stat, &mut content).unwrap();
        assert_eq!(whole.first().map(|piece| piece.offset), Some(0));
        file.set_len(3000).unwrap();
        let error = read_pieces(&open(&path).unwrap(), &stat, &mut content).unwrap_err();
        assert!(error.to_string().contains("to 3000 bytes meanwhile"), "{error}");
        // One that has grown is what it was.
        file.set_len(1 << 20).unwrap();
        read_pieces(&open(&path).unwrap(), &stat, &mut content).unwrap();
    }
}

/// A directory that has had many names is larger on some filesystems.
#[test]
fn room_does_not_depend_on_what_directories_take_where_they_are() {
    let places = ["/dev/shm", env!("CARGO_MANIFEST_DIR")];
    let rooms = places.map(|place| {
        let dir = tempfile::tempdir_in(place).ok()?;
        for number in 0..2000 {
            fs::create_dir(dir.path().join(format!("directory {number}"))).unwrap();
        }
        Some(room_for(dir.path(), &crate::Options::default()).unwrap())
    });
    let [Some(one), Some(other)] = rooms else {
        println!("skipped: there are not two filesystems to write to");
        return;
    };
    assert_eq!(one, other);
}
