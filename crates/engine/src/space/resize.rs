//! The size of the device, and which profile new chunks have.

use buttress_ondisk::item::chunk_type;

use super::device::copies;
use super::{Class, Space};

impl Space {
    /// The device's number.
    pub fn devid(&self) -> u64 {
        self.pool.lock().device.devid()
    }

    /// Bytes of the device that the filesystem has.
    pub fn device_size(&self) -> u64 {
        self.pool.lock().device.total()
    }

    /// Where the last byte ends that a chunk has of the device, those that are on their way out among them.
    pub fn device_end(&self) -> u64 {
        self.pool.lock().device.end()
    }

    /// New chunks lie before byte `end` of the device from now on, where what was promised so far has room then. Whether it has.
    pub fn limit_device(&self, end: u64) -> bool {
        let _taken_back = self.take_back();
        let mut pool = self.pool.lock();
        pool.device.limit(Some(end));
        pool.credit = Default::default();
        let fits = self.outlook(&pool, true).fits_promises(pool.promises);
        if !fits {
            pool.device.limit(None);
        }
        fits
    }

    /// Whether [`Space::limit_device`] would do so for a byte behind which nothing lies. (Out of the question while another limit holds.)
    pub fn may_end(&self, end: u64) -> bool {
        let _taken_back = self.take_back();
        let mut pool = self.pool.lock();
        if pool.device.is_limited() || pool.device.end() > end {
            return false;
        }
        pool.device.limit(Some(end));
        let fits = self.outlook(&pool, true).fits_promises(pool.promises);
        pool.device.limit(None);
        pool.credit = Default::default();
        fits
    }

    /// New chunks may lie anywhere on the device.
    pub fn unlimit_device(&self) {
        let mut pool = self.pool.lock();
        pool.device.limit(None);
        pool.credit = Default::default();
    }

    /// The device has so many bytes, which the next commit that asks what is dirty writes.
    pub fn resize_device(&self, size: u64) {
        let mut pool = self.pool.lock();
        pool.device.item.total_bytes = size.into();
        pool.resized = true;
        pool.credit = Default::default();
    }

    /// The device's size as the last commit that asked has written it, for the superblock.
    pub fn written_device_size(&self) -> u64 {
        self.pool.lock().written().device.total_bytes.get()
    }

    /// New chunks of a class have this profile, where what was promised so far has room then. Whether it has: also where there was none for what
    /// is left to deletions before, if chunks do not become larger by it. (Linux refuses a group that is to be converted, and no profile.)
    pub fn set_profile(&self, class: Class, profile: u64) -> bool {
        let _taken_back = self.take_back();
        let mut pool = self.pool.lock();
        let before = pool.type_of(class);
        let after = before & !chunk_type::PROFILE_MASK | profile;
        pool.set_type(class, after);
        pool.credit = Default::default();
        // Nobody is promised anything of the chunk tree's.
        let is_no_worse = class == Class::System || copies(after) <= copies(before);
        let fits = is_no_worse || self.outlook(&pool, true).fits_promises(pool.promises);
        if !fits {
            pool.set_type(class, before);
        }
        fits
    }
}
