//! The balance item: what a balance is about, in the root tree from its beginning to its end. One that finds it has been paused, or
//! interrupted by a crash, and Linux goes on with it at its next mount as this does.

use std::ops::Range;

use buttress_ondisk::item::{BalanceArgs, BalanceItem, balance_args, balance_flags};
use zerocopy::{FromBytes, IntoBytes};

use super::{Balance, BalanceFilter};
use crate::error::{Error, Result, Unsupported};

/// What a balance that goes on takes of what it would have taken at its beginning, in percent: what it has written is fuller.
const RESUMED_USAGE: u32 = 90;

impl Balance {
    /// The item that stands for it, as Linux writes it.
    pub fn to_item(&self) -> Vec<u8> {
        let parts = [&self.data, &self.metadata, &self.system];
        let types = [balance_flags::DATA, balance_flags::METADATA, balance_flags::SYSTEM];
        let asked = types.iter().zip(parts).filter(|(_, part)| part.is_some());
        let force = if self.force { balance_flags::FORCE } else { 0 };
        let item = BalanceItem {
            flags: (asked.map(|(flag, _)| flag).sum::<u64>() | force).into(),
            parts: parts.map(|part| part.as_ref().map(args_of).unwrap_or_default()),
            ..BalanceItem::default()
        };
        item.as_bytes().to_vec()
    }

    /// What an item stands for. An error where there is something that is not known.
    pub fn of_item(item: &[u8]) -> Result<Balance> {
        let unknown = Error::Unsupported(Unsupported::Balance);
        let Ok((item, _)) = BalanceItem::read_from_prefix(item) else { return Err(unknown) };
        let flags = item.flags.get();
        if item.parts.iter().any(|part| part.flags.get() & !balance_args::ALL != 0) {
            return Err(unknown);
        }
        let [data, metadata, system] = &item.parts;
        let part = |flag, part| (flags & flag != 0).then(|| filter_of(part));
        Ok(Balance {
            data: part(balance_flags::DATA, data),
            metadata: part(balance_flags::METADATA, metadata),
            system: part(balance_flags::SYSTEM, system),
            force: flags & balance_flags::FORCE != 0,
        })
    }

    /// What is left to do of it, as Linux sees it: what is converted and done is passed over, and so is what is nearly full, for so is what it has
    /// written.
    pub(super) fn resumed(mut self) -> Balance {
        for filter in [&mut self.data, &mut self.metadata, &mut self.system].into_iter().flatten() {
            match filter.convert {
                Some(_) => filter.soft = true,
                None if filter.usage.is_none() => filter.usage = Some(0..RESUMED_USAGE),
                None => {}
            }
        }
        self
    }
}

fn args_of(filter: &BalanceFilter) -> BalanceArgs {
    let mut args = BalanceArgs::default();
    let mut flags = 0;
    let mut set = |is_there: bool, flag: u64| flags |= if is_there { flag } else { 0 };
    let BalanceFilter { profiles, usage, devid, drange, vrange, limit, stripes, convert, soft } =
        filter;
    set(profiles.is_some(), balance_args::PROFILES);
    args.profiles = profiles.unwrap_or(0).into();
    if let Some(Range { start, end }) = usage {
        // One number has less than that, and has been there for longer.
        let is_one = *start == 0 && *end <= 100;
        set(true, if is_one { balance_args::USAGE } else { balance_args::USAGE_RANGE });
        let (least, most) = if is_one { (*end, 0) } else { (*start, *end) };
        (args.usage_min, args.usage_max) = (least.into(), most.into());
    }
    set(devid.is_some(), balance_args::DEVID);
    args.devid = devid.unwrap_or(0).into();
    if let Some(Range { start, end }) = drange {
        set(true, balance_args::DRANGE);
        (args.pstart, args.pend) = ((*start).into(), (*end).into());
    }
    if let Some(Range { start, end }) = vrange {
        set(true, balance_args::VRANGE);
        (args.vstart, args.vend) = ((*start).into(), (*end).into());
    }
    if let Some((least, most)) = *limit {
        set(true, if least == 0 { balance_args::LIMIT } else { balance_args::LIMIT_RANGE });
        let (least, most) = if least == 0 { (most, 0) } else { (least, most) };
        (args.limit_min, args.limit_max) = (least.into(), most.into());
    }
    if let Some((least, most)) = *stripes {
        set(true, balance_args::STRIPES_RANGE);
        (args.stripes_min, args.stripes_max) = (least.into(), most.into());
    }
    set(convert.is_some(), balance_args::CONVERT);
    args.target = convert.unwrap_or(0).into();
    set(*soft, balance_args::SOFT);
    args.flags = flags.into();
    args
}

fn filter_of(args: &BalanceArgs) -> BalanceFilter {
    let flags = args.flags.get();
    let has = |flag: u64| flags & flag != 0;
    /// Two words that are one number, as far as that goes.
    fn one(low: u32, high: u32) -> u32 {
        if high == 0 { low } else { u32::MAX }
    }
    let (usage_min, usage_max) = (args.usage_min.get(), args.usage_max.get());
    let (limit_min, limit_max) = (args.limit_min.get(), args.limit_max.get());
    BalanceFilter {
        profiles: has(balance_args::PROFILES).then(|| args.profiles.get()),
        usage: match () {
            // btrfs-progs says both of a range.
            () if has(balance_args::USAGE_RANGE) => Some(usage_min..usage_max),
            () => has(balance_args::USAGE).then(|| 0..one(usage_min, usage_max)),
        },
        devid: has(balance_args::DEVID).then(|| args.devid.get()),
        drange: has(balance_args::DRANGE).then(|| args.pstart.get()..args.pend.get()),
        vrange: has(balance_args::VRANGE).then(|| args.vstart.get()..args.vend.get()),
        limit: match () {
            () if has(balance_args::LIMIT_RANGE) => Some((limit_min, limit_max)),
            () => has(balance_args::LIMIT).then(|| (0, one(limit_min, limit_max))),
        },
        stripes: has(balance_args::STRIPES_RANGE)
            .then(|| (args.stripes_min.get(), args.stripes_max.get())),
        convert: has(balance_args::CONVERT).then(|| args.target.get()),
        soft: has(balance_args::SOFT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let all = BalanceFilter {
            profiles: Some(BalanceFilter::SINGLE),
            usage: Some(5..50),
            devid: Some(1),
            drange: Some(1..2),
            vrange: Some(3..u64::MAX),
            limit: Some((2, 7)),
            stripes: Some((1, 2)),
            convert: Some(BalanceFilter::SINGLE),
            soft: true,
        };
        let one = BalanceFilter { usage: Some(0..30), limit: Some((0, 7)), ..Default::default() };
        let full = BalanceFilter { usage: Some(5..101), ..Default::default() };
        for (data, metadata) in [(Some(all), None), (None, Some(one)), (Some(full), None)] {
            let balance = Balance { data, metadata, system: None, force: true };
            assert_eq!(Balance::of_item(&balance.to_item()).unwrap(), balance);
        }
        assert!(Balance::of_item(&[0; 447]).is_err());
        let mut item = Balance { data: Some(Default::default()), ..Default::default() }.to_item();
        // The flags of the part for data.
        item[8 + 64 + 7] = 0x80;
        assert!(Balance::of_item(&item).is_err());
    }

    #[test]
    fn what_is_done_is_passed_over_when_it_goes_on() {
        let converts = BalanceFilter { convert: Some(1 << 5), ..Default::default() };
        let whole = Balance {
            data: Some(converts),
            metadata: Some(BalanceFilter::default()),
            system: Some(BalanceFilter { usage: Some(0..50), ..Default::default() }),
            force: false,
        };
        let rest = whole.clone().resumed();
        assert!(rest.data.unwrap().soft);
        assert_eq!(rest.metadata.unwrap().usage, Some(0..90));
        assert_eq!(rest.system, whole.system);
    }
}
