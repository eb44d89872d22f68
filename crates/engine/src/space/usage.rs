//! What `statfs` and `btrfs filesystem usage` say.

use super::device::copies;
use super::{Class, Space};

/// Space of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassUsage {
    /// Type and profile of its newest kind of chunk, or of the only one meant.
    pub flags: u64,
    /// Bytes of its groups.
    pub total: u64,
    /// Bytes used in them, data included that no commit refers to yet.
    pub used: u64,
    /// Bytes of the device that they take.
    pub device_total: u64,
    /// Bytes of the device that `used` takes, all copies counted.
    pub device_used: u64,
}

/// What `statfs` says, in bytes: as the kernel counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatBytes {
    /// The device.
    pub total: u64,
    /// What of that neither an extent nor the global reserve takes.
    pub free: u64,
    /// What file data can still take.
    pub available: u64,
}

/// Space of the filesystem. In a mixed filesystem `data` is both data and metadata, and `metadata` is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of the device.
    pub device_total: u64,
    /// Bytes of the device that no chunk has, or will have after the commits that take vacant ones away.
    pub unallocated: u64,
    /// File data.
    pub data: ClassUsage,
    /// Tree blocks.
    pub metadata: ClassUsage,
    /// The chunk tree.
    pub system: ClassUsage,
    /// Bytes of metadata that only deletions may use.
    pub global_reserve: u64,
    /// Bytes that file data can still take, chunks not made yet included.
    pub data_available: u64,
    /// Data and metadata share groups.
    pub mixed: bool,
}

impl Usage {
    /// Bytes used, copies not counted. The superblock says [`Space::bytes_used`].
    pub fn used(&self) -> u64 {
        self.data.used + self.metadata.used + self.system.used
    }

    /// What `statfs` says. As on Linux, all counts half where there are data that are kept twice.
    pub fn stat(&self) -> StatBytes {
        let ClassUsage { total, device_total, .. } = self.data;
        let factor = if device_total > total { 2 } else { 1 };
        let used = self.data.device_used + self.metadata.device_used + self.system.device_used;
        let total = self.device_total / factor;
        let free = total.saturating_sub(used / factor).saturating_sub(self.global_reserve);
        StatBytes { total, free, available: self.data_available.min(free) }
    }
}

impl Space {
    /// How full the filesystem is. Counts what running operations have allocated, not what they were
    /// promised.
    pub fn usage(&self) -> Usage {
        let pool = self.pool.lock();
        let class = |class: Class| {
            let sums = self.slots[class.slot()].counters.read();
            let parts = self.by_profile(class);
            let sum = |of: fn(&ClassUsage) -> u64| parts.iter().map(of).sum();
            ClassUsage {
                flags: pool.type_of(class),
                total: sums.total,
                used: sums.used + sums.promised,
                device_total: sum(|part| part.device_total),
                device_used: sum(|part| part.device_used),
            }
        };
        // Whoever finds no room waits for the commits that make these chunks free, unless they lie behind the end of a filesystem that gets smaller.
        let leaving = if pool.device.is_limited() { 0 } else { pool.leaving() };
        let mut outlook = self.outlook(&pool, true);
        outlook.room += leaving;
        let data = class(Class::Data);
        let free = outlook.data.free + outlook.data.pinned;
        let kept = if self.mixed { outlook.global_reserve() } else { 0 };
        let growth = outlook.limit(Class::Data, Default::default()) / outlook.data_copies;
        Usage {
            device_total: pool.device.total(),
            unallocated: pool.device.total().saturating_sub(pool.device.used()) + leaving,
            data,
            metadata: class(Class::Metadata),
            system: class(Class::System),
            global_reserve: outlook.global_reserve(),
            data_available: (free + growth).saturating_sub(kept),
            mixed: self.mixed,
        }
    }

    /// Space of each class, data first; where a class has groups of several profiles, of each of these.
    pub fn spaces(&self) -> Vec<ClassUsage> {
        let usage = self.usage();
        let mut classes = vec![(Class::Data, usage.data), (Class::System, usage.system)];
        if !self.mixed {
            classes.push((Class::Metadata, usage.metadata));
        }
        let parts = |(class, whole)| match self.by_profile(class) {
            parts if parts.len() > 1 => parts,
            _ => vec![whole],
        };
        classes.into_iter().flat_map(parts).collect()
    }

    /// What the groups of each profile add up to.
    fn by_profile(&self, class: Class) -> Vec<ClassUsage> {
        let mut parts: Vec<ClassUsage> = Vec::new();
        for group in self.slots[class.slot()].set.lock().groups() {
            let (flags, copies) = (group.flags, copies(group.flags));
            let at = parts.iter().position(|part| part.flags == flags).unwrap_or_else(|| {
                parts.push(ClassUsage { flags, ..ClassUsage::default() });
                parts.len() - 1
            });
            let (part, used) = (&mut parts[at], group.used + group.promised_bytes());
            part.total += group.range.len;
            part.used += used;
            part.device_total += group.range.len * copies;
            part.device_used += used * copies;
        }
        parts
    }
}
