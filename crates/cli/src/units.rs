//! Sizes as btrfs-progs prints them, in the unit that its options choose.

use clap::Args;

/// The options of btrfs-progs that choose a unit.
#[derive(Clone, Copy, Debug, Default, Args)]
#[command(disable_help_flag = true)]
pub struct UnitArgs {
    /// Bytes
    #[arg(short = 'b', long, visible_alias = "bytes", help_heading = "Units")]
    raw: bool,
    /// Powers of 1024, each size in the unit that fits it (the default)
    #[arg(short = 'h', long, visible_alias = "iec", help_heading = "Units")]
    human_readable: bool,
    /// Powers of 1000
    #[arg(short = 'H', long, help_heading = "Units")]
    si: bool,
    /// KiB
    #[arg(short, long, help_heading = "Units")]
    kbytes: bool,
    /// MiB
    #[arg(short, long, help_heading = "Units")]
    mbytes: bool,
    /// GiB
    #[arg(short, long, help_heading = "Units")]
    gbytes: bool,
    /// TiB
    #[arg(short, long, help_heading = "Units")]
    tbytes: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
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
    /// What was chosen.
    pub fn units(&self) -> Units {
        let base = if self.si { 1000 } else { 1024 };
        let powers = [self.kbytes, self.mbytes, self.gbytes, self.tbytes];
        match powers.iter().position(|chosen| *chosen) {
            _ if self.raw => Units::Raw,
            Some(index) => Units::Fixed { base, power: index + 1 },
            None => Units::Fitting { base },
        }
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
