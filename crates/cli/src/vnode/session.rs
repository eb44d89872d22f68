//! From what the user wrote to vnodes, with every image opened once.
//!
//! `DEVICE[:PATH]` names something inside an image; a path that exists as such is taken as it is, so a colon in a file
//! name does no harm. A file or disk without a colon stands for the whole filesystem in it, where there is one: for every
//! command, and wherever something goes to. Only what `cp`, `mv` and `ln` take it from is the file itself, so that an image
//! can be copied and moved like any other file.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use buttress_device::Access;
use rustix::io::Errno;

use super::guard::{holds_btrfs, is_device, named_may_be_overwritten};
use super::{FileError, Image, Vnode};
use crate::args::Globals;
use crate::device::{self, Turn};
use crate::error::Failure;
use crate::output;
use crate::quote;
use buttress::{Filesystem, Node, Options};

/// What the user wrote, understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A path on this machine, which need not exist.
    Host(PathBuf),
    /// A path inside an image or disk; empty for the top.
    Image {
        /// The image or disk.
        device: PathBuf,
        /// The path, without a slash in front.
        path: Vec<u8>,
    },
}

impl Target {
    /// Understands `DEVICE:PATH`; everything else is a path on this machine.
    pub fn path(text: &OsStr) -> Target {
        if Path::new(text).symlink_metadata().is_ok() {
            return Target::Host(text.into());
        }
        let bytes = text.as_bytes();
        for at in bytes.iter().enumerate().filter(|(_, byte)| **byte == b':').map(|(at, _)| at) {
            let (device, path) = bytes.split_at(at);
            let device = Path::new(OsStr::from_bytes(device));
            if is_device(device) {
                return Target::Image { device: device.into(), path: after_colon(path) };
            }
        }
        Target::Host(text.into())
    }

    /// Understands `DEVICE[:PATH]`: a file or disk with a btrfs filesystem in it stands for the filesystem. So does any with `--offset`, as
    /// nothing but a filesystem has one: where there is none, that is said, and nothing is done to the file itself.
    pub fn any(text: &OsStr, globals: &Globals) -> Target {
        match Target::destination(text, globals) {
            Target::Host(path) if globals.offset != 0 && is_device(&path) => {
                Target::Image { device: path, path: Vec::new() }
            }
            other => other,
        }
    }

    /// The same for where something goes to, which may be a file that is to be replaced.
    pub fn destination(text: &OsStr, globals: &Globals) -> Target {
        match Target::path(text) {
            Target::Host(path) if holds_btrfs(&path, globals.offset) => {
                Target::Image { device: path, path: Vec::new() }
            }
            other => other,
        }
    }

    /// Whether it is the top directory of an image.
    pub fn is_top(&self) -> bool {
        matches!(self, Target::Image { path, .. } if path.is_empty())
    }

    /// Whether it is written as only a directory is.
    pub fn ends_with_slash(&self) -> bool {
        match self {
            Target::Host(path) => path.as_os_str().as_bytes().ends_with(b"/"),
            Target::Image { path, .. } => path.ends_with(b"/"),
        }
    }

    /// The same without slashes at its end, behind which a symbolic link is followed.
    pub fn without_slashes(&self) -> Target {
        let end = |bytes: &[u8]| bytes.iter().rposition(|byte| *byte != b'/').map(|at| at + 1);
        let cut = |bytes: &[u8]| end(bytes).and_then(|end| bytes.get(..end).map(<[u8]>::to_vec));
        match self {
            Target::Host(path) => {
                let bytes = cut(path.as_os_str().as_bytes());
                bytes.map_or(self.clone(), |bytes| Target::Host(OsString::from_vec(bytes).into()))
            }
            Target::Image { device, path } => {
                Target::Image { device: device.clone(), path: cut(path).unwrap_or_default() }
            }
        }
    }

    /// Whether its last name is `.` or `..`.
    pub fn ends_with_dots(&self) -> bool {
        let bytes = match self {
            Target::Host(path) => path.as_os_str().as_bytes(),
            Target::Image { path, .. } => path,
        };
        let last = bytes.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty());
        matches!(last, Some(b"." | b".."))
    }

    /// A path as the user would write it.
    pub fn shown(&self) -> String {
        match self {
            Target::Host(path) => quote::shown(path.as_os_str().as_bytes()).into_owned(),
            Target::Image { device, path } => {
                let name = [device.as_os_str().as_bytes(), b":/", path].concat();
                quote::shown(&name).into_owned()
            }
        }
    }
}

/// What follows the colon, without the slashes in front.
fn after_colon(text: &[u8]) -> Vec<u8> {
    text.iter().copied().skip(1).skip_while(|byte| *byte == b'/').collect()
}

/// Open images.
pub struct Session<'a> {
    globals: &'a Globals,
    access: Access,
    /// The one image that is written, if not all of them are.
    written: Option<Identity>,
    images: Vec<(Identity, PathBuf, Image)>,
}

impl<'a> Session<'a> {
    /// Nothing open yet; images are opened for reading or for writing too.
    pub fn new(globals: &'a Globals, access: Access) -> Session<'a> {
        Session { globals, access, written: None, images: Vec::new() }
    }

    /// From here on no image is opened for writing but the one that a target is in.
    pub fn write_only_to(&mut self, target: &Target) {
        if let Target::Image { device, .. } = target {
            self.written = Some(Identity::of(device));
        }
    }

    fn access(&self, whole: &Identity) -> Access {
        match &self.written {
            Some(written) if written != whole => Access::ReadOnly,
            _ => self.access,
        }
    }

    /// Opens the images that targets are in, in an order that is the same for all commands: two that each have what the other one waits for
    /// would wait for ever. What cannot be opened is told where it is used.
    pub fn open_in_order<'t>(&mut self, targets: impl IntoIterator<Item = &'t Target>) {
        let image = |target: &'t Target| match target {
            Target::Image { device, .. } => Some((Identity::of(device), device)),
            Target::Host(_) => None,
        };
        let mut images: Vec<_> = targets.into_iter().filter_map(image).collect();
        images.sort();
        images.dedup_by(|one, other| one.0 == other.0);
        // One alone waits where it is used.
        if images.len() > 1 {
            for (_, device) in images {
                let _told_later = self.open(device);
            }
        }
    }

    /// Who has images for writing waits for those that come after all of them, in the order of their numbers: nobody who has one of those
    /// waits for his.
    fn turn(&self, whole: &Identity, access: Access) -> Turn {
        let after = |(known, _, _): &(Identity, PathBuf, Image)| {
            self.access(known) == Access::ReadOnly || known < whole
        };
        match access == Access::ReadOnly || self.images.iter().all(after) {
            true => Turn::Waits,
            false => Turn::IsNow,
        }
    }

    /// The image at a path, opened if it is not yet.
    pub fn open(&mut self, path: &Path) -> Result<Image, Failure> {
        let identity = Identity::of(path);
        if let Some((_, _, image)) = self.images.iter().find(|(known, _, _)| *known == identity) {
            return Ok(image.clone());
        }
        let whole = whole_path(path);
        let access = self.access(&identity);
        if let (Access::ReadOnly, Some(directory)) =
            (access, device::mounted_here(&whole, self.globals))
        {
            let directory = directory.display();
            let note =
                format!("it is mounted on {directory}, where what is not committed yet shows too");
            device::warn(self.globals, path, &note);
        }
        let device = device::open_in(self.turn(&identity, access), path, access, self.globals)?;
        let options = match access {
            Access::ReadOnly => Options::read_only(),
            Access::ReadWrite => {
                Options::read_write().mark_quota_inconsistent(self.globals.mark_quota_inconsistent)
            }
        };
        let fs = Filesystem::open_device(device, device::with_rescue(options, self.globals))
            .map_err(|error| device::engine_failure(path, &error))?;
        for warning in fs.warnings() {
            device::warn(self.globals, path, &warning);
        }
        // Other subvolumes may be whole: it is not refused.
        if fs.attributes(Node::ROOT).is_err_and(|error| error.is_damage()) {
            let what = format!("its top directory cannot be read. {}", device::DAMAGED);
            device::warn(self.globals, path, &what);
        }
        let (globals, named) = (*self.globals, path.to_owned());
        fs.on_warning(move |warning| device::warn(&globals, &named, &warning));
        let image = Image::new(fs, path);
        self.images.push((identity, whole, image.clone()));
        Ok(image)
    }

    /// Refuses a destination that holds more than a file.
    pub fn may_be_overwritten(&self, target: &Target) -> Result<(), Failure> {
        match target {
            Target::Host(path) if path.exists() => {
                let named = Vnode::host_followed(path.clone());
                named_may_be_overwritten(&named, self.globals, !self.images.is_empty())
            }
            _ => Ok(()),
        }
    }

    /// What a target leads to, if it is a link. One that leads nowhere is refused: nobody meant what it happens to name.
    pub fn through_links(&mut self, target: &Target) -> Result<Target, Failure> {
        let dangling = || {
            let why = "it is a symbolic link that leads nowhere";
            Failure::new("cannot write through", target.shown(), why)
        };
        match target {
            _ if target.ends_with_slash() => Ok(target.clone()),
            Target::Host(path) if path.is_symlink() => match path.canonicalize() {
                Ok(path) => Ok(Target::Host(path)),
                // Something without a name: a pipe, say.
                Err(_) if path.exists() => Ok(target.clone()),
                Err(_) => Err(dangling()),
            },
            Target::Host(_) => Ok(target.clone()),
            Target::Image { device, path } => {
                let image = self.open(device)?;
                let path = image.through_links(path).map_err(|why| match why.is(Errno::NOENT) {
                    true => dangling(),
                    false => Failure::new("cannot find", target.shown(), why),
                })?;
                Ok(Target::Image { device: device.clone(), path })
            }
        }
    }

    /// Finds what a target names; `follow`: what a symbolic link leads to.
    pub fn find(&mut self, target: &Target, follow: bool) -> Result<Vnode, Failure> {
        match target {
            Target::Host(path) => find_host(path, follow),
            Target::Image { device, path } => {
                let image = self.open(device)?;
                let follow = follow || target.ends_with_slash();
                let found = image.fs().resolve_at(Node::ROOT, path, follow);
                let refuse = |why| Failure::new("cannot find", image.name_of(path), why);
                let node = found.map_err(|error| refuse(FileError::from(error)))?;
                let vnode = Vnode::image(&image, node, path);
                if target.ends_with_slash() && !vnode.is_directory().map_err(refuse)? {
                    return Err(refuse(Errno::NOTDIR.into()));
                }
                Ok(vnode)
            }
        }
    }

    /// The directory that holds (or will hold) what a target names, and the name there. What is there and no directory is not found
    /// under a name with a slash at its end.
    pub fn find_parent(&mut self, target: &Target) -> Result<(Vnode, Vec<u8>), Failure> {
        let (parent, name) = self.parent(target)?;
        if target.ends_with_slash() {
            let refuse = |why| Failure::new("cannot use", target.shown(), why);
            let is_directory = |vnode: Vnode| vnode.is_directory();
            let found = parent.child(&name).and_then(|found| found.map(is_directory).transpose());
            if found.map_err(refuse)? == Some(false) {
                return Err(refuse(Errno::NOTDIR.into()));
            }
        }
        Ok((parent, name))
    }

    fn parent(&mut self, target: &Target) -> Result<(Vnode, Vec<u8>), Failure> {
        match target {
            Target::Host(path) => host_parent(path),
            Target::Image { device, path } => {
                let image = self.open(device)?;
                let refuse = |what, why: &dyn std::fmt::Display| {
                    Failure::new(what, image.name_of(path), why)
                };
                if path.is_empty() {
                    return Err(refuse(
                        "cannot use",
                        &"this is the top directory of the filesystem",
                    ));
                }
                let (node, name) = image
                    .fs()
                    .resolve_parent_at(Node::ROOT, path)
                    .map_err(|error| refuse("cannot find", &FileError::from(error)))?;
                Ok((Vnode::image(&image, node, directory_part(path)), name))
            }
        }
    }

    /// Makes what was done durable, and says so when it cannot be.
    pub fn close(self) -> Result<(), Failure> {
        for (_, path, image) in self.images {
            let refuse =
                |error| Failure::new("cannot write", path.display(), FileError::from(error));
            if self.globals.stats {
                image.fs().commit().map_err(refuse)?;
                output::say_stats(self.globals, &image.fs().stats().figures());
            }
            image.fs().clone().close().map_err(refuse)?;
        }
        Ok(())
    }
}

/// What an image is known by, whatever names it has; the same for all commands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identity {
    /// Where a file lies, or a disk's number.
    Numbers(u64, u64),
    /// What is not there.
    Path(PathBuf),
}

impl Identity {
    fn of(path: &Path) -> Identity {
        match path.metadata() {
            Ok(found) if found.rdev() != 0 => Identity::Numbers(0, found.rdev()),
            Ok(found) => Identity::Numbers(found.dev(), found.ino()),
            Err(_) => Identity::Path(path.into()),
        }
    }
}

/// The path by which an image is shown.
fn whole_path(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.into())
}

fn find_host(path: &Path, follow: bool) -> Result<Vnode, Failure> {
    let found = match follow {
        true => path.metadata(),
        false => path.symlink_metadata(),
    };
    if let Err(error) = found {
        return Err(with_image_hint(
            Failure::new("cannot find", path.display(), FileError::from(error)),
            path,
        ));
    }
    let is_link = path.symlink_metadata().is_ok_and(|it| it.is_symlink());
    match path.canonicalize() {
        Ok(whole) if follow && is_link => Ok(Vnode::host(whole).called(path)),
        // It leads to something without a name: a pipe, say.
        Err(_) if follow && is_link => Ok(Vnode::host_followed(path.into())),
        _ => Ok(Vnode::host(path.into())),
    }
}

/// A path with a colon that is not there was perhaps meant for an image that is not there. On a mount whose process has died nothing is there.
fn with_image_hint(failure: Failure, path: &Path) -> Failure {
    let is_gone = [Errno::NOTCONN, Errno::CONNABORTED].iter().any(|errno| failure.is_about(*errno));
    if let Some(died) = is_gone.then(|| device::on_dead_mount(path)).flatten() {
        return died;
    }
    if let Some(hint) = device::of_partition(path) {
        return failure.hint(hint);
    }
    match path.as_os_str().to_string_lossy().split_once(':') {
        Some((device, _)) if !device.is_empty() => {
            failure.hint(format!("There is no image or disk {device} either."))
        }
        _ => failure,
    }
}

fn host_parent(path: &Path) -> Result<(Vnode, Vec<u8>), Failure> {
    let is_itself = path.as_os_str().as_bytes().ends_with(b"/.");
    let Some(name) = path.file_name().filter(|_| !is_itself) else {
        return Err(Failure::new("cannot use", path.display(), "it has no name of its own"));
    };
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match parent.metadata() {
        Ok(_) => Ok((Vnode::host_followed(parent.into()), name.as_bytes().to_vec())),
        Err(error) => {
            let failure = Failure::new("cannot find", parent.display(), FileError::from(error));
            Err(with_image_hint(failure, path))
        }
    }
}

/// A path without its last name.
pub(super) fn directory_part(path: &[u8]) -> &[u8] {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    path.get(..end).unwrap_or_default()
}
