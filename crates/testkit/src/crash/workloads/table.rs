//! The table of workloads.

use buttress::Discard;
use buttress_codec::ChecksumKind;

use super::{Script, Workload, scripts, small};
use crate::model::QuotaMode;
use crate::ops::generate::Profile;
use crate::ops::run::Config;

/// Few and small files.
pub(super) fn few() -> Profile {
    Profile {
        files_max: 60,
        bytes_max: 1 << 20,
        volumes_max: 5,
        large: 200 << 10,
        large_in: 30,
        ..Profile::default()
    }
}

fn random(seed: u64, count: u64) -> Script {
    Script::Seed(seed, count, few())
}

pub(super) fn mixed(dup: bool) -> Config {
    let size = if dup { 256 << 20 } else { 96 << 20 };
    Config { mixed: true, dup, size, ..small(4096) }
}

pub(super) fn words(name: &'static str, config: Config, words: fn() -> String) -> Workload {
    Workload { name, config, script: Script::Words(words) }
}

/// All workloads.
pub fn all() -> Vec<Workload> {
    let mut found = of_operations();
    found.extend(of_space());
    found.extend(of_emptied_groups());
    found.extend(of_quotas());
    found.extend(of_seeds());
    found
}

/// Each kind of operation.
fn of_operations() -> Vec<Workload> {
    let (tiny, usual, huge) = (small(4096), small(16384), small(65536));
    let slow = Config { drop_blocks_max: 16, ..tiny };
    vec![
        words("create and remove", tiny, scripts::create_and_remove),
        words("small files", usual, scripts::small_files),
        words("overwrites", usual, scripts::overwrites),
        words("large writes", tiny, scripts::large_writes),
        words("truncation", huge, scripts::truncation),
        words("allocation", usual, scripts::allocation),
        words("holes as items", Config { no_holes: false, ..tiny }, scripts::allocation),
        words("clones", usual, scripts::clones),
        words("xattrs", tiny, scripts::xattrs),
        words("attributes", huge, scripts::attributes),
        words("renames", usual, scripts::renames),
        words("links", tiny, scripts::links),
        words("special files", usual, scripts::special_files),
        words("files without names", usual, scripts::without_names),
        words("subvolumes", Config { dup: true, ..usual }, scripts::subvolumes),
        words("snapshots", tiny, scripts::snapshots),
        words("a deletion half done", slow, scripts::deletion),
        words("a shared deletion half done", slow, scripts::shared_deletion),
        words("a large directory", tiny, scripts::large_directory),
        words("colliding names", tiny, scripts::names_of_one_hash),
        words("reopening", Config { dup: true, ..tiny }, scripts::reopening),
    ]
}

/// Space that comes and goes.
fn of_space() -> Vec<Workload> {
    let (tiny, usual) = (small(4096), small(16384));
    vec![
        words("new chunks", usual, scripts::new_chunks),
        words("empty chunks", Config { dup: true, ..tiny }, scripts::empty_chunks),
        words("no space for data", tiny, scripts::full_of_data),
        words("no space for metadata", small(65536), scripts::full_of_metadata),
        words("no space, mixed", mixed(false), scripts::full_of_data),
        words("space freed again", mixed(true), scripts::freed_again),
    ]
}

/// Block groups that are emptied.
fn of_emptied_groups() -> Vec<Workload> {
    let (tiny, usual) = (small(4096), small(16384));
    let slow = Config { drop_blocks_max: 16, ..tiny };
    let counted = Config { quotas: QuotaMode::Full, dup: true, ..usual };
    let random = Script::Seed(21, 600, Profile { empty_every: 30, ..few() });
    let discards = Script::Seed(23, 600, Profile { trim_every: 20, empty_every: 90, ..few() });
    let discarding = Config { discard: Some(Discard::Sync), ..slow };
    vec![
        words("emptied groups", slow, scripts::emptied_groups),
        words("emptied groups, counted", counted, scripts::emptied_groups),
        words("emptied groups, mixed", mixed(false), scripts::emptied_groups),
        Workload { name: "random, emptied groups", config: tiny, script: random },
        Workload { name: "random, discards", config: discarding, script: discards },
    ]
}

/// Quotas that are switched.
fn of_quotas() -> Vec<Workload> {
    let (tiny, usual) = (small(4096), small(16384));
    let slow = Config { drop_blocks_max: 16, ..tiny };
    let random = Script::Seed(22, 600, Profile { quotas_every: 20, empty_every: 70, ..few() });
    vec![
        words("quotas", slow, scripts::quotas),
        words("quotas, everything twice", Config { dup: true, ..usual }, scripts::quotas),
        words("quotas, mixed", mixed(false), scripts::quotas),
        Workload { name: "random, quotas", config: tiny, script: random },
    ]
}

/// A bit of everything.
fn of_seeds() -> Vec<Workload> {
    let of = |name, config, script| Workload { name, config, script };
    let (tiny, usual, huge) = (small(4096), small(16384), small(65536));
    let short = Config { dirty_bytes_max: 100_000, cache_bytes: 200_000, ..usual };
    vec![
        of("random, 4K", tiny, random(11, 900)),
        of("random, 16K, DUP", Config { dup: true, ..usual }, random(12, 900)),
        of("random, 64K", huge, random(13, 900)),
        of("random, mixed", mixed(false), random(14, 900)),
        of("random, mixed, DUP", mixed(true), random(15, 900)),
        of("random, in parallel", Config { reproducible: false, ..tiny }, random(16, 900)),
        of("random, little memory", short, random(17, 900)),
        of("random, slow deletions", Config { drop_blocks_max: 16, ..tiny }, random(18, 900)),
        of("random, xxhash", Config { checksum: ChecksumKind::XxHash64, ..tiny }, random(19, 600)),
        of("random, sha256", Config { checksum: ChecksumKind::Sha256, ..usual }, random(20, 600)),
    ]
}
