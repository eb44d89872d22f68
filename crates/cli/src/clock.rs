//! Times as people read them: local time, as the system's time zone has it.
//!
//! The zone comes from `TZ` or `/etc/localtime`, in the format of RFC 9636 (TZif): a list of moments at which the
//! offset from UTC changes, and a rule in POSIX words for everything after the last one. Only rules by month, week and
//! weekday (`M3.5.0`) are known, which is what all zones of today use. What cannot be read counts as UTC.

use std::fmt;
use std::path::Path;

/// A time zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// From when (seconds since 1970) which offset (seconds ahead of UTC) holds, rising.
    changes: Vec<(i64, i64)>,
    /// The offset before the first change.
    first: i64,
    /// What holds after the last change.
    rule: Option<Rule>,
}

/// A rule in POSIX words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    standard: i64,
    summer: Option<Summer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Summer {
    offset: i64,
    start: Day,
    end: Day,
}

/// The `week`th (5: the last) `weekday` (0: Sunday) of `month`, at `secs` after local midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Day {
    month: i64,
    week: i64,
    weekday: i64,
    secs: i64,
}

const DAY: i64 = 86400;

impl Zone {
    /// The zone of this process.
    pub fn local() -> Zone {
        match std::env::var("TZ") {
            Ok(name) => Zone::named(name.strip_prefix(':').unwrap_or(&name)),
            Err(_) => Zone::file(Path::new("/etc/localtime")).unwrap_or_default(),
        }
    }

    fn named(name: &str) -> Zone {
        if name.is_empty() {
            return Zone::default();
        }
        let file = Zone::file(&Path::new("/usr/share/zoneinfo").join(name));
        file.or_else(|| Some(Zone { rule: Some(rule(name)?), ..Zone::default() }))
            .unwrap_or_default()
    }

    fn file(path: &Path) -> Option<Zone> {
        parse(&std::fs::read(path).ok()?)
    }

    /// Seconds that local time is ahead of UTC at a moment (seconds since 1970).
    pub fn offset(&self, at: i64) -> i64 {
        let passed = self.changes.partition_point(|(from, _)| *from <= at);
        match (passed.checked_sub(1).and_then(|last| self.changes.get(last)), &self.rule) {
            (Some(_) | None, Some(rule)) if passed == self.changes.len() => rule.offset(at),
            (Some((_, offset)), _) => *offset,
            (None, _) => self.first,
        }
    }

    /// Local date and time of a moment.
    pub fn at(&self, secs: i64) -> Local {
        Local { secs, offset: self.offset(secs) }
    }
}

impl Rule {
    fn offset(&self, at: i64) -> i64 {
        let Some(summer) = &self.summer else { return self.standard };
        let year = civil(at.saturating_add(self.standard).div_euclid(DAY)).0;
        let start = summer.start.moment(year).saturating_sub(self.standard);
        let end = summer.end.moment(year).saturating_sub(summer.offset);
        let inside = match start <= end {
            true => (start..end).contains(&at),
            false => !(end..start).contains(&at),
        };
        if inside { summer.offset } else { self.standard }
    }
}

impl Day {
    /// The moment in a year, in local seconds since 1970.
    fn moment(&self, year: i64) -> i64 {
        let first = days(year, self.month, 1);
        // Day 0 was a Thursday.
        let weekday = first.saturating_add(4).rem_euclid(7);
        let mut day = (self.weekday - weekday).rem_euclid(7) + (self.week - 1) * 7;
        let next =
            if self.month == 12 { days(year + 1, 1, 1) } else { days(year, self.month + 1, 1) };
        if day >= next.saturating_sub(first) {
            day -= 7;
        }
        first.saturating_add(day).saturating_mul(DAY).saturating_add(self.secs)
    }
}

/// A moment in local time. `{}` prints date, time and zone as `2026-11-21 19:25:38 +0100`.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    secs: i64,
    offset: i64,
}

impl Local {
    /// Year, month, day, hour, minute, second.
    pub fn parts(&self) -> (i64, i64, i64, i64, i64, i64) {
        let secs = self.secs.saturating_add(self.offset);
        let (year, month, day) = civil(secs.div_euclid(DAY));
        let secs = secs.rem_euclid(DAY);
        (year, month, day, secs / 3600, secs / 60 % 60, secs % 60)
    }

    /// The zone as `+0100`.
    pub fn zone(&self) -> String {
        let sign = if self.offset < 0 { '-' } else { '+' };
        let minutes = self.offset.abs() / 60;
        format!("{sign}{:02}{:02}", minutes / 60, minutes % 60)
    }

    /// Date and time with the fraction of the second: `2026-11-21 19:25:38.000000000 +0100`.
    pub fn with_nanos(&self, nanos: u32) -> String {
        let (year, month, day, hour, minute, second) = self.parts();
        let zone = self.zone();
        format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{nanos:09} {zone}")
    }

    /// Date and time without a zone: `2026-11-21 19:25:38`.
    pub fn date_and_time(&self) -> String {
        let (year, month, day, hour, minute, second) = self.parts();
        format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
    }

    /// Date and time to the minute: `2026-11-21 19:25`.
    pub fn short(&self) -> String {
        let (year, month, day, hour, minute, _) = self.parts();
        format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}")
    }
}

impl fmt::Display for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day, hour, minute, second) = self.parts();
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} {}", self.zone())
    }
}

/// Days from 1970-01-01 to a date of the Gregorian calendar. A year is counted from March, so that the leap day is its
/// last; 400 years have 146097 days.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The date that is so many days after 1970-01-01.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days.saturating_add(719_468);
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

const HEADER: usize = 44;

/// Reads a TZif file: the second block, with 64-bit times, and the rule behind it.
fn parse(bytes: &[u8]) -> Option<Zone> {
    if bytes.get(..4)? != b"TZif" || *bytes.get(4)? < b'2' {
        return None;
    }
    let [utc, standard, leaps, times, types, chars] = counts(bytes)?;
    let old = times * 5 + types * 6 + chars + leaps * 8 + standard + utc;
    let block = bytes.get(HEADER.checked_add(old)?..)?;
    let [utc, standard, leaps, times, types, chars] = counts(block)?;
    let body = block.get(HEADER..)?;
    let (moments, body) = body.split_at_checked(times * 8)?;
    let (indices, body) = body.split_at_checked(times)?;
    let (kinds, body) = body.split_at_checked(types * 6)?;
    let offset = |index: usize| {
        let bytes = kinds.get(index * 6..index * 6 + 4)?;
        Some(i64::from(i32::from_be_bytes(bytes.try_into().ok()?)))
    };
    let moment = |bytes: &[u8]| Some(i64::from_be_bytes(bytes.try_into().ok()?));
    let changes = moments.chunks_exact(8).zip(indices);
    let changes = changes.map(|(at, index)| Some((moment(at)?, offset(usize::from(*index))?)));
    let footer = body.get(chars + leaps * 12 + standard + utc..)?;
    let footer = std::str::from_utf8(footer).ok()?.trim_matches('\n');
    Some(Zone { changes: changes.collect::<Option<_>>()?, first: offset(0)?, rule: rule(footer) })
}

/// The six counts of a header.
fn counts(block: &[u8]) -> Option<[usize; 6]> {
    let mut counts = [0; 6];
    for (count, bytes) in counts.iter_mut().zip(block.get(20..HEADER)?.chunks_exact(4)) {
        let value = u32::from_be_bytes(bytes.try_into().ok()?);
        // No zone has a hundredth of that; it keeps the sums below from overflowing.
        *count = usize::try_from(value).ok().filter(|count| *count < 1 << 24)?;
    }
    Some(counts)
}

/// Reads a rule such as `CET-1CEST,M3.5.0,M10.5.0/3`.
fn rule(text: &str) -> Option<Rule> {
    let text = after_name(text)?;
    let (offset, text) = signed_time(text)?;
    let standard = -offset;
    if text.is_empty() {
        return Some(Rule { standard, summer: None });
    }
    let text = after_name(text)?;
    let (names, days) = text.split_once(',')?;
    let offset = match names {
        "" => standard + 3600,
        _ => -signed_time(names)?.0,
    };
    let (start, end) = days.split_once(',')?;
    let summer = Summer { offset, start: day(start)?, end: day(end)? };
    Some(Rule { standard, summer: Some(summer) })
}

/// What follows a zone's name: letters, or anything in angle brackets.
fn after_name(text: &str) -> Option<&str> {
    if let Some(rest) = text.strip_prefix('<') {
        return rest.split_once('>').map(|(_, rest)| rest);
    }
    let rest = text.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
    (rest.len() < text.len()).then_some(rest)
}

/// Seconds of `[+-]hh[:mm[:ss]]`, and what follows.
fn signed_time(text: &str) -> Option<(i64, &str)> {
    let (sign, text) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = text.find(|c: char| !c.is_ascii_digit() && c != ':').unwrap_or(text.len());
    let (digits, rest) = text.split_at_checked(end)?;
    let mut secs = 0;
    for (part, unit) in digits.split(':').zip([3600, 60, 1]) {
        secs += part.parse::<i64>().ok().filter(|value| *value < 1000)? * unit;
    }
    Some((sign * secs, rest))
}

/// Reads `Mm.w.d[/time]`.
fn day(text: &str) -> Option<Day> {
    let (date, secs) = match text.split_once('/') {
        Some((date, time)) => (date, signed_time(time)?.0),
        None => (text, 2 * 3600),
    };
    let mut parts = date.strip_prefix('M')?.splitn(3, '.').map(str::parse::<i64>);
    let mut next = |from, to| parts.next()?.ok().filter(|value| (from..=to).contains(value));
    Some(Day { month: next(1, 12)?, week: next(1, 5)?, weekday: next(0, 6)?, secs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(19_782), (2024, 2, 29));
        assert_eq!(civil(-1), (1969, 12, 31));
        for day in (-800_000..800_000).step_by(97) {
            let (year, month, of_month) = civil(day);
            assert_eq!(days(year, month, of_month), day);
        }
        let zone = Zone::default();
        assert_eq!(zone.at(1_795_289_138).to_string(), "2026-11-21 19:25:38 +0000");
        zone.at(i64::MAX).to_string();
        zone.at(i64::MIN).to_string();
    }

    #[test]
    fn rules() {
        let berlin = Zone { rule: rule("CET-1CEST,M3.5.0,M10.5.0/3"), ..Zone::default() };
        // `date -u -d @N` and TZ=Europe/Berlin agree on these: just before and after both changes of 2026.
        for (at, offset) in [
            (1_774_745_999, 3600),
            (1_774_746_000, 7200),
            (1_792_889_999, 7200),
            (1_792_890_000, 3600),
        ] {
            assert_eq!(berlin.offset(at), offset, "{at}");
        }
        let south = Zone { rule: rule("<-03>3<-02>,M3.5.0/-2,M10.5.0/-1"), ..Zone::default() };
        assert_eq!(south.offset(1_767_225_600), -3 * 3600);
        assert_eq!(rule("UTC0"), Some(Rule { standard: 0, summer: None }));
        for bad in ["", "5", "CET", "CET-1CEST", "CET-1CEST,M13.1.0,M1.1.1", "CET-1CEST,J60,J300"] {
            assert_eq!(rule(bad), None, "{bad}");
        }
    }

    #[test]
    fn damaged_files_are_utc() {
        let Ok(bytes) = std::fs::read("/usr/share/zoneinfo/Europe/Berlin") else {
            println!("skipped: no time zones are installed");
            return;
        };
        let zone = parse(&bytes).unwrap();
        assert_eq!(zone.offset(1_774_746_000), 7200);
        assert_eq!(zone.offset(1_000_000_000), 7200);
        for len in 0..bytes.len() - 1 {
            // Whatever comes out, it comes out.
            let _any = parse(&bytes[..len]);
        }
    }
}
