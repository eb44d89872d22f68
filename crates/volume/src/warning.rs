//! What did not prevent an open and should be heard of, and what the opener may allow.

use std::fmt;

/// Something that is not as it should be and that did not prevent the open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    /// The primary superblock is bad; a mirror was used.
    MirrorUsed {
        /// The device.
        device: String,
        /// Where the mirror is, in bytes.
        offset: u64,
        /// Its generation.
        generation: u64,
        /// How old it can be.
        age: Age,
        /// What is wrong with the primary.
        primary: String,
    },
    /// The last trees cannot be read; those of an older commit were used.
    BackupRootUsed {
        /// The commit that is shown.
        generation: u64,
        /// The last commit.
        newest: u64,
        /// What is wrong with the last trees.
        error: String,
    },
    /// Somebody else may be changing the device.
    Shared {
        /// The device.
        device: String,
        /// Who, and what follows.
        what: String,
    },
    /// A log tree waits for replay: what was fsynced last is not in the trees.
    LogTree,
    /// Features, known or not, that we do not keep up when writing.
    CompatRo {
        /// Their names, or their bits.
        names: String,
    },
    /// The device is smaller than the filesystem.
    DeviceShort {
        /// The device.
        device: String,
        /// Its bytes.
        size: u64,
        /// The filesystem's bytes on it.
        total_bytes: u64,
    },
    /// The superblock says that an error was found.
    ErrorFlag,
    /// The superblock says that others are to be added on top of this filesystem.
    Seeding,
    /// It was restored from a dump of its metadata: it has names, and no data.
    MetadataDump,
    /// Another filesystem's signature is where the primary superblock is missing.
    Replaced {
        /// What is there.
        other: &'static str,
    },
}

/// How old a copy of the superblock can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    /// It is of the last commit.
    Current,
    /// The bad primary gives a later generation.
    Behind {
        /// Commits between them.
        commits: u64,
    },
    /// Nothing is known.
    Unknown,
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Current => f.write_str("of the last commit"),
            Self::Behind { commits: 1 } => f.write_str("may lack the last commit"),
            Self::Behind { commits } => write!(f, "may lack the last {commits} commits"),
            Self::Unknown => f.write_str("may lack any number of later commits"),
        }
    }
}

/// What opening may use in place of what is bad, though it may be older than the last commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rescue {
    /// Go on writing from a copy of the superblock that may be old: commits after it are given up.
    pub backup_super: bool,
    /// Read by the roots of an older commit when those of the last one lead nowhere. For reading only.
    pub backup_root: bool,
    /// Show the last commit, without what a log tree has that waits for replay. For reading only.
    pub no_log_replay: bool,
    /// Go on without the trees that no file is read by, where they have no root that can be read. For reading only.
    pub ignore_bad_roots: bool,
    /// Take data for what they are, whatever their checksums say. For reading only.
    pub ignore_data_sums: bool,
    /// Take a tree block of which no copy has its checksum, if all else in it is well formed. For reading only.
    pub ignore_meta_sums: bool,
    /// Go on though the superblock's flags say that a change of the format was not finished, or are unknown. For reading only.
    pub ignore_super_flags: bool,
    /// Whoever opens replays a log tree that waits, before it writes anything else. Not a word that mount options use.
    pub replays_log: bool,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MirrorUsed { device, offset, generation, age, primary } => write!(
                f,
                "{device}: the primary superblock is bad ({primary}); using the copy at {offset}, \
                 which is of generation {generation} and {age}"
            ),
            Self::BackupRootUsed { generation, newest, error } => write!(
                f,
                "the trees of the last commit, {newest}, cannot be read ({error}); showing those of \
                 commit {generation}, without what came after it"
            ),
            Self::Shared { device, what } => write!(f, "{device}: {what}"),
            Self::LogTree => f.write_str(
                "a log tree waits for replay: without that, the last fsynced changes are not shown",
            ),
            Self::CompatRo { names } => {
                write!(f, "features that must be known to write ({names}): reading only")
            }
            Self::DeviceShort { device, size, total_bytes } => {
                write!(
                    f,
                    "{device} has {size} bytes, the filesystem takes {total_bytes}: its end is cut off"
                )
            }
            Self::ErrorFlag => f.write_str("the superblock says that an error was found before"),
            Self::MetadataDump => {
                f.write_str("restored from a dump of metadata, without data: reading only")
            }
            Self::Seeding => f.write_str("this is a seed filesystem: reading only"),
            Self::Replaced { other } => write!(f, "{other} seems to have taken the device over"),
        }
    }
}

impl Rescue {
    /// The words that [`Rescue::parse`] understands.
    pub const WORDS: &'static str = "usebackupsuper, usebackuproot, nologreplay, ignorebadroots (ibadroots), ignoredatacsums \
                                     (idatacsums), ignoremetacsums (imetacsums), ignoresuperflags (isuperflags) or all, joined by colons";

    /// Understands words that mount options use, joined by colons: [`Rescue::WORDS`]. `all` is all that is for reading.
    pub fn parse(list: &str) -> Option<Rescue> {
        let mut rescue = Rescue::default();
        for word in list.split(':') {
            match word {
                "usebackuproot" => rescue.backup_root = true,
                "nologreplay" => rescue.no_log_replay = true,
                "usebackupsuper" => rescue.backup_super = true,
                "ignorebadroots" | "ibadroots" => rescue.ignore_bad_roots = true,
                "ignoredatacsums" | "idatacsums" => rescue.ignore_data_sums = true,
                "ignoremetacsums" | "imetacsums" => rescue.ignore_meta_sums = true,
                "ignoresuperflags" | "isuperflags" => rescue.ignore_super_flags = true,
                "all" => rescue = rescue.and(Rescue::ALL),
                _ => return None,
            }
        }
        Some(rescue)
    }

    /// What `all` says.
    const ALL: Rescue = Rescue {
        backup_super: false,
        backup_root: true,
        no_log_replay: true,
        ignore_bad_roots: true,
        ignore_data_sums: true,
        ignore_meta_sums: true,
        ignore_super_flags: true,
        replays_log: false,
    };

    /// What either allows.
    pub fn and(self, other: Rescue) -> Rescue {
        Rescue {
            backup_super: self.backup_super | other.backup_super,
            backup_root: self.backup_root | other.backup_root,
            no_log_replay: self.no_log_replay | other.no_log_replay,
            ignore_bad_roots: self.ignore_bad_roots | other.ignore_bad_roots,
            ignore_data_sums: self.ignore_data_sums | other.ignore_data_sums,
            ignore_meta_sums: self.ignore_meta_sums | other.ignore_meta_sums,
            ignore_super_flags: self.ignore_super_flags | other.ignore_super_flags,
            replays_log: self.replays_log | other.replays_log,
        }
    }

    /// Why nobody may write who asks for this.
    pub(crate) fn why_reading_only(self) -> Option<String> {
        let words = [
            (
                self.no_log_replay,
                "nologreplay",
                "writing without replay of the log would destroy it",
            ),
            (
                self.ignore_bad_roots,
                "ignorebadroots",
                "who goes on without some trees cannot write them",
            ),
            (
                self.ignore_data_sums,
                "ignoredatacsums",
                "nobody writes on from data that nobody has verified",
            ),
            (
                self.ignore_meta_sums,
                "ignoremetacsums",
                "nobody writes on from blocks that nobody has verified",
            ),
            (
                self.ignore_super_flags,
                "ignoresuperflags",
                "who does not know what was being changed cannot go on with it",
            ),
            (
                self.backup_root,
                "usebackuproot",
                "older roots may lead to what is overwritten since",
            ),
        ];
        let said: Vec<_> = words.into_iter().filter(|(is_said, ..)| *is_said).collect();
        match said[..] {
            [] => None,
            [(_, word, why)] => Some(format!(
                "the rescue option {word} is for reading, as {why}; read only (for a mount: -o ro), or leave the word away"
            )),
            _ => {
                let words: Vec<_> = said.iter().map(|(_, word, _)| *word).collect();
                Some(format!(
                    "the rescue options {} are for reading; read only (for a mount: -o ro), or leave the words away",
                    words.join(", ")
                ))
            }
        }
    }
}
