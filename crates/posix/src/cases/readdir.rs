//! Listing directories, also while they change.

use std::collections::{BTreeMap, BTreeSet};

use rustix::fs::{Dir, FileType};

use crate::call;
use crate::case::{Outcome, Registry, T, eq, holds};

/// An open listing of `path`.
fn listing(path: &str) -> Outcome<Dir> {
    Ok(Dir::new(call::open(path, "r,directory", 0)?)?)
}

/// The next `count` names, without dots.
fn take(dir: &mut Dir, count: usize) -> Outcome<Vec<String>> {
    let mut names = Vec::new();
    while names.len() < count {
        let Some(entry) = dir.next() else { break };
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// A directory `d` with `count` files; the names are long so that they fill several buffers.
fn filled(t: &T, count: usize) -> Outcome<BTreeSet<String>> {
    t.ok("mkdir d 755")?;
    let names: BTreeSet<_> =
        (0..count).map(|at| format!("file-with-a-long-name-{at:05}")).collect();
    for name in &names {
        t.ok(&format!("create d/{name} 644"))?;
    }
    Ok(names)
}

/// Registers the cases.
pub fn register(r: &mut Registry) {
    contents(r);
    changes(r);
    positions(r);
}

/// What a listing shows.
fn contents(r: &mut Registry) {
    r.case("readdir/dots", |t| {
        t.ok("mkdir d 755")?;
        let mut found = BTreeMap::new();
        for entry in listing("d")? {
            let entry = entry?;
            found.insert(entry.file_name().to_string_lossy().into_owned(), entry.ino());
        }
        eq(found.keys().map(String::as_str).collect(), vec![".", ".."], "names")?;
        eq(found.get(".").copied(), Some(t.stat("d")?.st_ino), "number of .")?;
        eq(found.get("..").copied(), Some(t.stat(".")?.st_ino), "number of ..")
    });
    r.case("readdir/kinds-and-numbers", |t| {
        t.ok("create f 644; mkdir d 755; symlink x l; mknod p fifo 644; mknod s socket 644; link f g")?;
        let want = [
            ("f", FileType::RegularFile),
            ("g", FileType::RegularFile),
            ("d", FileType::Directory),
            ("l", FileType::Symlink),
            ("p", FileType::Fifo),
            ("s", FileType::Socket),
        ];
        let entries: Vec<_> = listing(".")?.collect::<Result<_, _>>()?;
        for (name, kind) in want {
            let entry = entries.iter().find(|entry| entry.file_name().to_bytes() == name.as_bytes());
            let have = entry.map(|entry| (entry.ino(), entry.file_type()));
            eq(have, Some((t.stat(name)?.st_ino, kind)), name)?;
        }
        Ok(())
    });
    r.case("readdir/thousands", |t| {
        let names = filled(t, 2000)?;
        let mut dir = listing("d")?;
        let found = take(&mut dir, usize::MAX)?;
        eq(found.len(), 2000, "names found")?;
        eq(found.into_iter().collect::<BTreeSet<_>>() == names, true, "the names are those made")
    });
    r.case("readdir/names-of-255-bytes", |t| {
        t.ok("mkdir d 755")?;
        for at in 0..60 {
            t.ok(&format!("create d/{at:03}{} 644", "n".repeat(252)))?;
        }
        eq(take(&mut listing("d")?, usize::MAX)?.len(), 60, "names found")
    });
    r.case("readdir/removed-names-are-gone", |t| {
        let names = filled(t, 300)?;
        for name in names.iter().step_by(3) {
            t.ok(&format!("unlink d/{name}"))?;
        }
        eq(take(&mut listing("d")?, usize::MAX)?.len(), 200, "names found")
    });
    r.case("readdir/directory-counts-its-names", |t| {
        t.ok("mkdir d 755; create d/a 644; rename d/a d/longer; create d/b 644; unlink d/longer")?;
        eq(t.ok("list d")?, "b".to_owned(), "names")?;
        holds(t.stat("d")?.st_size > 0, "a directory with names has a size")
    });
}

/// Changes while a listing is open: what was there all the time is shown exactly once.
fn changes(r: &mut Registry) {
    r.case("readdir/removing-on-the-way", |t| {
        // As `rm -r` does it.
        filled(t, 1000)?;
        let mut dir = listing("d")?;
        loop {
            let names = take(&mut dir, 17)?;
            if names.is_empty() {
                break;
            }
            for name in names {
                t.ok(&format!("unlink d/{name}"))?;
            }
        }
        t.ok("rmdir d").map(drop)
    });
    r.case("readdir/making-on-the-way", |t| {
        let names = filled(t, 600)?;
        let mut dir = listing("d")?;
        let mut found = take(&mut dir, 100)?;
        for at in 0..200 {
            t.ok(&format!("create d/new{at} 644"))?;
        }
        found.extend(take(&mut dir, usize::MAX)?);
        found.retain(|name| !name.starts_with("new"));
        eq(found.len(), 600, "old names found")?;
        eq(found.into_iter().collect::<BTreeSet<_>>() == names, true, "each of them once")
    });
    r.case("readdir/renaming-others-on-the-way", |t| {
        let names = filled(t, 400)?;
        let mut dir = listing("d")?;
        let mut found = take(&mut dir, 50)?;
        let moved: Vec<_> = names.iter().skip(200).step_by(4).cloned().collect();
        for name in &moved {
            t.ok(&format!("rename d/{name} d/moved-{name}"))?;
        }
        found.extend(take(&mut dir, usize::MAX)?);
        let stayed: BTreeSet<_> = names.iter().filter(|name| !moved.contains(name)).collect();
        let seen: Vec<_> = found.iter().filter(|name| stayed.contains(name)).collect();
        eq(seen.len(), stayed.len(), "names that stayed, found")
    });
    r.case("readdir/ends-although-names-are-made", |t| {
        filled(t, 50)?;
        let mut dir = listing("d")?;
        let mut made = 0;
        while !take(&mut dir, 1)?.is_empty() && made < 5000 {
            t.ok(&format!("create d/new{made} 644"))?;
            made += 1;
        }
        holds(made < 5000, "the listing ends")
    });
}

/// Going back.
fn positions(r: &mut Registry) {
    r.case("readdir/rewind", |t| {
        filled(t, 100)?;
        let mut dir = listing("d")?;
        take(&mut dir, 40)?;
        t.ok("create d/new 644")?;
        dir.rewind();
        let found = take(&mut dir, usize::MAX)?;
        eq(found.len(), 101, "names found after going back")?;
        holds(found.iter().any(|name| name == "new"), "the new name is among them")
    });
    r.case("readdir/seek-to-every-place", |t| {
        filled(t, 60)?;
        let mut dir = listing("d")?;
        let mut places = Vec::new();
        for entry in dir.by_ref() {
            let entry = entry?;
            places.push((entry.offset(), entry.file_name().to_owned()));
        }
        for pair in places.windows(2).rev().step_by(7) {
            let [(offset, _), (_, next)] = pair else { continue };
            dir.seek(*offset)?;
            let have = dir.next().transpose()?.map(|entry| entry.file_name().to_owned());
            eq(have.as_ref(), Some(next), "name after a place")?;
        }
        Ok(())
    });
    r.case("readdir/two-listings", |t| {
        filled(t, 100)?;
        let (mut one, mut two) = (listing("d")?, listing("d")?);
        let first = take(&mut one, 30)?;
        eq(take(&mut two, 30)? == first, true, "both begin alike")?;
        eq(take(&mut one, usize::MAX)?.len(), 70, "names left in one")?;
        eq(take(&mut two, usize::MAX)?.len(), 70, "names left in two")
    });
    r.case("readdir/offset-at-the-end", |t| {
        t.ok("mkdir d 755")?;
        let mut dir = listing("d")?;
        eq(take(&mut dir, 10)?.len(), 0, "names")?;
        eq(dir.next().is_none(), true, "it stays at its end")
    });
}
