//! `chmod`: permission bits, in octal or in letters.

use std::ffi::OsString;
use std::io::Write;

use buttress_device::Access;
use buttress_ondisk::item::mode::{PERMISSIONS, SET_IDS, STICKY};
use clap::Args;

use super::files::{Failures, Tree, session};
use crate::args::Globals;
use crate::error::Failure;
use crate::vnode::{Facts, Kind, Target, Vnode, this_umask};

/// Arguments of `chmod`.
#[derive(Debug, Args)]
pub struct Chmod {
    /// Octal (755) or in letters (u+rwX,go-w)
    #[arg(allow_hyphen_values = true, value_parser = Mode::parse)]
    mode: Mode,
    /// DEVICE[:PATH] or a path on a live mount
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<OsString>,
    /// Directories with all that is in them
    #[arg(short = 'R', long)]
    recursive: bool,
}

/// Changes the bits.
pub fn run(args: &Chmod, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let mut failures = Failures::new(globals);
    let umask = this_umask();
    session(globals, Access::ReadWrite, |session| {
        for target in &args.targets {
            // A symbolic link has no bits of its own: what it leads to gets them.
            let done = session.find(&Target::any(target, globals), true).and_then(|vnode| {
                let tree = Tree::new("cannot change the mode of", args.recursive);
                tree.each(&vnode, &mut failures, out, &mut |vnode, facts, out| {
                    change(&args.mode, umask, vnode, facts, globals, out)
                })
            });
            failures.note(done, out)?;
        }
        Ok(())
    })?;
    failures.end()
}

fn change(
    mode: &Mode,
    umask: u32,
    vnode: &Vnode,
    facts: &Facts,
    globals: &Globals,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    if facts.kind == Kind::Symlink {
        return Ok(());
    }
    let new = mode.of(facts.mode, facts.kind == Kind::Directory, umask);
    vnode.set_mode(new).map_err(|why| vnode.failure("cannot change the mode of", why))?;
    if globals.talks_much() {
        writeln!(out, "{vnode}: {:04o} -> {new:04o}", facts.mode)?;
    }
    Ok(())
}

/// Which bits are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// These. A directory keeps its set-id bits unless all five digits were given.
    Octal {
        /// The bits.
        bits: u32,
        /// Whether there were five digits.
        all: bool,
    },
    /// Step by step.
    Steps(Vec<Step>),
}

/// One step: `u+x`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Whose bits, with the set-id or sticky bit that goes with the class; 0 for everybody's that the umask allows.
    who: u32,
    sign: u8,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    /// Letters.
    Letters { bits: u32, execute_if_any: bool },
    /// The bits that a class has now, as a shift.
    Class(u32),
}

impl Mode {
    fn parse(text: &str) -> Result<Mode, String> {
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            return match u32::from_str_radix(text, 8) {
                Ok(bits) if bits <= PERMISSIONS => Ok(Mode::Octal { bits, all: text.len() > 4 }),
                _ => Err("an octal number up to 7777 is wanted, such as 755".into()),
            };
        }
        let steps: Option<Vec<Vec<Step>>> = text.split(',').map(clause).collect();
        steps.map(|steps| Mode::Steps(steps.concat())).ok_or_else(|| {
            "wanted is an octal number, or letters as in u+rwX,go-w (ugoa, +-=, rwxXst or ugo)"
                .into()
        })
    }

    /// The bits of a file that had `old` ones.
    fn of(&self, old: u32, directory: bool, umask: u32) -> u32 {
        match self {
            Mode::Octal { bits, all: false } if directory => bits | old & SET_IDS,
            Mode::Octal { bits, .. } => *bits,
            Mode::Steps(steps) => {
                steps.iter().fold(old, |mode, step| step.apply(mode, directory, umask))
            }
        }
    }
}

/// One clause, between commas: whose bits, and one or more signs with letters.
fn clause(text: &str) -> Option<Vec<Step>> {
    let start = text.find(['+', '-', '='])?;
    let (names, mut rest) = text.split_at(start);
    let who = names.chars().try_fold(0, |who, name| Some(who | class(name)?))?;
    let mut steps = Vec::new();
    while let Some(sign) = rest.bytes().next() {
        let after = rest.get(1..)?;
        let end = after.find(['+', '-', '=']).unwrap_or(after.len());
        let (letters, next) = after.split_at(end);
        steps.push(Step { who, sign, what: what(letters)? });
        rest = next;
    }
    Some(steps)
}

fn class(name: char) -> Option<u32> {
    match name {
        'u' => Some(0o4700),
        'g' => Some(0o2070),
        'o' => Some(0o1007),
        'a' => Some(PERMISSIONS),
        _ => None,
    }
}

fn what(letters: &str) -> Option<What> {
    match letters {
        "u" => return Some(What::Class(6)),
        "g" => return Some(What::Class(3)),
        "o" => return Some(What::Class(0)),
        _ => {}
    }
    let (mut bits, mut execute_if_any) = (0, false);
    for letter in letters.chars() {
        match letter {
            'r' => bits |= 0o444,
            'w' => bits |= 0o222,
            'x' => bits |= 0o111,
            'X' => execute_if_any = true,
            's' => bits |= SET_IDS,
            't' => bits |= STICKY,
            _ => return None,
        }
    }
    Some(What::Letters { bits, execute_if_any })
}

impl Step {
    fn apply(&self, mode: u32, directory: bool, umask: u32) -> u32 {
        let allowed = if self.who == 0 { !umask } else { self.who };
        let named = match self.what {
            What::Class(shift) => (mode >> shift & 7) * 0o111,
            What::Letters { bits, .. } => bits,
        };
        // A directory's set-id bits are changed by those who name them, and by nobody else.
        let left = if directory { SET_IDS & !(named & allowed) } else { 0 };
        let execute = match self.what {
            What::Letters { execute_if_any: true, .. } if directory || mode & 0o111 != 0 => 0o111,
            _ => 0,
        };
        let bits = (named | execute) & allowed & !left;
        match self.sign {
            b'+' => mode | bits,
            b'-' => mode & !bits,
            _ if self.who == 0 => mode & left | bits,
            _ => mode & (!self.who | left) | bits,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    const SPECS: [&str; 33] = [
        "644",
        "0755",
        "4711",
        "02770",
        "00755",
        "1777",
        "u+x",
        "go-rwx",
        "a=rx",
        "=",
        "+x",
        "-w",
        "+t",
        "u=rwx,g=rx,o=",
        "ug+s",
        "u-s",
        "g=u",
        "o=g",
        "o+u",
        "a+X",
        "u=rwX,go=rX",
        "g+s,o-t",
        "u+r-w+x",
        "a=",
        "=rw",
        "g=",
        "u=",
        "o=t",
        "+s",
        "=s",
        "a-s",
        "u+x,g=u-w",
        "u+t",
    ];

    #[test]
    fn modes_change_as_chmod_changes_them() {
        let version = Command::new("chmod").arg("--version").output();
        if !version.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains("GNU")) {
            println!("skipped: another chmod");
            return;
        }
        let place = tempfile::TempDir::new().unwrap();
        let paths = [place.path().join("directory"), place.path().join("file")];
        fs::create_dir(&paths[0]).unwrap();
        fs::write(&paths[1], "").unwrap();
        for start in [0o644, 0o755, 0o6751, 0o7000, 0o000, 0o2755] {
            for spec in SPECS {
                for path in &paths {
                    fs::set_permissions(path, Permissions::from_mode(start)).unwrap();
                }
                // With - it complains of what the umask keeps, and has done the rest.
                Command::new("chmod").args(["-f", "--", spec]).args(&paths).output().unwrap();
                for path in &paths {
                    let want = fs::metadata(path).unwrap().permissions().mode() & 0o7777;
                    let mode = Mode::parse(spec).unwrap();
                    let got = mode.of(start, path.is_dir(), this_umask());
                    assert_eq!(got, want, "{start:04o} {spec}: {got:04o}, {want:04o} is right");
                }
            }
        }
    }

    #[test]
    fn what_is_no_mode() {
        for text in ["", "8", "78", "10000000", "u", "u+q", "z+r", "rwx", "+,", ",", "u+r,", "u+ux"]
        {
            assert!(Mode::parse(text).is_err(), "{text:?}");
        }
        assert_eq!(Mode::parse("00755"), Ok(Mode::Octal { bits: 0o755, all: true }));
    }
}
