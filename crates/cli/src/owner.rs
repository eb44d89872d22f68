//! Users and groups as people write them: numbers, or names of this machine.

use std::path::Path;

/// Understands `UID:GID`, each a number or a name.
pub fn parse_owner(text: &str) -> Result<(u32, u32), String> {
    let (user, group) = text.split_once(':').ok_or("it takes a user and a group: UID:GID")?;
    let user =
        id(user, Path::new("/etc/passwd")).ok_or(format!("no user {user:?} is known here"))?;
    let group =
        id(group, Path::new("/etc/group")).ok_or(format!("no group {group:?} is known here"))?;
    Ok((user, group))
}

/// A number, or the number of a name in a file like `/etc/passwd`: the third word between colons.
fn id(text: &str, names: &Path) -> Option<u32> {
    if let Ok(number) = text.parse() {
        return Some(number).filter(|it| *it != u32::MAX);
    }
    let names = std::fs::read_to_string(names).ok()?;
    let mut lines = names.lines().map(|line| line.split(':'));
    lines.find_map(|mut words| (words.next() == Some(text)).then(|| words.nth(1)?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::parse_owner;

    #[test]
    fn numbers_and_names() {
        assert_eq!(parse_owner("12:34"), Ok((12, 34)));
        assert_eq!(parse_owner("root:root"), Ok((0, 0)));
        assert_eq!(parse_owner("root:7"), Ok((0, 7)));
        for bad in ["", "1", "1:", ":1", "nobody-of-that-name:1", "-1:1", "4294967295:1"] {
            assert!(parse_owner(bad).is_err(), "{bad}");
        }
    }
}
