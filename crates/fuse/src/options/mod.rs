//! The words after `-o`: what mount(8), fstab and btrfs(5) call them, with what they mean here.
//!
//! Each known word is one row of `table` and falls into one of four kinds: it does something; it
//! is accepted because it says what buttress does anyway; it is accepted without an effect, since files are the same
//! without it (how they are laid out, compressed, cached), and the caller is told; or it is refused by name because it
//! changes what is seen or allowed and its effect is not there yet. A value that makes
//! no sense is refused whether it would have an effect or not, as Linux does. A word in no row is refused, with the names that look like it, so that a misspelt `ro` never mounts
//! read-write.

mod table;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use buttress::Discard;
use buttress_volume::Rescue;
use strsim::levenshtein;

use table::{Effect, Idle, ROWS, Row};

/// Which subvolume is the top of the mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SubvolumeChoice {
    /// The filesystem's default subvolume.
    #[default]
    Default,
    /// By path from the top-level subvolume.
    Path(PathBuf),
    /// By id; 0 and 5 are the top level.
    Id(u64),
}

/// When reading updates access times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// Once a day, or when older than the last change.
    #[default]
    Relative,
    /// Never.
    Never,
    /// At the first read after each open, and at every read that reaches the filesystem.
    Strict,
}

/// Everything `-o` can say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// `ro`: nothing is written, not even to the device.
    pub read_only: bool,
    /// `subvol=`, `subvolid=`.
    pub subvolume: SubvolumeChoice,
    /// `subvolid=`: beside a path, the one that must be there.
    pub subvolume_id: Option<u64>,
    /// `offset=`: where the filesystem begins in the image, in bytes.
    pub offset: u64,
    /// `commit=`: seconds that a change waits at most for its commit, 1 or more; `None`: 5.
    pub commit_seconds: Option<u32>,
    /// `relatime`, `noatime`, `strictatime`.
    pub access_times: AccessTimes,
    /// `nodiratime`: reading a directory never updates its access time.
    pub no_directory_access_times: bool,
    /// `allow_other`: other users have access.
    pub allow_other: bool,
    /// `default_permissions`: the kernel checks permissions; on unless `fakeroot`.
    pub default_permissions: bool,
    /// `fakeroot`: no permission checks, new files belong to root, for building images as a user.
    pub fakeroot: bool,
    /// `uid=`: the owner shown for every file.
    pub uid: Option<u32>,
    /// `gid=`: the group shown for every file.
    pub gid: Option<u32>,
    /// `nosuid` (false) or `suid` (true).
    pub suid: bool,
    /// `nodev` (false) or `dev` (true).
    pub dev: bool,
    /// `noexec` (false) or `exec` (true).
    pub exec: bool,
    /// `sync`: every write is durable before it returns.
    pub synchronous: bool,
    /// `dirsync`: every directory change is durable before it returns.
    pub dirsync: bool,
    /// `skip_balance`: a balance that was paused or interrupted does not go on by itself.
    pub skip_balance: bool,
    /// `bg_reclaim_threshold=`: block groups with less than so many percent used are emptied when space gets short; 0: none. `None`: 30.
    pub bg_reclaim_threshold: Option<u8>,
    /// `discard=sync` (or `discard`), `discard=async`, `nodiscard`: when an image file gives its disk back what has become free.
    pub discard: Option<Discard>,
    /// `writeback_cache`: the kernel collects writes. A write is then accepted before its space is
    /// reserved, so a full filesystem shows at fsync or close.
    pub writeback_cache: bool,
    /// `async_dio`: asynchronous direct I/O (libaio with O_DIRECT) of one thread runs in parallel. Who reads the same file
    /// through the cache meanwhile may then see what was there before.
    pub async_dio: bool,
    /// `io_uring`, `noio_uring`: requests come by io_uring where the kernel offers it.
    pub io_uring: bool,
    /// `strictopen`: immutable and append-only files, and those of read-only subvolumes, cannot even be opened for writing, instead of
    /// refusing each write. The kernel has to ask for each open then.
    pub strict_open: bool,
    /// `memory=`: bytes that the process may use, all in all; `None`: as [`crate::budget::by_default`] says.
    pub memory: Option<u64>,
    /// `max_read=`: longest read request, in bytes.
    pub max_read: Option<u32>,
    /// `user_subvol_rm_allowed`: owners may delete their subvolumes.
    pub user_subvol_rm_allowed: bool,
    /// `treelog`, `notreelog`: an fsync may write a log, or is always a commit.
    pub tree_log: bool,
    /// `rescue=WORDS`, `norecovery`, `nologreplay`, `usebackuproot`, `recovery`: what is done about a damaged filesystem.
    pub rescue: Rescue,
    /// `mark_quota_inconsistent`: a filesystem with quotas is written to; they count wrong until
    /// they are scanned again.
    pub mark_quota_inconsistent: bool,
    /// At the end, the process that serves says on standard error what it has done.
    pub stats: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            subvolume: SubvolumeChoice::Default,
            subvolume_id: None,
            offset: 0,
            commit_seconds: None,
            access_times: AccessTimes::Relative,
            no_directory_access_times: false,
            allow_other: false,
            default_permissions: true,
            fakeroot: false,
            uid: None,
            gid: None,
            suid: true,
            dev: true,
            exec: true,
            synchronous: false,
            dirsync: false,
            writeback_cache: false,
            skip_balance: false,
            bg_reclaim_threshold: None,
            discard: None,
            async_dio: false,
            io_uring: true,
            strict_open: false,
            memory: None,
            max_read: None,
            user_subvol_rm_allowed: false,
            tree_log: true,
            rescue: Rescue::default(),
            mark_quota_inconsistent: false,
            stats: false,
        }
    }
}

/// Why an option was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No such option.
    #[error("unknown mount option `{name}`{}", suggestion(.near))]
    Unknown {
        /// As given, without its value.
        name: String,
        /// Known names that look like it.
        near: Vec<&'static str>,
    },
    /// A btrfs option whose effect buttress does not have.
    #[error("mount option `{word}` is not supported yet")]
    NotYet {
        /// As given.
        word: String,
    },
    /// The value is missing, superfluous or out of range.
    #[error("mount option `{word}`: {expected}")]
    Value {
        /// As given.
        word: String,
        /// What would be right.
        expected: &'static str,
    },
}

fn suggestion(near: &[&str]) -> String {
    match near {
        [] => String::new(),
        names => format!("; did you mean `{}`?", names.join("` or `")),
    }
}

impl MountOptions {
    /// Applies a comma separated list, later words winning over earlier ones. Returns the words that were accepted without
    /// having an effect.
    pub fn apply<'l>(&mut self, list: &'l str) -> Result<Vec<&'l str>, OptionError> {
        let mut idle = Vec::new();
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            if !self.apply_word(word)? {
                idle.push(word);
            }
        }
        self.settle();
        Ok(idle)
    }

    /// Applies one; `false` if it has no effect.
    fn apply_word(&mut self, word: &str) -> Result<bool, OptionError> {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        if table::is_for_others(name) {
            return Ok(true);
        }
        let row = ROWS.iter().find(|row| row.fits(name, value)).ok_or_else(|| unknown(name))?;
        let wrong = |expected| OptionError::Value { word: word.to_owned(), expected };
        match row.effect {
            Effect::Switch(_) | Effect::AsIs | Effect::Hint if value.is_some() => {
                return Err(wrong("takes no value"));
            }
            Effect::Switch(set) => set(self),
            Effect::Value(set, expected) => {
                value.and_then(|value| set(self, value)).ok_or_else(|| wrong(expected))?;
            }
            Effect::MayHave(set, expected) => set(self, value).ok_or_else(|| wrong(expected))?,
            Effect::Checked(check, expected) => {
                let idle = check(value).ok_or_else(|| wrong(expected))?;
                return Ok(matches!(idle, Idle::AsIs));
            }
            Effect::AsIs => {}
            Effect::Hint => return Ok(false),
            Effect::NotYet => return Err(OptionError::NotYet { word: word.to_owned() }),
        }
        Ok(true)
    }

    /// What is asked for that all mounts of a filesystem have in common, as words: beyond what is so when nothing is said, and
    /// without what is only about opening it.
    pub fn shared_words(&self) -> Vec<String> {
        let switches = [
            (self.read_only, "ro"),
            (self.access_times == AccessTimes::Never, "noatime"),
            (self.access_times == AccessTimes::Strict, "strictatime"),
            (self.no_directory_access_times, "nodiratime"),
            (self.allow_other, "allow_other"),
            (self.fakeroot, "fakeroot"),
            (self.synchronous, "sync"),
            (self.dirsync, "dirsync"),
            (self.writeback_cache, "writeback_cache"),
            (self.async_dio, "async_dio"),
            (!self.io_uring, "noio_uring"),
            (self.strict_open, "strictopen"),
            (self.user_subvol_rm_allowed, "user_subvol_rm_allowed"),
            (self.discard == Some(Discard::Sync), "discard"),
            (self.discard == Some(Discard::Async), "discard=async"),
        ];
        let values = [
            ("offset", Some(self.offset).filter(|&offset| offset > 0)),
            ("commit", self.commit_seconds.map(u64::from)),
            ("memory", self.memory),
            ("bg_reclaim_threshold", self.bg_reclaim_threshold.map(u64::from)),
            ("uid", self.uid.map(u64::from)),
            ("gid", self.gid.map(u64::from)),
            ("max_read", self.max_read.map(u64::from)),
        ];
        let on = switches.iter().filter(|(on, _)| *on).map(|(_, word)| (*word).to_owned());
        let given = values.iter().filter_map(|(name, value)| Some(format!("{name}={}", (*value)?)));
        on.chain(given).collect()
    }

    /// Allows this, too.
    pub fn rescue(&mut self, rescue: Rescue) {
        self.rescue = self.rescue.and(rescue);
    }

    /// What follows from other options.
    fn settle(&mut self) {
        if self.fakeroot {
            self.default_permissions = false;
            self.suid = false;
            self.dev = false;
        }
    }
}

fn unknown(name: &str) -> OptionError {
    let limit = if name.len() < 4 { 1 } else { 2 };
    let near = |row: &&Row| levenshtein(name, row.name) <= limit;
    let mut near: Vec<_> = ROWS.iter().filter(near).map(|row| row.name).collect();
    near.sort_by_key(|known| levenshtein(name, known));
    near.dedup();
    near.truncate(3);
    OptionError::Unknown { name: name.to_owned(), near }
}

/// Bytes, with an optional suffix K, M, G or T of powers of 1024.
pub(crate) fn parse_bytes(text: &str) -> Option<u64> {
    let last = text.chars().last()?.to_ascii_lowercase();
    let shift = match last {
        'k' => 10,
        'm' => 20,
        'g' => 30,
        't' => 40,
        _ => return text.parse().ok(),
    };
    let number: u64 = text.get(..text.len() - 1)?.parse().ok()?;
    number.checked_mul(1 << shift)
}
