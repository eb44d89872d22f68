//! `check`: is the filesystem what it says it is? Options and exit code are those of `btrfs check`; it never writes.

use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use buttress_check::{Issue, Options, Place, Progress, Report, Severity};
use buttress_device::{Access, DeviceError, FileDevice};
use buttress_mkfs::parse_size;
use buttress_volume::{Volume, part_at};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::bad_data::BadFiles;
use crate::args::Globals;
use crate::device;
use crate::error::Failure;
use crate::output::{self, Format};

/// What to do about a filesystem in use.
const FORCE: &str =
    "With --force it is checked all the same; what changes meanwhile looks like damage.";

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct Check {
    /// The image file or disk
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// Use this copy of the superblock: 0 (the primary), 1 or 2
    #[arg(short, long = "super", value_name = "COPY", value_parser = clap::value_parser!(u8).range(0..3))]
    superblock: Option<u8>,
    /// Read all data and all copies of tree blocks too, and compare data with its checksums
    #[arg(long)]
    check_data_csum: bool,
    /// Check even what is mounted or in use; what changes meanwhile looks like damage
    #[arg(long)]
    force: bool,
    /// Accepted: nothing is ever written
    #[arg(long)]
    readonly: bool,
    /// Accepted: memory is always low
    #[arg(long, value_name = "MODE", value_parser = ["original", "lowmem"])]
    mode: Option<String>,
    /// Show progress even where standard error is no terminal
    #[arg(short, long)]
    progress: bool,
    /// Memory for looking closer at damage (suffixes k, m, g)
    #[arg(long, value_parser = parse_size, value_name = "SIZE", default_value = "256m")]
    memory: u64,
    /// Threads that work at once (default: one for each processor)
    #[arg(long, value_name = "NUMBER")]
    threads: Option<usize>,
    /// How many issues are told in full; all are counted
    #[arg(long, value_name = "NUMBER", default_value_t = Options::default().issues_max)]
    issues: usize,
}

/// Checks the filesystem and tells what was found.
pub fn run(args: &Check, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let path = &args.device;
    if globals.talks() {
        out.write_all(b"Checking filesystem on ")?;
        out.write_all(path.as_os_str().as_bytes())?;
        writeln!(out)?;
    }
    let (report, fsid, files) = match open(args, globals)? {
        Ok(volume) => {
            let (report, fsid) = judge(args, globals, &volume, out)?;
            let files = BadFiles::of(&volume, &report.issues);
            (report, fsid, files)
        }
        Err(report) => (report, None, BadFiles::none()),
    };
    match globals.format {
        Format::Text => text(out, &report, &files, globals)?,
        Format::Json => output::write_json(out, "check", json(path, fsid, &report, &files))?,
    }
    out.flush()?;
    if report.is_clean() { Ok(()) } else { Err(Failure::said()) }
}

/// Checks an open filesystem; the report, and whose it is.
fn judge(
    args: &Check,
    globals: &Globals,
    volume: &Volume,
    out: &mut dyn Write,
) -> Result<(Report, Option<Uuid>), Failure> {
    let fsid = Uuid::from_bytes(volume.superblock().fsid);
    if globals.talks() {
        writeln!(out, "UUID: {fsid}")?;
        out.flush()?;
    }
    let options = Options {
        check_data_csum: args.check_data_csum,
        threads: args.threads.unwrap_or(Options::default().threads).max(1),
        memory_bytes: usize::try_from(args.memory).unwrap_or(usize::MAX),
        issues_max: args.issues,
        ..Options::default()
    };
    let work = |progress: &Progress| buttress_check::check(volume, &options, progress);
    Ok((watched(args, globals, work), Some(fsid)))
}

/// Opens the filesystem; one that is too damaged for that has its report already.
fn open(args: &Check, globals: &Globals) -> Result<Result<Volume, Report>, Failure> {
    let path = &args.device;
    let opened = match args.force {
        true => FileDevice::open(path, Access::ReadOnly),
        false => device::patiently(path, globals, || {
            FileDevice::open_unused_part(path, part_at(path, globals.offset))
        }),
    };
    let failure = |error| {
        let failure = device::failure(path, &error);
        match error {
            DeviceError::Busy { .. } => failure.hint(FORCE),
            _ => failure,
        }
    };
    let device = opened.and_then(|it| device::window(Arc::new(it), globals)).map_err(failure)?;
    let opened = match args.superblock {
        None => Volume::open(vec![device], Access::ReadOnly),
        Some(copy) => Volume::open_copy(vec![device], usize::from(copy)),
    };
    match opened {
        Ok(opened) => Ok(Ok(opened.volume)),
        Err(error) => match Report::of_refusal(&error) {
            Some(report) => Ok(Err(report)),
            None => Err(device::volume_failure(path, &error)),
        },
    }
}

/// Does the work while a bar on standard error shows how far it is.
fn watched(args: &Check, globals: &Globals, work: impl FnOnce(&Progress) -> Report) -> Report {
    let progress = Progress::default();
    let wanted = args.progress || std::io::stderr().is_terminal();
    if !wanted || !globals.talks() {
        return work(&progress);
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(
        "{spinner} {msg}: {bytes} of {total_bytes} {wide_bar} {elapsed}",
    ) {
        bar.set_style(style);
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let show = || {
            while !over.load(Ordering::Acquire) {
                let (phase, done, total) = progress.now();
                bar.set_message(phase.name());
                bar.set_length(total.max(done));
                bar.set_position(done);
                std::thread::park_timeout(Duration::from_millis(100));
            }
            bar.finish_and_clear();
        };
        // Without a thread for it there is no bar.
        let shown = std::thread::Builder::new().spawn_scoped(scope, show);
        let report = work(&progress);
        over.store(true, Ordering::Release);
        if let Ok(shown) = shown {
            shown.thread().unpark();
        }
        report
    })
}

fn text(
    out: &mut dyn Write,
    report: &Report,
    files: &BadFiles,
    globals: &Globals,
) -> Result<(), Failure> {
    let shown = |issue: &Issue| !globals.quiet || issue.kind.severity() == Severity::Error;
    for (at, issue) in report.issues.iter().enumerate().filter(|(_, issue)| shown(issue)) {
        writeln!(out, "{issue}")?;
        for line in files.lines(at) {
            writeln!(out, "{line}")?;
        }
    }
    let told = report.issues.len() as u64;
    let all: u64 = report.counts.iter().map(|(_, count)| count).sum();
    if all > told {
        writeln!(out, "and {} more:", all - told)?;
        for (kind, count) in &report.counts {
            writeln!(out, "  {count} x {}: {}", kind.id(), kind.about())?;
        }
    }
    let totals = &report.totals;
    let verdict = match (report.count(Severity::Error), report.count(Severity::Warning)) {
        (0, 0) => "no error found".to_string(),
        (0, warnings) => format!("no error found, {warnings} warning(s)"),
        (errors, warnings) => format!("error(s) found: {errors}, and {warnings} warning(s)"),
    };
    if globals.quiet {
        return Ok(());
    }
    writeln!(out, "found {} bytes used, {verdict}", totals.used)?;
    for (name, bytes) in sizes(report) {
        writeln!(out, "{name}: {bytes}")?;
    }
    Ok(())
}

fn sizes(report: &Report) -> [(&'static str, u64); 7] {
    let totals = &report.totals;
    [
        ("total csum bytes", totals.csums),
        ("total tree bytes", totals.tree_blocks),
        ("total fs tree bytes", totals.fs_tree_blocks),
        ("total extent tree bytes", totals.extent_tree_blocks),
        ("btree space waste bytes", totals.waste),
        ("file data blocks allocated", totals.data_allocated),
        ("file data blocks referenced", totals.data_referenced),
    ]
}

fn json(path: &Path, fsid: Option<Uuid>, report: &Report, files: &BadFiles) -> Value {
    let kinds = report.counts.iter().map(|(kind, count)| {
        json!({ "id": kind.id(), "severity": kind.severity().name(), "count": count, "about": kind.about() })
    });
    let mut totals = Map::new();
    totals.insert("bytes-used".into(), report.totals.used.into());
    for (name, bytes) in sizes(report) {
        totals.insert(name.replace(' ', "-"), bytes.into());
    }
    json!({
        "device": output::text_json(path.as_os_str().as_bytes()),
        "uuid": fsid.map(|uuid| uuid.to_string()),
        "clean": report.is_clean(),
        "errors": report.count(Severity::Error),
        "warnings": report.count(Severity::Warning),
        "kinds": kinds.collect::<Vec<_>>(),
        "issues": report.issues.iter().enumerate().map(|(at, it)| issue(it, files.json(at))).collect::<Vec<_>>(),
        "totals": totals,
    })
}

/// An issue with what is known of its place.
fn issue(issue: &Issue, files: Option<(Value, usize, bool)>) -> Value {
    let mut map = Map::new();
    map.insert("id".into(), issue.kind.id().into());
    map.insert("severity".into(), issue.kind.severity().name().into());
    let Place { tree, block, slot, key, inode, path, logical, len, device, offset } = &issue.place;
    let numbers = [
        ("device", *device),
        ("offset", *offset),
        ("logical", *logical),
        ("length", *len),
        ("tree", *tree),
        ("block", *block),
        ("slot", slot.map(|slot| slot as u64)),
        ("inode", *inode),
    ];
    for (name, value) in numbers {
        if let Some(value) = value {
            map.insert(name.into(), value.into());
        }
    }
    if let Some(key) = key {
        map.insert("key".into(), json!([key.objectid, key.kind, key.offset]));
    }
    if let Some(path) = path {
        map.insert("path".into(), output::text_json(path));
    }
    if let Some((named, more, cut)) = files {
        map.insert("files".into(), named);
        map.insert("files-more".into(), more.into());
        map.insert("files-cut".into(), cut.into());
    }
    map.insert("have".into(), issue.have.clone().into());
    map.insert("expect".into(), issue.expect.clone().into());
    Value::Object(map)
}
