//! Who may do what: programs with set-ID bits, ioctls and control words as several users, through mounts that may be
//! written to and others, each beside btrfs of the kernel where that is here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use buttress_fuse::protocol::mounts;

use crate::server::{Kind, Mount, can_mount, exists, progs, spawn};

const USER: u32 = 1001;

/// Runs a shell script in `place` with the options of setpriv(1); what it prints on both streams.
pub fn run(place: &Path, who: &[&str], script: &str) -> String {
    let mut command = Command::new("setpriv");
    command.args(who).args(["sh", "-c"]);
    command.arg(format!("exec 2>&1; cd '{}'; {script}", place.display()));
    let output = spawn(command.stdout(Stdio::piped())).wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

pub fn as_user(place: &Path, script: &str) -> String {
    run(place, &["--reuid=1001", "--regid=1001", "--clear-groups"], script)
}

pub fn as_root(place: &Path, script: &str) -> String {
    run(place, &["--reuid=0"], script)
}

/// A filesystem that the kernel has mounted, with the same options.
pub struct Kernel(tempfile::TempDir);

impl Kernel {
    pub fn mount(options: &str) -> Option<Self> {
        let known = fs::read_to_string("/proc/filesystems").unwrap();
        if !known.contains("\tbtrfs") {
            println!("skipped: the kernel has no btrfs");
            return None;
        }
        let kernel = Self(tempfile::tempdir().unwrap());
        fs::set_permissions(kernel.0.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let image = kernel.0.path().join("img");
        fs::create_dir(kernel.path()).unwrap();
        File::create(&image).unwrap().set_len(512 << 20).unwrap();
        let made = progs(Command::new("mkfs.btrfs").arg("-q").arg(&image));
        assert!(made.status.success(), "{made:?}");
        let script = format!("mount -o loop,{options} img mnt && mountpoint -q mnt");
        assert_eq!(as_root(kernel.0.path(), &script), "");
        assert!(mounts::at(&kernel.path()).unwrap().is_some(), "it is not mounted");
        Some(kernel)
    }

    pub fn path(&self) -> PathBuf {
        self.0.path().join("mnt")
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        as_root(self.0.path(), "umount mnt || umount -l mnt");
    }
}

/// A directory that is mounted in a second place, where it is read-only.
pub struct ReadOnly(pub tempfile::TempDir);

impl ReadOnly {
    pub fn of(place: &Path) -> Self {
        let target = tempfile::tempdir().unwrap();
        fs::set_permissions(target.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let script =
            format!("mount --bind '{}' . && mount -o remount,bind,ro \"$PWD\"", place.display());
        assert_eq!(as_root(target.path(), &script), "");
        Self(target)
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        as_root(Path::new("/"), &format!("umount '{}'", self.0.path().display()));
    }
}

/// The engine, mounted with these options, and a top directory that is everybody's.
pub fn ours(options: &'static str) -> Option<Mount> {
    if !can_mount() {
        return None;
    }
    let mount = Mount::foreground(Kind::Engine, None, options);
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o777)).unwrap();
    Some(mount)
}

/// Whoever writes to a program with set-ID bits must not run it as its owner: the kernel decides by the mode that it has
/// cached.
#[test]
fn a_program_that_was_written_to_does_not_run_as_its_owner() {
    let Some(mount) = ours("allow_other,suid,exec") else { return };
    for kernel in [Kernel::mount("suid"), None] {
        let place = kernel.as_ref().map_or_else(|| mount.path(), Kernel::path);
        fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
        for (how, script) in [
            ("append", "printf '\\0' >>program"),
            ("overwrite", "printf '\\177' | dd of=program conv=notrunc status=none"),
            ("truncate", "truncate -s 1M program"),
            ("allocate", "fallocate -l 1M program"),
            ("punch", "fallocate -p -o $(($(stat -c %s program) - 8192)) -l 4096 program"),
            ("copy", "truncate -s 4K other; python3 -c \"$COPY\""),
            ("another name", "printf '\\0' >>linked"),
        ] {
            for (mode, before) in [(0o4777, "0 1001"), (0o2777, "1001 0"), (0o6777, "0 0")] {
                // With something at its end that may change.
                let program = [fs::read("/usr/bin/id").unwrap(), vec![b'x'; 16384]].concat();
                fs::write(place.join("program"), program).unwrap();
                let _none = fs::remove_file(place.join("linked"));
                fs::hard_link(place.join("program"), place.join("linked")).unwrap();
                set_mode(&place, mode);
                let ids = "echo $(./program -u) $(./program -g)";
                // The kernel knows the mode, and has the program open.
                assert_eq!(as_user(&place, ids), before, "{how} of {mode:o} in {place:?}");
                let script = script.replace("$COPY", COPY);
                assert_eq!(as_user(&place, &script), "", "{how} of {mode:o} in {place:?}");
                assert_eq!(as_user(&place, ids), "1001 1001", "{how} of {mode:o} in {place:?}");
            }
        }
        chown_ends_set_ids(&place);
        groups_without_execution(&place);
        capabilities_end(&place);
    }
    mount.end();
}

const COPY: &str =
    "import os; os.copy_file_range(os.open('other', 0), os.open('program', 1), 4096, 0, 1 << 20)";

fn set_mode(place: &Path, mode: u32) {
    let permissions = fs::Permissions::from_mode(mode);
    fs::set_permissions(place.join("program"), permissions).unwrap();
}

fn mode(place: &Path) -> u32 {
    fs::metadata(place.join("program")).unwrap().mode() & 0o7777
}

fn chown_ends_set_ids(place: &Path) {
    fs::copy("/usr/bin/id", place.join("program")).unwrap();
    set_mode(place, 0o6777);
    assert_eq!(as_user(place, "./program -u"), "0");
    // To another user than the one who runs it.
    as_root(place, "chown 1002:1002 program");
    assert_eq!(as_user(place, "echo $(./program -u) $(./program -g)"), "1001 1001");
    as_root(place, "chown 0:0 program");
}

/// A set-group-ID bit without group execution stays for those of the group.
fn groups_without_execution(place: &Path) {
    for (group, kept) in [(0, 0o767), (USER, 0o2767)] {
        std::os::unix::fs::chown(place.join("program"), Some(0), Some(group)).unwrap();
        set_mode(place, 0o6767);
        as_user(place, "printf '\\0' >>program");
        assert_eq!(mode(place), kept, "group {group} in {place:?}");
        set_mode(place, 0o6767);
        as_user(place, "fallocate -l 1M program");
        assert_eq!(mode(place), kept, "group {group} in {place:?}");
    }
    // Root may keep them, unless it lacks the capability.
    set_mode(place, 0o6777);
    as_root(place, "printf '\\0' >>program; fallocate -l 1M program");
    assert_eq!(mode(place), 0o6777);
    for script in ["printf '\\0' >>program", "fallocate -l 2M program"] {
        set_mode(place, 0o6777);
        run(place, &["--bounding-set=-fsetid", "--inh-caps=-all"], script);
        assert_eq!(mode(place), 0o777, "{script} in {place:?}");
    }
}

/// Those of a file end with a write, and with a new owner.
fn capabilities_end(place: &Path) {
    if !exists(Command::new("setcap").arg("-h")) {
        println!("skipped: needs setcap");
        return;
    }
    fs::copy("/usr/bin/grep", place.join("program")).unwrap();
    std::os::unix::fs::chown(place.join("program"), Some(0), Some(0)).unwrap();
    let given = "./program CapEff /proc/self/status | ./program -c '0000000000000000$'";
    for (user, script) in [
        (true, "printf '\\0' >>program"),
        (true, "truncate -s 1M program"),
        (true, "fallocate -l 1M program"),
        (true, "truncate -s 4K other; python3 -c \"$COPY\""),
        (false, "chown 1002 program"),
        (false, "printf '\\0' >>program"),
    ] {
        set_mode(place, 0o777);
        assert_eq!(as_root(place, "setcap cap_net_admin+ep program"), "");
        assert_eq!(as_user(place, given), "0", "{script} in {place:?}");
        let script = script.replace("$COPY", COPY);
        let said = if user { as_user(place, &script) } else { as_root(place, &script) };
        assert_eq!(said, "", "{script} in {place:?}");
        assert_eq!(as_user(place, given), "1", "{script} in {place:?}");
    }
}

/// How callers begin: their name, and the options of setpriv(1).
const CALLERS: [(&str, &[&str]); 9] = [
    ("root", &["--reuid=0"]),
    ("root without capabilities", &["--bounding-set=-all", "--inh-caps=-all"]),
    ("root with one capability", &["--bounding-set=-all,+sys_admin", "--inh-caps=-all"]),
    ("a user", &["--reuid=1001", "--regid=1001", "--clear-groups"]),
    ("a user with a group", &["--reuid=1001", "--regid=1001", "--groups=5,2000,7"]),
    ("another user", &["--reuid=1002", "--regid=1002", "--clear-groups"]),
    ("one of the group", &["--reuid=1002", "--regid=2000", "--clear-groups"]),
    (
        "a user who administers",
        &[
            "--reuid=1001",
            "--regid=1001",
            "--clear-groups",
            "--inh-caps=-all,+sys_admin",
            "--ambient-caps=-all,+sys_admin",
        ],
    ),
    (
        "a user who overrides",
        &[
            "--reuid=1002",
            "--regid=1002",
            "--clear-groups",
            "--inh-caps=-all,+dac_override,+fowner",
            "--ambient-caps=-all,+dac_override,+fowner",
        ],
    ),
];

/// What the ioctls of btrfs answer to many callers, by whichever mount they come, is what they answer on btrfs of the kernel.
fn answers(options: &str, ours: &Path, kernel: &Path) {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let script = directory.path().join("rights.py");
    fs::write(&script, include_str!("rights.py")).unwrap();
    let script = script.display();
    let ask = |top: &Path, case: &str, who: &[&str], wrapper: &str, read_only: bool| {
        let place = top.join(case.replace(' ', "-"));
        for step in ["new", "setup"] {
            let command = format!("python3 {script} {step} '{}'", place.display());
            assert_eq!(as_root(Path::new("/"), &command), "", "{case} in {top:?}");
        }
        let bind = read_only.then(|| ReadOnly::of(&place));
        let place = bind.as_ref().map_or(place.as_path(), |bind| bind.0.path());
        let command = format!("{wrapper} python3 {script} cases '{}'", place.display());
        run(Path::new("/"), who, &command)
    };
    let compared = std::cell::Cell::new(0);
    let both = |case: &str, who: &[&str], wrapper: &str, read_only: bool| {
        let (had, want) =
            (ask(ours, case, who, wrapper, read_only), ask(kernel, case, who, wrapper, read_only));
        compared.set(compared.get() + want.lines().count());
        differences(&format!("{case} with {options}"), &had, &want)
    };
    let mut differ = Vec::new();
    for (name, who) in CALLERS {
        differ.extend(both(name, who, "", false));
    }
    differ.extend(both("a user in a namespace", CALLERS[3].1, "unshare -Ur", false));
    for (name, who) in [CALLERS[0], CALLERS[4]] {
        differ.extend(both(&format!("{name} read-only"), who, "", true));
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    println!("{} answers with {options}", compared.get());
}

/// What is answered otherwise, each with its case.
fn differences(case: &str, had: &str, want: &str) -> Vec<String> {
    assert!(want.lines().count() > 100, "{case}: {want}");
    let answers = |text: &str| -> BTreeMap<String, String> {
        let lines = text.lines().map(|line| line.rsplit_once(": ").unwrap_or((line, "")));
        lines.map(|(of, answer)| (of.to_owned(), answer.to_owned())).collect()
    };
    let (had, want) = (answers(had), answers(want));
    let cases: BTreeSet<&String> = had.keys().chain(want.keys()).collect();
    cases
        .into_iter()
        .filter(|of| had.get(*of) != want.get(*of))
        .map(|of| format!("{case}: {of}: {:?} (the kernel: {:?})", had.get(of), want.get(of)))
        .collect()
}

#[test]
fn ioctls_answer_as_those_of_the_kernel() {
    let ready =
        exists(Command::new("python3").arg("-V")) && exists(Command::new("setfacl").arg("-v"));
    if !can_mount() || !ready {
        println!("skipped: needs python3 and setfacl");
        return;
    }
    for (options, of_kernel) in
        [("allow_other", "rw"), ("allow_other,user_subvol_rm_allowed", "user_subvol_rm_allowed")]
    {
        let Some(kernel) = Kernel::mount(of_kernel) else { return };
        let Some(mount) = ours(options) else { return };
        answers(options, &mount.path(), &kernel.path());
        mount.end();
    }
}
