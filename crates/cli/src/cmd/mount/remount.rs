//! `-o remount`: mount(8) leaves it to its helper, but it is the kernel that changes a mount which is there. So it is mount(8) that is
//! asked, without a helper, for what the kernel has a flag for. All else the process that serves the mount has from its beginning.

use std::path::Path;
use std::process::Command;

use buttress_fuse::client;

use crate::args::Globals;
use crate::device;
use crate::error::Failure;

/// What the kernel has flags for.
const FLAGS: [&str; 16] = [
    "remount",
    "bind",
    "ro",
    "rw",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "exec",
    "noexec",
    "sync",
    "async",
    "dirsync",
    "symfollow",
    "nosymfollow",
    "defaults",
];

/// What mount(8) has from the table of mounts, or this program has added for it.
const KNOWN: [&str; 5] = ["allow_other", "default_permissions", "user_id", "group_id", "relatime"];

/// Whether it is no mount that is asked for, but that one changes.
pub(super) fn is_wanted(options: &[String]) -> bool {
    words(options).any(|word| word == "remount")
}

fn words(options: &[String]) -> impl Iterator<Item = &str> {
    options.iter().flat_map(|some| some.split(',')).filter(|word| !word.is_empty())
}

/// Has mount(8) change the mount on `directory`.
pub(super) fn remount(
    globals: &Globals,
    directory: &Path,
    options: &[String],
) -> Result<(), Failure> {
    let (flags, others): (Vec<&str>, Vec<&str>) =
        words(options).partition(|word| FLAGS.contains(word));
    let name = |word: &str| word.split_once('=').map_or(word, |(name, _)| name).to_owned();
    let others: Vec<&str> =
        others.into_iter().filter(|word| !KNOWN.contains(&&*name(word))).collect();
    if !others.is_empty() {
        let what = format!(
            "a mount that is there does not change by {}; unmount it and mount it anew",
            others.join(",")
        );
        device::warn(globals, directory, &what);
    }
    let failed = |why: String| Failure::new("cannot remount", directory.display(), why);
    let writes = flags.iter().rev().find(|word| ["ro", "rw"].contains(*word)) == Some(&"rw");
    if writes && client::options(directory).is_ok_and(|options| options.iter().any(|it| it == "ro"))
    {
        let why = "it was mounted read-only, and its process has the filesystem so".to_owned();
        return Err(failed(why).hint("Unmount it, and mount it anew"));
    }
    let mut command = Command::new("mount");
    command.args(["-i", "-o", &flags.join(","), "--"]).arg(directory);
    let output = command.output().map_err(|error| failed(format!("mount(8): {error}")))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}
