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
    Value::Object(top)
}

/// Writes the whole JSON output of a command.
pub fn write_json(out: &mut dyn Write, name: &str, value: Value) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &with_header(name, value))?;
    writeln!(out)
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

/// Bytes of a name for JSON; what is no UTF-8 is replaced.
pub fn text_json(bytes: &[u8]) -> Value {
    Value::String(String::from_utf8_lossy(bytes).into_owned())
}
