//! Facts as text: one line per path, fields between tabs, odd bytes as `%XX`.
//!
//! Made to be kept beside an image and to be read by a person in a diff.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{Fact, Facts, Kind};

/// Kinds and the letter each is written as.
const LETTERS: [(Kind, char); 7] = [
    (Kind::File, 'f'),
    (Kind::Dir, 'd'),
    (Kind::Symlink, 'l'),
    (Kind::Fifo, 'p'),
    (Kind::Socket, 's'),
    (Kind::Char, 'c'),
    (Kind::Block, 'b'),
];

/// Writes bytes so that they fit in one field.
pub(super) fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        let plain = byte.is_ascii_graphic() && !matches!(byte, b'%' | b'=' | b',');
        if plain {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// Reads what [`escaped`] wrote.
fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let high = char::from(rest.next()?).to_digit(16)?;
        let low = char::from(rest.next()?).to_digit(16)?;
        bytes.push((high * 16 + low) as u8);
    }
    Some(bytes)
}

/// All facts, in the order of paths.
pub fn to_text(facts: &Facts) -> String {
    let mut text = String::new();
    for (path, fact) in &facts.paths {
        write_line(&mut text, path, fact);
    }
    text
}

/// One line.
fn write_line(text: &mut String, path: &[u8], fact: &Fact) {
    let kind = LETTERS.iter().find(|(kind, _)| *kind == fact.kind).map_or('?', |(_, c)| *c);
    let (seconds, nanoseconds) = fact.mtime;
    let _ = write!(
        text,
        "/{}\t{kind}\t{:o}\t{}\t{}\t{}\t{}\t{seconds}.{nanoseconds}\t{}.{}",
        escaped(path),
        fact.mode,
        fact.uid,
        fact.gid,
        fact.nlink,
        fact.size,
        fact.rdev.0,
        fact.rdev.1,
    );
    if let Some(target) = &fact.target {
        let _ = write!(text, "\ttarget={}", escaped(target));
    }
    if let Some(content) = fact.content {
        let _ = write!(text, "\tcontent={content:016x}");
    }
    if let Some(first) = &fact.same_as {
        let _ = write!(text, "\tsame={}", escaped(first));
    }
    for (name, value) in &fact.xattrs {
        let _ = write!(text, "\txattr={},{}", escaped(name), escaped(value));
    }
    text.push('\n');
}

/// Reads what [`to_text`] wrote; None if it is not that.
pub fn from_text(text: &str) -> Option<Facts> {
    let paths = text.lines().map(read_line).collect::<Option<BTreeMap<_, _>>>()?;
    Some(Facts { paths })
}

/// One line.
fn read_line(line: &str) -> Option<(Vec<u8>, Fact)> {
    let mut fields = line.split('\t');
    let path = unescaped(fields.next()?.strip_prefix('/')?)?;
    let letter = fields.next()?;
    let kind =
        LETTERS.iter().find(|(_, known)| letter.starts_with(*known)).map(|(kind, _)| *kind)?;
    let mut fact = Fact {
        kind,
        mode: u32::from_str_radix(fields.next()?, 8).ok()?,
        uid: fields.next()?.parse().ok()?,
        gid: fields.next()?.parse().ok()?,
        nlink: fields.next()?.parse().ok()?,
        size: fields.next()?.parse().ok()?,
        mtime: pair(fields.next()?)?,
        rdev: pair(fields.next()?)?,
        target: None,
        xattrs: BTreeMap::new(),
        content: None,
        same_as: None,
    };
    for field in fields {
        match field.split_once('=')? {
            ("target", value) => fact.target = Some(unescaped(value)?),
            ("content", value) => fact.content = Some(u64::from_str_radix(value, 16).ok()?),
            ("same", value) => fact.same_as = Some(unescaped(value)?),
            ("xattr", value) => {
                let (name, value) = value.split_once(',')?;
                fact.xattrs.insert(unescaped(name)?, unescaped(value)?);
            }
            _ => return None,
        }
    }
    Some((path, fact))
}

/// Two numbers with a point between them.
fn pair<A: std::str::FromStr, B: std::str::FromStr>(text: &str) -> Option<(A, B)> {
    let (first, second) = text.split_once('.')?;
    Some((first.parse().ok()?, second.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_gives_back_every_field() {
        let mut fact = Fact {
            kind: Kind::Symlink,
            mode: 0o4777,
            uid: 1,
            gid: 2,
            nlink: 3,
            size: u64::MAX,
            mtime: (-5, 999_999_999),
            rdev: (8, 1),
            target: Some(b"a b\t%\n\xff".to_vec()),
            xattrs: BTreeMap::new(),
            content: Some(7),
            same_as: Some(b"x/y=z".to_vec()),
        };
        fact.xattrs.insert(b"user.a,b=c".to_vec(), vec![0, 1, 2]);
        fact.xattrs.insert(b"user.empty".to_vec(), Vec::new());
        let mut facts = Facts::default();
        facts.paths.insert(Vec::new(), fact.clone());
        facts.paths.insert(b"dir/\x01name".to_vec(), fact);
        assert_eq!(from_text(&to_text(&facts)), Some(facts));
    }
}
