//! `mount` and `umount`: a filesystem in an image or on a disk as a directory, for the ordinary user who mounts it.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use buttress_fuse::holder;
use buttress_fuse::protocol::mounts;
use buttress_fuse::{Cause, Ground, MountError, MountOptions, Unmounted};
use clap::Args;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::args::Globals;
use crate::device;
use crate::error::{self, Failure};
use crate::output::{self, Format};

mod remount;

/// Arguments of `mount`.
#[derive(Clone, Debug, Default, Args)]
pub struct Mount {
    /// The image or disk; without it, what is mounted is listed
    #[arg(requires = "directory")]
    pub device: Option<PathBuf>,
    /// The directory to mount on
    pub directory: Option<PathBuf>,
    /// Mount options, separated by commas: ro, subvol=PATH, subvolid=ID, noatime, allow_other, fakeroot (no permission checks, and what is made is
    /// root's; with uid=UID,gid=GID, your own numbers, files are shown as yours, which install, cp -p and setfacl want), memory=BYTES (most
    /// that the mount's process may use, 32M or more; without it an eighth of what the machine has, from 64M (or half of what there is) to 2G; each file
    /// that the kernel remembers takes some 20 bytes of it), strictopen (immutable and append-only files, and those of read-only
    /// subvolumes, cannot be opened for writing; without it each write to them is refused, and opening is faster), noio_uring (requests come by /dev/fuse
    /// only), notreelog (each fsync is a whole commit), skip_balance (a balance that was paused or interrupted does not go on),
    /// bg_reclaim_threshold=PERCENT (block groups of which less is used are emptied when space gets short; 30 without it, 0:
    /// never), discard or discard=async (what has become free is given back to the disk that the image is on: after commits, or from time to time;
    /// without it by fstrim or `filesystem trim` only), nologreplay (with ro: the last commit, without what waits in a log), rescue=WORDS (what is
    /// damaged, mostly with ro: words as --rescue takes them, joined by colons) ...
    #[arg(short, long, value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Read-only: the same as -o ro
    #[arg(short, long)]
    pub read_only: bool,
    /// Stay in the foreground until it is unmounted
    #[arg(short, long)]
    pub foreground: bool,
}

/// Arguments of `umount`.
#[derive(Debug, Args)]
pub struct Umount {
    /// The directory; or the image or disk, which is taken off wherever it is mounted
    #[arg(required = true, value_name = "DIRECTORY")]
    targets: Vec<PathBuf>,
    /// Take it off now although files are open; it ends when they are closed
    #[arg(short, long)]
    lazy: bool,
}

/// Mounts, or lists what is mounted.
pub fn run(args: &Mount, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let (Some(device), Some(directory)) = (&args.device, &args.directory) else {
        return list(globals, out);
    };
    if remount::is_wanted(&args.options) {
        let read_only = args.read_only.then(|| "ro".to_owned());
        let options: Vec<String> = args.options.iter().cloned().chain(read_only).collect();
        return remount::remount(globals, directory, &options);
    }
    let (options, idle) = options(args, globals)?;
    if let Some(note) = take_off_dead(directory) {
        device::warn(globals, directory, &note);
    }
    for path in [device, directory] {
        // The process in the background could only tell in words, without the advice that goes with them.
        path.metadata().map_err(|error| {
            let error = MountError::Path { path: path.clone(), source: error };
            failure(device, 0, directory, &error)
        })?;
    }
    if !options.read_only {
        reaches_its_end(device, directory)?;
    }
    if args.foreground || buttress_fuse::launch::is_background() {
        buttress_fuse::heap::set_up(&options);
    }
    if !idle.is_empty() && !buttress_fuse::launch::is_background() {
        device::warn(globals, device, &format!("mount options without effect: {}", idle.join(",")));
    }
    let ground = if args.foreground { Ground::Foreground } else { Ground::Background };
    buttress_fuse::mount(device, directory, &options, ground).map_err(|error| {
        // A process that died at once may have mounted it before.
        if !buttress_fuse::launch::is_background() {
            let _it_is_said_anyway = take_off_dead(directory);
        }
        failure(device, options.offset, directory, &error)
    })
}

/// Refuses an image file that is larger than files may be that this process writes to (`ulimit -f`): the mount would turn read-only some
/// day.
fn reaches_its_end(device: &Path, directory: &Path) -> Result<(), Failure> {
    let limit = getrlimit(Resource::Fsize);
    // What one has set for oneself one can take back.
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _it_is_as_before_then = setrlimit(Resource::Fsize, raised);
    let bytes = device.metadata().ok().filter(|it| it.is_file()).map_or(0, |it| it.len());
    let Some(most) = getrlimit(Resource::Fsize).current.filter(|most| *most < bytes) else {
        return Ok(());
    };
    let what = format!("cannot mount {} on", device.display());
    let why =
        format!("this process may write to files of {most} bytes at most, and it has {bytes}");
    let failure = Failure::new(what, directory.display(), why);
    Err(failure.hint("Raise the limit (ulimit -f unlimited), or mount it read-only: -o ro"))
}

/// A mount whose process was killed is still there, of no use, and in the way.
fn take_off_dead(directory: &Path) -> Option<&'static str> {
    let path = directory.canonicalize().or_else(|_| std::path::absolute(directory)).ok()?;
    let dead = mounts::at(&path).ok()?.is_some_and(|mount| holder::is_dead(&mount));
    // What the kernel remembers of it would still be told.
    if !dead {
        return None;
    }
    // One that cannot be taken off is refused with that error in a moment.
    match buttress_fuse::unmount(directory, true, false) {
        Ok(()) => Some("the process of what was mounted here has died; it was taken off"),
        Err(MountError::Died { .. }) => Some(
            "the process of what was mounted here has died; it was taken off, and what was written after its last commit \
             may be lost",
        ),
        Err(_) => None,
    }
}

/// What is asked for, and the words of it that have no effect.
fn options<'a>(
    args: &'a Mount,
    globals: &Globals,
) -> Result<(MountOptions, Vec<&'a str>), Failure> {
    let mut options = MountOptions { offset: globals.offset, ..MountOptions::default() };
    let mut idle = Vec::new();
    for list in &args.options {
        let words = options.apply(list);
        idle.extend(words.map_err(|error| Failure::usage("cannot mount", error))?);
    }
    options.read_only |= args.read_only;
    options.mark_quota_inconsistent |= globals.mark_quota_inconsistent;
    options.rescue(globals.rescue.words());
    options.stats = globals.stats;
    Ok((options, idle))
}

fn failure(device: &Path, offset: u64, directory: &Path, error: &MountError) -> Failure {
    let what = format!("cannot mount {} on", device.display());
    let failure = Failure::new(what, directory.display(), without_number(&error.to_string()));
    match error {
        MountError::Filesystem(error) => device::engine_failure(device, error),
        MountError::Path { path, source } => {
            let failure = Failure::new("cannot find", path.display(), error::text(source));
            match path == directory {
                true if tells_of_death(source) => failure.hint(format!(
                    "The process of a mount has ended: umount -l {}",
                    directory.display()
                )),
                true => failure.hint(format!("To make it: mkdir {}", directory.display())),
                false => match device::of_partition(path) {
                    Some(hint) => failure.hint(hint),
                    None => failure,
                },
            }
        }
        _ => match advice(device, offset, error.cause()) {
            Some(advice) => failure.hint(advice),
            None => failure,
        },
    }
}

/// What to do about a failure.
fn advice(device: &Path, offset: u64, cause: Cause) -> Option<String> {
    let advice = match cause {
        Cause::Busy => return Some(device::instead_of_mount(device, offset)),
        Cause::AllowOther => {
            "Mount without allow_other, or have root add the line user_allow_other to that file."
        }
        other => return device::advice(other).map(str::to_owned),
    };
    Some(advice.to_owned())
}

/// Without the numbers of system errors, which say nothing that the words do not.
fn without_number(text: &str) -> String {
    match text.split_once(" (os error ") {
        Some((before, after)) => {
            let rest = after.split_once(')').map_or("", |(_, rest)| rest);
            format!("{before}{rest}")
        }
        None => text.to_owned(),
    }
}

/// Whether this is what everybody is told of a mount whose process has ended; the second while the kernel still takes back its rings.
fn tells_of_death(error: &std::io::Error) -> bool {
    let dead = [Errno::NOTCONN, Errno::CONNABORTED].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| dead.contains(&code))
}

fn list(globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let all = mounts::all().map_err(|error| {
        Failure::new("cannot read", "/proc/self/mountinfo", error::text(&error))
    })?;
    let ours: Vec<_> = all.iter().filter(|entry| entry.is_ours()).collect();
    if globals.format == Format::Json {
        let json = |entry: &&mounts::MountEntry| {
            json!({
                "device": entry.source.display().to_string(),
                "directory": entry.mountpoint.display().to_string(),
                "dead": holder::is_dead(entry),
                "moved_to": holder::moved_to(entry).map(|path| path.display().to_string()),
            })
        };
        let list: Vec<Value> = ours.iter().map(json).collect();
        return Ok(output::write_json(out, "mounts", list.into())?);
    }
    for entry in ours {
        let note = match holder::moved_to(entry) {
            _ if holder::is_dead(entry) => " (dead: its process has ended; umount it)".into(),
            Some(path) => format!(" (it is {} now)", path.display()),
            None => String::new(),
        };
        writeln!(out, "{} on {}{note}", entry.source.display(), entry.mountpoint.display())?;
    }
    Ok(())
}

/// Unmounts, and waits until the last change is on the device.
pub fn umount(args: &Umount, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let mut failures = super::files::Failures::new(globals);
    for target in &args.targets {
        for (directory, done) in unmounted(target, args.lazy) {
            let done = done.map_err(|error| umount_failure(&directory, &error));
            failures.note(done, out)?;
        }
    }
    failures.end()
}

/// Takes an image or disk off wherever it is mounted; else what is mounted on a directory.
fn unmounted(target: &Path, lazy: bool) -> Vec<Unmounted> {
    let source = target.canonicalize().unwrap_or_else(|_| target.into());
    match buttress_fuse::unmount_all(&source, lazy) {
        Ok(all) if !all.is_empty() => all,
        Ok(_) => vec![(target.into(), buttress_fuse::unmount(target, lazy, true))],
        Err(error) => vec![(target.into(), Err(error))],
    }
}

/// What is mounted on a directory.
fn mount_at(directory: &Path) -> Option<mounts::MountEntry> {
    let path = directory.canonicalize().or_else(|_| std::path::absolute(directory)).ok()?;
    mounts::at(&path).ok().flatten()
}

/// What is not a mount of ours.
fn not_mounted(directory: &Path) -> Failure {
    let refuse = |why: &str| Failure::new("cannot unmount", directory.display(), why);
    match (mount_at(directory), directory.symlink_metadata()) {
        (Some(other), _) => {
            let (kind, source) = (other.fs_type.display(), other.source.display());
            refuse(&format!("buttress has not mounted it: it is {kind}, of {source}"))
                .hint(format!("To take it off: umount {}", directory.display()))
        }
        (None, Err(error)) => refuse(&error::text(&error)),
        (None, Ok(_)) => {
            refuse("it is not mounted by buttress").hint("`buttress mount` lists what is.")
        }
    }
}

/// The user whose mount it is, where that is another one.
fn other_owner(directory: &Path) -> Option<u32> {
    let own = rustix::process::geteuid();
    let owner = mount_at(directory)?.owner?;
    (!own.is_root() && own.as_raw() != owner).then_some(owner)
}

fn umount_failure(directory: &Path, error: &MountError) -> Failure {
    if let (MountError::Connect(_), Some(owner)) = (error, other_owner(directory)) {
        let why = format!("it is the mount of another user, whose number is {owner}");
        return Failure::new("cannot unmount", directory.display(), why)
            .hint("That user can take it off, or root.");
    }
    match error {
        MountError::NotMounted(_) => not_mounted(directory),
        MountError::Connect(error) if error.is_busy() => {
            Failure::new("cannot unmount", directory.display(), "it is busy").hint(
                "Close the files on it and leave its directories; `fuser -vm DIRECTORY` says who uses it.",
            )
        }
        MountError::LastCommit { said } => {
            let what = "unmounted, but the last changes are lost on";
            Failure::new(what, directory.display(), without_number(said))
                .hint("What the last commit before them holds was not changed from here.")
        }
        MountError::Died { image } => {
            let what = "unmounted, but the last changes may be lost on";
            Failure::new(what, directory.display(), error).hint(format!(
                "What was written after its last commit is lost, but for what was fsynced, which the next mount replays; to see whether it is whole: buttress check {}",
                image.display()
            ))
        }
        other => {
            Failure::new("cannot unmount", directory.display(), without_number(&other.to_string()))
        }
    }
}

/// A helper is to go there itself. In its own namespace the directory may be somebody else's mount.
const OTHER_NAMESPACE: &str =
    "option -N, another mount namespace, is not supported; use nsenter --mount=NAMESPACE";

/// The words that mount(8) calls its helpers with: `DEVICE DIRECTORY [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`.
pub struct Helper {
    /// What `mount` is asked to do; `None` when it is only to say that all is well (`-f`).
    pub mount: Option<Mount>,
}

impl Helper {
    /// Understands the words after the program's name.
    pub fn parse(words: &[OsString]) -> Result<Helper, String> {
        // What root mounts for the machine is for its users.
        let mut mount = Mount { options: vec!["allow_other".into()], ..Mount::default() };
        let (mut fake, mut places) = (false, Vec::new());
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let text = word.to_string_lossy();
            match text.strip_prefix('-').filter(|letters| !letters.is_empty()) {
                None => places.push(PathBuf::from(word)),
                Some("o") => {
                    let list = words.next().ok_or("option -o needs a list")?;
                    mount.options.push(list.to_string_lossy().into_owned());
                }
                Some("t") => {
                    words.next().ok_or_else(|| format!("option {text} needs a value"))?;
                }
                Some("N") => return Err(OTHER_NAMESPACE.into()),
                Some(letters) if letters.bytes().all(|letter| b"sfnvw".contains(&letter)) => {
                    fake |= letters.contains('f');
                }
                Some("r") => mount.read_only = true,
                Some(_) => return Err(format!("unknown option {text}")),
            }
        }
        let [device, directory] = places.as_slice() else {
            return Err("a device and a directory are needed".into());
        };
        mount.device = Some(device.clone());
        mount.directory = Some(directory.clone());
        Ok(Helper { mount: (!fake).then_some(mount) })
    }
}

impl Umount {
    /// Understands the words that umount(8) calls its helpers with, after the program's name:
    /// `DIRECTORY [-flnrv] [-N NAMESPACE] [-t TYPE]`.
    pub fn of_helper(words: &[OsString]) -> Result<Umount, String> {
        let mut umount = Umount { targets: Vec::new(), lazy: false };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let text = word.to_string_lossy();
            match text.strip_prefix('-').filter(|letters| !letters.is_empty()) {
                None => umount.targets.push(PathBuf::from(word)),
                Some("t") => {
                    words.next().ok_or_else(|| format!("option {text} needs a value"))?;
                }
                Some("N") => return Err(OTHER_NAMESPACE.into()),
                Some(letters) if letters.bytes().all(|letter| b"flnrv".contains(&letter)) => {
                    umount.lazy |= letters.contains('l');
                }
                Some(_) => return Err(format!("unknown option {text}")),
            }
        }
        if umount.targets.len() == 1 { Ok(umount) } else { Err("a directory is needed".into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Helper, String> {
        Helper::parse(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn words_of_mount_8() {
        let helper = parse("/dev/sdb1 /mnt -v -n -o rw,subvol=home -t fuse.buttress").unwrap();
        let mount = helper.mount.unwrap();
        assert_eq!(mount.device.as_deref(), Some(Path::new("/dev/sdb1")));
        assert_eq!(mount.directory.as_deref(), Some(Path::new("/mnt")));
        assert_eq!(mount.options, ["allow_other", "rw,subvol=home"]);
        assert!(parse("/dev/sdb1 /mnt -nf").unwrap().mount.is_none());
        for bad in ["/dev/sdb1", "a b c", "a b -o", "a b -x", "a b -N /proc/1/ns/mnt"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn words_of_umount_8() {
        let parse = |line: &str| {
            Umount::of_helper(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
        };
        let umount = parse("/mnt -n -t fuse.buttress").unwrap();
        assert_eq!((umount.targets, umount.lazy), (vec![PathBuf::from("/mnt")], false));
        assert!(parse("/mnt -vl").unwrap().lazy);
        for bad in ["-v", "a b", "a -x", "a -N", "a -N /proc/1/ns/mnt"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_go() {
        assert_eq!(without_number("a: No such file (os error 2); b"), "a: No such file; b");
        assert_eq!(without_number("a"), "a");
    }
}
