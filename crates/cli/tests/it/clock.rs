//! Times of files, in the zone that `TZ` names, against what date(1) says.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use crate::run::{Place, Said, command_as};

/// Berlin's time is not UTC's in any part of the year.
const BERLIN: &str = "/usr/share/zoneinfo/Europe/Berlin";
/// January and July of 2026.
const MOMENTS: [u64; 2] = [1_768_478_400, 1_784_116_800];

fn in_zone(mut command: Command, zone: Option<&OsStr>) -> String {
    match zone {
        Some(zone) => command.env("TZ", zone),
        None => command.env_remove("TZ"),
    };
    let said = Said::of(command.output().unwrap());
    assert_eq!(said.code, 0, "{zone:?}: {}", said.err);
    said.text()
}

/// Date and time to the minute of a moment, by date(1).
fn expected(moment: u64, zone: Option<&OsStr>) -> String {
    let mut command = Command::new("date");
    command.args(["-d", &format!("@{moment}"), "+%Y-%m-%d %H:%M"]);
    in_zone(command, zone).trim().to_owned()
}

/// Copies of a zone's file, whole and cut short; none where there is no such file.
fn copies(place: &Place) -> Vec<OsString> {
    let Ok(bytes) = std::fs::read(BERLIN) else {
        println!("skipped: zone files, as none are installed");
        return Vec::new();
    };
    let copy = |name: &str, bytes: &[u8]| {
        let path = place.join(name);
        std::fs::write(&path, bytes).unwrap();
        path.into_os_string()
    };
    let whole = copy("copy", &bytes);
    let mut zones = vec![OsString::from(":"), whole.clone(), copy("cut", &bytes[..100])];
    zones[0].push(&whole);
    zones.extend(["Europe/Berlin", ":Europe/Berlin", BERLIN].map(OsString::from));
    let other = "posix/Europe/Berlin";
    match Path::new("/usr/share/zoneinfo").join(other).exists() {
        true => zones.extend([other.into(), format!(":{other}").into()]),
        false => println!("skipped: {other} is not installed"),
    }
    zones
}

#[test]
fn local_time_is_what_date_says() {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    for moment in MOMENTS {
        let file = std::fs::File::create(place.join(&moment.to_string())).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(moment)).unwrap();
        place.ok(&format!("cp -a {moment} disk.img:/"));
    }
    let mut zones = copies(&place);
    let others = ["", ":", "Foo/Bar", "UTC", "CET-1CEST,M3.5.0,M10.5.0/3", "<+0530>-5:30"];
    zones.extend(others.map(OsString::from));
    zones.push(OsStr::from_bytes(b"a\xff").to_owned());
    let zones = zones.iter().map(|zone| Some(zone.as_os_str()));
    for zone in zones.chain([None]) {
        let listed =
            in_zone(command_as("buttress", place.path(), &["ls", "-l", "disk.img:/"]), zone);
        for moment in MOMENTS {
            let name = format!(" {moment}");
            let line = listed.lines().find(|line| line.ends_with(&name)).unwrap();
            let expected = expected(moment, zone);
            assert!(line.contains(&expected), "{zone:?}: {expected} in {line}");
        }
    }
}
