//! Rows 19 and 20: data move. All of a filesystem is balanced, beside reading it all and writing it all once; and a filesystem that is nowhere
//! full becomes half as large.

use std::path::Path;

use buttress::{Balance, BalanceFilter, Filesystem, New, Node, Options};

use crate::linux::{self, Mount};
use crate::{Row, Scale, Side, create, median, seconds, stream};

/// MiB of the data that is balanced, and beside it on the device.
const DATA: u64 = 4096;
const BESIDE: u64 = 2048;
/// MiB of the filesystem that is made smaller; no smaller one can be made half as large.
const DEVICE: u64 = 4096;
const DEVICE_MIN: u64 = 1024;
/// Percent of it that files of a MiB take, of which every second one goes: so what is left is all over the device, and has room in half of it. There is one
/// copy of metadata, as two would take most of that half on a small device.
const FILLED: u64 = 60;

fn text(error: impl ToString) -> String {
    error.to_string()
}

/// What one side needs, in seconds: to read and write once, and to balance.
type Sides = [Vec<(f64, f64)>; 2];

/// Row 19.
pub fn row(scale: Scale) -> Row {
    let pieces = scale.of(DATA);
    let mut row = Row::new(19, format!("balance -d of {pieces} MiB"));
    let mut sides = Sides::default();
    for _ in 0..scale.rounds {
        if scale.wants(Side::Here) {
            balance_here(pieces).map_or_else(|why| row.note(why), |it| sides[0].push(it));
        }
        if scale.wants(Side::Linux) {
            balance_there(pieces).map_or_else(|why| row.note(why), |it| sides[1].push(it));
        }
    }
    let mut rates = Vec::new();
    for (name, times) in ["here", "Linux"].iter().zip(sides).filter(|it| !it.1.is_empty()) {
        let (once, balance): (Vec<f64>, Vec<f64>) = times.into_iter().unzip();
        let (once, balance) = (pieces as f64 / median(once), pieces as f64 / median(balance));
        row.add(&format!("{name}, read cold and written once"), once, "MiB/s");
        row.add(&format!("{name}, balanced"), balance, "MiB/s");
        row.ratio(&format!("{name}, balanced to read and written once"), vec![balance, once]);
        rates.push(balance);
    }
    row.ratio("ratio", rates);
    row
}

fn once(pieces: u64, (write, read): (f64, f64)) -> f64 {
    pieces as f64 / write + pieces as f64 / read
}

fn balance_here(pieces: u64) -> Result<(f64, f64), String> {
    let dir = linux::ram();
    let image = dir.path().join("image");
    create::fresh(&image, (pieces + BESIDE) << 20);
    let once = once(pieces, stream::here_on(&image, pieces));
    let fs = Filesystem::open(&image, Options::read_write()).map_err(text)?;
    let balance = Balance { data: Some(BalanceFilter::default()), ..Balance::default() };
    let mut done = Ok(());
    let took = seconds(|| {
        done = fs
            .balance(&balance, |_| std::ops::ControlFlow::Continue(()))
            .and_then(|_| fs.commit())
            .map(drop);
    });
    done.and_then(|()| fs.close()).map_err(text)?;
    Ok((once, took))
}

fn balance_there(pieces: u64) -> Result<(f64, f64), String> {
    let mount = Mount::fresh((pieces + BESIDE) << 20)?;
    let once = once(pieces, stream::there_on(&mount, pieces)?);
    mount.again()?;
    let path = mount.path();
    let mut done = Ok(String::new());
    let took = seconds(|| {
        done = linux::run("btrfs", &["balance", "start", "-d", &path.to_string_lossy()]);
    });
    done.and_then(|_| mount.sync())?;
    Ok((once, took))
}

/// Row 20.
pub fn row_of_shrinking(scale: Scale) -> Row {
    let device = scale.of(DEVICE).max(DEVICE_MIN);
    let mut row = Row::new(
        20,
        format!("{device} MiB, {FILLED} % full with every second file deleted, made half as large"),
    );
    let mut sides = [Vec::new(), Vec::new()];
    for _ in 0..scale.rounds {
        if scale.wants(Side::Linux) {
            shrink_there(device).map_or_else(|why| row.note(why), |it| sides[0].push(it));
        }
        if scale.wants(Side::Here) {
            shrink_here(device).map_or_else(|why| row.note(why), |it| sides[1].push(it));
        }
    }
    let mut medians = Vec::new();
    for (name, times) in ["Linux", "here"].iter().zip(sides).filter(|it| !it.1.is_empty()) {
        medians.push(median(times));
        row.add(name, medians[medians.len() - 1], "s");
    }
    row.ratio("ratio", medians);
    row
}

fn files_of(device: u64) -> u64 {
    device * FILLED / 100
}

fn name_of(number: u64) -> String {
    format!("file{number:05}")
}

fn shrink_here(device: u64) -> Result<f64, String> {
    let dir = linux::ram();
    let image = dir.path().join("image");
    let metadata_profile = Some(buttress_mkfs::Profile::Single);
    let options = buttress_mkfs::Options { metadata_profile, ..Default::default() };
    create::fresh_as(&image, device << 20, &options);
    fill_here(&image, device).map_err(text)?;
    let fs = Filesystem::open(&image, Options::read_write()).map_err(text)?;
    let mut done = Ok(());
    let took = seconds(|| done = fs.resize((device << 20) / 2, |_| true));
    done.and_then(|()| fs.close()).map_err(text)?;
    Ok(took)
}

fn fill_here(image: &Path, device: u64) -> buttress::Result<()> {
    let fs = Filesystem::open(image, Options::read_write())?;
    for number in 0..files_of(device) {
        let file = fs.create(Node::ROOT, name_of(number).as_bytes(), &New::file(0o600))?.node;
        fs.write(file, 0, &stream::piece(number))?;
    }
    fs.commit()?;
    for number in (0..files_of(device)).step_by(2) {
        fs.unlink(Node::ROOT, name_of(number).as_bytes())?;
    }
    fs.close()
}

fn shrink_there(device: u64) -> Result<f64, String> {
    let mount = Mount::fresh_as(device << 20, &["-m", "single"])?;
    let path = |number| mount.path().join(name_of(number));
    for number in 0..files_of(device) {
        std::fs::write(path(number), stream::piece(number)).map_err(text)?;
    }
    mount.sync()?;
    for number in (0..files_of(device)).step_by(2) {
        std::fs::remove_file(path(number)).map_err(text)?;
    }
    mount.again()?;
    let (half, at) = (((device << 20) / 2).to_string(), mount.path());
    let mut done = Ok(String::new());
    let took = seconds(|| {
        done = linux::run("btrfs", &["filesystem", "resize", &half, &at.to_string_lossy()]);
    });
    done.map(|_| took)
}
