//! Both checkers, asked about one image.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use buttress_check::{Options, Progress, Report, check_devices};
use buttress_device::MemoryDevice;

use super::excuses::{excuse, excuse_refusal, excuse_theirs};
use crate::damage::Result;
use crate::oracle::{is_clean_line, start};

/// Seconds after which `btrfs check` counts as failed: some damage makes it go round in circles.
const LIMIT_SECONDS: &str = "60";
/// KiB of memory that it may take: some damage makes it want all.
const LIMIT_KIB: &str = "3000000";

/// What `btrfs check` says, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theirs {
    /// It fails, or breaks down.
    Fails,
    /// It says something, but its exit status is that of a clean filesystem.
    Warns,
    /// It is content.
    Content,
}

/// What both say.
#[derive(Debug)]
pub struct Asked {
    /// What `btrfs check` says.
    pub theirs: Theirs,
    /// Its report.
    pub text: String,
    /// What ours finds; an error when the filesystem is not supported or cannot be read.
    pub ours: std::result::Result<Report, String>,
}

/// How the two verdicts go together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdicts {
    /// Both complain, or none does.
    Agree,
    /// Only one complains, for this reason.
    Excused(&'static str),
    /// Only ours complains, and nothing says why: the first such issue.
    OnlyOurs(String),
    /// Only `btrfs check` complains.
    OnlyTheirs,
}

/// Asks both about an image; `path` is a file to put it into.
pub fn ask(device: &Arc<MemoryDevice>, path: &Path) -> Result<Asked> {
    device.store(path)?;
    let limited = "ulimit -v \"$0\"; exec btrfs check --readonly --check-data-csum \"$1\"";
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", LIMIT_SECONDS, "sh", "-c", limited, LIMIT_KIB]).arg(path);
    let output = start(&mut command)?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let theirs = match text.lines().all(is_clean_line) {
        _ if !output.status.success() => Theirs::Fails,
        false => Theirs::Warns,
        true => Theirs::Content,
    };
    let options = Options { check_data_csum: true, threads: 1, ..Options::default() };
    let judge = || check_devices(vec![device.clone()], &options, &Progress::default());
    let ours = catch_unwind(AssertUnwindSafe(judge));
    let ours =
        ours.map_err(|_| "a panic".to_string()).and_then(|it| it.map_err(|it| it.to_string()));
    Ok(Asked { theirs, text, ours })
}

impl Asked {
    /// How the two go together.
    pub fn verdicts(&self) -> Verdicts {
        let (clean, silent) = match &self.ours {
            Ok(report) => (report.is_clean(), report.counts.is_empty()),
            Err(_) => (false, false),
        };
        let only_theirs = || match excuse_theirs(&self.text) {
            Some(reason) => Verdicts::Excused(reason),
            None => Verdicts::OnlyTheirs,
        };
        match self.theirs {
            Theirs::Fails if clean => only_theirs(),
            Theirs::Warns if silent => only_theirs(),
            Theirs::Fails => Verdicts::Agree,
            Theirs::Warns | Theirs::Content if clean => Verdicts::Agree,
            Theirs::Warns | Theirs::Content => match &self.ours {
                Ok(report) => match excuse(report) {
                    Ok(reason) => Verdicts::Excused(reason),
                    Err(issue) => Verdicts::OnlyOurs(issue),
                },
                Err(error) => match excuse_refusal(error) {
                    Some(reason) => Verdicts::Excused(reason),
                    None => Verdicts::OnlyOurs(format!("unopenable: {error}")),
                },
            },
        }
    }
}
