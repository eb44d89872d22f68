//! The extended attributes `buttress.*`, through which our own command talks to a live mount.
//!
//! | attribute | get | set |
//! |---|---|---|
//! | `subvolume` | the subvolume this file lies in | a new subvolume; value: name |
//! | `subvolume.ID` | the subvolume ID | |
//! | `subvolumes.ID` | all from ID on, as many as fit | |
//! | `snapshot` | | a snapshot; value: source's shown inode number, `ro` or `rw`, name |
//! | `subvolume-in`, `snapshot-in` | | the same in groups of quotas; value: their numbers, separated by commas, before the name |
//! | `delete` | | deletes a subvolume; value: name |
//! | `delete-id` | | deletes a subvolume wherever it lies; value: id |
//! | `deleted.ID` | all from ID on that are deleted and whose space is not free yet, as many as fit | |
//! | `readonly` | | of the subvolume whose top this is; value: `0` or `1` |
//! | `default` | id of the default subvolume | makes this subvolume the default |
//! | `default-id` | | makes a subvolume the default; value: id |
//! | `path` | path inside the subvolume | |
//! | `place.ID` | where subvolume ID is, as a path inside the subvolume that holds it | |
//! | `paths.INO.PAST` | the paths of an inode of the same subvolume behind the first PAST ones, each with a zero byte behind it, as many as fit | |
//! | `stored.FROM` | how this file is stored from offset FROM on: where to go on (`-` at the end); for each part start, length, compression, bytes on the disk, bytes of content, address, whether preallocated | |
//! | `search.TREE.KEY.KEY.SINCE` | items of a tree (0: the one of this file) between two keys (three numbers each), of leaves of transaction SINCE or later: objectid, offset, transaction (8 bytes each), length (4), type, data | |
//! | `referrers.LOGICAL.WHOLE.MOST.PAST` | which files refer to data, see `trees` | |
//! | `fiemap.OFFSET` | the extents of this file from OFFSET on, as many as fit | |
//! | `options` | those of the mount that are the same for all mounts of the filesystem, separated by commas | |
//! | `facts`, `spaces` | the filesystem as a whole | |
//! | `stats` | what was done so far, and how many files the kernel holds, as one record | |
//! | `count`, `count.N`, `costs-N.ID`, `asked-N.ID`, `sums.N`, `counted.N` | what subvolumes take, see `counting` | |
//! | `quota` | how it is with quotas: whether they are on, and wrong, and how far a counting of them is | `on` and `rescan` begin to count them, `simple` switches simple ones on, `off` |
//! | `qgroup` | | changes a group of quotas; value: `create` or `destroy` and a number, `assign` or `remove` and two, `limit`, a number and both limits (`-`: as it is, `none`) |
//! | `balance` | how it is with balances: one that runs, how far it is, and what it is about, or what came of the last one | `start` and the balance item, `pause`, `cancel`, `resume` |
//! | `resize` | the size of the device, and how far a change of it is | the new size in bytes, `cancel` |
//! | `trim`, `trim.MIN`, `trim-end` | how far it is to tell the device what is free, or what came of the last time; begun before, for pieces of MIN bytes or more; to end soon. Who may do so need not be able to write to the directory, so nothing is set | |
//! | `label` | | the label |
//! | `commit` | empty, once everything is durable: as for syncfs(2), nobody needs a right for it | the same |
//! | `why` | why nothing can be made durable, in words; empty where it can, and is: it tries once more | |
//! | `settled` | empty, once the kernel knows of all names changed before | |
//!
//! The kernel holds the directory's lock during setxattr(2), so it cannot be told of a new or
//! deleted name before that returns; who wants to be sure gets `settled` afterwards.
//!
//! Records are lines `key=value`, ended by an empty line; backslash and newline are escaped.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::quotas::read_groups;
use super::{AskTrim, Control, DeviceFacts, ExtentFacts, Facts, Mount, SpaceFacts, SubvolumeFacts};
use crate::mount::caller::Caller;
use crate::mount::permission::{READ, SEARCH};
use crate::mount::store::{Answer, Time};
use crate::nodes::{Identity, SUBVOLUME_TOP};
use crate::protocol::abi::{GetxattrIn, SetxattrIn, opcode};
use crate::protocol::channel::Request;

/// What every control attribute's name begins with.
pub(crate) const PREFIX: &str = "buttress.";
/// Most bytes of records in one answer, below the kernel's limit of 64 KiB.
pub(super) const ANSWER_BYTES: usize = 60_000;

/// Extents in one answer: each has four numbers.
const EXTENTS_MAX: usize = 600;

/// The rest of a control attribute's name.
pub(in crate::mount) fn word(name: &OsStr) -> Option<&str> {
    name.to_str()?.strip_prefix(PREFIX)
}

/// Whether a GETXATTR or SETXATTR is about a control attribute.
pub(in crate::mount) fn is_control(request: &Request<'_>) -> bool {
    let head = match request.opcode() {
        opcode::SETXATTR => size_of::<SetxattrIn>(),
        _ => size_of::<GetxattrIn>(),
    };
    let name = request.body().rest().get(head..).unwrap_or_default();
    name.starts_with(PREFIX.as_bytes())
}

/// Whether a GETXATTR or SETXATTR is about everything that was written before.
pub(in crate::mount) fn is_about_all(request: &Request<'_>) -> bool {
    let mut body = request.body();
    if request.opcode() == opcode::GETXATTR {
        let name = body.read::<GetxattrIn>().and_then(|_head| body.text());
        return name.ok().and_then(word) == Some("commit");
    }
    let name = body.read::<SetxattrIn>().and_then(|_head| body.text());
    matches!(name.ok().and_then(word), Some("snapshot" | "snapshot-in" | "readonly" | "commit"))
}

impl<S: Control> Mount<S> {
    /// Gets a control attribute.
    pub(in crate::mount) fn get_word(&self, request: &Request<'_>, word: &str) -> Answer<Vec<u8>> {
        let node = self.node(request.nodeid())?;
        let identity = self.store.identity(&node);
        if let Some(wanted) = word.strip_prefix("search.") {
            return self.search_word(request, wanted);
        }
        if let Some(wanted) = word.strip_prefix("paths.") {
            return self.paths_word(request, &node, wanted);
        }
        if let Some(wanted) = word.strip_prefix("referrers.") {
            return self.referrers_word(request, wanted);
        }
        let (word, number) = match word.rsplit_once('.') {
            Some((word, number)) => (word, Some(number.parse().map_err(|_| Errno::NODATA)?)),
            None => (word, None),
        };
        let text = match (word, number) {
            ("subvolume", None) => subvolume_record(&self.store.subvolume(identity.within())?),
            ("subvolume", Some(id)) => subvolume_record(&self.visible_subvolume(request, id)?),
            ("subvolumes", Some(from)) => return self.list_subvolumes(request, from),
            ("deleted", Some(from)) => {
                self.require_master(request)?;
                records_that_fit(self.store.deleted_subvolumes(from)?.into_iter().map(Ok))?
            }
            ("fiemap", Some(from)) => {
                self.may(&Caller::of(request), &node, READ)?;
                let extents = self.store.fiemap(&node, from, EXTENTS_MAX)?;
                extents.iter().flat_map(extent_record).collect()
            }
            ("default", None) => self.store.default_subvolume()?.to_string().into_bytes(),
            ("path", None) => self.path_of(request, &node)?,
            ("stored", Some(from)) => self.stored_word(request, &node, from)?,
            ("place", Some(id)) => self.place_of(request, id)?,
            ("quota", None) => self.quota_facts(request)?,
            ("balance", None) => self.balance_facts(request)?,
            ("resize", None) => self.resize_facts(request)?,
            ("trim", None) => self.trim_word(request, AskTrim::State)?,
            ("trim", Some(min)) => self.trim_word(request, AskTrim::Begin(0, u64::MAX, min))?,
            ("trim-end", None) => self.trim_word(request, AskTrim::Cancel)?,
            ("settled", None) => Vec::new(),
            ("commit", None) => {
                self.store.commit()?;
                Vec::new()
            }
            ("why", None) => self.store.why_no_commit().unwrap_or_default().into_bytes(),
            ("options", None) => self.options.clone().into_bytes(),
            ("facts", None) => facts_record(&self.store.facts()?),
            ("stats", None) => {
                let mut figures = self.store.stats()?;
                figures.push(("held_by_kernel".to_owned(), self.nodes.held() as u64));
                let requests = self.requests.each_ref().map(|count| count.load(Ordering::Relaxed));
                let ways = ["requests_by_dev_fuse", "requests_by_io_uring"];
                figures.extend(ways.map(str::to_owned).into_iter().zip(requests));
                stats_record(&figures)
            }
            ("spaces", None) => self.store.spaces()?.iter().flat_map(space_record).collect(),
            _ => return self.counting_word(request, word, number),
        };
        Ok(text)
    }

    /// The path of a file inside its subvolume, for those who may go that way.
    fn path_of(&self, request: &Request<'_>, node: &S::Node) -> Answer<Vec<u8>> {
        let identity = self.store.identity(node);
        let path = self.store.path_in_subvolume(identity)?;
        let caller = Caller::of(request);
        if path.is_empty() || self.is_master(&caller) {
            return Ok(path);
        }
        let mut at = self.store.load(Identity { ino: SUBVOLUME_TOP, ..identity })?;
        for name in path.split(|&byte| byte == b'/') {
            self.may(&caller, &at, SEARCH)?;
            at = self.store.lookup(&at, OsStr::from_bytes(name))?.ok_or(Errno::NOENT)?;
        }
        Ok(path)
    }

    fn visible_subvolume(&self, request: &Request<'_>, id: u64) -> Answer<SubvolumeFacts> {
        let facts = self.store.subvolume(id)?;
        self.may_see(&self.view_of(request), &facts)?;
        Ok(facts)
    }

    fn place_of(&self, request: &Request<'_>, id: u64) -> Answer<Vec<u8>> {
        let facts = self.visible_subvolume(request, id)?;
        // Its name is one that no file can have.
        if facts.name.is_empty() && facts.parent != 0 {
            return Err(Errno::UCLEAN);
        }
        let directory = Identity { subvolume: facts.parent, ino: facts.directory };
        let mut path = match directory.ino {
            0 | SUBVOLUME_TOP => Vec::new(),
            _ => self.store.path_in_subvolume(directory)?,
        };
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(facts.name.as_bytes());
        Ok(path)
    }

    /// Those that the caller may see.
    fn list_subvolumes(&self, request: &Request<'_>, from: u64) -> Answer<Vec<u8>> {
        let view = self.view_of(request);
        let all = self.store.subvolumes(from)?.into_iter().map(|id| self.store.subvolume(id));
        let hidden = |facts: &Answer<SubvolumeFacts>| match facts {
            Ok(facts) => self.may_see(&view, facts) == Err(Errno::ACCESS),
            // Somebody has deleted it meanwhile.
            Err(errno) => *errno == Errno::NOENT,
        };
        records_that_fit(all.filter(|facts| !hidden(facts)))
    }

    /// Sets a control attribute.
    pub(in crate::mount) fn set_word(
        &self,
        request: &Request<'_>,
        word: &str,
        value: &[u8],
    ) -> Answer<()> {
        let name = OsStr::from_bytes(value);
        match word {
            "subvolume" => self.make_subvolume(request, name, &[]),
            "subvolume-in" => self.subvolume_in_word(request, value),
            "snapshot" => self.snapshot_word(request, value, false),
            "snapshot-in" => self.snapshot_word(request, value, true),
            "quota" => self.quota_word(request, value),
            "qgroup" => self.qgroup_word(request, value),
            "balance" => self.balance_word(request, value),
            "resize" => self.resize_word(request, value),
            "delete" => self.delete_named(request, request.nodeid(), name, None),
            "delete-id" => self.delete_by_id(request, parse_id(value)?),
            "readonly" => match value {
                b"0" | b"1" => self.make_read_only(request, value == b"1"),
                _ => Err(Errno::INVAL),
            },
            "default" => {
                let top = self.subvolume_top(&self.node(request.nodeid())?)?;
                self.choose_default(request, top)
            }
            "default-id" => self.choose_default(request, parse_id(value)?),
            "label" => self.relabel(request, value),
            "commit" => self.store.commit(),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    fn snapshot_word(&self, request: &Request<'_>, value: &[u8], in_groups: bool) -> Answer<()> {
        let mut parts = value.splitn(if in_groups { 4 } else { 3 }, |&byte| byte == b' ');
        let mut next = || parts.next().ok_or(Errno::INVAL);
        let (source, kind) = (next()?, next()?);
        let groups = if in_groups { read_groups(next()?)? } else { Vec::new() };
        let name = next()?;
        let source = std::str::from_utf8(source).ok().and_then(|text| text.parse().ok());
        let source = self.node(self.id_of_shown(source.ok_or(Errno::INVAL)?))?;
        // A number is no proof of having found it.
        let facts = self.store.subvolume(self.store.identity(&source).within())?;
        self.may_find(&self.view_of(request), &facts)?;
        let read_only = match kind {
            b"ro" => true,
            b"rw" => false,
            _ => return Err(Errno::INVAL),
        };
        self.make_snapshot(request, &source, (OsStr::from_bytes(name), &groups), read_only)
    }
}

fn parse_id(value: &[u8]) -> Answer<u64> {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).ok_or(Errno::INVAL)
}

/// Records of as many subvolumes as one answer has room for.
fn records_that_fit(all: impl Iterator<Item = Answer<SubvolumeFacts>>) -> Answer<Vec<u8>> {
    let mut answer = Vec::new();
    for facts in all {
        let record = subvolume_record(&facts?);
        if answer.len() + record.len() > ANSWER_BYTES {
            break;
        }
        answer.extend(record);
    }
    Ok(answer)
}

/// Writes lines of a record.
#[derive(Default)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    fn bytes(&mut self, key: &str, value: &[u8]) -> &mut Self {
        self.0.extend_from_slice(key.as_bytes());
        self.0.push(b'=');
        for &byte in value {
            match byte {
                b'\n' => self.0.extend_from_slice(b"\\n"),
                b'\\' => self.0.extend_from_slice(b"\\\\"),
                _ => self.0.push(byte),
            }
        }
        self.0.push(b'\n');
        self
    }

    pub(super) fn show(&mut self, key: &str, value: impl std::fmt::Display) -> &mut Self {
        self.bytes(key, value.to_string().as_bytes())
    }

    fn hex(&mut self, key: &str, value: &[u8; 16]) -> &mut Self {
        self.show(key, format_args!("{:032x}", u128::from_be_bytes(*value)))
    }

    pub(super) fn numbers(&mut self, key: &str, values: &[u64]) -> &mut Self {
        let words: Vec<String> = values.iter().map(u64::to_string).collect();
        self.show(key, words.join(" "))
    }

    pub(super) fn end(&mut self) -> Vec<u8> {
        self.0.push(b'\n');
        std::mem::take(&mut self.0)
    }
}

fn subvolume_record(facts: &SubvolumeFacts) -> Vec<u8> {
    let times: Vec<String> =
        facts.times.iter().map(|time| format!("{}.{:09}", time.sec, time.nsec)).collect();
    Writer::default()
        .show("id", facts.id)
        .bytes("name", facts.name.as_bytes())
        .show("parent", facts.parent)
        .show("directory", facts.directory)
        .show("generation", facts.generation)
        .show("readonly", u8::from(facts.read_only))
        .hex("uuid", &facts.uuid)
        .hex("parent_uuid", &facts.parent_uuid)
        .hex("received_uuid", &facts.received_uuid)
        .numbers("transids", &facts.transids)
        .show("times", times.join(" "))
        .end()
}

fn facts_record(facts: &Facts) -> Vec<u8> {
    let mut record = Writer::default()
        .hex("fsid", &facts.fsid)
        .hex("metadata_uuid", &facts.metadata_uuid)
        .show("nodesize", facts.nodesize)
        .show("sectorsize", facts.sectorsize)
        .show("csum_type", facts.csum_type)
        .show("csum_size", facts.csum_size)
        .show("generation", facts.generation)
        .numbers("features", &facts.features)
        .bytes("label", &facts.label)
        .end();
    for device in &facts.devices {
        let device = Writer::default()
            .show("id", device.id)
            .hex("uuid", &device.uuid)
            .show("total", device.total)
            .show("used", device.used)
            .bytes("path", device.path.as_bytes())
            .end();
        record.extend(device);
    }
    record
}

fn stats_record(figures: &[(String, u64)]) -> Vec<u8> {
    let mut writer = Writer::default();
    for (name, value) in figures {
        writer.show(name, value);
    }
    writer.end()
}

fn space_record(space: &SpaceFacts) -> Vec<u8> {
    Writer::default()
        .show("flags", space.flags)
        .show("total", space.total)
        .show("used", space.used)
        .end()
}

fn extent_record(extent: &ExtentFacts) -> Vec<u8> {
    let ExtentFacts { logical, physical, length, flags } = *extent;
    Writer::default().numbers("extent", &[logical, physical, length, flags.into()]).end()
}

/// One record as it was written.
pub(crate) struct Record(Vec<(String, Vec<u8>)>);

impl Record {
    /// Takes the records of an answer apart.
    pub(crate) fn all(answer: &[u8]) -> Vec<Self> {
        let mut records = Vec::new();
        let mut lines = Vec::new();
        for line in answer.split(|&byte| byte == b'\n') {
            match line.iter().position(|&byte| byte == b'=') {
                Some(at) => {
                    let (key, value) = line.split_at(at);
                    let key = String::from_utf8_lossy(key).into_owned();
                    lines.push((key, unescape(value.get(1..).unwrap_or_default())));
                }
                None if !lines.is_empty() => records.push(Self(std::mem::take(&mut lines))),
                None => {}
            }
        }
        records
    }

    fn bytes(&self, key: &str) -> Option<&[u8]> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_slice())
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        std::str::from_utf8(self.bytes(key)?).ok()
    }

    pub(super) fn number<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        self.text(key)?.parse().ok()
    }

    fn hex(&self, key: &str) -> Option<[u8; 16]> {
        Some(u128::from_str_radix(self.text(key)?, 16).ok()?.to_be_bytes())
    }

    pub(super) fn numbers<const N: usize>(&self, key: &str) -> Option<[u64; N]> {
        let words: Option<Vec<u64>> =
            self.text(key)?.split(' ').map(|word| word.parse().ok()).collect();
        words?.try_into().ok()
    }

    /// Reads figures by name.
    pub(crate) fn figures(&self) -> Option<Vec<(String, u64)>> {
        let figure = |(name, _): &(String, Vec<u8>)| Some((name.clone(), self.number(name)?));
        self.0.iter().map(figure).collect()
    }

    /// Reads a subvolume.
    pub(crate) fn subvolume(&self) -> Option<SubvolumeFacts> {
        let times: Option<Vec<Time>> = self.text("times")?.split(' ').map(parse_time).collect();
        Some(SubvolumeFacts {
            id: self.number("id")?,
            name: OsString::from_vec(self.bytes("name")?.to_vec()),
            parent: self.number("parent")?,
            directory: self.number("directory")?,
            generation: self.number("generation")?,
            read_only: self.number::<u8>("readonly")? != 0,
            uuid: self.hex("uuid")?,
            parent_uuid: self.hex("parent_uuid")?,
            received_uuid: self.hex("received_uuid")?,
            transids: self.numbers("transids")?,
            times: times?.try_into().ok()?,
        })
    }

    /// Reads the facts from their record and those of the devices.
    pub(crate) fn facts(records: &[Self]) -> Option<Facts> {
        let (first, devices) = records.split_first()?;
        let devices: Option<Vec<DeviceFacts>> = devices.iter().map(Self::device).collect();
        Some(Facts {
            fsid: first.hex("fsid")?,
            metadata_uuid: first.hex("metadata_uuid")?,
            nodesize: first.number("nodesize")?,
            sectorsize: first.number("sectorsize")?,
            csum_type: first.number("csum_type")?,
            csum_size: first.number("csum_size")?,
            generation: first.number("generation")?,
            features: first.numbers("features")?,
            label: first.bytes("label")?.to_vec(),
            devices: devices?,
        })
    }

    fn device(&self) -> Option<DeviceFacts> {
        Some(DeviceFacts {
            id: self.number("id")?,
            uuid: self.hex("uuid")?,
            total: self.number("total")?,
            used: self.number("used")?,
            path: OsString::from_vec(self.bytes("path")?.to_vec()),
        })
    }

    /// Reads an extent.
    pub(crate) fn extent(&self) -> Option<ExtentFacts> {
        let [logical, physical, length, flags] = self.numbers("extent")?;
        Some(ExtentFacts { logical, physical, length, flags: u32::try_from(flags).ok()? })
    }

    /// Reads space of one kind.
    pub(crate) fn space(&self) -> Option<SpaceFacts> {
        Some(SpaceFacts {
            flags: self.number("flags")?,
            total: self.number("total")?,
            used: self.number("used")?,
        })
    }
}

fn parse_time(text: &str) -> Option<Time> {
    let (sec, nsec) = text.split_once('.')?;
    Some(Time { sec: sec.parse().ok()?, nsec: nsec.parse().ok()? })
}

fn unescape(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    let mut bytes = value.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'\\' => match bytes.next() {
                Some(b'n') => out.push(b'\n'),
                Some(&other) => out.push(other),
                None => {}
            },
            _ => out.push(byte),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_went() {
        let facts = SubvolumeFacts {
            id: 257,
            name: OsString::from_vec(b"two\nlines=\\ \xff".to_vec()),
            parent: 5,
            uuid: [7; 16],
            read_only: true,
            transids: [1, 2, 3, u64::MAX],
            times: [Time { sec: -3, nsec: 7 }; 4],
            ..SubvolumeFacts::default()
        };
        let answer = [subvolume_record(&facts), subvolume_record(&SubvolumeFacts::default())];
        let records = Record::all(&answer.concat());
        let back: Vec<_> = records.iter().map(|record| record.subvolume().unwrap()).collect();
        assert_eq!(back, [facts, SubvolumeFacts::default()]);
    }

    #[test]
    fn extents_come_back_and_as_many_as_are_asked_for_fit() {
        let long = u64::MAX;
        let extent = ExtentFacts { logical: long, physical: long, length: long, flags: u32::MAX };
        let answer: Vec<u8> = vec![extent; EXTENTS_MAX].iter().flat_map(extent_record).collect();
        assert!(answer.len() <= ANSWER_BYTES);
        let records = Record::all(&answer);
        assert_eq!(records.len(), EXTENTS_MAX);
        assert!(records.iter().all(|record| record.extent() == Some(extent)));
    }

    #[test]
    fn figures_come_back_in_their_order() {
        let figures = vec![("commits".to_owned(), 3), ("bytes".to_owned(), u64::MAX)];
        let records = Record::all(&stats_record(&figures));
        assert_eq!(records.first().and_then(Record::figures), Some(figures));
    }

    #[test]
    fn the_filesystem_comes_back_with_its_devices() {
        let device = DeviceFacts { id: 1, total: 5, path: "/a b".into(), ..Default::default() };
        let facts = Facts { label: b"x".to_vec(), devices: vec![device], ..Facts::default() };
        assert_eq!(Record::facts(&Record::all(&facts_record(&facts))), Some(facts));
    }
}
