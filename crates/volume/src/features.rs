//! Which features keep a filesystem from being read or written, from the one table of features.

use buttress_ondisk::{
    Superblock,
    features::{self, Feature, Set, Support},
};

/// The names of features without which the filesystem cannot be read.
pub(crate) fn unreadable(sb: &Superblock) -> Option<String> {
    let (found, incompat, _) = features::of(sb);
    names(&found, |it| it.support == Support::Refused && it.set == Set::Incompat, incompat)
}

/// The names of features without which the filesystem must not be written.
pub(crate) fn unwritable(sb: &Superblock) -> Option<String> {
    let (found, _, compat_ro) = features::of(sb);
    let keeps = |it: &Feature| match it.set {
        Set::Incompat => it.support == Support::ReadOnly,
        Set::CompatRo => it.support < Support::ReadWrite,
    };
    names(&found, keeps, compat_ro)
}

fn names(found: &[&Feature], keeps: impl Fn(&Feature) -> bool, unknown: u64) -> Option<String> {
    let known = found.iter().filter(|it| keeps(it)).map(|it| it.name.to_string());
    let unknown = (unknown != 0).then(|| format!("bits {unknown:#x}"));
    let names: Vec<String> = known.chain(unknown).collect();
    (!names.is_empty()).then(|| names.join(", "))
}
