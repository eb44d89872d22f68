//! Reading.
//!
//! A read has two halves. [`FileChanges::plan`] looks through the layers: it fills in holes and buffered bytes, and notes
//! which parts of which extents are missing. [`ReadPlan::run`] reads those from the volume; it needs no lock on the inode,
//! because an operation that has joined keeps every extent it has seen from being reused.

use std::sync::Arc;

use buttress_codec::CompressionKind;
use buttress_codec::compress::decompress;
use buttress_ondisk::{COMPRESSED_LEN_MAX, SECTOR};
use buttress_volume::{Sums, VolumeError};
use parking_lot::Mutex;

use super::changes::{FILE_END, FileChanges, round_down, round_up};
use super::csums::CsumReader;
use super::layers::{Found, Layer, Layers, Mapped, Segments};
use super::piece::Origin;
use super::ranges::{Span, len};
use crate::error::{Error, Result};
use crate::txn::Core;

/// Unaligned parts up to this length are read through a buffer in one go, in bytes.
const BOUNCE_MAX: u64 = 64 << 10;

/// What to do where data may be good, or good enough, and do not have their checksums.
const WITHOUT: &str = "; `--rescue ignoredatacsums` (for a mount: `-o ro,rescue=ignoredatacsums`) reads it unverified";

/// A decompressed extent: its address and its content.
type Decompressed = (u64, Arc<Vec<u8>>);

/// The compressed extent that was read last, while its end has not been read. The engine never writes compressed
/// extents, so an address means the same content for as long as the filesystem is open.
#[derive(Debug, Default)]
pub struct Cache(Mutex<Option<Decompressed>>);

impl Cache {
    /// Lets go of what it holds.
    pub fn clear(&self) {
        *self.0.lock() = None;
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_none()
    }
}

/// Where the checksums of a part come from.
#[derive(Debug)]
enum Checksums {
    /// There are none.
    None,
    /// Of the whole sectors that hold the part.
    Known(Vec<u8>),
    /// The csum tree.
    Tree,
}

/// A part of a read that comes from the disk.
#[derive(Debug)]
struct Part {
    /// Where in the caller's buffer it goes.
    at: usize,
    len: usize,
    /// The extent.
    bytenr: u64,
    disk_len: u64,
    ram_len: u64,
    compression: u8,
    /// Where in the extent's content the part starts.
    offset: u64,
    sums: Checksums,
}

impl Part {
    /// The addresses of the sectors to read.
    fn sectors(&self) -> Span {
        if self.compression != 0 {
            return self.bytenr..self.bytenr.saturating_add(self.disk_len);
        }
        let start = self.bytenr.saturating_add(self.offset);
        round_down(start)..round_up(start.saturating_add(self.len as u64))
    }
}

/// What is left to read from the disk.
#[derive(Debug)]
pub struct ReadPlan {
    tree: u64,
    ino: u64,
    /// Where in the file the request starts.
    offset: u64,
    len: usize,
    parts: Vec<Part>,
    /// Of a file with compressed parts.
    cache: Option<Arc<Cache>>,
}

impl FileChanges {
    /// Reads from `offset` on, up to the end of the file; the bytes read. Answers at the end of the file: 0.
    pub fn read(
        &self,
        core: &Core,
        layers: Layers<'_>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let plan = self.plan(layers, offset, buf)?;
        plan.run(core, buf)
    }

    /// The first half of a read: fills in what is in memory, and answers what has to come from the disk.
    pub fn plan(&self, layers: Layers<'_>, offset: u64, buf: &mut [u8]) -> Result<ReadPlan> {
        let left = layers.size.min(FILE_END).saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        let (tree, ino) = (layers.view.owner(), layers.ino);
        let mut plan = ReadPlan { tree, ino, offset, len, parts: Vec::new(), cache: None };
        if len == 0 {
            return Ok(plan);
        }
        let mut segments = Segments::new(self, layers, offset..offset + len as u64);
        while let Some((span, found)) = segments.next()? {
            let at = (span.start - offset) as usize;
            let Some(out) = buf.get_mut(at..(span.end - offset) as usize) else { break };
            match found {
                Found::Hole => out.fill(0),
                Found::Bytes(bytes) => copy_or_zero(out, bytes),
                Found::Inline(content) => {
                    copy_or_zero(out, content.get(span.start as usize..).unwrap_or_default());
                }
                Found::Extent(mapped) if mapped.prealloc => out.fill(0),
                Found::Extent(mapped) => {
                    if mapped.compression != 0 {
                        plan.cache
                            .get_or_insert_with(|| self.cache.get_or_init(Arc::default).clone());
                    }
                    plan.parts.push(part(&layers, mapped, at, out.len()));
                }
            }
        }
        Ok(plan)
    }

    /// The content of one sector, zeros after the end of the file.
    pub(super) fn sector(&self, core: &Core, layers: Layers<'_>, start: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; SECTOR as usize];
        self.read(core, layers, start, &mut bytes)?;
        Ok(bytes)
    }
}

fn copy_or_zero(out: &mut [u8], bytes: &[u8]) {
    let have = bytes.len().min(out.len());
    let (filled, rest) = out.split_at_mut(have);
    filled.copy_from_slice(&bytes[..have]);
    rest.fill(0);
}

fn part(layers: &Layers<'_>, mapped: Mapped<'_>, at: usize, len: usize) -> Part {
    let Mapped { bytenr, disk_len, ram_len, offset, compression, .. } = mapped;
    let sums = Checksums::Tree;
    let mut part = Part { at, len, bytenr, disk_len, ram_len, compression, offset, sums };
    if !layers.sums() {
        part.sums = Checksums::None;
        return part;
    }
    let pending = |known: Option<Vec<u8>>| known.map_or(Checksums::None, Checksums::Known);
    let sectors = part.sectors();
    part.sums = match (mapped.shared, mapped.layer) {
        (Some(shared), _) => match shared.digests.all_of(&sectors) {
            // The log that brought it has no checksums of what was committed before.
            None if shared.origin == Origin::Written => Checksums::Tree,
            known => pending(known),
        },
        (None, Layer::Tree) => Checksums::Tree,
        (None, Layer::Live(changes) | Layer::Frozen(changes)) => {
            pending(changes.digests_of(&sectors))
        }
    };
    part
}

impl ReadPlan {
    /// The bytes that the read answers.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it answers none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the read, once it has run, has left a decompressed extent for the next one.
    pub fn kept(&self) -> Option<Arc<Cache>> {
        self.cache.clone().filter(|cache| !cache.is_empty())
    }

    /// The second half: reads into the buffer that the plan was made with. The operation that made the plan must not
    /// have ended.
    pub fn run(&self, core: &Core, buf: &mut [u8]) -> Result<usize> {
        let mut csums = None;
        for part in &self.parts {
            let room = self.room_for(part, buf.len());
            let Some(out) = buf.get_mut(part.at..part.at + room) else { break };
            let csums = csums.get_or_insert_with(|| CsumReader::new(core));
            if part.compression == 0 {
                self.read_plain(core, csums, part, out)?;
                out[part.len..].fill(0);
            } else {
                self.read_compressed(core, csums, part, out)?;
            }
        }
        Ok(self.len)
    }

    /// How much of the caller's buffer a part may have: up to the end of its last sector when that is the file's end and there is room, so that
    /// whole sectors are read where they go. Most files end in one.
    fn room_for(&self, part: &Part, all: usize) -> usize {
        let whole = part.len.next_multiple_of(SECTOR as usize);
        let is_last = part.at + part.len == self.len;
        let begins_whole = part.bytenr.saturating_add(part.offset).is_multiple_of(SECTOR);
        let is_whole = part.compression == 0 && begins_whole;
        if is_last && is_whole && part.at + whole <= all { whole } else { part.len }
    }

    /// Says where in the file a part could not be read.
    fn fault(&self, part: &Part, why: impl ToString) -> Error {
        Error::Data {
            tree: self.tree,
            ino: self.ino,
            offset: self.offset + part.at as u64,
            len: part.len as u64,
            bytenr: part.bytenr,
            why: why.to_string().into(),
        }
    }

    /// Sectors could not be read. Those of a device that answers can be had all the same.
    fn unread(&self, part: &Part, error: &VolumeError) -> Error {
        let is_there = matches!(error, VolumeError::Data { .. }) && error.is_corruption();
        match is_there {
            true => self.fault(part, format_args!("{error}{WITHOUT}")),
            false => self.fault(part, error),
        }
    }

    fn checksums(&self, csums: &mut CsumReader<'_>, part: &Part) -> Result<Option<Vec<u8>>> {
        match &part.sums {
            _ if csums.are_ignored() => Ok(None),
            Checksums::None => Ok(None),
            Checksums::Known(known) => Ok(Some(known.clone())),
            Checksums::Tree => {
                match csums.digests(&part.sectors()) {
                    Ok(Ok(digests)) => Ok(Some(digests)),
                    Ok(Err(at)) => Err(self
                        .fault(part, format_args!("no checksum for the sector at {at}{WITHOUT}"))),
                    Err(error) if error.is_damage() => {
                        let why = format_args!("its checksums cannot be read ({error}){WITHOUT}");
                        Err(self.fault(part, why))
                    }
                    Err(error) => Err(error),
                }
            }
        }
    }

    fn read_plain(
        &self,
        core: &Core,
        csums: &mut CsumReader<'_>,
        part: &Part,
        out: &mut [u8],
    ) -> Result<()> {
        let sums = self.checksums(csums, part)?;
        let sectors = part.sectors();
        let reader = Sectors { core, start: sectors.start, sums: sums.as_deref() };
        let skip = (part.bytenr.saturating_add(part.offset) - sectors.start) as usize;
        reader.read_part(&sectors, skip, out).map_err(|error| self.unread(part, &error))
    }

    fn read_compressed(
        &self,
        core: &Core,
        csums: &mut CsumReader<'_>,
        part: &Part,
        out: &mut [u8],
    ) -> Result<()> {
        let mut cache = self.cache.as_ref().map(|cache| cache.0.lock());
        let content = match cache.as_deref() {
            Some(Some((bytenr, content))) if *bytenr == part.bytenr => content.clone(),
            _ => Arc::new(self.decompress(core, csums, part)?),
        };
        let start = usize::try_from(part.offset).unwrap_or(usize::MAX);
        copy_or_zero(out, content.get(start..).unwrap_or_default());
        let ended = start.saturating_add(part.len) >= content.len();
        if let Some(cache) = cache.as_deref_mut() {
            *cache = (!ended).then_some((part.bytenr, content));
        }
        Ok(())
    }

    fn decompress(&self, core: &Core, csums: &mut CsumReader<'_>, part: &Part) -> Result<Vec<u8>> {
        let kind = CompressionKind::from_u8(part.compression);
        let kind = kind.ok_or_else(|| self.fault(part, "unknown compression"))?;
        if part.disk_len > COMPRESSED_LEN_MAX || part.ram_len > COMPRESSED_LEN_MAX {
            return Err(self.fault(part, "a compressed extent that is too long"));
        }
        let sums = self.checksums(csums, part)?;
        let mut stream = vec![0; part.disk_len as usize];
        let reader = Sectors { core, start: part.bytenr, sums: sums.as_deref() };
        reader.read(part.bytenr, &mut stream).map_err(|error| self.unread(part, &error))?;
        let mut content = vec![0; part.ram_len as usize];
        decompress(kind, &stream, &mut content, SECTOR as usize)
            .map_err(|error| self.fault(part, error))?;
        Ok(content)
    }
}

/// Reads whole sectors whose checksums are at hand.
struct Sectors<'a> {
    core: &'a Core,
    /// The address of the sector that the first checksum is for.
    start: u64,
    sums: Option<&'a [u8]>,
}

impl Sectors<'_> {
    /// Reads the sectors at `bytenr`.
    fn read(&self, bytenr: u64, out: &mut [u8]) -> std::result::Result<(), VolumeError> {
        let size = self.core.features.csum.size();
        let index = |at: u64| (at.saturating_sub(self.start) / SECTOR) as usize * size;
        let range = index(bytenr)..index(bytenr.saturating_add(out.len() as u64));
        let sums =
            self.sums.map_or(Sums::None, |all| Sums::Verify(all.get(range).unwrap_or_default()));
        self.core.volume.read_data(bytenr, out, sums)
    }

    /// Reads from `skip` bytes after the start of `sectors` into all of `out`.
    fn read_part(
        &self,
        sectors: &Span,
        skip: usize,
        out: &mut [u8],
    ) -> std::result::Result<(), VolumeError> {
        let sector = SECTOR as usize;
        if skip == 0 && out.len().is_multiple_of(sector) {
            return self.read(sectors.start, out);
        }
        if len(sectors) <= BOUNCE_MAX {
            let mut bounce = vec![0; len(sectors) as usize];
            self.read(sectors.start, &mut bounce)?;
            copy_or_zero(out, bounce.get(skip..).unwrap_or_default());
            return Ok(());
        }
        let head = (sector - skip) % sector;
        let (first, rest) = out.split_at_mut(head);
        let (middle, last) = rest.split_at_mut(rest.len() / sector * sector);
        let mut at = sectors.start;
        if head > 0 {
            self.read_part(&(at..at + SECTOR), skip, first)?;
            at += SECTOR;
        }
        self.read(at, middle)?;
        at += middle.len() as u64;
        if last.is_empty() { Ok(()) } else { self.read_part(&(at..at + SECTOR), 0, last) }
    }
}
