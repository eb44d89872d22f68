//! Failures: what was tried, where, why it did not work, and what to do next.
//!
//! As text: `buttress: <what> <where>: <why>`, and where there is good advice a second line with it. As JSON the same
//! members by name, one object on one line. No control character of a name gets into the text.

use std::fmt::{self, Display};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering};

use serde_json::json;

use crate::output::{self, Format};
use crate::quote::harmless;

/// Why a command did not do all it was asked to.
#[derive(Debug, thiserror::Error)]
pub struct Failure {
    /// What was tried: `cannot open`.
    what: String,
    /// Where: a device, a path; empty when there is no place.
    place: String,
    /// Why not.
    why: String,
    /// What to do next.
    hint: Option<String>,
    code: u8,
    /// The exit code under the names of btrfs-progs, where that is another one.
    code_of_progs: Option<u8>,
    /// How many files were copied, and how many could not be.
    counts: Option<Box<(u64, u64)>>,
    broken_pipe: bool,
    said: bool,
}

/// Exit code of a command that was not understood; see [`usage_code`].
pub const USAGE: u8 = 2;

static USAGE_CODE: AtomicU8 = AtomicU8::new(USAGE);

/// The exit code of a command that was not understood, under the name we were called by.
pub fn usage_code() -> u8 {
    USAGE_CODE.load(Ordering::Relaxed)
}

/// Where we stand in for a tool that ends with 1 whatever went wrong, so do we.
pub fn usage_is_failure() {
    USAGE_CODE.store(1, Ordering::Relaxed);
}

impl Failure {
    /// `buttress: <what> <place>: <why>`, exit code 1.
    pub fn new(what: impl Into<String>, place: impl Display, why: impl Display) -> Failure {
        Failure {
            what: what.into(),
            place: place.to_string(),
            why: without_numbers(&why.to_string()),
            hint: None,
            code: 1,
            code_of_progs: None,
            counts: None,
            broken_pipe: false,
            said: false,
        }
    }

    /// A command whose words make no sense together, exit code 2.
    pub fn usage(what: impl Into<String>, why: impl Display) -> Failure {
        Failure { code: USAGE, ..Failure::new(what, "", why) }
    }

    /// Some of several files could not be copied.
    pub fn not_all_copied(copied: u64, failed: u64) -> Failure {
        let failure = Failure::new("not all was copied", "", counted(copied, failed));
        Failure { counts: Some((copied, failed).into()), ..failure }
    }

    /// A signal has ended a command between two files; the exit code is the one that shells give for it.
    pub fn interrupted(signal: u8, copied: u64, failed: u64) -> Failure {
        let failure = Failure::new("interrupted", "", counted(copied, failed));
        let code = signal.saturating_add(128);
        Failure { code, counts: Some((copied, failed).into()), ..failure }
    }

    /// A failure whose parts have been said one by one already.
    pub fn said() -> Failure {
        Failure { said: true, ..Failure::new("", "", "") }
    }

    /// With another exit code under the names of btrfs-progs.
    pub fn or_of_progs(self, code: u8) -> Failure {
        Failure { code_of_progs: Some(code), ..self }
    }

    /// The same with an exit code that says something of its own.
    pub fn said_with(code: u8) -> Failure {
        Failure { code, ..Failure::said() }
    }

    /// Whether nothing is left to say.
    pub fn is_said(&self) -> bool {
        self.said
    }

    /// Whether the reason is a certain system error.
    pub fn is_about(&self, errno: rustix::io::Errno) -> bool {
        self.why == text(&errno.into())
    }

    /// With a line that says what to do next.
    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// With a line that says what to do next, where there is none yet that knows more.
    pub fn or_hint(self, hint: &str) -> Failure {
        if self.hint.is_some() { self } else { self.hint(hint) }
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self.code_of_progs.filter(|_| usage_code() != USAGE) {
            Some(code) => code,
            None if self.code == USAGE => usage_code(),
            None => self.code,
        }
    }

    /// Whether the reader of our output went away.
    pub fn is_broken_pipe(&self) -> bool {
        self.broken_pipe
    }

    /// Says it on standard error.
    pub fn say(&self, format: Format) {
        let text = match format {
            Format::Text => self.text(),
            Format::Json => self.json(),
        };
        // Without standard error there is nobody to tell.
        let _nobody_listens = io::stderr().write_all(text.as_bytes());
    }

    /// The lines for standard error.
    pub fn text(&self) -> String {
        match &self.hint {
            None => format!("buttress: {self}\n"),
            Some(hint) => format!("buttress: {self}\n  {}\n", harmless(hint)),
        }
    }

    /// The line for standard error with `--format json`.
    pub fn json(&self) -> String {
        let mut error = json!({
            "what": self.what,
            "where": self.place,
            "why": self.why,
            "hint": self.hint,
            "message": self.to_string(),
            "code": self.code(),
        });
        if let Some((copied, failed)) = self.counts.as_deref() {
            error["copied"] = (*copied).into();
            error["not_copied"] = (*failed).into();
        }
        format!("{}\n", output::with_header("error", error))
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&harmless(&self.what))?;
        if !self.place.is_empty() {
            write!(f, " {}", harmless(&self.place))?;
        }
        // Causes that name the place themselves need not hear it twice.
        let why = self.why.strip_prefix(&format!("{}: ", self.place)).unwrap_or(&self.why);
        write!(f, ": {}", harmless(why))
    }
}

fn counted(copied: u64, failed: u64) -> String {
    let copied = match copied {
        1 => "1 file was copied".to_owned(),
        many => format!("{many} files were copied"),
    };
    if failed == 0 { copied } else { format!("{copied}, {failed} could not be") }
}

/// Only writing results fails with a bare I/O error; everything else says what and where.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        let broken_pipe = error.kind() == io::ErrorKind::BrokenPipe;
        Failure { broken_pipe, ..Failure::new("cannot write", "standard output", text(&error)) }
    }
}

/// Without the numbers of system errors, which say nothing that the words do not.
pub fn without_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut words = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                words.push_str(rest);
            }
            _ => {
                words.push_str(" (os error ");
                words.push_str(part);
            }
        }
    }
    words
}

/// The system's words for an error, without its number: `No such file or directory`.
pub fn text(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error ") {
        Some((words, _)) => words.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_where_why() {
        let failure = Failure::new("cannot open", "disk.img", "No such file or directory");
        assert_eq!(failure.text(), "buttress: cannot open disk.img: No such file or directory\n");
        let failure = Failure::new("cannot open", "disk.img", "disk.img: not supported");
        assert_eq!(failure.to_string(), "cannot open disk.img: not supported");
        let hinted = Failure::usage("cannot copy", "no target").hint("name one");
        assert_eq!(hinted.text(), "buttress: cannot copy: no target\n  name one\n");
        assert_eq!(hinted.code(), 2);
    }

    #[test]
    fn json_is_one_line() {
        let line = Failure::new("cannot open", "a", "b").json();
        assert_eq!(line.matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["error"]["where"], "a");
    }

    #[test]
    fn system_errors_lose_their_numbers() {
        let error = io::Error::from_raw_os_error(2);
        assert_eq!(text(&error), "No such file or directory");
        let failure =
            Failure::new("cannot copy", "a", "write of 5 bytes: no (os error 28); b (os error x)");
        assert_eq!(failure.to_string(), "cannot copy a: write of 5 bytes: no; b (os error x)");
    }
}
