//! Times as people read them: local time, as the system's time zone has it (`TZ`, or else `/etc/localtime`). What cannot be read
//! counts as UTC.
//!
//! An image may hold any number of seconds. Years that the library does not know are told by those of its years that have the same
//! calendar: dates and days of the week come again after 400 years.

use std::path::{Component, Path};
use std::{env, fmt, fs};

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// Seconds of 400 years.
const CYCLE: i64 = 146_097 * 86_400;
/// So many cycles before and after 1970 are years that the library knows, and in which no zone has special rules.
const CYCLES: i64 = 4;

/// Where the system has its zones, in files by their names.
const ZONES: &str = "/usr/share/zoneinfo";

/// A time zone.
#[derive(Clone, Debug)]
pub struct Zone(TimeZone);

impl Default for Zone {
    fn default() -> Zone {
        Zone(TimeZone::UTC)
    }
}

impl Zone {
    /// The zone of this process.
    pub fn local() -> Zone {
        let zone = TimeZone::try_system().ok().or_else(named_otherwise);
        Zone(zone.unwrap_or(TimeZone::UTC))
    }

    /// Seconds that local time is ahead of UTC at a moment (seconds since 1970).
    pub fn offset(&self, at: i64) -> i64 {
        self.at(at).offset
    }

    /// Local date and time of a moment.
    pub fn at(&self, secs: i64) -> Local {
        let (moment, years) = known(secs);
        let offset = self.0.to_offset(moment);
        let time = offset.to_datetime(moment);
        Local { time, year: i64::from(time.year()) + years, offset: offset.seconds().into() }
    }
}

/// The zone in the system's directory whose name `TZ` has, where the library has none of that name, as `posix/Europe/Berlin`.
fn named_otherwise() -> Option<TimeZone> {
    let text = env::var("TZ").ok()?;
    let name = text.strip_prefix(':').unwrap_or(&text);
    let stays = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    let file = stays.then(|| Path::new(ZONES).join(name))?;
    TimeZone::tzif(name, &fs::read(file).ok()?).ok()
}

/// A moment that the library knows, and how many years later it was or will be.
fn known(secs: i64) -> (Timestamp, i64) {
    match Timestamp::from_second(secs) {
        Ok(moment) => (moment, 0),
        Err(_) => {
            let near = if secs < 0 { -CYCLES } else { CYCLES };
            let moment = Timestamp::from_second(near * CYCLE + secs.rem_euclid(CYCLE));
            (moment.unwrap_or_default(), (secs.div_euclid(CYCLE) - near) * 400)
        }
    }
}

/// A moment in local time. `{}` prints date, time and zone as `2026-11-21 19:25:38 +0100`.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    time: DateTime,
    /// In place of that of `time`.
    year: i64,
    offset: i64,
}

impl Local {
    /// The zone as `+0100`.
    pub fn zone(&self) -> String {
        let sign = if self.offset < 0 { '-' } else { '+' };
        let minutes = self.offset.abs() / 60;
        format!("{sign}{:02}{:02}", minutes / 60, minutes % 60)
    }

    /// Date and time with the fraction of the second: `2026-11-21 19:25:38.000000000 +0100`.
    pub fn with_nanos(&self, nanos: u32) -> String {
        format!("{}.{nanos:09} {}", self.date_and_time(), self.zone())
    }

    /// Date and time without a zone: `2026-11-21 19:25:38`.
    pub fn date_and_time(&self) -> String {
        format!("{}:{:02}", self.short(), self.time.second())
    }

    /// Date and time to the minute: `2026-11-21 19:25`.
    pub fn short(&self) -> String {
        let (month, day) = (self.time.month(), self.time.day());
        let (hour, minute) = (self.time.hour(), self.time.minute());
        format!("{:04}-{month:02}-{day:02} {hour:02}:{minute:02}", self.year)
    }
}

impl fmt::Display for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.date_and_time(), self.zone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(rule: &str) -> Zone {
        Zone(TimeZone::posix(rule).unwrap())
    }

    #[test]
    fn dates() {
        let zone = Zone::default();
        let date = |secs| zone.at(secs).to_string();
        assert_eq!(date(0), "1970-01-01 00:00:00 +0000");
        assert_eq!(date(19_782 * 86_400), "2024-02-29 00:00:00 +0000");
        assert_eq!(date(-1), "1969-12-31 23:59:59 +0000");
        assert_eq!(date(1_795_289_138), "2026-11-21 19:25:38 +0000");
    }

    /// `date -u -d @N` agrees.
    #[test]
    fn dates_that_the_library_does_not_know() {
        let zone = Zone::default();
        let date = |secs| zone.at(secs).to_string();
        assert_eq!(date(253_402_300_800), "10000-01-01 00:00:00 +0000");
        assert_eq!(date(1 << 40), "36812-02-20 00:36:16 +0000");
        assert_eq!(date(i64::MAX / 1000), "292278994-08-17 07:12:55 +0000");
        assert_eq!(date(-(1 << 44)), "-555505-10-25 14:19:44 +0000");
        assert_eq!(date(253_402_300_799), "9999-12-31 23:59:59 +0000");
        assert_eq!(date(253_402_300_799 + CYCLE), "10399-12-31 23:59:59 +0000");
        assert_eq!(date(-377_705_116_800), "-9999-01-01 00:00:00 +0000");
        assert_eq!(date(-377_705_116_800 - CYCLE), "-10399-01-01 00:00:00 +0000");
        zone.at(i64::MAX).to_string();
        zone.at(i64::MIN).to_string();
    }

    #[test]
    fn rules() {
        let berlin = zone("CET-1CEST,M3.5.0,M10.5.0/3");
        // `date -u -d @N` and TZ=Europe/Berlin agree on these: just before and after both changes of 2026.
        for (at, offset) in [
            (1_774_745_999, 3600),
            (1_774_746_000, 7200),
            (1_792_889_999, 7200),
            (1_792_890_000, 3600),
        ] {
            assert_eq!(berlin.offset(at), offset, "{at}");
            // As a rule says nothing about years, 20,000 years later it is the same.
            assert_eq!(berlin.offset(at + 50 * CYCLE), offset, "{at}, later");
        }
        let south = zone("<-03>3<-02>,M3.5.0/-2,M10.5.0/-1");
        assert_eq!(south.offset(1_767_225_600), -3 * 3600);
        assert_eq!(south.at(1_767_225_600).zone(), "-0300");
        assert_eq!(zone("UTC0").offset(1_767_225_600), 0);
    }
}
