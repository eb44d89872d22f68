//! Filters of `balance start`, in the words of btrfs-progs.

use std::ops::Range;

use buttress::BalanceFilter;
use buttress_mkfs::parse_size;
use buttress_ondisk::item::chunk_type;

const PROFILES: [(&str, u64); 9] = [
    ("single", BalanceFilter::SINGLE),
    ("dup", chunk_type::DUP),
    ("raid0", chunk_type::RAID0),
    ("raid1", chunk_type::RAID1),
    ("raid1c3", chunk_type::RAID1C3),
    ("raid1c4", chunk_type::RAID1C4),
    ("raid10", chunk_type::RAID10),
    ("raid5", chunk_type::RAID5),
    ("raid6", chunk_type::RAID6),
];

/// Understands filters that are joined by commas; none are in empty text.
pub fn parse(text: &str) -> Result<BalanceFilter, String> {
    let mut filter = BalanceFilter::default();
    for word in text.split(',').filter(|word| !word.is_empty()) {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let wrong = |what: &str| format!("{word}: {what}");
        match name {
            "soft" if value.is_empty() => filter.soft = true,
            "profiles" => filter.profiles = Some(profiles(value).ok_or_else(|| wrong(NO_PROFILE))?),
            "convert" => filter.convert = Some(profile(value).ok_or_else(|| wrong(NO_PROFILE))?),
            "usage" => {
                filter.usage = Some(usage(value).ok_or_else(|| {
                    wrong(
                        "expects 0 to 100, or two of these with .. between them, the smaller first",
                    )
                })?)
            }
            "devid" => {
                let id = value.parse().ok().filter(|id| *id > 0);
                filter.devid = Some(id.ok_or_else(|| wrong("expects the number of a device"))?);
            }
            "drange" => filter.drange = Some(bytes(value).ok_or_else(|| wrong(NO_RANGE))?),
            "vrange" => filter.vrange = Some(bytes(value).ok_or_else(|| wrong(NO_RANGE))?),
            "limit" => filter.limit = Some(counts(value, 0).ok_or_else(|| wrong(NO_RANGE))?),
            "stripes" => filter.stripes = Some(stripes(value).ok_or_else(|| wrong(NO_RANGE))?),
            _ => return Err(wrong("there is no such filter")),
        }
    }
    match filter {
        BalanceFilter { soft: true, convert: None, .. } => Err("soft: needs convert=".into()),
        BalanceFilter { drange: Some(_), devid: None, .. } => Err("drange: needs devid=".into()),
        filter => Ok(filter),
    }
}

/// The filters as they are given.
pub fn text(filter: &BalanceFilter) -> String {
    let mut words = Vec::new();
    let range = |start: u64, end: u64| match end {
        u64::MAX => format!("{start}.."),
        _ => format!("{start}..{end}"),
    };
    if let Some(bits) = filter.profiles {
        let names = PROFILES.iter().filter(|(_, of)| bits & of != 0).map(|(name, _)| *name);
        words.push(format!("profiles={}", names.collect::<Vec<_>>().join("|")));
    }
    match &filter.usage {
        Some(Range { start: 0, end }) if *end <= 100 => words.push(format!("usage={end}")),
        Some(Range { start, end }) if *end > 100 => words.push(format!("usage={start}..")),
        Some(Range { start, end }) => words.push(format!("usage={start}..{end}")),
        None => {}
    }
    words.extend(filter.devid.map(|id| format!("devid={id}")));
    words.extend(filter.drange.as_ref().map(|it| format!("drange={}", range(it.start, it.end))));
    words.extend(filter.vrange.as_ref().map(|it| format!("vrange={}", range(it.start, it.end))));
    let counts = |name: &str, (least, most): (u32, u32)| match most {
        u32::MAX => format!("{name}={least}.."),
        _ => format!("{name}={least}..{most}"),
    };
    match filter.limit {
        Some((0, most)) if most < u32::MAX => words.push(format!("limit={most}")),
        limit => words.extend(limit.map(|limit| counts("limit", limit))),
    }
    words.extend(filter.stripes.map(|stripes| counts("stripes", stripes)));
    if let Some(target) = filter.convert {
        let name = PROFILES.iter().find(|(_, of)| *of == target);
        let name = name.map_or_else(|| format!("{target:#x}"), |(name, _)| (*name).to_owned());
        words.push(format!("convert={name}"));
    }
    if filter.soft {
        words.push("soft".to_owned());
    }
    words.join(",")
}

const NO_PROFILE: &str = "expects single, dup, or another profile";
const NO_RANGE: &str = "expects a number, or two with .. between them, the smaller first";

fn profile(name: &str) -> Option<u64> {
    let found = PROFILES.iter().find(|(of, _)| of.eq_ignore_ascii_case(name));
    found.map(|(_, bits)| *bits)
}

fn profiles(names: &str) -> Option<u64> {
    names.split('|').map(profile).try_fold(0, |all, one| Some(all | one?))
}

/// Two numbers with dots between them, of which one may be missing.
fn pair<T>(text: &str, parse: impl Fn(&str) -> Option<T>) -> Option<(Option<T>, Option<T>)> {
    let (least, most) = text.split_once("..")?;
    let one = |word: &str| match word {
        "" => Some(None),
        word => parse(word).map(Some),
    };
    let (least, most) = (one(least)?, one(most)?);
    (least.is_some() || most.is_some()).then_some((least, most))
}

fn usage(text: &str) -> Option<Range<u32>> {
    let percent = |word: &str| word.parse().ok().filter(|percent: &u32| *percent <= 100);
    if let Some(most) = percent(text) {
        return Some(0..most);
    }
    let (least, most) = pair(text, percent)?;
    let range = least.unwrap_or(0)..most.unwrap_or(101);
    (range.start <= range.end).then_some(range)
}

fn bytes(text: &str) -> Option<Range<u64>> {
    let (start, end) = pair(text, |word| parse_size(word).ok())?;
    let range = start.unwrap_or(0)..end.unwrap_or(u64::MAX);
    (range.start < range.end).then_some(range)
}

/// One number is the most, and `least` then the least.
fn counts(text: &str, least: u32) -> Option<(u32, u32)> {
    let count = |word: &str| word.parse::<u32>().ok();
    if let Some(most) = count(text) {
        return Some((least, most));
    }
    let (least, most) = pair(text, count)?;
    let (least, most) = (least.unwrap_or(0), most.unwrap_or(u32::MAX));
    (least <= most).then_some((least, most))
}

fn stripes(text: &str) -> Option<(u32, u32)> {
    match text.parse() {
        Ok(count) => Some((count, count)),
        Err(_) => counts(text, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_told_as_they_are_given() {
        for text in [
            "",
            "usage=20",
            "usage=0",
            "usage=100",
            "usage=20..",
            "profiles=single|dup,usage=5..50,devid=1,drange=1048576..2147483648,limit=3",
            "vrange=5..,limit=2..5,stripes=1..2,convert=dup,soft",
            "limit=4..,stripes=2..2,convert=single",
        ] {
            assert_eq!(super::text(&parse(text).unwrap()), text);
        }
    }

    #[test]
    fn filters_are_understood() {
        let all = parse("usage=5..50,profiles=single|DUP,devid=1,drange=1m..2g,limit=3").unwrap();
        assert_eq!(all.usage, Some(5..50));
        assert_eq!(all.profiles, Some(BalanceFilter::SINGLE | chunk_type::DUP));
        assert_eq!((all.devid, all.drange), (Some(1), Some(1 << 20..2 << 30)));
        assert_eq!(all.limit, Some((0, 3)));
        assert_eq!(parse("usage=20").unwrap().usage, Some(0..20));
        assert_eq!(parse("usage=20..").unwrap().usage, Some(20..101));
        assert_eq!(parse("limit=2..5,stripes=2").unwrap().stripes, Some((2, 2)));
        assert_eq!(parse("").unwrap(), BalanceFilter::default());
        let soft = parse("convert=dup,soft").unwrap();
        assert_eq!((soft.convert, soft.soft), (Some(chunk_type::DUP), true));
        for wrong in [
            "usage=101",
            "usage=50..10",
            "usage=",
            "profiles=raid7",
            "devid=0",
            "drange=1..2",
            "soft",
            "limit=..",
            "vrange=5..5",
            "what=1",
            "convert=",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
