//! Pages that programs map and change: the kernel keeps them, and sends them when it wants to, or has to.
//!
//! The programs are Python's, as its maps need no unsafe code here.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use buttress_fuse::client;

use crate::server::{Kind, Mount, can_mount, exists, spawn};

/// What each program begins with: a file of 250 pages, mapped, the number of each page in its first bytes.
const HEAD: &str = r#"
import fcntl, mmap, os, struct, sys, time
PAGES = 250
def mapped(path):
    f = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(f, PAGES * 4096)
    return mmap.mmap(f, PAGES * 4096)
def dirty(pages, first):
    for i in range(PAGES): pages[i * 4096:i * 4096 + 4] = struct.pack('<I', first + i)
def right(data, first):
    return sum(struct.unpack_from('<I', data, i * 4096)[0] == first + i for i in range(PAGES))
def content(path): return open(path, 'rb').read()
def wait(): print('ready', flush=True); sys.stdin.readline()
"#;

fn has_python() -> bool {
    let found = exists(Command::new("python3").arg("--version"));
    if !found {
        println!("skipped: needs python3");
    }
    found
}

fn linux_prunes() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(18))
}

/// A program in the top directory, at its first `wait()` or its end.
struct Program {
    child: Child,
    said: String,
}

fn start(top: &Path, body: &str) -> Program {
    let mut command = Command::new("python3");
    command.args(["-c", &format!("{HEAD}{body}")]).current_dir(top);
    let mut child = spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut said = String::new();
    let mut byte = [0];
    while !said.ends_with("ready\n") && child.stdout.as_mut().unwrap().read(&mut byte).unwrap() > 0
    {
        said.push(char::from(byte[0]));
    }
    Program { child, said }
}

impl Program {
    /// Lets it go on; all that it said.
    fn finish(mut self) -> String {
        let _it_may_have_ended = self.child.stdin.take().unwrap().write_all(b"\n");
        self.child.stdout.take().unwrap().read_to_string(&mut self.said).unwrap();
        self.child.wait().unwrap();
        self.said.trim().to_owned()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn run(top: &Path, body: &str) -> String {
    start(top, body).finish()
}

/// Whether page after page of a file begins with its number.
fn right(data: &[u8], first: u32) -> usize {
    let numbers = data.chunks(4096).map(|page| u32::from_le_bytes(page[..4].try_into().unwrap()));
    numbers.zip(first..).filter(|(found, number)| found == number).count()
}

fn on_both(test: impl Fn(&Mount)) {
    on(Kind::Engine, test);
}

/// With and without the kernel's cache of writes.
fn on(kind: Kind, test: impl Fn(&Mount)) {
    for options in ["allow_other,commit=300", "allow_other,commit=300,writeback_cache"] {
        if !can_mount() || !has_python() {
            return;
        }
        let mount = Mount::foreground(kind, None, options);
        fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o777)).unwrap();
        println!("{options}");
        test(&mount);
        mount.end();
    }
}

const SNAPSHOT: &str = r"
def snapshot(name, flags):
    d = os.open('.', os.O_RDONLY)
    fcntl.ioctl(d, 0x50009417, bytearray(struct.pack('<qQQ32x4040s', d, 0, flags, name)))
";

#[test]
fn a_snapshot_has_what_was_written_before() {
    on_both(|mount| {
        let body = format!(
            "{SNAPSHOT}
a = mapped('file'); dirty(a, 1); open('written', 'wb').write(b'x' * 9000)
snapshot(b's1', 2); print(right(content('s1/file'), 1), len(content('s1/written')))
dirty(a, 1000); snapshot(b's2', 0); print(right(content('s2/file'), 1000))
print(right(content('s1/file'), 1))
# Another process has the same pages, and one more maps them read-only.
b = mapped('file'); dirty(b, 5000); c = mmap.mmap(os.open('file', os.O_RDONLY), 4096, prot=mmap.PROT_READ)
if os.fork() == 0: dirty(b, 7000); os._exit(0)
os.wait(); snapshot(b's3', 2); print(right(content('s3/file'), 7000), struct.unpack_from('<I', c, 0)[0])
wait()"
        );
        let program = start(&mount.path(), &body);
        let top = mount.path();
        // By the control word.
        client::snapshot(&top, &top.join("word"), true).unwrap();
        assert_eq!(right(&fs::read(top.join("word/file")).unwrap(), 7000), 250);
        assert_eq!(program.finish(), "250 9000\n250\n250\n250 7000\nready");
    });
}

#[test]
fn what_is_stored_in_holes_is_data() {
    on(Kind::Engine, |mount| {
        let body = "
def stored(path, end=PAGES):
    pages = mapped(path)
    for i in range(0, end, 2): pages[i * 4096] = 65
    return pages
a = stored('file'); b = stored('half', 100); c = mapped('empty')
def runs(path):
    f, at, found = os.open(path, os.O_RDONLY), 0, []
    while True:
        try: start = os.lseek(f, at, os.SEEK_DATA)
        except OSError: return found
        at = os.lseek(f, start, os.SEEK_HOLE)
        found.append((start // 4096, at // 4096))
ends = runs('file'); print(len(ends), ends[0], ends[-1])
print(len(runs('half')), runs('half')[-1], runs('empty'))
a[4096] = b[200 * 4096] = 66; print(runs('file')[0], runs('half')[-1])
# A hole is looked for where there is none any more; nothing is behind the end.
d = stored('whole'); d[4096:PAGES * 4096] = b'z' * ((PAGES - 1) * 4096); f = os.open('whole', os.O_RDWR)
print(os.lseek(f, 0, os.SEEK_HOLE) // 4096)
try: os.lseek(f, PAGES * 4096, os.SEEK_DATA)
except OSError as e: print(e.strerror)
# What write(2) has left with the kernel is data, too.
w = open('written', 'wb', 0); w.write(b'x' * (1 << 20)); print(runs('written'), os.system('cp written copy4'))
print(content('copy4') == content('written'))
for i in range(1, PAGES, 2): a[i * 4096] = 67
for command in ['cp file copy', 'cp --sparse=never half copy2', 'tar -cSf - half | tar -xOf - > copy3']: print(os.system(command))
print(content('copy') == bytes(a), content('copy2') == bytes(b), content('copy3') == bytes(b))
";
        let want = "125 (0, 1) (248, 249)\n50 (98, 99) []\n(0, 3) (200, 201)\n250\nNo such device or address\n[(0, 256)] 0\nTrue\n0\n0\n0\nTrue True True";
        assert_eq!(run(&mount.path(), body), want);
    });
}

#[test]
fn a_commit_has_what_was_written_before() {
    for by_ioctl in [true, false] {
        for options in ["commit=300", "commit=300,writeback_cache"] {
            if !can_mount() || !has_python() {
                return;
            }
            let mut mount = Mount::foreground(Kind::Engine, None, options);
            let body = "
a = mapped('file'); dirty(a, 1); w = open('written', 'wb', 0); w.write(b'x' * 9000)
if COMMIT: fcntl.ioctl(os.open('.', os.O_RDONLY), 0x9408)
else: os.setxattr('file', 'buttress.commit', b'')
wait()";
            let body = body.replace("COMMIT", if by_ioctl { "True" } else { "False" });
            let program = start(&mount.path(), &body);
            assert_eq!(program.said, "ready\n");
            let mut server = mount.server.take().unwrap();
            server.kill().unwrap();
            server.wait().unwrap();
            program.kill();
            let mount = mount.after_kill();
            let top = mount.path();
            assert_eq!(right(&fs::read(top.join("file")).unwrap(), 1), 250, "{options}");
            assert_eq!(fs::read(top.join("written")).unwrap().len(), 9000, "{options}");
            mount.end();
        }
    }
}

#[test]
fn a_subvolume_becomes_read_only_with_what_was_written_before() {
    on_both(|mount| {
        let top = mount.path();
        for name in ["word", "ioctl"] {
            client::create_subvolume(&top.join(name)).unwrap();
        }
        let body = "
a = mapped('word/file'); dirty(a, 1); os.setxattr('word', 'buttress.readonly', b'1')
b = mapped('ioctl/file'); dirty(b, 9)
fcntl.ioctl(os.open('ioctl', os.O_RDONLY), 0x4008941a, bytearray(struct.pack('<Q', 2)))
wait()";
        assert_eq!(run(&top, body), "ready");
        // From the image: the kernel's pages would show what the file has lost.
        for (name, first) in [("word", 1), ("ioctl", 9)] {
            client::snapshot(&top.join(name), &top.join(format!("{name}-copy")), true).unwrap();
            let copy = fs::read(top.join(format!("{name}-copy/file"))).unwrap();
            assert_eq!(right(&copy, first), 250, "{name}");
        }
    });
}

/// Nobody is asked before something is stored to a mapped page, so what may not be written is refused when the kernel sends it. Then
/// it goes: whoever reads the file has what the disk has, once nobody has it open.
#[test]
fn what_is_stored_where_nobody_may_write_goes_again() {
    on_both(|mount| {
        let top = mount.path();
        client::create_subvolume(&top.join("sub")).unwrap();
        let all = [top.join("sub/file"), top.join("fixed"), top.join("grows")];
        for path in &all {
            fs::write(path, "what is there").unwrap();
        }
        client::snapshot(&top.join("sub"), &top.join("still"), true).unwrap();
        let body = "
def flag(path, value): fcntl.ioctl(os.open(path, os.O_RDONLY), 0x40086602, bytearray(struct.pack('<I4x', value)))
flag('fixed', 0x10); flag('grows', 0x20)
def lie(path):
    m = mmap.mmap(os.open(path, os.O_RDWR), 4); m[0:4] = b'lies'; return m
all = [lie(path) for path in ('still/file', 'fixed', 'grows')]
print([os.pread(os.open(path, os.O_RDONLY), 4, 0) for path in ('still/file', 'fixed', 'grows')])
";
        assert_eq!(run(&top, body), format!("[{}]", ["b'lies'"; 3].join(", ")));
        let all = [top.join("still/file"), top.join("fixed"), top.join("grows")];
        let until = Instant::now() + Duration::from_secs(10);
        let is_right = |path| fs::read(path).unwrap() == b"what is there";
        while !all.iter().all(is_right) {
            if !linux_prunes() {
                println!("skipped: before 6.18 Linux cannot be asked to forget what nobody uses");
                break;
            }
            assert!(Instant::now() < until, "{:?}", all.iter().map(is_right).collect::<Vec<_>>());
            std::thread::sleep(Duration::from_millis(10));
        }
        run(
            &top,
            "
for path in ('fixed', 'grows'): fcntl.ioctl(os.open(path, os.O_RDONLY), 0x40086602, bytearray(8))",
        );
    });
}

/// What cannot be made to hold what was written is not made.
#[test]
fn nothing_is_said_to_hold_pages_that_the_kernel_cannot_be_asked_for() {
    if !can_mount() || !has_python() {
        return;
    }
    let mount = Mount::without_programs(Kind::Engine, "commit=300");
    client::create_subvolume(&mount.path().join("sub")).unwrap();
    let body = format!(
        "{SNAPSHOT}
import errno
a = mapped('sub/file'); dirty(a, 1)
def refused(do, *args):
    try: do(*args); print('done')
    except OSError as error: print(errno.errorcode[error.errno])
def flags(path, number, value): fcntl.ioctl(os.open(path, os.O_RDONLY), number, bytearray(value))
refused(snapshot, b's', 2)
refused(os.setxattr, '.', 'buttress.snapshot', b'256 ro s')
refused(os.setxattr, '.', 'buttress.commit', b'')
refused(fcntl.ioctl, os.open('.', os.O_RDONLY), 0x9408)
refused(os.setxattr, 'sub', 'buttress.readonly', b'1')
refused(flags, 'sub', 0x4008941a, struct.pack('<Q', 2))
refused(flags, 'sub/file', 0x40086602, struct.pack('<I4x', 0x10))
print(os.listdir('.'), os.getxattr('sub', 'buttress.subvolume').count(b'readonly=0'))
dirty(a, 2); a.flush(); print(right(content('sub/file'), 2))"
    );
    let all = format!("{}['sub'] 1\n250", "EIO\n".repeat(7));
    assert_eq!(run(&mount.path(), &body), all);
    mount.end();
}

/// A mapped file with holes only, and nothing left to fill them with. `said` tells what comes of a call.
const FULL: &str = r"
import errno
def said(do, *args):
    try: do(*args); print('done')
    except OSError as error: print(errno.errorcode[error.errno])
a = mapped('file'); os.fsync(os.open('file', os.O_RDWR))
f = os.open('full', os.O_RDWR | os.O_CREAT); at = 0; step = 1 << 26
while step >= 4096:
    try: os.posix_fallocate(f, at, step); at += step
    except OSError: step //= 2
";

/// Pages that find no room when they are asked for are lost: who asked is told so, and with which errno.
#[test]
fn who_asks_for_pages_that_find_no_room_is_told() {
    on_both(|mount| {
        client::create_subvolume(&mount.path().join("sub")).unwrap();
        let body = format!(
            "{SNAPSHOT}{FULL}
for do in [(snapshot, b's', 2), (os.setxattr, '.', 'buttress.snapshot', b'256 ro w'), (os.setxattr, '.', 'buttress.commit', b''),
           (os.setxattr, 'sub', 'buttress.readonly', b'1')]:
    dirty(a, 1); said(*do)
# It is said once: the kernel has let go of them.
said(os.setxattr, '.', 'buttress.commit', b'')
said(a.flush)
os.close(f); os.unlink('full'); os.setxattr('.', 'buttress.commit', b'')
dirty(a, 7); said(snapshot, b's2', 2); said(a.flush); print(right(content('s2/file'), 7), sorted(os.listdir('.')))
wait()"
        );
        let program = start(&mount.path(), &body);
        let all =
            "ENOSPC\n".repeat(4) + "done\nENOSPC\ndone\ndone\n250 ['file', 's2', 'sub']\nready";
        assert_eq!(program.finish(), all);
    });
}

/// The kernel sends pages when it wants to, at the end of a child with the same mapping, say: that they found no room then is said once, too.
#[test]
fn who_asks_is_told_of_pages_that_found_no_room_before() {
    on_both(|mount| {
        let body = format!(
            "{SNAPSHOT}{FULL}
def generation():
    with open('../mnt.img', 'rb') as image:
        image.seek(0x10048); return struct.unpack('<Q', image.read(8))[0]
for do in [(snapshot, b's', 2), (os.setxattr, '.', 'buttress.commit', b'')]:
    dirty(a, 1)
    child = os.fork()
    if child == 0: os._exit(0)
    os.waitpid(child, 0)
    before = generation(); os.utime('full')
    said(*do); print(generation() > before); said(os.setxattr, '.', 'buttress.commit', b'')
print(sorted(os.listdir('.')))"
        );
        let all = "ENOSPC\nTrue\ndone\n".repeat(2) + "['file', 'full']";
        assert_eq!(run(&mount.path(), &body), all);
    });
}

/// Who closes the file, by any descriptor, is told of what was stored to it; once, as the kernel has let go of it then.
#[test]
fn who_closes_is_told_of_pages_that_found_no_room() {
    on_both(|mount| {
        let body = format!(
            "{FULL}
def closed(): said(os.close, os.open('file', os.O_RDWR))
dirty(a, 1); closed(); closed()
said(os.setxattr, '.', 'buttress.commit', b''); said(os.setxattr, '.', 'buttress.commit', b'')
os.close(f); os.unlink('full'); os.setxattr('.', 'buttress.commit', b'')
dirty(a, 5); closed(); print(right(content('file'), 5))"
        );
        assert_eq!(run(&mount.path(), &body), "ENOSPC\ndone\nENOSPC\ndone\ndone\n250");
    });
}

/// Where sync(1) has not run nothing is known, whoever stores where he may not in the same moment.
#[test]
fn a_sync_that_did_not_run_promises_nothing() {
    if !can_mount() || !has_python() {
        return;
    }
    let mount = Mount::foreground(Kind::Engine, None, "commit=300");
    let top = mount.path();
    client::create_subvolume(&top.join("sub")).unwrap();
    fs::write(top.join("sub/file"), "what is there").unwrap();
    client::snapshot(&top.join("sub"), &top.join("still"), true).unwrap();
    let mount = mount.again_with_broken_sync();
    let program = start(&top, STORING_WHERE_NOBODY_MAY);
    let body = "
import errno
for i in range(20):
    try: os.setxattr('.', 'buttress.commit', b''); print('done')
    except OSError as error: print(errno.errorcode[error.errno])";
    assert_eq!(run(&top, body), ["EIO"; 20].join("\n"));
    assert_eq!(program.finish(), "ready");
    mount.end();
}

const STORING_WHERE_NOBODY_MAY: &str = "
import signal
m = mmap.mmap(os.open('still/file', os.O_RDWR), 4)
child = os.fork()
if child == 0:
    os.close(1)
    while os.getppid() != 1:
        m[0:4] = b'lies'
        try: m.flush()
        except OSError: pass
wait()
os.kill(child, signal.SIGKILL)";

/// Whoever goes on to store where nobody may write is in nobody's way.
#[test]
fn who_stores_where_he_may_not_stops_nobody_else() {
    on_both(|mount| {
        let top = mount.path();
        client::create_subvolume(&top.join("sub")).unwrap();
        fs::write(top.join("sub/file"), "what is there").unwrap();
        client::snapshot(&top.join("sub"), &top.join("still"), true).unwrap();
        let program = start(&top, STORING_WHERE_NOBODY_MAY);
        let body = format!(
            "{SNAPSHOT}
for i in range(3):
    a = mapped('new'); dirty(a, i)
    os.setxattr('.', 'buttress.commit', b'')
    snapshot(b's%d' % i, 2)
    os.setxattr('sub', 'buttress.readonly', b'%d' % (i % 2))
    print(right(content('s%d/new' % i), i))"
        );
        assert_eq!(run(&top, &body), ["250"; 3].join("\n"));
        assert_eq!(program.finish(), "ready");
        assert_eq!(fs::read(top.join("sub/file")).unwrap(), b"what is there");
    });
}

#[test]
fn a_snapshot_has_more_pages_than_requests_may_wait() {
    on_both(|mount| {
        let body = format!(
            "{SNAPSHOT}
N = 16000
f = os.open('file', os.O_RDWR | os.O_CREAT); os.ftruncate(f, N * 4096); a = mmap.mmap(f, N * 4096)
for round in range(1, 4):
    for i in range(0, N, 2): a[i * 4096:i * 4096 + 4] = struct.pack('<I', round)
    name = b's%d' % round
    if round % 2: os.setxattr('.', 'buttress.snapshot', b'256 ro ' + name)
    else: snapshot(name, 2)
    data = content(name.decode() + '/file')
    print(sum(struct.unpack_from('<I', data, i * 4096)[0] == round for i in range(0, N, 2)))"
        );
        assert_eq!(run(&mount.path(), &body), "8000\n8000\n8000");
    });
}

#[test]
fn a_file_that_becomes_immutable_loses_nothing() {
    on_both(|mount| {
        let body = "
a = mapped('file'); dirty(a, 1)
fcntl.ioctl(os.open('file', os.O_RDONLY), 0x40086602, bytearray(struct.pack('<I4x', 0x10)))
b = bytes(a); a.close(); wait()";
        let top = mount.path();
        assert_eq!(run(&top, body), "ready");
        client::snapshot(&top, &top.join("copy"), true).unwrap();
        assert_eq!(right(&fs::read(top.join("copy/file")).unwrap(), 1), 250);
        assert!(fs::write(top.join("file"), "refused").is_err());
    });
}

#[test]
fn many_ask_at_once_while_others_write() {
    on_both(|mount| {
        let body = format!(
            "{SNAPSHOT}
import threading
a = mapped('file'); errors = []
def ask(n):
    try:
        for round in range(3):
            dirty(a, n); os.setxattr('.', 'buttress.commit', b''); snapshot(b'%d-%d' % (n, round), 2)
    except Exception as e: errors.append(e)
threads = [threading.Thread(target=ask, args=(n,)) for n in range(80)]
[t.start() for t in threads]; [t.join() for t in threads]
print(errors, len(os.listdir('.')))"
        );
        assert_eq!(run(&mount.path(), &body), "[] 241");
    });
}

#[test]
fn a_snapshot_comes_to_an_end_while_others_write_without_one() {
    on_both(|mount| {
        let body = format!(
            "{SNAPSHOT}
import threading
a = mapped('file'); dirty(a, 1); others = [mapped('other%d' % i) for i in range(4)]; over = []
def write(pages):
    while not over: pages[0:4] = b'more'; pages.flush()
threads = [threading.Thread(target=write, args=(pages,)) for pages in others]
[t.start() for t in threads]
for round in range(3):
    dirty(a, round); snapshot(b's%d' % round, 2); print(right(content('s%d/file' % round), round))
over.append(1); [t.join() for t in threads]"
        );
        assert_eq!(run(&mount.path(), &body), "250\n250\n250");
    });
}

#[test]
fn a_shared_mapping_moves_the_times_of_change() {
    let test = |mount: &Mount| {
        let top = mount.path();
        let body = "
a = mapped('file'); dirty(a, 1); a.flush(); os.utime('file', ns=(10**18, 10**18)); wait()
time.sleep(0.05); a[5000:5004] = b'here'; a.flush(); wait()";
        let mut program = start(&top, body);
        let before = fs::metadata(top.join("file")).unwrap();
        assert_eq!(before.mtime(), 1_000_000_000);
        program.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let mut line = [0; 6];
        program.child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        let after = fs::metadata(top.join("file")).unwrap();
        assert!(after.mtime() > before.mtime(), "{} {}", after.mtime(), before.mtime());
        assert!((after.ctime(), after.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
        program.finish();
        // And they stay.
        let later = fs::metadata(top.join("file")).unwrap();
        assert_eq!((later.mtime(), later.mtime_nsec()), (after.mtime(), after.mtime_nsec()));
    };
    on(Kind::Engine, test);
    on(Kind::Model, test);
}

#[test]
fn a_private_mapping_changes_nothing() {
    let test = |mount: &Mount| {
        let top = mount.path();
        let body = "
open('file', 'wb').write(b'a' * 20000); os.utime('file', ns=(10**18, 10**18))
p = mmap.mmap(os.open('file', os.O_RDWR), 20000, flags=mmap.MAP_PRIVATE)
p[0:4] = b'mine'; print(p[0:4], content('file')[:4])
os.setxattr('.', 'buttress.commit', b'')
f = open('file', 'r+b'); f.seek(9000); f.write(b'theirs'); f.close()
print(p[0:4], p[9000:9006])";
        assert_eq!(run(&top, body), "b'mine' b'aaaa'\nb'mine' b'theirs'");
        let found = fs::read(top.join("file")).unwrap();
        assert!(found.starts_with(b"aaaa") && &found[9000..9006] == b"theirs");
    };
    on(Kind::Engine, test);
    on(Kind::Model, test);
}

/// Mappings are no way around the protection of a file, and what was written before it stays.
#[test]
fn a_mapping_changes_nothing_that_is_protected() {
    for options in ["", "writeback_cache"] {
        if !can_mount() || !has_python() || !exists(Command::new("chattr").arg("-V")) {
            return;
        }
        let mount = Mount::foreground(Kind::Engine, None, options);
        let said = start(
            &mount.path(),
            r"
for (name, flag) in (('fixed', '+i'), ('log', '+a')):
    pages = mapped(name)
    dirty(pages, 7)
    os.system('chattr %s %s' % (flag, name))
    print(right(content(name), 7))
    dirty(pages, 8)
    try: pages.flush()
    except OSError as error: print('refused')
with open('log', 'ab', buffering=0) as log:
    for i in range(3000): log.write(b'a line of a log\n')
",
        )
        .finish();
        assert_eq!(said, "250\nrefused\n250\nrefused", "{options}");
        let mount = mount.again("");
        let script = r"
for name in ('fixed', 'log'): print(right(content(name), 7))
print(content('log')[PAGES * 4096:] == b'a line of a log\n' * 3000)
os.system('chattr -ia fixed log')
";
        let said = start(&mount.path(), script).finish();
        assert_eq!(said, "250\n250\nTrue", "{options}");
        mount.end();
    }
}
