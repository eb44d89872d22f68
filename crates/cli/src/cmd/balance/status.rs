//! `balance status`, with the text of btrfs-progs.

use std::io::Write;

use buttress::{Balance, BalanceFilter, BalanceStop, Balancing};
use buttress_device::Access;
use buttress_fuse::mount::control::BalanceFacts;
use buttress_ondisk::item::{BalanceArgs, BalanceItem, balance_args};
use clap::Args;
use serde_json::json;

use super::{Place, filter};
use crate::args::Globals;
use crate::cmd::files::with_vfs;
use crate::error::Failure;
use crate::output::{self, Format};

/// Arguments of `balance status`.
#[derive(Debug, Args)]
pub struct Status {
    #[command(flatten)]
    place: Place,
}

/// Tells.
pub fn run(args: &Status, globals: &Globals, out: &mut dyn Write) -> Result<(), Failure> {
    let (name, facts) = with_vfs(&args.place.target, Access::ReadOnly, globals, |vfs| {
        let facts = vfs.balance();
        let why = |why| Failure::new("cannot ask for the balance of", vfs.name(), why);
        Ok((vfs.name(), facts.map_err(why)?))
    })?;
    let running = facts.task.running;
    let is_there = running || facts.unfinished.is_some();
    let at = facts.task.progress.unwrap_or_default();
    match globals.format {
        Format::Json => output::write_json(out, "balance-status", record(&facts, at))?,
        Format::Text if is_there => {
            let stop = match facts.task.stop.filter(|_| running) {
                Some(BalanceStop::Pause) => ", pause requested",
                Some(BalanceStop::Cancel) => ", cancel requested",
                None => "",
            };
            let state = if running { "running" } else { "paused" };
            writeln!(out, "Balance on '{name}' is {state}{stop}")?;
            writeln!(
                out,
                "{} out of about {} chunks balanced ({} considered), {:3.0}% left",
                at.completed,
                at.expected,
                at.considered,
                left(at)
            )?;
            if globals.verbose
                && let Some(balance) = &facts.unfinished
            {
                write_filters(out, balance, running)?;
            }
        }
        Format::Text => writeln!(out, "No balance found on '{name}'")?,
    }
    out.flush()?;
    // The exit code is an answer, too.
    if is_there { Err(Failure::said()) } else { Ok(()) }
}

/// Percent that are left to do; nobody knows of one that another program has begun.
fn left(at: Balancing) -> f64 {
    if at.expected == 0 {
        return 100.0;
    }
    let had = at.group.had.max(1) as f64;
    let part = (at.group.had.saturating_sub(at.group.has)) as f64 / had;
    let done = (at.completed as f64 + part) / at.expected as f64;
    100.0 * (1.0 - done.clamp(0.0, 1.0))
}

fn record(facts: &BalanceFacts, at: Balancing) -> serde_json::Value {
    let running = facts.task.running;
    let state = match (running, &facts.unfinished) {
        (true, _) => "running",
        (false, Some(_)) => "paused",
        (false, None) => "none",
    };
    let stop = facts.task.stop.filter(|_| running).map(|stop| match stop {
        BalanceStop::Pause => "pause",
        BalanceStop::Cancel => "cancel",
    });
    let parts = facts.unfinished.as_ref().map(|balance| {
        let part = |part: &Option<BalanceFilter>| part.as_ref().map(filter::text);
        json!({
            "data": part(&balance.data),
            "metadata": part(&balance.metadata),
            "system": part(&balance.system),
            "force": balance.force,
        })
    });
    json!({
        "state": state,
        "requested": stop,
        "expected": at.expected,
        "considered": at.considered,
        "completed": at.completed,
        "left-percent": left(at),
        "filters": parts,
    })
}

/// What the item says, as btrfs-progs tells it.
fn write_filters(out: &mut dyn Write, balance: &Balance, running: bool) -> Result<(), Failure> {
    let item = balance.to_item();
    let Some(item) = BalanceItem::of(&item) else { return Ok(()) };
    let force = if balance.force { ", force is on" } else { "" };
    let state = u8::from(running);
    writeln!(out, "Dumping filters: flags {:#x}, state {state:#x}{force}", item.flags.get())?;
    let parts = [&balance.data, &balance.metadata, &balance.system];
    for ((name, part), args) in ["DATA", "METADATA", "SYSTEM"].iter().zip(parts).zip(&item.parts) {
        if part.is_some() {
            writeln!(out, "  {name} (flags {:#x}): {}", args.flags.get(), words(args))?;
        }
    }
    Ok(())
}

fn words(args: &BalanceArgs) -> String {
    let BalanceArgs { usage_min, usage_max, limit_min, limit_max, .. } = args;
    let BalanceArgs { stripes_min, stripes_max, pstart, pend, vstart, vend, .. } = args;
    let flags = args.flags.get();
    let soft = if flags & balance_args::SOFT != 0 { "on" } else { "off" };
    let mut words = match flags & balance_args::CONVERT {
        0 => "balancing".to_owned(),
        _ => format!("converting, target={}, soft is {soft}", args.target),
    };
    for (flag, word) in [
        (balance_args::PROFILES, format!("profiles={}", args.profiles)),
        (balance_args::USAGE, format!("usage={usage_min}")),
        (balance_args::USAGE_RANGE, format!("usage={usage_min}..{usage_max}")),
        (balance_args::DEVID, format!("devid={}", args.devid)),
        (balance_args::DRANGE, format!("drange={pstart}..{pend}")),
        (balance_args::VRANGE, format!("vrange={vstart}..{vend}")),
        (balance_args::LIMIT, format!("limit={limit_min}")),
        (balance_args::LIMIT_RANGE, format!("limit={limit_min}..{limit_max}")),
        (balance_args::STRIPES_RANGE, format!("stripes={stripes_min}..{stripes_max}")),
    ] {
        if flags & flag != 0 {
            words.push_str(", ");
            words.push_str(&word);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use buttress::Emptying;

    use super::*;

    #[test]
    fn what_is_left_counts_the_group_that_is_being_emptied() {
        let group = Emptying { had: 100, has: 50, moved: 1 };
        let at = Balancing { considered: 9, expected: 4, completed: 1, group };
        assert_eq!(left(at), 62.5);
        assert_eq!(left(Balancing::default()), 100.0);
        assert_eq!(left(Balancing { completed: 9, ..at }), 0.0);
    }
}
