//! Named cases.

use super::{Fixture, Random, tools};
use crate::error::Errno;
use crate::inode::file::{Place, Seek};

fn small() -> Option<Fixture> {
    tools().then(|| Fixture::new(&[], 256 << 20, 2, 0))
}

fn place(fixture: &Fixture, at: usize) -> Vec<Place> {
    fixture.op(at, |file, op, root| {
        let found = file.with(op.core, root, |live, layers| live.extents(layers, 0, 1 << 40));
        found.expect("lists").into_iter().map(|mapping| mapping.place).collect()
    })
}

#[test]
fn small_files_are_inline_until_they_grow() {
    let Some(fixture) = small() else { return };
    fixture.write(0, 0, b"hello");
    assert_eq!(place(&fixture, 0), [Place::Buffered]);
    fixture.compare_all();
    let fixture = fixture.check();
    assert_eq!(place(&fixture, 0), [Place::Inline]);
    fixture.write(0, 5, b" world");
    let fixture = fixture.check();
    assert_eq!(place(&fixture, 0), [Place::Inline]);
    fixture.truncate(0, 10_000);
    fixture.compare_all();
    let fixture = fixture.check();
    assert!(matches!(place(&fixture, 0)[..], [Place::Extent { .. }]));
    fixture.truncate(0, 3);
    let fixture = fixture.check();
    assert_eq!(place(&fixture, 0), [Place::Inline]);
    fixture.write(0, 100_000, b"far");
    fixture.truncate(0, 0);
    let fixture = fixture.check();
    assert_eq!(place(&fixture, 0), []);
}

#[test]
fn a_stream_becomes_few_extents() {
    let Some(fixture) = small() else { return };
    let mut random = Random(11);
    for len in [131_072u64, 100_000] {
        fixture.truncate(0, 0);
        for at in 0..200 {
            fixture.write(0, at * len, &random.bytes(len as usize));
        }
        let fixture_extents = place(&fixture, 0);
        let real =
            fixture_extents.iter().filter(|place| matches!(place, Place::Extent { .. })).count();
        assert!(real <= 16, "{fixture_extents:?}");
    }
    fixture.compare(0, 12_345, 1_000_000);
    fixture.check();
}

#[test]
fn small_appends_become_one_extent() {
    let Some(fixture) = small() else { return };
    let mut random = Random(12);
    for at in 0..3000u64 {
        fixture.write(0, at * 1001, &random.bytes(1001));
    }
    fixture.compare_all();
    let fixture = fixture.check();
    assert!(place(&fixture, 0).len() <= 4, "{:?}", place(&fixture, 0));
}

#[test]
fn seek_finds_data_and_holes() {
    let Some(fixture) = small() else { return };
    fixture.write(0, 1 << 20, &[1; 5000]);
    fixture.truncate(0, 3 << 20);
    let seek = |fixture: &Fixture, offset, what| {
        fixture.op(0, |file, op, root| {
            file.with(op.core, root, |live, layers| live.seek(layers, offset, what))
        })
    };
    let all = |fixture: &Fixture| {
        assert_eq!(seek(fixture, 0, Seek::Data).expect("data"), 1 << 20);
        assert_eq!(seek(fixture, 0, Seek::Hole).expect("hole"), 0);
        assert_eq!(seek(fixture, 1 << 20, Seek::Hole).expect("hole"), (1 << 20) + 8192);
        assert_eq!(seek(fixture, 2 << 20, Seek::Data).expect_err("none").errno(), Errno::NXIO);
        assert_eq!(seek(fixture, 3 << 20, Seek::Hole).expect_err("end").errno(), Errno::NXIO);
    };
    all(&fixture);
    let fixture = fixture.check();
    all(&fixture);
}

#[test]
fn preallocation_keeps_what_is_there() {
    let Some(fixture) = small() else { return };
    fixture.write(0, 10_000, b"middle");
    fixture.op(0, |file, op, root| {
        file.flags |= buttress_ondisk::item::inode_flags::PREALLOC;
        file.with(op.core, root, |live, layers| live.allocate(op, layers, 0, 1 << 20, true))
            .expect("allocates");
    });
    fixture.compare_all();
    let fixture = fixture.check();
    let prealloc = |places: &[Place]| {
        places.iter().filter(|place| matches!(place, Place::Extent { prealloc: true, .. })).count()
    };
    assert_eq!(prealloc(&place(&fixture, 0)), 2);
    fixture.write(0, 200_000, &[7; 100_000]);
    let fixture = fixture.check();
    assert_eq!(prealloc(&place(&fixture, 0)), 3);
}

#[test]
fn unwritten_space_comes_back() {
    let Some(fixture) = small() else { return };
    fixture.commit();
    let free = |fixture: &Fixture| {
        let mut all = 0;
        let mut ranges = Vec::new();
        while let Some(range) = fixture.core.space.allocate_data(4096, 1 << 20) {
            all += range.len;
            ranges.push(range);
        }
        ranges
            .into_iter()
            .for_each(|range| fixture.core.space.give_back(range).expect("gives back"));
        all
    };
    let before = free(&fixture);
    for _ in 0..20 {
        fixture.write(0, 0, &vec![5; 1 << 20]);
        fixture.write(1, 0, &vec![5; 300_000]);
    }
    fixture.op(1, |file, op, _| {
        file.live.abandon(op.core).expect("gives back");
        file.model.clear();
    });
    fixture.truncate(0, 0);
    let fixture = fixture.check();
    fixture.commit();
    fixture.commit();
    assert_eq!(free(&fixture), before);
}

#[test]
fn a_full_filesystem_takes_nothing_and_loses_nothing() {
    if !tools() {
        return;
    }
    let fixture = Fixture::new(&[], 128 << 20, 2, 0);
    let chunk = vec![9; 3 << 20];
    let write = |fixture: &Fixture, at: usize, offset: u64, data: &[u8]| {
        fixture.op(at, |file, op, root| {
            let size = file.size();
            let done =
                file.with(op.core, root, |live, layers| live.write(op, layers, offset, data));
            if done.is_ok() {
                assert_eq!(offset, size);
                file.model.extend_from_slice(data);
            }
            done
        })
    };
    let size = |fixture: &Fixture, at: usize| fixture.files.lock()[at].size();
    let fill = |fixture: &Fixture, at: usize| {
        for len in [chunk.len(), 100_000, 65_536, 4096 * 17] {
            while write(fixture, at, size(fixture, at), &chunk[..len / 4096 * 4096]).is_ok() {}
        }
    };
    fill(&fixture, 0);
    // What was taken ahead of the stream comes back with the commit.
    fixture.commit();
    fill(&fixture, 1);
    assert_eq!(
        write(&fixture, 1, size(&fixture, 1), &chunk).expect_err("full").errno(),
        Errno::NOSPC
    );
    let fixture = fixture.check();
    fixture.truncate(0, 10 << 20);
    fixture.commit();
    fixture.commit();
    fill(&fixture, 0);
    assert!(size(&fixture, 0) > 20 << 20);
    fixture.check();
}

#[test]
fn damaged_data_is_an_error_that_says_where() {
    let Some(fixture) = small() else { return };
    fixture.write(0, 0, &Random(5).bytes(100_000));
    let fixture = fixture.check();
    let Place::Extent { bytenr, .. } = place(&fixture, 0)[0] else { panic!("an extent") };
    let bad = bytenr + 3 * 4096;
    fixture.core.volume.write(bad + 77, &[0x55; 9]).expect("damages");
    fixture.compare(0, 0, 3 * 4096);
    fixture.compare(0, 4 * 4096, 80_000);
    let error = fixture.op(0, |file, op, root| {
        let mut buf = [0; 100];
        file.with(op.core, root, |live, layers| live.read(op.core, layers, 3 * 4096 + 50, &mut buf))
    });
    let error = error.expect_err("the checksum is wrong");
    assert_eq!(error.errno(), Errno::IO);
    let text = error.to_string();
    assert!(text.contains("at 12338") && text.contains(&bytenr.to_string()), "{text}");
}
