//! Sizes as btrfs-progs prints them, in the unit that its options choose.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

/// The options of btrfs-progs that choose a unit.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnitArgs {
    units: Units,
}

/// One of these options, by its long name.
struct UnitOption {
    name: &'static str,
    short: Option<char>,
    alias: Option<&'static str>,
    help: &'static str,
    sets: Sets,
}

/// What an option changes of those before it.
#[derive(Clone, Copy)]
enum Sets {
    /// Everything.
    All(Choice),
    /// Powers of this.
    Base(u64),
    /// The unit, which numbers of bytes do not have.
    Power(usize),
}

/// What was chosen up to an option.
#[derive(Clone, Copy, Default)]
struct Choice {
    raw: bool,
    base: Option<u64>,
    power: usize,
}

const RAW: Choice = Choice { raw: true, base: None, power: 0 };

const fn of_base(base: u64) -> Choice {
    Choice { raw: false, base: Some(base), power: 0 }
}

const fn option(
    name: &'static str,
    short: Option<char>,
    alias: Option<&'static str>,
    help: &'static str,
    sets: Sets,
) -> UnitOption {
    UnitOption { name, short, alias, help, sets }
}

const OPTIONS: [UnitOption; 9] = [
    option("raw", Some('b'), Some("bytes"), "Bytes", Sets::All(RAW)),
    option(
        "human-readable",
        Some('h'),
        None,
        "Powers of 1024, each size in the unit that fits it (the default)",
        Sets::All(of_base(1024)),
    ),
    option("iec", None, None, "Powers of 1024, also with a unit before it", Sets::Base(1024)),
    option(
        "powers-of-1000",
        Some('H'),
        None,
        "Powers of 1000, each size in the unit that fits it",
        Sets::All(of_base(1000)),
    ),
    option("si", None, None, "Powers of 1000, also with a unit before it", Sets::Base(1000)),
    option("kbytes", Some('k'), None, "KiB", Sets::Power(1)),
    option("mbytes", Some('m'), None, "MiB", Sets::Power(2)),
    option("gbytes", Some('g'), None, "GiB", Sets::Power(3)),
    option("tbytes", Some('t'), None, "TiB", Sets::Power(4)),
];

impl Args for UnitArgs {
    fn augment_args(command: Command) -> Command {
        let help = Arg::new("help").long("help").action(ArgAction::Help).help("Print help");
        let flag = |it: &UnitOption| {
            let arg = Arg::new(it.name).action(ArgAction::SetTrue).help(it.help);
            let arg = arg.help_heading("Units");
            // The option of btrfs-progs for that is a letter only.
            let arg = if it.name == "powers-of-1000" { arg } else { arg.long(it.name) };
            let arg = it.alias.into_iter().fold(arg, Arg::visible_alias);
            it.short.into_iter().fold(arg, Arg::short)
        };
        command.disable_help_flag(true).args(OPTIONS.iter().map(flag)).arg(help)
    }

    fn augment_args_for_update(command: Command) -> Command {
        UnitArgs::augment_args(command)
    }
}

impl FromArgMatches for UnitArgs {
    fn from_arg_matches(found: &ArgMatches) -> Result<UnitArgs, clap::Error> {
        let given = OPTIONS.iter().filter(|it| found.get_flag(it.name));
        let mut given: Vec<_> =
            given.map(|it| (found.index_of(it.name).unwrap_or(0), it.sets)).collect();
        given.sort_by_key(|(index, _)| *index);
        let chosen = given.into_iter().fold(Choice::default(), |choice, (_, sets)| match sets {
            Sets::All(all) => all,
            Sets::Base(base) => Choice { raw: false, base: Some(base), ..choice },
            Sets::Power(power) => Choice { power, ..choice },
        });
        Ok(UnitArgs { units: chosen.units() })
    }

    fn update_from_arg_matches(&mut self, found: &ArgMatches) -> Result<(), clap::Error> {
        *self = UnitArgs::from_arg_matches(found)?;
        Ok(())
    }
}

impl Choice {
    fn units(self) -> Units {
        let base = self.base.unwrap_or(1024);
        match self.power {
            _ if self.raw => Units::Raw,
            0 => Units::Fitting { base },
            power => Units::Fixed { base, power },
        }
    }
}

/// How sizes are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Units {
    /// As numbers of bytes.
    Raw,
    /// In the unit that fits, powers of `base`.
    Fitting {
        /// 1000 or 1024.
        base: u64,
    },
    /// In `base` to the power of `power`.
    Fixed {
        /// 1000 or 1024.
        base: u64,
        /// 1 for kilobytes, 4 for terabytes.
        power: usize,
    },
}

const IEC: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const SI: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];

impl UnitArgs {
    /// What was chosen, by the last of contradicting options, as with btrfs-progs.
    pub fn units(&self) -> Units {
        self.units
    }
}

/// Sizes in messages.
impl Default for Units {
    fn default() -> Units {
        Units::Fitting { base: 1024 }
    }
}

impl Units {
    /// A size.
    pub fn show(self, bytes: u64) -> String {
        let (base, power) = match self {
            Units::Raw => return bytes.to_string(),
            Units::Fixed { base, power } => (base, power),
            Units::Fitting { base } => (base, fitting(bytes, base)),
        };
        let names = if base == 1000 { &SI } else { &IEC };
        let unit = names.get(power).copied().unwrap_or("B");
        if power == 0 {
            return format!("{bytes}.00{unit}");
        }
        // btrfs-progs rounds what is whole in the next smaller unit, and has no more than a float for it.
        let whole = (1..power).fold(bytes, |bytes, _| bytes / base);
        format!("{:.2}{unit}", whole as f32 / base as f32)
    }

    /// How wide `filesystem usage` prints a size.
    pub fn width(self) -> usize {
        match self {
            Units::Fitting { base: 1024 } => 10,
            _ => 18,
        }
    }
}

/// The power of `base` that leaves at least one before the point.
fn fitting(mut bytes: u64, base: u64) -> usize {
    let mut power = 0;
    while bytes >= base {
        bytes /= base;
        power += 1;
    }
    power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_btrfs_progs_prints_them() {
        let human = Units::Fitting { base: 1024 };
        assert_eq!(human.show(0), "0.00B");
        assert_eq!(human.show(1023), "1023.00B");
        assert_eq!(human.show(8 << 20), "8.00MiB");
        assert_eq!(human.show(53_673_984), "51.19MiB");
        assert_eq!(human.show(u64::MAX), "16.00EiB");
        assert_eq!(Units::Fitting { base: 1000 }.show(16384), "16.38kB");
        assert_eq!(Units::Fitting { base: 1000 }.show(327_155_712), "327.15MB");
        assert_eq!(Units::Fixed { base: 1024, power: 1 }.show(8 << 20), "8192.00KiB");
        assert_eq!(Units::Fixed { base: 1024, power: 3 }.show(132_513_792), "0.12GiB");
        assert_eq!(Units::Raw.show(16384), "16384");
    }
}
