//! Row 13: everyday work on files through a mount, as programs do it: Linux's btrfs, ours, and the null filesystem, which shows what
//! FUSE itself costs for the same requests. The sides alternate; wall time and the machine's CPU time (servers and kernel threads
//! included, so nothing else may run), medians, and the geometric mean of the ratios of each kind of work.
//!
//! As root with tracefs mounted, one more round counts the requests that the kernel sends to our mount and to the null filesystem
//! (`BENCH_REQUESTS=1`): they should be the same.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::linux::{self, Mount};
use crate::mounts::{self, FuseMount, Served};
use crate::{Row, Scale, Side, median, seconds};

/// What kind of work a step is: each has a target of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Files and directories.
    Files,
    /// Bytes of files.
    Data,
    /// Waiting for the disk.
    Sync,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Files, Kind::Data, Kind::Sync];

    fn name(self) -> &'static str {
        match self {
            Kind::Files => "files and directories",
            Kind::Data => "data",
            Kind::Sync => "fsync",
        }
    }
}

/// One piece of work: a shell script, run in the top directory of the mount. `$TREE` is a tar file, `$REPO` a git repository,
/// `$SYNC` makes what was written durable.
struct Step {
    name: &'static str,
    kind: Kind,
    script: &'static str,
    /// Mounted anew before, so that nothing is cached.
    cold: bool,
    /// Done once before, which does not count: `git` reads all files again that were made in the same second as its index, once.
    again: bool,
    /// The program that it needs, besides the usual ones.
    needs: Option<&'static str>,
}

const fn step(name: &'static str, kind: Kind, script: &'static str) -> Step {
    Step { name, kind, script, cold: false, again: false, needs: None }
}

const fn cold(name: &'static str, kind: Kind, script: &'static str) -> Step {
    Step { cold: true, ..step(name, kind, script) }
}

const fn again(step: Step) -> Step {
    Step { again: true, ..step }
}

const fn with(needs: &'static str, step: Step) -> Step {
    Step { needs: Some(needs), ..step }
}

macro_rules! fio {
    ($what:literal, $direct:literal, $depth:literal) => {
        concat!(
            "fio --name=it --filename=big --rw=",
            $what,
            " --bs=4k --direct=",
            $direct,
            " --iodepth=",
            $depth,
            " --ioengine=libaio --size=128m --io_size=24m --randseed=7 --output=/dev/null"
        )
    };
}

/// In this order, as later ones use what earlier ones made.
const STEPS: &[Step] = &[
    step("tar -x", Kind::Files, "mkdir one && tar -xf \"$TREE\" -C one"),
    step("tar -x, synced", Kind::Files, "mkdir two && tar -xf \"$TREE\" -C two && eval \"$SYNC\""),
    step("cp -r", Kind::Files, "cp -r one three"),
    step("find", Kind::Files, "find one > /dev/null"),
    step("ls -lR", Kind::Files, "ls -lR one > /dev/null"),
    step("grep -r", Kind::Files, "grep -r nowhere-to-be-found one || true"),
    cold("ls -lR, cold", Kind::Files, "ls -lR one > /dev/null"),
    cold("grep -r, cold", Kind::Files, "grep -r nowhere-to-be-found one || true"),
    with("git", step("git clone", Kind::Files, "git clone -q \"$REPO\" repo")),
    with("git", again(step("git status", Kind::Files, "git -C repo status > /dev/null"))),
    with(
        "git",
        step(
            "git checkout",
            Kind::Files,
            "git -C repo checkout -q other && git -C repo checkout -q -",
        ),
    ),
    step("create 10,000", Kind::Files, "mkdir many && cd many && seq 10000 | xargs touch"),
    step("unlink 10,000", Kind::Files, "cd many && seq 10000 | xargs rm"),
    step("rm -rf", Kind::Files, "rm -rf one two three"),
    step("200 x create, write, fsync", Kind::Sync, "mkdir mail && \"$BENCH\" fsyncs mail"),
    with("sqlite3", step("SQLite, rollback journal", Kind::Sync, "sqlite3 rollback.db < \"$SQL\"")),
    with(
        "sqlite3",
        step(
            "SQLite, WAL",
            Kind::Sync,
            "(echo 'pragma journal_mode=wal;'; cat \"$SQL\") | sqlite3 wal.db > /dev/null",
        ),
    ),
    step(
        "write 256 MiB",
        Kind::Data,
        "dd if=/dev/zero of=big bs=1M count=256 conv=fsync status=none",
    ),
    cold("read 256 MiB, cold", Kind::Data, "cat big > /dev/null"),
    step(
        "read 256 MiB, warm, 8 times",
        Kind::Data,
        "cat big big big big big big big big > /dev/null",
    ),
    with("fio", step("4K random writes", Kind::Data, fio!("randwrite", "0", "1"))),
    with("fio", step("4K random writes, direct", Kind::Data, fio!("randwrite", "1", "1"))),
    with("fio", step("4K random writes, direct, 16", Kind::Data, fio!("randwrite", "1", "16"))),
    with("fio", cold("4K random reads", Kind::Data, fio!("randread", "0", "1"))),
    with("fio", step("4K random reads, direct", Kind::Data, fio!("randread", "1", "1"))),
    with("fio", step("4K random reads, direct, 16", Kind::Data, fio!("randread", "1", "16"))),
];

/// Files of the tree, and their directories.
const FILES: u64 = 4_500;
const DIRECTORIES: u64 = 824;
/// Bytes of each filesystem.
const SIZE: u64 = 4 << 30;

/// Who does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Linux,
    Ours,
    Null,
}

/// A mount of one of them.
enum Place {
    Kernel(Mount),
    Fuse(FuseMount, PathBuf),
}

impl Place {
    fn new(who: Who, dir: &Path) -> Result<Place, String> {
        match who {
            Who::Linux => Mount::fresh(SIZE).map(Place::Kernel),
            Who::Null => Ok(Place::Fuse(mounts::serve(Served::Null, SIZE)?, PathBuf::new())),
            Who::Ours => {
                let image = dir.join("image");
                let _there_before_the_first_round = fs::remove_file(&image);
                crate::create::fresh(&image, SIZE);
                Ok(Place::Fuse(mounts::serve_image(&image)?, image))
            }
        }
    }

    fn path(&self) -> PathBuf {
        match self {
            Place::Kernel(mount) => mount.path(),
            Place::Fuse(mount, _) => mount.path().to_owned(),
        }
    }

    /// The same with nothing cached: for the null filesystem, by the kernel.
    fn again(self) -> Result<Place, String> {
        match self {
            Place::Kernel(mount) => mount.again().map(|()| Place::Kernel(mount)),
            Place::Fuse(mount, image) if image.as_os_str().is_empty() => {
                mount.again().map(|()| Place::Fuse(mount, image))
            }
            Place::Fuse(mount, image) => {
                drop(mount);
                Ok(Place::Fuse(mounts::serve_image(&image)?, image))
            }
        }
    }

    /// The same, as a step is to find it.
    fn for_step(self, step: &Step, sources: &Sources) -> Result<Place, String> {
        let place = if step.cold { self.again()? } else { self };
        if step.again {
            run(step, &place, sources)?;
        }
        Ok(place)
    }

    fn sync(&self) -> Result<String, String> {
        let path = self.path();
        Ok(match self {
            Place::Kernel(_) => format!("btrfs filesystem sync '{}' > /dev/null", path.display()),
            Place::Fuse(_, image) if image.as_os_str().is_empty() => "true".to_owned(),
            Place::Fuse(..) => format!(
                "'{}' filesystem sync '{}'",
                mounts::sibling("buttress")?.display(),
                path.display()
            ),
        })
    }
}

/// What the steps start from.
struct Sources {
    dir: tempfile::TempDir,
}

impl Sources {
    /// The same bytes each time.
    fn make() -> Result<Sources, String> {
        let dir = linux::ram();
        let tree = dir.path().join("tree");
        let text = |error: std::io::Error| error.to_string();
        let mut at = 1_u64;
        for number in 0..FILES {
            let place = number * DIRECTORIES / FILES;
            let place = tree.join(format!("part{}/dir{}/deep{}", place % 13, place % 103, place));
            fs::create_dir_all(&place).map_err(text)?;
            at = at.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Sizes like those of a source tree: a median of some 4 KiB.
            let len = 200 << ((at >> 33) % 8);
            let line = format!("line of file {number}, which has {len} bytes\n");
            fs::write(place.join(format!("file{number}.c")), line.repeat(len / line.len() + 1))
                .map_err(text)?;
        }
        let here = dir.path().to_string_lossy().into_owned();
        linux::run(
            "tar",
            &["-cf", &format!("{here}/tree.tar"), "-C", &format!("{here}/tree"), "."],
        )?;
        let mut sql = "create table t(id integer primary key, text);\n".to_owned();
        for id in 0..200 {
            let _infallible =
                writeln!(sql, "insert into t values({id}, 'a row that takes some room: {id}');");
        }
        fs::write(dir.path().join("sql"), sql).map_err(text)?;
        if has("git") {
            // Else git packs what was committed, in the background: beside what is measured.
            let git = "git init -q && git config gc.auto 0 && git config user.name b && git config user.email b@b && git add . && git commit -qm one && git checkout -q -b other \
                       && find . -name '*7.c' -exec sh -c 'echo more >> $1' . {} \\; && git commit -qam two && git checkout -q -";
            sh(&tree, git, &[])?;
        }
        Ok(Sources { dir })
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_string_lossy().into_owned()
    }
}

/// Whether a program is there.
pub fn has(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Runs a script in `dir`; the first line of its complaint if it fails.
pub fn sh(dir: &Path, script: &str, variables: &[(&str, String)]) -> Result<(), String> {
    let mut command = Command::new("sh");
    command
        .args(["-ec", script])
        .current_dir(dir)
        .envs(variables.iter().map(|(name, value)| (name, value)));
    let out = command.output().map_err(|error| error.to_string())?;
    match out.status.success() {
        true => Ok(()),
        false => {
            Err(String::from_utf8_lossy(&out.stderr).lines().next().unwrap_or_default().to_owned())
        }
    }
}

/// Seconds for which the machine's processors have worked so far.
fn worked() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<f64> = ticks.filter_map(|word| word.parse().ok()).collect();
    // user nice system idle iowait irq softirq
    ticks
        .iter()
        .take(7)
        .enumerate()
        .filter(|(at, _)| !matches!(at, 3 | 4))
        .map(|(_, ticks)| ticks / 100.0)
        .sum()
}

/// Wall and CPU seconds of each step, by who did it.
type Times = BTreeMap<(usize, Who), Vec<(f64, f64)>>;

/// Seconds of both sides and of the null filesystem, and ratios.
pub fn row(scale: Scale) -> Row {
    let mut row = Row::new(
        13,
        "everyday work through a mount (seconds: wall, CPU of the machine)".to_owned(),
    );
    let sources = match Sources::make() {
        Ok(sources) => sources,
        Err(why) => {
            row.note(why);
            return row;
        }
    };
    let mut times = Times::new();
    for _ in 0..scale.rounds {
        for (who, side) in
            [(Who::Linux, Side::Linux), (Who::Ours, Side::Mounts), (Who::Null, Side::Mounts)]
        {
            if scale.wants(side)
                && let Err(why) = round(who, &sources, &mut times, &mut row)
            {
                row.note(format!("{who:?}: {why}"));
            }
        }
    }
    tell(&times, &mut row);
    if std::env::var_os("BENCH_REQUESTS").is_some()
        && let Err(why) = requests(&sources)
    {
        row.note(why);
    }
    row
}

fn round(who: Who, sources: &Sources, times: &mut Times, row: &mut Row) -> Result<(), String> {
    let mut place = Place::new(who, sources.dir.path())?;
    for (number, step) in STEPS.iter().enumerate() {
        if let Some(program) = step.needs.filter(|program| !has(program)) {
            row.note(format!("{program} is missing"));
            continue;
        }
        place = place.for_step(step, sources)?;
        let before = worked();
        let mut done = Ok(());
        let wall = seconds(|| done = run(step, &place, sources));
        match done {
            Ok(()) => times.entry((number, who)).or_default().push((wall, worked() - before)),
            Err(why) => row.note(format!("{who:?}, {}: {why}", step.name)),
        }
    }
    Ok(())
}

fn run(step: &Step, place: &Place, sources: &Sources) -> Result<(), String> {
    let bench = std::env::current_exe().map_err(|error| error.to_string())?;
    let variables = [
        ("TREE", sources.path("tree.tar")),
        ("REPO", sources.path("tree")),
        ("SQL", sources.path("sql")),
        ("SYNC", place.sync()?),
        ("BENCH", bench.to_string_lossy().into_owned()),
    ];
    sh(&place.path(), step.script, &variables)
}

fn tell(times: &Times, row: &mut Row) {
    let middle = |number, who, which: fn(&(f64, f64)) -> f64| {
        times.get(&(number, who)).map(|all| median(all.iter().map(which).collect()))
    };
    let mut ratios: BTreeMap<Kind, Vec<f64>> = BTreeMap::new();
    for (number, step) in STEPS.iter().enumerate() {
        let [linux, ours, null] =
            [Who::Linux, Who::Ours, Who::Null].map(|who| middle(number, who, |time| time.0));
        let [their_cpu, our_cpu] =
            [Who::Linux, Who::Ours].map(|who| middle(number, who, |time| time.1));
        let parts = [
            ("Linux", linux),
            ("ours", ours),
            ("null", null),
            ("Linux, CPU", their_cpu),
            ("ours, CPU", our_cpu),
        ];
        for (name, seconds) in parts {
            if let Some(seconds) = seconds {
                row.add(&format!("{}: {name}", step.name), seconds, "s");
            }
        }
        if let (Some(linux), Some(ours)) = (linux, ours) {
            row.add(&format!("{}: ours to Linux", step.name), ours / linux, "x");
            ratios.entry(step.kind).or_default().push(ours / linux);
        }
        if let (Some(null), Some(ours)) = (null, ours) {
            row.add(&format!("{}: ours to null", step.name), ours / null, "x");
        }
    }
    for kind in Kind::ALL {
        if let Some(ratios) = ratios.get(&kind) {
            let mean = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64;
            row.add(&format!("{}: geometric mean", kind.name()), mean.exp(), "x Linux");
        }
    }
}

/// A child of a step: creates 200 files, writes each and makes it durable.
pub fn fsyncs(dir: &Path) -> std::io::Result<()> {
    for number in 0..200 {
        let mut file = File::create(dir.join(format!("mail{number}")))?;
        std::io::Write::write_all(&mut file, &[b'm'; 3000])?;
        file.sync_all()?;
    }
    Ok(())
}

const TRACER: &str = "/sys/kernel/tracing";

/// A trace buffer of its own, for the requests of one connection: others may mount, and trace, meanwhile.
struct Tracer {
    instance: PathBuf,
}

impl Tracer {
    fn new() -> Result<Tracer, String> {
        let instance =
            Path::new(TRACER).join(format!("instances/buttress-bench-{}", std::process::id()));
        fs::create_dir(&instance)
            .map_err(|_| format!("requests are counted as root, with tracefs on {TRACER}"))?;
        let tracer = Tracer { instance };
        tracer.set("buffer_size_kb", "65536")?;
        Ok(tracer)
    }

    fn set(&self, file: &str, text: &str) -> Result<(), String> {
        let path = self.instance.join(file);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// What the kernel asks the mount at `path` for while `work` runs.
    fn during(
        &self,
        path: &Path,
        work: impl FnOnce() -> Result<(), String>,
    ) -> Result<String, String> {
        const EVENT: &str = "events/fuse/fuse_request_send";
        let device = fs::metadata(path).map_err(|error| error.to_string())?.dev();
        let connection =
            u64::from(rustix::fs::major(device)) << 20 | u64::from(rustix::fs::minor(device));
        self.set(&format!("{EVENT}/filter"), &format!("connection == {connection}"))?;
        self.set("trace", "")?;
        self.set(&format!("{EVENT}/enable"), "1")?;
        let done = work();
        self.set(&format!("{EVENT}/enable"), "0")?;
        done?;
        fs::read_to_string(self.instance.join("trace")).map_err(|error| error.to_string())
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _goes_with_the_next_boot = fs::remove_dir(&self.instance);
    }
}

/// Prints what the kernel asks mounts for in each step.
fn requests(sources: &Sources) -> Result<(), String> {
    let tracer = Tracer::new()?;
    for who in [Who::Ours, Who::Null] {
        let mut place = Place::new(who, sources.dir.path())?;
        for step in STEPS.iter().filter(|step| step.needs.is_none_or(has)) {
            place = place.for_step(step, sources)?;
            let traced = tracer.during(&place.path(), || run(step, &place, sources))?;
            println!("requests, {who:?}, {}: {}", step.name, summary(&traced));
        }
    }
    Ok(())
}

/// How often each kind of request is in a trace, most frequent first.
fn summary(trace: &str) -> String {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for line in trace.lines() {
        let named = line.split_once(" opcode ").and_then(|(_, rest)| rest.split_once(" ("));
        let Some((number, rest)) = named else { continue };
        let name = match (number, rest.split_once(')')) {
            // Later than the tracepoint's list.
            ("53", _) => "COPY_FILE_RANGE_64",
            (_, Some((name, _))) => name.strip_prefix("FUSE_").unwrap_or(name),
            (_, None) => continue,
        };
        *counts.entry(name).or_default() += 1;
    }
    let total: u64 = counts.values().sum();
    let mut counts: Vec<(&str, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let parts: Vec<String> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
    format!("{total}: {}", parts.join(", "))
}
