//! Every option known by name. Where a name has several rows, the first whose value fits counts.

use buttress::Discard;
use buttress_volume::Rescue;

use super::{AccessTimes, MountOptions, SubvolumeChoice, parse_bytes};
use crate::budget::MEMORY_MIN;

/// One spelling of an option.
pub(super) struct Row {
    pub(super) name: &'static str,
    /// The row is about this value alone.
    value: Option<&'static str>,
    pub(super) effect: Effect,
}

/// What an option does.
pub(super) enum Effect {
    /// Takes no value.
    Switch(fn(&mut MountOptions)),
    /// Takes a value; `None` from the function means the value is wrong, the text says what is
    /// right.
    Value(fn(&mut MountOptions, &str) -> Option<()>, &'static str),
    /// The same, and the value can be left out.
    MayHave(fn(&mut MountOptions, Option<&str>) -> Option<()>, &'static str),
    /// Names what happens anyway. Takes no value.
    AsIs,
    /// Accepted without effect: what files are and hold is the same without it. Takes no value.
    Hint,
    /// One of the two, by its value, or by having none; what makes no sense is refused as with Linux, and the text says what
    /// would be right.
    Checked(fn(Option<&str>) -> Option<Idle>, &'static str),
    /// Refused.
    NotYet,
}

/// What an option that changes nothing says.
pub(super) enum Idle {
    /// What happens anyway.
    AsIs,
    /// Something that is not done.
    Hint,
}

impl Row {
    pub(super) fn fits(&self, name: &str, value: Option<&str>) -> bool {
        self.name == name && (self.value.is_none() || self.value == value)
    }
}

const fn row(name: &'static str, effect: Effect) -> Row {
    Row { name, value: None, effect }
}

const fn valued(name: &'static str, value: &'static str, effect: Effect) -> Row {
    Row { name, value: Some(value), effect }
}

/// Words of fstab that speak to mount(8), systemd or a human.
pub(super) fn is_for_others(name: &str) -> bool {
    const WORDS: [&str; 17] = [
        "defaults", "auto", "noauto", "user", "nouser", "users", "nousers", "owner", "noowner",
        "group", "nogroup", "nofail", "fail", "_netdev", "_rnetdev", "comment", "uhelper",
    ];
    WORDS.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
}

use Effect::{AsIs, Checked, Hint, MayHave, NotYet, Switch, Value};

pub(super) const ROWS: &[Row] = &[
    // Generic, and FUSE's own.
    row("ro", Switch(|o| o.read_only = true)),
    row("rw", Switch(|o| o.read_only = false)),
    row("suid", Switch(|o| o.suid = true)),
    row("nosuid", Switch(|o| o.suid = false)),
    row("dev", Switch(|o| o.dev = true)),
    row("nodev", Switch(|o| o.dev = false)),
    row("exec", Switch(|o| o.exec = true)),
    row("noexec", Switch(|o| o.exec = false)),
    row("sync", Switch(|o| o.synchronous = true)),
    row("async", Switch(|o| o.synchronous = false)),
    row("dirsync", Switch(|o| o.dirsync = true)),
    row("atime", Switch(|o| o.access_times = AccessTimes::Relative)),
    row("relatime", Switch(|o| o.access_times = AccessTimes::Relative)),
    row("noatime", Switch(|o| o.access_times = AccessTimes::Never)),
    row("norelatime", Switch(|o| o.access_times = AccessTimes::Strict)),
    row("strictatime", Switch(|o| o.access_times = AccessTimes::Strict)),
    row("nostrictatime", Switch(|o| o.access_times = AccessTimes::Relative)),
    row("diratime", Switch(|o| o.no_directory_access_times = false)),
    row("nodiratime", Switch(|o| o.no_directory_access_times = true)),
    row("lazytime", Hint),
    row("nolazytime", AsIs),
    row("iversion", Hint),
    row("noiversion", AsIs),
    row("loop", Checked(|_device| Some(Idle::AsIs), "")),
    row("silent", AsIs),
    row("loud", AsIs),
    row("mand", Hint),
    row("nomand", AsIs),
    row("symfollow", AsIs),
    row("nosymfollow", NotYet),
    row("quota", Hint),
    row("noquota", AsIs),
    row("usrquota", Hint),
    row("grpquota", Hint),
    row("prjquota", Hint),
    row("nonempty", AsIs),
    row("fsname", Checked(given, "expects a name")),
    row("subtype", Checked(given, "expects a name")),
    row("allow_other", Switch(|o| o.allow_other = true)),
    row("default_permissions", Switch(|o| o.default_permissions = true)),
    row("fakeroot", Switch(|o| o.fakeroot = true)),
    row("mark_quota_inconsistent", Switch(|o| o.mark_quota_inconsistent = true)),
    row("writeback_cache", Switch(|o| o.writeback_cache = true)),
    row("async_dio", Switch(|o| o.async_dio = true)),
    row("io_uring", Switch(|o| o.io_uring = true)),
    row("noio_uring", Switch(|o| o.io_uring = false)),
    row("strictopen", Switch(|o| o.strict_open = true)),
    row("nostrictopen", Switch(|o| o.strict_open = false)),
    row("uid", Value(set_uid, "expects a user id")),
    row("gid", Value(set_gid, "expects a group id")),
    row("bg_reclaim_threshold", Value(set_reclaim, "expects percent, 0 to 100")),
    row("memory", Value(set_memory, "expects bytes, 32M or more")),
    row("max_read", Value(set_max_read, "expects bytes, 4096 or more")),
    row("offset", Value(set_offset, "expects bytes")),
    // btrfs(5).
    row("subvol", Value(set_subvol, "expects a path from the top-level subvolume")),
    row("subvolid", Value(set_subvolid, "expects a subvolume id")),
    row("commit", Value(set_commit, "expects seconds, or 0 for the default")),
    row("user_subvol_rm_allowed", Switch(|o| o.user_subvol_rm_allowed = true)),
    row("norecovery", Switch(|o| o.rescue.no_log_replay = true)),
    row("nologreplay", Switch(|o| o.rescue.no_log_replay = true)),
    row("rescue", Value(rescue, RESCUES)),
    row("acl", AsIs),
    row("noacl", NotYet),
    row("barrier", AsIs),
    row("nobarrier", Hint),
    row("datacow", AsIs),
    row("nodatacow", Hint),
    row("datasum", AsIs),
    row("nodatasum", Hint),
    row("compress", Checked(compression, COMPRESSIONS)),
    row("compress-force", Checked(compression, COMPRESSIONS)),
    row("noautodefrag", AsIs),
    row("autodefrag", Hint),
    row("flushoncommit", AsIs),
    row("noflushoncommit", Hint),
    row("treelog", Switch(|o| o.tree_log = true)),
    row("notreelog", Switch(|o| o.tree_log = false)),
    row("space_cache", Checked(space_cache, "expects v1 or v2")),
    row("nospace_cache", Hint),
    row("clear_cache", Hint),
    row("ssd", Hint),
    row("nossd", Hint),
    row("ssd_spread", Hint),
    row("nossd_spread", Hint),
    row("discard", MayHave(set_discard, "expects sync or async")),
    row("nodiscard", Switch(|o| o.discard = None)),
    row("thread_pool", Checked(threads, "expects a number of threads")),
    row("metadata_ratio", Checked(number, "expects a number")),
    row("max_inline", Checked(given, "expects bytes")),
    row("alloc_start", Checked(given, "expects bytes")),
    row("subvolrootid", Checked(number, "expects a number")),
    row("skip_balance", Switch(|o| o.skip_balance = true)),
    row("enospc_debug", Hint),
    row("noenospc_debug", AsIs),
    row("check_int", Hint),
    row("check_int_data", Hint),
    row("check_int_print_mask", Checked(number, "expects a number")),
    row("ref_verify", Hint),
    row("fragment", Checked(fragment, "expects data, metadata or all")),
    row("degraded", Hint),
    // A filesystem on several devices is refused by itself.
    row("device", Checked(given, "expects a path")),
    row("rescan_uuid_tree", Hint),
    row("inode_cache", Hint),
    row("noinode_cache", AsIs),
    row("usebackuproot", Switch(|o| o.rescue.backup_root = true)),
    row("recovery", Switch(|o| o.rescue.backup_root = true)),
    valued("fatal_errors", "panic", NotYet),
    row("fatal_errors", Checked(|value| (value? == "bug").then_some(Idle::AsIs), "expects bug")),
];

const COMPRESSIONS: &str = "expects zlib, lzo or zstd, each with :LEVEL or not, or no";

fn compression(value: Option<&str>) -> Option<Idle> {
    let Some(value) = value else { return Some(Idle::Hint) };
    if matches!(value, "no" | "none") {
        return Some(Idle::AsIs);
    }
    let (name, level) = match value.split_once(':') {
        Some((name, level)) => (name, level.parse::<i32>().is_ok()),
        None => (value, true),
    };
    (matches!(name, "zlib" | "lzo" | "zstd") && level).then_some(Idle::Hint)
}

fn space_cache(value: Option<&str>) -> Option<Idle> {
    match value {
        None | Some("v2") => Some(Idle::AsIs),
        Some("v1") => Some(Idle::Hint),
        Some(_) => None,
    }
}

fn set_discard(options: &mut MountOptions, value: Option<&str>) -> Option<()> {
    options.discard = Some(match value {
        None | Some("sync") => Discard::Sync,
        Some("async") => Discard::Async,
        Some(_) => return None,
    });
    Some(())
}

fn fragment(value: Option<&str>) -> Option<Idle> {
    matches!(value?, "data" | "metadata" | "all").then_some(Idle::Hint)
}

fn number(value: Option<&str>) -> Option<Idle> {
    value?.parse::<u32>().ok().map(|_| Idle::Hint)
}

fn threads(value: Option<&str>) -> Option<Idle> {
    number(value.filter(|value| *value != "0"))
}

fn given(value: Option<&str>) -> Option<Idle> {
    value.filter(|value| !value.is_empty()).map(|_| Idle::Hint)
}

const RESCUES: &str = "expects nologreplay, usebackuproot, ignorebadroots (ibadroots), ignoredatacsums (idatacsums), ignoremetacsums \
                       (imetacsums), ignoresuperflags (isuperflags), all (these six, all for reading) or usebackupsuper, joined by colons";

fn rescue(options: &mut MountOptions, list: &str) -> Option<()> {
    options.rescue(Rescue::parse(list)?);
    Some(())
}

fn set_uid(options: &mut MountOptions, value: &str) -> Option<()> {
    options.uid = Some(value.parse().ok()?);
    Some(())
}

fn set_gid(options: &mut MountOptions, value: &str) -> Option<()> {
    options.gid = Some(value.parse().ok()?);
    Some(())
}

fn set_offset(options: &mut MountOptions, value: &str) -> Option<()> {
    options.offset = parse_bytes(value)?;
    Some(())
}

fn set_memory(options: &mut MountOptions, value: &str) -> Option<()> {
    options.memory = Some(parse_bytes(value).filter(|&bytes| bytes >= MEMORY_MIN)?);
    Some(())
}

fn set_reclaim(options: &mut MountOptions, value: &str) -> Option<()> {
    options.bg_reclaim_threshold = Some(value.parse().ok().filter(|percent| *percent <= 100)?);
    Some(())
}

fn set_max_read(options: &mut MountOptions, value: &str) -> Option<()> {
    let bytes = u32::try_from(parse_bytes(value)?).ok().filter(|&bytes| bytes >= 4096)?;
    options.max_read = Some(bytes);
    Some(())
}

fn set_subvol(options: &mut MountOptions, value: &str) -> Option<()> {
    if value.is_empty() || value.contains('\0') {
        return None;
    }
    options.subvolume = SubvolumeChoice::Path(value.into());
    Some(())
}

fn set_subvolid(options: &mut MountOptions, value: &str) -> Option<()> {
    let id = match value.parse().ok()? {
        0 => 5,
        id => id,
    };
    options.subvolume_id = Some(id);
    if !matches!(options.subvolume, SubvolumeChoice::Path(_)) {
        options.subvolume = SubvolumeChoice::Id(id);
    }
    Some(())
}

fn set_commit(options: &mut MountOptions, value: &str) -> Option<()> {
    let seconds = value.parse().ok()?;
    options.commit_seconds = Some(seconds).filter(|&seconds| seconds > 0);
    Some(())
}
