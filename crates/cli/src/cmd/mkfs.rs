//! `mkfs`: makes a filesystem, with the options, defaults and text of `mkfs.btrfs`.
//!
//! A file that is not there is created when `--size` (or `-b`) says how large, or `--rootdir` what is to be in it, and removed again when making the
//! filesystem fails, so that no half-made image stays behind. A filesystem that is filled from a directory is none before
//! everything is in it, whenever the command ends.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use buttress_codec::ChecksumKind;
use buttress_device::{Access, BlockDevice, FileDevice};
use buttress_fuse::holder;
use buttress_mkfs::populate::{Populate, Populated, Subvolume, parse_subvolume, room_for, rootdir};
use buttress_mkfs::{
    Environment, Feature, FeatureRequest, FeatureSet, Group, MkfsError, Options, Profile, Summary,
    Withheld, check, list_features, make, parse_checksum, parse_features, parse_nodesize,
    parse_profile, parse_size,
};
use clap::Args;
use clap::builder::{TypedValueParser, ValueParser};
use serde_json::{Value, json};
use uuid::Uuid;

use super::chown::whole_owner;
use super::copy::Progress;
use crate::args::Globals;
use crate::device;
use crate::error::{self, Failure};
use crate::interrupted::Removal;
use crate::output::{self, Format};
use crate::units::Units;

/// Arguments of `mkfs`.
#[derive(Debug, Args)]
pub struct Mkfs {
    /// The image file or disk
    #[arg(value_name = "DEVICE", required_unless_present_any = ["features", "runtime_features"])]
    device: Option<PathBuf>,
    /// More devices, which are refused in words
    #[arg(hide = true)]
    others: Vec<PathBuf>,

    /// Create the file with this many bytes, or make it longer (suffixes k, m, g, t)
    #[arg(long, value_parser = parse_size, value_name = "SIZE")]
    size: Option<u64>,

    /// Copies of data: single or dup
    #[arg(short, long, value_parser = parse_profile, value_name = "PROFILE", help_heading = "Allocation profiles")]
    data: Option<Profile>,
    /// Copies of metadata: single or dup
    #[arg(short, long, value_parser = parse_profile, value_name = "PROFILE", help_heading = "Allocation profiles")]
    metadata: Option<Profile>,
    /// Data and metadata share block groups
    #[arg(short = 'M', long, help_heading = "Allocation profiles")]
    mixed: bool,

    /// The checksum: crc32c, xxhash, sha256 or blake2
    #[arg(long, visible_alias = "checksum", value_parser = parse_checksum, default_value = "crc32c", value_name = "TYPE", help_heading = "Features")]
    csum: ChecksumKind,
    /// Bytes of a tree block, 4k to 64k
    #[arg(short, long, value_parser = parse_nodesize, value_name = "SIZE", help_heading = "Features")]
    nodesize: Option<u32>,
    /// Bytes of a sector: 4096
    #[arg(short, long, value_parser = parse_sectorsize, default_value = "4096", value_name = "SIZE", help_heading = "Features")]
    sectorsize: u32,
    /// Features by name, `^name` to turn one off; `-O list-all` lists them
    #[arg(short = 'O', long, value_name = "LIST", help_heading = "Features")]
    features: Vec<String>,
    /// The same as -O
    #[arg(short = 'R', long, value_name = "LIST", help_heading = "Features")]
    runtime_features: Vec<String>,
    /// The label, at most 255 bytes
    #[arg(short = 'L', long, value_name = "LABEL", help_heading = "Features")]
    label: Option<OsString>,
    /// The filesystem's uuid
    #[arg(short = 'U', long, value_name = "UUID", help_heading = "Features")]
    uuid: Option<Uuid>,
    /// The device's uuid
    #[arg(long, value_name = "UUID", help_heading = "Features")]
    device_uuid: Option<Uuid>,

    /// Use only this many bytes of the device; the others stay as they are
    #[arg(short, long, value_parser = parse_size, value_name = "SIZE", help_heading = "Creation")]
    byte_count: Option<u64>,
    /// Copy this directory into the new filesystem; a file that is not there is created as large as that takes, one that is too short for it grows
    #[arg(short, long, value_name = "DIR", help_heading = "Creation")]
    rootdir: Option<PathBuf>,
    /// With --rootdir, end the filesystem behind its last block group, and the image file with it
    #[arg(long, requires = "rootdir", help_heading = "Creation")]
    shrink: bool,
    /// With --rootdir, make DIR a subvolume; TYPE is rw, ro, default or default-ro
    #[arg(short = 'u', long, value_parser = subvolume_parser(), value_name = "TYPE:DIR", requires = "rootdir", help_heading = "Creation")]
    subvol: Vec<Subvolume>,
    /// Who the top directory belongs to, by number or name. When not given: whoever makes the filesystem (with
    /// DETERMINISTIC_SEED=1: root), or with --rootdir whoever DIR belongs to
    #[arg(long, value_parser = whole_owner, value_name = "UID:GID", help_heading = "Creation")]
    owner: Option<(u32, u32)>,
    /// Do not tell the device that its old content is not needed any more
    #[arg(short = 'K', long, help_heading = "Creation")]
    nodiscard: bool,
    /// Go ahead when there is a filesystem on the device already
    #[arg(short, long, help_heading = "Creation")]
    force: bool,
}

fn parse_sectorsize(text: &str) -> Result<u32, MkfsError> {
    match parse_size(text)? {
        4096 => Ok(4096),
        sectorsize => Err(MkfsError::SectorSize { sectorsize }),
    }
}

fn subvolume_parser() -> ValueParser {
    let parser = clap::builder::OsStringValueParser::new();
    parser.try_map(|text: OsString| parse_subvolume(&text)).into()
}

/// Makes the filesystem.
pub fn run(args: &Mkfs, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let Some(features) = features(args)? else {
        return Ok(out.write_all(list_features().as_bytes())?);
    };
    let Some(path) = &args.device else {
        return Err(Failure::usage("cannot make a filesystem", "no device was named"));
    };
    if !args.others.is_empty() {
        let why = "filesystems on several devices are not supported: name one";
        return Err(Failure::usage("cannot make a filesystem", why));
    }
    if let Some(source) = args.rootdir.as_deref().filter(|source| is_within(path, source)) {
        let what = format!("cannot fill {} from", path.display());
        let why = "it would be a part of itself";
        return Err(Failure::new(what, source.display(), why)
            .hint("Make it outside the directory, and move it when it is done."));
    }
    let options = options(args, globals, features);
    let target = Target::open(path, args, globals, &options)?;
    match made(&target, args, globals, &options) {
        Ok((summary, filled)) => {
            drop(target);
            report(&summary, path, filled.as_ref(), globals, out)
        }
        Err(failure) => {
            target.discard();
            Err(failure)
        }
    }
}

/// Whether a file, which may have to be made, is somewhere in a directory. Of a disk only its name is.
fn is_within(path: &Path, directory: &Path) -> bool {
    if path.metadata().is_ok_and(|found| found.file_type().is_block_device()) {
        return false;
    }
    let whole = path.canonicalize().or_else(|_| {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        parent.unwrap_or(Path::new(".")).canonicalize()
    });
    matches!((whole, directory.canonicalize()), (Ok(whole), Ok(top)) if whole.starts_with(&top))
}

/// Makes the filesystem, and fills it.
fn made(
    target: &Target<'_>,
    args: &Mkfs,
    globals: &Globals,
    options: &Options,
) -> Result<(Summary, Option<Populated>), Failure> {
    let mut env = environment(args)?;
    let refused = |error: &MkfsError| failure(target.path, error);
    let named = |summary| Summary { device: target.path.display().to_string(), ..summary };
    let Some(source) = &args.rootdir else {
        let summary = make(&*target.device, options, &mut env).map_err(|error| refused(&error))?;
        return Ok((named(summary), None));
    };
    let device = Arc::new(Withheld::new(target.device.clone()));
    let summary = make(&*device, options, &mut env).map_err(|error| refused(&error))?;
    let filled = fill(target, device.clone(), source, args, globals, &mut env)?;
    device.release().map_err(|error| refused(&error.into()))?;
    if filled.size < summary.size {
        target.cut(summary.size, filled.size, globals)?;
    }
    Ok((named(Summary { size: filled.size, ..summary }), Some(filled)))
}

/// The features asked for; `None` when only their list is wanted.
fn features(args: &Mkfs) -> Result<Option<FeatureSet>, Failure> {
    let mut set = FeatureSet::default();
    for list in args.features.iter().chain(&args.runtime_features) {
        match parse_features(list, set) {
            Ok(FeatureRequest::Set(chosen)) => set = chosen,
            Ok(FeatureRequest::ListAll) => return Ok(None),
            Err(error) => {
                return Err(Failure::usage("cannot make a filesystem", error)
                    .hint("`-O list-all` lists what there is."));
            }
        }
    }
    if args.mixed {
        set.set(Feature::MixedBg, true);
    }
    Ok(Some(set))
}

fn options(args: &Mkfs, globals: &Globals, features: FeatureSet) -> Options {
    // With --size and no offset the file is exactly that long; a longer one that was there is used in part.
    let wanted = args.byte_count.or(args.size.map(|size| size.saturating_sub(globals.offset)));
    Options {
        label: args.label.clone().unwrap_or_default().into_vec(),
        fs_uuid: args.uuid,
        device_uuid: args.device_uuid,
        nodesize: args.nodesize,
        sectorsize: args.sectorsize,
        metadata_profile: args.metadata,
        data_profile: args.data,
        mixed: args.mixed,
        checksum: args.csum,
        features,
        owner: args.owner.unwrap_or_else(default_owner),
        byte_count: wanted,
        overwrite: args.force,
        discard: !args.nodiscard,
    }
}

/// Who may write to what he has made: whoever makes it. Where the same bytes are wanted whoever makes them, root.
fn default_owner() -> (u32, u32) {
    match is_deterministic() {
        true => (0, 0),
        false => (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
    }
}

fn is_deterministic() -> bool {
    std::env::var_os("DETERMINISTIC_SEED").is_some_and(|seed| seed == "1")
}

/// The device, and whether we created it.
struct Target<'a> {
    path: &'a Path,
    device: Arc<dyn BlockDevice>,
    created: bool,
    /// Which file it is, if it can be told.
    file: Option<(u64, u64)>,
    /// Of a file that we created, until the filesystem in it is whole.
    _removal: Removal,
}

impl<'a> Target<'a> {
    fn open(
        path: &'a Path,
        args: &Mkfs,
        globals: &Globals,
        options: &Options,
    ) -> Result<Target<'a>, Failure> {
        let refused = |error| device::failure(path, &error);
        let mut size = args.size.or(args.byte_count.and_then(|it| it.checked_add(globals.offset)));
        let created = !path.exists();
        // An image that was there grows where its new content would not fit.
        let may_grow = created || globals.offset == 0 && path.is_file();
        let mut least = args.size;
        if let Some(source) =
            args.rootdir.as_deref().filter(|_| may_grow && size.is_none() && !is_in_dev(path))
        {
            let room = room_for(source, options).map_err(|error| {
                let what = format!("cannot fill {} from", path.display());
                Failure::new(what, source.display(), error)
            })?;
            size = room.checked_add(globals.offset);
            least = size;
        }
        let removal = Removal::watch();
        let device = match (created, size) {
            (true, None) => return Err(missing(path)),
            (true, Some(size)) => {
                holder::announce_brief();
                let create = || FileDevice::create(path, size);
                removal.making(path, create).map_err(refused)?
            }
            (false, _) => {
                let open =
                    || FileDevice::open_part(path, Access::ReadWrite, part(path, args, globals));
                device::patiently(path, globals, open).map_err(refused)?
            }
        };
        let device = match (created, least) {
            (false, Some(size)) => grown(device, path, size, globals, options),
            _ => device::window(Arc::new(device), globals).map_err(refused),
        };
        if device.is_err() && created {
            remove(path);
        }
        let file = file_id(path.metadata());
        Ok(Target { path, device: device?, created, file, _removal: removal })
    }

    /// Ends the file where the filesystem does that had all of it.
    fn cut(&self, before: u64, now: u64, globals: &Globals) -> Result<(), Failure> {
        let had_all = self.path.is_file()
            && globals.offset == 0
            && self.device.size() / 4096 * 4096 == before;
        if !had_all {
            return Ok(());
        }
        let file = std::fs::OpenOptions::new().write(true).open(self.path);
        // Another one may have the name by now.
        let cut = |file: File| match file_id(file.metadata()) == self.file {
            true => file.set_len(now),
            false => Ok(()),
        };
        file.and_then(cut)
            .map_err(|error| Failure::new("cannot cut", self.path.display(), error::text(&error)))
    }

    /// Removes a file that was created for nothing.
    fn discard(&self) {
        if self.created {
            remove(self.path);
        }
    }
}

/// What tells a file from others.
fn file_id(metadata: io::Result<Metadata>) -> Option<(u64, u64)> {
    metadata.ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Whether it would be among the devices: there a file that nobody asked for by its size would be a disk's mistyped name.
fn is_in_dev(path: &Path) -> bool {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new(".")).canonicalize();
    parent.is_ok_and(|parent| parent.starts_with("/dev") && !parent.starts_with("/dev/shm"))
}

/// What is taken of a file that was there: others may have what lies before the filesystem and behind it. One that may have to grow is
/// taken whole.
fn part(path: &Path, args: &Mkfs, globals: &Globals) -> Option<Range<u64>> {
    let start = globals.offset;
    let whole = start == 0 || args.size.is_some() || !path.is_file();
    let rest = path.metadata().map_or(u64::MAX, |it| it.len()).saturating_sub(start);
    (!whole).then(|| start..start.saturating_add(args.byte_count.unwrap_or(rest).min(rest)))
}

/// Makes a file that was there as long as wanted, but not before it is sure that the filesystem can be made in it.
fn grown(
    file: FileDevice,
    path: &Path,
    size: u64,
    globals: &Globals,
    options: &Options,
) -> Result<Arc<dyn BlockDevice>, Failure> {
    let refused = |error| device::failure(path, &error);
    let file = Arc::new(file);
    let before = device::window(file.clone(), globals).map_err(refused)?;
    let will_be = file.size().max(size).saturating_sub(globals.offset);
    check(&*before, will_be, options).map_err(|error| failure(path, &error))?;
    file.grow(size).map_err(refused)?;
    device::window(file, globals).map_err(refused)
}

fn missing(path: &Path) -> Failure {
    Failure::new("cannot open", path.display(), "No such file or directory")
        .hint(format!("To create it: buttress mkfs --size 8G {}", path.display()))
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        complain!("buttress: warning: cannot remove {}: {}", path.display(), error::text(&error));
    }
}

fn failure(path: &Path, error: &MkfsError) -> Failure {
    let what = "cannot make a filesystem on";
    match error {
        MkfsError::Device(error) => device::failure(path, error),
        MkfsError::Exists { what: found, .. } => {
            let why = format!("it appears to contain an existing filesystem ({found})");
            Failure::new(what, path.display(), why)
                .hint("To overwrite it, and lose what is there, add -f.")
        }
        MkfsError::Partition { number, here, .. } => {
            let why = format!("it would reach into partition {number}");
            let size = match here {
                Some(here) => format!("-b {here}, the size of the partition there"),
                None => "-b".into(),
            };
            let hint =
                format!("Say how large it is to be with {size}; to overwrite others, add -f.");
            Failure::new(what, path.display(), why).hint(hint)
        }
        MkfsError::TooSmall { size, minimum, .. } => {
            let shown = |bytes| Units::default().show(bytes);
            let why = format!(
                "{} is too little, the smallest is {} ({minimum} bytes)",
                shown(*size),
                shown(*minimum)
            );
            Failure::new(what, path.display(), why).hint(
                "Give more with --size; small filesystems need least with --mixed (-M) and -m single.",
            )
        }
        other => Failure::new(what, path.display(), other),
    }
}

/// Time and randomness: the system's, unless the two variables that image builders set say otherwise.
/// `SOURCE_DATE_EPOCH` is the time of everything made: a number of seconds; empty it is none, as the specification has it, and refused.
/// `DETERMINISTIC_SEED=1` derives all uuids from the one given.
fn environment(args: &Mkfs) -> Result<Environment, Failure> {
    let refuse = |what: &str, why: &str| Failure::usage(format!("cannot use {what}"), why);
    let mut env = Environment::system();
    if is_deterministic() {
        let Some(uuid) = args.uuid else {
            return Err(refuse("DETERMINISTIC_SEED", "it needs the filesystem's uuid (-U)"));
        };
        let (high, low) = uuid.as_u64_pair();
        let now = env.now;
        env = Environment { now, ..Environment::seeded(high ^ low.rotate_left(32)) };
    }
    if let Some(text) = std::env::var_os("SOURCE_DATE_EPOCH") {
        let digits = text.to_str().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let secs = digits.and_then(|text| text.parse().ok()).map(Duration::from_secs);
        // Inodes have seconds as a signed number.
        let fits = |now: &SystemTime| {
            now.duration_since(UNIX_EPOCH).is_ok_and(|it| it.as_secs() <= i64::MAX as u64)
        };
        let now = secs.and_then(|secs| UNIX_EPOCH.checked_add(secs)).filter(fits);
        let why =
            if text.is_empty() { "it is set and empty" } else { "it is no number of seconds" };
        env.now = now.ok_or_else(|| {
            refuse("SOURCE_DATE_EPOCH", why)
                .hint("Set it to seconds since 1970 (`date +%s`), or unset it for the time of now.")
        })?;
    }
    Ok(env)
}

fn fill(
    target: &Target<'_>,
    device: Arc<dyn BlockDevice>,
    source: &Path,
    args: &Mkfs,
    globals: &Globals,
    env: &mut Environment,
) -> Result<Populated, Failure> {
    let options = Populate {
        subvolumes: args.subvol.clone(),
        owner: args.owner,
        shrink: args.shrink,
        ..Populate::default()
    };
    let progress = Progress::new(globals);
    progress.say(format!("filling it from {}", source.display()));
    let filled = rootdir(device, source, &options, env);
    progress.finish();
    if let Ok(filled) = &filled {
        output::say_stats(globals, &filled.stats.figures());
    }
    filled.map_err(|error| {
        let what = format!("cannot fill {} from", target.path.display());
        let failure = Failure::new(what, source.display(), &error);
        match error {
            MkfsError::Filesystem { source: buttress::Error::NoSpace, .. } => {
                failure.hint("Give it more room with --size.")
            }
            _ => failure,
        }
    })
}

fn report(
    summary: &Summary,
    path: &Path,
    filled: Option<&Populated>,
    globals: &Globals,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    if globals.quiet {
        return Ok(());
    }
    match globals.format {
        Format::Json => output::write_json(out, "mkfs", json(summary, path, filled))?,
        Format::Text => {
            writeln!(out, "buttress v{}\n\n{summary}", env!("CARGO_PKG_VERSION"))?;
            if let Some(it) = filled {
                let Populated { directories, files, links, subvolumes, bytes, .. } = it;
                writeln!(
                    out,
                    "Filled with {directories} directories ({subvolumes} of them subvolumes), {files} files \
                     with {}, {links} hard links\n",
                    buttress_mkfs::pretty_size(*bytes)
                )?;
            }
        }
    }
    Ok(())
}

fn json(summary: &Summary, path: &Path, filled: Option<&Populated>) -> Value {
    let group = |group: Group| json!({ "profile": name(group.profile), "size": group.length });
    let features: Vec<_> = summary.features.iter().map(Feature::name).collect();
    json!({
        "label": output::text_json(&summary.label),
        "uuid": summary.fs_uuid.to_string(),
        "nodesize": summary.nodesize,
        "sectorsize": summary.sectorsize,
        "size": summary.size,
        "profiles": {
            "data": summary.data.map(group),
            "metadata": group(summary.metadata),
            "system": group(summary.system),
        },
        "features": features,
        "checksum": summary.checksum.name(),
        "filled": filled.map(|it| json!({
            "directories": it.directories,
            "subvolumes": it.subvolumes,
            "files": it.files,
            "links": it.links,
            "bytes": it.bytes,
        })),
        "devices": [{
            "devid": 1,
            "uuid": summary.device_uuid.to_string(),
            "size": summary.size,
            "path": output::text_json(path.as_os_str().as_bytes()),
        }],
    })
}

fn name(profile: Profile) -> &'static str {
    match profile {
        Profile::Single => "single",
        Profile::Dup => "dup",
    }
}
