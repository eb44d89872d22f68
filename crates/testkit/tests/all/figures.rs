//! Figures of README that count what is in the source are those of the source.

use buttress_testkit::{corpus, crash, damage};

const README: &str = include_str!("../../../../README.md");

#[test]
fn readme_counts_what_there_is() {
    let targets = include_str!("../../../../fuzz/Cargo.toml").matches("[[bin]]").count();
    assert_eq!(targets, 9, "README spells the number of fuzz targets");
    let readme = README.split_whitespace().collect::<Vec<_>>().join(" ");
    for told in [
        format!("{} kernel-made images", corpus::specs().len()),
        format!("{} recorded workloads", crash::workloads::all().len()),
        format!("{} kinds of damage", damage::kinds().len()),
        "nine targets".to_owned(),
    ] {
        assert!(readme.contains(&told), "README does not say {told:?}");
    }
}
