//! Picks the cases, gives each a fresh directory, counts and prints.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde_json::json;

use crate::case::{Case, Registry, Stop, T};
use crate::helper::{Identity, again_as};
use crate::{Arguments, Format, cases};

/// How one case ended.
struct Report {
    name: String,
    outcome: Result<(), Stop>,
}

/// Runs what the arguments ask for; true if nothing failed.
pub fn run(arguments: &Arguments) -> io::Result<bool> {
    let mut registry = Registry::default();
    cases::register(&mut registry);
    let chosen = |case: &Case| arguments.filter.as_ref().is_none_or(|f| holds_text(&case.name, f));
    let picked: Vec<_> = registry.cases.into_iter().filter(chosen).collect();
    if arguments.list {
        picked.iter().for_each(|case| println!("{}", case.name));
        return Ok(true);
    }
    if arguments.as_user && rustix::process::geteuid().is_root() {
        return run_as_user(arguments);
    }
    let skips = read_skips(arguments.skip.as_deref())?;
    let name = format!("posix-suite.{}", std::process::id());
    let parent = directory(&arguments.dir)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::fs::mkdirat(&parent, &name, Mode::from_raw_mode(0o755))?;
    rustix::process::fchdir(&parent)?;
    let top = directory(Path::new(&name))?;
    let reports: Vec<_> = picked
        .iter()
        .enumerate()
        .map(|(at, case)| one(arguments, &skips, &top, at, case))
        .collect();
    rustix::process::fchdir(&parent)?;
    remove(Path::new(&name))?;
    Ok(print(arguments, &reports))
}

/// Opens a directory. Everything goes through open directories and relative paths: a user may lack
/// the right to come here from the root.
fn directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Runs the whole suite again as the other user, in a directory of that user's own.
fn run_as_user(arguments: &Arguments) -> io::Result<bool> {
    let user = arguments.user;
    let top = arguments.dir.join(format!("posix-suite-user.{}", std::process::id()));
    std::fs::create_dir(&top)?;
    std::os::unix::fs::chown(&top, Some(user), Some(user))?;
    let identity = Identity { uid: user, gid: user, groups: Vec::new() };
    let (mut command, _program) = again_as(&identity)?;
    command.arg(".").current_dir(&top).arg(format!("--user={user}"));
    if let Some(filter) = &arguments.filter {
        command.arg("--filter").arg(filter);
    }
    if let Some(skip) = &arguments.skip {
        command.arg("--skip").arg(skip.canonicalize()?);
    }
    if arguments.format == Format::Json {
        command.arg("--format=json");
    }
    if arguments.verbose {
        command.arg("--verbose");
    }
    let status = command.status()?;
    std::fs::remove_dir_all(&top)?;
    Ok(status.success())
}

/// Runs one case in its own directory.
fn one(
    arguments: &Arguments,
    skips: &[(String, String)],
    top: &OwnedFd,
    at: usize,
    case: &Case,
) -> Report {
    let outcome = match skips.iter().find(|(pattern, _)| matches(&case.name, pattern)) {
        Some((_, reason)) => Err(Stop::Skipped(reason.clone())),
        None if case.root && !rustix::process::geteuid().is_root() => {
            Err(Stop::Skipped("needs root".to_owned()))
        }
        None => in_directory(arguments, top, at, case),
    };
    if arguments.verbose && outcome.is_ok() {
        println!("ok       {}", case.name);
    }
    Report { name: case.name.clone(), outcome }
}

/// Makes the directory, runs the case, removes the directory.
fn in_directory(arguments: &Arguments, top: &OwnedFd, at: usize, case: &Case) -> Result<(), Stop> {
    let dir = PathBuf::from(at.to_string());
    rustix::process::fchdir(top)?;
    std::fs::create_dir(&dir)?;
    std::env::set_current_dir(&dir)?;
    let t = T::new(arguments.user);
    let outcome = (case.body)(&t);
    drop(t);
    rustix::process::fchdir(top)?;
    if let Err(error) = remove(&dir) {
        let left = Stop::Failed(format!("the directory of the case cannot be removed: {error}"));
        return outcome.and(Err(left));
    }
    outcome
}

/// Removes a tree, also where a case took permissions away.
fn remove(dir: &Path) -> io::Result<()> {
    if std::fs::remove_dir_all(dir).is_ok() {
        return Ok(());
    }
    open_up(dir)?;
    std::fs::remove_dir_all(dir)
}

/// Gives the owner all permissions on every directory of a tree.
fn open_up(dir: &Path) -> io::Result<()> {
    rustix::fs::chmod(dir, Mode::RWXU)?;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_up(&entry.path())?;
        }
    }
    Ok(())
}

/// Lines `CASE reason` of a skip file.
fn read_skips(path: Option<&Path>) -> io::Result<Vec<(String, String)>> {
    let Some(path) = path else { return Ok(Vec::new()) };
    let text = std::fs::read_to_string(path)?;
    let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    Ok(lines
        .map(|line| {
            let (pattern, reason) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            (pattern.to_owned(), format!("listed: {}", reason.trim()))
        })
        .collect())
}

/// True if the whole of `text` fits `pattern`, in which `*` stands for anything.
fn matches(text: &str, pattern: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return text == pattern };
    let Some(mut text) = text.strip_prefix(start) else { return false };
    let mut parts: Vec<_> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = text.find(part) else { return false };
        text = text.get(at + part.len()..).unwrap_or_default();
    }
    text.ends_with(end)
}

/// True if some part of `text` fits `pattern`.
fn holds_text(text: &str, pattern: &str) -> bool {
    matches(text, &format!("*{pattern}*"))
}

/// Prints the results; true if nothing failed.
fn print(arguments: &Arguments, reports: &[Report]) -> bool {
    let passed = reports.iter().filter(|report| report.outcome.is_ok()).count();
    let failed = reports.iter().filter(|r| matches!(r.outcome, Err(Stop::Failed(_)))).count();
    let skipped = reports.len() - passed - failed;
    if arguments.format == Format::Json {
        print_json(reports, [passed, failed, skipped]);
        return failed == 0;
    }
    for Report { name, outcome } in reports {
        match outcome {
            Ok(()) => {}
            Err(Stop::Failed(text)) => println!("FAILED   {name}: {text}"),
            Err(Stop::Skipped(text)) => println!("skipped  {name}: {text}"),
        }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    failed == 0
}

/// One object: totals and every case.
fn print_json(reports: &[Report], [passed, failed, skipped]: [usize; 3]) {
    let cases: Vec<_> = reports
        .iter()
        .map(|Report { name, outcome }| match outcome {
            Ok(()) => json!({"name": name, "outcome": "passed"}),
            Err(Stop::Failed(text)) => json!({"name": name, "outcome": "failed", "detail": text}),
            Err(Stop::Skipped(text)) => json!({"name": name, "outcome": "skipped", "detail": text}),
        })
        .collect();
    let all = json!({"passed": passed, "failed": failed, "skipped": skipped, "cases": cases});
    println!("{all:#}");
}

#[cfg(test)]
mod tests {
    use super::{holds_text, matches};

    #[test]
    fn patterns() {
        assert!(matches("rename/a", "rename/a"));
        assert!(!matches("rename/a", "rename"));
        assert!(matches("rename/a", "rename/*"));
        assert!(matches("rename/a-b", "*a*b"));
        assert!(!matches("rename/a-b", "*b*a"));
        assert!(holds_text("rename/a-b", "a-"));
    }
}
