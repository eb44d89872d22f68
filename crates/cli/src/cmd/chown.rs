//! `chown`: owner and group, by name or by number.
//!
//! Names are those of this machine, as `chown` takes them: what an image calls its users is in a file of its own, which need
//! not be there. Numbers always mean the same.

use std::ffi::OsString;
use std::io::Write;
use std::process::Command;

use buttress_device::Access;
use clap::Args;

use super::files::{Failures, Tree, session};
use crate::args::Globals;
use crate::error::Failure;
use crate::vnode::{Facts, Target, Vnode};

/// Arguments of `chown`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Chown {
    /// USER, USER:GROUP, USER: (with the user's own group) or :GROUP, by name or by number
    #[arg(value_name = "[USER][:GROUP]")]
    owner: String,
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<OsString>,
    /// Directories with all that is in them, symbolic links themselves
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Symbolic links themselves, not what they lead to
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// Changes owner and group.
pub fn run(args: &Chown, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let owner = Owner::understand(&args.owner)
        .map_err(|why| Failure::usage("cannot change owners", why))?;
    let mut failures = Failures::new(globals);
    session(globals, Access::ReadWrite, |session| {
        for target in &args.targets {
            let follow = !(args.no_dereference || args.recursive);
            let done = session.find(&Target::any(target, globals), follow).and_then(|vnode| {
                let tree = Tree::new("cannot change the owner of", args.recursive);
                tree.each(&vnode, &mut failures, out, &mut |vnode, facts, out| {
                    change(owner, vnode, facts, globals, out)
                })
            });
            failures.note(done, out)?;
        }
        Ok(())
    })?;
    failures.end()
}

fn change(
    owner: Owner,
    vnode: &Vnode,
    facts: &Facts,
    globals: &Globals,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    vnode
        .set_owner(owner.uid, owner.gid)
        .map_err(|why| vnode.failure("cannot change the owner of", why))?;
    if globals.talks_much() {
        let (uid, gid) = (owner.uid.unwrap_or(facts.uid), owner.gid.unwrap_or(facts.gid));
        writeln!(out, "{vnode}: {}:{} -> {uid}:{gid}", facts.uid, facts.gid)?;
    }
    Ok(())
}

/// Who it is to belong to; what is not given stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Owner {
    uid: Option<u32>,
    gid: Option<u32>,
}

impl Owner {
    fn understand(text: &str) -> Result<Owner, String> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let mut owner = Owner::default();
        if !user.is_empty() {
            let known = known("passwd", user);
            owner.uid = Some(
                match &known {
                    Some(fields) => number(fields.get(2)),
                    None => plain_number(user),
                }
                .ok_or_else(|| format!("there is no user {user}"))?,
            );
            if group == Some("") {
                let login = known.as_ref().and_then(|fields| number(fields.get(3)));
                owner.gid = Some(login.ok_or_else(|| format!("user {user} has no known group"))?);
            }
        }
        if let Some(group) = group.filter(|group| !group.is_empty()) {
            let found = match known("group", group) {
                Some(fields) => number(fields.get(2)),
                None => plain_number(group),
            };
            owner.gid = Some(found.ok_or_else(|| format!("there is no group {group}"))?);
        }
        Ok(owner)
    }
}

/// Understands `UID:GID`, as numbers or names, where both are needed.
pub fn whole_owner(text: &str) -> Result<(u32, u32), String> {
    let owner = Owner::understand(text)?;
    owner.uid.zip(owner.gid).ok_or_else(|| "it takes a user and a group: UID:GID".into())
}

fn number(field: Option<&String>) -> Option<u32> {
    field?.parse().ok()
}

/// A number that is no name; with a plus before it is never one. The highest one means nobody.
fn plain_number(text: &str) -> Option<u32> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|number| plain && *number != u32::MAX)
}

/// What this machine knows of a user or group: the fields of its line, from its own files or from wherever else it asks.
fn known(database: &str, name: &str) -> Option<Vec<String>> {
    let line_of = |text: &str| {
        let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
        text.lines().map(fields).find(|fields| fields.first().is_some_and(|first| first == name))
    };
    let file = std::fs::read(format!("/etc/{database}")).unwrap_or_default();
    line_of(&String::from_utf8_lossy(&file)).or_else(|| {
        // Numbers are asked for nowhere: a number is not who it stands for.
        plain_number(name).is_none().then_some(())?;
        let asked = Command::new("getent").args([database, name]).output().ok()?;
        line_of(&String::from_utf8_lossy(&asked.stdout))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_needed() {
        assert_eq!(whole_owner("12:34"), Ok((12, 34)));
        assert_eq!(whole_owner("root:root"), Ok((0, 0)));
        for bad in ["", "1", "1:", ":1", "nobody-of-that-name:1", "-1:1", "4294967295:1"] {
            assert!(whole_owner(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn owners_by_name_and_number() {
        let owner = |uid, gid| Ok(Owner { uid, gid });
        assert_eq!(Owner::understand("1234"), owner(Some(1234), None));
        assert_eq!(Owner::understand("+0:+5"), owner(Some(0), Some(5)));
        assert_eq!(Owner::understand(":77"), owner(None, Some(77)));
        assert_eq!(Owner::understand("root:0"), owner(Some(0), Some(0)));
        assert_eq!(Owner::understand("root:"), owner(Some(0), Some(0)));
        assert_eq!(Owner::understand(":"), owner(None, None));
        for text in ["nobody knows him", "4294967295", "-1", "99999999999", "+", "4711x:1"] {
            assert!(Owner::understand(text).is_err(), "{text}");
        }
    }
}
