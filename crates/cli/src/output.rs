//! How results look: text as btrfs-progs prints it, or JSON with its header.

use std::io::{self, Write};

use serde_json::{Map, Value, json};
use uuid::Uuid;

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
    Value::Object(top)
}

/// Writes the whole JSON output of a command.
pub fn write_json(out: &mut dyn Write, name: &str, value: Value) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &with_header(name, value))?;
    writeln!(out)
}

/// A uuid for JSON: null for the zero uuid, which means none.
pub fn uuid_json(uuid: Uuid) -> Value {
    if uuid.is_nil() { Value::Null } else { Value::String(uuid.to_string()) }
}

/// Bytes of a name for JSON; what is no UTF-8 is replaced.
pub fn text_json(bytes: &[u8]) -> Value {
    Value::String(String::from_utf8_lossy(bytes).into_owned())
}
