//! What programs see by ioctls and control words beyond who may do what: the same script on btrfs of the kernel and on the
//! mount, and where the kernel has nothing alike, on the mount alone.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use buttress_fuse::client;
use rustix::io::Errno;

use crate::rights::{Kernel, ReadOnly, as_root, as_user, ours, run};
use crate::server::{Kind, Mount, PATIENCE, USER, can_mount, exists, users};

/// Ioctls by number, for scripts: `call(FD, NUMBER, FORMAT, VALUES...)` answers errno and memory.
const CALL: &str = r#"
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(fd, number, form, *values):
    room = ctypes.create_string_buffer(struct.pack(form, *values), 8192)
    ctypes.set_errno(0)
    failed = libc.ioctl(fd, ctypes.c_ulong(number), room) < 0
    return os.strerror(ctypes.get_errno()) if failed else 'done', room.raw
CREATE, SNAPSHOT, DELETE, SEARCH, ROOTREF = 0x5000940e, 0x50009417, 0x5000940f, 0xd0009411, 0xd000943d
def snapshot(fd, source, name, flags=0):
    return call(fd, SNAPSHOT, '<qQQ32x4040s', source, 0, flags, name)[0]
"#;

/// Runs python as `who` (options of setpriv(1)) in `place`; what it prints.
fn python(place: &Path, who: &[&str], wrapper: &str, script: &str) -> String {
    let path = tempfile::NamedTempFile::new().unwrap();
    fs::write(path.path(), format!("{CALL}{script}")).unwrap();
    fs::set_permissions(path.path(), fs::Permissions::from_mode(0o644)).unwrap();
    run(place, who, &format!("{wrapper} python3 {}", path.path().display()))
}

/// A mount namespace of its own, which hears when others unmount: in a private one, their filesystems would stay in use.
const ELSEWHERE: &str = "unshare --mount --propagation slave";
const ELSEWHERE_AS_ROOT: &str = "unshare --map-root-user --mount --propagation slave";

fn has_python() -> bool {
    let has = exists(Command::new("python3").arg("-V"));
    if !has {
        println!("skipped: needs python3");
    }
    has
}

/// Runs `script` on both, as root.
fn on_both(script: impl Fn(&Path) -> String) {
    if !can_mount() || !has_python() {
        return;
    }
    let (Some(kernel), Some(mount)) = (Kernel::mount("rw"), ours("allow_other")) else { return };
    assert_eq!(script(&mount.path()), script(&kernel.path()));
    mount.end();
}

#[test]
fn a_search_sees_what_is_not_committed() {
    let script = r"
top = os.open('.', 0)
open('file', 'w').close()
ino = os.stat('file').st_ino
_, said = call(top, SEARCH, '<QQQQQQQIII36x3992x', 0, ino, ino, 0, 2**64 - 1, 0, 2**64 - 1, 0, 255, 100)
kinds, at = [], 104
for _ in range(struct.unpack_from('<I', said, 64)[0]):
    _, _, _, kind, length = struct.unpack_from('<QQQII', said, at)
    kinds.append(kind)
    at += 32 + length
print(kinds)
";
    on_both(|top| python(top, &["--reuid=0"], "", script));
}

#[test]
fn more_subvolumes_than_one_answer_has_room_for() {
    let script = r"
top = os.open('.', 0)
for i in range(300): call(top, CREATE, '<q4088s', 0, b'%d' % i)
least = 0
for _ in range(3):
    failed, said = call(top, ROOTREF, '<Q4088x', least)
    first, count = struct.unpack_from('<Q', said, 8)[0], said[4088]
    print(failed, count, struct.unpack_from('<Q', said)[0] - first)
    least = struct.unpack_from('<Q', said)[0]
";
    on_both(|top| python(top, &["--reuid=0"], "", script));
}

/// What a snapshot shows in the place of a subvolume.
#[test]
fn a_stub_in_a_snapshot() {
    let make = r"
top = os.open('.', 0)
call(top, CREATE, '<q4088s', 0, b'above')
above = os.open('above', 0)
call(above, CREATE, '<q4088s', 0, b'below')
print(snapshot(top, above, b'rw'), snapshot(top, above, b'ro', 2), snapshot(top, above, b'other'))
";
    let tries = "setfattr -n user.a -v b rw/below; setfattr -n trusted.a -v b rw/below; getfattr -n user.a rw/below; \
                 setfattr -x user.a rw/below; touch rw/below/file; mkdir rw/below/dir; ls -A rw/below; \
                 stat -c '%F %a %h' rw/below; rmdir rw/below; ls rw";
    // Linux asks for the ACL before it lets others in.
    let others = "getfattr -d -m - rw/below; getfattr -n system.posix_acl_access rw/below; setfacl -m u:1000:r rw/below; \
                  setpriv --reuid=1000 --regid=1000 --clear-groups sh -c 'ls rw/below; cd ro/below && ls; stat x; touch x; find ..'";
    // What stands for one subvolume in two snapshots is not one directory.
    let ways = "cd rw/below; stat -c %F ../../other/below; touch ../by-way-of-dots; ls -d ../by-way-of-dots; pwd -P | tail -c 9
                exec 3<.; stat -c %F ../../other/below; readlink /proc/self/fd/3 | tail -c 9; cd ../..; ls rw other
                mv file other/below; touch file; mv -T file other/below";
    let calls = r"
INO_LOOKUP, INFO = 0xd0009412, 0x81f8943c
other = os.open('other', 0)
below = os.open('other/below', 0)
failed, said = call(below, INO_LOOKUP, '<QQ4080x', 0, 256)
print(failed, struct.unpack_from('<Q', said)[0])
failed, said = call(below, INFO, '<504x')
print(failed, said[8:14])
# Linux refuses this, and takes it from rmdir(2).
call(other, DELETE, '<q4088s', 0, b'below')
'below' in os.listdir('other') and os.rmdir('other/below')
print(os.listdir('other'))
";
    on_both(|top| {
        assert_eq!(python(top, &["--reuid=0"], "", make), "done done done");
        let ways = as_root(top, others) + &as_root(top, ways) + &as_root(top, tries);
        ways + &python(top, &["--reuid=0"], "", calls)
    });
}

#[test]
fn a_file_of_a_read_only_snapshot_is_not_moved_out() {
    let make = r"
top = os.open('.', 0)
call(top, CREATE, '<q4088s', 0, b'sub')
open('sub/file', 'w').close()
call(os.open('sub', 0), CREATE, '<q4088s', 0, b'below')
print(snapshot(top, os.open('sub', 0), b'ro', 2))
for pair in [('ro/below', 'out'), ('ro/file', 'out'), ('ro/file', 'sub/out'), ('ro/file', 'ro/out'), ('sub/file', 'ro/in'), ('sub/file', 'out')]:
    try: print(os.rename(*pair))
    except OSError as error: print(pair, error.strerror)
";
    on_both(|top| {
        let moved = python(top, &["--reuid=0"], "", make);
        moved + &as_root(top, "mv ro/file out; ls . ro sub | grep -v server")
    });
}

/// What is newer than its last reading was written since.
#[test]
fn touch_sets_one_time() {
    let script = "echo a >file; sleep .02; touch file; same() { stat -c '%x %y %z' $1 | tr ' ' '\n' | grep : | sort -u | wc -l; }; same file; \
                  sleep .02; touch -a file; same file; mkdir dir; sleep .02; touch dir; same dir; sleep .02; truncate -s 9 file; same file";
    on_both(|top| as_root(top, script));
}

/// Attributes of an inode that the server changes are told to the kernel.
#[test]
fn inode_flags_move_the_time_of_change() {
    let Some(mount) = ours("") else { return };
    let path = mount.path().join("file");
    fs::write(&path, "").unwrap();
    let time = || fs::metadata(&path).map(|found| (found.ctime(), found.ctime_nsec())).unwrap();
    for flags in [rustix::fs::IFlags::NODUMP, rustix::fs::IFlags::empty()] {
        let before = time();
        rustix::fs::ioctl_setflags(fs::File::open(&path).unwrap(), flags).unwrap();
        assert!(time() > before);
    }
    mount.end();
}

/// Project ids are refused as btrfs refuses them.
#[test]
fn projects() {
    on_both(|top| {
        as_root(
            top,
            ": >file; chattr -p 7 file; chattr +P file; lsattr -p file; lsattr -v file >here && wc -l <here",
        )
    });
}

/// The source of a snapshot may be open through a mount that the server does not see.
#[test]
fn a_snapshot_from_another_mount_namespace() {
    if !has_python() {
        return;
    }
    let Some(mount) = ours("allow_other") else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let script = r"
os.system('mount --bind . %s' % sys.argv[1])
os.chdir(sys.argv[1])
top = os.open('.', 0)
print(call(top, CREATE, '<q4088s', 0, b'source')[0])
print(snapshot(top, os.open('source', 0), b'copy'), os.path.isdir('copy'))
print(snapshot(top, os.open('/', 0), b'other'), snapshot(top, 1000, b'other'))
"
    .replace("sys.argv[1]", &format!("{:?}", elsewhere.path()));
    let said = python(&mount.path(), &["--reuid=0"], ELSEWHERE, &script);
    assert_eq!(said, "done\ndone True\nInvalid cross-device link Invalid argument");
    mount.end();
}

/// A sandbox of the user who mounted gets through a read-only mount no more than it should.
#[test]
fn a_sandbox_cannot_change_through_a_read_only_mount() {
    if !can_mount() || !has_python() || !users().contains(&Some(USER)) {
        return;
    }
    let mount = Mount::foreground(Kind::Engine, Some(USER), "fakeroot");
    let user = format!("--reuid={USER}");
    let group = format!("--regid={USER}");
    let who = [user.as_str(), group.as_str(), "--clear-groups"];
    let make = r"print(call(os.open('.', 0), CREATE, '<q4088s', 0, b'sub')[0])";
    assert_eq!(python(&mount.path(), &who, "", make), "done");
    let place = mount.path();
    let bind = format!(
        "import os; os.system('mount --bind {0} {0} && mount -o remount,bind,ro {0}'); os.chdir('{0}')\n",
        place.display()
    );
    let tries = r"
top = os.open('.', 0)
print(call(top, CREATE, '<q4088s', 0, b'other')[0])
print(call(top, DELETE, '<q4088s', 0, b'sub')[0])
# Which file it came by cannot be seen then.
libc.prctl(4, 0)
print(call(top, DELETE, '<q4088s', 0, b'sub')[0])
";
    let said = python(&place, &who, ELSEWHERE_AS_ROOT, &format!("{bind}{tries}"));
    let refused = "Read-only file system";
    assert_eq!(said, format!("{refused}\n{refused}\n{refused}"));
    let remove = r"print(call(os.open('.', 0), DELETE, '<q4088s', 0, b'sub')[0])";
    assert_eq!(python(&place, &who, "", remove), "done");
    mount.end();
}

/// Subvolumes are named to those who could find them, and changed by those who may.
#[test]
fn control_words_as_several_users() {
    let Some(mount) = ours("allow_other") else { return };
    let top = mount.path();
    for (name, mode) in [("shut", 0o700), ("open", 0o755), ("free", 0o777)] {
        fs::create_dir(top.join(name)).unwrap();
        fs::set_permissions(top.join(name), fs::Permissions::from_mode(mode)).unwrap();
        client::create_subvolume(&top.join(name).join("sub")).unwrap();
    }
    let id = |name: &str| client::subvolume(&top.join(name).join("sub")).unwrap().id;
    let get = |word: String| {
        as_user(&top, &format!("getfattr --only-values -n buttress.{word} free | grep -a name="))
    };
    assert_eq!(get("subvolumes.0".into()), "name=\nname=sub\nname=sub");
    assert_eq!(get(format!("subvolume.{}", id("open"))), "name=sub");
    let hidden = id("shut");
    for word in ["subvolume", "place"] {
        let said = as_user(&top, &format!("getfattr -n buttress.{word}.{hidden} free"));
        assert!(said.contains("Permission denied"), "{said}");
    }
    let set = |who: &[&str], place: &Path, word: &str, value: &str| {
        let script = format!("setfattr -n buttress.{word} -v '{value}' .");
        run(place, who, &script).rsplit(": ").next().unwrap_or_default().to_owned()
    };
    let user = ["--reuid=1001", "--regid=1001", "--clear-groups"];
    let bare = ["--bounding-set=-all", "--inh-caps=-all"];
    let free = top.join("free");
    let words = [
        ("label", "x"),
        ("default-id", "5"),
        ("delete", "sub"),
        ("delete-id", &id("open").to_string()),
    ]
    .map(|(word, value)| (word, value.to_owned()));
    for (word, value) in &words {
        for who in [&user[..], &bare[..]] {
            assert_eq!(set(who, &free, word, value), "Operation not permitted", "{word} {who:?}");
        }
        let bind = ReadOnly::of(&free);
        let refused = set(&["--reuid=0"], bind.0.path(), word, value);
        assert_eq!(refused, "Read-only file system", "{word}");
    }
    let bare = |word: &str| run(&free, &bare, &format!("getfattr -n buttress.{word} ."));
    assert!(bare("deleted.0").contains("Operation not permitted"));
    assert_eq!(set(&user, &free, "subvolume", "mine"), "");
    assert_eq!(
        set(&user, &free, "snapshot", &format!("{} rw copy", id("shut") << 40 | 256)),
        "Permission denied"
    );
    let ino = fs::metadata(free.join("mine")).unwrap().ino();
    assert_eq!(set(&user, &free, "snapshot", &format!("{ino} rw copy")), "");
    mount.end();
}

/// By their ids subvolumes are reached that are not below the mounted one.
#[test]
fn subvolumes_by_their_ids() {
    let Some(mount) = ours("") else { return };
    let top = mount.path();
    for name in ["home", "other"] {
        client::create_subvolume(&top.join(name)).unwrap();
    }
    let id = client::subvolume(&top.join("other")).unwrap().id;
    let mount = mount.again("subvol=home");
    let top = mount.path();
    client::set_default_by_id(&top, id).unwrap();
    assert_eq!(client::default_subvolume(&top).unwrap(), id);
    assert_eq!(client::delete_subvolume_by_id(&top, id), Err(Errno::PERM));
    client::set_default_by_id(&top, 0).unwrap();
    assert_eq!(client::default_subvolume(&top).unwrap(), 5);
    client::delete_subvolume_by_id(&top, id).unwrap();
    assert_eq!(client::subvolume_by_id(&top, id), Err(Errno::NOENT));
    assert_eq!(client::delete_subvolume_by_id(&top, id), Err(Errno::NOENT));
    assert_eq!(client::delete_subvolume_by_id(&top, 5), Err(Errno::INVAL));
    // Its space may be free already.
    let deleted = client::deleted_subvolumes(&top).unwrap();
    assert!(deleted.iter().all(|facts| facts.id == id && facts.name.is_empty()));
    mount.end();
}

/// Who has a file of a deleted subvolume open goes on; its space comes back after that.
#[test]
fn open_files_of_a_deleted_subvolume() {
    let script = r"
top = os.open('.', 0)
call(top, CREATE, '<q4088s', 0, b'sub')
os.makedirs('sub/dir/below')
file = os.open('sub/dir/file', os.O_RDWR | os.O_CREAT)
os.write(file, b'before')
inside = os.open('sub/dir', 0)
print(call(top, DELETE, '<q4088s', 0, b'sub')[0], os.path.exists('sub'))
os.write(file, b' and after')
os.fsync(file)
print(os.pread(file, 100, 0), os.fstat(file).st_size)
os.ftruncate(file, 3)
print(sorted(os.listdir(inside)), os.stat('file', dir_fd=inside).st_size)
call(top, CREATE, '<q4088s', 0, b'sub')
print(os.listdir('sub'), os.pread(file, 100, 0))
";
    on_both(|top| python(top, &["--reuid=0"], "", script));
    let Some(mount) = ours("") else { return };
    let top = mount.path();
    client::create_subvolume(&top.join("home")).unwrap();
    let deleted = || -> Vec<u64> {
        client::deleted_subvolumes(&top).unwrap().iter().map(|facts| facts.id).collect()
    };
    for open in [false, true] {
        let place = top.join("home/sub");
        client::create_subvolume(&place).unwrap();
        fs::write(place.join("seen"), "").unwrap();
        let file = fs::File::create(place.join("file")).unwrap();
        let file = open.then_some(file);
        let id = client::subvolume(&place).unwrap().id;
        client::delete_subvolume_by_id(&top, id).unwrap();
        if let Some(mut file) = file {
            std::io::Write::write_all(&mut file, b"content").unwrap();
            assert_eq!(deleted(), [id]);
        }
        // The kernel forgets in its own time; of what was open, only when it must.
        let deadline = Instant::now() + PATIENCE;
        while !open && !deleted().is_empty() {
            assert!(Instant::now() < deadline, "it stays");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    mount.end();
}
