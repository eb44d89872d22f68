//! Opening immutable and append-only files, and those of read-only subvolumes: with `strictopen` it is refused as Linux refuses it, each answer beside btrfs of the
//! kernel.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::rights::{Kernel, as_root, as_user, ours};

/// Opens files with each flag in every way, and prints what came of it; then what was opened before it had its flag.
const OPENS: &str = r"
import fcntl, itertools, os, struct
FLAGS = {'plain': 0, 'fixed': 0x10, 'log': 0x20, 'both': 0x30}
STILL = {'still/file': 0, 'still/fixed': 0x10}
WAYS = {'r': os.O_RDONLY, 'w': os.O_WRONLY, 'rw': os.O_RDWR, 'neither': 3}
MORE = {'append': os.O_APPEND, 'truncate': os.O_TRUNC, 'create': os.O_CREAT, 'path': os.O_PATH, 'direct': os.O_DIRECT}
def said(what):
    try: return what()
    except OSError as e: return e.strerror
def flag(name, flags):
    f = os.open(name, os.O_RDONLY)
    fcntl.ioctl(f, 0x40086602, bytearray(struct.pack('<I4x', flags)))
    os.close(f)
def closed(f):
    os.close(f)
    return 'opened'
if os.geteuid() == 0:
    fcntl.ioctl(os.open('.', os.O_RDONLY), 0x5000940e, bytearray(struct.pack('<q4088s', 0, b'still')))
    for name, flags in STILL.items():
        with open(name, 'wb') as f: f.write(b'content')
        os.chmod(name, 0o666)
        flag(name, flags)
    fcntl.ioctl(os.open('still', os.O_RDONLY), 0x4008941a, bytearray(struct.pack('<Q', 2)))
    for name, flags in FLAGS.items():
        with open(name, 'wb') as f: f.write(b'content')
        os.chmod(name, 0o666)
        flag(name, flags)
    for size in (7, 9, 9):
        os.utime('plain', (1, 1)); os.truncate('plain', size); print('truncate', os.stat('plain').st_mtime > 1)
        os.utime('plain', (1, 1)); os.ftruncate(os.open('plain', os.O_RDWR), size); print('ftruncate', os.stat('plain').st_mtime > 1)
for name in [*FLAGS, *STILL]:
    for way, access in WAYS.items():
        for count in range(3):
            for more in itertools.combinations(MORE, count):
                flags = access
                for word in more: flags |= MORE[word]
                print(name, way, *more, said(lambda: closed(os.open(name, flags))))
    print(name, said(lambda: open(name, 'rb').read()))
if os.geteuid() == 0:
    for name in ('log', 'both'):
        f = said(lambda: os.open(name, os.O_WRONLY | os.O_APPEND))
        if isinstance(f, int): print(name, said(lambda: os.write(f, b', and more')), open(name, 'rb').read())
    print(said(lambda: os.truncate('log', 3)), said(lambda: os.truncate('fixed', 3)))
    for name in FLAGS:
        flag(name, 0)
        print(name, said(lambda: closed(os.open(name, os.O_RDWR))))
        flag(name, FLAGS[name])
";

fn opens(place: &Path, user: bool) -> String {
    let script = format!("python3 -c \"{}\"", OPENS.replace('"', "\\\""));
    if user { as_user(place, &script) } else { as_root(place, &script) }
}

#[test]
fn with_strictopen_files_open_as_linux_opens_them() {
    for options in ["allow_other,strictopen", "allow_other,strictopen,strictatime"] {
        let Some(mount) = ours(options) else { return };
        let Some(kernel) = Kernel::mount("rw") else { return mount.end() };
        fs::set_permissions(kernel.path(), fs::Permissions::from_mode(0o777)).unwrap();
        for user in [false, true] {
            let (theirs, ours) = (opens(&kernel.path(), user), opens(&mount.path(), user));
            assert!(theirs.lines().count() > 200, "{theirs}");
            let differ = theirs.lines().zip(ours.lines()).filter(|(theirs, ours)| theirs != ours);
            let differ: Vec<_> = differ.collect();
            assert!(differ.is_empty() && theirs == ours, "{options}, user {user}: {differ:#?}");
        }
        let free = "python3 -c 'import fcntl,os,struct\n\
                    for n in (\"fixed\", \"log\", \"both\"): fcntl.ioctl(os.open(n, 0), 0x40086602, bytearray(8))'";
        assert_eq!(as_root(&mount.path(), free), "");
        mount.end();
    }
}

/// What the kernel does not keep an eye on is refused at the write, as without the option.
#[test]
fn with_strictopen_an_old_descriptor_writes_no_less_and_no_more() {
    let Some(mount) = ours("allow_other,strictopen") else { return };
    let script = r"
import fcntl, os, struct
def flag(flags): fcntl.ioctl(f, 0x40086602, bytearray(struct.pack('<I4x', flags)))
def said(what):
    try: return what()
    except OSError as e: return e.strerror
f = os.open('file', os.O_RDWR | os.O_CREAT); os.write(f, b'content')
flag(0x20); print(said(lambda: os.pwrite(f, b'C', 0)), said(lambda: os.pwrite(f, b'!', 7)))
a = os.open('file', os.O_WRONLY | os.O_APPEND); fcntl.fcntl(a, fcntl.F_SETFL, 0)
print(said(lambda: os.pwrite(a, b'C', 0)))
flag(0x10); print(said(lambda: os.pwrite(f, b'C', 0)), os.pread(f, 100, 0))
flag(0)";
    let said = as_root(&mount.path(), &format!("python3 -c \"{script}\""));
    let refused = "Operation not permitted";
    assert_eq!(said, format!("{refused} 1\n{refused}\n{refused} b'content!'"));
    mount.end();
}
