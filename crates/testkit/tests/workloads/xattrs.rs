//! Extended attributes: many on one inode, small and large, with equal hashes; ACLs that new files take over.

use buttress::{Errno, New, Node, SetXattr};
use buttress_codec::ChecksumKind;
use buttress_testkit::corpus::colliding_names;

use crate::image::{Image, shape};
use crate::judge::judge;
use crate::tools::{bytes, mkdir, touch};

#[test]
fn five_thousand_on_one_inode() {
    let image = Image::by_progs(1 << 30, &[]);
    let fs = image.open();
    let node = touch(&fs, Node::ROOT, "file");
    // The kernel lists at most 64 KiB of names.
    let name = |number: usize| format!("user.{number:04}").into_bytes();
    for number in 0..5000 {
        let len = if number % 100 == 0 { 15_000 } else { number % 90 };
        fs.set_xattr(node, &name(number), &bytes(len, number as u32), SetXattr::Create).unwrap();
    }
    fs.commit().unwrap();
    for number in (0..5000).step_by(7) {
        fs.set_xattr(node, &name(number), &bytes(400, 1), SetXattr::Replace).unwrap();
    }
    for number in (0..5000).step_by(5) {
        fs.remove_xattr(node, &name(number)).unwrap();
    }
    assert_eq!(fs.list_xattrs(node).unwrap().len(), 4000);
    assert_eq!(fs.get_xattr(node, &name(14)).unwrap(), Some(bytes(400, 1)));
    let missing = fs.set_xattr(node, &name(0), b"", SetXattr::Replace).unwrap_err();
    assert_eq!(missing.errno(), Errno::NODATA);
    judge(&image, fs);
}

#[test]
fn large_values_and_equal_hashes() {
    for nodesize in [4096, 65_536] {
        let image = Image::by_us(1 << 30, shape(nodesize, ChecksumKind::XxHash64));
        let fs = image.open();
        for number in 0..60 {
            let node = touch(&fs, Node::ROOT, &format!("file{number}"));
            let mut len = nodesize as usize;
            while fs.set_xattr(node, b"user.large", &bytes(len, 3), SetXattr::Any).is_err() {
                len -= 1;
            }
            assert!(len > nodesize as usize - 300, "{len}");
            fs.set_xattr(node, b"user.small", &bytes(number, 2), SetXattr::Any).unwrap();
        }
        let node = touch(&fs, Node::ROOT, "alike");
        // Names with equal ends and equal hashes keep them with the same start.
        let names = colliding_names(20).into_iter().map(|name| [b"user.", &name[..]].concat());
        for (number, name) in names.enumerate() {
            fs.set_xattr(node, &name, &bytes(number * 4, 1), SetXattr::Create).unwrap();
            if number % 4 == 1 {
                fs.remove_xattr(node, &name).unwrap();
            }
        }
        assert_eq!(fs.list_xattrs(node).unwrap().len(), 15);
        judge(&image, fs);
    }
}

/// An ACL as xattrs hold it: version 2, then tag, permissions and id of each entry.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let entry = |(tag, permissions, id): &(u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    [2_u32.to_le_bytes().to_vec(), entries.iter().flat_map(entry).collect()].concat()
}

#[test]
fn acls_are_taken_over() {
    let image = Image::by_progs(1 << 30, &["-n", "4096", "--csum", "blake2"]);
    let fs = image.open();
    let dir = mkdir(&fs, Node::ROOT, "dir");
    let none = u32::MAX;
    let default = acl(&[(1, 7, none), (2, 6, 1000), (4, 5, none), (16, 7, none), (32, 0, none)]);
    fs.set_xattr(dir, b"system.posix_acl_default", &default, SetXattr::Any).unwrap();
    for number in 0..300 {
        let new = match number % 3 {
            0 => New { inherit: true, ..New::directory(0o777) },
            _ => New { inherit: true, umask: 0o22, ..New::file(0o666) },
        };
        let made = fs.create(dir, number.to_string().as_bytes(), &new).unwrap();
        let access = fs.get_xattr(made.node, b"system.posix_acl_access").unwrap().unwrap();
        assert_eq!(access.len(), default.len());
        assert_eq!(made.mode & 0o7, 0);
        let name = b"system.posix_acl_default";
        assert_eq!(fs.get_xattr(made.node, name).unwrap().is_some(), number % 3 == 0);
    }
    fs.set_xattr(dir, b"security.selinux", b"a:b:c\0", SetXattr::Any).unwrap();
    fs.set_xattr(dir, b"trusted.overlay.opaque", b"y", SetXattr::Any).unwrap();
    judge(&image, fs);
}
