//! Judges many workloads, several at a time, and tells what came of it.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Workload;
use super::judge::{Verdict, judge};
use super::make::Left;

/// How workloads are judged.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Workloads at a time: most of each waits for programs and for the kernel.
    pub threads: usize,
    /// Where images of failures are kept.
    pub keep: Option<PathBuf>,
}

/// Judges workloads; the verdicts are in their order.
pub fn run(workloads: &[Workload], plan: &Plan) -> Vec<Verdict> {
    let next = AtomicUsize::new(0);
    let verdicts = Mutex::new(Vec::new());
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(workload) = workloads.get(number) else { return };
            let verdict = judge(workload, plan.keep.as_deref());
            let mut verdicts = verdicts.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            verdicts.push((number, verdict));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..plan.threads.max(1) {
            scope.spawn(work);
        }
    });
    let mut verdicts = verdicts.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    verdicts.sort_by_key(|(number, _)| *number);
    verdicts.into_iter().map(|(_, verdict)| verdict).collect()
}

/// The failures as a table: a line for each part of each workload that failed.
pub fn table(verdicts: &[Verdict]) -> String {
    let mut text = String::new();
    for verdict in verdicts {
        let left = match verdict.left {
            Some(Left::Log) | None => "",
            Some(Left::Commit) => " (Linux committed instead)",
            Some(Left::Nothing) => " (no log)",
        };
        for (part, why) in &verdict.failures {
            let why = why.trim().replace('\n', "\n    ");
            text += &format!("{}{left}: {part}: {why}\n", verdict.name);
        }
    }
    text
}

/// The figures of a run, and the workloads in which Linux committed instead of leaving a log.
pub fn summary(verdicts: &[Verdict]) -> String {
    let failed = verdicts.iter().filter(|it| !it.failures.is_empty()).count();
    let of = |left| -> Vec<_> {
        verdicts.iter().filter(|it| it.left == Some(left)).map(|it| it.name.as_str()).collect()
    };
    let (logs, total) = (of(Left::Log).len(), verdicts.len());
    let mut text = format!("{total} workloads, {logs} with a log, {failed} failed\n");
    let mut parts = std::collections::BTreeMap::<&str, usize>::new();
    verdicts.iter().flat_map(|it| &it.failures).for_each(|it| *parts.entry(it.0).or_default() += 1);
    parts.iter().for_each(|(part, count)| text += &format!("  {part}: {count}\n"));
    for (left, said) in [(Left::Commit, "committed instead"), (Left::Nothing, "wrote nothing")] {
        let names = of(left);
        if !names.is_empty() {
            text += &format!("Linux {said} ({}): {}\n", names.len(), names.join(" "));
        }
    }
    text
}
