//! Names on their way to people: whatever an image calls its files, no escape sequence of it reaches a terminal.
//!
//! Where standard output is a terminal, names are quoted for the shell as `ls` does it, and all other text has its control
//! characters replaced. In a pipe names are the bytes that they are. Messages quote names that could not be told from what
//! they are not, wherever they go.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

/// Whether standard output is a terminal.
pub fn for_terminal() -> bool {
    static IS: OnceLock<bool> = OnceLock::new();
    *IS.get_or_init(|| io::stdout().is_terminal())
}

/// Writes a name: its bytes, on a terminal as [`shell`] quotes them.
pub fn write_name(out: &mut dyn Write, name: &[u8]) -> io::Result<()> {
    match for_terminal() {
        true => out.write_all(shell(name).as_bytes()),
        false => out.write_all(name),
    }
}

/// A name in a message: as it is where that is harmless, otherwise quoted.
pub fn shown(name: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(name) {
        Ok(text) if text.chars().all(is_printable) => Cow::Borrowed(text),
        _ => Cow::Owned(quoted(name)),
    }
}

/// A name as a shell takes it, as `ls` writes it on a terminal.
pub fn shell(name: &[u8]) -> Cow<'_, str> {
    let Ok(text) = std::str::from_utf8(name) else { return Cow::Owned(quoted(name)) };
    let special = |c: char| " !\"$&'()*;<=>?[\\]^`{|}".contains(c);
    match () {
        _ if !text.chars().all(is_printable) => Cow::Owned(quoted(name)),
        _ if text.is_empty() || text.starts_with(['~', '#']) || text.contains(special) => {
            match text.contains('\'') && !text.contains(['"', '$', '`', '\\', '!']) {
                true => Cow::Owned(format!("\"{text}\"")),
                false => Cow::Owned(quoted(name)),
            }
        }
        _ => Cow::Borrowed(text),
    }
}

/// In single quotes, with `$'...'` for what cannot be printed.
fn quoted(name: &[u8]) -> String {
    let mut text = String::from("'");
    let mut plain = true;
    // Between quotes of one kind and the other.
    let turn = |text: &mut String, plain: &mut bool, to: bool| {
        if *plain != to {
            text.push_str(if to { "''" } else { "'$'" });
            *plain = to;
        }
    };
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            let printable = is_printable(c);
            turn(&mut text, &mut plain, printable);
            match c {
                '\'' => text.push_str("'\\''"),
                c if printable => text.push(c),
                c => escape(&mut text, c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        if !chunk.invalid().is_empty() {
            turn(&mut text, &mut plain, false);
            escape(&mut text, chunk.invalid());
        }
    }
    text.push('\'');
    text
}

fn escape(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        match byte {
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            b'\r' => text.push_str("\\r"),
            byte => {
                // Writing to a string does not fail.
                let _ = write!(text, "\\{byte:03o}");
            }
        }
    }
}

/// Whether a terminal shows it as a character, in its place: no control character, none that turns the direction of others.
fn is_printable(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Text without control characters: those are escaped.
pub fn harmless(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_printable) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_printable(c) {
            true => safe.push(c),
            false => escape(&mut safe, c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Cow::Owned(safe)
}

/// Writes text for a terminal: lines stay lines, and control characters and what is no UTF-8 are escaped.
pub struct Printable<W> {
    inner: W,
    /// The beginning of a character whose end has not come yet.
    begun: Vec<u8>,
}

impl<W: Write> Printable<W> {
    /// Before a writer.
    pub fn new(inner: W) -> Printable<W> {
        Printable { inner, begun: Vec::new() }
    }

    /// Writes `bytes` but for a beginning of a character at their end, which is kept.
    fn pass(&mut self, bytes: &[u8], last: bool) -> io::Result<()> {
        let mut safe = String::with_capacity(bytes.len());
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            for c in chunk.valid().chars() {
                match c {
                    '\n' | '\t' => safe.push(c),
                    c if is_printable(c) => safe.push(c),
                    c => escape(&mut safe, c.encode_utf8(&mut [0; 4]).as_bytes()),
                }
            }
            let invalid = chunk.invalid();
            let goes_on = !last && chunks.peek().is_none() && is_beginning(invalid);
            match goes_on {
                true => self.begun = invalid.to_vec(),
                false => escape(&mut safe, invalid),
            }
        }
        self.inner.write_all(safe.as_bytes())
    }
}

/// Whether more bytes could make a character of these.
fn is_beginning(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

impl<W: Write> Write for Printable<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = std::mem::take(&mut self.begun);
        match all.is_empty() {
            true => self.pass(bytes, false)?,
            false => {
                all.extend_from_slice(bytes);
                self.pass(&all, false)?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let begun = std::mem::take(&mut self.begun);
        self.pass(&begun, true)?;
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_ls_quotes_them() {
        let cases: [(&[u8], &str); 12] = [
            (b"plain-name.txt", "plain-name.txt"),
            ("Grüße".as_bytes(), "Grüße"),
            (b"a b", "'a b'"),
            (b"it's", "\"it's\""),
            (b"it's $5", r"'it'\''s $5'"),
            (b"~root", "'~root'"),
            (b"a~#", "a~#"),
            (b"\x1b[31mred", r"''$'\033''[31mred'"),
            (b"a\nb\t", r"'a'$'\n''b'$'\t'"),
            (b"\xff\xfe", r"''$'\377\376'"),
            (b"x\xc2\x9b", r"'x'$'\302\233'"),
            (b"", "''"),
        ];
        for (name, want) in cases {
            assert_eq!(shell(name), want);
        }
        assert_eq!(shown(b"a b"), "a b");
        assert_eq!(shown(b"a\x1b"), r"'a'$'\033'");
        assert_eq!(harmless("a\x1b\u{9b}b"), r"a\033\302\233b");
    }

    #[test]
    fn what_comes_in_pieces_is_one_text() {
        let mut out = Vec::new();
        let mut printable = Printable::new(&mut out);
        let text = "Gr\u{fc}\u{df}e\x1b]0;x\x07\n\t\u{1f600}".as_bytes();
        for byte in text {
            printable.write_all(&[*byte]).unwrap();
        }
        printable.write_all(b"\xff\xf0\x9f").unwrap();
        printable.flush().unwrap();
        let want = "Grüße\\033]0;x\\007\n\t\u{1f600}\\377\\360\\237";
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }
}
