"""What ioctls answer to one caller, a line each; the same on btrfs of the kernel and on the mount.

rights.py new DIR      makes a subvolume, as root
rights.py setup DIR    makes what the cases need in it, as root
rights.py cases DIR    tries them all, as whoever calls
"""

import ctypes
import fcntl
import json
import os
import struct
import subprocess
import sys

SUBVOL_CREATE, SNAP_DESTROY, TREE_SEARCH = 0x5000940E, 0x5000940F, 0xD0009411
INO_LOOKUP, DEFAULT_SUBVOL, SNAP_CREATE_V2 = 0xD0009412, 0x40089413, 0x50009417
SUBVOL_CREATE_V2, SUBVOL_GETFLAGS, SUBVOL_SETFLAGS = 0x50009418, 0x80089419, 0x4008941A
DEV_INFO, FS_INFO, GET_LABEL, SET_LABEL = 0xD000941E, 0x8400941F, 0x81009431, 0x41009432
SUBVOL_INFO, ROOTREF, LOOKUP_USER, DESTROY_V2 = 0x81F8943C, 0xD000943D, 0xD000943E, 0x5000943F
GETFLAGS, SETFLAGS, GETVERSION = 0x80086601, 0x40086602, 0x80087601
GETXATTR, SETXATTR, START_SYNC = 0x801C581F, 0x401C5820, 0x80089418
GET_FEATURES, READ_ONLY, BY_ID = 0x80189439, 2, 16
QUOTA_CTL, QGROUP_ASSIGN, QGROUP_CREATE = 0xC0109428, 0x40189429, 0x4010942A
BALANCE_V2, BALANCE_PROGRESS, RESIZE = 0xC4009420, 0x84009422, 0x50009403
QUOTA_RESCAN, QUOTA_RESCAN_STATUS, QUOTA_RESCAN_WAIT = 0x4040942C, 0x8040942D, 0x942E
USER, GROUP = 1001, 2000
# Of the number that is shown, what is not the subvolume.
NUMBER = 2**40 - 1

# Name, owner, group, mode, ACL.
DIRECTORIES = [
    ("free", 0, 0, 0o777, None),
    ("sticky", 0, 0, 0o1777, None),
    ("group", 0, GROUP, 0o770, None),
    ("readable", 0, 0, 0o755, None),
    ("shut", 0, 0, 0o700, None),
    ("mine", USER, USER, 0o755, None),
    ("closed-to-me", USER, USER, 0o077, None),
    ("acl", 0, 0, 0o700, "u:%d:rwx" % USER),
    ("acl-against", 0, 0, 0o777, "u:%d:r-x" % USER),
    ("acl-group", 0, 0, 0o700, "g:%d:rwx" % GROUP),
    ("acl-masked", 0, 0, 0o700, "u:%d:rwx,m::r-x" % USER),
    ("immutable", 0, 0, 0o777, None),
]
SUBVOLUMES = [("root", 0, 0o755), ("own", USER, 0o755), ("wide", 0, 0o777), ("by-id", USER, 0o777)]

libc = ctypes.CDLL(None, use_errno=True)


def tell(what, number):
    print("%s: %s" % (what, os.strerror(number) if number else "done"))


def call(fd, number, value=b""):
    """The errno, and how many bytes of a buffer that was larger were written to."""
    room = ctypes.create_string_buffer(bytes(value) + b"\xa5" * (8192 - len(value)), 8192)
    ctypes.set_errno(0)
    failed = libc.ioctl(fd, ctypes.c_ulong(number), room) < 0
    touched = max((i + 1 for i, byte in enumerate(room.raw[len(value):]) if byte != 0xA5), default=0)
    return (ctypes.get_errno() if failed else 0), touched, room.raw


def named(name, fd=0, flags=None):
    name = name.encode() if isinstance(name, str) else name
    if flags is None:
        return struct.pack("<q4088s", fd, name)
    return struct.pack("<qQQ32x4040s", fd, 0, flags, name)


def new(path):
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    failed = call(directory, SUBVOL_CREATE, named(os.path.basename(path)))[0]
    assert not failed, os.strerror(failed)


def setup(top):
    ids = {}
    os.chmod(top, 0o755)
    os.makedirs(top + "/outside/deep/er")
    make = os.open(top + "/outside/deep", os.O_RDONLY)
    assert call(make, SUBVOL_CREATE, named("hidden"))[0] == 0
    os.close(make)
    for name, uid, gid, mode, acl in DIRECTORIES:
        path = top + "/" + name
        os.mkdir(path)
        directory = os.open(path, os.O_RDONLY)
        ids[name] = {"directory": os.stat(path).st_ino & NUMBER}
        for sub, owner, permissions in SUBVOLUMES:
            assert call(directory, SUBVOL_CREATE, named(sub))[0] == 0
            os.chown(path + "/" + sub, owner, owner)
            os.chmod(path + "/" + sub, permissions)
            ids[name][sub] = identity(path + "/" + sub)
        os.mkdir(path + "/plain")
        os.chmod(path + "/plain", 0o777)
        open(path + "/file", "w").close()
        os.chown(path, uid, gid)
        os.chmod(path, mode)
        if acl:
            subprocess.run(["setfacl", "-m", acl, path], check=True)
        if name == "immutable":
            subprocess.run(["chattr", "+i", path], check=True)
        os.close(directory)
    ids["hidden"] = {"id": identity(top + "/outside/deep/hidden"), "directory": os.stat(top + "/outside/deep").st_ino & NUMBER}
    with open(top + "/ids", "w") as out:
        json.dump(ids, out)
    os.chmod(top + "/ids", 0o644)
    os.chmod(top + "/outside", 0o700)
    # Not sync(2), which waits for every filesystem of the machine.
    assert libc.syncfs(os.open(top, os.O_RDONLY)) == 0


def identity(path):
    fd = os.open(path, os.O_RDONLY)
    failed, _, said = call(fd, INO_LOOKUP, struct.pack("<QQ4080x", 0, 256))
    assert not failed
    os.close(fd)
    return struct.unpack_from("<Q", said)[0]


def opened(path):
    try:
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        tell("open " + path, error.errno)
        return None


def in_directory(name, ids, top):
    directory = opened(name)
    if directory is None:
        return

    def say(what, number, value=b"", fd=directory):
        if fd is not None:
            tell("%s: %s" % (name, what), call(fd, number, value)[0])

    for made in ("new", "plain", "", ".", "..", "a/b", "n" * 256):
        say("make " + made[:9], SUBVOL_CREATE, named(made))
    say("make v2", SUBVOL_CREATE_V2, named("new-v2", flags=0))
    say("make v2 ro", SUBVOL_CREATE_V2, named("new-ro", flags=READ_ONLY))
    if os.path.isdir(name + "/new-ro"):
        fd = opened(name + "/new-ro")
        tell(name + ": is ro", 0 if call(fd, SUBVOL_GETFLAGS)[2][0] else 1)
    for sub in ("root", "own", "plain"):
        fd = opened(name + "/" + sub)
        if fd is not None:
            say("snapshot " + sub, SNAP_CREATE_V2, named("of-" + sub, fd, 0))
            say("snapshot again " + sub, SNAP_CREATE_V2, named("of-" + sub, fd, READ_ONLY))
            say("get " + sub, SUBVOL_GETFLAGS, fd=fd)
            say("ro " + sub, SUBVOL_SETFLAGS, struct.pack("<Q", READ_ONLY), fd)
            say("rw " + sub, SUBVOL_SETFLAGS, struct.pack("<Q", 0), fd)
            say("wrong " + sub, SUBVOL_SETFLAGS, struct.pack("<Q", 64), fd)
    say("snapshot of nothing", SNAP_CREATE_V2, named("of-none", 999, 0))
    say("snapshot of another", SNAP_CREATE_V2, named("of-other", os.open("/", os.O_RDONLY), 0))
    for sub in ("wide", "own", "root", "plain", "file", "missing", "", ".", "..", "a/b", "new", "of-own"):
        say("delete " + sub, SNAP_DESTROY, named(sub))
    by_id = struct.pack("<qQQ32xQ4032x", 0, 0, BY_ID, ids["by-id"])
    say("delete by id", DESTROY_V2, by_id, top)
    say("delete by wrong id", DESTROY_V2, struct.pack("<qQQ32xQ4032x", 0, 0, BY_ID, 1 << 40), top)
    say("delete by low id", DESTROY_V2, struct.pack("<qQQ32xQ4032x", 0, 0, BY_ID, 5), top)
    failed, _, said = call(top, LOOKUP_USER, struct.pack("<QQ4080x", ids["directory"], ids["root"]))
    tell(name + ": lookup by user", failed)
    if not failed:
        path(name + ": path", said)


def path(what, said):
    print("%s: %s %s" % (what, said[16:272].rstrip(b"\0"), said[272:4096].split(b"\0")[0]))


def cases(place):
    os.chdir(place)
    top = os.open(".", os.O_RDONLY)
    with open("ids") as file:
        ids = json.load(file)
    hidden = ids.pop("hidden")
    for name in [row[0] for row in DIRECTORIES]:
        in_directory(name, ids[name], top)
    lookup = struct.pack("<QQ4080x", hidden["directory"], hidden["id"])
    tell("lookup of what is hidden", call(top, LOOKUP_USER, lookup)[0])
    free = os.open("free", os.O_RDONLY)
    lookup = struct.pack("<QQ4080x", ids["readable"]["directory"], ids["readable"]["root"])
    tell("lookup from elsewhere", call(free, LOOKUP_USER, lookup)[0])
    lookup = struct.pack("<QQ4080x", ids["free"]["directory"], ids["readable"]["root"])
    tell("lookup in another directory", call(top, LOOKUP_USER, lookup)[0])
    lookup = struct.pack("<QQ4080x", ids["free"]["directory"], ids["free"]["root"])
    failed, _, said = call(free, LOOKUP_USER, lookup)
    tell("lookup from its directory", failed)
    if not failed:
        path("path from its directory", said)
    for what, number, value in [
        ("tree search", TREE_SEARCH, struct.pack("<QQQQQQQIII36x3992x", 1, 0, 2**64 - 1, 0, 2**64 - 1, 0, 2**64 - 1, 0, 255, 1)),
        ("path of an inode", INO_LOOKUP, struct.pack("<QQ4080x", 0, ids["free"]["directory"])),
        ("subvolume of a file", INO_LOOKUP, struct.pack("<QQ4080x", 0, 256)),
        ("default", DEFAULT_SUBVOL, struct.pack("<Q", 5)),
        ("default 0", DEFAULT_SUBVOL, struct.pack("<Q", 0)),
        ("default of nothing", DEFAULT_SUBVOL, struct.pack("<Q", 1 << 40)),
        ("label", SET_LABEL, struct.pack("256s", b"named")),
        ("long label", SET_LABEL, b"x" * 256),
        ("info", FS_INFO, b""),
        ("device", DEV_INFO, struct.pack("<Q4088x", 1)),
        ("no device", DEV_INFO, struct.pack("<Q4088x", 77)),
        ("subvolume info", SUBVOL_INFO, b""),
        ("below", ROOTREF, bytes(4096)),
    ]:
        tell(what, call(top, number, value)[0])
    quotas(top)
    relocation(top)
    sizes(top)


def quotas(top):
    """Of quotas that are off, on and off again, then the same of simple ones: the ioctls that FUSE carries."""
    level = 1 << 48
    states = [("off", 0), ("on", 1), ("off again", 2)]
    if os.path.exists("/sys/fs/btrfs/features/simple_quota"):
        states[2:2] = [("on, not simple", 4)]
        states += [("simple", 4), ("simple, not full", 1), ("off in the end", 2)]
    for state, command in states:
        if command:
            tell("quotas: " + state, call(top, QUOTA_CTL, struct.pack("<QQ", command, 0))[0])
        for what, number, value in [
            ("command", QUOTA_CTL, struct.pack("<QQ", 9, 0)),
            ("wait", QUOTA_RESCAN_WAIT, b""),
            ("make", QGROUP_CREATE, struct.pack("<QQ", 1, level | 7)),
            ("make again", QGROUP_CREATE, struct.pack("<QQ", 1, level | 7)),
            ("make above", QGROUP_CREATE, struct.pack("<QQ", 1, 2 * level | 7)),
            ("make 0", QGROUP_CREATE, struct.pack("<QQ", 1, 0)),
            ("make of a subvolume", QGROUP_CREATE, struct.pack("<QQ", 1, 1 << 20)),
            ("assign", QGROUP_ASSIGN, struct.pack("<QQQ", 1, level | 7, 2 * level | 7)),
            ("assign again", QGROUP_ASSIGN, struct.pack("<QQQ", 1, level | 7, 2 * level | 7)),
            ("assign below", QGROUP_ASSIGN, struct.pack("<QQQ", 1, 2 * level | 7, level | 7)),
            ("destroy with members", QGROUP_CREATE, struct.pack("<QQ", 0, 2 * level | 7)),
            ("remove", QGROUP_ASSIGN, struct.pack("<QQQ", 0, level | 7, 2 * level | 7)),
            ("remove again", QGROUP_ASSIGN, struct.pack("<QQQ", 0, level | 7, 2 * level | 7)),
            ("destroy", QGROUP_CREATE, struct.pack("<QQ", 0, level | 7)),
            ("destroy again", QGROUP_CREATE, struct.pack("<QQ", 0, level | 7)),
            ("destroy of a subvolume", QGROUP_CREATE, struct.pack("<QQ", 0, 5)),
            ("destroy above", QGROUP_CREATE, struct.pack("<QQ", 0, 2 * level | 7)),
            ("rescan with flags", QUOTA_RESCAN, struct.pack("<Q56x", 1)),
            ("rescan", QUOTA_RESCAN, bytes(64)),
            ("wait for it", QUOTA_RESCAN_WAIT, b""),
            ("status", QUOTA_RESCAN_STATUS, b""),
        ]:
            tell("quotas %s: %s" % (state, what), call(top, number, value)[0])


def relocation(top):
    """Balances of what fits no filter, and the size of the device."""
    args = struct.Struct("<17Q")
    none = args.pack(*[0] * 17)
    # Used by fewer than 0 percent: by nothing.
    empty = args.pack(0, 0, *[0] * 6, 2, *[0] * 8)
    unknown = args.pack(*[0] * 8, 1 << 20, *[0] * 8)
    raid = args.pack(*[0] * 7, 1 << 4, 1 << 8, *[0] * 8)

    def balance(flags, data):
        return struct.pack("<QQ", flags, 0) + data + none + none + bytes(24 + 576)

    for what, number, value in [
        ("progress of nothing", BALANCE_PROGRESS, bytes(1024)),
        ("resume nothing", BALANCE_V2, balance(16, none)),
        ("unknown flag", BALANCE_V2, balance(1 << 40, none)),
        ("to a profile of more devices", BALANCE_V2, balance(1, raid)),
        ("what is empty", BALANCE_V2, balance(1, empty)),
        ("max", RESIZE, struct.pack("<q4088s", 0, b"max")),
        ("device and max", RESIZE, struct.pack("<q4088s", 0, b"1:max")),
        ("no device", RESIZE, struct.pack("<q4088s", 0, b"7:max")),
        ("no number", RESIZE, struct.pack("<q4088s", 0, b"x")),
        ("too small", RESIZE, struct.pack("<q4088s", 0, b"100M")),
        ("too large", RESIZE, struct.pack("<q4088s", 0, b"+100T")),
        ("less than nothing", RESIZE, struct.pack("<q4088s", 0, b"-100T")),
        ("cancel nothing", RESIZE, struct.pack("<q4088s", 0, b"cancel")),
        ("cancel of nothing", BALANCE_PROGRESS, bytes(1024)),
    ]:
        tell("relocation: " + what, call(top, number, value)[0])


def sizes(top):
    """How much of the caller's memory is written to."""
    for what, number in [
        ("flags", GETFLAGS), ("version", GETVERSION), ("fsxattr", GETXATTR), ("features", GET_FEATURES),
        ("subvolume flags", SUBVOL_GETFLAGS), ("fs info", FS_INFO), ("subvolume info", SUBVOL_INFO),
    ]:
        failed, touched, _ = call(top, number)
        print("size of %s: %d %d" % (what, failed, touched))


if __name__ == "__main__":
    {"new": new, "setup": setup, "cases": cases}[sys.argv[1]](sys.argv[2])
