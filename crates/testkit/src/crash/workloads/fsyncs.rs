//! The workloads with fsyncs. Commits are rare in them, so that what fsyncs have promised is all that there is.

use std::fmt::Write;

use buttress_codec::ChecksumKind;

use super::table::{few, mixed, words};
use super::{
    Script, Workload, data_fsyncs as data, name_fsyncs as names, program_fsyncs as programs, small,
};
use crate::ops::generate::Profile;
use crate::ops::run::Config;

/// Commits are so many rounds apart.
const APART: u64 = 5;

/// Lines for what is there at first, committed, and then round by round; a line a round may have `;` between operations.
pub(super) fn rounds(first: &str, count: u64, mut round: impl FnMut(u64) -> String) -> String {
    let mut text = String::new();
    for op in first.split(';') {
        let _ = writeln!(text, "{}", op.trim());
    }
    if !first.is_empty() {
        text.push_str("commit\n");
    }
    for number in 0..count {
        for op in round(number).split(';') {
            let _ = writeln!(text, "{}", op.trim());
        }
        if number % APART == APART - 1 {
            text.push_str("commit\n");
        }
    }
    text
}

/// All workloads with fsyncs.
pub fn fsyncs() -> Vec<Workload> {
    let mut found = of_data();
    found.extend(of_names());
    found.extend(of_moves());
    found.extend(of_programs());
    found.extend(of_seeds());
    found
}

fn of_data() -> Vec<Workload> {
    let (tiny, usual, huge) = (small(4096), small(16384), small(65536));
    vec![
        words("fsync: new files", tiny, data::new_files),
        words("fsync: new directories on the way", usual, data::new_directories),
        words("fsync: appends", tiny, data::appends),
        words("fsync: two logs in turn", usual, data::two_logs),
        words("fsync: overwrites", tiny, data::overwrites),
        words("fsync: large overwrites", usual, data::large_overwrites),
        words("fsync: truncation", huge, data::truncation),
        words("fsync: holes", usual, data::holes),
        words("fsync: holes as items", Config { no_holes: false, ..tiny }, data::holes),
        words("fsync: reserved space", usual, data::reserved),
        words("fsync: zeros", tiny, data::zeros),
        words("fsync: clones", usual, data::clones),
        words("fsync: clones of itself", tiny, data::clones_of_itself),
        words("fsync: inline data", huge, data::inline),
        words("fsync: xattrs", tiny, data::xattrs),
        words("fsync: large xattrs", usual, data::large_xattrs),
        words("fsync: attributes", usual, data::attributes),
        words("fsync: nothing new", tiny, data::nothing_new),
        words("fsync: sha256", Config { checksum: ChecksumKind::Sha256, ..tiny }, data::overwrites),
        words("fsync: mixed groups", mixed(false), data::appends),
        words("fsync: everything twice", Config { dup: true, ..usual }, data::two_logs),
    ]
}

fn of_names() -> Vec<Workload> {
    let (tiny, usual, huge) = (small(4096), small(16384), small(65536));
    vec![
        words("fsync: links", tiny, names::links),
        words("fsync: links across directories", usual, names::links_across),
        words("fsync: long names of one file", tiny, names::long_links),
        words("fsync: a name less", usual, names::a_name_less),
        words("fsync: removal", tiny, names::removal),
        words("fsync: directories", huge, names::directories),
        words("fsync: directories made again", usual, names::made_again),
        words("fsync: symbolic links", tiny, names::symlinks),
        words("fsync: special files", usual, names::special_files),
        words("fsync: a name taken again", tiny, names::taken_again),
        words("fsync: names of one hash", tiny, names::one_hash),
        words("fsync: a large directory", tiny, names::large_directory),
        words("fsync: files without names", usual, names::without_names),
        words("fsync: held and removed", tiny, names::held),
        words("fsync: subvolumes", usual, names::subvolumes),
        words("fsync: snapshots", tiny, names::snapshots),
        words("fsync: deleted subvolumes", usual, names::deleted_subvolumes),
    ]
}

fn of_moves() -> Vec<Workload> {
    let (tiny, usual) = (small(4096), small(16384));
    vec![
        words("fsync: renames", tiny, names::renames),
        words("fsync: renames, the file", usual, names::renamed_file),
        words("fsync: renames, where it was", tiny, names::renamed_from),
        words("fsync: renames, where it is", usual, names::renamed_to),
        words("fsync: renames, another file", tiny, names::renamed_other),
        words("fsync: rename over", usual, names::rename_over),
        words("fsync: exchanges", tiny, names::exchanges),
        words("fsync: exchanges of directories", usual, names::exchanged_directories),
        words("fsync: moved directories", tiny, names::moved_directories),
        words("fsync: a chain of renames", usual, names::chain),
    ]
}

fn of_programs() -> Vec<Workload> {
    let (tiny, usual) = (small(4096), small(16384));
    vec![
        words("fsync: a package manager", usual, programs::packages),
        words("fsync: a database, rollback journal", tiny, programs::rollback_journal),
        words("fsync: a database, write-ahead log", usual, programs::write_ahead),
        words("fsync: a mail spool", tiny, programs::mail),
        words("fsync: an editor", usual, programs::editor),
        words("fsync: version control", tiny, programs::version_control),
        words("fsync: a download", usual, programs::download),
        words("fsync: beside a commit", usual, programs::beside),
        words("fsync: beside a commit, names", tiny, programs::names_beside),
        words("fsync: beside a commit, one log", usual, programs::log_beside),
        words("fsync: reopening", tiny, programs::reopening),
        words("fsync: quotas", tiny, programs::quotas),
    ]
}

/// As many more random ones as are asked for, of other seeds.
pub fn random_fsyncs(seeds: std::ops::Range<u64>) -> Vec<Workload> {
    let of = |seed: u64| Workload {
        name: format!("fsync: random {seed}").leak(),
        config: small([4096, 16384, 65536][(seed % 3) as usize]),
        // Of every second one block groups are emptied in between, of every second one of these quotas are switched; of others every second one
        // tells the device what is free.
        script: Script::Synced(
            seed,
            300,
            Profile {
                empty_every: seed % 2 * 25,
                quotas_every: seed % 4 / 3 * 20,
                trim_every: u64::from(seed % 4 == 2) * 30,
                ..few()
            },
        ),
    };
    seeds.map(of).collect()
}

/// A bit of everything.
fn of_seeds() -> Vec<Workload> {
    let of = |name, config, seed, count| {
        let script = Script::Synced(seed, count, few());
        Workload { name, config, script }
    };
    let (tiny, usual, huge) = (small(4096), small(16384), small(65536));
    let short = Config { dirty_bytes_max: 100_000, cache_bytes: 200_000, ..usual };
    vec![
        of("fsync: random, 4K", tiny, 31, 500),
        of("fsync: random, 16K", Config { dup: true, ..usual }, 32, 500),
        of("fsync: random, 64K", huge, 33, 500),
        of("fsync: random, mixed", mixed(false), 34, 500),
        of("fsync: random, in parallel", Config { reproducible: false, ..tiny }, 35, 500),
        of("fsync: random, little memory", short, 36, 500),
    ]
}
