//! Files take over their directory's default ACL as they do under the kernel.

use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use buttress::{FileKind, New, acl};

use crate::judge::Image;

/// An ACL: tag, permissions and id of each entry.
fn acl_of(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut acl = vec![2, 0, 0, 0];
    for (tag, permissions, id) in entries {
        acl.extend(tag.to_le_bytes());
        acl.extend(permissions.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    acl
}

const NONE: u32 = u32::MAX;

fn acls() -> [Vec<u8>; 3] {
    [
        acl_of(&[(1, 7, NONE), (4, 5, NONE), (0x20, 1, NONE)]),
        acl_of(&[(1, 6, NONE), (2, 7, 1000), (4, 7, NONE), (0x10, 6, NONE), (0x20, 0, NONE)]),
        acl_of(&[(1, 7, NONE), (4, 4, NONE), (8, 5, 33), (0x10, 7, NONE), (0x20, 5, NONE)]),
    ]
}

/// Mode and ACLs, as the kernel shows them.
fn seen(path: &Path) -> (u32, Vec<Option<Vec<u8>>>) {
    let value = |name: &[u8]| {
        let mut value = vec![0; 1000];
        let name = std::str::from_utf8(name).unwrap();
        let len = rustix::fs::getxattr(path, name, &mut value[..]).ok()?;
        value.truncate(len);
        Some(value)
    };
    (path.metadata().unwrap().mode(), [acl::ACCESS, acl::DEFAULT].map(value).to_vec())
}

#[test]
fn defaults_are_inherited() {
    if !buttress_testkit::oracle::root_or_skip() {
        return;
    }
    let image = Image::by_progs(512 << 20, &[]);
    let modes = [0o777, 0o640, 0o4711, 0o2050];
    image.mounted(|top| {
        for (number, acl) in acls().iter().enumerate() {
            let dir = top.join(format!("{number}"));
            std::fs::create_dir(&dir).unwrap();
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(&dir, "system.posix_acl_default", acl, flags).unwrap();
            for mode in modes {
                let mut options = std::fs::OpenOptions::new();
                let file = options.write(true).create_new(true).mode(mode);
                file.open(dir.join(format!("kernel-file-{mode:o}"))).unwrap();
                let made = std::fs::DirBuilder::new()
                    .mode(mode)
                    .create(dir.join(format!("kernel-dir-{mode:o}")));
                made.unwrap();
            }
        }
    });
    let fs = image.open();
    for number in 0..acls().len() {
        let dir = fs.resolve(format!("/{number}")).unwrap();
        for mode in modes {
            for (what, kind) in [("file", FileKind::Regular), ("dir", FileKind::Directory)] {
                let new = New { inherit: true, umask: 0o022, ..New::of(kind, mode) };
                // The kernel's mkdir takes no set-id bits.
                let mode_of = if kind == FileKind::Directory { mode & 0o1777 } else { mode };
                let name = format!("our-{what}-{mode:o}");
                fs.create(dir, name.as_bytes(), &New { mode: mode_of, ..new }).unwrap();
            }
        }
    }
    fs.close().unwrap();
    image.check();
    image.mounted(|top| {
        for number in 0..acls().len() {
            for mode in modes {
                for what in ["file", "dir"] {
                    let path = |who: &str| top.join(format!("{number}/{who}-{what}-{mode:o}"));
                    let (have, expect) = (seen(&path("our")), seen(&path("kernel")));
                    assert_eq!(have, expect, "{number} {what} {mode:o}");
                }
            }
        }
    });
}

#[test]
fn an_access_acl_and_the_mode_say_the_same() {
    let [plain, masked, _] = acls();
    assert_eq!(acl::mode_of(&plain, 0o100_000).unwrap(), (0o100_751, false));
    assert_eq!(acl::mode_of(&masked, 0o4777).unwrap(), (0o4660, true));
    let changed = acl::with_mode(&masked, 0o1).unwrap();
    assert_eq!(acl::mode_of(&changed, 0).unwrap(), (0o1, true));
    assert!(acl::mode_of(b"\x02\0\0\0\x01", 0).is_err());
}
