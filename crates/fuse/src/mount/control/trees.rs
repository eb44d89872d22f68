//! The control words for tools that look below files: items of trees, how the content of a file is stored, the paths of an inode.
//!
//! They stand in for ioctls whose structs have pointers or buffers behind them, which FUSE does not carry (TREE_SEARCH_V2, INO_PATHS,
//! LOGICAL_INO, FIEMAP), and ask for the same rights. Both ends of each answer's form are here.

use buttress::{Referrer, WantedReferrers};
use rustix::io::Errno;

use super::words::ANSWER_BYTES;
use super::{Control, FoundItem, Mount, TreeKey};
use crate::mount::caller::{Caller, Capability};
use crate::mount::permission::READ;
use crate::mount::store::Answer;
use crate::nodes::Identity;
use crate::protocol::channel::Request;

/// Bytes of what stands before an item: three numbers, its length and its type.
const ITEM_HEAD: usize = 3 * 8 + 4 + 1;
/// Parts of a file in one answer: a line of seven numbers each.
const PARTS_MAX: usize = 400;

/// A part of a file, and how it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredFacts {
    /// Offset in the file, in bytes.
    pub start: u64,
    /// Bytes of the file that it stands for.
    pub len: u64,
    /// 0 none, 1 zlib, 2 lzo, 3 zstd.
    pub compression: u8,
    /// Bytes that are stored: of an extent, the whole of it.
    pub disk_len: u64,
    /// Bytes of content in what is stored.
    pub ram_len: u64,
    /// Logical address of the extent; 0 for content in the tree.
    pub bytenr: u64,
    /// Whether it is preallocated.
    pub prealloc: bool,
}

/// Parts of a file, and where the next ones begin; `None`: there are no more.
pub type StoredPart = (Vec<StoredFacts>, Option<u64>);

/// A file that refers to data.
pub type ReferrerFacts = Referrer;

/// Some of the files that refer to data: as many as fit into an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReferrersPart {
    /// The transaction that was looked at.
    pub generation: u64,
    /// How many are told of, in all answers together.
    pub total: u64,
    /// How many there are besides.
    pub left_out: u64,
    /// The files.
    pub found: Vec<ReferrerFacts>,
}

/// Bytes of a number, three of which stand before the files, and for each of them.
const NUMBER: usize = 8;
/// Files in one answer.
const REFERRERS_MAX: usize = ANSWER_BYTES / (3 * NUMBER) - 1;

/// The most answers for which somebody may ask together: those of the largest buffer that Linux takes.
const ANSWERS_MAX: usize = (16 << 20) / (3 * NUMBER);

/// The word that asks for files that refer to data, those behind the first `past` ones.
pub(crate) fn referrers_word(wanted: &WantedReferrers, past: usize) -> String {
    let WantedReferrers { logical, whole, most } = wanted;
    format!("referrers.{logical}.{}.{most}.{past}", u8::from(*whole))
}

/// Reads what follows `referrers.`.
fn referrers_wanted(text: &str) -> Option<(WantedReferrers, usize)> {
    let numbers: Option<Vec<u64>> = text.split('.').map(|word| word.parse().ok()).collect();
    let [logical, whole, most, past] = numbers?[..] else { return None };
    let most = usize::try_from(most).ok()?.min(ANSWERS_MAX);
    let wanted = WantedReferrers { logical, whole: whole != 0, most };
    Some((wanted, usize::try_from(past).ok()?))
}

/// What is looked for in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The tree; 0 for that of the file that is asked.
    pub tree: u64,
    /// The first key.
    pub from: TreeKey,
    /// The last key.
    pub to: TreeKey,
    /// Only of leaves that this transaction or a later one wrote.
    pub since: u64,
}

impl Wanted {
    /// As it stands in the word.
    pub(crate) fn word(&self) -> String {
        let Wanted { tree, from, to, since } = self;
        let key = |key: &TreeKey| format!("{}.{}.{}", key.objectid, key.kind, key.offset);
        format!("search.{tree}.{}.{}.{since}", key(from), key(to))
    }

    /// Reads what follows `search.`.
    fn read(text: &str) -> Option<Wanted> {
        let numbers: Option<Vec<u64>> = text.split('.').map(|word| word.parse().ok()).collect();
        let [tree, objectid, kind, offset, last, last_kind, last_offset, since] = numbers?[..]
        else {
            return None;
        };
        let key = |objectid, kind: u64, offset| {
            Some(TreeKey { objectid, kind: u8::try_from(kind).ok()?, offset })
        };
        let (from, to) = (key(objectid, kind, offset)?, key(last, last_kind, last_offset)?);
        Some(Wanted { tree, from, to, since })
    }
}

impl<S: Control> Mount<S> {
    /// Items of a tree, as many as fit.
    pub(super) fn search_word(&self, request: &Request<'_>, text: &str) -> Answer<Vec<u8>> {
        self.require_master(request)?;
        let mut wanted = Wanted::read(text).ok_or(Errno::NODATA)?;
        if wanted.tree == 0 {
            wanted.tree = self.store.identity(&self.node(request.nodeid())?).within();
        }
        let (mut answer, mut too_big) = (Vec::new(), false);
        self.store.search(wanted.tree, wanted.from, wanted.to, wanted.since, &mut |item| {
            let fits = answer.len() + ITEM_HEAD + item.data.len() <= ANSWER_BYTES;
            too_big = !fits && answer.is_empty();
            if fits {
                put_item(&mut answer, &item);
            }
            fits
        })?;
        if too_big { Err(Errno::OVERFLOW) } else { Ok(answer) }
    }

    /// Which files refer to the data at an address: three numbers each, after the transaction, how many are told of, and how many are
    /// not. Who asks for those behind the first ones asks about the same commit, or finds out that he does not.
    pub(super) fn referrers_word(&self, request: &Request<'_>, text: &str) -> Answer<Vec<u8>> {
        self.require_master(request)?;
        let (wanted, past) = referrers_wanted(text).ok_or(Errno::NODATA)?;
        let (all, generation) = self.store.referrers(wanted, past == 0)?;
        let total = all.found.len() as u64;
        let found = all.found.into_iter().skip(past).take(REFERRERS_MAX).collect();
        Ok(put_referrers(&ReferrersPart { generation, total, left_out: all.left_out, found }))
    }

    /// How a file is stored, from an offset on: for those who may read it.
    pub(super) fn stored_word(
        &self,
        request: &Request<'_>,
        node: &S::Node,
        from: u64,
    ) -> Answer<Vec<u8>> {
        self.may(&Caller::of(request), node, READ)?;
        let (parts, next) = self.store.stored(node, from, PARTS_MAX)?;
        let next = next.map_or("-".to_owned(), |next| next.to_string());
        let lines = parts.iter().map(|it| {
            let StoredFacts { start, len, compression, disk_len, ram_len, bytenr, prealloc } = it;
            let prealloc = u8::from(*prealloc);
            format!("{start} {len} {compression} {disk_len} {ram_len} {bytenr} {prealloc}\n")
        });
        Ok(std::iter::once(next + "\n").chain(lines).collect::<String>().into_bytes())
    }

    /// The paths of an inode of the subvolume that a file is in, each ended by a zero byte: those behind so many, as many as fit.
    pub(super) fn paths_word(
        &self,
        request: &Request<'_>,
        node: &S::Node,
        text: &str,
    ) -> Answer<Vec<u8>> {
        let caller = Caller::of(request);
        if !self.is_master(&caller) && !caller.has(Capability::DacReadSearch) {
            return Err(Errno::PERM);
        }
        let (ino, past) = text.split_once('.').ok_or(Errno::NODATA)?;
        let ino = ino.parse().map_err(|_| Errno::NODATA)?;
        let past = past.parse().map_err(|_| Errno::NODATA)?;
        let identity = Identity { ino, ..self.store.identity(node) };
        let mut answer = Vec::new();
        for path in self.store.paths(identity)?.into_iter().skip(past) {
            if answer.len() + path.len() >= ANSWER_BYTES {
                let some = !answer.is_empty();
                return if some { Ok(answer) } else { Err(Errno::OVERFLOW) };
            }
            answer.extend(path);
            answer.push(0);
        }
        Ok(answer)
    }
}

fn put_item(answer: &mut Vec<u8>, item: &FoundItem<'_>) {
    let key = item.key;
    for number in [key.objectid, key.offset, item.transid] {
        answer.extend(number.to_le_bytes());
    }
    // It fits into an answer.
    answer.extend((item.data.len() as u32).to_le_bytes());
    answer.push(key.kind);
    answer.extend(item.data);
}

/// Takes an item off the front of an answer.
pub(crate) fn take_item<'a>(answer: &mut &'a [u8]) -> Option<FoundItem<'a>> {
    let mut number = || {
        let (head, rest) = answer.split_first_chunk::<8>()?;
        *answer = rest;
        Some(u64::from_le_bytes(*head))
    };
    let (objectid, offset, transid) = (number()?, number()?, number()?);
    let (len, rest) = answer.split_first_chunk::<4>()?;
    let (kind, rest) = rest.split_first()?;
    let (data, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    *answer = rest;
    Some(FoundItem { key: TreeKey { objectid, kind: *kind, offset }, transid, data })
}

fn put_referrers(part: &ReferrersPart) -> Vec<u8> {
    let head = [part.generation, part.total, part.left_out];
    let files = part.found.iter().flat_map(|it| [it.tree, it.ino, it.offset]);
    head.into_iter().chain(files).flat_map(u64::to_le_bytes).collect()
}

/// Reads which files refer to data.
pub(crate) fn take_referrers(answer: &[u8]) -> Option<ReferrersPart> {
    let (numbers, []) = answer.as_chunks::<NUMBER>() else { return None };
    let numbers: Vec<u64> = numbers.iter().copied().map(u64::from_le_bytes).collect();
    let ([generation, total, left_out], rest) = numbers.split_first_chunk::<3>()?;
    let (files, []) = rest.as_chunks::<3>() else { return None };
    let file =
        |[tree, ino, offset]: &[u64; 3]| Referrer { tree: *tree, ino: *ino, offset: *offset };
    let found = files.iter().map(file).collect();
    Some(ReferrersPart { generation: *generation, total: *total, left_out: *left_out, found })
}

/// Reads how a file is stored.
pub(crate) fn stored_part(answer: &[u8]) -> Option<StoredPart> {
    let mut lines = std::str::from_utf8(answer).ok()?.lines();
    let next = match lines.next()? {
        "-" => None,
        offset => Some(offset.parse().ok()?),
    };
    let part = |line: &str| {
        let numbers: Option<Vec<u64>> = line.split(' ').map(|word| word.parse().ok()).collect();
        let [start, len, compression, disk_len, ram_len, bytenr, prealloc] = numbers?[..] else {
            return None;
        };
        let compression = u8::try_from(compression).ok()?;
        let prealloc = prealloc != 0;
        Some(StoredFacts { start, len, compression, disk_len, ram_len, bytenr, prealloc })
    };
    let parts: Option<Vec<_>> = lines.map(part).collect();
    Some((parts?, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_comes_back() {
        let key = TreeKey { objectid: u64::MAX, kind: 255, offset: u64::MAX };
        let wanted = Wanted { tree: u64::MAX, from: TreeKey::default(), to: key, since: u64::MAX };
        let word = wanted.word();
        // The longest name of an attribute.
        assert!(word.len() + "buttress.".len() <= 255);
        assert_eq!(Wanted::read(word.strip_prefix("search.").unwrap()), Some(wanted));
        for wrong in
            ["", "5", "5.0.0.0.1.300.0.0", "5.0.0.0.1.2.3", "5.0.0.0.1.2.3.4.5", "a.0.0.0.1.2.3.4"]
        {
            assert_eq!(Wanted::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn referrers_come_back_and_as_many_as_are_asked_for_fit() {
        let wanted = WantedReferrers { logical: u64::MAX, whole: true, most: ANSWERS_MAX };
        let word = referrers_word(&wanted, usize::MAX);
        let read = referrers_wanted(word.strip_prefix("referrers.").unwrap());
        assert_eq!(read, Some((wanted, usize::MAX)));
        assert_eq!(referrers_wanted("1.0.2"), None);
        let file = ReferrerFacts { tree: 5, ino: u64::MAX, offset: 1 };
        let found = vec![file; REFERRERS_MAX];
        let part = ReferrersPart { generation: 7, total: 1 << 40, left_out: 9, found };
        let answer = put_referrers(&part);
        assert!(answer.len() <= ANSWER_BYTES);
        assert_eq!(take_referrers(&answer), Some(part));
        assert_eq!(take_referrers(&answer[..answer.len() - 8]), None);
        assert_eq!(take_referrers(&answer[..answer.len() - 1]), None);
        assert_eq!(take_referrers(&[]), None);
    }

    #[test]
    fn items_come_back_and_halves_do_not() {
        let key = TreeKey { objectid: 256, kind: 108, offset: 1 << 40 };
        let mut answer = Vec::new();
        for data in [&b"one"[..], b""] {
            put_item(&mut answer, &FoundItem { key, transid: 7, data });
        }
        let mut rest = &answer[..];
        for data in [&b"one"[..], b""] {
            let item = take_item(&mut rest).unwrap();
            assert_eq!((item.key, item.transid, item.data), (key, 7, data));
        }
        assert!(take_item(&mut rest).is_none());
        assert!(take_item(&mut &answer[..ITEM_HEAD + 2]).is_none());
    }
}
