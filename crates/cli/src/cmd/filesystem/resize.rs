//! `filesystem resize`.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use buttress::Emptying;
use buttress_device::Access;
use buttress_fuse::mount::control::ResizeFacts;
use clap::Args;
use rustix::io::Errno;
use serde_json::json;

use crate::args::Globals;
use crate::cmd::copy::Progress;
use crate::cmd::files::session;
use crate::error::Failure;
use crate::interrupted;
use crate::output::{self, Format};
use crate::vfs::Vfs;
use crate::vnode::{FileError, Target};

/// Arguments of `filesystem resize`.
#[derive(Debug, Args)]
pub struct Resize {
    /// The new size: SIZE, +SIZE, -SIZE (suffixes k, m, g, t), `max` for all of the device, `min` for what `inspect-internal min-dev-size` prints; 1: may be in front
    #[arg(value_name = "[DEVID:]SIZE", allow_hyphen_values = true)]
    size: String,
    /// A path on a live mount, or DEVICE: an unmounted image or disk
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// Make the image file larger or smaller, too, so that it ends where the filesystem does
    #[arg(long)]
    file: bool,
    /// Take over, or cut off, what lies behind the filesystem in its file
    #[arg(short, long)]
    force: bool,
    /// Wait until others have done with the image, which is always done
    #[arg(long = "enqueue", hide = true)]
    _enqueue: bool,
}

const CANNOT: &str = "cannot resize";

/// How large it is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Max,
    Min,
    To(u64),
    More(u64),
    Less(u64),
}

/// Understands a size; the number of the device may be in front.
fn parse(text: &str) -> Option<(Option<u64>, Wish)> {
    let (devid, size) = match text.split_once(':') {
        Some((devid, size)) => (Some(devid.parse().ok()?), size),
        None => (None, text),
    };
    let bytes = |text: &str| buttress_mkfs::parse_size(text).ok();
    let wish = match size {
        "max" => Wish::Max,
        "min" => Wish::Min,
        _ => match (size.strip_prefix('+'), size.strip_prefix('-')) {
            (Some(more), _) => Wish::More(bytes(more)?),
            (_, Some(less)) => Wish::Less(bytes(less)?),
            _ => Wish::To(bytes(size)?),
        },
    };
    Some((devid, wish))
}

/// Makes it larger or smaller.
pub fn run(args: &Resize, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let (devid, wish) = parse(&args.size).ok_or_else(|| {
        let failure = Failure::usage(CANNOT, format!("{} is not a size", args.size));
        failure.hint("Like 8G, +1G, -500M, max or min; 1: may be in front.")
    })?;
    let path = Path::new(&args.target);
    let file = file_len(path).filter(|_| !buttress_fuse::client::is_live(path));
    if args.file && (globals.offset != 0 || file.is_none()) {
        let why = "--file is for image files that are not mounted, and a filesystem at their start";
        return Err(Failure::usage(CANNOT, why).hint(
            "Of a mounted one, make the file longer with truncate(1) before, or shorter after it.",
        ));
    }
    let now = size(args, globals)?;
    let wanted = match wish {
        Wish::To(size) => size,
        Wish::More(more) => now.saturating_add(more),
        Wish::Less(less) => now.saturating_sub(less),
        Wish::Max => file.unwrap_or(now),
        Wish::Min => now,
    };
    if let Some(len) = file.filter(|_| globals.offset == 0) {
        if !args.force {
            leaves_others_alone(path, (now, wanted), len, args.file)?;
        }
        // A file that is to become longer does so first: nobody misses zeros behind a filesystem.
        if args.file && len < wanted {
            set_file_len(path, wanted)?;
        }
    }
    let resized = resize(args, devid, wish, globals);
    if let Some(len) = file.filter(|_| globals.offset == 0) {
        let size = resized.as_ref().ok().map(|(_, to)| *to);
        match (args.file, size) {
            (true, size) => set_file_len(path, size.unwrap_or(len))?,
            (false, Some(to)) if to < now => let_go(path, to..now.min(len)),
            _ => {}
        }
    }
    let (from, to) = resized?;
    match globals.format {
        Format::Json => {
            output::write_json(out, "resize", json!({ "before": from, "size": to }))?;
        }
        Format::Text if globals.quiet => {}
        Format::Text => writeln!(out, "Resized from {from} to {to} bytes")?,
    }
    Ok(())
}

/// The size that it has.
fn size(args: &Resize, globals: &Globals) -> Result<u64, Failure> {
    let target = Target::any(&args.target, globals);
    session(globals, Access::ReadOnly, |session| {
        let vfs = Vfs::of(&session.find(&target, true)?)?;
        let sizes = vfs.device_size();
        Ok(sizes.map_err(|why| Failure::new(CANNOT, vfs.name(), why))?.size)
    })
}

/// Refuses where something lies behind the filesystem in its file that would be taken over, or cut off with the file.
fn leaves_others_alone(
    path: &Path,
    (now, wanted): (u64, u64),
    len: u64,
    with_file: bool,
) -> Result<(), Failure> {
    if len < now {
        let why = format!("its file has {len} bytes, and the filesystem {now}");
        let failure = Failure::new(CANNOT, path.display(), why);
        return Err(
            failure.hint("Something has cut off its end; `buttress check` tells what is missing.")
        );
    }
    let end = match with_file {
        true => len,
        false => wanted.min(len),
    };
    let failed = |error| Failure::new("cannot read", path.display(), error);
    if now < end && holds_something(path, now..end).map_err(failed)? {
        let why = format!("something lies behind it in the file, from byte {now} on");
        return Err(Failure::new(CANNOT, path.display(), why).hint(
            "Another filesystem, perhaps (--offset looks at it), or what others have left. -f takes the place all the same.",
        ));
    }
    Ok(())
}

/// Whether there is anything but zeros in a range of a file.
fn holds_something(path: &Path, range: std::ops::Range<u64>) -> std::io::Result<bool> {
    const PIECE: u64 = 1 << 20;
    let file = std::fs::File::open(path)?;
    let (mut at, mut buffer) = (range.start, vec![0; PIECE as usize]);
    while at < range.end {
        // Where the filesystem cannot tell holes from data all of it is data.
        match rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
            Err(Errno::NXIO) => return Ok(false),
            found => at = found.unwrap_or(at).max(at),
        }
        let piece = PIECE.min(range.end.saturating_sub(at)) as usize;
        let got = file.read_at(&mut buffer[..piece], at)?;
        if buffer[..got].iter().any(|byte| *byte != 0) {
            return Ok(true);
        }
        if got == 0 {
            return Ok(false);
        }
        at += got as u64;
    }
    Ok(false)
}

/// What the filesystem has left of its file takes no room any more, and reads as zeros, where that can be done.
fn let_go(path: &Path, range: std::ops::Range<u64>) {
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    if let Ok(file) = std::fs::File::options().write(true).open(path)
        && range.start < range.end
    {
        let _it_stays = rustix::fs::fallocate(&file, flags, range.start, range.end - range.start);
    }
}

/// Resizes; the size before and after.
fn resize(
    args: &Resize,
    devid: Option<u64>,
    wish: Wish,
    globals: &Globals,
) -> Result<(u64, u64), Failure> {
    let target = Target::any(&args.target, globals);
    session(globals, Access::ReadWrite, |session| {
        let vfs = Vfs::of(&session.find(&target, true)?)?;
        let devices = vfs.info()?.devices;
        if let Some(devid) = devid.filter(|devid| devices.iter().all(|it| it.id != *devid)) {
            return Err(Failure::new(CANNOT, vfs.name(), format!("there is no device {devid}")));
        }
        let sizes = || vfs.device_size().map_err(|why| Failure::new(CANNOT, vfs.name(), why));
        let ResizeFacts { size: now, most, least, .. } = sizes()?;
        let size = match wish {
            Wish::Max => most,
            Wish::Min => least,
            Wish::To(size) => size,
            Wish::More(more) => now.saturating_add(more),
            Wish::Less(less) => now.saturating_sub(less),
        };
        interrupted::hold();
        let progress = Progress::of_parts(globals);
        let done = vfs.resize(size, &mut |at| {
            show(&progress, at);
            interrupted::signal().is_none()
        });
        progress.finish();
        interrupted::let_go();
        done.map_err(|why| refused(&vfs, why, (least, globals.offset)))?;
        Ok((now, sizes()?.size))
    })
}

fn show(progress: &Progress, at: Emptying) {
    progress.at("moving", at.had.saturating_sub(at.has), at.had.max(1));
}

fn refused(vfs: &Vfs, why: FileError, (least, offset): (u64, u64)) -> Failure {
    let errno = Errno::from_raw_os_error(why.errno);
    // The disk that holds the image says so in other words than the filesystem.
    let is_ours = why.to_string() == FileError::from(Errno::NOSPC).to_string();
    let failure = Failure::new(CANNOT, vfs.name(), why);
    match errno {
        Errno::NOSPC if !is_ours && matches!(vfs, Vfs::Image(_)) => failure,
        Errno::NOSPC => failure.hint(format!(
            "What it holds has no room there; {least} bytes have. `buttress balance start -dusage=50` first may need fewer."
        )),
        Errno::INVAL => failure.hint("256 MiB are the least."),
        Errno::INPROGRESS => failure.hint("A balance runs or is paused, or another resize runs: `buttress balance status` tells; a paused one ends with `balance resume` or `balance cancel`."),
        Errno::INTR => Failure::new(CANNOT, vfs.name(), "it was interrupted")
            .hint("It is as large as before; what was moved stays so."),
        Errno::FBIG if offset != 0 => failure.hint(
            "With --offset a filesystem keeps to the part of the file that it has. On a loop device (losetup -o) it can become larger.",
        ),
        Errno::FBIG if matches!(vfs, Vfs::Live(_)) => failure.hint(
            "The device ends before that. An image file becomes larger with truncate(1), also beside its mount.",
        ),
        Errno::FBIG => failure.hint("The device ends before that. An image file becomes larger with --file."),
        Errno::IO => failure.hint(
            "Something behind the new end cannot be read; `buttress check --check-data-csum` tells what.",
        ),
        _ => failure,
    }
}

/// Bytes of a regular file.
fn file_len(path: &Path) -> Option<u64> {
    path.metadata().ok().filter(|it| it.is_file()).map(|it| it.len())
}

fn set_file_len(path: &Path, len: u64) -> Result<(), Failure> {
    // What the standard library says of a length that no file can have is about its own types.
    let len = i64::try_from(len).map_err(|_| std::io::Error::from(Errno::FBIG));
    let done = len.and_then(|len| {
        let file = std::fs::File::options().write(true).open(path)?;
        file.set_len(len.unsigned_abs())?;
        file.sync_all()
    });
    done.map_err(|error| Failure::new("cannot change the length of", path.display(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_understood() {
        for (text, wish) in [
            ("max", Some((None, Wish::Max))),
            ("1:max", Some((Some(1), Wish::Max))),
            ("8G", Some((None, Wish::To(8 << 30)))),
            ("+1m", Some((None, Wish::More(1 << 20)))),
            ("2:-1k", Some((Some(2), Wish::Less(1024)))),
            ("min", Some((None, Wish::Min))),
            ("", None),
            ("+", None),
            ("x:1g", None),
        ] {
            assert_eq!(parse(text), wish, "{text}");
        }
    }
}
