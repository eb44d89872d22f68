//! The page of `filesystem du --html`: one file that loads nothing, with a tree map and a table.
//!
//! `page.html` is the page without its data: what it looks like and does is all there. Its data are entries in one flat list, a directory
//! before what is in it, as columns of JSON: the number of directories above each says where it belongs. Names are text of the data and are
//! never taken for anything else: nothing in them ends the element that they are in, and the page puts them into elements as text. What the
//! browser may run and apply is named by its SHA-256 (`Content-Security-Policy`); it may load and send nothing.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use buttress_codec::ChecksumKind;
use buttress_ondisk::SECTOR;

use super::fold::{Entry, Fold, Label, escaped, sectors};
use super::measure::{Found, What};
use crate::args::Globals;
use crate::error::{Failure, text};
use crate::interrupted::Removal;
use crate::vnode::{Session, Target};

const TEMPLATE: &str = include_str!("page.html");
/// What stands in the template where the policy and the data go.
const POLICY: &str = "@policy@";
const DATA: &str = "@data@";

/// Bytes of the data: as many as a browser reads in a moment, and some 100,000 entries.
const BUDGET: usize = 4 << 20;

/// A page that is being made.
pub struct Page {
    path: PathBuf,
    file: File,
    /// Whether this command has made the file, and has not written to it yet.
    is_left_over: bool,
    /// Takes a file that this command has made away when a signal ends it.
    _removal: Option<Removal>,
    fold: Fold,
    /// What is shared of each target.
    sets: Vec<u64>,
}

impl Page {
    /// Opens the file: what cannot be written is to be known before all is measured. It keeps what it has until the page is there.
    pub fn new(path: &Path, session: &Session<'_>, globals: &Globals) -> Result<Page, Failure> {
        let target = Target::destination(path.as_os_str(), globals);
        if let Target::Image { .. } = target {
            let why = "it is an image, or in one, and the page is to be a file of this machine";
            return Err(Failure::new("cannot write", target.shown(), why));
        }
        session.may_be_overwritten(&target)?;
        let is_left_over = !path.exists();
        let open = || OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let removal = is_left_over.then(Removal::watch);
        let file = match &removal {
            Some(removal) => removal.making(path, open),
            None => open(),
        };
        let file = file.map_err(|error| failure(path, &error))?;
        let (fold, sets) = (Fold::new(BUDGET), Vec::new());
        Ok(Page { path: path.into(), file, is_left_over, _removal: removal, fold, sets })
    }

    /// Takes in what was measured.
    pub fn add(&mut self, found: &Found<'_>) {
        self.fold.add(found);
        self.sets.extend(found.set_shared);
    }

    /// Writes the page.
    pub fn write(mut self) -> Result<(), Failure> {
        self.is_left_over = false;
        let fold = std::mem::replace(&mut self.fold, Fold::new(0));
        self.sets.reverse();
        let html = html(&fold.end(), &self.sets);
        let mut done = self.file.set_len(0).and_then(|()| self.file.rewind());
        done = done.and_then(|()| BufWriter::new(&self.file).write_all(html.as_bytes()));
        done.map_err(|error| failure(&self.path, &error))
    }
}

/// Nothing was measured: the file that was made for it goes.
impl Drop for Page {
    fn drop(&mut self) {
        if self.is_left_over {
            // It is empty, and of no use to anybody.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn failure(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new("cannot write", path.display(), text(error))
}

/// The whole page.
fn html(entries: &[Entry], sets: &[u64]) -> String {
    let html = TEMPLATE.replacen(POLICY, &policy(), 1);
    html.replacen(DATA, &data(entries, sets), 1)
}

/// What the browser may do: run and apply what stands in the template, and nothing else.
fn policy() -> String {
    let (script, style) = (hash(within("script")), hash(within("style")));
    format!(
        "default-src 'none'; script-src '{script}'; style-src '{style}'; base-uri 'none'; form-action 'none'"
    )
}

/// What stands in the one element of the template that has no attributes.
fn within(element: &str) -> &'static str {
    let rest = TEMPLATE.split_once(&format!("<{element}>")).map_or("", |(_, rest)| rest);
    rest.split_once(&format!("</{element}>")).map_or("", |(text, _)| text)
}

fn hash(text: &str) -> String {
    let digest = ChecksumKind::Sha256.digest(text.as_bytes());
    format!("sha256-{}", base64(digest.as_bytes()))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | usize::from(*three.get(at).unwrap_or(&0)));
        for digit in 0..4 {
            let value = DIGITS.get(bits >> (18 - 6 * digit) & 63).copied().unwrap_or(b'=');
            text.push(if digit <= three.len() { char::from(value) } else { '=' });
        }
    }
    text
}

/// The entries as columns.
fn data(entries: &[Entry], sets: &[u64]) -> String {
    let size = |bytes: u64| sectors(bytes).to_string();
    let column = |name: &str, show: &dyn Fn(&Entry) -> String| {
        let mut text = format!("\"{name}\":[");
        for (at, entry) in entries.iter().enumerate() {
            text.push_str(if at == 0 { "" } else { "," });
            text.push_str(&show(entry));
        }
        text + "]"
    };
    let kinds: String = entries.iter().map(|entry| kind(&entry.label)).collect();
    let sets: Vec<String> = sets.iter().map(|bytes| size(*bytes)).collect();
    let columns = [
        format!("\"unit\":{SECTOR},\"set\":[{}],\"kind\":\"{kinds}\"", sets.join(",")),
        column("depth", &|entry| entry.depth.to_string()),
        column("name", &|entry| match &entry.label {
            Label::Named(_, name) => escaped(name),
            Label::Smaller(count) => count.to_string(),
        }),
        column("total", &|entry| size(entry.sums.total)),
        column("shared", &|entry| size(entry.sums.shared)),
    ];
    format!("{{{}}}", columns.join(",\n"))
}

/// The letter of an entry's kind.
fn kind(label: &Label) -> char {
    match label {
        Label::Named(What::File, _) => 'f',
        Label::Named(What::Directory, _) => 'd',
        Label::Named(What::Subvolume, _) => 's',
        Label::Smaller(_) => 'm',
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::measure::Sums;
    use super::*;

    fn entry(depth: u32, label: Label, total: u64, shared: u64) -> Entry {
        Entry { depth, label, sums: Sums { total, shared } }
    }

    /// What a browser finds in the element of the data.
    fn found(html: &str) -> Value {
        let (_, rest) = html.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
        let (data, _) = rest.split_once("</script>").unwrap();
        serde_json::from_str(data).unwrap()
    }

    #[test]
    fn names_stay_data() {
        let bad = "</script><script>alert(1)</script><!--@data@";
        let file = Label::Named(What::File, bad.into());
        let top = Label::Named(What::Subvolume, "disk.img:/".into());
        let entries = [
            entry(0, top, 12288, 4096),
            entry(1, Label::Smaller(7), 4096, 0),
            entry(1, file, 8192, 4096),
        ];
        let html = html(&entries, &[4096]);
        assert!(!html.contains("<script>alert"));
        assert_eq!(html.matches("</script>").count(), TEMPLATE.matches("</script>").count());
        let expected = json!({
            "unit": 4096, "set": [1], "kind": "smf", "depth": [0, 1, 1],
            "name": ["disk.img:/", 7, bad], "total": [3, 1, 2], "shared": [1, 0, 1],
        });
        assert_eq!(found(&html), expected);
    }

    #[test]
    fn the_page_loads_nothing() {
        for part in [POLICY, DATA, "<style>", "</style>", "<script>"] {
            assert_eq!(TEMPLATE.matches(part).count(), 1, "{part}");
        }
        for part in
            ["http:", "https:", "src=", "href=", "url(", "@import", "import(", "innerHTML", "eval("]
        {
            assert!(!TEMPLATE.contains(part), "{part}");
        }
        assert!(within("script").len() > 1000 && within("style").len() > 1000);
        assert!(TEMPLATE.find(POLICY) < TEMPLATE.find("<style>"));
    }

    #[test]
    fn the_data_stay_within_their_budget() {
        let budget = 100_000;
        let mut fold = Fold::new(budget);
        for number in 0..20_000u64 {
            let name = "<".repeat(number as usize % 50) + "name";
            let total = 4096 * (number % 1000);
            fold.put(entry(2, Label::Named(What::File, name.into()), total, total));
            if number % 10 == 9 {
                let label = Label::Named(What::Directory, "\u{1}".repeat(20).into());
                fold.put(entry(1, label, 4096 * 10_000, 0));
            }
        }
        fold.put(entry(0, Label::Named(What::Directory, "top".into()), 1 << 60, 0));
        let data = data(&fold.end(), &[0]);
        assert!((budget * 3 / 4..=budget).contains(&data.len()), "{}", data.len());
    }

    #[test]
    fn base64_of_all_lengths() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v")] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }
}
