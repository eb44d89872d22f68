//! `filesystem resize`.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use buttress::Emptying;
use buttress_device::Access;
use clap::Args;
use rustix::io::Errno;
use serde_json::json;

use crate::args::Globals;
use crate::cmd::copy::Progress;
use crate::cmd::files::session;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::vfs::Vfs;
use crate::vnode::{FileError, Target};

/// Arguments of `filesystem resize`.
#[derive(Debug, Args)]
pub struct Resize {
    /// The new size: SIZE, +SIZE, -SIZE (suffixes k, m, g, t), `max` for all of the device, `min` for as little as there is room for; 1: may be in front
    #[arg(value_name = "[DEVID:]SIZE", allow_hyphen_values = true)]
    size: String,
    /// DEVICE: an unmounted image or disk
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// Make the image file larger or smaller, too, so that it ends where the filesystem does
    #[arg(long)]
    file: bool,
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
    if args.file && globals.offset != 0 {
        let why = "--file is for images that a filesystem has for itself";
        return Err(Failure::usage(CANNOT, why));
    }
    let before = file_len(path);
    // A file that is to become longer does so first: nobody misses zeros behind a filesystem.
    if let (true, Some(size)) = (args.file, grown(args, wish, globals)?)
        && before.is_some_and(|len| len < size)
    {
        set_file_len(path, size)?;
    }
    let resized = resize(args, devid, wish, globals);
    if args.file
        && let Some(len) =
            resized.as_ref().map_or(before, |(_, size)| Some(*size)).filter(|_| before.is_some())
    {
        set_file_len(path, len)?;
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

/// The size that was asked for, where a file may have to become longer for it.
fn grown(args: &Resize, wish: Wish, globals: &Globals) -> Result<Option<u64>, Failure> {
    Ok(match wish {
        Wish::To(size) => Some(size),
        Wish::More(more) => {
            let target = Target::any(&args.target, globals);
            let now = session(globals, Access::ReadOnly, |session| {
                match Vfs::of(&session.find(&target, true)?)? {
                    Vfs::Image(image) => Ok(image.fs().device_size()),
                    live => Err(is_mounted(&live)),
                }
            })?;
            Some(now.saturating_add(more))
        }
        Wish::Max | Wish::Min | Wish::Less(_) => None,
    })
}

fn is_mounted(vfs: &Vfs) -> Failure {
    let failure = Failure::new(CANNOT, vfs.name(), "it is mounted");
    failure.hint("Unmount it first: `buttress umount` waits for the last commit.")
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
        let Vfs::Image(image) = &vfs else { return Err(is_mounted(&vfs)) };
        let (fs, info) = (image.fs(), image.fs().info());
        if let Some(devid) = devid.filter(|devid| info.devices.iter().all(|it| it.id != *devid)) {
            return Err(Failure::new(CANNOT, vfs.name(), format!("there is no device {devid}")));
        }
        let now = fs.device_size();
        let size = match wish {
            Wish::Max => fs.device_size_max(),
            Wish::Min => fs.device_size_min(),
            Wish::To(size) => size,
            Wish::More(more) => now.saturating_add(more),
            Wish::Less(less) => now.saturating_sub(less),
        };
        let progress = Progress::of_parts(globals);
        let done = fs.resize(size, |at| {
            show(&progress, at);
            true
        });
        progress.finish();
        done.map_err(|error| refused(&vfs, error.errno(), fs.device_size_min()))?;
        Ok((now, fs.device_size()))
    })
}

fn show(progress: &Progress, at: Emptying) {
    progress.at("moving", at.had.saturating_sub(at.has), at.had.max(1));
}

fn refused(vfs: &Vfs, errno: Errno, least: u64) -> Failure {
    let failure = Failure::new(CANNOT, vfs.name(), FileError::from(errno));
    match errno {
        Errno::NOSPC => failure.hint(format!(
            "What it holds has no room there; {least} bytes have. `buttress balance start -dusage=50` first may need fewer."
        )),
        Errno::INVAL => failure.hint("256 MiB are the least."),
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
    let file = std::fs::File::options().write(true).open(path);
    let done = file.and_then(|file| file.set_len(len).and_then(|()| file.sync_all()));
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
