//! How results look: text as btrfs-progs prints it, or JSON with its header.

use std::io::{self, Write};

use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::args::Globals;

/// Text for people (and for scripts that know btrfs-progs), or JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Lines of text.
    #[default]
    Text,
    /// One JSON object with a `__header`.
    Json,
}

/// A value under its name beside the header that every JSON output begins with.
pub fn with_header(name: &str, value: Value) -> Value {
    let mut top = Map::new();
    top.insert("__header".into(), json!({ "version": "1" }));
    top.insert(name.into(), value);
    beside(Value::Object(top))
}

/// Writes the whole JSON output of a command.
pub fn write_json(out: &mut dyn Write, name: &str, value: Value) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &with_header(name, value))?;
    writeln!(out)
}

/// The same for what a command has done, or found, with each of its operands: nothing where all have failed, which is said already.
pub fn write_json_of_operands(out: &mut dyn Write, name: &str, all: Vec<Value>) -> io::Result<()> {
    if all.is_empty() { Ok(()) } else { write_json(out, name, all.into()) }
}

/// The JSON output of a command that lists, written as it comes: there may be more of it than memory has room for.
#[derive(Debug)]
pub struct JsonList {
    name: &'static str,
    /// What stands before the list in an object, and the name that the list has there.
    within: Option<(Value, &'static str)>,
    begun: bool,
}

impl JsonList {
    /// A list under its name; nothing is written yet.
    pub fn new(name: &'static str) -> JsonList {
        JsonList { name, within: None, begun: false }
    }

    /// A list under a name of its own within the object that has the name, behind all members of another object.
    pub fn within(name: &'static str, object: Value, list: &'static str) -> JsonList {
        JsonList { name, within: Some((object, list)), begun: false }
    }

    /// Writes an element.
    pub fn push(&mut self, out: &mut dyn Write, value: Value) -> io::Result<()> {
        let before = match self.begun {
            true => ",".to_owned(),
            false => self.head(),
        };
        self.begun = true;
        let text = serde_json::to_string_pretty(&beside(value))?;
        write!(out, "{before}\n    {}", text.replace('\n', "\n    "))
    }

    /// Writes the end, and the beginning where nothing was written; not after a failure before anything was.
    pub fn end(self, out: &mut dyn Write, failed: bool) -> io::Result<()> {
        let close = if self.within.is_some() { "}" } else { "" };
        match (self.begun, failed) {
            (true, _) => writeln!(out, "\n  ]{close}\n}}"),
            (false, true) => Ok(()),
            (false, false) => writeln!(out, "{}]{close}\n}}", self.head()),
        }
    }

    fn head(&self) -> String {
        let header = json!({ "version": "1" });
        let before = match &self.within {
            None => String::new(),
            Some((object, list)) => {
                let object = object.to_string();
                let members = object.strip_suffix('}').unwrap_or(&object);
                let comma = if members == "{" { "" } else { "," };
                format!("{members}{comma}{}:", Value::from(*list))
            }
        };
        format!("{{\n  \"__header\": {header},\n  {}: {before}[", Value::from(self.name))
    }
}

/// Figures by name, as lines of text or as an object.
pub fn write_figures(
    out: &mut dyn Write,
    format: Format,
    figures: &[(String, u64)],
) -> io::Result<()> {
    if format == Format::Json {
        let object: Map<String, Value> =
            figures.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        return write_json(out, "stats", object.into());
    }
    figures.iter().try_for_each(|(name, value)| writeln!(out, "{name:<28}{value:>16}"))
}

/// What `--stats` adds at the end, on standard error: results stay as they are.
pub fn say_stats(globals: &Globals, figures: &[(String, u64)]) {
    if globals.stats {
        // Nobody could be told that it cannot be written.
        let _ = write_figures(&mut io::stderr().lock(), globals.format, figures);
    }
}

/// A uuid for JSON: null for the zero uuid, which means none.
pub fn uuid_json(uuid: Uuid) -> Value {
    if uuid.is_nil() { Value::Null } else { Value::String(uuid.to_string()) }
}

/// Bytes of a name for JSON. What is no UTF-8 is replaced, and all bytes are in hexadecimal beside it: a member `name` is
/// followed by `name_hex`, and in an array stands an object of `text` and `hex`.
pub fn text_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => Value::String(text.to_owned()),
        Err(_) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            json!({ TEXT: String::from_utf8_lossy(bytes), HEX: hex })
        }
    }
}

const TEXT: &str = "text";
const HEX: &str = "hex";

/// Puts the bytes of what [`text_json`] made beside its text, everywhere in a value.
fn beside(value: Value) -> Value {
    match value {
        Value::Array(list) => list.into_iter().map(beside).collect(),
        Value::Object(members) if is_text(&members) => Value::Object(members),
        Value::Object(members) => {
            let mut all = Map::new();
            for (name, value) in members {
                match value {
                    Value::Object(mut text) if is_text(&text) => {
                        let hex = text.remove(HEX).unwrap_or_default();
                        all.insert(name.clone(), text.remove(TEXT).unwrap_or_default());
                        all.insert(format!("{name}_{HEX}"), hex);
                    }
                    other => {
                        all.insert(name, beside(other));
                    }
                }
            }
            Value::Object(all)
        }
        other => other,
    }
}

fn is_text(members: &Map<String, Value>) -> bool {
    members.len() == 2 && members.contains_key(TEXT) && members.contains_key(HEX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_comes_in_pieces() {
        for len in 0..3 {
            let (mut list, mut out) = (JsonList::new("ls"), Vec::new());
            for number in 0..len {
                list.push(&mut out, json!({ "number": number, "deep": [1] })).unwrap();
            }
            list.end(&mut out, false).unwrap();
            let value: Value = serde_json::from_slice(&out).unwrap();
            assert_eq!(value["__header"]["version"], "1");
            assert_eq!(value["ls"].as_array().unwrap().len(), len);
        }
        let mut out = Vec::new();
        JsonList::new("ls").end(&mut out, true).unwrap();
        assert!(out.is_empty());
    }

    #[test]
    fn names_that_are_no_text_keep_their_bytes() {
        let value = json!({
            "good": text_json("Grüße".as_bytes()),
            "bad": text_json(b"a\xff"),
            "list": [text_json(b"x"), text_json(b"\xfe")],
            "deep": [{ "bad": text_json(b"\x80") }],
        });
        let want = json!({
            "good": "Grüße",
            "bad": "a\u{fffd}",
            "bad_hex": "61ff",
            "list": ["x", { "text": "\u{fffd}", "hex": "fe" }],
            "deep": [{ "bad": "\u{fffd}", "bad_hex": "80" }],
        });
        assert_eq!(beside(value), want);
        let top = with_header("label", text_json(b"\xff"));
        assert_eq!(top["label_hex"], "ff");
    }
}
