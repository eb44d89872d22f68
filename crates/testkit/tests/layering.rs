//! The map of the project holds: crates and the engine's modules use only what is below them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Crates from the bottom up, by folder. One that is not named here is on top: it may use all of them, none of them it.
const CRATES: [&str; 9] =
    ["codec", "ondisk", "device", "volume", "engine", "check", "mkfs", "fuse", "cli"];

/// The checker shares no code with the writer: what it may use.
const CHECKER: [&str; 4] = ["codec", "ondisk", "device", "volume"];

/// Modules of the engine from the bottom up; those of one line know nothing of each other.
const MODULES: [&[&str]; 13] = [
    &["error", "env", "hash", "stats", "sync"],
    &["threads"],
    &["stripes"],
    &["tree"],
    &["space"],
    &["refs"],
    &["quota"],
    &["txn"],
    &["inode"],
    &["subvol"],
    &["log"],
    &["upkeep"],
    &["fs"],
];

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Names of the folders and files in a folder.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = match fs::read_dir(dir) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(error) => panic!("{}: {error}", dir.display()),
    };
    found.sort();
    found
}

/// Folders of the crates of this workspace that the crate in `dir` depends on, tests aside.
fn dependencies(dir: &Path) -> Vec<String> {
    let manifest = fs::read_to_string(dir.join("Cargo.toml")).unwrap_or_default();
    let mut section = "";
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        }
        let name: String =
            line.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
        if section == "[dependencies]" && name == "buttress" {
            found.push("engine".into());
        } else if section == "[dependencies]"
            && let Some(name) = name.strip_prefix("buttress-")
        {
            found.push(name.to_owned());
        }
    }
    found
}

#[test]
fn crates_depend_downward_only() {
    let rank = |name: &str| CRATES.iter().position(|it| *it == name).unwrap_or(CRATES.len());
    let mut faults = Vec::new();
    let mut edges = 0;
    for dir in entries(&top().join("crates")) {
        let Some(name) = dir.file_name().and_then(|name| name.to_str()) else { continue };
        for other in dependencies(&dir) {
            edges += 1;
            let known = rank(name) < CRATES.len();
            if known && rank(&other) >= rank(name) {
                faults.push(format!("{name} uses {other}, which is not below it"));
            }
            if name == "check" && !CHECKER.contains(&other.as_str()) {
                faults.push(format!("the checker uses {other}"));
            }
        }
    }
    assert!(edges >= 15, "only {edges} dependencies were found: has the manifest another form?");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Sources below a folder, without those of tests.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for path in entries(dir) {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        if matches!(stem.as_str(), "tests" | "schedules") {
            continue;
        }
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Modules of the crate that a source names; what follows `mod tests` is left out.
fn used_modules(text: &str) -> BTreeSet<String> {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = code.collect::<Vec<_>>().join("\n");
    let mut found = BTreeSet::new();
    for after in code.split("crate::").skip(1) {
        match after.strip_prefix('{') {
            // One list of several modules: the words at its own depth.
            Some(list) => found.extend(listed(list)),
            None => drop(found.insert(word(after))),
        }
    }
    found.retain(|name| name.starts_with(|c: char| c.is_ascii_lowercase()));
    found
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
}

/// The first words of the parts of a list in braces, whose opening brace is gone.
fn listed(list: &str) -> Vec<String> {
    let (mut depth, mut fresh) = (0, true);
    let mut found = Vec::new();
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            c if c.is_whitespace() => {}
            _ if fresh => {
                found.push(word(&list[at..]));
                fresh = false;
            }
            _ => {}
        }
    }
    found
}

#[test]
fn modules_of_the_engine_use_downward_only() {
    let src = top().join("crates/engine/src");
    let rank =
        |name: &str| MODULES.iter().position(|line| line.contains(&name)).unwrap_or(MODULES.len());
    let mut files = Vec::new();
    sources(&src, &mut files);
    let mut edges: BTreeMap<(String, String), PathBuf> = BTreeMap::new();
    for file in files {
        let inside = file.strip_prefix(&src).unwrap_or(&file);
        let Some(first) = inside.iter().next().and_then(|part| part.to_str()) else { continue };
        let module = first.trim_end_matches(".rs").to_owned();
        let text = fs::read_to_string(&file).unwrap_or_default();
        for used in used_modules(&text).into_iter().filter(|used| *used != module) {
            edges.insert((module.clone(), used), file.clone());
        }
    }
    assert!(edges.len() >= 30, "only {} uses were found", edges.len());
    let faults: Vec<String> = edges
        .iter()
        .filter(|((module, used), _)| {
            module != "lib" && rank(module) < MODULES.len() && rank(used) >= rank(module)
        })
        .map(|((module, used), file)| format!("{module} uses {used}: {}", file.display()))
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn uses_are_found_in_every_form() {
    let text = "use crate::tree::View;\nuse crate::{error::{Error, Result}, txn, space::Need};\n\
                // crate::fs\nfn f() { crate::refs::g() }\n#[cfg(test)]\nmod tests {\nuse crate::fs;";
    let found: Vec<_> = used_modules(text).into_iter().collect();
    assert_eq!(found, ["error", "refs", "space", "tree", "txn"]);
}
