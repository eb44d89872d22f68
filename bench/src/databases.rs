//! Row 16: programs that wait for the disk, on a disk with real barriers: SQLite, PostgreSQL, and dpkg. Linux's btrfs and our mount each
//! have a loop device with direct I/O on a file of the same disk (`BENCH_DISK`, a directory; the usual place for temporary files
//! otherwise, which must not be in RAM). The sides alternate; medians. Beside it, of all fsyncs that our mount was sent, how many were
//! commits because the log could not say what was needed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::everyday::{has, sh};
use crate::linux;
use crate::mounts::{self, FuseMount};
use crate::{Row, Scale, Side, median};

/// Bytes of each filesystem.
const SIZE: u64 = 4 << 30;
/// Rows that SQLite inserts, each in a transaction of its own.
const ROWS: u64 = 2000;
/// Packages that dpkg unpacks, and files in each.
const PACKAGES: (u64, u64) = (20, 50);

/// One program.
struct Load {
    name: &'static str,
    needs: &'static str,
    /// Not timed.
    before: &'static str,
    script: &'static str,
    /// Transactions per second, as the program says, instead of the time.
    rate: bool,
}

/// PostgreSQL does not run as root.
const AS_POSTGRES: &str =
    "[ $(id -u) -ne 0 ] || U='setpriv --reuid=postgres --regid=postgres --clear-groups'; ";

const LOADS: [Load; 4] = [
    Load {
        name: "SQLite, rollback journal",
        needs: "sqlite3",
        before: "sqlite3 rollback.db 'create table t(id integer primary key, text)'",
        script: "sqlite3 rollback.db < \"$SQL\" > /dev/null",
        rate: false,
    },
    Load {
        name: "SQLite, write-ahead log",
        needs: "sqlite3",
        before: "sqlite3 wal.db 'pragma journal_mode=wal; create table t(id integer primary key, text)'",
        script: "(echo 'pragma synchronous=full;'; cat \"$SQL\") | sqlite3 wal.db > /dev/null",
        rate: false,
    },
    Load {
        name: "PostgreSQL, pgbench with 8 clients",
        needs: "pgbench",
        before: "mkdir pg run; [ $(id -u) -ne 0 ] || chown postgres pg run; chmod 700 pg; $U initdb -D pg > /dev/null; \
                 $U pg_ctl -s -w -D pg -l run/log -o \"-k $PWD/run -c listen_addresses=''\" start; \
                 $U pgbench -q -i -s 5 -h $PWD/run postgres > /dev/null 2>&1",
        script: "$U pgbench -c 8 -j 2 -T 10 -h $PWD/run postgres 2> /dev/null | sed -n 's/^tps = \\([0-9.]*\\).*/\\1/p' > \"$RATE\"; \
                 $U pg_ctl -s -w -m fast -D pg stop",
        rate: true,
    },
    Load {
        name: "dpkg, 20 packages",
        needs: "dpkg",
        before: "mkdir -p root/var/lib/dpkg/info root/var/lib/dpkg/updates; : > root/var/lib/dpkg/status",
        script: "dpkg --root=\"$PWD/root\" --force-not-root --unpack \"$DEBS\"/*.deb > /dev/null; \
                 dpkg --root=\"$PWD/root\" --force-not-root --unpack \"$DEBS\"/*.deb > /dev/null",
        rate: false,
    },
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Linux,
    Ours,
}

/// A loop device with direct I/O.
struct Loop {
    device: PathBuf,
    image: PathBuf,
}

impl Loop {
    fn new(image: PathBuf) -> Result<Loop, String> {
        linux::make(&image, SIZE)?;
        let arg = image.to_string_lossy();
        let said = linux::run("losetup", &["--find", "--show", "--direct-io=on", &arg])?;
        Ok(Loop { device: said.trim().into(), image })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(why) = linux::run("losetup", &["-d", &self.device.to_string_lossy()]) {
            eprintln!("bench: {why}");
        }
        let _gone_anyway = fs::remove_file(&self.image);
    }
}

/// A mount of one of the sides; unmounted before its device goes.
struct Place {
    dir: PathBuf,
    ours: Option<FuseMount>,
    _device: Loop,
}

impl Place {
    fn new(who: Who, disk: &Path) -> Result<Place, String> {
        let device = Loop::new(disk.join(format!("{who:?}.img")))?;
        let (ours, dir) = match who {
            Who::Ours => {
                let mount = mounts::serve_image(&device.device)?;
                let dir = mount.path().to_owned();
                open_to_all(&dir)?;
                (Some(mount), dir)
            }
            Who::Linux => {
                let dir = disk.join("mnt");
                fs::create_dir_all(&dir).map_err(|error| error.to_string())?;
                let args = [&device.device, &dir].map(|path| path.to_string_lossy().into_owned());
                linux::run("mount", &[&args[0], &args[1]])?;
                open_to_all(&dir)?;
                (None, dir)
            }
        };
        Ok(Place { dir, ours, _device: device })
    }

    /// What our process has counted.
    fn counted(&self) -> BTreeMap<String, u64> {
        let said = || {
            let program = mounts::sibling("buttress").ok()?;
            let args = ["filesystem", "stats", &self.dir.to_string_lossy()].map(str::to_owned);
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            linux::run(&program.to_string_lossy(), &args).ok()
        };
        let of = |line: &str| {
            let mut words = line.split_whitespace();
            Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
        };
        let said = if self.ours.is_some() { said() } else { None };
        said.unwrap_or_default().lines().filter_map(of).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.ours.is_none()
            && let Err(why) = linux::run("umount", &[&self.dir.to_string_lossy()])
        {
            eprintln!("bench: {why}");
        }
    }
}

/// Whoever runs a server finds the way to the mount.
fn open_to_all(mount: &Path) -> Result<(), String> {
    let above = mount.parent().ok_or("a mount at the root")?;
    let all = fs::Permissions::from_mode(0o755);
    fs::set_permissions(above, all).map_err(|error| error.to_string())
}

/// What the programs work on: statements and packages, the same each time.
struct Sources {
    dir: tempfile::TempDir,
}

impl Sources {
    fn make() -> Result<Sources, String> {
        let dir = linux::ram();
        let insert =
            |id| format!("insert into t values({id}, 'a row that takes some room: {id}');\n");
        let sql: String = (0..ROWS).map(insert).collect();
        let text = |error: std::io::Error| error.to_string();
        fs::write(dir.path().join("sql"), sql).map_err(text)?;
        let sources = Sources { dir };
        if has("dpkg-deb") {
            fs::create_dir(sources.path("debs")).map_err(text)?;
            (0..PACKAGES.0).try_for_each(|number| sources.package(number))?;
        }
        Ok(sources)
    }

    fn package(&self, number: u64) -> Result<(), String> {
        let tree = self.path(&format!("tree{number}"));
        let text = |error: std::io::Error| error.to_string();
        fs::create_dir_all(tree.join("DEBIAN")).map_err(text)?;
        let control = format!(
            "Package: bench{number}\nVersion: 1\nArchitecture: all\nMaintainer: Nobody <nobody@example.org>\nDescription: files\n"
        );
        fs::write(tree.join("DEBIAN/control"), control).map_err(text)?;
        let place = tree.join(format!("usr/share/bench{number}"));
        fs::create_dir_all(&place).map_err(text)?;
        for file in 0..PACKAGES.1 {
            let line = format!("line of file {file} of package {number}\n");
            fs::write(place.join(format!("file{file}")), line.repeat(1 << (file % 9)))
                .map_err(text)?;
        }
        let (tree, debs) = (tree.to_string_lossy(), self.path("debs"));
        let args = ["--root-owner-group", "-Znone", "-b", &tree, &debs.to_string_lossy()];
        linux::run("dpkg-deb", &args).map(drop)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// Seconds or rates of both sides, and what became of our fsyncs.
pub fn row(scale: Scale) -> Row {
    let mut row = Row::new(16, "programs that wait for a disk with real barriers".to_owned());
    if let Err(why) = fill(scale, &mut row) {
        row.note(why);
    }
    row
}

fn fill(scale: Scale, row: &mut Row) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("loop devices need root".to_owned());
    }
    let disk = std::env::var_os("BENCH_DISK").map_or_else(linux::scratch, PathBuf::from);
    let disk = tempfile::tempdir_in(disk).map_err(|error| error.to_string())?;
    let sources = Sources::make()?;
    let mut figures: BTreeMap<(usize, Who), Vec<f64>> = BTreeMap::new();
    let mut fsyncs: BTreeMap<usize, [u64; 3]> = BTreeMap::new();
    for _ in 0..scale.rounds.min(3) {
        for (who, side) in [(Who::Linux, Side::Linux), (Who::Ours, Side::Mounts)] {
            if !scale.wants(side) {
                continue;
            }
            let place = Place::new(who, disk.path())?;
            for (number, load) in LOADS.iter().enumerate().filter(|(_, load)| has(load.needs)) {
                let before = place.counted();
                match run(load, &place, &sources) {
                    Ok(figure) => figures.entry((number, who)).or_default().push(figure),
                    Err(why) => row.note(format!("{who:?}, {}: {why}", load.name)),
                }
                let sum = fsyncs.entry(number).or_default();
                let (all, logged, commits) = since(&before, &place.counted());
                *sum = [sum[0] + all, sum[1] + logged, sum[2] + commits];
            }
        }
    }
    tell(&figures, &fsyncs, row);
    Ok(())
}

/// fsyncs, those that a log made durable, and those that were commits.
fn since(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> (u64, u64, u64) {
    let more = |name: &String, count: &u64| count - before.get(name).unwrap_or(&0);
    let of = |prefix: &str| {
        let those = after.iter().filter(|(name, _)| name.starts_with(prefix));
        those.map(|(name, count)| more(name, count)).sum()
    };
    (of("fsyncs"), of("log_syncs"), of("log_refused_"))
}

fn run(load: &Load, place: &Place, sources: &Sources) -> Result<f64, String> {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let variables = [
        ("SQL", text(sources.path("sql"))),
        ("DEBS", text(sources.path("debs"))),
        ("RATE", text(sources.path("rate"))),
    ];
    sh(&place.dir, &format!("{AS_POSTGRES}{}", load.before), &variables)?;
    let start = Instant::now();
    sh(&place.dir, &format!("{AS_POSTGRES}{}", load.script), &variables)?;
    let took = start.elapsed().as_secs_f64();
    if !load.rate {
        return Ok(took);
    }
    let said = fs::read_to_string(sources.path("rate")).map_err(|error| error.to_string())?;
    said.trim().parse().map_err(|_| format!("no rate: {said}"))
}

fn tell(
    figures: &BTreeMap<(usize, Who), Vec<f64>>,
    fsyncs: &BTreeMap<usize, [u64; 3]>,
    row: &mut Row,
) {
    for (number, load) in LOADS.iter().enumerate() {
        let of = |who| figures.get(&(number, who)).cloned().map(median);
        let unit = if load.rate { "per second" } else { "s" };
        let [linux, ours] = [Who::Linux, Who::Ours].map(of);
        for (who, figure) in [("Linux", linux), ("ours", ours)] {
            if let Some(figure) = figure {
                row.add(&format!("{}: {who}", load.name), figure, unit);
            }
        }
        if let (Some(linux), Some(ours)) = (linux, ours) {
            let times = if load.rate { linux / ours } else { ours / linux };
            row.add(&format!("{}: time, ours to Linux", load.name), times, "x");
        }
        if let Some([all, logged, commits]) = fsyncs.get(&number)
            && ours.is_some()
        {
            row.add(&format!("{}: fsyncs", load.name), *all as f64, "");
            row.add(&format!("{}: by a log", load.name), *logged as f64, "");
            row.add(&format!("{}: by a commit", load.name), *commits as f64, "");
        }
    }
}
