//! The largest of many entries, within a budget of bytes; what is small is folded.
//!
//! Entries come as they are measured: what is in a directory before the directory, each with the number of directories above it. That order
//! and those numbers are the tree; nothing else of it is kept. An entry that is left out is added to a remainder of its directory, with all
//! that was below it, so that sums stay what they are.
//!
//! **Which are kept.** Those with most bytes, of equal ones the higher and then the earlier, as many as fit. A directory has no fewer bytes
//! than what is in it, so it is never left out before its content. Targets stay in any case.
//!
//! **When.** Whenever there are twice as many as fit. An entry that is left out then would be so at the end: those that have kept it out are
//! still there, and a directory that is not finished only grows. So what is kept does not depend on when it was decided, memory is for some
//! budgets, however many files there are, and time is linear but for the sorting of what fits.

use buttress_ondisk::SECTOR;

use super::measure::{Found, Sums, What};
use crate::quote;

/// Bytes of an entry for its kind, and for what stands behind each member.
const FRAME: usize = 5;
/// Digits of how many are left out of a directory: no filesystem has so many files.
const COUNT_DIGITS: usize = 10;

/// What an entry of the page is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Label {
    /// A file or directory under its name, as it is shown.
    Named(What, Box<str>),
    /// So many files and directories that are left out.
    Smaller(u64),
}

/// An entry of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// How many directories below its target it is.
    pub depth: u32,
    /// What it is.
    pub label: Label,
    /// What it takes, with all below it.
    pub sums: Sums,
}

impl Entry {
    /// What is left out of a directory whose entries have this depth.
    fn smaller(depth: usize, rest: &Rest) -> Entry {
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        Entry { depth, label: Label::Smaller(rest.count), sums: rest.sums }
    }

    /// Bytes that it takes in a page, at most; of a directory with those of the remainder that it may get.
    fn cost(&self) -> usize {
        let sizes = digits(sectors(self.sums.total)) + digits(sectors(self.sums.shared));
        let numbers = FRAME + sizes + digits(u64::from(self.depth) + 1);
        match &self.label {
            Label::Smaller(_) => 0,
            Label::Named(What::File, name) => numbers + escaped_len(name),
            Label::Named(_, name) => 2 * numbers + escaped_len(name) + COUNT_DIGITS,
        }
    }
}

/// Sizes stand in a page in sectors, of which every extent has whole ones.
pub fn sectors(bytes: u64) -> u64 {
    bytes.div_ceil(SECTOR)
}

fn digits(number: u64) -> usize {
    number.checked_ilog10().unwrap_or(0) as usize + 1
}

/// Text as it stands in the data of a page: nothing in it ends the element that they are in.
pub fn escaped(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('<', "\\u003c")
}

/// How long that is.
fn escaped_len(text: &str) -> usize {
    match text.bytes().all(|byte| byte >= b' ' && !matches!(byte, b'"' | b'\\' | b'<')) {
        true => text.len() + 2,
        false => escaped(text).len(),
    }
}

/// What is left out of a directory.
#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    count: u64,
    sums: Sums,
}

impl Rest {
    fn add(&mut self, count: u64, sums: Sums) {
        self.count = self.count.saturating_add(count);
        self.sums.add(sums);
    }
}

/// Entries so far.
#[derive(Debug)]
pub struct Fold {
    budget: usize,
    entries: Vec<Entry>,
    /// What the entries take, together.
    cost: usize,
    /// What is left out of the directories that are not finished, by depth.
    open: Vec<Rest>,
}

impl Fold {
    /// None yet; `budget`: the bytes that they may take in a page.
    pub fn new(budget: usize) -> Fold {
        Fold { budget, entries: Vec::new(), cost: 0, open: Vec::new() }
    }

    /// Takes in what was measured.
    pub fn add(&mut self, found: &Found<'_>) {
        let name = quote::shown(found.name).into();
        let depth = u32::try_from(found.depth).unwrap_or(u32::MAX);
        self.put(Entry { depth, label: Label::Named(found.what, name), sums: found.sums });
        if self.cost > self.budget.saturating_mul(2) {
            self.fold();
        }
    }

    /// What is kept, a directory before what is in it.
    pub fn end(mut self) -> Vec<Entry> {
        if self.cost > self.budget {
            self.fold();
        }
        self.entries.reverse();
        self.entries
    }

    /// Takes in an entry, behind all that is below it.
    pub fn put(&mut self, entry: Entry) {
        if let Some(rest) = self.taken(entry.depth as usize + 1) {
            self.entries.push(Entry::smaller(entry.depth as usize + 1, &rest));
        }
        self.cost += entry.cost();
        self.entries.push(entry);
    }

    /// What is left out of the directory that is finished now, if anything is.
    fn taken(&mut self, depth: usize) -> Option<Rest> {
        let rest = std::mem::take(self.open.get_mut(depth)?);
        (rest.count > 0).then_some(rest)
    }

    fn leave_out(&mut self, depth: usize, count: u64, sums: Sums) {
        if self.open.len() <= depth {
            self.open.resize(depth + 1, Rest::default());
        }
        if let Some(rest) = self.open.get_mut(depth) {
            rest.add(count, sums);
        }
    }

    /// Leaves out what does not fit.
    fn fold(&mut self) {
        let is_kept = self.largest();
        let entries = std::mem::take(&mut self.entries);
        let open = std::mem::take(&mut self.open);
        self.cost = 0;
        for (entry, is_kept) in entries.into_iter().zip(is_kept) {
            let depth = entry.depth as usize;
            match entry.label {
                Label::Smaller(count) => self.leave_out(depth, count, entry.sums),
                _ if is_kept => self.put(entry),
                // What is below it is smaller, and was left out before.
                Label::Named(..) => {
                    let below = self.taken(depth + 1).map_or(0, |rest| rest.count);
                    self.leave_out(depth, below.saturating_add(1), entry.sums);
                }
            }
        }
        for (depth, rest) in open.into_iter().enumerate().filter(|(_, rest)| rest.count > 0) {
            self.leave_out(depth, rest.count, rest.sums);
        }
    }

    /// Which of the entries are kept.
    fn largest(&self) -> Vec<bool> {
        let mut order: Vec<usize> = (0..self.entries.len()).collect();
        let rank = |at: &usize| {
            let entry = self.entries.get(*at);
            let entry = entry.map(|it| (it.depth > 0, std::cmp::Reverse(it.sums.total), it.depth));
            (entry, *at)
        };
        order.sort_unstable_by_key(rank);
        let mut is_kept = vec![false; self.entries.len()];
        let mut cost = 0usize;
        for at in order {
            let Some((entry, kept)) = self.entries.get(at).zip(is_kept.get_mut(at)) else {
                continue;
            };
            cost = cost.saturating_add(entry.cost());
            if entry.depth > 0 && cost > self.budget {
                break;
            }
            *kept = true;
        }
        is_kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree that looks like chance, in the order in which it is measured.
    fn tree(files: u64) -> Vec<Entry> {
        let mut number = 7u64;
        let mut below = |bound: u64| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (number >> 33) % bound
        };
        let (mut entries, mut open) = (Vec::new(), vec![Sums::default()]);
        let close = |open: &mut Vec<Sums>, entries: &mut Vec<Entry>| {
            let sums = open.pop().unwrap_or_default();
            if let Some(above) = open.last_mut() {
                above.add(sums);
            }
            let name = format!("directory {}", entries.len()).into();
            let (depth, label) = (open.len() as u32, Label::Named(What::Directory, name));
            entries.push(Entry { depth, label, sums });
        };
        for file in 0..files {
            match below(10) {
                0 if open.len() < 20 => open.push(Sums::default()),
                1 if open.len() > 1 => close(&mut open, &mut entries),
                _ => {}
            }
            let most = 1 << below(12);
            let total = 4096 * below(most);
            let sums = Sums { total, shared: total.min(4096 * below(20)) };
            open.last_mut().unwrap().add(sums);
            let label = Label::Named(What::File, format!("file {file}").into());
            entries.push(Entry { depth: open.len() as u32, label, sums });
        }
        while !open.is_empty() {
            close(&mut open, &mut entries);
        }
        entries
    }

    fn folded(entries: &[Entry], budget: usize, early: bool) -> (Vec<Entry>, usize) {
        let mut fold = Fold::new(budget);
        for entry in entries {
            fold.put(entry.clone());
            if early && fold.cost > budget.saturating_mul(2) {
                fold.fold();
            }
        }
        let kept = fold.end();
        let cost = kept.iter().map(Entry::cost).sum();
        (kept, cost)
    }

    #[test]
    fn the_largest_are_kept_whenever_it_is_decided() {
        let entries = tree(5000);
        for budget in [0, 300, 2000, 10_000, 50_000, 1 << 20] {
            let (late, cost) = folded(&entries, budget, false);
            let (early, _) = folded(&entries, budget, true);
            assert_eq!(late, early, "{budget}");
            assert!(cost <= budget.max(100) && (budget < 1 << 20 || late.len() == entries.len()));
            let count = |it: &Entry| match it.label {
                Label::Smaller(count) => count,
                Label::Named(..) => 1,
            };
            assert_eq!(late.iter().map(count).sum::<u64>(), entries.len() as u64, "{budget}");
        }
    }

    /// Whatever is left out, a directory has what is in it.
    #[test]
    fn sums_stay() {
        let entries = tree(3000);
        let (kept, _) = folded(&entries, 5000, true);
        let mut open: Vec<(Sums, Sums)> = Vec::new();
        let mut met = 0;
        for entry in &kept {
            let close = open.split_off(open.len().min(entry.depth as usize));
            close.iter().filter(|(_, of)| of.total > 0).for_each(|(has, of)| assert_eq!(has, of));
            if let Some((has, _)) = open.last_mut() {
                has.add(entry.sums);
            }
            let is_directory = matches!(entry.label, Label::Named(What::Directory, _));
            let own = if is_directory { Sums::default() } else { entry.sums };
            open.push((own, entry.sums));
            met += usize::from(is_directory);
        }
        assert!(met > 10);
        assert_eq!(kept.first().map(|it| it.sums), entries.last().map(|it| it.sums));
    }

    #[test]
    fn nothing_in_a_name_ends_an_element() {
        assert_eq!(escaped("</script>\"\u{1}"), r#""\u003c/script>\"\u0001""#);
        for name in ["a", "", "Grüße", "<<", "\"", "\\", "\t"] {
            assert_eq!(escaped_len(name), escaped(name).len());
        }
    }
}
